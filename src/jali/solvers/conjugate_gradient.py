"""Conjugate gradients (Hestenes and Stiefel, J. Res. NBS 49 (1952) 409) on any vectors of `jali.solvers.vectors`.

There is one recursion, `_Recursion`, and two ways to ask for it. `cg` solves to a relative tolerance, is strict about the operator,
and records graphs on devices; `CG` takes steps as `pylops` counts and stops them. The operator is one with `matvec`, or for `cg` a
function that writes A p into a given vector, so that one solve allocates four of them. An iteration is the operator,
one inner product, one update of r that also yields |r|^2, and one of x and p. On a device several iterations are one graph, whose
numbers stay there; the host looks at them afterwards. Iterations of a graph that follow the last one take steps of length zero, so that
looking less often changes nothing of the result. Sums are reproducible: residual histories agree to the last bit on any number of
ranks. Preconditioning is the caller's: pass the preconditioned operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from jali.comm.given import integer
from jali.errors import ParameterError, RecordingError, SolverError
from jali.notebook import facts
from jali.solvers.operators import Function, forward_of, is_operator, started, widened
from jali.solvers.solver import NEGLIGIBLE, Itershow, Solver, check_tolerance
from jali.solvers.vectors import Vectors, check_alike, vectors_of


@dataclass(frozen=True, repr=False)
class Solution:
    """What a solver found.

    `residuals` holds |r| / |b| before the first and after each iteration, as the recursion knows it; `residual` is
    |b - A x| / |b| computed from the solution. In exact arithmetic the last of the one is the other. `look_every` says after how many
    iterations the host looked: 1 where they were not recorded.
    """

    solution: Any
    iterations: int
    residuals: list[float]
    residual: float
    converged: bool
    look_every: int = 1

    def __repr__(self) -> str:
        how = "converged" if self.converged else "not converged"
        return f"<solution, {how} in {self.iterations} iterations, residual {self.residual:.2g}: {_shown(self.solution)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows, with every tenth residual."""
        history = [
            f"{k:6}  {r:.3e}"
            for k, r in enumerate(self.residuals)
            if k % 10 == 0 or k == len(self.residuals) - 1
        ]
        rows = {
            "solution": _shown(self.solution),
            "converged": "yes" if self.converged else "no",
            "iterations": self.iterations,
            "residual |b - A x| / |b|": f"{self.residual:.3e}",
        }
        return facts("Solution", rows, {"residuals by iteration": "\n".join(history)})


def _shown(vector: Any) -> str:
    """A solution in few words: fields say what they are, arrays their shape."""
    if isinstance(vector, list | tuple):
        return f"[{', '.join(map(_shown, vector))}]"
    if hasattr(vector, "shape"):
        return f"array {tuple(vector.shape)} of {vector.dtype}"
    return repr(vector)


def cg(
    apply: Callable[[Any, Any], Any] | Any,
    b: Any,
    x0: Any = None,
    tolerance: float = 1e-10,
    max_iterations: int = 1000,
    must_converge: bool = True,
    look_every: int | None = None,
) -> Solution:
    """Solves A x = b for a Hermitian positive definite A.

    Args:
        apply: A: `apply(p, q)` writes A p into the vector q and leaves p as it is; or an operator with `matvec`.
        b: right-hand side: a field, an array of NumPy, CuPy or PyTorch, a distributed array or a stack, or a list of these.
        x0: where to start; zero if left out. It is not changed.
        tolerance: stop when |r| <= tolerance |b|. In float32 nothing below about 1e-6 can be reached.
        max_iterations: give up after so many applications of A.
        must_converge: raise SolverError when giving up; otherwise return with `converged` False.
        look_every: so many iterations are recorded as a graph (`jali.graph`), for which `apply` is called without anything being
            computed, and the host looks at the end of each. If left out: 8 for fields on one device whose operator can be recorded,
            else 1, without graphs. The result does not depend on it.

    Raises:
        SolverError: no convergence; A is not positive definite, not Hermitian, or produced infinities or nan.
        ParameterError: impossible tolerance or bound; vectors that no solver knows.
        LayoutError: b and x0 do not fit together.
        RecordingError: `look_every` was given, and the operator cannot be recorded.
    """
    vectors = vectors_of("cg: b", b)
    if not (callable(apply) or is_operator(apply)):
        raise ParameterError(
            f"the operator has a function matvec, or is a function apply(p, q) that writes A p into q, not {apply!r}"
        )
    if not (isinstance(tolerance, int | float | np.floating) and 0 < tolerance < 1):
        raise ParameterError(f"the tolerance is relative, between 0 and 1, not {tolerance!r}")
    for name, value in (("max_iterations", max_iterations), ("look_every", look_every)):
        if (value is not None or name == "max_iterations") and (
            (number := integer(value)) is None or number < 1
        ):
            raise ParameterError(f"{name} is a positive whole number, not {value!r}")
    if look_every is not None and look_every > 1 and not vectors.repeats(b):
        raise ParameterError(f"look_every={look_every}, but operations on these vectors cannot be recorded")
    if is_operator(apply):
        b, x0 = widened(b, apply, x0), None if x0 is None else widened(x0, apply, b)
    if x0 is not None:
        check_alike("cg: x0", x0, "b", b)
    vectors.epsilon(b)  # refuses whole numbers
    b, x0, size, factors = _scaled(vectors, b, x0)
    if not math.isfinite(size):
        raise SolverError("the right-hand side contains infinities or nan")
    if size == 0:
        return Solution(vectors.like(b), 0, [0.0], 0.0, True)

    run = _Run(apply, vectors, b, x0, size, tolerance)
    turns = look_every or vectors.look_every(b)
    repeated = None
    while not run.converged and run.iterations < max_iterations:
        # the first iteration as it is: it makes the kernels, and shows whether the operator is Hermitian
        if turns > 1 and 0 < run.iterations <= max_iterations - turns:
            if repeated is None:
                try:
                    repeated = _Repeated(run, turns)
                except RecordingError:
                    if look_every is not None:
                        raise
                    turns = 1
                    continue
            repeated.iterate()
        else:
            run.iterate()

    converged = run.converged
    solution = run.x
    for factor in reversed(factors):
        solution = _times(vectors, 1 / factor, solution)
    found = Solution(solution, run.iterations, run.residuals, run.true_residual(), converged, turns)
    if must_converge and not converged:
        raise SolverError(
            f"no convergence to {tolerance:g} in {run.iterations} iterations: |r|/|b| is {run.residuals[-1]:.3g}, its smallest value "
            f"was {min(run.residuals):.3g}; allow more iterations, or ask for no less than the precision "
            f"({vectors.precision(b)}) can give"
        )
    return found


def _scaled(vectors: Vectors, b: Any, x0: Any) -> tuple[Any, Any, float, list[float]]:
    """b, x0 and |b|, all times the same powers of two where squares of numbers or of residuals would vanish or overflow."""
    double = vectors.epsilon(b) < 1e-12
    least, most, far = (2.0**-400, 2.0**400, 2.0**600) if double else (2.0**-20, 2.0**50, 2.0**90)
    size = math.sqrt(vectors.norm2(b))
    factors: list[float] = []
    while not least <= size <= most and len(factors) < 3:
        seen = size > 0 and math.isfinite(size)
        factor = 2.0 ** -math.frexp(size)[1] if seen else far if size == 0 else 1 / far
        factors.append(factor)
        b, x0 = _times(vectors, factor, b), None if x0 is None else _times(vectors, factor, x0)
        size = math.sqrt(vectors.norm2(b))
    return b, x0, size, factors


def _times(vectors: Vectors, factor: float, x: Any) -> Any:
    out = vectors.like(x)
    vectors.update([(out, 0, [(factor, x)])])
    return out


class _Recursion:
    """The recursion: x, the residual r, the direction p, q = A p, and |r|^2."""

    def __init__(self, forward: Function, vectors: Vectors, x: Any, r: Any):
        self.forward = forward
        self.vectors = vectors
        self.x = x
        self.r = r
        self.p: Any = None
        self.q: Any = None
        self.rr = 0.0

    def residual(self, b: Any) -> float:
        """r = b - A x; returns |r|^2."""
        self.q = self.forward(self.x)
        return float(self.vectors.update([(self.r, 0, [(1, b), (-1, self.q)])], norm=True))

    def begin(self, b: Any, rr: float | None = None) -> None:
        """The first direction, from x and b; `rr` is |b|^2 where x is zero and r is b."""
        self.rr = self.residual(b) if rr is None else rr
        self.p = self.vectors.copy(self.r)

    def curvature(self, wait: bool = True) -> Any:
        """q = A p; returns p^dagger A p."""
        self.q = self.forward(self.p)
        return self.vectors.inner(self.p, self.q, wait=wait)

    def descend(self, step: Any, wait: bool = True) -> Any:
        """r -= step A p; returns |r|^2."""
        return self.vectors.update([(self.r, 1, [(-step, self.q)])], norm=True, wait=wait)

    def turn(self, step: Any, weight: Any) -> None:
        """x += step p, then p = r + weight p."""
        self.vectors.update([(self.x, 1, [(step, self.p)]), (self.p, weight, [(1, self.r)])])

    def advance(self, step: float) -> None:
        """An iteration with a step whose length is known."""
        before, self.rr = self.rr, self.descend(step)
        self.turn(step, self.rr / before)


class _Run(_Recursion):
    """A solve under way, to a tolerance."""

    def __init__(
        self,
        apply: Any,
        vectors: Vectors,
        b: Any,
        x0: Any,
        size: float,
        tolerance: float,
    ):
        x = vectors.like(b) if x0 is None else started(x0, b)
        super().__init__(_forward(apply, vectors, b), vectors, x, vectors.copy(b))
        self.b = b
        self.size = size
        self.tolerance = tolerance
        self.begin(b, size * size if x0 is None else None)
        if not math.isfinite(self.rr):
            raise SolverError("x0, or what the operator makes of it, contains infinities or nan")
        self.residuals = [math.sqrt(self.rr) / size]
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
        self.residuals.append(math.sqrt(self.rr) / self.size)

    def check(self, value: float, rr: float) -> None:
        """Raises SolverError unless p^dagger A p is positive and finite."""
        at = f"iteration {self.iterations + 1}"
        if not (math.isfinite(value) and math.isfinite(rr)):
            raise SolverError(f"{at}: the operator produced infinities or nan (p A p = {value})")
        if value <= 0:
            raise SolverError(
                f"{at}: p^dagger A p = {value:.6g} with |r|^2 = {rr:.3g}: the operator is not positive definite; "
                "solve with A^dagger A instead"
            )


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


def _forward(apply: Any, vectors: Vectors, b: Any) -> Function:
    """A p as a function of p; a function that writes into a vector gets always the same."""
    if is_operator(apply):
        return forward_of("the operator", apply)
    q = vectors.like(b)

    def forward(p: Any) -> Any:
        apply(p, q)
        return q

    return forward


# --- in the manner of pylops ------------------------------------------------------------------------------------


class CGSolution(NamedTuple):
    """What `CG.solve` found: x, the number of iterations, and |r| before the first and after each."""

    x: Any
    iit: int
    cost: np.ndarray


class CG(Solver):
    """Conjugate gradients for (A + damp) x = y, with the steps, costs and stopping of `pylops.cg`.

    Two sums over ranks an iteration, each an all-reduce of one number. `cost` is |r| before the first and after each iteration; it
    ends where |r|^2 <= tol, or where r is nothing beside the first one. |p^dagger A p| is taken where `jali.solvers.cg` refuses operators that are not positive.
    """

    kept_vectors: ClassVar[tuple[str, ...]] = ("r", "c")
    kept_numbers: ClassVar[tuple[str, ...]] = ("kold", "damp", "tol", "epsilon")

    def setup(
        self,
        y: Any,
        x0: Any = None,
        niter: int | None = None,
        damp: float = 0.0,
        tol: float = 1e-4,
        show: bool = False,
    ) -> Any:
        """Begin with x0, which is not changed, or zero. Returns x.

        Raises ParameterError for what is no vector or no operator, LayoutError where x0 is no vector like y, SolverError for
        infinities and nan.
        """
        self._call("on_setup_begin", x0)
        y = widened(y, self.Op, x0)
        vectors = vectors_of("CG: y", y)
        self.epsilon = vectors.epsilon(y)  # refuses whole numbers
        self.niter, self.damp, self.tol, self.iiter = niter, damp, tol, 0
        check_tolerance("CG", tol)
        if x0 is not None:
            x0 = widened(x0, self.Op, y)
            check_alike("CG: x0", x0, "y", y)
        x = vectors.like(y) if x0 is None else started(x0, y)
        self._recursion = _Recursion(self._damped(vectors), vectors, x, vectors.copy(y))
        self._recursion.begin(y, vectors.norm2(y) if x0 is None else None)
        if not math.isfinite(self.kold):
            raise SolverError("CG: y, x0, or what the operator makes of it, contains infinities or nan")
        self.cost = [math.sqrt(self.kold)]
        self._x = x
        if show:
            self._show_setup("r2norm", tol=tol, niter=niter)
        self._call("on_setup_end", x)
        return x

    def _damped(self, vectors: Vectors) -> Function:
        forward = forward_of("CG: Op", self.Op)
        if self.damp == 0:
            return forward

        q: Any = None  # what the operator gives is its own

        def apply(p: Any) -> Any:
            nonlocal q
            if q is None:
                q = vectors.like(p)
            vectors.update([(q, 0, [(1, forward(p)), (self.damp, p)])])
            return q

        return apply

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
        self._recursion = _Recursion(self._damped(kind), kind, vectors["x"], vectors["r"])

    def step(self, x: Any, show: bool = False) -> Any:
        """One iteration: x is changed and returned. Raises SolverError where the operator gives infinities or nan."""
        self._recursion.x = self._x = x
        curvature = abs(self._recursion.curvature())
        if not (math.isfinite(curvature) and curvature > 0):
            raise SolverError(
                f"CG, iteration {self.iiter + 1}: |p^dagger A p| = {curvature} with |r|^2 = {self.kold:.3g}: "
                "the operator is singular, or produced infinities or nan"
            )
        self._recursion.advance(self.kold / curvature)
        self.iiter += 1
        self.cost.append(math.sqrt(self.kold))
        if show:
            self._show_step()
        return x

    def _going_on(self) -> bool:
        return self.kold > self.tol and self.cost[-1] > NEGLIGIBLE * self.epsilon * self.cost[0]

    def solve(
        self,
        y: Any,
        x0: Any = None,
        niter: int = 10,
        damp: float = 0.0,
        tol: float = 1e-4,
        show: bool = False,
        itershow: Itershow = (10, 10, 10),
    ) -> CGSolution:
        """All of it: at most `niter` iterations, or until |r|^2 <= tol. Errors: see `setup` and `step`."""
        x = self.setup(y, x0, niter, damp, tol, show)
        x = self.run(x, niter, show, itershow)
        self.finalize(show)
        return CGSolution(x, self.iiter, np.array(self.cost))
