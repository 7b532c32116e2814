"""Lattices of 1 to 8 dimensions, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import EVEN, ODD, Field, Lattice
from jali.comm import virtual_ranks

EXTENTS = (4, 3, 2, 4, 2, 6, 2, 3)


@jali.site_function
def laplace(X, out, f):
    total = -2 * len(X.directions()) * f[X]
    for mu in X.directions():
        total = total + f[X + mu] + f[X - mu]
    out[X] = total


@jali.site_function
def far(X, out, f):
    there = X
    for k, mu in enumerate(X.directions()):
        there = there + (mu if k % 2 else -mu)
    out[X] = f[there]


@jali.site_function
def where(X, out):
    index = 0
    for mu in X.directions():
        index = index * X.extent(mu) + X.coordinate(mu)
    out[X] = index


@jali.site_function
def all_of(X, f, total):
    total += f[X]


@jali.site_function
def drawn(X, out, rng):
    out[X] = rng.uniform(X)


def everything(extents, **options):
    """What site functions make, and one sum."""
    lattice = Lattice(*extents, **options)
    f = Field(lattice, jali.Real())
    out = f.like()
    f[...] = np.arange(np.prod(extents), dtype=float).reshape(extents) ** 2 % 17
    found = []
    laplace(out, f)
    found.append(out[...])
    far(out, f)
    found.append(out[...])
    laplace[EVEN](out, f)
    far[ODD](out, f)
    found.append(out[...])
    where(out)
    found.append(out[...])
    total = lattice.sum(all_of, f)
    drawn(out, jali.Random(3))
    found.append(out[...])
    return found, total


@pytest.mark.short(2)
@pytest.mark.parametrize("ndim", range(1, 9))
def test_every_number_of_dimensions_is_right(ndim):
    extents = EXTENTS[:ndim]
    found, total = everything(extents)
    f = np.arange(np.prod(extents), dtype=float).reshape(extents) ** 2 % 17
    shifted = sum(np.roll(f, s, d) for d in range(ndim) for s in (1, -1))
    far_away = f
    for d in range(ndim):
        far_away = np.roll(far_away, -1 if d % 2 else 1, d)
    even = np.indices(extents).sum(axis=0) % 2 == 0
    np.testing.assert_array_equal(found[0], shifted - 2 * ndim * f)
    np.testing.assert_array_equal(found[1], far_away)
    np.testing.assert_array_equal(found[2], np.where(even, found[0], far_away))
    np.testing.assert_array_equal(found[3], np.arange(f.size).reshape(extents))
    assert total == f.sum()
    assert len(np.unique(found[4])) == f.size

    again, total_again = everything(extents, lanes=1)
    assert [a.tobytes() for a in again] == [b.tobytes() for b in found]
    assert total_again == total


@jali.site_function
def diagonal(X, out, f):
    Y = X
    for mu in X.directions():
        Y = Y + mu
    out[X] = f[Y]


@pytest.mark.parametrize("ndim", [5, 6, 7, 8])
@pytest.mark.parametrize("boundary", ["antiperiodic", "open"])
def test_a_diagonal_across_all_boundaries_is_right(ndim, boundary):
    extents = (4, 6, 4, 2, 4, 2, 4, 2)[:ndim]
    lattice = jali.Lattice(*extents)
    f, out = (jali.Field(lattice, jali.Real(), boundary=boundary) for _ in range(2))
    values = np.random.default_rng(1).normal(size=extents)
    f[...] = values
    diagonal(out, f)
    for d in range(ndim):
        values = np.roll(values, -1, d)
        values[(slice(None),) * d + (-1,)] *= -1 if boundary == "antiperiodic" else 0
    np.testing.assert_array_equal(out[...], values)


@pytest.mark.parametrize("ndim", [5, 6, 7, 8])
def test_ranks_split_any_of_them(ndim):
    extents = EXTENTS[:ndim]
    found, total = everything(extents)
    whole = [a.tobytes() for a in found]
    grid = [1] * ndim
    grid[1] = 3
    grid[ndim - 1] = 2
    for ranks, chosen in ((2, None), (6, tuple(grid))):
        for again, total_again in virtual_ranks(ranks, everything, extents, grid=chosen):
            assert [a.tobytes() for a in again] == whole
            assert total_again == total
