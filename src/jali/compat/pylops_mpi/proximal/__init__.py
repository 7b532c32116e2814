"""Proximal operators and solvers, under the names of pylops_mpi.proximal."""

from jali.compat.pylops_mpi.proximal import ProxOperator, optimization, proximal
from jali.compat.pylops_mpi.proximal.optimization import ADMML2, PrimalDual, ProximalGradient
from jali.compat.pylops_mpi.proximal.proximal import MPIL2, MPIL21
from jali.compat.pylops_mpi.proximal.ProxOperator import MPIProxOperator

__all__ = [
    "ADMML2",
    "MPIL2",
    "MPIL21",
    "MPIProxOperator",
    "PrimalDual",
    "ProxOperator",
    "ProximalGradient",
    "optimization",
    "proximal",
]
