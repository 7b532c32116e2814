"""Compare the 19 tutorials and examples of pylops-mpi 0.8.0 under the library and on jali: `python tools/pylops_mpi_scripts.py [-n RANKS] [SCRIPT ...]`.

Each script of the source package (tools/pylops_mpi_package.py) runs unchanged, once with the library of that package and once with
jali under its name, on as many MPI ranks; tests/compat/pylops_mpi_recorder.py writes down on each rank what its global variables were
and what it printed. Equal must be, rank by rank:

- how the script ended, if it did, and which variables had which numbers, arrays, operators and slices;
- of arrays local shape, global shape, partition, axis and mask, of operators the shape, of slices all, of numbers the type;
- values within TOLERANCE of the largest element of the array on any rank;
- printed text but for its spaces, its times and what surrounds the tables of solvers; printed numbers, and in tables the numbers of
  iterations and the rows that both print of all columns but NOT_PRINTED, within PRINTED of the number, or of the largest one in its column, or within
  what the fewer digits of the two can tell.

Iterations may multiply rounding by more than that: conjugate gradients do by the condition number; and power iterations, which find the
step of FISTA, begin with random numbers. Scripts with other values or residuals run a third time, under the library with other last
bits of dot products and norms and other such numbers. Where this changes a value by a tenth of the difference or more, the difference
is within the spread of the library's own results.

Differences that have a reason stand in tests/compat/pylops_mpi_scripts_exceptions.txt. Prints a table, and exits with the number of
scripts that differ in another way, at most 100.

Two things are stand-ins, for both runs alike. poststack.py and reflectivity.py load an impedance model of 550 x 800 points, of which
they get a corner of 64 x 276, the smallest that they can smooth: both end when rank 0 wants to draw plane 200, as their last step.
With --whole they get all of it, and need hours. Where mpi4py-fft cannot be imported, which the library's Fourier transforms need and
which needs FFTW to be built, tests/compat/stand_ins/mpi4py_fft takes its place; the table says so. lsm.py takes a third of the time
where numba is installed.
"""

from __future__ import annotations

import argparse
import difflib
import fnmatch
import importlib.util
import math
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pylops_mpi_package import (
    COMPAT,
    NAME,
    ROOT,
    STARTING,
    VERSION,
    add_arguments,
    exceptions,
    source,
    start,
)

EXCEPTIONS = COMPAT / "pylops_mpi_scripts_exceptions.txt"
RECORDER = COMPAT / "pylops_mpi_recorder.py"
MODEL, POINTS = Path("testdata", "avo", "poststack_model.npz"), (64, 276)
# Of values, by the bytes of a real number, relative to the largest element.
TOLERANCE = {4: 1e-4, 8: 1e-6}
PRINTED = 1e-6
SPREAD = 10.0  # how many times what the changes make a difference may be
NOT_PRINTED = {"x[0]", "tau"}  # columns of tables that jali's solvers do not have
ALSO_CALLED = {"cost": "r12norm"}  # columns of jali's, and their names in the library
UNENDED = "did not end"
ATTRIBUTES = (
    "kind",
    "global shape",
    "partition",
    "axis",
    "mask",
    "local shape",
    "type",
    "operator shape",
    "slice",
)

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w])|\b(?:nan|inf)\b")
TIMES = re.compile(r"\(s\) = \S+|\S+ s$")
RULE = re.compile(r"-{20,}$")


@dataclass
class Table:
    """What a solver printed: of iteration and column, the text of the number; and how many iterations it made."""

    cells: dict[tuple[int, str], str] = field(default_factory=dict)
    iterations: int | None = None


@dataclass
class Printed:
    """Tables of solvers, whose columns J=f+eps*g and J = f + g are J, and all other lines; what an array goes on is no line."""

    tables: list[Table] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, text: str) -> Printed:
        found = cls()
        inside, total, whole = False, False, True
        columns: list[str] = []
        lines = [" ".join(TIMES.sub("", line).split()) for line in text.splitlines()]
        for k, line in enumerate(lines):
            row = bool(columns) and not total and re.match(r"\d+\s", line) is not None
            if columns and line and not row and not RULE.match(line) and "Total time" not in line:
                inside, columns = False, []  # the line after a table
            if not inside and k + 1 < len(lines) and RULE.match(lines[k + 1]):
                inside, total = True, False  # the title of a table
            elif not inside:
                if line and whole:
                    found.lines.append(line)
                elif line:  # an array goes on
                    found.lines[-1] += " " + line
                if line:
                    whole = found.lines[-1].count("[") == found.lines[-1].count("]")
            elif line.startswith("Itn"):
                words = re.sub(" *([=+]) *", r"\1", line).split()[1:]
                columns = [ALSO_CALLED.get(word, word.split("=")[0]) for word in words]
                found.tables.append(Table())
            elif columns and "Total time" in line:
                total = True
                if count := re.search(r"Iterations = (\d+)", line):
                    found.tables[-1].iterations = int(count[1])
            elif row:
                words = line.split()
                found.tables[-1].cells |= {
                    (int(words[0]), name): word for name, word in zip(columns, words[1:], strict=False)
                }
        return found


@dataclass
class Rank:
    """What a rank recorded and printed."""

    ended: str  # "", or what failed
    library: str = ""
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    numbers: dict[str, np.ndarray] = field(default_factory=dict)
    printed: str = ""

    @classmethod
    def read(cls, folder: Path, rank: int, lines: Iterable[dict[str, Any]]) -> Rank:
        found = cls(UNENDED)
        printed = folder / f"{rank}.out"
        if printed.exists():
            found.printed = printed.read_text(encoding="utf-8", errors="replace")
        for line in lines:
            if line["what"] == "begin":
                found.library = line["library"]
            elif line["what"] == "value":
                found.values[line["name"]] = line
            elif line["what"] == "end":
                found.ended = line["failed"]
        if (folder / f"{rank}.npz").exists() and found.ended != UNENDED:
            with np.load(folder / f"{rank}.npz") as arrays:
                found.numbers = {
                    name: arrays[line["at"]] for name, line in found.values.items() if line["at"] in arrays
                }
        return found


@dataclass
class Run:
    """Of a script, on all ranks."""

    ranks: list[Rank]
    seconds: float
    output: str  # of what is not the script's own: errors, warnings
    why: str = ""  # it did not end


@dataclass
class Difference:
    """`what` is NAME:ATTRIBUTE as lists of exceptions have it."""

    what: str
    said: str
    size: float = math.inf  # of numbers: how far they are apart


def resolution(text: str) -> float:
    """What the last digit counts: of 1.50e-03 it is 1e-05; others are of NumPy, with up to 8 decimals, or have all their digits."""
    digits, exponential, exponent = text.lower().partition("e")
    return 10.0 ** (int(exponent) - len(digits.partition(".")[2])) if exponential else 1e-8


def alike(a: str, b: str, scale: float = 0.0) -> bool:
    x, y = float(a), float(b)
    if not (np.isfinite(x) and np.isfinite(y)):
        return a == b
    return abs(x - y) <= max(1.01 * max(resolution(a), resolution(b)), PRINTED * max(abs(x), abs(y), scale))


def compare_printed(theirs: str, ours: str, exact: bool = False) -> Iterator[Difference]:
    a, b = Printed.read(theirs), Printed.read(ours)
    words, others = ([" ".join(NUMBER.sub("", line).split()) for line in printed.lines] for printed in (a, b))
    matcher = difflib.SequenceMatcher(a=words, b=others, autojunk=False)
    for what, i, j, first, last in matcher.get_opcodes():
        if what != "equal":
            yield Difference("printed:text", f"{a.lines[i:j]}, on jali {b.lines[first:last]}")
            continue
        for x, y in zip(a.lines[i:j], b.lines[first:last], strict=True):
            if not all(map(alike, NUMBER.findall(x), NUMBER.findall(y))):
                yield Difference("printed:numbers", f"{x!r}, on jali {y!r}")
    if len(a.tables) != len(b.tables):
        yield Difference("printed:tables", f"{len(a.tables)} tables of solvers, {len(b.tables)} on jali")
    for k, (table, other) in enumerate(zip(a.tables, b.tables, strict=False), 1):
        if table.iterations != other.iterations:
            yield Difference(
                "printed:iterations", f"table {k}: {table.iterations} iterations, {other.iterations} on jali"
            )
        common = table.cells.keys() & other.cells.keys()
        missing = {name for _, name in table.cells.keys() - other.cells.keys()} - NOT_PRINTED
        if missing - {name for _, name in common}:
            yield Difference("printed:columns", f"table {k} has {', '.join(sorted(missing))}, not on jali")
        for name in sorted({name for _, name in common} - NOT_PRINTED):
            rows = sorted(row for row, column in common if column == name)
            scale = max(abs(float(table.cells[row, name])) for row in rows)
            apart = [abs(float(table.cells[row, name]) - float(other.cells[row, name])) for row in rows]
            for row in rows:
                x, y = table.cells[row, name], other.cells[row, name]
                if exact or not alike(x, y, scale):
                    said = f"iteration {row}: {x}, on jali {y}"
                    yield Difference(f"printed:table-{k}-{name}", said, max(apart))
                    break


def largest(ranks: Iterable[Rank], name: str) -> float:
    """The magnitude of the largest element that any rank has of a value."""
    found = [np.abs(rank.numbers[name]) for rank in ranks if name in rank.numbers]
    return max((float(x[np.isfinite(x)].max(initial=0)) for x in found), default=0.0)


def compare_values(
    theirs: Sequence[Rank], ours: Sequence[Rank], rank: int, exact: bool = False
) -> Iterator[Difference]:
    a, b = theirs[rank], ours[rank]
    for name in sorted(a.values.keys() ^ b.values.keys()):
        yield Difference(
            f"{name}:name", "not recorded on jali" if name in a.values else "recorded on jali alone"
        )
    for name in [name for name in a.values if name in b.values]:
        for attribute in ATTRIBUTES:
            x, y = a.values[name].get(attribute), b.values[name].get(attribute)
            if x != y:
                yield Difference(f"{name}:{attribute.replace(' ', '-')}", f"{x}, on jali {y}")
        if name not in a.numbers or name not in b.numbers:
            continue
        p, q = a.numbers[name], b.numbers[name]
        if p.shape != q.shape:
            continue  # local shapes have said so
        apart, allowed = distance(p, q), tolerance(p, q)
        scale = max(largest(theirs, name), largest(ours, name))
        if exact or not apart <= allowed * scale:
            said = f"apart by {apart / scale if scale else apart:.1e} of the largest element"
            yield Difference(f"{name}:values", said, apart)


def distance(p: np.ndarray, q: np.ndarray) -> float:
    """The largest difference of two elements; nan where one is nan or infinite and the other is not."""
    wide = np.result_type(p, q, np.float64)
    x, y = p.astype(wide), q.astype(wide)
    same = (x == y) | (np.isnan(x) & np.isnan(y))
    with np.errstate(invalid="ignore"):
        return float(np.abs(np.where(same, 0, x - y)).max(initial=0))


def tolerance(p: np.ndarray, q: np.ndarray) -> float:
    """Relative; that of the less precise type. Whole numbers are equal."""
    sizes = [x.dtype.itemsize // (1 + (x.dtype.kind == "c")) for x in (p, q) if x.dtype.kind in "fc"]
    return TOLERANCE[min(8, *sizes, 8)] if sizes else 0.0


def compare(theirs: Run, ours: Run, exact: bool = False) -> dict[str, Difference]:
    """The largest difference of each kind, by `what`; `exact`: also those that are small or none."""
    found: dict[str, Difference] = {}

    def note(rank: int, differences: Iterable[Difference]) -> None:
        for it in differences:
            if it.what not in found or it.size > found[it.what].size:
                found[it.what] = Difference(it.what, f"rank {rank}: {it.said}", it.size)

    if theirs.why or ours.why:
        found["end:time"] = Difference("end:time", f"{theirs.why or 'ended'}, on jali {ours.why or 'ended'}")
    for rank, (a, b) in enumerate(zip(theirs.ranks, ours.ranks, strict=True)):
        if UNENDED in (a.ended, b.ended) or last_line(a.ended) != last_line(b.ended):
            said = f"{last_line(a.ended) or 'ended'}, on jali {last_line(b.ended) or 'ended'}"
            note(rank, [Difference("end:error", said)])
        if UNENDED not in (a.ended, b.ended):
            note(rank, compare_values(theirs.ranks, ours.ranks, rank, exact))
            note(rank, compare_printed(a.printed, b.printed, exact))
    return found


def within_spread(it: Difference, spread: dict[str, Difference]) -> bool:
    """Whether other last bits and starts make it too: `spread` is what they did. Of costs f and g it is also that of their sum J."""
    parts = re.fullmatch(r"(printed:table-\d+-)[fg]", it.what)
    whats = [it.what, *([f"{parts[1]}J"] if parts else [])]
    most = max((spread[what].size for what in whats if what in spread), default=0.0)
    return math.isfinite(it.size) and 0.0 < it.size <= SPREAD * most


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


def run_script(arguments: argparse.Namespace, library: str, package: Path, script: Path, files: Path) -> Run:
    """One script under one of the libraries; `files` has the folders of the source package, for it alone."""
    began = time.monotonic()
    path = [] if library == "jali" else [package, *stand_ins()]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        words = [str(RECORDER), library, script.name, str(folder)]
        ranks = start(arguments.n, words, folder, cwd=files / script.parent, path=path)
        try:
            why = ""
            moved, before = began, None
            while ranks.process.poll() is None:
                time.sleep(0.05)
                lines = [ranks.lines(rank) for rank in range(ranks.size)]
                ended = [mine[-1] for mine in lines if mine and mine[-1]["what"] == "end"]
                state = len(ended)
                if state != before:
                    moved, before = time.monotonic(), state
                if ended and time.monotonic() - moved > arguments.behind:
                    why = "ended on some ranks, others hang"
                elif time.monotonic() - began > STARTING + arguments.timeout:
                    why = f"did not end in {STARTING + arguments.timeout:.0f} s"
                if why:
                    break
        finally:
            ranks.end()
        found = [Rank.read(folder, rank, ranks.lines(rank)) for rank in range(ranks.size)]
        output = ranks.output()
    return Run(found, time.monotonic() - began, output, why)


def stand_ins() -> list[Path]:
    """Folders of modules that the library needs and that are not there."""
    return [] if importlib.util.find_spec("mpi4py_fft") else [COMPAT / "stand_ins"]


def copy_of(package: Path, folder: Path, whole: bool) -> Path:
    """The scripts and their data in a folder, where they may write; the model of impedances is cut, if it is not to be whole."""
    for name in ("tutorials", "examples", "testdata"):
        if (package / name).is_dir():
            shutil.copytree(package / name, folder / name)
    if (folder / MODEL).exists() and not whole:
        with np.load(folder / MODEL) as model:
            z, x = POINTS
            cut = {"x": model["x"][:x], "z": model["z"][:z], "model": model["model"][:z, :x]}
        np.savez(folder / MODEL, **cut)
    return folder


def scripts_of(package: Path) -> list[Path]:
    return [
        path.relative_to(package)
        for name in ("examples", "tutorials")
        for path in sorted((package / name).glob("*.py"))
    ]


def reason_of(allowed: dict[str, str], script: Path, ranks: int, what: str) -> str | None:
    """An exception is SCRIPT::NAME:ATTRIBUTE or SCRIPT@RANKS::NAME:ATTRIBUTE; * is any text."""
    names = (f"{script.name}::{what}", f"{script.name}@{ranks}::{what}")
    return next(
        (why for one, why in allowed.items() if any(fnmatch.fnmatchcase(n, one) for n in names)), None
    )


@dataclass
class Result:
    """Of a script."""

    script: str
    theirs: Run
    ours: Run
    different: list[Difference] = field(default_factory=list)
    spread: list[Difference] = field(default_factory=list)
    excepted: dict[str, str] = field(default_factory=dict)  # the reason of each difference

    def __str__(self) -> str:
        """Its row of the table, and a line for each difference."""
        values = sum(len(rank.values) for rank in self.theirs.ranks)
        counts = (values, len(self.spread), len(self.excepted), len(self.different))
        lines = [
            f"{self.script:<28}{''.join(f'{count:>10}' for count in counts)}"
            f"{self.theirs.seconds:>11.1f}{self.ours.seconds:>8.1f}"
        ]
        lines += [f"  spread {it.what}: {it.said}" for it in self.spread]
        lines += [f"  excepted {what}: {reason}" for what, reason in self.excepted.items()]
        lines += [f"  DIFFERENT {it.what}: {it.said}" for it in self.different]
        return "\n".join(lines)


def compare_libraries(
    arguments: argparse.Namespace, package: Path, script: Path, allowed: dict[str, str]
) -> Result:
    """Run a script under both."""

    def run(library: str) -> Run:
        with tempfile.TemporaryDirectory() as folder:
            files = copy_of(package, Path(folder), arguments.whole)
            return run_script(arguments, library, package, script, files)

    result = Result(script.name, run("library"), run("jali"))
    for it in compare(result.theirs, result.ours).values():
        if reason := reason_of(allowed, script, arguments.n, it.what):
            result.excepted[it.what] = reason
        else:
            result.different.append(it)
    if any(math.isfinite(it.size) for it in result.different):
        spread = compare(result.theirs, run("changed"), exact=True)
        result.spread = [it for it in result.different if within_spread(it, spread)]
        result.different = [it for it in result.different if it not in result.spread]
    return result


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scripts", nargs="*", help="names of scripts (default: all)")
    add_arguments(parser)
    parser.set_defaults(behind=60.0)
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds that a script may take (default: 600)"
    )
    parser.add_argument("--whole", action="store_true", help="with the whole model of impedances, for hours")
    arguments = parser.parse_args(words)
    package = arguments.source or source(arguments.cache)
    scripts = scripts_of(package)
    if missing := set(arguments.scripts) - {script.name for script in scripts}:
        parser.error(f"the source package has no script {', '.join(sorted(missing))}")
    scripts = [script for script in scripts if not arguments.scripts or script.name in arguments.scripts]
    allowed = exceptions(EXCEPTIONS)
    wrong = 0
    print(f"scripts of {NAME} {VERSION} on {arguments.n} ranks")
    if stand_ins():
        print("  mpi4py-fft is not installed: tests/compat/stand_ins/mpi4py_fft takes its place")
    if (package / MODEL).exists() and not arguments.whole:
        print(f"  {MODEL.name} is its corner of {POINTS[0]} x {POINTS[1]} points, too few for pictures")
    heads = ("values", "spread", "excepted", "different")
    print(
        f"{'script':<28}{''.join(f'{head:>10}' for head in heads)}{'library s':>11}{'jali s':>8}", flush=True
    )
    for script in scripts:
        result = compare_libraries(arguments, package, script, allowed)
        wrong += bool(result.different)
        print(result, flush=True)
        if arguments.v and result.different:
            for name, run in (("library", result.theirs), ("jali", result.ours)):
                said = "\n".join([*(rank.ended for rank in run.ranks), run.output[-2000:]])
                print(f"    {name}: " + said.strip().replace("\n", "\n    "))
    print(
        f"{len(scripts) - wrong} of {len(scripts)} scripts are the same, or differ as {EXCEPTIONS.relative_to(ROOT)} says"
    )
    return min(wrong, 100)


if __name__ == "__main__":
    sys.exit(main())
