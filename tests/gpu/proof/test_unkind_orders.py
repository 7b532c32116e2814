"""In orders of streams, blocks and copies that nobody would choose devices give the bits of the host.

The fake driver's scheduler (fake_gpu_scheduler.hpp) draws them from a seed. What it does to programs that are wrong is
in test_faults_do_harm.py.
"""

from __future__ import annotations

import gc
import hashlib
import threading
from typing import Any

import numpy as np
import pytest
import test_checked_collectives as collectives
import test_device_messages as messages
import test_graphs as graphs
import test_halos_between_devices as halos
from fake_driver import REAL
from programs import TIMEOUT
from seeded_faults import fake_driver
from test_halos_between_devices import four_devices, reference

import jali
from jali import _core, comm
from jali.comm import DeviceArray
from jali.errors import DeviceError, RankError
from jali.tune import experiment

__all__ = ["four_devices", "reference"]  # fixtures

pytestmark = pytest.mark.skipif(REAL, reason="real devices choose for themselves")
MANY = [pytest.param(seed, marks=pytest.mark.full) for seed in range(3, 20)]
SEEDS = [1, 2, *MANY]
# The policies whose orders differ in kind; the long run has all.
OF_THE_SHORT_RUN = {
    "remote-write-overlap",
    "remote-write-one-launch",
    "remote-write-pack-in-bulk",
    "buffered-write-directions",
    "copy-engine-wait",
    "nccl-overlap",
    "host-staged-overlap",
}
POLICIES = [
    pytest.param(name, marks=() if name in OF_THE_SHORT_RUN else pytest.mark.full)
    for name in halos.OF_THREADS
]


@pytest.fixture(autouse=True)
def unkind(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_SEED", str(seed))


@pytest.mark.short(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("policy", POLICIES)
def test_halos(policy, seed, reference, use_settings):
    use_settings(halo_policy=policy)
    assert jali.virtual_ranks(2, halos.results, "cuda")[seed % 2] == reference


@pytest.mark.short(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(
    ("policy", "multiprocessors"),
    [
        ("remote-write-overlap", 1),
        *(
            pytest.param(policy, 1, marks=pytest.mark.full)
            for policy in ("remote-write-directions", "buffered-write-overlap", "copy-engine-directions")
        ),
        *(
            pytest.param(policy, count, marks=() if count == 2 else pytest.mark.full)
            for policy in halos.WAIT_BESIDE_THE_BULK
            for count in (1, 2, 3)
        ),
    ],
)
def test_halos_between_four_ranks_whose_devices_have_few_places(
    policy, multiprocessors, seed, reference, use_settings, monkeypatch
):
    """Two blocks that pack fill a multiprocessor; devices that are open know of four, as tests after this one count on."""
    for ordinal in range(4):
        _core.Gpu.open("cuda", ordinal)
    monkeypatch.setenv("JALI_FAKE_MULTIPROCESSORS", str(multiprocessors))
    use_settings(halo_policy=policy)
    assert jali.virtual_ranks(4, halos.results, "cuda", (1, 1, 2, 2))[seed % 4] == reference


@pytest.mark.short(1)
@pytest.mark.parametrize("seed", SEEDS)
def test_fields_that_come_and_go(seed, use_settings):
    use_settings(halo_policy="remote-write-overlap")
    expected = halos.comings_and_goings("cpu", (1, 1, 1, 1))
    assert jali.virtual_ranks(2, halos.comings_and_goings, "cuda", (1, 1, 1, 2)) == [expected] * 2


def round_and_round() -> bool:
    """An array goes around all ranks, twice at a time, through a copy on the stream."""
    c = comm.current()
    numbers = np.random.default_rng(3).integers(0, 99, (c.size, 5003), np.int8)
    x, y = (messages.on_device(numbers[c.rank]) for _ in range(2))
    both = [
        c.persistent_send(x, (c.rank + 1) % c.size, 0),
        c.persistent_receive(y, (c.rank - 1) % c.size, 0),
    ]
    for _ in range(3 * c.size + 1):
        c.start(both)
        x.gpu.copy_address(x.address, y.address, x.nbytes)
    return np.array_equal(y.to_host(), numbers[c.rank - 1])


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("transport", ["remote-write", "copy-engine", "nccl"])
def test_messages(transport, seed):
    with experiment(message_transport=transport):
        assert comm.virtual_ranks(3, round_and_round) == [True] * 3


@pytest.mark.parametrize("seed", SEEDS)
def test_collectives(seed, use_settings):
    """All of them, each compared with that of the host."""
    use_settings(device_queues=collectives.QUEUES)
    comm.virtual_ranks(3 + seed % 2, collectives.calls_in_checked_mode)


def collectives_in_a_row() -> bool:
    """Launches that may begin before the one in front of them has ended."""
    c = comm.current()
    numbers = np.random.default_rng(1).integers(0, 9, (c.size, 3000)).astype(np.float32)
    x = DeviceArray.from_host(numbers[c.rank], messages.open_gpu())
    y = DeviceArray.from_host(numbers[c.rank], x.gpu)
    for _ in range(4):
        c.all_reduce(x, y)
        c.all_reduce(y, x, op="max")
    return np.array_equal(x.to_host(), numbers.sum(0) * c.size**3)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_collectives_in_a_row(ranks, seed, use_settings):
    use_settings(device_queues=collectives.QUEUES)
    assert comm.virtual_ranks(ranks, collectives_in_a_row) == [True] * ranks


@pytest.mark.parametrize("seed", SEEDS)
def test_graphs(seed):
    lattices = [jali.Lattice(6, 4, device="cuda") for _ in range(2)]
    a, b, n, step = graphs.power_iteration(lattices[0])
    for _ in range(7):
        step()
    c, d, m, recorded = graphs.power_iteration(lattices[1])
    jali.graph(recorded, lattices[1]).run(7)
    assert float(m) == float(n) == 7
    assert np.array_equal(a[...], c[...])
    assert np.array_equal(b[...], d[...])


@pytest.mark.full
@pytest.mark.mpi
@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.full) for s in (2, 3, 4))])
@pytest.mark.parametrize(
    "policy", ["remote-write-overlap", pytest.param("buffered-write-directions", marks=pytest.mark.full)]
)
def test_processes_and_their_graphs(policy, seed, reference, fake_environment):
    text = 'print(t.in_a_graph(), hashlib.sha256(repr(t.results("cuda")).encode()).hexdigest(), flush=True)'
    wanted = hashlib.sha256(repr(reference).encode()).hexdigest()
    environment = {**fake_environment, "JALI_FAKE_SEED": str(seed)}
    assert halos.on_processes(text, policy, environment) == ["True", wanted] * 2


def alone() -> Any:
    """Only rank 0 exchanges."""
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    shifted(y, x)
    lattice.gpu.synchronize()
    comm.current().barrier()
    if comm.current().rank == 0:
        x.storage.mark_written(3)
        shifted(y, x)
        lattice.gpu.synchronize()
    comm.current().barrier()


@jali.site_function
def shifted(X, y, x):
    y[X] = x[X + X.directions()[2]]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.unproved("a rank waits for what never comes, and the wait has a number")
def test_waits_are_reported_in_a_deadlock(seed, monkeypatch, use_settings):
    use_settings(halo_policy="remote-write-overlap")
    monkeypatch.setenv("JALI_FAKE_TIMEOUT", "0.5")
    with pytest.raises(
        (DeviceError, RankError),
        match=r"nothing moves on the fake devices: 'pack_halos' on device 0, stream \d+: "
        r"block 0 of 2 waits for a word to come from 1 to 2",
    ):
        jali.virtual_ranks(2, alone)
    fake_driver().fakeRecover()
    assert all(jali.virtual_ranks(2, lambda: shifted_once() is None))


def shifted_once() -> None:
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    shifted(y, x)
    assert y.local().size


@jali.site_function
def never(X, x, rng):
    x[X] = X.repeat_until(lambda: (rng.uniform(X) < 0, rng.uniform(X)), limit=2, otherwise=0)


def one_collects(collected: threading.Event, rounds: int) -> None:
    """On rank 0, garbage that has counted attempts, while its device waits for rank 1."""
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    for _ in range(rounds):
        never(lattice.field(jali.Real()), jali.Random(1))
    garbage = [lattice.field(jali.Real())]
    garbage.append(garbage)
    never(garbage[0], jali.Random(1))
    shifted(y, x)
    lattice.gpu.synchronize()
    comm.current().barrier()
    del garbage
    if comm.current().rank == 1:
        assert collected.wait(TIMEOUT)
    x.storage.mark_written(3)
    shifted(y, x)
    if comm.current().rank == 0:
        gc.collect()
        collected.set()
    lattice.gpu.synchronize()


@pytest.mark.parametrize("seed", [0, 1])
def test_garbage_is_collected_without_waiting_for_devices_and_what_it_counted_is_known(
    seed, monkeypatch, use_settings
):
    use_settings(halo_policy="remote-write-overlap")
    monkeypatch.setenv("JALI_FAKE_TIMEOUT", "5")
    monkeypatch.setattr("jali.lattice.sites._MOST_GONE", 3)
    before = never.exhausted
    gc.disable()
    try:
        jali.virtual_ranks(2, one_collects, threading.Event(), 12)
    finally:
        gc.enable()
    assert (
        len(never._gone) <= 3 + 2 * 2
    )  # two ranks may both have looked before they add theirs; 26 have gone
    assert never.exhausted - before == 13 * 4 * 4 * 8
    assert not never._gone


def one_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On rank 0, a launch where much is gone that counted attempts on rank 1, whose device waits for rank 0."""
    lattice = jali.Lattice(4, 4, 8, device="cuda", grid=(1, 1, 2))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    for _ in range(6):
        never(lattice.field(jali.Real()), jali.Random(1))
    shifted(y, x)
    lattice.gpu.synchronize()
    comm.current().barrier()
    x.storage.mark_written(3)
    if comm.current().rank == 1:
        shifted(y, x)
        comm.current().barrier()
    else:
        comm.current().barrier()
        monkeypatch.setattr("jali.lattice.sites._MOST_GONE", 3)
        never(lattice.field(jali.Real()), jali.Random(1))
        shifted(y, x)
    lattice.gpu.synchronize()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_launch_looks_at_what_its_own_device_counted_and_waits_for_no_other(
    seed, monkeypatch, use_settings
):
    use_settings(halo_policy="remote-write-overlap")
    monkeypatch.setenv("JALI_FAKE_TIMEOUT", "5")
    before = never.exhausted
    jali.virtual_ranks(2, one_binds, monkeypatch)
    assert never.exhausted - before == 13 * 4 * 4 * 4
