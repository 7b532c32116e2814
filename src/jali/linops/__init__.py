"""Linear operators on distributed arrays: see `jali.arrays`.

Operators of blocks give each rank local operators, of `pylops`, of SciPy or matrices; stacked ones put operators of distributed
arrays beside each other. All have the algebra of `LinearOperator`, `A / y`, `todense`, `eigs`, `cond` and `trace`.
"""

from jali.linops.basic import Diagonal, Identity, Restriction, Transpose, Zero
from jali.linops.blocks import BlockDiag, HStack, VStack
from jali.linops.convolve import NonStationaryConvolve1D, NonStationaryConvolve2D
from jali.linops.derivatives import FirstDerivative, Gradient, Laplacian, SecondDerivative
from jali.linops.dot_test import dottest
from jali.linops.fourier import FFT, FFT2D, FFTND
from jali.linops.fredholm import Fredholm1
from jali.linops.functions import aslinearoperator, from_functions
from jali.linops.halo import Halo, halo_block_split
from jali.linops.kirchhoff import Kirchhoff
from jali.linops.matrix import MatrixMult, active_grid_comm, block_gather, local_block_split
from jali.linops.mdc import MDC
from jali.linops.operator import LinearOperator, StackedLinearOperator
from jali.linops.patches import Patch, Sliding
from jali.linops.site_functions import SiteOperator
from jali.linops.stacked import StackedBlockDiag, StackedHStack, StackedVStack

__all__ = [
    "FFT",
    "FFT2D",
    "FFTND",
    "MDC",
    "BlockDiag",
    "Diagonal",
    "FirstDerivative",
    "Fredholm1",
    "Gradient",
    "HStack",
    "Halo",
    "Identity",
    "Kirchhoff",
    "Laplacian",
    "LinearOperator",
    "MatrixMult",
    "NonStationaryConvolve1D",
    "NonStationaryConvolve2D",
    "Patch",
    "Restriction",
    "SecondDerivative",
    "SiteOperator",
    "Sliding",
    "StackedBlockDiag",
    "StackedHStack",
    "StackedLinearOperator",
    "StackedVStack",
    "Transpose",
    "VStack",
    "Zero",
    "active_grid_comm",
    "aslinearoperator",
    "block_gather",
    "dottest",
    "from_functions",
    "halo_block_split",
    "local_block_split",
]
