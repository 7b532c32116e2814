"""`jali simulate`: how long a collective takes on a described machine, for one size or many, one machine or more.

`jali simulate halo`: an update of a split lattice with every halo policy (`jali.cli.simulate_halo`).
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from jali import comm
from jali.amounts import size_text, time_text
from jali.cli import simulate_halo
from jali.cli.options import keep_defaults, refuse_others
from jali.cli.plan_arguments import add_plan_arguments, load_machine, plan_from, sizes_argument
from jali.errors import ParameterError
from jali.planner.plan_text import simulation_facts, simulation_text

OPTIONS = {
    "collectives": (
        *("root", "dtype", "op", "size", "scaling"),
        *("form", "hierarchy", "libraries", "stripe", "ring", "depth", "reproducible"),
    ),
    "halo": ("kernel", "lattice", "grid", "precision", "policies", "site_ns"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali simulate`."""
    parser.description = (
        "Simulate a collective, or an update of a lattice with its halos, on a machine, without the machine."
    )
    add_plan_arguments(parser, size=False, others="; or halo")
    parser.add_argument(
        "--size",
        type=sizes_argument,
        default=[1 << 30],
        metavar="BYTES,...",
        help="payloads p*d (default 1GiB)",
    )
    parser.add_argument(
        "--scaling",
        action="store_true",
        help="from 2 nodes on, doubling, up to --nodes (default: of the file)",
    )
    simulate_halo.add_arguments(parser)
    keep_defaults(parser, OPTIONS)


def execute(arguments: argparse.Namespace) -> int:
    """Simulate each case; one rank prints for all."""
    if comm.current().rank != 0:
        return 0
    halo = arguments.collective == "halo"
    command = f"jali simulate {arguments.collective}"
    refuse_others(arguments, OPTIONS, "halo" if halo else "collectives", command, ("--machine", "--nodes"))
    if halo:
        return simulate_halo.execute(arguments)
    most = arguments.nodes or load_machine(arguments.machine).nodes
    if arguments.scaling and arguments.hierarchy is not None:
        raise ParameterError(
            "--scaling changes the number of nodes, and one --hierarchy fits one number; leave it out"
        )
    if arguments.scaling and most < 2:
        raise ParameterError("--scaling goes from 2 nodes up to --nodes; give --nodes 2 or more")
    cases = []
    for nodes in node_counts(most) if arguments.scaling else [most]:
        for size in arguments.size:
            plan = plan_from(arguments, size, nodes)
            result = plan.result
            assert result is not None
            case: dict[str, Any] = {
                "nodes": nodes,
                "ranks": plan.ranks,
                "size": size,
                "plan": plan.describe(),
            }
            cases.append(case | simulation_facts(result))
            if not arguments.json:
                print(
                    row(cases[-1])
                    if arguments.scaling or len(arguments.size) > 1
                    else "\n".join(
                        [
                            f"{plan.collective} of {size_text(size)}: {plan.describe()}",
                            *simulation_text(result),
                        ]
                    ),
                    flush=True,
                )
    if arguments.json:
        print(json.dumps(cases, indent=2))
    return 0


def node_counts(most: int) -> list[int]:
    """2, 4, 8, ... and `most` itself."""
    counts = [2]
    while counts[-1] * 2 <= most:
        counts.append(counts[-1] * 2)
    return counts if counts[-1] == most else [*counts, most]


def row(case: dict[str, Any]) -> str:
    """A case in a line."""
    share = case["fraction_of_bound"]
    return (
        f"{case['nodes']:>5} nodes {case['ranks']:>6} ranks {size_text(case['size']):>10} {time_text(case['time']):>9} "
        f"{case['throughput']:>8.1f} GB/s {'' if share is None else f'{share:>4.0%} of the bound':<18} {case['plan']}"
    )
