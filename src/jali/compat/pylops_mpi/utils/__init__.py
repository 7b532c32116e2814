"""Tools, under the names of pylops_mpi.utils."""

from jali.compat.pylops_mpi.utils import _common, _mpi, _nccl, deps
from jali.compat.pylops_mpi.utils.deps import nccl_enabled

__all__ = ["_common", "_mpi", "_nccl", "deps", "nccl_enabled"]
