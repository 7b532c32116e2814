"""Operators of blocks on the diagonal, under the names of pylops_mpi.basicoperators.BlockDiag."""

from jali.compat.pylops_mpi._parts import BlocksInParts
from jali.linops import BlockDiag
from jali.linops import StackedBlockDiag as MPIStackedBlockDiag

__all__ = ["MPIBlockDiag", "MPIStackedBlockDiag"]


class MPIBlockDiag(BlocksInParts, BlockDiag):
    """`jali.linops.BlockDiag`; vectors may be split anyhow, and belong to another communicator of as many ranks."""
