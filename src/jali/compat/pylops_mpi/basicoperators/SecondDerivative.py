"""The second derivative along the first axis, under the name of pylops_mpi.basicoperators.SecondDerivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.compat.pylops_mpi._parts import ByRows
from jali.linops import SecondDerivative

__all__ = ["MPISecondDerivative"]


class MPISecondDerivative(ByRows, SecondDerivative):
    """`jali.linops.SecondDerivative` with the arguments in the order of pylops_mpi, whose results are split by rows."""

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float = 1.0,
        kind: str = "centered",
        edge: bool = False,
        base_comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(dims, sampling, kind, edge, dtype=dtype, base_comm=base_comm)
