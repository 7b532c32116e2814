"""Sums by label: a whole number at each site says to which entry of an array a term goes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import where_colour

import jali
from jali import (
    EVEN,
    ODD,
    Colouring,
    Complex,
    Field,
    Integer,
    Lattice,
    Matrix,
    ParameterError,
    Real,
)

pytestmark = pytest.mark.lanes

EXTENTS = [(1,), (5,), (8,), (3, 3), (5, 7, 2), (4, 6, 3, 2)]
BINS = 7


@jali.site_function
def histogram(X, f, n, total, counts, energy):
    total += f[X]
    counts[n[X]] += 1
    energy[n[X]] += f[X] * f[X]


def arrays(extents, precision="float64"):
    rng = np.random.default_rng(3)
    return rng.normal(size=extents).astype(precision), rng.integers(0, BINS, size=extents)


def fields(lattice, precision="float64"):
    out = Field(lattice, Real(), precision=precision), Field(lattice, Integer(), precision=precision)
    for field, values in zip(out, arrays(lattice.extents, precision), strict=True):
        field[...] = values
    return out


def by_label(values, labels, bins=BINS):
    """Exactly rounded sums of each entry."""
    return [math.fsum(values[labels == k].tolist()) for k in range(bins)]


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", EXTENTS, ids=str)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("domain", [jali.ALL, EVEN, ODD, Colouring(3, lambda x: sum(x) % 3)[2]], ids=str)
def test_histogram_is_that_of_numpy(extents, precision, domain):
    lattice = Lattice(*extents)
    values, labels = arrays(extents, precision)
    inside = where_colour(lattice, domain)
    total, counts, energy = lattice.sum(histogram, *fields(lattice, precision), bins=BINS, over=domain)
    assert total == math.fsum(values[inside].tolist())
    assert counts.tolist() == np.bincount(labels[inside], minlength=BINS).tolist()
    assert energy.tolist() == by_label((values * values)[inside], labels[inside])


def test_entries_may_be_complex_vectors_and_matrices_of_several_lengths():
    @jali.site_function
    def gathered(X, z, m, n, matrices, phases, alone):
        matrices[n[X]] += m[X]
        phases[X.coordinate(1)] += z[X]
        alone += z[X]
        matrices[n[X]] -= 0.5 * m[X]  # the same entry
        phases[2] += z[X].real  # another one, of another kind

    lattice = Lattice(4, 5)
    rng = np.random.default_rng(5)
    z, m, n = Field(lattice, Complex()), Field(lattice, Matrix(2, 3)), Field(lattice, Integer())
    labels = rng.integers(0, 3, size=(4, 5))
    numbers = rng.normal(size=(4, 5)) + 1j * rng.normal(size=(4, 5))
    grid = rng.normal(size=(4, 5, 2, 3)) + 1j * rng.normal(size=(4, 5, 2, 3))
    z[...], m[...], n[...] = numbers, grid, labels
    matrices, phases, alone = lattice.sum(gathered, z, m, n, bins={"matrices": 3, "phases": 6})
    assert matrices.shape == (3, 2, 3)
    assert phases.shape == (6,)
    assert np.allclose(matrices, [0.5 * grid[labels == k].sum(axis=0) for k in range(3)], rtol=1e-13)
    expected = np.append(numbers.sum(axis=0), 0)
    expected[2] += numbers.real.sum()
    assert np.allclose(phases, expected, rtol=1e-13)
    assert np.isclose(alone, numbers.sum(), rtol=1e-13)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_labels_may_be_rounded_as_numpy_rounds(precision):
    @jali.site_function
    def distribution(X, f, nearest, above):
        nearest[jali.round(f[X])] += 1
        nearest[round(f[X])] += 1
        above[jali.ceil(f[X])] += 1

    lattice = Lattice(5, 9)
    values = np.arange(45).reshape(5, 9) / 4  # halves among them
    f = Field(lattice, Real(), precision)
    f[...] = values
    nearest, above = lattice.sum(distribution, f, bins=12)
    assert np.array_equal(nearest, 2 * np.bincount(np.rint(values).astype(int).ravel(), minlength=12))
    assert np.array_equal(above, np.bincount(np.ceil(values).astype(int).ravel(), minlength=12))


def test_labels_may_be_floors_of_real_numbers():
    """What is below zero, too large for any whole number or no number is of no entry."""

    @jali.site_function
    def distribution(X, f, counts):
        counts[jali.floor(2 * (f[X] + 3))] += 1

    lattice = Lattice(5, 9)
    values = np.clip(arrays((5, 9))[0], -2.9, 2.9)
    f = Field(lattice, Real())
    f[...] = values
    assert np.array_equal(
        lattice.sum(distribution, f, bins=12), np.histogram(values, bins=12, range=(-3, 3))[0]
    )
    values[0, 0], values[1, 1], values[2, 2], values[3, 3] = np.nan, np.inf, -1e300, 1e20
    f[...] = values
    with pytest.raises(
        ParameterError, match="distribution: 4 labels of counts are not among its entries, 0 to 11"
    ):
        lattice.sum(distribution, f, bins=12)


@pytest.mark.parametrize("seed", range(3))
def test_entries_are_summed_as_exactly_as_any_sum(seed):
    """Numbers of all sizes, infinities and NaN stay in their entries."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(9, 8)) * 10.0 ** rng.integers(-200, 200, size=(9, 8))
    labels = rng.integers(0, 5, size=(9, 8))
    values[0, 0], labels[0, 0] = np.inf, 3
    values[1, 0], labels[1, 0] = np.nan, 4
    lattice = Lattice(9, 8)
    f, n = Field(lattice, Real()), Field(lattice, Integer())
    f[...], n[...] = values, labels

    @jali.site_function
    def binned(X, f, n, entries):
        entries[n[X]] += f[X]

    @jali.site_function
    def selected(X, f, n, k, total):
        total += jali.where(n[X] == k, f[X], 0.0)

    entries = lattice.sum(binned, f, n, bins=6)
    assert np.array_equal(entries, [lattice.sum(selected, f, n, k) for k in range(6)], equal_nan=True)
    assert entries[5] == 0.0
    assert np.isinf(entries[3])
    assert np.isnan(entries[4])
    f[...] = rng.normal(size=(9, 8))
    fast = lattice.sum(binned, f, n, bins=6, fast=True)
    assert np.allclose(fast, lattice.sum(binned, f, n, bins=6), rtol=0, atol=1e-13)


def _on_ranks(extents, precision, function=histogram):
    lattice = Lattice(*extents)
    out = lattice.sum(function, *fields(lattice, precision), bins=BINS)
    odd = lattice.sum(function, *fields(lattice, precision), bins=BINS + 3, over=ODD)
    return [np.asarray(x).tobytes() for x in (*out, *odd)]


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_entries_have_the_same_bits_on_any_ranks(precision):
    (alone,) = jali.virtual_ranks(1, _on_ranks, (6, 5, 4), precision)
    for ranks in (2, 3, 5):
        assert jali.virtual_ranks(ranks, _on_ranks, (6, 5, 4), precision) == [alone] * ranks


def test_slices_are_labels_too_and_neighbours_are_read():
    @jali.site_function
    def by_distance(X, out, f, entries):
        mu, nu = X.directions()
        out[X] = f[X + mu] - f[X]
        entries[X.coordinate(mu) + 6 * X.coordinate(nu)] += out[X]

    def of_ranks():
        lattice = Lattice(6, 5)
        f, _ = fields(lattice)
        return lattice.sum(by_distance, f.like(), f, bins=30).reshape(5, 6).T

    values = arrays((6, 5))[0]
    for ranks in (1, 2, 3):
        for found in jali.virtual_ranks(ranks, of_ranks):
            assert np.array_equal(found, np.roll(values, -1, 0) - values)


def test_many_entries_and_few_sites_of_each():
    @jali.site_function
    def scattered(X, entries):
        entries[(X.coordinate(0) * 797 + X.coordinate(1)) % 5000] += 1

    x = np.indices((61, 33))
    expected = np.bincount(((x[0] * 797 + x[1]) % 5000).ravel(), minlength=5000)
    assert np.array_equal(Lattice(61, 33).sum(scattered, bins=5000), expected)


def test_arrays_in_rows_count_their_own_sites_only():
    lattice = Lattice(3, 7, device="cpu")
    values = np.random.default_rng(4).normal(size=(3, 7))

    @jali.site_function
    def signs(X, f, counts):
        counts[jali.where(f[X] < 0, 0, 1)] += 1

    assert lattice.sum(signs, lattice.wrap(values), bins=2).tolist() == [
        (values < 0).sum(),
        (values >= 0).sum(),
    ]


# ---- mistakes ------------------------------------------------------------------------------------------


def test_labels_out_of_range_are_counted_on_all_ranks_and_the_next_call_is_right():
    def of_ranks():
        lattice = Lattice(6, 4)
        f, n = fields(lattice)
        n[0, 0], n[5, 3], n[2, 2] = -1, BINS, 1 << 62
        message = (
            rf"histogram: 3 labels of counts are not among its entries, 0 to {BINS - 1}; 3 labels of energy"
        )
        with pytest.raises(ParameterError, match=message) as caught:
            lattice.sum(histogram, f, n, bins=BINS)
        assert "test_labels.py:" in str(caught.value)
        with pytest.raises(ParameterError, match=r"histogram: 2 labels of counts .* more bins"):
            lattice.sum(histogram, f, n, bins={"counts": BINS + 1, "energy": BINS}, over=jali.ALL)
        n[...] = 0
        return lattice.sum(histogram, f, n, bins=BINS)[1].tolist()

    for ranks in (1, 3):
        assert jali.virtual_ranks(ranks, of_ranks) == [[24.0] + [0.0] * (BINS - 1)] * ranks


def test_sites_outside_the_domain_have_no_labels():
    lattice = Lattice(5, 3)
    f, n = fields(lattice)
    n[...] = np.where(where_colour(lattice, EVEN), 2, 1000)
    assert lattice.sum(histogram, f, n, bins=3, over=EVEN)[1].tolist() == [0, 0, 8]
