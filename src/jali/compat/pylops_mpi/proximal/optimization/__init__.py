"""Solvers with proximal operators, under the names of pylops_mpi.proximal.optimization."""

from jali.compat.pylops_mpi.proximal.optimization import primal, primaldual
from jali.compat.pylops_mpi.proximal.optimization.primal import ADMML2, ProximalGradient
from jali.compat.pylops_mpi.proximal.optimization.primaldual import PrimalDual

__all__ = ["ADMML2", "PrimalDual", "ProximalGradient", "primal", "primaldual"]
