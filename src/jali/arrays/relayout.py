"""Distributed arrays in other layouts and of other shapes: what each rank has then, and what has to move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.arrays import redistribution
from jali.arrays.elementwise import SERIAL
from jali.arrays.layout import Layout, Partition, Shape, extents, layout_of
from jali.comm.validation import integer, several
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray


def redistribute(
    x: DistributedArray,
    axis: int | Sequence[int] | None,
    partition: Partition,
    grid: Sequence[int] | None,
    local_shapes: Sequence[Any] | None,
) -> DistributedArray:
    """See `DistributedArray.redistribute`."""
    layout = layout_of(
        x.communicator, x.global_shape, partition, x.layout.axes if axis is None else axis,
        grid=grid, local_shapes=local_shapes, mask=x.layout.mask, flat_of=x.layout.flat_of,
    )  # fmt: skip
    x.check_replicated()
    if layout is x.layout:
        return x.copy()
    found = namespace_of(x._local).made_of(
        x._local, lambda local: redistribution.redistribute_part(local, x.layout, layout)
    )
    return x.of(layout, found, x._base_comm)


def transpose(x: DistributedArray, axes: Sequence[int] | None) -> DistributedArray:
    """See `DistributedArray.transpose`."""
    if x.ndim == 1 and not axes:
        return x.of(x.layout, x._local, x._base_comm)
    layout, order = x.layout, tuple(reversed(range(x.ndim)))
    if axes is not None and (not several(axes) or not hasattr(axes, "__len__")):
        raise ShapeError(f"an order of axes has a whole number for each, not {value_shown(axes)}")
    if axes is not None and len(axes):
        order = tuple(
            axis % x.ndim if (axis := integer(given)) is not None and -x.ndim <= axis < x.ndim else -1
            for given in axes
        )
        if sorted(order) != list(range(x.ndim)):
            raise ShapeError(
                f"axes {value_shown(tuple(axes))} are no order of the {x.ndim} axes of an array of shape {x.global_shape}"
            )
    after = layout_of(
        x.communicator, tuple(layout.shape[axis] for axis in order), x.partition,
        tuple(order.index(axis) for axis in layout.axes) if order else 0, grid=layout.grid if layout.scattered else None,
        local_shapes=tuple(tuple(shape[axis] for axis in order) for shape in layout.local_shapes), mask=layout.mask,
    )  # fmt: skip
    return x.of(after, namespace_of(x._local).transpose(x._local, order), x._base_comm)


def ravel(x: DistributedArray, order: str) -> DistributedArray:
    """See `DistributedArray.ravel`."""
    if not isinstance(order, str) or order not in ("C", "F", "A", "K"):
        raise ParameterError(f"the order of elements is 'C', 'F', 'A' or 'K', not {value_shown(order)}")
    flat = namespace_of(x._local).ravel(x._local, order)
    # in Fortran's order the parts are those of the transposed array
    layout = transpose(x, None).layout if order == "F" and x.ndim > 1 else x.layout
    return x.of(layout.flat, flat, x._base_comm)


def reshape(x: DistributedArray, local_shape: int | Sequence[int], axis: int) -> DistributedArray:
    """See `DistributedArray.reshape`."""
    shape = extents("a local shape", local_shape)
    flat_of = x.layout.flat.flat_of if len(shape) == 1 else None
    if not x.layout.scattered:
        _check_reshaped(x.layout, [shape])
        layout = x.layout.with_(shape=shape, axes=(axis,), flat_of=flat_of)
        return x.of(layout, x._local.reshape(shape), x._base_comm)
    texts = x.communicator.gather_bytes(np.array(shape, np.int64).tobytes(), what="reshape")
    shapes = tuple(tuple(map(int, np.frombuffer(text, np.int64))) for text in texts)
    if len({len(one) for one in shapes}) > 1:
        raise ShapeError(f"reshape: ranks gave local shapes of different dimensions, {shapes}")
    _check_reshaped(x.layout, shapes)
    whole, number = list(shapes[0]), integer(axis)
    if number is None or not -len(whole) <= number < len(whole):
        raise ShapeError(f"axis {value_shown(axis)} does not exist in an array of local shape {shape}")
    whole[number] = sum(one[number] for one in shapes)
    layout = layout_of(
        x.communicator, tuple(whole), x.partition, number, local_shapes=shapes, mask=x.layout.mask, flat_of=flat_of
    )  # fmt: skip
    return x.of(layout, x._local.reshape(shape), x._base_comm)


def _check_reshaped(layout: Layout, shapes: Sequence[Shape]) -> None:
    for rank, (before, after) in enumerate(zip(layout.local_shapes, shapes, strict=False)):
        if math.prod(before) != math.prod(after):
            whole = math.prod(after) == math.prod(layout.shape)
            raise ShapeError(
                f"the part of rank {rank} has {math.prod(before)} elements, not {math.prod(after)} as shape {after}: reshape takes the shape of "
                "this rank's part" + (f", this one is one of the whole; {SERIAL}" if whole else "")
            )
