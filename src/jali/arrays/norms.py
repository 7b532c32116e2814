"""Norms of distributed arrays, as `numpy.linalg.norm` has them for vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.arrays import moves
from jali.arrays.layout import Partition, layout_of
from jali.arrays.libraries import library_of, numpy_dtype
from jali.comm.given import integer
from jali.errors import ParameterError, ShapeError

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray


def norm(x: DistributedArray, order: Any, axis: int | None) -> Any:
    """See `DistributedArray.norm`."""
    if isinstance(order, str) and order in ("fro", "nuc"):
        raise NotImplementedError(
            f"norm {order!r} is one of matrices; distributed arrays have those of vectors"
        )
    order = 2 if order is None else order
    if not isinstance(order, int | float | np.number):
        raise ParameterError(f"the order of a norm is a number, not {order!r}")
    order = float(order)
    local, library = x.local, library_of(x.local)
    if library.complete:
        return library.xp if axis is not None else local.norm(order)
    if library.immutable:
        found = norm(type(x).of(x.layout, library.lent(local)), order, axis)
        return found if axis is None else library.returned(found)
    local = floating(local)
    layout = x.layout
    if axis is None:
        mine = _parts(library.contiguous(local).reshape(-1), order, None, library)
        if layout.scattered:
            mine = moves.combined(layout.group, [library.number(mine)], _combination(order))[0]
        return _finish(float(library.number(mine)), order)
    along = integer(axis)
    if along is None:
        raise ShapeError(f"a norm of vectors is one along an axis, a whole number, not {axis!r}")
    if not -x.ndim <= along < x.ndim:
        raise ShapeError(f"axis {axis} does not exist in an array of shape {x.global_shape}")
    along %= x.ndim
    parts = _parts(local, order, along, library)
    if layout.scattered and along in layout.axes:
        if len(layout.axes) > 1:
            raise ShapeError(
                "norms along an axis of a grid that is split are not there; redistribute along one axis"
            )
        parts = moves.combined_array(layout.group, parts, _combination(order))
    elif layout.scattered:
        shape = tuple(n for k, n in enumerate(layout.shape) if k != along)
        axes = tuple(a - (a > along) for a in layout.axes)
        shapes = tuple(tuple(n for k, n in enumerate(s) if k != along) for s in layout.local_shapes)
        without = layout_of(
            layout.communicator, shape, Partition.SCATTER, axes, grid=layout.grid, local_shapes=shapes,
            mask=layout.mask,
        )  # fmt: skip
        parts = moves.whole(without, parts)
    return _finish(parts, order)


def floating(local: Any) -> Any:
    """Numbers whose squares and sums neither wrap around nor overflow early: whole ones and halves in a wider type."""
    dtype = numpy_dtype(local)
    if dtype.kind in "fc" and dtype.itemsize > 2:
        return local
    return library_of(local).astype(local, np.float32 if dtype.kind == "f" else np.float64)


def _combination(order: float) -> str:
    return {math.inf: "max", -math.inf: "min"}.get(order, "sum")


def _parts(local: Any, order: float, axis: int | None, library: Any) -> Any:
    """What is combined over ranks: sums of powers, counts or extremes."""
    xp = library.xp
    if order == 2 and axis is None:
        return library.squares(local)
    named = {} if axis is None else {"axis": axis}
    if order == 0:
        return (local != 0).sum(**named) * 1.0
    size = xp.abs(local)
    if order in (math.inf, -math.inf):
        if 0 in size.shape:
            shape = tuple(n for k, n in enumerate(size.shape) if axis is not None and k != axis)
            return library.zeros_beside(size, shape) + (0.0 if order > 0 else math.inf)
        return xp.amax(size, **named) if order > 0 else xp.amin(size, **named)
    return (size if order == 1 else size**order).sum(**named)


def _finish(total: Any, order: float) -> Any:
    if order in (0, 1, math.inf, -math.inf):
        return total
    if not isinstance(total, float):
        return total ** (1.0 / order)
    # Python's numbers would raise where NumPy's are inf
    return math.sqrt(total) if order == 2 else float(np.float64(total) ** (1.0 / order))
