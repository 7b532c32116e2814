"""Arguments that `jali plan` and `jali simulate` share: which collective, on which machine, how."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from pathlib import Path
from typing import Any

from jali import settings
from jali.amounts import counted
from jali.cli.file_kinds import MACHINE, RULES, TEXT, TOML, refuse_other_kinds
from jali.cli.progress import SearchProgress
from jali.errors import ParameterError
from jali.files import reading, value_shown
from jali.planner.machine import Machine, shipped
from jali.planner.plan import Plan
from jali.planner.standard_plans import MOST_BYTES, plan_collective

LONGEST_NAME = 100
UNITS = {
    "": 1,
    "b": 1,
    **{u + "b": 1000**k for k, u in enumerate("kmgt", 1)},
    **{u + "ib": 1024**k for k, u in enumerate("kmgt", 1)},
}


def add_plan_arguments(parser: argparse.ArgumentParser, size: bool = True, others: str = "") -> None:
    """Collective (or one of `others`), machine, size and the parameters of the plan."""
    parser.add_argument(
        "collective",
        help="all-reduce, all-gather, reduce-scatter, broadcast, reduce, gather, scatter, all-to-all"
        + others,
    )
    parser.add_argument(
        "--machine",
        required=True,
        metavar="NAME|FILE",
        help=f"{', '.join(shipped())}, or a TOML file",
    )
    parser.add_argument(
        "--nodes", type=whole_argument, metavar="N", help="nodes of the machine (default: those of its file)"
    )
    parser.add_argument(
        "--root", type=whole_argument, default=0, metavar="R", help="root, where there is one (default 0)"
    )
    parser.add_argument("--dtype", default="float32", metavar="TYPE", help="element type (default float32)")
    parser.add_argument("--op", default="sum", metavar="OP", help="reduction (default sum)")
    if size:
        parser.add_argument(
            "--size",
            type=size_argument,
            default=1 << 30,
            metavar="BYTES",
            help="payload p*d, like 64MiB (default 1GiB)",
        )
    how = parser.add_argument_group(
        "parameters of the plan", "if none is given, the best ones are searched for by simulation"
    )
    how.add_argument("--form", choices=("single", "composed", "rooted"), help="steps of the composition")
    how.add_argument(
        "--hierarchy", type=factors_argument, metavar="F,F,...", help="factors of the ranks, outermost first"
    )
    how.add_argument(
        "--libraries", type=names_argument, metavar="L,L,...", help="library per level of the hierarchy"
    )
    how.add_argument(
        "--stripe", type=whole_argument, metavar="S", help="ranks over which a root spreads a piece"
    )
    how.add_argument("--ring", type=whole_argument, metavar="R", help="nodes of the ring (1: none)")
    how.add_argument("--depth", type=whole_argument, metavar="M", help="chunks of the pipeline")
    how.add_argument("--reproducible", action="store_true", help="combine in the order of ranks")


def plan_from(arguments: argparse.Namespace, size: int | None = None, nodes: int | None = None) -> Plan:
    """The plan that the arguments describe."""
    nodes = nodes if nodes is not None else arguments.nodes
    machine = load_machine(arguments.machine, nodes)
    chosen: dict[str, Any] = {
        name: getattr(arguments, name)
        for name in ("hierarchy", "libraries", "stripe", "ring", "depth", "reproducible")
    }
    if not 0 <= arguments.root < machine.ranks:
        raise ParameterError(f"root {arguments.root} does not exist among {counted(machine.ranks, 'rank')}")
    progress = SearchProgress(sys.stderr)
    try:
        return plan_collective(
            arguments.collective,
            machine,
            size if size is not None else arguments.size,
            dtype=arguments.dtype,
            root=arguments.root,
            op=arguments.op,
            form=arguments.form,
            progress=progress,
            **chosen,
        )
    finally:
        progress.done()


def load_machine(name: str, nodes: int | None = None) -> Machine:
    """The machine of that name, or in that file. Raises ParameterError, FileFormatError."""
    names = ", ".join(shipped())
    refuse_other_kinds(
        name, [MACHINE, TOML, TEXT], f"the description of a machine (TOML) is needed, or one of {names}"
    )
    return Machine.load(name, nodes)


def rules_file(path: Path) -> str:
    """The name of a file of rules of collectives. Raises FileFormatError, ParameterError."""
    refuse_other_kinds(path, [RULES, TOML, TEXT], "a file of rules of collectives (TOML) is needed")
    name = str(path.absolute())
    with contextlib.suppress(OSError), reading(name):
        pass  # a pipe is an error here; the core would wait for it
    settings.changed(collective_rules=name)
    return name


def size_argument(text: str) -> int:
    """Bytes from "8", "64KiB", "1.5GB"."""
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", text.lower())
    try:
        value = float(found[1]) * UNITS[found[2]] if found else 0.0
    except (KeyError, ValueError):
        value = 0.0
    if not 1 <= value < MOST_BYTES:
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} is no size; write bytes, or 64KiB, 16MiB, 1GiB, 2GB, below 2^50"
        )
    return int(value)


def whole_argument(text: str) -> int:
    """A whole number that the planner can hold; whether it makes sense is decided there."""
    if not re.fullmatch(r"-?[0-9]{1,10}", text.strip()) or abs(int(text)) >= 1 << 31:
        raise argparse.ArgumentTypeError(f"{value_shown(text)} is no whole number below 2^31")
    return int(text)


def sizes_argument(text: str) -> list[int]:
    """Sizes separated by commas."""
    return [size_argument(part) for part in text.split(",")]


def factors_argument(text: str) -> list[int]:
    """Whole numbers separated by commas."""
    try:
        return [whole_argument(part) for part in text.split(",")]
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} are no factors; write them like 4,4,2"
        ) from None


def names_argument(text: str) -> list[str]:
    """Names separated by commas."""
    names = [part.strip() for part in text.split(",")]
    if max(map(len, names)) > LONGEST_NAME:
        raise argparse.ArgumentTypeError(
            f"{value_shown(text)} has a name of more than {LONGEST_NAME} characters"
        )
    if not all(names):
        raise argparse.ArgumentTypeError(f"{value_shown(text)} has an empty name; write them like a,b")
    return names
