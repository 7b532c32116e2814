"""What repetitions of a graph leave is read one after the other, while later ones run, on devices and on the host."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import TWO_DEVICES, use_fake_gpus
from test_graphs import scale, size

import jali
from jali import Field, Lattice, Real
from jali.errors import RecordingError, StorageError
from jali.lattice.graphs import Graph


def counting(lattice, kept, storage=None):
    """A graph whose results are a number, an array, a condition, a complex number and a constant, other ones in each repetition."""
    f = Field(lattice, Real(), storage=storage)
    f[...] = 1.0
    number, array = lattice.scalar(1.0), lattice.scalars(np.array([1.0, 2.0, 3.0]))

    def step():
        scale(f, 2.0)
        number.assign(number + 1.0)
        array.assign(array * 2.0)
        total = lattice.sum(size, f, wait=False)
        return total, array * 1.0, total > 100.0, total + 1j * number, 7.0

    return Graph(step, lattice, kept)


def expected(k, volume):
    total = volume * 4.0**k
    return total, [2.0**k, 2.0 * 2**k, 3.0 * 2**k], total > 100, total + 1j * (k + 1), 7.0


@pytest.mark.parametrize("on_host", [True, False])
def test_each_repetition_is_read_in_its_turn(on_host, device):
    graph = counting(Lattice(4, 2, device="cpu" if on_host else device), 3)
    graph.run(2)
    for k in range(1, 12):
        total, array, above, number, constant = graph.kept.next()
        assert (total, array.tolist(), above, number, constant) == expected(k, 8)
        graph.run()
    graph.run()
    with pytest.raises(RecordingError, match="keeps the results of 3 repetitions, and none of these"):
        graph.run()
    graph.kept.forget()
    graph.run()
    assert graph.kept.next()[0] == graph.read()[0]


def test_values_that_a_storage_cannot_hold_are_told_with_their_repetition(device):
    """65504 is the largest number of float16."""
    for kind in ("cpu", device):
        graph = counting(Lattice(4, 2, device=kind), 2, "float16")
        for k in range(1, 17):
            graph.run()
            if k < 16:
                assert graph.kept.next()[0] == expected(k, 8)[0]
        with pytest.raises(StorageError, match="8 sites were given values that the storage"):
            graph.kept.next()


@pytest.mark.parametrize("on_host", [True, pytest.param(False, marks=TWO_DEVICES)])
def test_what_one_rank_has_counted_is_told_on_all(on_host, monkeypatch):
    if not on_host:
        use_fake_gpus(monkeypatch, 2)

    def run():
        lattice = Lattice(4, 2, device="cpu" if on_host else "cuda")
        f = Field(lattice, Real(), storage="float16")
        f[...] = 1.0
        f[3, 1] = 30_000.0  # of the last rank

        def step():
            scale(f, 2.0)
            return lattice.sum(size, f, wait=False)

        graph = Graph(step, lattice, 2)
        graph.run(2)
        assert graph.kept.next() == [7 * 4.0 + 60_000.0**2]
        with pytest.raises(StorageError, match="1 site was given values"):
            graph.kept.next()
        return True

    assert jali.virtual_ranks(2, run) == [True, True]


def test_more_numbers_than_a_block_of_them_holds(device):
    """As of many iterations, or of many members of a batch."""
    lattice = Lattice(4, device=device)
    one = lattice.scalars(np.arange(4096.0).reshape(64, 64))

    def step():
        one.assign(one + 1.0)
        return [one * float(k) for k in range(3)]

    graph = Graph(step, lattice, 2)
    graph.run(2)
    for repetition in (1, 2):
        for k, found in enumerate(graph.kept.next()):
            assert np.array_equal(found, k * (np.arange(4096.0).reshape(64, 64) + repetition))
