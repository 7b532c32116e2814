"""Sums over sites: all kinds of values, several at once, per slice, over domains, and their exactness."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import compare_sums, random_field, where_colour

import jali
from jali import EVEN, ODD, SU, Colouring, Complex, Field, Lattice, Matrix, Real, Spinor, Vector

pytestmark = pytest.mark.lanes

LATTICE = Lattice(4, 6, 3, 2)


def test_real_sum():
    def body(J, X, a, total):
        total += a[X] * a[X + X.directions()[1]]

    compare_sums(body, 1, random_field(LATTICE, Real(), 1))


def test_complex_sum():
    def body(J, X, a, b, total):
        total += a[X].dot(b[X])

    compare_sums(body, 1, *(random_field(LATTICE, Spinor(3), k) for k in range(2)))


@pytest.mark.parametrize(
    "element", [Vector(3), Vector(2, kind="real"), Matrix(2, 3), Matrix(3), SU(2)], ids=str
)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_vector_and_matrix_sums(element, precision):
    def body(J, X, a, total):
        total += a[X]

    compare_sums(body, 1, random_field(LATTICE, element, 1, precision=precision))


def test_several_sums_of_different_kinds_in_one_loop():
    def body(J, X, a, m, number, phase, trace, matrix):
        number += a[X].norm2()
        phase += a[X]
        trace += (m[X] * m[X + X.directions()[0]]).trace().real
        matrix += m[X]

    compare_sums(body, 4, random_field(LATTICE, Complex(), 1), random_field(LATTICE, Matrix(2), 2))


def test_several_contributions_to_one_sum():
    def body(J, X, a, total):
        for mu in X.directions():
            total += a[X + mu]
        total -= 0.5 * a[X]

    compare_sums(body, 1, random_field(LATTICE, Real(), 1))


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("element", [Real(), Complex(), Vector(3)], ids=str)
def test_sum_per_slice(axis, element):
    def body(J, X, a, total):
        total += a[X]

    compare_sums(body, 1, random_field(LATTICE, element, 1), per=LATTICE.directions[axis])


def test_several_sums_per_slice():
    def body(J, X, a, total, norm):
        total += a[X]
        norm += a[X].norm2()

    compare_sums(body, 2, random_field(LATTICE, Matrix(2), 1), per=1)


@pytest.mark.parametrize("per", [(0, 2), (2, 0), (3, 1, 0), (1,), (0, 1, 2, 3)], ids=str)
@pytest.mark.parametrize("element", [Real(), Complex(), Matrix(2, 3)], ids=str)
def test_sum_per_slice_of_several_directions(per, element):
    def body(J, X, a, total, shifted):
        total += a[X]
        shifted += a[X + X.directions()[1]]

    compare_sums(body, 2, random_field(LATTICE, element, 1), per=per)
    lattice = Lattice(5, 3, 2, 7)
    directions = tuple(lattice.directions[axis] for axis in per)
    compare_sums(body, 2, random_field(lattice, element, 1, precision="float32"), per=directions)
    inside = where_colour(lattice, ODD)
    compare_sums(body, 2, random_field(lattice, element, 1), over=ODD, inside=inside, per=per)


def test_sums_per_slice_of_several_directions_have_the_same_bits_on_any_ranks():
    def of_ranks():
        lattice = Lattice(6, 5, 4)
        a = Field(lattice, Real())
        a[...] = np.random.default_rng(1).normal(size=lattice.extents)
        return lattice.sum(total_of, a, per=(2, 0)), lattice.sum(total_of, a, per=[0, 1, 2])

    ((alone, everything),) = jali.virtual_ranks(1, of_ranks)
    assert alone.shape == (4, 6)
    assert np.allclose(everything.sum(axis=1).T, alone, rtol=1e-13)
    for ranks in (2, 3, 5):
        for found in jali.virtual_ranks(ranks, of_ranks):
            assert np.array_equal(found[0], alone)
            assert np.array_equal(found[1], everything)


@pytest.mark.parametrize("extents", [(1,), (5,), (8,), (3, 3), (5, 7, 2), (2, 1, 2, 3, 2)], ids=str)
@pytest.mark.parametrize("domain", [EVEN, ODD], ids=str)
def test_sum_over_a_colour(extents, domain):
    lattice = Lattice(*extents)

    def body(J, X, a, total, count):
        total += a[X]
        count += 1

    inside = where_colour(lattice, domain)
    compare_sums(body, 2, random_field(lattice, Real(), 1), over=domain, inside=inside)
    compare_sums(body, 2, random_field(lattice, Real(), 1), over=domain, inside=inside, per=0)


def test_sum_over_one_of_five_colours():
    lattice = Lattice(5, 6)
    five = Colouring(5, lambda x: (x[0] + 2 * x[1]) % 5)

    def body(J, X, a, total):
        total += a[X]

    for domain in five:
        compare_sums(
            body, 1, random_field(lattice, Complex(), 1), over=domain, inside=where_colour(lattice, domain)
        )


def test_sum_without_fields_takes_the_lattice_it_is_called_on():
    @jali.site_function
    def coordinates(X, total, squares):
        total += X.coordinate(0)
        squares += X.coordinate(1) * X.coordinate(1)

    assert Lattice(4, 3).sum(coordinates) == (18.0, 20.0)


def test_result_is_a_plain_number_or_an_array():
    a, m = random_field(LATTICE, Real(), 1), random_field(LATTICE, Matrix(2), 1)

    @jali.site_function
    def f(X, a, total):
        total += a[X]

    assert type(LATTICE.sum(f, a)) is float
    assert type(LATTICE.sum(f, random_field(LATTICE, Complex(), 1))) is complex
    assert LATTICE.sum(f, m).shape == (2, 2)
    assert LATTICE.sum(f, m, per=3).shape == (2, 2, 2)
    assert LATTICE.sum(f, a, per=LATTICE.directions[1]).shape == (6,)


@jali.site_function
def total_of(X, a, total):
    total += a[X]


def test_sum_is_exact_where_plain_addition_is_not():
    """1e16 + 1 - 1e16, spread over the lattice: digits on a fixed grid lose none of them."""
    lattice = Lattice(8, 8, 8)
    a = Field(lattice, Real())
    values = np.ones((8, 8, 8))
    values[3, 4, 5], values[7, 0, 1] = 1e16, -1e16
    a[...] = values
    assert lattice.sum(total_of, a) == 510.0


def test_sum_agrees_with_correctly_rounded_sum():
    lattice = Lattice(16, 16, 8)
    a = Field(lattice, Real())
    rng = np.random.default_rng(5)
    values = rng.normal(size=(16, 16, 8)) * 10.0 ** rng.integers(-6, 7, (16, 16, 8))
    a[...] = values
    exact = math.fsum(values.ravel())
    assert lattice.sum(total_of, a) == pytest.approx(exact, rel=1e-15, abs=1e-15 * np.abs(values).max())


def test_fast_sum_agrees_to_rounding():
    lattice = Lattice(16, 16, 8)
    a = random_field(lattice, Real(), 6)
    assert lattice.sum(total_of, a, fast=True) == pytest.approx(lattice.sum(total_of, a), abs=1e-11)


@pytest.mark.parametrize("sites", [*range(1, 10), 1021, 1023, 1024, 1025, 2047, 4103])
def test_every_site_is_read_once_however_many_there_are(sites):
    lattice = Lattice(sites, lanes=1)
    a, copy = Field(lattice, Matrix(2)), Field(lattice, Matrix(2))
    numbers = 1.0 + np.arange(8 * sites).reshape(sites, 2, 2, 2)
    a[...] = numbers[..., 0] + 1j * numbers[..., 1]

    @jali.site_function
    def norm(X, a, total):
        total += a[X].norm2()

    @jali.site_function
    def copy_to(X, copy, a):
        copy[X] = a[X]

    copy_to(copy, a)
    np.testing.assert_array_equal(copy.local(), a.local())
    for fast in (False, True):
        assert lattice.sum(norm, a, fast=fast) == math.fsum((numbers**2).ravel())


def test_sum_does_not_depend_on_the_number_of_lanes():
    values = np.random.default_rng(7).normal(size=(4, 4, 8, 8))
    found = set()
    for lanes in (1, 2, 4, None):
        lattice = Lattice(4, 4, 8, 8, lanes=lanes)
        a = Field(lattice, Real())
        a[...] = values
        found.add(lattice.sum(total_of, a))
    assert len(found) == 1


def test_sum_may_be_taken_while_fields_are_written():
    a, b = (random_field(LATTICE, Real(), k) for k in range(2))
    expected = a[...] + 2 * b[...]

    @jali.site_function
    def step(X, a, b, factor, norm):
        a[X] += factor * b[X]
        norm += a[X].norm2()

    norm = LATTICE.sum(step, a, b, 2.0)
    assert np.allclose(a[...], expected, rtol=1e-14)
    assert norm == pytest.approx(np.sum(expected**2), rel=1e-13)


def test_sum_of_values_with_infinities_and_nan_is_not_a_number_in_disguise():
    lattice = Lattice(4, 4)
    for bad in (np.inf, np.nan):
        a = Field(lattice, Real())
        values = np.ones((4, 4))
        values[1, 2] = bad
        a[...] = values
        assert not math.isfinite(lattice.sum(total_of, a))


def test_sum_per_direction_that_does_not_exist_is_an_error():
    with pytest.raises(jali.LayoutError, match="direction 2, which a lattice of 2 dimensions does not have"):
        lattice = Lattice(4, 4)
        lattice.sum(total_of, Field(lattice, Real()), per=2)


@pytest.mark.parametrize("large", [1e10, 2.0**70, 1e23, 1e25, 1e30, 1e200])
def test_small_terms_beside_large_ones_are_kept_to_the_width_that_is_promised(large):
    f = Field(Lattice(5, 7), Real())
    f[...] = 0.0
    f[0, 0], f[2, 3], f[4, 6] = large, 1.0, -large
    assert abs(f.sum() - 1.0) <= 35 * 2.0**-80 * large
