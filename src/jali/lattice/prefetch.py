"""Whether kernels of the host prefetch what the next position reads while they compute one.

Where fields come from memory, a stencil waits for it, since a processor does not predict the order of the blocks that it
reads; prefetching makes SU(3) kernels with 512-bit vectors twice as fast. Where fields stay in a cache requests cost a tenth
of the time; in between it is best to prefetch the leading reads alone, since the others then find their data in the
second-level cache. So the size decides; the result never changes. Kernels that only access their own site, and those whose
blocks are one or two cache lines, whose order processors do predict, are not prefetched.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jali import settings
from jali.lattice.field import Field

CACHES = Path("/sys/devices/system/cpu")
UNKNOWN = 16 << 20  # bytes, where the size of the last-level cache is unknown
# Parts of a rank's share of the cache: up to the first nothing is prefetched, up to the second the leading reads.
# Measured with 32 MB.
FITS, NEARLY = 1 / 5, 1 / 2
FEWEST_BYTES = 192  # of a block: three cache lines


@dataclass(frozen=True)
class Prefetch:
    """How many reads of each field a kernel prefetches, and why, in words (empty where it is no question)."""

    prefetched_reads: int = 0
    words: str = ""

    def leading(self, offsets: Collection[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """The reads of a field that are prefetched: the order of positions comes to a leading read first, and others follow it into
        the caches. Each is requested at its own turn, since memory answers only so many at once."""
        in_order_of_visits = sorted(offsets, key=lambda offset: offset[::-1])
        return in_order_of_visits[-self.prefetched_reads :] if self.prefetched_reads else []


LEADING = 2
PREFETCHED_READS = {"off": 0, "leading": LEADING, "all": 1 << 20}
MEANING = {
    "off": "does not prefetch",
    "leading": f"prefetches the {LEADING} leading reads of each field",
    "all": "prefetches all reads",
}


def prefetch_of(
    reads: Mapping[int, Collection[tuple[int, ...]]], fields: Sequence[Field], lattice: Any, lanes: int
) -> Prefetch:
    """The mode of JALI_PREFETCH, else that for the bytes that are read of this rank's box and its share of the
    last-level cache."""
    requested = settings.current().prefetch
    site_bytes = {slot: fields[slot].storage.site_bytes for slot in reads}
    shifted = [slot for slot, offsets in reads.items() if any(any(offset) for offset in offsets)]
    if lattice.gpu is not None or not any(lanes * site_bytes[slot] >= FEWEST_BYTES for slot in shifted):
        return Prefetch()
    if requested != "auto":
        return Prefetch(PREFETCHED_READS[requested], f"{MEANING[requested]}: JALI_PREFETCH")
    # a field may be bound to several slots
    of_storages = {id(fields[slot].storage): size for slot, size in site_bytes.items()}
    read = math.prod(lattice.local_extents) * sum(of_storages.values())
    share = cache_share(lattice.communicator.threads, lattice.communicator.size)
    chosen = "off" if read <= FITS * share else "leading" if read <= NEARLY * share else "all"
    return Prefetch(
        PREFETCHED_READS[chosen],
        f"{MEANING[chosen]}: {read / 1e6:.1f} MB in all, of a last-level cache of {share / 1e6:.1f} MB for this rank",
    )


def cache_share(threads: int, ranks: int) -> int:
    """Bytes of last-level cache for the threads of a rank, if its host may hold all `ranks`."""
    size, sharing = last_level_cache()
    return size * threads // min(sharing, threads * ranks)


@functools.cache
def last_level_cache(folder: Path = CACHES) -> tuple[int, int]:
    """Bytes of the last-level cache of a processor that this process may use, and how many processors share it."""
    cpu = min(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    found = []
    for index in (folder / f"cpu{cpu}" / "cache").glob("index*"):
        try:
            level, size = int((index / "level").read_text()), (index / "size").read_text().strip()
            shared = (index / "shared_cpu_map").read_text().replace(",", "")
            factor = {"K": 1 << 10, "M": 1 << 20}[size[-1]]
            found.append((level, int(size[:-1]) * factor, int(shared, 16).bit_count()))
        except (OSError, ValueError, KeyError, IndexError):
            continue  # a machine without this entry, or with an invalid one
    level, held, sharing = max(found, default=(0, 0, 0))
    return (held, max(1, sharing)) if level >= 2 and held > 0 else (UNKNOWN, 1)
