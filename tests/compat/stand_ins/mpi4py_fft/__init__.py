"""What pylops-mpi 0.8.0 takes from mpi4py-fft, which needs FFTW to be built: transforms by numpy.fft, and its layout of results.

tools/pylops_mpi_scripts.py uses it where mpi4py-fft is not installed. An axis is transformed where every rank has all of it; before
that the axis transformed last changes places with it, as there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .pencil import Pencil


class PFFT:
    """The transform of arrays of this shape along axes, the last one first."""

    def __init__(self, subcomm: Sequence[Any], shape: Sequence[int], axes: Sequence[int], dtype: Any) -> None:
        self.axes = [int(axis) for axis in axes][::-1]
        self.dtype = np.dtype(dtype)
        self.real = self.dtype.kind == "f"
        self.lengths = list(map(int, shape))
        shape, layout = list(self.lengths), list(subcomm)
        self.steps = []  # the layouts in which each axis is transformed, before and after
        for before, axis in zip([self.axes[0], *self.axes], self.axes, strict=False):
            layout[before], layout[axis] = layout[axis], layout[before]
            first = Pencil(layout, shape)
            if self.real and not self.steps:
                shape[axis] = shape[axis] // 2 + 1
            self.steps.append((first, Pencil(layout, shape)))
        self.pencil = {False: self.steps[0][0], True: self.steps[-1][1]}

    def forward(self, x: np.ndarray, y: np.ndarray, normalize: bool) -> None:
        assert not normalize
        here = self.pencil[False]
        for axis, (before, after) in zip(self.axes, self.steps, strict=True):
            x = here.moved(x, before)
            x = np.fft.rfft(x, axis=axis) if self.real and axis == self.axes[0] else np.fft.fft(x, axis=axis)
            here = after
        y[...] = x

    def backward(self, x: np.ndarray, y: np.ndarray, normalize: bool) -> None:
        assert normalize
        here = self.pencil[True]
        for axis, (before, after) in zip(self.axes[::-1], self.steps[::-1], strict=True):
            x = here.moved(x, after)
            if self.real and axis == self.axes[0]:
                x = np.fft.irfft(x, self.lengths[axis], axis=axis)
            else:
                x = np.fft.ifft(x, axis=axis)
            here = before
        y[...] = x


def newDistArray(pfft: PFFT, forward_output: bool) -> np.ndarray:
    """An array of this rank's part of what goes in or comes out."""
    kind = np.result_type(pfft.dtype, np.complex64) if forward_output else pfft.dtype
    return np.zeros(pfft.pencil[forward_output].local_shape, kind)
