"""Tools, under the names of pylops_mpi.utils.

As there, `utils.benchmark` and `utils.dottest` are the functions, though modules have the same names.
"""

from jali.compat.pylops_mpi.utils import _common, _mpi, _nccl, decorators, deps, fft_helper
from jali.compat.pylops_mpi.utils.benchmark import benchmark, mark
from jali.compat.pylops_mpi.utils.deps import nccl_enabled
from jali.compat.pylops_mpi.utils.dottest import dottest
from jali.compat.pylops_mpi.utils.fft_helper import fftshift_nd, ifftshift_nd

__all__ = [
    "_common",
    "_mpi",
    "_nccl",
    "benchmark",
    "decorators",
    "deps",
    "dottest",
    "fft_helper",
    "fftshift_nd",
    "ifftshift_nd",
    "mark",
    "nccl_enabled",
]
