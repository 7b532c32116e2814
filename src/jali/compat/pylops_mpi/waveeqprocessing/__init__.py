"""Operators of wave equations, under the names of pylops_mpi.waveeqprocessing."""

from jali.compat.pylops_mpi.waveeqprocessing import MDC
from jali.compat.pylops_mpi.waveeqprocessing.MDC import MPIMDC

__all__ = ["MDC", "MPIMDC"]
