"""Making plans of compositions: from parameters, from a machine and some parameters, or from a machine alone, by search.

What is searched for comes from `jali.comm.choice`; here are the defaults and what parameters may look like.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jali import _core
from jali.comm.choice import choose_for
from jali.comm.machine import Machine
from jali.comm.plan import Plan, hierarchy_of, machine_for
from jali.errors import PlanError

if TYPE_CHECKING:
    from jali.comm.composition import Composition


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
        stripe=1 if stripe is None else stripe,
        stripe_weights=list(stripe_weights),
        ring=1 if ring is None else ring,
        depth=1 if depth is None else depth,
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
