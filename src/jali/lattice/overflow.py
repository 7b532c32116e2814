"""Counts of overflows: sites whose values a field's storage cannot hold. The kernels that store them count; the host reports at its next
read of any of the fields.

A field has the counts of the launches that write to it. A count outlives its launch; remaining counts of deleted fields and
launches are passed to their lattice, and reported at the next read of any of its fields.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

from jali.amounts import counted
from jali.errors import StorageError

MOST_LEFT = 64  # counts that a lattice keeps before it reads them: on a device, reading one waits


class Count(Protocol):
    """Sites that a kernel of this name could not store."""

    name: str

    def unreported(self) -> int:
        """Sites that have overflowed on this rank and are not reported yet; from now on they are."""


class OverflowCount:
    """The count of one launch (or of what it sends), and how much of it has been reported."""

    __slots__ = ("counters", "name", "reported")

    def __init__(self, counters: Any, name: str):
        self.counters = counters
        self.name = name
        self.reported = 0

    def for_a_copy(self) -> OverflowCount:
        """For a field that takes the values: what has been reported here is known there, the rest is reported by both."""
        other = OverflowCount(self.counters, self.name)
        other.reported = self.reported
        return other

    @property
    def final(self) -> bool:
        """Whether the launch has been deleted."""
        return bool(self.counters.final)

    def unreported(self) -> int:
        """Sites that have overflowed on this rank and are not reported yet; from now on they are."""
        found = int(self.counters.values[1])
        unreported, self.reported = found - self.reported, found
        return unreported


class PastOverflow:
    """Sites that were counted before: the total of deleted counts."""

    __slots__ = ("name", "sites")

    def __init__(self, name: str, sites: int):
        self.name = name
        self.sites = sites

    def unreported(self) -> int:
        unreported, self.sites = self.sites, 0
        return unreported


class LeftCounts:
    """Counts of one lattice whose launch or field has been deleted. Any thread may add at any time, a garbage
    collector too."""

    def __init__(self) -> None:
        self.possible = False  # alike on all ranks: whether anything of this lattice is counted
        self._left: deque[Count] = deque()

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, counts: Iterable[Count]) -> None:
        """From now on they are reported here."""
        self._left.extend(counts)

    def take(self) -> list[Count]:
        """All counts, for a report."""
        return [self._left.popleft() for _ in range(len(self._left))]

    def shorten(self) -> None:
        """Reads the counts where there are many; not for garbage collectors, since a device is waited for."""
        if len(self._left) > MOST_LEFT:
            found: dict[str, int] = {}
            for count in self.take():
                if sites := count.unreported():
                    found[count.name] = found.get(count.name, 0) + sites
            self.add(PastOverflow(name, sites) for name, sites in found.items())


def unreported_overflow(counts: Iterable[Count]) -> tuple[int, str]:
    """How many sites, and which kernels stored them."""
    found: dict[int, tuple[int, str]] = {}
    for count in counts:  # a field and a copy of it may count the same sites
        sites = count.unreported()
        launch = id(getattr(count, "counters", count))
        found[launch] = max(sites, found.get(launch, (0, ""))[0]), count.name
    return sum(n for n, _ in found.values()), ", ".join(
        dict.fromkeys(name for n, name in found.values() if n)
    )


def raise_if_overflow(sites: int, where: str) -> None:
    """Raises StorageError if there are any."""
    if sites:
        raise StorageError(
            f"{counted(sites, 'site')} {'was' if sites == 1 else 'were'} given values that the storage of their field cannot hold, by {where}; scale the values, or store "
            "the field in a wider format"
        )


def raise_on_all_ranks(communicator: Any, counts: Iterable[Count]) -> None:
    """Collective: raises StorageError on every rank if sites of any have overflowed."""
    sites, where = unreported_overflow(counts)
    if communicator.size == 1:
        return raise_if_overflow(sites, where)
    reported = communicator.gather_bytes(
        struct.pack("<q", sites) + where.encode(), what="sites that could not be stored"
    )
    found = [(struct.unpack("<q", t[:8])[0], bytes(t[8:]).decode()) for t in reported]
    raise_if_overflow(sum(n for n, _ in found), next((w for n, w in found if n), ""))
    return None
