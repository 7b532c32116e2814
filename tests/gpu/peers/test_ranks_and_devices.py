"""A rank has one device, whichever part of the ranks it works with."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from delayed_transport import Delayed, on_delayed_ranks
from fake_driver import REAL, TWO_DEVICES, run_on_devices, use_fake_ccl, use_fake_gpus

import jali
from jali import _core, comm
from jali.comm.device_arrays import DeviceArray
from jali.devices import open_device
from jali.errors import DeviceError

DEVICES = _core.Gpu.count("cuda") if REAL else 4


@jali.site_function
def spread(X, f, g):
    mu = X.directions()[0]
    g[X] = 0.5 * f[X] + 0.25 * (f[X + mu] + f[X - mu])


def on_parts() -> list[Any]:
    world = comm.current()
    part = world.split(world.rank // 2, -world.rank)
    of_part = part.split(part.rank)
    family = (world, part, part.duplicate(), of_part, of_part.sharing_memory())
    return [open_device("cuda", one).ordinal for one in family]


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fake_gpus(monkeypatch, 4)


def test_a_part_of_the_ranks_has_the_devices_of_its_ranks():
    assert jali.virtual_ranks(DEVICES, on_parts) == [[rank] * 5 for rank in range(DEVICES)]


def test_with_fewer_devices_than_ranks_as_well():
    assert jali.virtual_ranks(DEVICES + 1, on_parts) == [[rank % DEVICES] * 5 for rank in range(DEVICES + 1)]


def evolved(ranks: comm.Communicator, rounds: int, between: Callable[[], Any] = lambda: None) -> np.ndarray:
    lattice = jali.Lattice(12, 4, communicator=ranks, device="cuda")
    f, g = lattice.field(jali.Real()), lattice.field(jali.Real())
    f[...] = np.random.default_rng(1).normal(size=(12, 4))
    for _ in range(rounds):
        spread(f, g)
        f, g = g, f
        between()
    return f[...]


def alone_on_rank_1(alone: Callable[[comm.Communicator], Callable[[], Any]]) -> None:
    """Rank 1 does something alone between launches for which others may be waiting on their devices."""

    def of_rank() -> np.ndarray:
        world = comm.current()
        between = alone(world)
        return evolved(world, 6, between if world.rank == 1 else lambda: None)

    expected = evolved(comm.current(), 6)
    for found in jali.virtual_ranks(min(DEVICES, 3), of_rank):
        assert np.array_equal(found, expected)


def test_a_rank_works_alone_while_others_wait_for_its_halos(use_settings):
    use_settings(watchdog=20)

    def with_a_part(world: comm.Communicator) -> Callable[[], Any]:
        part = world.split(world.rank)
        return lambda: evolved(part, 2)

    alone_on_rank_1(with_a_part)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_virtual_ranks_inside_of_one_have_its_device(ranks, use_settings):
    use_settings(watchdog=20)
    ordinals = jali.virtual_ranks(DEVICES, lambda: jali.virtual_ranks(ranks, on_parts))
    assert ordinals == [[[outer] * 5] * ranks for outer in range(DEVICES)]
    alone_on_rank_1(lambda world: lambda: jali.virtual_ranks(ranks, lambda: evolved(comm.current(), 2)))


@pytest.mark.parametrize("policy", ["", "auto"])
@pytest.mark.parametrize("on_ranks", [jali.virtual_ranks, on_delayed_ranks])
def test_parts_of_more_ranks_than_devices_do_not_wait_for_each_other(on_ranks, policy, use_settings):
    """Rank 0 comes to the first device before rank `DEVICES`, on the last it is the other way round."""
    use_settings(watchdog=20, halo_policy=policy)
    expected = evolved(comm.current(), 6)

    def of_rank() -> np.ndarray:
        world = comm.current()
        first = (world.rank < DEVICES) == (world.rank % DEVICES == 0)
        part = world.split(world.rank // DEVICES)
        return evolved(part.duplicate(), 6, lambda: time.sleep(0.0 if first else 0.02))

    for found in on_ranks(2 * DEVICES, of_rank):
        assert np.array_equal(found, expected)


@TWO_DEVICES
@pytest.mark.parametrize("policy", ["remote-write-overlap", "nccl-overlap", "copy-engine-wait"])
@pytest.mark.parametrize("on_ranks", [jali.virtual_ranks, on_delayed_ranks])
def test_rows_that_would_let_them_wait_are_refused(on_ranks, policy, use_settings):
    use_fake_ccl(use_settings)
    use_settings(halo_policy=policy)

    def of_rank() -> None:
        world = comm.current()
        with pytest.raises(DeviceError, match=f"{2 * DEVICES} ranks of one process share {DEVICES} GPUs"):
            evolved(world.split(world.rank // DEVICES), 2)

    on_ranks(2 * DEVICES, of_rank)


def test_collectives_of_such_parts_do_not_wait_on_devices(use_settings):
    use_fake_ccl(use_settings)
    use_settings(watchdog=20)

    def of_rank() -> list[float]:
        world = comm.current()
        gpu = open_device("cuda", world)
        part = world.split(world.rank // DEVICES)
        x = DeviceArray.from_host(np.full(2000, 1.0 + world.rank), gpu)
        first = (world.rank < DEVICES) == (world.rank % DEVICES == 0)
        found = []
        for _ in range(4):
            time.sleep(0.0 if first else 0.02)
            found.append(float(part.all_reduce(x).to_host()[-1]))
        return found

    for rank, found in enumerate(jali.virtual_ranks(2 * DEVICES, of_rank)):
        part = range(DEVICES) if rank < DEVICES else range(DEVICES, 2 * DEVICES)
        assert found == [sum(1.0 + other for other in part)] * 4


@TWO_DEVICES
def test_two_groups_at_once_do_not_wait_for_each_other(use_settings):
    """Threads of the user's make one each; they come to the devices in different orders."""
    use_settings(watchdog=20)
    expected = evolved(comm.current(), 6)
    found: dict[int, list[np.ndarray]] = {}

    def of_rank(late: int) -> np.ndarray:
        rank = comm.current().rank
        return evolved(comm.current(), 6, lambda: time.sleep(0.02 if rank == late else 0.0))

    def group(number: int) -> None:
        found[number] = jali.virtual_ranks(DEVICES, of_rank, number)

    threads = [threading.Thread(target=group, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(np.array_equal(one, expected) for number in range(2) for one in found[number])

    def policy() -> str:
        lattice = jali.Lattice(12, 4, device="cuda")
        f, g = lattice.field(jali.Real()), lattice.field(jali.Real())
        (kernel,) = spread.bind(f, g).kernels
        return kernel.launch.policy

    # the next group has the devices for itself
    assert set(jali.virtual_ranks(DEVICES, policy)) == {"remote-write-overlap"}


def test_a_transport_of_ones_own_inside_of_a_rank_has_its_device():
    def of_rank() -> list[int]:
        outer = comm.current()
        with comm.over(Delayed(0, {}, 1, 0)) as alone:
            return [outer.rank_on_host, open_device("cuda", alone).ordinal]

    assert jali.virtual_ranks(DEVICES, of_rank) == [[rank] * 2 for rank in range(DEVICES)]


PLACES = """
from mpi4py import MPI
import jali
from jali.devices import open_device

def device(ranks):
    return open_device("cuda", ranks).ordinal

def own():
    return device(jali.comm.current())

world = MPI.COMM_WORLD
of_mpi4py = jali.comm.from_mpi4py(world.Split(world.rank))
turned = jali.comm.from_mpi4py(world.Split(0, -world.rank))
ranks = jali.comm.current()
part = ranks.split(ranks.rank)
shared = part.sharing_memory(), ranks.sharing_memory().split(ranks.rank)
places = [device(one) for one in (of_mpi4py, turned, ranks, part, *shared)]
print(world.gather((places, jali.virtual_ranks(2, own), jali.virtual_ranks(1, own))) or "", flush=True)
"""


@pytest.mark.mpi
def test_parts_of_processes_and_virtual_ranks_inside_of_them(fake_environment: dict[str, str]) -> None:
    printed = run_on_devices(2, PLACES, fake_environment).stdout
    assert [line for line in printed.splitlines() if line] == [
        "[([0, 0, 0, 0, 0, 0], [0, 1], [0]), ([1, 1, 1, 1, 1, 1], [2, 3], [1])]"
    ]
