"""Least-squares solvers as functions, under the names of pylops_mpi.optimization.basic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.compat.pylops_mpi.optimization.cls_basic import CG, CGLS

__all__ = ["CG", "CGLS", "cg", "cgls"]


def cg(
    Op: Any,
    y: Any,
    x0: Any,
    niter: int = 10,
    tol: float = 1e-4,
    show: bool = False,
    itershow: tuple[int, int, int] = (10, 10, 10),
    callback: Callable[[Any], None] | None = None,
) -> tuple[Any, int, np.ndarray]:
    """`jali.solvers.CG`: x, the number of iterations, and |r| before the first and after each."""
    solver = CG(Op)
    solver.callback = callback
    return solver.solve(y, x0, niter, tol, show, itershow)


def cgls(
    Op: Any,
    y: Any,
    x0: Any,
    niter: int = 10,
    damp: float = 0.0,
    tol: float = 1e-4,
    show: bool = False,
    itershow: tuple[int, int, int] = (10, 10, 10),
    callback: Callable[[Any], None] | None = None,
) -> tuple[Any, int, int, float, float, np.ndarray]:
    """`jali.solvers.CGLS`: x, why it ended, the number of iterations, two norms, and |y - A x| before the first and after each."""
    solver = CGLS(Op)
    solver.callback = callback
    return solver.solve(y, x0, niter, damp, tol, show, itershow)
