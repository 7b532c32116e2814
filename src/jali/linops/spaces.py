"""Where vectors of an operator live: a layout, or a list of these where the vector is a stack. Makes vectors there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.arrays import DistributedArray, Layout, StackedDistributedArray
from jali.arrays.libraries import dtype_of_numpy, library_of, numpy_dtype
from jali.comm import Communicator
from jali.errors import ShapeError

Space = Layout | Sequence[Any]  # of spaces
Vector = DistributedArray | StackedDistributedArray


def space_of(x: Vector) -> Space:
    """Where this vector lives."""
    if isinstance(x, StackedDistributedArray):
        return [space_of(part) for part in x.distarrays]
    return x.layout


def size_of(space: Space) -> int:
    """Elements of the whole."""
    if isinstance(space, Layout):
        return math.prod(space.shape)
    return sum(size_of(part) for part in space)


def communicator_of(space: Space) -> Communicator:
    """The ranks."""
    return space.communicator if isinstance(space, Layout) else communicator_of(space[0])


def _made(space: Space, part: Callable[[Layout, int], np.ndarray], near: Any, first: int = 0) -> Any:
    """The vector whose local parts are `part(layout, first)`, where `first` is the number of the layout's first element in the
    whole. They are in host memory, or where the array `near` is."""
    if isinstance(space, Layout):
        local = part(space, first)
        return DistributedArray.of(space, local if near is None else library_of(near).from_host(local, near))
    found = []
    for one in space:
        found.append(_made(one, part, near, first))
        first += size_of(one)
    return StackedDistributedArray(found)


def shaped(x: DistributedArray, dims: tuple[int, ...], what: str) -> DistributedArray:
    """The same elements as an array of these extents: not a copy. Parts of a flat vector are taken to lie along the first axis.

    Raises ShapeError, on all ranks, where they have other extents, or where a part of a flat vector ends within a row.
    """
    if x.global_shape == dims:
        return x
    if x.ndim != 1 or math.prod(dims) != x.global_shape[0]:
        raise ShapeError(f"{what} takes arrays of shape {dims}, or flat ones, not of shape {x.global_shape}")
    layout, row = x.layout, math.prod(dims[1:])
    if not layout.scattered:
        shapes = None
    else:
        for rank, (size,) in enumerate(layout.local_shapes):
            if size % max(row, 1):
                raise ShapeError(
                    f"{what}: rank {rank} has {size} elements of a flat vector, which are no whole rows of {row} of an array of shape {dims}"
                )
        shapes = tuple((size // max(row, 1), *dims[1:]) for (size,) in layout.local_shapes)
    found = layout.with_(shape=dims, axes=(0,), grid=None, local_shapes=shapes)
    return DistributedArray.of(found, x.local.reshape(found.local_shape), x._base_comm)


def in_c_order(layout: Layout) -> bool:
    """Whether the parts, each made flat, one after the other, are the whole made flat."""
    if not layout.scattered:
        return True
    reached = 0
    for box in layout.boxes:
        size = math.prod(end - begin for begin, end in box)
        if size > 0:
            first, last = (
                int(np.ravel_multi_index(corner, layout.shape))
                for corner in ([begin for begin, _ in box], [end - 1 for _, end in box])
            )
            if first != reached or last + 1 - first != size:
                return False
        reached += size
    return True


def flattened(x: DistributedArray) -> DistributedArray:
    """The same elements as a flat vector, its parts one after the other: not a copy where they are contiguous."""
    layout = x.layout
    if layout.ndim == 1:
        return x
    shapes = tuple((math.prod(shape),) for shape in layout.local_shapes) if layout.scattered else None
    found = layout.with_(shape=(math.prod(layout.shape),), axes=(0,), grid=None, local_shapes=shapes)
    return DistributedArray.of(found, x.local.reshape(found.local_shape), x._base_comm)


def owned(A: Any, found: Any) -> Any:
    """What an operator gave, to be held while it is applied again: a copy where it may give the same memory then."""
    return found if getattr(A, "gives_new", True) else found.copy()


def unit(space: Space, number: int, dtype: Any, near: Any = None) -> Any:
    """All 0 but the element of this number, in the order of `flat`, which is 1."""

    def part(layout: Layout, first: int) -> np.ndarray:
        local = np.zeros(layout.local_shape, dtype)
        if first <= number < first + math.prod(layout.shape):
            at = np.unravel_index(number - first, layout.shape)
            if all(begin <= n < end for n, (begin, end) in zip(at, layout.box, strict=True)):
                local[tuple(int(n) - begin for n, (begin, _) in zip(at, layout.box, strict=True))] = 1
        return local

    return _made(space, part, near)


def copies(space: Space, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each element, in the order of `flat`, where the same part is on `times` ranks one after the other: the number of its copy,
    and its number among elements that differ. Raises ShapeError where parts are no such copies."""
    if times == 1:
        return np.zeros(size_of(space), np.int64), np.arange(size_of(space))
    if not isinstance(space, Layout):
        found = [copies(part, times) for part in space]
        before = np.cumsum([0, *(number[-1] + 1 if len(number) else 0 for _, number in found)])
        numbers = [number + first for (_, number), first in zip(found, before, strict=False)]
        return np.concatenate([copy for copy, _ in found]), np.concatenate(numbers)
    sizes = [math.prod(shape) for shape in space.local_shapes]
    if not in_c_order(space) or any(n != sizes[rank - rank % times] for rank, n in enumerate(sizes)):
        raise ShapeError(
            f"parts of {space!r} are not copies of each other on {times} ranks one after the other: their sizes are {sizes}"
        )
    firsts = np.cumsum([0, *sizes[::times]])
    copy = np.concatenate([np.full(n, rank % times) for rank, n in enumerate(sizes)])
    number = np.concatenate([np.arange(n) + firsts[rank // times] for rank, n in enumerate(sizes)])
    return copy, number


def random(space: Space, dtype: Any, seed: int, near: Any = None, times: int = 1) -> Any:
    """Normally distributed numbers; ranks that have parts have different ones, those that have all, or one of so many copies of a
    part, have the same."""
    dtype = dtype_of_numpy(dtype)

    def part(layout: Layout, first: int) -> np.ndarray:
        owner = layout.rank // times + 1 if layout.scattered else 0
        generator = np.random.default_rng([seed, first, owner])
        local = generator.normal(size=layout.local_shape)
        if dtype.kind == "c":
            return (local + 1j * generator.normal(size=layout.local_shape)).astype(dtype)
        return (local * 100 if dtype.kind in "iu" else local).astype(dtype)

    return _made(space, part, near)


def from_flat(space: Space, values: np.ndarray, near: Any = None) -> Any:
    """The vector of these elements, which every rank has."""

    def part(layout: Layout, first: int) -> np.ndarray:
        whole = values[first : first + math.prod(layout.shape)].reshape(layout.shape)
        return whole[tuple(slice(begin, end) for begin, end in layout.box)].copy()

    return _made(space, part, near)


def flat(x: Vector) -> np.ndarray:
    """All elements in one row, on the host of every rank. Collective."""
    if isinstance(x, StackedDistributedArray):
        return np.concatenate([flat(part) for part in x.distarrays])
    whole = x.asarray()
    return library_of(whole).to_host(whole).reshape(-1)


def columns(vectors: Sequence[Any]) -> np.ndarray:
    """The matrix of which these vectors of one space are the columns, on the host of every rank. One gathering for each part of a
    stack; collective."""
    first = vectors[0]
    if isinstance(first, StackedDistributedArray):
        parts = [columns([x.distarrays[k] for x in vectors]) for k in range(len(first))]
        return np.concatenate(parts)
    count, layout = len(vectors), first.layout
    dtype = np.result_type(*{numpy_dtype(x.local) for x in vectors})
    local = np.empty((*layout.local_shape, count), dtype)
    for number, x in enumerate(vectors):
        local[..., number] = library_of(x.local).to_host(x.local)
    beside = layout.with_(
        shape=(*layout.shape, count),
        local_shapes=tuple((*shape, count) for shape in layout.local_shapes),
        mask=None,
    )
    matrix: np.ndarray = DistributedArray.of(beside, local).asarray().reshape(-1, count)
    return matrix
