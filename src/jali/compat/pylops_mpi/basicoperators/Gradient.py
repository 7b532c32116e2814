"""The gradient, under the name of pylops_mpi.basicoperators.Gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jali.compat.pylops_mpi._parts import ByRows
from jali.linops import Gradient

__all__ = ["MPIGradient"]


class MPIGradient(ByRows, Gradient):
    """`jali.linops.Gradient` with the arguments in the order of pylops_mpi, whose results are split by rows; `dimsd` is flat."""

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float | Sequence[float] = 1,
        edge: bool = False,
        kind: str = "centered",
        base_comm: Any = None,
        dtype: Any = "float64",
    ) -> None:
        super().__init__(dims, sampling, edge, kind, dtype=dtype, base_comm=base_comm)
        self.dimsd = (self.shape[0],)
