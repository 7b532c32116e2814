"""Binding may be collective, so ranks bind and forget alike, whatever else one of them does with the same function."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import jali
from jali import comm
from jali.lattice import sites
from jali.lattice.domain import Colouring


@jali.site_function
def relax(X, f):
    mu = X.directions()[0]
    f[X] = 0.5 * f[X] + 0.25 * (f[X + mu] + f[X - mu])


THIRDS = Colouring(3, lambda x: x[0] % 3, "third")


def relaxed(rounds: int, ranks: comm.Communicator) -> np.ndarray:
    """Rank 1 makes launches that the others know nothing of."""
    alone = ranks.split(ranks.rank)
    f = jali.Lattice(9, 4, communicator=ranks).field(jali.Real())
    f[...] = np.random.default_rng(1).normal(size=(9, 4))
    for round_ in range(rounds):
        for colour in THIRDS:
            relax[colour](f)
            if ranks.rank == 1 and round_ < 2:
                relaxed(1, alone)
                gc.collect()
    return f[...]


@pytest.mark.parametrize("most", [1, 4, 256])
@pytest.mark.short(1)
def test_launches_of_one_rank_alone_let_no_other_forget(most, monkeypatch, use_settings):
    use_settings(watchdog=20)
    expected = relaxed(4, comm.current())
    monkeypatch.setattr(sites, "_MOST_BOUND", most)
    for found in jali.virtual_ranks(3, lambda: relaxed(4, comm.current())):
        assert np.array_equal(found, expected)


def test_a_lattice_forgets_the_oldest_launch(monkeypatch):
    monkeypatch.setattr(sites, "_MOST_BOUND", 4)
    lattice = jali.Lattice(4, 4)

    @jali.site_function
    def scale(X, f):
        f[X] = 2 * f[X]

    fields = [lattice.field(jali.Real()) for _ in range(6)]
    for field in fields:
        field[...] = 1
        scale(field)
    assert len(scale._bound) == len(scale._latest) == 4
    other = jali.Lattice(4, 4)
    g = other.field(jali.Real())
    g[...] = 1
    scale(g)
    assert len(scale._bound) == 5
    for field in fields:
        scale(field)
        assert np.all(field[...] == 4)
    assert len(scale._bound) == 5
    del field, fields, g
    gc.collect()
    assert len(scale._bound) == len(scale._latest) == 0
