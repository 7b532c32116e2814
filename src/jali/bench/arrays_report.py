"""What distributed arrays amount to beside another library: a table, goals with their verdicts, CSV, JSON, a picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jali.bench.arrays import JALI, ROOF, Cell, Report
from jali.bench.reports import Verdict, picture, timing_text, verdict_lines, write_timings
from jali.bench.spreads import at_least, speed

SHARE = 0.8  # of plain NumPy's speed


def case_text(cell: Cell) -> str:
    """One line of the table."""
    words = [f"{cell.case.name:26s}{JALI} {timing_text(cell.timings[JALI])}"]
    for side, timing in cell.timings.items():
        if side != JALI:
            words.append(f"{side} {timing_text(timing)}, {cell.times_as_fast(side):.2f} times")
    return "  ".join(words)


def judge(report: Report) -> list[Verdict]:
    """The goals of cases: against the other library, and against plain NumPy."""
    said = []
    for cell in report.cells:
        ours = cell.timings[JALI].seconds
        if report.against in cell.timings and cell.case.goal:
            asks = f"{cell.case.name}: {cell.case.goal:g} times as fast as {report.against}"
            said.append(at_least(asks, speed(ours, cell.timings[report.against].seconds), cell.case.goal))
        if ROOF in cell.timings:
            asks = f"{cell.case.name}: {SHARE} of the speed of plain NumPy with MPI's buffers"
            said.append(at_least(asks, speed(ours, cell.timings[ROOF].seconds), SHARE))
    return said


def verdicts(report: Report) -> list[Verdict]:
    """Those on which the benchmark fails."""
    return judge(report)


def summary(report: Report, *, busy: str = "") -> str:
    """Conditions and verdicts."""
    lines = [f"{key}: {value}" for key, value in report.conditions.items()]
    return "\n".join([*lines, *verdict_lines(judge(report), busy)])


def as_json(report: Report) -> dict[str, Any]:
    """Everything measured."""
    cells = [
        {
            "case": c.case.name,
            **{side: {"median_s": t.median, "rounds_s": t.seconds} for side, t in c.timings.items()},
        }
        for c in report.cells
    ]
    said = [{"asks": v.asks, "found": v.found, "holds": v.holds} for v in judge(report)]
    return {"conditions": dict(report.conditions), "cells": cells, "verdicts": said}


def write_csv(report: Report, path: Path) -> None:
    """One line per case and side."""
    cases = (([cell.case.name, side], t, ()) for cell in report.cells for side, t in cell.timings.items())
    write_timings(path, report.conditions, ["case", "side"], cases)


def write_plot(report: Report, path: Path) -> None:
    """A bar per case: how many times as fast jali is."""
    sides = [side for side in (report.against, ROOF) if any(side in c.timings for c in report.cells)]
    with picture(path, 6.0, 0.4 * len(report.cells) * max(1, len(sides)) + 1.2) as figure:
        axes = figure.add_subplot()
        for number, (side, colour) in enumerate(zip(sides, ("#1f5c99", "#8e8e8e"), strict=False)):
            cases = [(k, c.times_as_fast(side)) for k, c in enumerate(report.cells) if side in c.timings]
            positions = [k + (number - (len(sides) - 1) / 2) * 0.38 for k, _ in cases]
            axes.barh(positions, [speed for _, speed in cases], 0.36, color=colour, label=f"over {side}")
            for position, (_, speed) in zip(positions, cases, strict=True):
                axes.text(speed, position, f" {speed:.1f}", va="center", fontsize=7)
        axes.set_yticks(range(len(report.cells)), [c.case.name for c in report.cells])
        axes.invert_yaxis()
        axes.axvline(1, color="#222222", lw=0.6)
        axes.set_xscale("log")
        axes.set_xlabel("jali is so many times as fast")
        axes.legend(frameon=False)
