"""The largest eigenvalue, under the name of pylops_mpi.optimization.eigs."""

from jali.solvers.eigs import power_iteration

__all__ = ["power_iteration"]
