"""`jali mpirun`: start an MPI program as it is, with jali between it and its MPI library."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from jali import _core, settings
from jali.cli.file_kinds import PROGRAM, refuse_other_kinds
from jali.cli.plan_arguments import rules_file
from jali.comm.launcher import launch
from jali.errors import ParameterError

INTERPOSER = Path(_core.__file__).with_name("libjali_mpi.so")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali mpirun`."""
    parser.description = (
        "Start an MPI program as it is, with jali between it and its MPI library: device memory may be given to any call, and "
        "collectives go where they are fastest. The same as LD_PRELOAD=libjali_mpi.so under any launcher."
    )
    parser.add_argument("--counters", action="store_true", help="say at the end who did the program's calls")
    parser.add_argument(
        "--rules", type=Path, metavar="FILE", help="rules of collectives, as JALI_COLLECTIVE_RULES"
    )
    parser.add_argument(
        "--launcher",
        metavar="MPIEXEC",
        help="of the MPI library that the program is linked to, where that is not the one of mpi4py",
    )
    parser.add_argument("program", help="the program to start")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")


def execute(arguments: argparse.Namespace) -> int:
    """Start the program on `-n` ranks (default: 1); returns its exit status."""
    program = shutil.which(arguments.program)
    if program is None:
        refuse_other_kinds(arguments.program, [PROGRAM], "a program that can be run is needed")
        raise ParameterError(f"there is no program {arguments.program!r} that can be run")
    environment = {
        "LD_PRELOAD": " ".join(filter(None, [str(INTERPOSER), settings.environment().get("LD_PRELOAD")]))
    }
    if arguments.counters:
        environment["JALI_MPI_COUNTERS"] = "1"
    if arguments.rules is not None:
        environment["JALI_COLLECTIVE_RULES"] = rules_file(arguments.rules)  # an error is reported here, once
    # The launcher itself is not to load it.
    words = [
        "env",
        *(f"{name}={value}" for name, value in environment.items()),
        program,
        *arguments.arguments,
    ]
    return launch(arguments.ranks or 1, words, launcher=arguments.launcher)
