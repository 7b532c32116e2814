"""Blocks with halos, under the names of pylops_mpi.basicoperators.Halo.

What it calls the adjoint takes halos off, and so it is here; `jali.linops.Halo` has the true adjoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.arrays import DistributedArray
from jali.errors import ShapeError
from jali.linops import Halo, halo_block_split

__all__ = ["MPIHalo", "halo_block_split"]


class MPIHalo(Halo):
    """`jali.linops.Halo` whose `rmatvec` is its `crop`.

    Halos end within the neighbouring blocks, and on axes that are split both sides are equal, as scripts are told there: else it raises
    ShapeError. Ours does without these limits.
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
        for axis, parts in enumerate(self.proc_grid_shape):
            before, behind = self.halo[2 * axis : 2 * axis + 2]
            least = min(shape[axis] for shape in self.blocks.local_shapes)
            if parts > 1 and before != behind:
                raise ShapeError(
                    f"halo width {before} in front along axis {axis} does not match neighbor's width {behind} behind; jali.linops.Halo takes both"
                )
            if parts > 1 and max(before, behind) > least:
                raise ShapeError(
                    f"halo width {max(before, behind)} along axis {axis} exceeds local block size {least}; use at most {least}, or "
                    "jali.linops.Halo, which fetches from further away"
                )

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        return self.crop(x)
