"""Multi-dimensional convolution, under the name of pylops_mpi.waveeqprocessing.MDC."""

from jali.linops.mdc import MDC as MPIMDC

__all__ = ["MPIMDC"]
