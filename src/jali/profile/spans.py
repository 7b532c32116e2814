"""Spans: what a rank did, from when to when, as the core records them and as Python shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali import _core
from jali.codegen.arithmetics import PRECISIONS

# The same as Span in core/device/timeline.hpp.
SPAN = np.dtype(
    [
        ("begin", "i8"),
        ("end", "i8"),
        ("sites", "i8"),
        ("bytes", "i8"),
        ("moved", "i8"),
        ("flops", "i8"),
        ("name", "u4"),
        ("detail", "u4"),
        ("call", "u4"),
        ("track", "u2"),
        ("phase", "u1"),
        ("arithmetic", "u1"),
    ]
)

PHASES: tuple[str, ...] = tuple(_core.phases())

# Phases in which site functions compute, those of a halo exchange, and those of a collective.
COMPUTING = ("kernel", "bulk", "boundary")
EXCHANGING = ("produce", "pack", "transport", "unpack")
COMBINING = ("send", "receive", "copy", "reduce")


@dataclass(frozen=True, slots=True)
class Span:
    """One thing that a rank did.

    Times are in seconds since the recording began on rank 0, by rank 0's clock. `track` is where it happened: the host's
    thread, its messages, its collectives, or a stream of a device. `bytes` are those that had to be moved (a kernel:
    each field once), `moved` those that were moved without any cache. `call` is the same for all spans of one call of a
    site function, and 0 for others; `policy` is the halo policy that it used, `precision` what it computed in.
    """

    name: str
    phase: str
    rank: int
    track: str
    begin: float
    end: float
    sites: int = 0
    bytes: int = 0
    moved: int = 0
    flops: int = 0
    call: int = 0
    policy: str = ""
    precision: str = ""

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


def decode(data: Any, names: Sequence[str], tracks: Sequence[str], rank: int, origin: int) -> list[Span]:
    """Spans of a rank from the bytes that the core hands out, in the order in which they began; times since `origin` (ns)."""
    found = np.frombuffer(data, SPAN)
    found = found[np.argsort(found["begin"], kind="stable")]
    return [
        Span(
            names[name],
            PHASES[phase],
            rank,
            tracks[track],
            1e-9 * (begin - origin),
            1e-9 * (end - origin),
            sites,
            moved_least,
            moved,
            flops,
            call,
            names[detail] if call else "",
            PRECISIONS[arithmetic - 1] if arithmetic else "",
        )
        for begin, end, sites, moved_least, moved, flops, name, detail, call, track, phase, arithmetic in found.tolist()
    ]
