"""Conjugate gradients for all members of a batch at once.

The recursion of `recursion.py`, whose numbers are arrays with an element for each member. A member that has converged takes steps of
length zero, so its history and its solution have the bits of a solve of that member alone. Members are not reordered, since an
operator may have numbers of its own for each (`factors[X.member]`).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali.errors import SolverError
from jali.solvers.operators import apply_inner_of, function_of, is_operator, started
from jali.solvers.recursion import MOST_DRIFT, NORMAL, Recursion, Solution, history_attached, iterate
from jali.solvers.scaling import bound, scaled, unscaled
from jali.vectors import vectors_of


@dataclass(frozen=True, repr=False)
class BatchSolution:
    """The solutions of a batch: `x` has all, `found[k]` is the `Solution` of member k, `len(found)` their number. `iterations` is that of the
    member that took longest; `converged` whether all have."""

    x: Any
    members: tuple[Solution, ...]

    def __getitem__(self, k: int) -> Solution:
        return self.members[k]

    def __len__(self) -> int:
        return len(self.members)

    @property
    def iterations(self) -> int:
        """Of the member that took longest."""
        return max(member.iterations for member in self.members)

    @property
    def converged(self) -> bool:
        """Whether all members have."""
        return all(member.converged for member in self.members)

    def __repr__(self) -> str:
        counts = ", ".join(str(member.iterations) for member in self.members)
        how = "converged" if self.converged else "not all converged"
        return f"<solutions of a batch of {len(self)}, {how} in {counts} iterations: {self.x!r}>"


def cg_of_batch(
    A: Any,
    b: Any,
    x0: Any,
    rtol: float,
    atol: float,
    maxiter: int,
    must_converge: bool,
    check_interval: int | None,
    begun: float,
) -> BatchSolution:
    """`jali.solvers.cg`, which has checked the arguments and began then, for a field with a batch. Raises its errors; those of the recursion name
    the member."""
    vectors = vectors_of("cg: b", b)
    b, x0, size, factors = scaled(vectors, b, x0)
    if not np.all(np.isfinite(size)):
        raise _error(~np.isfinite(size), "b has infinities or nan, or numbers whose squares overflow")
    run = _BatchRun(A, vectors, b, x0, size * size, rtol, bound(atol, size, factors))
    turns = check_interval or vectors.check_interval(b)
    with history_attached(lambda: np.array(run.history).tolist()):
        turns = iterate(run, _Repeated, turns, maxiter, check_interval is not None)
    residuals = np.sqrt(run.true_squares()) / run.size
    exact = residuals <= MOST_DRIFT * np.maximum(run.tolerance, run.history[-1])
    converged = ~run.going & exact
    if must_converge and not converged.all():
        why = (
            "no convergence"
            if not run.converged
            else "the recursion has lost its residual, the tolerance is below what rounding allows"
        )
        error = _error(
            ~converged,
            f"{why}: |r|/|b| is {residuals[~converged].max():.3g} after {run.iterations} iterations",
        )
        error.history = np.array(run.history).tolist()
        raise error
    history = np.array(run.history)
    members = []
    solution = unscaled(vectors, run.x, factors)
    seconds = time.perf_counter() - begun
    for k in range(b.batch):
        count = int(run.counts[k])
        found = history[: count + 1, k].tolist()
        x = solution.members[k]
        members.append(Solution(x, count, found, float(residuals[k]), bool(converged[k]), turns, seconds))
    return BatchSolution(solution, tuple(members))


class _BatchRun(Recursion):
    """A solve under way: every number is an array of the members."""

    def __init__(self, A: Any, vectors: Any, b: Any, x0: Any, squares: np.ndarray, rtol: float, atol: Any):
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
        zero = squares == 0
        self.size = np.sqrt(np.where(zero, 1.0, squares))
        self.tolerance = np.maximum(rtol, atol / self.size)
        self.rr = np.where(zero, 0.0, self.size * self.size) if x0 is None else self.true_squares()
        self.p = vectors.copy(self.r)
        self.history = [np.sqrt(self.rr) / self.size]
        self.going = self.history[0] > self.tolerance
        self.counts = np.zeros(b.batch, int)  # iterations of each member

    @property
    def converged(self) -> bool:
        """Whether all members have."""
        return not self.going.any()

    @property
    def iterations(self) -> int:
        """Of the member that goes on longest."""
        return len(self.history) - 1

    def true_squares(self) -> np.ndarray:
        """|b - A x|^2, with r = b - A x."""
        self.q = self.forward(self.x)
        return np.asarray(self.vectors.update([(self.r, 0, [(1, self.b), (-1, self.q)])], norm=True))

    def iterate(self) -> None:
        """One iteration of the members that go on, with numbers of the host."""
        going, before = self.going, self.rr
        pq = self.curvature()
        curvature = np.real(pq)
        self.check(curvature)
        if self.iterations == 0 and np.iscomplexobj(pq):
            allowed = np.sqrt(self.vectors.epsilon(self.b) * before * self.vectors.norm2(self.q))
            if np.any(wrong := going & (np.abs(np.imag(pq)) > allowed)):
                raise _error(wrong, "p^dagger A p is not real: the operator is not Hermitian")
        step = np.where(going, before / np.where(going, curvature, 1.0), 0.0)
        found = self.descend(step)
        self.turn(step, np.where(going, found / np.where(going, before, 1.0), 0.0))
        self.count(found)

    def check(self, curvature: np.ndarray) -> None:
        """Raises SolverError unless p^dagger A p of the members that go on is positive and finite."""
        if np.any(wrong := self.going & ~np.isfinite(curvature)):
            raise _error(wrong, "p^dagger A p is infinite or nan")
        if np.any(wrong := self.going & ~(curvature > 0)):
            raise _error(
                wrong,
                f"p^dagger A p is not positive: the operator is singular, not positive definite or not Hermitian; {NORMAL}",
            )

    def count(self, found: np.ndarray) -> None:
        """Notes an iteration that gave these |r|^2."""
        self.rr = np.where(self.going, found, self.rr)
        self.history.append(np.sqrt(self.rr) / self.size)
        self.counts += self.going
        self.going = self.going & (self.history[-1] > self.tolerance)


def _if_going(value: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """The value where a member has not converged, else zero; of its `Scalar`s."""
    return (rr.sqrt() / size > tolerance).where(value, 0.0)


def _step(rr: Any, curvature: Any, size: Any, tolerance: Any) -> Any:
    return _if_going(rr / curvature, rr, size, tolerance)


def _weight(rr: Any, found: Any, size: Any, tolerance: Any) -> Any:
    return _if_going(found / rr, rr, size, tolerance)


class _Repeated:
    """So many iterations of a run as a graph, with numbers that stay where the fields are."""

    def __init__(self, run: _BatchRun, turns: int):
        self.run = run
        self.turns = turns
        numbers = (run.rr, run.size, run.tolerance)
        self.rr, self.size, self.tolerance = (run.vectors.number(run.b, values) for values in numbers)
        self.graph = run.vectors.graph(run.b, self._iterations)

    def _iterations(self) -> list[Any]:
        """p^dagger A p and |r|^2 of each."""
        run, history, rr = self.run, [], self.rr
        for _ in range(self.turns):
            curvature = run.curvature(wait=False).real
            step = rr.elementwise(_step, rr, curvature, self.size, self.tolerance)
            found = run.descend(step, wait=False)
            run.turn(step, rr.elementwise(_weight, rr, found, self.size, self.tolerance))
            history += [curvature, found]
            rr = found
        self.rr.assign(rr)
        return history

    def iterate(self) -> None:
        """As many iterations of the run, up to the last one that is needed."""
        run = self.run
        self.graph.run()
        numbers = self.graph.read()
        for curvature, found in zip(numbers[::2], numbers[1::2], strict=True):
            run.check(curvature)
            run.count(found)
            if run.converged:
                return


def _error(wrong: np.ndarray, what: str) -> SolverError:
    members = np.flatnonzero(wrong).tolist()
    return SolverError(
        f"cg, member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))} of the batch: {what}"
    )
