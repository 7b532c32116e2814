"""Offsets of which numbers that are arguments decide: `X + k * mu`."""

import numpy as np
import pytest
from support import random_field

import jali
from jali import EVEN, Complex, Field, Lattice, LayoutError, Real, TraceError
from jali.codegen.stage_cache import COUNTS

EXTENTS = (5, 3, 4)


@jali.site_function
def shifted(X, out, f, k, mu):
    out[X] = f[X + k * mu] + k * f[X - (2 * k + 1) * mu]


@jali.site_function
def correlate(X, f, k, total):
    mu = X.directions()[0]
    total += f[X] * f[X + mu * k]


def reference(values, k, mu):
    return np.roll(values, -k, mu) + k * np.roll(values, 2 * k + 1, mu)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_any_number_of_steps_in_any_direction(precision):
    lattice = Lattice(*EXTENTS)
    f = random_field(lattice, Complex(), 1, precision=precision)
    out, values = f.like(), f[...]
    for mu in lattice.directions:
        for k in (0, 1, 2, -1, -3, 7, np.int64(4)):
            shifted(out, f, k, mu)
            assert np.allclose(out[...], reference(values, int(k), int(mu)), rtol=1e-5, atol=1e-5)


def test_sums_of_products_are_the_two_point_function():
    lattice = Lattice(7, 4)
    f = random_field(lattice, Real(), 2)
    v = f[...]
    for k in [*range(8), 3, 1]:
        assert np.isclose(lattice.sum(correlate, f, k), (v * np.roll(v, -k, 0)).sum())
    per = lattice.sum(correlate, f, k=2, per=1)
    assert np.allclose(per, (v * np.roll(v, -2, 0)).sum(0))


def test_quotients_remainders_and_choices_of_whole_numbers_are_steps():
    lattice = Lattice(*EXTENTS)
    f = random_field(lattice, Complex(), 1)
    out, values = f.like(), f[...]

    @jali.site_function
    def moved(X, out, f, k, mu):
        out[X] = f[X + mu * jali.where((k > 2) & (k != 4), k % 4 - 2, -(k // 3))]

    for k in range(-5, 8):
        moved(out, f, k, lattice.directions[0])
        steps = k % 4 - 2 if k > 2 and k != 4 else -(k // 3)
        assert np.array_equal(out[...], np.roll(values, -steps, 0)), k


def test_other_numbers_compile_nothing():
    lattice = Lattice(9, 5)
    f = random_field(lattice, Real(), 3)
    for k in (3, -3):
        lattice.sum(correlate, f, k)
    made = COUNTS["binary"].made
    for k in (2, 4, -2, 1):
        lattice.sum(correlate, f, k)
    assert COUNTS["binary"].made == made
    before = {name: count.made for name, count in COUNTS.items()}
    for k in (2, 4, -2, 1):
        lattice.sum(correlate, f, k)
    assert {name: count.made for name, count in COUNTS.items()} == before


def test_on_a_colour_across_boundaries_and_written():
    @jali.site_function
    def f(X, out, a, k):
        out[X + k * X.directions()[0]] = a[X]

    lattice = Lattice(4, 6)
    a, out = Field(lattice, Real(), boundary="antiperiodic"), Field(lattice, Real())
    periodic = out.like()
    a[...] = periodic[...] = values = np.random.default_rng(1).normal(size=(4, 6))
    parity = np.add.outer(np.arange(4), np.arange(6)) % 2
    for k in (1, 2, -1):
        out[...] = 0.0
        f[EVEN](out, periodic, k)
        assert np.array_equal(out[...], np.roll(np.where(parity == 0, values, 0), k, 0))
    x = np.arange(4)[:, None]
    shifted_out = out.like()
    for k in (1, 3):
        shifted(shifted_out, a, k, lattice.directions[0])
        signs = np.where(x + k > 3, -1, 1), np.where((x - 2 * k - 1) // 4 % 2, -1, 1)
        expected = signs[0] * np.roll(values, -k, 0) + k * signs[1] * np.roll(values, 2 * k + 1, 0)
        assert np.allclose(shifted_out[...], expected)


def test_in_methods_and_beside_fixed_offsets():
    class Model:
        def __init__(self, phi):
            self.phi = phi

        @jali.site_function
        def two(self, X, out, k):
            mu, nu = X.directions()
            out[X] = self.phi[X + k * mu - nu] - self.phi[X + mu - nu]

    phi = random_field(Lattice(4, 5), Real(), 3)
    out, model, v = phi.like(), Model(phi), phi[...]
    for k in (1, 2, 0):
        model.two(out, k)
        assert np.allclose(out[...], np.roll(v, (-k, 1), (0, 1)) - np.roll(v, (-1, 1), (0, 1)))


L = Lattice(4, 4)
R = Field(L, Real())


@pytest.mark.parametrize(
    ("step", "k", "message"),
    [
        (lambda X, a, k: X.coordinate(0), 1, "not by those of the site"),
        (lambda X, a, k: a[X], 1, "known while tracing"),
        (lambda X, a, k: k, 1.0, "and k is a real: pass an int, not a float"),
        (lambda X, a, k: k, R.lattice.scalar(2), "and k is a real: pass an int, not a float, a Scalar"),
        (lambda X, a, k: k, np.array([1, 2]), r"and k is a real Vector\(2\): take one of its numbers"),
        (lambda X, a, k: k[1], np.array([1.0, 2.0]), r"and k\[1\] is a real: pass an int"),
        (lambda X, a, k: k[1], [1, 2.5], r"and k\[1\] is a real: pass an int"),
        (lambda X, a, k: 2.5 * k, 1, "not by a real"),
        (
            lambda X, a, k: jali.where(2.5 * k < 1, k, 1),
            1,
            "made of whole numbers.*; mul of a real is none of these",
        ),
        (lambda X, a, k: k, 1 << 30, "offsets go up to"),
    ],
)
def test_what_is_no_number_of_steps_is_an_error(step, k, message):
    @jali.site_function
    def f(X, out, a, k):
        out[X] = a[X + step(X, a, k) * X.directions()[0]]

    with pytest.raises(TraceError, match=rf"{message}[\s\S]*test_given_offsets.py"):
        f(Field(L, Real()), R, k)


@pytest.mark.parametrize(
    "make", [list, tuple, np.array, lambda k: [np.array(k[0]), k[1]]], ids=["list", "tuple", "array", "0-d"]
)
def test_numbers_in_lists_and_arrays(make):
    @jali.site_function
    def f(X, out, a, k, rest):
        mu, nu = X.directions()
        out[X] = rest[0] * a[X + k[0] * mu - 2 * k[1] * nu]

    a = random_field(Lattice(4, 5), Real(), 3)
    out, v = a.like(), a[...]
    for k in ((0, 1), (2, 1), (0, 1), (-1, 3)):
        f(out, a, make(k), [2.0])
        assert np.array_equal(out[...], 2 * np.roll(v, (-k[0], 2 * k[1]), (0, 1)))
    steps = np.array([1, 0])
    for step in (1, 2, 3):  # an array that changes
        steps[0] = step
        f(out, a, steps, [1.0])
        assert np.array_equal(out[...], np.roll(v, -step, 0))


def on_ranks(ranks):
    lattice = Lattice(12, 5, grid=(ranks, 1))
    f = random_field(lattice, Real(), 1)
    out, found = f.like(), []
    for k in (1, -1, 2, 0, 1):
        shifted(out, f, k, lattice.directions[k == 2])
        found.append(out[...])
        found.append(lattice.sum(correlate, f, k))
    return found


@pytest.mark.parametrize("ranks", [2, 3])
def test_on_several_ranks(ranks):
    (alone,) = jali.virtual_ranks(1, on_ranks, 1)
    for found in jali.virtual_ranks(ranks, on_ranks, ranks):
        assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))


def too_far():
    lattice = Lattice(12, 5, grid=(3, 1))
    with pytest.raises(LayoutError, match="5"):
        lattice.sum(correlate, Field(lattice, Real()), 5)
    return lattice.sum(correlate, Field(lattice, Real()), 4)


def test_steps_beyond_the_smallest_part_are_an_error_on_every_rank():
    assert jali.virtual_ranks(3, too_far) == [0.0] * 3
