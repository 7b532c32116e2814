"""Halos: every rank's block of an array, with cells of the blocks around it, for operators that act on blocks alone."""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of, numpy_dtype
from jali.arrays import DistributedArray, Partition, layout_of
from jali.arrays.ghosts import GhostExchange, added, joined
from jali.arrays.layout import Box, Layout, Shape, communicator_of, extents, shape_of, slices_in
from jali.arrays.pool import empty
from jali.comm import Communicator
from jali.errors import ShapeError
from jali.files import value_shown
from jali.keywords import named
from jali.linops.operator import LinearOperator


@named
def halo_block_split(
    global_shape: Sequence[int], base_comm: Any = None, grid: Sequence[int] | None = None
) -> tuple[slice, ...]:
    """The slices of a global array that are this rank's block in a grid of ranks; by default all ranks lie along the last axis.

    Raises ShapeError for a grid that does not fit.
    """
    ranks = communicator_of(base_comm)
    shape = tuple(global_shape)
    layout = _grid_layout(ranks, shape, grid_of_ranks(ranks, shape, grid))
    return tuple(slice(begin, end) for begin, end in layout.box)


def grid_of_ranks(ranks: Communicator, shape: Shape, given: Sequence[int] | None) -> Shape:
    """The given grid, or one with all ranks along the last axis. Raises ShapeError where it does not fit."""
    if given is None:
        return (1,) * (len(shape) - 1) + (ranks.size,)
    grid = extents("a grid of ranks", given)
    if len(grid) != len(shape):
        raise ShapeError(
            f"a grid of ranks has a number for each of {len(shape)} axes, {grid} has {len(grid)}"
        )
    if math.prod(grid) != ranks.size or any(n < 1 for n in grid):
        raise ShapeError(
            f"grid {grid} does not match comm size: its product is {math.prod(grid)}, there are {ranks.size} ranks"
        )
    return grid


def _grid_layout(ranks: Communicator, shape: Shape, grid: Shape) -> Layout:
    return layout_of(ranks, shape, Partition.SCATTER, tuple(range(len(shape))), grid=grid)


class Halo(LinearOperator):
    """The blocks of an array of shape `dims`, each with its halo. Collective, since ranks may give halos of their own.

    Arguments:

    - `halo`: so many cells on both sides of every axis, which end where the array ends; or a number for each axis, or one for each side
      of each axis (before, behind, before, behind, ...), where cells outside of the array are there, and 0. They may be more than a
      neighbour has.
    - `grid`: ranks along each axis; by default all lie along the last one.
    - `base_comm`: the ranks, a communicator of jali or of mpi4py.

    Vectors are flat, each part a block in C order, or arrays of shape `dims` on this grid; the result has the same form. One
    exchange each way, corners included: the adjoint sends halos back to where they came from, which adds them up. `crop` takes
    them off instead, which is not the adjoint, but the inverse: `crop(A x) = x`.

    Raises ShapeError for grids, halos and vectors that do not fit, and for vectors that are not Partition.SCATTER.
    """

    takes_stacks = False

    @named
    def __init__(
        self,
        dims: int | Sequence[int],
        halo: int | Sequence[int],
        grid: Sequence[int] | None = None,
        base_comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        shape = extents("dims of Halo", dims)
        ranks = communicator_of(base_comm)
        self.grid = grid_of_ranks(ranks, shape, grid)
        self.blocks = self._layout_of_blocks(ranks, shape)
        halos = _of_all(ranks, halo, shape)
        self.halos = [widths for _, widths in halos]  # of all ranks
        self.halo = self.halos[ranks.rank]
        wanted = [_around(box, shape, *given) for box, given in zip(self.blocks.boxes, halos, strict=True)]
        inside = [_inside(box, shape) for box in wanted]
        self._exchange = GhostExchange(ranks, self.blocks.boxes, inside)
        self._wanted = wanted[ranks.rank]
        self.local_dims, self.local_extent = shape_of(self.blocks.box), shape_of(self._wanted)
        self.extended = self._layout_of_halos([shape_of(box) for box in wanted])
        self._flat, self._flat_extended = self.blocks.flat, self.extended.flat
        super().__init__(
            shape=(self._flat_extended.shape[0], math.prod(shape)), dims=shape, dimsd=self.extended.shape,
            dtype=dtype, base_comm=base_comm,
        )  # fmt: skip

    def _layout_of_blocks(self, ranks: Communicator, shape: Shape) -> Layout:
        return _grid_layout(ranks, shape, self.grid)

    def _layout_of_halos(self, shapes: Sequence[Shape]) -> Layout:
        blocks = self.blocks
        whole = []
        for axis, parts in enumerate(blocks.grid):
            stride = math.prod(blocks.grid[axis + 1 :])
            whole.append(sum(shapes[coordinate * stride][axis] for coordinate in range(parts)))
            for rank, shape in enumerate(shapes):
                first = rank // stride % parts * stride
                if shape[axis] != shapes[first][axis]:
                    raise ShapeError(
                        f"the halo of rank {rank} along axis {axis} does not match neighbor {first}: blocks of one row of the grid "
                        f"have the same extent, not {shape[axis]} and {shapes[first][axis]}"
                    )
        return layout_of(
            blocks.communicator, tuple(whole), Partition.SCATTER, blocks.axes, grid=blocks.grid, local_shapes=tuple(shapes)
        )  # fmt: skip

    def domain(self) -> Layout:
        """Of flat vectors."""
        return self._flat

    def range_(self) -> Layout:
        """Of flat vectors."""
        return self._flat_extended

    def flat_order(self, space: Any, forward: bool) -> Any:
        return self._flat if forward else self._flat_extended

    def _block(self, x: DistributedArray, layout: Layout, flat: Layout) -> tuple[Any, bool]:
        """This rank's block, and whether the vector is flat. ShapeError, alike on all ranks, where it is spread otherwise."""
        given = x.layout
        if given.partition is not Partition.SCATTER:
            raise ShapeError(
                f"{self!r}: x should have partition={Partition.SCATTER}, {given.partition} != {Partition.SCATTER}"
            )
        if given.communicator is not layout.communicator:
            raise ShapeError(f"{self!r}: x belongs to another communicator")
        for wanted in (flat, layout):
            if given.shape == wanted.shape and given.boxes == wanted.boxes:
                if not given.is_order_of(wanted):
                    break
                return namespace_of(x.local).contiguous(x.local).reshape(layout.local_shape), wanted is flat
        raise ShapeError(
            f"{self!r}: parts are the blocks of the grid {self.grid}, {', '.join(map(str, layout.local_shapes))}, or as many "
            f"elements in this order, as of {layout!r}; those of x are {', '.join(map(str, given.local_shapes))}, and x is {given!r}"
        )

    def _made(
        self, local: Any, x: DistributedArray, layout: Layout, flat: Layout, as_flat: bool
    ) -> DistributedArray:
        dtype = np.result_type(numpy_dtype(x.local), self.dtype)
        if numpy_dtype(local) != dtype:
            local = namespace_of(local).astype(local, dtype)
        found = (flat, local.reshape(-1)) if as_flat else (layout, local)
        return DistributedArray.of(*found, x._base_comm)

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        local, as_flat = self._block(x, self.blocks, self._flat)
        exchange = self._exchange
        with exchange.start(local) as pending:
            out = empty(local, self.local_extent, local.dtype)
            if exchange.wanted != self._wanted:  # what is outside of the array
                out[...] = 0
            joined(exchange, local, pending, out[slices_in(exchange.wanted, self._wanted)])
        return self._made(out, x, self.extended, self._flat_extended, as_flat)

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        local, as_flat = self._block(x, self.extended, self._flat_extended)
        exchange = self._exchange
        inside = local[slices_in(exchange.wanted, self._wanted)]
        out = added(exchange, inside, exchange.start_back(inside))
        return self._made(out, x, self.blocks, self._flat, as_flat)

    def crop(self, x: DistributedArray) -> DistributedArray:
        """The blocks without their halos. Communicates nothing. Raises ShapeError as `rmatvec` does."""
        self._check(x, self.shape[0], "x of crop")
        local, as_flat = self._block(x, self.extended, self._flat_extended)
        out = namespace_of(local).copy(local[slices_in(self._exchange.own, self._wanted)])
        return self._made(out, x, self.blocks, self._flat, as_flat)


def _around(box: Box, shape: Shape, trimmed: bool, widths: Shape) -> Box:
    """A block with its halo."""
    pairs = zip(box, widths[::2], widths[1::2], strict=True)
    found = tuple((begin - before, end + behind) for (begin, end), before, behind in pairs)
    return _inside(found, shape) if trimmed else found


def _of_all(ranks: Communicator, halo: Any, shape: Shape) -> list[tuple[bool, Shape]]:
    """The halos of all ranks, which may differ. Collective. ShapeError on all where one of them makes no sense, or where arrays have
    other shapes on other ranks."""
    mine: Any
    try:
        mine = _widths(halo, len(shape))
    except ShapeError as error:
        mine = str(error)
    gathered = [
        json.loads(one) for one in ranks.gather_bytes(json.dumps([shape, mine]).encode(), what="halos")
    ]
    shapes, found = [tuple(dims) for dims, _ in gathered], [one for _, one in gathered]
    if len(set(shapes)) > 1:
        raise ShapeError(f"dims of Halo are the same on all ranks, not {', '.join(map(str, shapes))}")
    for rank, one in enumerate(found):
        if isinstance(one, str):
            raise ShapeError(one if rank == ranks.rank else f"{one} (on rank {rank})")
    return [(trimmed, tuple(widths)) for trimmed, widths in found]


def _inside(box: Box, shape: Shape) -> Box:
    return tuple((max(0, begin), min(n, end)) for (begin, end), n in zip(box, shape, strict=True))


def _widths(halo: Any, ndim: int) -> tuple[bool, tuple[int, ...]]:
    """Whether halos end where the array does, and those of each side of each axis."""
    try:
        given: Shape = (operator.index(halo),)
        trimmed = True
    except TypeError:
        trimmed = False
        try:
            given = tuple(operator.index(n) for n in halo)
        except TypeError:
            raise ShapeError(
                f"Invalid halo length: whole numbers are expected, not {value_shown(halo)}"
            ) from None
    if any(n < 0 for n in given):
        raise ShapeError(f"halo has to be non-negative, not {halo}")
    if trimmed:
        return True, given * (2 * ndim)
    if len(given) == ndim:
        return False, tuple(n for n in given for _ in range(2))
    if len(given) == 2 * ndim:
        return False, given
    raise ShapeError(
        f"Invalid halo length {len(given)}: one number, one for each of {ndim} axes, or {2 * ndim} for both sides of each"
    )
