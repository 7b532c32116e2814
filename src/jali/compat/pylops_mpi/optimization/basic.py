"""Least-squares solvers as functions, under the names of pylops_mpi.optimization.basic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.arrays import StackedDistributedArray
from jali.arrays.libraries import numpy_dtype
from jali.compat.pylops_mpi.optimization.cls_basic import CG, CGLS

__all__ = ["CG", "CGLS", "cg", "cgls"]


def _as_one_field(y: Any, x0: Any) -> tuple[Any, Any]:
    """Data and model, both complex where one of them is: scripts begin real problems with complex zeros."""
    kinds = [numpy_dtype(x) for x in (y, x0)]
    if {kind.kind for kind in kinds} != {"f", "c"}:
        return y, x0
    dtype = np.result_type(*kinds)
    return _complex(y, dtype), _complex(x0, dtype)


def _complex(x: Any, dtype: Any) -> Any:
    if isinstance(x, StackedDistributedArray):
        return StackedDistributedArray([_complex(part, dtype) for part in x], x._base_comm)
    return x.astype(dtype)


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
    return solver.solve(*_as_one_field(y, x0), niter, tol, show, itershow)


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
    return solver.solve(*_as_one_field(y, x0), niter, damp, tol, show, itershow)
