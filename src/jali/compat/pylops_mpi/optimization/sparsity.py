"""Solvers of sparse problems as functions, under the names of pylops_mpi.optimization.sparsity."""

from jali.compat.pylops_mpi.optimization.cls_sparsity import FISTA, ISTA
from jali.solvers.sparsity import fista, ista

__all__ = ["FISTA", "ISTA", "fista", "ista"]
