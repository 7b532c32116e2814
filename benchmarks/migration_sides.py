"""What each rank of `benchmarks/migration.py --against pylops-mpi` does: both libraries solve the same problem in turn, in one run.

Both get the same local operator, jali's Kirchhoff, whose tables are made once, so that what differs is communication and the solver;
with `--kirchhoff pylops`, pylops-mpi gets that of pylops, on devices by numba.cuda. Communication of pylops-mpi is NCCL on devices, MPI
on hosts. Rank 0 prints milliseconds a step and norms of residuals, as JSON.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from jali import comm
from jali.array_namespaces import namespace_by_name
from jali.arrays import DistributedArray, Partition
from jali.arrays.engine_choice import choose_engine, on_device
from jali.arrays.layout import even_split
from jali.cli.example import parameters_of
from jali.examples import Options
from jali.examples.lsm import SIZES, LsmParameters, geometry, reflectors
from jali.linops import Kirchhoff, VStack
from jali.solvers import cgls

JALI, OTHER, AGAIN = "jali", "pylops-mpi", "again"
WHOSE = ("jali", "pylops")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is measured, and how; ranks get the same words as who starts them."""
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--size", default="gpu", help="of the example: gpu, or wide for much communication")
    parser.add_argument("--engine", help="cupy or torch; pylops-mpi takes NumPy's and CuPy's arrays")
    parser.add_argument("--repeat", type=int, default=3, metavar="TIMES", help="how often each is measured")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument(
        "--collective", nargs="+", default=[""], help="ways, beside which the chosen one is timed"
    )
    parser.add_argument("--against", choices=[OTHER], help="the library beside which jali is measured")
    parser.add_argument(
        "--kirchhoff", choices=WHOSE, default=WHOSE[0], help="whose local operator pylops-mpi gets"
    )


def their_kirchhoff(mine: tuple[Any, ...], xp: Any) -> Any:
    """Of pylops. On devices, tables and wavelet are put there as its tutorials do."""
    import pylops

    numba = importlib.util.find_spec("numba") is not None
    if xp is not np and not numba:
        raise SystemExit("pylops' Kirchhoff operator needs numba on devices: leave --kirchhoff out")
    engine = "cuda" if xp is not np else "numba" if numba else "numpy"
    *points, wavelet, center = mine
    with warnings.catch_warnings():  # of arguments that are not given here
        warnings.simplefilter("ignore", FutureWarning)
        found = pylops.waveeqprocessing.Kirchhoff(
            *points, xp.asarray(wavelet), center, mode="analytic", engine=engine
        )
    if xp is not np:
        found.trav_srcs, found.trav_recs = xp.asarray(found.trav_srcs), xp.asarray(found.trav_recs)
    return found


def ours_for_pylops(local: Kirchhoff) -> Any:
    """jali's local operator as one of pylops."""
    import pylops

    class Lent(pylops.LinearOperator):  # type: ignore[misc]
        def _matvec(self, x: Any) -> Any:
            return local.matvec(x)

        def _rmatvec(self, x: Any) -> Any:
            return local.rmatvec(x)

    return Lent(dtype=local.dtype, shape=local.shape)


def sides(p: LsmParameters, arguments: argparse.Namespace, engine: str) -> dict[str, Callable[[], Any]]:
    """Calls that solve the problem and give the norms of residuals; AGAIN has data that differ in their last bits."""
    import pylops_mpi

    ranks, xp = comm.current(), namespace_by_name(engine).xp
    sources = p.all_sources(ranks.size)
    counts = even_split(sources, ranks.size)
    mine = geometry(p, sum(counts[: ranks.rank]), counts[ranks.rank], sources)
    local = Kirchhoff(*mine, keep=int(p.tables * (1 << 30)))
    image = Options(engine, arguments.device).array(reflectors(p).reshape(-1))

    modelling = VStack([local])
    true = DistributedArray.to_dist(image, partition=Partition.BROADCAST)
    data, start = modelling @ true, true.zeros_like()
    if not data.norm() > 0:
        raise SystemExit(
            f"data of {p.times} times are all 0, so that there is nothing to solve: record longer, --set times="
        )
    close = data * (1 + 4 * float(np.finfo(data.dtype).eps))

    whose = their_kirchhoff(mine, xp) if arguments.kirchhoff == "pylops" else ours_for_pylops(local)
    given: dict[str, Any] = {"partition": pylops_mpi.Partition.BROADCAST, "engine": engine}
    if engine == "cupy":
        from pylops_mpi.utils._nccl import initialize_nccl_comm

        given["base_comm_nccl"] = initialize_nccl_comm()
    theirs = pylops_mpi.MPIVStack([whose])
    there = pylops_mpi.DistributedArray(image.size, **given)
    there[:] = image
    their_data, their_start = theirs @ there, there.zeros_like()
    return {
        JALI: lambda: cgls(modelling, data, start, maxiter=p.iterations, rtol=0).cost,
        AGAIN: lambda: cgls(modelling, close, start, maxiter=p.iterations, rtol=0).cost,
        OTHER: lambda: pylops_mpi.cgls(theirs, their_data, their_start, niter=p.iterations, tol=0)[5],
    }


def measured(
    calls: dict[str, Callable[[], Any]], steps: int, repeat: int, engine: str
) -> dict[str, list[float]]:
    """Milliseconds a step of the slowest rank, of sides in turn."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    wait = namespace_by_name(engine).xp.cuda.Device().synchronize if engine == "cupy" else lambda: None
    found: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(repeat):
        for name in names if turn % 2 == 0 else reversed(names):
            wait()
            world.Barrier()
            begin = time.perf_counter()
            calls[name]()
            wait()
            found[name].append(1e3 * world.allreduce(time.perf_counter() - begin, MPI.MAX) / steps)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args()
    p = parameters_of("lsm", SIZES, arguments.size, arguments.overrides)
    engine = choose_engine(arguments.device, arguments.engine)
    if engine not in ("numpy", "cupy"):
        raise SystemExit(f"pylops-mpi has no arrays of {engine}: --engine numpy or cupy")
    with on_device(arguments.device, engine):
        calls = sides(p, arguments, engine)
        costs = {name: [float(norm) for norm in call()] for name, call in calls.items()}  # and warm
        again = costs.pop(AGAIN)
        del calls[AGAIN]
        times = measured(calls, p.iterations, arguments.repeat, engine)
    if comm.current().rank == 0:
        sys.stdout.write(
            json.dumps({"engine": engine, "costs": costs, "again": again, "times": times}) + "\n"
        )


if __name__ == "__main__":
    main()
