"""Means and masses of what `jali spectrum` has measured: what is fitted, and how, by channel."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali.amounts import counted
from jali.errors import JaliError, ParameterError
from jali.hadrons.currents import pcac_mass_of
from jali.hadrons.masses import EffectiveMass, Fit, Plateau, effective_mass, fit_correlator, fold, plateau
from jali.statistics import format_value, jackknife

BINS_PER_POINT, LEAST_BINS = 5, 4  # that a correlated fit takes, and that another one does


@dataclass(frozen=True)
class Channel:
    """A hadron: the correlators that make it, and the form of their mean.

    `take` gives C of a source, of the correlators by name; `sign` is that of its image under time reversal, None where it has none.
    """

    name: str
    take: Callable[[dict[str, np.ndarray]], np.ndarray]
    form: str
    sign: int | None = 1


def _sum(*names: str) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    return lambda found: np.sum([found[name] for name in names], axis=0)


def _nucleon(sign: int) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """The mean of C_+(t) and of the same nucleon backwards, C_-(T - t) times the sign that three quarks get across the edge of time."""

    def take(found: dict[str, np.ndarray]) -> np.ndarray:
        forwards, backwards = found["nucleon"], found["nucleon backwards"]
        mean = forwards.copy()
        mean[1:] = (forwards[1:] + sign * backwards[:0:-1]) / 2
        return mean

    return take


OF_SPINORS = (
    Channel("pion", _sum("g5"), "cosh"),
    Channel("rho", _sum("gx", "gy", "gz"), "cosh"),
    Channel("scalar", _sum("1"), "cosh"),
    Channel("axial vector", _sum("gxg5", "gyg5", "gzg5"), "cosh"),
)
OF_STAGGERED = (
    Channel("pion", _sum("pion"), "cosh"),
    Channel("vector", _sum("vector"), "staggered"),
    Channel("pseudovector", _sum("pseudovector"), "staggered"),
    Channel("scalar", _sum("scalar"), "staggered"),
)


@dataclass(frozen=True)
class Found:
    """A channel at a momentum: its correlators (samples, T), their effective mass, and the mass of a fit, or why there is none."""

    name: str
    momentum: str
    C: np.ndarray
    mean: np.ndarray
    error: np.ndarray
    effective: EffectiveMass
    mass: float | None
    mass_error: float | None
    fit: Fit | Plateau | None
    why: str
    form: str

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "channel": self.name,
            "momentum": self.momentum,
            "mass": self.mass,
            "mass_error": self.mass_error,
            "method": self.why,
            "correlator": _known(self.mean),
            "correlator_error": _known(self.error),
            "effective_mass": self.effective.as_dict(),
            "fit": None if self.fit is None else self.fit.as_dict(),
        }


@dataclass(frozen=True)
class Summary:
    """What all configurations give. `of_sources` tells whether the samples are sources of one configuration."""

    parameters: dict[str, Any]
    configurations: int
    of_sources: bool
    samples: int
    bin_size: int
    channels: tuple[Found, ...]
    pcac: tuple[np.ndarray, np.ndarray] | None

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON."""
        return {
            "parameters": self.parameters,
            "configurations_measured": self.configurations,
            "errors": "between sources of one configuration" if self.of_sources else "between configurations",
            "samples": self.samples,
            "bin_size": self.bin_size,
            "masses": [one.as_dict() for one in self.channels],
            "pcac_mass": None
            if self.pcac is None
            else {"value": _known(self.pcac[0]), "error": _known(self.pcac[1])},
        }


def summarise(
    results: Sequence[dict[str, Any]],
    parameters: dict[str, Any],
    bin_size: int = 1,
    window: tuple[int, int] | None = None,
) -> Summary:
    """Means, effective masses and fits. Samples are configurations, means over their sources; of a single one its sources.

    A channel without a fit has the reason in its place.
    """
    with np.errstate(all="ignore"):
        return _summarised(results, parameters, bin_size, window)


def _summarised(
    results: Sequence[dict[str, Any]],
    parameters: dict[str, Any],
    bin_size: int,
    window: tuple[int, int] | None,
) -> Summary:
    of_sources = len(results) == 1
    names = list(results[0]["sources"][0]["correlators"])
    momenta = list(results[0]["sources"][0]["correlators"][names[0]])

    def samples(name: str, p: str) -> np.ndarray:
        each = np.array(
            [[source["correlators"][name][p] for source in result["sources"]] for result in results]
        )
        return each[0] if of_sources else each.mean(axis=1)

    channels: tuple[Channel, ...] = OF_STAGGERED if "vector" in names else OF_SPINORS
    if len(results[0]["extents"]) < 4:  # names from spins are those of three directions of space
        channels = tuple(channel for channel in channels if channel.name in ("pion", "scalar"))
    if "nucleon" in names:
        sign = -1 if parameters["sources"]["boundary"] == "antiperiodic" else 1
        channels += (Channel("nucleon", _nucleon(sign), "exp", None),)
    found = []
    for p in momenta:
        correlators = {name: samples(name, p) for name in names}
        for channel in channels:
            C = np.array(
                [
                    channel.take({name: C[k] for name, C in correlators.items()})
                    for k in range(_count(correlators))
                ]
            )
            found.append(_found(channel, p, C, bin_size, window))
    pcac = None
    if "gtg5 g5" in names:
        pcac = _pcac(samples("gtg5 g5", momenta[0]), samples("g5", momenta[0]), bin_size)
    number = _count(correlators)
    return Summary(parameters, len(results), of_sources, number, bin_size, tuple(found), pcac)


def _count(correlators: dict[str, np.ndarray]) -> int:
    return len(next(iter(correlators.values())))


def _found(channel: Channel, p: str, C: np.ndarray, bin_size: int, window: tuple[int, int] | None) -> Found:
    """Mean, effective mass and fit of a channel."""
    if channel.sign is not None:
        C = fold(C, channel.sign)
    mean, error = _mean(C, bin_size)
    kind = "log" if channel.form in ("exp", "staggered") else "cosh"
    effective = effective_mass(C if len(C) > 1 else C[0], kind, bin_size=bin_size)  # type: ignore[arg-type]
    mass, mass_error, fit, why = _mass(channel, C, bin_size, window, effective)
    return Found(channel.name, p, C, mean, error, effective, mass, mass_error, fit, why, channel.form)


def _mass(
    channel: Channel, C: np.ndarray, bin_size: int, window: tuple[int, int] | None, effective: EffectiveMass
) -> tuple[float | None, float | None, Fit | Plateau | None, str]:
    """The mass of a channel, its error, the fit that it is of, and how it was found, in words."""
    extent, bins = C.shape[-1], len(C) // bin_size
    form: Any = channel.form
    last = extent // 2 if channel.sign is not None else max(extent // 2 - 1, 1)
    if window is not None:
        correlated = bins >= BINS_PER_POINT * (window[1] - window[0] + 1)
        try:
            fit = fit_correlator(C, window, form=form, correlated=correlated, bin_size=bin_size)
        except JaliError as error:
            return None, None, None, f"no fit from {window[0]} to {window[1]}: {error}"
        return fit.mass, _number(fit.mass_error), fit, f"fit from {window[0]} to {window[1]}"
    correlated = bins >= BINS_PER_POINT * last
    parameters = 4 if form == "staggered" else 2
    reason = "too few slices for a fit"
    try:
        if bins < LEAST_BINS:
            raise ParameterError("too few samples for a fit")
        if last < parameters + 1:
            raise ParameterError(reason)
        average = plateau(C, form=form, last=last, correlated=correlated, bin_size=bin_size)
        best = average.best.window
        return (
            average.mass,
            _number(average.error),
            average,
            f"average over windows, the best from {best[0]} to {best[1]}",
        )
    except JaliError as error:
        reason = str(error)
    if channel.form == "staggered":
        return None, None, None, reason
    known = [
        k for k, t in enumerate(effective.t) if t >= 1 and np.isfinite(effective.value[k]) and t < extent // 2
    ]
    if not known:
        return None, None, None, reason
    k = known[-1]
    return (
        float(effective.value[k]),
        _number(effective.error[k]),
        None,
        f"effective mass at t = {effective.t[k]:g}: {reason}",
    )


def _mean(C: np.ndarray, bin_size: int) -> tuple[np.ndarray, np.ndarray]:
    if len(C) // bin_size < 2:
        return C.mean(axis=0), np.full(C.shape[1:], np.nan)
    found = jackknife(lambda c: c, C, bin_size)
    return np.asarray(found.value), np.asarray(found.error)


def _pcac(axial: np.ndarray, density: np.ndarray, bin_size: int) -> tuple[np.ndarray, np.ndarray]:
    """m(t) of the means, (T,), with errors."""

    def mass(both: np.ndarray) -> np.ndarray:
        return pcac_mass_of(*both)

    both = np.stack([axial, density], axis=1)
    if len(both) // bin_size < 2:
        return mass(both.mean(axis=0)), np.full(both.shape[-1], np.nan)
    found = jackknife(mass, both, bin_size)
    return np.asarray(found.value), np.asarray(found.error)


def render(summary: Summary) -> str:
    """Masses as a table."""
    what = (
        f"{counted(summary.samples, 'source')} of one configuration: errors are those between sources"
        if summary.of_sources
        else f"{counted(summary.configurations, 'configuration')}"
        + (f" in bins of {summary.bin_size}" if summary.bin_size > 1 else "")
    )
    lines = [what]
    if summary.parameters["operator"].startswith("twisted"):
        lines.append(
            "  mesons of a twisted mass are charged, of the quarks with mu and -mu, and named by matrices that a twist rotates"
        )
    for one in summary.channels:
        zero = set(one.momentum) <= set("0,")
        name = one.name if zero else f"{one.name} p = {one.momentum}"
        value = (
            "-"
            if one.mass is None
            else format_value(one.mass, math.nan if one.mass_error is None else one.mass_error)
        )
        lines.append(f"  {name:<28}{value:<16}  {one.why}")
    if summary.pcac is not None:
        middle = len(summary.pcac[0]) // 2
        value, error = summary.pcac[0][middle], summary.pcac[1][middle]
        lines.append(f"  {'PCAC mass':<28}{format_value(value, error):<16}  at t = {middle}")
        if value < 0 and not abs(value) < 2 * error:
            lines.append(
                "  the PCAC mass is negative: kappa is beyond its critical value, and masses are none"
            )
    return "\n".join(lines)


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _known(values: np.ndarray) -> list[float | None]:
    return [float(v) if math.isfinite(v) else None for v in values]
