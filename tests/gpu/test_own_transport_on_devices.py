"""What lies on devices travels by a transport of 50 lines of Python as well: halos, messages, collectives."""

from __future__ import annotations

import numpy as np
import pytest
from delayed_transport import on_delayed_ranks
from fake_driver import REAL

import jali
from jali import comm
from jali.comm import DeviceArray
from jali.devices import open_device


@jali.site_function
def around(X, y, U, x):
    for mu in X.directions():
        y[X] += U[mu][X] * x[X + mu] - U[mu][X - mu].dagger() * x[X - mu]


def stencil(device: str) -> bytes:
    lattice = jali.Lattice(6, 5, 4, device=device)
    U, x, y = (
        [lattice.field(jali.SU(3)) for _ in range(3)],
        *(lattice.field(jali.Vector(3)) for _ in range(2)),
    )
    rng = np.random.default_rng(3)
    for field in (*U, x):
        shape = field[...].shape
        field[...] = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    around(y, U, x)
    around[jali.EVEN](x, U, y)
    return y[...].tobytes() + x[...].tobytes()


@pytest.mark.parametrize("policy", ["host-staged-overlap", "host-staged-wait"])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_halos_of_devices(ranks, policy, use_settings):
    alone = stencil("cpu")
    use_settings(halo_policy=policy)
    assert on_delayed_ranks(ranks, stencil, "cuda") == [alone] * ranks


def messages_and_collectives() -> None:
    world = comm.current()
    gpu = open_device("cuda", world)
    mine, other = (DeviceArray.from_host(x, gpu) for x in (np.arange(1000.0) + world.rank, np.zeros(1000)))
    after, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    both = [world.persistent_send(mine, after), world.persistent_receive(other, before)]
    for number in range(3):
        mine.gpu.upload_address(mine.address, (np.arange(1000.0) + world.rank + number).view(np.uint8))
        world.start(both)
        assert np.array_equal(other.to_host(), np.arange(1000.0) + before + number)
    total = world.all_reduce(mine)
    expected = (np.arange(1000.0) + 2) * world.size + sum(range(world.size))
    assert np.array_equal(total.to_host(), expected)
    parts = world.all_to_all(DeviceArray.from_host(np.arange(6) + 10 * world.rank, gpu))
    mine_of = np.arange(6).reshape(world.size, -1)[world.rank]
    assert np.array_equal(parts.to_host(), np.concatenate([mine_of + 10 * r for r in range(world.size)]))


@pytest.mark.skipif(REAL, reason="needs fake devices")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_messages_and_collectives_of_devices(ranks, monkeypatch, use_settings):
    monkeypatch.setenv("JALI_FAKE_NO_PEERS", "1")
    use_settings(nccl="/nowhere/libnccl.so")
    on_delayed_ranks(ranks, messages_and_collectives)
