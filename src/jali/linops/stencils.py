"""How matrices of differences along axes act on distributed arrays: which rows a rank needs of others, and when they travel.

Where the axis of a matrix is not split, nothing travels. Where it is, messages are sent first, rows that need no other rank's
elements are computed meanwhile, and the few rows at the edges of the part after their arrival.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, NamedTuple

import numpy as np

from jali.array_namespaces import namespace_of, numpy_dtype
from jali.arrays import DistributedArray, Partition
from jali.arrays.ghosts import GhostExchange, joined
from jali.arrays.layout import Box, Layout, Shape, extents, layout_of, shape_of, slices_in
from jali.arrays.piece_exchange import Piece
from jali.arrays.pool import empty
from jali.comm.validation import integer
from jali.errors import ShapeError
from jali.files import value_shown
from jali.linops.bands import Band, Rows, inner_rows, other_rows
from jali.linops.combinations import backend_on
from jali.linops.operator import LinearOperator

MOST_PLANS = 32


class Along(NamedTuple):
    """A band matrix along an axis, times a number."""

    axis: int
    band: Band
    weight: float = 1.0

    @property
    def transposed(self) -> Along:
        """Its adjoint."""
        return Along(self.axis, self.band.transposed, self.weight)


class StencilPlan(NamedTuple):
    """What a band matrix needs on this rank: the box of `dims` that it computes, from which box, and how that comes about.

    `part` is what this rank has, as a box of `dims`; None where its part of a flat vector does not consist of whole rows, so that
    all that is needed is first put together, `flat` being its elements among those of the rows that it touches.
    """

    exchange: GhostExchange | None
    rows: Box
    part: Box | None
    flat: tuple[int, int]


class StencilOperator(LinearOperator):
    """Square operator of band matrices along axes of an array of shape `dims`.

    Vectors are arrays of shape `dims`, split along any axes, or flat, the elements in C order, split anywhere (whole rows of
    the first axis are cheapest). Results are split as their arguments. An array that all ranks have is scattered first, along
    the first axis. Raises ShapeError for other shapes.
    """

    takes_stacks = False
    of_arrays = True

    def __init__(
        self, dims: int | Sequence[int], dtype: Any, elements_out: int = 1, base_comm: Any = None
    ) -> None:
        shape = extents(f"{type(self).__name__}: dims", dims)
        if not shape or any(n < 1 for n in shape):
            raise ShapeError(f"{type(self).__name__}: dims are extents from 1 on, not {dims}")
        size = math.prod(shape)
        super().__init__(
            shape=(size * elements_out, size), dims=shape, dimsd=(elements_out, *shape) if elements_out > 1 else shape,
            dtype=dtype, base_comm=base_comm,
        )  # fmt: skip
        self._plans: dict[tuple[Layout, int, Band], StencilPlan] = {}

    def _axis(self, axis: int) -> int:
        number = integer(axis)
        if number is None or not -len(self.dims) <= number < len(self.dims):
            raise ShapeError(
                f"{type(self).__name__}: axis {value_shown(axis)} does not exist in an array of shape {self.dims}"
            )
        return number % len(self.dims)

    # --- how it is spread -----------------------------------------------------------------------------------

    def _result_layout(self, x: DistributedArray) -> Layout:
        layout = x.layout
        if layout.shape not in (self.dims, (self.shape[1],)):
            raise ShapeError(
                f"{self!r} acts on arrays of shape {self.dims}, or flat ones of {self.shape[1]} elements, not on one of global "
                f"shape {layout.shape}"
            )
        if layout.scattered:
            return layout
        if layout.shape == self.dims:
            return layout.with_(partition=Partition.SCATTER, axes=(0,))
        rows = layout_of(layout.communicator, self.dims)
        sizes = tuple((math.prod(one),) for one in rows.local_shapes)
        return layout_of(layout.communicator, layout.shape, local_shapes=sizes, mask=layout.mask)

    def _plan(self, layout: Layout, along: Along, alone: bool) -> StencilPlan:
        """For results of this layout; `alone` where every rank has the whole input."""
        key = (layout, along.axis, along.band)
        if key not in self._plans:
            if len(self._plans) >= MOST_PLANS:
                self._plans.clear()
            self._plans[key] = self._planned(layout, along)
        plan = self._plans[key]
        return plan._replace(exchange=None) if alone else plan

    def _planned(self, layout: Layout, along: Along) -> StencilPlan:
        me = layout.rank
        if layout.shape == self.dims:
            boxes, flat = list(layout.boxes), (0, 0)
        else:
            row = math.prod(self.dims[1:])
            spans = [box[0] for box in layout.boxes]
            whole = all(begin % row == 0 and end % row == 0 for begin, end in spans)
            covers = [(begin // row, -(-end // row) if begin < end else begin // row) for begin, end in spans]
            rest = tuple((0, n) for n in self.dims[1:])
            boxes = [(cover, *rest) for cover in covers]
            first = covers[me][0] * row
            flat = spans[me][0] - first, spans[me][1] - first
            if not whole:
                wanted = [self._needed(box, along) for box in boxes]
                lines = [((box[0][0] * row, box[0][1] * row),) for box in wanted]
                return StencilPlan(
                    GhostExchange(layout.communicator, layout.boxes, lines), boxes[me], None, flat
                )
        wanted = [self._needed(box, along) for box in boxes]
        exchange = GhostExchange(layout.communicator, boxes, wanted) if wanted != boxes else None
        return StencilPlan(exchange, boxes[me], boxes[me], flat)

    def _needed(self, box: Box, along: Along) -> Box:
        if any(begin >= end for begin, end in box):
            return box
        return (*box[: along.axis], along.band.columns(*box[along.axis]), *box[along.axis + 1 :])

    # --- how it is computed ---------------------------------------------------------------------------------

    def _sum(self, terms: Sequence[tuple[DistributedArray, Along]]) -> DistributedArray:
        """The sum of band matrices, each applied to its array; these are spread alike."""
        first = terms[0][0]
        layout = self._result_layout(first)
        for x, _ in terms[1:]:
            if x.layout is not first.layout:
                first._alike(x, type(self).__name__)
        dtype = np.result_type(self.dtype, *(numpy_dtype(x.local) for x, _ in terms))
        started = []
        with ExitStack() as under_way:
            for x, along in terms:
                plan = self._plan(layout, along, not x.layout.scattered)
                started.append(_Application(self, x, along, layout, plan, dtype))
                if (pending := started[-1].pending) is not None:
                    under_way.enter_context(pending)
            out = started[0].finish()
            for one in started[1:]:
                out += one.finish()
        return DistributedArray.of(layout, out, first._base_comm)


class _Application:
    """One band matrix on one array: begun when it is made, done by `finish`."""

    def __init__(
        self,
        operator: StencilOperator,
        x: DistributedArray,
        along: Along,
        layout: Layout,
        plan: StencilPlan,
        dtype: Any,
    ) -> None:
        self.operator, self.along, self.layout, self.plan = operator, along, layout, plan
        self.namespace = namespace_of(x.local)
        self.dtype = dtype
        self.local: Any
        self.everything = None if x.layout.scattered else self._typed(x.local).reshape(operator.dims)
        self.local = self._typed(x.local) if self.everything is None else None
        if self.everything is None and plan.part is not None:
            self.local = self.local.reshape(shape_of(plan.part))
        self.pending = plan.exchange.start(self.local) if plan.exchange is not None else None

    def _typed(self, local: Any) -> Any:
        """Of the result's type, C-ordered."""
        namespace = self.namespace
        if numpy_dtype(local) != self.dtype:
            local = namespace.astype(local, self.dtype)
        return namespace.contiguous(local)

    def finish(self) -> Any:
        """This rank's part of the result."""
        axis, band = self.along.axis, self.along.band
        rows = self.plan.rows
        others: list[Piece] = []
        x: Any
        if self.everything is not None:
            whole = tuple((0, n) for n in self.operator.dims)
            x = self.namespace.contiguous(self.everything[slices_in(rows, whole)])
            others = _beside(self.everything, whole, rows, self.operator._needed(rows, self.along), axis)
        elif self.plan.part is None:
            assert self.pending is not None
            assert self.plan.exchange is not None
            needs = self.operator._needed(rows, self.along)
            flat = joined(self.plan.exchange, self.local, self.pending).reshape(shape_of(needs))
            x, others = flat[slices_in(rows, needs)], _beside(flat, needs, rows, needs, axis)
            x = self.namespace.contiguous(x)
        else:
            x = self.local
        out = empty(x, shape_of(rows), self.dtype)
        by, begin = backend_on(self.namespace, out), rows[axis][0]
        part = Rows(_three(x, axis), begin)
        target = _three(out, axis)
        inner_rows(by, band, part, target, self.along.weight)
        with self._others(others) as pieces:
            sides = [(box[axis][0], box[axis][1], _three(data, axis)) for box, data in pieces]
            other_rows(by, band, part._replace(others=sides), target, self.along.weight)
        if self.plan.part is None:
            first, last = self.plan.flat
            return self.namespace.copy(out.reshape(-1)[first:last])
        return out.reshape(self.layout.local_shape)

    def _others(self, known: list[Piece]) -> AbstractContextManager[Sequence[Piece]]:
        """Rows of others: those that travel, or that are here."""
        if self.pending is not None and self.plan.part is not None:
            return self.pending.arrived()
        return nullcontext(known)


def _beside(array: Any, of: Box, rows: Box, needs: Box, axis: int) -> list[Piece]:
    """What is needed before and behind `rows` along the axis, out of an array that has the box `of`."""
    found = []
    for low, high in ((needs[axis][0], rows[axis][0]), (rows[axis][1], needs[axis][1])):
        if low < high:
            box = (*rows[:axis], (low, high), *rows[axis + 1 :])
            found.append((box, array[slices_in(box, of)]))
    return found


def _three(x: Any, axis: int) -> Any:
    """As (outer, rows, inner); a view of C-ordered arrays, and of pieces that are slices of some."""
    shape: Shape = tuple(x.shape)
    return x.reshape(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]))
