"""Faults that the checker finds in what drivers are given do harm when the fake driver receives them, and others do none.

Each fault is made in one run of a series that waits for nothing on the host, while the blocks of all kernels, copies
and streams go on in orders that nobody would choose (fake_gpu_scheduler.hpp): with some seed bits are others than on
the host, a kernel meets a fault, or nothing moves. So the checker is held against something that knows nothing of it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import test_checked_launches as launches
import test_checked_messages as messages
import test_faults_in_collectives as collectives
from fake_driver import REAL
from seeded_faults import Seeded, outcome
from test_checked_collectives import call_of, there
from test_checked_launches import Made, made

import jali
from jali import _core, comm
from jali.comm import DeviceArray
from jali.tune import experiment

__all__ = ["made"]  # a fixture: four devices, and what is launched on them

pytestmark = pytest.mark.skipif(REAL, reason="faults are made by the fake driver")
SEEDS = 400  # of which most faults need one to three, and few some twenty
TIMEOUT = 0.3  # seconds after which a device on which nothing moves says so


@jali.site_function
def both_ways(X, y, x):
    rho, sigma = X.directions()[2:]
    y[X] = 0.25 * (x[X + sigma] - x[X - sigma] + x[X + rho] + 0.5 * x[X - rho])


@jali.site_function
def mixed_in(X, x, y):
    x[X] = y[X] + 0.5 * x[X]


class Halos:
    """A field goes around: kernels with halos in turn with such as have none."""

    steps, at = (
        5,
        2,
    )  # in the third of five runs the fault is made; an exchange of the same slot as in the record

    def __init__(self, made: Made, shape: str, policy: str = "remote-write-overlap") -> None:
        self.made, self.roles = made, launches.has_roles(policy)
        self.ranks, self.extents, self.grid, _ = launches.SHAPES[shape]
        self.right: dict[int, list[Any]] = {}  # by rank

    def run(self, lattice: jali.Lattice, faulty: Callable[[Any], Seeded | None]) -> list[Any]:
        x, y = (lattice.field(jali.Complex()) for _ in range(2))
        x[...] = np.random.default_rng(7).normal(size=lattice.extents) + 1j
        self.made.launches.clear()
        both_ways(y, x)
        mixed_in(x, y)
        fault = faulty(lambda: self.made.launches[0].recorded())
        for step in range(self.steps):
            if fault is not None and step == self.at:
                with fault.made(2):
                    both_ways(y, x)
            else:
                both_ways(y, x)
            mixed_in(x, y)
        return [x.local().copy(), y.local().copy()]

    def faults(self, record: _core.RecordedCalls) -> list[tuple[str, Seeded]]:
        """But for those that leave a role too few blocks: with none of them others never end, and take all of the thread."""
        faults = launches.mutants(Seeded(record), 2, self.roles)
        return [(what, fault) for what, fault in faults if not what.endswith("_blocks -1")]

    def body(self, number: int | None) -> bool:
        rank = comm.current().rank
        if rank not in self.right:
            on_host = jali.Lattice(*self.extents, grid=self.grid, device="cpu")
            self.right[rank] = self.run(on_host, lambda record: None)
        lattice = jali.Lattice(*self.extents, grid=self.grid, device="cuda")
        found = self.run(lattice, lambda record: chosen(self, record(), number, lattice.gpu))
        return all(np.array_equal(a, b) for a, b in zip(found, self.right[rank], strict=True))

    def record(self) -> _core.RecordedCalls:
        records: list[_core.RecordedCalls] = []
        lattice = jali.Lattice(*self.extents, grid=self.grid, device="cuda")
        self.run(lattice, lambda record: records.append(record()))
        return records[0]


class Graphs(Halos):
    """The same, and the kernel with its halo is the repetition of a graph, which has the fault in it."""

    def run(self, lattice: jali.Lattice, faulty: Callable[[Any], Seeded | None]) -> list[Any]:
        if lattice.gpu is None:
            return super().run(lattice, faulty)
        x, y = (lattice.field(jali.Complex()) for _ in range(2))
        x[...] = np.random.default_rng(7).normal(size=lattice.extents) + 1j
        self.made.launches.clear()
        both_ways(y, x)
        mixed_in(x, y)
        fault = faulty(lambda: self.made.launches[0].recorded(in_graph=True))
        with contextlib.nullcontext() if fault is None else fault.made(2):
            graph = _core.GpuGraph(lattice.gpu, lambda: both_ways(y, x))
        for _ in range(self.steps):
            lattice.gpu.launch_graph(graph)
            mixed_in(x, y)
        return [x.local().copy(), y.local().copy()]

    def faults(self, record: _core.RecordedCalls) -> list[tuple[str, Seeded]]:
        return [
            (what, fault.in_every_run(2)) for what, fault in super().faults(record) if "graph" not in what
        ]


class Messages:
    """Arrays whose contents change on the stream go around a ring."""

    steps, at = 5, 2

    def __init__(self, transport: str, ranks: int) -> None:
        self.transport, self.ranks = transport, ranks

    def faults(self, record: _core.RecordedCalls) -> list[tuple[str, Seeded]]:
        return list(messages.mutants(Seeded(record), 2))

    def record(self) -> _core.RecordedCalls:
        return messages.recorded(self.transport)

    def body(self, number: int | None) -> bool:
        c = comm.current()
        ring = messages.ring(self.transport)[:4]
        gpu = ring[0].owner.gpu
        size = messages.SIZE

        def contents(rank: int) -> list[Any]:
            return list(np.random.default_rng(rank % c.size).integers(0, 99, (self.steps, size), np.int8))

        sources = [DeviceArray.from_host(one, gpu) for one in contents(c.rank)]
        results = [[DeviceArray.from_host(np.zeros(size, np.int8), gpu) for _ in range(2)] for _ in sources]
        fault = chosen(self, _core.recorded_messages(ring), number, gpu)
        for step, source in enumerate(sources):
            gpu.copy_address(ring[0].array.address, source.address, size)
            if fault is not None and step == self.at:
                with fault.made(2):
                    c.start(ring)
            else:
                c.start(ring)
            for result, message in zip(results[step], ring[1::2], strict=True):
                gpu.copy_address(result.address, message.array.address, size)
        return all(
            np.array_equal(of.to_host(), wanted)
            for both, wanted in zip(results, contents(c.rank - 1), strict=True)
            for of in both
        )


class Collectives:
    """An all-reduce over and over, with the calls of all runs of the record in the second and those after it."""

    steps = 8

    def __init__(self, shape: str) -> None:
        self.shape = shape
        self.name, self.transport, self.count, self.ranks, self.more = collectives.SHAPES[shape]

    def faults(self, record: _core.RecordedCalls) -> list[tuple[str, Seeded]]:
        """Of the order of launches, and of words in their tables; not of where memory lies, which is this process's."""
        wire = "flagged" if self.shape.startswith("flagged") else "slotted"
        kept = (
            r"(no|last|first|second) .*|(instructions|iterations) [+-]1|(waits|actions) \d+ (kind|packet): -?\d for .*|"
            r"instructions \d+ ((to )?where|first_source|waits): -?\d for .*|sources \d+ (where|packet): -?\d for .*"
        )
        return [
            (what, make())
            for what, make in collectives.mutants(Seeded(record), wire, self.ranks)
            if re.fullmatch(kept, what)
        ]

    def _plan(self) -> Any:
        return there().plan_of(call_of(self.name, self.transport, self.count, **self.more))

    def record(self) -> _core.RecordedCalls:
        return collectives.recorded(self.name, self.transport, self.count, **self.more)

    def body(self, number: int | None) -> bool:
        c, plan, gpu = comm.current(), self._plan(), there().gpu
        call = call_of(self.name, self.transport, self.count, **self.more)
        rng = np.random.default_rng(3)
        inputs = rng.integers(0, 1 << 20, (self.steps, c.size, self.count)).astype(np.float32)
        x = DeviceArray.from_host(inputs[0, c.rank], gpu)
        out = DeviceArray.from_host(inputs[0, c.rank], gpu)
        fault = chosen(self, there().recorded(call, plan, (x, out)), number, gpu)
        results = [DeviceArray.from_host(inputs[0, 0], gpu) for _ in inputs]
        sources = [DeviceArray.from_host(of[c.rank], gpu) for of in inputs]
        for step, source in enumerate(sources):
            gpu.copy_address(x.address, source.address, x.nbytes)
            if fault is not None and step > 0:
                with fault.made(step):
                    plan.run([x.address, out.address])
            else:
                plan.run([x.address, out.address])
            gpu.copy_address(results[step].address, out.address, out.nbytes)
        return all(np.array_equal(r.to_host(), i.sum(0)) for r, i in zip(results, inputs, strict=True))


class CarriedCollectives(Collectives):
    """The same, with messages that others than the kernel carry; the faults are of those and of launches."""

    def faults(self, record: _core.RecordedCalls) -> list[tuple[str, Seeded]]:
        return list(collectives.faults_of_messages(Seeded(record)))


def test_at_least_sixty_faults_of_halos_messages_and_collectives_are_found(made, use_settings):
    """Of devices' programs: each list of faults by itself has its test with what may stay unseen, and why."""
    use_settings(halo_policy="remote-write-overlap", device_queues=collectives.SMALL_QUEUES)
    found = {}
    for of in (
        Halos(made, "pair"),
        Messages("remote-write", 2),
        Collectives("slotted pair"),
    ):
        records = jali.virtual_ranks(of.ranks, of.record)
        faults = dict(of.faults(records[0]))
        found[type(of).__name__] = sum(is_found(fault, records) for fault in faults.values())
    assert min(found.values()) >= 10, found
    assert sum(found.values()) >= 60, found


def is_found(fault: Seeded, records: list[_core.RecordedCalls]) -> bool:
    """Whether the checker refuses what rank 0 does then."""
    try:
        _core.check_recorded([fault.recorded(), *records[1:]])
    except RuntimeError:
        return True
    return False


def chosen(of: Any, record: _core.RecordedCalls, number: int | None, gpu: _core.Gpu) -> Seeded | None:
    """The fault of this number, which rank 0 makes."""
    fault = None
    if number is not None and comm.current().rank == 0:
        fault = of.faults(record)[number][1]
        gpu.synchronize()
        fault.change_tables()
    comm.current().barrier()
    return fault


def harm(of: Any, number: int, seeds: range, patch: pytest.MonkeyPatch) -> str:
    """What becomes of a fault with the first seed that shows it, or 'right'."""
    found = "right"
    for seed in seeds:
        patch.setenv("JALI_FAKE_SEED", str(seed))
        found = outcome(lambda: all(jali.virtual_ranks(of.ranks, of.body, number)))
        if found != "right":
            break
    return found


def hold(of: Any, every: int, harmless: list[tuple[str, str]], patch: pytest.MonkeyPatch) -> None:
    """What the checker finds does harm, but for what `harmless` names, with the reason; what it does not find does none."""
    for seed in range(4):  # without a fault
        patch.setenv("JALI_FAKE_SEED", str(seed))
        assert all(jali.virtual_ranks(of.ranks, of.body, None))
    records = jali.virtual_ranks(of.ranks, of.record)
    unlike: list[tuple[str, bool, str]] = []
    reported = set()
    made = 0
    for number, (what, fault) in list(enumerate(of.faults(records[0])))[::every]:
        if not fault.can_be_made():
            continue
        made += 1
        found = is_found(fault, records)
        patch.setenv("JALI_FAKE_TIMEOUT", str(TIMEOUT if found else 20))  # ranks may be slow
        excused = found and any(re.fullmatch(h, what) for h, _ in harmless)
        said = harm(of, number, range(1, SEEDS + 1 if found and not excused else 4), patch)
        reported.add(said)
        if found != (said != "right") and not excused:
            unlike.append((what, found, said))
    assert unlike == []
    assert made >= 8
    assert len(reported) >= 2


# Faults that the checker refuses and that do no harm here, and why.
FREED_OTHERWISE = [
    (
        r"actions [13] .*",
        "a slot that is freed too early or never is missed only by who is a whole ring ahead",
    ),
]
ONLY_REPORTED = [
    (".*pack_halos: count -1", "only the checker reads how many messages there are: kernels go by jobs"),
    (".*launch kernel: busy [+-]1", "sites that write nothing of what is packed do not wait until all is"),
    ("early . ccl receive .*", "the library begins the messages of a group at the group's end"),
    ("word .: other address", "a rank that is told twice, where nobody sends to itself, hears the same"),
]
ONLY_REPORTED_WITHOUT_BOUNDARY = [
    (
        ".*launch kernel: first_bulk -1",
        "blocks that pack may go on with the bulk, and the block that is left over finds no boundary in this launch",
    ),
]


def sampled(*short: tuple[Any, ...], whole: list[tuple[Any, ...]]) -> list[Any]:
    """Rows whose last member says that every how-manieth fault is made, and those of which the long run makes all."""
    return [*short, *(pytest.param(*row, 1, marks=pytest.mark.full) for row in whole)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("policy", "shape", "every"),
    sampled(
        ("remote-write-overlap", "pair", 5),
        ("copy-engine-overlap", "pair", 11),
        ("nccl-overlap", "pair", 3),
        ("remote-write-one-launch", "pair", 7),
        whole=[
            ("remote-write-overlap", "pair"),
            ("remote-write-directions", "square"),
            ("buffered-write-overlap", "pair"),
            ("copy-engine-directions", "pair"),
            ("host-staged-overlap", "pair"),
            ("nccl-overlap", "pair"),
            ("nccl-directions", "square"),
            ("remote-write-one-launch", "pair"),
            ("remote-write-pack-in-bulk", "pair"),
        ],
    ),
)
def test_faults_in_halos_do_harm(policy, shape, every, made, monkeypatch, use_settings):
    use_settings(halo_policy=policy)
    more = ONLY_REPORTED_WITHOUT_BOUNDARY if policy == "remote-write-pack-in-bulk" else []
    hold(Halos(made, shape, policy), every, ONLY_REPORTED + more, monkeypatch)


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("policy", "shape", "every"),
    sampled(
        ("remote-write-overlap", "pair", 5),
        ("copy-engine-overlap", "pair", 11),
        whole=[
            ("remote-write-overlap", "pair"),
            ("remote-write-directions", "ring"),
            ("buffered-write-overlap", "pair"),
            ("nccl-overlap", "pair"),
            ("copy-engine-wait", "ring"),
        ],
    ),
)
def test_faults_in_graphs_do_harm(policy, shape, every, made, monkeypatch, use_settings):
    use_settings(halo_policy=policy)
    hold(Graphs(made, shape, policy), every, ONLY_REPORTED, monkeypatch)


@pytest.mark.parametrize(
    ("transport", "ranks", "every"),
    sampled(
        ("remote-write", 2, 2),
        whole=[("remote-write", 3), ("nccl", 2), ("copy-engine", 2), ("copy-engine", 3)],
    ),
)
@pytest.mark.full
def test_faults_in_messages_do_harm(transport, ranks, every, made, monkeypatch):
    with experiment(message_transport="nccl" if transport == "nccl" else None):
        hold(Messages(transport, ranks), every, ONLY_REPORTED, monkeypatch)


@pytest.mark.parametrize(
    ("shape", "every"),
    sampled(("slotted pair", 9), whole=[("slotted pair",), ("flagged pair",), ("flagged rounds",)]),
)
@pytest.mark.unproved("faults are seeded")
def test_faults_in_collectives_do_harm(shape, every, made, monkeypatch, use_settings):
    use_settings(device_queues=collectives.SMALL_QUEUES)
    hold(Collectives(shape), every, FREED_OTHERWISE if shape.startswith("slotted") else [], monkeypatch)


@pytest.mark.parametrize(("transport", "every"), sampled(("nccl", 5), whole=[("nccl",), ("copy-engine",)]))
@pytest.mark.unproved("faults are seeded")
@pytest.mark.full
def test_faults_in_collectives_that_are_carried_do_harm(transport, every, made, monkeypatch, use_settings):
    use_settings(device_transport=transport)
    hold(CarriedCollectives("slotted pair"), every, [], monkeypatch)
