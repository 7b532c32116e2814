"""Updates: what they conserve, and the distributions that they draw from."""

from __future__ import annotations

import math

import gauge_reference as reference
import numpy as np
import pytest
from gauge_reference import GROUPS, as_array, warm
from scipy.special import ive
from scipy.stats import kstest, vonmises

import jali
from jali import EVEN, ODD
from jali.actions.colours import site_colours
from jali.errors import LayoutError, ParameterError
from jali.gauge import (
    SU,
    GaugeField,
    heat_bath_sweep,
    metropolis_sweep,
    overrelaxation_sweep,
    plaquette,
    staple,
    sweep,
    wilson_action,
)
from jali.gauge.heatbath import (
    heat_bath_creutz,
    heat_bath_kennedy_pendleton,
    heat_bath_u1,
    needs_creutz,
)
from jali.gauge.link_terms import LinkTerms
from jali.gauge.markov_chain import simulate
from jali.gauge.overrelaxation import overrelax
from jali.statistics import mean_error


@pytest.mark.parametrize("extents", [(2, 2), (3, 5), (4, 4, 4), (4, 4, 4, 4)])
@pytest.mark.parametrize("n", GROUPS)
def test_overrelaxation_conserves_the_action_and_moves_the_links(extents: tuple[int, ...], n: int) -> None:
    U = warm(extents, n)
    action, before = wilson_action(1.0).value(U), as_array(U)
    overrelaxation_sweep(U)
    assert wilson_action(1.0).value(U) == pytest.approx(action, rel=1e-13)
    assert U.unitarity_deviation() < 1e-13
    assert np.abs(as_array(U) - before).max() > 0.1


@pytest.mark.parametrize("n", [1, 2])
def test_overrelaxation_is_its_own_inverse_for_u1_and_su2(n: int) -> None:
    U = warm((4, 4, 4), n)
    before = as_array(U)
    for mu in U.lattice.directions:
        overrelax[ODD](U, mu, staple)
        assert np.abs(as_array(U) - before).max() > 0.1
        overrelax[ODD](U, mu, staple)
        np.testing.assert_allclose(as_array(U), before, atol=1e-13)


def test_an_update_changes_its_own_direction_and_colour_only() -> None:
    U = warm((4, 4, 4, 4), 3)
    before = as_array(U)
    heat_bath_kennedy_pendleton[EVEN](U, jali.Random(1), 0.3, U.lattice.directions[2], staple)
    changed = np.abs(as_array(U) - before).max(axis=(-1, -2)) > 1e-10
    parity = sum(np.meshgrid(*[np.arange(4)] * 4, indexing="ij")) % 2
    assert np.array_equal(changed[2], parity == 0)
    assert not changed[[0, 1, 3]].any()


def _plane_with_cold_links(n: int, extent: int = 64) -> GaugeField:
    """Every even link of direction 0 sees the staple 2: they are independent, with the weight of one
    plaquette at 2 beta.
    """
    return GaugeField(jali.Lattice(extent, extent), SU(n)).cold_start()


@pytest.mark.parametrize("kappa", [1e-9, 0.02, 0.5, 3.0, 50.0, 1e4])
def test_the_u1_heat_bath_draws_the_von_mises_distribution(kappa: float) -> None:
    U = _plane_with_cold_links(1)
    # a gauge transformation, so that the staples do not point along 1
    U[0][...] = np.exp(0.7j).reshape(1, 1)
    angles = []
    rng = jali.Random(4)
    for _ in range(5):
        heat_bath_u1[EVEN](U, rng, kappa / 2, U.lattice.directions[0], staple)
        links = U[0].local()[..., 0, 0]
        parity = np.add.outer(np.arange(64), np.arange(64)) % 2
        np.testing.assert_allclose(np.abs(links), 1, atol=1e-14)
        angles.append(np.angle(links[parity == 0] * np.exp(-0.7j)))
    sample = np.concatenate(angles)
    assert kstest(sample, vonmises(kappa).cdf).pvalue > 1e-3
    mean = ive(1, kappa) / ive(0, kappa)
    cosines = 1 - 2 * np.sin(sample / 2) ** 2
    assert abs(cosines.mean() - mean) < 4.5 * cosines.std() / math.sqrt(len(sample)) + 1e-15


@pytest.mark.parametrize("method", ["Kennedy-Pendleton", "Creutz"])
@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_the_su2_heat_bath_draws_the_first_component_and_a_free_direction(method: str, beta: float) -> None:
    U = _plane_with_cold_links(2)
    parity = np.add.outer(np.arange(64), np.arange(64)) % 2
    rng = jali.Random(8)
    samples = []
    for _ in range(6):
        if method == "Creutz":
            heat_bath_creutz[EVEN](U, rng, beta / 2, U.lattice.directions[0], staple)
        else:
            heat_bath_kennedy_pendleton[EVEN](U, rng, 1 / beta, U.lattice.directions[0], staple)
        samples.append(U[0].local()[parity == 0])
    links = np.concatenate(samples)
    h = np.stack([links[:, 0, 0].real, links[:, 0, 1].imag, links[:, 0, 1].real, links[:, 0, 0].imag])
    np.testing.assert_allclose((h**2).sum(axis=0), 1, atol=1e-13)
    alpha = 2 * beta
    grid = np.linspace(-1, 1, 20001)
    density = np.sqrt(1 - grid**2) * np.exp(alpha * (grid - 1))
    cdf = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    assert kstest(h[0], lambda x: np.interp(x, grid, cdf / cdf[-1])).pvalue > 1e-3
    direction = h[1:] / np.sqrt(1 - h[0] ** 2)
    for component in direction:  # uniform on (-1, 1), Archimedes
        assert kstest(component, "uniform", args=(-1, 2)).pvalue > 1e-3
    azimuth = np.arctan2(direction[1], direction[0])
    assert kstest(azimuth, "uniform", args=(-math.pi, 2 * math.pi)).pvalue > 1e-3
    for a, b in ((0, 1), (1, 2), (0, 2)):
        assert abs((direction[a] * direction[b]).mean()) < 4 / math.sqrt(len(links)) / 3


@pytest.mark.parametrize("beta", [0.0, 1e-12, 1e-6, 1e-3, 0.1, 0.5])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_creutz_draws_a_continuum_of_values_at_small_beta(precision: str, beta: float) -> None:
    """1 - h0 is the logarithm of a number near 1, which has few digits in float32."""
    U = GaugeField(jali.Lattice(64, 64), SU(2), precision=precision).cold_start()
    parity = np.add.outer(np.arange(64), np.arange(64)) % 2
    heat_bath_creutz[EVEN](U, jali.Random(1), beta / 2, U.lattice.directions[0], staple)
    h0 = U[0].local()[parity == 0][:, 0, 0].real
    # 2048 of some 2^23 values share fewer than 10 in all likelihood (1 is expected)
    assert len(np.unique(h0)) > 2038
    grid = np.linspace(-1, 1, 20001)
    density = np.sqrt(1 - grid**2) * np.exp(2 * beta * (grid - 1))
    cdf = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    assert kstest(h0, lambda x: np.interp(x, grid, cdf / cdf[-1])).pvalue > 1e-3


def test_creutz_in_single_precision_keeps_pace_with_double_precision() -> None:
    """The same random numbers give the same proposals, to the 23 bits that they share: beta 0 is no special case."""
    alphas = np.array([0.0, 1e-30, 1e-8, 1e-4, 1e-2, 1.0, 3.0])
    for alpha in alphas:
        found = {}
        for precision in ("float32", "float64"):
            U = GaugeField(jali.Lattice(32, 32), SU(2), precision=precision).cold_start()
            heat_bath_creutz[EVEN](U, jali.Random(5), alpha / 4, U.lattice.directions[0], staple)
            found[precision] = U[0].local()[..., 0, 0].real
        difference = np.abs(found["float32"] - found["float64"])
        assert np.quantile(difference, 0.99) < 2e-6  # the others were accepted in one precision only


@pytest.mark.short(2)
@pytest.mark.parametrize(("n", "beta"), [(3, 0.5), (3, 3.0), (4, 5.0), (5, 8.0)])
def test_the_su_n_heat_bath_converges_to_the_one_link_integral(n: int, beta: float) -> None:
    """<Re tr U / n> of one SU(n) matrix with weight exp((2 beta / n) Re tr U): Bessel determinants."""

    def partition(b: float) -> float:
        charge = np.arange(-30, 31)[:, None, None]
        shift = np.subtract.outer(np.arange(n), np.arange(n))
        return float(np.linalg.det(ive(charge + shift, b / n)).sum()) * math.exp(b)

    exact = (math.log(partition(2 * beta + 1e-4)) - math.log(partition(2 * beta - 1e-4))) / 2e-4
    U = _plane_with_cold_links(n)
    parity = np.add.outer(np.arange(64), np.arange(64)) % 2
    rng = jali.Random(3)
    means = []
    for k in range(60):
        if needs_creutz(n, 2 * beta / math.sqrt(n)):
            heat_bath_creutz[EVEN](U, rng, beta / n, U.lattice.directions[0], staple)
        else:
            heat_bath_kennedy_pendleton[EVEN](U, rng, n / (2 * beta), U.lattice.directions[0], staple)
        if k >= 10:
            means.append(np.trace(U[0].local()[parity == 0], axis1=-2, axis2=-1).real.mean() / n)
    # successive passes are nearly independent: subgroup heat baths forget a single link at once
    error = 1.5 * np.std(means) / math.sqrt(len(means))
    assert abs(np.mean(means) - exact) < 4 * error
    assert error < 2e-3


def test_both_su2_heat_baths_reach_beta_zero_and_large_beta() -> None:
    U = GaugeField(jali.Lattice(16, 16), SU(3)).cold_start()
    heat_bath_sweep(U, 0.0, jali.Random(1))
    assert abs(plaquette(U)) < 4 / math.sqrt(2 * 256 * 3)
    for beta in (1e3, 1e6):
        V = GaugeField(jali.Lattice(4, 4, 4, 4), SU(3)).cold_start()
        for _ in range(30):
            heat_bath_sweep(V, beta, jali.Random(2))
        # equipartition: 8 modes per link, less the gauge and zero modes
        assert 1 - plaquette(V) == pytest.approx(8 / (4 * beta) * (1 - 1 / 256), rel=0.1)
        assert V.unitarity_deviation() < 1e-12


def test_a_link_without_staples_is_updated_and_stays_in_the_group() -> None:
    """With an open boundary the last links of direction 1 in a corner have no plaquette at all."""
    for n in (1, 2, 3):
        U = GaugeField(jali.Lattice(4, 4), SU(n), boundary="open").hot_start(3)
        rng = jali.Random(1)
        for _ in range(5):
            sweep(U, 3.0, rng, 1, 1)
        assert U.unitarity_deviation() < 1e-13
        assert np.isfinite(as_array(U)).all()


@pytest.mark.short(2)
@pytest.mark.parametrize("n", [*GROUPS, 4])
def test_updates_keep_the_links_in_the_group(n: int) -> None:
    U = GaugeField(jali.Lattice(4, 4, 4, 4), SU(n)).hot_start(2)
    rng = jali.Random(5)
    for _ in range(20):
        sweep(U, 2.0 * n, rng)
    assert U.unitarity_deviation() < 1e-12
    metropolis_sweep(U, 2.0 * n, rng)
    assert U.unitarity_deviation() < 1e-12


def test_single_precision_updates_stay_in_the_group() -> None:
    U = GaugeField(jali.Lattice(4, 4, 4, 4), SU(3), precision="float32").hot_start(2)
    for measurement in simulate(U, 5.7, jali.Random(5), 30):
        last = measurement
    assert U.unitarity_deviation() < 1e-5
    assert 0.5 < last.plaquette < 0.62


def test_metropolis_accepts_small_proposals_and_refuses_large_ones() -> None:
    U = GaugeField(jali.Lattice(4, 4, 4, 4), SU(3)).hot_start(2)
    rng = jali.Random(5)
    for _ in range(10):
        sweep(U, 5.7, rng)
    assert metropolis_sweep(U.copy(), 5.7, rng, width=1e-4) > 0.995
    assert metropolis_sweep(U.copy(), 5.7, rng, width=3.0) < 0.2
    assert metropolis_sweep(U.copy(), 0.0, rng, width=1.0) == 1.0


@pytest.mark.parametrize("extents", [(3, 4), (5, 5), (3, 3, 4), (5, 2, 3, 4), (7, 3), (4, 6)])
def test_site_colours_separate_all_neighbours(extents: tuple[int, ...]) -> None:
    lattice = jali.Lattice(*extents)
    seen = np.full(extents, -1)
    colour = jali.Field(lattice, jali.Real())

    @jali.site_function
    def mark(X, colour, value):
        colour[X] = value

    for number, domain in enumerate(site_colours(lattice)):
        mark[domain](colour, float(number))
    seen = colour.local()
    for axis in range(len(extents)):
        assert (seen != np.roll(seen, -1, axis)).all()


@pytest.mark.parametrize(
    ("extents", "message"),
    [((4, 1), r"one link twice, \(0, -?1\) apart: it is too small"), ((8,), "1 dimensions has no loops")],
)
def test_lattices_without_independent_links_are_refused(extents: tuple[int, ...], message: str) -> None:
    U = GaugeField(jali.Lattice(*extents), SU(2)).cold_start()
    with pytest.raises(LayoutError, match=message):
        heat_bath_sweep(U, 1.0, jali.Random(1))


@pytest.mark.short(1)
@pytest.mark.parametrize(("n", "beta"), [(1, 1.3), (2, 2.0), (2, 0.5)])
def test_a_negative_beta_turns_the_plaquettes_round(n: int, beta: float) -> None:
    """With -1 in the group, links of every second row change sign and all plaquettes with them, where the extent across is even."""
    exact = jali.gauge.plaquette_reference(f"SU({n})" if n > 1 else "U(1)", beta, (6, 6)).value
    for update in (sweep, metropolis_sweep):
        U, rng, series = GaugeField(jali.Lattice(6, 6), SU(n)).hot_start(1), jali.Random(4), []
        for k in range(600):
            update(U, -beta, rng)
            if k >= 50:
                series.append(plaquette(U))
        found = mean_error(series)
        assert abs(found.mean + exact) < 4 * found.error < 0.05


def test_impossible_parameters_are_refused() -> None:
    U = GaugeField(jali.Lattice(4, 4), SU(2)).cold_start()
    rng = jali.Random(1)
    for beta in (math.nan, math.inf):
        with pytest.raises(ParameterError, match="beta"):
            sweep(U, beta, rng)
    with pytest.raises(ParameterError, match="width"):
        metropolis_sweep(U, 1.0, rng, width=0.0)
    with pytest.raises(ParameterError):
        next(simulate(U, 1.0, rng, 3, every=0))


def test_the_same_seed_gives_the_same_links_and_another_one_does_not() -> None:
    def run(seed: int) -> np.ndarray:
        U = GaugeField(jali.Lattice(4, 4, 4, 4), SU(3)).hot_start(seed)
        rng = jali.Random(seed)
        for _ in range(3):
            sweep(U, 5.7, rng)
        return as_array(U)

    assert np.array_equal(run(1), run(1))
    assert np.abs(run(1) - run(2)).max() > 0.1


def test_creutz_is_chosen_at_strong_coupling_only() -> None:
    for n, beta, ndim, creutz in (
        (3, 0.5, 4, True),
        (2, 0.3, 4, True),
        (2, 0.0, 2, True),
        (3, 5.7, 4, False),
        (2, 2.3, 4, False),
        (2, -2.3, 4, False),
    ):
        U = GaugeField(jali.Lattice(*[4] * ndim), SU(n))
        size = LinkTerms.of_links(wilson_action(beta), U).size_of_staples(U)
        # 2 (d - 1) staples that do not correlate, each of n rows of length 1
        assert size == pytest.approx(abs(beta) / n * math.sqrt(2 * (ndim - 1) * n), rel=1e-12)
        assert needs_creutz(n, size) == creutz


def test_the_staple_of_the_update_is_that_of_the_action() -> None:
    """Heat bath at enormous beta puts the link onto its staple: U S^dagger becomes positive."""
    U = warm((4, 4, 4), 2, spread=0.3)
    heat_bath_kennedy_pendleton[EVEN](U, jali.Random(1), 1 / 1e14, U.lattice.directions[1], staple)
    array = as_array(U)
    W = array[1] @ reference.dagger(reference.staple(array, 1))
    parity = sum(np.meshgrid(*[np.arange(4)] * 3, indexing="ij")) % 2
    ratio = W[parity == 0] / (reference.trace(W)[parity == 0] / 2)[..., None, None]
    np.testing.assert_allclose(ratio, np.broadcast_to(np.eye(2), ratio.shape), atol=1e-6)
