"""`jali profile`: where the time of a simulation's sweeps goes, beside the roofs of the machine.

Runs the chain of a parameter file like `jali run`, but for a few sweeps and without a directory of a run: the first
ones, which compile and bind, are not recorded, nor are files written in between. Every rank measures its own roofs,
all at the same time, since ranks of a host share its memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from jali import comm
from jali.cli.configurations import add_device_argument
from jali.cli.markov_chain import MarkovChain
from jali.cli.options import make_folder
from jali.cli.parameters import load_parameters
from jali.cli.schema import toml_value
from jali.errors import ParameterError
from jali.io.parallel import together
from jali.profile import LoadMeter, Recording, Roofs, Table, loads, measure_roofs, recording


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali profile`."""
    parser.description = (
        "Record some sweeps of a simulation: times and rates of kernels and halos against measured roofs, and a trace "
        "for ui.perfetto.dev."
    )
    parser.add_argument("parameters", metavar="PARAMETERS.toml", help="what to simulate")
    parser.add_argument(
        "--sweeps", type=int, default=3, metavar="N", help="sweeps that are recorded (default 3)"
    )
    parser.add_argument(
        "--warm-up", type=int, default=1, metavar="N", help="sweeps before that, which compile (default 1)"
    )
    parser.add_argument(
        "--output", type=Path, metavar="DIR", help="where trace.json, profile.json and profile.csv go"
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a parameter, for example --set extents=16,16,16,16",
    )
    parser.add_argument("--no-roofs", action="store_true", help="do not measure the machine")
    add_device_argument(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Warm up, record, gather, report; one rank prints for all."""
    ranks = comm.current()
    with together(ranks):
        if arguments.sweeps < 1 or arguments.warm_up < 0:
            raise ParameterError("give --sweeps 1 or more and --warm-up 0 or more")
        if arguments.device is not None:
            arguments.overrides = [*arguments.overrides, f"run.device={toml_value(arguments.device)}"]
        parameters = load_parameters(arguments.parameters, arguments.overrides)
        if ranks.rank == 0 and arguments.output is not None:
            make_folder("--output", arguments.output)
    chain = MarkovChain.start(parameters, ranks)
    measuring = chain.parameters.run.measure_every > 0
    for _ in range(arguments.warm_up):
        chain.advance()
        if measuring:
            chain.measure()
    gpu = chain.U.lattice.gpu
    meter = LoadMeter()
    roofs = [] if arguments.no_roofs else gather_roofs(ranks, gpu)
    if gpu is not None:
        gpu.synchronize()
    with recording(ranks) as found:
        for _ in range(arguments.sweeps):
            with found.span(f"sweep {chain.sweep + 1}"):
                chain.advance()
            if measuring and chain.is_due(parameters.run.measure_every):
                with found.span("measurement"):
                    chain.measure()
        if gpu is not None:
            gpu.synchronize()  # what is recorded is what the sweeps take
    readings = ranks.gather_bytes(meter.reading())
    with together(ranks):
        if ranks.rank == 0:
            table = found.table(roofs, loads(readings))
            if arguments.output is not None:
                write(found, table, arguments.output)
            _say(arguments, table)
    return 0


def gather_roofs(ranks: comm.Communicator, gpu: Any) -> list[Roofs]:
    """The roofs of all ranks, measured at the same time. Collective."""
    ranks.barrier()
    mine = measure_roofs(gpu, threads=1 if gpu is not None else ranks.threads)
    texts = ranks.gather_bytes(json.dumps(dataclasses.asdict(mine)).encode())
    return [Roofs(**json.loads(text)) for text in texts]


def write(found: Recording, table: Table, directory: Path) -> None:
    """The files of a profile. Raises OSError."""
    found.write_trace(directory / "trace.json")
    table.write_json(directory / "profile.json")
    table.write_csv(directory / "profile.csv")


def _say(arguments: argparse.Namespace, table: Table) -> None:
    if arguments.json:
        print(json.dumps(table.as_dict(), indent=1))
        return
    print(table)
    if arguments.output is not None:
        print(
            f"\n{arguments.output / 'trace.json'} opens in ui.perfetto.dev; the table is in profile.json and .csv"
        )
