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


def relaxed(alone: bool, rounds: int) -> np.ndarray:
    ranks = comm.current()
    if alone:
        lattice = jali.Lattice(
            9, 4, communicator=jali.comm.Communicator(jali._core.make_self_communicator(), 1)
        )
    else:
        lattice = jali.Lattice(9, 4)
    f = lattice.field(jali.Real())
    f[...] = np.random.default_rng(1).normal(size=(9, 4))
    for round_ in range(rounds):
        for colour in THIRDS:
            relax[colour](f)
            if ranks.rank == 1 and not alone and round_ < 2:  # launches that the others know nothing of
                relaxed(True, 1)
                gc.collect()
    return f[...]


@pytest.mark.parametrize("most", [1, 4, 256])
def test_launches_of_one_rank_alone_let_no_other_forget(most, monkeypatch, use_settings):
    use_settings(watchdog=20)
    expected = relaxed(True, 4)
    monkeypatch.setattr(sites, "_MOST_BOUND", most)
    for found in jali.virtual_ranks(3, relaxed, False, 4):
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
