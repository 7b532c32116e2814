"""A rank has one device, whichever part of the ranks it works with."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, run_on_devices, use_fake_gpus

import jali
from jali import _core, comm
from jali.devices import open_device

DEVICES = min(_core.Gpu.count("cuda"), 4) if REAL else 4


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


def test_a_rank_works_alone_while_others_wait_for_its_halos(use_settings):
    """On its own device: another rank's may be waiting for this one."""
    use_settings(watchdog=20)
    start = np.random.default_rng(1).normal(size=(12, 4))

    def evolved(ranks: comm.Communicator, rounds: int, alone: comm.Communicator | None = None) -> np.ndarray:
        lattice = jali.Lattice(12, 4, communicator=ranks, device="cuda")
        f, g = lattice.field(jali.Real()), lattice.field(jali.Real())
        f[...] = start
        for _ in range(rounds):
            spread(f, g)
            f, g = g, f
            if alone is not None and ranks.rank == 1:
                evolved(alone, 2)
        return f[...]

    def of_rank() -> np.ndarray:
        world = comm.current()
        return evolved(world, 6, world.split(world.rank))

    expected = evolved(comm.current(), 6)
    for found in jali.virtual_ranks(min(DEVICES, 3), of_rank):
        assert np.array_equal(found, expected)


@pytest.mark.mpi
def test_parts_of_the_processes_too(fake_environment: dict[str, str]) -> None:
    found = run_on_devices(
        2,
        """
from mpi4py import MPI
import jali, os
from jali.devices import open_device
world = MPI.COMM_WORLD
alone = world.Split(world.rank)
of_mpi4py = jali.comm.from_mpi4py(alone)
reversed_ = jali.comm.from_mpi4py(world.Split(0, -world.rank))
jalis = jali.comm.current()
part = jalis.split(jalis.rank)
places = [open_device("cuda", one).ordinal for one in (of_mpi4py, reversed_, jalis, part, part.sharing_memory(), jalis.sharing_memory().split(jalis.rank))]
print(world.gather(places, 0) or "", flush=True)
""",
        fake_environment,
    )
    assert found.returncode == 0, found.stderr
    assert "[[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]]" in found.stdout
