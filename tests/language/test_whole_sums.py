"""Sums of whole numbers are sums of doubles in either precision: float32 rounds none of them on the way."""

from __future__ import annotations

import numpy as np
import pytest
from support import where_colour

import jali
from jali import ALL, EVEN, ODD, Complex, Field, Integer, Lattice, ParameterError, Real

pytestmark = pytest.mark.lanes

EXTENTS = [(1,), (5, 7), (4, 6, 2), (16, 8)]
BINS = 3


def whole_field(extents, seed=1, **options):
    """A field of whole numbers of all 32 bits, most of which are no floats of 32 bits."""
    field = Field(Lattice(*extents, **options), Integer(), precision="float32")
    values = np.random.default_rng(seed).integers(-(2**31), 2**31, size=extents)
    field[...] = values
    return field, values


@jali.site_function
def total_of(X, s, total):
    total += s[X]


@jali.site_function
def gathered(X, s, f, z, several, mixed, phase, constant, counts):
    several += s[X]
    several += s[X]  # two terms, which 32 bits could not hold together
    several += s[X + X.directions()[0]]
    mixed += f[X]
    mixed += s[X]
    mixed += 0.5
    phase += s[X]
    phase += z[X]
    constant += 2**24 + 1
    counts[s[X] % BINS] += s[X]
    counts[0] += f[X]
    counts[1] += 2**24 + 1


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("domain", [ALL, EVEN, ODD], ids=str)
@pytest.mark.parametrize("fast", [False, True])
def test_a_sum_is_exact(extents, domain, fast):
    s, values = whole_field(extents)
    chosen = where_colour(s.lattice, domain)
    assert s.lattice.sum(total_of, s, over=domain, fast=fast) == values[chosen].sum()
    last = len(extents) - 1
    slices = s.lattice.sum(total_of, s, per=last, over=domain, fast=fast)
    assert np.array_equal(slices, np.where(chosen, values, 0).sum(axis=tuple(range(last))))


@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("fast", [False, True])
def test_terms_meet_as_doubles(extents, fast):
    s, values = whole_field(extents)
    lattice, volume = s.lattice, values.size
    f, z = Field(lattice, Real(), precision="float32"), Field(lattice, Complex(), precision="float32")
    f[...], z[...] = 0.25, 0.5 + 2j
    several, mixed, phase, constant, counts = lattice.sum(gathered, s, f, z, bins=BINS, fast=fast)
    assert several == 3 * values.sum()
    assert mixed == values.sum() + 0.75 * volume
    assert phase == values.sum() + (0.5 + 2j) * volume
    assert constant == (2**24 + 1) * volume
    expected = np.array([values[values % BINS == k].sum() for k in range(BINS)], float)
    expected[0] += 0.25 * volume
    expected[1] += (2**24 + 1) * volume
    assert np.array_equal(counts, expected)


def test_whole_fields_are_summed_exactly():
    s, values = whole_field((5, 7))
    assert s.sum() == values.sum()
    assert s.sum(fast=True) == values.sum()
    assert s.mean() == values.mean()
    assert (s // 3).sum() == (values // 3).sum()
    s[...] = 16777217
    assert s.sum() == 35 * 16777217
    assert s.mean() == 16777217


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_agree_with_numpy(ranks):
    def sums():
        s, values = whole_field((6, 5, 3))
        found = s.lattice.sum(total_of, s, over=EVEN)
        return found == values[where_colour(s.lattice, EVEN)].sum()

    assert all(jali.virtual_ranks(ranks, sums))


def test_labels_that_are_of_no_entry_are_counted_as_ever():
    s, _ = whole_field((5, 7))
    s[...] = 7

    @jali.site_function
    def count(X, s, counts):
        counts[s[X]] += 1

    with pytest.raises(ParameterError, match="35 labels of counts"):
        s.lattice.sum(count, s, bins=7)
    assert s.lattice.sum(count, s, bins=8).tolist() == [0] * 7 + [35]


def test_block_sums_of_several_whole_terms_do_not_wrap():
    fine, coarse = Lattice(4, 6), Field(Lattice(2, 2), Real(), precision="float32")
    s = Field(fine, Integer(), precision="float32")
    s[...] = 2**30

    @jali.site_function
    def twice(X, s, total):
        total += s[X]
        total += s[X]

    jali.block_sums(twice, s, onto=coarse)
    assert np.all(coarse[...] == 12.0 * 2**30)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_block_sums_onto_whole_fields_stay_whole(precision):
    coarse = Field(Lattice(2, 2), Integer(), precision=precision)
    s = Field(Lattice(4, 6), Integer(), precision=precision)
    s[...] = values = np.random.default_rng(3).integers(-(2**26), 2**26, (4, 6))

    @jali.site_function
    def twice(X, s, total):
        total += s[X]
        total += 2 * s[X] + 1

    jali.block_sums(twice, s, onto=coarse)
    assert np.array_equal(coarse[...], (3 * values + 1).reshape(2, 2, 2, 3).sum(axis=(1, 3)))


@pytest.mark.parametrize(
    ("precision", "number"), [("float64", 94906265), ("float32", 2**31 - 1), ("float32", -70001)]
)
def test_norms_and_inner_products_are_those_of_float64(precision, number):
    lattice = jali.Lattice(5, 7)
    s, t = (lattice.field(jali.Integer(), precision=precision) for _ in range(2))
    s[...] = number
    t[...] = 3
    t[2, 3] = -1
    assert s.norm2() == s.inner(s) == 35 * float(number) ** 2
    assert s.inner(t) == number * (34 * 3 - 1)
    assert (s - t).norm2() == 34 * float(number - 3) ** 2 + float(number + 1) ** 2
    assert s.inner(0.5 * t) == pytest.approx(number * (34 * 3 - 1) / 2, rel=1e-7)
