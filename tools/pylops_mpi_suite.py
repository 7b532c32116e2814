"""Run the tests of pylops-mpi 0.8.0 on jali.compat.pylops_mpi: `python tools/pylops_mpi_suite.py [-n RANKS] [FILE ...]`.

The source package comes from PyPI by pip into a folder of the temporary files; nothing of it is part of jali. Its tests run file by
file on MPI ranks, with jali under the library's name (tests/compat/pylops_mpi_plugin.py). A test passes if it passes on all ranks.
One that fails on some ranks only, or that hangs, ends the ranks; those after it run on new ones. Prints a table, and exits with the
number of tests that failed and are not among the exceptions (tests/compat/pylops_mpi_exceptions.txt), at most 100.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pylops_mpi_package import (
    COMPAT,
    NAME,
    ROOT,
    STARTING,
    VERSION,
    Ranks,
    add_arguments,
    exceptions,
    source,
    start,
)

EXCEPTIONS = COMPAT / "pylops_mpi_exceptions.txt"
# Of the 17 files those that the library itself also runs on 3 and 4 ranks.
ON_MORE_RANKS = (
    "test_blockdiag.py",
    "test_eigs.py",
    "test_fredholm.py",
    "test_matrixmult.py",
    "test_stack.py",
)


@dataclass
class Outcome:
    """Of a file."""

    file: str
    passed: int = 0
    failed: dict[str, str] = field(default_factory=dict)  # what was said
    seconds: float = 0.0


def start_tests(arguments: argparse.Namespace, file: Path, first: int, folder: Path) -> Ranks:
    """The file's tests from number `first` on."""
    words = [
        "-m", "pytest", "-q", "-p", "pylops_mpi_plugin", "-p", "no:cacheprovider", "-p", "no:xdist", "--noconftest",
        "-c", os.devnull, "--rootdir", str(file.parent), "--results", str(folder), "--first", str(first),
        "--with-mpi", str(file),
    ]  # fmt: skip
    return start(arguments.n, words, folder, path=[COMPAT])


def run_file(arguments: argparse.Namespace, file: Path) -> Outcome:
    """All tests of a file."""
    outcome, began, first, tests = Outcome(file.name), time.monotonic(), 0, None
    while tests is None or first < len(tests):
        with tempfile.TemporaryDirectory() as temporary:
            ranks = start_tests(arguments, file, first, Path(temporary))
            try:
                done, found, why = watched(ranks, arguments.timeout, arguments.behind)
                tests = found or tests  # a rank that ends at once may take the names with it
            finally:
                ranks.end()
            output = ranks.output()
        for failed in done:
            name = tests[first] if tests else file.name
            if failed:
                outcome.failed[name] = failed
            else:
                outcome.passed += 1
            first += 1
        if tests is None:
            outcome.failed["(file)"] = why or output[-4000:]
            break
        if why and first < len(tests):
            outcome.failed[tests[first]] = f"{why}\n{output[-1500:]}"
            first += 1
    outcome.seconds = time.monotonic() - began
    return outcome


def watched(ranks: Ranks, timeout: float, behind: float) -> tuple[list[str], list[str] | None, str]:
    """What was said of each test that ended on all ranks ("" where it passed), the names of all tests, and why it did not go on."""
    moved, before = time.monotonic(), None
    while True:
        ended = ranks.process.poll() is not None
        lines = [ranks.lines(rank) for rank in range(ranks.size)]
        ends = [[line for line in mine if line["what"] == "end"] for mine in lines]
        tests = next((line["tests"] for line in lines[0] if line["what"] == "collected"), None)
        broken = next((line["failed"] for mine in lines for line in mine if line["what"] == "broken"), "")
        together = min(map(len, ends))
        said = ["\n".join(filter(None, (mine[k]["failed"] for mine in ends))) for k in range(together)]
        state = list(map(len, lines))
        if state != before:
            moved, before = time.monotonic(), state
        waited = time.monotonic() - moved
        if ended:
            whole = all(mine and mine[-1]["what"] == "finished" for mine in lines)
            if broken:
                return [], None, broken
            return said, tests, "" if whole and tests is not None else "a rank ended"
        ahead = [mine[together] for mine in ends if len(mine) > together]
        alone = next((line["failed"] for line in ahead if line["failed"]), "")
        if alone and waited > behind:
            return said, tests, f"failed on some ranks, others hang\n{alone}"
        if waited > (timeout if tests is not None else max(timeout, STARTING)):
            return said, tests, f"nothing happened in {waited:.0f} s"
        time.sleep(0.05)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "files", nargs="*", help="names of test files (default: all, on more than 2 ranks five)"
    )
    add_arguments(parser)
    parser.add_argument(
        "--timeout", type=float, default=60.0, help="seconds that a test may take (default: 60)"
    )
    arguments = parser.parse_args(words)
    tests = (arguments.source or source(arguments.cache)) / "tests"
    names = arguments.files or (
        ON_MORE_RANKS if arguments.n > 2 else sorted(p.name for p in tests.glob("test_*.py"))
    )
    allowed = exceptions(EXCEPTIONS)
    passed, wrong, excused = 0, 0, 0
    print(
        f"{NAME} {VERSION} on {arguments.n} ranks\n{'file':<32}{'passed':>8}{'failed':>8}{'s':>8}", flush=True
    )
    for name in names:
        outcome = run_file(arguments, tests / name)
        print(f"{name:<32}{outcome.passed:>8}{len(outcome.failed):>8}{outcome.seconds:>8.1f}", flush=True)
        passed += outcome.passed
        for test, said in outcome.failed.items():
            reason = allowed.get(f"{name}::{test}")
            excused += reason is not None
            wrong += reason is None
            print(f"  {'excepted' if reason else 'FAILED'} {test}{': ' + reason if reason else ''}")
            if arguments.v and not reason:
                print("    " + said.replace("\n", "\n    "))
    print(f"{'all':<32}{passed:>8}{wrong + excused:>8}")
    if excused:
        print(f"{excused} of these are exceptions ({EXCEPTIONS.relative_to(ROOT)})")
    return min(wrong, 100)


if __name__ == "__main__":
    sys.exit(main())
