"""Products with distributed matrices, under the names of pylops_mpi.basicoperators.MatrixMult."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jali import linops
from jali.linops.matrix import BlockMatrixMult as _MPIBlockMatrixMult
from jali.linops.matrix import MatrixMult, active_grid_comm
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
    return MatrixMult(A, M, saveAt, base_comm, kind, dtype)
