"""What the measured collectives amount to: a table, our thresholds with their verdicts, CSV, JSON, a picture.

The thresholds: from 64 KiB to 64 MiB at least 0.9 times the other side's throughput in every cell and 1.3 times in
geometric mean; below 64 KiB at most 1.5 times its latency. A single cell counts as missed only if the whole 95 %
interval of its ratio lies below the floor, a mean of the ratios of medians only if the whole of its interval does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jali.amounts import counted
from jali.bench.collectives import Cell, Report
from jali.bench.reports import (
    Verdict,
    geometric_mean,
    picture,
    size_text,
    timing_text,
    verdict_lines,
    write_timings,
)
from jali.bench.spreads import at_least, mean_speed

FLOOR, MEAN, LATENCY = 0.9, 1.3, 1.5
LARGE = 64 << 10


def case_text(cell: Cell, side: str, other: str) -> str:
    """One line of the table."""
    words = [f"{cell.collective:15s}{size_text(cell.payload):>9s}"]
    for name in (side, other):
        words.append(f"{name} {timing_text(cell.timings[name])} {cell.throughput(name) / 1e9:8.3f} GB/s")
    ratio, low, high = cell.ratio(side, other)
    return "  ".join(
        [*words, f"ratio {ratio:.2f} ({low:.2f} .. {high:.2f}), {len(cell.timings[side].seconds)} rounds"]
    )


def judge(report: Report, side: str = "jali", other: str = "mpi") -> list[Verdict]:
    """The thresholds above, for `side` against `other`."""
    large = [c for c in report.cells if c.payload >= LARGE]
    small = [c for c in report.cells if c.payload < LARGE]

    def below(cells: list[Cell], floor: float) -> tuple[str, ...]:
        return tuple(
            f"{c.collective} {size_text(c.payload)}: {c.ratio(side, other)[0]:.2f}"
            for c in cells
            if c.ratio(side, other)[2] < floor
        )

    verdicts = []
    if large:
        missing = below(large, FLOOR)
        lowest = min(c.ratio(side, other)[0] for c in large)
        verdicts.append(
            Verdict(
                f"{size_text(LARGE)} and more: throughput at least {FLOOR} of {other} in every cell",
                f"{len(large) - len(missing)} of {len(large)} cells, lowest ratio {lowest:.2f}",
                not missing,
                missing,
            )
        )
        pairs = [(c.timings[side].seconds, c.timings[other].seconds) for c in large]
        asks = f"{size_text(LARGE)} and more: {MEAN} of {other} in geometric mean"
        verdicts.append(at_least(asks, mean_speed(pairs), MEAN))
    if small:
        missing = below(small, 1 / LATENCY)
        worst = max(1 / c.ratio(side, other)[0] for c in small)
        verdicts.append(
            Verdict(
                f"below {size_text(LARGE)}: latency at most {LATENCY} times that of {other} in every cell",
                f"{len(small) - len(missing)} of {len(small)} cells, highest ratio {worst:.2f}",
                not missing,
                missing,
            )
        )
    return verdicts


def verdicts(report: Report) -> list[Verdict]:
    """Those on which the benchmark fails."""
    return judge(report)


def summary(report: Report, side: str = "jali", other: str = "mpi", *, busy: str = "") -> str:
    """Conditions, geometric means per collective and the verdicts, as text."""
    lines = [f"{key}: {value}" for key, value in report.conditions.items()]
    for collective in dict.fromkeys(c.collective for c in report.cells):
        ratios = [
            c.ratio(side, other)[0] for c in report.cells if c.collective == collective and c.payload >= LARGE
        ]
        if ratios:
            lines.append(f"{collective}: geometric mean {geometric_mean(ratios):.2f} from {size_text(LARGE)}")
    return "\n".join([*lines, *verdict_lines(judge(report, side, other), busy)])


def as_json(report: Report) -> dict[str, Any]:
    """Everything measured: conditions, every round of every side in seconds, ratios, verdicts."""
    out: dict[str, Any] = {"conditions": report.conditions, "sides": report.sides, "cells": []}
    for cell in report.cells:
        row: dict[str, Any] = {"collective": cell.collective, "bytes": cell.payload}
        for name, timing in cell.timings.items():
            low, high = timing.quartiles()
            row[name] = {
                "median_s": timing.median,
                "quartiles_s": [low, high],
                "bytes_per_s": cell.throughput(name),
                "rounds_s": timing.seconds,
            }
        if {"jali", "mpi"} <= set(report.sides):
            row["ratio"] = dict(zip(("value", "low", "high"), cell.ratio("jali", "mpi"), strict=True))
        out["cells"].append(row)
    if {"jali", "mpi"} <= set(report.sides):
        out["verdicts"] = [vars(v) | {"missing": list(v.missing)} for v in judge(report)]
    return out


def write_csv(report: Report, path: Path) -> None:
    """One row per cell and side."""
    rows = (
        ([cell.collective, cell.payload, name], timing, [f"{cell.throughput(name):.6g}"])
        for cell in report.cells
        for name, timing in cell.timings.items()
    )
    write_timings(path, report.conditions, ["collective", "bytes", "side"], rows, beside=["bytes_per_s"])


def write_plot(report: Report, path: Path) -> None:
    """Throughput over payload, a panel per collective, the middle half of the rounds as a band."""
    colours = ("#1f5c99", "#c8553d", "#5b8c5a", "#8e6c8a")
    names = list(dict.fromkeys(c.collective for c in report.cells))
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    with picture(path, 2.9 * columns + 0.6, 2.3 * rows + 0.6) as figure:
        for number, name in enumerate(names):
            axes = figure.add_subplot(rows, columns, number + 1)
            cells = [c for c in report.cells if c.collective == name]
            x = [c.payload for c in cells]
            for side, colour in zip(report.sides, colours, strict=False):
                low = [c.payload / c.timings[side].quartiles()[1] / 1e9 for c in cells]
                high = [c.payload / c.timings[side].quartiles()[0] / 1e9 for c in cells]
                axes.plot(
                    x,
                    [c.throughput(side) / 1e9 for c in cells],
                    "o-",
                    ms=2.5,
                    lw=1.2,
                    color=colour,
                    label=side,
                )
                axes.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(name.replace("_", "-"), loc="left")
            axes.grid(color="#e4e9ee", lw=0.6)
            if number % columns == 0:
                axes.set_ylabel("p d / t  [GB/s]")
            if number // columns == rows - 1:
                axes.set_xlabel("payload p d  [bytes]")
            if number == 0:
                axes.legend(frameon=False)
        figure.suptitle(
            f"{counted(report.conditions['ranks'], 'rank')}, {report.conditions['mpi']}", x=0.01, ha="left"
        )
