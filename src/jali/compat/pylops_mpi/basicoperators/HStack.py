"""Operators side by side, under the name of pylops_mpi.basicoperators.HStack."""

from jali.linops import HStack

__all__ = ["MPIHStack"]


class MPIHStack(HStack):
    """`jali.linops.HStack`; vectors may belong to another communicator of as many ranks."""

    _congruent = True
