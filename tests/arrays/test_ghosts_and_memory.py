"""Ghost cells by plans, alone and on the way back; memory of large arrays that is used again."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, pool
from jali.arrays.ghosts import GhostExchange, added, along_the_split, joined

HERE = np.empty(0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("axis", [0, 1])
def test_ghost_cells_alone(ranks: int, axis: int) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.arange(35.0).reshape(7, 5), axis=axis)
        n = x.local_shape[axis]
        for front, back in ((0, 0), (1, 1), (2, 0), (0, 9), (4, 3)):
            before, behind = x.ghost_cells(front, back)
            around = x.add_ghost_cells(front, back)
            found = np.concatenate([before, x.local, behind], axis)
            np.testing.assert_array_equal(found, around)
            assert around.shape[axis] == before.shape[axis] + n + behind.shape[axis]

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_the_way_back_is_the_adjoint(ranks: int) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.random.default_rng(1).normal(size=(6, 3)))
        exchange = along_the_split(x.layout, 2, 3)
        assert exchange is along_the_split(x.layout, 2, 3)
        assert isinstance(exchange, GhostExchange)
        around = joined(exchange, x.local, exchange.start(x.local))
        other = np.random.default_rng((2, x.rank)).normal(size=around.shape)
        back = DistributedArray.of(x.layout, added(exchange, other, exchange.start_back(other)))
        mine = np.array([np.vdot(around, other)])
        np.testing.assert_allclose(x.communicator.all_reduce(mine)[0], x.dot(back), rtol=1e-13)

    comm.virtual_ranks(ranks, run)


def test_ghost_cells_stay_within_a_group() -> None:
    def run() -> None:
        x = DistributedArray((8,), mask=[0, 0, 1, 1])
        x[:] = x.rank
        before, behind = x.ghost_cells(1, 1)
        assert (before.tolist(), behind.tolist()) == [([], [1.0]), ([0.0], []), ([], [3.0]), ([2.0], [])][
            x.rank
        ]

    comm.virtual_ranks(4, run)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("width", [3, 30_000])
def test_what_fails_leaves_nothing_under_way(ranks: int, width: int) -> None:
    """On all ranks, or on one while the others go on: what comes next has its own ghost cells."""
    a = np.random.default_rng(1).normal(size=(7, width))

    def run(failing: tuple[int, ...]) -> None:
        x = DistributedArray.to_dist(a)
        begin, end = x.layout.box[0]
        right = a[max(0, begin - 1) : end + 1]
        exchange = along_the_split(x.layout, 1, 1)
        assert exchange is not None
        for _ in range(5):
            if x.rank in failing:
                nothing = object()
                with pytest.raises(AttributeError):
                    joined(exchange, nothing, exchange.start(-x.local))
                with pytest.raises(AttributeError):
                    added(exchange, nothing, exchange.start_back(-right))
            else:
                joined(exchange, x.local, exchange.start(-x.local))
                added(exchange, right, exchange.start_back(-right))
            np.testing.assert_array_equal(x.add_ghost_cells(1, 1), right)

    for failing in ((0, 1, 2), (1,)):
        comm.virtual_ranks(ranks, run, failing)


def test_memory_is_used_again() -> None:
    pool.clear()
    x = pool.empty(HERE, (512, 1024), np.float32)
    assert x.flags.c_contiguous
    assert x.flags.writeable
    address, view = x.ctypes.data, x[3:]
    del x
    y = pool.empty(HERE, (512, 1024), np.float32)
    assert y.ctypes.data != address  # a view of the first is still there
    del view
    gc.collect()
    z = pool.empty(HERE, (1024, 256), np.float64)  # as many bytes
    assert z.ctypes.data == address
    assert z.dtype == np.float64
    assert pool.empty(HERE, (4,), np.float32).base is None  # small ones are NumPy's own
    del y, z
    pool.clear()


def test_memory_that_is_kept_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pool.clear()
    monkeypatch.setattr(pool, "MOST_KEPT", 3 << 20)
    arrays = [pool.empty(HERE, (1 << 20,), np.uint8) for _ in range(5)]
    blocks = [weakref.ref(x.base.base.block if x.base.base is not None else x.base.block) for x in arrays]
    arrays.clear()
    gc.collect()
    assert sum(block() is not None for block in blocks) == 3
    pool.clear()
    assert not any(block() is not None for block in blocks)
