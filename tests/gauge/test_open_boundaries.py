"""Open (Neumann) boundary conditions: the definitions of Luescher and Schaefer, arXiv:1105.4749 and 1206.2809.

Two references. Loops walked link by link in NumPy, with their weights; and the mirror image: a lattice of L sites with open
ends is half of a periodic one of 2 (L - 1), whose action is twice as large, and on which flow and smearing are the ordinary
ones.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import gauge_reference as reference
import numpy as np
import pytest
from gauge_reference import as_array, trace, warm

import jali
from jali import LayoutError, ParameterError
from jali.gauge import (
    SU,
    Flow,
    GaugeField,
    ape_smear,
    exhausted_attempts,
    heat_bath_sweep,
    hyp_smear,
    iwasaki_action,
    landau_gauge,
    link_trace,
    loop_action,
    measure_field_strength,
    metropolis_sweep,
    overrelaxation_sweep,
    plaquettes,
    polyakov_lines,
    polyakov_loop,
    rectangle_action,
    simulate,
    stout_smear,
    symanzik_action,
    topological_charge,
    wilson_action,
    wilson_flow,
    wilson_loop,
    wilson_loops,
)

# Extents, open directions, n. Few of them, and in all tests the same: their kernels are compiled once.
BOX: tuple[Any, ...] = ((4, 3, 4), (0, 2), 2)
SHEET: tuple[Any, ...] = ((3, 4), (0, 1), 1)
TIME: tuple[Any, ...] = ((2, 3, 2, 4), (3,), 2)
cases = pytest.mark.parametrize(("extents", "open_", "n"), [BOX, SHEET, TIME])


def started(extents: tuple[int, ...], open_: tuple[int, ...], n: int, seed: int = 1) -> GaugeField:
    return warm(extents, n, seed, boundary=dict.fromkeys(open_, "open"))


def with_other_dangling_links(U: GaugeField, seed: int) -> GaugeField:
    """The same links, and others where none leads across an open edge: no group elements, and large."""
    V, rng = U.copy(), np.random.default_rng(seed)
    for mu in U.open:
        links = np.moveaxis(V[mu][...].copy(), mu, 0)
        links[-1] = 1e3 * rng.normal(size=links[-1].shape)
        V[mu][...] = np.moveaxis(links, 0, mu)
    return V


def dangling(U: GaugeField) -> list[np.ndarray]:
    return [np.moveaxis(U[mu][...], mu, 0)[-1] for mu in U.open]


def without_dangling(U: GaugeField) -> np.ndarray:
    """All links, zero where none leads across an open edge."""
    array = as_array(U)
    for mu in U.open:
        np.moveaxis(array[mu], mu, 0)[-1] = 0.0
    return array


# ---- loops, link by link ---------------------------------------------------------------------------------


def weight(x: tuple[int, ...], along: set[int], extents: tuple[int, ...], open_: tuple[int, ...]) -> float:
    return math.prod(0.5 for axis in open_ if axis not in along and x[axis] in (0, extents[axis] - 1))


def loops(U: GaugeField, mu: int, nu: int, r: int, t: int) -> tuple[float, float]:
    """Weighted sum of Re tr / n over the r x t loops within the lattice, and the sum of the weights."""
    m, v = mu + 1, nu + 1
    return loops_along(U, [m] * r + [v] * t + [-m] * r + [-v] * t)


def loops_along(U: GaugeField, path: Sequence[int]) -> tuple[float, float]:
    """As `loops`, along a path of steps mu + 1 or -(mu + 1) from every site."""
    links, extents, n = as_array(U), U.lattice.extents, U.n
    along = {abs(step) - 1 for step in path}
    total = number = 0.0
    for x in itertools.product(*map(range, extents)):
        here, product, exists = list(x), np.eye(n, dtype=complex), True
        for step in path:
            axis = abs(step) - 1
            if step < 0:
                here[axis] -= 1
            outside = not 0 <= here[axis] < extents[axis] - 1
            exists &= not (outside and axis in U.open)
            link = links[(axis, *(c % extent for c, extent in zip(here, extents, strict=True)))]
            product = product @ (link if step > 0 else link.conj().T)
            if step > 0:
                here[axis] += 1
        if exists:
            # the corner of the box that a loop is in is not where its path starts, but along the slices both have one weight
            w = weight(x, along, extents, U.open)
            total, number = total + w * trace(product).real / n, number + w
    return total, number


def planes(U: GaugeField) -> list[tuple[int, int]]:
    return list(itertools.combinations(range(U.lattice.ndim), 2))


@cases
def test_plaquettes_action_and_energy_are_weighted_sums_of_loops(
    extents: tuple[int, ...], open_: tuple[int, ...], n: int
) -> None:
    U = started(extents, open_, n)
    found = {plane: loops(U, *plane, 1, 1) for plane in planes(U)}
    time = len(extents) - 1
    groups = [list(found), [p for p in found if time not in p], [p for p in found if time in p]]
    for mean, group in zip(plaquettes(U), groups, strict=True):
        total, number = np.sum([found[p] for p in group], axis=0) if group else (0.0, math.nan)
        assert mean == pytest.approx(total / number, abs=1e-13, nan_ok=True)
    assert all(number == U.volume for _, number in found.values())
    deficit = sum(number - total for total, number in found.values())
    assert wilson_action(2.5).value(U) == pytest.approx(2.5 * deficit, rel=1e-12)
    assert wilson_action(2.5).density(U) == pytest.approx(2.5 * deficit / U.volume, rel=1e-12)
    assert measure_field_strength(U).energy_plaquette == pytest.approx(2 * n * deficit / U.volume, rel=1e-12)
    rectangles = [loops(U, *plane, *sides) for plane in planes(U) for sides in ((2, 1), (1, 2))]
    expected = 1.8 * deficit - 0.1 * sum(number - total for total, number in rectangles)
    assert rectangle_action(1.0, -0.1).value(U) == pytest.approx(expected, rel=1e-12)


@pytest.mark.short(1)
@cases
def test_loops_of_any_path_are_those_within_the_lattice(
    extents: tuple[int, ...], open_: tuple[int, ...], n: int
) -> None:
    """Whatever site a path starts at, and whichever way it goes; parallelograms of a cube lie across three directions."""
    U = started(extents, open_, n)
    paths = [(-2, -1, 2, 1), (2, 1, 1, -2, -1, -1), (-1, -1, 2, 1, 1, -2)]
    if len(extents) > 2:
        paths += [(3, -1, 2, -3, 1, -2), (1, 3, -1, -2, -3, 2)]
    sums = [loops_along(U, path) for path in paths]
    weights = [0.5 + k for k in range(len(paths))]
    expected = sum(w * (number - total) for w, (total, number) in zip(weights, sums, strict=True))
    assert loop_action(1.3, paths, weights).value(U) == pytest.approx(1.3 * expected, rel=1e-12)
    assert loop_action(1.3, paths, weights).value(U.copy().cold_start()) == 0.0


@cases
def test_wilson_loops_are_those_within_the_lattice(
    extents: tuple[int, ...], open_: tuple[int, ...], n: int
) -> None:
    U = started(extents, open_, n)
    time = len(extents) - 1
    r, t = 1, min(2, extents[-1] - (time in open_))
    for sides, one in (((1, 1), wilson_loop(U, 1, 1)), ((r, t), wilson_loop(U, r, t, time=time))):
        pairs = [
            (m, v) for m, v in itertools.permutations(range(len(extents)), 2) if sides == (1, 1) or v == time
        ]
        total, number = np.sum([loops(U, m, v, *sides) for m, v in pairs], axis=0)
        assert one == pytest.approx(total / number, abs=1e-13)
    assert wilson_loop(U, 1, 1) == pytest.approx(plaquettes(U)[0], abs=1e-13)
    size = extents[open_[-1]]
    with pytest.raises(ParameterError, match=rf"do not fit a lattice .*, open in \({open_[0]}"):
        wilson_loop(U, 1, size, time=open_[-1])


@cases
def test_vacuum_values(extents: tuple[int, ...], open_: tuple[int, ...], n: int) -> None:
    boundary = dict.fromkeys(open_, "open")
    U = GaugeField(jali.Lattice(*extents), SU(n), boundary=boundary).cold_start()
    assert (plaquettes(U)[0], plaquettes(U)[2], link_trace(U)) == (1.0, 1.0, 1.0)
    assert (wilson_loops(U, 1, min(extents) - 1) == 1.0).all()
    for action in (wilson_action(6.0), symanzik_action(6.0), iwasaki_action(6.0)):
        assert action.value(U) == pytest.approx(0.0, abs=1e-9)
        assert action.density(U) == pytest.approx(0.0, abs=1e-9)
    found = measure_field_strength(U)
    assert found.energy_plaquette == 0.0
    assert found.energy == 0.0
    assert topological_charge(U) == 0.0 if len(extents) == 4 or n == 1 else math.isnan(found.charge)


def test_a_lattice_of_boundary_slices_alone_has_no_clover_energy() -> None:
    U = GaugeField(jali.Lattice(4, 3, 2), SU(2), boundary={0: "open", 2: "open"}).hot_start(1)
    found = measure_field_strength(U)
    assert math.isnan(found.energy)
    assert math.isnan(found.charge)
    assert found.energy_plaquette > 0


@cases
def test_clover_energy_and_charge_are_those_between_the_boundary_slices(
    extents: tuple[int, ...], open_: tuple[int, ...], n: int
) -> None:
    U = started(extents, open_, n)
    array = as_array(U)
    between = np.ones(extents)
    for mu in open_:
        np.moveaxis(between, mu, 0)[[0, -1]] = 0.0
    G = {p: reference.field_strength(array, *p) for p in planes(U)}
    energy = -sum(trace(F @ F).real for F in G.values()) * between
    found = measure_field_strength(U)
    assert found.energy == pytest.approx(energy.sum() / between.sum(), rel=1e-12)
    if len(extents) < 4:
        return
    pairs = [((0, 1), (2, 3), 1), ((0, 2), (1, 3), -1), ((0, 3), (1, 2), 1)]
    density = -sum(sign * trace(G[p] @ G[q]).real for p, q, sign in pairs) / (4 * math.pi**2)
    assert found.charge == pytest.approx((density * between).sum(), abs=1e-13)
    assert topological_charge(U) == found.charge


def test_charge_of_an_open_sheet_is_the_sum_of_its_plaquette_angles() -> None:
    for open_ in ((0,), (0, 1)):
        U = started((4, 5), open_, 1, seed=3)
        angles = np.angle(trace(reference.path(as_array(U), [1, 2, -1, -2])))
        for mu in open_:
            np.moveaxis(angles, mu, 0)[-1] = 0.0
        assert topological_charge(U) == pytest.approx(angles.sum() / (2 * math.pi), abs=1e-13)


def test_link_trace_and_unitarity_are_those_of_the_links_there_are() -> None:
    U = with_other_dangling_links(started(*BOX), 5)
    array = without_dangling(U)
    number = 48 * 3 - 12 - 12
    assert U.links == number
    assert link_trace(U) == pytest.approx(trace(array).real.sum() / (2 * number), abs=1e-13)
    assert U.unitarity_deviation() < 1e-14
    before = dangling(U)
    assert np.allclose(without_dangling(U.reunitarise()), array, atol=1e-14)
    assert all(map(np.array_equal, dangling(U), before))


def test_a_loop_around_an_open_direction_is_refused() -> None:
    U = started(*BOX)
    for measure in (polyakov_loop, polyakov_lines):
        with pytest.raises(LayoutError, match="no Polyakov loop along direction 2, whose boundary is open"):
            measure(U)
    assert polyakov_loop(U, 1) == pytest.approx(reference.polyakov_loop(as_array(U), 1), abs=1e-14)
    (found,) = simulate(U, 2.0, jali.Random(1), 1)
    assert math.isnan(found.polyakov.real)
    assert 0 < found.plaquette < 1


def test_an_open_direction_has_two_sites_or_more() -> None:
    with pytest.raises(LayoutError, match=r"has two sites or more; the lattice is \(4, 1\), open in \(1,\)"):
        GaugeField(jali.Lattice(4, 1), SU(2), boundary={1: "open"})


# ---- the mirror image ------------------------------------------------------------------------------------


def mirror_image(U: GaugeField) -> GaugeField:
    """The periodic field that goes on beyond each open edge as its mirror image."""
    links = [field[...] for field in U.fields]
    for axis in U.open:
        for mu, field in enumerate(links):
            there = np.moveaxis(field, axis, 0)
            if mu == axis:  # the link from -x - 1 to -x is that from x + 1 to x
                there = np.concatenate([there[:-1], reference.dagger(there[:-1])[::-1]])
            else:
                there = np.concatenate([there, there[-2:0:-1]])
            links[mu] = np.moveaxis(there, 0, axis)
    V = GaugeField(jali.Lattice(*links[0].shape[:-2]), U.group)
    for field, values in zip(V.fields, links, strict=True):
        field[...] = values
    return V


def half(V: GaugeField, U: GaugeField) -> np.ndarray:
    """The links of the mirror image that U has."""
    box = tuple(slice(n) for n in U.lattice.extents)
    array = np.stack([field[...][box] for field in V.fields])
    for mu in U.open:
        np.moveaxis(array[mu], mu, 0)[-1] = 0.0
    return array


@cases
def test_the_mirror_image_has_the_action_twice(
    extents: tuple[int, ...], open_: tuple[int, ...], n: int
) -> None:
    U = started(extents, open_, n)
    V = mirror_image(U)
    for action in (wilson_action(2.0), iwasaki_action(2.0)):
        assert action.value(V) == pytest.approx(2 ** len(open_) * action.value(U), rel=1e-12)
        assert action.density(V) == pytest.approx(action.density(U), rel=1e-12)


@pytest.mark.short(1)
@cases
def test_flow_and_smearing_are_those_of_the_mirror_image(
    extents: tuple[int, ...], open_: tuple[int, ...], n: int
) -> None:
    smoothers: dict[str, Any] = {
        "Wilson flow": lambda U: Flow(U, 0.05).advance(2),
        "stout": lambda U: stout_smear(U, 0.1, 2),
        "APE": lambda U: ape_smear(U, 0.6, 2),
        "APE, staples alone": lambda U: ape_smear(U, 1.0),
        "Iwasaki flow": lambda U: Flow(U, 0.05, iwasaki_action(1.0)).advance(1),
        "spatial stout": lambda U: stout_smear(U, 0.1, directions=[0, 1]),
        "HYP": hyp_smear,
        "HYP, staples alone": lambda U: hyp_smear(U, [1.0] * (len(extents) - 1)),
    }
    if len(extents) == 4:
        smoothers = {"Wilson flow": smoothers["Wilson flow"]}
    U = started(extents, open_, n)
    V = mirror_image(U)
    for name, smooth in smoothers.items():
        found = smooth(U)
        expected = half(smooth(V), U)
        np.testing.assert_allclose(without_dangling(found), expected, atol=1e-11, err_msg=name)
        assert all(map(np.array_equal, dangling(found), dangling(U))), name


def test_the_flow_lowers_the_action_of_the_open_lattice() -> None:
    U = started(*TIME)
    energies = [point.energy_plaquette for point in wilson_flow(U, 0.5, 0.1)]
    assert energies == sorted(energies, reverse=True)
    assert energies[-1] < 0.3 * energies[0]


# ---- staples and updates ---------------------------------------------------------------------------------

ACTIONS = [wilson_action(2.3), iwasaki_action(2.3)]
of_actions = pytest.mark.parametrize("action", ACTIONS, ids=["Wilson", "Iwasaki"])


@of_actions
def test_the_force_is_the_derivative_of_the_action(action: Any) -> None:
    U = started(*BOX)
    force = [f[...] for f in action.force(U)]
    for mu, where in ((0, (0, 0, 0)), (1, (0, 1, 3)), (1, (2, 1, 0)), (2, (3, 2, 1)), (0, (2, 1, 3))):
        omega = np.array([[0.3j, 0.2 + 0.5j], [-0.2 + 0.5j, -0.3j]])
        values = []
        for sign in (1, -1):
            V = U.copy()
            V[mu][where] = reference.exponential(sign * 1e-4 * omega) @ V[mu][where]
            values.append(action.value(V))
        slope = (values[0] - values[1]) / 2e-4
        assert slope == pytest.approx(-2 * trace(omega @ force[mu][where]).real, rel=1e-6)
    assert all(np.abs(np.moveaxis(force[mu], mu, 0)[-1]).max() == 0 for mu in (0, 2))


@of_actions
def test_overrelaxation_keeps_the_action(action: Any) -> None:
    U = started(*BOX)
    before, links, outside = action.value(U), as_array(U), dangling(U)
    overrelaxation_sweep(U, action)
    assert action.value(U) == pytest.approx(before, rel=1e-12)
    assert np.abs(as_array(U) - links).max() > 0.1
    assert all(map(np.array_equal, dangling(U), outside))


@pytest.mark.parametrize("update", ["heat bath", "Metropolis"])
def test_an_open_strip_has_its_exact_plaquette(update: str) -> None:
    """In two open dimensions plaquettes are independent: each has the mean of a single one, u = I2(beta) / I1(beta)."""
    U = GaugeField(jali.Lattice(24, 16), SU(2), boundary="open").hot_start(2)
    rng, found, exhausted = jali.Random(3), [], exhausted_attempts()
    outside = dangling(U)
    for sweep in range(120):
        if update == "heat bath":
            heat_bath_sweep(U, 2.0, rng)
        else:
            assert 0.3 < metropolis_sweep(U, 2.0, rng, 0.6) < 0.9
        if sweep >= 20:
            found.append(plaquettes(U)[0])
    assert np.mean(found) == pytest.approx(0.4331274267, abs=5 * np.std(found) / math.sqrt(len(found) / 4))
    assert np.std(found) < 0.05
    assert exhausted_attempts() == exhausted
    assert all(map(np.array_equal, dangling(U), outside))


def test_acceptance_counts_the_links_there_are() -> None:
    """Without an action every proposal is accepted, on as many links as there are."""
    U = started(*BOX)
    assert metropolis_sweep(U, 0.0, jali.Random(1)) == 1.0


# ---- invariance ------------------------------------------------------------------------------------------


def observed(U: GaugeField) -> dict[str, Any]:
    """Whatever does not depend on the gauge."""
    found: dict[str, Any] = {
        "plaquettes": plaquettes(U),
        "loops": wilson_loops(U, 2, 2),
        "strength": tuple(vars(measure_field_strength(U)).values()),
        "Polyakov": polyakov_loop(U, 1),
    }
    for action in ACTIONS:
        found[f"S of {action}"] = action.value(U)
        found[f"F of {action}"] = sum(float((np.abs(f[...]) ** 2).sum()) for f in action.force(U))
    smoothed = {
        "APE": ape_smear(U),
        "stout": stout_smear(U, 0.1, 2),
        "HYP": hyp_smear(U),
        "flow": Flow(U, 0.05).advance(2),
        "gauge": landau_gauge(U, atol=1e-8).field,
    }
    return found | {name: (*plaquettes(V), *wilson_loops(V, 2, 2).ravel()) for name, V in smoothed.items()}


def test_observables_smearing_and_flow_do_not_depend_on_the_gauge() -> None:
    U = started(*BOX)
    expected, found = observed(U), observed(U.copy().random_gauge_transform(4))
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-9, err_msg=name)


def test_nothing_depends_on_links_across_an_open_edge() -> None:
    U = started(*BOX)
    V = with_other_dangling_links(U, 6)
    expected, found = observed(U), observed(V)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-11, atol=1e-11, err_msg=name)
    for update in (
        lambda W: heat_bath_sweep(W, 2.3, jali.Random(5)),
        lambda W: heat_bath_sweep(W, iwasaki_action(2.3), jali.Random(5)),
        overrelaxation_sweep,
        lambda W: metropolis_sweep(W, 2.3, jali.Random(5)),
    ):
        A, B = U.copy(), V.copy()
        assert update(A) == update(B)
        np.testing.assert_allclose(without_dangling(A), without_dangling(B), atol=1e-12)
        assert all(map(np.array_equal, dangling(B), dangling(V)))


def test_a_fixed_gauge_has_the_trace_of_its_links_as_functional() -> None:
    U = started(*BOX)
    fixed = landau_gauge(U, atol=1e-18)
    assert fixed.functional == pytest.approx(link_trace(fixed.field), abs=1e-12)
    assert landau_gauge(U.copy().cold_start(), atol=1e-18).functional == 1.0


def test_ranks_do_not_change_a_bit() -> None:
    def run() -> list[str]:
        extents, open_, n = BOX
        U = GaugeField(jali.Lattice(*extents), SU(n), boundary=dict.fromkeys(open_, "open")).hot_start(5)
        heat_bath_sweep(U, 2.3, jali.Random(1))
        V = Flow(U, 0.05).advance(1)
        numbers = [*plaquettes(V), *wilson_loops(V, 2, 2).ravel(), link_trace(V), wilson_action(1.0).value(V)]
        return [float(x).hex() for x in numbers]

    assert jali.virtual_ranks(2, run) == jali.virtual_ranks(1, run) * 2
