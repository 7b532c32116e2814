"""Ranks: how they are identified, how they communicate, start and stop.

Collectives on arrays are methods of `Communicator`; any other collective is a composition of `jali.planner`. Does not depend on
lattices, fields or plans. The work is done in C++ (`core/messaging`, `core/schedule`, `core/running`). What lattices do not
need is imported at its first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jali.comm.communicator import Communicator
from jali.comm.launcher_environment import LauncherEnvironment, expected_ranks, find_launcher_environment
from jali.comm.stopping import end_job, notify_other_ranks
from jali.comm.virtual import virtual_ranks
from jali.comm.world import current, from_mpi4py

if TYPE_CHECKING:
    from jali.comm.algorithms import ALGORITHMS, Algorithm
    from jali.comm.ccl import CclCommunicator
    from jali.comm.device_arrays import DeviceArray
    from jali.comm.device_messages import PersistentMessage
    from jali.comm.launcher import relaunch
    from jali.comm.requests import Request
    from jali.comm.transport import Transport, over

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CclCommunicator",
    "Communicator",
    "DeviceArray",
    "LauncherEnvironment",
    "PersistentMessage",
    "Request",
    "Transport",
    "current",
    "end_job",
    "expected_ranks",
    "find_launcher_environment",
    "from_mpi4py",
    "notify_other_ranks",
    "over",
    "relaunch",
    "virtual_ranks",
]

# Names that are imported later, and their modules; type checkers see the imports above.
_LATER = {
    "ALGORITHMS": "algorithms",
    "Algorithm": "algorithms",
    "CclCommunicator": "ccl",
    "DeviceArray": "device_arrays",
    "PersistentMessage": "device_messages",
    "Request": "requests",
    "Transport": "transport",
    "over": "transport",
    "relaunch": "launcher",
}

if not TYPE_CHECKING:

    def __getattr__(name):
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        value = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})
