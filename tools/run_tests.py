"""Run the tests in parts, each under conditions of its own: `python tools/run_tests.py quick lanes --workers 2 -- -x`.

quick     the tests of `make test`
lanes     those whose course depends on the width of vectors (marked `lanes`), at every width; beside `quick`, one half of their files at
          the narrowest and one at the widest of the others: one lane and many
full      all tests, with the long ones
widths    the quick tests at every width but this processor's
one-core  the quick tests on one core
loaded    the quick tests while other processes keep all cores busy

A processor with narrower vectors computes wider ones in pieces, so all widths run everywhere. All parts run even if one fails; the
last line is pytest's closing line, summed over them, and the exit status is 0 only if every part passed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jali.codegen import target

ROOT = Path(__file__).resolve().parent.parent
WIDTHS = (8, 16, 32, 64)
# A worker that broke down ends the run: with groups of tests, xdist would wait for ever for the one that replaces it.
WORKERS = ("--dist", "loadgroup", "--max-worker-restart", "0")
PATIENT = ("--timeout", "3600")
COUNT = re.compile(r"(\d+) (failed|passed|skipped|deselected|xfailed|xpassed|warning|error)s?\b")
# Ends with the process that started it, even where that is killed.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@dataclass(frozen=True)
class Part:
    """One run of pytest: its arguments, the width of vectors in bytes (None: the processor's) and the conditions."""

    name: str
    arguments: tuple[str, ...]
    width: int | None = None
    one_core: bool = False
    loaded: bool = False


@dataclass
class Tally:
    """What came out of the parts that have run."""

    counts: Counter[str] = field(default_factory=Counter)
    lines: list[str] = field(default_factory=list)
    failed: bool = False


def parts_of(name: str, beside: list[str]) -> list[Part]:
    """The runs of a part of the tests, beside other ones that run as well."""
    quick = ("-m", "not full")
    marked = [str(p) for p in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.lanes" in p.read_text()]
    others = [width for width in WIDTHS if width != target.host().vector_bytes]
    of_lanes = dict.fromkeys(WIDTHS, marked)
    if "quick" in beside:
        of_lanes = {others[0]: marked[0::2], others[-1]: marked[1::2]}
    lanes = ("-m", "lanes and not full")
    return {
        "quick": [Part("quick", quick)],
        "lanes": [Part(f"lanes, {w} bytes", (*lanes, *files), w) for w, files in of_lanes.items() if files],
        "full": [Part("full", PATIENT)],
        "widths": [Part(f"widths, {w} bytes", (*quick, *PATIENT), w) for w in others],
        "one-core": [Part("one core", (*quick, *PATIENT), one_core=True)],
        "loaded": [Part("loaded machine", (*quick, *PATIENT), loaded=True)],
    }[name]


@contextlib.contextmanager
def busy_cores(wanted: bool) -> Iterator[None]:
    """Keeps every core that this process may use busy."""
    count = len(os.sched_getaffinity(0)) if wanted else 0
    others = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


@contextlib.contextmanager
def started(part: Part, workers: int, more: list[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A part that runs under its conditions, which end with it."""
    width = {} if part.width is None else {"JALI_VECTOR_BYTES": str(part.width)}
    cores = {min(os.sched_getaffinity(0))} if part.one_core else os.sched_getaffinity(0)
    processes = str(min(workers, 1) if part.one_core else workers)
    command = [sys.executable, "-m", "pytest", "-n", processes, *WORKERS, *part.arguments, *more]
    with busy_cores(part.loaded):
        yield subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **width},
            text=True,
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
            **options,
        )


def run(part: Part, workers: int, more: list[str], tally: Tally) -> None:
    """Run a part; its output passes through, but for the closing line, which goes to the tally."""
    print(f"== {part.name}", flush=True)
    held = ""
    start = time.monotonic()
    with started(part, workers, more, stdout=subprocess.PIPE) as running:
        assert running.stdout is not None
        for line in running.stdout:
            sys.stdout.write(held)
            sys.stdout.flush()
            held = line
        status = running.wait()
    counts = Counter({word: int(number) for number, word in COUNT.findall(held)})
    if not counts:  # pytest itself broke down
        print(held, end="")
        held, counts = "no closing line", Counter(error=1)
    tally.counts += counts
    tally.failed |= status != 0
    how = "passed" if status == 0 else f"FAILED (status {status})"
    seconds = time.monotonic() - start
    tally.lines.append(f"== {part.name}: {how}, {seconds:.0f} s: {held.strip().strip('= ')}")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "parts", nargs="+", choices=("quick", "lanes", "full", "widths", "one-core", "loaded")
    )
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="test processes at a time")
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:cut])
    more = words[cut + 1 :]
    parts = [part for name in options.parts for part in parts_of(name, options.parts)]
    if len(parts) == 1:
        with started(parts[0], options.workers, more) as running:
            return running.wait()
    tally = Tally()
    start = time.monotonic()
    for part in parts:
        run(part, options.workers, more, tally)
    print(*tally.lines, sep="\n")
    order = ("failed", "passed", "skipped", "deselected", "xfailed", "xpassed", "warning", "error")
    many = {word: "s" if tally.counts[word] > 1 and word in ("warning", "error") else "" for word in order}
    found = [f"{tally.counts[word]} {word}{many[word]}" for word in order if tally.counts[word]]
    seconds = time.monotonic() - start
    print(f" {', '.join(found)} in {seconds:.2f}s ".center(80, "="), flush=True)
    return int(tally.failed)


if __name__ == "__main__":
    sys.exit(main())
