"""One kernel on fields of several arithmetics and storage formats, held against NumPy in float64, on any ranks."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import jali
from jali import SU, Field, Lattice, Real, Spinor, Vector
from jali.comm.virtual import virtual_ranks

pytestmark = pytest.mark.lanes

EXTENTS = (4, 6, 8)


@jali.site_function
def hop(X, out, psi, U, V, total):
    """Links of one storage forwards, links of another one backwards."""
    found = jali.zero(psi.element)
    for mu in X.directions():
        found = found + U[mu][X] * psi[X + mu] + V[mu][X - mu].dagger() * psi[X - mu]
    out[X] = found
    total += out[X].norm2()


@jali.site_function
def blend(X, wide, narrow, a, b, c, total):
    mu = X.directions()[0]
    value = a[X] * b[X + mu] + c[X - mu]
    wide[X] = value
    narrow[X] = value
    total += wide[X].norm2()


def complex_numbers(shape, seed, whole=False):
    rng = np.random.default_rng(seed)
    draw = (lambda: rng.integers(-8, 9, shape)) if whole else (lambda: rng.normal(size=shape))
    return draw() + 1j * draw()


def as_float16(values):
    return values.real.astype(np.float16).astype(float) + 1j * values.imag.astype(np.float16).astype(float)


def as_bfloat16(values):
    """To the nearest number with 8 digits, of two as near the even one."""

    def of_real(x):
        bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
        return rounded.astype(np.uint32).view(np.float32).astype(float)

    return of_real(values.real) + 1j * of_real(values.imag)


def as_fixed16(values):
    """Multiples of 1/32767 of the largest of a site, which is a float32; the units are found in float32, read in float64."""
    values = values.astype(np.float32)
    largest = abs(values).max(axis=-1, keepdims=True)
    units = np.rint(values * (np.float32(32767) / largest)).astype(float)
    return largest.astype(float) * (units * (1 / 32767))


def links(seed, whole=False):
    return [complex_numbers((*EXTENTS, 3, 3), seed + mu, whole) for mu in range(3)]


def hopped(psi, U, V):
    """`hop` in float64; a spinor of NumPy's is [spin][colour]."""
    found = np.zeros_like(psi)
    for mu in range(3):
        found += np.einsum("...ab,...sb->...sa", U[mu], np.roll(psi, -1, mu))
        behind = np.roll(V[mu], 1, mu).conj().swapaxes(-1, -2)
        found += np.einsum("...ab,...sb->...sa", behind, np.roll(psi, 1, mu))
    return found


def run_hop(whole=False, **options):
    """(out, total, links as they are stored) of the kernel."""
    lattice = Lattice(*EXTENTS, **options)
    U = [Field(lattice, SU(3), precision="float32", storage="float16") for _ in range(3)]
    V = [Field(lattice, SU(3), precision="float32", storage="bfloat16") for _ in range(3)]
    psi = Field(lattice, Spinor(3), precision="float32")
    psi[...] = complex_numbers((*EXTENTS, 4, 3), 7, whole)
    for fields, seed in ((U, 1), (V, 4)):
        for field, values in zip(fields, links(seed, whole), strict=True):
            field[...] = values
    out = psi.like()
    total = lattice.sum(hop, out, psi, U, V)
    return out[...], total, [f[...] for f in U], [f[...] for f in V]


def run_blend(**options):
    lattice = Lattice(*EXTENTS, **options)
    a, b = Field(lattice, Real()), Field(lattice, Vector(3, kind="real"), precision="float32")
    c = b.like(storage="fixed16")
    rng = np.random.default_rng(1)
    a[...] = rng.normal(size=EXTENTS)
    b[...], c[...] = (rng.normal(size=(*EXTENTS, 3)).astype(np.float32) for _ in range(2))
    wide, narrow = b.like(precision="float64"), b.like()
    total = lattice.sum(blend, wide, narrow, a, b, c)
    return wide[...], narrow[...], total


def blended():
    rng = np.random.default_rng(1)
    a = rng.normal(size=EXTENTS)
    b, c = (rng.normal(size=(*EXTENTS, 3)).astype(np.float32) for _ in range(2))
    b, c = np.roll(b.astype(float), -1, 0), np.roll(as_fixed16(c), 1, 0)
    terms = zip(np.repeat(a.ravel(), 3), b.ravel(), c.ravel(), strict=True)
    return np.array([float(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in terms]).reshape(b.shape)


def test_links_of_16_bits_and_a_spinor_of_32_are_multiplied_as_they_are_stored():
    out, total, U, V = run_hop()
    rounded = [as_float16(u) for u in links(1)], [as_bfloat16(v) for v in links(4)]
    for found, right in zip((*U, *V), (*rounded[0], *rounded[1]), strict=True):
        assert found.dtype == np.complex64
        assert np.array_equal(found, right)
    psi = complex_numbers((*EXTENTS, 4, 3), 7).astype(np.complex64).astype(complex)
    right = hopped(psi, *rounded)
    size = hopped(abs(psi) * (1 + 0j), *([abs(u) * (1 + 0j) for u in group] for group in rounded)).real
    assert out.dtype == np.complex64
    assert np.all(abs(out - right) < 8 * 2.0**-24 * size)  # each product and sum is rounded to 24 digits
    assert isinstance(total, float)
    squares = np.sum(abs(out.astype(complex)) ** 2, axis=(-1, -2))
    assert total == pytest.approx(math.fsum(squares.ravel()), rel=2.0**-22)


def test_where_no_number_is_rounded_all_are_exact_and_sums_have_53_digits():
    """Whole numbers; a sum of float32 would end at 2^24."""
    out, total, U, V = run_hop(whole=True)
    right = hopped(complex_numbers((*EXTENTS, 4, 3), 7, True).astype(complex), U, V)
    assert np.array_equal(out, right)
    assert total == np.sum(right.real**2 + right.imag**2)
    assert float(np.float32(total)) != total > 2**24


def test_float64_float32_and_fixed16_meet_in_float64():
    wide, narrow, total = run_blend()
    right = blended()
    assert np.array_equal(wide, right)  # a product that is added is one rounding
    assert narrow.dtype == np.float32
    assert np.array_equal(narrow, right.astype(np.float32))
    assert total == pytest.approx(math.fsum((right**2).ravel()), rel=1e-14)


def same_bits(first, *others):
    """Whether these runs gave the same, to the last bit."""
    bits = [[np.asarray(part).tobytes() for part in run] for run in (first, *others)]
    return all(one == bits[0] for one in bits)


@pytest.mark.parametrize("grid", [(2, 1, 1), (1, 1, 2), (1, 3, 1)])
@pytest.mark.parametrize("run", [run_hop, run_blend])
def test_halos_of_all_formats_travel(run, grid):
    assert same_bits(run(), *virtual_ranks(math.prod(grid), lambda: run(grid=grid)))


@pytest.mark.parametrize("factor", [1e300, np.float64(-1e300), 1e-60, complex(1e300, 1.0)])
def test_a_number_beyond_the_arithmetic_is_rounded_as_ieee_has_it(factor):
    """An argument, a constant, a scalar, a whole field: all are what NumPy makes of the number in float32."""

    @jali.site_function
    def times(X, out, x, a):
        out[X] = a + x[X]

    @jali.site_function
    def times_constant(X, out, x):
        out[X] = factor + x[X]

    lattice = Lattice(4, 4)
    element = jali.Complex() if isinstance(factor, complex) else Real()
    for precision in ("float32", "float64"):
        x = Field(lattice, element, precision=precision)
        with np.errstate(over="ignore"):
            right = np.full((4, 4), factor).astype(x.dtype)
        found = [x.like() for _ in range(3)]
        times(found[0], x, factor)
        times(found[1], x, lattice.scalar(factor))
        times_constant(found[2], x)
        for field in (*found, (factor + x).field()):
            assert field[...].tobytes() == right.tobytes()


def test_values_that_are_set_are_refused_where_an_arithmetic_cannot_hold_them():
    x = Field(Lattice(4, 4), Real(), precision="float32")
    with pytest.raises(
        jali.StorageError, match="16 of the numbers given are too large for float32; scale them, or take"
    ):
        x[...] = np.full((4, 4), 1e300)
