"""Masses from correlators: exact ones, ensembles of known covariance, and lsqfit on the same data."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2

from jali.errors import ParameterError
from jali.hadrons.masses import (
    Fit,
    effective_mass,
    fit_correlator,
    fold,
    plateau,
    to_gvar,
)
from jali.statistics import jackknife

T = 24
t = np.arange(T)
PHASE = 1 - 2 * (t % 2)


def state(m: float, A: float, sign: int = 1) -> np.ndarray:
    """A (exp(-m t) + sign exp(-m (T - t)))."""
    return A * (np.exp(-m * t) + sign * np.exp(-m * (T - t)))


def unit_noise(rng: np.random.Generator, n: int) -> np.ndarray:
    """Gaussian, shape (n, T), variance 1, correlation 0.8^|t - t'|."""
    noise = rng.standard_normal((n, T))
    for s in range(1, T):
        noise[:, s] = 0.8 * noise[:, s - 1] + 0.6 * noise[:, s]
    return noise


def around(C: np.ndarray, n: int = 120, relative: float = 0.01, seed: int = 1) -> np.ndarray:
    """Configurations whose mean is C to rounding: each has a partner with the opposite noise."""
    noise = unit_noise(np.random.default_rng(seed), n // 2)
    return C * (1 + relative * np.concatenate([noise, -noise]))


def ensemble(C: np.ndarray, n: int, relative: float, seed: int) -> np.ndarray:
    return C * (1 + relative * unit_noise(np.random.default_rng(seed), n))


PION = state(0.5, 2.0) + state(1.1, 1.5)
DATA = ensemble(PION, 200, 0.02, seed=20250101)


@pytest.mark.parametrize("m", [0.02, 0.4, 2.5])
@pytest.mark.parametrize(("kind", "sign"), [("cosh", 1), ("sinh", -1), ("arccosh", 1), ("arccosh", -1)])
def test_effective_masses_of_one_state_are_exact(kind: str, sign: int, m: float) -> None:
    found = effective_mass(-state(m, 3.0, sign), kind)
    exist = ~np.isnan(found.value)
    missing = {("sinh", -1): [T // 2 - 1, T // 2], ("arccosh", -1): [T // 2]}.get((kind, sign), [])
    assert list(found.t[~exist]) == missing
    # Differences of neighbours near T/2 are of the relative size m^2, which rounding limits.
    np.testing.assert_allclose(found.value[exist], m, rtol=0, atol=1e-12 if m > 0.1 else 1e-11)
    assert np.isnan(found.error).all()


def test_the_effective_mass_of_one_exponential_is_a_logarithm() -> None:
    found = effective_mass(5 * np.exp(-0.7 * t), "log")
    assert list(found.t) == list(range(T - 1))
    np.testing.assert_allclose(found.value, 0.7, rtol=1e-13)


def test_an_odd_extent_has_no_mass_between_the_two_middle_slices() -> None:
    extent, s = 9, np.arange(9)
    for kind, sign in (("cosh", 1), ("sinh", -1)):
        found = effective_mass(np.exp(-0.3 * s) + sign * np.exp(-0.3 * (extent - s)), kind)
        assert list(np.flatnonzero(np.isnan(found.value))) == [4]
        np.testing.assert_allclose(np.delete(found.value, 4), 0.3, rtol=1e-12)


def test_errors_of_effective_masses_are_those_of_the_jackknife() -> None:
    found = effective_mass(DATA, "log", bin_size=4)
    expected = jackknife(lambda c: np.log(c[:-1] / c[1:]), DATA, 4)
    np.testing.assert_allclose(found.value, expected.value, rtol=1e-13)
    np.testing.assert_allclose(found.error, expected.error, rtol=1e-10)
    assert (found.bins, found.bin_size) == (50, 4)


def test_noise_has_no_mass_in_some_slices_and_never_raises() -> None:
    noise = np.random.default_rng(7).standard_normal((30, T))
    noise[:, 5] = 0
    for kind in ("log", "arccosh", "cosh", "sinh"):
        found = effective_mass(noise, kind)
        none = np.isnan(found.value)
        assert none.any()
        assert np.isnan(found.error[none]).all()
        assert not np.isinf(found.value).any()
        assert json.dumps(found.as_dict(), allow_nan=False)
        assert "none" in str(found)


@pytest.mark.parametrize("sign", [1, -1])
def test_folding_averages_images_and_keeps_the_extent(sign: int) -> None:
    folded = fold(DATA, sign)
    assert folded.shape == DATA.shape
    np.testing.assert_array_equal(folded[:, 0], DATA[:, 0])
    for s in range(1, T):
        np.testing.assert_array_equal(folded[:, s], (DATA[:, s] + sign * DATA[:, T - s]) / 2)
    np.testing.assert_array_equal(fold(DATA[0], sign), folded[0])


EXACT = {
    "cosh": (state(0.5, 2.0), "cosh", 1, (3, 20), {"m1": 0.5, "A1": 2.0}),
    "sinh": (state(0.5, -2.0, -1), "sinh", 1, (3, 11), {"m1": 0.5, "A1": -2.0}),
    "exp": (2 * np.exp(-0.5 * t), "exp", 1, (3, 23), {"m1": 0.5, "A1": 2.0}),
    "two cosh": (PION, "cosh", 2, (1, 12), {"m1": 0.5, "m2": 1.1, "A1": 2.0, "A2": 1.5}),
    "two sinh": (
        state(0.5, 2.0, -1) + state(1.1, -0.5, -1),
        "sinh",
        2,
        (1, 11),
        {"m1": 0.5, "m2": 1.1, "A1": 2.0, "A2": -0.5},
    ),
    "two exp": (
        2 * np.exp(-0.5 * t) + np.exp(-1.2 * t),
        "exp",
        2,
        (1, 12),
        {"m1": 0.5, "m2": 1.2, "A1": 2.0, "A2": 1.0},
    ),
    "staggered": (
        state(0.5, 2.0) - PHASE * state(0.8, 0.7),
        "staggered",
        1,
        (2, 12),
        {"m1": 0.5, "m_osc": 0.8, "A1": 2.0, "A_osc": -0.7},
    ),
    "staggered, two": (
        PION + PHASE * state(0.4, 0.7),
        "staggered",
        2,
        (1, 12),
        {"m1": 0.5, "m2": 1.1, "m_osc": 0.4, "A1": 2.0, "A2": 1.5, "A_osc": 0.7},
    ),
}


@pytest.mark.parametrize("correlated", [True, False])
@pytest.mark.parametrize("case", EXACT)
def test_fits_to_exact_correlators_are_exact(case: str, correlated: bool) -> None:
    C, form, states, window, expected = EXACT[case]
    found = fit_correlator(around(C), window, form=form, states=states, correlated=correlated)
    assert found.names == tuple(expected)
    np.testing.assert_allclose(found.values, list(expected.values()), rtol=1e-10)
    np.testing.assert_allclose(found.curve(t), C, rtol=1e-9, atol=1e-12)
    assert found.curve(4).shape == ()
    assert found.chi2 < 1e-18
    assert found.mass == found.masses[0] == found.values[0]
    assert found.mass_error == pytest.approx(math.sqrt(119 * found.mass_samples.var()), rel=1e-12)
    assert list(found.masses) + list(found.amplitudes) == list(found.values)
    assert list(found.mass_errors) + list(found.amplitude_errors) == list(found.errors)


def by_lsqfit(mean: np.ndarray, window: tuple[int, int], states: int, p0: list[float]) -> Any:
    """The fit to a mean, with the covariance of DATA, by lsqfit; amplitudes at t = 0 and m2 - m1 are its unknowns."""
    gvar, lsqfit = pytest.importorskip("gvar"), pytest.importorskip("lsqfit")
    s = np.arange(window[0], window[1] + 1)
    y = gvar.gvar(mean, np.cov(DATA.T) / len(DATA))[s]

    def model(p: Any) -> Any:
        masses = [sum(p[: n + 1]) for n in range(states)]
        return sum(
            A * (gvar.exp(-m * s) + gvar.exp(-m * (T - s))) for m, A in zip(masses, p[states:], strict=True)
        )

    return lsqfit.nonlinear_fit(data=y, fcn=model, p0=p0, svdcut=False, tol=(1e-13, 1e-13, 1e-13))


@pytest.mark.parametrize(
    ("window", "states", "p0"), [((9, 12), 1, [0.5, 2.0]), ((1, 12), 2, [0.5, 0.6, 2.0, 1.5])]
)
def test_lsqfit_finds_the_same_masses_errors_and_chi_squared(
    window: tuple[int, int], states: int, p0: list[float]
) -> None:
    """The parameters to rounding, of jackknife samples too. Errors to 2 percent: lsqfit's are linear, those of the jackknife not."""
    found = fit_correlator(DATA, window, states=states)
    reference = by_lsqfit(DATA.mean(axis=0), window, states, p0)
    masses = [sum(reference.p[: n + 1]) for n in range(states)]
    p = [*masses, *reference.p[states:]]
    errors = np.array([one.sdev for one in p])
    assert (np.abs(found.values - [one.mean for one in p]) < 1e-5 * errors).all()
    np.testing.assert_allclose(found.errors, errors, rtol=0.02)
    assert found.chi2 == pytest.approx(reference.chi2, rel=1e-8)
    assert found.dof == window[1] - window[0] + 1 - 2 * states
    # Hotelling's distribution is wider than that of chi squared, and hardly so for 200 bins.
    assert found.p_value == pytest.approx(reference.Q, abs=0.03)
    for left_out in (0, 77, 199):
        sample = by_lsqfit(np.delete(DATA, left_out, axis=0).mean(axis=0), window, states, p0)
        deviation = found.samples[left_out, states:] - [one.mean for one in sample.p[states:]]
        assert (np.abs(deviation) < 1e-5 * errors[states:]).all()
        assert abs(found.mass_samples[left_out] - sample.p[0].mean) < 1e-5 * errors[0]


def test_errors_of_uncorrelated_fits_contain_the_correlations() -> None:
    """Against linear propagation through the minimum, and <chi^2> = tr(Sigma W) - tr of what the parameters absorb."""
    window = (8, 12)
    s = np.arange(8, 13)
    found = fit_correlator(DATA, window, correlated=False)
    covariance = np.cov(DATA.T)[8:13, 8:13] / len(DATA)
    W = np.diag(1 / np.diag(covariance))
    m, A = found.values
    J = np.stack(
        [
            A * (-s * np.exp(-m * s) - (T - s) * np.exp(-m * (T - s))),
            np.exp(-m * s) + np.exp(-m * (T - s)),
        ],
        axis=1,
    )
    to_parameters = np.linalg.solve(J.T @ W @ J, J.T @ W)
    errors = np.sqrt(np.diag(to_parameters @ covariance @ to_parameters.T))
    np.testing.assert_allclose(found.errors, errors, rtol=0.01)
    rest = np.eye(5) - J @ to_parameters
    assert found.chi2_expected == pytest.approx(np.trace(rest.T @ W @ rest @ covariance), rel=1e-6)
    deviation = DATA.mean(axis=0)[8:13] - found.curve(s)
    assert found.chi2 == pytest.approx(deviation @ W @ deviation, rel=1e-9)
    assert np.abs(J.T @ W @ deviation * errors).max() < 1e-5  # the minimum
    assert math.isnan(found.p_value)


def test_full_shrinkage_is_no_correlation_and_none_is_all() -> None:
    window = (8, 12)
    few = DATA[:60]
    both = [fit_correlator(few, window, shrinkage=1.0), fit_correlator(few, window, correlated=False)]
    np.testing.assert_allclose(both[0].values, both[1].values, rtol=1e-12)
    np.testing.assert_allclose(both[0].samples, both[1].samples, rtol=1e-12)
    all = fit_correlator(few, window)
    assert all.chi2_expected == pytest.approx(all.dof, rel=1e-9)
    assert all.chi2 > fit_correlator(few, window, shrinkage=0.3).chi2 > both[0].chi2


def test_masses_and_chi_squared_of_many_ensembles_are_distributed_as_stated() -> None:
    """One test of 100 ensembles, whose seeds were written before the first run: squares of (mass - true) / error, and
    -2 ln p, which has two degrees of freedom for a uniform p."""
    total, worse = 0.0, 0.0
    for seed in range(31000, 31100):
        found = fit_correlator(ensemble(state(0.5, 2.0), 40, 0.05, seed), (4, 7))
        pull = ((found.mass - 0.5) / found.mass_error) ** 2
        fisher = -2 * math.log(found.p_value)
        total += pull + fisher
        worse += pull / 0.7**2 + fisher
    assert 1e-3 < chi2.sf(total, 3 * 100) < 0.999
    assert chi2.sf(worse, 3 * 100) < 1e-3  # it would notice errors that are 30 percent too small


def test_a_plateau_averages_windows_by_akaikes_criterion() -> None:
    found = plateau(DATA[:100], first=6)
    windows = [(first, 12) for first in range(6, 11)]
    fits = [fit_correlator(DATA[:100], window) for window in windows]
    akaike = np.array([fit.chi2 + 2 * 2 + 2 * (fit.window[0] - 6) for fit in fits])
    weights = np.exp(-(akaike - akaike.min()) / 2)
    kept = weights > 1e-3
    assert [fit.window for fit in found.fits] == [w for w, k in zip(windows, kept, strict=True) if k]
    weights = weights[kept] / weights[kept].sum()
    np.testing.assert_allclose(found.weights, weights, rtol=1e-6)
    masses = np.array([fit.mass for fit in fits])[kept]
    errors = np.array([fit.mass_error for fit in fits])[kept]
    mean = weights @ masses
    assert found.mass == pytest.approx(mean, rel=1e-10)
    assert found.error**2 == pytest.approx(weights @ errors**2 + weights @ masses**2 - mean**2, rel=1e-6)
    assert found.error == pytest.approx(math.hypot(found.statistical_error, found.systematic_error))
    assert found.samples.mean() == pytest.approx(found.mass, abs=found.error)
    assert found.best.window == windows[int(np.argmin(akaike))]
    assert abs(found.mass - 0.5) < 4 * found.error
    assert str(found.best) in str(found)


def test_a_plateau_of_two_states_leaves_windows_out_that_have_one() -> None:
    found = plateau(DATA, states=2)
    assert found.best.window == (1, 12)
    assert [window[0] for window, _ in found.left_out] == list(range(13 - 4 - len(found.left_out), 13 - 4))
    assert all("use states=1" in reason or "converge" in reason for _, reason in found.left_out)
    assert abs(found.mass - 0.5) < 4 * found.error


def test_a_plateau_of_few_configurations_is_uncorrelated() -> None:
    few = DATA[:20]
    with pytest.raises(ParameterError, match="20 bins of 1 are too few for the covariance of 12 points"):
        plateau(few)
    found = plateau(few, correlated=False)
    assert not found.best.correlated
    assert abs(found.mass - 0.5) < 4 * found.error


def test_the_same_input_gives_the_same_bytes() -> None:
    def everything() -> bytes:
        fit, average = fit_correlator(DATA[:60], (1, 12), states=2), plateau(DATA[:60], first=8)
        return (
            fit.values.tobytes()
            + fit.samples.tobytes()
            + average.samples.tobytes()
            + json.dumps(average.as_dict(), allow_nan=False).encode()
            + effective_mass(DATA[:60]).value.tobytes()
        )

    assert everything() == everything()


def test_units_of_the_correlator_and_bins_do_what_they_say() -> None:
    found, scaled = fit_correlator(DATA, (8, 12)), fit_correlator(-1e30 * DATA, (8, 12))
    np.testing.assert_allclose(scaled.masses, found.masses, rtol=1e-7)
    np.testing.assert_allclose(scaled.amplitudes, -1e30 * found.amplitudes, rtol=1e-7)
    assert scaled.mass_error == pytest.approx(found.mass_error, rel=1e-6)
    binned = fit_correlator(np.repeat(DATA, 3, axis=0), (8, 12), bin_size=3)
    np.testing.assert_allclose(binned.errors, found.errors, rtol=1e-8)
    assert (binned.bins, binned.bin_size) == (200, 3)


def test_a_fit_writes_itself_and_becomes_json() -> None:
    found = fit_correlator(DATA, (9, 12))
    assert str(found).startswith(f"m1 = {found.mass:.3f}"[:8])
    assert "cosh, correlated, t = 9..12" in str(found)
    assert "expected" in str(fit_correlator(DATA, (9, 12), correlated=False))
    numbers = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert numbers["mass"] == found.mass
    assert numbers["parameters"]["A1"]["error"] == found.errors[1]
    assert numbers["window"] == [9, 12]
    exact = fit_correlator(DATA, (9, 10))  # as many points as parameters
    assert exact.dof == 0
    assert exact.as_dict()["p_value"] is None


@pytest.mark.parametrize("start", [(0.3, 2.0), (0.01, 0.02)])
def test_a_start_finds_the_minimum_of_the_grid(start: tuple[float, float]) -> None:
    found = fit_correlator(DATA[:80], (1, 12), states=2)
    started = fit_correlator(DATA[:80], (1, 12), states=2, start=start)
    assert (np.abs(started.values - found.values) < 1e-5 * found.errors).all()


@pytest.mark.parametrize("start", [(0.2, 1.0), (0.1, 0.5), (50.0, 60.0), (50.0,)])
def test_a_start_that_leads_nowhere_gives_way_to_the_grid(start: tuple[float, ...]) -> None:
    C = ensemble(np.exp(-0.3 * t) - 0.6 * np.exp(-0.9 * t), 70, 1e-4, seed=5)
    found = fit_correlator(C, (0, 12), form="exp", states=len(start))
    started = fit_correlator(C, (0, 12), form="exp", states=len(start), start=start)
    assert (np.abs(started.values - found.values) < 1e-4 * found.errors).all()


def test_a_start_is_not_blamed_on_data_that_determine_nothing() -> None:
    with pytest.raises(ParameterError, match="use states=1") as refusal:
        fit_correlator(around(state(0.5, 2.0)), (1, 12), states=2)
    with pytest.raises(ParameterError) as started:
        fit_correlator(around(state(0.5, 2.0)), (1, 12), states=2, start=(0.1, 0.2))
    assert str(started.value) == str(refusal.value)


@pytest.mark.parametrize("power", [-1000, 30, 1015])
def test_powers_of_two_of_any_size_change_nothing_but_units(power: int) -> None:
    few = DATA[:50]
    huge = np.ldexp(few, power)
    found, scaled = fit_correlator(few, (8, 12)), fit_correlator(huge, (8, 12))
    np.testing.assert_array_equal(scaled.mass_samples, found.mass_samples)
    np.testing.assert_array_equal(scaled.amplitudes, np.ldexp(found.amplitudes, power))
    np.testing.assert_array_equal(scaled.amplitude_errors, np.ldexp(found.amplitude_errors, power))
    assert (scaled.chi2, scaled.chi2_expected) == (found.chi2, found.chi2_expected)
    np.testing.assert_array_equal(fold(huge), np.ldexp(fold(few), power))
    for kind in ("arccosh", "cosh"):
        np.testing.assert_array_equal(effective_mass(huge, kind).error, effective_mass(few, kind).error)


def test_a_huge_slice_outside_the_window_changes_nothing() -> None:
    contact = DATA[:50].copy()
    contact[:, 0] *= 2.0**1010
    found, beside = fit_correlator(DATA[:50], (8, 12)), fit_correlator(contact, (8, 12))
    np.testing.assert_allclose(beside.values, found.values, rtol=1e-9)
    np.testing.assert_allclose(beside.errors, found.errors, rtol=1e-9)


def test_sizes_that_gvar_cannot_square_are_refused() -> None:
    pytest.importorskip("gvar")
    for power, size in ((1000, "large"), (-1000, "small"), (-1060, "small")):
        for what in (np.ldexp(DATA[:50], power), fit_correlator(np.ldexp(DATA[:50], power), (8, 12))):
            with pytest.raises(ParameterError, match=f"so {size} that their squares .* by a power of 2"):
                to_gvar(what)


def test_a_plateau_of_a_folded_odd_correlator_ends_before_its_middle() -> None:
    odd = ensemble(state(0.5, 2.0, -1), 60, 0.02, seed=3)
    found = plateau(fold(odd, -1), form="sinh", first=6)
    assert {fit.window[1] for fit in found.fits} == {11}
    assert abs(found.mass - 0.5) < 4 * found.error
    assert plateau(odd[:, :23], form="sinh", first=8).best.window[1] == 11


def test_arrays_without_masked_entries_are_taken() -> None:
    np.testing.assert_array_equal(fold(np.ma.array(DATA)), fold(DATA))


def test_bins_leave_the_first_configurations_out() -> None:
    found = fit_correlator(DATA[:103], (9, 12), bin_size=4)
    np.testing.assert_array_equal(found.samples, fit_correlator(DATA[3:103], (9, 12), bin_size=4).samples)


def test_gvar_has_means_and_covariances_of_correlators_and_fits() -> None:
    gvar = pytest.importorskip("gvar")
    numbers = to_gvar(DATA)
    expected = gvar.dataset.avg_data(list(DATA), unbias=True)
    np.testing.assert_allclose(gvar.mean(numbers), gvar.mean(expected), rtol=1e-13)
    np.testing.assert_allclose(gvar.evalcov(numbers), gvar.evalcov(expected), rtol=1e-8, atol=1e-20)
    identity = jackknife(lambda c: c, DATA, 5)
    np.testing.assert_allclose(gvar.sdev(to_gvar(DATA, bin_size=5)), identity.error, rtol=1e-10)
    fit = fit_correlator(DATA, (8, 12))
    p = to_gvar(fit)
    assert list(p) == list(fit.names)
    np.testing.assert_allclose([p[name].mean for name in p], fit.values)
    np.testing.assert_allclose([p[name].sdev for name in p], fit.errors)
    product = fit.samples[:, 0] * fit.samples[:, 1]
    assert (p["m1"] * p["A1"]).sdev == pytest.approx(math.sqrt(199 * product.var()), rel=1e-2)
    average = plateau(DATA, first=8)
    assert (to_gvar(average).mean, to_gvar(average).sdev) == (average.mass, average.error)


def test_without_gvar_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gvar", None)
    with pytest.raises(ParameterError, match=r'pip install "jali\[spectrum\]"'):
        to_gvar(DATA)


def with_nan(x: np.ndarray) -> np.ndarray:
    y = x.copy()
    y[3, 5] = math.nan
    return y


FITS: dict[str, tuple[Callable[[], Fit], str]] = {
    "one configuration": (lambda: fit_correlator(PION, (1, 12)), r"\(configurations, T\) is needed"),
    "another shape": (lambda: fit_correlator(DATA[None], (1, 12)), r"shape \(1, 200, 24\)"),
    "nothing": (lambda: fit_correlator([], (1, 12)), r"shape \(0,\)"),
    "ragged": (lambda: fit_correlator([[1.0, 2.0], [3.0]], (0, 1)), "not an array of real numbers"),
    "complex": (lambda: fit_correlator(DATA + 0j, (1, 12)), "is complex; take its real part"),
    "not finite": (lambda: fit_correlator(with_nan(DATA), (1, 12)), r"nan at index \(3, 5\)"),
    "text": (lambda: fit_correlator("pion", (1, 12)), "not an array of real numbers"),
    "nothing at all": (lambda: fit_correlator(None, (1, 12)), "not an array of real numbers: None"),
    "text of numbers": (lambda: fit_correlator([["1", "2"]], (0, 1)), "not an array of real numbers"),
    "truth": (lambda: fit_correlator(DATA > 1, (1, 12)), "not an array of real numbers"),
    "None within": (lambda: fit_correlator([[1.0, None]], (0, 1)), "not an array of real numbers"),
    "masked": (
        lambda: fit_correlator(np.ma.masked_less(DATA, DATA.min() * 1.0000001), (8, 12)),
        "1 masked number, .* leave masked configurations out",
    ),
    "list of masked": (
        lambda: fit_correlator([np.ma.array(DATA[0], mask=t == 3), *DATA[1:]], (8, 12)),
        "leave masked configurations out",
    ),
    "window of a set": (lambda: fit_correlator(DATA, {3, 6}), r"a pair .*, not \{3, 6\}"),
    "window of text": (lambda: fit_correlator(DATA, "36"), "a pair .*, not '36'"),
    "window of pairs": (lambda: fit_correlator(DATA, ((1, 2), 3)), "whole numbers"),
    "window of an array": (lambda: fit_correlator(DATA, np.array([[1, 2], [3, 4]])), "a pair"),
    "window outside": (lambda: fit_correlator(DATA, (5, 24)), "slices are 0 to 23"),
    "window before": (lambda: fit_correlator(DATA, (-1, 5)), "slices are 0 to 23"),
    "window turned": (lambda: fit_correlator(DATA, (9, 5)), "the first before the last"),
    "window of three": (lambda: fit_correlator(DATA, (1, 2, 3)), "a pair"),
    "window of fractions": (lambda: fit_correlator(DATA, (1.5, 9)), "whole numbers, not 1.5"),
    "few points": (lambda: fit_correlator(DATA, (5, 7), states=2), "3 points for 4 parameters"),
    "few bins": (
        lambda: fit_correlator(DATA, (1, 12), bin_size=5),
        r"40 bins of 5 are too few .* needs 60, 5 a point; use correlated=False, .* at most 8 points",
    ),
    "one point": (lambda: fit_correlator(DATA, (3, 3)), r"has 1 point for 2 parameters"),
    "four bins": (
        lambda: fit_correlator(DATA[:4], (8, 12)),
        "4 bins of 1 are too few .* use correlated=False or a shrinkage$",
    ),
    "three bins of a correlated fit": (lambda: fit_correlator(DATA[:3], (8, 12)), "a fit needs 4 or more$"),
    "three bins": (
        lambda: fit_correlator(DATA[:3], (8, 12), correlated=False),
        "3 bins of 1 are too few for 5 points: a fit needs 4 or more",
    ),
    "bin size": (lambda: fit_correlator(DATA, (1, 12), bin_size=0), "use a bin size from 1 to 100"),
    "form": (lambda: fit_correlator(DATA, (1, 12), form="gauss"), "use 'cosh', 'sinh', 'exp' or"),
    "states": (lambda: fit_correlator(DATA, (1, 12), states=3), "1 or 2 states, not 3"),
    "correlated": (lambda: fit_correlator(DATA, (1, 12), correlated="no"), "True or False, not 'no'"),
    "shrinkage": (lambda: fit_correlator(DATA, (1, 12), shrinkage=1.1), "from 0 to 1, not 1.1"),
    "shrinkage nan": (lambda: fit_correlator(DATA, (1, 12), shrinkage=math.nan), "from 0 to 1"),
    "odd extent": (lambda: fit_correlator(DATA[:, :23], (1, 9), form="staggered"), "even extent"),
    "start too long": (lambda: fit_correlator(DATA, (8, 12), start=(0.5, 0.6)), r"the masses \(m1\)"),
    "start turned": (
        lambda: fit_correlator(DATA, (1, 12), states=2, start=(1.0, 0.5)),
        r"\(m1, m2\), all positive, m1 < m2",
    ),
    "start negative": (
        lambda: fit_correlator(DATA, (1, 12), form="staggered", start=(0.5, -0.5)),
        r"\(m1, m_osc\), all positive",
    ),
    "folded twice": (lambda: fit_correlator(fold(DATA), (8, 15)), "end the window at T/2 = 12"),
    "two equal slices": (
        lambda: fit_correlator(DATA[:, [*range(10), 9, *range(11, T)]], (6, 12)),
        "singular .*: use a shorter window",
    ),
    "folded zero": (
        lambda: fit_correlator(fold(DATA, -1), (8, 12), form="sinh"),
        r"C\(12\) is the same on all configurations",
    ),
    "no noise": (
        lambda: fit_correlator(np.tile(PION, (100, 1)), (1, 12)),
        r"C\(1\) is the same on all configurations",
    ),
    "state too many": (lambda: fit_correlator(around(state(0.5, 2.0)), (1, 12), states=2), "use states=1"),
    "no partner": (
        lambda: fit_correlator(around(state(0.5, 2.0)), (1, 12), form="staggered"),
        "form='cosh' if no partner oscillates",
    ),
    "no mass": (lambda: fit_correlator(around(np.ones(T)), (1, 12)), "converge|determine"),
    "curve between slices": (
        lambda: fit_correlator(around(EXACT["staggered"][0]), (2, 12), form="staggered").curve(2.5),
        "whole t only",
    ),
    "curve of nothing": (lambda: fit_correlator(DATA[:50], (8, 12)).curve(None), "t is not an array of real"),
    "curve of truth": (lambda: fit_correlator(DATA[:50], (8, 12)).curve(True), "t is not an array of real"),
    "curve of masked": (
        lambda: fit_correlator(DATA[:50], (8, 12)).curve(np.ma.masked_less([1, 2], 2)),
        "t has 1 masked number, .* leave them out",
    ),
    "curve nowhere": (lambda: fit_correlator(DATA[:50], (8, 12)).curve(math.inf), "t is inf"),
}


@pytest.mark.parametrize("case", FITS)
def test_what_cannot_be_fitted_is_refused_with_what_would_be_right(case: str) -> None:
    attempt, message = FITS[case]
    with pytest.raises(ParameterError, match=message):
        attempt()


OTHERS: dict[str, tuple[Callable[[], Any], str]] = {
    "kind": (lambda: effective_mass(DATA, "tanh"), "use 'log', 'arccosh', 'cosh' or 'sinh'"),
    "two slices": (lambda: effective_mass(DATA[:, :2]), "2 slices; an effective mass needs 3"),
    "one bin": (lambda: effective_mass(DATA, bin_size=200), "the jackknife needs 2 bins"),
    "sign": (lambda: fold(DATA, 2), "is 1 or -1, not 2"),
    "complex": (lambda: fold(DATA * 1j), "is complex"),
    "short plateau": (lambda: plateau(DATA, first=11), "first <= 10"),
    "plateau outside": (lambda: plateau(DATA, last=24), "slices are 0 to 23"),
    "plateau of noise": (
        lambda: plateau(around(np.ones(T)), first=4),
        "of 7 windows from 4 to 12 none determines",
    ),
    "nothing at all": (lambda: effective_mass(None), "not an array of real numbers: None"),
    "masked": (lambda: effective_mass(np.ma.masked_less(DATA, 0.1)), "leave masked configurations out"),
    "masked, folded": (lambda: fold(np.ma.masked_less(DATA, 0.1)), "leave masked configurations out"),
    "one configuration": (lambda: effective_mass(DATA[:1]), "1 measurement;"),
    "bins of a fit": (
        lambda: to_gvar(fit_correlator(DATA[:50], (8, 12)), bin_size=0),
        "bin_size is for correlators; the bins of a fit",
    ),
    "bins of a plateau": (
        lambda: to_gvar(plateau(DATA[:50], first=8), bin_size=2),
        "bin_size is for correlators; the bins of a plateau",
    ),
    "gvar of one": (lambda: to_gvar(PION), r"\(configurations, T\) is needed"),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_bad_input_is_refused_with_what_would_be_right(case: str) -> None:
    attempt, message = OTHERS[case]
    with pytest.raises(ParameterError, match=message):
        attempt()
