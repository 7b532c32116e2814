"""What no plan can beat on a machine, and the closed forms for pipelined rings and trees.

Throughput is p * d / t: p ranks, buffers of p * d bytes in all (a broadcast moves p * d, a gather d per rank). The bounds
are those of HiCCL's Table 3, for NICs that may differ: the volume that must cross a node's NICs in one direction, over
what they carry together. They do not depend on the inside of a node. On one host the ports of the outermost level that
has more than one part stand for the NICs.
"""

from __future__ import annotations

import math

from jali.comm.algorithms import COLLECTIVES
from jali.errors import ParameterError
from jali.planner.machine import Machine

ONE_DIRECTION = ("gather", "scatter")  # of their busiest node


def node_bandwidth(machine: Machine, which: str = "rated", shares: str = "free") -> tuple[float, int]:
    """(GB/s that a node sends in one direction, ranks per node).

    `which`: "rated", "measured" (one direction), or "duplex" (half of both directions together). `shares`: "free" if
    a node's data may be spread over its NICs at will, "equal" if every rank moves the same through its own NIC, so
    that a NIC with more ranks holds the others up.
    """
    if which not in ("rated", "measured", "duplex"):
        raise ParameterError(f"bandwidth '{which}'; one of rated, measured, duplex")
    if shares not in ("free", "equal"):
        raise ParameterError(f"shares '{shares}'; free or equal")
    if machine.nodes == 1:
        return _inside_bandwidth(machine, which)
    network = machine.network
    each = {
        "rated": network.rated,
        "measured": network.bandwidth,
        "duplex": tuple(min(b, d / 2) for b, d in zip(network.bandwidth, network.duplex, strict=True)),
    }[which]
    bound = [network.binding.count(nic) for nic in range(len(each))]
    if shares == "free":
        return sum(b for b, ranks in zip(each, bound, strict=True) if ranks), machine.ranks_per_node
    slowest = min(b / ranks for b, ranks in zip(each, bound, strict=True) if ranks)
    return slowest * machine.ranks_per_node, machine.ranks_per_node


def _inside_bandwidth(machine: Machine, which: str) -> tuple[float, int]:
    below = machine.ranks_per_node
    for level in machine.levels:
        below //= level.parts
        if level.parts > 1:
            wires = level.parts - 1 if level.wiring == "pairs" else 1
            each = min(level.bandwidth, level.duplex / 2) if which == "duplex" else level.bandwidth
            return wires * each, below
    raise ParameterError(f"machine '{machine.name}' has one rank; there is nothing to bound")


def bound(machine: Machine, collective: str, which: str = "rated", shares: str = "free") -> float:
    """Highest throughput p * d / t in GB/s (Table 3). `which` and `shares` as in `node_bandwidth`."""
    B, g = node_bandwidth(machine, which, shares)
    p = machine.ranks
    if collective in ("broadcast", "reduce"):
        return B
    if collective in ("gather", "scatter", "all_gather", "reduce_scatter"):
        return B * p / (p - g)
    if collective == "all_reduce":
        return B * p / (2 * (p - g))
    if collective == "all_to_all":
        return B * p / (g * (p - g))
    raise ParameterError(f"no bound for '{collective}'; there are bounds for {', '.join(COLLECTIVES)}")


def reachable(machine: Machine, collective: str) -> float:
    """The paper's empirical bound: measured bandwidth, of one direction for gather and scatter, else of both."""
    return bound(machine, collective, "measured" if collective in ONE_DIRECTION else "duplex", "equal")


def ring_time(
    size: float, nodes: int, depth: int, bandwidth: float, latency: float, inside: bool = True
) -> float:
    """Eq. (1): seconds of a broadcast of `size` bytes along a ring of nodes in `depth` chunks.

    `bandwidth` is a node's in bytes/s, `latency` in seconds. `inside`: with the two stages within nodes.
    """
    step = latency + size / (depth * bandwidth)
    return (depth + nodes - 2) * step + (2 * step if inside else 0.0)


def tree_time(
    size: float, nodes: int, depth: int, bandwidth: float, latency: float, inside: bool = True
) -> float:
    """Eq. (2): the same down a binary tree of nodes."""
    step = latency + size / (depth * bandwidth)
    return depth * math.log2(nodes) * step + (2 * step if inside else 0.0)
