"""What choices amount to beside every single algorithm and beside MPI called by hand: a table, our thresholds, files and pictures.

The thresholds: a choice takes at most 5 %, or 0.3 us, longer than the fastest single algorithm, and nowhere longer than what it is compared
with; all-reduce of 1 MiB on devices is 20 times as fast as by hand. A cell counts as missed only if the whole 95 % interval of its
ratio does, where there is one: of algorithms that were far behind, a few rounds are all that is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from jali.amounts import counted
from jali.bench import collectives_report
from jali.bench.collective_curves import write_curves
from jali.bench.collective_rules import DEFAULT, Variant
from jali.bench.collectives import Cell
from jali.bench.collectives_report import write_csv
from jali.bench.hybrid import BY_HAND, CHOICE, HybridReport
from jali.bench.reports import Verdict, picture, size_text, timing_text, verdict_lines
from jali.bench.spreads import at_least
from jali.bench.spreads import speed as speed_of

WITHIN, MICROSECONDS, TIMES = 1.05, 0.3, 20.0
LARGE = 1 << 20

__all__ = ["as_json", "case_text", "judge", "summary", "verdicts", "write_csv", "write_osu", "write_plot"]


def case_text(report: HybridReport, number: int = -1) -> str:
    """One line of the table."""
    cell, chosen, best = report.cells[number], report.chosen[number], report.best(report.cells[number])
    words = [
        f"{cell.collective:15s}{size_text(cell.payload):>9s}",
        f"{CHOICE} {timing_text(cell.timings[CHOICE])} ({chosen})",
        f"best {best} {timing_text(cell.timings[best]).strip()}",
    ]
    for name in report.baselines:
        words.append(f"{name} {timing_text(cell.timings[name]).strip()}, {speed(cell, name):.1f} times")
    return "  ".join(words)


def speed(cell: Cell, other: str) -> float:
    """How many times as fast the choice is."""
    return cell.timings[other].median / cell.timings[CHOICE].median


def _highest(cell: Cell, other: str) -> float:
    """The upper end of the interval of the choice's speed over another's."""
    both = (cell.timings[CHOICE].seconds, cell.timings[other].seconds)
    return cell.ratio(CHOICE, other)[2] if len(both[0]) == len(both[1]) else speed(cell, other)


def judge(report: HybridReport, order: str) -> list[Verdict]:
    """The thresholds above, for one order ("host", "stream" or "graph")."""
    baseline = report.baselines[0]

    def missing(other: Any, least: float, seconds: float = 0.0) -> tuple[str, ...]:
        found = []
        for cell in report.cells:
            name = other(cell)
            late = cell.timings[CHOICE].median - cell.timings[name].median
            if _highest(cell, name) < least and late > seconds:
                found.append(
                    f"{cell.collective} {size_text(cell.payload)}: {1 / speed(cell, name):.2f} times the time of {name}"
                )
        return tuple(found)

    slow = missing(report.best, 1 / WITHIN, MICROSECONDS * 1e-6)
    slower = missing(lambda cell: baseline, 1.0)
    said = [
        Verdict(
            f"{order}: at most {WITHIN} times, or {MICROSECONDS} us more than, the time of the fastest single algorithm",
            f"{len(report.cells) - len(slow)} of {counted(len(report.cells), 'cell')}",
            not slow,
            slow,
        ),
        Verdict(
            f"{order}: nowhere slower than {baseline}",
            f"{len(report.cells) - len(slower)} of {counted(len(report.cells), 'cell')}",
            not slower,
            slower,
        ),
    ]
    for cell in report.cells:
        if baseline == BY_HAND and cell.collective == "all_reduce" and cell.payload == LARGE:
            found = speed_of(cell.timings[CHOICE].seconds, cell.timings[baseline].seconds)
            asks = f"{order}: all_reduce of {size_text(LARGE)} {TIMES:.0f} times as fast as {baseline}"
            said.append(at_least(asks, found, TIMES))
    return said


def verdicts(reports: Mapping[str, HybridReport]) -> list[Verdict]:
    """Those on which the benchmark fails."""
    return [one for order, report in reports.items() for one in judge(report, order)]


def of_collectives(report: HybridReport) -> Iterator[tuple[str, list[int]]]:
    """Each collective with the numbers of its cells, sizes in order."""
    for name in dict.fromkeys(cell.collective for cell in report.cells):
        of = [n for n, cell in enumerate(report.cells) if cell.collective == name]
        yield name, sorted(of, key=lambda n: report.cells[n].payload)


def crossover(report: HybridReport, numbers: list[int], other: str) -> int | None:
    """The size from which on the choice is faster than another algorithm at all sizes (cells by their numbers); None where it is not."""
    found = None
    for number in reversed(numbers):
        if speed(report.cells[number], other) <= 1:
            break
        found = report.cells[number].payload
    return found


def changes(report: HybridReport, numbers: list[int]) -> list[tuple[int, str, str]]:
    """Sizes at which another algorithm is chosen than at the size before, and the two."""
    return [
        (report.cells[b].payload, report.chosen[a], report.chosen[b])
        for a, b in pairwise(numbers)
        if report.chosen[a] != report.chosen[b]
    ]


def summary(reports: Mapping[str, HybridReport], *, busy: str = "") -> str:
    """Conditions, crossovers and verdicts as text."""
    first = next(iter(reports.values()))
    lines = [f"{key}: {value}" for key, value in first.conditions.items() if key != "order"]
    for order, report in reports.items():
        for collective, numbers in of_collectives(report):
            chosen = [
                report.chosen[numbers[0]],
                *(f"{spec} from {size_text(n)}" for n, _, spec in changes(report, numbers)),
            ]
            at = [
                f"faster than {name} " + ("nowhere" if n is None else f"from {size_text(n)}")
                for name in report.baselines
                for n in [crossover(report, numbers, name)]
            ]
            lines.append(f"{order}: {collective}: {', '.join(chosen)}; {', '.join(at)}")
    return "\n".join([*lines, *verdict_lines(verdicts(reports), busy)])


def as_json(report: HybridReport) -> dict[str, Any]:
    """Everything measured, which algorithms were chosen, and the verdicts."""
    found = collectives_report.as_json(report)
    for row, chosen in zip(found["cells"], report.chosen, strict=True):
        row["chosen"] = chosen
    found["crossovers"] = {
        collective: {name: crossover(report, numbers, name) for name in report.baselines}
        for collective, numbers in of_collectives(report)
    }
    found["verdicts"] = [
        vars(v) | {"missing": list(v.missing)} for v in judge(report, report.conditions["order"])
    ]
    return found


def write_plot(report: HybridReport, path: Path) -> None:
    """Time over size: a panel per collective, a curve per algorithm, the choice in bold."""
    cells = {
        Variant(collective, "fp32", None): [_Curve(report.cells[n]) for n in numbers]
        for collective, numbers in of_collectives(report)
    }
    write_curves(path, cells, {}, _title(report))


class _Curve:
    """A cell as `write_curves` takes it."""

    def __init__(self, cell: Cell) -> None:
        self.payload = cell.payload
        self.times = {DEFAULT if name == CHOICE else name: t.seconds for name, t in cell.timings.items()}
        self.far: dict[str, float] = {}


def write_osu(report: HybridReport, path: Path) -> None:
    """Latency over size as the OSU benchmarks draw it, a panel per collective: what is compared with, the fastest single algorithms, the
    choice, at which sizes it changes, and how many times as fast it is as the first of what it is compared with."""
    panels = list(of_collectives(report))
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    greys = ("#c8553d", "#d99a3e")
    with picture(path, 5.0 * columns, 3.4 * rows + 0.4, right=True) as figure:
        for number, (collective, numbers) in enumerate(panels):
            axes = figure.add_subplot(rows, columns, number + 1)
            cells = [report.cells[n] for n in numbers]
            x = [cell.payload for cell in cells]
            single = [cell.timings[report.best(cell)].median * 1e6 for cell in cells]
            axes.plot(x, single, ":", color="#222222", lw=1, label="fastest single algorithm")
            for name, colour in zip(report.baselines, greys, strict=False):
                axes.plot(
                    x,
                    [c.timings[name].median * 1e6 for c in cells],
                    "s-",
                    ms=2.5,
                    lw=1,
                    color=colour,
                    label=name,
                )
            choice = [cell.timings[CHOICE].median * 1e6 for cell in cells]
            axes.plot(x, choice, "o-", ms=3, lw=1.8, color="#6a3d9a", label=f"{CHOICE}'s choice")
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_title(collective.replace("_", "-"), loc="left")
            axes.set_xlabel("largest buffer [bytes]")
            axes.set_ylabel("latency [us]")
            for size, before, after in changes(report, numbers):
                axes.axvline(size, color="#6a3d9a", lw=0.8, ls="--")
                axes.annotate(
                    f"{size_text(size)}: {before} to {after}",
                    (size, 0.98),
                    xycoords=("data", "axes fraction"),
                    rotation=90,
                    ha="right",
                    va="top",
                    fontsize=6,
                )
            beside = axes.twinx()
            times = [speed(cell, report.baselines[0]) for cell in cells]
            beside.plot(x, times, "^-", ms=2.5, lw=1, color="#3b8f3b", label="speedup")
            beside.axhline(1, color="#3b8f3b", lw=0.5)
            beside.set_ylabel(f"times as fast as {report.baselines[0]}", color="#3b8f3b")
            beside.set_ylim(bottom=0)
            if number == 0:
                axes.legend(frameon=False, loc="upper left")
        figure.suptitle(_title(report), x=0.01, ha="left")


def _title(report: HybridReport) -> str:
    facts = report.conditions
    where = facts.get("device", facts["processor"])
    return f"{counted(facts['ranks'], 'rank')}, {where}, {facts['mpi']}, {facts['order']}"
