"""`jali tune collectives`: measures every algorithm of every collective beside jali's choice, and writes rules where another algorithm is faster.

Cells (a collective, a type, in place or not, called or part of a graph, a size) are measured one after the other; after each a
file beside the rules has all of them, so that `--continue` continues an interrupted run. Then rules are made
(`jali.bench.collective_rules`), the cells that they change are measured anew, by these rules and by jali's own, and what is not
faster again is left out. All ranks have all times and decide alike; rank 0 alone writes and prints.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import _core, comm, settings
from jali.amounts import counted
from jali.bench import collectives
from jali.bench.cases import chunks_of
from jali.bench.collective_algorithms import (
    IN_PLACE,
    AlgorithmBenchmark,
    Measured,
    core_type,
    ranks_per_host,
    specs_of,
)
from jali.bench.collective_rules import (
    DEFAULT,
    LEAST_ROUNDS,
    Library,
    Rule,
    Stretch,
    Variant,
    cell_text,
    gain_text,
    ratio,
    rules_of,
    rules_text,
    stretches,
    without,
)
from jali.bench.reports import size_text, time_text
from jali.cli.interruption import EXIT_CODES, Interrupted, Interruption
from jali.comm.algorithms import BY_MPI
from jali.comm.stopping import end_job, speaker
from jali.errors import FileFormatError, ParameterError
from jali.files import read_bytes, shown
from jali.io.parallel import together
from jali.vendors import library_of
from jali.version import __version__

FORMAT = "jali tune collectives 2"
MOST_STATE = 1 << 28  # bytes
PICTURES = (".png", ".pdf", ".svg")
NOT_OURS = ("JALI_EXPECTED_RANKS", "JALI_CACHE_DIR", "JALI_COLLECTIVE_RULES")  # do not affect times


@dataclass(frozen=True)
class Cell:
    """The cells of one measurement."""

    variant: Variant
    dtype: str
    payload: int

    def text(self) -> str:
        return f"{self.variant} of {size_text(self.payload)}"


def execute(arguments: argparse.Namespace) -> int:
    """Measure, choose, measure again and write."""
    with Interruption() as interruption:
        try:
            return _execute(arguments, interruption)
        except Interrupted as interrupted:  # the second Ctrl-C
            print(
                f"{speaker()}: {interrupted}; the same command with --continue goes on",
                file=sys.stderr,
                flush=True,
            )
            status = EXIT_CODES[interrupted.number]
            end_job(interrupted, status)
            return status


def _execute(arguments: argparse.Namespace, interruption: Interruption) -> int:
    ranks = comm.current()
    with together(ranks):
        _check(arguments, ranks.size)
    gpu = None
    if arguments.device not in (None, "cpu"):
        from jali.devices import open_device

        gpu = open_device(arguments.device, ranks)
    tuning = Tuning(arguments, ranks, gpu)
    tuning.begin()
    try:
        for cell in tuning.wanted:
            if number := interruption.agreed(ranks):
                return tuning.interrupted(EXIT_CODES[number])
            tuning.measure(cell)
        with tuning.rules_in_files() as file:
            for cell in tuning.changed:
                if number := interruption.agreed(ranks):
                    return tuning.interrupted(EXIT_CODES[number])
                tuning.verify(cell, file)
    except Exception:
        tuning.leave_hint()
        raise
    tuning.conclude()
    return 0


def _check(arguments: argparse.Namespace, ranks: int) -> None:
    if ranks < 2:
        raise ParameterError("rules of collectives are measured between ranks; say how many, like -n 2")
    if arguments.factor < 2 or arguments.largest < arguments.smallest:
        raise ParameterError("give --factor 2 or more, and --largest not below --smallest")
    if arguments.rounds < LEAST_ROUNDS:
        raise ParameterError(
            f"give --rounds {LEAST_ROUNDS} or more: {arguments.rounds} cannot tell an algorithm that is faster from noise"
        )
    if arguments.graphs and arguments.device in (None, "cpu"):
        raise ParameterError("--graphs is for collectives on devices; name one, like --device cuda")
    if not 0 <= arguments.seconds < math.inf:
        raise ParameterError(f"give --seconds 0 or more, not {arguments.seconds}")
    if arguments.picture is not None and arguments.picture.suffix not in PICTURES:
        raise ParameterError(f"--picture {shown(arguments.picture)}: pictures end in {', '.join(PICTURES)}")
    if forced := settings.current().collective:
        raise ParameterError(
            f"JALI_COLLECTIVE={shown(forced)} overrules whatever rules say; run `jali tune collectives` without it"
        )
    names = [name.replace("-", "_") for name in arguments.only or collectives.COLLECTIVES]
    if unknown := sorted(set(names) - set(collectives.COLLECTIVES)):
        raise ParameterError(
            f"no collective {', '.join(unknown)}; there are {', '.join(collectives.COLLECTIVES)}"
        )
    for dtype in arguments.dtypes:
        core_type(dtype)


class Tuning:
    """One run of the command, on this rank."""

    def __init__(self, arguments: argparse.Namespace, ranks: Any, gpu: Any) -> None:
        self.arguments, self.ranks, self.gpu = arguments, ranks, gpu
        self.kind = "host" if gpu is None else gpu.kind
        self.out = arguments.output or Path(
            f"collective-rules-{self.kind}-{counted(ranks.size, 'rank')}.toml".replace(" ", "-")
        )
        self.state = self.out.with_name(self.out.name + ".state")
        self.hosts = list(ranks_per_host(ranks))
        self.library = self._library()
        self.load = os.getloadavg()[0]
        self.conditions = self._conditions()
        self.wanted = self._cells()
        self.done: dict[Cell, Measured] = {}
        self.verified: dict[Cell, dict[str, list[float]]] = {}
        self.found: dict[Variant, list[Stretch]] = {}
        self.reported: set[str] = set()  # transports that are not possible, and why algorithms are not
        self.specs = AlgorithmBenchmark(ranks, gpu)

    @property
    def requested(self) -> dict[str, object]:
        """The conditions that all rules have."""
        return {
            "memory": self.kind,
            "ranks": self.ranks.size,
            "hosts": len(self.hosts),
            "ranks_per_host": max(self.hosts),
        }

    @property
    def changed(self) -> list[Cell]:
        """The cells that the rules change."""
        sizes = {v: {size for s in of for size in s.sizes} for v, of in self.found.items()}
        return [cell for cell in self.wanted if cell.payload in sizes.get(cell.variant, ())]

    def say(self, text: str) -> None:
        """On rank 0, and not into JSON."""
        if self.ranks.rank == 0 and not self.arguments.json:
            print(text, flush=True)

    def begin(self) -> None:
        """Files that are there, and what an interrupted run has left."""
        found = b""
        with together(self.ranks):
            if self.ranks.rank == 0:
                found = self._state_there()
        reported = json.loads(self.ranks.broadcast_bytes(found, 0) or b"[]")
        wanted = {(c.variant, c.payload): c for c in self.wanted}
        for entry in reported:
            cell = wanted.get((_variant_of(entry), entry["bytes"]))
            if cell is not None:
                self.done[cell] = Measured(entry["bytes"], entry["times"], entry["impossible"], entry["far"])
        self._write_state()
        for key, value in self.conditions.items():
            self.say(f"{key}: {value}")
        if self.load > (os.cpu_count() or 1) / 2:
            self.say(
                f"the load of this machine was {self.load:.1f} on {counted(os.cpu_count() or 1, 'core')}: rules that are measured beside other "
                "programs may not be the best without them"
            )
        if settings.current().collective_rules:
            self.say(
                "algorithms are compared with what jali's own rules choose; those of JALI_COLLECTIVE_RULES are left out"
            )
        if self.done:
            self.say(f"{len(self.done)} of {counted(len(self.wanted), 'cell')} are known from {self.state}")

    def _state_there(self) -> bytes:
        arguments = self.arguments
        if self.out.is_dir():
            raise ParameterError(f"{self.out} is a folder; --output names a file")
        if self.out.exists() and not arguments.force:
            raise ParameterError(f"{self.out} exists; --force writes over it, --output writes another file")
        if not arguments.go_on:
            if self.state.exists() and not arguments.force:
                raise ParameterError(
                    f"{self.state} is of an interrupted run; --continue goes on with it, --force begins anew"
                )
            return b""
        try:
            reported = json.loads(
                read_bytes(self.state, MOST_STATE, "an interrupted `jali tune collectives`")
            )
            if reported["format"] != FORMAT:
                raise ValueError(f"format {reported['format']!r}")
            before, entries = dict(reported["conditions"]), list(reported["cells"])
            for entry in entries:
                _check_entry(entry)
        except FileNotFoundError:
            raise ParameterError(
                f"there is no {self.state} to go on with; begin without --continue"
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise FileFormatError(
                f"{self.state} is not what an interrupted `jali tune collectives` leaves ({type(error).__name__}: {shown(error)})"
            ) from None
        now = json.loads(json.dumps(self.conditions))
        other = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        if other:
            words = "; ".join(
                f"{key}: {shown(before.get(key))} then, {shown(now.get(key))} now" for key in other
            )
            raise ParameterError(
                f"{self.state} was measured under other conditions ({words}); --force begins anew"
            )
        return json.dumps(entries).encode()

    def measure(self, cell: Cell) -> None:
        """One cell, if it is not known; then the state is written."""
        if cell in self.done:
            return
        case = self._case(cell)
        graphs = bool(cell.variant.persistent)
        found = self.specs.measure(case, self.arguments.rounds, self._seconds, graphs=graphs)
        self.done[cell] = found
        self._write_state()
        specs = specs_of(cell.variant.collective, self.kind, self.hosts)
        for spec in specs:
            why = found.impossible.get(str(spec))
            if why is not None and (spec.transport or why) not in self.reported:
                self.reported.add(spec.transport or why)
                self.say(f"not possible: {spec}{', ...' if spec.transport else ''}: {shown(why)}")
        self.say(cell_text(cell.variant, size_text(cell.payload), found.times, len(specs)))

    @property
    def _seconds(self) -> float:
        return float(self.arguments.seconds)

    def _case(self, cell: Cell) -> Any:
        return self.specs.case(cell.variant.collective, cell.payload, cell.dtype, bool(cell.variant.in_place))

    @contextlib.contextmanager
    def rules_in_files(self) -> Iterator[str]:
        """What was found as a file of every process, since hosts may share none."""
        of_variants = self.by_variant()
        self.found = {
            variant: stretches([(cell.payload, self.done[cell].times) for cell in cells])
            for variant, cells in of_variants.items()
        }
        self.say(
            f"{counted(len(self.changed), 'cell')} of {len(self.wanted)} may be faster; measured anew by rules and by jali's own:"
        )
        token = self.ranks.broadcast_bytes(secrets.token_hex(8).encode(), 0).decode()
        file = Path(tempfile.gettempdir(), f"jali-rules-{token}-{os.getpid()}.toml")
        text = rules_text(self._rules(), self.requested, [], self.library)
        with together(self.ranks):
            file.write_text(text)
        try:
            yield str(file)
        finally:
            file.unlink(missing_ok=True)

    def verify(self, cell: Cell, file: str) -> None:
        """Fresh rounds of a cell that the rules change."""
        graphs = bool(cell.variant.persistent)
        times = self.specs.compare(self._case(cell), file, self.arguments.rounds, self._seconds, graphs)
        self.verified[cell] = times
        self.say(f"{self._line(cell)}  {'stays' if self._stays(cell) else 'is left out'}")

    def _stays(self, cell: Cell) -> bool:
        return ratio(self.verified[cell], "rules").low > 1

    def _line(self, cell: Cell) -> str:
        times = self.verified[cell]
        spec = next(s.spec for s in self.found[cell.variant] if cell.payload in s.sizes)
        ours, default = (float(np.median(times[name])) for name in ("rules", DEFAULT))
        type_ = f" {cell.variant.type}" if len(self.arguments.dtypes) > 1 else ""
        return (
            f"{cell.variant!s}{type_} {size_text(cell.payload)}: {spec} {time_text(ours)}, jali's choice {time_text(default)}, "
            f"ratio {ratio(times, 'rules')}, {len(times[DEFAULT])} rounds"
        )

    def conclude(self) -> None:
        """Leave out what was not faster again, write the rules and the picture, forget the state."""
        lines = [self._line(cell) for cell in self.changed if self._stays(cell)]
        lost: dict[Variant, list[int]] = {}
        for cell in self.changed:
            if not self._stays(cell):
                lost.setdefault(cell.variant, []).append(cell.payload)
        self.found = {v: without(of, lost.get(v, ())) for v, of in self.found.items()}
        rules = self._rules()
        text = rules_text(rules, self.requested, self._comments(lines), self.library)
        with together(self.ranks):
            if self.ranks.rank == 0:
                _core.check_rules(text, str(self.out))
                write_whole(self.out, text)
                self.state.unlink(missing_ok=True)
        if self.ranks.rank == 0 and self.arguments.json:
            print(json.dumps(self._document(rules), indent=1))
        self.say(
            f"{counted(len(rules), 'rule')} for {counted(len(self.changed), 'cell')} of {len(self.wanted)} in {self.out}"
        )
        if rules:
            self.say(f"programs take them with JALI_COLLECTIVE_RULES={self.out}")
        else:
            self.say("nothing was faster than jali's own choice beyond noise")
        if self.ranks.rank == 0 and self.arguments.picture is not None:
            self._draw()  # takes seconds, and no rank waits for it

    def interrupted(self, status: int) -> int:
        """Prints how to continue."""
        if self.ranks.rank == 0:
            print(
                f"jali: interrupted after {len(self.done)} of {counted(len(self.wanted), 'cell')}, which are kept in {self.state}; "
                "the same command with --continue goes on",
                file=sys.stderr,
                flush=True,
            )
        return status

    def leave_hint(self) -> None:
        """Where something failed: what was measured is not lost."""
        if self.ranks.rank == 0 and self.done and self.state.exists():
            print(
                f"jali: {counted(len(self.done), 'cell')} are kept in {self.state}; --continue goes on with them",
                file=sys.stderr,
                flush=True,
            )

    def by_variant(self) -> dict[Variant, list[Cell]]:
        """Cells of each kind of call, sizes in order."""
        found: dict[Variant, list[Cell]] = {}
        for cell in self.wanted:
            found.setdefault(cell.variant, []).append(cell)
        return found

    def _rules(self) -> list[Rule]:
        of_variants = self.by_variant()
        cells = {(cell.variant, cell.payload): cell for cell in self.wanted}

        def why(variant: Variant, stretch: Stretch) -> str:
            known = [cells[variant, size] for size in stretch.sizes]
            if not all(cell in self.verified for cell in known):
                return ""
            return f"{gain_text([self.verified[cell] for cell in known])} times as fast as jali's own choice"

        sizes = {variant: [cell.payload for cell in of] for variant, of in of_variants.items()}
        return rules_of(self.found, sizes, why)

    def _comments(self, lines: Sequence[str]) -> list[str]:
        return [
            f"Rules of collectives, by `jali tune collectives` on {time.strftime('%Y-%m-%d %H:%M UTC', time.gmtime())}.",
            "Where another algorithm was faster than jali's own choice beyond noise, and again in fresh rounds; elsewhere jali chooses.",
            "",
            *(shown(f"{key}: {value}") for key, value in self.conditions.items()),
            f"load before: {self.load:.1f}",
            "",
            *lines,
            *([""] if lines else []),
        ]

    def _draw(self) -> None:
        from jali.bench.collective_curves import write_curves

        cells = {variant: [self.done[cell] for cell in of] for variant, of in self.by_variant().items()}
        where = self.conditions.get("device", self.conditions["processor"])
        title = f"{counted(self.ranks.size, 'rank')}, {where}; dots: sizes with a rule"
        write_curves(self.arguments.picture, cells, self.found, title)

    def _document(self, rules: Sequence[Rule]) -> dict[str, object]:
        return {
            "path": str(self.out),
            "conditions": self.conditions,
            "cells": self._entries(),
            "verified": [
                {**_named(cell), "times": times, "stays": self._stays(cell)}
                for cell, times in self.verified.items()
            ],
            "rules": [vars(rule) for rule in rules],
        }

    def _entries(self) -> list[dict[str, object]]:
        return [
            {**_named(cell), "times": m.times, "impossible": m.impossible, "far": m.far}
            for cell, m in self.done.items()
        ]

    def _write_state(self) -> None:
        with together(self.ranks):
            if self.ranks.rank == 0:
                document = {"format": FORMAT, "conditions": self.conditions, "cells": self._entries()}
                write_whole(self.state, json.dumps(document) + "\n")

    def _cells(self) -> list[Cell]:
        arguments = self.arguments
        found: dict[Cell, None] = {}  # in order, each once
        for name in arguments.only or collectives.COLLECTIVES:
            collective = name.replace("-", "_")
            in_place_choices = (
                ([False, True] if arguments.in_place else [False]) if collective in IN_PLACE else [None]
            )
            graphs = [None] if self.gpu is None else [False, True] if arguments.graphs else [False]
            for dtype, in_place, graph in itertools.product(arguments.dtypes, in_place_choices, graphs):
                item = np.dtype(dtype).itemsize * chunks_of(collective, self.ranks.size)
                variant = Variant(collective, core_type(dtype), in_place, graph)
                for size in collectives.sizes_between(
                    arguments.smallest, arguments.largest, arguments.factor
                ):
                    cell = Cell(variant, dtype, -(-size // item) * item)  # whole chunks
                    found[cell] = None
        return list(found)

    def _conditions(self) -> dict[str, object]:
        """What was measured, and where: what is to be the same for times to be compared."""
        ours = {k: v for k, v in dict(settings.current().differing()).items() if k not in NOT_OURS}
        reported: dict[str, object] = {"jali": __version__}
        if self.ranks.transport == "mpi":
            from mpi4py import MPI

            reported["mpi"] = " ".join(MPI.Get_library_version().split("\n")[0].rstrip("\0").split())
        else:
            reported["ranks are"] = f"of {self.ranks.transport}"
        reported |= {"processor": collectives.processor(), "cores": os.cpu_count(), **self.requested}
        if self.gpu is not None:
            reported["device"] = self.gpu.name
        if self.library is not None:
            reported["library"] = f"{self.library.name} {self.library.version}"
        return reported | {"rounds": self.arguments.rounds, "settings": ours or "all defaults"}

    def _library(self) -> Library | None:
        """That of the devices' vendor, where it can be used; on hosts MPI's, where ranks are its."""
        from jali.comm.ccl import CclCommunicator
        from jali.errors import DeviceError

        if self.gpu is None:
            found = self.ranks.collectives.versions if BY_MPI in self.ranks.libraries else {}
            return next((Library(name, version, BY_MPI) for name, version in found.items()), None)
        name = library_of(self.gpu.kind)
        try:
            return Library(name, CclCommunicator(self.ranks, self.gpu).library[1], name)
        except DeviceError:
            return None


def _named(cell: Cell) -> dict[str, object]:
    of = cell.variant
    return {**vars(of), "bytes": cell.payload}


def _variant_of(entry: dict[str, Any]) -> Variant:
    return Variant(entry["collective"], entry["type"], entry["in_place"], entry["persistent"])


def _check_entry(entry: dict[str, Any]) -> None:
    """Raises ValueError, KeyError, TypeError or AttributeError for an invalid cell of a state."""
    hash(_variant_of(entry))
    rounds = [np.asarray(times, float) for times in entry["times"].values()]
    if DEFAULT not in entry["times"] or not all(t.ndim == 1 and t.size and (t > 0).all() for t in rounds):
        raise ValueError("times of rounds are numbers above 0")
    if len({t.size for t in rounds}) > 1 or not isinstance(entry["bytes"], int):
        raise ValueError("algorithms of a cell have as many rounds as each other")
    for value in entry["far"].values():
        float(value)
    dict(entry["impossible"])


def write_whole(path: Path, text: str) -> None:
    """All of it or nothing."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        beside.write_text(text)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
