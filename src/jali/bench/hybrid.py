"""Collectives as jali chooses them beside every single algorithm, and beside what a program that calls MPI has without jali.

On hosts that is the MPI library's own collective. On devices it is what such programs do by hand, since not every MPI library
takes their memory: copy to the host, call MPI, copy back; once with ordinary memory of the host, once with page-locked memory.

Algorithms are timed as for rules (`jali.bench.collective_algorithms`); on devices on streams and in graphs, where what is done by hand, which
no graph can hold, is called as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from jali import _core, settings
from jali.bench.collective_algorithms import AlgorithmBenchmark, Measured, core_type
from jali.bench.collective_rules import DEFAULT
from jali.bench.collectives import Cell, MpiSide, Report, Timing, conditions
from jali.bench.device_collectives import ORDERS, DeviceCase
from jali.bench.journal import Journal
from jali.bench.reports import size_text
from jali.errors import ParameterError

CHOICE = "jali"
BY_HAND, PINNED = "by hand", "by hand, pinned"
CALLED = "mpi, called"  # by the program itself; jali's own algorithm of that name goes through jali
DTYPE = "float32"


@dataclass
class HybridReport(Report):
    """All cells, which algorithm was chosen for each, and what they are compared with: the first of `baselines`."""

    baselines: list[str] = field(default_factory=list)
    chosen: list[str] = field(default_factory=list)

    def best(self, cell: Cell) -> str:
        """The fastest single algorithm of jali's."""
        single = [name for name in cell.timings if name not in (CHOICE, *self.baselines)]
        return min(single, key=lambda name: cell.timings[name].median)


@dataclass(frozen=True)
class _Buffers:
    """A case's buffers in memory of the host."""

    collective: str
    chunks: int
    chunk: int
    root: int
    dtype: np.dtype[Any]
    send: np.ndarray
    receive: np.ndarray


def by_hand(comm: Any, case: DeviceCase, *, pinned: bool) -> Callable[[], object]:
    """What a program does that has MPI and no more: the result is on the device when the call returns. `comm` is mpi4py's."""
    gpu = case.gpu

    def beside(array: Any) -> np.ndarray:
        count = 0 if array is None else array.size
        if not pinned or count == 0:
            return np.empty(count, case.dtype)
        return np.asarray(gpu.allocate_pinned(count * case.dtype.itemsize, "benchmark")).view(case.dtype)

    send, receive = beside(case.send), beside(case.receive)
    of_case = (case.collective, case.chunks, case.chunk, case.root, case.dtype)
    call = MpiSide(comm).prepare(_Buffers(*of_case, send, receive))
    in_place = case.collective == "broadcast"
    first, at = (case.receive, receive) if in_place else (case.send, send)
    if in_place and case.rank != case.root:
        first = None

    def work() -> None:
        if first is not None:
            gpu.download_address(first.address, at.view(np.uint8))
        call()
        if case.receive is not None:
            gpu.upload_address(case.receive.address, receive.view(np.uint8))

    return work


def measure(
    communicator: Any,
    gpu: Any,
    sizes: Sequence[int],
    collectives: Sequence[str],
    *,
    rounds: int = 10,
    seconds: float = 0.02,
    progress: Callable[[HybridReport, str], object] | None = None,
    journal: Journal | None = None,
) -> dict[str, HybridReport]:
    """A report for each of `ORDERS` on a device, for "host" without a `gpu`. Payloads (bytes) are rounded up to whole chunks.

    Collective over `communicator`. `progress` is called on rank 0 after each cell, the last one of the report. Raises ParameterError
    where ranks are not MPI's, and RankError on every rank when any rank's result is wrong.
    """
    if communicator.transport != "mpi":
        raise ParameterError(
            "what programs do by hand is done with MPI: start MPI ranks; say how many, like -n 2"
        )
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    rules = settings.current().collective_rules or ""
    baselines = [CALLED] if gpu is None else [BY_HAND, PINNED]
    facts = conditions(world, 3, rounds, DTYPE)
    if gpu is not None:
        facts |= {"device": gpu.name, "memory": "of devices"}
    orders: Sequence[str] = ("host",) if gpu is None else ORDERS
    reports = {
        order: HybridReport({**facts, "order": order}, [CHOICE, *baselines], baselines=baselines)
        for order in orders
    }
    specs = AlgorithmBenchmark(communicator, gpu)
    journal = journal or Journal(communicator)

    def measured(collective: str, payload: int, order: str) -> tuple[Cell, str]:
        case = specs.case(collective, payload, DTYPE, False)
        beside: dict[str, Callable[[], object]]
        if gpu is None:
            beside = {CALLED: MpiSide(world).prepare(case)}
        else:
            beside = {
                name: by_hand(world, case, pinned=pinned)
                for name, pinned in ((BY_HAND, False), (PINNED, True))
            }
        graphs = order == "graph"
        found = specs.measure(case, rounds, seconds, graphs=graphs, beside=beside, rules=rules)
        return _cell(collective, found), _chosen(communicator, gpu, case, graphs)

    for collective in collectives:
        for payload in sizes:
            for order, report in reports.items():
                before = len(journal.measured)
                name = f"{collective} {size_text(payload)}, {order}"
                found = journal.case(name, partial(measured, collective, payload, order))
                if found is None:
                    continue
                report.cells.append(found[0])
                report.chosen.append(found[1])
                report.sides += [name for name in found[0].timings if name not in report.sides]
                if progress is not None and communicator.rank == 0 and len(journal.measured) > before:
                    progress(report, order)
    return reports


def _cell(collective: str, found: Measured) -> Cell:
    names = {DEFAULT: CHOICE}
    timings = {names.get(name, name): Timing(list(times)) for name, times in found.times.items()}
    timings |= {name: Timing([median]) for name, median in found.far.items()}
    return Cell(collective, found.payload, timings)


def _chosen(communicator: Any, gpu: Any, case: Any, graphs: bool) -> str:
    """The algorithm of a call as the case has it."""
    in_place = case.collective == "broadcast"
    call = _core.CollectiveCall(case.collective, core_type(DTYPE), case.chunk, case.root, "sum", in_place)
    if gpu is None:
        return str(communicator.collectives.algorithm_of(call).spec)
    return str(communicator.collectives.on_device(gpu).algorithm_of(call, graphs).spec)
