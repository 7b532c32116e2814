"""Operators side by side, under the name of pylops_mpi.basicoperators.HStack."""

from jali.compat.pylops_mpi._parts import BlocksInParts
from jali.linops import HStack

__all__ = ["MPIHStack"]


class MPIHStack(BlocksInParts, HStack):
    """`jali.linops.HStack`; vectors may be split anyhow, and belong to another communicator of as many ranks."""
