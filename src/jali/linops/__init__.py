"""Linear operators on distributed arrays: see `jali.arrays`."""

from jali.linops.convolve import NonStationaryConvolve1D, NonStationaryConvolve2D
from jali.linops.derivatives import FirstDerivative, Gradient, Laplacian, SecondDerivative
from jali.linops.fredholm import Fredholm1
from jali.linops.halo import Halo, halo_block_split
from jali.linops.kirchhoff import Kirchhoff
from jali.linops.matrix import MatrixMult, active_grid_comm, block_gather, local_block_split
from jali.linops.mdc import MDC
from jali.linops.operator import LinearOperator, StackedLinearOperator

__all__ = [
    "MDC",
    "FirstDerivative",
    "Fredholm1",
    "Gradient",
    "Halo",
    "Kirchhoff",
    "Laplacian",
    "LinearOperator",
    "MatrixMult",
    "NonStationaryConvolve1D",
    "NonStationaryConvolve2D",
    "SecondDerivative",
    "StackedLinearOperator",
    "active_grid_comm",
    "block_gather",
    "halo_block_split",
    "local_block_split",
]
