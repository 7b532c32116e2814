"""Blocks with halos, under the names of pylops_mpi.basicoperators.Halo.

What it calls the adjoint takes halos off, and so it is here; `jali.linops.Halo` has the true adjoint.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.arrays import DistributedArray, communicator_of
from jali.errors import ShapeError
from jali.linops import Halo, halo_block_split
from jali.linops.halo import widths_of

__all__ = ["MPIHalo", "halo_block_split"]


class MPIHalo(Halo):
    """`jali.linops.Halo` whose `rmatvec` is its `crop`, and whose widths each rank gives for itself, where they are not one number.

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
        ranks = communicator_of(comm)
        error: ShapeError | None = None
        try:
            mine = widths_of(halo, len(dims) if np.ndim(dims) else 1)[1]
        except ShapeError as caught:
            mine, error = (), caught
        texts = ranks.gather_bytes(np.array(mine, np.int64).tobytes(), what="MPIHalo")
        if error is not None:
            raise error
        self._halos = [tuple(map(int, np.frombuffer(text, np.int64))) for text in texts]
        if () in self._halos:
            raise ShapeError(f"rank {self._halos.index(())} gave no halo that fits; here it is {halo}")
        super().__init__(dims, halo, proc_grid_shape, comm, dtype)
        self._check_halos()

    def _halo_of(self, rank: int) -> tuple[int, ...]:
        return self._halos[rank]

    def _check_halos(self) -> None:
        grid = self.blocks.grid
        for axis, parts in enumerate(grid):
            stride = math.prod(grid[axis + 1 :])
            for rank, places in enumerate(itertools.product(*map(range, grid))):
                if places[axis] == parts - 1:
                    continue
                behind, before = self._halos[rank][2 * axis + 1], self._halos[rank + stride][2 * axis]
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
