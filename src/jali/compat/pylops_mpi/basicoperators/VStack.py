"""Operators one above the other, under the names of pylops_mpi.basicoperators.VStack."""

from jali.compat.pylops_mpi._parts import BlocksInParts
from jali.linops import StackedVStack as MPIStackedVStack
from jali.linops import VStack

__all__ = ["MPIStackedVStack", "MPIVStack"]


class MPIVStack(BlocksInParts, VStack):
    """`jali.linops.VStack`; vectors may be split anyhow, and belong to another communicator of as many ranks."""
