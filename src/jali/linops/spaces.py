"""Layouts of an operator's vectors: a layout, or a list of these where the vector is a stack. Makes vectors there."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import dtype_of_numpy, namespace_of, numpy_dtype
from jali.arrays import DistributedArray, Layout, StackedDistributedArray
from jali.comm import Communicator
from jali.errors import ShapeError

Space = Layout | Sequence[Any]  # of spaces
Vector = DistributedArray | StackedDistributedArray


def space_of(x: Vector) -> Space:
    """The layout of this vector."""
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
        return DistributedArray.of(
            space, local if near is None else namespace_of(near).from_host(local, near)
        )
    found = []
    for one in space:
        found.append(_made(one, part, near, first))
        first += size_of(one)
    return StackedDistributedArray(found)


def shaped(x: DistributedArray, dims: tuple[int, ...], what: Any) -> DistributedArray:
    """The same elements as an array of these extents: not a copy. Elements of flat vectors are in C order, unless these are the flattening
    of such an array.

    Raises ShapeError, on all ranks, where they have other extents or another order, or where a part of a flat vector ends within a row.
    """
    if (given := unflattened(x, dims, what)) is not None:
        return given
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


def unflattened(x: DistributedArray, dims: tuple[int, ...], what: Any) -> DistributedArray | None:
    """The array of these extents that `x` is the flattening of, where its elements are not in C order; else None. Not a copy.

    Raises ShapeError where it is that of another array.
    """
    of = x.layout.flat_of
    if not isinstance(of, Layout):
        return None
    if of.shape != dims or of.flat.local_shapes != x.layout.local_shapes or not x.layout.scattered:
        raise ShapeError(
            f"{what} takes arrays of shape {dims}, their flattenings and vectors in C order; the elements of this vector are in another "
            f"order, it is {x.layout!r}: give it the array itself, or array.redistribute(0).ravel()"
        )
    layout = of if of.mask == x.layout.mask else of.with_(mask=x.layout.mask)
    return DistributedArray.of(layout, x.local.reshape(layout.local_shape), x._base_comm)


def flattened(x: Any) -> Any:
    """The same elements as a flat vector, its parts one after the other: not a copy where they are contiguous. Of a stack each."""
    if isinstance(x, StackedDistributedArray):
        return StackedDistributedArray([flattened(one) for one in x.distarrays], x._base_comm)
    layout = x.layout.flat
    return (
        x
        if layout is x.layout
        else DistributedArray.of(layout, x.local.reshape(layout.local_shape), x._base_comm)
    )


def in_c_order(x: Any) -> Any:
    """The same vector, or stack of them, whose elements are known to be in C order where it is flat."""
    if isinstance(x, StackedDistributedArray):
        return StackedDistributedArray([in_c_order(one) for one in x.distarrays], x._base_comm)
    layout = x.layout.as_c_order
    return x if layout is x.layout else DistributedArray.of(layout, x.local, x._base_comm)


def order_for(operators: Sequence[Any], space: Space, forward: bool, what: str) -> Any:
    """As what all these operators take flat vectors of this space of whose order nothing is known (`LinearOperator.flat_order`).

    Raises ShapeError, on all ranks, where they differ: then no vector is right for all.
    """
    return _merged([A.flat_order(space, forward) for A in operators], what)


def _merged(orders: Sequence[Any], what: str) -> Any:
    known = [order for order in orders if order is not None]
    if not known:
        return None
    if not isinstance(known[0], Layout):
        return [_merged(of_part, what) for of_part in zip(*known, strict=True)]
    for other in known[1:]:
        if not known[0].is_order_of(other):
            raise ShapeError(
                f"{what}: its operators take the elements of a flat vector in different orders, one as {known[0]!r}, another as {other!r}: "
                "give it a vector that knows its order, array.ravel() or DistributedArray.to_dist(all of it)"
            )
    return known[0]


def knows_order(x: Vector) -> bool:
    """Whether the order of elements is known wherever parts are flat and ranks have some."""
    if isinstance(x, StackedDistributedArray):
        return all(map(knows_order, x.distarrays))
    layout = x.layout
    return (
        layout.ndim != 1
        or layout.flat_of is not None
        or not layout.scattered
        or layout.communicator.size == 1
    )


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
    if not (space.ndim == 1 or space.in_c_order) or any(
        n != sizes[rank - rank % times] for rank, n in enumerate(sizes)
    ):
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
    return namespace_of(whole).to_host(whole).reshape(-1)


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
        local[..., number] = namespace_of(x.local).to_host(x.local)
    beside = layout.with_(
        shape=(*layout.shape, count),
        local_shapes=tuple((*shape, count) for shape in layout.local_shapes),
        mask=None,
    )
    matrix: np.ndarray = DistributedArray.of(beside, local).asarray().reshape(-1, count)
    return matrix
