"""Masses from correlators: effective masses, fits and averages over windows, all with errors.

A correlator is an array of shape (configurations, T): C(t) on each configuration, in Monte Carlo order, T being the whole
extent in time. Everything here takes such arrays from anywhere, and gives masses in units of the inverse lattice spacing.
Errors come from the jackknife of `jali.statistics`: bin configurations that resemble one another by `bin_size`. A fit
is least squares on the covariance of the mean, by MINPACK through SciPy; it starts from the best masses of a grid,
so the same input gives the same bytes.

It fits one correlator at a time. Several at once, priors, and errors by the Gamma method are the business of `gvar`, `lsqfit`
and `pyerrors`: `to_gvar` and `to_pyerrors` hand over.
"""

from __future__ import annotations

import itertools
import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from jali.amounts import counted
from jali.errors import ParameterError
from jali.files import package_for, value_shown
from jali.statistics import format_value, jackknife

__all__ = [
    "EffectiveMass",
    "Fit",
    "Plateau",
    "effective_mass",
    "fit_correlator",
    "fold",
    "plateau",
    "to_gvar",
    "to_pyerrors",
]

FloatArray = NDArray[np.float64]
Kind = Literal["log", "arccosh", "cosh", "sinh"]
Form = Literal["cosh", "sinh", "exp", "staggered"]

# A sample covariance of n bins understates the error of a correlated fit to d points with k parameters by about (d - k) / n.
_BINS_A_POINT = 5
_FEWEST_BINS = 4
# Of the eigenvalues of a correlation matrix, smallest to largest: below it their digits are rounding.
_SINGULAR = 1e-12
# A mass (of a second state: its distance from the first) whose logarithm is uncertain by more is not determined by the data.
# Users may look at vague masses; in an average of windows their errors would outweigh their small weights.
_VAGUE = 10.0
_VAGUE_IN_AVERAGE = 1.0
# Windows of less weight, relative to the largest, do not change an average in the digits that its error leaves.
_NEGLIGIBLE = 1e-3
# The grids of starting masses for one, two and three masses at a time.
_GRID_POINTS = {1: 64, 2: 64, 3: 24}
_STARTS = 6
# The power of 2 up to which numbers leave enough room for sums, quotients and amplitudes.
_ROOM = 400
# Errors whose squares keep all digits.
_SQUARES = (1e-145, 1e150)
_SIGNS = {"cosh": 1, "sinh": -1, "exp": 0, "staggered": 1}  # of the part that runs backwards in time


class _UndeterminedError(ParameterError):
    """A window whose data do not determine the parameters of the fit; `plateau` leaves it out."""


@dataclass(frozen=True, eq=False)
class EffectiveMass:
    """Effective masses, one a slice.

    Attributes:
        kind: the formula, see :func:`effective_mass`.
        t: slices to which the masses belong, shape (k,).
        value: masses, shape (k,); nan where there is none.
        error: their jackknife errors, shape (k,); nan for a single correlator, where there is no mass, and where one of
            the jackknife samples has none.
        bins: number of bins, 0 for a single correlator.
        bin_size: configurations per bin.
    """

    kind: str
    t: NDArray[np.int64]
    value: FloatArray
    error: FloatArray
    bins: int
    bin_size: int

    def __str__(self) -> str:
        lines = [f"{t:4d}  {_written(v, e)}" for t, v, e in zip(self.t, self.value, self.error, strict=True)]
        return "\n".join([f"effective mass ({self.kind})", *lines])

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON; None where a number does not exist."""
        return {
            "kind": self.kind,
            "t": self.t.tolist(),
            "value": [_known(v) for v in self.value],
            "error": [_known(e) for e in self.error],
            "bins": self.bins,
            "bin_size": self.bin_size,
        }


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit to a correlator. Its parameters are masses, then amplitudes: m1, m2, m_osc, A1, A2, A_osc.

    Attributes:
        names: the parameters that this fit has, P of them.
        values: their values, shape (P,); masses in inverse lattice spacings, amplitudes in units of the correlator.
        errors: their jackknife errors, shape (P,).
        samples: their jackknife samples, shape (bins, P): fits without one bin each, on the covariance of all.
        chi2: minimum of chi squared.
        chi2_expected: its expectation for a true model and independent bins (M. Bruno and R. Sommer, arXiv:2209.14188):
            ``dof`` for a correlated fit without shrinkage.
        dof: degrees of freedom, points less parameters.
        p_value: probability of a larger chi squared for a true model. The covariance comes from the same n bins, so chi2
            follows Hotelling's distribution: chi2 (n - dof) / (dof (n - 1)) is an F ratio of dof and n - dof degrees
            (D. Toussaint and W. Freeman, arXiv:0808.2211). nan without degrees of freedom, and for fits that are
            uncorrelated or shrunk, whose chi2 has another distribution: compare it with ``chi2_expected``.
        form: the model, see :func:`fit_correlator`.
        states: number of states that do not oscillate.
        window: first and last slice of the fit, both included.
        correlated: whether the fit saw the correlations between slices.
        shrinkage: by how much these were reduced; 1 for a fit that did not see them.
        extent: T, the extent in time.
        bins: number of bins.
        bin_size: configurations per bin.
    """

    names: tuple[str, ...]
    values: FloatArray
    errors: FloatArray
    samples: FloatArray
    chi2: float
    chi2_expected: float
    dof: int
    p_value: float
    form: str
    states: int
    window: tuple[int, int]
    correlated: bool
    shrinkage: float
    extent: int
    bins: int
    bin_size: int

    @property
    def mass(self) -> float:
        """The smallest mass that does not oscillate, m1."""
        return float(self.values[0])

    @property
    def mass_error(self) -> float:
        """Its jackknife error."""
        return float(self.errors[0])

    @property
    def mass_samples(self) -> FloatArray:
        """Its jackknife samples, shape (bins,)."""
        return self.samples[:, 0]

    @property
    def masses(self) -> FloatArray:
        """All masses: of the states in ascending order, then that of the oscillating partner."""
        return self.values[: len(self.values) // 2]

    @property
    def mass_errors(self) -> FloatArray:
        """Errors of :attr:`masses`."""
        return self.errors[: len(self.values) // 2]

    @property
    def amplitudes(self) -> FloatArray:
        """Amplitudes, in the order of :attr:`masses`."""
        return self.values[len(self.values) // 2 :]

    @property
    def amplitude_errors(self) -> FloatArray:
        """Errors of :attr:`amplitudes`."""
        return self.errors[len(self.values) // 2 :]

    def curve(self, t: ArrayLike) -> FloatArray:
        """The fitted C(t), of the shape of t, a number or an array. An oscillating partner has whole t only.

        Raises:
            ParameterError: t is not real, not finite, or not whole where a partner oscillates.
        """
        at = _real_array(t, "t")
        model = _Model(self.form, self.states, self.extent, at.ravel())
        if model.oscillates and (at != np.rint(at)).any():
            raise ParameterError("a fit with an oscillating partner has values at whole t only")
        result: FloatArray = model.basis(self.masses) @ (self.amplitudes * np.exp(-self.masses * model.near))
        return result.reshape(at.shape)

    def __str__(self) -> str:
        numbers = ", ".join(
            f"{name} = {_written(value, error)}"
            for name, value, error in zip(self.names, self.values, self.errors, strict=True)
        )
        quality = f"chi2/dof = {self.chi2:.2f}/{self.dof}"
        if not math.isnan(self.p_value):
            quality += f", p = {self.p_value:.2g}"
        elif self.dof:
            quality += f", {self.chi2_expected:.2f} expected"
        first, last = self.window
        correlated = "correlated" if self.correlated else "uncorrelated"
        return f"{numbers}; {quality}; {self.form}, {correlated}, t = {first}..{last}"

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, without the samples; None where a number does not exist."""
        return {
            "mass": self.mass,
            "mass_error": _known(self.mass_error),
            "parameters": {
                name: {"value": float(value), "error": _known(error)}
                for name, value, error in zip(self.names, self.values, self.errors, strict=True)
            },
            "chi2": self.chi2,
            "chi2_expected": self.chi2_expected,
            "dof": self.dof,
            "p_value": _known(self.p_value),
            "form": self.form,
            "states": self.states,
            "window": list(self.window),
            "correlated": self.correlated,
            "shrinkage": self.shrinkage,
            "extent": self.extent,
            "bins": self.bins,
            "bin_size": self.bin_size,
        }


@dataclass(frozen=True, eq=False)
class Plateau:
    """A mass averaged over windows, see :func:`plateau`.

    Attributes:
        mass: the average.
        error: of both kinds: error^2 = statistical_error^2 + systematic_error^2.
        statistical_error: root of the average of the squared errors of the fits.
        systematic_error: spread of the masses of the fits.
        fits: the fits that were averaged, in the order of their windows.
        weights: their weights, shape (fits,), of sum 1.
        samples: jackknife samples of the average at these weights, shape (bins,).
        left_out: windows whose data do not determine the parameters, each with the reason.
    """

    mass: float
    error: float
    statistical_error: float
    systematic_error: float
    fits: tuple[Fit, ...]
    weights: FloatArray
    samples: FloatArray
    left_out: tuple[tuple[tuple[int, int], str], ...]

    @property
    def best(self) -> Fit:
        """The fit of the largest weight."""
        return self.fits[int(np.argmax(self.weights))]

    def __str__(self) -> str:
        return (
            f"mass = {format_value(self.mass, self.error)}, statistical {self.statistical_error:.2g}, of windows "
            f"{self.systematic_error:.2g}; {counted(len(self.fits), 'window')}, best: {self.best}"
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, without the samples."""
        return {
            "mass": self.mass,
            "error": self.error,
            "statistical_error": self.statistical_error,
            "systematic_error": self.systematic_error,
            "fits": [fit.as_dict() for fit in self.fits],
            "weights": self.weights.tolist(),
            "left_out": [{"window": list(window), "reason": reason} for window, reason in self.left_out],
        }


def fold(C: ArrayLike, sign: int = 1) -> FloatArray:
    """Average of C(t) and sign C(T - t): the noise of both halves of the lattice in one.

    The result has the shape of C, with C(T - t) = sign C(t), so the extent stays known; fit it in a window that ends at T/2.
    Slice 0 is its own image and stays as it is. With sign -1 the slice T/2 becomes 0.

    Args:
        C: correlators, shape (configurations, T) or (T,), real.
        sign: 1 for correlators that are even in time, -1 for odd ones.

    Raises:
        ParameterError: C has another shape, is complex or not finite; another sign.
    """
    x, exponent = _scaled(_correlators(C))
    if not isinstance(sign, numbers.Integral) or sign not in (1, -1) or isinstance(sign, bool):
        raise ParameterError(f"the sign of a folded correlator is 1 or -1, not {value_shown(sign)}")
    folded = x.copy()
    folded[..., 1:] = (x[..., 1:] + int(sign) * x[..., :0:-1]) / 2
    return np.ldexp(folded, exponent)


def effective_mass(C: ArrayLike, kind: Kind = "cosh", *, bin_size: int = 1) -> EffectiveMass:
    """The mass that neighbouring slices of a correlator have, for every slice.

    ============= ============================================================== =============
    kind          the m of slice t                                               slices
    ============= ============================================================== =============
    ``"log"``     m = ln C(t) / C(t+1)                                           0 .. T - 2
    ``"arccosh"`` cosh m = (C(t-1) + C(t+1)) / (2 C(t))                          1 .. T - 2
    ``"cosh"``    C(t) / C(t+1) = cosh(m (t - T/2)) / cosh(m (t + 1 - T/2))      0 .. T - 2
    ``"sinh"``    C(t) / C(t+1) = sinh(m (t - T/2)) / sinh(m (t + 1 - T/2))      0 .. T - 2
    ============= ============================================================== =============

    ``"log"`` is for one exponential, the others take the part that runs backwards in time into account (C. Gattringer and
    C. B. Lang, Quantum Chromodynamics on the Lattice, 2010, chapter 6; ``"arccosh"`` holds for any sum of exp(m t) and exp(-m t), so for odd correlators too). Where no m > 0 fulfils the equation, as in noise, between the
    slices on both sides of T/2, or for ``"sinh"`` next to T/2, the mass is nan.

    Args:
        C: correlators, shape (configurations, T) or (T,), real. T is the extent of the lattice.
        kind: the formula.
        bin_size: configurations per bin of the jackknife. Those that fill no bin, the first n mod bin_size, are left out.

    Raises:
        ParameterError: C has another shape, is complex or not finite; unknown kind; fewer than 2 bins.
    """
    x, _ = _scaled(_correlators(C))
    if not isinstance(kind, str) or kind not in ("log", "arccosh", "cosh", "sinh"):
        raise ParameterError(
            f"unknown kind of effective mass {value_shown(kind)}; use 'log', 'arccosh', 'cosh' or 'sinh'"
        )
    extent = x.shape[-1]
    if extent < 3:
        raise ParameterError(
            f"the correlator has {counted(extent, 'slice')}; an effective mass needs 3 or more"
        )
    t = np.arange(1 if kind == "arccosh" else 0, extent - 1)

    def masses(c: FloatArray) -> FloatArray:
        return _effective(c, kind, extent)

    if x.ndim == 1:
        value = masses(x)
        return EffectiveMass(kind, t, value, np.full(len(t), np.nan), 0, 1)
    result = jackknife(masses, x, bin_size)
    error = np.where(np.isnan(result.value), np.nan, result.error)
    return EffectiveMass(kind, t, result.value, error, result.bins, bin_size)


def fit_correlator(
    C: ArrayLike,
    window: tuple[int, int],
    *,
    form: Form = "cosh",
    states: int = 1,
    correlated: bool = True,
    shrinkage: float = 0.0,
    bin_size: int = 1,
    start: Sequence[float] | None = None,
) -> Fit:
    """Fit of a sum of states to a correlator, by least squares on the covariance of its mean.

    =============== =======================================================================================
    form            C(t)
    =============== =======================================================================================
    ``"cosh"``      sum_n A_n (exp(-m_n t) + exp(-m_n (T - t)))
    ``"sinh"``      sum_n A_n (exp(-m_n t) - exp(-m_n (T - t)))
    ``"exp"``       sum_n A_n exp(-m_n t)
    ``"staggered"`` as cosh, and one partner of opposite parity, (-1)^t A_osc (exp(-m_osc t) + exp(-m_osc (T - t)))
    =============== =======================================================================================

    The fit minimises chi^2 = sum_{t,t'} (C(t) - mean(t)) Sigma^-1(t,t') (C(t') - mean(t')), where Sigma is the covariance of the
    mean, from bins, with off-diagonal elements times 1 - ``shrinkage``. Masses are positive, m_1 < m_2. The error is that of the
    jackknife, each sample a fit on the same Sigma; that Sigma itself comes from n bins is not in it, which makes it too
    small by about (points - parameters) / n in a correlated fit (D. Toussaint and W. Freeman, arXiv:0808.2211).

    Args:
        C: correlators, shape (configurations, T), real, in Monte Carlo order. T is the extent of the lattice.
        window: first and last slice, both included. For a folded correlator it ends at T/2 or before.
        form: the model.
        states: 1 or 2 that do not oscillate.
        correlated: False leaves correlations between slices out of Sigma, for few configurations; the error remains right.
        shrinkage: from 0, the covariance as measured, to 1, none between slices (O. Ledoit and M. Wolf, J. Multivar. Anal. 88
            (2004) 365, shrink likewise, towards the unit matrix); for few configurations.
        bin_size: configurations per bin of covariance and jackknife: several autocorrelation times. Those that fill no bin, the
            first n mod bin_size, are left out.
        start: masses to start from, (m1,), (m1, m2), and m_osc last for ``"staggered"``. None, or a start that leads nowhere,
            tries the best of a grid and takes the smallest chi^2.

    Raises:
        ParameterError: C has another shape, is complex or not finite; the window leaves the lattice or has fewer points than
            parameters; fewer than 5 bins a point for a correlated fit without shrinkage, fewer than 4 for another; a
            covariance that is singular; data that do not determine the parameters, such as those of a second state; least squares
            that do not converge.
    """
    problem = _Problem.of(C, form, states, correlated, shrinkage, bin_size)
    first, last = _window(window, problem.extent)
    return problem.jackknifed(problem.fitted(first, last, _start(start, form, states), _VAGUE))


def plateau(
    C: ArrayLike,
    *,
    form: Form = "cosh",
    states: int = 1,
    first: int = 1,
    last: int | None = None,
    correlated: bool = True,
    shrinkage: float = 0.0,
    bin_size: int = 1,
) -> Plateau:
    """The mass without a choice of the window: an average of the fits in all windows that begin at ``first`` or later.

    Windows end at ``last`` and have a point more than the fit has parameters, or more. Each weighs exp(-A / 2), where
    A = chi^2 + 2 parameters + 2 (points left out) for correlated fits: Akaike's criterion for subsets of data (W. I. Jay and
    E. T. Neil, arXiv:2008.01069; E. T. Neil and J. W. Sitison, arXiv:2208.14983). For other fits A = chi^2 - 2 <chi^2>, with the
    expected chi^2, which differs from it by a constant where the fit is correlated (J. Frison, Towards fully bayesian analyses in
    Lattice QCD, arXiv:2302.06550). With weights
    w of sum 1, mass = sum w m and error^2 = sum w error_i^2 + sum w m_i^2 - mass^2. A window whose weight is less than 1/1000 of
    the largest gets none.

    A window whose data do not determine the masses, such as that of a second state far from the source, is left out and
    listed in ``left_out``: least squares do not converge, or a mass, or the distance m_2 - m_1, is uncertain by more than
    itself. The average says nothing about whether the model is true: look at ``best.p_value``.

    Args:
        C: correlators, shape (configurations, T), real.
        first: earliest slice of a window. Slice 0 has contact terms, so 1.
        last: last slice of all windows; None is T // 2, so C may be folded, and for ``"sinh"`` the last slice before T/2, where
            the model is 0.

    The other arguments are those of :func:`fit_correlator`.

    Raises:
        ParameterError: as :func:`fit_correlator`, for the largest window; no window determines the parameters.
    """
    problem = _Problem.of(C, form, states, correlated, shrinkage, bin_size)
    end = (problem.extent - (form == "sinh")) // 2 if last is None else last
    begin, end = _window((first, end), problem.extent)
    least = problem.parameters + 1
    if end - begin + 1 < least:
        raise ParameterError(
            f"slices {begin} to {end} hold no window of {least} points, which an average over fits with {problem.parameters} parameters needs; "
            f"use first <= {end + 1 - least} or a later last"
        )
    problem.weights(begin, end)  # its errors are those of the data, not of a window
    found, left_out = [], []
    for t in range(begin, end + 2 - least):
        try:
            found.append(problem.fitted(t, end, None, _VAGUE_IN_AVERAGE))
        except _UndeterminedError as reason:
            left_out.append(((t, end), str(reason)))
    criteria = np.array([one.chi2 - 2 * one.chi2_expected for one in found])
    fits, kept = [], []
    for one, criterion in zip(found, criteria, strict=True):
        if criterion - criteria.min() > -2 * math.log(_NEGLIGIBLE):
            continue
        try:
            fits.append(problem.jackknifed(one))
            kept.append(criterion)
        except _UndeterminedError as reason:
            left_out.append((one.window, str(reason)))
    if not fits:
        raise ParameterError(
            f"of {counted(len(left_out), 'window')} from {begin} to {end} none determines the parameters, the first since {left_out[0][1]}"
        )
    weights = np.exp(-(np.array(kept) - min(kept)) / 2)
    weights /= weights.sum()
    masses = np.array([fit.mass for fit in fits])
    mass = float(weights @ masses)
    statistical = math.sqrt(float(weights @ np.array([fit.mass_error for fit in fits]) ** 2))
    systematic = math.sqrt(float(weights @ (masses - mass) ** 2))
    samples = weights @ np.array([fit.mass_samples for fit in fits])
    error = math.hypot(statistical, systematic)
    return Plateau(
        mass, error, statistical, systematic, tuple(fits), weights, samples, tuple(sorted(left_out))
    )


def to_gvar(C: ArrayLike | Fit | Plateau, *, bin_size: int = 1) -> Any:
    """Correlated numbers of the package `gvar`: for `lsqfit` and `corrfitter`, or for arithmetic with errors.

    Args:
        C: correlators, shape (configurations, T), or a fit or a plateau.
        bin_size: configurations per bin, of correlators. Those that fill no bin, the first n mod bin_size, are left out.

    Returns:
        for correlators an array of shape (T,) with their means and the covariance of the means, as
        `gvar.dataset.avg_data(..., unbias=True)` has it; for a fit a dictionary from its names to correlated numbers, with the
        covariance of its jackknife samples; for a plateau one number, with the error of both kinds.

    Raises:
        ParameterError: C has another shape, is complex or not finite; fewer than 2 bins; a bin_size for a fit or a plateau;
            errors whose squares leave the range of doubles; `gvar` is not installed.
    """
    gvar = package_for("to_gvar", "correlated numbers", "gvar", "spectrum")
    if isinstance(C, Plateau | Fit) and (
        not isinstance(bin_size, numbers.Integral) or isinstance(bin_size, bool) or bin_size != 1
    ):
        raise ParameterError(
            f"bin_size is for correlators; the bins of a {type(C).__name__.lower()} were those of its own bin_size"
        )
    if isinstance(C, Plateau):
        return gvar.gvar(C.mass, C.error)
    if isinstance(C, Fit):
        return dict(zip(C.names, gvar.gvar(C.values, _covariance(C.samples, "the fit")), strict=True))
    x, exponent = _scaled(_ensemble(C))
    mean, samples = (np.ldexp(means, exponent) for means in _jackknife_means(x, bin_size))
    return gvar.gvar(mean, _covariance(samples, "the correlator"))


def to_pyerrors(C: ArrayLike, ensemble: str, configurations: Sequence[int] | None = None) -> Any:
    """The correlator as a `pyerrors.Corr` with its Monte Carlo history, for the Gamma method and several ensembles.

    Call its `gamma_method()` for errors. Correlators of one ensemble and the same configurations remain correlated.

    Args:
        C: correlators, shape (configurations, T), real, 5 configurations or more.
        ensemble: its name, such as "B450"; "B450|r2" is a replica of it.
        configurations: their numbers in the Markov chain, ascending; None is 1, 2, 3, ...

    Raises:
        ParameterError: C has another shape, is complex or not finite; fewer than 5 configurations; another name; numbers that do not
            ascend or are not one a configuration; errors whose squares leave the range of doubles; `pyerrors` is not installed.
    """
    x = _ensemble(C)
    if not isinstance(ensemble, str) or not ensemble.strip():
        raise ParameterError(f"the name of an ensemble is a text, not {value_shown(ensemble)}")
    names = ensemble.split("|")
    if len(names) > 2 or not all(name.strip() for name in names):
        raise ParameterError(
            f"the name of an ensemble is like 'B450', that of a replica of it like 'B450|r2'; not {value_shown(ensemble)}"
        )
    if len(x) < 5:
        raise ParameterError(
            f"the correlator has {counted(len(x), 'configuration')}; the Gamma method of pyerrors needs 5 or more"
        )
    chain = _chain(configurations, len(x))
    _require_squares(_errors(x)[0], "the correlator")
    pyerrors = package_for("to_pyerrors", "Monte Carlo histories", "pyerrors", "spectrum")
    return pyerrors.Corr(
        [pyerrors.Obs([np.ascontiguousarray(column)], [ensemble], idl=[chain]) for column in x.T]
    )


def _effective(c: FloatArray, kind: str, extent: int) -> FloatArray:
    """Effective masses of one correlator; nan where there is none."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if kind == "arccosh":
            ratio = (c[:-2] + c[2:]) / (2 * c[1:-1])
            return np.where(np.isfinite(ratio) & (ratio > 1), np.arccosh(np.maximum(ratio, 1)), np.nan)
        ratio = c[:-1] / c[1:]
        log = np.where(np.isfinite(ratio) & (ratio > 0), np.log(np.abs(ratio)), np.nan)
    if kind == "log":
        return log
    # Distances of the two slices from T/2; beyond it the ratio is that of the mirrored slices, inverted.
    distance = np.abs(np.arange(extent) - extent / 2)
    inner, outer = np.minimum(distance[:-1], distance[1:]), np.maximum(distance[:-1], distance[1:])
    log = np.where(distance[:-1] > distance[1:], log, -log)
    with np.errstate(divide="ignore"):  # the logarithm at m = 0; of sinh infinite next to T/2
        least = np.log(outer) - np.log(inner) if kind == "sinh" else np.zeros(len(log))
    exists = (log > least) & (outer > inner)
    mass = np.full(len(log), np.nan)
    mass[exists] = _root(log[exists], inner[exists], outer[exists], kind)
    return mass


def _root(log: FloatArray, inner: FloatArray, outer: FloatArray, kind: str) -> FloatArray:
    """The m with ln cosh(m outer) - ln cosh(m inner) = log, or that with sinh, where outer = inner + 1.

    Newton's steps, within brackets: cosh m <= cosh(m outer) / cosh(m inner) <= exp(m) <= sinh(m outer) / sinh(m inner).
    """
    if kind == "cosh":
        low, high = log, log + np.log1p(np.sqrt(-np.expm1(-2 * log)))  # arccosh(exp(log)), without overflow
    else:
        low, high = np.zeros(len(log)), log
    m = high.copy()
    for _ in range(100):
        value, slope = _log_ratio(m, inner, outer, kind)
        value -= log
        low, high = np.where(value < 0, m, low), np.where(value >= 0, m, high)
        step = m - value / slope
        following = np.where((step >= low) & (step <= high), step, (low + high) / 2)
        if (np.abs(following - m) <= 4e-16 * m).all():
            return following
        m = following
    return m


def _log_ratio(
    m: FloatArray, inner: FloatArray, outer: FloatArray, kind: str
) -> tuple[FloatArray, FloatArray]:
    """ln of cosh(m outer) / cosh(m inner), or of that with sinh, and its derivative by m; m > 0."""
    sign = 1.0 if kind == "cosh" else -1.0
    near, far = np.exp(-2 * m * inner), np.exp(-2 * m * outer)
    value = m * (outer - inner) + np.log1p(sign * far) - np.log1p(sign * near)
    slope = outer * (1 - sign * far) / (1 + sign * far) - inner * (1 - sign * near) / (1 + sign * near)
    return value, slope


class _Model:
    """C(t) = sum_n a_n g_n(t) at given slices, with amplitudes a_n at the distance `near` from the source.

    Amplitudes there are of the size of the data; those at t = 0 are A_n = a_n exp(m_n near).
    """

    def __init__(self, form: str, states: int, extent: int, t: NDArray[Any]) -> None:
        self.states = states
        self.oscillates = form == "staggered"
        self.masses = states + self.oscillates
        self._sign = _SIGNS[form]
        self.near = float(np.min(np.minimum(t, extent - t) if self._sign else t)) if len(t) else 0.0
        phase = np.ones((len(t), self.masses))
        if self.oscillates:
            phase[:, -1] = 1 - 2 * (np.rint(t) % 2)
        self._points = len(t)
        # Exponentials that run forwards, then those that run backwards.
        distances = [t, extent - t] if self._sign else [t]
        self._distances = np.concatenate(distances)[:, np.newaxis] - self.near
        self._factors = np.concatenate([phase, self._sign * phase] if self._sign else [phase])

    def basis(self, masses: FloatArray) -> FloatArray:
        """g_n(t) for masses of shape (..., masses): shape (..., points, masses)."""
        return self._summed(self._exponentials(masses))

    def _exponentials(self, masses: FloatArray) -> FloatArray:
        return np.exp(-masses[..., np.newaxis, :] * self._distances) * self._factors

    def _summed(self, parts: FloatArray) -> FloatArray:
        if self._sign == 0:
            return parts
        total: FloatArray = parts[..., : self._points, :] + parts[..., self._points :, :]
        return total

    def masses_of(self, x: FloatArray) -> FloatArray:
        """Masses for the unknowns x, whose first are the logarithms of m1, m2 - m1 and m_osc."""
        masses = np.exp(np.minimum(x[: self.masses], 7.0))  # beyond it exponentials are 0 anyway
        if self.states == 2:
            masses[1] += masses[0]
        return masses

    def values(self, x: FloatArray) -> FloatArray:
        """C(t) for unknowns x, the amplitudes last."""
        return self.basis(self.masses_of(x)) @ x[self.masses :]

    def jacobian(self, x: FloatArray) -> FloatArray:
        """d C(t) / d x, shape (points, unknowns)."""
        masses = self.masses_of(x)
        parts = self._exponentials(masses)
        slopes = self._summed(parts * -self._distances) * x[self.masses :]
        if self.states == 2:
            slopes[:, 0] += slopes[:, 1]
            masses[1] -= masses[0]
        return np.concatenate([slopes * masses, self._summed(parts)], axis=1)

    def unknowns_of(self, masses: FloatArray) -> FloatArray:
        """The inverse of :meth:`masses_of`."""
        steps = masses.copy()
        if self.states == 2:
            steps[1] -= steps[0]
        return np.log(steps)


@dataclass(frozen=True)
class _Central:
    """A fit to the mean, without errors yet."""

    model: _Model
    weights: FloatArray  # W with W^T W = Sigma^-1
    solution: FloatArray
    chi2: float
    chi2_expected: float
    window: tuple[int, int]


@dataclass(frozen=True)
class _Problem:
    """Correlators and the kind of the fit; fits in windows share the jackknife's means."""

    mean: FloatArray
    samples: FloatArray  # the means without one bin each, shape (bins, T)
    spread: FloatArray  # errors of the mean, shape (T,)
    correlation: FloatArray  # of these errors
    exponent: int  # what the three hold is the correlator / 2^exponent
    form: str
    states: int
    correlated: bool
    shrinkage: float
    bin_size: int

    @staticmethod
    def of(
        C: ArrayLike, form: str, states: int, correlated: bool, shrinkage: float, bin_size: int
    ) -> _Problem:
        x, exponent = _scaled(_ensemble(C))
        if not isinstance(form, str) or form not in _SIGNS:
            raise ParameterError(
                f"unknown form of a fit {value_shown(form)}; use 'cosh', 'sinh', 'exp' or 'staggered'"
            )
        if not isinstance(states, numbers.Integral) or isinstance(states, bool) or states not in (1, 2):
            raise ParameterError(f"a fit has 1 or 2 states, not {value_shown(states)}")
        if not isinstance(correlated, bool):
            raise ParameterError(f"correlated is True or False, not {value_shown(correlated)}")
        if (
            not isinstance(shrinkage, numbers.Real)
            or isinstance(shrinkage, bool)
            or not 0 <= float(shrinkage) <= 1
        ):
            raise ParameterError(f"shrinkage is a number from 0 to 1, not {value_shown(shrinkage)}")
        if form == "staggered" and x.shape[1] % 2:
            raise ParameterError(
                f"a partner that oscillates needs an even extent in time, not {x.shape[1]}: (-1)^t is not periodic"
            )
        mean, samples = _jackknife_means(x, bin_size)
        # Of a fit without correlations the shrinkage says nothing.
        shrunk = float(shrinkage) if correlated else 1.0
        spread, correlation = _errors(samples)
        return _Problem(
            mean, samples, spread, correlation, exponent, form, int(states), correlated, shrunk, bin_size
        )

    @property
    def extent(self) -> int:
        return len(self.mean)

    @property
    def bins(self) -> int:
        return len(self.samples)

    @property
    def parameters(self) -> int:
        return 2 * (self.states + (self.form == "staggered"))

    def weights(self, first: int, last: int) -> FloatArray:
        """W with W^T W = Sigma^-1 in a window."""
        from scipy.linalg import solve_triangular

        points = last - first + 1
        full = self.shrinkage == 0
        needed = _BINS_A_POINT * points if full else _FEWEST_BINS
        if self.bins < needed:
            found = f"{counted(self.bins, 'bin')} of {self.bin_size} are too few for "
            if self.bins < _FEWEST_BINS:
                raise ParameterError(f"{found}{counted(points, 'point')}: a fit needs {_FEWEST_BINS} or more")
            most = self.bins // _BINS_A_POINT
            advice = (
                f"correlated=False, a shrinkage, or a window of at most {counted(most, 'point')}"
                if most >= self.parameters
                else "correlated=False or a shrinkage"
            )
            raise ParameterError(
                f"{found}the covariance of {counted(points, 'point')}: a correlated fit needs {needed}, {_BINS_A_POINT} a point; use {advice}"
            )
        spread = self.spread[first : last + 1]
        # Equal numbers have a spread of rounding in place of 0.
        constant = np.flatnonzero(spread <= 1e-14 * np.abs(self.mean[first : last + 1]))
        if len(constant):
            raise ParameterError(
                f"C({first + int(constant[0])}) is the same on all configurations, so it has no error; leave this slice out of the window"
            )
        if spread.min() < 1e-290:
            raise ParameterError(
                f"the error of C({first + int(np.argmin(spread))}) is too small, beside the largest number of the correlator, for double precision; "
                "leave the largest or this slice out"
            )
        correlation = self.correlation[first : last + 1, first : last + 1] * (1 - self.shrinkage)
        np.fill_diagonal(correlation, 1.0)
        eigenvalues = np.linalg.eigvalsh(correlation)
        if eigenvalues[0] <= _SINGULAR * eigenvalues[-1]:
            advice = (
                f"a folded correlator holds the same numbers twice, so end the window at T/2 = {self.extent // 2}"
                if last > self.extent - last
                else "use a shorter window, a shrinkage or correlated=False"
            )
            raise ParameterError(
                f"the covariance of slices {first} to {last} is singular (eigenvalues of the correlation matrix from {eigenvalues[0]:.1e} to {eigenvalues[-1]:.1e}): {advice}"
            )
        lower = np.linalg.cholesky(correlation)
        inverse: FloatArray = solve_triangular(lower, np.diag(1 / spread), lower=True)
        return inverse

    def fitted(self, first: int, last: int, start: FloatArray | None, vague: float) -> _Central:
        """The fit to the mean."""
        points = last - first + 1
        if points < self.parameters:
            raise ParameterError(
                f"the window ({first}, {last}) has {counted(points, 'point')} for {self.parameters} parameters; use {self.parameters} points or more"
            )
        W = self.weights(first, last)
        model = _Model(self.form, self.states, self.extent, np.arange(first, last + 1))
        y = W @ self.mean[first : last + 1]
        where = f"in the window ({first}, {last})"
        found: list[tuple[float, FloatArray, FloatArray]] = []
        refused: list[_UndeterminedError] = []

        def descend(starts: list[FloatArray]) -> None:
            for masses in starts:
                amplitudes = np.linalg.lstsq(W @ model.basis(masses), y, rcond=None)[0]
                try:
                    x = _least_squares(
                        model, W, y, np.concatenate([model.unknowns_of(masses), amplitudes]), where
                    )
                    jacobian = W @ model.jacobian(x)
                    _require_determined(model, jacobian, vague, where)
                except _UndeterminedError as reason:
                    refused.append(reason)
                    continue
                found.append((float(((W @ model.values(x) - y) ** 2).sum()), x, jacobian))

        if start is not None:
            descend([start])
        if not found:
            refused.clear()  # a start that leads nowhere says nothing about the data
            descend(_starts(model, W, y))
        if not found:
            raise refused[0]
        least, solution, jacobian = min(found, key=lambda one: one[0])
        Q = np.linalg.qr(jacobian)[0]
        whitening = W * self.spread[first : last + 1]
        seen = whitening @ self.correlation[first : last + 1, first : last + 1] @ whitening.T
        expected = float(np.trace(seen) - np.trace(Q.T @ seen @ Q))
        return _Central(model, W, solution, least, expected, (first, last))

    def unscaled(self, amplitudes: FloatArray) -> FloatArray:
        """In units of the correlator."""
        with np.errstate(over="ignore", under="ignore"):
            result: FloatArray = np.ldexp(amplitudes, self.exponent)
        if not np.isfinite(result).all():
            raise ParameterError(
                "an amplitude of the fit at t = 0 leaves the range of doubles; multiply the correlator by a small number"
            )
        return result

    def jackknifed(self, central: _Central) -> Fit:
        """The fit with errors: again without each bin, from the solution of all."""
        from scipy.special import fdtrc

        model, W, (first, last) = central.model, central.weights, central.window
        values = _parameters(model, central.solution)
        samples = np.array(
            [
                _parameters(
                    model,
                    _least_squares(
                        model,
                        W,
                        W @ mean,
                        central.solution,
                        f"in the window ({first}, {last}) without bin {bin} of {self.bins}",
                    ),
                )
                for bin, mean in enumerate(self.samples[:, first : last + 1])
            ]
        )
        errors, _ = _errors(samples)
        for array in (values, errors, samples):
            array[..., model.masses :] = self.unscaled(array[..., model.masses :])
        dof = last - first + 1 - self.parameters
        probability = math.nan
        if dof and self.shrinkage == 0:
            ratio = central.chi2 * (self.bins - dof) / (dof * (self.bins - 1))
            probability = float(fdtrc(dof, self.bins - dof, ratio))
        labels = [str(n + 1) for n in range(self.states)] + ["_osc"] * model.oscillates
        return Fit(
            names=tuple(f"{letter}{label}" for letter in "mA" for label in labels),
            values=values,
            errors=errors,
            samples=samples,
            chi2=central.chi2,
            chi2_expected=central.chi2_expected,
            dof=dof,
            p_value=probability,
            form=self.form,
            states=self.states,
            window=central.window,
            correlated=self.correlated,
            shrinkage=self.shrinkage,
            extent=self.extent,
            bins=self.bins,
            bin_size=self.bin_size,
        )


def _least_squares(model: _Model, W: FloatArray, y: FloatArray, x: FloatArray, where: str) -> FloatArray:
    """The unknowns of the smallest |W C(t) - y|^2, from x on."""
    # Not least_squares, which calls the same routines of MINPACK and takes twice as long for small problems.
    from scipy.optimize import leastsq

    with np.errstate(all="ignore"):  # in a covariance that leastsq adds, which is not used
        solution, _, information, _, status = leastsq(
            lambda x: W @ model.values(x) - y,
            x,
            Dfun=lambda x: W @ model.jacobian(x),
            full_output=True,
            ftol=1e-15,
            xtol=1e-12,
            gtol=1e-15,
            maxfev=100 * len(x),
        )
    # 6, 7 and 8 are convergence too: to rounding, before the tolerance was reached.
    if status not in (1, 2, 3, 4, 6, 7, 8) or not np.isfinite(solution).all():
        raise _UndeterminedError(
            f"least squares did not converge in {information['nfev']} steps {where}: {_advice(model)}, or start from other masses"
        )
    found: FloatArray = solution
    return found


def _require_determined(model: _Model, jacobian: FloatArray, most: float, where: str) -> None:
    """Refuses parameters that chi^2 hardly depends on: a state too many, or a window of noise.

    The errors of logarithms of masses, those of the inverse of J^T J, are at most `most`.
    """
    largest = np.abs(jacobian).max(axis=0)
    sizes = largest * np.linalg.norm(jacobian / np.where(largest > 0, largest, 1), axis=0)
    vague = True
    if (sizes > 0).all():
        _, singular, right = np.linalg.svd(jacobian / sizes, full_matrices=False)
        if singular[-1] > 1e-10:
            with np.errstate(over="ignore"):  # infinite is vague too
                spreads = np.linalg.norm(right.T / singular, axis=1) / sizes
            vague = bool((spreads[: model.masses] > most).any())
    if vague:
        raise _UndeterminedError(f"the data do not determine all masses {where}: {_advice(model)}")


def _advice(model: _Model) -> str:
    """What to do where a fit has too many parameters for its data."""
    fewer = "use states=1 or an earlier window" if model.states == 2 else "use a window with a signal"
    return fewer + ", or form='cosh' if no partner oscillates" * model.oscillates


def _starts(model: _Model, W: FloatArray, y: FloatArray) -> list[FloatArray]:
    """Masses to start from: the lowest local minima, on a grid of masses, of chi^2 with the best amplitudes for each."""
    grid = np.geomspace(0.01, 4.0, _GRID_POINTS[model.masses])
    index = np.indices((len(grid),) * model.masses).reshape(model.masses, -1).T
    if model.states == 2:
        index = index[index[:, 0] < index[:, 1]]
    Q = np.linalg.qr(W @ model.basis(grid[index]))[0]
    explained = np.full((len(grid) + 2,) * model.masses, -np.inf)
    explained[tuple(index.T + 1)] = ((np.swapaxes(Q, -1, -2) @ y) ** 2).sum(axis=-1)
    here = explained[tuple(index.T + 1)]
    highest = np.ones(len(index), dtype=bool)
    for step in itertools.product((-1, 0, 1), repeat=model.masses):
        highest &= explained[tuple((index + 1 + np.array(step)).T)] <= here
    candidates = np.flatnonzero(highest)
    order = candidates[np.argsort(-here[candidates], kind="stable")]
    return [grid[index[i]] for i in order[:_STARTS]]


def _parameters(model: _Model, x: FloatArray) -> FloatArray:
    """Masses and amplitudes at t = 0."""
    masses = model.masses_of(x)
    return np.concatenate([masses, x[model.masses :] * np.exp(masses * model.near)])


def _jackknife_means(x: FloatArray, bin_size: int) -> tuple[FloatArray, FloatArray]:
    """The mean, shape (T,), and the means without one bin each, shape (bins, T)."""
    means: list[FloatArray] = []

    def kept(mean: FloatArray) -> FloatArray:
        means.append(mean)
        return mean

    jackknife(kept, x, bin_size)  # asks for the mean of all data first, then without each bin
    return means[0], np.array(means[1:])


def _scaled(x: FloatArray) -> tuple[FloatArray, int]:
    """x / 2^k of size 1, and k: so sums and quotients remain within the range of doubles, and units of 2^k change no digit."""
    exponent = math.frexp(float(np.abs(x).max()))[1]
    scaled = np.ldexp(x, -exponent)
    if exponent > 0 and np.abs(scaled[x != 0]).min(initial=1) < 2.0 ** (_ROOM - 1022):
        # Numbers so small beside the largest that they, or their errors, lose digits: the largest need not become that small.
        exponent = max(exponent - _ROOM, 0)
        scaled = np.ldexp(x, -exponent)
    return scaled, exponent


def _errors(samples: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Errors of what jackknife samples of shape (bins, k) are samples of, whatever its size, and their correlation, 0 with constants."""
    n = len(samples)
    deviations = samples - samples.mean(axis=0)
    exponents = np.frexp(np.abs(deviations).max(axis=0))[1]
    deviations = np.ldexp(deviations, -exponents)
    products = deviations.T @ deviations
    lengths = np.sqrt(np.diag(products))
    known = np.where(lengths > 0, lengths, 1)
    return np.ldexp(lengths * math.sqrt((n - 1) / n), exponents), products / np.outer(known, known)


def _covariance(samples: FloatArray, what: str) -> FloatArray:
    """Covariance of what jackknife samples of shape (bins, k) are samples of."""
    errors, correlation = _errors(samples)
    _require_squares(errors, what)
    return correlation * np.outer(errors, errors)


def _require_squares(errors: FloatArray, what: str) -> None:
    """Refuses errors whose squares, which other packages compute, doubles do not hold."""
    least, most = _SQUARES
    for wrong, size in ((errors > most, "large"), ((errors != 0) & (errors < least), "small")):
        if wrong.any():
            raise ParameterError(
                f"errors of {what} are so {size} that their squares leave the range of doubles; multiply the correlator by a power of 2"
            )


def _start(start: Sequence[float] | None, form: str, states: int) -> FloatArray | None:
    """Starting masses, checked."""
    if start is None:
        return None
    needed = states + (form == "staggered")
    masses = _real_array(start, "start")
    if masses.shape != (needed,) or not (masses > 0).all() or (states == 2 and masses[0] >= masses[1]):
        names = ["m1", "m2"][:states] + ["m_osc"] * (form == "staggered")
        order = ", m1 < m2" if states == 2 else ""
        raise ParameterError(
            f"start has the masses ({', '.join(names)}), all positive{order}; not {value_shown(start)}"
        )
    return masses


def _window(window: tuple[int, int], extent: int) -> tuple[int, int]:
    """First and last slice, checked."""
    if (
        not isinstance(window, list | tuple | np.ndarray)
        or (isinstance(window, np.ndarray) and window.ndim != 1)
        or len(window) != 2
    ):
        raise ParameterError(f"a window is a pair (first slice, last slice), not {value_shown(window)}")
    first, last = window
    for t in (first, last):
        if not isinstance(t, numbers.Integral) or isinstance(t, bool):
            raise ParameterError(f"slices of a window are whole numbers, not {value_shown(t)}")
    if not 0 <= first <= last < extent:
        raise ParameterError(
            f"the window ({value_shown(first)}, {value_shown(last)}) does not fit: slices are 0 to {extent - 1}, the first before the last"
        )
    return int(first), int(last)


def _chain(configurations: Sequence[int] | None, count: int) -> list[int]:
    """Numbers of configurations, checked."""
    if configurations is None:
        return list(range(1, count + 1))
    try:
        chain = list(configurations)
    except TypeError:
        raise ParameterError(
            f"numbers of configurations are a sequence, not {value_shown(configurations)}"
        ) from None
    for number in chain:
        if not isinstance(number, numbers.Integral) or isinstance(number, bool):
            raise ParameterError(
                f"the number of a configuration is a whole number, not {value_shown(number)}"
            )
    chain = [int(number) for number in chain]
    if len(chain) != count:
        raise ParameterError(
            f"{counted(len(chain), 'number')} for {counted(count, 'configuration')}; give one for each"
        )
    for before, after in itertools.pairwise(chain):
        if after <= before:
            raise ParameterError(
                f"numbers of configurations ascend along the Markov chain, but {after} comes after {before}"
            )
    return chain


def _ensemble(C: ArrayLike) -> FloatArray:
    """Correlators of several configurations, shape (configurations, T)."""
    x = _correlators(C)
    if x.ndim == 1:
        raise ParameterError(
            f"the correlator has shape {x.shape}, that of one configuration, which has no errors; shape (configurations, T) is needed"
        )
    return x


def _correlators(C: ArrayLike) -> FloatArray:
    """Correlators as float64, of shape (configurations, T) or (T,), or an error that says where they are not."""
    x = _real_array(C, "the correlator")
    if x.ndim not in (1, 2) or x.size == 0:
        raise ParameterError(
            f"the correlator has shape {x.shape}; one of shape (configurations, T) or (T,) is needed"
        )
    return x


def _real_array(value: ArrayLike, what: str) -> FloatArray:
    masked = sum(
        int(np.count_nonzero(np.ma.getmaskarray(one)))
        for one in (value if isinstance(value, list | tuple) else [value])
        if isinstance(one, np.ma.MaskedArray)
    )
    if masked:
        those = "masked configurations" if what == "the correlator" else "them"
        raise ParameterError(
            f"{what} has {counted(masked, 'masked number')}, of which nothing here keeps account; leave {those} out"
        )
    try:
        raw = np.asarray(value)
        if np.iscomplexobj(raw):
            raise ParameterError(
                f"{what} is complex; take its real part where its imaginary part is known to vanish in the mean"
            )
        if raw.dtype.kind not in "iuf" and not (
            raw.dtype.kind == "O"
            and all(hasattr(one, "__float__") and not isinstance(one, bool | np.bool_) for one in raw.flat)
        ):
            raise TypeError
        x = raw.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(f"{what} is not an array of real numbers: {value_shown(value)}") from None
    finite = np.isfinite(x)
    if not finite.all():
        index = tuple(int(i) for i in np.argwhere(~finite)[0]) if x.ndim else ()
        raise ParameterError(
            f"{what} is {x[index]} at index {index} ({counted(int(np.count_nonzero(~finite)), 'number')} not finite in all)"
        )
    return x


def _written(value: float, error: float) -> str:
    return "none" if math.isnan(value) else format_value(float(value), float(error))


def _known(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None
