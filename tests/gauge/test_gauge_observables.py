"""Observables against plain NumPy, under gauge transformations, and on configurations that are known exactly."""

from __future__ import annotations

import cmath
import itertools
import math

import gauge_reference as reference
import numpy as np
import pytest
from gauge_reference import GROUPS, as_array, warm

import jali
from jali.errors import LayoutError, ParameterError
from jali.gauge import (
    SU,
    GaugeField,
    link_trace,
    measure_field_strength,
    plaquettes,
    polyakov_loop,
    staple_sum,
    topological_charge,
    wilson_action,
    wilson_loop,
    wilson_loops,
)

SHAPES = [(4, 4), (5, 3), (4, 4, 4), (4, 2, 3, 6)]


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", SHAPES)
@pytest.mark.parametrize("n", GROUPS)
def test_plaquettes_and_loops_agree_with_numpy(extents: tuple[int, ...], n: int) -> None:
    U = warm(extents, n)
    array = as_array(U)
    np.testing.assert_allclose(plaquettes(U), reference.plaquettes(array), atol=1e-14)
    assert link_trace(U) == pytest.approx(reference.trace(array).real.mean() / n, abs=1e-14)
    for mu in range(len(extents)):
        assert polyakov_loop(U, mu) == pytest.approx(reference.polyakov_loop(array, mu), abs=1e-14)
    assert polyakov_loop(U) == polyakov_loop(U, len(extents) - 1)


@pytest.mark.parametrize("extents", [(4, 5), (3, 4, 3)])
@pytest.mark.parametrize("n", [1, 3])
def test_wilson_loops_of_all_sizes_agree_with_numpy(extents: tuple[int, ...], n: int) -> None:
    U = warm(extents, n)
    array = as_array(U)
    for time in (None, len(extents) - 1, 0):
        loops = wilson_loops(U, 3, 3, time)
        for r, t in itertools.product((1, 2, 3), repeat=2):
            exact = reference.wilson_loop(array, r, t, time)
            assert loops[r - 1, t - 1] == pytest.approx(exact, abs=1e-13)
    assert wilson_loop(U, 2, 3) == wilson_loops(U, 2, 3)[1, 2]


def test_the_smallest_wilson_loop_is_the_plaquette() -> None:
    U = warm((4, 4, 4, 4), 3)
    assert wilson_loop(U, 1, 1) == pytest.approx(plaquettes(U)[0], abs=1e-14)
    assert wilson_loop(U, 1, 1, time=3) == pytest.approx(plaquettes(U)[2], abs=1e-14)


def test_impossible_loop_sizes_are_refused() -> None:
    U = warm((4, 6), 1)
    with pytest.raises(ParameterError, match="do not fit"):
        wilson_loops(U, 5, 5)
    with pytest.raises(ParameterError, match="from 1 x 1"):
        wilson_loop(U, 0, 1)


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", [(2, 2), (4, 4, 4), (4, 2, 3, 6)])
@pytest.mark.parametrize("n", GROUPS)
def test_staples_agree_with_numpy_and_close_to_the_plaquettes(extents: tuple[int, ...], n: int) -> None:
    U = warm(extents, n)
    array = as_array(U)
    out = jali.Field(U.lattice, jali.Matrix(n))
    total = 0.0
    for mu in U.lattice.directions:
        staple_sum(U, out, mu)
        S = out.local()
        np.testing.assert_allclose(S, reference.staple(array, int(mu)), atol=1e-13)
        total += float((array[int(mu)] * S.conj()).sum().real)
    d = len(extents)
    # every plaquette belongs to four links
    planes = d * (d - 1) / 2
    assert total / (4 * n * planes * U.lattice.volume) == pytest.approx(plaquettes(U)[0], abs=1e-13)


@pytest.mark.short(1)
@pytest.mark.parametrize("n", GROUPS)
def test_field_strength_sums_agree_with_numpy(n: int) -> None:
    U = warm((4, 2, 3, 6), n, spread=0.4)
    array = as_array(U)
    found = measure_field_strength(U)
    energy = sum(
        float((np.abs(reference.field_strength(array, m, v)) ** 2).sum()) / U.lattice.volume
        for m, v in itertools.combinations(range(4), 2)
    )
    assert found.energy == pytest.approx(energy, rel=1e-13)
    assert found.energy_plaquette == pytest.approx(2 * n * 6 * (1 - plaquettes(U)[0]), rel=1e-13)
    assert found.charge == pytest.approx(reference.levi_civita_charge(array), abs=1e-13)


@pytest.mark.short(2)
@pytest.mark.parametrize("n", GROUPS)
@pytest.mark.parametrize("extents", [(4, 4), (4, 4, 4, 4)])
def test_every_observable_is_gauge_invariant(extents: tuple[int, ...], n: int) -> None:
    def observe(U: GaugeField) -> np.ndarray:
        found = measure_field_strength(U)
        values = [*plaquettes(U), found.energy, found.energy_plaquette, found.charge]
        values += [polyakov_loop(U, mu) for mu in range(len(extents))]
        values += list(wilson_loops(U, 2, 2).ravel())
        values += [wilson_action(2.0).density(U)]
        if n == 1 and len(extents) == 2:
            values.append(topological_charge(U))
        return np.array(values)

    U = warm(extents, n)
    before, traces = observe(U), link_trace(U)
    U.random_gauge_transform(7)
    np.testing.assert_allclose(observe(U), before, atol=1e-13)
    assert abs(link_trace(U) - traces) > 1e-3  # the transformation did something


@pytest.mark.parametrize("n", [2, 3])
def test_a_centre_transformation_turns_the_polyakov_loop_and_nothing_else(n: int) -> None:
    U = warm((4, 4, 4, 4), n)
    z = cmath.exp(2j * math.pi / n)
    before = polyakov_loop(U), polyakov_loop(U, 0), plaquettes(U), wilson_loops(U, 2, 2)
    U[3][:, :, :, 1] = z * U[3][:, :, :, 1]
    assert polyakov_loop(U) == pytest.approx(z * before[0], abs=1e-14)
    assert polyakov_loop(U, 0) == pytest.approx(before[1], abs=1e-14)
    np.testing.assert_allclose(plaquettes(U), before[2], atol=1e-14)
    np.testing.assert_allclose(wilson_loops(U, 2, 2), before[3], atol=1e-13)


# ---- configurations of constant field strength -----------------------------------------------------------


def flux(extents: tuple[int, int], quanta: int) -> tuple[np.ndarray, np.ndarray]:
    """Angles of the two links of a plane, [x, y], whose plaquette angle is 2 pi quanta / (Lx Ly) everywhere."""
    lx, ly = extents
    x, y = np.meshgrid(np.arange(lx), np.arange(ly), indexing="ij")
    angle = 2 * math.pi * quanta / (lx * ly)
    # U_y winds by x; at the edge in x a gauge function of y takes the jump back
    first = np.where(x == lx - 1, -angle * lx * y, 0.0)
    return first, angle * x


@pytest.mark.parametrize("quanta", [0, 1, -2, 5])
def test_charge_of_constant_u1_flux_is_exact(quanta: int) -> None:
    lattice = jali.Lattice(6, 8)
    U = GaugeField(lattice, SU(1))
    for field, angles in zip(U.fields, flux((6, 8), quanta), strict=True):
        field[...] = np.exp(1j * angles)[..., None, None]
    assert topological_charge(U) == pytest.approx(quanta, abs=1e-12)
    assert plaquettes(U)[0] == pytest.approx(math.cos(2 * math.pi * quanta / 48), abs=1e-14)


def test_u1_charge_is_an_integer_on_any_configuration() -> None:
    U = GaugeField(jali.Lattice(8, 6), SU(1)).hot_start(3)
    assert abs(topological_charge(U) - round(topological_charge(U))) < 1e-12


@pytest.mark.parametrize(("first", "second"), [(1, 1), (1, -1), (2, 1), (-1, 2)])
def test_clover_charge_of_abelian_flux_in_su2_is_its_lattice_formula(first: int, second: int) -> None:
    """Flux 2 pi k in two orthogonal planes of diag(e^{i a}, e^{-i a}): Q = 2 k k' in the continuum.

    On the lattice the clover has sin(angle) for the angle of the plaquette, so that the value is exact here
    too.
    """
    extents = (6, 4, 4, 6)
    lattice = jali.Lattice(*extents)
    U = GaugeField(lattice, SU(2))
    planes = [((0, 1), flux(extents[:2], first)), ((2, 3), flux(extents[2:], second))]
    for (mu, nu), angles in planes:
        for axis, angle in zip((mu, nu), angles, strict=True):
            shape = [extents[d] if d in (mu, nu) else 1 for d in range(4)]
            phase = np.broadcast_to(np.exp(1j * angle).reshape(shape), extents)
            U[axis][...] = phase[..., None, None] * np.diag([1, 0]) + phase.conj()[..., None, None] * np.diag(
                [0, 1]
            )
    a, b = 2 * math.pi * first / 24, 2 * math.pi * second / 24
    exact = lattice.volume * 2 * math.sin(a) * math.sin(b) / (4 * math.pi**2)
    assert topological_charge(U) == pytest.approx(exact, abs=1e-12)
    assert topological_charge(U) == pytest.approx(2 * first * second, rel=0.12)
    found = measure_field_strength(U)
    assert found.energy == pytest.approx(2 * (math.sin(a) ** 2 + math.sin(b) ** 2), rel=1e-12)


def test_charges_without_a_definition_are_refused() -> None:
    with pytest.raises(LayoutError, match="four dimensions"):
        topological_charge(warm((4, 4), 2))
    with pytest.raises(LayoutError, match="four dimensions"):
        topological_charge(warm((4, 4, 4), 1))


def test_a_line_has_no_plaquettes() -> None:
    U = GaugeField(jali.Lattice(8), SU(2)).hot_start(1)
    with pytest.raises(LayoutError, match="no plaquettes"):
        plaquettes(U)
    with pytest.raises(LayoutError, match="no field strength"):
        measure_field_strength(U)
    assert polyakov_loop(U, 0) == pytest.approx(reference.polyakov_loop(as_array(U), 0), abs=1e-14)


def test_single_precision_observables_agree_with_double() -> None:
    U = warm((4, 4, 4, 4), 3)
    V = GaugeField(U.lattice, SU(3), precision="float32").assign(U)
    np.testing.assert_allclose(plaquettes(V), plaquettes(U), atol=1e-6)
    np.testing.assert_allclose(wilson_loops(V, 2, 2), wilson_loops(U, 2, 2), atol=1e-6)
    assert topological_charge(V) == pytest.approx(topological_charge(U), abs=1e-4)


def test_open_boundaries_drop_the_plaquettes_across_the_edge() -> None:
    boundary = {1: "open"}
    U = warm((4, 6), 2, boundary=boundary)
    array = as_array(U)
    inside = reference.trace(reference.path(array, [1, 2, -1, -2])).real[:, :-1].sum() / 2
    assert plaquettes(U)[0] * 20 == pytest.approx(inside, abs=1e-13)
