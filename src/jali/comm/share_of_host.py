"""What a rank has of its host: threads, and its place among the ranks there, by which it has its device.

MPI's world settles it for the process; parts of the world, and virtual ranks, begin with that.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from jali import _core, settings
from jali.comm.launcher_environment import place_under_launcher


@dataclass(frozen=True)
class Share:
    """Threads, and the place."""

    threads: int
    rank_on_host: int


_of_world: Share | None = None  # threads as cores allow, whatever JALI_THREADS says


def share_of_process() -> Share:
    """That in MPI's world; before it is settled, all threads and the place that the launcher says."""
    if _of_world is not None:
        return _told(_of_world)
    place = place_under_launcher()
    told = place.rank_on_host if place is not None and place.size > 1 else None
    return Share(_core.default_threads(1), told or 0)


def share_among(core: _core.Communicator, world: Any, is_world: bool) -> Share:
    """That of this rank among the ranks of a communicator over MPI; `world` is mpi4py's. Collective.

    Threads are JALI_THREADS, else each core it may use divided by the ranks that may use it: counting cores one by one
    is right whether the launcher binds ranks to cores or not. Places are what the launcher says, since the order of
    ranks is that of a communicator; where that cannot be true, these ranks are counted. What MPI's world has settled
    counts in its parts. A part that comes before it knows nothing of the other ranks: it is right as far as the
    launcher is.
    """
    import json
    from fractions import Fraction

    global _of_world
    place = place_under_launcher()
    is_of_world = place is not None and (place.rank, place.size) == (world.rank, world.size)
    told = place.rank_on_host if place and is_of_world else None
    known = _of_world.rank_on_host if _of_world else told
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    mine = json.dumps([_core.host_identity(), cores, known]).encode()
    others = [json.loads(text) for text in core.gather_bytes(mine, "cores of ranks")]
    hosts = [host for host, _, _ in others]
    if known is None or len({(host, said) for host, _, said in others if said is not None}) < core.size:
        known = hosts[: core.rank].count(hosts[core.rank])
    if _of_world and not is_world and core.size < world.size:
        return _told(Share(_of_world.threads, known))
    neighbours = [set(theirs) for host, theirs, _ in others if host == _core.host_identity()]
    share = sum(
        (Fraction(1, sum(one in theirs for theirs in neighbours)) for one in cores), start=Fraction(0)
    )
    found = Share(max(1, min(int(share), _core.usable_cores())), known)
    if is_world:
        _of_world = found
    return _told(found)


def _told(share: Share) -> Share:
    """With the threads that JALI_THREADS says."""
    return Share(settings.current().threads or share.threads, share.rank_on_host)
