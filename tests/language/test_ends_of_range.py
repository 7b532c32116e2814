"""Division and modulus of complex numbers, and inverses, in site functions and of whole fields, at the ends of the range."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Matrix, Real, Vector
from jali.gauge.groups import project

PRECISIONS = pytest.mark.parametrize("precision", ["float64", "float32"])
# powers of ten beyond half of the range, where squares leave it, and cubes do
FAR = {"float64": [0, 103, -60, 160, -160, 300, -300], "float32": [0, 7, -7, 15, -15, 25, -23, 37, -37]}


@jali.site_function
def divided(X, quotient, modulus, inverse, power, vector, a, b, v):
    quotient[X] = a[X] / b[X]
    modulus[X] = abs(a[X])
    inverse[X] = 1.0 / b[X]
    power[X] = a[X] * b[X] ** -1
    vector[X] = v[X] / b[X]


def operands(precision, device="cpu"):
    """Numbers of which all quotients are in the range: each with others of its own size and of order one."""
    lattice, rng = Lattice(8, 2 * len(FAR[precision]), device=device), np.random.default_rng(1)
    size = 10.0 ** np.repeat(FAR[precision], 2)
    a = (rng.uniform(1, 2, lattice.extents) + 1j * rng.uniform(-2, -1, lattice.extents)) * size
    b = rng.uniform(1, 2, lattice.extents) + 1j * rng.uniform(-2, 2, lattice.extents)
    b[:, ::2] *= size[::2]
    fields = [Field(lattice, e, precision=precision) for e in (Complex(), Complex(), Vector(2))]
    fields[0][...], fields[1][...] = a, b
    fields[2][...] = a[..., None] * np.array([1, 0.5j])
    return fields


def found(precision, device="cpu"):
    a, b, v = operands(precision, device)
    kinds = (Complex(), Real(), Complex(), Complex(), Vector(2))
    out = [Field(a.lattice, e, precision=precision) for e in kinds]
    divided(*out, a, b, v)
    assert jali.inspect(divided, *out, a, b, v).flops == 11 + 4 + 11 + 6 + 22
    return [f[...] for f in (a, b, *out)], [x.field()[...] for x in (a / b, abs(a), 1 / b, v / b)]


@PRECISIONS
def test_quotients_and_moduli_are_right_wherever_they_are_in_the_range(precision):
    (a, b, quotient, modulus, inverse, power, vector), whole = found(precision)
    tolerance = 4 * np.finfo(precision).eps
    x, y = a.astype(np.clongdouble), b.astype(np.clongdouble)
    inside = abs(1 / y) > 2 * np.finfo(precision).tiny
    for got, expected in [(quotient, x / y), (modulus, abs(x)), (inverse, 1 / y), (power, x / y)]:
        assert np.all(abs(got - expected)[inside] <= tolerance * abs(expected)[inside])
    for k, factor in enumerate((1, 0.5j)):
        assert np.all(abs(vector[..., k] - factor * (x / y))[inside] <= tolerance * abs(x / y)[inside])
    for got, same in zip(whole, (quotient, modulus, inverse, vector), strict=True):
        assert np.array_equal(got, same)


def test_numbers_whose_squares_leave_the_range_have_quotients_and_moduli():
    lattice = Lattice(2)
    a, b = (Field(lattice, Complex()) for _ in range(2))
    a[...], b[...] = 1e200 + 1e200j, 1e200 - 1e200j
    assert np.all(abs((a / b).field()[...] - 1j) < np.finfo(float).eps)
    c = Field(lattice, Complex(), precision="float32")
    c[0], c[1] = 3e19 + 4e19j, 3e-23 + 4e-23j
    assert np.array_equal(abs(c).field()[...], np.array([5e19, 5e-23], "float32"))


@jali.site_function
def inverted(X, out, det, link, m):
    out[X] = m[X].inverse()
    det[X] = m[X].det()
    link[X] = m[X].reunitarise()


@jali.site_function
def projected(X, out, m):
    out[X] = project(m[X])


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("kind", ["complex", "real"])
@PRECISIONS
def test_inverses_determinants_and_links_do_not_depend_on_the_scale(n, kind, precision):
    powers = [p for p in FAR[precision] if abs(p) < (301 if precision == "float64" else 26)]
    lattice, rng = Lattice(len(powers), 4), np.random.default_rng(n)
    values = np.linalg.qr(
        rng.normal(size=(n, n)) + (1j * rng.normal(size=(n, n)) if kind == "complex" else 0)
    )[0]
    values = values + 0.05 * rng.normal(size=(n, n))
    m, out, link = (Field(lattice, Matrix(n, kind=kind), precision=precision) for _ in range(3))
    det = Field(lattice, Complex() if kind == "complex" else Real(), precision=precision)
    scale = np.longdouble(10) ** np.array(powers)
    m[...] = (values[None, None] * scale[:, None, None, None]).astype(m.dtype) * np.ones((1, 4, 1, 1))
    inverted(out, det, link, m)
    tolerance = 10 * n * np.finfo(precision).eps * np.linalg.cond(values)
    expected = np.linalg.inv(values)
    got = out[...] * scale[:, None, None, None]
    assert np.linalg.norm((got - expected).astype(complex), axis=(2, 3)).max() <= tolerance * np.linalg.norm(
        expected
    )
    usual = abs(n * np.array(powers)) < (307 if precision == "float64" else 37)
    ratio = det[...][usual].astype(np.clongdouble) / np.linalg.det(values) / scale[usual, None] ** n
    assert abs(ratio - 1).max() <= tolerance
    assert np.all(abs(link[...] - link[...][:1]) <= 8 * np.finfo(precision).eps)
    if kind == "complex":
        projected(out, m)
        u = out[...]
        assert abs(u @ u.conj().swapaxes(2, 3) - np.eye(n)).max() <= 32 * np.finfo(precision).eps
        assert abs(u - u[:1]).max() <= 32 * np.finfo(precision).eps
