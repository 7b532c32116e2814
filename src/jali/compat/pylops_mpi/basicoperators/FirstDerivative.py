"""The first derivative along the first axis, under the name of pylops_mpi.basicoperators.FirstDerivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.compat.pylops_mpi._parts import ByRows
from jali.linops import FirstDerivative

__all__ = ["MPIFirstDerivative"]


class MPIFirstDerivative(ByRows, FirstDerivative):
    """`jali.linops.FirstDerivative` with the arguments in the order of pylops_mpi, whose results are split by rows."""

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float = 1.0,
        kind: str = "centered",
        edge: bool = False,
        order: int = 3,
        base_comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(dims, sampling, kind, edge, order, dtype=dtype, base_comm=base_comm)
