"""Claim: a search takes seconds at any number of nodes, and what it finds is never slower by 1 % than what was found before.

`plan_search.csv` holds what the search of an earlier version chose, which simulated every rank of every candidate: on
the machines of docs/collectives-paper.md, from 1 KiB to 8 GiB, with the time that it simulated. Here both choices are
simulated by the same simulator. Then searches on many nodes are timed, in seconds of this process's processor time.

    python benchmarks/plan_search.py [--quick]
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
import time
from pathlib import Path

from jali.planner.bounds import COLLECTIVES
from jali.planner.choice import FormParameters, choose, simulate_collective
from jali.planner.machine import Machine

TABLE = Path(__file__).with_suffix(".csv")
WORDS = re.compile(
    r"(\w+), hierarchy ([\d x]+), libraries (.*), stripe (\d+)(, weighted)?, ring (\d+), depth (\d+)"
)
LIMIT = 1.01
LARGE = (("perlmutter", 16), ("perlmutter", 256), ("frontier", 32), ("aurora", 64))


def parameters_of(text: str, machine: Machine) -> FormParameters:
    """Parameters from their description."""
    found = WORDS.fullmatch(text)
    if found is None:
        raise ValueError(f"no parameters: {text}")
    network = machine.network
    share = [network.bandwidth[nic] / network.binding.count(nic) for nic in network.binding]
    return FormParameters.of_factors(
        [int(n) for n in found[2].split(" x ")],
        found[3].split(", "),
        form=found[1],
        stripe=int(found[4]),
        stripe_weights=tuple(share[rank % len(share)] for rank in range(machine.ranks)) if found[5] else (),
        ring=int(found[6]),
        depth=int(found[7]),
    )


def compare(quick: bool) -> bool:
    """Whether no choice is slower than the recorded one by more than a hundredth."""
    worst, took = (0.0, ""), 0.0
    with TABLE.open() as file:
        rows = list(csv.DictReader(file))[:: 8 if quick else 1]
    for row in rows:
        machine = Machine.load(row["machine"], int(row["nodes"]))
        size = float(row["bytes"])
        before = simulate_collective(
            machine, row["collective"], size, parameters_of(row["parameters"], machine)
        )
        started = time.process_time()
        now = choose(machine, row["collective"], size)
        took += time.process_time() - started
        worst = max(
            worst, (now.time / before.time, f"{row['machine']}, {row['collective']} of {size:.0f} bytes")
        )
    print(
        f"slowest of {len(rows)} choices against the recorded ones: {worst[0]:.4f} ({worst[1]}); {took:.1f} s"
    )
    return worst[0] <= LIMIT


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="every eighth row, and the all-reduce only")
    quick = parser.parse_args().quick
    good = compare(quick)
    for name, nodes in LARGE:
        for collective in ("all_reduce",) if quick else COLLECTIVES:
            started = time.process_time()
            choice = choose(Machine.load(name, nodes), collective, float(1 << 30))
            took = time.process_time() - started
            print(
                f"{name} {nodes:>4} nodes {collective:<15}{took:6.2f} s  {choice.time * 1e3:8.2f} ms",
                flush=True,
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
