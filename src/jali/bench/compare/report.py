"""A comparison as a table and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from jali.bench.compare.intervals import interval, verdict
from jali.bench.compare.pairs import seconds_of
from jali.bench.compare.record import Record

SCALE = {"ns": 1e9, "us": 1e6, "ms": 1e3, "s": 1.0}
PRECISE = ("lost", "unclear", "faster", "slower", "same")


def results(record: Record, names: Sequence[str]) -> list[dict[str, Any]]:
    """The result of each case: times of both sides in `unit`, the ratio B/A with its interval and the verdict, or why there is none."""
    found: list[dict[str, Any]] = []
    for name in names:
        if name in record.without:
            how, why = record.without[name]
            found.append({"case": name, "verdict": how, "why": why})
        elif pairs := record.pairs.get(name):
            work = record.work[name]
            scale = SCALE[work["unit"].split("/")[0]] / work["per"]
            seconds = seconds_of(pairs)
            between = interval(pairs)
            found.append(
                {
                    "case": name,
                    "verdict": verdict(between, seconds, len(pairs)),
                    "A": seconds * scale,
                    "B": seconds_of(pairs, 1) * scale,
                    "unit": work["unit"],
                    "call": seconds,
                    "starts": len(pairs),
                    "turns": sum(map(len, pairs)),
                    **asdict(between),
                }
            )
    return found


def failing(found: Sequence[dict[str, Any]]) -> list[str]:
    """Cases for which the comparison fails: lost ones, and those that one side could not finish or stalled in."""
    return [case["case"] for case in found if case["verdict"] in ("lost", "failed", "stalled")]


def text(record: Record, names: Sequence[str]) -> str:
    """The table, and a closing line."""
    found = results(record, names)
    about = record.about
    lines = [
        f"A {about['A']['label']}   B {about['B']['label']}   {about['machine']}",
        f"{'':24s} {'A':>10s} {'B':>10s} {'':8s}  B/A (95 %)",
    ]
    for case in found:
        if "ratio" in case:
            lines.append(
                f"{case['case']:24s} {case['A']:10.4g} {case['B']:10.4g} {case['unit']:8s} "
                f"{case['ratio']:6.3f} ({case['low']:.3f} .. {case['high']:.3f})  {case['verdict']}"
            )
        else:
            lines.append(f"{case['case']:24s} {case['verdict']}: {case['why']}")
    counts = {
        word: sum(case["verdict"] == word for case in found)
        for word in (*PRECISE, "missing", "failed", "stalled")
    }
    lines.append(
        ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "nothing measured"
    )
    return "\n".join(lines)


def as_json(record: Record, names: Sequence[str], finished: bool) -> dict[str, Any]:
    """What was compared, whether it is finished, and its results."""
    return {**record.about, "finished": finished, "cases": results(record, names)}
