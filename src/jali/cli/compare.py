"""`jali bench compare A B`: builds two commits, measures their cases in turns, and fails where B loses more than it may.

A part takes ten minutes at most; `--continue` measures the next one. Exit status: 0 nothing is lost, 1 a case is, or has
stalled, 2 bad input, 3 there is more to measure.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

from jali.bench.compare import checkouts, pairs, report
from jali.bench.compare.cases import CASES, chosen
from jali.bench.compare.record import Record
from jali.bench.journal import busy_words
from jali.codegen.kernel_cache import cache_directory
from jali.comm.launcher import find_launcher
from jali.errors import ParameterError, RankError
from jali.profile import LoadMeter, loads

LOST, UNFINISHED = 1, 3
LONGEST = 10.0  # minutes of a part


def execute(arguments: argparse.Namespace) -> int:
    """Compare, print and judge."""
    began = time.monotonic()
    device = "cpu" if arguments.device is None else arguments.device
    names = chosen(arguments.cases or [], device)
    if not names:
        raise ParameterError(
            f"no case is called {', '.join(arguments.cases)}; `jali bench compare --list` lists them"
        )
    if arguments.list:
        _list(names, arguments.json)
        return 0
    settings = _settings(arguments, device)
    if len(arguments.commits) != 2:
        raise ParameterError(
            "say which two commits, branches or checkouts to compare: jali bench compare A B"
        )
    until = began + 60 * arguments.minutes
    quiet = arguments.json

    def say(words: str) -> None:
        if not quiet:
            print(words, file=sys.stderr, flush=True)

    cache = cache_directory() / "compare"
    a, b = (checkouts.take(name, cache, Path.cwd()) for name in arguments.commits)
    _say_what_is_left_out(arguments.commits, say)
    path = arguments.output or cache / f"{a.home.name}-{b.home.name}-{settings.precision}-{device}.jsonl"
    record = _record(path, arguments, _about(a, b, settings))
    finished = False
    meter = LoadMeter()
    try:
        for side in (a, b):
            checkouts.build(side, until, say)
        _without_ranks(record, names)
        pairs.measure(
            record,
            [a.package, b.package],
            names,
            settings,
            until,
            ranks={name: CASES[name].ranks for name in names},
            turns={name: case.turns for name, case in CASES.items() if case.turns is not None},
            say=lambda name: say(_progress(record, names, name, settings)),
        )
        finished = True
    except checkouts.OutOfTimeError as over:
        say(
            f"{arguments.minutes:g} minutes are over while {over}"
            if "building" in str(over)
            else "the time is over"
        )
    found = report.results(record, names)
    busy = busy_words(loads([meter.reading()]))
    if quiet:
        print(json.dumps(report.as_json(record, names, finished) | {"busy": busy}, indent=1))
    else:
        print(report.text(record, names))
        if busy:
            print(f"{busy}; intervals are wider for it")
    if not finished:
        say(f"there is more to measure: the same command with --continue goes on ({path})")
        return UNFINISHED
    return LOST if report.failing(found) else 0


def _settings(arguments: argparse.Namespace, device: str) -> pairs.Settings:
    seconds = 0.05 if arguments.seconds is None else arguments.seconds
    if not 0 < arguments.minutes <= LONGEST:
        raise ParameterError(
            f"a part takes more than 0 and at most {LONGEST:g} minutes, not {arguments.minutes:g}"
        )
    if arguments.starts < 1 or arguments.turns < 1 or not 0 < seconds < math.inf:
        raise ParameterError("give --starts and --turns 1 or more, and a positive number of --seconds")
    return pairs.Settings(arguments.starts, arguments.turns, seconds, arguments.precision, device)


def _about(a: checkouts.Checkout, b: checkouts.Checkout, settings: pairs.Settings) -> dict[str, Any]:
    from jali.bench.timing import machine

    return {
        "A": {"label": a.label, "digest": a.digest},
        "B": {"label": b.label, "digest": b.digest},
        "machine": machine(),
        **settings.__dict__,
    }


def _record(path: Path, arguments: argparse.Namespace, about: dict[str, Any]) -> Record:
    if arguments.go_on and path.exists():
        return Record.continued(path, about)
    if arguments.output is not None and path.exists():
        raise ParameterError(f"{path} exists; --continue goes on with it")
    return Record.begin(path, about)


def _without_ranks(record: Record, names: list[str]) -> None:
    """Cases of several ranks are left out where none can be started."""
    missing = [name for name in names if CASES[name].ranks > 1 and name not in record.without]
    if not missing:
        return
    try:
        find_launcher()
    except (RankError, ImportError) as error:
        for name in missing:
            record.leave_out(name, "missing", f"no MPI ranks here: {error}".splitlines()[0])


def _say_what_is_left_out(names: list[str], say: Any) -> None:
    root = checkouts.repository(Path.cwd())
    if root is not None and "." not in names and (root / ".git").exists() and checkouts.changed(root):
        say(f"{root} has changes that are in no commit and are not measured; '.' names the working tree")


def _progress(record: Record, names: list[str], name: str, settings: pairs.Settings) -> str:
    done = sum(min(settings.starts, len(record.pairs.get(n, []))) for n in names)
    done += settings.starts * sum(n in record.without for n in names)
    return f"{done}/{settings.starts * len(names)} {name}"


def _list(names: list[str], as_json: bool) -> None:
    cases = [{"case": n, "about": CASES[n].about, "ranks": CASES[n].ranks} for n in names]
    if as_json:
        print(json.dumps(cases, indent=1))
        return
    for case in cases:
        print(f"{case['case']:24s} {case['ranks']} rank{'s' if case['ranks'] != 1 else ' '}  {case['about']}")
