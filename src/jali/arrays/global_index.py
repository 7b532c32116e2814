"""Elements of distributed arrays by global indices: which ones a rank has, and where in its part."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.arrays.elementwise import refuse_loss
from jali.arrays.layout import Box, Layout, shape_of
from jali.arrays.replicated import assign
from jali.comm.validation import integer
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray


class GlobalIndex:
    """Elements of a DistributedArray by global indices: whole numbers, and slices whose step is 1."""

    def __init__(self, array: DistributedArray) -> None:
        self._array = array

    def __getitem__(self, where: Any) -> DistributedArray:
        """The section as an array of its own, which shares memory with this one; ranks that have nothing of it have empty parts.

        A whole number keeps its dimension, of extent 1, where the array is split along it, and drops it elsewhere.
        """
        with namespace_of(self._array._local).where(self._array._local):
            return self._section(where)

    def _section(self, where: Any) -> Any:
        array, layout = self._array, self._array.layout
        if (namespace := namespace_of(array._local)).complete:
            return namespace.xp  # which raises: it has no sections
        box, dropped = _box(layout, where)
        if not layout.scattered:
            local = array._local[slices_of(box, dropped)]
            return array.of(layout.with_(shape=tuple(local.shape), axes=(0,)), local)
        shapes, kept = [], [axis for axis in range(layout.ndim) if axis not in dropped]
        for theirs in layout.boxes:
            shape = shape_of(_common(box, theirs))
            shapes.append(tuple(shape[axis] for axis in kept))
        shape = tuple(shape_of(box)[axis] for axis in kept)
        axes = tuple(kept.index(axis) for axis in layout.axes)
        found = layout.with_(shape=shape, axes=axes, grid=layout.grid, local_shapes=tuple(shapes))
        local = array._local[slices_of(_within(_common(box, layout.box), layout.box), dropped)]
        return array.of(found, local)

    def __setitem__(self, where: Any, value: Any) -> None:
        """A number, or an array that all ranks have and that NumPy could assign there."""
        with namespace_of(self._array._local).where(self._array._local):
            self._assign(where, value)

    def _assign(self, where: Any, value: Any) -> None:
        array = self._array
        if isinstance(value, type(array)):
            value = value.asarray()
        if array.layout.of_rank_0:
            assign(array, lambda: self._local_assignment(where, value))
            return
        local, value = self._local_assignment(where, value)
        if local is not None:
            array._local = namespace_of(array._local).put(array._local, local, value)

    def _local_assignment(self, where: Any, value: Any) -> tuple[Any, Any]:
        """The index in this rank's part, None if there is none, and the matching part of the value."""
        array, layout = self._array, self._array.layout
        box, dropped = _box(layout, where, drop_all=True)
        part = _common(box, layout.box)
        refuse_loss(array, value)
        if not hasattr(value, "dtype") and (kind := np.asarray(value).dtype.kind) not in "biufc":
            # which those ranks that have none of these elements would not notice
            raise ParameterError(
                f"elements of an array are numbers, not {value_shown(value)} (of kind {kind!r})"
            )
        if np.ndim(value) > 0:
            wanted = tuple(end - begin for axis, (begin, end) in enumerate(box) if axis not in dropped)
            if not hasattr(value, "shape"):
                value = np.asarray(value)
            value = namespace_of(value).xp.broadcast_to(value, wanted)
            inside = [slice(p[0] - b[0], p[1] - b[0]) for p, b in zip(part, box, strict=True)]
            value = value[tuple(s for axis, s in enumerate(inside) if axis not in dropped)]
        if layout.scattered and any(begin == end for begin, end in part):
            return None, value
        return slices_of(_within(part, layout.box), dropped), value


def _box(layout: Layout, where: Any, drop_all: bool = False) -> tuple[Box, set[int]]:
    where = where if isinstance(where, tuple) else (where,)
    if dots := [at for at, index in enumerate(where) if index is Ellipsis]:
        at = dots[0]
        where = (*where[:at], *[slice(None)] * (layout.ndim - len(where) + 1), *where[at + 1 :])
    if len(where) > layout.ndim:
        raise ShapeError(f"{len(where)} indices for an array of shape {layout.shape}")
    box, dropped = [], set()
    for axis, extent in enumerate(layout.shape):
        index = where[axis] if axis < len(where) else slice(None)
        if isinstance(index, slice):
            begin, end, step = index.indices(extent)
            if step != 1:
                raise ShapeError(f"global slices have step 1, not {step}; x[...] has local indices")
            box.append((begin, max(begin, end)))
            continue
        number = integer(index)
        if number is None:
            raise ShapeError(
                f"global indices are whole numbers, slices and one ellipsis, not {value_shown(index)}; x[...] has local indices"
            )
        if not -extent <= number < extent:
            raise IndexError(f"index {number} is outside of axis {axis} with {extent} elements")
        box.append((number % extent, number % extent + 1))
        if drop_all or not layout.scattered or axis not in layout.axes:
            dropped.add(axis)
    return tuple(box), dropped


def _common(a: Box, b: Box) -> Box:
    """What two boxes share; empty at b's edge where that is nothing."""
    found = []
    for (begin, end), (first, last) in zip(a, b, strict=True):
        low = min(max(begin, first), last)
        found.append((low, max(low, min(end, last))))
    return tuple(found)


def _within(box: Box, of: Box) -> Box:
    return tuple((begin - first, end - first) for (begin, end), (first, _) in zip(box, of, strict=True))


def slices_of(box: Box, dropped: Iterable[int]) -> tuple[Any, ...]:
    """Indices of a box, whose result is an array also where no dimension is left."""
    return (*(begin if axis in dropped else slice(begin, end) for axis, (begin, end) in enumerate(box)), ...)
