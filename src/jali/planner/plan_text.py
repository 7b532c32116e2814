"""Simulations and runners-up of plans in words, and as plain values that JSON can hold."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from jali.amounts import size_text, time_text
from jali.planner.choice import Candidate
from jali.planner.simulation import Result


def simulation_facts(result: Result) -> dict[str, Any]:
    """A simulation as plain values: seconds, bytes, GB/s."""
    return {
        "time": result.time,
        "exact": result.exact,
        "throughput": result.throughput,
        "fraction_of_bound": result.fraction_of_bound,
        "bottleneck": result.bottleneck,
        "bottleneck_seconds": result.bottleneck_load,
        "levels": {name: {"bytes": n, "transfers": k} for name, (n, k) in result.levels.items()},
        "stage_windows": [vars(stage) for stage in result.stages],
        "links": [vars(link) for link in itertools.islice(result.links, 32)],
    }


def simulation_text(result: Result) -> list[str]:
    """A simulation as lines of text."""
    machine = result.machine
    rate = f", {result.throughput:.1f} GB/s" if result.throughput is not None else ""
    share = f", {result.fraction_of_bound:.0%} of the bound" if result.fraction_of_bound is not None else ""
    lines = [
        f"  on {machine.name} ({machine.nodes} node{'s' if machine.nodes > 1 else ''} of {machine.ranks_per_node}): "
        f"{time_text(result.time)}{rate}{share}"
    ]
    for name, (n, transfers) in result.levels.items():
        if transfers:
            lines.append(f"    {name:<14}{size_text(n):>12} in {transfers} transfers")
    if not result.exact:
        lines.append(
            "    an estimate, right to a hundredth: ranks that do nearly the same were simulated as one"
        )
    if result.bottleneck is not None and result.time > 0:
        lines.append(
            f"    bottleneck: {result.bottleneck}, needed for {result.bottleneck_load / result.time:.0%} of the time"
        )
    return lines


def runners_up_text(candidates: Sequence[Candidate], best: float) -> list[str]:
    """The next best plans, with how much longer they take."""
    return [f"    {c.time / best:>6.2f} x  {c.parameters.describe()}" for c in candidates]
