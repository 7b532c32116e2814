"""Halo items: what is found in a site function, and that sending it changes the bytes and no bit of the result."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Spinor
from jali.codegen.items import find_items
from jali.codegen.storage_formats import FORMATS, FieldArgument, on_the_wire, plain, wires
from jali.codegen.trace import trace
from jali.errors import LayoutError, StorageError
from jali.fermions import WilsonDirac
from jali.fermions.wilson import wilson_at
from jali.gauge import SU
from jali.gauge.staples import staple

pytestmark = pytest.mark.lanes


def program(function, arguments, names):
    (made,) = trace(function, arguments, names, 4, "float64")
    return made


def argument(element, identity):
    return FieldArgument(plain(element, "float64"), identity)


LINKS = [argument(SU(3), k) for k in range(4)]
STEPS = [tuple(s if d == axis else 0 for d in range(4)) for axis in range(4) for s in (1, -1)]


def test_wilson_hop_sends_projected_spinors_of_twelve_reals():
    def hop(X, out, psi, U):
        out[X] = wilson_at(X, psi, U, 0.1)

    made = program(hop, [argument(Spinor(3), 8), argument(Spinor(3), 9), LINKS], ["out", "psi", "U"])
    items = [cut.item for cut in find_items(made, STEPS)]
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
    (cut,) = find_items(made, STEPS)
    assert cut.item.reals == 1


EXTENTS = (4, 6, 4, 8)


@pytest.fixture(scope="module")
def numbers():
    rng = np.random.default_rng(3)
    links = [rng.normal(size=(*EXTENTS, 3, 3)) + 1j * rng.normal(size=(*EXTENTS, 3, 3)) for _ in range(4)]
    return links, rng.normal(size=(*EXTENTS, 4, 3)) + 1j * rng.normal(size=(*EXTENTS, 4, 3))


def wilson_twice(numbers, grid, items, boundary, wire="", device=None):
    """D D psi, and the bytes that the second D sent."""
    lattice = Lattice(*EXTENTS, grid=grid, halo_items=items, halo_wire=wire, device=device)
    mine = tuple(slice(o, o + n) for o, n in zip(lattice.local_origin, lattice.local_extents, strict=True))
    U = [Field(lattice, SU(3)).set_local(a[mine]) for a in numbers[0]]
    psi = Field(lattice, Spinor(3), boundary=boundary).set_local(numbers[1][mine])
    dirac = WilsonDirac(U, 0.1)
    between = dirac.apply(psi)
    before = lattice.layout("float64").halo_counters["bytes"]
    out = dirac.apply(between)
    return out[...], lattice.layout("float64").halo_counters["bytes"] - before


@pytest.mark.short(3)
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


# Of an item's largest number: half a unit in the last place, twice over, and what the sums of D add.
WIRE_BOUNDS = {
    "float32": 1e-6,
    "float16": 1e-2,
    "bfloat16": 1e-1,
    "fixed16": 1e-3,
    "fixed8": 2e-1,
    "float16-scaled": 1e-2,
}


@pytest.mark.short(2)
@pytest.mark.parametrize("wire", sorted(WIRE_BOUNDS))
def test_items_in_another_format_send_fewer_bytes_and_are_nearly_right(numbers, wire):
    assert sorted(wires()) == sorted(WIRE_BOUNDS)
    alone, _ = wilson_twice(numbers, None, True, None)
    face = 2 * EXTENTS[0] * EXTENTS[1] * EXTENTS[2]
    results = jali.virtual_ranks(2, wilson_twice, numbers, (1, 1, 1, 2), True, None, wire)
    for result, sent in results:
        assert sent == face * on_the_wire(12, "float64", wire).site_bytes
        differs = abs(result - alone)
        assert 0 < differs.max() < WIRE_BOUNDS[wire] * abs(alone).max()
        inside = differs.reshape(*EXTENTS, -1).max(axis=(0, 1, 2, 4)) == 0
        assert not inside.any()  # every slice is within two steps of the other rank
    assert results[0][0].tobytes() == results[1][0].tobytes()


def test_only_sites_that_see_another_rank_are_rounded():
    def run(wire):
        lattice = Lattice(4, 16, grid=(1, 2), halo_wire=wire)
        psi, out = lattice.field(jali.Vector(3)), lattice.field(jali.Real())
        psi[...] = np.random.default_rng(1).normal(size=(4, 16, 3))
        norm_ahead(out, psi)
        return out[...]

    exact, rounded = (jali.virtual_ranks(2, run, wire)[0] for wire in ("", "fixed8"))
    assert np.flatnonzero((exact != rounded).any(axis=0)).tolist() == [7, 15]


def test_single_precision_loses_nothing_as_float32(numbers):
    def run(wire):
        lattice = Lattice(4, 8, grid=(1, 2), halo_wire=wire)
        psi, out = (lattice.field(e, precision="float32") for e in (jali.Vector(3), jali.Real()))
        psi[...] = np.random.default_rng(1).normal(size=(4, 8, 3))
        norm_ahead(out, psi)
        return out[...].tobytes()

    assert jali.virtual_ranks(2, run, "float32") == jali.virtual_ranks(2, run, "")


@jali.site_function
def norm_ahead(X, out, psi):
    out[X] = psi[X + X.directions()[-1]].norm2()


@jali.site_function
def norms_ahead(X, psi, total):
    total += psi[X + X.directions()[-1]].norm2()


def test_values_that_the_wire_cannot_hold_are_an_error_on_every_rank():
    def run():
        lattice = Lattice(4, 8, grid=(1, 2), halo_wire="float16")
        psi, out = lattice.field(jali.Vector(3)), lattice.field(jali.Real())
        psi[...] = 1
        norm_ahead(out, psi)
        assert (out[...] == 3).all()
        assert lattice.sum(norms_ahead, psi) == 96
        psi[3, 4] = 1000  # whose norm is beyond 65504; rank 1 sends it
        norm_ahead(out, psi)
        with pytest.raises(StorageError, match="1 site was given values .* by a halo item of norm_ahead"):
            out[...]
        with pytest.raises(StorageError, match="a halo item of norms_ahead"):
            lattice.sum(norms_ahead, psi)
        psi[3, 4] = 1
        norm_ahead(out, psi)
        assert (out[...] == 3).all()

    jali.virtual_ranks(2, run)


def test_formats_that_cannot_travel_are_refused():
    for name in ("float64", "int32", "float16-12", "half", 16):
        with pytest.raises(LayoutError, match="halo items do not travel as .*float16"):
            Lattice(4, 4, halo_wire=name)
    assert "float64" in FORMATS
