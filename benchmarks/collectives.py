"""Claim: jali's collectives are no slower than the MPI library's own, and faster in the mean (thresholds: jali.bench).

Starts itself on `--ranks` ranks of the MPI library that this Python's mpi4py loads, with that library's defaults:
    python benchmarks/collectives.py --ranks 2 --output results/mpich
"""

import argparse
import os
import sys
from pathlib import Path

from jali.bench.cases import COLLECTIVES
from jali.bench.collectives import LARGEST, JaliSide, MpiSide, Side, measure, sizes_between
from jali.bench.collectives_report import row_text, summary, write_csv, write_json, write_plot
from jali.comm.launcher import launch
from jali.comm.place import place_under_launcher


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--smallest", type=int, default=8, help="payload in bytes")
    parser.add_argument("--largest", type=int, default=LARGEST, help="payload in bytes")
    parser.add_argument("--factor", type=int, default=8, help="from one payload to the next")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sides", default="jali,mpi")
    parser.add_argument("--output", type=Path, help="CSV, JSON and PNG go to files that begin with this")
    options = parser.parse_args()
    place = place_under_launcher()
    if place is None or place.size == 1:
        return launch(options.ranks, [sys.executable, os.path.abspath(__file__), *sys.argv[1:]])

    from mpi4py import MPI

    from jali import comm

    world = MPI.COMM_WORLD
    makers = {"jali": lambda: JaliSide(comm.from_mpi4py(world)), "mpi": lambda: MpiSide(world)}
    sides: list[Side] = [makers[name]() for name in options.sides.split(",")]
    first, last = sides[0].name, sides[-1].name
    report = measure(
        world,
        sides,
        sizes_between(options.smallest, options.largest, options.factor),
        options.collectives.split(","),
        rounds=options.rounds,
        progress=lambda cell: print(row_text(cell, first, last), flush=True),
    )
    if world.rank == 0:
        print(summary(report, first, last))
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            write_csv(report, options.output.with_suffix(".csv"))
            write_json(report, options.output.with_suffix(".json"))
            write_plot(report, options.output.with_suffix(".png"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
