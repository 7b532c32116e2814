"""Claim: operators of distributed arrays are many times faster than those of pylops-mpi 0.8.0, and near what NumPy and MPI do by hand.

Two ranks on a core each. A case has a call for each side; sides take turns, results are compared, and times are medians of the slowest
rank. `--cases` picks some; pylops-mpi is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from on_two_ranks import is_rank, run_ranks, take_core

JALI, OTHER, ROOF = "jali", "pylops-mpi", "numpy"
Call = Callable[[], Any]
Sides = dict[str, Call | None]


class Setting:
    """What cases are about: the ranks (mpi4py's), the modules, the shape of the array and the type of its elements."""

    def __init__(self, comm: Any, dims: tuple[int, ...], dtype: str) -> None:
        import jali.arrays
        import jali.linops

        self.comm, self.dims, self.dtype = comm, dims, dtype
        self.arrays, self.ours = jali.arrays, jali.linops
        try:
            import pylops_mpi

            self.theirs: Any = pylops_mpi
        except ImportError:
            self.theirs = None
        least, more = divmod(dims[0], comm.size)
        self.mine = (least + (comm.rank < more), *dims[1:])

    def numbers(self, seed: int = 1) -> np.ndarray:
        """This rank's part."""
        return np.random.default_rng((seed, self.comm.rank)).normal(size=self.mine).astype(self.dtype)

    def vector(self, module: Any, flat: bool = True, seed: int = 1) -> Any:
        """The part as a distributed array of a library."""
        x = module.DistributedArray(self.dims, dtype=self.dtype)
        x[:] = self.numbers(seed)
        return x.ravel() if flat else x

    def both(self, name: str, adjoint: bool = False, **options: Any) -> Sides:
        """An operator of that name in both libraries."""
        calls: Sides = {}
        sides = ((JALI, self.ours, "", self.arrays), (OTHER, self.theirs, "MPI", self.theirs))
        for side, module, prefix, arrays in sides:
            if module is None:
                continue
            op = getattr(module, prefix + name)(self.dims, dtype=self.dtype, **options)
            x = self.vector(arrays)
            if adjoint and name == "Gradient":
                x = arrays.StackedDistributedArray(
                    [self.vector(arrays, seed=k) for k in range(len(self.dims))]
                )
            calls[side] = (lambda op=op, x=x: op.rmatvec(x)) if adjoint else (lambda op=op, x=x: op.matvec(x))
        return calls


def _by_hand(s: Setting, adjoint: bool) -> Call:
    """A centered derivative along the first axis with NumPy and MPI's buffers."""
    x, me, last = s.numbers(), s.comm.rank, s.comm.size - 1
    n, begin = s.dims[0], sum(s.dims[0] // s.comm.size + (r < s.dims[0] % s.comm.size) for r in range(me))
    padded = np.zeros((len(x) + 2, *x.shape[1:]), x.dtype)
    out = np.empty_like(x)
    half = x.dtype.type(-0.5 if adjoint else 0.5)
    rows = np.arange(begin - 1, begin + len(x) + 1)

    def call() -> np.ndarray:
        requests = []
        padded[0], padded[-1] = 0, 0
        if me > 0:
            requests += [s.comm.Irecv(padded[0], me - 1), s.comm.Isend(x[0], me - 1)]
        if me < last:
            requests += [s.comm.Irecv(padded[-1], me + 1), s.comm.Isend(x[-1], me + 1)]
        np.subtract(x[2:], x[:-2], out=out[1:-1])
        for request in requests:
            request.Wait()
        np.subtract(x[1], padded[0], out=out[0])
        np.subtract(padded[-1], x[-2], out=out[-1])
        np.multiply(out, half, out=out)
        if adjoint:  # rows at the ends of the whole are not there
            for row in (0, 1, n - 2, n - 1):
                if begin <= row < begin + len(x):
                    near = [padded[0], *x, padded[-1]]
                    left = near[row - begin] if 0 < row - 1 < n - 1 else 0
                    right = near[row - begin + 2] if 0 < row + 1 < n - 1 else 0
                    out[row - begin] = (left - right) * abs(half)
        else:
            if rows[1] == 0:
                out[0] = 0
            if rows[-2] == n - 1:
                out[-1] = 0
        return out

    return call


def _ghosts(s: Setting) -> Sides:
    calls: Sides = {JALI: None}
    for side, arrays in ((JALI, s.arrays), (OTHER, s.theirs)):
        if arrays is not None:
            x = s.vector(arrays, flat=False)
            calls[side] = lambda x=x: x.add_ghost_cells(cells_front=1, cells_back=1)
    return calls


def _ghosts_alone(s: Setting) -> Sides:
    x = s.vector(s.arrays, flat=False)
    me, last = s.comm.rank, s.comm.size - 1
    mine, front, back = s.numbers(), np.empty((1, *s.mine[1:]), s.dtype), np.empty((1, *s.mine[1:]), s.dtype)

    def by_hand() -> Any:
        requests = []
        if me > 0:
            requests += [s.comm.Irecv(front, me - 1), s.comm.Isend(mine[:1], me - 1)]
        if me < last:
            requests += [s.comm.Irecv(back, me + 1), s.comm.Isend(mine[-1:], me + 1)]
        for request in requests:
            request.Wait()
        return front[: me > 0], back[: me < last]

    return {JALI: lambda: x.ghost_cells(1, 1), ROOF: by_hand}


def _halo(s: Setting, adjoint: bool) -> Sides:
    ours = s.ours.Halo(s.dims, 1, (s.comm.size, 1, 1), dtype=s.dtype)
    x = s.vector(s.arrays)
    y = ours.matvec(x)
    if adjoint:  # the other one's is none
        return {JALI: lambda: ours.rmatvec(y)}
    calls: Sides = {JALI: lambda: ours.matvec(x)}
    if s.theirs is not None:
        theirs = s.theirs.basicoperators.MPIHalo(s.dims, 1, (s.comm.size, 1, 1), comm=s.comm, dtype=s.dtype)
        z = s.vector(s.theirs)
        calls[OTHER] = lambda: theirs.matvec(z)
    return calls


CASES: dict[str, Callable[[Setting], Sides]] = {
    "FirstDerivative": lambda s: {**s.both("FirstDerivative"), ROOF: _by_hand(s, False)},
    "FirstDerivative, adjoint": lambda s: {**s.both("FirstDerivative", True), ROOF: _by_hand(s, True)},
    "FirstDerivative, forward kind": lambda s: s.both("FirstDerivative", kind="forward"),
    "FirstDerivative, 5 points": lambda s: s.both("FirstDerivative", order=5),
    "FirstDerivative, axis 1": lambda s: _alone(s, 1),
    "FirstDerivative, axis 2": lambda s: _alone(s, 2),
    "SecondDerivative": lambda s: s.both("SecondDerivative"),
    "Laplacian": lambda s: s.both("Laplacian", axes=(0, 1, 2), weights=(1, 1, 1), sampling=(1, 1, 1)),
    "Gradient": lambda s: s.both("Gradient"),
    "Gradient, adjoint": lambda s: s.both("Gradient", True),
    "ghost cells around a copy": _ghosts,
    "ghost cells alone": _ghosts_alone,
    "Halo": lambda s: _halo(s, False),
    "Halo, adjoint": lambda s: _halo(s, True),
}


def _alone(s: Setting, axis: int) -> Sides:
    op, x = s.ours.FirstDerivative(s.dims, dtype=s.dtype, axis=axis), s.vector(s.arrays)
    return {JALI: lambda: op.matvec(x)}


def _values(found: Any) -> np.ndarray:
    if isinstance(found, tuple):
        return np.concatenate([np.ravel(one) for one in found])
    if hasattr(found, "distarrays"):
        return np.concatenate([_values(one) for one in found.distarrays])
    return np.ravel(getattr(found, "local_array", found))


def child(names: list[str], dims: tuple[int, ...], dtype: str, rounds: int) -> None:
    from mpi4py import MPI

    from jali import settings

    settings.use(threads=1)
    ranks = MPI.COMM_WORLD
    take_core(ranks.rank)
    setting = Setting(ranks, dims, dtype)
    for name in names:
        calls = {side: call for side, call in CASES[name](setting).items() if call is not None}
        values = {side: _values(call()) for side, call in calls.items()}
        for side, found in values.items():
            if not np.allclose(found, values[JALI], rtol=1e-5, atol=1e-5):
                raise AssertionError(f"{name}: {side} gives something else than jali on rank {ranks.rank}")
        values.clear()
        times: dict[str, list[float]] = {side: [] for side in calls}
        for turn in range(rounds):
            for side, call in calls.items() if turn % 2 else reversed(calls.items()):
                ranks.Barrier()
                start = time.perf_counter()
                call()
                times[side].append(ranks.allreduce(time.perf_counter() - start, MPI.MAX))
        if ranks.rank == 0:
            case = {side: (statistics.median(t[1:]), min(t)) for side, t in times.items()}
            print(json.dumps([name, case]), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES))
    parser.add_argument("--dims", type=int, nargs="*", default=[256, 256, 256])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    if is_rank():
        child(options.cases, tuple(options.dims), options.dtype, options.rounds)
        return
    arguments = ["--rounds", str(options.rounds), "--dtype", options.dtype, "--cases", *options.cases]
    arguments += ["--dims", *map(str, options.dims)]
    out = run_ranks(__file__, *arguments, stdout=subprocess.PIPE).stdout
    print(f"| case | {JALI}, ms (fastest) | {OTHER} | times | {ROOF} | share |\n|---|---|---|---|---|---|")
    for line in out.splitlines():
        if line.startswith("["):
            name, case = json.loads(line)
            cells = [
                f"{case[s][0] * 1e3:.2f} ({case[s][1] * 1e3:.2f})" if s in case else ""
                for s in (JALI, OTHER, ROOF)
            ]
            times, share = (f"{case[s][0] / case[JALI][0]:.2f}" if s in case else "" for s in (OTHER, ROOF))
            print(f"| {name} | {cells[0]} | {cells[1]} | {times} | {cells[2]} | {share} |")


if __name__ == "__main__":
    main()
