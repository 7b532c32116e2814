"""Solvers of sparse problems as functions, under the names of pylops_mpi.optimization.sparsity."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.compat.pylops_mpi.optimization.cls_sparsity import FISTA, ISTA

__all__ = ["FISTA", "ISTA", "fista", "ista"]


def _function_of(kind: type[Any]) -> Callable[..., tuple[Any, int, np.ndarray]]:
    def solve(
        Op: Any,
        y: Any,
        x0: Any = None,
        niter: int = 10,
        SOp: Any = None,
        eps: float = 0.1,
        alpha: float | None = None,
        eigsdict: dict[str, Any] | None = None,
        tol: float = 1e-10,
        rtol: float = 0.0,
        rtol1: float = 0.0,
        threshkind: str = "soft",
        decay: Sequence[float] | None = None,
        monitorres: bool = False,
        show: bool = False,
        itershow: tuple[int, int, int] = (10, 10, 10),
        callback: Callable[[Any], None] | None = None,
    ) -> tuple[Any, int, np.ndarray]:
        solver = kind(Op)
        solver.callback = callback
        return solver.solve(
            y, x0, niter, SOp, eps, alpha, eigsdict, tol, threshkind, decay, monitorres, show, itershow, rtol=rtol, rtol1=rtol1
        )  # fmt: skip

    solve.__name__ = solve.__qualname__ = kind.__name__.lower()
    solve.__doc__ = f"`jali.solvers.{kind.__name__}`: x, the number of iterations, and the cost of each."
    return solve


ista, fista = _function_of(ISTA), _function_of(FISTA)
