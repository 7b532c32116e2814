"""The primal-dual method, under the name of pylops_mpi.proximal.optimization.primaldual."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jali import solvers

__all__ = ["PrimalDual"]


def PrimalDual(
    proxf: Any,
    proxg: Any,
    A: Any,
    x0: Any,
    y0: Any = None,
    tau: Any = None,
    mu: Any = None,
    z: Any = None,
    theta: float = 1.0,
    niter: int = 10,
    gfirst: bool = True,
    callback: Callable[..., None] | None = None,
    callbacky: bool = False,
    returny: bool = False,
    show: bool = False,
) -> Any:
    """`jali.solvers.PrimalDual`, whose `K` is `A` here."""
    return solvers.PrimalDual(
        proxf, proxg, A, x0, y0, tau=tau, mu=mu, z=z, theta=theta, maxiter=niter, gfirst=gfirst, callback=callback,
        callback_pair=callbacky, return_pair=returny, show=show,
    )  # fmt: skip
