"""Conjugate gradients for all members of a batch at once.

The recursion of `recursion.py`, whose numbers are arrays with an element for each member. A member that has converged takes steps of
length zero, so its history and its solution have the bits of a solve of that member alone. Members are not reordered, since an
operator may have numbers of its own for each (`factors[X.member]`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from jali.errors import ParameterError, SolverError
from jali.files import value_shown
from jali.solvers.operators import apply_inner_of, function_of, is_operator, started
from jali.solvers.recursion import MOST_DRIFT, NORMAL, Recursion, Solution
from jali.solvers.solver import check_tolerances
from jali.vectors import check_alike, vectors_of


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
    A: Any, b: Any, x0: Any, rtol: float, atol: float, maxiter: int, must_converge: bool
) -> BatchSolution:
    """`jali.solvers.cg` for a field with a batch. Raises its errors; those of the recursion name the member."""
    vectors = vectors_of("cg: b", b)
    if not (callable(A) or is_operator(A)):
        raise ParameterError(
            f"the operator is a function A(p, q) that writes A p into q, or has matvec, not {value_shown(A)}"
        )
    check_tolerances("cg", rtol=rtol, atol=atol)
    if rtol >= 1 or rtol == atol == 0:
        raise ParameterError(
            f"cg: rtol is below 1, and rtol or atol above 0, not {value_shown(rtol)} and {value_shown(atol)}"
        )
    vectors.epsilon(b)  # refuses whole numbers
    if x0 is not None:
        check_alike("cg: x0", x0, "b", b)
    squares = vectors.norm2(b)
    if not np.all(np.isfinite(squares)):
        raise _error(~np.isfinite(squares), "b has infinities or nan, or numbers whose squares overflow")
    run = _BatchRun(A, vectors, b, x0, squares, rtol, atol)
    while run.going.any() and len(run.history) <= maxiter:
        run.iterate()
    residuals = np.sqrt(run.true_squares()) / run.size
    exact = residuals <= MOST_DRIFT * np.maximum(run.tolerance, run.residuals[-1])
    converged = ~run.going & exact
    if must_converge and not converged.all():
        why = (
            "no convergence"
            if run.going.any()
            else "the recursion has lost its residual, the tolerance is below what rounding allows"
        )
        raise _error(
            ~converged,
            f"{why}: |r|/|b| is {residuals[~converged].max():.3g} after {len(run.history) - 1} iterations",
        )
    history = np.array(run.history)
    members = []
    for k in range(b.batch):
        count = int(run.iterations[k])
        found = history[: count + 1, k].tolist()
        members.append(Solution(run.x.members[k], count, found, float(residuals[k]), bool(converged[k])))
    return BatchSolution(run.x, tuple(members))


class _BatchRun(Recursion):
    """A solve under way: every number is an array of the members."""

    def __init__(self, A: Any, vectors: Any, b: Any, x0: Any, squares: np.ndarray, rtol: float, atol: float):
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
        self.iterations = np.zeros(b.batch, int)

    @property
    def residuals(self) -> list[np.ndarray]:
        """|r| / |b| of each iteration so far."""
        return self.history

    def true_squares(self) -> np.ndarray:
        """|b - A x|^2, with r = b - A x."""
        self.q = self.forward(self.x)
        return np.asarray(self.vectors.update([(self.r, 0, [(1, self.b), (-1, self.q)])], norm=True))

    def iterate(self) -> None:
        """One iteration of the members that go on."""
        going, before = self.going, self.rr
        pq = self.curvature()
        curvature = np.real(pq)
        if not np.all(np.isfinite(curvature[going])):
            raise _error(going & ~np.isfinite(curvature), "p^dagger A p is infinite or nan")
        if not np.all(curvature[going] > 0):
            raise _error(
                going & ~(curvature > 0),
                f"p^dagger A p is not positive: the operator is singular, not positive definite or not Hermitian; {NORMAL}",
            )
        if len(self.history) == 1 and np.iscomplexobj(pq):
            allowed = np.sqrt(self.vectors.epsilon(self.b) * before * self.vectors.norm2(self.q))
            if np.any(going & (np.abs(np.imag(pq)) > allowed)):
                raise _error(
                    going & (np.abs(np.imag(pq)) > allowed),
                    "p^dagger A p is not real: the operator is not Hermitian",
                )
        step = np.where(going, before / np.where(going, curvature, 1.0), 0.0)
        found = self.descend(step)
        self.turn(step, np.where(going, found / np.where(going, before, 1.0), 0.0))
        self.rr = np.where(going, found, before)
        self.history.append(np.sqrt(self.rr) / self.size)
        self.iterations += going
        self.going = going & (self.history[-1] > self.tolerance)


def _error(wrong: np.ndarray, what: str) -> SolverError:
    members = np.flatnonzero(wrong).tolist()
    return SolverError(
        f"cg, member{'s' if len(members) > 1 else ''} {', '.join(map(str, members))} of the batch: {what}"
    )
