"""Binning, jackknife, thermalisation cut, drift and number formatting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.signal import lfilter

from jali.errors import ParameterError
from jali.statistics import (
    binning,
    drift,
    format_value,
    jackknife,
    mean_error,
    mean_error_of,
    thermalised_from,
)


def repr_id(value: object) -> str:
    return repr(value)[:8]


def ar1(a: float, n: int, seed: int) -> np.ndarray:
    noise = np.random.default_rng(seed).standard_normal(n)
    noise[1:] *= math.sqrt(1 - a * a)
    return lfilter([1.0], [1.0, -a], noise)


def test_binned_error_rises_from_the_naive_error_to_the_gamma_method():
    chain = ar1(0.8, 100_000, 1)
    result = binning(chain)
    assert list(result.sizes[:4]) == [1, 2, 4, 8]
    assert len(chain) // result.sizes[-1] >= 16
    assert result.errors[0] == pytest.approx(chain.std(ddof=1) / math.sqrt(len(chain)))
    assert result.tau_int[0] == 0.5
    plateau = int(np.searchsorted(result.sizes, 256))
    assert abs(result.errors[plateau] - mean_error(chain).error) < 3 * result.errors_error[plateau]
    assert result.tau_int[plateau] == pytest.approx(4.5, rel=0.2)


def test_binning_of_pairs_of_equal_numbers_is_exact():
    values = np.random.default_rng(2).standard_normal(500)
    result = binning(np.repeat(values, 2))
    assert result.errors[1] == pytest.approx(values.std(ddof=1) / math.sqrt(500))


def test_binning_of_a_constant_series_has_no_error():
    result = binning([2.0] * 64)
    assert np.all(result.errors == 0)
    assert np.all(result.tau_int == 0.5)


def test_binning_refuses_what_has_no_spread():
    with pytest.raises(ParameterError, match="1 measurement;"):
        binning([1.0])
    with pytest.raises(ParameterError, match="least_bins = 1"):
        binning([1.0, 2.0], least_bins=1)


def test_jackknife_of_the_mean_is_the_binned_error():
    chain = ar1(0.5, 4096, 3)
    result = jackknife(lambda mean: mean, chain, bin_size=16)
    assert result.bins == 256
    assert result.value == pytest.approx(chain.mean())
    assert result.error == pytest.approx(binning(chain).errors[4])


def test_jackknife_of_a_nonlinear_function_agrees_with_error_propagation():
    rng = np.random.default_rng(4)
    data = np.column_stack([rng.normal(2.0, 0.1, 20_000), rng.normal(3.0, 0.2, 20_000)])
    result = jackknife(lambda m: m[0] / m[1], data)
    exact = 2 / 3 * math.hypot(0.1 / 2, 0.2 / 3) / math.sqrt(20_000)
    assert result.error == pytest.approx(exact, rel=0.03)
    assert abs(result.value - 2 / 3) < 4 * exact


def test_jackknife_covers_the_truth_for_a_susceptibility_of_correlated_data():
    misses = []
    for seed in range(400):
        chain = ar1(0.6, 2000, seed)
        result = jackknife(lambda m: m[1] - m[0] ** 2, np.column_stack([chain, chain**2]), bin_size=25)
        misses.append((float(result.value) - 1.0) / float(result.error))
    assert 0.9 < np.std(misses) < 1.12


def test_gamma_method_of_a_function_is_error_propagation_for_independent_data():
    rng = np.random.default_rng(8)
    data = np.column_stack([rng.normal(2, 0.1, 4000), rng.normal(5, 0.3, 4000)])
    found = mean_error_of(lambda m: m[0] / m[1], data)
    relative = math.hypot(0.1 / 2, 0.3 / 5) / math.sqrt(4000)
    assert found.mean == pytest.approx(data[:, 0].mean() / data[:, 1].mean(), rel=1e-14)
    assert found.error == pytest.approx(0.4 * relative, rel=0.1)


def test_gamma_method_of_a_function_knows_correlation_in_time_and_between_observables():
    chain = ar1(0.8, 20_000, 9)
    same = mean_error_of(lambda m: m[0] - m[1], np.column_stack([chain, chain + 1]))
    assert same.mean == pytest.approx(-1)
    assert same.error < 1e-12
    double = mean_error_of(lambda m: m[0] + m[1], np.column_stack([chain, chain]))
    alone = mean_error(chain)
    assert double.error == pytest.approx(2 * alone.error, rel=1e-9)
    assert double.tau_int == pytest.approx(alone.tau_int, rel=1e-9)


def test_gamma_method_of_a_function_of_one_measurement_has_no_error_and_of_bad_data_is_refused():
    one = mean_error_of(lambda m: m[0] * m[1], np.array([[2.0, 3.0]]))
    assert one.mean == 6
    assert math.isnan(one.error)
    with pytest.raises(ParameterError, match="is needed"):
        mean_error_of(lambda m: 0.0, np.zeros(5))
    with pytest.raises(ParameterError, match="takes a function"):
        mean_error_of(3, np.zeros((5, 1)))  # type: ignore[arg-type]


@pytest.mark.parametrize("value", ["x" * 100_000, None, 1j, [1j], object(), {}, [[1], [2, 3]]], ids=repr_id)
@pytest.mark.parametrize("function", [mean_error_of, jackknife])
def test_what_a_function_of_means_returns_is_numbers(function, value):
    with pytest.raises(ParameterError, match="the function of means returns real numbers, not") as caught:
        function(lambda means: value, np.ones((8, 2)))
    assert len(str(caught.value)) < 200


def test_the_gamma_method_takes_one_number_of_the_function():
    with pytest.raises(ParameterError, match=r"returns a number, not a numpy.ndarray of shape \(2,\)"):
        mean_error_of(lambda means: means, np.ones((8, 2)))


def test_jackknife_keeps_the_shape_of_the_function_and_drops_the_first_leftover():
    data = np.arange(11.0)
    result = jackknife(lambda mean: np.array([mean, 2 * mean]), data, bin_size=5)
    assert result.bins == 2
    assert result.bin_size == 5
    assert result.value == pytest.approx([5.5, 11.0])
    assert result.error == pytest.approx([2.5, 5.0])


@pytest.mark.parametrize("bin_size", [0, -1, 6])
def test_jackknife_refuses_bins_that_leave_fewer_than_two(bin_size):
    with pytest.raises(ParameterError, match="bin size from 1 to 5"):
        jackknife(lambda mean: mean, np.arange(10.0), bin_size)


@pytest.mark.parametrize("relaxation", [3.0, 20.0])
@pytest.mark.parametrize("a", [0.0, 0.8])
def test_cut_removes_a_transient_and_keeps_the_rest(relaxation, a):
    for seed in range(20):
        chain = ar1(a, 2000, seed) + 30 * np.exp(-np.arange(2000) / relaxation)
        cut = thermalised_from(chain)
        assert 30 * math.exp(-cut / relaxation) < 0.4
        assert cut < 12 * relaxation + 300
        estimate = mean_error(chain[cut:])
        assert abs(estimate.mean) < 4.5 * estimate.error


def test_cut_of_an_equilibrated_series_is_short():
    cuts = [thermalised_from(ar1(a, 2000, seed)) for seed in range(50) for a in (0.0, 0.8)]
    assert np.median(cuts) <= 40
    assert np.mean(cuts) < 150


def test_cut_of_constant_and_very_short_series_is_zero():
    assert thermalised_from([1.0] * 50) == 0
    assert thermalised_from([9.0, 1.0, 1.0, 1.0]) == 0
    with pytest.raises(ParameterError, match="0 measurements"):
        thermalised_from([])


def test_cut_is_twice_the_time_of_a_jump_to_a_constant():
    assert thermalised_from([5.0] * 10 + [1.0] * 90) == 20


def test_cut_never_passes_the_middle():
    assert thermalised_from(np.arange(100.0)) <= 50


def test_cut_is_the_same_for_shifted_and_scaled_data():
    chain = ar1(0.5, 500, 3) + 10 * np.exp(-np.arange(500) / 8)
    assert thermalised_from(chain) == thermalised_from(1e-3 * chain + 0.5) > 10


def test_drift_is_a_unit_normal_for_stationary_chains_and_large_for_a_trend():
    values = np.array([drift(ar1(0.5, 1000, seed)) for seed in range(400)])
    assert 0.85 < values.std() < 1.15
    assert drift(ar1(0.5, 1000, 1) + np.linspace(0, 3, 1000)) > 3
    assert drift([1.0] * 20) == 0
    assert drift([1.0] * 10 + [2.0] * 10) == math.inf
    assert math.isnan(drift([1.0, 2.0]))


@pytest.mark.parametrize(
    ("mean", "error", "text"),
    [
        (0.5491523, 0.000234, "0.54915(23)"),
        (0.549152, 0.000996, "0.5492(10)"),
        (-0.5491523, 0.000234, "-0.54915(23)"),
        (12.345, 1.23, "12.3(1.2)"),
        (12.345, 9.96, "12(10)"),
        (1234.5, 123.0, "1230(120)"),
        (0.0, 0.5, "0.00(50)"),
        (1.2e-9, 3.5e-10, "1.20(35)e-09"),
        (6.02e23, 1e21, "6.020(10)e+23"),
        (0.5, 0.0, "0.5 (error 0)"),
        (0.5, math.nan, "0.5 (error unknown)"),
        (0.5, math.inf, "0.5 (error unknown)"),
    ],
)
def test_value_with_error_reads_like_a_physics_paper(mean, error, text):
    assert format_value(mean, error) == text


def test_formatted_value_is_right_to_the_digits_shown():
    rng = np.random.default_rng(12)
    for _ in range(2000):
        mean, error = rng.normal() * 10 ** rng.uniform(-3, 5), 10 ** rng.uniform(-6, 2)
        text = format_value(mean, error)
        head, _, tail = text.partition("(")
        digits, _, exponent = tail.partition(")")
        decimals = len(head.partition(".")[2])
        shown = float(digits) if "." in digits or decimals == 0 else float(digits) / 10**decimals
        scale = float("1" + exponent) if exponent else 1.0
        assert scale * shown == pytest.approx(error, rel=0.05)
        assert abs(scale * float(head) - mean) <= 0.06 * error


def test_negative_error_is_refused():
    with pytest.raises(ParameterError, match="negative"):
        format_value(1.0, -0.1)
