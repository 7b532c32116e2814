"""Convolution with varying filters, under the name of pylops_mpi.signalprocessing.NonStatConvolve1d."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jali.linops.convolve import NonStationaryConvolve1D

__all__ = ["MPINonStationaryConvolve1D"]


class MPINonStationaryConvolve1D(NonStationaryConvolve1D):
    """`jali.linops.NonStationaryConvolve1D` with the default type of pylops_mpi, where parts of flat vectors, unless these were made of
    arrays, lie along the axis of the convolution."""

    def __init__(
        self,
        dims: int | Sequence[int],
        hs: Any,
        ih: Sequence[int],
        axis: int = -1,
        base_comm: Any = None,
        dtype: Any = "float64",
    ) -> None:
        super().__init__(dims, hs, ih, axis, base_comm, dtype)
        self.flat_axis = self.axis
