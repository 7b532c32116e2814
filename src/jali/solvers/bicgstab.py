"""BiCGStab of H. A. van der Vorst, SIAM J. Sci. Stat. Comput. 13 (1992) 631, for operators that are not Hermitian.

An iteration is two applications, four sums and three updates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.elementwise import computed, going, kept, ratio, times, where
from jali.solvers.krylov import Krylov
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments


def _stabilised(ts: Any, tt: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    """<t, s> / |t|^2, zero where a member has converged or s is zero."""
    return where(going(rr, size, tolerance) & (tt > 0), ts / tt, 0.0)


def _weight(new: Any, old: Any, alpha: Any, omega: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    below = old * omega
    return where(going(rr, size, tolerance) & (abs(below) > 0), new * alpha / below, 0.0)


class BiCGStab(Krylov):
    """The recursion: the direction p, v = A p, t = A s, and the shadow of the first residual."""

    name = "bicgstab"
    scratch = ("v", "t")

    def begin(self, rr: np.ndarray) -> list[Any]:
        like = self.vectors.like
        if not hasattr(self, "p"):
            self.p, self.v, self.t, self.shadow = (like(self.b) for _ in range(4))
        self.vectors.update([(self.p, 0, [(1, self.r)]), (self.shadow, 0, [(1, self.r)])])
        return [rr, rr.astype(complex) if self.complex else rr]

    def step(self, rr: Any, rho: Any) -> tuple[list[Any], list[Any], list[Any]]:
        size, tolerance = self.size, self.tolerance
        self.apply(self.p, self.v)
        sigma = self.inner(self.shadow, self.v)
        alpha = computed(ratio, rho, sigma, rr, size, tolerance)
        self.update((self.r, 1, [(-alpha, self.v)]))  # s
        self.apply(self.r, self.t)
        ts, tt = self.inner(self.t, self.r), self.vectors.norm2(self.t, wait=self.waits)
        omega = computed(_stabilised, ts, tt, rr, size, tolerance)
        new = self.update(
            (self.x, 1, [(alpha, self.p), (omega, self.r)]), (self.r, 1, [(-omega, self.t)]), norm=True
        )
        again = self.inner(self.shadow, self.r)
        beta = computed(_weight, again, rho, alpha, omega, rr, size, tolerance)
        self.update((self.p, beta, [(1, self.r), (-computed(times, beta, omega), self.v)]))
        left = [computed(kept, new, rr, rr, size, tolerance), computed(kept, again, rho, rr, size, tolerance)]
        return left, [new], [left[1], sigma]  # of this step, so not the rho that it began with

    def check(self, *watched: np.ndarray) -> None:
        rho, sigma = watched
        self.refuse_breakdown("<r0, r>", rho)
        self.refuse_breakdown("<r0, A p>", sigma)


@recorded(hermitian=False)
@named
@sharing
def bicgstab(
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
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for any regular A by BiCGStab.

    Of a field with a batch all members are solved at once and stop one by one; see `cg`, whose arguments these are.

    Raises:
        SolverError: as `gcr`; breakdown, where a product that the recursion divides by is zero.
        ParameterError, LayoutError, RecordingError: as `cg`.
    """
    check_arguments("bicgstab", rtol, atol, maxiter=maxiter, check_interval=check_interval)
    return solved(
        BiCGStab.of_workspace(more, A, b, x0, rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )
