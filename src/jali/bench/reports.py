"""What reports of benchmarks share: verdicts on thresholds, amounts in tables, tables of times in files, the look of pictures."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jali.bench.collectives import Timing


@dataclass(frozen=True)
class Verdict:
    """One threshold: the required and the measured value, whether it holds or may hold, and the cells that miss it.

    It fails only where all of the spread is beyond it; it is not `clear` where a part is.
    """

    asks: str
    found: str
    holds: bool
    missing: tuple[str, ...] = ()
    clear: bool = True

    @property
    def word(self) -> str:
        """pass, FAIL, or unclear."""
        return "FAIL" if not self.holds else "pass" if self.clear else "unclear"


def verdict_lines(verdicts: Iterable[Verdict], busy: str = "") -> Iterator[str]:
    """The thresholds in words, each with the cells that miss it; no verdicts, but remarks in parentheses, where the
    machine was `busy`, which is the reason."""
    if busy:
        yield f"no verdict: {busy}"
    for verdict in verdicts:
        yield f"{f'({verdict.word})' if busy else verdict.word}: {verdict.asks}: {verdict.found}"
        yield from (f"      {cell}" for cell in verdict.missing)


def timing_text(timing: Timing) -> str:
    """The median and the middle half of the rounds."""
    low, high = timing.quartiles()
    return f"{time_text(timing.median):>10s} ({time_text(low)} .. {time_text(high)})"


def size_text(bytes_: int) -> str:
    """`65536` as `64 KiB`; never rounded."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if bytes_ >= 1 << power and bytes_ % (1 << power) == 0:
            return f"{bytes_ >> power} {unit}"
    return f"{bytes_} B"


def time_text(seconds: float) -> str:
    """Seconds with a unit that suits them, with as many decimals in all rows."""
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.2f} ms"


def geometric_mean(values: list[float]) -> float:
    """Geometric mean; not a number of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def write_timings(
    path: Path,
    conditions: Mapping[str, Any],
    labels: Sequence[str],
    rows: Iterable[tuple[Sequence[Any], Timing, Sequence[Any]]],
    *,
    beside: Sequence[str] = (),
    count: str = "rounds",
    remarks: Sequence[str] = (),
) -> None:
    """CSV: conditions and remarks as comments, then a line for each timing: its labels, median and quartiles, what there is `beside`,
    and of how many measurements."""
    with path.open("w", newline="") as file:
        for key, value in conditions.items():
            file.writelines(f"# {key}: {line}\n" for line in str(value).splitlines() or [""])
        file.writelines(f"# {' '.join(remark.split())}\n" for remark in remarks)
        table = csv.writer(file)
        table.writerow([*labels, "median_s", "lower_quartile_s", "upper_quartile_s", *beside, count])
        for named, timing, more in rows:
            numbers = [f"{x:.6g}" for x in (timing.median, *timing.quartiles())]
            table.writerow([*named, *numbers, *more, len(timing.seconds)])


@contextmanager
def picture(path: Path, width: float, height: float, right: bool = False) -> Iterator[Any]:
    """A figure of so many inches, in a file in the end; `right`: axes are drawn on that side, too."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": right}):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure
        figure.savefig(path, dpi=150)
