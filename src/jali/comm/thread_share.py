"""What a rank has of its host: threads, and its rank among the ranks there, by which it has its device.

MPI's world settles it for the process; parts of the world, and virtual ranks, begin with that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from jali import _core, settings
from jali.comm.launcher_environment import find_launcher_environment


@dataclass(frozen=True)
class ThreadShare:
    """Threads, and the rank on the host."""

    threads: int
    rank_on_host: int


_of_world: ThreadShare | None = None  # threads as cores allow, regardless of JALI_THREADS


def thread_share_of_process() -> ThreadShare:
    """The share in MPI's world; before it is settled, all threads and the launcher's local rank."""
    if _of_world is not None:
        return _reported(_of_world)
    under_launcher = find_launcher_environment()
    local_rank = (
        under_launcher.rank_on_host if under_launcher is not None and under_launcher.size > 1 else None
    )
    return ThreadShare(_core.default_threads(1), local_rank or 0)


def thread_share_among(core: _core.Communicator, world: Any, is_world: bool) -> ThreadShare:
    """The share of this rank among the ranks of a communicator over MPI; `world` is mpi4py's. Collective.

    Threads are JALI_THREADS, else each core it may use divided by the ranks that may use it: counting cores one by one is
    right whether the launcher binds ranks to cores or not. Ranks on a host are those that the launcher reports, since the
    order of ranks is that of a communicator; where that cannot be true, these ranks are counted. The share of MPI's world
    holds in its parts. A part that is made before it does not see the other ranks: it relies on the launcher.
    """
    import json
    from fractions import Fraction

    global _of_world
    under_launcher = find_launcher_environment()
    is_of_world = under_launcher is not None and (under_launcher.rank, under_launcher.size) == (
        world.rank,
        world.size,
    )
    local_rank = under_launcher.rank_on_host if under_launcher and is_of_world else None
    known = _of_world.rank_on_host if _of_world else local_rank
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    mine = json.dumps([_core.host_identity(), cores, known]).encode()
    others = [json.loads(text) for text in core.gather_bytes(mine, "cores of ranks")]
    hosts = [host for host, _, _ in others]
    if known is None or len({(host, said) for host, _, said in others if said is not None}) < core.size:
        known = hosts[: core.rank].count(hosts[core.rank])
    if _of_world and not is_world and core.size < world.size:
        return _reported(ThreadShare(_of_world.threads, known))
    neighbours = [set(theirs) for host, theirs, _ in others if host == _core.host_identity()]
    thread_share = sum(
        (Fraction(1, sum(one in theirs for theirs in neighbours)) for one in cores), start=Fraction(0)
    )
    found = ThreadShare(max(1, min(int(thread_share), _core.usable_cores())), known)
    if is_world:
        _of_world = found
    return _reported(found)


def _reported(thread_share: ThreadShare) -> ThreadShare:
    """With the number of threads of JALI_THREADS."""
    return ThreadShare(settings.current().threads or thread_share.threads, thread_share.rank_on_host)
