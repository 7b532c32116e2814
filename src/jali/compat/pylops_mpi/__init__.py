"""pylops_mpi 0.8.0 on jali: the same modules, names, signatures and defaults; docs/compat-pylops-mpi.md lists what differs.

    import jali.compat.pylops_mpi as pylops_mpi

Every name is that of a class or function of `jali.arrays`, `jali.linops`, `jali.solvers`, `jali.fft` or `jali.profile`. All submodules
are imported here: modules and classes have the same names, and a submodule imported later would take the place of its class.
"""

from jali.compat.pylops_mpi import (
    Distributed,
    basicoperators,
    optimization,
    plotting,
    proximal,
    signalprocessing,
    utils,
    version,
    waveeqprocessing,
)
from jali.compat.pylops_mpi.basicoperators import (
    MPIBlockDiag,
    MPIFirstDerivative,
    MPIGradient,
    MPIHalo,
    MPIHStack,
    MPILaplacian,
    MPIMatrixMult,
    MPISecondDerivative,
    MPIStackedBlockDiag,
    MPIStackedVStack,
    MPIVStack,
)
from jali.compat.pylops_mpi.DistributedArray import DistributedArray, Partition, StackedDistributedArray
from jali.compat.pylops_mpi.LinearOperator import MPILinearOperator, asmpilinearoperator
from jali.compat.pylops_mpi.optimization.basic import CG, CGLS, cg, cgls
from jali.compat.pylops_mpi.optimization.sparsity import FISTA, ISTA, fista, ista
from jali.compat.pylops_mpi.plotting.plotting import plot_distributed_array, plot_local_arrays
from jali.compat.pylops_mpi.proximal.ProxOperator import MPIProxOperator
from jali.compat.pylops_mpi.StackedLinearOperator import MPIStackedLinearOperator
from jali.compat.pylops_mpi.version import __version__

__all__ = [
    "CG",
    "CGLS",
    "FISTA",
    "ISTA",
    "Distributed",
    "DistributedArray",
    "MPIBlockDiag",
    "MPIFirstDerivative",
    "MPIGradient",
    "MPIHStack",
    "MPIHalo",
    "MPILaplacian",
    "MPILinearOperator",
    "MPIMatrixMult",
    "MPIProxOperator",
    "MPISecondDerivative",
    "MPIStackedBlockDiag",
    "MPIStackedLinearOperator",
    "MPIStackedVStack",
    "MPIVStack",
    "Partition",
    "StackedDistributedArray",
    "__version__",
    "asmpilinearoperator",
    "basicoperators",
    "cg",
    "cgls",
    "fista",
    "ista",
    "optimization",
    "plot_distributed_array",
    "plot_local_arrays",
    "plotting",
    "proximal",
    "signalprocessing",
    "utils",
    "version",
    "waveeqprocessing",
]
