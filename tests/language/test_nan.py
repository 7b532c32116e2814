"""NaN wins in minima and maxima of two numbers, as in NumPy, whichever argument it is; of all else the bits are as ever."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Real

pytestmark = pytest.mark.lanes

VALUES = [math.nan, -math.inf, -2.0, -0.0, 0.0, 5e-324, 1.0, math.inf]
PAIRS = np.array(list(itertools.product(VALUES, VALUES)))


@jali.site_function
def compared(X, low, high, clipped, above, a, b):
    low[X] = jali.minimum(a[X], b[X])
    high[X] = jali.maximum(a[X], b[X])
    clipped[X] = jali.maximum(jali.minimum(a[X], 1.0), 0.5)
    above[X] = jali.maximum(0.5, a[X])


def numbers(device="cpu", precision="float64"):
    lattice = Lattice(len(PAIRS) + 1, device=device)
    a, b, *out = (Field(lattice, Real(), precision=precision) for _ in range(6))
    a[:-1], b[:-1] = PAIRS.T.astype(precision)
    return a, b, out


def bits(x):
    return np.where(np.isnan(x), np.nan, x).view(f"i{x.itemsize}")


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_site_functions_agree_with_numpy(precision):
    a, b, out = numbers(precision=precision)
    compared(*out, a, b)
    low, high, clipped, above = (f[...] for f in out)
    x, y = a[...], b[...]
    assert np.array_equal(low, np.minimum(x, y), equal_nan=True)
    assert np.array_equal(high, np.maximum(x, y), equal_nan=True)
    assert np.array_equal(clipped, np.clip(x, 0.5, 1.0), equal_nan=True)
    assert np.array_equal(above, np.maximum(0.5, x), equal_nan=True)
    some = ~np.isnan(x) & ~np.isnan(y)  # of zeros of both signs the second is taken
    assert np.array_equal(bits(low)[some], bits(np.where(x < y, x, y))[some])
    assert np.array_equal(bits(high)[some], bits(np.where(x > y, x, y))[some])


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_whole_fields_agree_with_numpy(precision):
    a, b, _ = numbers(precision=precision)
    x, y = a[...], b[...]
    for function, expected in ((jali.minimum, np.minimum), (jali.maximum, np.maximum)):
        for left, right in ((a, b), (a, 0.0), (0.0, a)):
            found = function(left, right).field()[...]
            numpys = [x if f is a else y if f is b else f for f in (left, right)]
            assert np.array_equal(found, expected(*numpys).astype(precision), equal_nan=True)


def test_numbers_of_python_do_as_sites_do():
    for a, b in PAIRS.tolist():
        assert np.array_equal(jali.minimum(a, b), np.minimum(a, b), equal_nan=True)
        assert np.array_equal(jali.maximum(a, b), np.maximum(a, b), equal_nan=True)
    assert isinstance(jali.maximum(2, 3), int)
