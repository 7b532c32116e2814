"""Integrators: their letters, the schedule of nested levels, and the orders of their errors."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

import jali
from jali.errors import ParameterError
from jali.gauge import SU, GaugeField, iwasaki_action, stout_smear, wilson_action
from jali.hmc import HMC, INTEGRATORS, Integrator, Level, Monomial
from jali.hmc.integrators import Move, schedule


def test_a_trajectory_of_one_level_shares_its_kicks() -> None:
    moves = schedule([Level("leapfrog", 3)])
    assert [m.level for m in moves] == [0, -1, 0, -1, 0, -1, 0]
    np.testing.assert_allclose([m.length for m in moves], np.array([0.5, 1, 1, 1, 1, 1, 0.5]) / 3, rtol=1e-15)
    moves = schedule([Level("leapfrog", 1), Level("leapfrog", 2)])
    assert [(m.level, m.length) for m in moves] == [
        (0, 0.5),
        (1, 0.25),
        (-1, 0.5),
        (1, 0.5),
        (-1, 0.5),
        (1, 0.25),
        (0, 0.5),
    ]


@pytest.mark.parametrize("names", list(itertools.combinations_with_replacement(INTEGRATORS, 2)))
def test_nested_levels_move_the_fields_and_kick_by_each_level_over_the_whole_time(names: Any) -> None:
    moves = schedule([Level(names[0], 2), Level(names[1], 3), Level("leapfrog", 1)])
    lengths = {level: sum(m.length for m in moves if m.level == level) for level in (-1, 0, 1, 2)}
    kicked = [k for k, level in lengths.items() if level]
    np.testing.assert_allclose([lengths[k] for k in kicked], 1.0, rtol=1e-14)
    assert kicked == [-1, 0, 1, 2]  # 3G1F and the level that it kicks leave the third one
    assert all(a.level != b.level or a.shift or b.shift for a, b in itertools.pairwise(moves))
    assert [m.length for m in moves] == pytest.approx([m.length for m in moves[::-1]]) or len(kicked) > 2


def test_the_force_gradient_moves_by_the_square_of_the_step() -> None:
    moves = schedule([Level("force-gradient", 4)])
    assert {m.shift for m in moves} == {0.0, 1 / 24 / 16}
    assert Move(2 / 3 / 4, 0, 1 / 24 / 16) in moves


@pytest.mark.parametrize(
    ("letters", "message"),
    [
        ((("P", 0.5), ("U", 1.0)), "P in the integrator mine add up to 0.5"),
        ((("P", 0.5), ("U", 1.0), ("P", 0.25), ("P", 0.25)), "is not symmetric"),
        ((("X", 1.0),), r'a letter of an integrator is \("U", c\)'),
        ((("P", 0.5), ("U", math.nan), ("P", 0.5)), "a letter of an integrator"),
        ((("U", 0.5, 1.0), ("P", 1.0), ("U", 0.5, 1.0)), "only kicks P are taken at moved fields"),
    ],
)
def test_letters_that_are_no_reversible_step_are_refused(letters: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Integrator("mine", 2, letters)


def test_levels_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ParameterError, match="integrators are leapfrog, 2MN"):
        Level("omelyan")
    with pytest.raises(ParameterError, match="a whole number of steps from 1"):
        Level("2MN", 0)
    with pytest.raises(ParameterError, match="3G1F kicks by the forces of level 1, which is missing"):
        schedule([Level("3G1F", 2)])


def violations(levels: Any, monomials: Any, taus: Any, lattice: Any = (4, 4)) -> list[float]:
    """dH of trajectories from one start over times of both signs."""
    U = GaugeField(jali.Lattice(*lattice), SU(2)).hot_start(seed=11)
    start = U.copy()
    found = []
    for tau in taus:
        U.assign(start)
        hmc = HMC({"U": U}, monomials, seed=5, levels=levels)
        hmc.draw_momenta()
        before = [hmc.kinetic_energy(), *hmc._values()]
        hmc.integrate(tau)
        after = [hmc.kinetic_energy(), *hmc._values()]
        found.append(math.fsum(float(b) - float(a) for a, b in zip(before, after, strict=True)))
    return found


SPLIT = [Monomial(wilson_action(1.0), 0), Monomial(wilson_action(1.5), 1)]
CASES = {
    **{name: ([(name,)], wilson_action(2.5)) for name in INTEGRATORS if name != "3G1F"},
    "3G1F": ([("3G1F",), ("leapfrog",)], SPLIT),
    "2MN in 2MN": ([("2MN",), ("2MN",)], SPLIT),
    "4MN5 in 4MN5": ([("4MN5",), ("4MN5",)], SPLIT),
    "force-gradient in 4MN5": ([("force-gradient",), ("4MN5",)], SPLIT),
}


@pytest.mark.parametrize("name", CASES)
def test_the_energy_is_conserved_to_the_order_of_the_integrator(name: str) -> None:
    """dH over a fixed time is of the order of the integrator."""
    kinds, monomials = CASES[name]
    order = INTEGRATORS[kinds[0][0]].order
    steps = (12, 24) if order == 2 else (6, 12)
    found = []
    for n in steps:
        levels = [Level(kind[0], n if k == 0 else 1) for k, kind in enumerate(kinds)]
        found.append(abs(violations(levels, monomials, [1.0])[0]))
    assert math.log2(found[0] / found[1]) == pytest.approx(order, abs=0.35)


@pytest.mark.parametrize("name", ["leapfrog", "2MN", "4MN5", "force-gradient"])
def test_a_step_forwards_and_one_backwards_have_opposite_violations(name: str) -> None:
    """dH(eps) + dH(-eps) falls one order faster than dH of one step, which is of the order of the integrator plus one; or faster."""
    order = INTEGRATORS[name].order
    forth, back = (
        violations([Level(name, 1)], wilson_action(2.5), [s * 0.1 for s in sign])
        for sign in ((1, 0.5), (-1, -0.5))
    )
    sums = [abs(a + b) for a, b in zip(forth, back, strict=True)]
    assert math.log2(abs(forth[0] / forth[1])) == pytest.approx(order + 1, abs=0.5)
    assert math.log2(sums[0] / sums[1]) > order + 1.8


@pytest.mark.short(1)
@pytest.mark.parametrize(
    "action",
    [wilson_action(2.0).on(lambda U: stout_smear(U, 0.1)), iwasaki_action(1.0) + 0.5 * wilson_action(1.0)],
    ids=["smeared", "sum"],
)
def test_smeared_actions_and_sums_conserve_the_energy(action: Any) -> None:
    found = [abs(violations([Level("4MN5", n)], action, [0.6], (4, 4))[0]) for n in (3, 6)]
    assert math.log2(found[0] / found[1]) == pytest.approx(4, abs=0.5)


def test_a_step_preserves_area() -> None:
    """The Jacobian of a leapfrog step of U(1) on 2 x 2 sites, by central differences, has determinant 1."""
    lattice = jali.Lattice(2, 2)
    U = GaugeField(lattice, SU(1))
    hmc = HMC({"U": U}, wilson_action(1.3), seed=1, levels=[Level("leapfrog", 1)])
    chance = np.random.default_rng(3)
    start = chance.normal(size=16)

    def step(x: np.ndarray) -> np.ndarray:
        for mu in range(2):
            U[mu][...] = np.exp(1j * x[4 * mu : 4 * mu + 4]).reshape(U[mu].shape)
            hmc.momenta["U"][mu][...] = (1j * x[8 + 4 * mu : 12 + 4 * mu]).reshape(U[mu].shape)
        hmc.integrate(0.3)
        angles = [np.angle(U[mu][...]).ravel() for mu in range(2)]
        momenta = [hmc.momenta["U"][mu][...].imag.ravel() for mu in range(2)]
        return np.concatenate([*angles, *momenta])

    h, columns = 1e-3, []
    for k in range(16):
        ways = []
        for weight, shift in ((-1 / 12, 2), (2 / 3, 1), (-2 / 3, -1), (1 / 12, -2)):
            x = start.copy()
            x[k] += shift * h
            y = step(x)
            y[:8] = np.angle(np.exp(1j * (y[:8] - (middle := step(start))[:8]))) + middle[:8]
            ways.append(weight * y)
        columns.append(sum(ways) / h)
    assert np.linalg.det(np.array(columns)) == pytest.approx(1.0, abs=1e-8)


NESTED = {
    "leapfrog": [Level("leapfrog", 1), Level("leapfrog", 2)],
    "2MN": [Level("2MN", 1), Level("2MN", 2)],
    "4MN5": [Level("4MN5", 1), Level("4MN5", 2)],
    "force-gradient": [Level("force-gradient", 1), Level("force-gradient", 2)],
}


@pytest.mark.full
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", NESTED)
def test_the_spread_of_dH_falls_with_the_order_of_the_integrator(name: str, nested: bool) -> None:
    """The slope of std(dH) against the step, over momenta drawn at one configuration: 2 or 4 within 0.1."""
    order = INTEGRATORS[name].order
    start = GaugeField(jali.Lattice(6, 6), SU(2)).hot_start(seed=11)
    spreads = []
    for steps in (16, 32) if order == 2 else (10, 20):
        U = start.copy()
        levels = [Level(name, steps)] if not nested else [Level(name, steps), NESTED[name][1]]
        hmc = HMC({"U": U}, wilson_action(2.5) if not nested else SPLIT, seed=5, levels=levels)
        found = []
        for number in range(60):
            U.assign(start)
            hmc.number = number
            hmc.draw_momenta()
            before = [hmc.kinetic_energy(), *hmc._values()]
            hmc.integrate(1.0)
            after = [hmc.kinetic_energy(), *hmc._values()]
            found.append(math.fsum(float(b) - float(a) for a, b in zip(before, after, strict=True)))
        spreads.append(np.std(found))
    assert math.log2(spreads[0] / spreads[1]) == pytest.approx(order, abs=0.1)
