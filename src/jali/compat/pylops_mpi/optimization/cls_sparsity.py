"""Solvers of sparse problems as classes, under the names of pylops_mpi.optimization.cls_sparsity."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.compat.pylops_mpi.optimization.floating import InTheirWords, floating, renamed
from jali.solvers import sparsity

__all__ = ["FISTA", "ISTA"]

EIGS = {"niter": 10, "tol": 1e-5}  # defaults of power_iteration, which finds the step length


class _InTheirOrder(InTheirWords, sparsity.ISTA):
    """The arguments of pylops_mpi, in its order; `rtol` and `rtol1` of the functions may be given to the classes too. What diverges ends
    with a cost that is infinite or nan."""

    def _diverged(self, x: Any) -> None:
        pass

    def _going_on(self) -> bool:
        return (not self.cost or math.isfinite(self.cost[-1])) and super()._going_on()

    def setup(  # type: ignore[override]
        self,
        y: Any,
        x0: Any,
        niter: int | None = None,
        SOp: Any = None,
        eps: float = 0.1,
        alpha: float | None = None,
        eigsdict: dict[str, Any] | None = None,
        tol: float = 1e-10,
        threshkind: str = "soft",
        decay: Sequence[float] | None = None,
        monitorres: bool = False,
        show: bool = False,
        *,
        rtol: float = 0.0,
        rtol1: float = 0.0,
    ) -> Any:
        """Begin with x0. Returns x."""
        self.tol = tol
        return super().setup(
            floating(y), floating(x0), maxiter=niter, SOp=SOp, eps=eps, alpha=alpha, eigs_options=renamed(EIGS | (eigsdict or {})),
            atol=max(tol, 0.0), cost_rtol=rtol, cost_btol=rtol1, threshkind=threshkind, decay=decay, monitorres=monitorres, show=show,
        )  # fmt: skip

    def solve(  # type: ignore[override]
        self,
        y: Any,
        x0: Any,
        niter: int | None = None,
        SOp: Any = None,
        eps: float = 0.1,
        alpha: float | None = None,
        eigsdict: dict[str, Any] | None = None,
        tol: float = 1e-10,
        threshkind: str = "soft",
        decay: Sequence[float] | None = None,
        monitorres: bool = False,
        show: bool = False,
        itershow: tuple[int, int, int] = (10, 10, 10),
        *,
        rtol: float = 0.0,
        rtol1: float = 0.0,
    ) -> tuple[Any, int, np.ndarray]:
        """x, the number of iterations, and the costs."""
        x = self.setup(
            y, x0, niter, SOp, eps, alpha, eigsdict, tol, threshkind, decay, monitorres, show, rtol=rtol, rtol1=rtol1
        )  # fmt: skip
        x = self.run(x, niter, show, itershow)
        self.finalize(show)
        return x, self.iterations, self.cost


class ISTA(_InTheirOrder):
    """`jali.solvers.ISTA`."""


class FISTA(_InTheirOrder, sparsity.FISTA):
    """`jali.solvers.FISTA`; the extrapolated vector is `self.z`, not an argument of `step`."""
