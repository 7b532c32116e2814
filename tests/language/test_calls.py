"""Arguments by name and defaults of parameters, in calls, sums, inspection and functions that are inlined."""

import numpy as np
import pytest
from support import random_field

import jali
from jali import EVEN, Field, Lattice, Real, TraceError
from jali.codegen.stage_cache import COUNTS

EXTENTS = (5, 3, 4)


@jali.site_function
def combine(X, out, a, weight=0.5, shift=0.25, *, sign=1):
    out[X] = sign * (weight * a[X + X.directions()[0]] + shift)


@jali.site_function
def moments(X, a, first, second, power=2, *, scale=1.0):
    first += scale * a[X]
    second += scale * jali.power(abs(a[X]), power)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_names_positions_and_defaults_are_those_of_python(precision):
    lattice = Lattice(*EXTENTS)
    a = random_field(lattice, Real(), 1, precision=precision)
    values = np.roll(a[...], -1, 0)
    of = a[...].dtype.type
    calls = [
        (((), {}), (0.5, 0.25, 1)),
        (((0.75,), {}), (0.75, 0.25, 1)),
        (((), {"shift": 2.0}), (0.5, 2.0, 1)),
        (((), {"sign": -1, "weight": 0.125}), (0.125, 0.25, -1)),
        (((0.75, 1.0), {"sign": 2}), (0.75, 1.0, 2)),
    ]
    for (arguments, names), (weight, shift, sign) in calls:
        out = a.like()
        combine(out, a, *arguments, **names)
        assert np.allclose(out[...], of(sign) * (of(weight) * values + of(shift)), rtol=1e-6, atol=1e-7)
        by_name = a.like()
        combine(a=a, out=by_name, weight=weight, shift=shift, sign=sign)
        assert np.array_equal(by_name[...], out[...])


def test_a_name_and_a_default_are_run_time_numbers_and_make_no_second_kernel():
    lattice = Lattice(4, 4)
    out, a = Field(lattice, Real()), Field(lattice, Real())
    combine(out, a)
    before = {name: count.made for name, count in COUNTS.items()}
    for weight in (0.1, 0.2):
        combine(out, a, weight=weight)
        combine(out, a, weight, shift=3.0)
    assert {name: count.made for name, count in COUNTS.items()} == before


def test_on_a_domain_by_name():
    lattice = Lattice(4, 3)
    out, a = Field(lattice, Real()), Field(lattice, Real())
    combine[EVEN](out, a, shift=1.0)
    parity = np.add.outer(np.arange(4), np.arange(3)) % 2
    assert np.array_equal(out[...], 1.0 - parity)


def test_sums_are_what_has_no_argument_and_no_default():
    lattice = Lattice(*EXTENTS)
    a = random_field(lattice, Real(), 2)
    v = a[...]
    for names, power, scale in (({}, 2, 1.0), ({"scale": 0.5}, 2, 0.5), ({"power": 3, "scale": 2.0}, 3, 2.0)):
        first, second = lattice.sum(moments, a, **names)
        assert np.isclose(first, scale * v.sum())
        assert np.isclose(second, scale * (abs(v) ** power).sum())
    assert lattice.sum(moments, a=a) == lattice.sum(moments, a)
    per = lattice.sum(moments, a=a, per=lattice.directions[0], over=EVEN)
    assert per[0].shape == (5,)


def test_a_sum_may_stand_before_an_argument_that_is_given_by_name():
    @jali.site_function
    def shifted(X, total, a, b):
        total += a[X] - b

    lattice = Lattice(3, 3)
    a = random_field(lattice, Real(), 3)
    assert np.isclose(lattice.sum(shifted, a=a, b=0.5), (a[...] - 0.5).sum())
    assert "reads a" in str(jali.inspect(shifted, a=a, b=0.5, lattice=lattice))


def test_inspection_takes_names():
    lattice = Lattice(4, 4)
    out, a = Field(lattice, Real()), Field(lattice, Real())
    assert jali.inspect(combine, out, a=a, shift=2.0).flops == jali.inspect(combine, out, a).flops


def test_functions_that_are_inlined_take_names_and_have_defaults():
    @jali.site_function
    def outer(X, out, a):
        combine(X, out, a=a, sign=-1)
        out[X] += 1

    lattice = Lattice(5, 3)
    out, a = Field(lattice, Real()), random_field(lattice, Real(), 4)
    outer(out, a)
    assert np.allclose(out[...], 0.75 - 0.5 * np.roll(a[...], -1, 0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: combine(a, a, wieght=1.0), "combine has no parameter wieght; it takes out, a, weight"),
        (lambda a: combine(a, a, 1.0, weight=1.0), "combine got weight twice"),
        (lambda a: combine(a, a, 1.0, 1.0, 1), "takes 5 arguments .*, sign by name, 5 were given"),
        (lambda a: combine(a, weight=1.0), "2 were given: a is missing"),
        (lambda a: a.lattice.sum(moments, a, 1.0, 2.0), "needs at least one of them left for the sum"),
        (lambda a: a.lattice.sum(moments, a, first=1.0, total=1.0), "moments has no parameter total"),
    ],
)
def test_what_does_not_fit_is_an_error(call, message):
    with pytest.raises(TraceError, match=message):
        call(Field(Lattice(4, 4), Real()))


def test_a_parameter_that_has_no_name_outside_is_given_by_position():
    @jali.site_function
    def f(X, a, /, b):
        a[X] = b

    a = Field(Lattice(4, 4), Real())
    f(a, b=2.0)
    assert np.all(a[...] == 2.0)
    with pytest.raises(TraceError, match="f takes a by its place, not by its name"):
        f(a=a, b=1.0)
