"""Halos between devices: every policy on any ranks gives the host's bits, sends what the host sends, and stops with others."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from typing import Any

import numpy as np
import pytest

import jali
from jali import _core, comm
from jali.errors import RankError
from jali.fermions import WilsonDirac
from jali.gauge import SU, GaugeField, plaquettes, sweep

POLICIES = [name for name, _ in _core.halo_policies(True)]
EXTENTS = (4, 4, 4, 8)


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_GPUS", "4")


@jali.site_function
def diagonal(X, out, x):
    mu, nu, rho, sigma = X.directions()
    out[X] = x[X + sigma - rho] - 2 * x[X - sigma + nu] + x[X + 2 * sigma]


@jali.site_function
def slices(X, x, total, squares):
    total += x[X + X.directions()[3]].real
    squares += x[X].norm2()


def results(device: str, grid: Any = None) -> list[Any]:
    """What a program computes that needs halos of many kinds: links, spinors as items, diagonals, sums per slice."""
    lattice = jali.Lattice(*EXTENTS, grid=grid, device=device)
    U = GaugeField(lattice, SU(3)).hot_start(seed=5)
    rng = jali.Random(3)
    out: list[Any] = []
    for _ in range(2):
        sweep(U, 5.7, rng, overrelaxation=1)
        out += plaquettes(U)
    dirac = WilsonDirac(U, mass=0.1)
    psi = lattice.field(jali.Spinor(3))
    spinor = np.random.default_rng(1).normal(size=(*EXTENTS, 4, 3, 2)).view(complex)[..., 0]
    psi[:, :, :, :] = spinor
    out.append(dirac.apply(dirac.apply(psi))[...].tobytes())
    single = lattice.field(jali.Complex(), precision="float32")
    single[:, :, :, :] = spinor[..., 0, 0].astype(np.complex64)
    other = single.like()
    diagonal(other, single)
    diagonal(single, other)
    out.append(single[...].tobytes())
    for per in (None, lattice.directions[3], lattice.directions[1]):
        out += [np.asarray(part).tobytes() for part in lattice.sum(slices, single, per=per)]
    return out


@pytest.fixture(scope="module")
def reference() -> list[Any]:
    return results("cpu")


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_bits_of_the_host(reference, policy, monkeypatch):
    monkeypatch.setenv("JALI_HALO_POLICY", policy)
    assert all(found == reference for found in jali.virtual_ranks(2, results, "cuda"))


@pytest.mark.parametrize(
    ("ranks", "grid"), [(3, None), (4, (1, 1, 2, 2)), (4, (2, 1, 1, 2)), (2, (1, 2, 1, 1))]
)
@pytest.mark.parametrize("policy", ["store-directions", pytest.param("copy-overlap", marks=pytest.mark.full)])
def test_any_grid_gives_the_bits_of_the_host(reference, ranks, grid, policy, monkeypatch):
    if _core.Gpu.count("cuda") < ranks:
        pytest.skip(f"ranks of one process need a device each: {ranks}")
    monkeypatch.setenv("JALI_HALO_POLICY", policy)
    assert jali.virtual_ranks(ranks, results, "cuda", grid)[-1] == reference


def exchanged(device: str) -> list[dict[str, int]]:
    lattice = jali.Lattice(*EXTENTS, device=device, lanes=1)
    U = GaugeField(lattice, SU(3)).hot_start(seed=5)
    sweep(U, 5.7, jali.Random(3), overrelaxation=1)
    return [field.storage.halo_counters for field in U.fields]


def test_devices_send_what_the_host_sends():
    on_host = jali.virtual_ranks(2, exchanged, "cpu")
    assert on_host[0][0]["exchanged"] > 0
    assert jali.virtual_ranks(2, exchanged, "cuda") == on_host


def long_messages(element: Any, precision: str) -> bool:
    @jali.site_function
    def neighbours(X, y, x):
        mu = X.directions()[2]
        y[X] = 2 * x[X + mu] - 0.5 * x[X - mu]

    ranks = comm.current()
    found = []
    values = None
    for device in ("cpu", "cuda"):
        lattice = jali.Lattice(64, 64, 4 * ranks.size, grid=(1, 1, ranks.size), device=device)
        x, y = (lattice.field(element, precision=precision) for _ in range(2))
        if values is None:
            values = np.random.default_rng(ranks.rank).normal(size=x.local().shape).astype(x.local().dtype)
        x.set_local(values)
        for _ in range(3):  # both slots, and one again
            neighbours(y, x)
            x.assign(y)
        found.append(y.local())
    return np.array_equal(*found)


@pytest.mark.parametrize(
    ("element", "precision"),
    [
        (jali.Matrix(6), "float64"),  # 2.25 MiB
        (jali.Matrix(6), "float32"),
        (jali.Real(), "float64"),
        (jali.Real(), "float32"),
        (jali.Vector(3), "float32"),
    ],
    ids=str,
)
def test_long_messages_arrive_whole(element, precision):
    assert jali.virtual_ranks(2, long_messages, element, precision) == [True, True]


def test_ranks_that_share_a_device_go_by_way_of_the_host_and_say_so(reference, monkeypatch, fake_environment):
    program = f"""
import sys
sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
import jali, test_halos_between_devices as t
print(jali.virtual_ranks(2, t.exchanged, "cuda")[0][0]["exchanged"] > 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**fake_environment, "JALI_FAKE_GPUS": "1", "CUDA_VISIBLE_DEVICES": "0"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout == "True\n", done.stderr
    assert done.stderr.count("go by way of the host (policy staged-overlap)") == 1
    assert "share a device" in done.stderr


def test_a_policy_that_is_asked_for_and_impossible_is_an_error(monkeypatch, fake_environment):
    program = f"""
import sys
sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
import jali, test_halos_between_devices as t
jali.virtual_ranks(2, t.exchanged, "cuda")
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **fake_environment,
            "JALI_FAKE_GPUS": "1",
            "CUDA_VISIBLE_DEVICES": "0",
            "JALI_HALO_POLICY": "store-overlap",
        },
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode != 0
    assert "DeviceError" in done.stderr
    assert "share a device" in done.stderr


def test_unknown_policies_and_switches_are_refused(monkeypatch):
    monkeypatch.setenv("JALI_HALO_POLICY", "by-pigeon")
    with pytest.raises(ValueError, match="by-pigeon does not exist; there are: store-overlap, "):
        jali.virtual_ranks(2, exchanged, "cuda")
    monkeypatch.delenv("JALI_HALO_POLICY")
    monkeypatch.setenv("JALI_HALO_OFF", "bulk,weather")
    with pytest.raises(ValueError, match="'weather'; it can name pack, transport, bulk and boundary"):
        jali.virtual_ranks(2, exchanged, "cuda")


def without(device: str) -> float:
    lattice = jali.Lattice(4, 8, device=device, grid=(1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    x.set_local(np.ones(x.local().shape))

    @jali.site_function
    def shifted(X, y, x):
        y[X] = x[X + X.directions()[1]]

    shifted(y, x)
    return float(y[...].sum())


@pytest.mark.parametrize(
    ("off", "sites"), [("", 32), ("bulk", 8), ("boundary", 24), ("bulk,boundary", 0), ("transport", 24)]
)
def test_switches_leave_out_what_they_name(off, sites, monkeypatch):
    monkeypatch.setenv("JALI_HALO_OFF", off)
    assert jali.virtual_ranks(2, without, "cuda") == [sites, sites]


def left_alone() -> None:
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())

    @jali.site_function
    def shifted(X, y, x):
        y[X] = x[X + X.directions()[2]]

    shifted(y, x)
    if comm.current().rank == 1:
        raise ArithmeticError("rank 1 has had enough")
    x.storage.mark_written(3)
    shifted(y, x)  # waits on the device for a message that never comes
    start = time.monotonic()
    with pytest.raises(RankError, match="rank 1 has had enough") as caught:
        y.local()
    assert time.monotonic() - start < 15
    raise caught.value


def test_a_rank_whose_device_waits_for_one_that_failed_stops():
    with pytest.raises(ArithmeticError, match="rank 1 has had enough"):
        jali.virtual_ranks(2, left_alone)


def in_a_graph() -> bool:
    """Two exchanges recorded once and repeated, against the same done step by step."""
    lattice = jali.Lattice(8, 8, device="cuda", grid=(1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())

    @jali.site_function
    def average(X, y, x):
        mu, nu = X.directions()
        y[X] = 0.25 * (x[X + mu] + x[X - mu] + x[X + nu] + 2 * x[X - nu])

    def both() -> None:
        average(y, x)
        average(x, y)

    start = np.random.default_rng(comm.current().rank).normal(size=x.local().shape)
    x.set_local(start)
    for _ in range(4):
        both()
    wanted = x.local()
    graph = _core.GpuGraph(lattice.gpu, both)
    x.set_local(start)
    both()
    for _ in range(3):
        lattice.gpu.launch_graph(graph)
    return np.array_equal(x.local(), wanted) and not np.array_equal(wanted, start)


@pytest.mark.mpi
def test_exchanges_in_a_graph_can_be_repeated(fake_environment):
    text = "print(t.in_a_graph(), flush=True)"
    assert on_two_processes(text, "store-overlap", fake_environment) == ["True", "True"]


@pytest.mark.mpi
def test_exchanges_that_need_the_host_are_not_recorded(fake_environment):
    text = """
try:
    t.in_a_graph()
except jali.DeviceError as error:
    print("cannot be recorded in a graph" in str(error), flush=True)
"""
    assert on_two_processes(text, "copy-overlap", fake_environment) == ["True", "True"]


def on_two_processes(text: str, policy: str, environment: dict[str, str]) -> list[str]:
    program = f"""
import sys
sys.path.insert(0, {str(__file__.rpartition("/")[0])!r})
import hashlib, jali, test_halos_between_devices as t
{text}
"""
    start = "import sys; from jali.comm.launcher import launch; sys.exit(launch(2, sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", start, sys.executable, "-c", program],
        env={**environment, "JALI_FAKE_GPUS": "4", "JALI_HALO_POLICY": policy},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.mpi
@pytest.mark.parametrize(
    "policy",
    [
        "store-overlap",
        *(pytest.param(p, marks=pytest.mark.full) for p in ("copy-directions", "staged-overlap")),
    ],
)
def test_processes_give_the_bits_of_the_host(reference, policy, fake_environment):
    digest = 'print(hashlib.sha256(repr(t.results("cuda")).encode()).hexdigest(), flush=True)'
    wanted = hashlib.sha256(repr(reference).encode()).hexdigest()
    assert on_two_processes(digest, policy, fake_environment) == [wanted, wanted]
