"""Claim: a step of CGLS on a block of 500 x 500 for each of two MPI ranks takes a tenth of what it takes with pylops-mpi 0.8.0.

Each rank has one core. Sides take turns and solve the same problem, whose costs are compared; a time is the median over turns, the
spread that of the middle half. The roof is what a program does by hand: two products with the matrix, updates by NumPy, two all-reduces
with buffers. Where pylops-mpi is, is said by PYTHONPATH.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import on_two_ranks

SIZES = (500, 100)
STEPS = 20
TURNS = 9


def by_hand(A: np.ndarray, y: np.ndarray, comm: object) -> np.ndarray:
    """CGLS with NumPy and MPI; returns costs."""
    from mpi4py import MPI

    def total(*numbers: float) -> np.ndarray:
        mine, found = np.array(numbers), np.empty(len(numbers))
        comm.Allreduce(mine, found, MPI.SUM)
        return found

    s, x = y.copy(), np.zeros(A.shape[1])
    r = A.T @ s
    c = r.copy()
    ss, k = total(s @ s, r @ r)
    costs = [ss**0.5]
    for _ in range(STEPS):
        q = A @ c
        a = k / total(q @ q)[0]
        x += a * c
        s -= a * q
        r = A.T @ s
        before = k
        ss, k = total(s @ s, r @ r)
        c *= k / before
        c += r
        costs.append(ss**0.5)
    return np.array(costs)


def sides(size: int, comm: object) -> dict[str, Callable[[], np.ndarray]]:
    """Calls that give the costs of STEPS steps."""
    import pylops

    from jali.arrays import DistributedArray
    from jali.linops import BlockDiag
    from jali.solvers import CG, cgls

    rank, ranks = comm.rank, comm.size
    generator = np.random.default_rng(rank)
    A = np.eye(size) + generator.normal(size=(size, size)) / (4 * size**0.5)
    local = generator.normal(size=size)
    Op = BlockDiag([pylops.MatrixMult(A)], base_comm=comm)
    Normal = BlockDiag([pylops.MatrixMult(A.T @ A)], base_comm=comm)
    y = DistributedArray(size * ranks, comm, local_array=local.copy())
    x0 = y.zeros_like()
    found = {
        "by hand": lambda: by_hand(A, local, comm),
        "jali": lambda: cgls(Op, y, x0, maxiter=STEPS, rtol=0).cost,
        "jali CG": lambda: CG(Normal).solve(y, x0, maxiter=STEPS, rtol=0).cost,
    }
    try:
        import pylops_mpi
    except ImportError:
        return found
    theirs = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(A)])
    normal = pylops_mpi.MPIBlockDiag([pylops.MatrixMult(A.T @ A)])
    data = pylops_mpi.DistributedArray(size * ranks)
    data[:] = local
    start = data.zeros_like()
    found["pylops-mpi"] = lambda: pylops_mpi.cgls(theirs, data, start, niter=STEPS, tol=0)[5]
    found["pylops-mpi CG"] = lambda: pylops_mpi.cg(normal, data, start, niter=STEPS, tol=0)[2]
    return found


def main() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    on_two_ranks.take_core(comm.rank)
    for size in SIZES:
        calls = sides(size, comm)
        costs = {name: np.asarray(call()) for name, call in calls.items()}
        for name, cost in costs.items():
            other = costs["jali CG" if name.endswith("CG") else "jali"]
            np.testing.assert_allclose(cost[:20], other[:20], rtol=1e-6, err_msg=name)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(TURNS):
            names = list(calls)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                comm.Barrier()
                begin = time.perf_counter()
                calls[name]()
                mine = np.array([time.perf_counter() - begin])
                slowest = np.empty(1)
                comm.Allreduce(mine, slowest, MPI.MAX)
                times[name].append(slowest[0] / STEPS * 1e6)
        if comm.rank:
            continue
        medians = {name: statistics.median(found) for name, found in times.items()}
        for name, found in times.items():
            low, _, high = statistics.quantiles(found, n=4)
            ours = medians["jali CG" if name.endswith("CG") else "jali"]
            print(
                f"{size:5} x {size:<5} {name:14} {medians[name]:9.1f} us/step  [{low:.1f}, {high:.1f}]   {medians[name] / ours:6.2f} of jali",
                flush=True,
            )


if __name__ == "__main__":
    if on_two_ranks.is_rank():
        main()
    else:
        on_two_ranks.run_ranks(__file__)
