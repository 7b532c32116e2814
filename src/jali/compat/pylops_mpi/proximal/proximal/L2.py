"""The square of a norm, under the name of pylops_mpi.proximal.proximal.L2."""

from jali.solvers.proximal import L2 as MPIL2

__all__ = ["MPIL2"]
