"""Vector operations on fields."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Real, Spinor, Vector
from jali.lattice.algebra import axpy, copy, inner, norm2

LATTICE = Lattice(4, 6, 4)


def random_field(element, seed, **options):
    field = Field(LATTICE, element, **options)
    rng = np.random.default_rng(seed)
    shape = LATTICE.extents + element.numpy_shape
    values = rng.normal(size=shape)
    field[...] = values if element.type.kind == "real" else values + 1j * rng.normal(size=shape)
    return field


@pytest.mark.short(2)
@pytest.mark.parametrize("element", [Real(), Complex(), Vector(3), Spinor(2)], ids=str)
def test_operations_agree_with_numpy(element):
    x, y = random_field(element, 1), random_field(element, 2)
    assert norm2(x) == pytest.approx(np.sum(np.abs(x[...]) ** 2), rel=1e-14)
    assert inner(x, y) == pytest.approx(np.vdot(x[...], y[...]), rel=1e-12)
    expected = y[...] + 0.5 * x[...]
    assert axpy(0.5, x, y) is y
    assert np.allclose(y[...], expected, rtol=1e-14, atol=1e-14)
    assert copy(x, y) is y
    assert np.array_equal(x[...], y[...])


def test_inner_product_is_conjugate_linear_in_the_first():
    x, y = random_field(Complex(), 1), random_field(Complex(), 2)
    z = x.like()
    axpy(2j, x, z)
    assert inner(z, y) == pytest.approx(-2j * inner(x, y), rel=1e-12)
    assert isinstance(inner(x, y), complex)
    assert isinstance(inner(random_field(Real(), 1), random_field(Real(), 2)), float)


@pytest.mark.parametrize("a", [2, np.float32(2), np.int64(2), 2 + 0j, np.complex64(2)])
def test_factor_may_be_any_number(a):
    x, y = random_field(Complex(), 1), random_field(Complex(), 2)
    expected = y[...] + 2 * x[...]
    axpy(a, x, y)
    assert np.allclose(y[...], expected, rtol=1e-14)


def test_fast_sums_agree_to_rounding():
    x, y = random_field(Vector(3), 1), random_field(Vector(3), 2)
    assert norm2(x, fast=True) == pytest.approx(norm2(x), rel=1e-13)
    assert inner(x, y, fast=True) == pytest.approx(inner(x, y), rel=1e-11)


def test_fields_that_do_not_fit_are_refused():
    x = random_field(Complex(), 1)
    with pytest.raises(jali.LayoutError, match=r"inner: .* holds Complex, .* holds Vector\(2\)"):
        inner(x, random_field(Vector(2), 1))
    with pytest.raises(jali.LayoutError, match="copy: .* lives on"):
        copy(x, Field(Lattice(4, 4), Complex()))
    real = random_field(Real(), 1)
    with pytest.raises(jali.LayoutError, match="the factor 1j is complex"):
        axpy(1j, real, real.like())
    with pytest.raises(jali.LayoutError, match="is a number, not 'two'"):
        axpy("two", x, x.like())
