"""Conjugate gradients (Hestenes and Stiefel, J. Res. NBS 49 (1952) 409) on any vectors of `jali.vectors`.

There is one recursion, `Recursion`, with two interfaces. `cg` solves to a relative tolerance, is strict about the operator,
and records graphs on devices; `CG` counts and stops steps as `pylops` does. The operator is one with `matvec`, or for `cg` a
function that writes A p into a given vector, so that one solve allocates four of them. An iteration is the operator with the inner
product of p and A p, which its last kernel may give, one update of r that also yields |r|^2, and one of x and p. On a device several
iterations are one graph, whose numbers stay there; the host checks them afterwards. Iterations of a graph after the last one take
steps of length zero, so that less frequent checks do not change the result. Sums are reproducible: residual histories agree to the
last bit on any number of ranks. With a preconditioner the recursion is that of `jali.solvers.preconditioned`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.comm.validation import integer
from jali.errors import ParameterError, SolverError
from jali.files import value_shown
from jali.keywords import named
from jali.solvers.batches import BatchSolution, cg_of_batch
from jali.solvers.causes import gives_bad_numbers, not_finite, not_hermitian, ritz_values
from jali.solvers.krylov import check_arguments, solved
from jali.solvers.operators import (
    ApplyInner,
    Function,
    apply_inner_of,
    forward_of,
    function_of,
    is_operator,
    joins_members,
    refuse_batches_in_lists,
    started,
    widened,
)
from jali.solvers.preconditioned import PreconditionedCG
from jali.solvers.recursion import MOST_DRIFT, NORMAL, Recursion, Solution, history_attached, iterate
from jali.solvers.scaling import scaled, unscaled
from jali.solvers.solver import MAXITER, NEGLIGIBLE, Itershow, Solver, check_tolerances
from jali.vectors import Vectors, check_alike, vectors_of

SUSPICIOUS = 10  # times the smallest residual so far: the operator is measured


@named
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
            computed, and the host checks at the end of each. If left out: 8 for fields on one device whose operator can be recorded and
            no callback, else 1, without graphs. The result does not depend on it.

    Raises:
        SolverError: no convergence, or |b - A x| is more than ten times the recursion's value; A is not positive definite, not
            Hermitian, or produced infinities or nan. The message names which of these was measured, or rounding
            or the condition number as the cause.
        ParameterError: impossible tolerance or bound; vectors of an unsupported type.
        LayoutError: b and x0 do not fit together.
        RecordingError: `check_interval` was given, and the operator cannot be recorded.
    """
    begun = time.perf_counter()
    vectors = vectors_of("cg: b", b)
    if not (callable(A) or is_operator(A)):
        raise ParameterError(
            f"the operator has a function matvec, or is a function A(p, q) that writes A p into q, not {value_shown(A)}"
        )
    check_tolerances("cg", rtol=rtol, atol=atol)
    if rtol >= 1 or rtol == atol == 0:
        raise ParameterError(
            f"cg: rtol is below 1, and rtol or atol above 0, not {value_shown(rtol)} and {value_shown(atol)}"
        )
    if M is not None:
        check_arguments("cg", rtol, atol, maxiter=maxiter, check_interval=check_interval)
        return solved(
            PreconditionedCG(A, b, x0, M, rtol, atol), maxiter, must_converge, check_interval, callback
        )
    if callback is not None and not callable(callback):
        raise ParameterError(f"cg: a callback is a function of x, not {value_shown(callback)}")
    for name, value in (("maxiter", maxiter), ("check_interval", check_interval)):
        if (value is not None or name == "maxiter") and ((number := integer(value)) is None or number < 1):
            raise ParameterError(f"cg: {name} is a positive whole number, not {value_shown(value)}")
    if check_interval is not None and check_interval > 1 and not vectors.repeats(b):
        raise ParameterError(
            f"check_interval={check_interval}, but operations on these vectors cannot be recorded"
        )
    if is_operator(A):
        b, x0 = widened(b, A, x0), None if x0 is None else widened(x0, A, b)
    if x0 is not None:
        check_alike("cg: x0", x0, "b", b)
    vectors.epsilon(b)  # refuses whole numbers
    refuse_batches_in_lists("cg", b)
    whole_batch = getattr(b, "batch", None) is not None and joins_members(A)
    if whole_batch:
        vectors = vectors.of_whole_batch()  # type: ignore[attr-defined]
    elif getattr(b, "batch", None) is not None:
        if callback is not None:
            raise ParameterError("cg: a batch is solved without a callback")
        return cg_of_batch(A, b, x0, rtol, atol, maxiter, must_converge, check_interval, begun)
    b, x0, size, factors = scaled(vectors, b, x0)
    if not math.isfinite(size):
        raise _not_finite(b=b)
    if size == 0:
        return Solution(vectors.like(b), 0, [0.0], 0.0, True)

    run = _Run(A, vectors, b, x0, size, max(float(rtol), math.prod(factors, start=float(atol)) / size))
    turns = check_interval or (1 if callback is not None else vectors.check_interval(b))

    def after() -> None:
        if callback is not None:
            callback(unscaled(vectors, run.x, factors))

    with history_attached(lambda: list(run.residuals)):
        turns = iterate(run, _Repeated, turns, maxiter, check_interval is not None, after)
    residual = run.true_residual()
    exact = residual <= MOST_DRIFT * max(run.tolerance, run.residuals[-1])
    seconds = time.perf_counter() - begun
    found = Solution(
        unscaled(vectors, run.x, factors),
        run.iterations,
        run.residuals,
        residual,
        run.converged and exact,
        turns,
        seconds,
    )
    if must_converge and not found.converged:
        raise SolverError(run.failure(rtol, residual), run.residuals)
    return found


def _measured(cause: Callable[..., str], *arguments: Any) -> str:
    """A cause of failure. None is found where the vectors, the last argument is one, have batches: what measures knows single vectors."""
    return cause(*arguments) if getattr(arguments[-1], "batch", None) is None else ""


def _not_finite(**vectors: Any) -> SolverError:
    if any(getattr(x, "batch", None) is not None for x in vectors.values()):
        return SolverError(
            f"cg: {' or '.join(vectors)} has infinities or nan, or numbers whose squares overflow"
        )
    return not_finite("cg", **vectors)


class _Run(Recursion):
    """A solve under way, to a tolerance relative to |b|, which is `size`."""

    def __init__(
        self,
        A: Any,
        vectors: Vectors,
        b: Any,
        x0: Any,
        size: float,
        tolerance: float,
    ):
        x = vectors.like(b) if x0 is None else started(x0, b)
        q = None if is_operator(A) else vectors.like(b)
        super().__init__(
            function_of("the operator", A, q),
            apply_inner_of("the operator", A, vectors, q),
            vectors,
            x,
            vectors.copy(b),
        )
        self.b = b
        self.size = size
        self.tolerance = tolerance
        self.begin(b, size * size if x0 is None else None)
        if not math.isfinite(self.rr):
            raise _not_finite(**{"x0": x, "A x0": self.q})
        self.residuals = [math.sqrt(self.rr) / size]
        self.squares, self.curvatures = [self.rr], list[float]()
        self.least, self.grew, self.hermitian = self.residuals[0], 0, False
        self.iterations = 0

    @property
    def converged(self) -> bool:
        return self.residuals[-1] <= self.tolerance

    def true_residual(self) -> float:
        return math.sqrt(self.residual(self.b)) / self.size

    def iterate(self) -> None:
        """One iteration, with numbers of the host."""
        pq = self.curvature()
        self.check(pq.real, self.rr)
        # Rounding leaves an imaginary part of order epsilon |p| |q|; later iterations would compare noise with noise.
        if self.iterations == 0 and isinstance(pq, complex):
            allowed = math.sqrt(self.vectors.epsilon(self.b) * self.rr * self.vectors.norm2(self.q))
            if abs(pq.imag) > allowed:
                raise SolverError(f"p^dagger A p = {pq:.6g} is not real: the operator is not Hermitian")
        self.advance(self.rr / pq.real)  # a positive finite number
        self.count()

    def count(self) -> None:
        self.iterations += 1
        self.squares.append(self.rr)
        self.residuals.append(math.sqrt(self.rr) / self.size)
        self.least = min(self.least, self.residuals[-1])
        if not self.grew and self.residuals[-1] > SUSPICIOUS * self.least:
            self.grew = self.iterations
            self._measure_growth()

    def _measure_growth(self) -> None:
        """Residuals of a Hermitian positive operator may grow, too, so the first that does makes the operator be measured."""
        if cause := _measured(not_hermitian, self.forward, self.b):
            raise SolverError(
                f"iteration {self.grew}: |r|/|b| has grown to {self.residuals[-1]:.3g} from {self.least:.3g}: {cause}; {NORMAL}"
            )
        self.hermitian = True

    def check(self, value: float, rr: float) -> None:
        """Raises SolverError unless p^dagger A p is positive and finite."""
        at = f"iteration {self.iterations + 1}"
        if not (math.isfinite(value) and math.isfinite(rr)):
            cause = _measured(gives_bad_numbers, "the operator", self.forward, self.b) or (
                "infinities or nan come out of finite numbers: they overflow"
            )
            raise SolverError(f"{at}: p^dagger A p = {value} with |r|^2 = {rr:.3g}: {cause}")
        self.curvatures.append(value)
        if value <= 0:
            cause = _measured(not_hermitian, self.forward, self.b)
            cause = f"{cause}; {NORMAL}" if cause else self._spectrum()
            raise SolverError(f"{at}: p^dagger A p = {value:.6g} with |r|^2 = {rr:.3g}: {cause}")

    def _spectrum(self) -> str:
        """A diagnosis of a Hermitian operator by the recursion's eigenvalues; empty where it is positive and not singular."""
        low, high = ritz_values(self.curvatures, self.squares)
        epsilon = self.vectors.epsilon(self.b)
        between = f"eigenvalues reach from {low:.3g} or less to {high:.3g} or more"
        if low < -math.sqrt(epsilon) * abs(high):
            return f"the operator is not positive definite: {between}; {NORMAL}"
        if low <= 10 * epsilon * high or self.curvatures[-1] <= 0:
            return (
                f"the operator is singular up to rounding in {self.vectors.precision(self.b)}: {between}; b may have no part in its null "
                "space: take that out, or add a small multiple of the identity"
            )
        return ""

    def failure(self, rtol: float, residual: float) -> str:
        """The message of a solve that gave up, with its likely cause."""
        precision, epsilon = self.vectors.precision(self.b), self.vectors.epsilon(self.b)
        if self.converged:
            return (
                f"|r|/|b| is {self.residuals[-1]:.3g} after {self.iterations} iterations as the recursion knows it, but |b - A x|/|b| is "
                f"{residual:.3g}: the tolerance {self.tolerance:.3g} is below what rounding in {precision} allows for this operator; ask for "
                f"{2 * residual:.1g} or more"
            )
        said = (
            f"no convergence to {self.tolerance:g} in {self.iterations} iterations: |r|/|b| is {self.residuals[-1]:.3g}, its smallest "
            f"value was {self.least:.3g}; "
        )
        cause = "" if self.hermitian else _measured(not_hermitian, self.forward, self.b)
        if cause:
            return f"{said}{cause}; {NORMAL}"
        if cause := self._spectrum():
            return said + cause
        if self.tolerance < epsilon:
            return f"{said}the tolerance is below rounding in {precision}, {epsilon:.2g}"
        low, high = ritz_values(self.curvatures, self.squares)
        return f"{said}the condition of the operator is {high / low:.2g} or more: allow more iterations (maxiter)"


class _Repeated:
    """So many iterations of a run as a graph."""

    def __init__(self, run: _Run, turns: int):
        self.run = run
        self.turns = turns
        self.rr = run.vectors.number(run.b, run.rr)
        self.graph = run.vectors.graph(run.b, self._step)

    def _step(self) -> list[Any]:
        """p^dagger A p and |r|^2 of each iteration."""
        run, history, rr = self.run, [], self.rr
        for _ in range(self.turns):
            curvature = run.curvature(wait=False).real
            goes_on = rr.sqrt() / run.size > run.tolerance  # else a step of length zero
            step = goes_on.where(rr / curvature, 0.0)
            found = run.descend(step, wait=False)
            run.turn(step, goes_on.where(found / rr, 0.0))
            history += [curvature, found]
            rr = found
        self.rr.assign(rr)
        return history

    def iterate(self) -> None:
        """As many iterations of the run, up to the last one that is needed."""
        run = self.run
        self.graph.run()
        numbers = self.graph.read()
        for curvature, rr in zip(numbers[::2], numbers[1::2], strict=True):
            run.check(curvature, run.rr)
            run.rr = rr
            run.count()
            if run.converged:
                return


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
