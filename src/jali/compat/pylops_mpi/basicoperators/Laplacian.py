"""The Laplacian, under the name of pylops_mpi.basicoperators.Laplacian."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.compat.pylops_mpi._parts import ByRows
from jali.linops import Laplacian

__all__ = ["MPILaplacian"]


class MPILaplacian(ByRows, Laplacian):
    """`jali.linops.Laplacian` with the arguments in the order of pylops_mpi, whose results are split by rows.

    As there, `dimsd` is flat unless the first of `axes` is 0.
    """

    def __init__(
        self,
        dims: Sequence[int],
        axes: Sequence[int] = (-2, -1),
        weights: Sequence[float] = (1, 1),
        sampling: Sequence[float] = (1, 1),
        edge: bool = False,
        kind: str = "centered",
        base_comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(dims, axes, weights, sampling, edge, kind, dtype=dtype, base_comm=base_comm)
        if self.axes[0] != 0:
            self.dimsd = (self.shape[0],)
