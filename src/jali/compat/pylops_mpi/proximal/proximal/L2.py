"""The square of a norm, under the name of pylops_mpi.proximal.proximal.L2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jali import solvers
from jali.compat.pylops_mpi.optimization.floating import renamed

__all__ = ["MPIL2"]


class MPIL2(solvers.L2):
    """`jali.solvers.L2`, whose `A` is `Op` here; `kwargs_solver` are arguments of `cg` or `cgls` of pylops_mpi."""

    def __init__(
        self,
        Op: Any = None,
        b: Any = None,
        q: Any = None,
        sigma: float = 1.0,
        alpha: float = 1.0,
        qgrad: bool = True,
        niter: int | Callable[[int], int] = 10,
        x0: Any = None,
        warm: bool = True,
        solver: str = "cgls",
        kwargs_solver: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(
            Op, b, q, sigma=sigma, alpha=alpha, qgrad=qgrad, maxiter=niter, x0=x0, warm=warm, solver=solver,
            solver_options=renamed({"tol": 1e-4} | (kwargs_solver or {}), of_squares=True),
        )  # fmt: skip

    def prox(self, x: Any, tau: float, **kwargs: Any) -> Any:
        """As that of `jali.solvers.L2`; `kwargs` are arguments of the solver."""
        return super().prox(x, tau, **(renamed(kwargs, of_squares=True) or {}))
