"""How benchmarks measure one process: pinned, warmed up, medians with their spread, roofs beside the number, conditions on top."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field

import numpy as np

from jali.codegen import compiler, target
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.profile import Roofs, measure_roofs


@dataclass
class Result:
    """One line of a table."""

    name: str
    median: float
    low: float
    high: float
    unit: str
    remarks: dict[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        extra = "  ".join(f"{k} {v:.3g}" for k, v in self.remarks.items())
        return (
            f"{self.name:44s} {self.median:9.2f} {self.unit:9s} ({self.low:.2f} .. {self.high:.2f})  {extra}"
        )


def pin(core: int = 0) -> None:
    """Binds this process to one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[core]})


def time_call(
    call: Callable[[], object], per: float, seconds: float = 0.05, repeats: int = 15, scale: float = 1e9
) -> tuple[float, float, float]:
    """Median, lowest and highest time of `call` divided by `per`, in ns; each repeat lasts about `seconds`."""
    call()
    start = time.perf_counter()
    call()
    once = max(time.perf_counter() - start, 1e-7)
    count = max(1, round(seconds / once))
    out = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(count):
            call()
        out.append((time.perf_counter() - start) / count / per * scale)
    return float(np.median(out)), min(out), max(out)


def roofs_of_one_core(precision: str) -> Roofs:
    """Memory, second-level cache and multiply-adds, measured now, on the core this process is pinned to."""
    return measure_roofs(precisions=[precision])


def machine() -> str:
    """The processor, its vectors, the compiler and Python."""
    host = target.host()
    found = compiler.find_compiler()
    return f"{host.name}, {8 * host.vector_bytes}-bit vectors, {found.version}, Python {platform.python_version()}"


def conditions() -> str:
    """The facts about the machine in every table."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return f"{machine()}, load {load:.1f}"


def arguments(description: str, sizes: str = "8,12,16", device: str = "") -> argparse.Namespace:
    """Options that all benchmarks share; of those for processors and GPUs also `device`, by default this one."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="print one JSON object per result")
    parser.add_argument("--sizes", default=sizes, help="lattice extents, comma separated")
    parser.add_argument("--precision", default="float64", choices=IEEE_PRECISIONS[::-1])
    if device:
        parser.add_argument("--device", default=device, help="where it runs: cpu, cuda, cuda:1, ...")
    return parser.parse_args()


def show(results: list[Result], options: argparse.Namespace, *header: object) -> None:
    """Prints a table, or JSON lines."""
    if options.json:
        for result in results:
            print(json.dumps(asdict(result)))
        return
    print(conditions())
    for line in header:
        print(line)
    for result in results:
        print(result)
