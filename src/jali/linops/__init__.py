"""Linear operators on distributed arrays: see `jali.arrays`."""

from jali.linops.derivatives import FirstDerivative, Gradient, Laplacian, SecondDerivative
from jali.linops.halo import Halo, halo_block_split
from jali.linops.operator import LinearOperator, StackedLinearOperator
from jali.linops.patches import Patch, Sliding

__all__ = [
    "FirstDerivative",
    "Gradient",
    "Halo",
    "Laplacian",
    "LinearOperator",
    "Patch",
    "SecondDerivative",
    "Sliding",
    "StackedLinearOperator",
    "halo_block_split",
]
