"""Operators one above the other, under the names of pylops_mpi.basicoperators.VStack."""

from jali.linops import StackedVStack as MPIStackedVStack
from jali.linops import VStack as MPIVStack

__all__ = ["MPIStackedVStack", "MPIVStack"]
