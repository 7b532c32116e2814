"""The sum of norms of vectors, under the name of pylops_mpi.proximal.proximal.L21."""

from jali.solvers.proximal import L21 as MPIL21

__all__ = ["MPIL21"]
