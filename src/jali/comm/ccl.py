"""The communicator of NCCL (CUDA) or RCCL (HIP) that ranks with a GPU each share: its symmetric windows, and waits that it ends.

Calls by the library have the usual interface: `Communicator.all_reduce(x, algorithm="nccl")` and the other collectives,
`persistent_send(x, to, transport="nccl")`, halo policies. It is found at run time: JALI_NCCL or JALI_RCCL, the nvidia-nccl
package, or where the machine has it.

RCCL has never run on hardware.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy.typing as npt

from jali import _core, graph_recorder
from jali.comm.communicator import Communicator
from jali.comm.device_arrays import DeviceArray, stream_handle
from jali.comm.elements import SIZES, element_name
from jali.errors import ParameterError
from jali.files import value_shown


class CclCommunicator:
    """The library's communicator for the ranks of a `Communicator` and a device, one GPU for each rank.

    It is made once for both, when this, a halo, a message or a collective first needs it, and shared by all of them: all ranks
    issue its operations in the same order. It ends with `communicator`; one of its own belongs to `communicator.duplicate()`.

    `DeviceError` names what the library or the device cannot do, and is raised when they report an error; the
    library's communicator is then unusable, and the other ranks raise `RankError`.
    """

    def __init__(self, communicator: Communicator, gpu: _core.Gpu) -> None:
        """Collective at first. Raises `DeviceError` on all ranks: no library, different versions, two ranks on one GPU."""
        if not isinstance(communicator, Communicator) or not isinstance(gpu, _core.Gpu):
            raise ParameterError(
                "a CclCommunicator joins a communicator and a device, such as lattice.gpu, not "
                f"{value_shown(communicator)} and {value_shown(gpu)}"
            )
        graph_recorder.refuse_call("CclCommunicator")
        self.communicator = communicator
        self.gpu = gpu
        self.rank, self.size = communicator.rank, communicator.size
        self.core = _core.CclGroup(communicator.core, gpu)

    def __repr__(self) -> str:
        name, version, _ = self.library
        return f"<rank {self.rank} of {self.size} on {self.gpu.name}, {name} {version}>"

    @property
    def library(self) -> tuple[str, str, str]:
        """Its name, its version and its file."""
        return self.core.library

    def symmetric(self, shape: Sequence[int], dtype: npt.DTypeLike) -> DeviceArray:
        """A new array, of the same shape and type on all ranks, in memory that the library has registered as a symmetric window.

        Collectives between such arrays (both, where there are two) by the library use its kernels for symmetric memory, which
        are faster; otherwise they are ordinary arrays. Each takes whole pages of 2 MiB. Its memory is reused, or freed, at the
        first later call of `symmetric` before which all ranks have released it. Collective. Raises `DeviceError` where there
        are no windows, and `ParameterError` where ranks request different sizes, on all ranks.
        """
        graph_recorder.refuse_call("symmetric")
        nbytes = math.prod(shape) * SIZES[element_name(dtype)]
        try:
            memory = self.core.symmetric(nbytes)
        except ValueError as error:
            raise ParameterError(str(error)) from None
        return DeviceArray(self.gpu, memory, shape, dtype)

    def why_not_symmetric(self) -> str:
        """Why there is no symmetric memory here: the library is older than NCCL 2.27, the driver has no memory with handles, or
        the library makes no windows between these devices. Empty where there is, as far as was tried. The same on all ranks."""
        return str(self.core.why_no_windows)

    def check(self) -> None:
        """Raise `DeviceError` if the library has met an error since, `RankError` if another rank has failed."""
        self.core.check()

    def synchronize(self, what: str = "collectives", *, stream: object = None) -> None:
        """Wait, on the host, for all work so far on jali's stream (or on `stream`); `what` names it in errors.

        Detects failures of other ranks meanwhile, and ends after JALI_WATCHDOG seconds.
        """
        graph_recorder.refuse_call("synchronize")
        self.core.synchronize(what, stream_handle(stream))

    def wait(self, event: _core.GpuEvent, what: str = "collectives") -> None:
        """Wait, on the host, for a recorded event, like `synchronize`."""
        graph_recorder.refuse_call("wait")
        self.core.wait(event, what)
