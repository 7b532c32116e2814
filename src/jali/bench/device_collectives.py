"""Collectives on device memory timed beside the vendor's library: the same buffers, on streams and in graphs.

A batch of calls, one after the other on jali's stream, is timed from the first to the end of the device's work; a graph holds a
batch, too (`jali.graph`). The time of a call is that of the batch over its length, of the slowest rank. Sides take turns. All
sides are called by jali's public functions. Results are checked before and after, by samples where buffers are large. Sides
named "nccl" and "nccl-symmetric" are the library on the buffers of all sides, and on buffers of its own that it has registered
as symmetric windows (`CclCommunicator.symmetric`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jali import settings
from jali.bench.cases import COLLECTIVES, PERIOD, chunks_of, contribution, elements_of
from jali.bench.collectives import Cell, JaliSide, Report, Timing, conditions
from jali.bench.journal import Journal
from jali.bench.reports import size_text
from jali.comm import algorithms
from jali.comm.ccl import CclCommunicator
from jali.comm.device_arrays import DeviceArray
from jali.errors import ParameterError, RankError
from jali.lattice import Lattice, graph
from jali.vendors import library_of

SAMPLE = (
    4096  # elements in a row that are compared, at the beginning, in the middle and at the end of every chunk
)
ORDERS = ("stream", "graph")
SYMMETRIC = "-symmetric"  # after the library's name: on memory that it has registered
MULTICAST = "NCCL_NVLS_ENABLE"
SIZES_ARE = "bytes of the largest buffer of any rank (all chunks); rates are these bytes over the time, not those of links"


class DeviceCase:
    """Buffers of one rank on its device. Chunks and payload as in `jali.bench.cases.Case`. With `windows`, which makes
    symmetric arrays, it is collective."""

    def __init__(
        self,
        collective: str,
        payload: int,
        rank: int,
        size: int,
        gpu: Any,
        dtype: str = "float32",
        windows: CclCommunicator | None = None,
    ) -> None:
        self.collective, self.rank, self.size, self.gpu = collective, rank, size, gpu
        self.dtype = np.dtype(dtype)
        self.root = 0
        self.chunks = chunks_of(collective, size)
        self.chunk = max(1, -(-payload // (self.chunks * self.dtype.itemsize)))
        self.payload = self.chunks * self.chunk * self.dtype.itemsize
        sent, received = elements_of(collective, self.chunk, size, rank == self.root)
        mine = contribution(rank, sent, 0, self.dtype)
        if windows is None:
            empty = [DeviceArray.empty(gpu, (n,), self.dtype, "benchmark") for n in (sent, received)]
        else:  # as large on all ranks, regardless of their needs
            both = [elements_of(collective, self.chunk, size, at_root) for at_root in (True, False)]
            whole = [windows.symmetric((max(ns),), self.dtype) for ns in zip(*both, strict=True)]
            needed = zip(whole, (sent, received), strict=True)
            empty = [DeviceArray(gpu, array.memory, (n,), self.dtype) for array, n in needed]
        self.send, self.receive = (array if array.size else None for array in empty)
        if self.send is not None:
            gpu.upload_address(self.send.address, mine.view(np.uint8))
        self.sent = sent

    def poison(self) -> None:
        """Poison the result."""
        if self.receive is None:
            return
        if self.collective == "broadcast" and self.rank == self.root:
            whole = contribution(self.root, self.receive.size, 0, self.dtype)
            self.gpu.upload_address(self.receive.address, whole.view(np.uint8))
        else:
            self.gpu.fill(self.receive.memory, 119)

    def wrong(self) -> str:
        """What is wrong with the result, in words; empty if it is right."""
        if self.receive is None:
            return ""
        chunks = self.receive.size // self.chunk
        width = min(SAMPLE, self.chunk)
        size = self.dtype.itemsize
        for chunk in range(chunks):
            for begin in sorted({0, (self.chunk - width) // 2, self.chunk - width}):
                found = np.empty(width, self.dtype)
                address = self.receive.address + (chunk * self.chunk + begin) * size
                self.gpu.download_address(address, found.view(np.uint8))
                expected = self._expected(chunk, begin, width)
                if not np.array_equal(found, expected):
                    i = int(np.flatnonzero(found != expected)[0])
                    return (
                        f"{self.collective} of {self.payload} B: rank {self.rank} has {found[i]} instead of {expected[i]} "
                        f"at element {chunk * self.chunk + begin + i}"
                    )
        return ""

    def _expected(self, chunk: int, begin: int, count: int) -> Any:
        # the pattern repeats, so what is far in is computed from near the beginning
        n, shift = self.chunk, 0
        if self.collective in ("all_reduce", "reduce", "broadcast"):
            shift = chunk * n + begin
        elif self.collective in ("reduce_scatter", "scatter", "all_to_all"):
            shift = self.rank * n + begin
        else:
            shift = begin
        near = shift % PERIOD

        def part(rank: int) -> Any:
            return contribution(rank, near + count, 0, self.dtype)[near:]

        ranks = range(self.size)
        if self.collective in ("all_reduce", "reduce", "reduce_scatter"):
            return sum((part(r) for r in ranks), np.zeros(count, self.dtype))
        if self.collective in ("broadcast", "scatter"):
            return part(self.root)
        return part(chunk)


class LibrarySide(JaliSide):
    """The vendor's library, which is an algorithm like others."""

    def __init__(self, communicator: Any, gpu: Any, symmetric: bool = False) -> None:
        """Raises DeviceError where there is no library or, with `symmetric`, where it has no windows."""
        library = library_of(gpu.kind)
        super().__init__(
            communicator, library + (SYMMETRIC if symmetric else ""), dict.fromkeys(COLLECTIVES, library)
        )
        self.ccl = CclCommunicator(communicator, gpu)
        self.windows = self.ccl if symmetric else None
        if symmetric:
            self.ccl.symmetric((1,), "float32")


def side(name: str, communicator: Any, gpu: Any) -> Any:
    """A side by its name: "jali", the vendor's library ("nccl"), that with symmetric windows ("nccl-symmetric"), or an algorithm of
    jali, taken where a collective has it. Raises ParameterError, and DeviceError where the library cannot."""
    if name == "jali":
        return JaliSide(communicator)
    library = library_of(gpu.kind)
    if library and name in (library, library + SYMMETRIC):
        return LibrarySide(communicator, gpu, name != library)
    having = {c: name for c in COLLECTIVES if name in algorithms.names(c, on_device=True)}
    if not having:
        raise ParameterError(
            f"no side {name!r}; there are jali, {library}, {library}{SYMMETRIC}, and algorithms of jali.comm.algorithms"
        )
    return JaliSide(communicator, name, having)


def measure(
    communicator: Any,
    gpu: Any,
    sides: Sequence[Any],
    sizes: Sequence[int],
    collectives: Sequence[str] = COLLECTIVES,
    *,
    orders: Sequence[str] = ORDERS,
    rounds: int = 5,
    batch: int = 20,
    progress: Callable[[Cell, str], object] | None = None,
    journal: Journal | None = None,
) -> dict[str, Report]:
    """Times every collective at every payload (bytes) with all sides in turn: a report for each of `orders`.

    Collective over `communicator`; every rank has its own `gpu`. Raises `RankError` on every rank when any rank's result is
    wrong.
    """
    names = [side.name for side in sides]
    facts = conditions(mpi_of(communicator), 1, rounds, "float32")
    facts |= {"device": gpu.name, "batch": batch, "memory": "of devices", "sizes": SIZES_ARE}
    facts |= next((_about(side.ccl) for side in sides if isinstance(side, LibrarySide)), {})
    reports = {order: Report({**facts, "order": order}, names) for order in orders}
    lattice = Lattice(
        2, 2 * communicator.size, device=gpu.kind, grid=(1, communicator.size)
    )  # graphs belong to one
    journal = journal or Journal(communicator)

    def measured(collective: str, payload: int, order: str) -> Cell:
        of_ranks = (collective, payload, communicator.rank, communicator.size, gpu)
        case = DeviceCase(*of_ranks)
        cases = [
            DeviceCase(*of_ranks, windows=windows) if (windows := getattr(side, "windows", None)) else case
            for side in sides
        ]
        calls = [side.prepare(of_side) for side, of_side in zip(sides, cases, strict=True)]
        length = batch if case.payload <= 64 << 20 else max(2, batch // 5)
        for call, of_side, name in zip(calls, cases, names, strict=True):
            _check(communicator, gpu, of_side, name, call)
        batches = [batch_of(lattice, call, length, order) for call in calls]
        times = np.zeros((len(calls), rounds))
        for number in range(-1, rounds):  # the first warms up
            turn = range(len(calls)) if number % 2 else reversed(range(len(calls)))
            for side in turn:
                communicator.barrier()
                start = time.perf_counter()
                batches[side]()
                gpu.synchronize()
                times[side, number] = (time.perf_counter() - start) / length
        slowest = communicator.all_reduce(times, op="max")
        timings = {n: Timing(list(map(float, of_side))) for n, of_side in zip(names, slowest, strict=True)}
        del batches
        for call, of_side, name in zip(calls, cases, names, strict=True):
            _check(communicator, gpu, of_side, name, call)
        return Cell(collective, case.payload, timings)

    for collective in collectives:
        for payload in sizes:
            for order in orders:
                report_progress = None if progress is None else partial(_report_progress, progress, order)
                name = f"{collective} {size_text(payload)}, {order}"
                cell = journal.case(name, partial(measured, collective, payload, order), report_progress)
                if cell is not None:
                    reports[order].cells.append(cell)
    return reports


def _report_progress(progress: Callable[[Cell, str], object], order: str, cell: Cell) -> None:
    progress(cell, order)


def _about(ccl: CclCommunicator) -> dict[str, str]:
    """The conditions of the vendor library's numbers: its version, and whether it may use the links' multicast, where that was set."""
    name, version, _ = ccl.library
    chosen = settings.of_others(MULTICAST).get(MULTICAST)
    words = {None: f"the library's choice ({MULTICAST} is not set)", "0": f"off ({MULTICAST}=0)"}
    return {
        "library": f"{name} {version}",
        "multicast": words.get(chosen, f"as {MULTICAST}={chosen} says"),
        "symmetric windows": ccl.why_not_symmetric() or "possible",
    }


def batch_of(lattice: Any, call: Callable[[], object], length: int, order: str) -> Callable[[], object]:
    """So many calls, one after the other, on jali's stream or in a graph (one of `ORDERS`); `lattice` is whose graph it is."""

    def work() -> None:
        for _ in range(length):
            call()

    if order == "stream":
        return work
    return graph(work, lattice).run


def _check(communicator: Any, gpu: Any, case: DeviceCase, name: str, call: Callable[[], object]) -> None:
    case.poison()
    gpu.synchronize()
    communicator.barrier()
    call()
    gpu.synchronize()
    problem = case.wrong()
    found = [text for text in communicator.gather_bytes(problem.encode()) if text]
    if found:
        raise RankError(f"{name}: {found[0].decode()}")


def mpi_of(communicator: Any) -> Any:
    """mpi4py's world, for the conditions; or its equivalent for virtual ranks."""
    if communicator.transport == "mpi":
        from mpi4py import MPI

        return MPI.COMM_WORLD
    return _Virtual(communicator)


class _Virtual:
    """The part of an mpi4py communicator that the conditions need."""

    def __init__(self, communicator: Any) -> None:
        self.size = communicator.size
        self._communicator = communicator

    def allgather(self, value: Any) -> list[Any]:
        return [value] * self.size

    def Split_type(self, kind: object) -> _Virtual:
        return self

    def Free(self) -> None:
        pass
