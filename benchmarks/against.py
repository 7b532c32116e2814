"""Not a claim by itself: how many times faster this checkout is than another one, row by row, in one run on one core.

python benchmarks/against.py OTHER_CHECKOUT [--rows update,staple] [--json]

Two processes, one for each checkout, take turns (this, other, this, ...), since a machine that is shared does not stay the same for
long. Each holds its own fields, which it thermalises itself; a row is set up in fresh processes several times, because where the system
puts pages counts as well. The ratio is the median over the pairs of turns. Both checkouts need their `jali._core` beside their sources.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
SU3_STENCILS = "update 8,update 12,update 16,staple 8,staple 12,staple 16,staple 24"
ROWS = f"{SU3_STENCILS},plaquette 8,plaquette 12,plaquette 16,wilson 8,wilson 12,wilson 16,flow 8,flow 16"
BETA = 5.7


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", help="the other checkout")
    parser.add_argument("--rows", default=ROWS, help=f"name and extent, comma separated; default {ROWS}")
    parser.add_argument("--precision", default="float64", choices=("float64", "float32"))
    parser.add_argument("--starts", type=int, default=3, help="fresh pairs of processes per row")
    parser.add_argument("--turns", type=int, default=7, help="turns of each process")
    parser.add_argument("--seconds", type=float, default=0.05, help="length of a turn")
    parser.add_argument("--json", action="store_true", help="print one JSON object per row")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.precision, options.seconds)
        return
    trees = [HERE, Path(options.other).resolve()]
    for tree in trees:
        if not list((tree / "src" / "jali").glob("_core.*")):
            raise SystemExit(
                f"{tree} has no jali._core beside its sources; build it there and put it there by "
                "`cmake --install BUILD --component python --prefix src`"
            )
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # this process and all that it starts
    if not options.json:
        # a process of its own, since this one imports no jali
        words = subprocess.run(
            [sys.executable, "-c", "from timing import conditions; print(conditions())"],
            env=environment(HERE),
            cwd=HERE / "benchmarks",
            capture_output=True,
            text=True,
            check=True,
        )
        print(words.stdout.strip())
        print(f"{'':24s} {'this':>8s} {'other':>8s}          times faster (quartiles)")
    for row in options.rows.split(","):
        result = compare(row.strip(), trees, options)
        if options.json:
            print(json.dumps(result.__dict__), flush=True)
        else:
            print(result, flush=True)


@dataclass
class Ratio:
    """A row: median times in ns per link or site, and how many times faster this checkout is, with quartiles over the turns."""

    row: str
    this: float
    other: float
    unit: str
    ratio: float
    low: float
    high: float

    def __str__(self) -> str:
        return (
            f"{self.row:24s} {self.this:8.2f} {self.other:8.2f} {self.unit}  "
            f"{self.ratio:6.3f} ({self.low:.3f} .. {self.high:.3f})"
        )


def environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "JALI_THREADS": "1", "PYTHONPATH": str(tree / "src")}


def compare(row: str, trees: list[Path], options: Any) -> Ratio:
    """Times a row of both checkouts in turns."""
    times: list[list[float]] = [[], []]
    unit = ""
    for start in range(options.starts):
        workers = [Worker(tree, options) for tree in trees]
        try:
            unit, _ = (worker.ask(row) for worker in workers)
            for turn in range(options.turns):
                order = (0, 1) if (start + turn) % 2 == 0 else (1, 0)
                for k in order:
                    times[k].append(float(workers[k].ask("time")))
        finally:
            for worker in workers:
                worker.end()
    ratios = [b / a for a, b in zip(*times, strict=True)]
    low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return Ratio(row, statistics.median(times[0]), statistics.median(times[1]), unit, ratio, low, high)


class Worker:
    """A process that runs one checkout's jali and answers line by line."""

    def __init__(self, tree: Path, options: Any):
        self.tree = tree
        command = [sys.executable, __file__, "--worker", str(tree), "--precision", options.precision]
        self.process = subprocess.Popen(
            [*command, "--seconds", str(options.seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(tree),
        )
        found = Path(self.read())
        if (tree / "src") not in found.parents:
            raise SystemExit(f"{tree} should bring its own jali (with jali._core), but {found} was imported")

    def read(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.tree} ended with {self.process.wait()}")
        return line.strip()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# ---- the process of one checkout ---------------------------------------------------------------------------------


def work(precision: str, seconds: float) -> None:
    """Sets up the rows that are asked for, and times them."""
    import jali

    print(jali.__file__, flush=True)
    for line in sys.stdin:
        if line.strip() != "time":
            name, _, size = line.strip().partition(" ")
            call, per, unit = SETUPS[name](size, precision)
            call()
            start = time.perf_counter()
            call()
            count = max(1, round(seconds / (time.perf_counter() - start)))
            print(unit, flush=True)
            continue
        call()  # the other process had the caches
        start = time.perf_counter()
        for _ in range(count):
            call()
        print(1e9 * (time.perf_counter() - start) / count / per, flush=True)


def hot(size: str, precision: str) -> Any:
    import jali
    from jali.gauge import SU, GaugeField

    extents = [int(n) for n in size.split("x")]
    lattice = jali.Lattice(extents if len(extents) > 1 else 4 * extents)
    return lattice, GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)


def update(size: str, precision: str) -> tuple[Callable[[], object], float, str]:
    """The mean over 4 overrelaxation sweeps and 1 heat-bath sweep, thermalised."""
    import jali
    from jali.gauge.updates import sweep

    lattice, U = hot(size, precision)
    rng = jali.Random(1)
    for _ in range(10):
        sweep(U, BETA, rng, overrelaxation=1)
    return lambda: sweep(U, BETA, rng), 5 * 4 * lattice.volume, "ns/link"


def staple(size: str, precision: str) -> tuple[Callable[[], object], float, str]:
    import jali
    from jali.gauge.staples import staple_sum

    lattice, U = hot(size, precision)
    out = jali.Field(lattice, jali.Matrix(3), precision=precision)
    return lambda: [staple_sum(U, out, mu) for mu in lattice.directions], 4 * lattice.volume, "ns/link"


def plaquette(size: str, precision: str) -> tuple[Callable[[], object], float, str]:
    import site_functions

    lattice, U = hot(size, precision)
    return lambda: lattice.sum(site_functions.plaquette, U), lattice.volume, "ns/site"


def wilson(size: str, precision: str) -> tuple[Callable[[], object], float, str]:
    import jali
    from jali.fermions import WilsonDirac

    lattice, U = hot(size, precision)
    psi, out = (jali.Field(lattice, jali.Spinor(3), precision=precision) for _ in range(2))
    psi.set_local(1.0 + psi.local())
    operator = WilsonDirac(U, mass=0.1)
    return lambda: operator.apply(psi, out), lattice.volume, "ns/site"


def flow(size: str, precision: str) -> tuple[Callable[[], object], float, str]:
    """A step of the gradient flow."""
    from jali.gauge import Flow

    lattice, U = hot(size, precision)
    steps = Flow(U)
    return steps.advance, 4 * lattice.volume, "ns/link"


SETUPS = {"update": update, "staple": staple, "plaquette": plaquette, "wilson": wilson, "flow": flow}

if __name__ == "__main__":
    main()
