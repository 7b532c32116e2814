"""Minimal residuals for Hermitian operators that need not be definite: MINRES of C. C. Paige and M. A. Saunders, SIAM J. Numer. Anal. 12 (1975) 617.

Lanczos' recursion makes the operator a tridiagonal matrix, and rotations make that a triangular one, row by row. Lanczos vectors are kept with their
length, by which the next update divides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.keywords import named
from jali.solvers.batches import BatchSolution
from jali.solvers.elementwise import computed, going, if_going, sqrt, times, where
from jali.solvers.krylov import Krylov
from jali.solvers.recorded import recorded
from jali.solvers.recursion import Solution
from jali.solvers.reliable import Inner
from jali.solvers.shared import sharing
from jali.solvers.solved import solved
from jali.solvers.solver import MAXITER, check_arguments


def _inverse(length: Any) -> Any:
    return where(length > 0, 1.0 / length, 0.0)


def _square_root(square: Any) -> Any:
    return sqrt(square)


def _diagonal(product: Any, inverse: Any) -> Any:
    """v^dagger A v of the normalised Lanczos vector."""
    return product * inverse * inverse


def _minus_product(a: Any, b: Any) -> Any:
    return -a * b


def _delta(cs: Any, dbar: Any, sn: Any, alpha: Any) -> Any:
    return cs * dbar + sn * alpha


def _gbar(sn: Any, dbar: Any, cs: Any, alpha: Any) -> Any:
    return sn * dbar - cs * alpha


def _hypotenuse(gbar: Any, beta: Any) -> Any:
    return sqrt(gbar * gbar + beta * beta)


def _fallen(rr: Any, sn: Any, size: Any, tolerance: Any) -> Any:
    return where(going(rr, size, tolerance), rr * sn * sn, rr)


class MINRES(Krylov):
    """Two Lanczos vectors v and two directions w, whose older one the new one replaces: a step is two iterations, after which they lie as before."""

    name = "minres"
    steps = 2

    def begin(self, rr: np.ndarray) -> list[Any]:
        like, update = self.vectors.like, self.vectors.update
        if not hasattr(self, "v"):
            self.v, self.w = ([like(self.b) for _ in range(2)] for _ in range(2))
            self.q = like(self.b)
        update([(self.v[0], 0, [(1, self.r)])])
        for unused in (self.v[1], *self.w):  # there is none before
            update([(unused, 0, [(0.0, self.r)])])
        beta, zero = np.sqrt(rr), np.zeros_like(rr)
        inverse = np.where(beta > 0, 1 / np.where(beta > 0, beta, 1.0), 0.0)
        return [rr, inverse, zero, zero, zero - 1, zero, zero, zero]

    def step(self, *numbers: Any) -> tuple[list[Any], list[Any], list[Any]]:
        rr, inverse, inverse_before, beta, cs, sn, dbar, epsilon = numbers
        found, watched = [], []
        for k in range(2):
            v, before, w, oldest = self.v[k], self.v[1 - k], self.w[k], self.w[1 - k]
            self.apply(v, self.q)
            alpha = computed(_diagonal, self.inner(v, self.q).real, inverse)
            square = self.update(
                (
                    before,
                    computed(_minus_product, beta, inverse_before),
                    [(inverse, self.q), (computed(_minus_product, alpha, inverse), v)],
                ),
                norm=True,
            )
            beta = computed(_square_root, square)
            delta, gbar = computed(_delta, cs, dbar, sn, alpha), computed(_gbar, sn, dbar, cs, alpha)
            epsilon_before, epsilon = epsilon, computed(times, sn, beta)
            dbar = computed(_minus_product, cs, beta)
            over = computed(_inverse, computed(_hypotenuse, gbar, beta))
            cs, sn = computed(times, gbar, over), computed(times, beta, over)
            along = computed(
                if_going, computed(times, cs, computed(_square_root, rr)), rr, self.size, self.tolerance
            )
            self.update(
                (
                    oldest,
                    computed(_minus_product, epsilon_before, over),
                    [(computed(times, inverse, over), v), (computed(_minus_product, delta, over), w)],
                ),
                (self.x, 1, [(along, oldest)]),
            )
            rr = computed(_fallen, rr, sn, self.size, self.tolerance)  # |r| falls by the sine
            inverse_before, inverse = inverse, computed(_inverse, beta)
            found.append(rr)
            watched.append(alpha)
        return [rr, inverse, inverse_before, beta, cs, sn, dbar, epsilon], found, watched

    def check(self, *watched: np.ndarray) -> None:
        for alpha in watched:
            self.refuse_bad("v^dagger A v", alpha)

    def cause(self) -> str:
        return self.cause_of_hermitian()


@recorded(hermitian=True)
@named
@sharing
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
    inner: Inner | None = None,
    **more: Any,
) -> Solution | BatchSolution:
    """Solves A x = b for any regular Hermitian A, by minimal residuals.

    Of a field with a batch all members are solved at once and stop one by one; see `cg`, whose arguments these are. `maxiter` is rounded up to
    a multiple of 2, and a callback is called after two iterations.

    Raises:
        SolverError: as `gcr`; where it fails it says whether the operator is Hermitian.
        ParameterError, LayoutError, RecordingError: as `cg`.
    """
    check_arguments("minres", rtol, atol, maxiter=maxiter, check_interval=check_interval)
    return solved(
        MINRES.of_workspace(more, A, b, x0, rtol, atol, inner),
        maxiter,
        must_converge,
        check_interval,
        callback,
        **more,
    )
