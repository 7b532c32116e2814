"""Spans as a table: times, bytes moved, operations, the roof of each entry, and hidden times.

Times of an entry are those of all its spans together, over all ranks; shares are of the ranks' time together. Rates are
those of one rank while it was at it. A kernel's parts (bulk and boundary) are one entry. A kernel has three shares of
roofs: of memory with the bytes that it must move (each field once), of the second-level cache with all bytes that it
requests, of arithmetic. A share above 1 means that this roof does not bind: the bytes came from a nearer memory. The roof
that binds is the one with the highest share otherwise. A share above 1 without a nearer memory (of arithmetic, or of
memory by data that fit into no cache) means that the roof is too low: something else ran when it was measured.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from jali.files import checked_path
from jali.profile.load import Load
from jali.profile.roofs import Roofs
from jali.profile.spans import COMBINING, COMPUTING, EXCHANGING, Span

# Kinds of entries, in the order in which they are shown, with what they are called.
KINDS = {
    "kernel": "kernels",
    "sums": "sums over sites and ranks",
    "halo": "halos",
    "collective": "collectives",
    "step": "steps of collectives",
    "move": "fields in and out",
    "graph": "graphs",
    "launch": "launching, on the host",
    "wait": "waiting, on the host",
    "region": "parts of the program",
}
_KIND = {
    **dict.fromkeys(COMPUTING, "kernel"),
    **dict.fromkeys(EXCHANGING, "halo"),
    **dict.fromkeys(COMBINING, "step"),
}
_MOST = 1.05  # a share of a roof that may still be one: what is measured varies
_MANY_TIMES = 4  # a call that moves so many times what the last cache holds gets little of it from there


@dataclass
class ProfileEntry:
    """All spans of one name and kind. Bytes, operations and sites are sums over the spans."""

    kind: str
    name: str
    precision: str = ""
    calls: int = 0
    spans: int = 0
    seconds: float = 0.0
    share: float = 0.0
    sites: int = 0
    bytes: int = 0
    moved: int = 0
    flops: int = 0
    of_memory: float | None = None
    of_cache: float | None = None
    of_arithmetic: float | None = None
    binds: str = ""

    @property
    def gigabytes_per_second(self) -> float:
        """Of what had to be moved, for a rank while it was at it."""
        return self.bytes / self.seconds / 1e9 if self.seconds > 0 else 0.0

    @property
    def gigaflops(self) -> float:
        """GFLOP/s of a rank while it was at it."""
        return self.flops / self.seconds / 1e9 if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class Overlap:
    """What halos cost a rank: seconds in which they were under way, in which the rank computed meanwhile, bytes sent."""

    rank: int
    exchanges: int
    bytes: int
    seconds: float
    hidden: float

    @property
    def share(self) -> float:
        """The part of the time of halos that computing hid; 1 where there were none."""
        return self.hidden / self.seconds if self.seconds > 0 else 1.0


@dataclass
class Table:
    """A profile: entries, what halos cost each rank, and the conditions. `seconds` is how long each rank was recorded."""

    entries: list[ProfileEntry]
    overlaps: list[Overlap]
    seconds: list[float]
    roofs: list[Roofs] = field(default_factory=list)
    dropped: int = 0
    accuracy: float = 0.0
    loads: list[Load] = field(default_factory=list)

    def __str__(self) -> str:
        return render(self)

    @property
    def doubts(self) -> list[str]:
        """Why the roofs are not reliable; empty where there is no objection."""
        if not self.roofs:
            return []
        found = [
            f"other processes kept {load.others:.1f} of the {load.cores} cores of {load.host} busy meanwhile"
            for load in self.loads
            if load.is_busy
        ]
        cache = max(roofs.last_cache for roofs in self.roofs)
        for entry in self.entries:
            if (entry.of_arithmetic or 0.0) > _MOST:
                found.append(
                    f"{entry.name} reached {_percent(entry.of_arithmetic)} of the roof of arithmetic"
                )
            elif (entry.of_memory or 0.0) > _MOST and 0 < _MANY_TIMES * cache * entry.spans < entry.bytes:
                found.append(
                    f"{entry.name} reached {_percent(entry.of_memory)} of the roof of memory with what fits into no cache"
                )
        return found

    def as_dict(self) -> dict[str, Any]:
        """As plain values that JSON can hold."""
        entries = [
            {**asdict(entry), "GB/s": entry.gigabytes_per_second, "GFLOP/s": entry.gigaflops}
            for entry in self.entries
        ]
        return {
            "seconds": self.seconds,
            "entries": entries,
            "halos": [{**asdict(one), "hidden_share": one.share} for one in self.overlaps],
            "roofs": [roofs.as_dict() for roofs in self.roofs],
            "roofs_reliable": not self.doubts if self.roofs else None,
            "roofs_doubts": self.doubts,
            "loads": [asdict(load) for load in self.loads],
            "dropped": self.dropped,
            "accuracy": self.accuracy,
        }

    def write_json(self, path: str | os.PathLike[str]) -> None:
        """Writes all of it. Raises OSError, ParameterError."""
        with open(checked_path(path), "w") as file:
            json.dump(self.as_dict(), file, indent=1)

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the entries. Raises OSError, ParameterError."""
        entries = self.as_dict()["entries"]
        with open(checked_path(path), "w", newline="") as file:
            writer = csv.DictWriter(
                file, list(entries[0]) if entries else ["kind", "name"], lineterminator="\n"
            )
            writer.writeheader()
            writer.writerows(entries)


def make_table(
    spans: Sequence[Span],
    seconds: Sequence[float],
    roofs: Sequence[Roofs] = (),
    dropped: int = 0,
    accuracy: float = 0.0,
    loads: Sequence[Load] = (),
) -> Table:
    """The table of these spans; `seconds` and `roofs` are those of each rank, `loads` those of each host."""
    entries: dict[tuple[str, str, str], ProfileEntry] = {}
    calls: dict[tuple[str, str, str], set[tuple[int, int]]] = {}
    for span in spans:
        kind = _KIND.get(span.phase, span.phase)
        name = _without_place(span.name) if kind in ("halo", "step") else span.name
        key = (kind, name, span.precision)
        entry = entries.setdefault(key, ProfileEntry(kind, name, span.precision))
        entry.spans += 1
        entry.seconds += span.seconds
        entry.sites += span.sites
        entry.bytes += span.bytes
        entry.moved += span.moved
        entry.flops += span.flops
        # calls of a site function have several spans each, other things one
        number = span.call if kind == "kernel" and span.call else -entry.spans
        calls.setdefault(key, set()).add((span.rank, number))
    whole = sum(seconds)
    for key, entry in entries.items():
        entry.calls = len(calls[key])
        entry.share = entry.seconds / whole if whole > 0 else 0.0
        if entry.kind == "kernel" and roofs and entry.seconds > 0:
            _hold_against(entry, roofs)
    order = list(KINDS)
    ordered = sorted(entries.values(), key=lambda entry: (order.index(entry.kind), -entry.seconds))
    overlaps = [find_overlap([s for s in spans if s.rank == r], r) for r in sorted({s.rank for s in spans})]
    return Table(ordered, overlaps, list(seconds), list(roofs), dropped, accuracy, list(loads))


def _without_place(name: str) -> str:
    """Steps that differ in their neighbour only are one entry: "send slab (+1, 0)" is "send"."""
    return name.partition(" for slab (")[0].partition(" slab (")[0]


def _hold_against(entry: ProfileEntry, roofs: Sequence[Roofs]) -> None:
    memory = sum(r.memory for r in roofs) / len(roofs)
    cache = sum(r.cache for r in roofs) / len(roofs)
    arithmetic = sum(r.arithmetic.get(entry.precision, 0.0) for r in roofs) / len(roofs)
    entry.of_memory = entry.bytes / entry.seconds / 1e9 / memory if memory > 0 else None
    entry.of_cache = entry.moved / entry.seconds / 1e9 / cache if cache > 0 else None
    entry.of_arithmetic = entry.gigaflops / arithmetic if arithmetic > 0 else None
    shares = {"memory": entry.of_memory, "cache": entry.of_cache, "arithmetic": entry.of_arithmetic}
    possible = {name: share for name, share in shares.items() if share and share <= _MOST}
    entry.binds = max(possible, key=lambda name: possible[name]) if possible else ""


# ---- overlap -------------------------------------------------------------------------------------------

Interval = tuple[float, float]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same moments as disjoint intervals, in order."""
    out: list[Interval] = []
    for begin, end in sorted(intervals):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        elif end > begin:
            out.append((begin, end))
    return out


def common_length(a: Sequence[Interval], b: Sequence[Interval]) -> float:
    """How long both are under way; each is disjoint and in order."""
    total, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        total += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return total


def find_overlap(spans: Sequence[Span], rank: int) -> Overlap:
    """What halos cost a rank, from its spans.

    On the host a rank packs and unpacks with the threads that compute, so only messages can be hidden; a device does
    all of it beside its kernels.
    """
    exchanging = [s for s in spans if s.phase in EXCHANGING]
    computing = [s for s in spans if s.phase in COMPUTING]
    under_way = union((s.begin, s.end) for s in exchanging)
    hidden = common_length(under_way, union((s.begin, s.end) for s in computing))
    # of which the thread that computes did something for the halo itself
    own = common_length(
        union((s.begin, s.end) for s in exchanging if s.track == "host"),
        union((s.begin, s.end) for s in computing if s.track == "host"),
    )
    sent = sum(s.bytes for s in exchanging if s.phase == "transport" and _sends(s))
    return Overlap(
        rank,
        len({s.call for s in exchanging}),
        sent,
        sum(end - begin for begin, end in under_way),
        max(0.0, hidden - own),
    )


def _sends(span: Span) -> bool:
    """Whether a span of transport counts what this rank sends, once."""
    return not span.name.startswith("receive") and span.name != "copy to the host"


# ---- text ----------------------------------------------------------------------------------------------


def render(table: Table) -> str:
    """The table as lines of text."""
    ranks = max(1, len(table.seconds))
    recorded = sum(table.seconds) / ranks
    lines = [f"{_time(recorded)} recorded on {ranks} rank{'' if ranks == 1 else 's'}; times per rank"]
    for roofs in table.roofs[:1]:
        lines.append(f"roofs of a rank: {roofs}")
    if doubts := table.doubts:
        lines.append(f"roofs are not reliable on this busy machine: {'; '.join(doubts)}")
    width = max([len(entry.name) for entry in table.entries] + [20])
    for kind, title in KINDS.items():
        entries = [entry for entry in table.entries if entry.kind == kind]
        if not entries:
            continue
        head = f"{title:{width}} {'calls':>7} {'time':>10} {'share':>6}"
        if kind == "kernel":
            head += f" {'GB/s':>8} {'memory':>7} {'cache':>6} {'GFLOP/s':>8} {'arith.':>7}  bound by"
        elif kind in ("halo", "step"):
            head += f" {'GB/s':>8} {'MB':>9}"
        lines += ["", head]
        for entry in entries:
            line = f"{entry.name:{width}} {_count(entry.calls / ranks):>7} {_time(entry.seconds / ranks):>10} {entry.share:6.1%}"
            if kind == "kernel":
                line += (
                    f" {entry.gigabytes_per_second:8.1f} {_percent(entry.of_memory):>7} {_percent(entry.of_cache):>6} "
                    f"{entry.gigaflops:8.1f} {_percent(entry.of_arithmetic):>7}  {entry.binds}"
                )
            elif kind in ("halo", "step"):
                line += f" {entry.gigabytes_per_second:8.1f} {entry.bytes / ranks / 1e6:9.2f}"
            lines.append(line)
    exchanging = [one for one in table.overlaps if one.exchanges]
    if exchanging:
        n = len(exchanging)
        under_way, hidden = sum(o.seconds for o in exchanging), sum(o.hidden for o in exchanging)
        lines += [
            "",
            f"halos: {_count(sum(o.exchanges for o in exchanging) / n)} exchanges and {sum(o.bytes for o in exchanging) / n / 1e6:.2f} MB "
            f"sent per rank, under way for {_time(under_way / n)}, of which computing hid {hidden / under_way if under_way else 1.0:.0%}",
        ]
    if any(share and share > _MOST for entry in table.entries for share in (entry.of_memory, entry.of_cache)):
        lines += [
            "",
            "shares above 100 %: the bytes came from a nearer cache"
            + (", or the roof is too low" if doubts else ""),
        ]
    if table.dropped:
        lines.append(f"{table.dropped} spans are missing: there were more than the recording keeps")
    return "\n".join(lines)


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= scale:
            return f"{seconds / scale:.3f} {unit}"
    return f"{seconds * 1e6:.1f} us"


def _count(number: float) -> str:
    return f"{number:.0f}" if number == int(number) else f"{number:.1f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"
