"""Conjugate gradients with a preconditioner that may be another one in each iteration (G. H. Golub and Q. Ye, SIAM J. Sci. Comput. 21 (1999) 1305).

The weight of the last direction is <z', r' - r> / <z, r>, with r' - r = -alpha A p, which is <z', r'> / <z, r> where M never changes. Called as `cg(A, b, M=M)`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jali.solvers.elementwise import computed, going, kept, ratio, where
from jali.solvers.krylov import Krylov
from jali.solvers.operators import into_of
from jali.solvers.recursion import NORMAL
from jali.solvers.reliable import Inner


def _weight(alpha: Any, product: Any, rho: Any, rr: Any, size: Any, tolerance: Any) -> Any:
    return where(going(rr, size, tolerance), -alpha * product / rho, 0.0)


class PreconditionedCG(Krylov):
    """The direction p, q = A p, and z = M r."""

    name = "cg"
    watches_positive = True

    def __init__(self, A: Any, b: Any, x0: Any, M: Any, rtol: float, atol: float, inner: Inner | None = None):
        self.M = M
        super().__init__(A, b, x0, rtol, atol, inner)

    def begin(self, rr: np.ndarray) -> list[Any]:
        if not hasattr(self, "p"):
            self.precondition = into_of("the preconditioner M", self.M, self.vectors)
            self.p, self.q, self.z = (self.vectors.like(self.b) for _ in range(3))
        self.precondition(self.r, self.z)
        self.vectors.update([(self.p, 0, [(1, self.z)])])
        rho = np.asarray(np.real(self.vectors.inner(self.z, self.r)), float)
        self._refuse("<M r, r>", "M", rho)
        return [rr, rho]

    def step(self, rr: Any, rho: Any) -> tuple[list[Any], list[Any], list[Any]]:
        size, tolerance = self.size, self.tolerance
        self.apply(self.p, self.q)
        curvature = self.inner(self.p, self.q).real
        alpha = computed(ratio, rho, curvature, rr, size, tolerance)
        new = self.update((self.x, 1, [(alpha, self.p)]), (self.r, 1, [(-alpha, self.q)]), norm=True)
        self.precondition(self.r, self.z)
        beta = computed(_weight, alpha, self.inner(self.z, self.q).real, rho, rr, size, tolerance)
        again = self.inner(self.z, self.r).real
        self.update((self.p, beta, [(1, self.z)]))
        again = computed(kept, again, rho, rr, size, tolerance)
        # what is watched is of this step, so not the rho that it began with
        return [new, again], [new], [curvature, again]

    def check(self, *watched: np.ndarray) -> None:
        curvature, rho = watched
        self._refuse("p^dagger A p", "the operator", curvature)
        self._refuse("<M r, r>", "M", rho)

    def _refuse(self, what: str, of: str, value: np.ndarray) -> None:
        self.refuse_bad(what, value, of)
        if np.any(wrong := self.going & (value <= 0)):
            raise self.error(
                wrong,
                f"{what} is not positive: {of} is singular, not positive definite or not Hermitian; {NORMAL}",
            )

    def cause(self) -> str:
        return self.cause_of_hermitian()
