"""What collectives on devices amount to beside the vendor's ("nccl"): a table, our thresholds with their verdicts.

The thresholds: nowhere below 0.95 times the library's speed, 1.25 times in geometric mean, and up to 64 KiB 2 times on
streams and 1.4 times in graphs (geometric means).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from jali.bench.collectives import Cell, Report
from jali.bench.collectives_report import as_json, write_csv, write_plot
from jali.bench.device_collectives import SYMMETRIC
from jali.bench.reports import Verdict, geometric_mean, size_text, timing_text, verdict_lines
from jali.bench.spreads import Interval, at_least, mean_speed
from jali.vendors import libraries

__all__ = ["as_json", "case_text", "judge", "summary", "verdicts", "write_csv", "write_plot"]

FLOOR, MEAN = 0.95, 1.25
SMALL = 64 << 10
LIBRARIES = set(libraries())
SMALL_MEAN = {"stream": 2.0, "graph": 1.4}


def case_text(cell: Cell, sides: Sequence[str]) -> str:
    """One line of the table; the ratio is that of the first side over the last."""
    words = [f"{cell.collective:15s}{size_text(cell.payload):>9s}"]
    for name in sides:
        words.append(f"{name} {timing_text(cell.timings[name])} {cell.throughput(name) / 1e9:8.2f} GB/s")
    if len(sides) > 1:
        ratio, low, high = cell.ratio(sides[0], sides[-1])
        words.append(f"ratio {ratio:.2f} ({low:.2f} .. {high:.2f})")
    return "  ".join(words)


def judge(report: Report, order: str, side: str = "jali", other: str = "nccl") -> list[Verdict]:
    """The thresholds above, for one order ("stream" or "graph")."""
    ratios = {(c.collective, c.payload): c.ratio(side, other) for c in report.cells}
    if not ratios:
        return []
    missing = tuple(f"{c} {size_text(n)}: {r[0]:.2f}" for (c, n), r in ratios.items() if r[2] < FLOOR)
    lowest = min(r[0] for r in ratios.values())

    def mean(cells: Sequence[Cell]) -> Interval:
        return mean_speed([(c.timings[side].seconds, c.timings[other].seconds) for c in cells])

    verdicts = [
        Verdict(
            f"{order}: nowhere below {FLOOR} of {other}",
            f"{len(ratios) - len(missing)} of {len(ratios)} cells, lowest ratio {lowest:.2f}",
            not missing,
            missing,
        ),
        at_least(f"{order}: {MEAN} of {other} in geometric mean", mean(report.cells), MEAN),
    ]
    small = [c for c in report.cells if c.payload <= SMALL]
    if small:
        wanted = SMALL_MEAN[order]
        verdicts.append(
            at_least(f"{order}: up to {size_text(SMALL)} {wanted} of {other}", mean(small), wanted)
        )
    return verdicts


def _of_libraries(reports: Mapping[str, Report]) -> Iterator[tuple[str, Report, str]]:
    """Orders, their reports and the libraries that are compared with."""
    for order, report in reports.items():
        if "jali" in report.sides:
            for name in report.sides:
                if name.removesuffix(SYMMETRIC) in LIBRARIES:
                    yield order, report, name


def verdicts(reports: Mapping[str, Report]) -> list[Verdict]:
    """Those on which the benchmark fails."""
    return [
        one for order, report, other in _of_libraries(reports) for one in judge(report, order, other=other)
    ]


def summary(reports: Mapping[str, Report], *, busy: str = "") -> str:
    """Conditions, geometric means per collective and, where there are both sides, the verdicts, as text."""
    first = next(iter(reports.values()))
    lines = [f"{key}: {value}" for key, value in first.conditions.items() if key != "order"]
    for order, report, other in _of_libraries(reports):
        for collective in dict.fromkeys(c.collective for c in report.cells):
            ratios = [c.ratio("jali", other)[0] for c in report.cells if c.collective == collective]
            lines.append(f"{order}: {collective}: geometric mean {geometric_mean(ratios):.2f} of {other}")
    return "\n".join([*lines, *verdict_lines(verdicts(reports), busy)])
