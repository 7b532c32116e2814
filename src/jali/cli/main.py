"""The `jali` command line: finds the command, starts ranks if requested, converts exceptions to exit codes.

A command is a module with `add_arguments(parser)` and `execute(arguments) -> int`, and perhaps a `start_ranks` of its own; it
is imported only at its use, so that `jali --help` needs nothing. Every command takes `-n N`, and those that print results
`--json`. The exit codes of all commands are defined here:

0 done, 1 failed, 2 bad input (arguments, parameters, files, layouts), 130 and 143 interrupted (SIGINT,
SIGTERM), of runs that had begun with a checkpoint.
"""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from jali import early
from jali.cli import launch
from jali.cli.error_text import error_lines
from jali.comm.communicator import came_from_elsewhere
from jali.comm.stopping import end_job, said_elsewhere, speaker
from jali.comm.world import known
from jali.errors import FileFormatError, JaliError, LayoutError, ParameterError
from jali.files import CONTROL, shown, value_shown
from jali.version import __version__

DONE, FAILED, BAD_INPUT, INTERRUPTED = 0, 1, 2, 130

BAD_INPUT_ERRORS = (
    ParameterError,
    FileFormatError,
    LayoutError,
    FileNotFoundError,
    IsADirectoryError,
    NotADirectoryError,
    PermissionError,
)


# The system's errors for names that are too long and for links that lead to themselves.
IMPOSSIBLE_NAMES = (errno.ENAMETOOLONG, errno.ELOOP)

LONGEST_LINE = 1000  # of an error about arguments
LONGEST_VALUE = 500  # of an option that names no file

MOST_RANKS = 100_000
"""What `-n` starts at most: far more would be processes of one machine."""


@dataclass(frozen=True)
class Command:
    """An entry of the table of commands: its module and its line in `jali --help`."""

    module: str
    summary: str
    ranks: str = "start N MPI ranks, with the launcher of the MPI library"  # help of `-n`
    starts_ranks: bool = True  # whether `-n` starts ranks of jali
    json: bool = True  # whether it takes --json


COMMANDS = {
    "run": Command("jali.cli.run", "run a simulation that a parameter file describes, or resume one"),
    "measure": Command(
        "jali.cli.measure", "measure plaquette, Polyakov loop and more on configuration files"
    ),
    "invert": Command(
        "jali.cli.invert", "solve for the quark propagator on a configuration, and write it into a file"
    ),
    "spectrum": Command(
        "jali.cli.spectrum", "find the masses of mesons and nucleons on configurations, with a report"
    ),
    "convert": Command("jali.cli.convert", "rewrite a configuration file in another format"),
    "plan": Command("jali.cli.plan", "explain how a collective is done on a described machine, and draw it"),
    "explain": Command(
        "jali.cli.explain",
        "say which algorithm a collective would take, by which rule, and what it and the others cost",
        ranks="ranks of the call; none is started (default: as many as run here)",
        starts_ranks=False,
    ),
    "simulate": Command(
        "jali.cli.simulate",
        "simulate collectives, or updates with halos, on a described machine, up to thousands of ranks",
    ),
    "machine": Command("jali.cli.machine", "measure the machine that ranks run on, or show a described one"),
    "example": Command(
        "jali.cli.example", "list and run the applications that come with jali, and check them"
    ),
    "bench": Command(
        "jali.cli.bench",
        "time collectives beside the MPI library's, every policy of halo exchange, or two commits of jali",
    ),
    "tune": Command(
        "jali.cli.tune",
        "show what was found fastest on the devices here, and why, or forget it; measure rules of collectives and of solvers, or "
        "import those of collectives from MPICH",
    ),
    "mpirun": Command(
        "jali.cli.mpirun",
        "start an MPI program as it is, with jali between it and its MPI library",
        ranks="ranks of the program (default 1)",
        starts_ranks=False,
        json=False,
    ),
    "profile": Command("jali.cli.profile", "show where the time of a simulation goes, beside measured roofs"),
    "info": Command(
        "jali.cli.info", "show what jali found here: compiler, vector width, ranks, MPI, devices, NCCL, cache"
    ),
}

EPILOG = """\
exit codes: 0 done, 1 failed, 2 bad input, 130 and 143 interrupted (a run that had begun can be resumed)
environment: JALI_CACHE_DIR, JALI_TRANSPORT, JALI_HALO_POLICY, JALI_THREADS, JALI_DEVICE,
  JALI_COLLECTIVE, JALI_CHECKED, JALI_TUNE"""


class Parser(argparse.ArgumentParser):
    """Prints an error in one line, as all errors of commands; of several ranks one does. For an unknown option it
    names the nearest one."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As that of argparse."""
        found, rest = self.parse_known_args(args, namespace)
        if rest:
            command = getattr(found, "command", None)
            of_command = next(
                (
                    a.choices[command]
                    for a in self._actions
                    if isinstance(a, argparse._SubParsersAction) and command
                ),
                self,
            )
            wrong = next((word.partition("=")[0] for word in rest if word.startswith("--")), None)
            known = [option for option in of_command._option_string_actions if option.startswith("--")]
            near = difflib.get_close_matches(wrong, known, 1) if wrong else []
            hint = f"; the nearest option is {near[0]}" if near else ""
            of_command.error(f"unrecognized arguments: {' '.join(rest)}{hint}")
        return found

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Names of files may hold any bytes, as the system has them; other values of options are words on a line."""
        of_file = any(word in str(action.metavar) for word in ("FILE", "DIR", "PATH", "KEY=VALUE"))
        for text in arg_strings if action.option_strings and not of_file else ():
            if (action.type in (None, int, float) and len(text) > LONGEST_VALUE) or any(
                ord(c) in CONTROL or "\ud800" <= c <= "\udfff" for c in text
            ):
                raise argparse.ArgumentError(action, f"{value_shown(text)} is no value that it could have")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """End with status 2."""
        here = known()
        first = early.is_first() if here is None else here.rank == 0
        self.exit(BAD_INPUT, f"{self.prog}: error: {shown(message, LONGEST_LINE)}\n" if first else None)


def make_parser(chosen: str | None) -> argparse.ArgumentParser:
    """The parser; only the command named `chosen` is imported and has its own arguments."""
    parser = Parser(
        prog="jali",
        description="Lattice field theory from one Python function to native kernels.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"jali {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        subparser = commands.add_parser(name, help=command.summary, description=_sentence(command.summary))
        if command.json:
            subparser.add_argument(
                "--json", action="store_true", help="print one JSON document instead of text"
            )
        subparser.add_argument(
            "-n",
            "--ranks",
            type=_rank_count,
            metavar="N",
            help=command.ranks,
        )
        if name == chosen:
            module = importlib.import_module(command.module)
            module.add_arguments(subparser)
            starts = getattr(module, "start_ranks", None)
            subparser.set_defaults(execute=module.execute, start_ranks=starts)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the `jali` command with these arguments (default: the process's); returns the exit status."""
    arguments_given = list(sys.argv[1:] if argv is None else argv)
    # Names of files may hold any bytes; they are printed as they were given.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="surrogateescape")
    try:
        chosen = next((word for word in arguments_given if not word.startswith("-")), None)
        arguments = make_parser(chosen).parse_args(arguments_given)
        if arguments.ranks is not None and COMMANDS[arguments.command].starts_ranks:
            start_ranks = arguments.start_ranks or launch.start_ranks
            status = start_ranks(arguments.ranks, arguments_given)
            if status is not None:
                return status
        early.over()
        status = arguments.execute(arguments)
        sys.stdout.flush()
        return status
    except BAD_INPUT_ERRORS as error:
        return _fail(error, BAD_INPUT)
    except (JaliError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of the output has closed the pipe (`jali info | head`): there is nothing to report.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        return _fail(error, BAD_INPUT if getattr(error, "errno", None) in IMPOSSIBLE_NAMES else FAILED)
    except MemoryError as error:
        return _fail(error, FAILED)
    except KeyboardInterrupt as interruption:
        print(f"{speaker()}: interrupted", file=sys.stderr, flush=True)
        end_job(interruption, INTERRUPTED)
        return INTERRUPTED


def _fail(error: Exception, status: int) -> int:
    """Print the error; under MPI the other ranks are stopped too, so this may not return.

    An error that all ranks raised together is printed by one of them, and all of them end in order; one that each
    raised by itself is printed by one as well.
    """
    if getattr(error, "on_every_rank", False):
        communicator = known()
        if communicator is None or communicator.rank == 0:
            print(error_lines(error, "jali"), file=sys.stderr, flush=True)
        return status
    here = known()
    silent = here is not None and not came_from_elsewhere(error, here.rank) and said_elsewhere(error)
    if not silent:
        print(error_lines(error, speaker()), file=sys.stderr, flush=True)
    end_job(error, status, silent=silent)
    return status


def _rank_count(text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if not 1 <= count <= MOST_RANKS:
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} is not a number of ranks to start; give 1 to {MOST_RANKS}"
        )
    return count


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."
