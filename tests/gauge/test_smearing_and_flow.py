"""Smearing, flow and forces: formulas against NumPy, covariance, exact solutions, orders of the integrator."""

from __future__ import annotations

import itertools
import math
from typing import Any

import gauge_reference as reference
import numpy as np
import pytest
from gauge_reference import GROUPS, as_array, warm

import jali
from jali.errors import LayoutError, ParameterError
from jali.gauge import (
    SU,
    Flow,
    FlowPoint,
    GaugeField,
    ape_smear,
    hyp_smear,
    measure_field_strength,
    plaquette,
    reference_time,
    reference_width,
    stout_smear,
    topological_charge,
    wilson_action,
    wilson_flow,
)

SMEARINGS = {
    "stout": lambda U: stout_smear(U, 0.1, 2),
    "spatial stout": lambda U: stout_smear(U, 0.1, 2, U.lattice.directions[:-1]),
    "APE": lambda U: ape_smear(U, 0.6, 2),
    "spatial APE": lambda U: ape_smear(U, 0.6, 3, U.lattice.directions[:-1]),
    "HYP": lambda U: hyp_smear(U),
    "spatial HYP": lambda U: hyp_smear(U, (0.7, 0.4), 2, U.lattice.directions[:-1]),
    "flow": lambda U: Flow(U, 0.03).advance(2),
}


@pytest.mark.short(2)
@pytest.mark.parametrize("n", GROUPS)
@pytest.mark.parametrize("kind", SMEARINGS)
def test_smearing_commutes_with_gauge_transformations(kind: str, n: int) -> None:
    U = warm((4, 4, 4, 4), n)
    smear = SMEARINGS[kind]
    smeared = smear(U).random_gauge_transform(3)
    V = smear(U.copy().random_gauge_transform(3))
    np.testing.assert_allclose(as_array(smeared), as_array(V), atol=1e-13)
    assert V.unitarity_deviation() < 1e-13
    assert plaquette(V) > plaquette(U)


@pytest.mark.parametrize("n", GROUPS)
def test_stout_links_agree_with_numpy(n: int) -> None:
    U = warm((4, 4, 4), n)
    array = as_array(U)
    exact = [
        reference.exponential(
            -0.12
            * reference.traceless_antihermitian(array[mu] @ reference.dagger(reference.staple(array, mu)))
        )
        @ array[mu]
        for mu in range(3)
    ]
    np.testing.assert_allclose(as_array(stout_smear(U, 0.12)), exact, atol=1e-14)


@pytest.mark.parametrize("n", [2, 3])
def test_ape_links_agree_with_the_polar_decomposition(n: int) -> None:
    U = warm((4, 4, 4), n)
    array = as_array(U)
    smeared = as_array(ape_smear(U, 0.4))
    for mu in range(3):
        M = 0.6 * array[mu] + 0.1 * reference.staple(array, mu)
        left, _, right = np.linalg.svd(M)
        polar = left @ right
        angle = np.angle(np.linalg.det(polar)) / n
        np.testing.assert_allclose(smeared[mu], polar * np.exp(-1j * angle)[..., None, None], atol=1e-13)


def polar(M: np.ndarray) -> np.ndarray:
    """The unitary factor of M by its singular values, with determinant one."""
    left, _, right = np.linalg.svd(M)
    found = left @ right
    angle = np.angle(np.linalg.det(found)) / M.shape[-1]
    return found * np.exp(-1j * angle)[..., None, None] if M.shape[-1] > 1 else found


def hyp_by_definition(U: np.ndarray, a1: float, a2: float, a3: float) -> np.ndarray:
    """Equations (1) to (3) of hep-lat/0103029, one after the other."""
    at, dagger, d = reference.at, reference.dagger, range(4)

    def staples(side: np.ndarray, top: np.ndarray, mu: int, nu: int) -> np.ndarray:
        up = side @ at(top, (nu, 1)) @ dagger(at(side, (mu, 1)))
        down = dagger(at(side, (nu, -1))) @ at(top, (nu, -1)) @ at(side, (nu, -1), (mu, 1))
        return up + down

    bar, tilde = {}, {}
    for mu, nu, rho in itertools.permutations(d, 3):
        total = sum(staples(U[eta], U[mu], mu, eta) for eta in d if eta not in (mu, nu, rho))
        bar[mu, nu, rho] = polar((1 - a3) * U[mu] + a3 / 2 * total)
    for mu, nu in itertools.permutations(d, 2):
        total = sum(staples(bar[rho, nu, mu], bar[mu, rho, nu], mu, rho) for rho in d if rho not in (mu, nu))
        tilde[mu, nu] = polar((1 - a2) * U[mu] + a2 / 4 * total)
    found = []
    for mu in d:
        total = sum(staples(tilde[nu, mu], tilde[mu, nu], mu, nu) for nu in d if nu != mu)
        found.append(polar((1 - a1) * U[mu] + a1 / 6 * total))
    return np.array(found)


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("n", "precision"),
    [
        pytest.param(n, precision, marks=pytest.mark.full if (precision == "float32") != (n == 2) else ())
        for n in GROUPS
        for precision in ("float64", "float32")
    ],
)
def test_hyp_links_agree_with_the_definition_in_numpy(n: int, precision: str) -> None:
    U = warm((3, 4, 2, 5), n, spread=0.3, precision=precision)
    near = {"float64": 1e-13, "float32": 2e-5}[precision]
    exact = hyp_by_definition(as_array(U), 0.75, 0.6, 0.3)
    np.testing.assert_allclose(as_array(hyp_smear(U)), exact, atol=near)
    exact = hyp_by_definition(exact, 0.75, 0.6, 0.3)
    np.testing.assert_allclose(as_array(hyp_smear(U, steps=2)), exact, atol=2 * near)
    exact = hyp_by_definition(as_array(U), 0.2, 0.5, 0.9)
    np.testing.assert_allclose(as_array(hyp_smear(U, (0.2, 0.5, 0.9))), exact, atol=2 * near)


def test_hyp_links_depend_on_links_of_their_hypercubes_alone() -> None:
    U = warm((8, 8, 8, 8), 2)
    V = U.copy()
    V[2][0, 0, 0, 0] = np.eye(2)
    far = np.abs(as_array(hyp_smear(U)) - as_array(hyp_smear(V))).max(axis=(-1, -2)) > 1e-12
    for mu in (0, 1, 3):  # a link at the origin is in the hypercubes of links that begin here
        for axis, moved in enumerate(np.moveaxis(np.argwhere(far[mu]), 1, 0)):
            steps = {int(x) if x < 4 else int(x) - 8 for x in moved}
            assert steps == ({0, 1} if axis == 2 else {-1, 0} if axis == mu else {-1, 0, 1})


def test_hyp_in_two_directions_is_ape() -> None:
    U = warm((4, 3, 5), 3)
    plane = U.lattice.directions[:2]
    np.testing.assert_allclose(
        as_array(hyp_smear(U, (0.4,), 1, plane)), as_array(ape_smear(U, 0.4, 1, plane)), atol=1e-14
    )


def test_hyp_has_the_same_bits_on_any_ranks() -> None:
    def run() -> str:
        return plaquette(hyp_smear(GaugeField(jali.Lattice(4, 6, 2, 4), SU(2)).hot_start(1))).hex()

    assert len({*jali.virtual_ranks(1, run), *jali.virtual_ranks(2, run), *jali.virtual_ranks(3, run)}) == 1


def test_impossible_hyp_smearing_is_refused() -> None:
    U = warm((4, 4, 4, 4), 2)
    wrong: list[Any] = [
        (0.5, 0.5), (0.5, 0.5, 1.5), ("a", 0.1, 0.1), 0.5, np.array(0.5), np.full((3, 1), 0.5), "abc", [0.1, [0.2], 0.3],
    ]  # fmt: skip
    for alpha in wrong:
        with pytest.raises(ParameterError, match="4 directions needs 3 weights from 0 to 1"):
            hyp_smear(U, alpha)
    five = GaugeField(jali.Lattice(2, 2, 2, 2, 2), SU(2)).cold_start()
    with pytest.raises(LayoutError, match="up to four directions, not 5"):
        hyp_smear(five)


def test_spatial_smearing_leaves_time_links_alone_and_slices_apart() -> None:
    U = warm((4, 4, 4, 4), 3)
    V = U.copy()
    V[0][:, :, :, 2] = warm((4, 4, 4, 4), 3, seed=9)[0][:, :, :, 2]
    space = U.lattice.directions[:3]
    for smear in (lambda u: stout_smear(u, 0.1, 2, space), lambda u: ape_smear(u, 0.5, 2, space)):
        a, b = as_array(smear(U)), as_array(smear(V))
        assert np.array_equal(a[3], as_array(U)[3])
        same = np.abs(a - b).max(axis=(0, 1, 2, 3, 5, 6))
        assert (same > 1e-3).tolist() == [False, False, True, False]


def test_smearing_leaves_its_argument_unchanged_and_none_is_a_copy() -> None:
    U = warm((4, 4), 2)
    before = as_array(U)
    for steps in (0, 1, 2, 3):
        V = stout_smear(U, 0.1, steps)
        assert np.array_equal(as_array(U), before)
        assert np.array_equal(as_array(V), before) == (steps == 0)
    twice = stout_smear(stout_smear(U, 0.1), 0.1)
    assert np.array_equal(as_array(twice), as_array(stout_smear(U, 0.1, 2)))


@pytest.mark.parametrize("steps", [-1, 1.0, "1", None, True])
def test_the_flow_goes_whole_steps_forward_or_refuses(steps):
    flow = Flow(warm((4, 4), 2), 0.02)
    with pytest.raises(ParameterError, match="steps is"):
        flow.advance(steps)
    assert flow.time == 0.0


def test_impossible_smearing_is_refused() -> None:
    U = warm((4, 4, 4), 2)
    with pytest.raises(LayoutError, match="two of the 3 directions"):
        stout_smear(U, 0.1, 1, [U.lattice.directions[0]])
    with pytest.raises(ParameterError, match="alpha"):
        ape_smear(U, 1.5)
    with pytest.raises(ParameterError, match="step"):
        Flow(U, 0.0)
    with pytest.raises(ParameterError, match="final time"):
        next(wilson_flow(U, -1.0))


@pytest.mark.parametrize(
    ("until", "step", "every", "times"),
    [
        (0.12, 0.05, 1, [0, 0.05, 0.1, 0.12]),
        (0.12, 0.05, 2, [0, 0.1, 0.12]),
        (0.25, 0.05, 2, [0, 0.1, 0.2, 0.25]),
        (0.23, 0.05, 3, [0, 0.15, 0.23]),
        (0.2, 0.05, 9, [0, 0.2]),
        (0.02, 0.05, 1, [0, 0.02]),
        (0.3, 0.1, 1, [0, 0.1, 0.2, 0.3]),  # 3 * 0.1 > 0.3
        (0.0, 0.05, 1, [0]),
    ],
)
def test_the_flow_ends_at_the_requested_time(
    until: float, step: float, every: int, times: list[float]
) -> None:
    U = warm((4, 3, 4), 2)
    points = list(wilson_flow(U, until, step, every))
    assert [p.time for p in points] == pytest.approx(times, abs=1e-15)
    whole = math.floor(until / step + 1e-9)
    flow = Flow(U, step)
    field = flow.advance(whole)
    if until - whole * step > 1e-9:
        field = Flow(field, until - flow.time).advance()
    assert points[-1].energy == measure_field_strength(field).energy


def test_a_shorter_last_step_has_the_accuracy_of_the_others() -> None:
    """The error of the scheme is of third order in the step, also where the last one is cut: Richardson's differences."""
    U = warm((4, 4, 4), 3)
    fine = list(wilson_flow(U, 0.32, 0.004, 80))[-1].energy
    coarse, half = (abs(list(wilson_flow(U, 0.32, step))[-1].energy - fine) for step in (0.3 / 2.5, 0.3 / 5))
    assert 0 < half < coarse / 5


# ---- forces ----------------------------------------------------------------------------------------------


@pytest.mark.short(2)
@pytest.mark.parametrize("extents", [(2, 2), (4, 4, 4), (4, 2, 3, 6)])
@pytest.mark.parametrize("n", GROUPS)
def test_the_force_is_the_numerical_derivative_of_the_action(extents: tuple[int, ...], n: int) -> None:
    U = warm(extents, n)
    action = wilson_action(1.7)
    forces = action.force(U)
    rng = np.random.default_rng(2)
    for _ in range(4):
        mu = int(rng.integers(len(extents)))
        site = tuple(int(rng.integers(extent)) for extent in extents)
        omega = reference.traceless_antihermitian(rng.normal(size=(n, n)) + 1j * rng.normal(size=(n, n)))
        link = U[mu][site]
        step, values = 1e-2, []
        for k in (-2, -1, 1, 2):
            U[mu][site] = reference.exponential(k * step * omega) @ link
            values.append(action.value(U))
        U[mu][site] = link
        slope = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
        predicted = -2 * np.trace(omega @ forces[mu][site]).real
        assert slope == pytest.approx(predicted, abs=2e-7)


@pytest.mark.parametrize("n", GROUPS)
def test_the_force_is_gauge_covariant(n: int) -> None:
    U = warm((4, 4, 4), n)
    g = jali.Field(U.lattice, SU(n))
    g[...] = reference.near_unity((4, 4, 4), n, 5, 3.0)
    G = g.local()
    before = [f.local() for f in wilson_action(2.0).force(U)]
    after = [f.local() for f in wilson_action(2.0).force(U.gauge_transform(g))]
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(b, G @ a @ reference.dagger(G), atol=1e-13)


def test_the_action_of_ordered_links_is_zero_and_counts_plaquettes() -> None:
    U = GaugeField(jali.Lattice(4, 4, 4), SU(3)).cold_start()
    assert wilson_action(6.0).value(U) == 0.0
    U = warm((4, 4, 4), 3)
    assert wilson_action(6.0).density(U) == pytest.approx(6.0 * 3 * (1 - plaquette(U)), rel=1e-13)
    with pytest.raises(ParameterError, match="beta"):
        wilson_action(math.nan)


# ---- flow ------------------------------------------------------------------------------------------------


def _plane_wave(
    extents: tuple[int, ...], momentum: tuple[int, ...], polarisation: np.ndarray, size: float
) -> Any:
    """Angles A_mu(x) = size e_mu cos(p (x + mu/2)); the half-link phase makes divergence and curl simple."""
    p = 2 * math.pi * np.array(momentum) / np.array(extents)
    x = np.stack(np.meshgrid(*[np.arange(n) for n in extents], indexing="ij"))
    wave = np.tensordot(p, x, 1)
    return p, [size * e * np.cos(wave + p[mu] / 2) for mu, e in enumerate(polarisation)]


def test_an_abelian_plane_wave_decays_exactly() -> None:
    """A transverse wave of small amplitude obeys the linear flow: A(t) = exp(-phat^2 t) A(0)."""
    extents, momentum = (8, 6, 4, 4), (1, 1, 0, 0)
    p = 2 * math.pi * np.array(momentum) / np.array(extents)
    hat = 2 * np.sin(p / 2)
    polarisation = np.array([hat[1], -hat[0], 0.3, 0.7])  # hat . e = 0: transverse
    size = 1e-5
    _, angles = _plane_wave(extents, momentum, polarisation, size)
    U = GaugeField(jali.Lattice(*extents), SU(1))
    for field, angle in zip(U.fields, angles, strict=True):
        field[...] = np.exp(1j * angle)[..., None, None]
    flow = Flow(U, 0.01)
    V = flow.advance(50)
    assert flow.time == pytest.approx(0.5)
    decay = math.exp(-(hat**2).sum() * 0.5)
    for field, angle in zip(V.fields, angles, strict=True):
        found = np.angle(field.local()[..., 0, 0])
        np.testing.assert_allclose(found, decay * angle, atol=size * 1e-7)


def test_a_longitudinal_wave_is_pure_gauge_and_does_not_flow() -> None:
    extents, momentum = (8, 6, 4), (1, 2, 0)
    p = 2 * math.pi * np.array(momentum) / np.array(extents)
    _, angles = _plane_wave(extents, momentum, 2 * np.sin(p / 2), 0.4)
    U = GaugeField(jali.Lattice(*extents), SU(1))
    for field, angle in zip(U.fields, angles, strict=True):
        field[...] = np.exp(1j * angle)[..., None, None]
    assert plaquette(U) == pytest.approx(1.0, abs=1e-14)
    np.testing.assert_allclose(as_array(Flow(U, 0.05).advance(4)), as_array(U), atol=1e-13)


def test_the_runge_kutta_scheme_is_of_third_order() -> None:
    U = warm((4, 4, 4, 4), 3, spread=0.5)
    exact = as_array(Flow(U, 0.4 / 128).advance(128))
    errors = [np.abs(as_array(Flow(U, 0.4 / k).advance(k)) - exact).max() for k in (8, 16, 32)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders == pytest.approx([3.0, 3.0], abs=0.25)
    assert errors[-1] < 2e-5


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_plaquette_energy_falls_by_the_square_of_the_force(n: int) -> None:
    """dS/dt along the flow: dU = Z U dt with Z = -(2n/beta) F gives d sum_p Re tr(1 - U_p)/dt = -sum |Z|^2
    exactly.
    """
    U = warm((4, 4, 4, 4), n, spread=0.5)
    step = 1e-3
    flow = Flow(U, step)
    middle = flow.advance(1).copy()
    before, after = U, flow.advance(1)
    volume = U.lattice.volume
    energies = [measure_field_strength(u).energy_plaquette * volume / 2 for u in (before, after)]
    slope = (energies[1] - energies[0]) / (2 * step)
    force = wilson_action(2.0 * n).force(middle)  # F = TA(U S^dagger)
    predicted = -sum(float((np.abs(f.local()) ** 2).sum()) for f in force)
    assert slope == pytest.approx(predicted, rel=1e-4)


def test_the_action_never_rises_along_the_flow_and_the_charge_settles() -> None:
    U = warm((6, 6, 6, 6), 2, spread=0.45)
    points = list(wilson_flow(U, until=2.0, step=0.05, every=4))
    energies = [point.energy_plaquette for point in points]
    assert all(a > b for a, b in itertools.pairwise(energies))
    assert [point.time for point in points] == pytest.approx(np.arange(0, 2.01, 0.2))
    assert abs(points[-1].charge - round(points[-1].charge)) < 0.05
    assert topological_charge(Flow(U, 0.05).advance(40)) == pytest.approx(points[-1].charge, abs=1e-12)


def test_one_stout_step_is_an_euler_step_of_the_flow() -> None:
    U = warm((4, 4, 4), 3, spread=0.4)
    differences = [
        np.abs(as_array(stout_smear(U, rho)) - as_array(Flow(U, rho).advance(1))).max()
        for rho in (0.01, 0.005)
    ]
    assert differences[0] / differences[1] == pytest.approx(4.0, rel=0.05)


def _points(energy: Any, spacing: float = 0.05) -> list[FlowPoint]:
    return [FlowPoint(t, energy(t), energy(t), 0.0) for t in np.arange(0, 6, spacing)]


def test_t0_and_w0_of_a_known_curve_are_found() -> None:
    # t^2 E = 0.1 t + 0.01 t^2 reaches 0.3 at t = 5 (sqrt(25 + 30) - 5); t d/dt = 0.1 t + 0.02 t^2
    points = _points(lambda t: (0.1 * t + 0.01 * t**2) / t**2 if t else 0.0)
    assert reference_time(points) == pytest.approx(math.sqrt(55) - 5, abs=1e-9)
    assert reference_width(points) ** 2 == pytest.approx((math.sqrt(0.01 + 0.024) - 0.1) / 0.04, abs=1e-9)
    assert reference_time(points, 0.2) < reference_time(points, 0.3)
    with pytest.raises(ParameterError, match=r"does not reach 2\.0.*reaches 0\.9"):
        reference_time(points, 2.0)
    with pytest.raises(ParameterError, match="three flow times"):
        reference_width(points[:2])
