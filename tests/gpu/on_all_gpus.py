"""Starts pytest on as many ranks as there are GPUs, four at most, a GPU each: `python on_all_gpus.py PYTEST-ARGUMENTS...`

Rank 0 says what pytest says, the others only what is wrong. Without a second GPU, or without MPI, nothing is run, and that is said. Ends
with pytest's status.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys

# Before jali brings NumPy: ranks are bound to a few cores, on which threads of its library would wait for each other.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

from jali import _core
from jali.comm.launcher import find_launcher, launch
from jali.errors import DeviceError, RankError

RANK = "--as-a-rank"
MOST = 4


def as_a_rank(arguments: list[str]) -> int:
    """Run pytest; on ranks but the first, show its report only if something failed."""
    import pytest

    from jali import comm

    rank = comm.current().rank
    if rank == 0:
        return int(pytest.main(arguments))
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        status = int(pytest.main(arguments))
    if status != 0:
        print(f"rank {rank}:\n{said.getvalue()}", flush=True)
    return status


def main(arguments: list[str]) -> int:
    if arguments[:1] == [RANK]:
        return as_a_rank(arguments[1:])
    try:
        devices = _core.Gpu.count("cuda")
        if devices > 1:
            find_launcher()
    except (DeviceError, RankError) as error:
        print(f"not run on several GPUs: {error}")
        return 0
    if devices < 2:
        print("not run on several GPUs: there is one")
        return 0
    ranks = min(devices, MOST)
    print(f"on {ranks} GPUs, one for each rank:", flush=True)
    return launch(ranks, [sys.executable, __file__, RANK, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
