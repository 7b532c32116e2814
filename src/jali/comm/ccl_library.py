"""Where the vendor's library of collectives lies, and its one communicator for the ranks of a group and a device."""

from __future__ import annotations

from jali import _core
from jali.vendors import packaged, vendor


def find_library(kind: str) -> str:
    """The vendor's library in an installed Python package, such as nvidia-nccl; empty if there is none (the core looks further)."""
    return next(iter(packaged(vendor(kind).ccl)), "")


def library_communicator(ranks: _core.Communicator, gpu: _core.Gpu) -> _core.CclCommunicator:
    """Operations on the communicator of NCCL or RCCL that everything between these ranks and on this device shares
    (core/transport/ccl_group.hpp says in which order). The first use is collective.

    Raises `DeviceError` on all ranks: no library, different versions, two ranks on one GPU.
    """
    return _core.CclCommunicator(ranks, gpu, find_library(gpu.kind))
