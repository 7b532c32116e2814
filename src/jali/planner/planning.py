"""Making plans of compositions: from parameters, from a machine and some parameters, or from a machine alone, by search.

What is searched for comes from `jali.planner.choice`; here is which parameters are given, and which are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jali import _core
from jali.errors import PlanError
from jali.planner.choice import choose_for
from jali.planner.machine import Machine
from jali.planner.plan import Plan, machine_for, parameters_of

if TYPE_CHECKING:
    from jali.planner.composition import Composition


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
    if not composition.commutes:
        reproducible = True
    target = None if machine is None else machine_for(machine, composition.ranks)
    search = target is not None and all(x is None for x in (hierarchy, libraries, stripe, ring, depth))

    def parameters(hierarchy: Any, libraries: Any) -> _core.PlanParameters:
        return parameters_of(
            composition.ranks,
            hierarchy,
            libraries=libraries,
            stripe=stripe,
            ring=ring,
            depth=depth,
            stripe_weights=stripe_weights,
            reproducible=reproducible,
            scratch_limit=scratch_limit,
            pack_below=pack_below,
        )

    plan = Plan(composition, parameters(hierarchy, libraries), target, collective=collective)
    if target is None:
        return plan
    given = plan.parameters
    if search:
        choice = choose_for(target, composition.core, plan.size)
        found = choice.parameters.plan_parameters()
        chosen = _core.PlanParameters(
            found.hierarchy,
            libraries=found.libraries,
            stripe=found.stripe,
            stripe_weights=found.stripe_weights,
            ring=found.ring,
            depth=found.depth,
            reproducible=given.reproducible,
            scratch_limit=given.scratch_limit,
            pack_below=given.pack_below,
        )
        return Plan(composition, chosen, target, None if given.reproducible else choice, collective)
    for name in given.libraries:
        if name and name not in target.libraries:
            raise PlanError(
                f"machine '{target.name}' has no library '{name}'; it has {', '.join(target.libraries)}"
            )
    if given.libraries:
        return plan
    chosen = parameters(given.hierarchy, _core.default_libraries(target.core(), given.hierarchy))
    return Plan(composition, chosen, target, collective=collective)
