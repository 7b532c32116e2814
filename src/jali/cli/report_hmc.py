"""The cards of hybrid Monte Carlo and of scalars in ``report.html``: does the algorithm do what it promises, what do its forces cost, how long do its observables remember, and what do
scalar fields average to."""

from __future__ import annotations

import html
import math

from jali.cli.html_page import table
from jali.cli.report_data import RunSummary
from jali.hmc.simulation import TAU_OF_OTHERS
from jali.statistics import Estimate, format_value, mean_error


def hmc_card(summary: RunSummary) -> str:
    """The card, or nothing without trajectories."""
    hmc = summary.hmc
    if hmc is None:
        return ""
    items: list[tuple[str, str, str]] = []
    if hmc.dH is not None:
        items.append(("⟨dH⟩", _value(hmc.dH), ""))
    if hmc.exp_minus_dH is not None:
        off = abs(hmc.exp_minus_dH.mean - 1.0) > 3.0 * hmc.exp_minus_dH.error
        items.append(("⟨exp(-dH)⟩, exactly 1", _value(hmc.exp_minus_dH), "bad" if off else "good"))
    if hmc.acceptance is not None:
        items.append(("acceptance", _value(hmc.acceptance), ""))
    if hmc.expected_acceptance is not None:
        items.append(("erfc(√⟨dH⟩ / 2)", f"{hmc.expected_acceptance:.3f}", ""))
    if hmc.reversibility is not None:
        items.append(("largest difference after going back", f"{hmc.reversibility:.2g}", ""))
    if hmc.unitarity is not None:
        items.append(("largest |U U† - 1|", f"{hmc.unitarity:.2g}", ""))
    spans = "".join(
        f'<div><span class="label">{html.escape(label)}</span><span class="small {colour}">{html.escape(text)}</span></div>'
        for label, text, colour in items
    )
    notes = "".join(f'<p class="note">{html.escape(text)}</p>' for text in hmc.suggestions)
    return f"""<div class="card"><h2>Hybrid Monte Carlo</h2><div class="result">{spans}</div>
{_forces(summary)}{_memory(summary)}{notes}{_conventions(summary.parameters.hmc.tau)}</div>
"""


def scalars_card(summary: RunSummary) -> str:
    """The card of scalar fields, or nothing without them."""
    rows = [
        (
            title,
            scalar.kind,
            _value(one),
            format_value(one.tau_int * scalar.interval, one.tau_int_error * scalar.interval)
            if math.isfinite(one.tau_int)
            else "unknown",
            str(one.n),
        )
        for scalar in summary.scalars
        for title, one in scalar.titled()
    ]
    if not rows:
        return ""
    said = "The hopping term is the mean over links of Re phi(x)† phi(x+mu), with the links of the representation between."
    return f"""<div class="card"><h2>Scalar fields</h2>{table(("mean", "kind", "value", "τ_int [sweeps]", "measurements"), rows)}
<p class="sub" style="margin:12px 0 0">{html.escape(said)}</p></div>
"""


def _forces(summary: RunSummary) -> str:
    assert summary.hmc is not None
    head = ("term", "level", "rms force", "largest force", "largest kick of a step", "time of a kick [ms]")
    rows = [
        (
            f.title,
            str(f.level),
            f"{f.rms:.4g}",
            f"{f.largest:.4g}",
            f"{f.kick:.3g}",
            f"{1e3 * f.seconds:.3g}" if math.isfinite(f.seconds) else "unknown",
        )
        for f in summary.hmc.forces
    ]
    return table(head, rows) if rows else ""


def _memory(summary: RunSummary) -> str:
    """Autocorrelation times, also of what was flowed; in trajectories and in units of time."""
    tau = summary.parameters.hmc.tau
    found: list[tuple[str, Estimate, int]] = []
    if "plaquette" in summary.estimates:
        found.append(("plaquette", summary.estimates["plaquette"], summary.interval))
    for scalar in summary.scalars:
        found += [(title, one, scalar.interval) for title, one in scalar.titled()]
    flow = summary.flow
    if flow is not None:
        time = f" at flow time {flow.times[-1]:g}"
        found.append((f"energy{time}", flow.energy[-1], flow.interval))
        if flow.charge is not None:
            found.append((f"charge{time}", flow.charge, flow.interval))
            found.append((f"charge squared{time}", mean_error(flow.charges**2), flow.interval))
    rows = [
        (
            name,
            format_value(one.tau_int * every, one.tau_int_error * every),
            format_value(one.tau_int * every * tau, one.tau_int_error * every * tau),
        )
        for name, one, every in found
        if math.isfinite(one.tau_int)
    ]
    return (
        table(("observable", "τ_int [trajectories]", "τ_int [molecular dynamics time]"), rows) if rows else ""
    )


def _conventions(tau: float) -> str:
    others = ", ".join(f"{tau / factor:.4g} of {codes}" for codes, factor in TAU_OF_OTHERS.items())
    text = f"tau = {tau:g} is that of unit Gaussian momenta with T_a = lambda_a / 2: a tau of {others}."
    return f'<p class="sub" style="margin:12px 0 0">{html.escape(text)}</p>'


def _value(one: Estimate) -> str:
    return format_value(one.mean, one.error)
