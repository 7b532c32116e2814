"""Which elements of flat vectors ranks have, as scripts written for pylops_mpi expect it.

There an operator on arrays of shape `dims` takes a flat vector split anyhow, and gives one whose parts are whole rows, as
equal as possible on all ranks (`local_split` along axis 0); operators of blocks take one split anyhow as well. Those of
`jali.linops` give results split as what they were given. Anything but a scattered flat vector of the right length is passed
unchanged.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from jali.arrays import DistributedArray, StackedDistributedArray
from jali.arrays.layout import Layout, Shape, even_split
from jali.linops.fourier import _moved

Sizes = tuple[tuple[int], ...]


@functools.lru_cache(maxsize=256)
def sizes_of_rows(dims: Shape, ranks: int) -> Sizes:
    """Elements that each rank has of an array whose rows are split evenly."""
    row = math.prod(dims[1:])
    return tuple((n * row,) for n in even_split(dims[0], ranks))


def by_rows(x: Any, dims: Shape) -> Any:
    """A flat vector, or a stack of them, with the parts of an array of shape `dims` whose rows are split evenly. Collective."""
    if isinstance(x, StackedDistributedArray):
        return StackedDistributedArray([by_rows(part, dims) for part in x.distarrays], x._base_comm)
    if not isinstance(x, DistributedArray) or x.global_shape != (math.prod(dims),):
        return x
    return in_parts(x, sizes_of_rows(dims, x.size))


def in_parts(x: DistributedArray, sizes: tuple[Shape, ...]) -> DistributedArray:
    """A flat vector with parts of these sizes: `x` itself where it has them. Collective."""
    layout = x.layout
    if not layout.scattered or layout.local_shapes == sizes or isinstance(layout.flat_of, Layout):
        return x  # the last: its elements are in another order than that of the flat vector of which these are parts
    return _moved(x, layout.with_(axes=(0,), grid=None, local_shapes=sizes))


def split_as(x: Any, like: Any) -> Any:
    """A flat vector, or a stack of them, with the parts of another one: what does not match it passes unchanged. Collective."""
    if (
        isinstance(x, StackedDistributedArray)
        and isinstance(like, StackedDistributedArray)
        and len(x) == len(like)
    ):
        pairs = zip(x.distarrays, like.distarrays, strict=True)
        return StackedDistributedArray([split_as(part, one) for part, one in pairs], x._base_comm)
    if (
        not isinstance(x, DistributedArray)
        or not isinstance(like, DistributedArray)
        or not like.layout.scattered
    ):
        return x
    if x.ndim != 1 or x.global_shape != like.global_shape or x.communicator is not like.communicator:
        return x
    return in_parts(x, like.layout.local_shapes)


class ByRows:
    """Before an operator of `jali.linops` on arrays of shape `dims`, which gives results split as what it is given."""

    dims: Shape

    def _matvec(self, x: Any) -> Any:
        return super()._matvec(by_rows(x, self.dims))  # type: ignore[misc]

    def _rmatvec(self, x: Any) -> Any:
        return super()._rmatvec(by_rows(x, self.dims))  # type: ignore[misc]


class TransformByRows:
    """Before a Fourier transform of `jali.linops`, which takes vectors split anyhow and gives what it takes for alike."""

    dims: Shape
    dimsd: Shape

    def _matvec(self, x: Any) -> Any:
        return by_rows(super()._matvec(x), self.dimsd)  # type: ignore[misc]

    def _rmatvec(self, x: Any) -> Any:
        return by_rows(super()._rmatvec(x), self.dims)  # type: ignore[misc]

    def __truediv__(self, y: Any) -> Any:
        """The model whose transform is `y`."""
        return by_rows(super().__truediv__(y), self.dims)  # type: ignore[misc]


class BlocksInParts:
    """Before an operator of blocks of `jali.linops`: vectors come to the blocks that take them, from whichever ranks have them."""

    _all: Any
    _side: str
    _congruent = True  # vectors may belong to another communicator of as many ranks

    def matvec(self, x: Any) -> Any:
        """A x."""
        return super().matvec(self._parts_of(x, 1, "column"))  # type: ignore[misc]

    def rmatvec(self, x: Any) -> Any:
        """A^H x."""
        return super().rmatvec(self._parts_of(x, 0, "row"))  # type: ignore[misc]

    def _parts_of(self, x: Any, number: int, whole: str) -> Any:
        if self._side == whole or type(x) is not DistributedArray or not x.layout.scattered:
            return x
        sizes = tuple((n,) for n in self._all[number])
        if len(sizes) != x.size or x.global_shape != (sum(n for (n,) in sizes),):
            return x
        return in_parts(x, sizes)
