"""Algorithms of the standard collectives, and the choice of one by name.

The table is core/planning/algorithms.cpp. Without a name, rules choose the algorithm (core/planning/rules.toml, and the file of
JALI_COLLECTIVE_RULES before them). Their conditions use only numbers that are equal on all ranks, so ranks agree without
communication. JALI_COLLECTIVE=ring, or JALI_COLLECTIVE=all_reduce=ring,broadcast=binomial, or the argument `algorithm`,
overrules them.

A spec has the syntax of rules: an algorithm, "ring by nccl" with the transport of its messages, "two_level by shm and mpi" with
one inside hosts and one between them, or a library with collectives of its own.
"""

from __future__ import annotations

from jali import _core
from jali._core import Algorithm as Algorithm
from jali.vendors import libraries

COLLECTIVES = (
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "scatter",
    "gather",
    "all_to_all",
)
ALGORITHMS = tuple(_core.algorithms())
# Other names of algorithms: (name, collective, algorithm, whether all ranks are to be on one host).
OTHER_NAMES = tuple(_core.algorithm_aliases())

# The MPI library's own collectives on arrays in host memory, where ranks are MPI's (core/planning/mpi_collectives.hpp).
BY_MPI = _core.BY_MPI

# For arrays in device memory there are those without pipelines in host memory, whose messages one of DEVICE_TRANSPORTS
# carries, and libraries with collectives of their own.
_OF_DEVICES = _core.collective_transports(libraries())
DEVICE_TRANSPORTS = {name for name, _, carries, _ in _OF_DEVICES if carries}
ON_DEVICES = tuple(name for name, _, _, itself in _OF_DEVICES if itself)


def names(collective: str, on_device: bool = False) -> list[str]:
    """The algorithms of a collective on the host or on devices."""
    return _core.names_of_algorithms(collective, on_device)
