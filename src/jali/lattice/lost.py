"""Sites whose values a field's storage cannot hold: counted by the kernels that store them, told when the host looks next."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from jali.errors import StorageError


class LostOnTheWay:
    """Counters for a kernel that makes what ranks send, which a launch has none for; the second one counts."""

    def __init__(self, gpu: Any):
        self.gpu = gpu
        self._counts = np.zeros(2, np.int64)
        self._there = None if gpu is None else gpu.upload(self._counts, "counters")

    @property
    def address(self) -> int:
        """Where the kernel counts."""
        return int(self._counts.ctypes.data if self._there is None else self._there.address)

    @property
    def counters(self) -> np.ndarray:
        """What was counted so far; a device is waited for."""
        if self._there is not None:
            self.gpu.download(self._there, self._counts)
        return self._counts


class LostSites:
    """The count of one launch (or of what it sends), and how much of it has been told."""

    __slots__ = ("__weakref__", "launch", "name", "told")

    def __init__(self, launch: Any, name: str):
        self.launch = launch
        self.name = name
        self.told = 0

    def news(self) -> int:
        """Sites that were lost since the last look, on this rank."""
        found = int(self.launch.counters[1])
        news, self.told = found - self.told, found
        return news


def news_of(counts: Iterable[LostSites]) -> tuple[int, str]:
    """How many sites, and which kernels stored them."""
    found = [(count.news(), count.name) for count in counts]
    return sum(n for n, _ in found), ", ".join(dict.fromkeys(name for n, name in found if n))


def raise_if_lost(sites: int, where: str) -> None:
    """Raises StorageError if there are any."""
    if sites:
        raise StorageError(
            f"{sites} sites were given values that the storage of their field cannot hold, by {where}; scale the values, or store "
            "the field in a wider format"
        )


def raise_on_all_ranks(communicator: Any, counts: Iterable[LostSites]) -> None:
    """Collective: raises StorageError on every rank if any has lost sites."""
    sites, where = news_of(counts)
    if communicator.size == 1:
        return raise_if_lost(sites, where)
    told = communicator.gather_bytes(
        struct.pack("<q", sites) + where.encode(), what="sites that could not be stored"
    )
    found = [(struct.unpack("<q", t[:8])[0], bytes(t[8:]).decode()) for t in told]
    raise_if_lost(sum(n for n, _ in found), next((w for n, w in found if n), ""))
    return None
