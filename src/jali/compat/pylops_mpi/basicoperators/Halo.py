"""Blocks with halos, under the names of pylops_mpi.basicoperators.Halo.

Its adjoint removes halos, and so does this one; `jali.linops.Halo` has the true adjoint. Blocks are as large as the largest,
but for the last ones along an axis, which have what is left; those of `jali.linops.Halo` are as equal as possible.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.arrays import DistributedArray, Layout, communicator_of, layout_of
from jali.arrays.layout import Shape
from jali.comm import Communicator
from jali.errors import ShapeError
from jali.linops import Halo
from jali.linops.halo import grid_of_ranks
from jali.linops.matrix import block_split

__all__ = ["MPIHalo", "halo_block_split"]


def halo_block_split(
    global_shape: Sequence[int], comm: Any = None, grid_shape: Sequence[int] | None = None
) -> tuple[slice, ...]:
    """The slices of a global array that are this rank's block in a grid of ranks; by default all ranks lie along the last axis.

    The end of a slice is None in blocks that are the last along an axis: scripts see by it where the array ends. Raises ShapeError for a
    grid that does not fit.
    """
    ranks, shape = communicator_of(comm), tuple(global_shape)
    grid = grid_of_ranks(ranks, shape, grid_shape)
    layout = _layout_of_blocks(ranks, shape, grid)
    coordinates = np.unravel_index(ranks.rank, grid)
    return tuple(
        slice(begin, None if coordinate == parts - 1 else end)
        for (begin, end), coordinate, parts in zip(layout.box, coordinates, grid, strict=True)
    )


def _layout_of_blocks(ranks: Communicator, shape: Shape, grid: Shape) -> Layout:
    splits = [block_split(n, parts) for n, parts in zip(shape, grid, strict=True)]
    return layout_of(
        ranks, shape, axis=tuple(range(len(shape))), grid=grid, local_shapes=tuple(itertools.product(*splits))
    )


class MPIHalo(Halo):
    """`jali.linops.Halo` whose `rmatvec` is its `crop`, on blocks of `halo_block_split`.

    As that library documents, halos end within the neighbouring blocks, and two neighbours have the same width: else it raises ShapeError,
    on all ranks. Collective.
    """

    def __init__(
        self,
        dims: tuple[int, ...],
        halo: int | tuple[int, ...],
        proc_grid_shape: Sequence[int] | None = None,
        comm: Any = None,
        dtype: Any = np.float64,
    ) -> None:
        super().__init__(dims, halo, proc_grid_shape, comm, dtype)
        self.proc_grid_shape = self.grid
        self._check_halos()
        self.global_dims, self.ndim, self.dimsd = self.dims, len(self.dims), (self.shape[0],)
        self.halo = tuple(
            width
            for (begin, end), (first, last) in zip(self.blocks.box, self._wanted, strict=True)
            for width in (begin - first, last - end)
        )

    def _layout_of_blocks(self, ranks: Communicator, shape: Shape) -> Layout:
        return _layout_of_blocks(ranks, shape, self.grid)

    def _check_halos(self) -> None:
        grid = self.blocks.grid
        for axis, parts in enumerate(grid):
            stride = math.prod(grid[axis + 1 :])
            for rank, coordinates in enumerate(itertools.product(*map(range, grid))):
                if coordinates[axis] == parts - 1:
                    continue
                behind, before = self.halos[rank][2 * axis + 1], self.halos[rank + stride][2 * axis]
                if behind != before:
                    raise ShapeError(
                        f"halo width {behind} behind rank {rank} along axis {axis} does not match neighbor's, {before} in front of "
                        f"rank {rank + stride}; jali.linops.Halo takes both"
                    )
                least = min(self.blocks.local_shapes[r][axis] for r in (rank, rank + stride))
                if behind > least:
                    raise ShapeError(
                        f"halo width {behind} along axis {axis} exceeds local block size {least} between ranks {rank} and "
                        f"{rank + stride}; jali.linops.Halo fetches from further away"
                    )

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        return self.crop(x)
