"""What a storage cannot hold: counted, and told once where the host looks, on every rank."""

from __future__ import annotations

import gc
import time

import numpy as np
import pytest

import jali
from jali import Field, Hermitian, Lattice, Real, StorageError
from jali.comm.virtual import virtual_ranks
from jali.lattice.overflow import MOST_LEFT

pytestmark = pytest.mark.lanes

LOSSY = ["float32", "float16", "bfloat16", "fixed16", "fixed8", "float16-scaled"]


@jali.site_function
def overflow(X, y, limit):
    y[X] = jali.where(X.coordinate(X.directions()[0]) < limit, 1e39, 1.0)


@jali.site_function
def overflow_and_sum(X, y, limit, total):
    y[X] = jali.where(X.coordinate(X.directions()[0]) < limit, 1e39, 1.0)
    total += 1.0


@pytest.mark.short(2)
@pytest.mark.parametrize("storage", LOSSY)
def test_values_that_cannot_be_held_are_an_error_when_the_host_looks(storage):
    lattice = Lattice(4, 6)
    y = Field(lattice, Real(), storage=storage)
    overflow(y, 0)
    assert np.all(y[...] == 1.0)
    overflow[jali.EVEN](y, 2)
    with pytest.raises(StorageError, match="6 sites.*overflow"):
        y[0, 0]
    overflow(y, 0)
    assert np.all(y[...] == 1.0)  # told once
    with pytest.raises(StorageError, match="12 sites"):
        lattice.sum(overflow_and_sum, y, 2)
    with pytest.raises(StorageError, match="setting .* from Python"):
        y[1, 1] = 1e39
    other = Field(lattice, Real())
    other[2, 3] = -1e39
    with pytest.raises(StorageError, match="1 site .*assigning"):
        y.assign(other).local()


@jali.site_function
def overflow_with(X, y, x, limit):
    y[X] = jali.where(X.coordinate(X.directions()[0]) < limit, 1e39, x[X])


def drop_launches_and_look(device):
    lattice = Lattice(4, 6, device=device)
    y, other = Field(lattice, Real(), storage="float16"), Field(lattice, Real())

    overflow_with(y, Field(lattice, Real()), 2)  # a field that is read goes, and its launch with it
    with pytest.raises(StorageError, match="12 sites.*overflow_with"):
        y[0, 0]
    overflow.bind(y, 1)()  # the launch alone
    with pytest.raises(StorageError, match="6 sites.*overflow"):
        y.local()
    overflow(Field(lattice, Real(), storage="float16"), 3)  # the field that was written
    with pytest.raises(StorageError, match="18 sites.*overflow"):
        other[0, 0]
    other[...] = 1e39
    Field(lattice, Real(), storage="float16").assign(other)
    with pytest.raises(StorageError, match="24 sites.*assigning"):
        other.local()
    for _ in range(200):  # more than are kept one by one
        overflow_with(y, Field(lattice, Real()), 1)
        overflow(Field(lattice, Real(), storage="float16"), 1)
    with pytest.raises(StorageError, match=f"{2 * 200 * 6} sites.*overflow"):
        y[0, 0]
    assert y[3, 3] == other.like()[3, 3] == 0  # told once


def test_overflows_of_dropped_launches_are_reported_at_the_next_read():
    drop_launches_and_look("cpu")


def test_counts_that_are_left_are_bounded():
    lattice = Lattice(4, 6)
    y = Field(lattice, Real(), storage="float16")
    for _ in range(300):
        overflow_with(y, Field(lattice, Real()), 1)
    assert len(y.overflow) + len(lattice.left.take()) < 2 * MOST_LEFT


def test_what_a_dropped_launch_of_one_rank_could_not_store_is_an_error_on_all():
    def body():
        lattice = Lattice(4, 4, grid=(2, 1))
        y = Field(lattice, Real())
        overflow(Field(lattice, Real(), storage="float16"), 1)
        with pytest.raises(StorageError, match="4 sites"):
            for _ in range(
                100
            ):  # the thread of the other rank may hold the field for a moment, or a cycle of frames
                gc.collect()
                y[3, 3]
                time.sleep(0.01)
        return y[3, 3]

    assert virtual_ranks(2, body) == [0.0, 0.0]


def test_a_value_that_one_rank_cannot_store_is_an_error_on_all():
    def body():
        lattice = Lattice(4, 4, grid=(2, 1))
        y = Field(lattice, Real(), storage="float16")
        overflow(y, 1)
        with pytest.raises(StorageError, match="4 sites"):
            y[3, 3]
        with pytest.raises(StorageError, match="4 sites"):
            lattice.sum(overflow_and_sum, y, 1)
        return y[3, 3]

    assert virtual_ranks(2, body) == [1.0, 1.0]


def test_copies_tell_what_could_not_be_stored():
    lattice = Lattice(4, 6)
    huge = Field(lattice, Real())
    huge[0, 0] = 1e39

    @jali.site_function
    def copied(X, out, f):
        out[X] = f[X]

    for storage in ("fixed16", "float16"):
        for take in (
            lambda f: f.copy(),
            lambda f: f.astype("float32"),
            lambda f: Field(lattice, Real()).assign(f),
            lambda f: f.like(storage="float32").assign(f).copy(),
        ):
            f = Field(lattice, Real(), storage=storage)
            copied(f, huge)
            other = take(f)
            for _ in range(100):
                other.assign(f)
            assert len(other.overflow) < 4  # one for each way that values came
            for field in (other, f):  # both hold what is wrong
                with pytest.raises(StorageError):
                    field[0, 0]
                assert np.isfinite(field[1, 0])


@jali.site_function
def norm2_of(X, y, total):
    total += y[X] * y[X]


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_that_stay_tell_what_their_call_or_an_earlier_one_could_not_store(ranks):
    def body():
        lattice = Lattice(4, 6, grid=(ranks, 1))
        y, x = Field(lattice, Real(), storage="float16"), lattice.scalar(0.0)
        for made in (
            lambda: float(lattice.sum(overflow_and_sum, y, 1, wait=False)),
            lambda: bool(lattice.sum(overflow_and_sum, y, 1, wait=False) * 2 > 3),
            lambda: float(x.assign(lattice.sum(overflow_and_sum, y, 1, wait=False))),
            lambda: (overflow(y, 1), float(lattice.sum(norm2_of, y, wait=False))),
        ):
            with pytest.raises(StorageError, match="6 sites.*overflow"):
                made()
        assert float(lattice.sum(overflow_and_sum, y, 0, wait=False)) == 24.0  # told once
        if ranks > 1 and lattice.gpu is not None:
            return y[3, 3]  # no graphs there
        for sites, run in (
            (12, lambda g: g.run(2)),
            (6, lambda g: g.run_until(lambda: g.result > 30, 2, check_interval=1)),
        ):
            graph = jali.graph(lambda: lattice.sum(overflow_and_sum, y, 1, wait=False), lattice)
            with pytest.raises(StorageError, match=f"{sites} sites.*overflow_and_sum"):
                run(graph)
                graph.read()
        return y[3, 3]

    assert virtual_ranks(ranks, body) == [1.0] * ranks


def test_a_copy_does_not_count_twice():
    lattice = Lattice(4, 6)
    y = Field(lattice, Real(), storage="float16")
    overflow(y, 1)
    copy = y.copy()
    del y
    with pytest.raises(StorageError, match="6 sites"):
        copy[0, 0]


@pytest.mark.parametrize("storage", ["float32", "float16", "bfloat16"])
def test_numbers_of_python_that_float32_cannot_hold_are_an_error_on_every_rank(storage):
    def body():
        lattice = Lattice(4, 6, grid=(2, 1))
        y = Field(lattice, Real(), precision="float32", storage=storage)
        y[...] = np.inf  # can be held
        with pytest.raises(StorageError, match="too large for float32"):
            y[0, 0] = 1e39
        with pytest.raises(StorageError, match="too large for float32"):
            y.set_local(np.full(lattice.local_extents, -1e300))
        return float(y[0, 0])

    assert virtual_ranks(2, body) == [np.inf] * 2


def test_what_one_rank_cannot_store_is_an_error_on_every_rank():
    """Of an assignment between fields of other layouts, and of a rank's own box."""

    def body():
        lattice = Lattice(4, 6, grid=(2, 1))
        y, other = Field(lattice, Real(), precision="float32", storage="float16"), Field(lattice, Real())
        other[...] = 1.0
        other[0, 3] = 1e6
        with pytest.raises(StorageError, match="1 site was given values .* by assigning"):
            y.assign(other).local()
        mine = np.full(lattice.local_extents, 1.0 if lattice.rank else 1e6)
        with pytest.raises(StorageError, match="12 sites were given values .* by setting"):
            y.set_local(mine)
        y[...] = 2.0
        return y.norm2()

    assert virtual_ranks(2, body) == [96.0, 96.0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_sum_over_what_an_earlier_call_could_not_store_is_an_error(ranks):
    def body():
        lattice = Lattice(4, 6, grid=(ranks, 1))
        y, other = Field(lattice, Real(), storage="float16"), Field(lattice, Real())
        other[...] = 2.0
        overflow(y, 1)
        assert lattice.sum(norm2_of, other) == 4 * 24  # has nothing to do with it
        copy = y.astype("float64")
        for field in (y, copy):
            with pytest.raises(StorageError, match="6 sites.*overflow"):
                lattice.sum(norm2_of, field)
            lattice.sum(norm2_of, field)  # told once
        overflow(y, 0)
        return lattice.sum(norm2_of, y)

    assert virtual_ranks(ranks, body) == [24.0] * ranks


def test_matrices_of_independent_reals_are_counted_once_a_site():
    lattice = Lattice(4, 3)
    a = np.zeros((4, 3, 3, 3)) + np.eye(3)
    a[1, 2] = [[1e6, 1e6, 0], [1e6, 1, 0], [0, 0, 1]]
    wide, h = Field(lattice, Hermitian(3)), Field(lattice, Hermitian(3), storage="float16")
    wide[...] = a
    h[...] = 1.0 * wide
    with pytest.raises(StorageError, match="1 site"):
        h[0, 0]
