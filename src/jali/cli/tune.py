"""`jali tune`: what the tuner remembers about the devices of this machine, and why; forgetting it.

Measuring is done by programs as they run, since only they have the fields; JALI_TUNE says when.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from jali import comm, tune
from jali.errors import ParameterError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `jali tune`."""
    parser.description = "Show what was found fastest on the devices here, and why, or forget it."
    parser.epilog = "JALI_TUNE, for programs that run kernels: " + "; ".join(
        f"{name}: {words}" for name, words in tune.MODES.items()
    )
    parser.add_argument("action", choices=("show", "forget"), nargs="?", default="show")
    parser.add_argument(
        "kernel", nargs="?", help="only about this kernel: its name, or the beginning of its digest"
    )
    parser.add_argument("--why", action="store_true", help="show every candidate with its time")


def execute(arguments: argparse.Namespace) -> int:
    """Show or forget; one rank speaks for all."""
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
            f"nothing is remembered about a kernel {arguments.kernel!r}; try: jali tune show"
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
            f"nothing is remembered about a kernel {arguments.kernel!r}; try: jali tune show"
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
