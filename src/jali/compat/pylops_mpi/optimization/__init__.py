"""Solvers, under the names of pylops_mpi.optimization."""

from jali.compat.pylops_mpi.optimization import basic, cls_basic, cls_sparsity, eigs, sparsity

__all__ = ["basic", "cls_basic", "cls_sparsity", "eigs", "sparsity"]
