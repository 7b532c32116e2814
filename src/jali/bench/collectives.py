"""Collectives of several sides (jali, the MPI library, one plan and another) timed in turn on the same data.

Each round starts from a global synchronisation and ends when the slowest rank's buffers may be used again: the time
is the longest of all ranks'. Sides take turns within a round, in an order that alternates. Every round has its own
data, outputs are poisoned before, results are compared exactly after it, both outside the timed window. Throughput is
p*d/t (`jali.bench.cases`).

A side is anything with a `name` and `prepare(case)`, which returns the call that runs the collective once.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from jali import settings
from jali.bench.cases import COLLECTIVES, ROOTED, Case
from jali.bench.journal import Journal
from jali.bench.reports import size_text
from jali.errors import RankError

OTHERS = ("MPIR_CVAR_", "OMPI_MCA_", "PRTE_MCA_", "UCX_", "FI_")  # whose variables matter
THREAD_LEVELS = ("single", "funneled", "serialized", "multiple")
LARGEST = 64 << 20


class Side(Protocol):
    """One implementation of the collectives."""

    name: str

    def prepare(self, case: Case) -> Callable[[], object]:
        """Everything that a persistent user would do once; the returned call runs the collective to its end."""
        ...


class HostBuffers(Protocol):
    """What a call of MPI takes of a case."""

    @property
    def collective(self) -> str: ...
    @property
    def chunks(self) -> int: ...
    @property
    def chunk(self) -> int: ...
    @property
    def root(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def send(self) -> np.ndarray: ...
    @property
    def receive(self) -> np.ndarray: ...


class MpiSide:
    """The MPI library's own blocking collectives, through mpi4py on the arrays as they are."""

    name = "mpi"

    def __init__(self, comm: Any) -> None:
        self.comm = comm

    def prepare(self, case: HostBuffers) -> Callable[[], object]:
        from mpi4py import MPI

        comm, n, root = self.comm, case.chunk, case.root
        kind = case.dtype.char  # mpi4py's name of the predefined type

        def buffer(array: np.ndarray, count: int) -> list[Any] | None:
            return [array, count, kind] if array.size else None

        whole = case.chunks * n
        out, into = buffer(case.send, whole), buffer(case.receive, whole)
        chunk_out, chunk_in = buffer(case.send, n), buffer(case.receive, n)
        # Gather and scatter count elements per rank on both sides.
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: comm.Allreduce(out, into, MPI.SUM),
            "all_gather": lambda: comm.Allgather(chunk_out, chunk_in),
            "reduce_scatter": lambda: comm.Reduce_scatter_block(chunk_out, chunk_in, MPI.SUM),
            "broadcast": lambda: comm.Bcast(into, root),
            "reduce": lambda: comm.Reduce(out, into, MPI.SUM, root),
            "gather": lambda: comm.Gather(chunk_out, chunk_in, root),
            "scatter": lambda: comm.Scatter(chunk_out, chunk_in, root),
            "all_to_all": lambda: comm.Alltoall(chunk_out, chunk_in),
        }
        return calls[case.collective]


class JaliSide:
    """jali's blocking collectives; `algorithm` names entries of `jali.comm.algorithms` by collective, else jali chooses."""

    def __init__(
        self, communicator: Any, name: str = "jali", algorithm: Mapping[str, str] | None = None
    ) -> None:
        self.communicator, self.name, self.algorithm = communicator, name, algorithm or {}

    def prepare(self, case: Case) -> Callable[[], object]:
        ours, root, how = self.communicator, case.root, self.algorithm.get(case.collective)
        calls = {
            "all_reduce": partial(ours.all_reduce, case.send, case.receive),
            "all_gather": partial(ours.all_gather, case.send, case.receive),
            "reduce_scatter": partial(ours.reduce_scatter, case.send, case.receive),
            "broadcast": partial(ours.broadcast, case.receive, root),
            "reduce": partial(ours.reduce, case.send, case.receive, root=root),
            "gather": partial(ours.gather, case.send, case.receive, root=root),
            "scatter": partial(ours.scatter, case.send, case.receive, root=root),
            "all_to_all": partial(ours.all_to_all, case.send, case.receive),
        }
        call = calls[case.collective]
        return partial(call, algorithm=how) if how else call


@dataclass
class Timing:
    """Rounds of one side: seconds, each the longest over the ranks."""

    seconds: list[float]

    @property
    def median(self) -> float:
        return float(np.median(self.seconds))

    def quartiles(self) -> tuple[float, float]:
        """The middle half of the rounds lies between these."""
        low, high = np.percentile(self.seconds, [25, 75])
        return float(low), float(high)


@dataclass
class Cell:
    """One collective at one payload (bytes), all sides."""

    collective: str
    payload: int
    timings: dict[str, Timing]

    def throughput(self, side: str) -> float:
        """p*d/t in bytes per second, of the median round."""
        return self.payload / self.timings[side].median

    def ratio(self, side: str, other: str) -> tuple[float, float, float]:
        """Speed of `side` over `other`: ratio of medians, and the 95 % interval of the median of the paired ratios.

        The interval is that of order statistics: with n rounds the k-th smallest and largest ratio, k the largest
        number for which a fair coin falls fewer than k times on one side with less than 2.5 % probability.
        """
        ours, theirs = self.timings[side], self.timings[other]
        pairs = np.sort(np.array(theirs.seconds) / np.array(ours.seconds))
        k = order_of_median(len(pairs)) or 0
        return theirs.median / ours.median, float(pairs[k]), float(pairs[len(pairs) - 1 - k])


def order_of_median(count: int, tail: float = 0.025) -> int | None:
    """Index of the lower end of the median's interval among `count` sorted values: the median is below it with probability `tail`
    at most, and as far above the other end. None where there are too few values for that."""
    from math import comb

    below, k = 0.0, 0
    while below + comb(count, k) / 2.0**count <= tail:
        below += comb(count, k) / 2.0**count
        k += 1
    return k - 1 if k else None


@dataclass
class Report:
    """All cells, and under what conditions they were measured."""

    conditions: dict[str, Any]
    sides: list[str]
    cells: list[Cell] = field(default_factory=list)


def sizes_between(smallest: int = 8, largest: int = LARGEST, factor: int = 8) -> list[int]:
    """Payloads from `smallest` to `largest`, each `factor` times the one before, and the largest itself."""
    sizes = [smallest]
    while sizes[-1] * factor < largest:
        sizes.append(sizes[-1] * factor)
    return sizes if sizes[-1] == largest else [*sizes, largest]


def measure(
    comm: Any,
    sides: Sequence[Side],
    sizes: Sequence[int],
    collectives: Sequence[str] = COLLECTIVES,
    *,
    warm_ups: int = 5,
    rounds: int = 10,
    seconds: float = 0.1,
    root: int = 0,
    dtype: str = "float32",
    progress: Callable[[Cell], object] | None = None,
    journal: Journal | None = None,
) -> Report:
    """Times every collective at every payload (bytes) with all sides in turn; collective over the mpi4py `comm`. Cases go into the `journal`.

    Cells that would be done sooner get more rounds than `rounds`, as many as fit into `seconds` and at most 200.
    Raises `RankError` on every rank when any rank's result is wrong in any round.
    """
    names = [side.name for side in sides]
    if len(set(names)) != len(names):
        raise ValueError(f"sides need different names, these are {', '.join(names)}")
    report = Report(conditions(comm, warm_ups, rounds, dtype), names)
    journal = journal or Journal(rank=comm.rank)

    def measured(collective: str, payload: int) -> Cell:
        case = Case(collective, payload, comm.rank, comm.size, root if collective in ROOTED else 0, dtype)
        calls = [side.prepare(case) for side in sides]
        return Cell(collective, case.payload, _rounds(comm, case, names, calls, warm_ups, rounds, seconds))

    for collective in collectives:
        for payload in sizes:
            name = f"{collective} {size_text(payload)}"
            cell = journal.case(name, partial(measured, collective, payload), progress)
            if cell is not None:
                report.cells.append(cell)
    return report


def _rounds(
    comm: Any,
    case: Case,
    names: Sequence[str],
    calls: Sequence[Callable[[], object]],
    warm_ups: int,
    rounds: int,
    seconds: float,
) -> dict[str, Timing]:
    from mpi4py import MPI

    clock = time.perf_counter
    times = np.zeros((len(calls), max(warm_ups, 1)))
    problem = ""

    def once(number: int) -> None:
        nonlocal problem
        order = range(len(calls)) if number % 2 == 0 else range(len(calls) - 1, -1, -1)
        for side in order:
            case.fill(number)
            comm.Barrier()
            start = clock()
            calls[side]()
            times[side, number % times.shape[1]] = clock() - start
            # All sides' results are compared before any rank leaves, so no rank is left waiting by an error.
            if not problem and (wrong := case.wrong(number)):
                problem = f"{names[side]}: round {number}: {wrong}"

    def agree() -> None:
        found = [p for p in comm.allgather(problem) if p]
        if found:
            raise RankError(found[0])

    for number in range(warm_ups):
        once(number)
    agree()
    slowest = np.zeros_like(times)
    comm.Allreduce(times, slowest, MPI.MAX)
    each = float(np.median(slowest, axis=1).sum())
    count = max(rounds, min(200, int(seconds / each) if each > 0 else rounds))
    times = np.zeros((len(calls), count))
    for number in range(count):
        once(number)
    agree()
    slowest = np.zeros_like(times)
    comm.Allreduce(times, slowest, MPI.MAX)
    return {name: Timing(list(map(float, of_side))) for name, of_side in zip(names, slowest, strict=True)}


def conditions(comm: Any, warm_ups: int, rounds: int, dtype: str) -> dict[str, Any]:
    """What a reader needs to judge the numbers: versions, machine, ranks and every setting that is not a default."""
    from mpi4py import MPI

    import jali

    hosts = comm.allgather(platform.node())
    nodes = comm.Split_type(MPI.COMM_TYPE_SHARED)
    per_node = comm.allgather(nodes.size)
    nodes.Free()
    ours = dict(settings.current().differing())
    chosen = {k: v for k, v in {**settings.of_others(*OTHERS), **ours}.items() if not _of_launcher(k)}
    levels = {getattr(MPI, f"THREAD_{name.upper()}"): name for name in THREAD_LEVELS}
    return {
        "jali": jali.__version__,
        "mpi": " ".join(MPI.Get_library_version().split("\n")[0].rstrip("\0").split()),
        "mpi_threads": levels[MPI.Query_thread()],  # the more, the slower its calls
        "python": platform.python_version(),
        "numpy": np.__version__,
        "processor": processor(),
        "cores": os.cpu_count(),
        "ranks": comm.size,
        "hosts": len(set(hosts)),
        "ranks_sharing_memory": max(per_node),
        "load": os.getloadavg()[0],
        "element": dtype,
        "warm_ups": warm_ups,
        "rounds": rounds,
        "settings": chosen or "all defaults",
    }


def _of_launcher(name: str) -> bool:
    """Whether a variable is set by a launcher for its ranks, rather than a user's choice."""
    return name in ("JALI_EXPECTED_RANKS", "JALI_CACHE_DIR") or name.startswith(
        (
            "OMPI_MCA_orte_",
            "OMPI_MCA_ess",
            "PRTE_MCA_prte_",
            "PRTE_MCA_ess",
            "OMPI_MCA_initial_wdir",
            "OMPI_MCA_num_procs",
        )
    )


def processor() -> str:
    """The name of this machine's processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
