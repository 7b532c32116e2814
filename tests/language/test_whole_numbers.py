"""Whole numbers have the bits of their kernel: 64 in float64, 32 in float32, wherever they come from."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Field, Integer, Lattice, Random, Real, TraceError

pytestmark = pytest.mark.lanes

LARGE = 2**40 + 3
LEAST = -(2**63)


def field(precision="float64", extents=(5, 7)):
    s = Field(Lattice(*extents), Integer(), precision=precision)
    bits = 62 if precision == "float64" else 30
    s[...] = np.random.default_rng(1).integers(-(2**bits), 2**bits, extents)
    return s, s[...]


@jali.site_function
def constants(X, out, modulus, quotient, least, s, n):
    out[X] = s[X] // 2 + LARGE - 2 * n
    modulus[X] = s[X] % 2**33
    quotient[X] = s[X] // LARGE
    least[X] = jali.where(s[X] < LARGE, LEAST, 2**63 - 1)


def test_constants_and_arguments_of_64_bits():
    s, v = field()
    out = [s.like() for _ in range(4)]
    constants(*out, s, 2**50 + 1)
    expected = v // 2 + LARGE - 2 * (2**50 + 1), v % 2**33, v // LARGE, np.where(v < LARGE, LEAST, 2**63 - 1)
    for f, wanted in zip(out, expected, strict=True):
        assert np.array_equal(f[...], wanted)


def test_whole_fields_take_numbers_of_64_bits():
    s, v = field()
    v = v // 4
    s[...] = v
    assert np.array_equal((s + LARGE).field()[...], v + LARGE)
    assert np.array_equal((s % 2**33).field()[...], v % 2**33)
    assert np.array_equal((2**33 * (s // 2**35)).field()[...], 2**33 * (v // 2**35))
    s += 2**45
    assert np.array_equal(s[...], v + 2**45)


@pytest.mark.parametrize(
    ("precision", "number", "message"),
    [
        ("float64", 2**63, "9223372036854775808 does not fit 64 bits"),
        ("float32", 2**31, r"2147483648 does not fit 32 bits.*take fields of precision='float64'"),
        ("float32", -(2**31) - 1, "does not fit 32 bits, which whole numbers of float32 kernels have"),
    ],
)
def test_what_does_not_fit_says_how_many_bits_there_are(precision, number, message):
    s, _ = field(precision)

    @jali.site_function
    def fixed(X, s):
        s[X] = s[X] + number

    @jali.site_function
    def given(X, s, n):
        s[X] = s[X] + n

    with pytest.raises(TraceError, match=message):
        fixed(s)
    with pytest.raises(TraceError, match=message):
        given(s, number)
    with pytest.raises(TraceError, match=message):
        given(s, np.array(number))
    with pytest.raises(TraceError, match=message):
        (s + number).field()


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_arrays_of_whole_numbers_are_whole_at_fixed_indices(precision):
    s, v = field(precision)
    r = Field(s.lattice, Real(), precision=precision)

    @jali.site_function
    def f(X, out, r, s, k, m, scalar, rng):
        out[X] = (
            s[X] // 4
            + k[1]
            - k[-1] // 2
            + m[1, 0]
            + k[X.coordinate(0) % 3]
            + scalar
            + 0 * rng.integers(X, k[2])
        )
        r[X] = k[0] / 2 + (k * 1.0)[2]

    out, most = s.like(), 2**40 if precision == "float64" else 2**28
    for k in (np.array([7, most, 5]), np.array([1, -3, 9], np.int8), np.array([1, 2, 3], np.uint64)):
        m = np.array([[1, 2], [3, 4]]) * int(k[0])
        f(out, r, s, k, m, np.array(11), Random(1))
        w = k.astype(np.int64)
        expected = v // 4 + w[1] - w[2] // 2 + m[1, 0] + w[np.arange(5) % 3][:, None] + 11
        assert np.array_equal(out[...], expected)
        assert np.all(r[...] == w[0] / 2 + w[2])


def test_arrays_of_whole_numbers_are_bounds_of_random_numbers_and_labels():
    lattice = Lattice(5, 7)

    @jali.site_function
    def f(X, rng, k, counts):
        counts[k[1] + rng.integers(X, k[0])] += 1

    counts = lattice.sum(f, Random(1), np.array([3, 2]), bins=5)
    assert counts[:2].sum() == 0
    assert counts.sum() == 35
    with pytest.raises(TraceError, match="n is at least 1, not 0"):
        lattice.sum(f, Random(1), np.array([0, 2]), bins=5)


def test_mistaken_indices_and_numbers_that_do_not_fit_are_errors():
    s, _ = field("float32")

    @jali.site_function
    def third(X, s, k):
        s[X] = k[3]

    @jali.site_function
    def first(X, s, k):
        s[X] = k[0]

    with pytest.raises(TraceError, match="component 3 .* does not exist"):
        third(s, np.array([1, 2]))
    with pytest.raises(TraceError, match="4294967296 does not fit 32 bits"):
        first(s, np.array([2**32, 1]))


def test_what_no_float_holds_says_how_many_bits_it_has():
    s, _ = field("float64")
    number = -(10**400)

    @jali.site_function
    def fixed(X, s):
        s[X] = s[X] + number

    @jali.site_function
    def given(X, s, n):
        s[X] = s[X] + n

    for wrong in (lambda: fixed(s), lambda: given(s, number), lambda: (s + number).field()):
        with pytest.raises(TraceError, match="of 1329 bits does not fit 64 bits"):
            wrong()
