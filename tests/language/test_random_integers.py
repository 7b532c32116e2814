"""Whole random numbers: exactly those of Philox, uniform, alike on any number of lanes and ranks."""

import numpy as np
import pytest

import jali
from jali import EVEN, Field, Integer, Lattice, Random, Real, TraceError, Vector

pytestmark = pytest.mark.lanes
MASK = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., SC'11), with Python's whole numbers."""
    x, (k0, k1) = list(counter), (key & MASK, key >> 32)
    for _ in range(10):
        p0, p1 = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(p1 >> 32) ^ x[1] ^ k0, p1 & MASK, (p0 >> 32) ^ x[3] ^ k1, p0 & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return x


def expected(n, rng, call, draw, site):
    words = philox((site & MASK, site >> 32, call & MASK, (call >> 32) << 16 | draw), rng.key)
    return sum(word << 32 * k for k, word in enumerate(words)) * n >> 128


@jali.site_function
def fill(X, out, second, rng, n):
    out[X] = rng.integers(X, n)
    second[X] = 10 * rng.integers(X, 7) + rng.integers(X, X.coordinate(0) + 1)


@pytest.mark.parametrize("n", [1 << 32, (1 << 40) + 12345, (1 << 63) - 1])
def test_bounds_of_more_than_32_bits(n):
    lattice, rng = Lattice(5, 3), Random(11)
    s, fixed = Field(lattice, Integer()), Field(lattice, Integer())

    @jali.site_function
    def both(X, s, fixed, rng, m):
        s[X] = rng.integers(X, m)
        fixed[X] = rng.integers(X, n)

    both(s, fixed, rng, n)
    for x, y in np.ndindex(lattice.extents):
        assert s[...][x, y] == expected(n, rng, 0, 0, x + 5 * y)
        assert fixed[...][x, y] == expected(n, rng, 0, 1, x + 5 * y)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("n", [1, 2, 3, 10, 1000003, (1 << 31) - 1])
def test_numbers_are_the_leading_bits_of_the_generator(precision, n):
    lattice, rng = Lattice(5, 3, 4), Random(11)
    out, second = (Field(lattice, Integer(), precision=precision) for _ in range(2))
    for call in range(2):
        fill(out, second, rng, n)
        for x, y, z in np.ndindex(lattice.extents):
            site = x + 5 * (y + 3 * z)
            assert out[...][x, y, z] == expected(n, rng, call, 0, site)
            wanted = 10 * expected(7, rng, call, 1, site) + expected(x + 1, rng, call, 2, site)
            assert second[...][x, y, z] == wanted


@pytest.mark.parametrize("n", [2, 3, 7, 100])
def test_numbers_are_uniform(n):
    lattice = Lattice(32, 32, 32)
    out, second = Field(lattice, Integer()), Field(lattice, Integer())
    fill(out, second, Random(5), n)
    counts = np.bincount(out[...].ravel(), minlength=n)
    mean = lattice.volume / n
    chi2 = ((counts - mean) ** 2 / mean).sum()
    assert len(counts) == n
    assert abs(chi2 - (n - 1)) < 5 * np.sqrt(2 * (n - 1))


def test_another_bound_compiles_nothing_and_uniform_numbers_are_what_they_were():
    @jali.site_function
    def mixed(X, out, rng, n):
        u = rng.uniform(X)
        k = rng.integers(X, n)
        out[X] = jali.vector([u, rng.uniform(X), k])

    @jali.site_function
    def alone(X, out, rng):
        out[X] = jali.vector([rng.uniform(X), rng.uniform(X), 0.0])

    lattice = Lattice(4, 5)
    a, b = (Field(lattice, Vector(3, kind="real")) for _ in range(2))
    alone(b, Random(1))
    for n in (2, 30):
        mixed(a, Random(1), n)
        assert np.array_equal(a[...][..., :2], b[...][..., :2])
        assert a[...][..., 2].max() < n


def test_in_rejection_loops_and_on_a_colour():
    @jali.site_function
    def not_three(X, s, rng):
        def attempt():
            k = rng.integers(X, 4)
            return k != 3, k

        s[X] = X.repeat_until(attempt, 60, 0)

    lattice = Lattice(16, 16)
    s = Field(lattice, Integer())
    s[...] = -1
    not_three[EVEN](s, Random(3))
    even = np.add.outer(np.arange(16), np.arange(16)) % 2 == 0
    assert np.all(s[...][~even] == -1)
    assert set(s[...][even]) == {0, 1, 2}


L = Lattice(4, 4)
WHOLE, REAL = Field(L, Integer()), Field(L, Real())


@pytest.mark.parametrize(
    ("n", "message"),
    [
        (lambda X, s, k: 0, "n is at least 1, not 0"),
        (lambda X, s, k: 2.0, "needs a whole number n, not a real"),
        (lambda X, s, k: X.coordinate(0), "may be less than 1"),
        (lambda X, s, k: s[X], "may be less than 1"),
        (lambda X, s, k: k, "n is at least 1, not -2"),
    ],
)
def test_bounds_that_are_none_are_errors(n, message):
    @jali.site_function
    def f(X, s, rng, k):
        s[X] = rng.integers(X, n(X, s, k))

    with pytest.raises(TraceError, match=rf"{message}[\s\S]*test_random_integers.py"):
        f(WHOLE, Random(1), -2)


def on_ranks():
    lattice = Lattice(6, 5, 4)
    out, second = Field(lattice, Integer()), Field(lattice, Integer())
    fill(out, second, Random(2), 9)
    return out[...], second[...]


def test_on_several_ranks():
    (alone,) = jali.virtual_ranks(1, on_ranks)
    for found in jali.virtual_ranks(3, on_ranks):
        assert all(np.array_equal(a, b) for a, b in zip(found, alone, strict=True))
