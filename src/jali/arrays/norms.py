"""Norms of distributed arrays, as `numpy.linalg.norm` has them for vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.arrays.layout import Partition, layout_of
from jali.arrays.libraries import library_of
from jali.errors import ParameterError, ShapeError

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray


def norm(x: DistributedArray, order: Any, axis: int | None) -> Any:
    """See `DistributedArray.norm`."""
    if order in ("fro", "nuc"):
        raise NotImplementedError(
            f"norm {order!r} is one of matrices; distributed arrays have those of vectors"
        )
    order = 2 if order is None else order
    if not isinstance(order, int | float | np.number):
        raise ParameterError(f"the order of a norm is a number, not {order!r}")
    order = float(order)
    local, library = x.local, library_of(x.local)
    if axis is None:
        parts = _parts(library.contiguous(local).reshape(-1), order, None, library)
        mine = parts if isinstance(parts, float | int) else float(library.number(parts))
        if x.layout.scattered:
            kind = _combination(order)
            mine = float(x.layout.group.all_reduce(np.array([mine]), op=kind)[0])
        return _finish(mine, order)
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"axis {axis} does not exist in an array of shape {x.global_shape}")
    axis %= x.ndim
    parts = library.contiguous(_parts(local, order, axis, library))
    layout = x.layout
    if layout.scattered and axis in layout.axes:
        if len(layout.axes) > 1:
            raise ShapeError(
                "norms along an axis of a grid that is split are not there; redistribute along one axis"
            )
        layout.group.all_reduce(parts, parts, op=_combination(order))
    elif layout.scattered:
        from jali.arrays.moves import whole

        shape = tuple(n for k, n in enumerate(layout.shape) if k != axis)
        axes = tuple(a - (a > axis) for a in layout.axes)
        shapes = tuple(tuple(n for k, n in enumerate(s) if k != axis) for s in layout.local_shapes)
        without = layout_of(
            layout.communicator, shape, Partition.SCATTER, axes, grid=layout.grid, local_shapes=shapes,
            mask=layout.mask,
        )  # fmt: skip
        parts = whole(without, parts)
    return _finish(parts, order)


def _combination(order: float) -> str:
    return {math.inf: "max", -math.inf: "min"}.get(order, "sum")


def _parts(local: Any, order: float, axis: int | None, library: Any) -> Any:
    """What is combined over ranks: sums of powers, counts or extremes."""
    xp = library.xp
    if order == 2 and axis is None:
        return abs(library.dot(local, local, True))
    named = {} if axis is None else {"axis": axis}
    if order == 0:
        return (local != 0).sum(**named) * 1.0
    size = xp.abs(local)
    if order in (math.inf, -math.inf):
        if size.shape and 0 in size.shape:
            empty = 0.0 if order > 0 else math.inf
            if axis is None:
                return empty
            return library.zeros_beside(size, tuple(n for k, n in enumerate(size.shape) if k != axis)) + empty
        return xp.amax(size, **named) if order > 0 else xp.amin(size, **named)
    return (size if order == 1 else size**order).sum(**named)


def _finish(total: Any, order: float) -> Any:
    if order in (0, 1, math.inf, -math.inf):
        return total
    return math.sqrt(total) if order == 2 and isinstance(total, float) else total ** (1.0 / order)
