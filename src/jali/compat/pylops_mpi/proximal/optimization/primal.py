"""Splitting methods, under the names of pylops_mpi.proximal.optimization.primal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jali import solvers
from jali.compat.pylops_mpi.optimization.floating import renamed

__all__ = ["ADMML2", "ProximalGradient"]


def ProximalGradient(
    proxf: Any,
    proxg: Any,
    x0: Any,
    epsg: Any = 1.0,
    tau: float | None = None,
    eta: float = 1.0,
    niter: int = 10,
    niterback: int = 100,
    acceleration: str | None = None,
    tol: float | None = None,
    callback: Callable[[Any], None] | None = None,
    show: bool = False,
) -> Any:
    """`jali.solvers.ProximalGradient`."""
    return solvers.ProximalGradient(
        proxf, proxg, x0, epsg=epsg, tau=tau, eta=eta, maxiter=niter, max_backtracks=niterback, acceleration=acceleration, rtol=tol,
        callback=callback, show=show,
    )  # fmt: skip


def ADMML2(
    proxg: Any,
    Op: Any,
    b: Any,
    A: Any,
    x0: Any,
    tau: float,
    niter: int = 10,
    z0: Any = None,
    gfirst: bool = False,
    callback: Callable[[Any], None] | None = None,
    show: bool = False,
    kwargs_solver: dict[str, Any] | None = None,
) -> tuple[Any, Any]:
    """`jali.solvers.ADMML2`, whose `A` and `K` are `Op` and `A` here; `kwargs_solver` are arguments of `cgls` of pylops_mpi."""
    return solvers.ADMML2(
        proxg, Op, b, A, x0, tau, maxiter=niter, z0=z0, gfirst=gfirst, callback=callback, show=show,
        solver_options=renamed({"tol": 1e-4} | (kwargs_solver or {}), of_squares=True),
    )  # fmt: skip
