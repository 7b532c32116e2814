"""Convolution with filters that vary from position to position.

They are given on a regular coarse grid, are linear between its points and constant beyond. Each element of the model is spread
over the data by the filter of its own position, centred there; the adjoint weighs the data around a position by the conjugate of its
filter and sums. All ranks have all filters, so that of a split axis they exchange half a filter of elements on both sides, once
per application.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.arrays import DistributedArray, Layout, Partition, communicator_of, layout_of
from jali.arrays.layout import Shape, extents
from jali.comm.validation import integer
from jali.errors import ShapeError
from jali.files import value_shown
from jali.linops.conversion import in_type, type_of
from jali.linops.operator import LinearOperator
from jali.linops.spaces import flattened, shaped


class _NonStationary(LinearOperator):
    """What both have: vectors in several forms, and cells of neighbours."""

    takes_stacks = False
    of_arrays = True
    flat_axis = 0  # along which parts of flat vectors lie where nothing is known of their order

    def __init__(self, dims: Any, hs: Any, halves: dict[int, int], split: int, base_comm: Any) -> None:
        size = math.prod(dims)
        self.hs, self._halves, self._split = hs, halves, split
        super().__init__(shape=(size, size), dims=dims, dimsd=dims, dtype=type_of(hs), base_comm=base_comm)

    def domain(self) -> Layout:
        """Arrays that are split along the axis of the convolution."""
        return layout_of(communicator_of(self._base_comm), self.dims, Partition.SCATTER, self._split)

    range_ = domain

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        return self._apply(x, adjoint=False)

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        return self._apply(x, adjoint=True)

    def flat_order(self, space: Any, forward: bool) -> Any:
        if self.flat_axis == 0 or not isinstance(space, Layout) or space.ndim != 1:
            return super().flat_order(space, forward)
        # of the even split, which is enough to distinguish orders
        return layout_of(communicator_of(self._base_comm), self.dims, Partition.SCATTER, self.flat_axis).flat

    def _as_array(self, x: Any, dims: Shape) -> Any:
        layout, axis = x.layout, self.flat_axis
        if axis == 0 or x.ndim != 1 or layout.flat_of is not None or not layout.scattered:
            return super()._as_array(x, dims)
        others = math.prod(n for k, n in enumerate(dims) if k != axis)
        extents = [n // others if others else 0 for (n,) in layout.local_shapes]
        if any(n * others != m for n, (m,) in zip(extents, layout.local_shapes, strict=True)):
            raise ShapeError(
                f"{self!r}: parts of sizes {[n for (n,) in layout.local_shapes]} are not those of an array of shape {dims}, split "
                f"along axis {axis}"
            )
        shapes = tuple((*dims[:axis], n, *dims[axis + 1 :]) for n in extents)
        found = layout.with_(shape=dims, axes=(axis,), local_shapes=shapes)
        return DistributedArray.of(found, x.local.reshape(found.local_shape), x._base_comm)

    def _apply(self, x: DistributedArray, adjoint: bool) -> DistributedArray:
        given, x = x, shaped(x, self.dims, self)
        layout, local = x.layout, x.local
        if layout.scattered and len(layout.axes) > 1:
            raise ShapeError(
                f"{self!r} takes arrays that are split along one axis, not along {layout.axes}; redistribute it"
            )
        box = layout.box if layout.scattered else tuple((0, n) for n in layout.shape)
        around = tuple((begin, end) for begin, end in box)
        split = layout.axes[0] if layout.scattered else -1
        half = self._halves.get(split, 0)
        if half:
            local = x.add_ghost_cells(half, half)
            begin, end = box[split]
            wide = (max(0, begin - half), min(layout.shape[split], end + half))
            around = (*box[:split], wide, *box[split + 1 :])
        dtype = np.result_type(self.dtype, type_of(local))
        out = namespace_of(local).zeros_beside(local, layout.local_shape, dtype)
        if math.prod(layout.local_shape):
            self._convolve(local, out, box, around, adjoint)
        found = DistributedArray.of(layout, out, x._base_comm)
        return found if given is x else flattened(found)

    def _convolve(self, x: Any, out: Any, box: Any, around: Any, adjoint: bool) -> None:
        """From the elements of the box `around` to those of `box`."""
        raise NotImplementedError


class NonStationaryConvolve1D(_NonStationary):
    """Convolution along one axis.

    `dims` is the shape of the model and of the data, `hs` has a filter of odd length in each row, which belongs to the position
    `ih` along `axis`. Vectors have shape `dims`, split along any one axis or on all ranks, or are flat: in C order, whole rows on each rank, or
    made of such an array (`x.ravel()`). `dtype` converts the filters; by default they stay as they are. Raises ShapeError
    (a ValueError) where filters have an even length, positions are not regular, lie outside, or are more or fewer than filters.
    """

    def __init__(
        self,
        dims: int | Sequence[int],
        hs: Any,
        ih: Sequence[int],
        axis: int = -1,
        base_comm: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = extents(f"{type(self).__name__}: dims", dims)
        number = integer(axis)
        if number is None or not -len(shape) <= number < len(shape):
            raise ShapeError(f"axis {value_shown(axis)} does not exist in an array of shape {shape}")
        self.axis = number % len(shape)
        namespace_of(hs)  # which raises for what is none
        if hs.ndim != 2 or hs.shape[1] % 2 == 0:
            raise ShapeError(
                f"filters hs must have odd length, in shape (filters, length); these have shape {hs.shape}"
            )
        self.positions = _positions("ih", ih, hs.shape[0], shape[self.axis])
        self.half = hs.shape[1] // 2
        super().__init__(shape, in_type("filters", hs, dtype), {self.axis: self.half}, self.axis, base_comm)
        self._filters: dict[tuple[int, int], Any] = {}

    def _between(self, begin: int, end: int, like: Any) -> Any:
        """The filters of these positions: a row for each of their elements."""
        if (begin, end) not in self._filters:
            namespace = namespace_of(self.hs)
            weights = _hats(self.positions, begin, end) @ namespace.to_host(self.hs)
            found = np.ascontiguousarray(weights.T.astype(self.dtype))
            self._filters[begin, end] = (
                found if namespace.name == "numpy" else namespace.from_host(found, like)
            )
        return self._filters[begin, end]

    def _convolve(self, x: Any, out: Any, box: Any, around: Any, adjoint: bool) -> None:
        axis, half = self.axis, self.half
        begin, end = box[axis]
        low, high = around[axis]
        filters = self._between(low, high, x)
        if adjoint:
            filters = filters.conj()
        before, after = math.prod(self._extents(box)[:axis]), math.prod(self._extents(box)[axis + 1 :])
        x, out = x.reshape((before, high - low, after)), out.reshape((before, end - begin, after))
        for k, row in enumerate(filters):
            # x at i meets y at i + k - half
            shift = half - k if adjoint else k - half
            first, last = max(low, begin - shift), min(high, end - shift)
            if first >= last:
                continue
            to = slice(first + shift - begin, last + shift - begin)
            owner = (
                slice(first + shift - low, last + shift - low) if adjoint else slice(first - low, last - low)
            )
            out[:, to] += row[None, owner, None] * x[:, first - low : last - low]

    def _extents(self, box: Any) -> Shape:
        return tuple(end - begin for begin, end in box)


class NonStationaryConvolve2D(_NonStationary):
    """Convolution along both axes of a matrix.

    `dims` is its shape, `hs` has filters of odd lengths in shape (positions along x, positions along z, length along x, length along
    z), which belong to the positions `ihx` and `ihz`, between which they are bilinear. Vectors have shape `dims`, split along
    either axis or on all ranks, or are flat, as there. Raises what NonStationaryConvolve1D does.
    """

    def __init__(
        self,
        dims: Sequence[int],
        hs: Any,
        ihx: Sequence[int],
        ihz: Sequence[int],
        base_comm: Any = None,
        dtype: Any = None,
    ) -> None:
        shape = extents(f"{type(self).__name__}: dims", dims)
        if len(shape) != 2:
            raise ShapeError(f"convolution along two axes is one of matrices, not of arrays of shape {shape}")
        namespace_of(hs)
        if hs.ndim != 4 or hs.shape[2] % 2 == 0 or hs.shape[3] % 2 == 0:
            raise ShapeError(
                "filters hs must have odd length along both axes, in shape (positions, positions, length, length); these have shape "
                f"{hs.shape}"
            )
        self.positions = (
            _positions("ihx", ihx, hs.shape[0], shape[0]),
            _positions("ihz", ihz, hs.shape[1], shape[1]),
        )
        self.halves = hs.shape[2] // 2, hs.shape[3] // 2
        super().__init__(shape, in_type("filters", hs, dtype), dict(enumerate(self.halves)), 0, base_comm)
        self._filters: dict[Any, tuple[Any, Any]] = {}

    def _between(self, around: Any, like: Any) -> tuple[Any, Any]:
        """Filters interpolated along x, in shape (length, length, x, positions along z), and what interpolates them along z."""
        if around not in self._filters:
            namespace = namespace_of(self.hs)
            along_x, along_z = (_hats(p, *range_) for p, range_ in zip(self.positions, around, strict=True))
            rows = np.einsum("xp,pqkl->klxq", along_x, namespace.to_host(self.hs), optimize=True)
            found = (
                np.ascontiguousarray(rows.astype(self.dtype)),
                np.ascontiguousarray(along_z.T.astype(self.dtype)),
            )
            if namespace.name != "numpy":
                found = namespace.from_host(found[0], like), namespace.from_host(found[1], like)
            self._filters[around] = found
        return self._filters[around]

    def _convolve(self, x: Any, out: Any, box: Any, around: Any, adjoint: bool) -> None:
        rows, along_z = self._between(around, x)
        if adjoint:
            rows = rows.conj()
        for k in range(rows.shape[0]):
            for m in range(rows.shape[1]):
                positions = rows[k, m] @ along_z  # this element of the filters of all positions
                source, target, owner = [], [], []
                for number, (box_, around_, half) in enumerate(zip(box, around, self.halves, strict=True)):
                    (begin, end), (low, high) = box_, around_
                    shift = ((k, m)[number] - half) * (-1 if adjoint else 1)
                    first, last = max(low, begin - shift), min(high, end - shift)
                    source.append(slice(first - low, max(first, last) - low))
                    target.append(slice(first + shift - begin, max(first, last) + shift - begin))
                    owner.append(slice(first + shift - low, max(first, last) + shift - low))
                out[tuple(target)] += positions[tuple(owner if adjoint else source)] * x[tuple(source)]


def _positions(name: str, given: Sequence[int], filters: int, extent: int) -> tuple[int, int, int]:
    """Origin, step and number of regular positions."""
    positions = [int(position) for position in given]
    steps = {b - a for a, b in itertools.pairwise(positions)}
    if len(steps) > 1 or (steps and min(steps) < 1):
        raise ShapeError(
            f"indices {name} of the filters must be regularly sampled, with one step: {positions}"
        )
    if not positions or min(positions) < 0 or max(positions) >= extent:
        raise ShapeError(
            f"indices {name} of the filters must be larger than 0 and smaller than dims, {extent}: {positions}"
        )
    if len(positions) != filters:
        raise ShapeError(
            f"there are {filters} filters, {name} has positions for {len(positions)}: {positions}"
        )
    return positions[0], steps.pop() if steps else 1, len(positions)


def _hats(positions: tuple[int, int, int], begin: int, end: int) -> np.ndarray:
    """Weights of linear interpolation: a row for each index from begin to end, a column for each position."""
    origin, step, count = positions
    at = np.clip((np.arange(begin, end) - origin) / step, 0, count - 1)
    left = np.minimum(at.astype(np.int64), max(count - 2, 0))
    weights = np.zeros((end - begin, count))
    rows = np.arange(end - begin)
    weights[rows, left] = 1 - (at - left)
    if count > 1:
        weights[rows, left + 1] = at - left
    return weights
