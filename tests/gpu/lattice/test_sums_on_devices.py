"""Sums of contributions that are hard to sum: the device cuts them into the same digits as the host."""

from __future__ import annotations

import math

import numpy as np
import pytest
from shadow import assert_same_bits

import jali
from jali import Complex, Field, Lattice, Matrix, Real


@jali.site_function
def total_of(X, a, total):
    total += a[X]


def sums_of(values, kind, per=None, fast=False):
    """The sum of an array of numbers by a device."""
    lattice = Lattice(*values.shape, device=kind)
    field = Field(lattice, Complex() if values.dtype.kind == "c" else Real())
    field[...] = values
    return lattice.sum(total_of, field, per=per, fast=fast)


def assert_agree(values, kind, per=None):
    with np.errstate(invalid="ignore", over="ignore"):
        assert_same_bits(sums_of(values, kind, per), sums_of(values, "cpu", per), f"sum of {values.shape}")


def anything(rng, size):
    """Doubles of all exponents and signs."""
    bits = rng.integers(0, 1 << 64, size, dtype=np.uint64)
    exponent = rng.integers(0, 2047, size, dtype=np.uint64)  # no infinities, no NaNs
    return ((bits & np.uint64(0x800FFFFFFFFFFFFF)) | (exponent << np.uint64(52))).view(np.float64)


@pytest.mark.parametrize("seed", range(6))
def test_numbers_of_all_sizes(seed, device):
    rng = np.random.default_rng(seed)
    values = anything(rng, int(rng.integers(1, 700)))
    assert_agree(values, device)
    assert_agree(np.concatenate([values, -values]), device)  # exactly zero, or the rest of one bin


@pytest.mark.parametrize(
    "values",
    [
        [5e-324],
        [5e-324, -5e-324, 1e-310],
        [1.7e308, 1.7e308, -1.7e308],
        [1.7976931348623157e308] * 3,
        [2.0**1005, -(2.0**1005), 1.0],
        [1e308, 1e-308, 1.0],
        [1.0, 1e100, 1.0, -1e100],
        [0.0, -0.0],
        [-0.0],
        [np.inf, 1.0],
        [-np.inf, 1.0],
        [np.inf, -np.inf],
        [np.nan, 1.0],
        [np.nan, np.inf, 1e308],
        [2.0**52, 0.5, 2.0**-52],
    ],
    ids=str,
)
def test_special_values(values, device):
    assert_agree(np.array(values), device)
    assert_agree(np.array([[v, w] for v in values for w in values[::-1]]), device, per=1)


def test_many_contributions_carry(device):
    """So many of one sign and size that a sum of their digits is no longer exact in double, unless it is carried in time."""
    constants = 16 + 16 * np.random.default_rng(1).uniform(size=6)  # the highest digits that a bin can hold
    values = np.repeat(constants[:, None], 100001, axis=1)
    assert sums_of(values, device, per=0).tolist() == [math.fsum(row) for row in values]


def test_growing_numbers_raise_the_highest_bin_again_and_again(device):
    values = 2.0 ** np.arange(-1074, 1000, 1.0)
    assert_agree(values, device)
    assert_agree(values[::-1].copy(), device)


def test_sum_is_the_exact_one_rounded(device):
    rng = np.random.default_rng(5)
    values = rng.normal(size=(30, 41)) * 2.0 ** rng.integers(-20, 20, (30, 41))
    assert sums_of(values, device) == math.fsum(values.ravel())
    slices = sums_of(values, device, per=1)
    assert slices.tolist() == [math.fsum(values[:, k]) for k in range(41)]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_complex_and_matrix_sums_per_slice(axis, device):
    rng = np.random.default_rng(axis)
    z = rng.normal(size=(3, 5, 4)) + 1j * rng.normal(size=(3, 5, 4))
    assert_agree(z, device, per=axis)
    results = []
    for kind in ("cpu", device):
        lattice = Lattice(3, 5, 4, device=kind)
        field = Field(lattice, Matrix(2, 3), precision="float32")
        field[...] = np.random.default_rng(7).normal(size=(3, 5, 4, 2, 3))
        results.append(lattice.sum(total_of, field, per=axis, over=jali.ODD))
    assert results[0].shape == ((3, 5, 4)[axis], 2, 3)
    assert_same_bits(results[1], results[0], "matrices")


@pytest.mark.parametrize("per", [(0, 1), (2, 0), (1, 2, 0)], ids=str)
def test_sums_per_slice_of_several_directions(per, device):
    values = np.random.default_rng(11).normal(size=(3, 5, 4)) * 1e3
    assert_agree(values, device, per=per)
    assert sums_of(values, device, per=per).shape == tuple(values.shape[axis] for axis in per)


def test_fast_sum_agrees_to_rounding(device):
    values = np.random.default_rng(3).normal(size=(20, 20))
    assert math.isclose(sums_of(values, device, fast=True), math.fsum(values.ravel()), abs_tol=1e-12)


def test_empty_domain_sums_to_zero(device):
    lattice = Lattice(1, device=device)
    field = Field(lattice, Real())
    field[...] = 3.0
    assert (lattice.sum(total_of, field, over=jali.ODD), lattice.sum(total_of, field, over=jali.EVEN)) == (
        0.0,
        3.0,
    )
