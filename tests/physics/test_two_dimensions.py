"""Two-dimensional gauge theory against exact values on the very torus that is simulated."""

from __future__ import annotations

import exact
import numpy as np
import pytest
from chains import UPDATES, chain, check

from jali.gauge import GaugeField, plaquette, topological_charge, wilson_loops
from jali.statistics import mean_error

CASES = [("U(1)", 2.0), ("SU(2)", 2.0), ("SU(2)", 4.0), ("SU(3)", 6.0)]


@pytest.mark.short(2)
@pytest.mark.parametrize(("group", "beta"), CASES)
def test_plaquette_of_two_by_two_torus_is_exact(group: str, beta: float) -> None:
    """Both neighbours of a site are the same site, and 4 plaquettes feel the topology."""
    value = exact.torus_plaquette(group, beta, 4)
    check(chain(group, beta, (2, 2), 6000, seed=3), value, most=4e-3)
    assert abs(value - exact.single_plaquette(group, beta)) > 5e-3 or group == "U(1)"


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("group", "beta"),
    [
        ("U(1)", 0.2),
        ("U(1)", 2.0),
        ("U(1)", 8.0),
        ("SU(2)", 0.4),
        ("SU(2)", 2.0),
        ("SU(3)", 1.5),
        ("SU(3)", 6.0),
    ],
)
def test_plaquette_of_a_torus_is_exact_at_weak_and_strong_coupling(group: str, beta: float) -> None:
    value = exact.torus_plaquette(group, beta, 32 * 24)
    check(chain(group, beta, (32, 24), 400, seed=5), value, most=1.5e-3)


@pytest.mark.short(2)
@pytest.mark.parametrize("update", ["heat bath", "heat bath and overrelaxation", "Metropolis"])
@pytest.mark.parametrize("group", ["U(1)", "SU(2)", "SU(3)"])
def test_all_algorithms_reach_the_same_exact_plaquette(group: str, update: str) -> None:
    beta = 1.5 * {"U(1)": 1, "SU(2)": 2, "SU(3)": 3}[group]
    value = exact.torus_plaquette(group, beta, 16 * 16)
    check(chain(group, beta, (16, 16), 800, seed=7, update=update), value, most=4e-3)


def test_odd_extents_have_the_exact_plaquette_too() -> None:
    """Three colours instead of two."""
    value = exact.torus_plaquette("SU(2)", 3.0, 15)
    check(chain("SU(2)", 3.0, (3, 5), 3000, seed=2), value, most=4e-3)
    value = exact.torus_plaquette("U(1)", 1.0, 63)
    check(chain("U(1)", 1.0, (9, 7), 2000, seed=2), value, most=4e-3)


@pytest.mark.short(1)
@pytest.mark.parametrize(("group", "beta"), [("U(1)", 2.0), ("SU(2)", 4.0), ("SU(3)", 9.0)])
def test_wilson_loops_obey_the_area_law_exactly(group: str, beta: float) -> None:
    sizes = [(1, 1), (1, 2), (2, 2), (1, 4), (2, 3)]

    def observe(U: GaugeField) -> list[float]:
        loops = wilson_loops(U, 2, 4)
        return [loops[r - 1, t - 1] for r, t in sizes]

    loops = chain(group, beta, (16, 12), 400, seed=4, observe=observe)
    for k, (r, t) in enumerate(sizes):
        value = exact.torus_wilson_loop(group, beta, 16 * 12, r * t)
        check(loops[:, k], value, most=5e-3)
        assert value == pytest.approx(exact.plane_wilson_loop(group, beta, r * t), rel=1e-3)


def test_the_topological_susceptibility_of_u1_is_exact() -> None:
    square, _ = exact.u1_torus_charge(1.0, 64)
    charges = chain("U(1)", 1.0, (8, 8), 3000, seed=6, observe=topological_charge)
    assert np.abs(charges - np.round(charges)).max() < 1e-9
    check(charges**2, square, most=0.1)
    assert abs(charges.mean()) < 4 * mean_error(charges).error


@pytest.mark.full
@pytest.mark.parametrize("update", [name for name in UPDATES if name != "production"])
@pytest.mark.parametrize(("group", "beta"), [*CASES, ("SU(2)", 0.5), ("SU(3)", 2.0)])
def test_long_two_by_two_tori_are_exact(group: str, beta: float, update: str) -> None:
    value = exact.torus_plaquette(group, beta, 4)
    check(chain(group, beta, (2, 2), 60_000, seed=13, update=update), value, most=4e-3)


@pytest.mark.full
@pytest.mark.parametrize(
    ("group", "beta"), [*CASES, ("U(1)", 0.1), ("SU(2)", 0.3), ("SU(3)", 1.0), ("SU(3)", 12.0)]
)
def test_long_plane_runs_are_exact(group: str, beta: float) -> None:
    value = exact.torus_plaquette(group, beta, 64 * 64)
    check(chain(group, beta, (64, 64), 3000, seed=21, observe=plaquette), value, most=3e-4)
