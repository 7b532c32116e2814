"""Halo items: what is found in a site function, and that sending it changes the bytes and no bit of the result."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Spinor
from jali.codegen.formats import plain
from jali.codegen.items import find_items
from jali.codegen.trace import FieldArgument, trace
from jali.fermions import WilsonDirac
from jali.fermions.wilson import wilson_at
from jali.gauge import SU
from jali.gauge.staples import staple

pytestmark = pytest.mark.lanes


def program(function, arguments, names):
    (made,) = trace(function, arguments, names, 4, "float64", 0)
    return made


def argument(element, identity):
    return FieldArgument(plain(element, "float64"), identity)


LINKS = [argument(SU(3), k) for k in range(4)]
STEPS = [tuple(s if d == axis else 0 for d in range(4)) for axis in range(4) for s in (1, -1)]


def test_wilson_hop_sends_projected_spinors_of_twelve_reals():
    def hop(X, out, psi, U):
        out[X] = wilson_at(X, psi, U, 0.1)

    made = program(hop, [argument(Spinor(3), 8), argument(Spinor(3), 9), LINKS], ["out", "psi", "U"])
    items = find_items(made, STEPS)
    assert [item.offset for item in items] == STEPS
    assert {item.reals for item in items} == {12}
    for item in items:
        # backwards the link's adjoint is multiplied on by the sender, forwards the reader has the link
        assert len(item.slots) == (2 if min(item.offset) < 0 else 1)


def test_staples_send_links():
    def staples(X, out, U):
        out[X] = staple(X, U, jali.codegen.directions.directions(4)[0])

    made = program(staples, [argument(jali.Matrix(3), 9), LINKS], ["out", "U"])
    assert find_items(made, STEPS) == []


def test_value_that_mixes_sites_is_no_item():
    def mixed(X, out, psi):
        e = X.directions()[0]
        out[X] = psi[X + e].dot(psi[X]) + psi[X + e].norm2()

    made = program(mixed, [argument(jali.Complex(), 1), argument(jali.Vector(3), 2)], ["out", "psi"])
    assert find_items(made, STEPS) == []


def test_norm_of_a_neighbour_travels_as_one_number():
    def norms(X, out, psi):
        e = X.directions()[0]
        out[X] = psi[X + e].norm2()

    made = program(norms, [argument(jali.Real(), 1), argument(jali.Vector(3), 2)], ["out", "psi"])
    (item,) = find_items(made, STEPS)
    assert item.reals == 1


EXTENTS = (4, 6, 4, 8)


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(3)
    links = [rng.normal(size=(*EXTENTS, 3, 3)) + 1j * rng.normal(size=(*EXTENTS, 3, 3)) for _ in range(4)]
    return links, rng.normal(size=(*EXTENTS, 4, 3)) + 1j * rng.normal(size=(*EXTENTS, 4, 3))


def wilson_twice(numbers, grid, items, boundary):
    """D D psi, and the bytes that the second D sent."""
    lattice = Lattice(*EXTENTS, grid=grid, halo_items=items)
    mine = tuple(slice(o, o + n) for o, n in zip(lattice.local_origin, lattice.local_extents, strict=True))
    U = [Field(lattice, SU(3)).set_local(a[mine]) for a in numbers[0]]
    psi = Field(lattice, Spinor(3), boundary=boundary).set_local(numbers[1][mine])
    dirac = WilsonDirac(U, 0.1)
    between = dirac.apply(psi)
    before = lattice.layout("float64").halo_counters["bytes"]
    out = dirac.apply(between)
    return out[...], lattice.layout("float64").halo_counters["bytes"] - before


@pytest.mark.parametrize("boundary", [None, {3: "antiperiodic"}, {3: np.exp(0.3j), 1: "open"}])
@pytest.mark.parametrize("grid", [(1, 1, 1, 2), (1, 1, 2, 2), (2, 1, 1, 2)])
def test_items_change_no_bit(numbers, grid, boundary):
    alone, _ = wilson_twice(numbers, None, True, boundary)
    ranks = int(np.prod(grid))
    for items in (True, False):
        for result, _ in jali.virtual_ranks(ranks, wilson_twice, numbers, grid, items, boundary):
            assert np.array_equal(result.view(np.int64), alone.view(np.int64))


def test_items_halve_the_bytes(numbers):
    whole = jali.virtual_ranks(2, wilson_twice, numbers, (1, 1, 1, 2), False, None)
    items = jali.virtual_ranks(2, wilson_twice, numbers, (1, 1, 1, 2), True, None)
    face = 2 * EXTENTS[0] * EXTENTS[1] * EXTENTS[2]  # both faces of a rank
    assert {b for _, b in whole} == {face * 24 * 8}
    assert {b for _, b in items} == {face * 12 * 8}
