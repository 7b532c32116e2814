"""Plans: a composition with the parameters of its execution.

A `Plan` is the same on all ranks. It can be proved (`check`), explained, simulated on a described machine, drawn, and run on a
communicator, where each rank makes its own schedule only (`jali.planner.running_plan`). `jali.planner.planning` and
`jali.planner.standard_plans` choose the parameters.
"""

from __future__ import annotations

import textwrap
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jali import _core
from jali.amounts import counted, size_text
from jali.comm import validation
from jali.comm.algorithms import COLLECTIVES
from jali.comm.communicator import Communicator
from jali.errors import ParameterError, PlanError
from jali.files import checked_path, name_shown, value_shown
from jali.planner.bounds import bound
from jali.planner.choice import Choice
from jali.planner.machine import Machine
from jali.planner.plan_text import runners_up_text, simulation_facts, simulation_text
from jali.planner.running_plan import RunningPlan
from jali.planner.simulation import Result, simulate

if TYPE_CHECKING:
    from jali.planner.composition import Composition

COUNTED = 512  # ranks up to which messages are counted one by one


@dataclass(frozen=True)
class StageFacts:
    """A stage of a plan: messages and bytes over all ranks and chunks, per level of the hierarchy."""

    name: str
    step: int
    messages: int
    bytes: int
    levels: dict[int, int]


class Plan:
    """How a composition is done. Made by `Composition.plan` or `plan_collective`.

    `parameters` are those of the planner, `machine` what it was made for (or None), `choice` why they were chosen
    (None if they were given).
    """

    def __init__(
        self,
        composition: Composition,
        parameters: _core.PlanParameters,
        machine: Machine | None = None,
        choice: Choice | None = None,
        collective: str | None = None,
    ) -> None:
        if not isinstance(parameters, _core.PlanParameters) or not hasattr(composition, "core"):
            raise PlanError(
                "a plan is made of a composition and its parameters, by Composition.plan, not of "
                f"{value_shown(composition)} and {value_shown(parameters)}"
            )
        _core.check_parameters(composition.core, parameters)
        if not (composition.commutes or parameters.reproducible):
            raise PlanError(
                "an operation does not commute, so contributions keep the order of ranks: reproducible=True"
            )
        self.composition = composition
        self.parameters = parameters
        self.machine = machine
        self.choice = choice
        self.collective = collective
        self._running: weakref.WeakKeyDictionary[Communicator, RunningPlan] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<plan for {counted(self.ranks, 'rank')}: {self.describe()}>"

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.composition.ranks

    @cached_property
    def size(self) -> int:
        """Bytes of the largest buffer of any rank: p * d of a standard collective."""
        largest = max((max(counts, default=0) for _, counts, _ in self.composition.core.buffers), default=0)
        return largest * self.composition.core.element_bytes

    def describe(self) -> str:
        """The parameters in one line."""
        p = self.parameters
        libraries = ", ".join(name or "any" for name in p.libraries) or "any"
        return (
            f"hierarchy {p.hierarchy.describe()}, libraries {libraries}, stripe {p.stripe}"
            f"{' (weighted)' if p.stripe_weights else ''}, ring {p.ring}, depth {p.depth}"
            f"{', reproducible' if p.reproducible else ''}"
        )

    def schedule(self, rank: int) -> _core.Schedule:
        """The schedule of one rank: buffers of the composition, then the scratch. Raises PlanError."""
        return _core.plan_rank(self.composition.core, self.parameters, validation.whole("rank", rank))

    def check(self) -> None:
        """Prove, over all ranks, that the plan implements the composition exactly, in any order its steps may take.

        Raises `CheckError` that names rank, step and elements. Makes the schedules of all ranks.
        """
        schedules = [self.schedule(rank) for rank in range(self.ranks)]
        p = self.parameters
        _core.check_plan(self.composition.core, schedules, p.scratch_limit, p.reproducible, p.hierarchy)

    def simulate(self, machine: Machine | str | Path | None = None) -> Result:
        """Run it on a described machine (default: the one it was made for): time, links, stages, critical path.

        Ranks fill the machine's nodes from the first on; it has as many nodes as needed. Raises ParameterError or
        PlanError if plan and machine do not fit.
        """
        target = self.machine if machine is None else machine_for(machine, self.ranks)
        if target is None:
            raise ParameterError("no machine to simulate on; name one, like simulate('frontier')")
        limit = None
        if self.collective in COLLECTIVES and target.ranks == self.ranks > 1:
            limit = bound(target, self.collective)
        return simulate(self.composition.core, self.parameters, target, float(self.size), limit)

    @cached_property
    def result(self) -> Result | None:
        """The simulation on the machine that the plan was made for."""
        if self.machine is None:
            return None
        return self.choice.result if self.choice is not None else self.simulate()

    @cached_property
    def messages(self) -> list[tuple[int, int, int, int, int, int]]:
        """(from, to, bytes, stage, chunk, level) of every message. PlanError beyond 512 ranks."""
        if self.ranks > COUNTED:
            raise PlanError(f"messages of {self.ranks} ranks are not listed one by one; up to {COUNTED} are")
        return [(rank, *m) for rank in range(self.ranks) for m in _core.messages_of(self.schedule(rank))]

    @cached_property
    def _counts(self) -> tuple[list[dict[int, tuple[int, int]]], int, float]:
        return _core.count_messages(self.composition.core, self.parameters, COUNTED)

    @cached_property
    def stages(self) -> list[StageFacts]:
        """What happens in each stage, over all ranks. Beyond 512 ranks one may be counted for all that do alike (`counted_ranks`)."""
        found = []
        names = _core.stages_of(self.composition.core, self.parameters)
        for (name, step), levels in zip(names, self._counts[0], strict=True):
            messages = sum(n for n, _ in levels.values())
            volumes = {level: size for level, (_, size) in sorted(levels.items())}
            found.append(StageFacts(name, step, messages, sum(volumes.values()), volumes))
        return found

    @property
    def counted_ranks(self) -> int:
        """How many ranks `stages` counts: all, or those that stand for all that do alike."""
        return self._counts[1]

    @property
    def uneven(self) -> float:
        """By which share the bytes of ranks differ of which `stages` counts one for all; 0: its numbers are exact."""
        return self._counts[2]

    def facts(self) -> dict[str, Any]:
        """The content of `explain`, as plain values for JSON."""
        p = self.parameters
        facts: dict[str, Any] = {
            "collective": self.collective,
            "ranks": self.ranks,
            "size": self.size,
            "element": self.composition.element,
            "primitives": self.composition.core.primitives,
            "steps": max((stage.step + 1 for stage in self.stages), default=0),
            "hierarchy": p.hierarchy.describe(),
            "libraries": list(p.libraries),
            "stripe": p.stripe,
            "ring": p.ring,
            "depth": p.depth,
            "reproducible": p.reproducible,
            "scratch": self.schedule(0).buffers[-1][1],
            "stages": [vars(stage) for stage in self.stages],
            "counted_ranks": self.counted_ranks,
            "uneven": self.uneven,
        }
        if self.choice is not None:
            facts["form"] = self.choice.form
            facts["why"] = self.choice.why
            facts["runners_up"] = [
                {"parameters": c.parameters.describe(), "time": c.time} for c in self.choice.runners_up
            ]
        result = self.result
        if result is not None:
            facts["machine"] = {"name": result.machine.name, "nodes": result.machine.nodes}
            facts |= simulation_facts(result)
        return facts

    def explain(self) -> str:
        """What the plan does and costs: parameters, stages, volume per level; on a machine also time, bottleneck,
        fraction of the bound and, if it was chosen, why and instead of what."""
        facts = self.facts()
        p = self.parameters
        name = facts["collective"] or "composition"
        lines = [
            f"{name} over {counted(self.ranks, 'rank')}, {size_text(self.size)} of {facts['element']}, "
            f"{facts['primitives']} primitives",
            f"  {self.describe()}"
            + (f", form {facts['form']}" if self.collective and "form" in facts else ""),
            f"  scratch {size_text(facts['scratch'])} on rank 0; buffers are used as they are",
            "",
            f"  {'stage':<22}{'messages':>10}{'volume':>12}   by level of the hierarchy",
        ]
        for stage in self.stages:
            where = ", ".join(f"{level}: {size_text(n)}" for level, n in stage.levels.items())
            title = stage.name + (f" (step {stage.step + 1})" if facts["steps"] > 1 else "")
            lines.append(f"  {title:<22}{stage.messages:>10}{size_text(stage.bytes):>12}   {where}")
        if self.uneven > 0:
            lines.append(
                f"  volumes are right to {self.uneven:.1g} of them: ranks that do nearly the same were counted as one"
            )
        if p.depth > 1:
            lines.append(
                f"  in {p.depth} chunks: a piece moves on when it is there, so {p.depth + len(self.stages) - 1} "
                "columns overlap"
            )
        result = self.result
        if result is not None:
            lines += ["", *simulation_text(result)]
        if self.choice is not None:
            why = textwrap.wrap(self.choice.why, 108, initial_indent="  ", subsequent_indent="  ")
            lines += ["", *why, *runners_up_text(self.choice.runners_up, self.choice.time)]
        return "\n".join(lines)

    def draw(self, path: str | Path, machine: Machine | str | Path | None = None) -> Path:
        """Draw the plan into a PNG, SVG or PDF file: the messages of each stage, the pipeline, and the load of
        links (if there is a machine). Raises PlanError beyond 512 ranks."""
        from jali.planner.drawing import draw_plan

        result = self.result if machine is None else self.simulate(machine)
        return draw_plan(self, result, Path(checked_path(path)))

    def replace(self, **changes: Any) -> Plan:
        """The same plan with other parameters (names as in `Composition.plan`), for no particular machine."""
        p = self.parameters
        before: dict[str, Any] = {
            "libraries": p.libraries,
            "stripe": p.stripe,
            "stripe_weights": p.stripe_weights,
            "ring": p.ring,
            "depth": p.depth,
            "reproducible": p.reproducible,
            "scratch_limit": p.scratch_limit,
            "pack_below": p.pack_below,
        }
        hierarchy = changes.pop("hierarchy", p.hierarchy)
        unknown = sorted(set(changes) - set(before))
        if unknown:
            raise ParameterError(
                f"no parameter {', '.join(map(name_shown, unknown))}; there are hierarchy, {', '.join(before)}"
            )
        parameters = parameters_of(self.ranks, hierarchy, **before | changes)
        return Plan(self.composition, parameters, collective=self.collective)

    def on(self, communicator: Communicator | None = None) -> RunningPlan:
        """This rank's part on a communicator (default: `jali.comm.current()`), ready to run. Collective at first."""
        if communicator is None:
            from jali.comm.world import current

            communicator = current()
        elif not isinstance(communicator, Communicator):
            raise ParameterError(f"a plan runs on a Communicator, not on {value_shown(communicator)}")
        running = self._running.get(communicator)
        if running is None:
            running = self._running[communicator] = RunningPlan(self, communicator)
        return running

    def start(self, *arrays: Any, communicator: Communicator | None = None, **named: Any) -> RunningPlan:
        """Start it on the arrays of this rank, by order or name of the buffers; `wait()` on what it returns. On devices `stream=` takes
        another stream than jali's."""
        return self.on(communicator).start(*arrays, **named)

    def run(self, *arrays: Any, communicator: Communicator | None = None, **named: Any) -> None:
        """Run it to its end on the arrays of this rank, by order or name of the buffers; `stream` as in `start`."""
        self.on(communicator).run(*arrays, **named)


def hierarchy_of(ranks: int, hierarchy: Any) -> _core.Hierarchy:
    """A core hierarchy from factors (4, 8), from group sizes per level ([[3, 4], ...]), from "flat" or "binary"."""
    if isinstance(hierarchy, _core.Hierarchy):
        return hierarchy
    if hierarchy is None or (isinstance(hierarchy, str) and hierarchy == "flat"):
        return _core.Hierarchy(ranks)
    if isinstance(hierarchy, str) and hierarchy == "binary":
        return _core.Hierarchy.binary(ranks)
    levels = [] if isinstance(hierarchy, str) or not isinstance(hierarchy, Iterable) else list(hierarchy)
    if not levels:
        raise PlanError(
            f"hierarchy {value_shown(hierarchy)}; give factors like (4, 8), group sizes like [[3, 5]], 'flat' or 'binary'"
        )
    if all(isinstance(sizes, Iterable) and not isinstance(sizes, str) for sizes in levels):
        sizes = [
            [validation.whole("a group's size in hierarchy", n) for n in of_level] for of_level in levels
        ]
        return _core.Hierarchy.from_sizes(ranks, sizes)
    return _core.Hierarchy(ranks, [validation.whole("a factor of hierarchy", n) for n in levels])


def parameters_of(
    ranks: int,
    hierarchy: Any = None,
    *,
    libraries: Any = None,
    stripe: Any = None,
    ring: Any = None,
    depth: Any = None,
    stripe_weights: Any = (),
    reproducible: Any = False,
    scratch_limit: Any = None,
    pack_below: Any = 65536,
) -> _core.PlanParameters:
    """Parameters of a plan as users pass them (see `Composition.plan`). Raises PlanError, by name, for invalid ones."""

    def number(name: str, value: Any) -> int:
        return 1 if value is None else validation.whole(name, value)

    return _core.PlanParameters(
        hierarchy_of(ranks, hierarchy),
        libraries=[] if libraries is None else validation.names("libraries", libraries),
        stripe=number("stripe", stripe),
        stripe_weights=validation.weights("stripe_weights", stripe_weights),
        ring=number("ring", ring),
        depth=number("depth", depth),
        reproducible=validation.flag("reproducible", reproducible),
        scratch_limit=None if scratch_limit is None else validation.memory("scratch_limit", scratch_limit),
        pack_below=validation.memory("pack_below", pack_below),
    )


def machine_for(machine: Machine | str | Path, ranks: int) -> Machine:
    """The machine with as many nodes as so many ranks need."""
    found = machine if isinstance(machine, Machine) else Machine.load(machine)
    return found.with_nodes(-(-ranks // found.ranks_per_node))
