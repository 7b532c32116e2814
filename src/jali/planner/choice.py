"""Which plan for this machine, collective and size: a search by model, with reasons.

The search is core/planning/choice.hpp, which documents it; here machines are described ones and results have texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jali import _core
from jali.comm.algorithms import COLLECTIVES
from jali.errors import ParameterError
from jali.planner.bounds import bound
from jali.planner.machine import Machine
from jali.planner.simulation import Result, result_of

FormParameters = _core.FormParameters
Candidate = _core.Candidate
Progress = Callable[[str], Any]


@dataclass(frozen=True)
class Choice:
    """The best plan found: its parameters and simulation; the runners-up; the candidates and reasons."""

    parameters: FormParameters
    result: Result
    runners_up: tuple[Candidate, ...]
    estimated: int  # structures that were estimated
    simulated: int  # plans that were simulated in full
    why: str

    @property
    def form(self) -> str:
        """The form of the composition."""
        return self.parameters.form

    @property
    def time(self) -> float:
        """Simulated, in seconds."""
        return self.result.time


def simulate_collective(
    machine: Machine,
    collective: str,
    size: float,
    parameters: FormParameters,
    root: int = 0,
    core: Any = None,
) -> Result:
    """Simulates a standard collective of a payload p * d of `size` bytes with these parameters."""
    core = machine.core() if core is None else core
    composition = _core.standard_for_size(collective, parameters.form, size, root, parameters.ranks)
    simulated = _core.simulate_plan(composition, parameters.plan_parameters(), core)
    return result_of(simulated, machine, core, size, _bound(machine, collective, parameters.ranks))


def choose(
    machine: Machine,
    collective: str,
    size: float,
    ranks: int | None = None,
    root: int = 0,
    shortlist: int = 6,
    progress: Progress | None = None,
) -> Choice:
    """The best plan found for a standard collective with a payload p * d of `size` bytes.

    `ranks` (default: all of the machine) fill it from the first node on. `progress` is called with each step.
    Raises ParameterError.
    """
    if collective not in COLLECTIVES:
        raise ParameterError(f"no collective '{collective}'; there are {', '.join(COLLECTIVES)}")
    core, ranks = machine.core(), machine.ranks if ranks is None else ranks
    found = _core.choose(core, collective, size, ranks, root, shortlist, progress)
    return _choice(found, machine, core, size, _bound(machine, collective, ranks))


def choose_for(
    machine: Machine,
    composition: _core.Composition,
    size: float,
    shortlist: int = 6,
    progress: Progress | None = None,
) -> Choice:
    """The same for any composition; `size` is its payload in bytes."""
    core = machine.core()
    return _choice(_core.choose_for(core, composition, shortlist, progress), machine, core, size, None)


def _choice(
    found: _core.Choice, machine: Machine, core: _core.Machine, size: float, limit: float | None
) -> Choice:
    result = result_of(found.simulation, machine, core, size, limit)
    return Choice(found.parameters, result, found.runners_up, found.estimated, found.simulated, found.why)


def _bound(machine: Machine, collective: str, ranks: int) -> float | None:
    return bound(machine, collective) if ranks == machine.ranks and ranks > 1 else None
