"""What lies on devices travels by a transport of 50 lines of Python as well: halos, messages, collectives and plans."""

from __future__ import annotations

import numpy as np
import pytest
from delayed_transport import on_delayed_ranks
from fake_driver import REAL

import jali
from jali import comm
from jali._core import CollectiveCall
from jali.comm import DeviceArray
from jali.comm.algorithms import COLLECTIVES
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


def every_collective() -> None:
    """In place and not, even and not, of the user's operation: by the transport that is open, whose name need not be said."""
    world = comm.current()
    gpu, n, me = open_device("cuda", world), world.size, world.rank
    collectives = world.collectives.on_device(gpu)
    x = np.arange(4.0 * n) + 100 * me
    everyone = np.array([np.arange(4.0 * n) + 100 * r for r in range(n)])
    mine, counts = slice(4 * me, 4 * (me + 1)), [3 * r for r in range(n)]

    def there(of: np.ndarray) -> DeviceArray:
        return DeviceArray.from_host(of, gpu)

    def same(result: DeviceArray | None, expected: np.ndarray) -> None:
        assert result is not None
        assert np.array_equal(result.to_host(), expected)

    for _ in range(2):  # the second time by plans that are kept
        same(world.all_reduce(there(x)), everyone.sum(0))
        same(world.all_reduce(there(x), op=lambda a, b: np.maximum(a, b)), everyone.max(0))
        again = there(x)
        same(world.all_reduce(again, again, op="max"), everyone.max(0))
        total = world.reduce(there(x), root=n - 1)
        if me == n - 1:
            same(total, everyone.sum(0))
        same(world.broadcast(there(x), root=n - 1), everyone[-1])
        same(world.reduce_scatter(there(x)), everyone.sum(0)[mine])
        same(world.all_gather(there(x)), everyone.reshape(-1))
        parts = [everyone[r][: counts[r]] for r in range(n)]
        same(world.all_gather(there(parts[me]), counts=counts), np.concatenate(parts))
        stacked = world.gather(there(x))
        if me == 0:
            same(stacked, everyone.reshape(-1))
        out = there(np.zeros(4))
        same(world.scatter(there(x) if me == 0 else None, out), everyone[0][mine])
        same(world.all_to_all(there(x)), everyone[:, mine].reshape(-1))
    for name in COLLECTIVES:
        call = CollectiveCall(name, "fp64", 4, in_place=name == "broadcast")
        assert not collectives.plan_of(call).recordable


@pytest.mark.skipif(REAL, reason="needs fake devices")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_collective_of_devices(ranks, monkeypatch, use_settings):
    monkeypatch.setenv("JALI_FAKE_NO_PEERS", "1")
    use_settings(nccl="/nowhere/libnccl.so", collective="host-staged")
    on_delayed_ranks(ranks, every_collective)


@pytest.mark.skipif(REAL, reason="needs fake devices")
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_messages_and_collectives_of_devices(ranks, monkeypatch, use_settings):
    monkeypatch.setenv("JALI_FAKE_NO_PEERS", "1")
    use_settings(nccl="/nowhere/libnccl.so")
    on_delayed_ranks(ranks, messages_and_collectives)
