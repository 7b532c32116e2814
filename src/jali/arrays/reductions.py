"""Sums and their kin of distributed arrays: of all elements, a number, or along axes, an array.

Each rank reduces its part in its library, and what they found is combined by an all-reduce for each number or array. Floats of 16 bits
are added and multiplied in 32 on the way, also between ranks, and rounded once. Norms are in `jali.arrays.norms`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.array_namespaces import dtype_of_numpy, namespace_of, numpy_dtype
from jali.arrays import redistribution
from jali.arrays.elementwise import check_alike
from jali.arrays.layout import Layout, Partition, Shape, layout_of
from jali.comm import Communicator
from jali.comm.validation import integer, several
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray

_ALL = [tuple(range(ndim)) for ndim in range(65)]
COMBINED = {
    "sum": "sum",
    "prod": "prod",
    "max": "max",
    "min": "min",
    "any": "logical_or",
    "all": "logical_and",
}
NOWHERE = np.iinfo(np.int64).max  # an index of nothing


def kind_of(x: Any) -> np.dtype[Any]:
    """The type of its elements, in this machine's order of bytes."""
    dtype = numpy_dtype(x)
    return dtype if dtype.isnative else dtype.newbyteorder("=")


@cache
def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """In which type elements of this one are added, as NumPy's means have it: float32 for floats of 16 bits."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


@cache
def of_means(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of means: float64 for whole numbers and booleans."""
    return np.dtype(np.float64) if dtype.kind in "biu" else dtype


@cache
def real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of real parts."""
    return np.empty(0, dtype).real.dtype if dtype.kind == "c" else dtype


def exact(x: DistributedArray) -> DistributedArray:
    """With parts whose sums are exact where elements are whole numbers: fields add these as float64."""
    if namespace_of(x._local).complete and kind_of(x).kind == "i":
        return x.of(x.layout, x._local[...], x._base_comm)
    return x


@cache
def of_sums(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of sums: 64 bits for whole numbers."""
    return dtype if dtype.name == "bfloat16" else np.add.reduce(np.empty(0, dtype)).dtype


# --- dot products -------------------------------------------------------------------------------------------


def dot(x: DistributedArray, y: DistributedArray, conjugate: bool) -> Any:
    """See `DistributedArray.dot`."""
    if not isinstance(y, type(x)):
        raise ParameterError(f"dot takes another DistributedArray, not {type(y).__name__}")
    if x.layout.scattered != y.layout.scattered and x.layout.shape == y.layout.shape:
        x, y = _as_parts_of(x, y), _as_parts_of(y, x)
    return dot_of_all([(x, y)], conjugate)


def _as_parts_of(x: DistributedArray, y: DistributedArray) -> DistributedArray:
    """Of what all ranks have, the parts that `y` has, not copied; itself where it is in parts already."""
    if x.layout.scattered:
        return x
    x.check_replicated()
    where = tuple(slice(begin, end) for begin, end in y.layout.box)
    return x.of(y.layout, x._local[where], x._base_comm)


def dot_of_all(pairs: Sequence[tuple[DistributedArray, DistributedArray]], conjugate: bool) -> Any:
    """The sum of the dot products of these pairs of arrays, by one all-reduce for each group of ranks, in NumPy's type for all."""
    arrays, numbers, kind = [], [], None
    for x, y in pairs:
        check_alike(x, y, "dot")
        if not x.layout.scattered:
            x.check_replicated()
        if namespace_of(x._local).complete:
            x, y = exact(x), exact(y)
        mine, theirs = kind_of(x._local), kind_of(y._local)
        of_pair = mine if mine is theirs else np.result_type(mine, theirs)
        kind = of_pair if kind is None or kind is of_pair else np.result_type(kind, of_pair)
        # all ranks give numbers of one type, for parts of any sizes
        numbers.append(wide(of_pair).type(namespace_of(x._local).dot(x._local, y._local, conjugate)))
        arrays.append(x)
    total, *others = _combined_in_groups(arrays, numbers)
    for other in others:
        total = total + other
    assert kind is not None
    return kind.type(total)


def batch_of_squares(arrays: Sequence[DistributedArray]) -> list[Any]:
    """Sums of |x|^2 of several arrays, by one all-reduce for each group. Whole numbers would wrap around: see `norms.floating`."""
    numbers: list[Any] = []
    for x in arrays:
        x.check_replicated()
        numbers.append(real(kind_of(x)).type(namespace_of(x._local).squares(x._local)))
    return _combined_in_groups(arrays, numbers)


def _combined_in_groups(arrays: Sequence[DistributedArray], numbers: list[Any]) -> list[Any]:
    """Numbers of this rank's parts of arrays, summed over the group of each, in place."""
    groups: dict[Communicator, list[int]] = {}
    for k, x in enumerate(arrays):
        group = x.layout.summed_over
        if group is not None and not namespace_of(x._local).complete:
            groups.setdefault(group, []).append(k)
    for group, members in groups.items():
        summed = redistribution.all_reduce_numbers(group, [numbers[k] for k in members])
        for k, total in zip(members, summed, strict=True):
            numbers[k] = total
    return numbers


# --- sums and their kin -------------------------------------------------------------------------------------


class Along:
    """Axes of an array, all (None) or some: the result of this rank along them, that of all ranks, and its conversion
    to the caller's type.

    What is found is a number of NumPy's where all axes are reduced, else an array of the library without these axes. ShapeError for axes
    that do not exist.
    """

    def __init__(self, x: DistributedArray, axis: int | Sequence[int] | None) -> None:
        layout, local = x.layout, x._local
        self.x, self.layout = x, layout
        self.namespace = namespace_of(local)
        if self.namespace.immutable:
            local = self.namespace.mutable_view(local)
            self.namespace = namespace_of(local)
        self.local, self.dtype = local, kind_of(local)
        self.across: Communicator | None = None
        if axis is None:
            self.axes, self.everything, self.line = _ALL[layout.ndim], True, layout.summed_over
            return
        self.axes = _axes(x, axis)
        self.everything = len(self.axes) == layout.ndim
        self.line = None
        if self.split:
            self.line, self.across = _lines(layout, self.split)

    @property
    def split(self) -> Shape:
        """Which axes of the grid of ranks are among them."""
        layout = self.layout
        return tuple(k for k, axis in enumerate(layout.axes) if axis in self.axes) if layout.scattered else ()

    @property
    def kept(self) -> Shape:
        """Extents of this rank's part along the other axes."""
        return tuple(n for axis, n in enumerate(self.layout.local_shape) if axis not in self.axes)

    @property
    def mine(self) -> int:
        """Elements of this rank's part along the axes."""
        return math.prod(self.layout.local_shape[axis] for axis in self.axes)

    @property
    def count(self) -> int:
        """Elements of the whole along them; of a masked array those of the group."""
        if self.layout.mask is None or not self.split:
            return math.prod(self.layout.shape[axis] for axis in self.axes)
        shapes = [self.layout.local_shapes[rank] for rank in self.layout.members]
        return sum(math.prod(shape[axis] for axis in self.axes) for shape in shapes)

    def filled(self, value: Any, dtype: np.dtype[Any]) -> Any:
        """As what is found, of one value."""
        if self.everything:
            return dtype.type(value)
        found = self.namespace.empty_beside(self.local, self.kept, dtype)
        found[...] = value
        return found

    def local_reduction(self, name: str, x: Any, dtype: np.dtype[Any]) -> Any:
        """What the part `x` gives, its elements taken as of this type."""
        found = self.namespace.reduce(x, name, self.axes, dtype if name in ("sum", "prod") else None)
        return dtype.type(self.namespace.number(found)) if self.everything else found

    def all_reduced(self, found: Any, name: str) -> Any:
        """What ranks found, combined over those that have parts of it."""
        if self.line is None or self.line.size == 1:
            return found
        op = COMBINED[name]
        return (
            redistribution.all_reduce_numbers(self.line, [found], op)[0]
            if self.everything
            else redistribution.all_reduce_array(self.line, found, op)
        )

    def spread(self, found: Any) -> Any:
        """As an array that is computed with this rank's part."""
        if self.everything:
            return found
        return found.reshape(
            tuple(1 if axis in self.axes else n for axis, n in enumerate(self.layout.local_shape))
        )

    def result(self, found: Any, dtype: np.dtype[Any]) -> Any:
        """A number of this type, or a DistributedArray."""
        if self.everything:
            return found if type(found) is dtype.type else dtype.type(found)
        if kind_of(found) != dtype:
            found = self.namespace.astype(found, dtype)
        layout = self._layout_after()
        if self.across is not None:
            found = redistribution.gather_boxes(self.across, found, self._boxes_across(), layout.shape)
        return self.x.of(layout, namespace_of(self.x._local).from_mutable(found), self.x._base_comm)

    def _layout_after(self) -> Layout:
        layout = self.layout
        shape = _without(layout.shape, self.axes)
        if not layout.scattered:
            return layout.with_(shape=shape, axes=(0,), grid=(1,))
        if self.split:  # groups have results of their own
            partition = Partition.BROADCAST if layout.mask is None else Partition.UNSAFE_BROADCAST
            return layout_of(layout.communicator, shape, partition, mask=layout.mask)
        return layout_of(
            layout.communicator, shape, Partition.SCATTER, tuple(a - sum(b < a for b in self.axes) for a in layout.axes),
            grid=layout.grid, local_shapes=tuple(_without(one, self.axes) for one in layout.local_shapes), mask=layout.mask,
        )  # fmt: skip

    def _boxes_across(self) -> list[Any]:
        """Of what the ranks across have, in their order."""
        coordinates = np.array(np.unravel_index(np.arange(self.layout.communicator.size), self.layout.grid))
        reduced = coordinates[list(self.split)]
        members = np.flatnonzero((reduced == reduced[:, [self.layout.rank]]).all(axis=0))
        return [_without(self.layout.boxes[rank], self.axes) for rank in members]


def _axes(x: DistributedArray, axis: Any) -> Shape:
    """In rising order."""
    found = []
    for given in tuple(axis) if several(axis) else (axis,):
        number = integer(given)
        if number is None:
            raise ShapeError(f"an axis is a whole number, or several, not {value_shown(axis)}")
        if not -x.ndim <= number < x.ndim:
            raise ShapeError(f"axis {number} does not exist in an array of shape {x.global_shape}")
        found.append(number % x.ndim)
    if len(set(found)) < len(found):
        raise ShapeError(f"axes {axis} name one twice in an array of shape {x.global_shape}")
    return tuple(sorted(found))


def _without(given: Any, axes: Shape) -> Any:
    return tuple(one for axis, one in enumerate(given) if axis not in axes)


def _lines(layout: Layout, split: Shape) -> tuple[Communicator, Communicator | None]:
    """The ranks that differ in their positions along these axes of the grid, over which parts are combined; and, where the grid has
    others, those that differ in these, which have all of the result together. The first use of a grid is collective."""
    if len(split) == len(layout.axes):
        return layout.group, None
    if layout.mask is not None:
        raise ShapeError(
            f"{layout!r} is not reduced along a part of its grid, whose ranks are in several groups: redistribute it along one axis"
        )
    ranks = layout.communicator
    kept = ranks.kept.setdefault("lines of grids of arrays", {})
    if (layout.grid, split) not in kept:
        coordinates = np.unravel_index(ranks.rank, layout.grid)

        def position(dimensions: Sequence[int]) -> int:
            return int(
                np.ravel_multi_index(
                    [coordinates[k] for k in dimensions], [layout.grid[k] for k in dimensions]
                )
            )

        others = [k for k in range(len(layout.grid)) if k not in split]
        kept[layout.grid, split] = ranks.split(position(others)), ranks.split(position(split))
    found: tuple[Communicator, Communicator] = kept[layout.grid, split]
    return found


def total(x: DistributedArray, name: str, axis: Any, dtype: Any) -> Any:
    """The sum ("sum") or the product ("prod"), of NumPy's type for it unless `dtype` is another."""
    x = exact(x)
    given = of_sums(kind_of(x)) if dtype is None else dtype_of_numpy(dtype)
    namespace = namespace_of(x._local)
    if namespace.complete:
        return given.type(x._local.sum()) if axis is None and name == "sum" else namespace.xp
    along = Along(x, axis)
    return along.result(along.all_reduced(along.local_reduction(name, along.local, wide(given)), name), given)


def mean(x: DistributedArray, axis: Any, dtype: Any) -> Any:
    """The mean, of NumPy's type for it unless `dtype` is another."""
    x = exact(x)
    kind = of_means(kind_of(x)) if dtype is None else dtype_of_numpy(dtype)
    namespace = namespace_of(x._local)
    if namespace.complete:
        return kind.type(x._local.sum() / x.elements) if axis is None else namespace.xp
    along = Along(x, axis)
    return along.result(_mean(along, wide(kind)), kind)


def _mean(along: Along, dtype: np.dtype[Any]) -> Any:
    return along.all_reduced(along.local_reduction("sum", along.local, dtype), "sum") / dtype.type(
        along.count
    )


def variance(x: DistributedArray, axis: Any, ddof: float, root: bool) -> Any:
    """The mean square of deviations from the mean, or its root, in two steps as NumPy has it."""
    if not isinstance(ddof, numbers.Real) or isinstance(ddof, bool) or not math.isfinite(ddof):
        raise ParameterError(f"ddof is a number that is taken off that of elements, not {value_shown(ddof)}")
    x = exact(x)
    kind = of_means(kind_of(x))
    namespace = namespace_of(x._local)
    if namespace.complete:
        if axis is not None:
            return namespace.xp
        square = (x._local - kind.type(x._local.sum() / x.elements).item()).field.norm2()
        found = np.float64(square) / max(x.elements - ddof, 0)
        return real(kind).type(np.sqrt(found) if root else found)
    along = Along(x, axis)
    dtype = wide(kind)
    local = along.local if along.dtype == dtype else along.namespace.astype(along.local, dtype)
    off = local - along.spread(_mean(along, dtype))
    squares = off.real**2 + off.imag**2 if dtype.kind == "c" else off * off
    dtype = real(dtype)
    found = along.all_reduced(along.local_reduction("sum", squares, dtype), "sum") / dtype.type(
        max(along.count - ddof, 0)
    )
    return along.result(along.namespace.xp.sqrt(found) if root else found, real(kind))


def truth(x: DistributedArray, name: str, axis: Any) -> Any:
    """Whether any or all elements are not 0."""
    x = exact(x)
    if (namespace := namespace_of(x._local)).complete:
        return namespace.xp
    along, dtype = Along(x, axis), np.dtype(np.bool_)
    return along.result(along.all_reduced(along.local_reduction(name, along.local, dtype), name), dtype)


def extreme(x: DistributedArray, name: str, axis: Any) -> Any:
    """The largest element ("max"), or the smallest ("min"). Raises ShapeError where there are none, and where they have no order."""
    x = exact(x)
    _check_order(x, name)
    dtype, namespace = kind_of(x), namespace_of(x._local)
    if namespace.complete:
        return dtype.type(getattr(x._local, name)()) if axis is None else namespace.xp
    if dtype.kind == "b":
        return truth(x, "any" if name == "max" else "all", axis)
    along = Along(x, axis)
    _check_elements(along, name)
    return along.result(along.all_reduced(_extreme(along, along.local, name), name), dtype)


def _extreme(along: Along, local: Any, name: str) -> Any:
    if along.mine:
        return along.local_reduction(name, local, along.dtype)
    limits = np.iinfo(along.dtype) if along.dtype.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits else (-math.inf, math.inf)
    return along.filled(low if name == "max" else high, along.dtype)


def index_of_extreme(x: DistributedArray, name: str, axis: Any) -> Any:
    """The first index of the largest element ("max"), or of the smallest ("min"): along an axis, or of the whole made flat."""
    x = exact(x)
    _check_order(x, f"arg{name}")
    if (namespace := namespace_of(x._local)).complete:
        return namespace.xp
    if axis is not None and integer(axis) is None:
        raise ShapeError(f"arg{name} takes one axis, a whole number, or none, not {value_shown(axis)}")
    along = Along(x, axis)
    _check_elements(along, f"arg{name}")
    if along.dtype.kind == "b":
        along.local, along.dtype = along.namespace.astype(along.local, np.uint8), np.dtype(np.uint8)
    local, xp, index = along.local, along.namespace.xp, np.dtype(np.int64)
    value = _extreme(along, local, name)
    if not along.mine:
        where = along.filled(NOWHERE, index)
    elif axis is None:
        flat = int(getattr(xp, f"arg{name}")(along.namespace.contiguous(local).reshape(-1)))
        begins = [begin for begin, _ in along.layout.box]
        position = [n + begin for n, begin in zip(np.unravel_index(flat, local.shape), begins, strict=True)]
        where = index.type(np.ravel_multi_index(position, x.global_shape) if position else 0)
    else:
        where = getattr(xp, f"arg{name}")(local, along.axes[0]) + along.layout.box[along.axes[0]][0]
    best = along.all_reduced(value, name)
    hit = (value == best) | (value != value)  # the first that is no number is it, for NumPy
    where = (where if hit else index.type(NOWHERE)) if along.everything else xp.where(hit, where, NOWHERE)
    return along.result(along.all_reduced(where, "min"), index)


def _check_order(x: DistributedArray, name: str) -> None:
    dtype = kind_of(x)
    if dtype.kind not in "biuf" and dtype.name != "bfloat16":
        raise ShapeError(
            f"elements of type {dtype} have no order, and no {name}: take that of x.real or of abs(x)"
        )


def _check_elements(along: Along, name: str) -> None:
    if along.count == 0:
        raise ShapeError(
            f"an array of shape {along.layout.shape} without elements has no {name}"
            + ("" if along.everything else f" along axis {', '.join(map(str, along.axes))}")
        )
