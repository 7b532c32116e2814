"""Whole numbers at the boundary: zero outside where it is open, the other sign where it is antiperiodic."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import EVEN, ODD, Complex, Field, Integer, Lattice, Matrix

pytestmark = pytest.mark.lanes


def seen(values, axis, step, condition):
    """What a reader sees at X + step: NumPy's values of the sites there, times what crossing the edge gives."""
    n = values.shape[axis]
    crossed = (np.arange(n) + step) // n
    condition = condition if isinstance(condition, str) else condition.get(axis, "periodic")
    factor = {"open": crossed == 0, "antiperiodic": 1 - 2 * (crossed % 2)}.get(condition, np.ones(n, int))
    shape = [1] * values.ndim
    shape[axis] = n
    return np.roll(values, -step, axis) * np.asarray(factor, int).reshape(shape)


def numbers(extents, precision="float64"):
    bits = 50 if precision == "float64" else 24
    return np.random.default_rng(2).integers(-(2**bits), 2**bits, extents)


def topple():
    """The sandpile of Bak, Tang and Wiesenfeld: what falls over the edge is gone."""
    z = Field(Lattice(9, 7), Integer(), boundary="open")
    z[...] = 7
    new = z.like()

    @jali.site_function
    def fall(X, new, z):
        new[X] = z[X] - 4 * (z[X] // 4)
        for mu in X.directions():
            new[X] += z[X + mu] // 4 + z[X - mu] // 4

    expected, steps = np.full((9, 7), 7), 0
    while expected.max() >= 4:
        fall(new, z)
        z, new = new, z
        q = np.pad(expected // 4, 1)
        expected = expected % 4 + q[2:, 1:-1] + q[:-2, 1:-1] + q[1:-1, 2:] + q[1:-1, :-2]
        assert np.array_equal(z[...], expected)
        assert z.sum() == expected.sum()
        steps += 1
    return steps


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_sandpile_is_that_of_numpy(ranks):
    (steps,) = {*jali.virtual_ranks(ranks, topple)}
    assert steps > 10


@jali.site_function
def projected(X, out, count, psi, s, t):
    for mu in X.directions():
        out[X] += (s[X + mu] + t[X + mu]) * psi[X + mu].trace()
        count[X] += s[X + mu] * t[X + mu]


def with_spinors(ranks):
    """Fields of both kinds at the neighbours of other ranks, of which sums and products could travel."""
    lattice = Lattice(4, 6, grid=(ranks, 1))
    rng = np.random.default_rng(4)
    psi, out = Field(lattice, Matrix(3), boundary="antiperiodic"), Field(lattice, Complex())
    s, t, count = (Field(lattice, Integer(), boundary="open") for _ in range(3))
    psi[...] = rng.integers(-9, 9, psi.shape) * (1 + 2j)
    s[...], t[...] = rng.integers(-9, 9, (2, 4, 6))
    projected(out, count, psi, s, t)
    trace, a, b = np.trace(psi[...], axis1=2, axis2=3), s[...], t[...]
    expected = sum(
        (seen(a, axis, 1, "open") + seen(b, axis, 1, "open"))
        * (seen(trace.real, axis, 1, "antiperiodic") + 1j * seen(trace.imag, axis, 1, "antiperiodic"))
        for axis in range(2)
    )
    assert np.array_equal(out[...], expected)
    assert np.array_equal(
        count[...], sum(seen(a, axis, 1, "open") * seen(b, axis, 1, "open") for axis in range(2))
    )
    return out[...], count[...]


def test_items_of_whole_numbers_travel_as_they_are():
    ((out, count),) = jali.virtual_ranks(1, with_spinors, 1)
    for found in jali.virtual_ranks(2, with_spinors, 2):
        assert np.array_equal(found[0], out)
        assert np.array_equal(found[1], count)


@pytest.mark.parametrize("domain", [EVEN, ODD], ids=str)
def test_colours_and_sums_read_zero_outside(domain):
    s = Field(Lattice(4, 6), Integer(), boundary="open", precision="float32")
    s[...] = values = numbers((4, 6), "float32")

    @jali.site_function
    def across(X, s, total):
        total += s[X + X.directions()[0]] + s[X - X.directions()[1]]

    mine = np.indices((4, 6)).sum(axis=0) % 2 == (domain is ODD)
    expected = (seen(values, 0, 1, "open") + seen(values, 1, -1, "open"))[mine].sum()
    assert s.lattice.sum(across, s, over=domain) == expected
