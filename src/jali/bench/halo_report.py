"""What the measured halo policies amount to: a table, CSV, JSON, a picture with the ladder of strong scaling.

The ladder is that of K. Clark and M. Wagner, "Strong scaling HPC applications" (GTC 2019, S9708): from host staging (a)
over peer copies (b), boundary kernels that are one launch (c) and stores from the pack kernel into the neighbour's
memory (d) to packing within the bulk kernel (e), a symmetric heap (f), which jali has not, and one kernel that packs,
waits and computes (g).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from jali.amounts import counted
from jali.bench.halo import PARTS, Measurement, Report
from jali.bench.reports import Verdict, picture, time_text, timing_text, write_timings

# rung, what it is, the policy that is it
LADDER: tuple[tuple[str, str, str | None], ...] = (
    ("a", "host staging", "host-staged-directions"),
    ("b", "peer copies", "copy-engine-directions"),
    ("c", "one boundary launch", "copy-engine-overlap"),
    ("d", "stores into the neighbour", "remote-write-overlap"),
    ("e", "pack within the bulk kernel", "remote-write-pack-in-bulk"),
    ("f", "symmetric heap", None),
    ("g", "pack and barrier fused", "remote-write-one-launch"),
)
NAMES = ("whole", "exchange", "compute")
WIDTH = 27  # of a policy's name and what follows it


def case_text(measurement: Measurement) -> str:
    """One policy in a line or two."""
    if measurement.why_not:
        return f"{measurement.policy:{WIDTH}s}not here: {measurement.why_not}"
    exchange, compute = (timing_text(measurement.times[name]) for name in ("exchange", "compute"))
    words = [
        f"{measurement.policy:{WIDTH}s}whole {timing_text(measurement.times['whole'])}",
        f"exchange {exchange} {measurement.rate / 1e9:8.2f} GB/s",
        f"compute {compute}",
        f"hidden {measurement.hidden():6.1%}",
    ]
    costs = [
        f"{part} {_signed(measurement.cost(part))}" for part in PARTS if f"no {part}" in measurement.times
    ]
    lines = ["  ".join(words)]
    if costs:
        lines.append(" " * WIDTH + "left out: " + ", ".join(costs))
    if "graph whole" in measurement.times:
        lines.append(
            " " * WIDTH + f"graph: whole {timing_text(measurement.times['graph whole']).strip()}, exchange "
            f"{timing_text(measurement.times['graph exchange']).strip()}, compute {timing_text(measurement.times['graph compute']).strip()}, "
            f"hidden {measurement.hidden('graph '):.1%}"
        )
    elif measurement.why_no_graph:
        lines.append(" " * WIDTH + "graph: " + measurement.why_no_graph)
    return "\n".join(lines)


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "") + time_text(abs(seconds))


def ladder(report: Report) -> list[tuple[str, str, str, float, float]]:
    """Rungs: letter, what it is, policy ("" where none is it), median of the whole in seconds, gain over rung a."""
    first = report.measurement(LADDER[0][2] or "")
    out = []
    for letter, words, policy in LADDER:
        measurement = report.measurement(policy) if policy else None
        seconds = measurement.median("whole") if measurement else math.nan
        out.append(
            (letter, words, policy or "", seconds, first.median("whole") / seconds if first else math.nan)
        )
    return out


def verdicts(report: Report) -> list[Verdict]:
    """None: policies are compared with each other, not with a goal."""
    return []


def summary(report: Report, *, busy: str = "") -> str:
    """Conditions, what is sent, the fastest policy and the ladder, as text."""
    lines = [f"{key}: {value}" for key, value in report.conditions.items()]
    measured = [measurement for measurement in report.measurements if measurement.times]
    if busy:
        lines.append(f"no verdict: {busy}")
    if not measured:
        return "\n".join([*lines, "no policy works here"])
    best = min(measured, key=lambda measurement: measurement.median("whole"))
    lines.append(f"sent: {best.sent} bytes in {best.messages} messages per exchange and rank, at most")
    lines.append(f"fastest: {best.policy}, {timing_text(best.times['whole']).strip()}")
    if any(report.measurement(policy) for _, _, policy in LADDER if policy):
        for letter, words, policy, seconds, gain in ladder(report):
            if not policy:
                lines.append(f"{letter}) {words}: not built")
            elif math.isnan(seconds):
                lines.append(f"{letter}) {words} ({policy}): not measured")
            else:
                over = "" if math.isnan(gain) else f", {gain:.2f} times as fast as a"
                lines.append(f"{letter}) {words} ({policy}): {time_text(seconds)}{over}")
    return "\n".join(lines)


def as_json(report: Report) -> dict[str, Any]:
    """Everything measured: conditions, every batch in seconds, what follows from them."""
    measurements = []
    for measurement in report.measurements:
        out: dict[str, Any] = {"policy": measurement.policy, "description": measurement.description}
        if measurement.why_not:
            out["why_not"] = measurement.why_not
        else:
            out |= {
                "bytes_sent": measurement.sent,
                "messages": measurement.messages,
                "bytes_per_s": measurement.rate,
                "hidden": measurement.hidden(),
                "costs_s": {
                    part: measurement.cost(part) for part in PARTS if f"no {part}" in measurement.times
                },
                "times": {
                    name: {
                        "median_s": t.median,
                        "quartiles_s": list(t.quartiles()),
                        "batches_s": t.seconds,
                    }
                    for name, t in measurement.times.items()
                },
            }
            if "graph whole" in measurement.times:
                out["hidden_in_graph"] = measurement.hidden("graph ")
            if measurement.why_no_graph:
                out["why_no_graph"] = measurement.why_no_graph
        measurements.append(out)
    rungs = [
        {
            "rung": letter,
            "what": words,
            "policy": policy or None,
            "built": bool(policy),
            "median_s": None if math.isnan(seconds) else seconds,
        }
        for letter, words, policy, seconds, _ in ladder(report)
    ]
    return {"conditions": report.conditions, "measurements": measurements, "ladder": rungs}


def write_csv(report: Report, path: Path) -> None:
    """A line per policy and time."""
    measurements = (
        ([measurement.policy, name], timing, [measurement.sent])
        for measurement in report.measurements
        for name, timing in measurement.times.items()
    )
    remarks = [
        f"{measurement.policy}: not here: {measurement.why_not}"
        for measurement in report.measurements
        if measurement.why_not
    ]
    write_timings(
        path,
        report.conditions,
        ["policy", "time"],
        measurements,
        beside=["bytes_sent"],
        count="batches",
        remarks=remarks,
    )


def write_plot(report: Report, path: Path) -> None:
    """Left a bar per policy with exchange and kernel alone beside it, right the ladder; whiskers are quartiles."""
    measurements = [measurement for measurement in report.measurements if measurement.times]
    colours = {"whole": "#1f5c99", "exchange": "#c8553d", "compute": "#9aa9b5"}
    with picture(path, 9.5, 0.36 * max(len(measurements), 8) + 1.4) as figure:
        bars, steps = figure.subplots(1, 2)
        height = 0.26
        for number, name in enumerate(NAMES):
            medians = [measurement.median(name) * 1e6 for measurement in measurements]
            spread = [[], []]  # type: list[list[float]]
            for measurement, median in zip(measurements, medians, strict=True):
                low, high = measurement.times[name].quartiles()
                spread[0].append(median - low * 1e6)
                spread[1].append(high * 1e6 - median)
            positions = [k + (number - 1) * height for k in range(len(measurements))]
            bars.barh(
                positions, medians, height, xerr=spread, color=colours[name], label=name, error_kw={"lw": 0.7}
            )
        recorded = [
            (k, measurement.median("graph whole") * 1e6)
            for k, measurement in enumerate(measurements)
            if "graph whole" in measurement.times
        ]
        if recorded:
            bars.plot(
                [us for _, us in recorded],
                [k - height for k, _ in recorded],
                "D",
                ms=3,
                color="#222222",
                label="whole, in a graph",
            )
        bars.set_yticks(range(len(measurements)), [measurement.policy for measurement in measurements])
        bars.invert_yaxis()
        bars.set_xlabel("time per call [us]")
        bars.set_title("policies", loc="left")
        bars.legend(frameon=False)
        rungs = ladder(report)
        top = max((s for *_, s, _ in rungs if not math.isnan(s)), default=1.0) * 1e6
        for k, (_, _, policy, seconds, gain) in enumerate(rungs):
            if math.isnan(seconds):
                steps.text(
                    0.02 * top, k, "not measured" if policy else "not built", va="center", color="#8a97a3"
                )
                continue
            steps.barh(k, seconds * 1e6, 0.6, color=colours["whole"])
            text = f"{seconds * 1e6:.1f}" + ("" if math.isnan(gain) else f"  ({gain:.2f}x)")
            steps.text(seconds * 1e6 + 0.01 * top, k, text, va="center")
        steps.set_yticks(range(len(rungs)), [f"{letter}) {words}" for letter, words, *_ in rungs])
        steps.set_ylim(len(rungs) - 0.5, -0.5)
        steps.set_xlim(0, 1.25 * top)
        steps.set_xlabel("time per call [us]")
        steps.set_title("ladder of strong scaling", loc="left")
        c = report.conditions
        figure.suptitle(
            f"{c['kernel']}, {c['precision']}, {c['local']} per rank, {counted(c['ranks'], 'rank')} as {c['grid']}, {c['device']}",
            x=0.01,
            ha="left",
        )
