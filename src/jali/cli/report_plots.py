"""The pictures of a run: light, calm, and complete with numbers and units.

Each function takes a :class:`~jali.cli.report_data.RunSummary` and returns a matplotlib figure, or None where
there is nothing to show. Figures are made without pyplot, so nothing global changes and no display is needed.
"""

from __future__ import annotations

import math
import re
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jali.cli.flow_summary import LEVEL
from jali.cli.report_data import RunSummary
from jali.cli.schema import Gauge, RunParameters
from jali.cli.terms import GAUGE, is_gauge_alone, terms_in_words
from jali.gauge.actions import ACTIONS
from jali.statistics import autocorrelation_function, binning, format_value

__all__ = [
    "STYLE",
    "WIDE",
    "autocorrelation_figure",
    "binning_figure",
    "coupling_name",
    "flow_figure",
    "history_figure",
    "lattice_name",
    "polyakov_figure",
    "timing_figure",
    "weight_name",
]

INK, MUTED, GRID = "#243b53", "#7b8794", "#e4e9ee"
DATA, MEAN, BAND = "#8fb3d9", "#1f5c99", "#cfe0f1"
REFERENCE, EARLY = "#c8553d", "#b8c2cc"

STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.edgecolor": "#bcc7d1",
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titlepad": 9,
    "axes.linewidth": 0.8,
    "axes.xmargin": 0.02,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-4, 6),
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.size": 3,
    "ytick.major.size": 3,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.facecolor": "white",
    "svg.fonttype": "path",
}

# Inches: across the page, and two beside each other, which are equally high so that no card has an empty end.
WIDE, CARD = (10, 3.6), (5.2, 4.0)

# Beyond this many points a curve goes into the page as pixels, so that long runs do not make huge pages.
_MANY = 5000


def coupling_name(gauge: Gauge) -> str:
    """β = 5.7, and the action where it is not Wilson's."""
    name = "" if gauge.action == "wilson" else f" ({ACTIONS[gauge.action].title})"
    return f"β = {gauge.beta:g}{name}"


def weight_name(parameters: RunParameters) -> str:
    """The coupling and the action; of several terms their names and couplings."""
    terms, coupling = parameters.hmc.terms, coupling_name(parameters.gauge)
    if is_gauge_alone(terms):
        return coupling
    return terms_in_words(terms) + (f", {GAUGE} with {coupling}" if parameters.gauge.beta else "")


def lattice_name(extents: tuple[int, ...]) -> str:
    """8^4, 16^3 x 32, 4 x 6 in Unicode: 8⁴, 16³ × 32, 4 × 6."""
    if len(set(extents)) == 1:
        return f"{extents[0]}{_superscript(len(extents))}"
    if len(extents) > 2 and len(set(extents[:-1])) == 1:
        return f"{extents[0]}{_superscript(len(extents) - 1)} × {extents[-1]}"
    return " × ".join(map(str, extents))


def history_figure(summary: RunSummary, *, title: bool = False) -> Figure:
    """Plaquette against sweep: the approach to equilibrium, the measurements, and their distribution."""
    with mpl.rc_context(STYLE):
        early = ~summary.measured
        show_early, show_late = bool(early.any()), bool(summary.measured.any())
        figure = Figure(figsize=(10, 4.3) if title else WIDE, layout="constrained")
        widths = [
            width for width, shown in ((1.1, show_early), (3.2, show_late), (0.75, show_late)) if shown
        ] or [1]
        axes = list(figure.subplots(1, len(widths), width_ratios=widths, squeeze=False)[0])
        if title:
            figure.suptitle(_headline(summary), x=0.012, ha="left", fontsize=12, color=INK)
        if not show_early and not show_late:
            axes[0].text(0.5, 0.5, "no measurements yet", ha="center", transform=axes[0].transAxes)
            return figure
        if show_early:
            _draw_approach(axes.pop(0), summary, early)
        if show_late:
            _draw_measurements(axes[0], summary)
            _draw_distribution(axes[1], axes[0], summary)
        return figure


def _headline(summary: RunSummary) -> str:
    gauge, estimate = summary.parameters.gauge, summary.estimates.get("plaquette")
    parts = [
        f"{gauge.group}   {lattice_name(summary.parameters.lattice.extents)}   {weight_name(summary.parameters)}"
    ]
    if estimate:
        parts.append(f"plaquette {format_value(estimate.mean, estimate.error)}")
    if summary.target and summary.deviation is not None:
        parts.append(f"{summary.target.kind} {summary.target.value:.6g}  ({summary.deviation:+.1f} σ)")
    return "      ".join(parts)


def _draw_approach(axis: Axes, summary: RunSummary, early: np.ndarray) -> None:
    sweep, plaquette = summary.history["sweep"][early], summary.history["plaquette"][early]
    axis.plot(sweep, plaquette, color=MUTED, lw=1.3, rasterized=len(sweep) > _MANY)
    if summary.target:
        axis.axhline(summary.target.value, color=REFERENCE, lw=1.1, ls=(0, (5, 3)))
    axis.set_title("thermalisation")
    axis.set_xlabel("sweep")
    axis.set_ylabel("plaquette")
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True, steps=[1, 2, 5, 10]))
    _keep_open(axis, plaquette)


def _draw_measurements(axis: Axes, summary: RunSummary) -> None:
    sweep, plaquette = summary.history["sweep"][summary.measured], summary.plaquette
    estimate = summary.estimates["plaquette"]
    markers: Any = {"marker": "o", "ms": 3.5} if len(sweep) < 60 else {}
    axis.plot(
        sweep, plaquette, color=DATA, lw=0.8, rasterized=len(sweep) > _MANY, label="measurements", **markers
    )
    count = np.arange(1, len(plaquette) + 1)
    running = np.cumsum(plaquette) / count
    if estimate.error > 0 and len(plaquette) >= 4:
        # The final variance and tau_int, with the statistics available at each sweep.
        spread = estimate.error * np.sqrt(len(plaquette) / count)
        band: Any = {"color": MEAN, "alpha": 0.25, "lw": 0, "rasterized": len(sweep) > _MANY}
        axis.fill_between(sweep, running - spread, running + spread, **band)
    axis.plot(sweep, running, color=MEAN, lw=1.8, label="running mean and error")
    if summary.target:
        label = summary.target.kind
        axis.axhline(summary.target.value, color=REFERENCE, lw=1.3, ls=(0, (5, 3)), label=label)
    axis.set_title(f"{len(plaquette)} measurements" if len(plaquette) > 1 else "1 measurement")
    axis.set_xlabel("sweep")
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
    shown = plaquette
    if summary.target and abs(summary.target.value - running[-1]) < 3 * float(np.ptp(plaquette)):
        shown = np.append(plaquette, summary.target.value)
    _keep_open(axis, shown, headroom=0.28)
    axis.legend(loc="upper right", ncols=3, handlelength=1.6, columnspacing=1.4, borderaxespad=0.2)


def _draw_distribution(axis: Axes, beside: Axes, summary: RunSummary) -> None:
    plaquette = summary.plaquette
    low, high = beside.get_ylim()
    bins = int(min(40, max(5, round(2 * len(plaquette) ** (1 / 3)))))
    spread = float(plaquette.std())
    edges = np.linspace(plaquette.min(), plaquette.max(), bins + 1) if spread > 0 else None
    if edges is not None and edges[-1] > edges[0] and (np.diff(edges) > 0).all():
        axis.hist(plaquette, list(edges), orientation="horizontal", color=DATA, edgecolor="white", lw=0.5)
        if len(plaquette) >= 20:
            level = np.linspace(low, high, 200)
            normal = np.exp(-(((level - plaquette.mean()) / spread) ** 2) / 2) / (
                spread * math.sqrt(2 * math.pi)
            )
            axis.plot(len(plaquette) * (edges[1] - edges[0]) * normal, level, color=MEAN, lw=1.3)
    else:
        axis.barh([plaquette[0]], [len(plaquette)], height=0.02 * (high - low), color=DATA)
    if summary.target:
        axis.axhline(summary.target.value, color=REFERENCE, lw=1.1, ls=(0, (5, 3)))
    axis.set_ylim(low, high)
    axis.tick_params(labelleft=False)
    axis.set_title("distribution")
    axis.set_xlabel("count")
    axis.xaxis.set_major_locator(MaxNLocator(3, integer=True, steps=[1, 2, 5, 10]))


def autocorrelation_figure(summary: RunSummary) -> Figure | None:
    """Autocorrelation function with the window, and tau_int against the window."""
    estimate, plaquette = summary.estimates.get("plaquette"), summary.plaquette
    if estimate is None or len(plaquette) < 4 or estimate.error == 0:
        return None
    rho, error = autocorrelation_function(plaquette, max(4 * estimate.window, 20))
    lag = np.arange(len(rho)) * summary.interval
    window = estimate.window * summary.interval
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=CARD, layout="constrained")
        top, bottom = figure.subplots(2, 1, sharex=True)
        for axis in (top, bottom):
            axis.axvline(window, color=REFERENCE, lw=1.1, ls=(0, (5, 3)))
        top.axhline(0, color=MUTED, lw=0.8)
        top.fill_between(lag, rho - error, rho + error, color=MEAN, alpha=0.16, lw=0)
        top.plot(lag, rho, color=MEAN, lw=1.4, marker="o", ms=3)
        top.set_title("autocorrelation of the plaquette")
        top.set_ylabel("ρ(t)")
        tau = (0.5 + np.concatenate([[0.0], np.cumsum(rho[1:])])) * summary.interval
        lags = np.arange(len(rho))
        # Wolff's error of tau_int for a window W.
        width = (
            2 * np.abs(tau) * np.sqrt(np.maximum(lags + 0.5 - tau / summary.interval, 0.5) / len(plaquette))
        )
        bottom.fill_between(lag, tau - width, tau + width, color=MEAN, alpha=0.16, lw=0)
        bottom.plot(lag, tau, color=MEAN, lw=1.4)
        bottom.set_ylabel("τ_int(t) [sweeps]")
        bottom.set_xlabel("t [sweeps]")
        text = f" window {window}\n τ_int = {_tau(summary, 'plaquette')} sweeps"
        bottom.text(window, 0.04, text, transform=bottom.get_xaxis_transform(), color=REFERENCE, va="bottom")
        bottom.set_ylim(bottom=min(0.0, float(tau.min())))
        return figure


def binning_figure(summary: RunSummary) -> Figure | None:
    """Error from bins against bin size, beside the error that the Gamma method gives."""
    estimate, plaquette = summary.estimates.get("plaquette"), summary.plaquette
    if estimate is None or len(plaquette) < 32 or estimate.error == 0:
        return None
    result = binning(plaquette)
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=CARD, layout="constrained")
        axis = figure.subplots()
        size = result.sizes * summary.interval
        axis.axhline(estimate.error, color=REFERENCE, lw=1.1, ls=(0, (5, 3)), label="Gamma method")
        axis.errorbar(
            size, result.errors, result.errors_error, color=MEAN, lw=1.4, marker="o", ms=4, label="bins"
        )
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.set_ylim(bottom=0)
        axis.set_title("error of the mean plaquette")
        axis.set_xlabel("bin size [sweeps]")
        axis.legend(loc="lower right")
        return figure


def polyakov_figure(summary: RunSummary) -> Figure | None:
    """Polyakov loops in the complex plane, with the directions of the centre of the group; real ones against sweep."""
    if "polyakov_re" not in summary.estimates:
        return None
    if "polyakov_im" not in summary.estimates:
        return _real_polyakov_figure(summary)
    re_part = summary.history["polyakov_re"][summary.measured]
    im_part = summary.history["polyakov_im"][summary.measured]
    reach = 1.15 * float(np.hypot(re_part, im_part).max()) or 1.0
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=CARD, layout="constrained")
        axis = figure.subplots()
        match = re.fullmatch(r"SU\((\d+)\)", summary.parameters.gauge.group)
        for k in range(int(match[1]) if match else 0):
            angle = 2 * math.pi * k / int(match[1]) if match else 0.0
            axis.plot(
                [0, 2 * reach * math.cos(angle)], [0, 2 * reach * math.sin(angle)], color=EARLY, lw=1, ls=":"
            )
        alpha = float(np.clip(8 / math.sqrt(len(re_part)), 0.15, 0.8))
        axis.scatter(re_part, im_part, s=12, color=MEAN, alpha=alpha, lw=0, rasterized=len(re_part) > _MANY)
        mean = (summary.estimates["polyakov_re"], summary.estimates["polyakov_im"])
        axis.plot(
            mean[0].mean, mean[1].mean, marker="+", ms=11, mew=1.8, color=REFERENCE, ls="", label="mean"
        )
        axis.set(xlabel="Re L", ylabel="Im L")
        # `auto`: matplotlib may widen one of them for equal scales, and warns where it may not.
        axis.set_xlim(-reach, reach, auto=True)
        axis.set_ylim(-reach, reach, auto=True)
        axis.set_aspect("equal", adjustable="datalim")
        axis.xaxis.set_major_locator(MaxNLocator(5))
        axis.yaxis.set_major_locator(MaxNLocator(5))
        axis.set_title("Polyakov loop")
        axis.legend(loc="upper right")
        return figure


def _real_polyakov_figure(summary: RunSummary) -> Figure:
    """Polyakov loops of SU(2) against sweep, with their mean."""
    loops, sweeps = (summary.history[name][summary.measured] for name in ("polyakov_re", "sweep"))
    estimate = summary.estimates["polyakov_re"]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=CARD, layout="constrained")
        axis = figure.subplots()
        axis.plot(sweeps, loops, color=DATA, lw=0.8, marker=".", ms=2.5, rasterized=len(sweeps) > _MANY)
        axis.axhline(
            estimate.mean, color=MEAN, lw=1.4, label=f"mean {format_value(estimate.mean, estimate.error)}"
        )
        axis.set_title("Polyakov loop")
        axis.set_xlabel("sweep")
        axis.set_ylabel("L")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        _keep_open(axis, loops, headroom=0.2)
        axis.legend(loc="upper right")
        return figure


def flow_figure(summary: RunSummary) -> Figure | None:
    """t^2 E along the gradient flow with the level that defines t0, and the charge at its end against sweep."""
    flow = summary.flow
    if flow is None:
        return None
    with mpl.rc_context(STYLE):
        charged = flow.charge is not None
        figure = Figure(figsize=WIDE, layout="constrained")
        axes = figure.subplots(1, 1 + charged, squeeze=False)[0]
        axis = axes[0]
        means = np.array([one.mean for one in flow.t2_energy])
        errors = np.nan_to_num([one.error for one in flow.t2_energy])
        axis.errorbar(flow.times, means, errors, color=MEAN, lw=1.4, marker="o", ms=3.5)
        if flow.t0 is not None:
            axis.axhline(LEVEL, color=REFERENCE, lw=1.1, ls=(0, (5, 3)))
            text = f" t0 = {format_value(flow.t0.mean, flow.t0.error)}"
            axis.axvline(flow.t0.mean, color=REFERENCE, lw=1.1, ls=(0, (5, 3)))
            axis.text(flow.t0.mean, 0.04, text, transform=axis.get_xaxis_transform(), color=REFERENCE)
        axis.set_ylim(bottom=0)
        axis.set_title("gradient flow")
        axis.set_xlabel("flow time [lattice spacings squared]")
        axis.set_ylabel("t² E")
        if charged:
            many = len(flow.sweeps) > _MANY
            axes[1].plot(flow.sweeps, flow.charges, color=MEAN, lw=0.8, marker="o", ms=3, rasterized=many)
            axes[1].set_title(f"topological charge at flow time {flow.times[-1]:g}")
            axes[1].set_xlabel("sweep")
            axes[1].set_ylabel("Q")
            axes[1].xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
            axes[1].margins(y=0.1)
        return figure


def timing_figure(summary: RunSummary) -> Figure | None:
    """Time per link update against sweep."""
    timing = summary.timing
    if timing is None or not len(timing["sweep"]) or not (timing["link_updates_per_second"] > 0).all():
        return None
    nanoseconds = 1e9 / timing["link_updates_per_second"]
    median = float(np.median(nanoseconds))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=CARD, layout="constrained")
        axis = figure.subplots()
        many = len(nanoseconds) > _MANY
        axis.plot(timing["sweep"], nanoseconds, color=DATA, lw=0.8, marker=".", ms=2.5, rasterized=many)
        axis.axhline(median, color=MEAN, lw=1.4, label=f"median {median:.3g} ns")
        axis.set_ylim(0, 1.25 * max(float(np.percentile(nanoseconds, 99)), median))
        axis.set_title("time per link update, all ranks together")
        axis.set_xlabel("sweep")
        axis.set_ylabel("ns")
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
        axis.legend(loc="upper right")
        return figure


def _tau(summary: RunSummary, name: str) -> str:
    estimate = summary.estimates[name]
    return format_value(estimate.tau_int * summary.interval, estimate.tau_int_error * summary.interval)


def _keep_open(axis: Axes, values: np.ndarray, headroom: float = 0.08) -> None:
    """Limits that show all values with some air, and an axis of sensible width where they are all equal."""
    low, high = float(values.min()), float(values.max())
    extent = high - low
    if extent < 1e-12 * max(abs(low), abs(high), 1.0):
        extent = 0.02 * max(abs(high), 1e-3)
    axis.set_ylim(low - 0.08 * extent, high + headroom * extent)


def _superscript(number: int) -> str:
    return "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(number))
