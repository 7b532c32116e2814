"""What benchmarks of two ranks of one host share: each rank has a core of its own, and the MPI library is named."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from jali.bench.compare.pairs import LAUNCH

CHILD = "JALI_BENCHMARK_CHILD"


def is_rank() -> bool:
    """Whether this process is one of the ranks, not the one that starts them."""
    return CHILD in os.environ


def take_core(rank: int) -> None:
    """From now on this rank runs on one core, another one than the other's where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})


def run_ranks(script: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Name the MPI library of this Python, and run the script on two ranks of it. Raises CalledProcessError."""
    import mpi4py

    mpi4py.rc.initialize = False
    from mpi4py import MPI

    print(MPI.Get_library_version().split("\n")[0].strip("\0 ,"), flush=True)
    command = [sys.executable, "-c", LAUNCH, "2", sys.executable, os.path.abspath(script), *arguments]
    return subprocess.run(command, env={**os.environ, CHILD: "1"}, check=True, text=True, **options)
