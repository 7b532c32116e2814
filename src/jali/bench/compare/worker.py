"""A process of one side of a comparison, run as a script: imports the jali of that side, sets up a case, and times it on request.

`python worker.py PACKAGE CASES SOCKET`. It stays alone in a file, since beside it there may be a jali that does not have it.
Between its turns it waits for a line and uses no processor. Answers go through a socket: standard streams are for other output.
"""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class OnlyFrom:
    """Finds jali in one folder, in front of all that an installation of jali may have put into place."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != "jali":
            return None
        return PathFinder.find_spec(name, [self.package] if path is None else path)


def module_at(path: str, name: str) -> ModuleType:
    """A module from a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def set_up(cases: str, order: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The work of a case, and the answer: what it is and how long a call takes, or why there is none."""
    try:
        work = module_at(cases, "jali_bench_cases").set_up(order["case"], order["precision"], order["device"])
    except (ImportError, AttributeError, TypeError) as error:
        return None, {"missing": f"{type(error).__name__}: {error}".splitlines()[0]}
    run(work, 1)
    return work, {"unit": work.unit, "per": work.per, "once": run(work, 1)}


def run(work: Any, count: int) -> float:
    """Seconds of a call, one of `count`."""
    if work.own_clock:
        return sum(work.call() for _ in range(count)) / count
    call, together = work.call, work.together
    together()
    start = time.perf_counter()
    for _ in range(count):
        call()
    together()
    return (time.perf_counter() - start) / count


def serve(package: str, cases: str, address: str) -> None:
    """Answers lines until the other end closes."""
    sys.meta_path.insert(0, OnlyFrom(package))
    link = socket.socket(socket.AF_UNIX)
    link.connect(address)
    with link.makefile("rw") as lines:

        def answer(**what: Any) -> None:
            lines.write(json.dumps(what) + "\n")
            lines.flush()

        import jali

        answer(rank=pin(), jali=jali.__file__)
        work = None
        for line in lines:
            order = json.loads(line)
            try:
                if "case" in order:
                    work, found = set_up(cases, order)
                    answer(**found)
                else:
                    run(work, 1)  # the other side had the caches
                    answer(seconds=run(work, order["count"]))
            except Exception as error:  # every failure of either side is reported, and ends the case
                traceback.print_exc()
                answer(failed=f"{type(error).__name__}: {error}".splitlines()[0])


def pin() -> int:
    """Binds this rank to a core of its own; its number."""
    rank = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")))
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    return rank


if __name__ == "__main__":
    serve(*sys.argv[1:4])
