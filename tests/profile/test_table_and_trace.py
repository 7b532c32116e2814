"""Tables add up, roofs bind as they should, traces are what viewers of trace events take."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

import jali
from jali import profile
from jali.gauge import SU, GaugeField, sweep
from jali.profile import Roofs, Span, make_table, trace_events
from jali.profile.table import KINDS, common_length, find_overlap, union


def span(phase: str, begin: float, end: float, track: str = "host", **more: Any) -> Span:
    return Span(more.pop("name", phase), phase, more.pop("rank", 0), track, begin, end, **more)


def recorded() -> Any:
    lattice = jali.Lattice(4, 4, 4, 8)
    U = GaugeField(lattice, SU(2)).hot_start(seed=5)
    with profile.recording() as found:
        sweep(U, 2.3, jali.Random(3), overrelaxation=1)
    return found


@pytest.fixture(scope="module")
def found() -> Any:
    return jali.virtual_ranks(2, recorded)[0]


# ---- tables --------------------------------------------------------------------------------------------


def test_totals_of_the_table_are_the_sums_of_the_spans(found):
    table = found.table()
    assert sum(entry.spans for entry in table.entries) == len(found.spans)
    assert sum(entry.seconds for entry in table.entries) == pytest.approx(sum(s.seconds for s in found.spans))
    for what in ("sites", "bytes", "moved", "flops"):
        assert sum(getattr(entry, what) for entry in table.entries) == sum(
            getattr(s, what) for s in found.spans
        )
    for entry in table.entries:
        assert entry.share == pytest.approx(entry.seconds / sum(found.seconds))
    calls = {(s.rank, s.call) for s in found.spans if s.phase in profile.COMPUTING}
    assert sum(entry.calls for entry in table.entries if entry.kind == "kernel") == len(calls)


def test_every_phase_has_a_kind_of_row_that_is_shown():
    entries = make_table([span(phase, 0, 1) for phase in profile.PHASES], [1.0]).entries
    assert sum(entry.spans for entry in entries) == len(profile.PHASES)
    assert {entry.kind for entry in entries} == set(KINDS)
    text = str(make_table([span(p, 0, 1, name=f"a {p}") for p in profile.PHASES], [1.0]))
    assert all(f"a {phase}" in text for phase in profile.PHASES)


@pytest.mark.parametrize(
    ("bytes", "moved", "flops", "precision", "binds"),
    [
        (800, 900, 1, "float64", "memory"),
        (100, 1800, 1, "float64", "cache"),
        (100, 900, 400, "float64", "arithmetic"),
        (100, 900, 400, "float32", "cache"),
        (2000, 1800, 1, "float64", "cache"),  # more than memory can: it came from the cache
        (2000, 9000, 1, "float64", "arithmetic"),
        (2000, 9000, 0, "float64", ""),
    ],
)
def test_the_roof_that_binds_is_the_nearest_that_is_not_exceeded(bytes, moved, flops, precision, binds):
    giga = 10**9
    kernel = span(
        "kernel",
        0,
        1,
        bytes=bytes * giga,
        moved=moved * giga,
        flops=flops * giga,
        precision=precision,
    )
    roofs = [Roofs("a device", 1000.0, 2000.0, {"float64": 500.0, "float32": 1000.0})]
    (entry,) = make_table([kernel], [2.0], roofs).entries
    assert (entry.of_memory, entry.of_cache) == (bytes / 1000, moved / 2000)
    assert entry.of_arithmetic == flops / (500 if precision == "float64" else 1000)
    assert entry.share == 0.5
    assert entry.binds == binds


def test_intervals():
    assert union([(3, 4), (0, 1), (0.5, 2), (5, 5)]) == [(0, 2), (3, 4)]
    assert common_length([(0, 2), (3, 4)], [(1, 3.5)]) == 1.5
    assert common_length([], [(0, 1)]) == 0


def test_overlap_of_a_device_is_what_kernels_cover_of_an_exchange():
    spans = [
        span("transport", 1, 3, "halo", bytes=100, call=1),
        span("unpack", 3, 5, "halo", bytes=100, call=1),
        span("bulk", 0, 4, "main", call=1),
        span("boundary", 5, 6, "main", call=1),
    ]
    overlap = find_overlap(spans, 0)
    assert (overlap.exchanges, overlap.bytes, overlap.seconds, overlap.hidden) == (1, 100, 4, 3)
    assert overlap.share == 0.75


def test_what_the_computing_thread_does_for_a_halo_is_not_hidden():
    spans = [
        span("transport", 0, 10, "messages", name="receive", bytes=7, call=1),
        span("bulk", 1, 5, call=1),
        span("unpack", 2, 3, call=1),  # between two blocks of the bulk
    ]
    overlap = find_overlap(spans, 0)
    assert (overlap.seconds, overlap.hidden, overlap.bytes) == (10, 3, 0)


def test_the_table_is_written_as_json_and_csv(found, tmp_path):
    table = found.table()
    table.write_json(tmp_path / "t.json")
    table.write_csv(tmp_path / "t.csv")
    document = json.loads((tmp_path / "t.json").read_text())
    with open(tmp_path / "t.csv") as file:
        entries = list(csv.DictReader(file))
    assert (
        [r["name"] for r in entries]
        == [r["name"] for r in document["entries"]]
        == [r.name for r in table.entries]
    )
    assert [float(r["seconds"]) for r in entries] == [r.seconds for r in table.entries]
    assert len(document["halos"]) == 2


# ---- traces --------------------------------------------------------------------------------------------


def check_trace(events: list[dict[str, Any]]) -> None:
    """What the trace event format asks for, and that events of a thread lie inside one another or apart."""
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    open_ends: dict[tuple[int, int], list[float]] = {}
    for event in events:
        assert isinstance(event["name"], str)
        assert event["ph"] in ("X", "M", "s", "f")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert event["ts"] >= 0 or event["ph"] == "X"
        if event["ph"] == "X":
            assert (event["pid"], event["tid"]) in names
            assert event["dur"] >= 0
            stack = open_ends.setdefault((event["pid"], event["tid"]), [])
            while stack and stack[-1] <= event["ts"] + 2e-3:  # rounded to nanoseconds
                stack.pop()
            assert not stack or event["ts"] + event["dur"] <= stack[-1] + 2e-3
            stack.append(event["ts"] + event["dur"])
    flows = [e for e in events if e["ph"] in "sf"]
    assert len({(e["id"], e["ph"]) for e in flows}) == len(flows)
    assert {e["id"] for e in flows if e["ph"] == "s"} == {e["id"] for e in flows if e["ph"] == "f"}


def test_a_trace_has_a_process_per_rank_and_an_event_per_span(found, tmp_path):
    found.write_trace(tmp_path / "trace.json")
    document = json.loads((tmp_path / "trace.json").read_text())
    events = document["traceEvents"]
    check_trace(events)
    complete = [e for e in events if e["ph"] == "X"]
    assert len(complete) == len(found.spans)
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {0: "rank 0", 1: "rank 1"}
    assert sum(e["dur"] for e in complete) == pytest.approx(1e6 * sum(s.seconds for s in found.spans), abs=1)
    overlapped = [e for e in complete if e["cat"] == "bulk"]
    assert overlapped
    assert all(
        e["name"].endswith("(bulk)") and e["args"]["policy"] == "remote-write-overlap" for e in overlapped
    )


def test_spans_that_overlap_on_a_track_go_to_threads_of_their_own():
    spans = [span("transport", *times, "messages") for times in ((0, 3), (1, 4), (2, 2.5), (3.5, 5))]
    events = trace_events(spans)
    check_trace(events)
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert tracks == {"messages", "messages 2"}


def test_an_arrow_leads_from_what_arrived_to_the_kernel_that_needed_it():
    spans = [
        span("bulk", 0, 2, "cuda:0 bulk stream", call=3),
        span("unpack", 1, 3, "host", call=3),
        span("boundary", 3, 4, "cuda:0 main stream", call=3),
    ]
    start, end = (e for e in trace_events(spans) if e["ph"] in "sf")
    assert (start["ph"], start["ts"], end["ph"], end["ts"]) == ("s", 2e6, "f", 3.5e6)
    assert start["tid"] != end["tid"]
