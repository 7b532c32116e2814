"""Proximal operators that are not made of those of parts, under the names of pylops_mpi.proximal.proximal."""

from jali.compat.pylops_mpi.proximal.proximal import L2, L21
from jali.compat.pylops_mpi.proximal.proximal.L2 import MPIL2
from jali.compat.pylops_mpi.proximal.proximal.L21 import MPIL21

__all__ = ["L2", "L21", "MPIL2", "MPIL21"]
