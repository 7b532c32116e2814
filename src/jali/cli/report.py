"""``report.html``: one page that shows and judges a run, and the picture of its history.

The page is self-contained (inline SVG, no scripts, nothing fetched) and is made from the files of the run
directory alone, so it can be rewritten at any time. What it reads is described in ``jali.cli.report_data``.
"""

from __future__ import annotations

import html
import io
import math
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from jali.amounts import counted
from jali.cli.flow_summary import LEVEL
from jali.cli.html_page import inline, page, table
from jali.cli.parameters import render_parameters
from jali.cli.report_data import RunSummary, summarise
from jali.cli.report_hmc import hmc_card, scalars_card
from jali.cli.report_plots import (
    STYLE,
    WIDE,
    autocorrelation_figure,
    binning_figure,
    flow_figure,
    history_figure,
    lattice_name,
    polyakov_figure,
    timing_figure,
    weight_name,
)
from jali.cli.update_kinds import update_kind
from jali.io.writing import write_file
from jali.statistics import format_value

__all__ = ["plot_history", "write_report"]

_NAMES = {
    "plaquette": "plaquette",
    "plaquette_spatial": "plaquette, spatial",
    "plaquette_temporal": "plaquette, temporal",
    "polyakov_re": "Polyakov loop, real part",
    "polyakov_im": "Polyakov loop, imaginary part",
    "polyakov": "Polyakov loop",
}


def write_report(directory: str | Path) -> Path:
    """Write ``report.html`` into a run directory and return its path.

    A run without measurements, or with too few for errors, gets a page that states this.

    Raises:
        ParameterError, FileFormatError: see :func:`jali.cli.report_data.summarise`.
        OSError: the page cannot be written.
    """
    directory = Path(directory)
    summary = summarise(directory)
    path = directory / "report.html"
    write_file(path, _page(summary).encode("utf-8"))
    return path


def plot_history(directory: str | Path, png_path: str | Path) -> Path:
    """Draw the plaquette history of a run as a PNG, 1800 pixels wide, and return its path.

    Raises:
        ParameterError, FileFormatError: see :func:`jali.cli.report_data.summarise`.
        OSError: the picture cannot be written.
    """
    path = Path(png_path)
    figure = history_figure(summarise(directory), title=True)
    picture = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(picture, format="png", dpi=180, metadata={"Software": None})
    write_file(path, picture.getvalue())
    return path


def _page(summary: RunSummary) -> str:
    parameters = summary.parameters
    gauge, run = parameters.gauge, parameters.run
    title = f"{gauge.group} on {lattice_name(parameters.lattice.extents)} at {weight_name(parameters)}"
    subtitle = (
        f"{parameters.update.thermalisation} sweeps of thermalisation, then {int(summary.measured.sum())} "
        f"measurements, one every {_plural(summary.interval, 'sweep')}; a sweep is {update_kind(parameters).title(parameters)}; "
        f"seed {run.seed}, {run.precision}"
    )
    echo = html.escape(render_parameters(parameters))
    cards = _cards(
        {
            "autocorrelation": autocorrelation_figure(summary),
            "polyakov": polyakov_figure(summary),
            "binning": binning_figure(summary),
            "timing": timing_figure(summary),
        }
    )
    body = f"""<div class="card">{_result(summary)}</div>
<div class="card">{inline(history_figure(summary), "history")}</div>
{cards}{scalars_card(summary)}{hmc_card(summary)}{_flow(summary)}<div class="card"><h2>Results</h2>{_table(summary)}</div>
<div class="card"><details><summary>Parameters</summary><pre>{echo}</pre></details></div>"""
    return page(title, subtitle, body)


def _cards(figures: Mapping[str, Figure | None]) -> str:
    """The figures that there are, two beside each other; the last of an odd number goes across the page."""
    shown = [(name, figure) for name, figure in figures.items() if figure is not None]
    cards = []
    for k, (name, figure) in enumerate(shown, start=1):
        whole = k == len(shown) and k % 2 == 1
        if whole:
            figure.set_size_inches(*WIDE)
        cards.append(f'<div class="card{" whole" if whole else ""}">{inline(figure, name)}</div>')
    return f'<div class="pair">{"".join(cards)}</div>\n' if cards else ""


def _result(summary: RunSummary) -> str:
    estimate = summary.estimates.get("plaquette")
    if estimate is None:
        return "<p>No measurements after thermalisation yet.</p>"
    items = [("plaquette", "value", "", format_value(estimate.mean, estimate.error))]
    if math.isfinite(estimate.tau_int):
        tau = format_value(estimate.tau_int * summary.interval, estimate.tau_int_error * summary.interval)
        items.append(("integrated autocorrelation time", "small", "", f"{tau} sweeps"))
        items.append(("independent measurements", "small", "", f"{estimate.independent:.0f} of {estimate.n}"))
    notes = []
    reference = summary.reference
    if reference:
        items.append((reference.kind, "small", "", str(reference)))
        if summary.deviation is not None:
            colour = "good" if abs(summary.deviation) < 3 else "bad"
            items.append(("deviation", "small", colour, f"{summary.deviation:+.1f} σ"))
        known = f"Compared with: {reference.source}" + (
            f"; {reference.caution}." if reference.caution else "."
        )
    else:
        known = "No published or exact value for this group, coupling and lattice is known to us."
    if estimate.n < 50 * max(estimate.tau_int, 0.5):
        notes.append(
            f"{estimate.n} measurements are few for an autocorrelation time of "
            f"{estimate.tau_int * summary.interval:.2g} sweeps: the error may be too small."
        )
    elif abs(summary.drift) > 3:
        notes.append(
            f"The halves of the run differ by {summary.drift:+.1f} σ: thermalisation may be too short."
        )
    spans = "".join(
        f'<div><span class="label">{html.escape(label)}</span>'
        f'<span class="{size} {colour}">{html.escape(text)}</span></div>'
        for label, size, colour, text in items
    )
    plain = f'<p class="sub" style="margin:10px 0 0">{html.escape(known)}</p>'
    return f'<div class="result">{spans}</div>{plain}' + "".join(
        f'<p class="note">{html.escape(note)}</p>' for note in notes
    )


def _table(summary: RunSummary) -> str:
    head = (
        "observable",
        "value",
        "error",
        "τ_int [sweeps]",
        "window [sweeps]",
        "measurements",
        "volume",
        "comparison",
    )
    rows = []
    for name, estimate in summary.estimates.items():
        title = "polyakov" if name == "polyakov_re" and "polyakov_im" not in summary.estimates else name
        comparison = ""
        if name == "plaquette" and summary.reference and summary.deviation is not None:
            comparison = f"{summary.deviation:+.2f} σ from {summary.reference.value:.8g}"
        tau = format_value(estimate.tau_int * summary.interval, estimate.tau_int_error * summary.interval)
        cells = (
            _NAMES[title],
            format_value(estimate.mean, estimate.error),
            f"{estimate.error:.2g}" if math.isfinite(estimate.error) else "unknown",
            tau if math.isfinite(estimate.tau_int) else "unknown",
            f"{estimate.window * summary.interval}",
            f"{estimate.n}",
            lattice_name(summary.parameters.lattice.extents),
            comparison,
        )
        rows.append(cells)
    return table(head, rows) + _speed(summary)


def _flow(summary: RunSummary) -> str:
    """The card of the gradient flow, or nothing."""
    flow, figure = summary.flow, flow_figure(summary)
    if flow is None or figure is None:
        return ""
    items = []
    for name, found, unit in (("t0", flow.t0, "a²"), ("w0", flow.w0, "a")):
        if found is not None:
            items.append(
                (f"{name}, where it reaches {LEVEL:g}", f"{format_value(found.mean, found.error)} {unit}")
            )
    if flow.susceptibility is not None:
        chi = format_value(flow.susceptibility.mean, flow.susceptibility.error)
        items.append((f"⟨Q²⟩ / V at flow time {flow.times[-1]:g}", chi))
    spans = "".join(
        f'<div><span class="label">{html.escape(label)}</span><span class="small">{html.escape(text)}</span></div>'
        for label, text in items
    )
    head = ("flow time", "E", "E of plaquettes", "t² E", "τ_int of t² E [sweeps]")
    rows = []
    for time, *estimates in zip(flow.times, flow.energy, flow.energy_plaquette, flow.t2_energy, strict=True):
        last = estimates[-1]
        tau = format_value(last.tau_int * flow.interval, last.tau_int_error * flow.interval)
        values = [format_value(one.mean, one.error) for one in estimates]
        rows.append([f"{time:g}", *values, tau if math.isfinite(last.tau_int) else "unknown"])
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in flow.notes)
    measured = (
        f"Means over {_plural(len(flow.sweeps), 'flow')}, one every {_plural(flow.interval, 'sweep')} after "
        "thermalisation; E is the clover energy density, all in lattice units."
    )
    return f"""<div class="card"><h2>Gradient flow</h2><div class="result">{spans}</div>{notes}
{inline(figure, "flow")}{table(head, rows)}<p class="sub" style="margin:12px 0 0">{html.escape(measured)}</p></div>
"""


def _speed(summary: RunSummary) -> str:
    timing = summary.timing
    if timing is None or not len(timing["sweep"]):
        return ""
    update, measure = float(timing["update_seconds"].sum()), float(timing["measure_seconds"].sum())
    median = float(np.median(timing["update_seconds"]))
    text = (
        f"{len(timing['sweep'])} sweeps: {update:.3g} s updating, {measure:.3g} s measuring; "
        f"median sweep {1e3 * median:.3g} ms for {summary.links} links."
    )
    return f'<p class="sub" style="margin:12px 0 0">{html.escape(text)}</p>'


def _plural(number: int, noun: str) -> str:
    return noun if number == 1 else counted(number, noun)
