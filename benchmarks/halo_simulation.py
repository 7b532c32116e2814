"""Claim: the simulation of updates with halos predicts what is measured, and which halo policy wins.

Measured beside simulated, on the GPUs that are there or on hosts: every policy that is possible, several kernels and
volumes, splits in one direction and, with four ranks, in two. Printed are the errors of the whole update twice: *alone*
by what the machine's file says, and *told* what the kernel alone takes on one rank (its time per site, from the same
run), with median and worst error of each, and for every case whether the policy predicted best takes at most 5 % longer
than the one measured best. Aims: median 15 %, worst 35 %.

`python benchmarks/halo_simulation.py` starts ranks itself: one for each GPU up to four, else two on this host
(`--ranks`). GPUs get the machine file of their name, or `--machine`; hosts are measured first, as by `jali machine
measure`. Times are medians over batches, on hosts the fastest batch of short ones, since others may use them;
`--statistic` chooses. `--csv FILE` keeps all comparisons. `--measured FILE` simulates again what such a file has, on no GPU and
one rank: `python benchmarks/halo_simulation.py --measured benchmarks/halo_simulation_h100.csv --machine h100x8`.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gc
import itertools
import math
import os
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jali.bench.compare.pairs import LAUNCH

CHILD = "JALI_BENCHMARK_CHILD"
FILES = {"H200": "h200x8", "H100": "h100x8", "A100": "perlmutter", "MI250X": "frontier"}
"""Machine files by what names of devices contain."""
NEAR = 1.05
AIM, WORST = 0.15, 0.35
COLUMNS = ("case", "policy", "measured_s", "kernel_s", "alone_s", "told_s")


@dataclass(frozen=True)
class Compared:
    """A policy of a case: seconds measured, of the kernel alone, simulated by the file alone, and told the kernel's time."""

    case: str
    policy: str
    measured: float
    kernel: float
    alone: float
    with_kernel: float

    def errors(self) -> tuple[float, float]:
        return self.alone / self.measured - 1, self.with_kernel / self.measured - 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", help="cpu, cuda or hip (default: a device if there is one)")
    parser.add_argument("--ranks", type=int, help="default: GPUs up to four, 2 on hosts")
    parser.add_argument("--machine", help="name or file (default: by the device's name; hosts are measured)")
    parser.add_argument("--kernels", default="staple,wilson,plaquette,laplace")
    parser.add_argument(
        "--sizes", help="sites per rank in each direction (default 8,12,16,24,32; hosts 6,8,12)"
    )
    parser.add_argument("--precisions", default="float64")
    parser.add_argument("--policies", default="", help="these policies (default: all possible)")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, help="of a batch (default 0.02; hosts 0.001)")
    parser.add_argument("--statistic", choices=("median", "fastest"), help="default median; hosts fastest")
    parser.add_argument("--csv", type=Path)
    parser.add_argument(
        "--measured", type=Path, help="comparisons of --csv to be simulated again, with --machine"
    )
    options = parser.parse_args()
    if options.measured:
        if not options.machine:
            parser.error(
                "--measured FILE needs --machine: the name or file of the machine that it was measured on"
            )
        comparisons = again(options.measured, options.machine)
        return kept(
            options,
            comparisons,
            [rung(list(case)) for _, case in itertools.groupby(comparisons, lambda r: r.case)],
        )
    if os.environ.get(CHILD):
        return child(options)
    kind = options.device or next((name for name in ("cuda", "hip") if devices_of(name)), "cpu")
    ranks = options.ranks or (2 if kind == "cpu" else min(4, max(2, devices_of(kind))))
    arguments = [*sys.argv[1:], "--device", kind]
    command = [sys.executable, "-c", LAUNCH, str(ranks), sys.executable, __file__, *arguments]
    return subprocess.run(command, env={**os.environ, CHILD: "1"}, check=False).returncode


def devices_of(kind: str) -> int:
    """How many devices of a kind this process sees."""
    from jali import _core
    from jali.errors import DeviceError

    with contextlib.suppress(DeviceError):
        return int(_core.Gpu.count(kind))
    return 0


def child(options: argparse.Namespace) -> int:
    from jali import comm, devices, settings
    from jali.bench import halo
    from jali.bench.host_device import host_device, host_transports
    from jali.planner.machine import Machine
    from jali.planner.measure import measure

    ranks = comm.current()
    on_host = options.device == "cpu"
    settings.use(tune="off")
    notes = []
    if on_host:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[ranks.rank % len(cores)]})
        settings.use(threads=1)
    if options.machine:
        machine = Machine.load(options.machine)
    elif on_host:
        machine = Machine.from_table(
            tomllib.loads(measure(ranks, "this host", host_device(ranks), host_transports(ranks))),
            "this host",
        )
    else:
        name = devices.open_device(options.device, ranks).name
        found = next((file for word, file in FILES.items() if word in name), None)
        if found is None:
            found = FILES["H200"]
            notes.append(
                f"no machine file is known for {name!r}: compared with {found}, so the errors say nothing; "
                "give --machine"
            )
        machine = Machine.load(found)
    sizes = [int(n) for n in (options.sizes or ("6,8,12" if on_host else "8,12,16,24,32")).split(",")]
    seconds = options.seconds or (0.001 if on_host else 0.02)
    fastest = (options.statistic or ("fastest" if on_host else "median")) == "fastest"
    rounds = options.rounds * (10 if fastest else 1)
    grids = [(1, 1, 1, ranks.size)] + ([(1, 1, 2, ranks.size // 2)] if ranks.size in (4, 8) else [])
    comparisons: list[Compared] = []
    best: list[float] = []
    say(
        ranks,
        f"{machine.name}, {ranks.size} ranks, {'fastest' if fastest else 'median'} of {rounds} batches of {seconds} s",
    )
    for note in notes:
        say(ranks, note)
    only = [name for name in options.policies.split(",") if name]
    for kernel in options.kernels.split(","):
        for size in sizes:
            for grid in grids:
                for precision in options.precisions.split(","):
                    words = f"{kernel} {size}^4 {'x'.join(map(str, grid))} {precision}"
                    case = halo.make_case(kernel, [size] * 4, grid, options.device, precision)
                    report = halo.measure(case, only, rounds, seconds, parts=(), graphs=False)
                    found = compare(case, report, machine, words, fastest)
                    comparisons += found
                    best.append(rung(found))
                    for comparison in found:
                        alone, with_kernel = comparison.errors()
                        say(
                            ranks,
                            f"{words:38}{comparison.policy:26}{comparison.measured * 1e6:10.1f} us  "
                            f"alone {comparison.alone * 1e6:10.1f} {alone:+6.0%}"
                            f"  told {comparison.with_kernel * 1e6:10.1f} {with_kernel:+6.0%}",
                        )
                    if found:
                        say(
                            ranks,
                            f"{words:38}the policy predicted best takes {best[-1]:.3f} of the one measured best",
                        )
                    del case
                    gc.collect()
    if ranks.rank == 0:
        kept(options, comparisons, best)
        for note in notes:
            print(note)
    return 0


def kept(options: argparse.Namespace, comparisons: list[Compared], best: list[float]) -> int:
    """Keeps and sums up."""
    if options.csv:
        lines = [
            f"{r.case},{r.policy},{r.measured:.6g},{r.kernel:.6g},{r.alone:.6g},{r.with_kernel:.6g}"
            for r in comparisons
        ]
        options.csv.write_text("\n".join([",".join(COLUMNS), *lines]) + "\n")
    summary(comparisons, best)
    return 0


def say(ranks: object, text: str) -> None:
    if ranks.rank == 0:  # type: ignore[attr-defined]
        print(text, flush=True)


def compare(case: object, report: object, machine: object, words: str, fastest: bool) -> list[Compared]:
    """What was measured of a case beside what is simulated."""

    def seconds(measurement: object, name: str) -> float:
        timing = measurement.times[name]  # type: ignore[attr-defined]
        return min(timing.seconds) if fastest else timing.median

    times = {one.policy: seconds(one, "whole") for one in report.measurements if one.times}  # type: ignore[attr-defined]
    if not times:
        return []
    kernel = statistics.median(seconds(one, "compute") for one in report.measurements if one.times)  # type: ignore[attr-defined]
    lattice = case.lattice  # type: ignore[attr-defined]
    return simulated(case, machine, words, lattice.extents, lattice.grid, times, kernel)


def simulated(
    case: object,
    machine: object,
    words: str,
    extents: Sequence[int],
    grid: Sequence[int],
    times: dict[str, float],
    kernel: float,
) -> list[Compared]:
    """What was measured of a case, policy by policy, beside what is simulated of a lattice of these extents."""
    call = case.bind()  # type: ignore[attr-defined]
    per_site = kernel * math.prod(grid) / math.prod(extents)
    alone, with_kernel = (
        call.simulate(machine, extents, grid, fixed=case.fixed, policies=list(times), site_seconds=own)  # type: ignore[attr-defined]
        for own in (None, per_site)
    )
    return [
        Compared(
            words,
            policy,
            measured,
            kernel,
            alone.prediction(policy).time,
            with_kernel.prediction(policy).time,
        )
        for policy, measured in times.items()
        if not alone.prediction(policy).why_not
    ]


def again(path: Path, machine: str) -> list[Compared]:
    """What a file of `--csv` has, beside what is simulated now."""
    import jali
    from jali.bench.halo import KERNELS

    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    comparisons: list[Compared] = []
    for words, case in itertools.groupby(lines, lambda line: line["case"]):
        kernel, local, cut, precision = words.split()
        grid = [int(n) for n in cut.split("x")]
        of_rank, directions = (int(n) for n in local.split("^"))
        small = KERNELS[kernel](jali.Lattice([4] * directions), precision)
        measured = list(case)
        comparisons += simulated(
            small,
            machine,
            words,
            [of_rank * n for n in grid],
            grid,
            {line["policy"]: float(line["measured_s"]) for line in measured},
            float(measured[0]["kernel_s"]),
        )
    return comparisons


def rung(comparisons: list[Compared]) -> float:
    """Measured time of the policy predicted best over that of the one measured best."""
    if not comparisons:
        return 1.0
    return min(comparisons, key=lambda comparison: comparison.alone).measured / min(
        comparison.measured for comparison in comparisons
    )


def summary(comparisons: list[Compared], best: list[float]) -> None:
    for number, words in enumerate(("by the machine's file alone", "told what the kernel takes on one rank")):
        errors = [abs(comparison.errors()[number]) for comparison in comparisons]
        median, worst = statistics.median(errors), max(errors)
        print(
            f"{words}: {len(errors)} comparisons, median error {median:.1%} (aim {AIM:.0%}), worst {worst:.1%} "
            f"(aim {WORST:.0%}): {'pass' if median <= AIM and worst <= WORST else 'FAIL'}"
        )
    near = sum(ratio <= NEAR for ratio in best)
    print(
        f"predicted policy within 5 % of the best: {near} of {len(best)} cases, at worst {max(best) - 1:.1%} longer: "
        f"{'pass' if near == len(best) else 'FAIL'}"
    )


if __name__ == "__main__":
    sys.exit(main())
