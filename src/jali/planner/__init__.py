"""Plans of communication: a composition of three primitives, and its execution, chosen for a described machine.

A `Composition` of multicasts, reductions and fences becomes a `Plan`, which can be checked, explained, simulated on a
`Machine`, drawn, and run on a communicator. The planner is a layer above `jali.comm`, whose collectives do not depend on it:
their algorithms are chosen by rules (`core/planning/rules.toml`). Checking, planning, searching, simulating and running are C++
(`core/composition`, `core/planning`, `core/simulation`, `core/proof`, `core/running`).
"""

from __future__ import annotations

from jali.planner.composition import ALL, OTHERS, Composition
from jali.planner.machine import Machine
from jali.planner.plan import Plan
from jali.planner.running_plan import RunningPlan
from jali.planner.standard_plans import plan_collective

__all__ = ["ALL", "OTHERS", "Composition", "Machine", "Plan", "RunningPlan", "plan_collective"]
