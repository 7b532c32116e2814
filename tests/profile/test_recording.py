"""A recording shows what ranks did, in order, changes no bit, and costs nothing where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from programs import run_python

import jali
from jali import _core, comm, profile
from jali.errors import ParameterError
from jali.gauge import SU, GaugeField, plaquette, sweep
from jali.profile.spans import SPAN

# Seconds that a thread may be kept from its core between an event and its look at the clock. Another clock would be off by far more.
SLACK = 10.0


def recorded_sweep(lattice: Any, record: bool) -> tuple[bytes, Any]:
    U = GaugeField(lattice, SU(2)).hot_start(seed=5)
    rng = jali.Random(3)
    sweep(U, 2.3, rng, overrelaxation=1)
    if not record:
        sweep(U, 2.3, rng, overrelaxation=1)
        plaquette(U)
        return U.local_links().tobytes(), None
    with profile.recording() as found:
        with found.span("one sweep"):
            sweep(U, 2.3, rng, overrelaxation=1)
        plaquette(U)
    return U.local_links().tobytes(), found


def on_rank(record: bool) -> tuple[bytes, Any]:
    return recorded_sweep(jali.Lattice(4, 4, 4, 8, lanes=1), record)


@pytest.fixture(scope="module")
def two_ranks() -> list[tuple[bytes, Any]]:
    return jali.virtual_ranks(2, on_rank, True)


def test_recording_changes_no_bit(two_ranks):
    assert [links for links, _ in two_ranks] == [links for links, _ in jali.virtual_ranks(2, on_rank, False)]


def test_rank_0_has_the_spans_of_all_ranks_and_others_their_own(two_ranks):
    first, second = (found for _, found in two_ranks)
    assert {span.rank for span in first.spans} == {0, 1}
    assert {span.rank for span in second.spans} == {1}
    assert len([s for s in first.spans if s.rank == 1]) == len(second.spans)
    assert first.dropped == [0, 0]
    assert 0 < first.accuracy < SLACK


def test_spans_lie_inside_the_recording(two_ranks):
    found = two_ranks[0][1]
    for span in found.spans:
        assert -found.accuracy - SLACK <= span.begin <= span.end
        assert span.end <= max(found.seconds) + found.accuracy + SLACK


def calls_of(found: Any) -> dict[tuple[int, int], dict[str, list[Any]]]:
    """Spans by rank and call, then by phase."""
    calls: dict[tuple[int, int], dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for span in found.spans:
        if span.call:
            calls[span.rank, span.call][span.phase].append(span)
    return calls


def test_an_exchange_packs_then_computes_its_bulk_while_messages_travel_then_its_boundary(two_ranks):
    exchanges = [phases for phases in calls_of(two_ranks[0][1]).values() if phases["transport"]]
    assert len(exchanges) > 10
    for phases in exchanges:
        (bulk,), (boundary,) = phases["bulk"], phases["boundary"]
        assert bulk.policy == "remote-write-overlap"
        assert (bulk.track, phases["transport"][0].track) == ("host", "messages")
        assert phases["pack"]  # whenever the neighbour has room
        for message in phases["transport"]:
            if message.name.startswith(("receive", "await")):
                assert message.begin <= bulk.begin  # under way before the bulk begins
                assert message.end <= boundary.begin
        for unpack in phases["unpack"]:
            assert unpack.end <= boundary.begin
        assert bulk.end <= boundary.begin


def test_parts_of_a_kernel_together_are_all_its_sites(two_ranks):
    calls = calls_of(two_ranks[0][1])
    sites = {sum(s.sites for p in ("kernel", "bulk", "boundary") for s in c[p]) for c in calls.values()}
    assert sites == {4 * 4 * 4 * 4 // 2, 4 * 4 * 4 * 4}  # of a rank: a colour, or all


def test_a_kernel_says_what_it_moves_and_computes():
    lattice = jali.Lattice(4, 4)
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())

    @jali.site_function
    def average(X, y, x):
        mu, nu = X.directions()
        y[X] = x[X + mu] + x[X - mu] + x[X + nu]

    with profile.recording() as found:
        average(y, x)
    (kernel,) = (s for s in found.spans if s.phase == "kernel")
    assert (kernel.name, kernel.sites, kernel.precision) == ("average", 16, "float64")
    report = jali.inspect(average, y, x)
    assert (kernel.bytes, kernel.moved) == (16 * 2 * 8, 16 * 4 * 8)
    assert (report.bytes_least, report.bytes_moved, 16 * report.flops) == (2 * 8, 4 * 8, kernel.flops)


def test_the_last_spans_are_kept_and_the_others_counted():
    lattice = jali.Lattice(4, 4)
    x = lattice.field(jali.Real())

    @jali.site_function
    def grow(X, x):
        x[X] = x[X] + 1

    with profile.recording(capacity=16) as found:
        for k in range(50):
            with found.span(f"step {k}"):
                grow(x)
    assert found.dropped == [100 - 16]
    assert [s.name for s in found.spans if s.phase == "region"] == [f"step {k}" for k in range(42, 50)]
    assert "84 spans are missing" in str(found.table())


def collectives() -> Any:
    ranks = comm.current()
    x = np.arange(20_000.0)
    ranks.all_reduce(x)
    with profile.recording() as found:
        ranks.all_reduce(x)
    return found


def test_collectives_show_their_steps():
    found = jali.virtual_ranks(2, collectives)[0]
    for rank in (0, 1):
        mine = [s for s in found.spans if s.rank == rank]
        (whole,) = (s for s in mine if s.phase == "collective")
        assert "all_reduce" in whole.name
        assert whole.track == "collectives"
        phases = {s.phase for s in mine}
        assert {"send", "receive"} <= phases
        assert phases & {"copy", "reduce"}
        steps = [s for s in mine if s.phase in ("send", "receive", "copy", "reduce")]
        assert all(whole.begin <= s.begin and s.end <= whole.end + SLACK for s in steps)
        assert sum(s.bytes for s in steps if s.phase == "send") >= 20_000 * 8 / 2


def test_recordings_do_not_nest_and_end_with_an_error():
    with (
        profile.recording(),
        pytest.raises(RuntimeError, match="recordings do not nest"),
        profile.recording(),
    ):
        pass
    with pytest.raises(ZeroDivisionError), profile.recording():
        1 / 0  # noqa: B018
    with profile.recording() as found, found.span("again"):
        pass
    assert [s.name for s in found.spans] == ["again"]


def test_spans_are_read_as_the_core_writes_them():
    assert SPAN.itemsize == 64
    timeline = _core.Timeline(4)
    timeline.start()
    timeline.add_region("a name", 7, 11)
    timeline.stop()
    (row,) = np.frombuffer(timeline.bytes(), SPAN)
    assert (row["begin"], row["end"], row["call"], row["arithmetic"]) == (7, 11, 0, 0)
    assert timeline.names[row["name"]] == "a name"
    assert profile.PHASES[row["phase"]] == "region"


def test_clocks_of_ranks_of_one_host_are_the_same():
    for offsets in jali.virtual_ranks(3, lambda: _core.clock_offsets(comm.current().core)):
        assert [ahead for ahead, _ in offsets] == [0, 0, 0]
        assert offsets[0][1] == 0
        assert all(0 < uncertainty < SLACK * 1e9 for _, uncertainty in offsets[1:])


# ---- cost ----------------------------------------------------------------------------------------------

COUNTING = r"""
#include <dlfcn.h>
#include <cstddef>
static thread_local long calls;
extern "C" long allocations() { return calls; }
extern "C" void* __libc_malloc(std::size_t);
extern "C" void* malloc(std::size_t n) { ++calls; return __libc_malloc(n); }
"""

LAUNCHES = """
import ctypes, jali
from jali import profile
count = ctypes.CDLL(None).allocations
count.restype = ctypes.c_long
lattice = jali.Lattice(4, 4)
x = lattice.field(jali.Real())
@jali.site_function
def grow(X, x):
    x[X] = x[X] + 1
launch = grow.kernels(x)[0].launch
def of_launches():
    before = count()
    for _ in range(1000):
        launch.run()
    return count() - before
of_launches()
never = of_launches()
with profile.recording() as found:
    launch.run()
    during = of_launches()
print(never, during, of_launches(), len(found.spans))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="counts by glibc's malloc")
def test_launches_allocate_nothing_each_whether_somebody_records_or_not(tmp_path: Path):
    source, library = tmp_path / "counting.cpp", tmp_path / "counting.so"
    source.write_text(COUNTING)
    compiler = os.environ.get("CXX", "c++").split()
    subprocess.run([*compiler, "-O1", "-fPIC", "-shared", "-o", library, source, "-ldl"], check=True)
    done = run_python(LAUNCHES, env={**os.environ, "LD_PRELOAD": str(library), "JALI_THREADS": "1"})
    never, during, after, spans = map(int, done.stdout.split())
    assert spans == 1001
    # the interpreter may take a block now and then, and the memory of spans doubles; one per launch or span would be a thousand
    assert max(never, during, after) < 100


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: profile.Recording(comm.current(), 0), "capacity is a number of spans from 1, not 0"),
        (lambda: profile.Recording(comm.current(), 1.5), "capacity is a whole number, not 1.5"),
        (lambda: profile.recording(0).__enter__(), "takes a communicator of jali, not 0"),
        (lambda: profile.measure_roofs(threads=0), "threads is a whole number from 1 to 4096, not 0"),
        (lambda: profile.measure_roofs(threads=2**70), "threads 1180591620717411303424 is beyond all"),
        (lambda: profile.measure_roofs(precisions="half"), "some of 'float64', 'float32', not 'half'"),
        (lambda: profile.measure_roofs(precisions=[np.zeros(2)]), "some of 'float64', 'float32', not a list"),
        (lambda: profile.make_table([], [1.0]).write_csv(1), "the path of a file is a text, not 1"),
        (lambda: profile.make_table([], [1.0]).write_json(None), "the path of a file is a text, not None"),
    ],
)
def test_arguments_that_make_no_sense_are_named(call, words: str) -> None:
    with pytest.raises(ParameterError, match=words):
        call()


@pytest.mark.parametrize("name", [3, None, b"a", "\udc80"])
def test_the_name_of_a_span_is_text(name: Any) -> None:
    with (
        profile.recording() as found,
        pytest.raises(ParameterError, match="the name of a span is"),
        found.span(name),
    ):
        pass
