"""Costs of a call's algorithms, on a described machine or as measured.

In the model the cost of an algorithm is that of its plan: its composition, over its hierarchy, with the messages of its
transport, simulated for all ranks (`jali.planner.simulation`). Devices' transports are those that the machine's file describes
for halos; a library with collectives of its own (NCCL, the host's) is modelled by the cheapest algorithm over its own
messages, since its choice is not known. An algorithm without entries in the machine's file has no cost, and a reason instead.

Measured are cells of `jali tune collectives`; between two sizes times are interpolated in logarithms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from jali import _core
from jali.amounts import counted
from jali.comm import algorithms
from jali.errors import FileFormatError, ParameterError, PlanError
from jali.files import read_bytes, shown
from jali.planner.machine import HaloTransport, Machine

MOST_MESSAGES = 1 << 17
"""Of a plan that is simulated to know what a call costs: an answer is to come at once."""
MOST_BYTES = 1 << 28
"""Of a file with times."""
USUAL = next(name for name, _, carries, _ in _core.collective_transports([]) if carries)


@dataclass(frozen=True)
class Cost:
    """Seconds, or why there are none."""

    time: float | None
    words: str = ""


def machine_of_call(machine: Machine, ranks_of_hosts: Sequence[int]) -> Machine:
    """The machine with as many nodes as hosts, and as many places on each as ranks. Raises ParameterError where that cannot be."""
    per_host = max(ranks_of_hosts)
    if min(ranks_of_hosts) != per_host:
        raise ParameterError(
            f"machine '{machine.name}' has equal nodes; {' and '.join(map(str, ranks_of_hosts))} ranks cannot be put on them"
        )
    if per_host == machine.ranks_per_node:
        return machine.with_nodes(len(ranks_of_hosts))
    if per_host > machine.ranks_per_node:
        raise ParameterError(
            f"machine '{machine.name}' has {counted(machine.ranks_per_node, 'position')} for ranks on a node, not {per_host}"
        )
    left, parts = per_host, list[int]()
    for level in reversed(machine.levels[1:]):  # neighbours first
        parts.insert(0, math.gcd(left, level.parts))
        left //= parts[0]
    parts.insert(0, left)
    if left > machine.levels[0].parts:
        raise ParameterError(
            f"{counted(per_host, 'rank')} of a host fill no equal parts of a node of machine '{machine.name}', which has "
            f"{' x '.join(str(level.parts) for level in machine.levels)}"
        )
    levels = tuple(replace(level, parts=n) for level, n in zip(machine.levels, parts, strict=True))
    positions = [0]  # of the ranks, on the whole node
    for level, n in zip(machine.levels, parts, strict=True):
        positions = [position * level.parts + k for position in positions for k in range(n)]
    network = replace(
        machine.network, binding=tuple(machine.network.binding[position] for position in positions)
    )
    return replace(machine, levels=levels, network=network).with_nodes(len(ranks_of_hosts))


class Costs:
    """By the model of a machine, of one call."""

    def __init__(
        self, machine: Machine, call: _core.CollectiveCall, ranks_of_hosts: Sequence[int], kind: str
    ) -> None:
        self.machine = machine_of_call(machine, ranks_of_hosts)
        self.ranks = sum(ranks_of_hosts)
        self.hosts = list(ranks_of_hosts)
        self.on_device = kind != "host"
        # an operation of the user costs what a sum does
        operation = "sum" if call.operation == "user" else call.operation
        self.call = _core.CollectiveCall(
            call.collective, _numpy_name(call.type), call.counts, call.root, operation, call.in_place, None, call.reproducible
        )  # fmt: skip

    def of(self, name: str, transport: str, between: str = "") -> Cost:
        """The cost of an algorithm by a transport (empty: the usual one) and another between hosts, or of a library's
        own collective."""
        try:
            algorithm = self._algorithm(name)
            if algorithm is not None:
                return self._simulated(algorithm, transport or (USUAL if self.on_device else ""), between)
            return self._of_itself(name)
        except (PlanError, ParameterError) as error:
            return Cost(None, str(error))

    def _algorithm(self, name: str) -> Any:
        collective = self.call.collective
        for algorithm in algorithms.ALGORITHMS:
            if (
                algorithm.name == name
                and collective in algorithm.collectives
                and (algorithm.on_devices or not self.on_device)
            ):
                return algorithm
        return None

    def _of_itself(self, name: str) -> Cost:
        best: tuple[float, str] | None = None
        why = ""
        messages = name.removesuffix("-windows")
        for other in algorithms.names(self.call.collective, self.on_device):
            algorithm = self._algorithm(other)
            if algorithm is None:
                continue
            cost = self._simulated(algorithm, messages)
            if cost.time is not None and (best is None or cost.time < best[0]):
                best = cost.time, other
            why = why or cost.words
        if best is None:
            return Cost(None, why)
        return Cost(best[0], f"its own choice is not known: as {best[1]} by its messages")

    def _simulated(self, algorithm: Any, transport: str, between: str = "") -> Cost:
        if why := _core.why_not_between(algorithm.name, False, self.call.collective, self.hosts):
            return Cost(None, why)
        if self.ranks == 1:
            return Cost(0.0, "one rank alone")
        if self._messages(algorithm) > MOST_MESSAGES:
            return Cost(None, "so many messages are not simulated")
        groups, first = [], 0
        for count in self.hosts:
            groups.append(list(range(first, first + count)))
            first += count
        composition, parameters = algorithm.plan(self.call, groups, transport, between, self.on_device)
        before = after = 0.0
        if self.on_device:
            core, before, after = self._transported_by(transport, between)
        else:
            core = self.machine.core()
            if not transport:
                libraries = _core.default_libraries(core, parameters.hierarchy)
                parameters = _with_libraries(parameters, libraries)
        simulated = _core.simulate_plan(composition, parameters, core)
        stages = len({stage for stage, *_ in simulated.result.stages})
        return Cost(simulated.result.time + stages * (before + after))

    def _messages(self, algorithm: Any) -> int:
        if algorithm.hierarchy == "binary":
            return self.ranks * 64
        rounds = self.ranks if not algorithm.ring or algorithm.form == "composed" else 1
        return self.ranks * max(rounds, algorithm.depth(self.call.payload(self.ranks)))

    def _transported_by(self, transport: str, between: str) -> tuple[_core.Machine, float, float]:
        """The simulator's machine with the messages of these, and what passes before and after those of a stage."""
        machine = self.machine
        used = {}
        before = after = 0.0
        for name, inside in ((transport, bool(between)), (between, False)):
            if not name:
                continue
            found, library = machine.transports.get(name), machine.libraries.get(name)
            across = len(self.hosts) > 1 and not inside
            if found is not None and (not across or "node" in found.messages.at or library is None):
                used[name] = found.messages
                before, after = max(before, found.before * 1e-6), max(after, found.after * 1e-6)
            elif library is not None:  # described between nodes as well
                used[name] = library
            else:
                known = ", ".join(dict.fromkeys([*machine.transports, *machine.libraries]))
                raise ParameterError(f"machine '{machine.name}' says nothing of {name}; it knows {known}")
        transports = {name: HaloTransport(messages) for name, messages in used.items()}
        return replace(machine, transports=transports).core_of_halos(), before, after


def _with_libraries(parameters: _core.PlanParameters, libraries: Sequence[str]) -> _core.PlanParameters:
    p = parameters
    return _core.PlanParameters(
        p.hierarchy,
        libraries=libraries,
        stripe=p.stripe,
        ring=p.ring,
        depth=p.depth,
        reproducible=p.reproducible,
    )


def _numpy_name(core: str) -> str:
    from jali.comm.elements import NAMES

    return next(name for name, of in NAMES.items() if of == core and name != "bool")


class Times:
    """Of a file that `jali tune collectives` left, for calls of one kind."""

    def __init__(self, path: Path, conditions: Mapping[str, Any], cells: Sequence[Mapping[str, Any]]) -> None:
        self.path, self.conditions, self.cells = path, conditions, cells

    @staticmethod
    def read(path: Path) -> Times:
        """Raises FileFormatError, FileNotFoundError."""
        try:
            reported = json.loads(read_bytes(path, MOST_BYTES, "times of collectives"))
            conditions, cells = dict(reported["conditions"]), list(reported["cells"])
            for cell in cells:
                _check(cell)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FileFormatError(
                f"{shown(path)} has no times of collectives ({type(error).__name__}: {shown(error)}); "
                "`jali tune collectives --json` prints them, and an interrupted one leaves them in its .state file"
            ) from None
        return Times(path, conditions, cells)

    def of(self, call: _core.CollectiveCall, facts: Mapping[str, Any], size: int) -> dict[str, float]:
        """Seconds by algorithm at this size; "default" is what jali's own rules choose.

        Raises ParameterError where the file is of other conditions, or has no such call, or not such sizes.
        """
        other = [
            f"{key} {shown(self.conditions.get(key))}, not {value}"
            for key, value in facts.items()
            if self.conditions.get(key) != value
        ]
        if other:
            raise ParameterError(f"{shown(self.path)} was measured with {'; '.join(other)}")
        kinds = {_kind(cell) for cell in self.cells}
        found = [
            cell
            for cell in self.cells
            if cell["collective"] == call.collective
            and cell["type"] == call.type
            and cell["in_place"] in (None, call.in_place)
        ]
        if not found:
            raise ParameterError(
                f"{shown(self.path)} has no {call.collective} of {call.type}{' in place' if call.in_place else ''}; it has "
                f"{', '.join(sorted(kinds)) or 'nothing'}"
            )
        found.sort(key=lambda cell: cell["bytes"])
        sizes = [cell["bytes"] for cell in found]
        if not sizes[0] <= size <= sizes[-1]:
            raise ParameterError(
                f"{shown(self.path)} has {call.collective} of {sizes[0]} to {sizes[-1]} bytes, not of {size}"
            )
        above = next(k for k, n in enumerate(sizes) if n >= size)
        ends = [found[above]] if sizes[above] == size else [found[above - 1], found[above]]
        specs = set.intersection(*({*cell["times"], *cell["far"]} for cell in ends))
        times = {}
        for spec in specs:
            logs = np.interp(
                math.log(size), [math.log(c["bytes"]) for c in ends], [math.log(_time(c, spec)) for c in ends]
            )
            times[spec] = math.exp(float(logs))
        return times


def _kind(cell: Mapping[str, Any]) -> str:
    return f"{cell['collective']} of {cell['type']}{' in place' if cell['in_place'] else ''}"


def _time(cell: Mapping[str, Any], spec: str) -> float:
    return float(np.median(cell["times"][spec])) if spec in cell["times"] else float(cell["far"][spec])


def _check(cell: Mapping[str, Any]) -> None:
    """Raises ValueError, KeyError or TypeError for an invalid cell."""
    if not isinstance(cell["bytes"], int) or cell["bytes"] < 1 or cell["in_place"] not in (True, False, None):
        raise ValueError("a cell has bytes, and is in place or not")
    _kind(cell)
    for spec in (*cell["times"], *cell["far"]):
        if not _time(cell, spec) > 0 or not math.isfinite(_time(cell, spec)):
            raise ValueError("times are numbers above 0")
