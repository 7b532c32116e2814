"""Claim: on two ranks of one host, transforms of 256^3 complex numbers in single precision are as fast as those of mpi4py-fft with the
same local transforms, and redistributions 1.5 times as fast.

The sides take turns; the time of a turn is that of the slower rank, ratios are medians of those of turns. mpi4py-fft and pyFFTW are
optional; where they are not installed what there is shows alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from on_two_ranks import is_rank, run_ranks, take_core

from jali import comm
from jali.arrays import DistributedArray, layout_of
from jali.arrays.exchange import Exchange
from jali.fft import Plan


def installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def ours(ranks: Any, n: int, provider: str, pieces: int = 1) -> dict[str, Callable[[], Any]]:
    x = DistributedArray((n, n, n), ranks, dtype="complex64")
    x[:] = np.random.default_rng(ranks.rank).normal(size=x.local_shape)
    found = {}
    for result in ("transposed", "natural"):
        plan = Plan(x.layout, result=result, norm="forward", provider=provider, pieces=pieces)
        y = DistributedArray.of(plan.result_layout, np.zeros(plan.result_layout.local_shape, "complex64"))
        found[result] = lambda plan=plan, y=y: plan(x, y)
        found[f"{result}, there and back"] = lambda plan=plan, y=y: plan.inverse(plan(x, y), x)
    after = layout_of(ranks, (n, n, n), axis=1)
    exchange = Exchange(ranks, x.layout.boxes, after.boxes, keep=True)
    out = np.zeros(after.local_shape, "complex64")
    back = exchange.reversed()
    found["redistribution 0 to 1"] = lambda: exchange.run(x.local, out)
    found["redistribution 1 to 0"] = lambda: back.run(out, x.local)
    return found


def theirs(n: int) -> dict[str, Callable[[], Any]]:
    from mpi4py import MPI
    from mpi4py_fft import PFFT, newDistArray
    from mpi4py_fft.pencil import Pencil, Subcomm

    fft = PFFT(MPI.COMM_WORLD, (n, n, n), dtype=np.complex64, grid=(-1,))
    u, v = newDistArray(fft, False), newDistArray(fft, True)
    u[:] = np.random.default_rng(MPI.COMM_WORLD.rank).normal(size=u.shape)
    subcomm = Subcomm(MPI.COMM_WORLD, [0, 1, 1])
    before = Pencil(subcomm, (n, n, n), axis=1)
    after = before.pencil(0)
    transfer = before.transfer(after, np.complex64)
    a, b = np.zeros(before.subshape, np.complex64), np.zeros(after.subshape, np.complex64)
    return {
        "transposed": lambda: fft.forward(u, v, normalize=True),
        "transposed, there and back": lambda: fft.backward(fft.forward(u, v, normalize=True), u),
        "redistribution 0 to 1": lambda: transfer.forward(a, b),
        "redistribution 1 to 0": lambda: transfer.backward(b, a),
    }


def measure(n: int, turns: int) -> None:
    ranks = comm.current()
    take_core(ranks.rank)
    sides = {"jali, pocketfft": ours(ranks, n, "scipy"), "the same in 4 pieces": ours(ranks, n, "scipy", 4)}
    if installed("pyfftw"):
        sides["jali, pyFFTW"] = ours(ranks, n, "pyfftw")
    if installed("mpi4py_fft"):
        sides["mpi4py-fft"] = theirs(n)
    rows = list(dict.fromkeys(row for side in sides.values() for row in side))
    for row in rows:
        present = [side for side in sides if row in sides[side]]
        times: dict[str, list[float]] = {side: [] for side in present}
        for turn in range(turns + 1):
            for side in present:
                ranks.all_reduce(np.zeros(1))
                begin = time.perf_counter()
                sides[side][row]()
                took = ranks.all_reduce(np.array([time.perf_counter() - begin]), op="max")[0]
                if turn:
                    times[side].append(took)
        if ranks.rank == 0:
            for side in present:
                line = f"{row:28} {side:20} {1e3 * statistics.median(times[side]):8.1f} ms, best {1e3 * min(times[side]):8.1f} ms"
                if "mpi4py-fft" in times and side != "mpi4py-fft":
                    ratios = [b / a for a, b in zip(times[side], times["mpi4py-fft"], strict=True)]
                    line += f", {statistics.median(ratios):5.2f} times as fast as mpi4py-fft"
                print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=256)
    parser.add_argument("--turns", type=int, default=11)
    options = parser.parse_args()
    if is_rank():
        measure(options.n, options.turns)
    else:
        run_ranks(__file__, "--n", str(options.n), "--turns", str(options.turns))


if __name__ == "__main__":
    main()
