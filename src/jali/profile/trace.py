"""Spans as a trace that Perfetto opens: a process per rank, a thread per track, an event per span.

The format is the trace event format of Chrome: complete events (`ph: "X"`) with times in microseconds. Events of one
thread must lie inside one another or apart, so overlapping events of a track (messages under way) get threads of their
own. An arrow leads from the end of each exchange to the kernel that waited for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from jali.files import checked_path
from jali.profile.spans import COMPUTING, EXCHANGING, Span

# In which order tracks are shown: first what a sweep is about.
_ORDER = ("main stream", "bulk stream", "host", "messages", "collectives")


def trace_events(spans: Sequence[Span]) -> list[dict[str, Any]]:
    """The events of a trace: names of ranks and threads first, then spans in the order in which they began."""
    events: list[dict[str, Any]] = []
    for rank in sorted({span.rank for span in spans}):
        events += _metadata("process", rank, 0, f"rank {rank}", rank)
        mine = [span for span in spans if span.rank == rank]
        threads = _threads(mine)
        for tid, name in enumerate(threads):
            events += _metadata("thread", rank, tid, name, tid)
        for tid, on_thread in enumerate(threads.values()):
            events += [_event(span, tid) for span in on_thread]
        events += _flows(threads)
    return events


def write_trace(path: str | os.PathLike[str], spans: Sequence[Span], dropped: int, accuracy: float) -> None:
    """Writes a trace. Raises OSError, ParameterError."""
    document = {
        "traceEvents": trace_events(spans),
        "displayTimeUnit": "ns",
        "otherData": {
            "program": "jali",
            "dropped spans": dropped,
            "accuracy of clocks in us": 1e6 * accuracy,
        },
    }
    with open(checked_path(path), "w") as file:
        json.dump(document, file)


def _metadata(what: str, pid: int, tid: int, name: str, index: int) -> list[dict[str, Any]]:
    common = {"ph": "M", "pid": pid, "tid": tid, "ts": 0}
    return [
        {"name": f"{what}_name", **common, "args": {"name": name}},
        {"name": f"{what}_sort_index", **common, "args": {"sort_index": index}},
    ]


def _threads(spans: Sequence[Span]) -> dict[str, list[Span]]:
    """Tracks with their spans; events that overlap without nesting get a further thread of the same name."""
    tracks = sorted({span.track for span in spans}, key=_position)
    threads: dict[str, list[Span]] = {}
    for track in tracks:
        stacks: list[list[float]] = []  # ends of what is open on each thread of this track
        occupied: list[list[Span]] = []
        for span in sorted((s for s in spans if s.track == track), key=lambda s: (s.begin, -s.end)):
            for stack, thread in zip(stacks, occupied, strict=True):
                while stack and stack[-1] <= span.begin:
                    stack.pop()
                if not stack or span.end <= stack[-1]:
                    stack.append(span.end)
                    thread.append(span)
                    break
            else:
                stacks.append([span.end])
                occupied.append([span])
        for k, thread in enumerate(occupied):
            threads[track if k == 0 else f"{track} {k + 1}"] = thread
    return threads


def _position(track: str) -> tuple[int, str]:
    return next((k for k, word in enumerate(_ORDER) if word in track), len(_ORDER)), track


def _event(span: Span, tid: int) -> dict[str, Any]:
    arguments: dict[str, Any] = {"phase": span.phase}
    if span.call:
        arguments["call"] = span.call
    if span.policy:
        arguments["policy"] = span.policy
    if span.sites:
        arguments["sites"] = span.sites
    if span.bytes:
        arguments["bytes"] = span.bytes
        if span.seconds > 0:
            arguments["GB/s"] = round(span.bytes / span.seconds / 1e9, 3)
    if span.flops:
        arguments["flops"] = span.flops
        if span.seconds > 0:
            arguments["GFLOP/s"] = round(span.flops / span.seconds / 1e9, 3)
    shown = f"{span.name} ({span.phase})" if span.phase in ("bulk", "boundary") else span.name
    return {
        "name": shown,
        "cat": span.phase,
        "ph": "X",
        "ts": round(1e6 * span.begin, 3),
        "dur": max(0.0, round(1e6 * span.seconds, 3)),
        "pid": span.rank,
        "tid": tid,
        "args": arguments,
    }


def _flows(threads: dict[str, list[Span]]) -> list[dict[str, Any]]:
    """Arrows from the last thing that an exchange does to the kernel that needed it."""
    arrivals: dict[int, tuple[Span, int]] = {}
    users: dict[int, tuple[Span, int]] = {}
    for tid, spans in enumerate(threads.values()):
        for span in spans:
            if span.call == 0:
                continue
            if span.phase in EXCHANGING and (
                span.call not in arrivals or span.end > arrivals[span.call][0].end
            ):
                arrivals[span.call] = (span, tid)
            if span.phase in COMPUTING and (span.call not in users or span.begin > users[span.call][0].begin):
                users[span.call] = (span, tid)
    events = []
    for call in sorted(arrivals.keys() & users.keys()):
        (arrived, from_tid), (computed, to_tid) = arrivals[call], users[call]
        common = {"name": "halo", "cat": "halo", "id": arrived.rank * (1 << 32) + call, "pid": arrived.rank}
        middle = (arrived.begin + arrived.end) / 2
        events.append({**common, "ph": "s", "tid": from_tid, "ts": round(1e6 * middle, 3)})
        end = max(middle, (computed.begin + computed.end) / 2)
        events.append({**common, "ph": "f", "bp": "e", "tid": to_tid, "ts": round(1e6 * end, 3)})
    return events
