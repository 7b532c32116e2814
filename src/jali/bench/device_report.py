"""What collectives on devices amount to beside the vendor's ("nccl"): a table, our thresholds with their verdicts.

The thresholds: nowhere below 0.95 times the library's speed, 1.25 times in geometric mean, and up to 64 KiB 2 times on
streams and 1.4 times in graphs (geometric means).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jali.bench.collectives import Cell, Report
from jali.bench.device_collectives import SYMMETRIC
from jali.bench.reports import Verdict, geometric_mean, size_text, time_text, verdict_lines
from jali.vendors import libraries

FLOOR, MEAN = 0.95, 1.25
SMALL = 64 << 10
LIBRARIES = set(libraries())
SMALL_MEAN = {"stream": 2.0, "graph": 1.4}


def row_text(cell: Cell, sides: Sequence[str]) -> str:
    """One line of the table; the ratio is that of the first side over the last."""
    words = [f"{cell.collective:15s}{size_text(cell.payload):>9s}"]
    for name in sides:
        words.append(
            f"{name} {time_text(cell.timings[name].median):>10s} {cell.throughput(name) / 1e9:8.2f} GB/s"
        )
    if len(sides) > 1:
        ratio, low, high = cell.ratio(sides[0], sides[-1])
        words.append(f"ratio {ratio:.2f} ({low:.2f} .. {high:.2f})")
    return "  ".join(words)


def judge(report: Report, order: str, side: str = "jali", other: str = "nccl") -> list[Verdict]:
    """The thresholds above, for one order ("stream" or "graph")."""
    ratios = {(c.collective, c.payload): c.ratio(side, other) for c in report.cells}
    missing = tuple(f"{c} {size_text(n)}: {r[0]:.2f}" for (c, n), r in ratios.items() if r[2] < FLOOR)
    lowest = min(r[0] for r in ratios.values())
    mean = geometric_mean([r[0] for r in ratios.values()])
    verdicts = [
        Verdict(
            f"{order}: nowhere below {FLOOR} of {other}",
            f"{len(ratios) - len(missing)} of {len(ratios)} cells, lowest ratio {lowest:.2f}",
            not missing,
            missing,
        ),
        Verdict(f"{order}: {MEAN} of {other} in geometric mean", f"{mean:.2f}", mean >= MEAN),
    ]
    small = [r[0] for (_, n), r in ratios.items() if n <= SMALL]
    if small:
        wanted, found = SMALL_MEAN[order], geometric_mean(small)
        verdicts.append(
            Verdict(f"{order}: up to {size_text(SMALL)} {wanted} of {other}", f"{found:.2f}", found >= wanted)
        )
    return verdicts


def summary(reports: Mapping[str, Report]) -> str:
    """Conditions, geometric means per collective and, where there are both sides, the verdicts, as text."""
    first = next(iter(reports.values()))
    lines = [f"{key}: {value}" for key, value in first.conditions.items() if key != "order"]
    for order, report in reports.items():
        of_vendor = [name for name in report.sides if name.removesuffix(SYMMETRIC) in LIBRARIES]
        if "jali" not in report.sides:
            continue
        for other in of_vendor:
            for collective in dict.fromkeys(c.collective for c in report.cells):
                ratios = [c.ratio("jali", other)[0] for c in report.cells if c.collective == collective]
                lines.append(f"{order}: {collective}: geometric mean {geometric_mean(ratios):.2f} of {other}")
            lines += verdict_lines(judge(report, order, other=other))
    return "\n".join(lines)
