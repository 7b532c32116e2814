"""Operators without arithmetic worth the name: identity, zero, diagonal, restriction, transposition of axes.

Those of arrays take arrays of their `dims` and flat vectors, whose parts lie along the first axis, and return the same kind.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of, numpy_dtype
from jali.arrays import DistributedArray, communicator_of, layout_of
from jali.arrays.layout import Layout, Partition, extents
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.linops.operator import LinearOperator
from jali.linops.spaces import Space, flattened, shaped


class Identity(LinearOperator):
    """x itself, as a copy. Takes vectors of any layout, and stacks."""

    copies = 0
    keeps_order = True

    def __init__(self, dims: int | Sequence[int], dtype: Any = None, base_comm: Any = None) -> None:
        dims = extents("dims", dims)
        size = math.prod(dims)
        super().__init__(shape=(size, size), dims=dims, dimsd=dims, dtype=dtype, base_comm=base_comm)

    def _matvec(self, x: Any) -> Any:
        return x.copy()

    def _rmatvec(self, x: Any) -> Any:
        return x.copy()


class Zero(LinearOperator):
    """Zeros of shape `dimsd` (default: `dims`), scattered along the first axis where the vector is; of the same layout if shapes are.
    Flat vectors give flat ones."""

    takes_stacks = False

    def __init__(
        self,
        dims: int | Sequence[int],
        dimsd: int | Sequence[int] | None = None,
        dtype: Any = None,
        base_comm: Any = None,
    ) -> None:
        dims = extents("dims", dims)
        dimsd = dims if dimsd is None else extents("dimsd", dimsd)
        shape = math.prod(dimsd), math.prod(dims)
        super().__init__(shape=shape, dims=dims, dimsd=dimsd, dtype=dtype, base_comm=base_comm)

    def domain(self) -> Space:
        return layout_of(self.communicator, self.dims)

    def range_(self) -> Space:
        return layout_of(self.communicator, self.dimsd)

    def _zeros(self, x: Any, dims: tuple[int, ...], found: tuple[int, ...]) -> DistributedArray:
        if dims == found:
            return x.zeros_like()
        shape = found if x.global_shape == dims else (math.prod(found),)
        layout = x.layout.with_(shape=shape, axes=(0,), grid=None)
        dtype = np.result_type(self.dtype, numpy_dtype(x.local))
        return DistributedArray.of(
            layout, namespace_of(x.local).zeros_beside(x.local, layout.local_shape, dtype), x._base_comm
        )

    def _matvec(self, x: Any) -> Any:
        return self._zeros(x, self.dims, self.dimsd)

    def _rmatvec(self, x: Any) -> Any:
        return self._zeros(x, self.dimsd, self.dims)


class Diagonal(LinearOperator):
    """The elements of `diag`, a DistributedArray, times those of the vector, which has the same layout, or is flat where this is not.

    A flat vector has the elements in C order, as for derivatives and transforms, and as many on each rank as the diagonal. Raises
    ShapeError for one where the diagonal's parts, each made flat, one after the other, are not in C order, as where it is split along
    its second axis; ParameterError for another diagonal. Of a stack, StackedBlockDiag makes one of Diagonals.
    """

    takes_stacks = False

    def __init__(self, diag: DistributedArray, dtype: Any = None) -> None:
        if not isinstance(diag, DistributedArray):
            raise ParameterError(
                f"a diagonal is a DistributedArray (DistributedArray.to_dist makes one), not {type(diag).__name__}"
            )
        size, dims = math.prod(diag.global_shape), diag.global_shape
        dtype = numpy_dtype(diag.local) if dtype is None else dtype
        super().__init__(shape=(size, size), dims=dims, dimsd=dims, dtype=dtype, base_comm=diag._base_comm)
        self.diag, self._conjugate = diag, diag.conj() if self._complex(diag) else diag
        self.of_arrays = len(dims) > 1

    def _complex(self, diag: DistributedArray) -> bool:
        return numpy_dtype(diag.local).kind == "c"

    def domain(self) -> Space:
        return self.diag.layout

    def range_(self) -> Space:
        return self.diag.layout

    def _times(self, diagonal: DistributedArray, x: Any) -> Any:
        if x.global_shape != diagonal.global_shape and x.ndim == 1:
            if not diagonal.layout.in_c_order:
                raise ShapeError(
                    f"{self!r}: a flat vector has its elements in C order, the parts of the diagonal one after the other have not, which "
                    f"is {diagonal.layout!r}, x is {x.layout!r}: take a vector of shape {self.dims} that is split so, or Diagonal(diag.redistribute(0))"
                )
            diagonal = flattened(diagonal)
        return diagonal * x

    def _matvec(self, x: Any) -> Any:
        return self._times(self.diag, x)

    def _rmatvec(self, x: Any) -> Any:
        return self._times(self._conjugate, x)


class Restriction(LinearOperator):
    """The elements whose index along `axis` is in `iava`, of an array of `dims`; the adjoint puts them back, between zeros.

    Vectors are scattered along axis `split`, evenly or by `local_shapes`, or all ranks have them. Nothing is communicated: the
    selected elements stay on their ranks. Raises ParameterError for indices that do not exist, twice the same, or not in rising
    order where `axis` is the one that is split.
    """

    takes_stacks = False
    of_arrays = True

    def __init__(
        self,
        dims: int | Sequence[int],
        iava: Sequence[int],
        axis: int = 0,
        dtype: Any = None,
        base_comm: Any = None,
        *,
        split: int = 0,
        local_shapes: Sequence[Any] | None = None,
    ) -> None:
        dims = extents("dims", dims)
        if not -len(dims) <= axis < len(dims) or not -len(dims) <= split < len(dims):
            raise ShapeError(
                f"axes {axis} and {split} of an array of shape {dims}: give numbers below {len(dims)}"
            )
        self.axis, self.split = axis % len(dims), split % len(dims)
        self.iava = np.asarray(iava)
        if self.iava.ndim != 1 or (self.iava.size and self.iava.dtype.kind not in "iu"):
            raise ParameterError(f"iava is a list of indices, not {value_shown(iava)}")
        extent = dims[self.axis]
        self.iava = self.iava.astype(np.int64)
        outside = self.iava[(self.iava < 0) | (self.iava >= extent)]
        if outside.size:
            raise ParameterError(f"index {outside[0]} does not exist along axis {self.axis} of shape {dims}")
        steps = np.diff(self.iava)
        if np.unique(self.iava).size < self.iava.size:
            raise ParameterError("iava has an index twice; the adjoint could not put both back")
        if self.axis == self.split and (steps < 0).any():
            raise ParameterError(
                f"iava has to rise along axis {self.axis}, which is split over ranks; sort it, or split another axis (split=)"
            )
        dimsd = (*dims[: self.axis], self.iava.size, *dims[self.axis + 1 :])
        shape = math.prod(dimsd), math.prod(dims)
        super().__init__(shape=shape, dims=dims, dimsd=dimsd, dtype=dtype, base_comm=base_comm)
        ranks = communicator_of(base_comm)
        self._before = layout_of(ranks, dims, Partition.SCATTER, self.split, local_shapes=local_shapes)
        self._after, self._mine = self._restricted(self._before)

    def _restricted(self, before: Layout) -> tuple[Layout, np.ndarray]:
        """The layout of the selected elements, and this rank's local indices."""
        if self.axis != self.split:
            shapes = [list(shape) for shape in before.local_shapes]
            for shape in shapes:
                shape[self.axis] = self.iava.size
            mine = self.iava
        else:
            shapes = []
            for box, local in zip(before.boxes, before.local_shapes, strict=True):
                begin, end = np.searchsorted(self.iava, box[self.axis])
                shapes.append([*local[: self.axis], int(end - begin), *local[self.axis + 1 :]])
            first, last = before.box[self.axis]
            begin, end = np.searchsorted(self.iava, (first, last))
            mine = self.iava[begin:end] - first
        layout = before.with_(shape=self.dimsd, local_shapes=tuple(map(tuple, shapes)))
        return layout, mine

    def domain(self) -> Space:
        return self._before

    def range_(self) -> Space:
        return self._after

    def _indices(self, x: DistributedArray, wanted: Layout) -> np.ndarray:
        if not x.layout.scattered:
            return self.iava
        if x.layout.local_shapes != wanted.local_shapes:
            raise ShapeError(
                f"{self!r}: x has local shapes {x.local_shapes}, not {list(wanted.local_shapes)}: take x.redistribute("
                f"{self.split}, local_shapes=...) of these, or give those of x to Restriction"
            )
        return self._mine

    def _target_layout(self, x: DistributedArray, scattered: Layout, dims: tuple[int, ...]) -> Layout:
        if not x.layout.scattered:
            return x.layout.with_(shape=dims, axes=(0,), grid=None)
        if x.layout.mask == scattered.mask:
            return scattered
        return scattered.with_(mask=x.layout.mask, local_shapes=scattered.local_shapes)

    def _matvec(self, x: Any) -> Any:
        array = shaped(x, self.dims, self)
        where = (slice(None),) * self.axis + (self._indices(array, self._before),)
        layout = self._target_layout(array, self._after, self.dimsd)
        found = DistributedArray.of(layout, array.local[where], x._base_comm)
        return found if array is x else flattened(found)

    def _rmatvec(self, x: Any) -> Any:
        array = shaped(x, self.dimsd, f"the adjoint of {self!r}")
        where = (slice(None),) * self.axis + (self._indices(array, self._after),)
        layout = self._target_layout(array, self._before, self.dims)
        local = namespace_of(x.local).zeros_beside(x.local, layout.local_shape)
        local[where] = array.local
        found = DistributedArray.of(layout, local, x._base_comm)
        return found if array is x else flattened(found)


class Transpose(LinearOperator):
    """An array of `dims` with its axes in another order, as `numpy.transpose` has it, split along the axis of the same number as before.

    One all-to-all where the axis that comes to the split place is another one, else none; what all ranks have takes none
    either. The result is split evenly. Raises ParameterError for an invalid order of axes.
    """

    takes_stacks = False
    of_arrays = True

    def __init__(
        self, dims: Sequence[int], axes: Sequence[int], dtype: Any = None, base_comm: Any = None
    ) -> None:
        dims = extents("dims", dims)
        order = tuple(axis % len(dims) if -len(dims) <= axis < len(dims) else -1 for axis in axes)
        if sorted(order) != list(range(len(dims))):
            raise ParameterError(
                f"axes {value_shown(tuple(axes))} are no order of the {len(dims)} axes of shape {dims}"
            )
        self.axes, self._back = order, tuple(int(n) for n in np.argsort(order))
        size = math.prod(dims)
        dimsd = tuple(dims[axis] for axis in order)
        super().__init__(shape=(size, size), dims=dims, dimsd=dimsd, dtype=dtype, base_comm=base_comm)

    def domain(self) -> Space:
        return layout_of(self.communicator, self.dims)

    def range_(self) -> Space:
        return layout_of(self.communicator, self.dimsd)

    def _transposed(self, x: Any, dims: tuple[int, ...], order: tuple[int, ...], name: str) -> Any:
        array = shaped(x, dims, name)
        layout, namespace = array.layout, namespace_of(array.local)
        shape = tuple(dims[axis] for axis in order)
        if layout.scattered:
            if len(layout.axes) > 1:
                raise ShapeError(f"{name} takes arrays that are split along one axis, not {layout!r}")
            array = array.redistribute(order[layout.axes[0]])
            after = layout.with_(shape=shape, axes=layout.axes, grid=None)
        else:
            after = layout.with_(shape=shape, axes=(0,), grid=None)
        local = namespace.copy(namespace.transpose(array.local, order))
        found = DistributedArray.of(after, local, x._base_comm)
        return found if x.ndim == len(dims) else flattened(found)

    def _matvec(self, x: Any) -> Any:
        return self._transposed(x, self.dims, self.axes, repr(self))

    def _rmatvec(self, x: Any) -> Any:
        return self._transposed(x, self.dimsd, self._back, f"the adjoint of {self!r}")
