"""Conjugate gradients (Hestenes and Stiefel, J. Res. NBS 49 (1952) 409) on any vectors of `jali.vectors`.

`cg` solves to a relative tolerance, is strict about the operator, and records graphs (`jali.solvers.krylov`); `CG` counts and stops steps as
`pylops` does. The operator is one with `matvec`, or for `cg` a function that writes A p into a given vector, so that one solve allocates four of them. An
iteration is the operator with the inner product of p and A p, which its last kernel may give, one update of r that also yields |r|^2, and one of x and p.
Sums are reproducible: residual histories agree to the last bit on any number of ranks. With a preconditioner the recursion is that of
`jali.solvers.preconditioned`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.errors import SolverError
from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.causes import gives_bad_numbers, not_finite, not_hermitian
from jali.solvers.diagnosis import Diagnosis
from jali.solvers.elementwise import computed, going, part, quotient, settle, where
from jali.solvers.krylov import Krylov
from jali.solvers.operators import (
    ApplyInner,
    Function,
    apply_inner_of,
    forward_of,
    function_of,
    is_operator,
    started,
    widened,
)
from jali.solvers.preconditioned import PreconditionedCG
from jali.solvers.recorded import recorded
from jali.solvers.recursion import NORMAL, Recursion, Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, NEGLIGIBLE, Itershow, Solver, check_arguments, check_tolerances
from jali.vectors import Vectors, check_alike, vectors_of


@recorded(hermitian=True)
@named
@sharing
def cg(
    A: Callable[[Any, Any], Any] | Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = None,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    check_interval: int | None = None,
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for a Hermitian positive definite A.

    Of a field with a batch all members are solved at once, each with the residual history that it has alone, and stop one by one; the
    result is a `jali.solvers.BatchSolution`. Where A joins members of the batch, as domain wall operators do and say by `joins_members`,
    all of them are one vector.

    Args:
        A: an operator with `matvec`, or a function: `A(p, q)` writes A p into the vector q and leaves p as it is. Where the method has
            one for the inner product beside it, `matvec_inner` or `NAME_inner`, that is called (`jali.solvers.operators`).
        b: right-hand side: a field, an array of NumPy, CuPy or PyTorch, a distributed array or a stack, or a list of these.
        x0: where to start; zero if left out. It is not changed.
        M: a preconditioner, Hermitian and positive definite: an operator, or a function `M(r, z)` that writes an approximation of A^-1 r into z. It may be
            another one in each iteration, such as a solve to a low accuracy (`jali.solvers.preconditioned`).
        rtol: stop when |r| <= max(rtol |b|, atol). In float32 nothing below about 1e-6 |b| can be reached.
        atol: the bound that does not depend on |b|.
        maxiter: give up after so many applications of A.
        callback: called with x after each iteration, or with `check_interval` whenever the host checks.
        must_converge: raise SolverError when giving up; otherwise return with `converged` False.
        check_interval: so many iterations are recorded as a graph (`jali.graph`), for which A is called without anything being
            computed, and the host checks at the end of each. If left out: 8 for fields whose operator can be recorded and no callback, fewer where
            the end is near, else 1, without graphs. The result does not depend on it.
        inner: the operator and the format of a recursion in few bits, whose residual is replaced by that of A when it has fallen far enough:
            `Inner(few, like)`. Iterations are those of the recursion; A is applied once for each update.

    Raises:
        SolverError: no convergence; stagnation; |b - A x| stays above the tolerance, below what rounding allows; A is not positive definite, not
            Hermitian, or produced infinities or nan. The message names which of these was measured, or the condition number as the cause. It has the
            `history` of the residuals.
        ParameterError: impossible tolerance or bound; vectors of an unsupported type.
        LayoutError: b and x0 do not fit together.
        RecordingError: `check_interval` was given, and the operator cannot be recorded.
    """
    check_arguments("cg", rtol, atol, maxiter=maxiter, check_interval=check_interval)
    run = (
        ConjugateGradients.of_workspace(more, A, b, x0, rtol, atol, inner)
        if M is None
        else PreconditionedCG.of_workspace(more, A, b, x0, M, rtol, atol, inner)
    )
    return solved(run, maxiter, must_converge, check_interval, callback, **more)


def _kept_ratio(new: Any, old: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """The ratio; 1 where the recursion waits for its update, since its direction stays."""
    return where(going(rr, size, tolerance), new / old, 1.0)


def _without(product: Any, rr: Any, ratio: Any) -> Any:
    """What a direction times `ratio` gets of r, with which it has this product."""
    return 1.0 - ratio * part(product, rr)


def _once(rr: Any, size: Any, tolerance: Any) -> Any:
    return where(going(rr, size, tolerance), 1.0, 0.0)


class ConjugateGradients(Krylov):
    """The direction p, and q = A p with its inner product with p, which the operator may give."""

    name = "cg"
    watches_positive = True

    def prepare(self, rr: np.ndarray) -> None:
        self.diagnosis: Diagnosis | None = None

    def begin(self, rr: np.ndarray) -> list[Any]:
        if not hasattr(self, "p"):
            self.p = self.vectors.like(self.b)
            self.q = None if is_operator(self.A) else self.vectors.like(self.b)
            self.forward = self.forward_function()
            self.apply_inner = apply_inner_of("the operator", self.A, self.vectors, self.q)
        if not np.ndim(rr):  # at a restart, too: its numbers are those of another matrix of Lanczos
            self.diagnosis = self._diagnosed(float(rr))
        self.vectors.update([(self.p, 0, [(1, self.r)])])
        return [rr]

    def forward_function(self) -> Function:
        """That of which the recursion is: A p."""
        return function_of("the operator", self.A, self.q)

    def step(self, rr: Any) -> tuple[list[Any], list[Any], list[Any]]:
        size, tolerance = self.size, self.tolerance
        self.q, curvature = self.apply_inner(self.p, self.waits)
        alpha = computed(quotient, rr, curvature.real, rr, size, tolerance)
        new = self.update((self.r, 1, [(-alpha, self.q)]), norm=True)
        along = (self.x, 1, [(alpha, self.p)])
        if self.outer is None:
            self.update(along, (self.p, computed(quotient, new, rr, rr, size, tolerance), [(1, self.r)]))
        else:
            weight = computed(_kept_ratio, new, rr, rr, size, tolerance)
            once = computed(_once, rr, size, tolerance)
            settle(alpha, weight, once, *self.bounded(new))
            self.update(along, (self.p, weight, [(once, self.r)]))
        return [new], [new], [curvature]

    def release(self) -> None:
        self.vectors.update([(self.p, 1, [(-1, self.r)])])

    def resume(self, rr: Any, ratio: Any) -> list[Any] | None:
        """The last direction is made orthogonal to r, as it was to the r of the recursion."""
        weight = computed(_without, self.inner(self.r, self.p), rr, ratio)
        self.update((self.p, ratio, [(weight, self.r)]))
        return [rr]

    def quick(self, squares: np.ndarray, watched: np.ndarray) -> bool:
        unit = self._unit() if self.diagnosis is not None else 1.0
        return self.diagnosis is None or self.diagnosis.quick(watched[:, 0].real / unit, squares / unit)

    def check(self, *watched: np.ndarray) -> None:
        (curvature,) = watched
        if self.diagnosis is None:
            self.refuse_bad("p^dagger A p", curvature)
            if np.any(wrong := self.went & ~(np.real(curvature) > 0)):
                raise self.error(
                    wrong,
                    f"p^dagger A p is not positive: the operator is singular, not positive definite or not Hermitian; {NORMAL}",
                )
        elif self.went:
            unit = self._unit()
            cause = self.diagnosis.wrong(float(np.real(curvature)) / unit, float(self.squares) / unit)
            if cause:
                raise self.error(self.went, cause, measured=False)
        if self.iterations == 0 and np.iscomplexobj(curvature):
            # rounding leaves an imaginary part of order epsilon |p| |q|; later iterations would compare noise with noise
            allowed = self.vectors.epsilon(self.b) * self.sizes**2 * self.history[0] ** 2
            allowed = np.sqrt(allowed * np.asarray(self.vectors.norm2(self.q)))
            if np.any(wrong := self.going & (np.abs(np.imag(curvature)) > allowed)):
                raise self.error(
                    wrong,
                    f"p^dagger A p = {curvature[wrong].flat[0]:.6g} is not real: the operator is not Hermitian",
                    measured=False,
                )

    def _unit(self) -> float:
        """The square of the recursion's scale."""
        return float((self.sizes / self.true_sizes) ** 2)

    def count(self, rr: np.ndarray) -> None:
        super().count(rr)
        if self.diagnosis is not None and (cause := self.diagnosis.grown(float(self.squares) / self._unit())):
            raise self.error(np.asarray(True), cause, measured=False)

    def _diagnosed(self, rr: float) -> Diagnosis:
        precise = None if self.outer is None else self.outer.b
        return Diagnosis(
            self.forward, self.vectors, self.b, rr / self._unit(), float(self.true_sizes), precise
        )

    def resumed(self) -> None:
        if self.diagnosis is not None:
            self.diagnosis = self._diagnosed(float(self.squares))

    def cause(self) -> str:
        return "" if self.diagnosis is None else self.diagnosis.slow(float(self.tolerances))


# --- in the manner of pylops ------------------------------------------------------------------------------------


class CGSolution(NamedTuple):
    """What `CG.solve` found: x, the number of iterations, and |r| before the first and after each."""

    x: Any
    iterations: int
    cost: np.ndarray


class CG(Solver):
    """Conjugate gradients for (A + damp) x = b, with the steps and costs of `pylops.cg`.

    Two sums over ranks an iteration, each an all-reduce of one number. `cost` is |r| before the first and after each iteration; it
    ends where |r| <= max(rtol |b|, atol), or where r is nothing beside the first one. |p^dagger A p| is taken where `jali.solvers.cg`
    refuses operators that are not positive.
    """

    kept_vectors: ClassVar[tuple[str, ...]] = ("r", "c")
    kept_numbers: ClassVar[tuple[str, ...]] = ("kold", "damp", "target", "epsilon")

    @named
    def setup(
        self,
        b: Any,
        x0: Any = None,
        *,
        rtol: float = 1e-10,
        atol: float = 0.0,
        maxiter: int | None = None,
        damp: float = 0.0,
        show: bool = False,
    ) -> Any:
        """Begin with x0, which is not changed, or zero. Returns x.

        Raises ParameterError for invalid vectors or operators, LayoutError where x0 is not a vector like b, SolverError for
        infinities and nan.
        """
        self._call("on_setup_begin", x0)
        b = widened(b, self.A, x0)
        vectors = vectors_of("CG: b", b)
        self.epsilon = vectors.epsilon(b)  # refuses whole numbers
        self.maxiter, self.damp, self.iterations = maxiter, damp, 0
        check_tolerances("CG", rtol=rtol, atol=atol)
        if x0 is not None:
            x0 = widened(x0, self.A, b)
            check_alike("CG: x0", x0, "b", b)
        x = vectors.like(b) if x0 is None else started(x0, b)
        self._recursion = Recursion(*self._functions(vectors), vectors, x, vectors.copy(b))
        self._recursion.begin(b, vectors.norm2(b) if x0 is None else None)
        if not math.isfinite(self.kold):
            raise not_finite("CG", **{"b": b, "x0": x0, "A x0": self._recursion.q})
        size = 0.0 if rtol == 0 else math.sqrt(self.kold if x0 is None else vectors.norm2(b))
        self.target = max(rtol * size, atol)
        self.cost = [math.sqrt(self.kold)]
        self._x = x
        if show:
            self._show_setup("r2norm", rtol=rtol, atol=atol, maxiter=maxiter)
        self._call("on_setup_end", x)
        return x

    def _functions(self, vectors: Vectors) -> tuple[Function, ApplyInner]:
        """(A + damp) p, and the same with the inner product of p and it."""
        forward = forward_of("CG: A", self.A)
        if self.damp == 0:
            return forward, apply_inner_of("CG: A", self.A, vectors)

        q: Any = None  # what the operator gives is its own

        def apply(p: Any) -> Any:
            nonlocal q
            if q is None:
                q = vectors.like(p)
            vectors.update([(q, 0, [(1, forward(p)), (self.damp, p)])])
            return q

        def apply_inner(p: Any, wait: bool = True) -> tuple[Any, Any]:
            return apply(p), vectors.inner(p, q, wait=wait)

        return apply, apply_inner

    @property
    def kold(self) -> float:
        """|r|^2."""
        return self._recursion.rr

    @kold.setter
    def kold(self, value: float) -> None:
        self._recursion.rr = value

    @property
    def r(self) -> Any:
        """The residual."""
        return self._recursion.r

    @r.setter
    def r(self, value: Any) -> None:
        self._recursion.r = value

    @property
    def c(self) -> Any:
        """The direction."""
        return self._recursion.p

    @c.setter
    def c(self, value: Any) -> None:
        self._recursion.p = value

    def _resume(self, vectors: dict[str, Any], numbers: dict[str, Any]) -> None:
        kind, self.damp = vectors_of("x", vectors["x"]), numbers["damp"]
        self._recursion = Recursion(*self._functions(kind), kind, vectors["x"], vectors["r"])

    def step(self, x: Any, show: bool = False) -> Any:
        """One iteration: x is changed and returned. Raises SolverError where A p is zero, infinite or nan."""
        self._recursion.x = self._x = x
        curvature = abs(self._recursion.curvature())
        if not (math.isfinite(curvature) and curvature > 0):
            cause = (
                gives_bad_numbers("the operator", self._recursion.forward, x)
                or not_hermitian(self._recursion.forward, x)
                or (
                    "the operator is singular: it makes nothing of a direction, and b has a part that no A x has"
                    if curvature == 0
                    else "numbers overflow, or the iteration diverges"
                )
            )
            raise SolverError(
                f"CG, iteration {self.iterations + 1}: |p^dagger A p| = {curvature} with |r|^2 = {self.kold:.3g}: {cause}"
            )
        self._recursion.advance(self.kold / curvature)
        self.iterations += 1
        self.cost.append(math.sqrt(self.kold))
        if show:
            self._show_step()
        return x

    def _going_on(self) -> bool:
        return self.cost[-1] > max(self.target, NEGLIGIBLE * self.epsilon * self.cost[0])

    @named
    def solve(
        self,
        b: Any,
        x0: Any = None,
        *,
        rtol: float = 1e-10,
        atol: float = 0.0,
        maxiter: int = MAXITER,
        damp: float = 0.0,
        show: bool = False,
        itershow: Itershow = (10, 10, 10),
    ) -> CGSolution:
        """All of it: at most `maxiter` iterations, or until |r| <= max(rtol |b|, atol). Errors: see `setup` and `step`."""
        x = self.setup(b, x0, rtol=rtol, atol=atol, maxiter=maxiter, damp=damp, show=show)
        x = self.run(x, maxiter=maxiter, show=show, itershow=itershow)
        self.finalize(show)
        return CGSolution(x, self.iterations, np.array(self.cost))
