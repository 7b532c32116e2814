"""Operators side by side, under the name of pylops_mpi.basicoperators.HStack."""

from jali.linops import HStack as MPIHStack

__all__ = ["MPIHStack"]
