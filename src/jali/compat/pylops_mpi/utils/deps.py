"""Which optional libraries there are, under the names of pylops_mpi.utils.deps."""

from __future__ import annotations

import importlib.util

from jali import settings

__all__ = ["nccl_enabled"]

nccl_enabled = settings.of_others("NCCL_PYLOPS_MPI").get("NCCL_PYLOPS_MPI", "1") == "1" and (
    importlib.util.find_spec("cupy") is not None
)
"""Whether scripts may request an NCCL communicator: where there is CuPy. jali's own use of NCCL does not depend on it."""


def nccl_import(message: str | None = None) -> str | None:
    """None where scripts may request an NCCL communicator, else what would be needed (for `message`)."""
    if nccl_enabled:
        return None
    return (
        f"NCCL needs CuPy, which is not installed or switched off by NCCL_PYLOPS_MPI=0; it is for {message}"
    )


def mpi4py_fft_import(message: str | None) -> str | None:
    """Always None: `jali.fft` needs no mpi4py-fft."""
    return None
