"""Numbers of a whole distributed array: dot products, sums and extremes, each by one all-reduce where ranks have parts.

Norms are in `jali.arrays.norms`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.arrays import moves
from jali.arrays.elementwise import check_alike
from jali.arrays.libraries import library_of, numpy_dtype
from jali.comm import Communicator
from jali.errors import ParameterError, ShapeError

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray


def dot(x: DistributedArray, y: DistributedArray, conjugate: bool) -> Any:
    """See `DistributedArray.dot`."""
    if not isinstance(y, type(x)):
        raise ParameterError(f"dot takes another DistributedArray, not {type(y).__name__}")
    if x.layout.scattered != y.layout.scattered and x.layout.shape == y.layout.shape:
        x, y = _as_parts_of(x, y), _as_parts_of(y, x)
    return batch_of_dots([(x, y)], conjugate)[0]


def _as_parts_of(x: DistributedArray, y: DistributedArray) -> DistributedArray:
    """Of what all ranks have, the parts that `y` has, not copied; itself where it is in parts already."""
    if x.layout.scattered:
        return x
    x.check_same()
    where = tuple(slice(begin, end) for begin, end in y.layout.box)
    return x.of(y.layout, x._local[where], x._base_comm)


def batch_of_dots(pairs: Sequence[tuple[DistributedArray, DistributedArray]], vdot: bool = True) -> list[Any]:
    """Dot products of several pairs of arrays, by one all-reduce for each group of ranks that they are summed over."""
    numbers: list[Any] = []
    for x, y in pairs:
        check_alike(x, y, "dot")
        x.check_same()
        numbers.append(library_of(x._local).dot(x._local, y._local, vdot))
    return _combined_in_groups([x for x, _ in pairs], numbers)


def batch_of_squares(arrays: Sequence[DistributedArray]) -> list[Any]:
    """Sums of |x|^2 of several arrays, as `batch_of_dots`. Whole numbers would wrap around: see `norms.floating`."""
    numbers: list[Any] = []
    for x in arrays:
        x.check_same()
        numbers.append(library_of(x._local).squares(x._local))
    return _combined_in_groups(arrays, numbers)


def _combined_in_groups(arrays: Sequence[DistributedArray], numbers: list[Any]) -> list[Any]:
    """Numbers of this rank's parts of arrays, summed over the group of each, in place."""
    groups: dict[Communicator, list[int]] = {}
    for number, x in enumerate(arrays):
        if x.layout.scattered and x.layout.group.size > 1 and not library_of(x._local).complete:
            groups.setdefault(x.layout.group, []).append(number)
    for group, members in groups.items():
        summed = moves.combined(group, [numbers[number] for number in members])
        for number, total in zip(members, summed, strict=True):
            numbers[number] = total
    return numbers


def _combined(x: DistributedArray, number: Any, op: str = "sum") -> Any:
    """A number of this rank, combined over the group where ranks have parts."""
    if not x.layout.scattered or x.layout.group.size == 1 or library_of(x._local).complete:
        return number
    return moves.combined(x.layout.group, [number], op)[0]


def total(x: DistributedArray) -> Any:
    """The sum of all elements."""
    return _combined(x, library_of(x._local).number(x._local.sum()))


def extreme(x: DistributedArray, name: str) -> Any:
    """The largest element ("max"), or the smallest ("min"). Raises ShapeError where there are none, and where they have no order."""
    if count(x) == 0:
        raise ShapeError(f"an array of shape {x.global_shape} without elements has no {name}")
    dtype = numpy_dtype(x)
    if dtype.kind not in "iuf":
        raise ShapeError(f"elements of type {dtype} have no order")
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    low, high = (limits.min, limits.max) if limits else (-math.inf, math.inf)
    mine = (low if name == "max" else high) if 0 in x.local_shape else getattr(x._local, name)()
    return _combined(x, dtype.type(library_of(x._local).number(mine)), name)


def count(x: DistributedArray) -> int:
    """Elements of the whole; of a masked array those of the group."""
    if x.layout.mask is None or not x.layout.scattered:
        return math.prod(x.global_shape)
    return sum(math.prod(x.layout.local_shapes[rank]) for rank in x.layout.members)
