"""Products with distributed matrices, under the names of pylops_mpi.basicoperators.MatrixMult."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jali import linops
from jali.arrays import communicator_of
from jali.linops import matrix
from jali.linops.matrix import SummaMatrixMult as _MPISummaMatrixMult

__all__ = [
    "MPIMatrixMult",
    "_MPIBlockMatrixMult",
    "_MPISummaMatrixMult",
    "active_grid_comm",
    "block_gather",
    "local_block_split",
]


def local_block_split(global_shape: Sequence[int], rank: int, comm: Any) -> tuple[slice, slice]:
    """`jali.linops.local_block_split`."""
    return linops.local_block_split(global_shape, rank, comm)


def block_gather(x: Any, orig_shape: Sequence[int], comm: Any) -> Any:
    """`jali.linops.block_gather`."""
    return linops.block_gather(x, orig_shape, comm)


class _MPIBlockMatrixMult(matrix.BlockMatrixMult):
    """`jali.linops.matrix.BlockMatrixMult`, whose `dims` and `dimsd` have the columns of all ranks."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        wide = self.copies * self.M
        self.dims, self.dimsd = (self.K, wide), (sum(self.rows), wide)


def active_grid_comm(base_comm: Any, N: int, M: int) -> tuple[Any, int, int, int, bool]:
    """`jali.linops.matrix.active_grid_comm`; ranks that are not in the grid get their row and column in the one of all ranks."""
    comm, rank, row, column, is_active = matrix.active_grid_comm(base_comm, N, M)
    if not is_active:
        row, column = divmod(rank, math.isqrt(communicator_of(base_comm).size))
    return comm, rank, row, column, is_active


def MPIMatrixMult(
    A: Any,
    M: int,
    saveAt: bool = False,
    base_comm: Any = None,
    kind: str = "summa",
    dtype: Any = "float64",
    base_comm_nccl: Any = None,
) -> Any:
    """`jali.linops.MatrixMult`; `base_comm_nccl` is ignored."""
    if kind == "block":
        return _MPIBlockMatrixMult(A, M, saveAt, base_comm, dtype)
    return matrix.MatrixMult(A, M, saveAt, base_comm, kind, dtype)
