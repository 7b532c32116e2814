"""The figures of the HiCCL paper, simulated with its own parameters on described machines, beside its numbers.

`python benchmarks/paper.py` writes docs/collectives-paper.md and its plots: bounds (Table 3), peaks of eight collectives
on four machines (Fig. 8), pipeline depths (Fig. 9), scaling to 2,048 GPUs (Fig. 10), and where we differ, with causes.
`--quick` leaves out the largest machines and writes nothing.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass
from pathlib import Path

from paper_values import COLLECTIVES, FIGURE_8, MACHINES, PARAMETERS, VARIANTS

from jali.comm.bounds import bound, reachable
from jali.comm.choice import Parameters, simulate_collective
from jali.comm.machine import Machine

SIZE = 2e9  # bytes p * d where all machines are saturated
DEPTHS = (8, 16, 32, 64, 128)
DOCS = Path(__file__).resolve().parent.parent / "docs"

# Where and why the simulation and the paper part ways: (machine, collective, variant or "") -> cause.
CAUSES: dict[tuple[str, str, str], str] = {}


def parameters_of(machine: str, collective: str, variant: str, depth: int = 1) -> Parameters:
    """The paper's parameters: Table 5, stripe = GPUs per node, all-reduce in two steps, scatter as its code has it."""
    topology = "direct" if variant == "direct" else "ring" if variant.endswith("ring") else "tree"
    factors, libraries = PARAMETERS[machine][topology]
    rooted = collective in ("broadcast", "reduce")
    node = Machine.load(machine).ranks_per_node
    return Parameters.of_factors(
        factors,
        libraries,
        form={"all_reduce": "composed", "scatter": "mirrored"}.get(collective, "single"),
        stripe=node if rooted and variant.split()[0] in ("striped", "pipelined") else 1,
        ring=4 if topology == "ring" else 1,
        depth=depth if variant.startswith("pipelined") else 1,
    )


def figure_8(machines: tuple[str, ...] = MACHINES, depths: tuple[int, ...] = DEPTHS) -> dict[tuple[str, str, str], float]:
    """Peak throughput in GB/s by (machine, collective, variant), for every bar that the paper shows."""
    peaks: dict[tuple[str, str, str], float] = {}
    for name in machines:
        machine = Machine.load(name)
        core = machine.core()
        for collective, variant in itertools.product(COLLECTIVES, VARIANTS):
            if FIGURE_8[name][variant][COLLECTIVES.index(collective)] is None:
                continue
            rates = [
                simulate_collective(machine, collective, SIZE, parameters_of(name, collective, variant, depth), core=core)
                for depth in (depths if variant.startswith("pipelined") else (1,))
            ]
            peaks[name, collective, variant] = max(result.throughput or 0.0 for result in rates)
    return peaks


@dataclass(frozen=True)
class Exception_:
    """Two variants whose order or ratio differs from the paper's."""

    machine: str
    collective: str
    variants: tuple[str, str]
    ours: float  # ratio of the first to the second
    theirs: float
    order: bool  # the order differs, too

    @property
    def factor(self) -> float:
        return self.ours / self.theirs


def compare(peaks: dict[tuple[str, str, str], float]) -> tuple[list[Exception_], int]:
    """Pairs of variants that break the rules, and the number of pairs looked at.

    Order: the same wherever the paper's values differ by more than 15 %. Ratio: within 25 %.
    """
    exceptions, pairs = [], 0
    for machine, collective in itertools.product(MACHINES, COLLECTIVES):
        theirs = {v: FIGURE_8[machine][v][COLLECTIVES.index(collective)] for v in VARIANTS}
        shown = [v for v in VARIANTS if (machine, collective, v) in peaks]
        for a, b in itertools.combinations(shown, 2):
            pairs += 1
            first, second = theirs[a], theirs[b]
            assert first is not None
            assert second is not None
            ratio = peaks[machine, collective, a] / peaks[machine, collective, b]
            wanted = first / second
            turned = max(wanted, 1 / wanted) > 1.15 and (ratio > 1) != (wanted > 1)
            if turned or max(ratio / wanted, wanted / ratio) > 1.25:
                exceptions.append(Exception_(machine, collective, (a, b), ratio, wanted, turned))
    return exceptions, pairs
