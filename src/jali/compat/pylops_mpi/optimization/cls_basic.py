"""Least-squares solvers as classes, under the names of pylops_mpi.optimization.cls_basic. Their `tol` is of squares, and absolute."""

from __future__ import annotations

from typing import Any

import numpy as np

from jali import solvers
from jali.compat.pylops_mpi.optimization.floating import InTheirWords, floating, of_norm

__all__ = ["CG", "CGLS"]


class CG(InTheirWords, solvers.CG):
    """`jali.solvers.CG`, which has no `damp` here."""

    def setup(  # type: ignore[override]
        self, y: Any, x0: Any, niter: int | None = None, tol: float = 1e-4, show: bool = False
    ) -> Any:
        """Begin with x0. Returns x."""
        self.tol = tol
        return super().setup(floating(y), floating(x0), maxiter=niter, rtol=0.0, atol=of_norm(tol), show=show)

    def solve(  # type: ignore[override]
        self,
        y: Any,
        x0: Any,
        niter: int = 10,
        tol: float = 1e-4,
        show: bool = False,
        itershow: tuple[int, int, int] = (10, 10, 10),
    ) -> tuple[Any, int, np.ndarray]:
        """x, the number of iterations, and |r| before the first and after each."""
        x = self.setup(y, x0, niter, tol, show)
        x = self.run(x, niter, show, itershow)
        self.finalize(show)
        return x, self.iterations, self.cost


class CGLS(InTheirWords, solvers.CGLS):
    """`jali.solvers.CGLS`."""

    def setup(  # type: ignore[override]
        self,
        y: Any,
        x0: Any,
        niter: int | None = None,
        damp: float = 0.0,
        tol: float = 1e-4,
        show: bool = False,
    ) -> Any:
        """Begin with x0. Returns x."""
        self.tol = tol
        return super().setup(
            floating(y), floating(x0), maxiter=niter, damp=damp, rtol=0.0, atol=of_norm(tol), show=show
        )

    def solve(  # type: ignore[override]
        self,
        y: Any,
        x0: Any,
        niter: int = 10,
        damp: float = 0.0,
        tol: float = 1e-4,
        show: bool = False,
        itershow: tuple[int, int, int] = (10, 10, 10),
    ) -> tuple[Any, int, int, float, float, np.ndarray]:
        """x, why it ended, the number of iterations, two norms, and |y - A x| before the first and after each."""
        x = self.setup(y, x0, niter, damp, tol, show)
        x = self.run(x, niter, show, itershow)
        self.finalize(show)
        return x, self.istop, self.iterations, self.r1norm, self.r2norm, self.cost
