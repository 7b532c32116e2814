"""Plans: a composition with the parameters that say how it is done, before and while it runs.

A `Plan` is the same on all ranks. It can be proved (`check`), explained, simulated on a described machine, drawn,
and run on a communicator, where each rank makes its own schedule only. A `RunningPlan` is one rank's: it owns the
schedule, its scratch and its tags; arrays are given at every start and are not copied.
"""

from __future__ import annotations

import itertools
import textwrap
import weakref
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jali import _core
from jali.comm.bounds import COLLECTIVES as BOUNDED
from jali.comm.bounds import bound
from jali.comm.choice import Candidate, Choice, Parameters, choose, choose_for
from jali.comm.device_arrays import DeviceArray
from jali.comm.device_collectives import data_on_device, is_on_device
from jali.comm.elements import as_array, element_name
from jali.comm.machine import Machine
from jali.comm.simulation import Result, simulate
from jali.errors import ParameterError, PlanError

if TYPE_CHECKING:
    from jali.comm.communicator import Communicator
    from jali.comm.composition import Composition

ON_DEVICES = {"peer", "ccl"}  # libraries between devices
COUNTED = 512  # ranks up to which messages are counted one by one


@dataclass(frozen=True)
class StageFacts:
    """A stage of a plan: messages and bytes over all ranks and channels, per level of the hierarchy."""

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
        _core.check_parameters(composition.core, parameters)
        self.composition = composition
        self.parameters = parameters
        self.machine = machine
        self.choice = choice
        self.collective = collective
        self._running: weakref.WeakKeyDictionary[Communicator, RunningPlan] = weakref.WeakKeyDictionary()

    def __repr__(self) -> str:
        return f"<plan for {self.ranks} ranks: {self.describe()}>"

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
        return _core.plan_rank(self.composition.core, self.parameters, rank)

    def check(self) -> None:
        """Prove, over all ranks, that the plan does exactly what the composition says, in any order its steps may take.

        Raises `CheckError` that names rank, step and elements. Makes the schedules of all ranks.
        """
        schedules = [self.schedule(rank) for rank in range(self.ranks)]
        p = self.parameters
        _core.check_plan(self.composition.core, schedules, p.scratch_limit, p.reproducible, p.hierarchy)

    def simulate(self, machine: Machine | str | Path | None = None) -> Result:
        """Run it on a described machine (default: the one it was made for): time, links, stages, critical path.

        Ranks fill the machine's nodes from the first on; it gets as many nodes as that needs. Raises ParameterError
        or PlanError if plan and machine do not fit.
        """
        target = self.machine if machine is None else machine_for(machine, self.ranks)
        if target is None:
            raise ParameterError("no machine to simulate on; name one, like simulate('frontier')")
        limit = None
        if self.collective in BOUNDED and target.ranks == self.ranks > 1:
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
        """(from, to, bytes, stage, channel, level) of every message. PlanError beyond 512 ranks."""
        if self.ranks > COUNTED:
            raise PlanError(f"messages of {self.ranks} ranks are not listed one by one; up to {COUNTED} are")
        return [(rank, *m) for rank in range(self.ranks) for m in _core.messages_of(self.schedule(rank))]

    @cached_property
    def stages(self) -> list[StageFacts]:
        """What happens in each stage. Beyond 512 ranks without numbers."""
        names = _core.stages_of(self.composition.core, self.parameters)
        counted: dict[int, list[tuple[int, int]]] = defaultdict(list)
        if self.ranks <= COUNTED:
            for _, _, size, stage, _, level in self.messages:
                counted[stage].append((level, size))
        found = []
        for number, (name, step) in enumerate(names):
            levels: dict[int, int] = defaultdict(int)
            for level, size in counted[number]:
                levels[level] += size
            found.append(
                StageFacts(
                    name, step, len(counted[number]), sum(levels.values()), dict(sorted(levels.items()))
                )
            )
        return found

    def facts(self) -> dict[str, Any]:
        """What `explain` says, as plain values that JSON can hold."""
        p = self.parameters
        facts: dict[str, Any] = {
            "collective": self.collective,
            "ranks": self.ranks,
            "size": self.size,
            "element": self.composition.element,
            "primitives": self.composition.core.primitives,
            "steps": len(self.composition.core.steps) if self.ranks <= COUNTED else None,
            "hierarchy": p.hierarchy.describe(),
            "libraries": list(p.libraries),
            "stripe": p.stripe,
            "ring": p.ring,
            "depth": p.depth,
            "reproducible": p.reproducible,
            "scratch": self.schedule(0).buffers[-1][1],
            "stages": [vars(stage) for stage in self.stages],
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
            f"{name} over {self.ranks} ranks, {size_text(self.size)} of {facts['element']}, "
            f"{facts['primitives']} primitives",
            f"  {self.describe()}"
            + (f", form {facts['form']}" if self.collective and "form" in facts else ""),
            f"  scratch {size_text(facts['scratch'])} on rank 0; buffers are used as they are",
            "",
            f"  {'stage':<22}{'messages':>10}{'volume':>12}   by level of the hierarchy",
        ]
        for stage in self.stages:
            where = ", ".join(f"{level}: {size_text(n)}" for level, n in stage.levels.items())
            title = stage.name + (f" (step {stage.step + 1})" if (facts["steps"] or 1) > 1 else "")
            if self.ranks > COUNTED:
                lines.append(f"  {title}")
            else:
                lines.append(f"  {title:<22}{stage.messages:>10}{size_text(stage.bytes):>12}   {where}")
        if p.depth > 1:
            lines.append(
                f"  in {p.depth} channels: a piece moves on when it is there, so {p.depth + len(self.stages) - 1} "
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
        """Draw the plan into a PNG, SVG or PDF file: who sends to whom in each stage, the pipeline, and the load of
        links (if there is a machine). Raises PlanError beyond 512 ranks."""
        from jali.comm.drawing import draw_plan

        result = self.result if machine is None else self.simulate(machine)
        return draw_plan(self, result, Path(path))

    def replace(self, **changes: Any) -> Plan:
        """The same plan with other parameters (names as in `Composition.plan`), for no particular machine."""
        p = self.parameters
        given: dict[str, Any] = {
            "libraries": p.libraries,
            "stripe": p.stripe,
            "stripe_weights": p.stripe_weights,
            "ring": p.ring,
            "depth": p.depth,
            "reproducible": p.reproducible,
            "scratch_limit": p.scratch_limit,
            "pack_below": p.pack_below,
        }
        hierarchy = hierarchy_of(self.ranks, changes.pop("hierarchy", p.hierarchy))
        unknown = sorted(set(changes) - set(given))
        if unknown:
            raise ParameterError(
                f"no parameter {', '.join(unknown)}; there are hierarchy, {', '.join(given)}"
            )
        return Plan(
            self.composition, _core.PlanParameters(hierarchy, **given | changes), collective=self.collective
        )

    def on(self, communicator: Communicator | None = None) -> RunningPlan:
        """This rank's part on a communicator (default: `jali.comm.current()`), ready to run. Collective at first."""
        if communicator is None:
            from jali.comm.world import current

            communicator = current()
        running = self._running.get(communicator)
        if running is None:
            running = self._running[communicator] = RunningPlan(self, communicator)
        return running

    def start(self, *arrays: Any, communicator: Communicator | None = None, **named: Any) -> RunningPlan:
        """Start it on the arrays of this rank, by order or name of the buffers; `wait()` on what it returns."""
        return self.on(communicator).start(*arrays, **named)

    def run(self, *arrays: Any, communicator: Communicator | None = None, **named: Any) -> None:
        """Run it to its end on the arrays of this rank, by order or name of the buffers."""
        self.on(communicator).run(*arrays, **named)


class RunningPlan:
    """One rank's part of a plan on one communicator. Made by `Plan.on`.

    All ranks start plans of one communicator in the same order. Arrays must be C-contiguous, of exactly the buffer's
    size and type; None where a buffer has no elements on this rank. Arrays in device memory are taken as well, all of them then:
    the plan runs on jali's stream, with libraries "peer" and "ccl", and slices of the device's queues take the place of channels
    (`depth`).
    """

    def __init__(self, plan: Plan, communicator: Communicator) -> None:
        if communicator.size != plan.ranks:
            raise ParameterError(f"a plan for {plan.ranks} ranks cannot run on {communicator.size}")
        self.plan = plan
        self._communicator = weakref.ref(communicator)
        self._what = plan.collective or "composition"
        self._on_devices: dict[_core.Gpu, _core.GpuPlan] = {}
        self._last: _core.GpuEvent | None = None  # of a run on a device
        self._on_host: _core.PersistentPlan | None = None
        if not ON_DEVICES & set(plan.parameters.libraries):
            space = communicator.collectives.space
            self._on_host = _core.PersistentPlan(plan.schedule(communicator.rank), space, self._what)
        self._names = [name for name, _, _ in plan.composition.core.buffers if name != "work"]
        self._element = plan.composition.element

    @property
    def _core(self) -> _core.PersistentPlan:
        if self._on_host is None:
            named = ", ".join(self.plan.parameters.libraries)
            raise PlanError(f"a plan with libraries {named} is for arrays in device memory; give such arrays")
        return self._on_host

    def start(self, *arrays: Any, **named: Any) -> RunningPlan:
        """Start on these arrays, which are kept alive until the end and must not be touched before."""
        given = self._arrays(arrays, named)
        if not self._run_on_device(given):
            self._core.start(*given)
        return self

    def run(self, *arrays: Any, **named: Any) -> None:
        """Start and wait; on devices, it is on jali's stream afterwards."""
        given = self._arrays(arrays, named)
        if not self._run_on_device(given):
            self._core.run(*given)

    def _run_on_device(self, arrays: list[Any]) -> bool:
        there = [a for a in arrays if isinstance(a, _core.PlacedArray)]
        if not there:
            self._last = None
            return False
        if len(there) != sum(1 for a in arrays if not isinstance(a, np.ndarray) or a.size):
            raise ParameterError(
                "some arrays of a plan are in device memory and some are not; give all in the same"
            )
        gpu = there[0].gpu
        plan = self._on_devices.get(gpu)
        if plan is None:
            communicator = self._communicator()
            assert communicator is not None, "a communicator that is gone runs no plans"
            collectives = communicator.collectives.on_device(gpu)
            p = self.plan.parameters
            libraries = [name or collectives.carrier for name in p.libraries] or [collectives.carrier]
            parameters = _core.PlanParameters(
                p.hierarchy,
                libraries=libraries,
                stripe=p.stripe,
                stripe_weights=p.stripe_weights,
                ring=p.ring,
                reproducible=p.reproducible,
                pack_below=0,
            )
            plan = collectives.plan(self.plan.composition.core, parameters, self._what)
            self._on_devices[gpu] = plan
        buffers = [a if isinstance(a, _core.PlacedArray) else None for a in arrays]
        for number, (name, array) in enumerate(zip(self._names, buffers, strict=False)):
            size = 0 if array is None else array.nbytes
            if size != plan.bytes_of(number):
                raise ParameterError(
                    f"{self._what}: buffer '{name}' has {plan.bytes_of(number)} bytes on this rank, the array given for it {size}"
                )
        plan(tuple(buffers))
        self._last = _core.GpuEvent(gpu, False)
        gpu.record(self._last)
        _core.let_owners_go_on(there)
        return True

    def test(self) -> bool:
        """Make progress; whether it has ended. On devices: whether the last run has."""
        if self._last is not None:
            return self._last.reached()
        return self._core.test()

    def wait(self) -> None:
        """Return when it has ended; after a run on devices at once, since it is on jali's stream.

        Raises RankError if a rank fails or nothing moves for JALI_WATCHDOG seconds.
        """
        if self._last is None:
            self._core.wait()

    @property
    def running(self) -> bool:
        """Whether it was started and has not been seen to end."""
        return not self.test() if self._last is not None else self._core.running

    def _arrays(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        unknown = sorted(set(named) - set(self._names))
        if unknown:
            raise ParameterError(
                f"no buffer is named {', '.join(unknown)}; there are {', '.join(self._names)}"
            )
        given = list(arrays) + [named.get(name) for name in self._names[len(arrays) :]]
        result: list[Any] = []
        for k, x in enumerate(given):
            if x is None:
                result.append(np.empty(0, np.uint8))
                continue
            array = x if isinstance(x, DeviceArray) else data_on_device(x) if is_on_device(x) else as_array(x)
            kind = element_name(array.dtype) if isinstance(array, np.ndarray) else array.element
            if kind != self._element:
                name = self._names[k] if k < len(self._names) else f"number {k}"
                given_type = array.dtype if isinstance(array, np.ndarray) else kind
                raise ParameterError(
                    f"buffer '{name}' holds {self._element}, the array given for it {given_type}"
                )
            result.append(array)
        return result


def hierarchy_of(ranks: int, hierarchy: Any) -> _core.Hierarchy:
    """A core hierarchy from factors (4, 8), from group sizes per level ([[3, 4], ...]), from "flat" or "binary"."""
    if isinstance(hierarchy, _core.Hierarchy):
        return hierarchy
    if hierarchy is None or hierarchy == "flat":
        return _core.Hierarchy(ranks)
    if hierarchy == "binary":
        return _core.Hierarchy.binary(ranks)
    if isinstance(hierarchy, str):
        raise ParameterError(
            f"hierarchy {hierarchy!r}; give factors like (4, 8), group sizes, 'flat' or 'binary'"
        )
    levels = list(hierarchy)
    if levels and np.ndim(levels[0]) > 0:
        return _core.Hierarchy.from_sizes(ranks, [[int(n) for n in sizes] for sizes in levels])
    return _core.Hierarchy(ranks, [int(n) for n in levels])


def machine_for(machine: Machine | str | Path, ranks: int) -> Machine:
    """The machine with as many nodes as so many ranks need."""
    found = machine if isinstance(machine, Machine) else Machine.load(machine)
    return found.with_nodes(-(-ranks // found.ranks_per_node))


def make_plan(
    composition: Composition,
    machine: Machine | str | Path | None = None,
    *,
    hierarchy: Any = None,
    libraries: Sequence[str] | str | None = None,
    stripe: int | None = None,
    ring: int | None = None,
    depth: int | None = None,
    stripe_weights: Sequence[float] = (),
    reproducible: bool = False,
    scratch_limit: int | None = None,
    pack_below: int = 65536,
    collective: str | None = None,
) -> Plan:
    """See `Composition.plan`."""
    composition.check()
    target = None if machine is None else machine_for(machine, composition.ranks)
    if target is not None and all(x is None for x in (hierarchy, libraries, stripe, ring, depth)):
        size = Plan(composition, _core.PlanParameters(_core.Hierarchy(composition.ranks))).size
        choice = choose_for(
            target, lambda share: composition.core if share > 0 else _tiny(composition.core), size
        )
        p = choice.parameters.plan_parameters()
        parameters = _core.PlanParameters(
            p.hierarchy,
            libraries=p.libraries,
            stripe=p.stripe,
            stripe_weights=p.stripe_weights,
            ring=p.ring,
            depth=p.depth,
            reproducible=reproducible,
            scratch_limit=scratch_limit,
            pack_below=pack_below,
        )
        return Plan(composition, parameters, target, None if reproducible else choice, collective)
    groups = hierarchy_of(composition.ranks, hierarchy)
    names = [libraries] if isinstance(libraries, str) else list(libraries or ())
    if target is not None:
        known = set(target.libraries)
        for name in names:
            if name and name not in known:
                raise PlanError(
                    f"machine '{target.name}' has no library '{name}'; it has {', '.join(target.libraries)}"
                )
        if not names:
            names = default_libraries(target, groups)
    parameters = _core.PlanParameters(
        groups,
        libraries=names,
        stripe=stripe or 1,
        stripe_weights=list(stripe_weights),
        ring=ring or 1,
        depth=depth or 1,
        reproducible=reproducible,
        scratch_limit=scratch_limit,
        pack_below=pack_below,
    )
    return Plan(composition, parameters, target, collective=collective)


def default_libraries(machine: Machine, hierarchy: _core.Hierarchy) -> list[str]:
    """For each level of a hierarchy the first library of the machine that carries messages across all of it."""
    names = []
    for level in range(hierarchy.levels):
        begin, end = hierarchy.group(level - 1, 0)
        crossed = {
            machine.core().level_between(hierarchy.rank_at(begin), hierarchy.rank_at(position))
            for position in range(begin + 1, end)
            if hierarchy.group(level, position) != hierarchy.group(level, begin)
        }
        usable = [
            name
            for name, library in machine.libraries.items()
            if all(machine.level_names[k] in library.at for k in crossed)
        ]
        if not usable:
            raise PlanError(f"no library of machine '{machine.name}' carries all messages of level {level}")
        names.append(usable[-1] if 0 not in crossed else usable[0])
    return names


def plan_collective(
    collective: str,
    machine: Machine | str | Path,
    size: int,
    *,
    ranks: int | None = None,
    dtype: Any = "float32",
    root: int = 0,
    op: Any = "sum",
    form: str | None = None,
    **parameters: Any,
) -> Plan:
    """A plan for a standard collective with a payload p * d of `size` bytes on a machine.

    Without hierarchy, libraries, stripe, ring and depth, form and parameters are searched for; otherwise they are as
    in `Composition.plan`, the hierarchy by default that of the machine. Raises ParameterError, PlanError.
    """
    from jali.comm.composition import Composition

    collective = collective.replace("-", "_")
    if collective not in BOUNDED:
        raise ParameterError(f"no collective {collective!r}; there are {', '.join(BOUNDED)}")
    target = machine if isinstance(machine, Machine) else Machine.load(machine)
    ranks = ranks or target.ranks
    target = machine_for(target, ranks)
    bytes_ = _core_size(dtype)
    parts = {"broadcast": 1, "reduce": 1, "all_reduce": 1}.get(collective, ranks)
    count = max(1, round(size / bytes_ / parts))
    given = [parameters.get(k) for k in ("hierarchy", "libraries", "stripe", "ring", "depth")]
    choice = None
    if all(x is None for x in given) and form is None and not parameters.get("reproducible"):
        choice = choose(target, collective, float(size), ranks, root)
        form = choice.form
    composition = Composition.standard(collective, ranks, count, dtype=dtype, form=form, root=root, op=op)
    if choice is not None:
        return Plan(composition, choice.parameters.plan_parameters(), target, choice, collective)
    if parameters.get("hierarchy") is None and ranks == target.ranks:
        parameters["hierarchy"] = target.shape
    return make_plan(composition, target, collective=collective, **parameters)


def _core_size(dtype: Any) -> int:
    return dict(_core.element_types())[element_name(dtype)]


def _tiny(core: _core.Composition) -> _core.Composition:
    """The same composition with as few elements as keep its shape: all divided by the smallest count."""
    steps = core.steps
    unit = min((p["count"] for step in steps for p in step), default=1)
    small = _core.Composition(core.ranks, core.type)
    for name, counts, given in core.buffers:
        small.add_buffer(name, [-(-n // unit) for n in counts], given)
    for number, step in enumerate(steps):
        if number:
            small.fence()
        for p in step:
            source, target = ((buffer, offset // unit) for buffer, offset in (p["source"], p["target"]))
            count = p["count"] // unit
            if p["kind"] == "multicast":
                small.multicast(source, target, count, p["root"], p["ranks"])
            else:
                op = "sum" if p["operation"] == "user" else p["operation"]
                small.reduce(source, target, count, p["ranks"], p["root"], op)
    return small


def simulation_facts(result: Result) -> dict[str, Any]:
    """A simulation as plain values: seconds, bytes, GB/s."""
    return {
        "time": result.time,
        "throughput": result.throughput,
        "fraction_of_bound": result.fraction_of_bound,
        "bottleneck": result.bottleneck,
        "bottleneck_seconds": result.bottleneck_load,
        "levels": {name: {"bytes": n, "transfers": k} for name, (n, k) in result.levels.items()},
        "stage_windows": [vars(stage) for stage in result.stages],
        "links": [vars(link) for link in itertools.islice(result.links, 32)],
    }


def simulation_text(result: Result) -> list[str]:
    """A simulation in lines for people."""
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
    if result.bottleneck is not None and result.time > 0:
        lines.append(
            f"    bottleneck: {result.bottleneck}, needed for {result.bottleneck_load / result.time:.0%} of the time"
        )
    return lines


def runners_up_text(candidates: Sequence[Candidate], best: float) -> list[str]:
    """The plans that came next, with how much longer they take."""
    return [f"    {c.time / best:>6.2f} x  {c.parameters.describe()}" for c in candidates]


def size_text(n: float) -> str:
    """Bytes in words: 512 B, 16 KiB, 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024 or unit == "GiB":
            break
        n /= 1024
    return f"{n:.4g} {unit}"


def time_text(seconds: float) -> str:
    """Seconds in words: 12 us, 3.4 ms, 1.2 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale or unit == "us":
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds} s"


__all__ = ["Machine", "Parameters", "Plan", "RunningPlan", "plan_collective"]
