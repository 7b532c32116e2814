"""Minimal residuals for Hermitian operators that need not be definite (C. C. Paige and M. A. Saunders, SIAM J. Numer. Anal. 12 (1975) 617).

The residual is the smallest in the Krylov space, as with their Lanczos recursion. Here the images q = A p of the directions are kept orthogonal, for which a
Hermitian operator needs the last two only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.krylov import Krylov, check_arguments, computed, length, part, solved, sqrt, where
from jali.solvers.recursion import Solution
from jali.solvers.solver import MAXITER


def _inverse_root(square: Any) -> Any:
    return where(square > 0, 1.0 / sqrt(square), 0.0)


class MINRES(Krylov):
    """Three directions p and their images q, of which each takes the place of the oldest: a step is three iterations, after which they lie as before."""

    name = "minres"
    steps = 3

    def begin(self, rr: np.ndarray) -> list[Any]:
        like, update = self.vectors.like, self.vectors.update
        if not hasattr(self, "p"):
            self.p, self.q = ([like(self.b) for _ in range(3)] for _ in range(2))
        scale = 1 / np.sqrt(np.where(rr > 0, rr, 1.0))
        update([(self.p[0], 0, [(scale if scale.ndim else float(scale), self.r)])])
        for k in (1, 2):  # there is none before
            update([(self.p[k], 0, [(0.0, self.r)]), (self.q[k], 0, [(0.0, self.r)])])
        self.apply(self.p[0], self.q[0])
        first = np.asarray(self.vectors.norm2(self.q[0]), float)
        return [rr, first, np.zeros_like(first)]

    def step(self, rr: Any, square: Any, before: Any) -> tuple[list[Any], list[Any], list[Any]]:
        found = []
        for k in range(3):
            (p, q), (next_p, next_q), (last_p, last_q) = (
                (self.p[j % 3], self.q[j % 3]) for j in (k, k + 1, k + 2)
            )
            along = computed(length, self.inner(q, self.r), square, rr, self.size, self.tolerance)
            rr = self.update((self.x, 1, [(along, p)]), (self.r, 1, [(-along, q)]), norm=True)
            found.append(rr)
            self.update((next_p, 0, [(computed(_inverse_root, square), q)]))
            self.apply(next_p, next_q)
            self._take(next_p, next_q, computed(part, self.inner(q, next_q), square), p, q)
            self._take(next_p, next_q, computed(part, self.inner(last_q, next_q), before), last_p, last_q)
            square, before = self.vectors.norm2(next_q, wait=self.waits), square
        return [rr, square, before], found, [square]

    def _take(self, p: Any, q: Any, common: Any, other_p: Any, other_q: Any) -> None:
        self.update((p, 1, [(-common, other_p)]), (q, 1, [(-common, other_q)]))

    def check(self, *watched: np.ndarray) -> None:
        (square,) = watched
        if np.any(wrong := self.going & ~np.isfinite(square)):
            raise self.error(
                wrong, "|A p|^2 is infinite or nan: the operator gave such numbers, or they overflow"
            )

    def cause(self) -> str:
        return self.cause_of_hermitian()


@named
def minres(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    check_interval: int | None = None,
) -> Solution | BatchSolution:
    """Solves A x = b for any regular Hermitian A, by minimal residuals.

    Of a field with a batch all members are solved at once and stop one by one; see `cg`, whose arguments these are. `maxiter` is rounded up to
    a multiple of 3.

    Raises:
        SolverError: as `gcr`; where it fails it says whether the operator is Hermitian.
        ParameterError, LayoutError, RecordingError: as `cg`.
    """
    check_arguments("minres", rtol, atol, maxiter=maxiter, check_interval=check_interval)
    return solved(MINRES(A, b, x0, rtol, atol), maxiter, must_converge, check_interval, callback)
