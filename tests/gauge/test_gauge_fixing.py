"""Landau and Coulomb gauge: what is found is a maximum, by NumPy's definition, and observables do not notice."""

from __future__ import annotations

from typing import Any

import gauge_reference as reference
import numpy as np
import pytest
from gauge_reference import GROUPS, as_array, warm

import jali
from jali.errors import LayoutError, ParameterError, SolverError
from jali.gauge import (
    SU,
    GaugeField,
    coulomb_gauge,
    landau_gauge,
    link_trace,
    plaquette,
    polyakov_loop,
    sweep,
    wilson_loop,
)

GAUGES = {"Landau": landau_gauge, "Coulomb": coulomb_gauge}
EXTENTS = [(4, 6), (4, 4, 4, 4), (3, 4, 5)]


def functional_and_theta(V: np.ndarray, axes: range) -> tuple[float, float]:
    """By definition: mean of Re tr V / n, and the square of the divergence."""
    n = V.shape[-1]
    functional = float(np.mean([reference.trace(V[mu]).real for mu in axes])) / n
    delta = sum(reference.at(V[mu], (mu, -1)) - V[mu] for mu in axes)
    delta = 2 * reference.traceless_antihermitian(delta)
    return functional, float(np.sum(np.abs(delta) ** 2)) / (n * V[0, ..., 0, 0].size)


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", EXTENTS)
@pytest.mark.parametrize("n", GROUPS)
@pytest.mark.parametrize("name", GAUGES)
def test_the_gauge_is_fixed_and_observables_stay(name: str, n: int, extents: tuple[int, ...]) -> None:
    U = warm(extents, n, spread=0.4).random_gauge_transform(3)
    before = as_array(U)
    fixed = GAUGES[name](U, atol=1e-20)
    assert np.array_equal(as_array(U), before)
    V = fixed.field
    d = len(extents) - (name == "Coulomb")
    functional, theta = functional_and_theta(as_array(V), range(d))
    assert fixed.theta < 1e-20
    assert theta < 1e-19
    assert fixed.functional == pytest.approx(functional, abs=1e-12)
    assert plaquette(V) == pytest.approx(plaquette(U), abs=1e-12)
    assert wilson_loop(V, 2, 2) == pytest.approx(wilson_loop(U, 2, 2), abs=1e-12)
    assert polyakov_loop(V) == pytest.approx(polyakov_loop(U), abs=1e-12)
    assert V.unitarity_deviation() < 1e-13
    again = U.copy().gauge_transform(fixed.transformation)
    assert np.array_equal(as_array(again), as_array(V))


@pytest.mark.short(2)
@pytest.mark.parametrize("n", GROUPS)
@pytest.mark.parametrize("name", GAUGES)
def test_theta_has_the_normalisation_that_is_said(name: str, n: int) -> None:
    """Before the first sweep it is that of U itself, where it is far from zero."""
    U = warm((3, 4, 4, 5), n, spread=0.4)
    axes = range(4 - (name == "Coulomb"))
    history = GAUGES[name](U, atol=1e-2).history
    functional, theta = functional_and_theta(as_array(U), axes)
    assert theta > 0.1
    assert history[0] == (0, pytest.approx(functional, rel=1e-12), pytest.approx(theta, rel=1e-12))
    halves = 0.0  # A = (U - U^dagger) / 2, traceless, by itself
    V = as_array(U)
    A = [(V[mu] - reference.dagger(V[mu])) / 2 for mu in axes]
    if n > 1:
        A = [a - np.trace(a, axis1=-2, axis2=-1)[..., None, None] * np.eye(n) / n for a in A]
    for site in np.ndindex(*V.shape[1:-2]):
        delta = np.zeros((n, n), dtype=complex)
        for mu in axes:
            before = list(site)
            before[mu] -= 1
            delta += A[mu][tuple(before)] - A[mu][site]
        halves += np.vdot(delta, delta).real
    assert 4 * halves / (n * V[0, ..., 0, 0].size) == pytest.approx(history[0][2], rel=1e-12)


def test_a_gauge_fixing_is_shown_in_a_line_and_in_a_notebook_with_its_history_folded() -> None:
    fixed = landau_gauge(warm((4, 4, 4), 2, spread=0.4), check_interval=1)
    assert len(fixed.history) > 20
    assert repr(fixed).startswith(
        f"<gauge fixing, {fixed.sweeps} sweeps, functional {fixed.functional:.6g}, theta "
    )
    assert repr(fixed).endswith(f": {fixed.field!r}>")
    assert len(repr(fixed)) < 200
    page = fixed._repr_html_()
    assert "<b>Gauge fixing</b>" in page
    assert page.index("<details>") < page.index(f"{fixed.history[3][2]:.3e}")
    assert len(page[page.index("<pre>") : page.index("</pre>")].splitlines()) == len(fixed.history)


@pytest.mark.short(2)
@pytest.mark.parametrize("omega", [1.0, 1.7, 1.95])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_no_sweep_lowers_the_functional(n: int, omega: float) -> None:
    U = warm((4, 4, 6), n, spread=0.5).random_gauge_transform(1)
    for fix in GAUGES.values():
        history = fix(U, atol=1e-3, omega=omega, check_interval=1).history
        values = np.array([row[1] for row in history])
        assert len(values) > 5
        assert np.diff(values).min() > -1e-13
        assert [row[0] for row in history] == list(range(len(history)))


def test_overrelaxation_needs_fewer_sweeps() -> None:
    U, rng = GaugeField(jali.Lattice(6, 6, 6, 6), SU(2)).hot_start(1), jali.Random(1)
    for _ in range(20):
        sweep(U, 2.5, rng)
    assert 2 * landau_gauge(U, omega=1.7).sweeps < landau_gauge(U, omega=1.0).sweeps


def test_small_angles_around_the_vacuum_come_back_to_unit_links_of_space() -> None:
    """Of a pure gauge the largest functional is 1; near it no other maximum is in the way."""
    U = GaugeField(jali.Lattice(4, 4, 4, 4), SU(3)).cold_start()
    g = jali.Field(U.lattice, SU(3))
    g[...] = reference.near_unity((4, 4, 4, 4), 3, 2, 0.2)
    U.gauge_transform(g)
    assert link_trace(U) < 0.9
    fixed = landau_gauge(U, atol=1e-24)
    assert fixed.functional == pytest.approx(1, abs=1e-13)
    assert link_trace(fixed.field) == pytest.approx(1, abs=1e-13)
    assert coulomb_gauge(U, atol=1e-24).functional == pytest.approx(1, abs=1e-13)


def test_coulomb_gauge_fixes_every_slice_by_itself() -> None:
    U = warm((4, 4, 4, 4), 2)
    V = U.copy()
    V[0][:, :, :, 2] = warm((4, 4, 4, 4), 2, seed=9)[0][:, :, :, 2]
    one, other = (coulomb_gauge(u, atol=1e-2, check_interval=60) for u in (U, V))
    assert one.sweeps == other.sweeps == 60
    a, b = (fixed.transformation.local() for fixed in (one, other))
    same = np.abs(a - b).max(axis=(0, 1, 2, 4, 5)) == 0
    assert same.tolist() == [True, True, False, True]


def test_single_precision_reaches_the_default_tolerance() -> None:
    U = warm((4, 4, 4, 4), 3, spread=0.4, precision="float32")
    fixed = landau_gauge(U)
    assert fixed.theta < 1e-10
    assert plaquette(fixed.field) == pytest.approx(plaquette(U), abs=2e-6)


@pytest.mark.parametrize("name", GAUGES)
def test_ranks_do_not_change_a_bit(name: str) -> None:
    def run() -> list[Any]:
        U = warm((4, 6, 3, 4), 2, spread=0.3)
        fixed = GAUGES[name](U)
        return [fixed.sweeps, fixed.functional.hex(), fixed.theta.hex(), link_trace(fixed.field).hex()]

    alone = jali.virtual_ranks(1, run)
    assert jali.virtual_ranks(2, run) == alone * 2
    assert jali.virtual_ranks(3, run) == alone * 3


def test_an_open_boundary_has_a_gauge_too() -> None:
    U = GaugeField(jali.Lattice(4, 4, 4), SU(2), boundary=["periodic", "periodic", "open"]).hot_start(2)
    fixed = landau_gauge(U, atol=1e-18)
    assert fixed.theta < 1e-18
    assert plaquette(fixed.field) == pytest.approx(plaquette(U), abs=1e-13)
    inner = as_array(fixed.field).copy()
    inner[2][:, :, -1] = 0.0  # the links across the edge
    functional, theta = functional_and_theta(inner, range(3))
    assert fixed.functional == pytest.approx(
        functional * 3 * 4 / (2 * 4 + 3), abs=1e-12
    )  # of the links there are
    assert theta < 1e-17


@pytest.mark.parametrize("condition", ["antiperiodic", 1j])
def test_links_with_two_values_have_no_gauge(condition: Any) -> None:
    def run() -> None:
        U = GaugeField(jali.Lattice(4, 4, 4), SU(2), boundary={2: condition}).hot_start(2)
        with pytest.raises(
            LayoutError, match=r"these have the boundary \{2: .*\.assign\(U\) has the same links"
        ):
            landau_gauge(U)
        fixed = coulomb_gauge(U, atol=1e-18)  # looks across no edge in time
        links = GaugeField(U.lattice, SU(2)).assign(U)
        assert np.array_equal(as_array(fixed.field), as_array(coulomb_gauge(links, atol=1e-18).field))
        assert landau_gauge(links, atol=1e-18).theta < 1e-18

    jali.virtual_ranks(2, run)


@pytest.mark.parametrize(
    ("precision", "tolerance", "advice"),
    [
        (
            "float32",
            1e-14,
            r"float32 ends near 1e-12, GaugeField\(lattice, SU\(2\)\)\.assign\(U\) goes further",
        ),
        ("float64", 1e-34, "float64 ends near 3e-30$"),
        ("float32", 1e-10, "allow more"),
    ],
)
def test_a_tolerance_below_rounding_is_distinguished_from_too_few_sweeps(
    precision: str, tolerance: float, advice: str
) -> None:
    U = warm((4, 4, 4), 2, precision=precision)
    with pytest.raises(SolverError, match=advice):
        landau_gauge(U, atol=tolerance, maxiter=10 if advice == "allow more" else 300)


def test_what_cannot_be_fixed_is_refused_on_all_ranks() -> None:
    def run() -> None:
        U = warm((4, 4, 4), 2)
        with pytest.raises(SolverError, match=r"theta = \S+ after 3 sweeps, not below 1e-10"):
            landau_gauge(U, maxiter=3)
        for omega in (0.9, 2.0, float("nan")):
            with pytest.raises(ParameterError, match="omega from 1 to below 2"):
                landau_gauge(U, omega=omega)
        with pytest.raises(LayoutError, match="at least two dimensions"):
            coulomb_gauge(GaugeField(jali.Lattice(8), SU(2)).cold_start())

    jali.virtual_ranks(2, run)
