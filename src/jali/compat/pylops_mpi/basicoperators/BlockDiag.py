"""Operators of blocks on the diagonal, under the names of pylops_mpi.basicoperators.BlockDiag."""

from jali.linops import BlockDiag as MPIBlockDiag
from jali.linops import StackedBlockDiag as MPIStackedBlockDiag

__all__ = ["MPIBlockDiag", "MPIStackedBlockDiag"]
