"""Means and honest errors of Monte Carlo histories.

Successive configurations of a Markov chain resemble one another, so the naive error of a mean is too small by
sqrt(2 tau_int). The main tool here is the Gamma method of U. Wolff (Comput. Phys. Commun. 156 (2004) 143,
hep-lat/0306017): sum the autocorrelation function up to a window chosen to balance truncation against noise.
Binning and jackknife serve as checks and for derived quantities.

Convention everywhere: tau_int = 1/2 + sum_{t>=1} rho(t), in units of the spacing of the series; uncorrelated
data have tau_int = 1/2, and n measurements are worth n / (2 tau_int) independent ones.

It works on finished series in memory, of any observable, and keeps no files.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jali.amounts import counted
from jali.errors import ParameterError
from jali.files import shown, value_shown

__all__ = [
    "Autocorrelation",
    "Binning",
    "Estimate",
    "Jackknife",
    "autocorrelation_function",
    "binning",
    "drift",
    "format_value",
    "integrated_autocorrelation_time",
    "jackknife",
    "mean_error",
    "mean_error_of",
    "mean_errors",
    "thermalised_from",
]

FloatArray = NDArray[np.float64]
WindowMethod = Literal["wolff", "madras-sokal"]

# Below this length an autocorrelation function is noise: treat the data as independent and report a window of
# 0.
_SHORTEST_FOR_WINDOW = 4


@dataclass(frozen=True)
class Estimate:
    """Mean of a series with its error.

    ``tau_int`` is in units of the series' spacing. ``window`` is the last lag summed. One measurement has no
    error: ``error``, ``tau_int`` and ``tau_int_error`` are then nan. With 2 or 3 measurements the error is
    the naive one (``tau_int`` = 0.5, ``window`` = 0) and ``tau_int_error`` is nan, since nothing is known
    about it.
    """

    mean: float
    error: float
    tau_int: float
    tau_int_error: float
    n: int
    window: int

    @property
    def independent(self) -> float:
        """Number of independent measurements that the series is worth, n / (2 tau_int)."""
        return self.n / (2 * self.tau_int)

    def __str__(self) -> str:
        return format_value(self.mean, self.error)


@dataclass(frozen=True)
class Autocorrelation:
    """Integrated autocorrelation time, tau_int = 1/2 + sum_{t=1}^{window} rho(t), with its error."""

    tau_int: float
    tau_int_error: float
    window: int
    n: int


@dataclass(frozen=True, eq=False)
class Binning:
    """Error of the mean against bin size.

    Attributes:
        sizes: bin sizes, shape (k,), powers of two.
        errors: error of the mean from bins of that size, shape (k,).
        errors_error: statistical uncertainty of each error, error / sqrt(2 (bins - 1)), shape (k,).
        tau_int: (error / naive error)^2 / 2, shape (k,); reaches tau_int from below on a plateau.
    """

    sizes: NDArray[np.int64]
    errors: FloatArray
    errors_error: FloatArray
    tau_int: FloatArray


@dataclass(frozen=True, eq=False)
class Jackknife:
    """A function of means with its jackknife error, both of the shape that the function returns."""

    value: FloatArray
    error: FloatArray
    bins: int
    bin_size: int


def autocorrelation_function(series: ArrayLike, max_lag: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Normalised autocorrelation function and its error.

    Args:
        series: shape (n,), real, finite, n >= 2.
        max_lag: last lag returned, at most n // 2; the default is the smaller of n // 2 and 1000.

    Returns:
        rho and its error, each of shape (max_lag + 1,); rho[0] = 1 with error 0. The error is the
        approximation of Madras and Sokal in the form of M. Luscher (hep-lat/0409106, appendix E).
        A constant series has rho = 0 beyond lag 0.

    Raises:
        ParameterError: the series is too short, not one-dimensional, complex or not finite.
    """
    x = _checked(series, least=2)
    if max_lag is not None:
        _whole(max_lag, "max_lag")
        if max_lag < 0:
            raise ParameterError(f"max_lag is 0 or more, not {max_lag}")
    top = min(1000 if max_lag is None else max_lag, len(x) // 2)
    gamma, _ = _autocovariance(x)
    full = gamma / gamma[0] if gamma[0] > 0 else np.eye(1, len(gamma))[0]
    # Luscher's sum runs to t + Lambda; beyond the window rho is noise, so Lambda need not be long.
    reach = min(len(full) - 1, top + 100)
    padded = np.concatenate([full[: reach + 1], np.zeros(top + 1)])
    error = np.zeros(top + 1)
    for t in range(1, top + 1):
        k = np.arange(1, min(t + 100, reach) + 1)
        terms = padded[k + t] + padded[np.abs(k - t)] - 2 * padded[t] * padded[k]
        error[t] = math.sqrt(float(terms @ terms) / len(x))
    return full[: top + 1].copy(), error


def integrated_autocorrelation_time(
    series: ArrayLike, *, method: WindowMethod = "wolff", s: float = 1.5, c: float = 6.0
) -> Autocorrelation:
    """Integrated autocorrelation time with an automatic window.

    Args:
        series: shape (n,), real, finite, n >= 2.
        method: "wolff" takes the first window W at which the derivative of the total error of tau_int changes
            sign, assuming tau_exp = ``s`` tau_int (hep-lat/0306017). "madras-sokal" takes the
            first W >= ``c`` tau_int(W) (N. Madras and A. Sokal, J. Stat. Phys. 50 (1988) 109).
        s: Wolff's S, usually 1 to 2.
        c: Madras and Sokal's factor, usually 4 to 10.

    Returns:
        tau_int with Wolff's error 2 tau_int sqrt((W + 1/2 - tau_int) / n). A constant series gives
        0.5 with error 0. So strong an anticorrelation that the sum is not positive gives 0.5 with window 0,
        an upper bound. Fewer than 4 measurements give 0.5 with error nan. A series shorter than some tens of
        tau_int gives too small a value, as every method does.

    Raises:
        ParameterError: the series is too short, not one-dimensional, complex or not finite; unknown method.
    """
    _check_method(method, s, c)
    x = _checked(series, least=2)
    n = len(x)
    if _is_constant(x):
        return Autocorrelation(0.5, 0.0, 0, n)
    if n < _SHORTEST_FOR_WINDOW:
        return Autocorrelation(0.5, math.nan, 0, n)
    analysis = _analyse(x, method, s, c)
    return Autocorrelation(analysis.tau_int, analysis.tau_int_error, analysis.window, n)


def mean_error(
    series: ArrayLike, *, method: WindowMethod = "wolff", s: float = 1.5, c: float = 6.0
) -> Estimate:
    """Mean and autocorrelation-corrected error of one real observable, by the Gamma method.

    Args:
        series: shape (n,), real, finite, n >= 1, thermalised, in Monte Carlo order and equally spaced.
        method: as for :func:`integrated_autocorrelation_time`, like the next two.
        s: parameter of Wolff's window.
        c: parameter of the window of Madras and Sokal.

    Returns:
        error = sqrt(2 tau_int / n) times the standard deviation, both corrected for the bias that subtracting
        the sample mean causes (Wolff). For one to three measurements see :class:`Estimate`.

    Raises:
        ParameterError: the series is empty, not one-dimensional, complex or not finite; unknown method.
    """
    _check_method(method, s, c)
    x = _checked(series, least=1)
    n = len(x)
    if n == 1:
        return Estimate(float(x[0]), math.nan, math.nan, math.nan, 1, 0)
    if _is_constant(x):
        return Estimate(float(x[0]), 0.0, 0.5, 0.0, n, 0)
    mean = float(x.mean())
    if n < _SHORTEST_FOR_WINDOW:
        return Estimate(mean, float(x.std(ddof=1)) / math.sqrt(n), 0.5, math.nan, n, 0)
    analysis = _analyse(x, method, s, c)
    return Estimate(mean, analysis.error, analysis.tau_int, analysis.tau_int_error, n, analysis.window)


def mean_error_of(f: Callable[[FloatArray], float], data: ArrayLike) -> Estimate:
    """A function of means, with its autocorrelation-corrected error: the Gamma method for derived quantities (Wolff).

    The observables are projected onto the gradient of the function at their means, which is taken by differences as
    wide as their errors, and the projection is analysed as :func:`mean_error` does.

    Args:
        f: takes the means, shape (k,), and returns a number; also of means that are off by their errors.
        data: shape (n, k), real, finite, n >= 1, in Monte Carlo order and equally spaced.

    Returns:
        ``mean`` is f of the means, which is biased by the order of the squared error.

    Raises:
        ParameterError: the data are empty, not two-dimensional, complex or not finite. Errors of f are raised unchanged.
    """
    x = _checked(data, least=1, dimensions=2)
    if not callable(f):
        raise ParameterError(f"mean_error_of takes a function of means, not {value_shown(f)}")
    n, means = len(x), x.mean(axis=0)

    def of(means: FloatArray) -> float:
        value = _result(f(means))
        if value.ndim:
            raise ParameterError(f"the function of means returns a number, not {value_shown(value)}")
        return float(value)

    value = of(means)
    if n == 1:
        return Estimate(value, math.nan, math.nan, math.nan, 1, 0)
    steps = x.std(axis=0) / math.sqrt(n)
    gradient = np.zeros(len(means))
    for k in np.flatnonzero(steps):
        aside = np.zeros(len(means))
        aside[k] = steps[k]
        gradient[k] = (of(means + aside) - of(means - aside)) / (2 * steps[k])
    projected = mean_error((x - means) @ gradient)
    return replace(projected, mean=value)


def mean_errors(columns: Mapping[str, ArrayLike]) -> dict[str, Estimate]:
    """:func:`mean_error` of several observables, each with its own window; errors name the observable."""
    if not isinstance(columns, Mapping):
        raise ParameterError(f"mean_errors takes a dictionary of series, not {value_shown(columns)}")
    estimates = {}
    for name, series in columns.items():
        try:
            estimates[name] = mean_error(series)
        except ParameterError as error:
            raise ParameterError(
                f"{shown(name) if isinstance(name, str) else value_shown(name)}: {error}"
            ) from None
    return estimates


def binning(series: ArrayLike, *, least_bins: int = 16) -> Binning:
    """Error of the mean from bin averages, for bin sizes 1, 2, 4, ... as long as ``least_bins`` bins remain.

    Args:
        series: shape (n,), real, finite, n >= 2. What does not fill a bin is dropped from the beginning.
        least_bins: smallest number of bins accepted, at least 2; size 1 is always returned.

    Raises:
        ParameterError: the series is too short, not one-dimensional, complex or not finite; ``least_bins`` <
            2.
    """
    x = _checked(series, least=2)
    _whole(least_bins, "least_bins")
    if least_bins < 2:
        raise ParameterError(f"an error needs at least 2 bins, not least_bins = {least_bins}")
    sizes = [1]
    while len(x) // (2 * sizes[-1]) >= least_bins:
        sizes.append(2 * sizes[-1])
    counts = np.array([len(x) // size for size in sizes])
    errors = np.array([_bins(x, size).std(ddof=1) for size in sizes]) / np.sqrt(counts)
    tau = 0.5 * (errors / errors[0]) ** 2 if errors[0] > 0 else np.full(len(sizes), 0.5)
    return Binning(np.array(sizes), errors, errors / np.sqrt(2.0 * (counts - 1)), tau)


def jackknife(f: Callable[..., ArrayLike], data: ArrayLike, bin_size: int = 1) -> Jackknife:
    """Value and error of a function of mean values, by the binned delete-one jackknife.

    Args:
        f: takes the mean (a float for ``data`` of shape (n,), otherwise an array of shape ``data.shape[1:]``)
            and returns a number or an array. For a susceptibility pass columns x and x^2 and let f be m[1] -
            m[0]^2.
        data: shape (n, ...), real, finite, in Monte Carlo order.
        bin_size: measurements per bin; several tau_int, so that bins are independent.

    Returns:
        f of the mean of all data, and error^2 = (B - 1) / B sum_b (f_b - mean f)^2 over the B bins. When
        bin_size does not divide n, the first n mod bin_size measurements are dropped, being the least
        thermalised.

    Raises:
        ParameterError: data not real or not finite, bin_size < 1, or fewer than 2 bins.
    """
    x = _checked(data, least=2, dimensions=None)
    _whole(bin_size, "bin_size")
    if not callable(f):
        raise ParameterError(f"the jackknife takes a function of means, not {value_shown(f)}")
    if bin_size < 1 or len(x) // bin_size < 2:
        raise ParameterError(
            f"bins of {bin_size} from {counted(len(x), 'measurement')}: the jackknife needs 2 bins or more, "
            f"so use a bin size from 1 to {len(x) // 2}"
        )
    bins = _bins(x, bin_size)
    count = len(bins)
    total = bins.sum(axis=0)
    value = _result(f(total / count))
    deleted = np.array([_result(f((total - one) / (count - 1))) for one in bins])
    error = np.sqrt((count - 1) * deleted.var(axis=0))
    return Jackknife(value, error, count, bin_size)


def thermalised_from(series: ArrayLike) -> int:
    """Index from which a series looks thermalised: everything before it should be dropped.

    The rule starts from the marginal standard error rule (K. P. White, Simulation 69 (1997) 323): the d that
    makes the naive squared error of the remaining mean, sum_{i>=d} (x_i - mean)^2 / (n - d)^2, smallest. At
    that point the transient has sunk to about the size of the noise, so 2 d measurements are dropped: an
    exponential transient that fell from A to sigma in d steps is down to sigma^2 / A after 2 d. Both d and
    the result are at most n/2. An equilibrated series loses only a few tau_int. A transient longer than half
    the series cannot be seen: a result of n/2, or a large :func:`drift` of what remains, means that the run
    is too short.

    Returns:
        the index, 0 for a constant series or for fewer than 8 measurements.

    Raises:
        ParameterError: the series is empty, not one-dimensional, complex or not finite.
    """
    x = _checked(series, least=1)
    n = len(x)
    if n < 8 or _is_constant(x):
        return 0
    centred = x - x[n // 2 :].mean()
    remaining = np.arange(n, 0, -1)
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    cost = (squares - sums**2 / remaining) / remaining**2.0
    return min(2 * int(np.argmin(cost[: n // 2 + 1])), n // 2)


def drift(series: ArrayLike) -> float:
    """Mean of the second half minus mean of the first, in units of the combined error.

    Beyond 3 or so the series is not thermalised, or is too short for its autocorrelation time. 0 for a
    constant series. nan with fewer than 16 measurements, from which errors of halves mean nothing.

    Raises:
        ParameterError: the series is empty, not one-dimensional, complex or not finite.
    """
    x = _checked(series, least=1)
    if len(x) < 16:
        return math.nan
    first, second = mean_error(x[: len(x) // 2]), mean_error(x[len(x) // 2 :])
    # The halves come from one chain: give both the longer of the two autocorrelation times.
    tau = max(first.tau_int, second.tau_int)
    error = math.hypot(
        first.error * math.sqrt(tau / first.tau_int), second.error * math.sqrt(tau / second.tau_int)
    )
    difference = second.mean - first.mean
    if error == 0:
        return 0.0 if difference == 0 else math.copysign(math.inf, difference)
    return difference / error


def format_value(mean: float, error: float) -> str:
    """A number with its error in the last two digits: 0.54915(23), 12.3(1.2), 1230(120), 1.20(35)e-09.

    An error of zero or one that is not finite is written out: ``0.5 (error 0)``, ``0.5 (error unknown)``.
    """
    _real(mean, "mean")
    _real(error, "error")
    if not math.isfinite(mean) or not math.isfinite(error):
        return f"{mean:.6g} (error unknown)"
    if error < 0:
        raise ParameterError(f"an error cannot be negative: {error}")
    if error == 0:
        return f"{mean:.12g} (error 0)"
    size = max(abs(mean), error)
    exponent = math.floor(math.log10(size))
    if exponent < -4 or exponent > 6:
        return f"{_digits(mean / 10.0**exponent, error / 10.0**exponent)}e{exponent:+03d}"
    return _digits(mean, error)


def _digits(mean: float, error: float) -> str:
    """mean(error) in positional notation, the error rounded to two digits."""
    mantissa, exponent = f"{error:.1e}".split("e")
    decimals = 1 - int(exponent)
    if decimals <= 0:
        return f"{round(mean, decimals):.0f}({round(error, decimals):.0f})"
    rounded = float(f"{mantissa}e{exponent}")
    inner = f"{rounded:.{decimals}f}" if rounded >= 1 else f"{round(rounded * 10**decimals)}"
    return f"{mean:.{decimals}f}({inner})"


@dataclass(frozen=True)
class _Analysis:
    error: float
    tau_int: float
    tau_int_error: float
    window: int


def _analyse(x: FloatArray, method: WindowMethod, s: float, c: float) -> _Analysis:
    """The Gamma method for one primary observable; x is not constant and has 4 elements or more."""
    n = len(x)
    gamma, scale = _autocovariance(x)
    window = _window(gamma / gamma[0], n, method, s, c)
    total = float(gamma[0] + 2 * gamma[1 : window + 1].sum())
    if total <= 0:
        window, total = 0, float(gamma[0])
    # Subtracting the sample mean lowers every Gamma(t) by total / n on average (Wolff).
    variance = float(gamma[0]) + total / n
    total *= 1 + (2 * window + 1) / n
    tau = total / (2 * variance)
    # The floor matters only where tau_int fills its window, and for a window of 0.
    tau_error = 2 * tau * math.sqrt(max(window + 0.5 - tau, 0.5) / n)
    return _Analysis(scale * math.sqrt(total / n), tau, tau_error, window)


def _window(rho: FloatArray, n: int, method: WindowMethod, s: float, c: float) -> int:
    """The automatic window; where no lag fulfils the condition, the lag with the largest (safest) tau_int."""
    lags = np.arange(1, n // 2 + 1)
    excess = np.cumsum(rho[1 : n // 2 + 1])
    if method == "wolff":
        # rho(t) = a^t sums to e = a / (1 - a), so the decay time is 1 / ln|1 + 1 / e|, for anticorrelation
        # too. No decay slower than the lag can be read off; the bound also serves where the partial sum is
        # too low.
        e = np.maximum(np.where(excess == 0, 1e-9, excess), -0.5 + 1e-9)
        tau = s * np.minimum(1 / np.log(np.abs(1 + 1 / e)), lags)
        fulfilled = np.exp(-lags / tau) < tau / np.sqrt(lags * n)
    else:
        fulfilled = lags >= c * (0.5 + excess)
    return int(lags[np.argmax(fulfilled)] if fulfilled.any() else lags[np.argmax(excess)])


def _autocovariance(x: FloatArray) -> tuple[FloatArray, float]:
    """Gamma(t) = sum_i d_i d_{i+t} / (n - t) for t = 0 .. n - 1, by FFT, with d = (x - mean) / scale; and
    scale.

    The scale keeps squares of tiny and huge data within range.
    """
    n = len(x)
    deviation = x - x.mean()
    scale = float(np.abs(deviation).max()) or 1.0
    length = 1 << (2 * n - 1).bit_length()
    spectrum = np.fft.rfft(deviation / scale, length)
    products: FloatArray = np.fft.irfft(spectrum * spectrum.conj(), length)
    return products[:n] / np.arange(n, 0, -1), scale


def _bins(x: FloatArray, size: int) -> FloatArray:
    count = len(x) // size
    averages: FloatArray = x[len(x) - count * size :].reshape(count, size, *x.shape[1:]).mean(axis=1)
    return averages


def _is_constant(x: FloatArray) -> bool:
    return bool((x == x[0]).all())


def _check_method(method: str, s: float, c: float) -> None:
    if not isinstance(method, str) or method not in ("wolff", "madras-sokal"):
        raise ParameterError(f"unknown window method {value_shown(method)}; use 'wolff' or 'madras-sokal'")
    _real(s, "s")
    _real(c, "c")
    if not (s > 0 and c > 0):
        raise ParameterError(f"window factors must be positive, not s = {s}, c = {c}")


def _result(value: Any) -> FloatArray:
    """What a function of means returned."""
    try:
        if value is None or np.iscomplexobj(value):
            raise TypeError
        return np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(
            f"the function of means returns real numbers, not {value_shown(value)}"
        ) from None


def _real(value: object, name: str) -> None:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        raise ParameterError(f"{name} is a real number, not {value_shown(value)}")


def _whole(value: object, name: str) -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool):
        raise ParameterError(f"{name} is a whole number, not {value_shown(value)}")


def _checked(series: ArrayLike, least: int, dimensions: int | None = 1) -> FloatArray:
    """The series as float64, or an error that names the wrong element."""
    raw = np.asarray(series)
    if np.iscomplexobj(raw):
        raise ParameterError("the series is complex; analyse its real and imaginary parts separately")
    try:
        x = raw.astype(np.float64)
    except (TypeError, ValueError):
        raise ParameterError(f"the series holds {raw.dtype} where numbers are needed") from None
    if x.ndim == 0 or (dimensions is not None and x.ndim != dimensions):
        expected = {None: "(n, ...)", 1: "(n,)"}.get(dimensions, "(n, k)")
        raise ParameterError(f"the series has shape {x.shape}; one of shape {expected} is needed")
    if len(x) < least:
        raise ParameterError(f"the series has {counted(len(x), 'measurement')}; at least {least} needed")
    finite = np.isfinite(x).reshape(len(x), -1).all(axis=1)
    if not finite.all():
        first = int(np.argmin(finite))
        raise ParameterError(
            f"measurement {first} of {len(x)} is {x[first]} ({np.count_nonzero(~finite)} not finite in all); "
            "a mean needs finite numbers"
        )
    return x
