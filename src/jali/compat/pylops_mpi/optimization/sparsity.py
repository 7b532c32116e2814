"""Solvers of sparse problems as functions, under the names of pylops_mpi.optimization.sparsity."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from jali.compat.pylops_mpi.optimization.cls_sparsity import FISTA, ISTA
from jali.compat.pylops_mpi.optimization.floating import floating
from jali.solvers import sparsity

__all__ = ["FISTA", "ISTA", "fista", "ista"]


def _of_any_numbers(solve: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(solve)
    def call(Op: Any, y: Any, x0: Any = None, *arguments: Any, **options: Any) -> Any:
        return solve(Op, floating(y), floating(x0), *arguments, **options)

    return call


ista, fista = _of_any_numbers(sparsity.ista), _of_any_numbers(sparsity.fista)
