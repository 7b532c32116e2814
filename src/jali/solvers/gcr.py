"""Generalised conjugate residuals of S. C. Eisenstat, H. C. Elman and M. H. Schultz, SIAM J. Numer. Anal. 20 (1983) 345, for any operator, with a
preconditioner that may be another in each iteration.

The residual never grows. An iteration keeps the direction p and q = A p, and makes q orthogonal to those before it; after `restart` iterations they are
forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.elementwise import computed, length, part
from jali.solvers.krylov import Krylov
from jali.solvers.operators import into_of
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments


class GCR(Krylov):
    """A cycle is one step: its directions p and their images q."""

    name = "gcr"
    scratch = ("p", "q")

    def __init__(
        self,
        A: Any,
        b: Any,
        x0: Any,
        M: Any,
        restart: int,
        rtol: float,
        atol: float,
        inner: Inner | None = None,
    ):
        self.steps = restart
        self.M = M
        super().__init__(A, b, x0, rtol, atol, inner)

    def begin(self, rr: np.ndarray) -> list[Any]:
        if not hasattr(self, "p"):
            like = self.vectors.like
            self.p, self.q = ([like(self.b) for _ in range(self.steps)] for _ in range(2))
            self.precondition = (
                None if self.M is None else into_of("the preconditioner M", self.M, self.vectors)
            )
        return [rr]

    def step(self, rr: Any) -> tuple[list[Any], list[Any], list[Any]]:
        found: list[Any] = []
        squares: list[Any] = []
        for k, (p, q) in enumerate(zip(self.p, self.q, strict=True)):
            if self.precondition is None:
                self.update((p, 0, [(1, self.r)]))
            else:
                self.precondition(self.r, p)
            self.apply(p, q)
            for before, image, square in zip(self.p[:k], self.q[:k], squares, strict=True):
                common = computed(part, self.inner(image, q), square)
                self.update((p, 1, [(-common, before)]), (q, 1, [(-common, image)]))
            square = self.vectors.norm2(q, wait=self.waits)
            along = computed(length, self.inner(q, self.r), square, rr, self.size, self.tolerance)
            rr = self.update((self.x, 1, [(along, p)]), (self.r, 1, [(-along, q)]), norm=True)
            squares.append(square)
            found.append(rr)
            if not self.stay and self.ends(found):  # a graph has whole cycles
                break
        return [rr], found, []


@recorded(hermitian=False)
@named
@sharing
def gcr(
    A: Any,
    b: Any,
    x0: Any = None,
    *,
    M: Any = None,
    restart: int = 10,
    rtol: float = 1e-10,
    atol: float = 0.0,
    maxiter: int = MAXITER,
    callback: Callable[[Any], None] | None = None,
    must_converge: bool = True,
    check_interval: int | None = None,
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for any A whose Hermitian part is definite, by generalised conjugate residuals.

    Of a field with a batch all members are solved at once and stop one by one; see `cg`, whose other arguments these are.

    Args:
        M: a preconditioner, an operator or a function `M(r, z)` that writes an approximation of A^-1 r into z. It may be another one in each
            iteration, such as a solve to a low accuracy.
        restart: after so many iterations the directions are forgotten; two vectors are kept for each. A graph repeats whole cycles.
        maxiter: at most so many iterations, of fields rounded up to whole cycles.
        callback: called after each cycle.

    Raises:
        SolverError: no convergence; stagnation; |b - A x| stays above the tolerance, below what rounding allows; infinities or nan. It has the
            `history` of the residuals.
        ParameterError, LayoutError, RecordingError: as `cg`.
    """
    check_arguments("gcr", rtol, atol, maxiter=maxiter, check_interval=check_interval, restart=restart)
    return solved(
        GCR.of_workspace(more, A, b, x0, M, min(int(restart), int(maxiter)), rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )
