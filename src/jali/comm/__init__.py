"""Ranks: who they are, how they talk, how they are started and how they stop.

Collectives on arrays are methods of `Communicator`; any other collective is a `Composition`, which becomes a
`Plan` that can be checked, explained, simulated on a `Machine`, drawn and run. Knows nothing of lattices or fields.
The work is done in C++ (`core/transport`, `core/schedule`, `core/collective`).
"""

from __future__ import annotations

from jali.comm.algorithms import ALGORITHMS, Algorithm
from jali.comm.ccl import CclCommunicator
from jali.comm.collectives import Request
from jali.comm.communicator import Communicator
from jali.comm.composition import ALL, OTHERS, Composition
from jali.comm.device_arrays import DeviceArray
from jali.comm.device_messages import PersistentMessage
from jali.comm.launcher import relaunch
from jali.comm.machine import Machine
from jali.comm.place import Place, expected_ranks, place_under_launcher
from jali.comm.plan import Plan
from jali.comm.planning import plan_collective
from jali.comm.running_plan import RunningPlan
from jali.comm.stopping import end_job, tell_other_ranks
from jali.comm.virtual import virtual_ranks
from jali.comm.world import current, from_mpi4py

__all__ = [
    "ALGORITHMS",
    "ALL",
    "OTHERS",
    "Algorithm",
    "CclCommunicator",
    "Communicator",
    "Composition",
    "DeviceArray",
    "Machine",
    "PersistentMessage",
    "Place",
    "Plan",
    "Request",
    "RunningPlan",
    "current",
    "end_job",
    "expected_ranks",
    "from_mpi4py",
    "place_under_launcher",
    "plan_collective",
    "relaunch",
    "tell_other_ranks",
    "virtual_ranks",
]
