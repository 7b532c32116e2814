"""Recordings of devices: tracks and order of every halo policy, the same bits, graphs as one span, no events when nobody records."""

from __future__ import annotations

import ctypes
import itertools
import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, use_fake_ccl, use_fake_gpus
from programs import run_jali

import jali
from jali import _core, comm, profile
from jali.gauge import SU, GaugeField, plaquette, sweep

# all that ranks of one process can have
POLICIES = [name for name, *_ in _core.halo_policies("cuda") if not name.startswith("gpu-aware-mpi")]


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]) -> None:
    use_fake_gpus(monkeypatch, 2)
    use_fake_ccl(use_settings)


def results(record: bool, device: str = "cuda") -> tuple[bytes, float, Any]:
    lattice = jali.Lattice(4, 4, 4, 8, device=device)
    U = GaugeField(lattice, SU(2)).hot_start(seed=5)
    rng = jali.Random(3)
    sweep(U, 2.3, rng, overrelaxation=1)
    if not record:
        sweep(U, 2.3, rng, overrelaxation=1)
        return U.local_links().tobytes(), plaquette(U), None
    with profile.recording() as found:
        sweep(U, 2.3, rng, overrelaxation=1)
        mean = plaquette(U)
    return U.local_links().tobytes(), mean, found


@pytest.fixture(scope="module")
def reference() -> list[tuple[bytes, float]]:
    return [(links, mean) for links, mean, _ in jali.virtual_ranks(2, results, False, "cpu")]


# Policies whose exchange is a part of the site function's kernel, and the launches of a call with halos.
IN_KERNELS = {"remote-write-pack-in-bulk": ["bulk", "boundary"], "remote-write-one-launch": ["kernel"]}


@pytest.mark.short(1)
@pytest.mark.parametrize("policy", IN_KERNELS)
def test_exchanges_in_kernels_are_spans_of_their_launches_alone(policy, reference, use_settings):
    if REAL and _core.Gpu.count("cuda") < 2:
        pytest.skip("ranks of one process need a device each")
    use_settings(halo_policy=policy)
    out = jali.virtual_ranks(2, results, True)
    assert [(links, mean) for links, mean, _ in out] == reference
    calls: dict[Any, list[Any]] = defaultdict(list)
    for span in out[0][2].spans:
        if span.call and track(span):
            assert (span.policy, track(span)) == (policy, "main stream")
            calls[span.rank, span.call].append(span)
    launches = [[s.phase for s in sorted(spans, key=lambda s: s.begin)] for spans in calls.values()]
    assert launches.count(IN_KERNELS[policy]) > 10
    assert all(phases in (IN_KERNELS[policy], ["kernel"]) for phases in launches)


def track(span: Any) -> str:
    return " ".join(span.track.split()[1:])


@pytest.mark.parametrize(
    "policy",
    [
        pytest.param(
            name,
            marks=()
            if name in ("remote-write-overlap", "buffered-write-wait", "host-staged-directions")
            else pytest.mark.full,
        )
        for name in POLICIES
        if name not in IN_KERNELS
    ],
)
def test_exchanges_have_their_tracks_and_order(policy, reference, use_settings):
    if REAL and _core.Gpu.count("cuda") < 2 and not policy.startswith("host-staged"):
        pytest.skip("ranks of one process need a device each")
    use_settings(halo_policy=policy)
    out = jali.virtual_ranks(2, results, True)
    assert [(links, mean) for links, mean, _ in out] == reference
    found = out[0][2]
    assert found.dropped == [0, 0]
    slack = 1e-6 + found.accuracy  # devices' clocks beside each other and the host's
    calls: dict[Any, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for span in found.spans:
        if span.call:
            assert span.policy == policy
            calls[span.rank, span.call][span.phase].append(span)
    exchanges = [phases for phases in calls.values() if phases["transport"]]
    assert len(exchanges) > 10
    for phases in exchanges:
        # what NCCL brings or a neighbour stores lands in the ghosts
        straight = policy.startswith(("nccl", "remote-write"))
        arrivals = (phases["transport"] if straight else []) + phases["unpack"]
        last_of_halo = max(s.end for s in arrivals)
        for span in phases["unpack"] + phases["pack"]:
            assert track(span) == "main stream"
        for span in phases["bulk"]:
            assert track(span) == "bulk stream"
        boundaries = phases["kernel"] + phases["boundary"]
        assert track(max(boundaries, key=lambda span: span.begin)) == "main stream"
        assert {track(s) for s in boundaries} <= {"main stream", "bulk stream"}
        assert {track(s) or s.track for s in phases["transport"]} <= {"main stream", "host"}
        for pack in phases["pack"]:
            assert pack.end <= min(s.begin for s in phases["transport"]) + slack
        for transport in phases["transport"]:
            assert transport.end <= last_of_halo + slack
        assert bool(phases["pack"]) != policy.startswith(("remote-write", "buffered-write"))
        assert straight or phases["unpack"]
        assert not phases["unpack"] or not policy.startswith("nccl")
        stages = phases["kernel"] if policy.endswith("-wait") else phases["boundary"]
        for kernel in stages:
            assert min(s.end for s in arrivals) <= kernel.begin + slack
        if stages:
            assert last_of_halo <= max(s.begin for s in stages) + slack
        assert len(phases["bulk"]) == (not policy.endswith("-wait"))
        for bulk in phases["bulk"]:
            assert all(bulk.end <= s.begin + slack for s in phases["boundary"])
        assert sum(s.bytes for s in arrivals) > 0
    assert {s.phase for s in found.spans} >= {"launch", "wait", "sums"}
    assert sum(o.exchanges for o in found.table().overlaps) == len(exchanges)


def timed_events() -> int:
    """How many events with times the fake driver has recorded."""
    function = ctypes.CDLL(os.environ["JALI_CUDA_DRIVER"]).fakeTimedEvents
    function.restype = ctypes.c_long
    return function()


@pytest.mark.skipif(REAL, reason="counts what the fake driver is asked")
def test_no_events_are_put_on_streams_while_nobody_records():
    before = timed_events()
    results(False)
    assert timed_events() == before
    links, _, found = results(True)
    on_streams = [s for s in found.spans if s.track.startswith("cuda")]
    assert timed_events() >= before + 2 * len(on_streams) > before


def in_a_graph() -> tuple[bool, Any]:
    lattice = jali.Lattice(8, 8, device="cuda")
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())

    @jali.site_function
    def average(X, y, x):
        mu, nu = X.directions()
        y[X] = 0.25 * (x[X + mu] + x[X - mu] + x[X + nu] + 2 * x[X - nu])

    def both() -> None:
        average(y, x)
        average(x, y)

    start = np.random.default_rng(1).normal(size=x.local().shape)
    x.set_local(start)
    for _ in range(3):
        both()
    wanted = x.local()
    x.set_local(start)
    with profile.recording() as found:
        graph = _core.GpuGraph(lattice.gpu, both)
        for _ in range(3):
            lattice.gpu.launch_graph(graph)
    return np.array_equal(x.local(), wanted), found


def test_a_graph_is_one_span_and_has_no_events_inside():
    same, found = in_a_graph()
    assert same
    on_device = [span for span in found.spans if span.track.startswith("cuda")]
    assert [span.phase for span in on_device] == ["graph"] * 3
    for one, other in itertools.pairwise(on_device):
        assert one.end <= other.begin + 1e-6


def test_more_spans_than_can_wait_are_counted():
    lattice = jali.Lattice(4, 4, device="cuda")
    x = lattice.field(jali.Real())

    @jali.site_function
    def grow(X, x):
        x[X] = x[X] + 1

    with profile.recording() as found:
        for _ in range(9000):
            grow(x)
    kernels = [s for s in found.spans if s.phase == "kernel"]
    assert len(kernels) + found.dropped[0] == 9000
    assert len(kernels) >= 8192
    for one, other in itertools.pairwise(kernels):
        assert one.end <= other.begin + 2e-6
    assert np.all(x[...] == 9000)


def test_spans_of_devices_lie_between_those_of_the_host():
    lattice = jali.Lattice(4, 4, device="cuda")
    x = lattice.field(jali.Real())

    @jali.site_function
    def grow(X, x):
        x[X] = x[X] + 1

    grow(x)
    with profile.recording() as found:
        for k in range(3):
            lattice.gpu.synchronize()
            with found.span(f"step {k}"):
                grow(x)
                lattice.gpu.synchronize()
    kernels = [s for s in found.spans if s.phase == "kernel"]
    steps = [s for s in found.spans if s.phase == "region"]
    assert len(kernels) == len(steps) == 3
    for kernel, step in zip(kernels, steps, strict=True):
        assert step.begin - found.accuracy - 1e-6 <= kernel.begin
        assert kernel.end <= step.end + found.accuracy + 1e-6


def test_roofs_of_a_device():
    roofs = profile.measure_roofs(jali.Lattice(2, 2, device="cuda").gpu)
    assert roofs.device.startswith("cuda:0 ")
    assert min(roofs.memory, roofs.cache, *roofs.arithmetic.values()) > 0
    assert set(roofs.arithmetic) == {"float64", "float32"}


@pytest.mark.mpi
@pytest.mark.full
def test_the_command_profiles_devices_of_two_processes(fake_environment, tmp_path: Path):
    (tmp_path / "small.toml").write_text(
        '[lattice]\nextents = [4, 4, 4, 8]\n\n[gauge]\ngroup = "SU(2)"\nbeta = 2.3\n\n[update]\nsweeps = 2\n'
    )
    words = ["profile", tmp_path / "small.toml", "--sweeps", "1", "--device", "cuda", "-n", "2"]
    environment = {**fake_environment, "JALI_FAKE_GPUS": "2"}
    done = run_jali(*words, "--output", tmp_path / "out", env=environment)
    assert "roofs of a rank: cuda:0 fake GPU 0" in done.stdout
    assert "of which computing hid" in done.stdout
    events = json.loads((tmp_path / "out" / "trace.json").read_text())["traceEvents"]
    tracks = {(e["pid"], e["args"]["name"]) for e in events if e["name"] == "thread_name"}
    for rank in (0, 1):
        assert {(rank, f"cuda:{rank} main stream"), (rank, f"cuda:{rank} bulk stream")} <= tracks
    assert {"bulk", "boundary", "transport", "unpack"} <= {e.get("cat") for e in events}


def overlapping() -> Any:
    ranks = comm.current()
    lattice = jali.Lattice(48, 48, 48, 24 * ranks.size, grid=(1, 1, 1, ranks.size), device="cuda")
    U = GaugeField(lattice, SU(3)).hot_start(seed=1)
    rng = jali.Random(3)
    sweep(U, 5.7, rng, overrelaxation=1)
    with profile.recording() as found:
        sweep(U, 5.7, rng, overrelaxation=1)
    return found


@pytest.mark.gpu
def test_bulk_and_transport_run_at_the_same_time():
    if _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    overlaps = jali.virtual_ranks(2, overlapping)[0].table().overlaps
    assert all(overlap.exchanges > 0 and overlap.hidden > 0 for overlap in overlaps)


@pytest.mark.parametrize("where", ["cpu", "cuda"])
def test_what_is_run_for_the_clock_is_not_recorded(where):
    lattice = jali.Lattice(4, 4, device=where)
    x = lattice.field(jali.Real())

    @jali.site_function
    def grow(X, x):
        x[X] = x[X] + 1

    grow(x)
    launch = grow.kernels(x)[0].launch
    with profile.recording() as found:
        launch.run()
        trial = _core.LaunchTrial(launch)
        assert len(trial.kernel(3)) == 3
        trial.finish()
        del trial
        launch.run()
    assert [s.name for s in found.spans if s.phase == "kernel"] == ["grow"] * 2
    assert np.all(x[...] == 3)
