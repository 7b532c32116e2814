"""Claim: 2 ranks on 2 cores, full SU(3) update with 16^4 sites per rank, reach 85 % or more of twice one rank; a trajectory of hybrid Monte Carlo with
8^4 sites per rank 90 % (`--work trajectory --size 8`).

One rank alone and two MPI ranks together are measured in turn, each rank with one thread on a core of its own; medians of the paired
ratios. `--ranks N` for other numbers.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

from jali.bench.compare.pairs import LAUNCH

CHILD = "JALI_BENCHMARK_CHILD"


def trajectory(size: int, precision: str, ranks: int):
    """A trajectory of 10 steps of 2MN with the Wilson action, its energies and accept step."""
    from jali.bench.compare.cases import BETA, Work, links, waiting
    from jali.gauge import heat_bath_sweep, wilson_action
    from jali.hmc import HMC, Level
    from jali.lattice import Random

    lattice, U = links(size, precision, ranks)
    rng = Random(1)
    for _ in range(10):
        heat_bath_sweep(U, BETA, rng)
    hmc = HMC({"U": U}, wilson_action(BETA), seed=1, tau=0.5, levels=[Level("2MN", 10)])
    return Work(hmc.trajectory, 4 * size**4, "ns/link", waiting(lattice))


def full_update(size: int, precision: str, ranks: int):
    """4 overrelaxation sweeps and 1 heat-bath sweep."""
    from jali.bench.compare import cases

    return cases.full_update(size, precision, ranks)


WORKS = {"update": full_update, "trajectory": trajectory}


def child(name: str, size: int, repeats: int) -> None:
    from jali import comm

    ranks = comm.current()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[ranks.rank % len(cores)]})
    work = WORKS[name](size, "float64", ranks.size)
    work.call()
    times = []
    for _ in range(repeats):
        ranks.barrier()
        start = time.perf_counter()
        work.call()
        ranks.barrier()
        times.append(time.perf_counter() - start)
    if ranks.rank == 0:
        print(statistics.median(times) / work.per * 1e9)


def measure(ranks: int, name: str, size: int, repeats: int) -> float:
    """ns per link of each rank's share."""
    program = [sys.executable, os.path.abspath(__file__), "--work", name]
    program += ["--size", str(size), "--repeats", str(repeats)]
    command = program if ranks == 1 else [sys.executable, "-c", LAUNCH, str(ranks), *program]
    out = subprocess.run(
        command,
        env={**os.environ, CHILD: "1", "JALI_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return float(out.stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", choices=WORKS, default="update")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    if os.environ.get(CHILD):
        child(options.work, options.size, options.repeats)
        return
    from jali.bench.timing import conditions

    print(conditions())
    ratios = []
    for _ in range(options.pairs):
        one = measure(1, options.work, options.size, options.repeats)
        many = measure(options.ranks, options.work, options.size, options.repeats)
        ratios.append(one / many)
        print(
            f"one rank {one:7.1f} ns/link, each of {options.ranks} ranks {many:7.1f} ns/link, efficiency {one / many:.3f}"
        )
    print(
        f"median efficiency {statistics.median(ratios):.3f} ({min(ratios):.3f} .. {max(ratios):.3f}) for {options.size}^4 per rank"
    )


if __name__ == "__main__":
    main()
