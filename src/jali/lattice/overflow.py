"""Counts of sites where a kernel fails: whose values a field's storage cannot hold, or whose matrices have a wrong pivot (`pivots.py`).
The kernels count; the host reports at its next read of any of the fields that they write.

A field has the counts of the launches that write to it. A count outlives its launch; remaining counts of deleted fields and
launches are passed to their lattice, and reported at the next read of any of its fields.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from jali import _core
from jali.amounts import counted
from jali.codegen.lines import user_line
from jali.errors import SingularError, StorageError

MOST_LEFT = 64  # counts that a lattice keeps before it reads them: on a device, reading one waits


class Found(NamedTuple):
    """What was counted and is not reported yet."""

    sites: int
    what: str  # of overflows which kernels stored them, of pivots what is wrong at the first site
    first: int = -1  # of pivots: the global number of that site
    kinds: tuple[
        tuple[str, int], ...
    ] = ()  # of pivots: how many sites of each kind, that of the first one first


class Count(Protocol):
    """Sites at which a kernel of this name has failed."""

    name: str

    def unreported(self, values: list[int] | None = None) -> Found:
        """What has been found on this rank and is not reported yet; from now on it is. `values` are those of its counters, where they have been read."""


class LaunchCount:
    """One count of a launch (or of what it sends), and how much of it has been reported."""

    __slots__ = ("counters", "name", "reported")
    number = 0  # which of the counters

    def __init__(self, counters: Any, name: str):
        self.counters = counters
        self.name = name
        self.reported = 0

    def for_a_copy(self) -> LaunchCount:
        """For a field that takes the values: what has been reported here is known there, the rest is reported by both."""
        other = copy.copy(self)
        other.reported = self.reported
        return other

    @property
    def source(self) -> tuple[int, int]:
        """What it counts: copies have the same."""
        return id(self.counters), self.number

    @property
    def final(self) -> bool:
        """Whether the launch has been deleted."""
        return bool(self.counters.final)

    def unreported(self, values: list[int] | None = None) -> Found:
        """What has been found on this rank and is not reported yet; from now on it is. `values` are those of the counters, where they have been read."""
        values = self.counters.values if values is None else values
        found = int(values[self.number])
        unreported, self.reported = found - self.reported, found
        return self.found(unreported, values)

    def found(self, sites: int, values: list[int]) -> Found:
        """So many sites, now that the counters have these values."""
        raise NotImplementedError


class OverflowCount(LaunchCount):
    """Sites whose values a storage cannot hold."""

    __slots__ = ()
    number = 1

    def found(self, sites: int, values: list[int]) -> Found:
        """So many sites."""
        return Found(sites, self.name)


class PastCount:
    """What was counted before: of deleted counts, or on the host."""

    __slots__ = ("_found", "name")

    def __init__(self, found: Found):
        self.name = found.what
        self._found = found

    def unreported(self, values: list[int] | None = None) -> Found:
        """As that of `LaunchCount`."""
        found, self._found = self._found, self._found._replace(sites=0)
        return found


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
            found: dict[str, list[Found]] = {}
            for count in self.take():
                found.setdefault(count.name, []).append(count.unreported())
            self.add(PastCount(total) for total in map(together, found.values()) if total.sites)


def together(found: Iterable[Found]) -> Found:
    """All of it as one. Where pivots have failed only these, with the first site: values that cannot be stored follow from them."""
    there = [one for one in found if one.sites]
    if pivots := sorted((one for one in there if one.first >= 0), key=lambda one: one.first):
        kinds: dict[str, int] = {}
        for kind, sites in (entry for one in pivots for entry in one.kinds):
            kinds[kind] = kinds.get(kind, 0) + sites
        return pivots[0]._replace(sites=sum(kinds.values()), kinds=tuple(kinds.items()))
    return Found(sum(one.sites for one in there), ", ".join(dict.fromkeys(one.what for one in there)))


def unreported(counts: Iterable[Count]) -> Found:
    """What these counts have found; from now on it is reported."""
    counts = list(counts)
    counters = {id(c.counters): c.counters for c in counts if isinstance(c, LaunchCount)}
    read = dict(zip(counters, _core.LaunchCounters.values_of(list(counters.values())), strict=True))
    found: dict[Any, Found] = {}
    for count in counts:  # a field and a copy of it may count the same sites
        values = read[id(count.counters)] if isinstance(count, LaunchCount) else None
        one, source = count.unreported(values), getattr(count, "source", id(count))
        found[source] = max(one, found.get(source, one))
    return together(found.values())


def raise_if_found(found: Found) -> None:
    """Raises SingularError for pivots that have failed, StorageError for values that could not be stored."""
    sites, what, first, kinds = found
    if sites and first >= 0:
        alike = kinds[0][1]
        more = f", the first of {alike} such matrices" if alike > 1 else ""
        if others := sites - alike:
            more += f"; {others} {'others fail' if others > 1 else 'other fails'}, too"
        raise SingularError(f"{what}{more}\n  at {user_line(beyond_trace=True)}")
    if sites:
        raise StorageError(
            f"{counted(sites, 'site')} {'was' if sites == 1 else 'were'} given values that the storage of their field cannot hold, by {what}; scale the values, or store "
            "the field in a wider format"
        )


def raise_on_all_ranks(communicator: Any, counts: Iterable[Count]) -> None:
    """Collective: raises what `raise_if_found` does on every rank if a count of any has found something."""
    found = unreported(counts)
    if communicator.size == 1:
        return raise_if_found(found)
    import json  # what few programs need

    reported = communicator.gather_bytes(
        json.dumps(found).encode(),
        what="sites at which a kernel failed",
    )
    parts = [json.loads(bytes(one)) for one in reported]
    return raise_if_found(
        together(Found(sites, what, first, tuple(map(tuple, kinds))) for sites, what, first, kinds in parts)
    )
