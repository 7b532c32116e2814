"""pylops_mpi 0.8.0 on jali: the same modules, names, signatures and defaults; docs/compat-pylops-mpi.md lists what differs.

    import jali.compat.pylops_mpi as pylops_mpi

Every name is that of a class or function of `jali.arrays`, `jali.linops`, `jali.solvers`, `jali.fft` or `jali.profile`. All submodules
are imported here: modules and classes have the same names, and a submodule imported later would take the place of its class.
"""

from jali.compat.pylops_mpi import Distributed, version
from jali.compat.pylops_mpi.DistributedArray import DistributedArray, Partition, StackedDistributedArray
from jali.compat.pylops_mpi.LinearOperator import MPILinearOperator, asmpilinearoperator
from jali.compat.pylops_mpi.StackedLinearOperator import MPIStackedLinearOperator
from jali.compat.pylops_mpi.version import __version__

__all__ = [
    "Distributed",
    "DistributedArray",
    "MPILinearOperator",
    "MPIStackedLinearOperator",
    "Partition",
    "StackedDistributedArray",
    "__version__",
    "asmpilinearoperator",
    "version",
]
