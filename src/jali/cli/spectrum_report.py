"""`report.html` of `jali spectrum`: correlators, effective masses with the fits, the PCAC mass, histories of residuals. Made of results alone, so it has the same
bytes for the same results."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jali.amounts import counted
from jali.cli.html_page import inline, page, table
from jali.cli.report_plots import BAND, CARD, DATA, MEAN, STYLE, WIDE
from jali.cli.spectrum_summary import Found, Summary
from jali.files import shown
from jali.hadrons.masses import Fit, Plateau
from jali.io.writing import write_file
from jali.statistics import format_value

MOST_HISTORIES = 24  # that are drawn


def write_report(path: Path, summary: Summary, results: Sequence[dict[str, Any]]) -> None:
    """Write the page. Raises OSError."""
    write_file(path, _page(summary, results).encode("utf-8"))


def correlator_figure(summary: Summary) -> Figure:
    """|C(t)| of all channels at rest, logarithmically."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=WIDE, layout="constrained")
        axes = figure.add_subplot()
        for one in _at_rest(summary):
            t = np.arange(len(one.mean))
            shown = one.mean != 0
            error = np.where(np.isfinite(one.error), one.error, 0.0)
            axes.errorbar(
                t[shown], np.abs(one.mean[shown]), error[shown], fmt="o", markersize=3.5, lw=1, label=one.name
            )
        axes.set(yscale="log", xlabel="t", ylabel="|C(t)|", title="Correlators")
        axes.legend(ncols=3)
    return figure


def mass_figure(one: Found) -> Figure:
    """The effective mass of a channel, and the mass of its fit over the slices of the fit."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=CARD, layout="constrained")
        axes = figure.add_subplot()
        half = one.effective.t <= len(one.mean) // 2
        known = half & np.isfinite(one.effective.value)
        error = np.where(np.isfinite(one.effective.error), one.effective.error, 0.0)
        axes.errorbar(
            one.effective.t[known],
            one.effective.value[known],
            error[known],
            fmt="o",
            color=DATA,
            ecolor=MEAN,
            markersize=4,
        )
        title = _name(one)
        if one.mass is not None:
            title += f": {_value(one)}"
            window = _window(one)
            if window is not None:
                _band(axes, window, one.mass, one.mass_error)
        axes.set(xlabel="t", ylabel=f"effective mass ({one.effective.kind})", title=title)
        _limits(axes, one, known)
    return figure


def pcac_figure(summary: Summary) -> Figure | None:
    """The PCAC mass by slice, away from the source."""
    if summary.pcac is None or len(summary.pcac[0]) < 5:
        return None
    value, error = summary.pcac
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=CARD, layout="constrained")
        axes = figure.add_subplot()
        t = np.arange(2, len(value) - 1)
        axes.errorbar(
            t,
            value[t],
            np.where(np.isfinite(error[t]), error[t], 0.0),
            fmt="o",
            color=DATA,
            ecolor=MEAN,
            markersize=4,
        )
        axes.set(xlabel="t", ylabel="m(t)", title="PCAC mass")
    return figure


def history_figure(results: Sequence[dict[str, Any]]) -> Figure:
    """Residuals of the slowest column of each solve, by iteration."""
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=CARD, layout="constrained")
        axes = figure.add_subplot()
        solves = [source for result in results for source in result["sources"]]
        for source in solves[:MOST_HISTORIES]:
            axes.semilogy(source["history"], lw=0.9, color=MEAN, alpha=0.6)
        more = f", the first {MOST_HISTORIES} of {len(solves)}" if len(solves) > MOST_HISTORIES else ""
        axes.set(xlabel="iteration", ylabel="|r| / |b|", title=f"Residuals of solves{more}")
    return figure


def _page(summary: Summary, results: Sequence[dict[str, Any]]) -> str:
    parameters = summary.parameters
    numbers = ", ".join(f"{name} {value:g}" for name, value in parameters["numbers"].items())
    extents = " x ".join(map(str, results[0]["extents"]))
    title = f"Spectrum of {parameters['operator']} quarks, {numbers}"
    errors = "sources of one configuration" if summary.of_sources else "configurations"
    subtitle = (
        f"{counted(len(results), 'configuration')} with {results[0]['colours']} colours on {extents}, {counted(len(results[0]['sources']), 'source')} each "
        f"({parameters['sources']['kind']}); errors are those between {errors}; masses in inverse lattice spacings"
    )
    figures = [(f"mass{k}", mass_figure(one)) for k, one in enumerate(summary.channels)]
    figures += [("pcac", figure)] if (figure := pcac_figure(summary)) is not None else []
    figures += [("history", history_figure(results))]
    cards = "".join(f'<div class="card">{inline(figure, name)}</div>' for name, figure in figures)
    masses = table(
        ("hadron", "momentum", "mass", "how"),
        [
            (one.name, one.momentum, _value(one) if one.mass is not None else "-", _method(one))
            for one in summary.channels
        ],
    )
    solves = table(
        ("configuration", "plaquette", "sources", "iterations, most", "largest residual"),
        [
            (
                shown(result["file"]),
                f"{result['plaquette']:.10f}",
                " ".join("(" + ",".join(map(str, source["at"])) + ")" for source in result["sources"]),
                str(max(max(source["iterations"]) for source in result["sources"])),
                f"{max(source['residual'] for source in result['sources']):.1e}",
            )
            for result in results
        ],
    )
    lines = "\n".join(f"{name} = {value}" for name, value in parameters.items())
    return page(
        title,
        subtitle,
        f"""<div class="card"><h2>Masses</h2>{masses}</div>
<div class="card">{inline(correlator_figure(summary), "correlators")}</div>
<div class="pair">{cards}</div>
<div class="card"><h2>Configurations</h2>{solves}</div>
<div class="card"><details><summary>Parameters</summary><pre>{html.escape(lines)}</pre></details></div>""",
    )


def _at_rest(summary: Summary) -> list[Found]:
    return [one for one in summary.channels if one.momentum == summary.channels[0].momentum]


def _name(one: Found) -> str:
    return one.name if set(one.momentum) <= set("0,") else f"{one.name}, p = ({one.momentum})"


def _value(one: Found) -> str:
    assert one.mass is not None
    return format_value(one.mass, math.nan if one.mass_error is None else one.mass_error)


def _method(one: Found) -> str:
    fit = one.fit.best if isinstance(one.fit, Plateau) else one.fit
    return one.why if fit is None else f"{one.why}; chi²/dof = {fit.chi2:.2f}/{fit.dof}"


def _window(one: Found) -> tuple[int, int] | None:
    fit = one.fit.best if isinstance(one.fit, Plateau) else one.fit
    return fit.window if isinstance(fit, Fit) else None


def _band(axes: Axes, window: tuple[int, int], mass: float, error: float | None) -> None:
    axes.hlines(mass, *window, color=MEAN, lw=1.4)
    if error is not None:
        axes.fill_between(window, mass - error, mass + error, color=BAND, lw=0)


def _limits(axes: Axes, one: Found, known: np.ndarray) -> None:
    """Slices whose noise is larger than the mass do not set the scale."""
    values, errors = one.effective.value[known], one.effective.error[known]
    calm = ~(errors > np.abs(values))
    if not calm.any():
        return
    low, high = values[calm].min(), values[calm].max()
    if one.mass is not None:
        low, high = min(low, one.mass), max(high, one.mass)
    margin = 0.15 * (high - low) or 0.1 * abs(high) or 0.1
    axes.set_ylim(low - margin, high + margin)


__all__ = ["correlator_figure", "history_figure", "mass_figure", "pcac_figure", "write_report"]
