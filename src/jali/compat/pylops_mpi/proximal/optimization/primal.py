"""Splitting methods, under the names of pylops_mpi.proximal.optimization.primal."""

from jali.solvers.primal import ADMML2, ProximalGradient

__all__ = ["ADMML2", "ProximalGradient"]
