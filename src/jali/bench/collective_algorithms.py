"""Times of every algorithm of a collective beside jali's choice, on hosts and on devices: the data for rules.

A spec is an algorithm, on devices with a transport of its messages, or a library with collectives of its own
(`jali.comm.algorithms`). Ranks are those of any communicator, processes or threads. All algorithms of a cell take turns on the
same buffers, in an order that is drawn anew for each round; the time of a round is that of the slowest rank. On the host a
round is one call on fresh data, from a barrier on; on devices a batch of calls, on streams or in graphs, as in
`jali.bench.device_collectives`. A few rounds select the algorithms that are near the default; only these, and it, take part in
the rest.

Results are compared before algorithms are timed, and after; on the host also in the rounds of the first look. What is not
possible here is left out with its reason. `jali.bench.collective_rules` decides from the times.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from jali import _core, settings
from jali.bench.cases import Case, contribution
from jali.bench.collective_rules import DEFAULT
from jali.bench.collectives import JaliSide
from jali.bench.device_collectives import DeviceCase, batch_of
from jali.comm import algorithms
from jali.comm.device_arrays import DeviceArray
from jali.comm.elements import element_name
from jali.errors import DeviceError, ParameterError, RankError, RecordingError
from jali.lattice import Lattice
from jali.vendors import libraries, library_of

IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "reduce")  # have the choice
LOOK, NEAR = (
    3,
    1.5,
)  # rounds of the first look; an algorithm whose best was slower than so many times the default is left
MOST_ROUNDS = 200
BATCH, LARGE = 20, 64 << 20  # calls of a batch on devices; beyond so many bytes a fifth
KEEP = 16 << 20  # plans of more bytes are given up after their cell: some have as much memory of their own
DEVICE_TRANSPORTS = tuple(name for name, _, carries, _ in _core.collective_transports(libraries()) if carries)


@contextmanager
def in_force(communicator: Any, **changes: settings.Value) -> Iterator[None]:
    """`jali.settings.using` for ranks that may be threads of one process: no rank continues while another has other
    settings. Collective."""
    before = {name: getattr(settings.current(), name) for name in changes}
    communicator.barrier()
    settings.use(**changes)
    try:
        communicator.barrier()
        yield
        communicator.barrier()
    finally:
        settings.use(**before)
    communicator.barrier()


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm and the transport of its messages (empty: the usual one), or a library with collectives of its own.
    `between` is the transport between hosts, where it is another."""

    name: str
    transport: str = ""
    between: str = ""

    def __str__(self) -> str:
        inside = f"{self.name} by {self.transport}" if self.transport else self.name
        return f"{inside} and {self.between}" if self.between else inside


def specs_of(collective: str, kind: str, ranks_of_hosts: Sequence[int] = (1,)) -> list[AlgorithmSpec]:
    """All algorithms of a collective in the host's memory ("host") or in that of devices of a kind, whether they are possible or not.

    Those that do one thing inside hosts and another between them are left out where the ranks are not on such hosts.
    """

    def applies(spec: AlgorithmSpec) -> bool:
        return not _core.why_not_between(spec.name, False, collective, list(ranks_of_hosts))

    return [spec for spec in _specs_of(collective, kind) if applies(spec)]


def _specs_of(collective: str, kind: str) -> list[AlgorithmSpec]:
    if kind == "host":
        return [AlgorithmSpec(name) for name in algorithms.names(collective)]
    everybodys, here = (
        _core.collective_transports(libraries()),
        _core.collective_transports([library_of(kind)]),
    )
    of_others = {name for name, *_ in everybodys} - {name for name, *_ in here}
    names = [name for name in algorithms.names(collective, on_device=True) if name not in of_others]
    itself = [AlgorithmSpec(name) for name in names if name in algorithms.ON_DEVICES]
    usual, *others = [name for name in DEVICE_TRANSPORTS if name not in of_others]
    transports = ["", *others] if usual else []
    found = itself + [
        AlgorithmSpec(n, c) for n in names if n not in algorithms.ON_DEVICES for c in transports
    ]
    levels = {entry.name for entry in algorithms.ALGORITHMS if entry.hierarchy == "hosts"}
    named = [usual, *others]
    return found + [
        AlgorithmSpec(n, a, b) for n in names if n in levels for a in named for b in named if a != b
    ]


class InPlaceSide(JaliSide):
    """The same calls on one buffer of `case.whole`."""

    def prepare(self, case: Any) -> Callable[[], object]:
        ours, x, how = self.communicator, case.whole, self.algorithm.get(case.collective)
        calls = {
            "all_reduce": partial(ours.all_reduce, x, x),
            "all_gather": partial(ours.all_gather, x, x),
            "reduce_scatter": partial(ours.reduce_scatter, x, x),
            "reduce": partial(ours.reduce, x, x, root=case.root),
        }
        return partial(calls[case.collective], algorithm=how)


class InPlaceCase(Case):
    """A case whose buffers are parts of one, `whole`."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        n = self.chunk
        mine = slice(self.rank * n, (self.rank + 1) * n)
        self.whole = np.empty(self.chunks * n, self.dtype)
        self.send = self.whole[mine] if self.collective == "all_gather" else self.whole
        if self.receive.size:
            self.receive = self.whole[mine] if self.collective == "reduce_scatter" else self.whole

    def wrong(self, round_: int) -> str:
        """As of any case; what was sent is overwritten."""
        sent, self.send = self.send, self._ready[round_ % 2][0]
        try:
            return super().wrong(round_)
        finally:
            self.send = sent


@dataclass(frozen=True)
class _Part:
    """A part of an array on a device, for checks of results."""

    address: int
    size: int


class InPlaceDeviceCase(DeviceCase):
    """A case on a device whose buffers are parts of one, `whole`."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        n = self.chunk
        self.whole = DeviceArray.empty(self.gpu, (self.chunks * n,), self.dtype, "benchmark")
        mine = _Part(self.whole.address + self.rank * n * self.dtype.itemsize, n)
        self._sent_at = mine.address if self.collective == "all_gather" else self.whole.address
        if self.receive is not None:
            whole = _Part(self.whole.address, self.whole.size)
            self.receive = mine if self.collective == "reduce_scatter" else whole  # type: ignore[assignment]
        self.send = None

    def poison(self) -> None:
        """Poison the buffer, and write the input."""
        self.gpu.fill(self.whole.memory, 119)
        mine = contribution(self.rank, self.sent, 0, self.dtype)
        self.gpu.upload_address(self._sent_at, mine.view(np.uint8))


@dataclass
class Measured:
    """A cell: seconds of rounds by algorithm, the default among them; why others were left out; medians of those that were far behind."""

    payload: int
    times: dict[str, list[float]]
    impossible: dict[str, str]
    far: dict[str, float]


@dataclass(frozen=True)
class _Run:
    """What is checked, and what is timed: one call, and a batch of them."""

    once: Callable[[], object]
    batch: Callable[[], object]


Runs = Mapping[str, _Run]


class AlgorithmBenchmark:
    """The algorithms between the ranks of a communicator. Everything is collective.

    Jali's choice and all algorithms by the usual transport are plans of one communicator, so that none has its slots of
    messages to itself, colder or warmer than those of the others. Other transports have communicators of their own, for which
    each was the usual one when plans were made. With any settings of the program, the default is the choice of jali's own
    rules.
    """

    def __init__(self, communicator: Any, gpu: Any = None, seed: int = 1) -> None:
        self.communicator, self.gpu, self._seed = communicator, gpu, seed
        self.kind = "host" if gpu is None else gpu.kind
        self.ranks_of_hosts = list(ranks_per_host(communicator))
        self._control = communicator.duplicate()
        # By a file of rules, the transport that is to be the usual one, and a number.
        self._by_choice: dict[tuple[str, str, int], Any] = {}

    def case(self, collective: str, payload: int, dtype: str, in_place: bool) -> Any:
        """Buffers for calls of that payload, bytes that are rounded up to whole chunks."""
        c = self.communicator
        if self.gpu is not None:
            kind = InPlaceDeviceCase if in_place else DeviceCase
            return kind(collective, payload, c.rank, c.size, self.gpu, dtype)
        return (InPlaceCase if in_place else Case)(collective, payload, c.rank, c.size, 0, dtype)

    def measure(
        self,
        case: Any,
        rounds: int,
        seconds: float,
        *,
        graphs: bool = False,
        beside: Mapping[str, Callable[[], object]] | None = None,
        rules: str = "",
    ) -> Measured:
        """All algorithms beside the default, and what else is to be timed `beside` them, to the last round. More rounds than
        requested, as many as fit into `seconds`, where a cell is done sooner. With `graphs` every batch is one, but what is
        beside is called as it is. The default is what a file of `rules` chooses, or jali's own."""
        measured = self._measured(case, rounds, seconds, graphs, beside or {}, rules)
        self._end(case)
        return measured

    def _measured(
        self,
        case: Any,
        rounds: int,
        seconds: float,
        graphs: bool,
        beside: Mapping[str, Callable[[], object]],
        rules: str,
    ) -> Measured:
        runs = {DEFAULT: self._default(case, rules, graphs=graphs)}
        impossible: dict[str, str] = {}
        for name, call in beside.items():
            runs[name] = self._run(case, call)
            self._check(case, name, runs[name])
        for spec in specs_of(case.collective, self.kind, self.ranks_of_hosts):
            run = self._forced(case, spec, impossible, graphs)
            if run is not None:
                runs[str(spec)] = run
        look = self._timed(case, runs, 0, LOOK, compare=True)
        limit = NEAR * float(np.median(look[DEFAULT]))
        always = {DEFAULT, *beside}
        near = {name: run for name, run in runs.items() if name in always or min(look[name]) <= limit}
        far = {name: float(np.median(look[name])) for name in runs if name not in near}
        if len(near) == 1:
            return Measured(case.payload, {DEFAULT: look[DEFAULT]}, impossible, far)
        return Measured(case.payload, self._rest(case, near, look, rounds, seconds), impossible, far)

    def compare(
        self, case: Any, rules: str, rounds: int, seconds: float, graphs: bool = False
    ) -> dict[str, list[float]]:
        """What a file of rules chooses ("rules") beside what jali's own do (DEFAULT).

        Half of the rounds are of communicators that were made in the opposite order: the positions of their slots must not
        affect rules.
        """
        times: dict[str, list[float]] = {DEFAULT: [], "rules": []}
        for number, order in ((1, (DEFAULT, "rules")), (2, ("rules", DEFAULT))):
            runs = {
                name: self._default(case, rules if name == "rules" else "", number, graphs) for name in order
            }
            look = self._timed(case, runs, 0, LOOK, compare=True)
            for name, more in self._rest(case, runs, look, -(-rounds // 2), seconds / 2).items():
                times[name] += more
        self._end(case)
        return times

    def _end(self, case: Any) -> None:
        if case.payload > KEEP:
            self._control.barrier()
            self._by_choice.clear()

    def _rest(
        self, case: Any, runs: Runs, look: dict[str, list[float]], rounds: int, seconds: float
    ) -> dict[str, list[float]]:
        each = sum(float(np.median(look[name])) for name in runs) * self._length(case)
        count = max(rounds, min(MOST_ROUNDS, int(seconds / each) if each > 0 else rounds))
        return self._timed(case, runs, LOOK, count)

    def _default(self, case: Any, rules: str, number: int = 0, graphs: bool = False) -> _Run:
        with in_force(self._control, collective_rules=rules or None, collective=None):
            run = self._run(case, self._call(case, self._ranks_for(rules, "", number), None), graphs)
            self._check(case, "what the rules choose" if rules else "jali's choice", run)
        return run

    def _forced(
        self, case: Any, spec: AlgorithmSpec, impossible: dict[str, str], graphs: bool
    ) -> _Run | None:
        itself = spec.name in algorithms.ON_DEVICES
        usual = "" if self.gpu is None or itself else DEVICE_TRANSPORTS[0]
        transport = None if spec.between else spec.transport or usual or None
        name, transports = (
            str(spec) if spec.between else spec.name,
            f"{spec.transport} {spec.between}".strip(),
        )
        with in_force(self._control, collective_rules=None, collective=None, device_transport=transport):
            reason = ""
            self._ready(case)
            try:
                call = self._call(case, self._ranks_for("", transports, 0), name)
                call()  # checks first whether it is possible at all
                run = self._run(case, call, graphs)
            except (DeviceError, ParameterError, RecordingError, MemoryError) as error:
                reason = str(error) or type(error).__name__
            told = [text.decode() for text in self._control.gather_bytes(reason.encode()) if text]
            if told:
                impossible[str(spec)] = told[0]
                return None
            self._check(case, str(spec), run)
        return run

    def _run(self, case: Any, call: Callable[[], object], graphs: bool = False) -> _Run:
        if self.gpu is None:
            return _Run(call, call)
        if not graphs:
            return _Run(call, batch_of(None, call, self._length(case), "stream"))
        return _Run(*(batch_of(self._lattice, call, n, "graph") for n in (1, self._length(case))))

    @cached_property
    def _lattice(self) -> Lattice:
        """Whose graphs they are."""
        ranks = self.communicator.size
        return Lattice(2, 2 * ranks, device=self.kind, grid=(1, ranks))

    def _ranks_for(self, rules: str, transport: str, number: int) -> Any:
        choice = (rules, transport, number)
        if choice not in self._by_choice:
            self._by_choice[choice] = self.communicator.duplicate()
        return self._by_choice[choice]

    def _call(self, case: Any, communicator: Any, algorithm: str | None) -> Callable[[], object]:
        side = InPlaceSide if hasattr(case, "whole") else JaliSide
        call: Any = side(communicator, "", {case.collective: algorithm} if algorithm else {}).prepare(case)
        # Naming an argument takes 0.1 us or more; so jali's choice is requested by name, too.
        return call if algorithm else partial(call, algorithm=None)

    def _ready(self, case: Any) -> None:
        """Data for a call whose result is compared."""
        if self.gpu is None:
            case.fill(0)
        else:
            case.poison()
            self.gpu.synchronize()
        self._control.barrier()

    def _check(self, case: Any, name: str, run: _Run) -> None:
        self._ready(case)
        run.once()
        self._compare_result(case, name, 0)

    def _compare_result(self, case: Any, name: str, number: int) -> None:
        if self.gpu is None:
            wrong = case.wrong(number)
        else:
            self.gpu.synchronize()
            wrong = case.wrong()
        self._raise_together(f"{name}: {wrong}" if wrong else "")

    def _raise_together(self, problem: str) -> None:
        found = [text.decode() for text in self._control.gather_bytes(problem.encode()) if text]
        if found:
            raise RankError(found[0])

    def _length(self, case: Any) -> int:
        if self.gpu is None:
            return 1
        return BATCH if case.payload <= LARGE else BATCH // 5

    def _timed(
        self,
        case: Any,
        runs: Runs,
        first: int,
        count: int,
        compare: bool = False,
    ) -> dict[str, list[float]]:
        """Rounds `first`, `first` + 1, ... of all runs in turn."""
        names, clock, length = list(runs), time.perf_counter, self._length(case)
        times = np.zeros((len(names), count))
        problem = ""
        for number in range(first, first + count):
            order = list(range(len(names)))
            random.Random(self._seed * 1000003 + number).shuffle(order)  # the same on all ranks
            for side in order:
                batch = runs[names[side]].batch
                if self.gpu is None:
                    case.fill(number)
                    self._control.barrier()
                    start = clock()
                    batch()
                    times[side, number - first] = clock() - start
                    if (compare or number == first + count - 1) and not problem:
                        wrong = case.wrong(number)
                        problem = f"{names[side]}: round {number}: {wrong}" if wrong else ""
                else:
                    self._control.barrier()
                    start = clock()
                    batch()
                    self.gpu.synchronize()
                    times[side, number - first] = (clock() - start) / length
        self._raise_together(problem)
        if self.gpu is not None and not compare:
            for name, run in runs.items():
                self._check(case, name, run)
        slowest = self._control.all_reduce(times, op="max")
        return {name: list(map(float, row)) for name, row in zip(names, slowest, strict=True)}


def core_type(dtype: str) -> str:
    """The core's name of NumPy's type; ParameterError for those of which no sums are compared."""
    try:
        kind = np.dtype(dtype)
    except TypeError:
        raise ParameterError(
            f"--dtypes: there is no type {dtype!r}; give some like float32,float64"
        ) from None
    if kind.kind not in "fiu" or kind.itemsize < 4:
        raise ParameterError(
            f"--dtypes: sums of {dtype} are not exact enough to be compared; give some like float32,float64,int64"
        )
    return str(element_name(kind))


def ranks_per_host(communicator: Any) -> Sequence[int]:
    """Ranks of each host, as rules count them: those of one process are on one."""

    if communicator.transport != "mpi":
        return [communicator.size]
    names = communicator.gather_bytes(_core.host_identity().encode())
    return [names.count(name) for name in dict.fromkeys(names)]
