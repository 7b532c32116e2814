"""Methods and functions of whole fields refuse what they cannot take, by name, and never hand on Python's NotImplemented."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Field, Lattice, LayoutError, Real


@pytest.fixture
def f():
    field = Field(Lattice(2, 3), Real())
    field[...] = np.arange(6.0).reshape(2, 3)
    return field


@pytest.mark.parametrize("name", ["sum", "mean", "max", "min"])
def test_an_axis_is_refused_where_all_sites_are_meant(f, name):
    for of in (f, f + 1):
        for call in (lambda of=of: getattr(of, name)(0), lambda of=of: getattr(of, name)(axis=1)):
            with pytest.raises(LayoutError, match=f"{name} of a field is over all sites"):
                call()
    np.testing.assert_array_equal(getattr(np, name)(f, axis=1), getattr(np, name)(f[...], axis=1))
    with pytest.raises(TypeError):
        f.norm2(True)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("maximum", lambda f: jali.maximum(f, None)),
        ("minimum", lambda f: jali.minimum([1, 2], f)),
        ("power", lambda f: jali.power(f, "2")),
        ("atan2", lambda f: jali.atan2(f, None)),
        ("dot", lambda f: f.dot([1, 2])),
        ("outer", lambda f: f.outer([1])),
    ],
)
def test_functions_of_two_refuse_what_is_no_field_and_no_number(f, name, call):
    with pytest.raises(LayoutError, match=f"^{name} takes fields, expressions of fields and numbers, not "):
        call(f)


def test_a_number_to_the_power_of_a_field(f):
    np.testing.assert_array_equal((2**f)[...], 2.0 ** f[...])
    np.testing.assert_array_equal((2.0 ** (f + 1))[...], 2.0 ** (f[...] + 1))


def test_defaults_that_a_site_function_gets_later_are_taken(f):
    def scaled(X, out, a, w=2.0, *, q=1.0):
        out[X] = w * a[X] * q

    def run(**named):
        kernel(out, f, **named)
        return out[0, 1]

    kernel, out = jali.site_function(scaled), f.like()
    assert run() == 2.0
    scaled.__defaults__ = (3.0,)
    assert run() == 3.0
    scaled.__kwdefaults__["q"] = 5.0
    assert run() == 15.0
    assert run(w=1.0) == 5.0
    scaled.__defaults__ = None
    with pytest.raises(jali.TraceError, match="w is missing"):
        run()
