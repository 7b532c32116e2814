"""Directions whose half is odd hold lanes in pairs, shifted against each other: everything that looks at places gives the same bits."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import EVEN, Colouring
from jali.codegen import target
from jali.gauge import SU, GaugeField, plaquettes, sweep

pytestmark = pytest.mark.lanes


@jali.site_function
def places(X, out, rng):
    index = 0
    for mu in reversed(X.directions()):
        index = index * X.extent(mu) + X.coordinate(mu)
    out[X] = index + rng.uniform(X)


@jali.site_function
def moved(X, out, x):
    last, *others = reversed(X.directions())
    total = 2 * x[X + last] - x[X - 3 * last]
    for mu in others:
        total = total + x[X + mu + last] - 0.25 * x[X - 2 * mu] + x[X + 2 * mu - last]
    out[X] = total


@jali.site_function
def weighted(X, x, total):
    total += x[X] * X.coordinate(X.directions()[-1])


@jali.site_function
def doubled(X, x):
    x[X] = 2 * x[X]


def results(extents, conditions, lanes=None, grid=None):
    """Bytes of everything, and the number of lanes."""
    lattice = jali.Lattice(*extents, lanes=lanes, grid=grid)
    out = []
    rng = jali.Random(5)
    x = lattice.field(jali.Complex(), boundary=conditions)
    y = x.like()
    real = lattice.field(jali.Real())
    places(real, rng)
    places[EVEN](real, rng)
    out.append(real[...].tobytes())
    x[...] = np.random.default_rng(1).normal(size=(*extents, 2)).view(complex)[..., 0]
    moved(y, x)
    out.append(y[...].tobytes())
    colours = Colouring(3, lambda c: sum(c) % 3)
    doubled[colours[1]](y)
    out += [y[...].tobytes(), y[tuple(slice(1, n - 1) for n in extents)].tobytes()]
    for direction in (None, *lattice.directions):
        out.append(np.asarray(lattice.sum(weighted, y, per=direction)).tobytes())
    single = lattice.field(jali.Complex(), precision="float32")  # another number of lanes, perhaps
    single[...] = y[...].astype(np.complex64)
    wide = y.like()
    wide.assign(single)
    out.append(wide[...].tobytes())
    if len(extents) == 4:
        U = GaugeField(lattice, SU(2)).hot_start(seed=3)
        sweep(U, 2.2, rng, overrelaxation=1)
        out.append(np.asarray(plaquettes(U)).tobytes())
    return lattice.layout("float64").lanes, out


CASES = [
    ((6, 6, 6, 6), ["antiperiodic", "periodic", "antiperiodic", "open"]),
    ((10, 6), ["antiperiodic", "antiperiodic"]),
    ((6, 4, 10), ["periodic", "open", "antiperiodic"]),
]


@pytest.mark.short(1)
@pytest.mark.parametrize(("extents", "conditions"), CASES)
def test_shifted_lanes_give_the_bits_of_single_ones(extents, conditions):
    expected = results(extents, conditions, lanes=1)[1]
    for lanes in (2, 4, 8, None):
        assert results(extents, conditions, lanes)[1] == expected, lanes


def test_eight_lanes_fit_into_six_to_the_fourth():
    assert results((6, 6, 6, 6), ["periodic"] * 4, 8)[0] == min(8, target.host().lanes("float64"))


@pytest.mark.parametrize("grid", [(2, 1, 1, 1), (1, 1, 1, 2), (1, 3, 1, 1)])
def test_ranks_with_shifted_lanes_give_the_bits_of_one(grid):
    extents, conditions = CASES[0]
    expected = results(extents, conditions)[1]
    ranks = int(np.prod(grid))
    for _, found in jali.virtual_ranks(ranks, results, extents, conditions, None, grid):
        assert found == expected
