"""Operators, under the names of pylops_mpi.basicoperators."""

from jali.compat.pylops_mpi.basicoperators import (
    BlockDiag,
    FirstDerivative,
    Gradient,
    Halo,
    HStack,
    Laplacian,
    MatrixMult,
    SecondDerivative,
    VStack,
)
from jali.compat.pylops_mpi.basicoperators.BlockDiag import MPIBlockDiag, MPIStackedBlockDiag
from jali.compat.pylops_mpi.basicoperators.FirstDerivative import MPIFirstDerivative
from jali.compat.pylops_mpi.basicoperators.Gradient import MPIGradient
from jali.compat.pylops_mpi.basicoperators.Halo import MPIHalo, halo_block_split
from jali.compat.pylops_mpi.basicoperators.HStack import MPIHStack
from jali.compat.pylops_mpi.basicoperators.Laplacian import MPILaplacian
from jali.compat.pylops_mpi.basicoperators.MatrixMult import (
    MPIMatrixMult,
    active_grid_comm,
    block_gather,
    local_block_split,
)
from jali.compat.pylops_mpi.basicoperators.SecondDerivative import MPISecondDerivative
from jali.compat.pylops_mpi.basicoperators.VStack import MPIStackedVStack, MPIVStack

__all__ = [
    "BlockDiag",
    "FirstDerivative",
    "Gradient",
    "HStack",
    "Halo",
    "Laplacian",
    "MPIBlockDiag",
    "MPIFirstDerivative",
    "MPIGradient",
    "MPIHStack",
    "MPIHalo",
    "MPILaplacian",
    "MPIMatrixMult",
    "MPISecondDerivative",
    "MPIStackedBlockDiag",
    "MPIStackedVStack",
    "MPIVStack",
    "MatrixMult",
    "SecondDerivative",
    "VStack",
    "active_grid_comm",
    "block_gather",
    "halo_block_split",
    "local_block_split",
]
