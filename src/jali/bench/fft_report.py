"""What Fourier transforms amount to: a table, goals with their verdicts, CSV, JSON, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jali.bench.collectives import Timing
from jali.bench.fft import CASES, EXCHANGES, LOCAL, UNSCALED, WHOLE, Cell, Report, overlapped
from jali.bench.fft_one_process import ONE_PROCESS
from jali.bench.reports import Verdict, picture, timing_text, verdict_lines, write_timings
from jali.bench.spreads import at_least, at_most, interval, speed

THEIR_PROVIDER = "pyfftw"  # of mpi4py-fft, too
EXCHANGE_GOAL = 1.5  # times as fast


def case_text(cell: Cell, report: Report) -> str:
    """One line of the table."""
    words = [f"{cell.case:28s}"]
    for side, timing in cell.timings.items():
        said = f"{side} {timing_text(timing)}"
        if cell.case not in (LOCAL, EXCHANGES):
            ways = 2 if "back" in cell.case else 1
            said += f" {ways * report.operations / timing.median * 1e-9:.1f} GFLOP/s"
        words.append(said)
    words += [f"{side} not measured: {why}" for side, why in cell.missing.items()]
    return "  ".join(words)


def judge(report: Report) -> list[Verdict]:
    """Whole transforms against their parts on devices, and against another library with the same local transforms."""
    said = []
    whole, local, exchanges = (report.cell(case) for case in (WHOLE, LOCAL, EXCHANGES))
    if report.on_device and whole and local and exchanges:
        for name in report.providers:
            if not all(name in cell.timings for cell in (whole, local, exchanges)):
                continue
            best = _fastest(whole, name, report)
            parts = (best.seconds, local.timings[name].seconds, exchanges.timings[name].seconds)
            asks = f"{name}: at most the sum of its local transforms and its exchanges (share of it)"
            said.append(at_most(asks, interval(lambda w, a, b: w / (a + b), *parts), 1.0))
    for case, goal in ((whole, 1.0), (exchanges, EXCHANGE_GOAL)):
        if case and report.against in case.timings and THEIR_PROVIDER in case.timings:
            ours, theirs = _fastest(case, THEIR_PROVIDER, report), case.timings[report.against]
            asks = f"{case.case}: {goal:g} times as fast as {report.against}"
            said.append(at_least(asks, speed(ours.seconds, theirs.seconds), goal))
    return said


def _fastest(cell: Cell, provider: str, report: Report) -> Timing:
    """In one piece or in several."""
    sides = (provider, overlapped(provider, report.pieces))
    return min((cell.timings[side] for side in sides if side in cell.timings), key=lambda t: t.median)


def verdicts(report: Report) -> list[Verdict]:
    """Those on which the benchmark fails."""
    return judge(report)


def summary(report: Report, *, busy: str = "") -> str:
    """Conditions, what overlap gains, and verdicts."""
    lines = [f"{key}: {value}" for key, value in report.conditions.items()]
    whole = report.cell(WHOLE)
    for name in report.providers:
        other = overlapped(name, report.pieces)
        if whole and {name, other} <= set(whole.timings):
            gain = whole.times_as_fast(other, name)
            lines.append(f"{name}: {report.pieces} pieces are {gain:.2f} times as fast as one")
    for case in UNSCALED.values():
        cell = report.cell(case)
        for name in report.providers:
            if cell and {name, ONE_PROCESS} <= set(cell.timings):
                times = cell.times_as_fast(name, ONE_PROCESS)
                lines.append(f"{name}, {case}: {times:.2f} times as fast as {ONE_PROCESS}")
    return "\n".join([*lines, *verdict_lines(judge(report), busy)])


def as_json(report: Report) -> dict[str, Any]:
    """Everything measured."""
    cells = [
        {
            "case": c.case,
            **{side: {"median_s": t.median, "rounds_s": t.seconds} for side, t in c.timings.items()},
            **{side: {"not_measured": why} for side, why in c.missing.items()},
        }
        for c in report.cells
    ]
    said = [{"asks": v.asks, "found": v.found, "holds": v.holds} for v in judge(report)]
    return {"conditions": dict(report.conditions), "cells": cells, "verdicts": said}


def write_csv(report: Report, path: Path) -> None:
    """One line per case and side."""
    cases = (([cell.case, side], t, ()) for cell in report.cells for side, t in cell.timings.items())
    remarks = [
        f"{cell.case}, {side} not measured: {why}"
        for cell in report.cells
        for side, why in cell.missing.items()
    ]
    write_timings(path, report.conditions, ["case", "side"], cases, remarks=remarks)


def write_plot(report: Report, path: Path) -> None:
    """A group of bars per case, a bar per side."""
    sides = list(dict.fromkeys(side for cell in report.cells for side in cell.timings))
    cases = [case for case in (*CASES, *UNSCALED.values()) if report.cell(case)]
    with picture(path, 6.0, 0.2 * len(cases) * max(2, len(sides)) + 1.2) as figure:
        axes = figure.add_subplot()
        for number, side in enumerate(sides):
            found = [(k, report.cell(case)) for k, case in enumerate(cases)]
            bars = [(k, cell.timings[side].median) for k, cell in found if cell and side in cell.timings]
            positions = [k + (number - (len(sides) - 1) / 2) * 0.8 / len(sides) for k, _ in bars]
            axes.barh(positions, [1e3 * t for _, t in bars], 0.75 / len(sides), label=side)
        axes.set_yticks(range(len(cases)), cases)
        axes.invert_yaxis()
        axes.set_xlabel("time in ms")
        if sides:
            axes.legend(frameon=False)
