"""Numbers that stay on a device have the bits that the host would give them."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from shadow import assert_same_bits
from test_sums_on_devices import anything, total_of

import jali
from jali import Complex, Field, Lattice, Real


def staying(values, kind):
    lattice = Lattice(*values.shape, device=kind)
    field = Field(lattice, Complex() if values.dtype.kind == "c" else Real())
    field[...] = values
    return lattice.sum(total_of, field, wait=False), lattice.sum(total_of, field)


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_numbers_of_all_sizes_are_rounded_as_on_the_host(seed, device):
    rng = np.random.default_rng(seed)
    values = anything(rng, int(rng.integers(1, 300)))
    for v in (values, -values, np.concatenate([values, -values]), values * 1e-300, values[:3]):
        with np.errstate(over="ignore", under="ignore"):
            stays, waited = staying(v, device)
        assert_same_bits(float(stays), waited, f"sum of {len(v)}")


@pytest.mark.parametrize(
    "values",
    [
        [5e-324],
        [-5e-324, 1e-310],
        [1.7976931348623157e308] * 3,
        [-1.7976931348623157e308] * 3,
        [1.7976931348623157e308, 2.0**969],
        [2.0**1005, -(2.0**1005), 1.0],
        [1.0, 2.0**-53],
        [1.0, 2.0**-53, 2.0**-100],
        [1.0, -(2.0**-54), -(2.0**-100)],
        [1.0 + 2.0**-52, 2.0**-53],
        [-1.0 - 2.0**-52, -(2.0**-53)],
        [2.0**53, 1.0],
        [0.0, -0.0],
        [np.inf, 1.0],
        [-np.inf, 1.0],
        [np.inf, -np.inf],
        [np.nan, 1.0],
    ],
    ids=str,
)
def test_special_sums(values, device):
    stays, waited = staying(np.array(values), device)
    assert_same_bits(float(stays), waited, str(values))


def test_random_expressions_have_the_bits_of_python(device):
    rng = random.Random(7)
    lattice = Lattice(2, 2, device=device)
    for _ in range(6):
        known = [rng.gauss(0, 1) * 2.0 ** rng.randint(-9, 9) for _ in range(4)]
        there = [lattice.scalar(v) for v in known]
        for _ in range(25):
            a, b = rng.randrange(len(known)), rng.randrange(len(known))
            x, y = known[a], known[b]
            s, t = there[a], there[b]
            row = rng.choice("+-*/swqn")
            if row == "+":
                new = x + y, s + t
            elif row == "-":
                new = x - y, s - t
            elif row == "*":
                new = x * y, s * t
            elif row == "/" and y != 0:
                new = x / y, s / t
            elif row == "s" and x >= 0:
                new = math.sqrt(x), jali.sqrt(s)
            elif row == "w":
                new = (x if x < y else 2 * y), jali.where(s < t, s, 2 * t)
            elif row == "q":
                new = x * x * x, s**3
            else:
                new = -x, -s
            known.append(new[0])
            there.append(new[1])
        assert jali.read(*there) == known


def test_functions_of_numbers_on_a_device_have_the_bits_of_the_host(device):
    values = [0.3, -2.5, 1e300, -0.0, np.inf, np.nan]
    found = []
    for kind in ("cpu", device):
        lattice = Lattice(2, 2, device=kind)
        x, z = [lattice.scalar(v) for v in values], lattice.scalar(0.3 - 1.7j)
        one = [f(s) for s in x for f in (jali.exp, jali.sin, jali.cos, jali.tanh, jali.floor, jali.sign, abs)]
        two = [f(s, t) for s in x for t in x for f in (jali.atan2, jali.power, jali.maximum)]
        mixed = [jali.where(jali.exp(s) < 2, jali.sqrt(abs(s)), 1 / s) for s in x]
        found.append(jali.read(*one, *two, *mixed, jali.exp(z), jali.sqrt(z), abs(z), z * jali.log(z)))
    assert_same_bits(np.array(found[1]), np.array(found[0]), "functions")


def test_kernels_read_scalars_from_the_device(device):
    @jali.site_function
    def add(X, y, x, c, d):
        y[X] += c * x[X] + d

    @jali.site_function
    def two(X, x, z, first, second):
        first += x[X] * x[X]
        second += z[X] * x[X]

    results = []
    for kind in ("cpu", device):
        for wait in (True, False):
            lattice = Lattice(4, 4, 2, device=kind)
            x, z, y = (Field(lattice, e) for e in (Real(), Complex(), Complex()))
            rng = np.random.default_rng(3)
            x[...] = rng.normal(size=(4, 4, 2))
            z[...] = rng.normal(size=(4, 4, 2)) + 1j * rng.normal(size=(4, 4, 2))
            for _ in range(3):
                a, b = lattice.sum(two, x, z, wait=wait)
                add(y, x, a / 3, b)
                add[jali.EVEN](y, x, b.imag / a, 0.5)
            results.append(y[...])
    for other in results[1:]:
        assert_same_bits(other, results[0], "y")


def test_so_many_sums_at_once_stay(device):
    lattice = Lattice(3, device=device)
    fields = [Field(lattice, Complex()) for _ in range(3)]
    for k, f in enumerate(fields):
        f[...] = np.arange(3) * (1 + 2j) ** k

    @jali.site_function
    def six(X, fields, a, b, c):
        a += fields[0][X]
        b += fields[1][X]
        c += fields[2][X]

    waited = lattice.sum(six, fields)
    stays = lattice.sum(six, fields, wait=False)
    again = lattice.sum(six, fields, wait=False)
    assert jali.read(*stays, *again) == [*waited, *waited]
