"""`jali tune`: the tuner's stored choices for the devices of this machine, with reasons; their deletion; rules of
collectives and of solvers.

Measuring kernels is done by programs as they run, since only they have the fields; JALI_TUNE sets when. Collectives are
measured by `jali tune collectives` (`tune_collectives.py`), solvers by `jali tune solvers` (`tune_solvers.py`).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from jali import comm, tune, vendors
from jali.cli.configurations import extents_argument
from jali.cli.options import device_argument, keep_defaults, numbers_argument, refuse_others
from jali.cli.plan_arguments import names_argument, size_argument, whole_argument
from jali.devices import device_names
from jali.errors import ParameterError
from jali.files import value_shown

OF_COLLECTIVES = (
    "device",
    "only",
    "smallest",
    "largest",
    "factor",
    "dtypes",
    "in_place",
    "graphs",
    "rounds",
    "seconds",
    "output",
    "picture",
    "go_on",
    "force",
)
OF_IMPORT = ("output", "force", "memory", "assume", "strict")
OF_SOLVERS = (
    "device",
    "lattice",
    "beta",
    "sweeps",
    "configuration",
    "mass",
    "numbers",
    "tolerance",
    "batch",
    "solves",
    "output",
    "force",
)
OPTIONS = {
    "show": ("why",),
    "forget": (),
    "collectives": OF_COLLECTIVES,
    "import-mpich": OF_IMPORT,
    "solvers": OF_SOLVERS,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali tune`."""
    parser.description = (
        "Show what was found fastest on the devices here, and why, or forget it. Or (collectives) measure every algorithm of every "
        "collective between the ranks (-n), and write rules for those sizes where one is faster than jali's own choice; "
        "JALI_COLLECTIVE_RULES names their file to programs. Or (import-mpich) write such rules from a tree of MPICH's, which its "
        "MPIR_CVAR_COLL_SELECTION_TUNING_JSON_FILE or the like names. Or (solvers) measure the solvers of a Dirac operator, and write a rule by which "
        "jali.solve takes the fastest."
    )
    parser.epilog = "JALI_TUNE, for programs that run kernels: " + "; ".join(
        f"{name}: {words}" for name, words in tune.MODES.items()
    )
    parser.add_argument(
        "action", choices=tuple(OPTIONS), nargs="?", default="show", help="what to do (default show)"
    )
    parser.add_argument(
        "kernel",
        nargs="?",
        help="only about this kernel: its name, or the beginning of its digest; for import-mpich: the tree, a JSON file; for solvers: the operator, "
        "like clover",
    )
    parser.add_argument("--why", action="store_true", help="show every candidate with its time")
    of = parser.add_argument_group("collectives")
    of.add_argument(
        "--device", type=device_argument, metavar="NAME", help=f"{device_names('')} (default: the host)"
    )
    of.add_argument(
        "--only", type=names_argument, metavar="NAME,...", help="these collectives (default: all eight)"
    )
    of.add_argument("--smallest", type=size_argument, default=8, metavar="BYTES", help="default 8")
    of.add_argument("--largest", type=size_argument, default=64 << 20, metavar="BYTES", help="default 64MiB")
    of.add_argument("--factor", type=whole_argument, default=8, metavar="F", help="between sizes (default 8)")
    of.add_argument(
        "--dtypes",
        type=names_argument,
        default=["float32"],
        metavar="NAME,...",
        help="of elements (default float32, for rules that ask for no type)",
    )
    of.add_argument(
        "--in-place", action="store_true", help="also calls whose result is where their argument was"
    )
    of.add_argument(
        "--graphs",
        action="store_true",
        help="on devices also calls that are parts of graphs; without, rules are for other calls only",
    )
    of.add_argument(
        "--rounds", type=whole_argument, default=20, metavar="N", help="measured rounds at least (default 20)"
    )
    of.add_argument(
        "--seconds",
        type=float,
        default=0.1,
        metavar="S",
        help="rounds of a cell go on for so long (default 0.1)",
    )
    of.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="where rules go (default: collective-rules-MEMORY-N-ranks.toml, here; of import-mpich: TREE.toml, here; of solvers: the file that jali.solve reads)",
    )
    of.add_argument(
        "--picture", type=Path, metavar="FILE", help="draw times of all algorithms over sizes, a PNG or PDF"
    )
    of.add_argument(
        "--continue",
        dest="go_on",
        action="store_true",
        help="go on with what an interrupted run has measured",
    )
    of.add_argument("--force", action="store_true", help="write over rules that are there; begin anew")
    tree = parser.add_argument_group("import-mpich")
    tree.add_argument(
        "--memory",
        default="host",
        metavar="NAME",
        help="whose arrays the rules are for: host (default), device, " + ", ".join(vendors.names()),
    )
    tree.add_argument(
        "--assume",
        type=names_argument,
        default=[],
        metavar="NAME=WORD,...",
        help="what predicates are that rules cannot ask, like is_multi_threaded=no,is_node_consecutive=yes",
    )
    tree.add_argument(
        "--strict",
        action="store_true",
        help="write nothing where leaving something out changes what rules mean",
    )
    of_solvers = parser.add_argument_group("solvers")
    of_solvers.add_argument(
        "--lattice", type=extents_argument, metavar="X,Y,Z,T", help="extents (default 8,8,8,16)"
    )
    of_solvers.add_argument("--beta", type=float, metavar="B", help="of quenched links of SU(3) (default 6)")
    of_solvers.add_argument(
        "--sweeps",
        type=whole_argument,
        metavar="N",
        help="of heat bath and overrelaxation before (default 30)",
    )
    of_solvers.add_argument(
        "--configuration", type=Path, metavar="FILE", help="a gauge configuration in place of quenched links"
    )
    of_solvers.add_argument("--mass", type=float, metavar="M", help="the bare mass")
    of_solvers.add_argument(
        "--numbers",
        type=numbers_argument,
        default={},
        metavar="NAME=NUMBER,...",
        help="others that the operator has, like csw=1.2,mu=0.1",
    )
    of_solvers.add_argument(
        "--tolerance", type=float, default=1e-10, metavar="T", help="of |b - A x| / |b| (default 1e-10)"
    )
    of_solvers.add_argument(
        "--batch", type=whole_argument, metavar="N", help="right-hand sides at once (default: one)"
    )
    of_solvers.add_argument(
        "--solves", type=whole_argument, default=3, metavar="N", help="of each candidate (default 3)"
    )
    keep_defaults(parser, OPTIONS)


def execute(arguments: argparse.Namespace) -> int:
    """Show or forget, where one rank prints for all, or measure collectives."""
    also = {
        "collectives": ("--json",),
        "import-mpich": ("a tree", "--json"),
        "solvers": ("the name of an operator", "--json"),
    }.get(arguments.action, ("the name of a kernel", "--json"))
    refuse_others(arguments, OPTIONS, arguments.action, f"jali tune {arguments.action}", also)
    if arguments.action == "collectives":
        from jali.cli.tune_collectives import execute as collectives

        if arguments.kernel is not None:
            raise ParameterError(
                f"jali tune collectives takes no {value_shown(arguments.kernel)}; --only names collectives"
            )
        return collectives(arguments)
    if arguments.action == "import-mpich":
        from jali.cli.import_mpich import execute as import_mpich

        return import_mpich(arguments)
    if arguments.action == "solvers":
        from jali.cli.tune_solvers import execute as solvers

        return solvers(arguments)
    if comm.current().rank != 0:
        return 0
    if arguments.action == "forget":
        return _forget(arguments)
    found = []
    for store in tune.stores():
        entries = [e for e in store.read().values() if _about(e, arguments.kernel)]
        found.append((store, entries))
    if arguments.kernel is not None and not any(entries for _, entries in found):
        raise ParameterError(
            f"nothing is remembered about a kernel {value_shown(arguments.kernel)}; try: jali tune show"
        )
    if arguments.json:
        files = [
            {"path": str(s.path), "device": s.device, "entries": [e.as_json() for e in entries]}
            for s, entries in found
        ]
        print(json.dumps({"path": str(tune.tune_directory()), "files": files}, indent=2))
        return 0
    if not any(entries for _, entries in found):
        print(f"nothing was measured yet: {tune.tune_directory()} is empty")
    for store, entries in found:
        if entries:
            print(_table(store, entries, arguments.why))
    return 0


def _forget(arguments: argparse.Namespace) -> int:
    gone = sum(store.forget(arguments.kernel) for store in tune.stores())
    if arguments.kernel is not None and gone == 0:
        raise ParameterError(
            f"nothing is remembered about a kernel {value_shown(arguments.kernel)}; try: jali tune show"
        )
    print(json.dumps({"forgotten": gone}) if arguments.json else f"forgot {gone} answers")
    return 0


def _about(entry: Any, kernel: str | None) -> bool:
    return kernel is None or entry.question.kernel == kernel or entry.question.digest.startswith(kernel)


def _table(store: Any, entries: list[Any], why: bool) -> str:
    lines = [f"{store.device}  ({store.path})"]
    if why:
        return "\n".join([*lines, *(f"{e.why()}\n  measured {e.measured}, {_of(e)}" for e in entries)])
    rows = [("kernel", "question", "where", "choice")]
    rows += [(e.question.kernel, e.question.kind, e.question.volume, e.summary()) for e in entries]
    widths = [max(len(row[k]) for row in rows) for k in range(3)]
    lines += ["  ".join([*(row[k].ljust(widths[k]) for k in range(3)), row[3]]) for row in rows]
    return "\n".join(lines)


def _of(entry: Any) -> str:
    return f"jali {entry.question.version}, source {entry.question.digest}"
