"""Blocks with halos, under the names of pylops_mpi.basicoperators.Halo.

What it calls the adjoint takes halos off, and so it is here; `jali.linops.Halo` has the true adjoint.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali import linops
from jali.arrays import DistributedArray
from jali.errors import ShapeError

__all__ = ["MPIHalo", "halo_block_split"]


def halo_block_split(
    global_shape: Sequence[int], comm: Any = None, grid_shape: Sequence[int] | None = None
) -> tuple[slice, ...]:
    """`jali.linops.halo_block_split`."""
    return linops.halo_block_split(global_shape, comm, grid_shape)


class MPIHalo(linops.Halo):
    """`jali.linops.Halo` whose `rmatvec` is its `crop`.

    As scripts are told there, halos end within the neighbouring blocks, and two neighbours have the same width: else it raises ShapeError,
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

    def _check_halos(self) -> None:
        grid = self.blocks.grid
        for axis, parts in enumerate(grid):
            stride = math.prod(grid[axis + 1 :])
            for rank, places in enumerate(itertools.product(*map(range, grid))):
                if places[axis] == parts - 1:
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
