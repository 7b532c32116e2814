"""Plans of communication: what is done said in three words, how it is done chosen for a described machine.

A `Composition` of multicasts, reductions and fences becomes a `Plan`, which can be checked, explained, simulated on a `Machine`,
drawn, and run on a communicator. The planner stands above `jali.comm`, whose collectives need none of it: what they run is chosen by
rules (`core/planning/rules.toml`). Checking, planning, searching, simulating and running are C++ (`core/composition`, `core/planning`, `core/simulation`, `core/proof`, `core/running`).
"""

from __future__ import annotations

from jali.planner.composition import ALL, OTHERS, Composition
from jali.planner.machine import Machine
from jali.planner.plan import Plan
from jali.planner.running_plan import RunningPlan
from jali.planner.standard_plans import plan_collective

__all__ = ["ALL", "OTHERS", "Composition", "Machine", "Plan", "RunningPlan", "plan_collective"]
