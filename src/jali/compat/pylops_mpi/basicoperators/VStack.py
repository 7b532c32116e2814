"""Operators one above the other, under the names of pylops_mpi.basicoperators.VStack."""

from jali.linops import StackedVStack as MPIStackedVStack
from jali.linops import VStack

__all__ = ["MPIStackedVStack", "MPIVStack"]


class MPIVStack(VStack):
    """`jali.linops.VStack`; vectors may belong to another communicator of as many ranks."""

    _congruent = True
