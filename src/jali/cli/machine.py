"""`jali machine`: measure the machine that these ranks run on, or show a description."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from jali import comm
from jali.cli.plan_arguments import load_machine
from jali.errors import ParameterError
from jali.io.parallel import together
from jali.planner.machine import Machine, shipped


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali machine`."""
    parser.description = "Measure this machine with all ranks (-n), or show a description of one."
    parser.add_argument(
        "what", choices=("measure", "show", "list"), help="measure this one, show one, or list names"
    )
    parser.add_argument("machine", nargs="?", metavar="NAME", help="for show: a name or a TOML file")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="for measure: where the description goes"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Measure, show or list; one rank prints for all."""
    ranks = comm.current()
    if arguments.what == "measure":
        from jali.bench.host_device import host_device, host_transports
        from jali.planner.measure import measure

        several = ranks.size > 1  # else measure reports what is missing
        device = host_device(ranks) if several else None
        transports = host_transports(ranks) if several else None
        text = measure(ranks, arguments.output.stem if arguments.output else None, device, transports)
        with together(ranks):
            if ranks.rank == 0 and arguments.output:
                arguments.output.write_text(text)
        if ranks.rank == 0:
            import tomllib

            written = f"# written to {arguments.output}\n" if arguments.output else ""
            print(json.dumps(tomllib.loads(text), indent=2) if arguments.json else written + text, end="\n")
        return 0
    if ranks.rank != 0:
        return 0
    if arguments.what == "list":
        names = shipped()
        print(json.dumps(list(names)) if arguments.json else "\n".join(names))
        return 0
    if arguments.machine is None:
        raise ParameterError(f"which machine? jali knows {', '.join(shipped())}, and reads TOML files")
    facts = describe(load_machine(arguments.machine))
    if arguments.json:
        print(json.dumps(facts, indent=2))
        return 0
    for key, value in facts.items():
        print(f"{key:<16} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return 0


def describe(machine: Machine) -> dict[str, Any]:
    """A summary of a machine."""
    return {
        "name": machine.name,
        "about": machine.about,
        "nodes": machine.nodes,
        "ranks_per_node": machine.ranks_per_node,
        "shape": list(machine.shape),
        "levels": list(machine.level_names),
        "nics": len(machine.network.rated),
        "nic_gb_per_s": list(machine.network.rated),
        "libraries": [f"{name} ({', '.join(library.at)})" for name, library in machine.libraries.items()],
        "computes_on": None if machine.device is None else machine.device.kind,
        "transports": [
            f"{name} ({', '.join(transport.messages.at)})" for name, transport in machine.transports.items()
        ],
    }
