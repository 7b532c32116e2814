"""Actions of the clover field strength: the values of the measurements, forces by difference quotients, and which updates take them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.linalg import expm

import jali
from jali import LayoutError, ParameterError
from jali.actions import SiteAction
from jali.gauge import (
    SU,
    GaugeField,
    charge_action,
    clover_energy_action,
    heat_bath_sweep,
    measure_field_strength,
    metropolis_sweep,
    overrelaxation_sweep,
    sweep,
    wilson_action,
)
from jali.gauge.link_terms import LinkTerms
from jali.hmc import HMC, Level
from jali.statistics import mean_error

HOT = [
    (clover_energy_action(1.3), 3, (3, 4), None),
    (charge_action(20.0), 2, (3, 3, 3, 3), None),
    *(
        pytest.param(S, n, extents, boundary, marks=pytest.mark.full)
        for S in (clover_energy_action(-0.7), charge_action(20.0))
        for n, extents, boundary in (
            (1, (2, 2, 2, 4), None),
            (2, (2, 2, 2, 4), None),
            (3, (3, 3, 3, 3), None),
            (3, (2, 2, 2, 4), {3: "open"}),
        )
    ),
]


@pytest.mark.parametrize(("S", "n", "extents", "boundary"), HOT)
def test_values_are_those_of_the_measurements_and_forces_their_slopes(
    S: SiteAction, n: int, extents: tuple[int, ...], boundary: Any
) -> None:
    U = GaugeField(jali.Lattice(*extents), SU(n), boundary=boundary).hot_start(seed=1)
    found = measure_field_strength(U)
    inner = math.prod(extents) if boundary is None else math.prod(extents[:-1]) * (extents[-1] - 2)
    coupling = S.couplings[0]
    energy = S.formula.couplings == ("coupling",)
    assert S.value(U) == pytest.approx(
        coupling * (found.energy * inner if energy else found.charge), rel=1e-12
    )
    F, numbers = S.force(U), np.random.default_rng(2)
    for mu in (0, len(extents) - 1):
        x = (*(int(numbers.integers(extent)) for extent in extents[:-1]), 1)
        M = numbers.normal(size=(n, n)) + 1j * numbers.normal(size=(n, n))
        omega = M - M.conj().T
        omega -= np.eye(n) * np.trace(omega) / n * (n > 1)
        link, values = U[mu][x], []
        for step in (1e-4, -1e-4):
            U[mu][x] = expm(step * omega) @ link
            values.append(S.value(U))
        U[mu][x] = link
        slope = -2 * np.trace(omega @ F[mu][x]).real
        assert abs(slope) > 1e-2
        assert (values[0] - values[1]) / 2e-4 == pytest.approx(slope, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(
    ("S", "extents"), [(clover_energy_action(1.3), (3, 4)), (charge_action(1.0), (3, 3, 3, 3))]
)
def test_values_are_gauge_invariant(S: jali.Action, extents: tuple[int, ...]) -> None:
    U = GaugeField(jali.Lattice(*extents), SU(2)).hot_start(seed=3)
    before, links = S.value(U), U[0][...]
    U.random_gauge_transform(seed=4)
    assert np.abs(U[0][...] - links).max() > 0.1
    assert abs(before) > 1e-3
    assert S.value(U) == pytest.approx(before, rel=1e-10)


def test_the_energy_is_quadratic_in_a_link_and_the_charge_linear() -> None:
    U = GaugeField(jali.Lattice(3, 4), SU(2)).hot_start(seed=3)
    S, rng = clover_energy_action(2.0), jali.Random(1)
    for update in (lambda: heat_bath_sweep(U, S, rng), lambda: overrelaxation_sweep(U, S)):
        with pytest.raises(
            ParameterError, match=r"linear in every link, and clover_energy\(coupling=2.0\) is not"
        ):
            update()
    assert 0 < metropolis_sweep(U, S, rng) < 1
    V = GaugeField(jali.Lattice(4, 4, 4, 4), SU(2))
    terms = LinkTerms.of_links(wilson_action(2.0) + charge_action(1.0), V)
    assert terms.is_linear(V)


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 2])
def test_heat_bath_and_overrelaxation_with_the_charge_have_the_means_of_hybrid_monte_carlo(n: int) -> None:
    S = wilson_action(1.0 * n) + charge_action(40.0)
    U, rng = GaugeField(jali.Lattice(3, 3, 3, 3), SU(n)).hot_start(seed=1), jali.Random(1)
    before = S.value(U)
    overrelaxation_sweep(U, S)
    assert S.value(U) == pytest.approx(before, rel=1e-11)
    V, found = U.copy(), []
    hmc = HMC({"U": V}, S, seed=2, levels=[Level("2MN", 10)], accept_always=20)
    for field, advance in ((U, lambda: sweep(U, S, rng, 1, 1)), (V, hmc.trajectory)):
        series = []
        for k in range(620):
            advance()
            if k >= 20:
                series.append([measure_field_strength(field).charge, wilson_action(1.0).value(field)])
        found.append([mean_error(column) for column in np.array(series).T])
    for heat, one in zip(*found, strict=True):
        assert abs(heat.mean - one.mean) < 4 * math.hypot(heat.error, one.error)
        assert heat.error < 0.2 * abs(heat.mean)


def test_other_dimensions_and_couplings_are_refused() -> None:
    plane, line = (GaugeField(jali.Lattice(*extents), SU(2)).cold_start() for extents in ((4, 4), (8,)))
    for use in (charge_action(1.0).value, charge_action(1.0).force):
        with pytest.raises(LayoutError, match="the clover charge is of four dimensions, not of 2"):
            use(plane)
    with pytest.raises(LayoutError, match="a one-dimensional lattice has no field strength"):
        clover_energy_action(1.0).value(line)
    for make, name in ((charge_action, "theta"), (clover_energy_action, "coupling")):
        with pytest.raises(ParameterError, match=f"{name} is a finite number, not nan"):
            make(math.nan)
