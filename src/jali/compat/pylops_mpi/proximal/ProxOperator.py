"""Proximal operators of pyproximal on distributed arrays, under the names of pylops_mpi.proximal.ProxOperator."""

from jali.solvers.proximal import ProxOperator as MPIProxOperator
from jali.solvers.proximal import _Postcomposition as _PostcompositionOperator
from jali.solvers.proximal import _Precomposition as _PrecompositionOperator

__all__ = ["MPIProxOperator", "_PostcompositionOperator", "_PrecompositionOperator"]
