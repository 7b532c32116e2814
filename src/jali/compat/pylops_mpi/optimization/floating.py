"""What solvers of pylops_mpi take beside floating-point numbers, what things are called in them, and what they leave when they end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from jali.array_namespaces import numpy_dtype
from jali.arrays import StackedDistributedArray
from jali.errors import ParameterError
from jali.solvers import Solver


def floating(x: Any) -> Any:
    """x, or where it holds whole numbers a copy in double precision."""
    if isinstance(x, StackedDistributedArray):
        return StackedDistributedArray([floating(part) for part in x], x._base_comm)
    return x.astype(np.float64) if hasattr(x, "dtype") and numpy_dtype(x).kind in "biu" else x


def of_norm(tol: float) -> float:
    """A tolerance of a norm, from one of its square."""
    return math.sqrt(tol) if tol > 0 else tol * 0.0


THEIRS = {"niter": "maxiter", "tol": "rtol"}


def renamed(options: dict[str, Any] | None, of_squares: bool = False) -> dict[str, Any] | None:
    """Options of an inner solver in jali's words; `tol` may be absolute and of squares."""
    if options is None:
        return None
    found = {THEIRS.get(word, word): value for word, value in options.items()}
    return (
        found | {"rtol": 0.0, "atol": of_norm(options["tol"])} if of_squares and "tol" in options else found
    )


def _called(ours: str) -> Any:
    """An attribute of jali's under another name."""
    return property(attrgetter(ours), lambda self, value: setattr(self, ours, value))


class InTheirWords(Solver):
    """A solver of `jali.solvers` with the names of pylops_mpi: `Op`, `niter`, `iiter`, `callbacks`, `callback`; `cost` is an array in the
    end."""

    cost: Any
    callback: Any = None  # a function of x, which scripts set
    Op, niter, iiter = _called("A"), _called("maxiter"), _called("iterations")

    def __init__(self, Op: Any, callbacks: Sequence[Any] | None = None, **options: Any) -> None:
        super().__init__(Op, callback=None if callbacks is None else list(callbacks), **options)

    def run(  # type: ignore[override]
        self,
        x: Any,
        niter: int | None = None,
        show: bool = False,
        itershow: tuple[int, int, int] = (10, 10, 10),
    ) -> Any:
        """Iterate, at most `niter` times in all. Returns x."""
        if self.callback is not None and not callable(self.callback):
            raise ParameterError(f"a callback is a function of x, not {self.callback!r}")
        return super().run(x, maxiter=niter, show=show, itershow=itershow)

    def _counted_step(self, x: Any, show: bool) -> Any:
        x = super()._counted_step(x, show)
        if self.callback is not None:
            self.callback(x)
        return x

    def finalize(self, show: bool = False) -> None:
        """End."""
        super().finalize(show)
        self.cost = np.array(self.cost)
