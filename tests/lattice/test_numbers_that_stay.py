"""Numbers that stay where they are made: the same as Python's, as arguments, assigned."""

from __future__ import annotations

import math
import operator
import random
import struct

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Matrix, Real
from jali.errors import ParameterError, TraceError

LATTICE = Lattice(4, 3, 2)


@jali.site_function
def sum_of(X, a, total):
    total += a[X]


@jali.site_function
def sums_of(X, a, z, first, second):
    first += a[X] * a[X]
    second += a[X] * z[X]


@jali.site_function
def add(X, y, x, c):
    y[X] += c * x[X]


def filled(element, seed=1, lattice=LATTICE, **options):
    field = Field(lattice, element, **options)
    rng = np.random.default_rng(seed)
    shape = lattice.extents + element.numpy_shape
    values = rng.normal(size=shape)
    field[...] = values if element.type.kind == "real" else values + 1j * rng.normal(size=shape)
    return field


def staying(value):
    """A Scalar with this value that a sum has made."""
    lattice = Lattice(1)
    field = Field(lattice, Complex() if isinstance(value, complex) else Real())
    field[0] = value
    return lattice.sum(sum_of, field, wait=False)


def test_sum_that_stays_has_the_value_of_one_that_is_waited_for():
    a, z = filled(Real()), filled(Complex(), 2)
    first, second = LATTICE.sum(sums_of, a, z)
    here, there = LATTICE.sum(sums_of, a, z, wait=False)
    assert isinstance(here, jali.Scalar)
    assert (float(here), complex(there)) == (first, second)
    assert (here.is_complex, there.is_complex) == (False, True)
    assert jali.read(here, there, there.imag, here > 0, 2.5) == [first, second, second.imag, first > 0, 2.5]


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_arithmetic_of_real_scalars_is_that_of_floats(op):
    rng = random.Random(1)
    for _ in range(40):
        a, b = (rng.gauss(0, 1) * 2.0 ** rng.randint(-40, 40) for _ in range(2))
        expected = op(a, b)
        for x, y in ((staying(a), staying(b)), (staying(a), b), (a, staying(b))):
            assert float(op(x, y)) == expected


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul])
def test_arithmetic_of_complex_scalars_is_that_of_complex_numbers(op):
    rng = random.Random(2)
    for _ in range(20):
        a, b = (complex(rng.gauss(0, 1), rng.gauss(0, 1)) for _ in range(2))
        for x, y in ((staying(a), staying(b)), (staying(a), b), (a, staying(b))):
            assert complex(op(x, y)) == op(a, b)
        assert complex(staying(a) / 3.0) == a / 3.0
        assert complex(staying(a).conj()) == a.conjugate()


@pytest.mark.parametrize("op", [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne])
def test_comparisons_are_those_of_numbers(op):
    for a in (-1.0, 0.0, 2.5, math.inf, math.nan):
        for b in (0.0, 2.5, -math.inf):
            assert bool(op(staying(a), staying(b))) == op(a, b)
            assert bool(op(staying(a), b)) == op(a, b)
            assert bool(op(b, staying(a))) == op(b, a)
    if op in (operator.eq, operator.ne):
        assert bool(op(staying(1 + 2j), 1 + 2j)) == op(1, 1)
        assert bool(op(staying(1 + 2j), 1.0)) == op(1, 2)


def test_conditions_combine_and_choose():
    a, b = staying(1.0), staying(2.0)
    less, more = a < b, a > b
    assert [bool(less & more), bool(less | more), bool(~more), bool(less & ~more)] == [
        False,
        True,
        True,
        True,
    ]
    assert float(jali.where(less, a, b)) == 1.0
    assert float(jali.where(more, a, 7)) == 7.0
    assert complex(jali.where(more, 0.0, staying(1j))) == 1j


def test_complex_division_is_pythons_bit_for_bit():
    rng = random.Random(1)
    parts = [0.0, -0.0, 1.0, -3.0, 1e-300, 1e300] + [
        rng.gauss(0, 1) * 10 ** rng.randint(-9, 9) for _ in range(6)
    ]
    numbers = [complex(*rng.choices(parts, k=2)) for _ in range(300)]
    for a, b in zip(numbers[::2], numbers[1::2], strict=True):
        if b != 0:
            found = complex(LATTICE.scalar(a) / b)
            assert struct.pack("dd", found.real, found.imag) == struct.pack(
                "dd", (a / b).real, (a / b).imag
            ), (a, b)
    assert complex(2.0 / LATTICE.scalar(1 + 2j)) == 2.0 / (1 + 2j)


def test_powers_are_products_and_roots_are_exact():
    x = 1.1
    assert float(staying(x) ** 2) == x * x
    assert float(staying(x) ** 5) == (x * x) * (x * x) * x
    assert float(jali.sqrt(staying(x))) == math.sqrt(x)
    assert math.isnan(float(jali.sqrt(staying(-1.0))))
    assert float(-staying(x)) == -x
    assert float(+staying(x)) == x


def test_division_by_zero_is_that_of_ieee():
    zero = staying(0.0)
    assert float(1.0 / zero) == math.inf
    assert float(-1.0 / zero) == -math.inf
    assert float(1.0 / (-1.0 * zero)) == -math.inf
    assert math.isnan(float(zero / zero))


def test_kernels_take_scalars_as_they_take_numbers():
    a, z = filled(Real()), filled(Complex(), 2)
    s, t = LATTICE.sum(sums_of, a, z)
    here, there = LATTICE.sum(sums_of, a, z, wait=False)
    for factor, number, x in ((here / 3, s / 3, a), (there, t, z), (here, s, z)):
        with_scalar, with_number = filled(x.element, 5), filled(x.element, 5)
        add(with_scalar, x, factor)
        add(with_number, x, number)
        assert np.array_equal(with_scalar[...], with_number[...])


def test_kernels_in_single_precision_round_a_scalar_as_they_round_a_number():
    a = filled(Real(), precision="float32")
    total = LATTICE.sum(sum_of, a)
    y, z = a.like(), a.like()
    add(y, a, LATTICE.sum(sum_of, a, wait=False) / 7)
    add(z, a, total / 7)
    assert np.array_equal(y[...], z[...])


def test_lists_of_numbers_may_hold_scalars():
    @jali.site_function
    def both(X, y, x, factors):
        y[X] = factors[0] * x[X] + factors[1]

    a = filled(Real())
    y, z = a.like(), a.like()
    both(y, a, [staying(0.3), 2.0])
    both(z, a, [0.3, 2.0])
    assert np.array_equal(y[...], z[...])


def test_scalar_keeps_its_value_when_its_sum_is_made_again():
    a = filled(Real())
    first = LATTICE.sum(sum_of, a, wait=False)
    expected = LATTICE.sum(sum_of, a)
    add(a, a, 1.0)
    second = LATTICE.sum(sum_of, a, wait=False)
    assert float(first) == expected
    assert float(second) == pytest.approx(2 * expected)


def test_what_was_computed_with_a_scalar_before_it_was_assigned_keeps_its_value():
    n = LATTICE.scalar(2.0)
    before = n * 3
    n.assign(n + 1)
    after = n * 3
    n.assign(10)
    assert (float(before), float(after), float(n)) == (6.0, 9.0, 10.0)
    z = LATTICE.scalar(1j)
    z.assign(2)
    assert complex(z) == 2


def test_long_expressions_are_computed_in_parts():
    s, value = staying(0.7), 0.7
    total, expected = s, value
    for k in range(500):
        total = 0.99 * total + s * k
        expected = 0.99 * expected + value * k
    assert float(total) == expected
    nested, expected = s, value
    for k in range(200):
        nested, expected = k - nested * s, k - expected * value
    assert float(nested) == expected
    assert jali.read(*(s * k for k in range(100))) == [value * k for k in range(100)]


def test_sums_on_ranks_are_those_of_one_rank():
    def run():
        lattice = Lattice(4, 3, 2)
        a, z = filled(Real(), 1, lattice), filled(Complex(), 2, lattice)
        first, second = lattice.sum(sums_of, a, z, wait=False)
        return float(first / second.real), complex(second)

    alone = run()
    for ranks in (2, 3):
        assert jali.virtual_ranks(ranks, run) == [alone] * ranks


def test_scalar_in_place_of_a_value_says_that_it_is_an_argument():
    s = staying(2.0)

    @jali.site_function
    def captured(X, y):
        y[X] = s * y[X]

    with pytest.raises(TraceError):
        captured(filled(Real()))


@pytest.mark.parametrize(
    ("wrong", "error", "match"),
    [
        (lambda s: s + "a", TypeError, "unsupported operand"),
        (lambda s: s**-1, ParameterError, "whole exponents from 1 to 64, not -1"),
        (lambda s: s**0.5, ParameterError, "there is jali.sqrt"),
        (lambda s: float(staying(1j)), TypeError, "a complex scalar is no float"),
        (lambda s: staying(1j) < 1, ParameterError, "the order of a complex scalar"),
        (lambda s: s.assign(3), ParameterError, "only scalars made by lattice.scalar"),
        (lambda s: LATTICE.scalar(1.0).assign(1j), ParameterError, "cannot be assigned to a real scalar"),
        (lambda s: LATTICE.scalar("x"), ParameterError, "begins as a number"),
        (lambda s: LATTICE.scalar(10**400), ParameterError, "float64, which cannot hold"),
        (lambda s: s + 10**400, ParameterError, "float64, which cannot hold"),
        (lambda s: jali.read("x"), ParameterError, "takes scalars, conditions and arrays of numbers"),
        (lambda s: (s > 0) & 1, ParameterError, "combines with conditions"),
        (lambda s: add(filled(Real()), filled(Real()), s > 0), TraceError, "a condition is no number"),
        (lambda s: add(filled(Real()), filled(Real()), staying(1j)), TraceError, "complex"),
    ],
)
def test_mistakes_are_said(wrong, error, match):
    with pytest.raises(error, match=match):
        wrong(staying(2.0))


def test_sums_that_cannot_stay_are_refused():
    a = filled(Real())
    with pytest.raises(TraceError, match=r"up to 64, not those of shape \(4, 3, 2\)"):
        LATTICE.sum(sum_of, a, per=(0, 1, 2), wait=False)
    long = Lattice(65)
    with pytest.raises(TraceError, match=r"shape \(65,\).*; these are waited for"):
        long.sum(sum_of, filled(Real(), lattice=long), per=0, wait=False)
    with pytest.raises(TraceError, match=r"shape \(4, 3, 3\)"):
        LATTICE.sum(sum_of, filled(Matrix(3)), per=0, wait=False)
