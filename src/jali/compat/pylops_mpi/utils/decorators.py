"""Vectors as arrays for functions of operators, under the name of pylops_mpi.utils.decorators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from jali.arrays import DistributedArray, Partition, layout_of
from jali.compat.pylops_mpi._parts import sizes_of_rows

__all__ = ["reshaped"]


def reshaped(
    func: Callable[..., Any] | None = None, forward: bool | None = None, stacking: bool | None = None
) -> Callable[..., Any]:
    """Decorates `_matvec` and `_rmatvec` of an operator: the flat vector comes as an array, and what is returned is made flat.

    The array has shape `self.dims`, or `self.dimsd` for functions with "rmat" in their names and for `div`, and is split along axis 0,
    rows as evenly as it goes. With `stacking` the vector stays flat, and its parts get the sizes `self.local_shapes_m`, or
    `self.local_shapes_n` with `forward=False`. An array that is returned is split along axis 0 before it is made flat.
    """

    def decorated(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        name = function.__name__
        onwards = "rmat" not in name and name not in ("div", "__truediv__")
        if stacking and forward is not None:
            onwards = forward

        @functools.wraps(function)
        def applied(self: Any, x: DistributedArray) -> DistributedArray:
            if stacking:
                shapes = [
                    n if isinstance(n, tuple) else (int(n),)
                    for n in (self.local_shapes_m if onwards else self.local_shapes_n)
                ]
                y = function(self, x.redistribute(0, local_shapes=shapes))
            else:
                y = function(self, _as_array(x, tuple(self.dims if onwards else self.dimsd)))
            if y.ndim == 1:
                return y
            return (y if y.axis == 0 else y.redistribute(0)).ravel()

        return applied

    return decorated if func is None else decorated(func)


def _as_array(x: DistributedArray, dims: tuple[int, ...]) -> DistributedArray:
    layout = layout_of(x.communicator, dims, Partition.SCATTER, 0, mask=x.mask)
    if x.global_shape == dims:
        return x.redistribute(0)
    flat = x.redistribute(0, local_shapes=sizes_of_rows(dims, x.size))
    return DistributedArray.of(layout, flat.local_array.reshape(layout.local_shape), x._base_comm)
