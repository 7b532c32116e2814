"""What Fourier transforms amount to: a table, goals with their verdicts, CSV, JSON, a picture."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from jali.bench.collectives_report import Verdict, time_text, write_as
from jali.bench.fft import EXCHANGES, LOCAL, ROWS, UNSCALED, WHOLE, Cell, Report, overlapped
from jali.bench.fft_one_process import ONE_PROCESS

THEIR_PROVIDER = "pyfftw"  # of mpi4py-fft, too
EXCHANGE_GOAL = 1.5  # times as fast


def row_text(cell: Cell, report: Report) -> str:
    """One line of the table."""
    words = [f"{cell.row:28s}"]
    for side, timing in cell.timings.items():
        said = f"{side} {time_text(timing.median):>10s}"
        if cell.row not in (LOCAL, EXCHANGES):
            ways = 2 if "back" in cell.row else 1
            said += f" ({ways * report.operations / timing.median * 1e-9:.1f} GFLOP/s)"
        words.append(said)
    words += [f"{side} not measured: {why}" for side, why in cell.missing.items()]
    return "  ".join(words)


def judge(report: Report) -> list[Verdict]:
    """Whole transforms against their parts on devices, and against another library with the same local transforms."""
    verdicts = []
    whole, local, exchanges = (report.cell(row) for row in (WHOLE, LOCAL, EXCHANGES))
    if report.on_device and whole and local and exchanges:
        for name in report.providers:
            if not all(name in cell.timings for cell in (whole, local, exchanges)):
                continue
            best = min(
                whole.timings[side].median
                for side in (name, overlapped(name, report.pieces))
                if side in whole.timings
            )
            share = best / (local.timings[name].median + exchanges.timings[name].median)
            asks = f"{name}: at most the sum of its local transforms and its exchanges"
            verdicts.append(Verdict(asks, f"{share:.2f} of it", share <= 1.0))
    for row, goal in ((whole, 1.0), (exchanges, EXCHANGE_GOAL)):
        if row and report.against in row.timings and THEIR_PROVIDER in row.timings:
            found = max(
                row.times_as_fast(side, report.against)
                for side in (THEIR_PROVIDER, overlapped(THEIR_PROVIDER, report.pieces))
                if side in row.timings
            )
            asks = f"{row.row}: {goal:g} times as fast as {report.against}"
            verdicts.append(Verdict(asks, f"{found:.2f}", found >= goal))
    return verdicts


def summary(report: Report) -> str:
    """Conditions, what overlap gains, and verdicts."""
    lines = [f"{key}: {value}" for key, value in report.conditions.items()]
    whole = report.cell(WHOLE)
    for name in report.providers:
        other = overlapped(name, report.pieces)
        if whole and {name, other} <= set(whole.timings):
            gain = whole.times_as_fast(other, name)
            lines.append(f"{name}: {report.pieces} pieces are {gain:.2f} times as fast as one")
    for row in UNSCALED.values():
        cell = report.cell(row)
        for name in report.providers:
            if cell and {name, ONE_PROCESS} <= set(cell.timings):
                times = cell.times_as_fast(name, ONE_PROCESS)
                lines.append(f"{name}, {row}: {times:.2f} times as fast as {ONE_PROCESS}")
    for verdict in judge(report):
        lines.append(f"{'pass' if verdict.holds else 'FAIL'}: {verdict.asks}: {verdict.found}")
    return "\n".join(lines)


def as_json(report: Report) -> dict[str, Any]:
    """Everything measured."""
    cells = [
        {
            "row": c.row,
            **{side: {"median_s": t.median, "rounds_s": t.seconds} for side, t in c.timings.items()},
            **{side: {"not_measured": why} for side, why in c.missing.items()},
        }
        for c in report.cells
    ]
    verdicts = [{"asks": v.asks, "found": v.found, "holds": v.holds} for v in judge(report)]
    return {"conditions": dict(report.conditions), "cells": cells, "verdicts": verdicts}


def write_json(report: Report, path: Path) -> None:
    """`as_json` in a file."""
    write_as(as_json(report), path)


def write_csv(report: Report, path: Path) -> None:
    """One line per row and side."""
    with path.open("w", newline="") as file:
        for key, value in report.conditions.items():
            for line in str(value).splitlines():
                file.write(f"# {key}: {line}\n")
        for cell in report.cells:
            for side, why in cell.missing.items():
                file.write(f"# {cell.row}, {side} not measured: {why}\n")
        table = csv.writer(file)
        table.writerow(["row", "side", "median_s", "lower_quartile_s", "upper_quartile_s", "rounds"])
        for cell in report.cells:
            for side, timing in cell.timings.items():
                numbers = [f"{x:.6g}" for x in (timing.median, *timing.quartiles())]
                table.writerow([cell.row, side, *numbers, len(timing.seconds)])


def write_plot(report: Report, path: Path) -> None:
    """A group of bars per row, a bar per side."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    sides = list(dict.fromkeys(side for cell in report.cells for side in cell.timings))
    rows = [row for row in (*ROWS, *UNSCALED.values()) if report.cell(row)]
    with mpl.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(6.0, 0.2 * len(rows) * max(2, len(sides)) + 1.2), layout="constrained")
        axes = figure.add_subplot()
        for number, side in enumerate(sides):
            found = [(k, report.cell(row)) for k, row in enumerate(rows)]
            bars = [(k, cell.timings[side].median) for k, cell in found if cell and side in cell.timings]
            places = [k + (number - (len(sides) - 1) / 2) * 0.8 / len(sides) for k, _ in bars]
            axes.barh(places, [1e3 * t for _, t in bars], 0.75 / len(sides), label=side)
        axes.set_yticks(range(len(rows)), rows)
        axes.invert_yaxis()
        axes.set_xlabel("time in ms")
        if sides:
            axes.legend(frameon=False)
        figure.savefig(path, dpi=150)
