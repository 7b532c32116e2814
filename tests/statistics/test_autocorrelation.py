"""tau_int and errors of means against AR(1) chains, whose autocorrelation is known in closed form.

x_{t+1} = a x_t + sqrt(1 - a^2) noise has rho(t) = a^t, hence tau_int = (1 + a) / (2 (1 - a)).
The coverage checks are shown to be sharp: they reject errors that are 15 percent too large or too small.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from jali.errors import ParameterError
from jali.statistics import (
    autocorrelation_function,
    integrated_autocorrelation_time,
    mean_error,
    mean_errors,
)


def ar1(a: float, n: int, chains: int, seed: int) -> np.ndarray:
    """Stationary AR(1) chains of unit variance and zero mean, shape (chains, n)."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((chains, n))
    noise[:, 1:] *= math.sqrt(1 - a * a)
    return lfilter([1.0], [1.0, -a], noise, axis=1)


def exact_tau(a: float) -> float:
    return (1 + a) / (2 * (1 - a))


def assert_errors_cover(deviations: np.ndarray) -> None:
    """(estimate - truth) / error over many chains must look like a unit normal.

    With 2000 chains the spread is known to 1.6 percent and the one-sigma coverage to 1 percent; the limits
    leave about four of those plus a percent or two for the fluctuation of the errors themselves.
    """
    assert len(deviations) >= 2000
    spread = math.sqrt(float(np.mean(deviations**2)))
    assert 0.93 < spread < 1.09, f"the true spread is {spread:.3f} times the quoted error"
    coverage = float(np.mean(np.abs(deviations) < 1))
    assert 0.64 < coverage < 0.72, f"one sigma covers the truth in {coverage:.1%} of the chains"


def test_tau_int_of_ar1_chains_is_exact_within_its_error():
    for seed, a in enumerate((-0.4, 0.0, 0.5, 0.8, 0.95)):
        (chain,) = ar1(a, 200_000, 1, seed)
        result = integrated_autocorrelation_time(chain)
        assert abs(result.tau_int - exact_tau(a)) < 3 * result.tau_int_error + 0.01 * exact_tau(a)
        assert result.tau_int_error < 0.06 * exact_tau(a)


def test_tau_int_averaged_over_chains_is_exact_to_three_percent_for_both_windows():
    for a in (0.0, 0.5, 0.8):
        chains = ar1(a, 4000, 400, 17)
        for method in ("wolff", "madras-sokal"):
            tau = [integrated_autocorrelation_time(chain, method=method).tau_int for chain in chains]
            assert np.mean(tau) == pytest.approx(exact_tau(a), rel=0.03)


def test_error_of_tau_int_is_its_spread_over_chains():
    for a in (0.0, 0.8):
        results = [integrated_autocorrelation_time(chain) for chain in ar1(a, 4000, 1000, 23)]
        spread = np.std([r.tau_int for r in results])
        quoted = math.sqrt(np.mean([r.tau_int_error**2 for r in results]))
        assert quoted == pytest.approx(spread, rel=0.15)


@pytest.mark.short(2)
@pytest.mark.parametrize("a", [-0.5, 0.0, 0.5, 0.9])
def test_error_bars_cover_the_true_mean_of_ar1_chains(a):
    estimates = [mean_error(chain) for chain in ar1(a, 3000, 2000, 101)]
    assert_errors_cover(np.array([e.mean / e.error for e in estimates]))


@pytest.mark.short(1)
@pytest.mark.parametrize("wrong", [0.85, 1.15])
def test_coverage_check_rejects_errors_wrong_by_15_percent(wrong):
    estimates = [mean_error(chain) for chain in ar1(0.5, 3000, 2000, 101)]
    with pytest.raises(AssertionError):
        assert_errors_cover(np.array([e.mean / (wrong * e.error) for e in estimates]))


def test_naive_error_would_fail_the_coverage_check():
    chains = ar1(0.5, 3000, 2000, 101)
    naive = chains.std(axis=1) / math.sqrt(3000)
    with pytest.raises(AssertionError):
        assert_errors_cover(chains.mean(axis=1) / naive)


def test_white_noise_has_tau_one_half_and_the_naive_error():
    noise = np.random.default_rng(5).normal(3.0, 2.0, 50_000)
    estimate = mean_error(noise)
    assert abs(estimate.tau_int - 0.5) < 4 * estimate.tau_int_error
    assert estimate.error == pytest.approx(2.0 / math.sqrt(50_000), rel=0.05)
    assert estimate.n == 50_000
    assert estimate.independent == pytest.approx(50_000, rel=0.1)


def test_estimates_follow_shift_and_scale_of_the_data():
    (chain,) = ar1(0.7, 5000, 1, 3)
    plain = mean_error(chain)
    for scale, shift in ((1e-200, 0.0), (1e150, 0.0), (2.0, 30.0)):
        moved = mean_error(scale * chain + shift)
        assert moved.error == pytest.approx(scale * plain.error, rel=1e-10)
        assert moved.tau_int == pytest.approx(plain.tau_int, rel=1e-10)
        assert moved.window == plain.window


def test_autocorrelation_function_of_an_ar1_chain_is_a_power():
    (chain,) = ar1(0.8, 200_000, 1, 11)
    rho, error = autocorrelation_function(chain, 30)
    assert rho.shape == error.shape == (31,)
    assert rho[0] == 1
    assert error[0] == 0
    assert np.all(np.abs(rho - 0.8 ** np.arange(31)) < 4 * error + 1e-12)


def test_error_of_the_autocorrelation_function_is_its_spread_over_chains():
    pairs = [autocorrelation_function(chain, 20) for chain in ar1(0.8, 4000, 400, 29)]
    spread = np.std([rho for rho, _ in pairs], axis=0)[1:]
    quoted = np.sqrt(np.mean([error**2 for _, error in pairs], axis=0))[1:]
    assert np.all(np.abs(quoted / spread - 1) < 0.25)


def test_constant_series_has_no_error_and_tau_one_half():
    estimate = mean_error([0.25] * 100)
    assert (estimate.mean, estimate.error, estimate.tau_int, estimate.window) == (0.25, 0.0, 0.5, 0)
    assert integrated_autocorrelation_time([0.25, 0.25]).tau_int == 0.5
    rho, _ = autocorrelation_function([0.25] * 10)
    assert list(rho) == [1, 0, 0, 0, 0, 0]


def test_one_measurement_has_a_mean_but_no_error():
    estimate = mean_error([0.5])
    assert estimate.mean == 0.5
    assert estimate.n == 1
    assert math.isnan(estimate.error)
    assert math.isnan(estimate.tau_int)


def test_two_and_three_measurements_give_the_naive_error_and_unknown_tau():
    estimate = mean_error([1.0, 2.0])
    assert estimate.mean == 1.5
    assert estimate.error == pytest.approx(0.5)  # sample deviation 1/sqrt(2), over sqrt(2)
    assert estimate.tau_int == 0.5
    assert math.isnan(estimate.tau_int_error)
    assert mean_error([1.0, 2.0, 3.0]).error == pytest.approx(1 / math.sqrt(3))


def test_alternating_series_gives_a_positive_finite_error():
    estimate = mean_error([0.0, 1.0] * 50)
    assert estimate.mean == 0.5
    assert 0 < estimate.error < 1.1 * 0.5 / math.sqrt(99)
    assert estimate.tau_int > 0


def test_a_slow_trend_gives_a_large_tau_int():
    estimate = mean_error(np.linspace(0.0, 1.0, 400))
    assert estimate.tau_int > 30


def test_short_series_of_every_length_give_finite_positive_errors():
    rng = np.random.default_rng(8)
    for n in range(4, 40):
        for _ in range(20):
            estimate = mean_error(rng.standard_normal(n))
            assert math.isfinite(estimate.error)
            assert estimate.error > 0
            assert math.isfinite(estimate.tau_int)
            assert math.isfinite(estimate.tau_int_error)
            assert 0 <= estimate.window <= n // 2


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ([], "0 measurements; at least 1"),
        ([1.0, math.nan, 2.0, math.inf], r"measurement 1 of 4 is nan \(2 not finite"),
        ([1 + 2j, 3j], "complex"),
        ([[1.0, 2.0], [3.0, 4.0]], r"shape \(2, 2\)"),
        (3.0, r"shape \(\)"),
        (["a", "b"], "numbers are needed"),
    ],
)
def test_impossible_series_are_refused_with_the_reason(series, message):
    with pytest.raises(ParameterError, match=message):
        mean_error(series)


def test_one_measurement_has_no_autocorrelation_time():
    with pytest.raises(ParameterError, match="1 measurement; at least 2"):
        integrated_autocorrelation_time([1.0])


def test_unknown_window_method_and_factor_are_refused():
    with pytest.raises(ParameterError, match="'wolff' or 'madras-sokal'"):
        mean_error([1.0, 2.0], method="sokal")
    with pytest.raises(ParameterError, match="s = 0"):
        integrated_autocorrelation_time([1.0, 2.0], s=0)
    with pytest.raises(ParameterError, match=r"method a numpy.ndarray of shape \(2,\)"):
        mean_error([1.0, 2.0], method=np.zeros(2))


def test_several_observables_each_get_their_own_window_and_errors_name_the_observable():
    fast, slow = ar1(0.0, 5000, 1, 1)[0], ar1(0.95, 5000, 1, 2)[0]
    result = mean_errors({"plaquette": fast, "charge": slow})
    assert list(result) == ["plaquette", "charge"]
    assert result["charge"].window > result["plaquette"].window
    with pytest.raises(ParameterError, match="charge: measurement 0"):
        mean_errors({"plaquette": fast, "charge": [math.nan]})
    with pytest.raises(ParameterError, match="100000 characters.: the series has 0") as caught:
        mean_errors({"x" * 100_000: []})
    assert len(str(caught.value)) < 500
