"""Ranks: who they are, how they talk, how they are started and how they stop.

Knows nothing of lattices or fields. The work is done in C++ (`core/transport`); this package decides which
group of ranks a program belongs to and what happens when one of them fails.
"""

from __future__ import annotations

from jali.comm.communicator import Communicator
from jali.comm.composition import ALL, OTHERS, Composition
from jali.comm.launcher import relaunch
from jali.comm.place import Place, expected_ranks, place_under_launcher
from jali.comm.stopping import end_job, tell_other_ranks
from jali.comm.virtual import virtual_ranks
from jali.comm.world import current, from_mpi4py

__all__ = [
    "ALL",
    "OTHERS",
    "Communicator",
    "Composition",
    "Place",
    "current",
    "end_job",
    "expected_ranks",
    "from_mpi4py",
    "place_under_launcher",
    "relaunch",
    "tell_other_ranks",
    "virtual_ranks",
]
