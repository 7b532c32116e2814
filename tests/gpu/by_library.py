"""A communicator whose collectives go by the vendor's library."""

from __future__ import annotations

from functools import partial
from typing import Any

from jali.comm import CclCommunicator, Communicator, algorithms
from jali.vendors import library_of

HAVE = {  # of transports of the library that have not all collectives
    "nccl-windows": ("all_reduce", "all_gather", "reduce_scatter"),
    "nccl-streams": ("all_reduce", "reduce", "broadcast"),
}


class ByLibrary:
    """Its eight collectives with `algorithm="nccl"` (or "rccl"), and what `CclCommunicator` has."""

    def __init__(self, communicator: Communicator, gpu: Any) -> None:
        self.communicator, self.ccl = communicator, CclCommunicator(communicator, gpu)

    def __getattr__(self, name: str) -> Any:
        if name in algorithms.COLLECTIVES:
            return partial(getattr(self.communicator, name), algorithm=library_of(self.ccl.gpu.kind))
        return getattr(self.ccl, name)
