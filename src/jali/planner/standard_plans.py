"""Plans of standard collectives for a machine and a payload: the form of the composition is searched for with the parameters."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jali import _core
from jali.comm import validation
from jali.comm.algorithms import COLLECTIVES
from jali.comm.elements import element_name
from jali.errors import ParameterError
from jali.files import name_shown, value_shown
from jali.planner.choice import choose
from jali.planner.composition import Composition
from jali.planner.machine import Machine
from jali.planner.plan import Plan, machine_for
from jali.planner.planning import make_plan

MOST_BYTES = 1 << 50
"""Of a payload that is planned for."""


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
    progress: Callable[[str], None] | None = None,
    **parameters: Any,
) -> Plan:
    """A plan for a standard collective with a payload p * d of `size` bytes on a machine.

    Without hierarchy, libraries, stripe, ring and depth, form and parameters are searched for; otherwise they are as in
    `Composition.plan`, the hierarchy by default that of the machine. `progress` is called with each step of the search. Raises
    ParameterError, PlanError.
    """
    collective = name_shown(collective).replace("-", "_")
    if collective not in COLLECTIVES:
        raise ParameterError(f"no collective '{collective}'; there are {', '.join(COLLECTIVES)}")
    if progress is not None and not callable(progress):
        raise ParameterError(f"progress is a function of a text, not {value_shown(progress)}")
    target = machine if isinstance(machine, Machine) else Machine.load(machine)
    ranks = target.ranks if ranks is None else validation.whole("the number of ranks", ranks)
    if ranks < 1:
        raise ParameterError(f"a plan for {ranks} ranks; it needs at least one")
    root = validation.whole("root", root)
    if not isinstance(size, numbers.Real) or isinstance(size, bool) or not 0 <= size < MOST_BYTES:
        raise ParameterError(f"size is a number of bytes below 2^50, not {value_shown(size)}")
    target = machine_for(target, ranks)
    bytes_ = _core_size(dtype)
    parts = {"broadcast": 1, "reduce": 1, "all_reduce": 1}.get(collective, ranks)
    count = max(1, round(size / bytes_ / parts))
    asked = [parameters.get(k) for k in ("hierarchy", "libraries", "stripe", "ring", "depth")]
    choice = None
    if all(x is None for x in asked) and form is None and not parameters.get("reproducible"):
        choice = choose(target, collective, float(size), ranks, root, progress=progress)
        form = choice.form
    composition = Composition.standard(
        collective, ranks=ranks, count=count, dtype=dtype, form=form, root=root, op=op
    )
    if choice is not None:
        return Plan(composition, choice.parameters.plan_parameters(), target, choice, collective)
    if parameters.get("hierarchy") is None and ranks == target.ranks:
        parameters["hierarchy"] = target.shape
    return make_plan(composition, target, collective=collective, **parameters)


def _core_size(dtype: Any) -> int:
    return dict(_core.element_types())[element_name(dtype)]
