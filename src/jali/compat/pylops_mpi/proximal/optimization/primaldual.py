"""The primal-dual method, under the name of pylops_mpi.proximal.optimization.primaldual."""

from jali.solvers.primal_dual import PrimalDual

__all__ = ["PrimalDual"]
