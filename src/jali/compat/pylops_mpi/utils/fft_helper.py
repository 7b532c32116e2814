"""Zero frequencies in the middle of arrays, under the names of pylops_mpi.utils.fft_helper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jali.arrays import DistributedArray
from jali.arrays.libraries import library_of
from jali.errors import ShapeError

__all__ = ["fftshift_nd", "ifftshift_nd"]


def fftshift_nd(x: DistributedArray, axes: int | Sequence[int] | None = None) -> DistributedArray:
    """Frequency 0 moves to the middle of each axis (default: of all), as by `numpy.fft.fftshift`. Raises ShapeError for vectors.

    Of an array that is split along one of these axes, the result is split along another one.
    """
    return _shifted(x, axes, lambda n: n // 2)


def ifftshift_nd(x: DistributedArray, axes: int | Sequence[int] | None = None) -> DistributedArray:
    """The inverse of `fftshift_nd`."""
    return _shifted(x, axes, lambda n: -(n // 2))


def _shifted(
    x: DistributedArray, axes: int | Sequence[int] | None, by: Callable[[int], int]
) -> DistributedArray:
    if x.ndim < 2:
        raise ShapeError(f"arrays of two and more dimensions are shifted, not of shape {x.global_shape}")
    given = range(x.ndim) if axes is None else [axes] if isinstance(axes, int) else axes
    left = {axis % x.ndim for axis in given}
    while left:
        now = [axis for axis in left if not x.layout.scattered or axis not in x.layout.axes]
        roll = library_of(x.local).xp.roll
        local = roll(x.local, tuple(by(x.global_shape[axis]) for axis in now), tuple(now))
        x = DistributedArray.of(x.layout, local, x._base_comm)
        left -= set(now)
        if left:
            x = x.redistribute(next(axis for axis in range(x.ndim) if axis not in x.layout.axes))
    return x
