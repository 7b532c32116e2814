"""Least-squares solvers as classes, under the names of pylops_mpi.optimization.cls_basic."""

from __future__ import annotations

from typing import Any

import numpy as np

from jali import solvers
from jali.compat.pylops_mpi.optimization.floating import CostAsArray, floating

__all__ = ["CG", "CGLS"]


class CG(CostAsArray, solvers.CG):
    """`jali.solvers.CG` with the arguments in the order of pylops_mpi, which has no `damp` here."""

    def setup(  # type: ignore[override]
        self, y: Any, x0: Any, niter: int | None = None, tol: float = 1e-4, show: bool = False
    ) -> Any:
        """Begin with x0. Returns x."""
        return super().setup(floating(y), floating(x0), niter, tol=tol, show=show)

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
        return x, self.iiter, np.array(self.cost)


class CGLS(CostAsArray, solvers.CGLS):
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
        return super().setup(floating(y), floating(x0), niter, damp, tol, show)
