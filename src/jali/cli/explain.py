"""`jali explain`: the algorithm that a collective would use, by which rule, and the cost of it and the other
algorithms.

No rank is started and no device opened: the arguments give the values of the rules' conditions. What only ranks with their
devices can determine (whether these map each other's memory, whether a library is there) is printed as a condition, followed by
the algorithms that are used if it does not hold. Costs are those of a described machine, by the planner's model, or times that
`jali tune collectives` wrote. Under a launcher the started ranks also report what they use here.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jali import _core, comm, settings, vendors
from jali.amounts import counted, size_text, time_text
from jali.bench.cases import chunks_of
from jali.bench.collective_algorithms import AlgorithmSpec, specs_of
from jali.bench.collective_rules import COMBINING, DEFAULT
from jali.cli.file_kinds import EMPTY, JSON, TEXT, refuse_other_kinds
from jali.cli.plan_arguments import (
    load_machine,
    names_argument,
    rules_file,
    size_argument,
    whole_argument,
)
from jali.comm.algorithms import ALGORITHMS, BY_MPI, COLLECTIVES, DEVICE_TRANSPORTS, ON_DEVICES, OTHER_NAMES
from jali.comm.elements import NAMES, OPERATIONS, SIZES
from jali.devices import parse_device
from jali.errors import DeviceError, ParameterError
from jali.files import value_shown
from jali.planner.call_costs import Cost, Costs, Times

TIMES_NEEDED = "what `jali tune collectives --json` prints is needed"
MOST_NAMED = 5  # of algorithms without costs for the same reason
MACHINES = {"cuda": "h200x8", "hip": "frontier"}
"""The default machines: those whose measurements jali's own rules and model were made with."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali explain`."""
    parser.description = (
        "Say which algorithm a collective would take between ranks that need not be there, by which line of the rules, what was passed "
        "over and why, and what all algorithms cost."
    )
    parser.add_argument("collective", help=", ".join(name.replace("_", "-") for name in COLLECTIVES))
    parser.add_argument(
        "--size",
        type=size_argument,
        default=1 << 20,
        metavar="BYTES",
        help="of the largest buffer, like 64KiB (default 1MiB)",
    )
    parser.add_argument(
        "--device", metavar="KIND", help=f"cpu (the default), {', '.join(vendors.names())}: where arrays are"
    )
    parser.add_argument("--dtype", default="fp32", metavar="TYPE", help="of elements (default fp32)")
    parser.add_argument("--op", default="sum", metavar="OP", help="of what is combined (default sum)")
    parser.add_argument(
        "--hosts", type=whole_argument, metavar="N", help="over which ranks are spread (default 1)"
    )
    parser.add_argument("--root", type=whole_argument, default=0, metavar="R", help="default 0")
    parser.add_argument("--reproducible", action="store_true", help="combine in the order of ranks")
    parser.add_argument("--in-place", action="store_true", help="the result goes where the argument is")
    parser.add_argument("--persistent", action="store_true", help="as part of a graph")
    parser.add_argument("--algorithm", metavar="NAME", help="that the call asks for")
    parser.add_argument(
        "--rules", type=Path, metavar="FILE", help="before jali's own (JALI_COLLECTIVE_RULES)"
    )
    parser.add_argument(
        "--versions",
        type=names_argument,
        default=[],
        metavar="NAME=VERSION,...",
        help="of libraries, for rules that ask, like nccl=2.28.3,mpich=5.0.2",
    )
    parser.add_argument(
        "--machine",
        metavar="NAME|FILE",
        help="whose model says costs: a name, or a TOML file (default for devices: "
        + ", ".join(f"{name} for {kind}" for kind, name in MACHINES.items())
        + ")",
    )
    parser.add_argument(
        "--times",
        type=Path,
        metavar="FILE",
        help="costs as `jali tune collectives --json` measured them",
    )


def execute(arguments: argparse.Namespace) -> int:
    """Explain; one rank prints for all."""
    ranks = comm.current()
    changed = {} if arguments.rules is None else {"collective_rules": rules_file(arguments.rules)}
    with settings.using(**changed):
        request = Request.of(arguments, ranks)
        facts = request.facts()
        if ranks.size > 1:
            facts["here"] = request.here(ranks)
    if ranks.rank != 0:
        return 0
    print(json.dumps(facts, indent=2) if arguments.json else text_of(facts))
    return 0


class Request:
    """The call to explain, and its ranks and memory."""

    def __init__(self, call: Any, hosts: list[int], kind: str, arguments: argparse.Namespace) -> None:
        self.call, self.hosts, self.kind, self.arguments = call, hosts, kind, arguments
        self.ranks = sum(hosts)
        self.versions = versions_of(arguments.versions)

    @staticmethod
    def of(arguments: argparse.Namespace, ranks: Any) -> Request:
        """What the arguments mean. Raises ParameterError."""
        collective = arguments.collective.replace("-", "_")
        if collective not in COLLECTIVES:
            names = ", ".join(name.replace("_", "-") for name in COLLECTIVES)
            raise ParameterError(
                f"there is no collective {value_shown(arguments.collective)}; there are {names}"
            )
        kind = kind_of(arguments.device)
        type_ = NAMES.get(arguments.dtype, arguments.dtype)
        if type_ not in SIZES:
            raise ParameterError(
                f"--dtype: there is no type {value_shown(arguments.dtype)}; there are {', '.join(SIZES)}"
            )
        op = arguments.op.replace("-", "_")
        if op not in (*OPERATIONS, "user"):
            raise ParameterError(
                f"--op: there is no operation {value_shown(arguments.op)}; there are {', '.join(OPERATIONS)}, and user for your own"
            )
        if op != "sum" and collective not in COMBINING:
            raise ParameterError(f"--op is for what combines; {collective} does not")
        here = ranks.size > 1
        count = ranks.size if arguments.ranks is None else arguments.ranks
        if here and count != ranks.size:
            raise ParameterError(
                f"-n {count} where {ranks.size} ranks were started; leave it out, or start none"
            )
        if here and arguments.hosts is None:
            hosts = [len(host) for host in ranks.collectives.hosts]
        else:
            hosts = spread(count, 1 if arguments.hosts is None else arguments.hosts)
        parts = chunks_of(collective, count)
        elements = -(-arguments.size // (SIZES[type_] * parts))  # whole ones
        if not 0 <= arguments.root < count:
            raise ParameterError(f"root {arguments.root} does not exist among {counted(count, 'rank')}")
        call = _core.CollectiveCall(
            collective,
            next(name for name, core in NAMES.items() if core == type_ and name != "bool"),
            elements,
            arguments.root,
            op,
            arguments.in_place or collective == "broadcast",
            None
            if arguments.algorithm is None
            else algorithm_as_written(arguments.algorithm, collective, kind),
            arguments.reproducible,
        )
        return Request(call, hosts, kind, arguments)

    @property
    def size(self) -> int:
        """Bytes of the largest buffer, in whole elements."""
        return int(self.call.payload(self.ranks))

    def facts(self) -> dict[str, Any]:
        """The whole result, as plain values."""
        call = self.call
        facts: dict[str, Any] = {
            "collective": call.collective,
            "bytes": self.size,
            "requested_bytes": self.arguments.size,
            "type": call.type,
            "operation": call.operation,
            "in_place": call.in_place,
            "reproducible": call.reproducible,
            "persistent": self.arguments.persistent,
            "memory": self.kind,
            "ranks": self.ranks,
            "ranks_of_hosts": self.hosts,
            "versions": self.versions,
        }
        facts["requested_versions"] = _core.rules_ask_for_library()
        facts["algorithms"] = self.specs()
        facts["takes"] = next(
            (spec["algorithm"] for spec in facts["algorithms"] if spec["verdict"] != "not"), None
        )
        facts |= self.costs(facts["takes"])
        cost = {entry["algorithm"]: entry["time"] for entry in facts["costs"]}
        possible = [spec["algorithm"] for spec in facts["algorithms"] if spec["verdict"] != "not"]
        facts["takes_there"] = next((spec for spec in possible if cost.get(spec) is not None), None)
        return facts

    # --- which algorithm ------------------------------------------------------------------------------------------

    def specs(self) -> list[dict[str, Any]]:
        """The algorithms that are tried, in their order, down to the first that is possible in any case."""
        request = _core.requested_algorithm(self.call, self.kind != "host")
        if request.name and (request.why == "asked for" or not self._is_of_others(request.name)):
            return [self._reported(request, request.why, [], "", [])]
        found: list[dict[str, Any]] = []
        for ruled in _core.matched_rules(
            self.call, self.hosts, self.kind, self.versions, self.arguments.persistent
        ):
            location = f"line {ruled.line} of {ruled.file}"
            found.append(self._reported(ruled, location, list(ruled.conditions), ruled.why, found))
            if found[-1]["verdict"] == "takes":
                break
        return found

    def _reported(
        self,
        chosen: _core.MatchedRule | _core.CollectiveChoice,
        rule: str,
        conditions: list[str],
        why: str,
        before: list[dict[str, Any]],
    ) -> dict[str, Any]:
        """An algorithm as it is reported, behind those that are tried `before`."""
        spec = AlgorithmSpec(chosen.name, chosen.transport, chosen.between)
        needs, impossible = self.needs(
            spec, chosen.one_host, asked_for=isinstance(chosen, _core.CollectiveChoice)
        )
        for other in before:
            if other["verdict"] == "if" and set(other["needs"]) <= set(needs):
                impossible = impossible or f"it needs what {other['algorithm']} needs, and is not reached"
        return {
            "algorithm": str(spec),
            "by": self.transport_words(spec),
            "rule": rule,
            "conditions": conditions,
            "why": why,
            "verdict": "not" if impossible else "if" if needs else "takes",
            "needs": needs,
            "impossible": impossible,
        }

    @property
    def _transports_here(self) -> set[str]:
        return {entry for entry, *_ in _core.collective_transports([vendors.library_of(self.kind)])}

    def _is_of_others(self, name: str) -> bool:
        """Whether an algorithm is that of another vendor's devices."""
        everybodys = {entry for entry, *_ in _core.collective_transports(vendors.libraries())}
        return self.kind != "host" and name in everybodys - self._transports_here

    def needs(
        self, spec: AlgorithmSpec, one_host: bool = False, asked_for: bool = False
    ) -> tuple[list[str], str]:
        """The requirements of an algorithm that only ranks and devices can check, and why it is impossible in any
        case (else empty)."""
        between = _core.why_not_between(spec.name, one_host, self.call.collective, self.hosts)
        if between and (one_host or not asked_for):  # requested levels are shown for one host, too
            return [], between
        transports = [name for name in (spec.transport, spec.between) if name]
        if self.kind != "host" and not transports and self._has_levels(spec.name):
            return [self._compiles], ""
        if self.kind == "host":
            if spec.name == BY_MPI:
                has_not = _core.why_mpi_has_not(self.call, self.ranks)
                return ([], has_not) if has_not else (["the ranks are MPI's"], "")
            if spec.name not in _core.names_of_algorithms(self.call.collective, False):
                return [], f"'{spec.name}' is for devices"
            wrong = [name for name in transports if name in DEVICE_TRANSPORTS]
            return [], f"'{wrong[0]}' carries messages between devices" if wrong else ""
        traits = {entry: more for entry, *more in _core.collective_traits(vendors.libraries())}
        algorithm = spec.name not in traits
        forced = settings.current().device_transport
        entries = transports or [forced or usual_transport(self.kind)]
        if not algorithm:
            entries = [spec.name]
        needs: list[str] = []
        for number, entry in enumerate(entries):
            if entry not in self._transports_here:
                return [], f"'{entry}' is not for {self.kind} devices"
            if algorithm and forced and entry != forced:
                return [], f"device_transport={forced} is to carry all messages"
            maps_memory, of_library, user = traits[entry]
            if self.call.operation == "user" and not user:
                return [], f"'{entry}' has no operations of the user"
            everywhere = len(self.hosts) > 1 and (number > 0 or not spec.between)
            if maps_memory:
                where = (
                    ", also those of other hosts" if everywhere else " inside hosts" if spec.between else ""
                )
                needs.append(f"devices of the ranks map each other's memory{where} ({entry})")
            elif of_library:
                library = vendors.library_of(self.kind).upper()
                needs.append(
                    f"{library} is found on all ranks, each has a device of its own, and {entry} has this call"
                )
            elif entry not in ON_DEVICES:
                needs.append(f"the MPI library takes addresses of devices ({entry})")
        if algorithm:
            needs.append(self._compiles)
        return needs, ""

    @property
    def _compiles(self) -> str:
        return f"{vendors.vendor(self.kind).compiler.library.title} compiles kernels on all ranks"

    def _has_levels(self, name: str) -> bool:
        """Whether an algorithm does one thing inside the hosts of the call, and another between them."""
        nested = 1 < len(self.hosts) < self.ranks
        return nested and any(entry.name == name and entry.hierarchy == "hosts" for entry in ALGORITHMS)

    def transport_words(self, spec: AlgorithmSpec) -> str:
        """The transport of messages."""
        if spec.between:
            return f"{spec.transport} inside hosts, {spec.between} between them"
        if self.kind != "host":
            if spec.name in ON_DEVICES:
                return "its own"
            if not spec.transport and self._has_levels(spec.name) and not settings.current().device_transport:
                return "the first that is open inside hosts, and the first between all"
            return settings.current().device_transport or spec.transport or usual_transport(self.kind)
        if spec.name == BY_MPI:
            return "its own"
        if spec.transport:
            return spec.transport
        if len(self.hosts) == self.ranks > 1:
            return "mpi"
        return "shm" if len(self.hosts) == 1 else "shm inside hosts, mpi between them"

    def here(self, ranks: Any) -> dict[str, str]:
        """What the ranks that were started take. Collective."""
        if self.kind == "host":
            choice = ranks.collectives.algorithm_of(self.call)
            by = ", ".join(ranks.libraries)
        else:
            from jali.devices import open_device

            try:
                gpu = open_device(self.arguments.device, ranks)
                choice = ranks.collectives.on_device(gpu).algorithm_of(self.call, self.arguments.persistent)
            except DeviceError as error:
                return {"missing": str(error)}
            by = choice.transport
        return {"algorithm": choice.spec, "by": by, "why": choice.why}

    def _cost(self, costs: Costs, spec: AlgorithmSpec) -> Cost:
        if self.kind == "host" or spec.transport or not self._has_levels(spec.name):
            return costs.of(spec.name, spec.transport, spec.between)
        inside, between = usual_transport(self.kind), vendors.library_of(self.kind)
        cost = costs.of(spec.name, inside, between)
        return cost if cost.time is None else Cost(cost.time, f"as by {inside} and {between}")

    # --- costs --------------------------------------------------------------------------------------

    def costs(self, takes: str | None) -> dict[str, Any]:
        """Of all algorithms, the fastest first, and the source of the numbers."""
        arguments = self.arguments
        if arguments.times is not None:
            refuse_other_kinds(arguments.times, [JSON, TEXT, EMPTY], TIMES_NEEDED)
            facts = {
                "memory": self.kind,
                "ranks": self.ranks,
                "hosts": len(self.hosts),
                "ranks_per_host": max(self.hosts),
            }
            times = Times.read(arguments.times).of(self.call, facts, self.size)
            entries = [{"algorithm": spec, "time": time, "words": ""} for spec, time in times.items()]
            source = f"measured, by {arguments.times}"
            if arguments.machine is not None:
                raise ParameterError("--times and --machine both say costs; give one of them")
        else:
            name = arguments.machine or MACHINES.get(self.kind)
            if name is None:
                why = "no machine is described; `jali machine measure -n 4 -o here.toml` describes this one, for --machine here.toml"
                return {"costs": [], "costs_by": None, "no_costs": why}
            machine = load_machine(name)
            try:
                costs = Costs(machine, self.call, self.hosts, self.kind)
            except ParameterError as error:
                if arguments.machine is not None:
                    raise
                return {
                    "costs": [],
                    "costs_by": None,
                    "no_costs": str(error),
                }  # that machine was not requested
            entries = []
            for spec in specs_of(self.call.collective, self.kind, self.hosts):
                _, impossible = self.needs(spec)
                cost = Cost(None, impossible) if impossible else self._cost(costs, spec)
                entries.append({"algorithm": str(spec), "time": cost.time, "words": cost.words})
            fitted = costs.machine
            source = f"the planner's model of {machine.name}, {counted(fitted.nodes, 'node')} of {counted(fitted.ranks_per_node, 'rank')}"
        entries.sort(key=lambda entry: (entry["time"] is None, entry["time"] or 0.0))
        for entry in entries:
            entry["takes"] = entry["algorithm"] == takes
        return {"costs": entries, "costs_by": source}


def algorithm_as_written(text: str, collective: str, kind: str) -> str:
    """A spec whose algorithm may be written with dashes."""
    name, by, transports = text.partition(" by ")
    plain = name.replace("-", "_")
    known = {
        *_core.names_of_algorithms(collective, kind != "host"),
        *(entry for entry, of, *_ in OTHER_NAMES if of == collective),
    }
    return f"{plain if plain in known else name}{by}{transports}"


def kind_of(device: str | None) -> str:
    """ "host", or the kind of devices. Raises ParameterError."""
    if device in (None, "host"):
        return "host"
    try:
        kind, _ = parse_device(str(device))
    except DeviceError as error:
        raise ParameterError(f"--device: {error}") from None
    return "host" if kind == "cpu" else kind


def usual_transport(kind: str) -> str:
    """The first transport that carries messages between devices of a kind."""
    entries = _core.collective_transports([vendors.library_of(kind)])
    return next(name for name, _, carries, _ in entries if carries)


def spread(ranks: int, hosts: int) -> list[int]:
    """Ranks over hosts, near-equal. Raises ParameterError."""
    if not 1 <= hosts <= ranks:
        raise ParameterError(
            f"--hosts {hosts}: {counted(ranks, 'rank')} can be on 1 to {counted(ranks, 'host')}"
        )
    return [len(part) for part in np.array_split(range(ranks), hosts)]


def versions_of(pairs: Sequence[str]) -> dict[str, str]:
    """Versions by names of libraries. Raises ParameterError."""
    found = {}
    known = (*vendors.libraries(), *_core.mpi_libraries())
    for pair in pairs:
        name, equals, version = pair.partition("=")
        if name not in known or not equals or not all(part.isdigit() for part in version.split(".")):
            raise ParameterError(
                f"--versions: {value_shown(pair)} is no version like nccl=2.28.3; there are {', '.join(known)}"
            )
        found[name] = version
    return found


def text_of(facts: dict[str, Any]) -> str:
    """The facts as lines of text."""
    combined = (
        f" {facts['operation']}" if facts["collective"] in ("all_reduce", "reduce", "reduce_scatter") else ""
    )
    words = [
        f"{facts['collective']}{combined} of {size_text(facts['bytes'])} of {facts['type']}",
        *(["in place"] if facts["in_place"] and facts["collective"] != "broadcast" else []),
        *(["reproducible"] if facts["reproducible"] else []),
        *(["part of a graph"] if facts["persistent"] else []),
        f"on {counted(facts['ranks'], 'rank')} of {counted(len(facts['ranks_of_hosts']), 'host')}",
        "in the host's memory" if facts["memory"] == "host" else f"in memory of {facts['memory']} devices",
    ]
    lines = [", ".join(words)]
    if facts["bytes"] != facts["requested_bytes"]:
        lines.append(f"  ({facts['requested_bytes']} bytes are no whole elements on all ranks)")
    first = True
    for spec in facts["algorithms"]:
        label = "not" if spec["verdict"] == "not" else "takes" if first else "else"
        by = (
            f", messages by {spec['by']}"
            if spec["by"] != "its own" and " by " not in spec["algorithm"]
            else ""
        )
        lines.append(f"  {label:<6} {spec['algorithm']}{by}: {spec['rule']}{_colon(spec['why'])}")
        if spec["verdict"] == "not":
            lines.append(f"         {spec['impossible']}")
            continue
        first = False
        if spec["conditions"]:
            lines.append(f"         where {', '.join(spec['conditions'])}")
        if spec["needs"]:
            lines.append(f"         if {' and '.join(spec['needs'])}: only the ranks can know")
    if facts["takes"] is None:
        lines.append("  which is an error")
    if facts["requested_versions"] and not facts["versions"] and facts["memory"] != "host":
        lines.append(
            "  rules that ask for a library's version were passed over; --versions says which there is"
        )
    if "here" in facts:
        here = facts["here"]
        lines.append(
            f"  here   {here['missing']}"
            if "missing" in here
            else f"  here   {here['algorithm']}{_by(here['by'])}: {here['why']}"
        )
    if facts["costs_by"] is None:
        lines.append(f"  no costs: {facts['no_costs']}")
        return "\n".join(lines)
    if facts["takes_there"] not in (None, facts["takes"]):
        lines.append(
            f"  there  {facts['takes_there']}: the first of these by which messages go on that machine"
        )
    lines.append(f"  costs, by {facts['costs_by']}:")
    known = [entry for entry in facts["costs"] if entry["time"] is not None]
    width = max((len(entry["algorithm"]) for entry in known), default=0)
    for entry in known:
        name = "jali's own choice" if entry["algorithm"] == DEFAULT else entry["algorithm"]
        mark = "  <- taken" if entry["takes"] else ""
        line = f"    {name:<{width}} {time_text(entry['time']):>9} {_ratio(entry['time'], known[0]['time'])}{mark}"
        lines.append(f"{line}  {entry['words']}".rstrip())
    unknown: dict[str, list[str]] = {}
    for entry in facts["costs"]:
        if entry["time"] is None:
            unknown.setdefault(entry["words"], []).append(
                entry["algorithm"] + ("  <- taken" if entry["takes"] else "")
            )
    for why, names in unknown.items():
        names.sort(key=lambda name: "<-" not in name)
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        lines.append(f"    not known: {', '.join(names[:MOST_NAMED])}{more}\n      {why}")
    return "\n".join(lines)


def _ratio(time: float, best: float) -> str:
    return f"{time / best:>6.2f} x" if best else " " * 8


def _colon(text: str) -> str:
    return f": {text}" if text else ""


def _by(text: str) -> str:
    return f", messages by {text}" if text else ""
