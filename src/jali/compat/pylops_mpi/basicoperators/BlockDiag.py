"""Operators of blocks on the diagonal, under the names of pylops_mpi.basicoperators.BlockDiag."""

from jali.linops import BlockDiag
from jali.linops import StackedBlockDiag as MPIStackedBlockDiag

__all__ = ["MPIBlockDiag", "MPIStackedBlockDiag"]


class MPIBlockDiag(BlockDiag):
    """`jali.linops.BlockDiag`; vectors may belong to another communicator of as many ranks."""

    _congruent = True
