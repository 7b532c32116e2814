"""Plans simulated on described machines, and the result as text.

`simulate(composition, parameters, machine)` plans every rank and runs all on a `Machine`; `simulate_schedules` takes
schedules from anywhere, for example from halos. The result names times, links, stages and levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jali import _core
from jali.planner.machine import GIGA, Machine


@dataclass(frozen=True)
class Link:
    """A link that was used: bytes that crossed it, seconds with anything under way, share of its capacity used."""

    name: str
    bytes: float
    busy: float
    load: float


@dataclass(frozen=True)
class StageWindow:
    """First start and last end (seconds) of a stage over all ranks and chunks, and its messages."""

    stage: int
    name: str
    begin: float
    end: float
    bytes: float
    transfers: int


@dataclass(frozen=True)
class CriticalStep:
    """One link of the chain that decided the time."""

    kind: str
    rank: int
    peer: int
    stage: int
    chunk: int
    begin: float
    end: float
    bytes: float


@dataclass(frozen=True)
class Result:
    """What a simulation found. Seconds and bytes; `throughput` is size / time in GB/s."""

    machine: Machine
    time: float
    size: float | None
    transfers: int
    stages: tuple[StageWindow, ...]
    levels: dict[str, tuple[float, int]]  # level of the machine -> (bytes, transfers)
    bottleneck: str | None
    bottleneck_load: float  # seconds for which the busiest link is needed at least
    fraction_of_bound: float | None
    exact: bool  # False: an estimate; ranks that do nearly the same were simulated as one
    raw: Any = field(repr=False, compare=False)
    core: Any = field(repr=False, compare=False)

    @property
    def throughput(self) -> float | None:
        return None if self.size is None else self.size / self.time / GIGA

    @cached_property
    def links(self) -> tuple[Link, ...]:
        """Used links, the most loaded first."""
        found = [
            Link(self.core.link_name(link), moved, busy, moved / self.core.capacity(link) / self.time)
            for link, moved, busy in self.raw.links
        ]
        return tuple(sorted(found, key=lambda link: -link.load))

    @cached_property
    def critical_path(self) -> tuple[CriticalStep, ...]:
        """From the first to the last: each step began when the one before it ended."""
        return tuple(CriticalStep(*step) for step in self.raw.critical_path)


def result_of(
    simulated: Any,
    machine: Machine,
    core: Any,
    size: float | None = None,
    bound: float | None = None,
    stage_names: Sequence[str] = (),
) -> Result:
    """A core simulation of a plan, or its result alone, in words. `bound` in GB/s of size / time."""
    exact, raw = getattr(simulated, "exact", True), getattr(simulated, "result", simulated)
    names = machine.level_names
    stages = tuple(
        StageWindow(
            k, stage_names[k] if 0 <= k < len(stage_names) else f"stage {k}", begin, end, moved, transfers
        )
        for k, begin, end, moved, transfers in raw.stages
    )
    fraction = None
    if bound is not None and size is not None and raw.time > 0:
        fraction = size / raw.time / GIGA / bound
    return Result(
        machine=machine,
        time=raw.time,
        size=size,
        transfers=raw.transfers,
        stages=stages,
        levels={name: (moved, count) for name, (moved, count) in zip(names, raw.levels, strict=True)},
        bottleneck=core.link_name(raw.bottleneck) if raw.bottleneck >= 0 else None,
        bottleneck_load=raw.bottleneck_load,
        fraction_of_bound=fraction,
        exact=exact,
        raw=raw,
        core=core,
    )


def simulate(
    composition: Any, parameters: Any, machine: Machine, size: float | None = None, bound: float | None = None
) -> Result:
    """Plans all ranks of a composition and simulates them.

    `parameters` is a `_core.PlanParameters`; `size` (bytes) and `bound` (GB/s) only serve throughput and its fraction.
    Raises PlanError if plan and machine do not fit, RuntimeError if the plan cannot end.
    """
    core = machine.core()
    raw = _core.simulate_plan(composition, parameters, core)
    names = [
        f"{name} (step {step})" if step else name for name, step in _core.stages_of(composition, parameters)
    ]
    return result_of(raw, machine, core, size, bound, names)


def simulate_schedules(
    schedule_of: Callable[[int], Any], ranks: int, machine: Machine, size: float | None = None
) -> Result:
    """Simulates the schedules that `schedule_of(rank)` returns, one rank after the other."""
    core = machine.core()
    graph = _core.TransferGraph(ranks)
    for rank in range(ranks):
        graph.add(rank, schedule_of(rank))
    graph.finish()
    return result_of(_core.simulate_graph(graph, core), machine, core, size)
