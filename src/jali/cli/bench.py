"""`jali bench collectives`: jali's collectives beside those of the MPI library, on these ranks and the same data."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from jali import comm
from jali.cli.plan_arguments import names_argument, size_argument
from jali.errors import ParameterError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali bench`."""
    parser.description = "Time collectives against the MPI library's own: p*d/t, results compared in every round. Needs MPI ranks (-n)."
    parser.add_argument("what", choices=("collectives",), help="what is measured")
    parser.add_argument(
        "--only", type=names_argument, metavar="NAME,...", help="these collectives (default: all eight)"
    )
    parser.add_argument("--smallest", type=size_argument, default=8, metavar="BYTES", help="default 8")
    parser.add_argument(
        "--largest", type=size_argument, default=64 << 20, metavar="BYTES", help="default 64MiB"
    )
    parser.add_argument("--factor", type=int, default=8, metavar="F", help="between sizes (default 8)")
    parser.add_argument(
        "--rounds", type=int, default=10, metavar="N", help="measured rounds at least (default 10)"
    )
    parser.add_argument("--output", type=Path, metavar="DIR", help="where CSV, JSON and plot go")


def execute(arguments: argparse.Namespace) -> int:
    """Measure and report; one rank speaks for all."""
    from jali.bench import collectives, collectives_report

    ranks = comm.current()
    if ranks.transport != "mpi":
        raise ParameterError("the MPI library's collectives need MPI ranks; say how many, like -n 2")
    if arguments.factor < 2 or arguments.rounds < 1 or arguments.largest < arguments.smallest:
        raise ParameterError(
            "give --factor 2 or more, --rounds 1 or more, and --largest not below --smallest"
        )
    only = [name.replace("-", "_") for name in arguments.only or collectives.COLLECTIVES]
    unknown = sorted(set(only) - set(collectives.COLLECTIVES))
    if unknown:
        raise ParameterError(
            f"no collective {', '.join(unknown)}; there are {', '.join(collectives.COLLECTIVES)}"
        )
    from mpi4py import MPI

    sides: list[collectives.Side] = [collectives.JaliSide(ranks), collectives.MpiSide(MPI.COMM_WORLD)]
    report = collectives.measure(
        MPI.COMM_WORLD,
        sides,
        collectives.sizes_between(arguments.smallest, arguments.largest, arguments.factor),
        only,
        rounds=arguments.rounds,
        progress=None
        if arguments.json
        else lambda cell: print(collectives_report.row_text(cell, "jali", "mpi"), flush=True),
    )
    if ranks.rank != 0:
        return 0
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        collectives_report.write_csv(report, arguments.output / "collectives.csv")
        collectives_report.write_json(report, arguments.output / "collectives.json")
        collectives_report.write_plot(report, arguments.output / "collectives.png")
    if arguments.json:
        print(json.dumps(collectives_report.as_json(report), indent=1))
    else:
        print(collectives_report.summary(report))
    return 0
