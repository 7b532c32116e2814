"""Products with distributed matrices, under the names of pylops_mpi.basicoperators.MatrixMult."""

from __future__ import annotations

from typing import Any

from jali.linops.matrix import BlockMatrixMult as _MPIBlockMatrixMult
from jali.linops.matrix import MatrixMult, active_grid_comm, block_gather, local_block_split
from jali.linops.matrix import SummaMatrixMult as _MPISummaMatrixMult

__all__ = [
    "MPIMatrixMult",
    "_MPIBlockMatrixMult",
    "_MPISummaMatrixMult",
    "active_grid_comm",
    "block_gather",
    "local_block_split",
]


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
