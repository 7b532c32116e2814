"""Reads at offsets: any offset, any number of dimensions, any extents, any boundary condition, against explicit gathers."""

from __future__ import annotations

import cmath

import numpy as np
import pytest
from support import compare, random_field

import jali
from jali import SU, Complex, Field, Lattice, Real, Spinor, Vector

pytestmark = pytest.mark.lanes

PHASE = cmath.exp(0.7j)


def all_neighbours(J, X, out, a):
    """Every offset with steps -2 to 2 along axes, and diagonals, each with its own weight."""
    total = a[X]
    weight = 2.0
    for mu in X.directions():
        for step in (-3, -2, -1, 1, 2, 3):
            total = total + weight * a[X + step * mu]
            weight += 1
    for mu, nu in X.planes():
        for offset in (mu + nu, mu - nu, nu - mu, -mu - nu, 2 * mu - nu, mu + 3 * nu):
            total = total + weight * a[X + offset]
            weight += 1
    out[X] = total


LATTICES = [
    (1,),
    (2,),
    (3,),
    (7,),
    (16,),
    (1, 1),
    (2, 3),
    (3, 2),
    (5, 4),
    (8, 8),
    (4, 2, 3),
    (1, 6, 2),
    (8, 1, 1),
]
LATTICES += [
    (4, 4, 4, 4),
    (2, 3, 1, 5),
    (6, 2, 2, 2),
    (1, 1, 1, 1),
    (2, 2, 2, 2, 2),
    (3, 1, 2, 4, 2),
    (4, 4, 2, 2, 2),
]


@pytest.mark.short(5)
@pytest.mark.parametrize(
    ("extents", "precision"),
    [(extents, "float64") for extents in LATTICES]
    + [
        (extents, "float32")
        for extents in [(2,), (16,), (3, 2), (8, 8), (4, 2, 3), (4, 4, 4, 8), (2, 2, 2, 2, 2)]
    ],
    ids=str,
)
def test_any_offset_wraps_around_on_any_lattice(extents, precision):
    lattice = Lattice(*extents)
    a = random_field(lattice, Real(), 1, precision=precision)
    compare(all_neighbours, a.like(), a, scale=100)


@pytest.mark.short(3)
@pytest.mark.parametrize("condition", ["periodic", "antiperiodic", "open", -1, 1, PHASE, 1j])
@pytest.mark.parametrize("extents", [(8,), (1, 3), (2, 5), (4, 4), (3, 3, 2), (4, 2, 4, 8)], ids=str)
def test_boundary_condition_in_all_directions(condition, extents):
    lattice = Lattice(*extents)
    a = random_field(lattice, Vector(2), 2, boundary=condition)
    compare(all_neighbours, Field(lattice, Vector(2)), a, scale=100)


def test_boundary_condition_differs_by_direction():
    lattice = Lattice(4, 6, 3, 8)
    conditions = ["antiperiodic", PHASE, "open", "periodic"]
    a = random_field(lattice, Complex(), 3, boundary=conditions)
    assert a.boundary.conditions[3] == "periodic"
    compare(all_neighbours, Field(lattice, Complex()), a, scale=100)


def test_boundary_condition_by_dictionary_of_directions():
    lattice = Lattice(4, 4, 8)
    time = lattice.directions[2]
    a = random_field(lattice, Spinor(2), 4, boundary={time: "antiperiodic", 0: PHASE})
    assert a.boundary.conditions[1] == "periodic"
    compare(all_neighbours, Field(lattice, Spinor(2)), a, scale=100)


@pytest.mark.short(1)
@pytest.mark.parametrize("element", [Real(), SU(2), jali.Algebra(3)], ids=str)
def test_antiperiodic_and_open_boundaries_of_real_and_matrix_fields(element):
    lattice = Lattice(4, 6, 8)
    a = random_field(lattice, element, 5, boundary=["antiperiodic", "open", "periodic"])
    out = Field(lattice, jali.Matrix(element.type.shape[0]) if element.type.shape else Real())
    compare(all_neighbours, out, a, scale=100)


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_boundary_factor_applies_once_per_winding(precision):
    lattice = Lattice(2, 3)
    a = random_field(lattice, Complex(), 6, precision=precision, boundary=[PHASE, "antiperiodic"])

    def far(J, X, out, a):
        mu, nu = X.directions()
        out[X] = a[X + 5 * mu] + 2 * a[X - 4 * mu + 7 * nu] + 3 * a[X - 6 * nu]

    compare(far, Field(lattice, Complex(), precision=precision), a)


def test_fields_with_different_boundaries_meet_in_one_loop():
    lattice = Lattice(4, 4, 4)
    a = random_field(lattice, Complex(), 7, boundary="antiperiodic")
    b = random_field(lattice, Complex(), 8)
    c = random_field(lattice, Complex(), 9, boundary="open")

    def mixed(J, X, out, a, b, c):
        for mu in X.directions():
            out[X] += a[X + mu] * b[X - mu] + c[X + mu] * b[X + mu] - a[X - mu]

    compare(mixed, Field(lattice, Complex()), a, b, c)


def test_same_function_runs_with_another_boundary():
    """One site function, traced once, bound to fields that differ only in their boundary."""
    lattice = Lattice(4, 4)

    @jali.site_function
    def shift(X, out, a):
        out[X] = a[X + X.directions()[0]]

    values = np.arange(16.0).reshape(4, 4)
    expected = np.roll(values, -1, axis=0)
    for condition, factor in (("periodic", 1), ("antiperiodic", -1), ("open", 0)):
        a, out = Field(lattice, Real(), boundary=condition), Field(lattice, Real())
        a[...] = values
        shift(out, a)
        edge = expected.copy()
        edge[-1] *= factor
        assert np.array_equal(out[...], edge)


def test_offsets_of_a_loop_over_planes_cover_every_pair_once():
    lattice = Lattice(3, 4, 5)
    a = random_field(lattice, Real(), 10)

    def planes(J, X, out, a):
        for mu, nu in X.planes():
            assert int(mu) < int(nu)
            out[X] += a[X + mu] * a[X + nu]

    compare(planes, a.like(), a)


def test_single_precision_storage_computes_in_double():
    """float32 under float64: values are rounded when stored, nothing else is."""
    lattice = Lattice(4, 4, 4)
    a = random_field(lattice, Complex(), 11, storage="float32", boundary="antiperiodic")
    exact = Field(lattice, Complex())
    assert np.array_equal(a[...], a[...].astype("complex64"))
    compare(all_neighbours, exact, a, scale=100)

    @jali.site_function
    def third(X, out, a):
        out[X] = a[X] / 3

    rounded = Field(lattice, Complex(), storage="float32")
    third(exact, a)
    third(rounded, a)
    assert np.array_equal(rounded[...], exact[...].astype("complex64").astype("complex128"))


def test_fields_are_converted_between_precisions_on_request():
    lattice = Lattice(4, 6)
    a = random_field(lattice, SU(3), 12)
    single = a.astype("float32")
    assert single.precision == "float32"
    assert np.array_equal(single[...], a[...].astype("complex64"))
    assert np.array_equal(single.astype("float64")[...], single[...])
