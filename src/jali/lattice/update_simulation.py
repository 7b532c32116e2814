"""Updates simulated on described machines: every halo policy, the times of its parts, and the fastest one.

An update is one transfer graph of all ranks (`jali._core.TransferGraph`), made of the same steps as the policy takes on a
device (core/halo/halo_schedule) or on hosts (core/halo/exchange), and runs against links that are shared: wires, cards,
and each rank's memory, which its kernels share with each other and with what it sends and receives. Missing entries of a
machine cost nothing. Nothing here is measured: the time of a kernel follows from its bytes and operations on the
machine's `Device` (`kernel_seconds`), or is given by the caller.

A kernel of n sites takes `launch`, plus the root of the sum of squares of four times: that of its bytes from memory,
of all its reads and writes through caches, of its operations, and of one thread's own reads. The first three are
roofs, reached where they are far apart; the last dominates for few sites. Fields that fit a cache come from memory
in part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jali import _core
from jali.amounts import counted
from jali.codegen.arithmetics import ARITHMETICS
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice.updates import Message, Part, Update, Work
from jali.planner.machine import GIGA, MICRO, Device, Machine

MOST_RANKS = 1 << 14
EXCHANGE, BULK, BOUNDARY = (0, 0, 0), (1, 0, 0), (2, 0, 0)
"""Marks of the simulator; the first number is the priority where memory is short, as devices' priorities."""
SENDING = ("put", "exchange", "message")
LONG_WAVES = 4
"""Bulks of more waves of sites have their boundary beside their end (core/halo/gpu_launch)."""
PACKED_BY_THREAD, PACKING_THREADS = 64, 128 * 256
"""Bytes, until the most threads pack (core/halo/halo_on_device); in a launch of the bulk at most half of its places, as
those that wait (core/halo/gpu_launch)."""
MEGA = 1e6


@dataclass(frozen=True)
class Span:
    """Seconds from the start of an update."""

    begin: float = 0.0
    end: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.end - self.begin

    def shared(self, other: Span) -> float:
        """Seconds that lie in both."""
        return max(0.0, min(self.end, other.end) - max(self.begin, other.begin))


@dataclass(frozen=True)
class PolicyPrediction:
    """A halo policy. Seconds of the rank that ends last; `why_not` is why it cannot work on this machine, then all
    are 0.

    `time` is the whole update, `host` what the host needs to put it on streams (which decides where it is longer than
    the rest). `pack`, `transfer`, `bulk` and `boundary` are the times of these parts, `exchange` that of the whole
    exchange, `wait` how long the kernel waits for halos.
    """

    policy: str
    description: str
    why_not: str = ""
    time: float = 0.0
    host: float = 0.0
    wait: float = 0.0
    pack: Span = Span()
    transfer: Span = Span()
    exchange: Span = Span()
    bulk: Span = Span()
    boundary: Span = Span()
    bottleneck: str = ""

    @property
    def hidden(self) -> float:
        """The part of the exchange during which the bulk is computed."""
        return self.exchange.shared(self.bulk) / self.exchange.seconds if self.exchange.seconds else 0.0


@dataclass(frozen=True)
class UpdateSimulation:
    """The predictions for all policies of an update on a machine, the fastest first and those that cannot work last. `compute` are the seconds
    of the kernel over a rank's sites without any halo, of the slowest rank; bytes and messages are those that one rank
    sends."""

    name: str
    machine: Machine
    extents: tuple[int, ...]
    grid: tuple[int, ...]
    precision: str
    compute: float
    sites: int
    bulk_sites: int
    sent: int
    messages: int
    predictions: tuple[PolicyPrediction, ...] = field(repr=False)

    @property
    def best(self) -> PolicyPrediction:
        """The prediction for the fastest policy."""
        return self.predictions[0]

    def prediction(self, policy: str) -> PolicyPrediction:
        """The prediction for the policy of that name. Raises ParameterError."""
        for prediction in self.predictions:
            if prediction.policy == policy:
                return prediction
        raise ParameterError(
            f"no halo policy {value_shown(policy)} was simulated; there are {', '.join(prediction.policy for prediction in self.predictions)}"
        )

    def facts(self) -> dict[str, Any]:
        """As plain values that JSON can hold: seconds, bytes."""
        predictions = []
        for prediction in self.predictions:
            said: dict[str, Any] = {"policy": prediction.policy}
            if prediction.why_not:
                said["why_not"] = prediction.why_not
            else:
                said |= {
                    "time": prediction.time,
                    "host": prediction.host,
                    "wait": prediction.wait,
                    "hidden": prediction.hidden,
                }
                for name in ("pack", "transfer", "exchange", "bulk", "boundary"):
                    span = getattr(prediction, name)
                    said[name] = {"begin": span.begin, "end": span.end}
                said["bottleneck"] = prediction.bottleneck
            predictions.append(said)
        return {
            "kernel": self.name,
            "machine": {"name": self.machine.name, "nodes": self.machine.nodes},
            "extents": list(self.extents),
            "grid": list(self.grid),
            "ranks": math.prod(self.grid),
            "precision": self.precision,
            "sites": self.sites,
            "bulk_sites": self.bulk_sites,
            "bytes_sent": self.sent,
            "messages": self.messages,
            "compute": self.compute,
            "predictions": predictions,
        }

    def __str__(self) -> str:
        machine, best = self.machine, self.best
        lines = [
            f"{self.name}, {self.precision}, {'x'.join(map(str, self.extents))} sites on {counted(math.prod(self.grid), 'rank')} "
            f"as {'x'.join(map(str, self.grid))}",
            f"  on {machine.name} ({machine.nodes} node{'s' if machine.nodes > 1 else ''} of {machine.ranks_per_node})"
            f": a rank computes {counted(self.sites, 'site')} in {_us(self.compute)} us, {self.bulk_sites} of them need no halo; "
            f"it sends {self.sent} bytes in {self.messages} messages",
            "",
            f"  {'us':<26}{'whole':>9}{'of alone':>10}{'pack':>9}{'transfer':>10}{'bulk':>9}{'wait':>9}{'boundary':>10}"
            f"{'hidden':>8}",
        ]
        for prediction in self.predictions:
            if prediction.why_not:
                lines.append(f"  {prediction.policy:<26} not here: {prediction.why_not}")
                continue
            after = prediction.boundary.end - max(prediction.boundary.begin, prediction.bulk.end)
            parts = (
                prediction.pack.seconds,
                prediction.transfer.seconds,
                prediction.bulk.seconds,
                prediction.wait,
                after,
            )
            pack, transfer, bulk, wait, boundary = (_us(seconds) for seconds in parts)
            lines.append(
                f"  {prediction.policy:<26}{_us(prediction.time):>9}{self.compute / prediction.time:>10.1%}{pack:>9}{transfer:>10}"
                f"{bulk:>9}{wait:>9}{boundary:>10}{prediction.hidden:>8.0%}"
            )
        if not best.why_not:
            lines += ["", *(f"  {line}" for line in self._why(best))]
        return "\n".join(lines)

    def _why(self, best: PolicyPrediction) -> list[str]:
        lines = [f"{best.policy} wins: {best.description}"]
        if best.bulk.seconds:
            lines.append(
                f"the bulk ({_us(best.bulk.seconds)} us) hides {_us(best.exchange.shared(best.bulk))} of the "
                f"exchange's {_us(best.exchange.seconds)} us; {_us(best.wait)} us are waited for halos"
            )
        else:
            lines.append(
                f"nothing is hidden: {_us(best.exchange.seconds)} us of exchange come before the kernel"
            )
        if best.bottleneck:
            lines.append(f"the most loaded link is {best.bottleneck}")
        if best.host >= best.time:
            lines.append("the host decides: it takes as long to put the work on streams")
        return lines


def _us(seconds: float) -> str:
    return f"{seconds / MICRO:.1f}"


# ---- kernels -------------------------------------------------------------------------------------------


def kernel_seconds(device: Device, work: Work, precision: str, kept: int, places: float = 1.0) -> float:
    """Seconds of a kernel after its launch; `kept` are the bytes of all that it goes over again and again, of which
    caches keep a part, `places` the share of those where it would have blocks that it gets: caches and arithmetic are
    of multiprocessors, memory is of all."""
    if work.sites == 0:
        return 0.0
    from_memory = 1.0 if kept == 0 or not device.cache_size else min(1.0, kept / (device.cache_size * MEGA))
    arithmetic = ARITHMETICS[precision]
    rate = float(getattr(device, arithmetic.word)) / arithmetic.operations
    return math.hypot(
        work.least * from_memory / (device.memory * GIGA),
        work.moved / (device.cache * places * GIGA),
        work.flops / (rate * places * GIGA),
        work.moved / work.sites / (device.thread * GIGA),
    )


# ---- the graph of a policy --------------------------------------------------------------------------------


@dataclass
class _Steps:
    """Nodes of one rank's update, by what they are."""

    start: int = -1
    pack: list[int] = field(default_factory=list)
    transfer: list[int] = field(default_factory=list)  # that it receives
    arrived: dict[int, int] = field(default_factory=dict)  # by direction
    bulk: list[int] = field(default_factory=list)
    boundary: list[int] = field(default_factory=list)
    end: int = -1
    enqueued: int = 0  # what the host puts on streams


class _Policy(NamedTuple):
    """An entry of the core's table."""

    name: str
    description: str
    recordable: bool
    transport: str
    overlap: bool
    per_direction: bool
    why_never: str  # on devices of this kind


class _PolicyGraph:
    """The graph of one policy: all ranks from a common start to the end of the update."""

    def __init__(
        self,
        policy: _Policy,
        machine: Machine,
        core: Any,
        parts: Sequence[Part],
        seconds: Callable[..., float],  # of a part, its work and the share of places
    ):
        self.policy, self.transport = policy, machine.transports[policy.transport]
        self.machine, self.core, self.parts, self.seconds = machine, core, parts, seconds
        assert machine.device is not None
        self.device = machine.device
        self.graph = _core.TransferGraph(len(parts))
        self.steps = [_Steps() for _ in parts]
        self.sends = [False] * len(parts)  # have been put on streams
        self.to: list[list[Message]] = [[] for _ in parts]
        for part in parts:
            for message in part.sent:
                self.to[message.to].append(message)
        self.nodes: dict[tuple[int, tuple[int, ...]], list[int]] = {}  # of messages, by sender and slab

    # -- nodes

    def kernel(
        self, rank: int, seconds: float, needs: Iterable[int], mark: tuple[int, int, int] = EXCHANGE
    ) -> int:
        """A launch and what it computes."""
        self.steps[rank].enqueued += 1
        launched = self.delay(rank, self.device.launch * MICRO, needs, mark)
        return int(self.graph.add_kernel(rank, seconds, [launched], mark))

    def compute(
        self, rank: int, seconds: float, needs: Iterable[int], mark: tuple[int, int, int] = EXCHANGE
    ) -> int:
        """What blocks of a launch compute."""
        return int(self.graph.add_kernel(rank, seconds, list(needs), mark))

    def delay(
        self, rank: int, seconds: float, needs: Iterable[int], mark: tuple[int, int, int] = EXCHANGE
    ) -> int:
        """Time that passes."""
        return int(self.graph.add_delay(rank, seconds, list(needs), mark))

    def copied(self, size: int) -> float:
        """Seconds in which so many bytes are read and written: by a kernel, on hosts by a copy."""
        on_host = self.device.kind == "cpu" and not math.isinf(self.machine.copy)
        return 2 * size / ((self.machine.copy if on_host else self.device.memory) * GIGA)

    def rate(self, source: int, to: int) -> float:
        """Bytes per second of a message that has all links for itself."""
        links, _ = self.core.path(source, to, self.policy.transport)
        return float(min(self.core.capacity(link) for link in links))

    def messages(self, part: Part, ready: list[int], chained: bool = False, by_field: bool = False) -> None:
        """A rank's messages; `chained`: one after the other; `by_field`: one for each field in a slab."""
        for message in part.sent:
            nodes = self.nodes[part.rank, message.key] = []
            for size in (size for _, size in message.parts) if by_field else (message.bytes,):
                nodes.append(
                    self.graph.add_transfer(
                        part.rank, message.to, size, ready, EXCHANGE, self.policy.transport
                    )
                )
                if chained:
                    ready = nodes[-1:]
            self.steps[message.to].transfer += nodes

    def own(self, rank: int) -> list[int]:
        """The messages that a rank sends."""
        return [node for message in self.parts[rank].sent for node in self.nodes[rank, message.key]]

    def received(self, rank: int, upto: int) -> list[int]:
        """The messages that a rank receives, of directions up to one."""
        return [node for m in self.to[rank] if m.direction <= upto for node in self.nodes[m.source, m.key]]

    # -- the two kinds of ranks

    def on_devices(self) -> Any:
        """What GpuExchange::run puts on streams: the same steps."""
        ranks = [self._steps_of(part) for part in self.parts]
        for rank in ranks:  # all that is sent, then what waits for it
            next(rank, None)
        for rank in ranks:
            for _ in rank:
                pass
        return self._run()

    def _stages(self, part: Part) -> list[int]:
        directions = sorted({m.direction for m in self.to[part.rank]} | set(part.boundary))
        return (directions if self.policy.per_direction else directions[-1:]) or [len(part.extents) - 1]

    def _late(self, part: Part, direction: int) -> Work:
        if not self.policy.overlap:
            return part.whole
        return part.boundary.get(direction, Work()) if self.policy.per_direction else part.late

    def _steps_of(self, part: Part) -> Iterator[None]:
        """One rank's steps. Yields behind what it sends, before anything that needs what others send."""
        rank, steps, device = part.rank, self.steps[part.rank], self.device
        stages = self._stages(part)
        program = _core.halo_batches(
            device.kind,
            self.policy.name,
            stages=len(stages),
            produces=any(message.items for message in part.sent),
            has_bulk=part.bulk.sites > 0,
            boundary_fills=part.bulk.sites > LONG_WAVES * device.at_once,
        )
        steps.start = self.delay(rank, 0.0, [])
        ends: list[int] = []
        # in the ghosts themselves, field by field: nothing brings it there from a buffer for a whole slab
        lands = not any({"unpack", "copy to device"} & {*actions} for actions, *_ in program)

        def behind(node: int, mark: tuple[int, int, int]) -> int:
            """What another stream waits for."""
            steps.enqueued += 1
            return self.delay(rank, device.join * MICRO, [node], mark)

        for actions, stage, stream, needs in program:
            mark = BULK if "bulk" in actions else BOUNDARY if "boundary" in actions else EXCHANGE
            alone = stream != 0 and not needs  # then it begins with what was on the other one
            last = [behind(steps.start, mark) if alone else steps.start]
            for need in needs:
                other = program[need][2] != stream
                last.append(behind(ends[need], mark) if other else ends[need])
            in_kernel = len(actions) > 1 and bool({"bulk", "boundary"} & {*actions})
            if in_kernel:
                steps.enqueued += 1
                last = [self.delay(rank, device.launch * MICRO, last, mark)]
            begun = last  # from where blocks compute the bulk, beside those that pack and wait
            computed: list[int] = []
            launch = self.compute if in_kernel else self.kernel
            for action in actions:
                if action == "produce":
                    for message in part.sent:
                        if message.items:  # a launch for each message, of whose reads the item stands for all
                            last = [self.kernel(rank, self.copied(message.items), last)]
                            steps.pack += last
                elif action == "pack":
                    if "put" not in actions:
                        last = [self.kernel(rank, self.copied(sum(m.bytes for m in part.sent)), last)]
                    elif not in_kernel:
                        steps.enqueued += 1
                        last = [self.delay(rank, device.launch * MICRO, last)]
                    steps.pack += last
                elif action in SENDING:
                    if not self.sends[rank]:
                        self.send(part, last, chained=actions == ("put",), by_field=lands and action != "put")
                        steps.enqueued += 0 if "pack" in actions else len(part.sent)
                        yield
                    last = [*last, *self.own(rank)]
                    if action != "put":
                        last = [self.arrival(part, last, stages[stage])]
                elif action == "wait":
                    last = [self.arrival(part, last, stages[stage])]
                elif action == "unpack":
                    size = sum(
                        m.bytes
                        for m in self.to[rank]
                        if m.direction == stages[stage] or not self.policy.per_direction
                    )
                    waves = part.bulk.sites / device.at_once if self.policy.overlap else 0.0
                    # its blocks find room when some of the bulk end: half a wave later on the whole
                    if waves > 1:
                        last = [self.delay(rank, self.seconds(part, part.bulk) / waves / 2, last)]
                    last = [self.kernel(rank, self.copied(size), last)]
                    steps.arrived[stages[stage]] = last[0]
                elif action == "bulk":
                    if in_kernel and "pack" in actions:
                        self.graph.add_kernel(rank, self.held_by_packing(part), begun, EXCHANGE)
                    computed.append(launch(rank, self.seconds(part, part.bulk), begun, BULK))
                    steps.bulk += computed
                elif action == "boundary":
                    work = self._late(part, stages[stage])
                    places = self.places(work, device.at_once / 2) if in_kernel else 1.0
                    computed.append(launch(rank, self.seconds(part, work, places), last, BOUNDARY))
                    steps.boundary.append(computed[-1])
            ends.append(self.delay(rank, 0.0, [*last, *computed], mark))
        awaited = {need for *_, needs in program for need in needs}
        for number, (*_, stream, _) in enumerate(program):
            if stream != 0 and number not in awaited:
                ends[number] = behind(ends[number], BOUNDARY)
        steps.end = self.delay(rank, 0.0, ends)

    def places(self, work: Work, taken: float) -> float:
        """The share of the places that a launch would have alone which is left to it where others take so many."""
        most = self.device.at_once
        return min(1.0, (most - taken) / min(work.sites, most)) if work.sites else 1.0

    def held_by_packing(self, part: Part) -> float:
        """By how many seconds a bulk takes longer because blocks of its own launch pack."""
        rank, sent = part.rank, sum(m.bytes for m in part.sent)
        if not sent:
            return 0.0
        packing = min(sent / PACKED_BY_THREAD, PACKING_THREADS, self.device.at_once / 2)
        alone = self.seconds(part, part.bulk)
        beside = self.seconds(part, part.bulk, self.places(part.bulk, packing))
        latency = max(self.core.path(rank, m.to, self.policy.transport)[1] for m in part.sent)
        packed = latency + sum(m.bytes / self.rate(rank, m.to) for m in part.sent)
        return min(packed, beside) * (1 - alone / beside) if beside else 0.0

    def send(self, part: Part, ready: list[int], chained: bool, by_field: bool) -> None:
        """A rank's messages, as `messages`."""
        rank, steps = part.rank, self.steps[part.rank]
        self.sends[rank] = True
        waits = self.transport.before * MICRO
        if self.transport.queues and self.policy.overlap and part.bulk.sites:
            waits += self.seconds(part, part.bulk) / max(1.0, part.bulk.sites / self.device.at_once)
        if waits:
            ready = [self.delay(rank, waits, ready)]
        if self.transport.holds:
            held = sum(m.bytes / self.rate(rank, m.to) for m in part.sent) * self.transport.holds
            self.graph.add_kernel(rank, held, ready, EXCHANGE)
        steps.arrived[-1] = ready[-1]
        self.messages(part, ready, chained, by_field)

    def arrival(self, part: Part, needs: list[int], direction: int) -> int:
        """The node with which the messages of directions up to one have come."""
        came = self.received(part.rank, direction)
        arrived = self.delay(part.rank, self.transport.after * MICRO, [*needs, *came])
        self.steps[part.rank].arrived[direction] = arrived
        return arrived

    def on_hosts(self) -> Any:
        """What a schedule of core/halo/exchange does. Within a host the transport's rate includes packing and unpacking,
        and the threads that copy compute nothing meanwhile; between hosts messages travel by themselves, packed before
        and unpacked after."""
        near = [
            {m.key for m in part.sent if self.core.level_between(part.rank, m.to) > 0} for part in self.parts
        ]
        for part in self.parts:
            rank, steps = part.rank, self.steps[part.rank]
            steps.start = self.delay(rank, 0.0, [])
            packed = sum(m.items if m.key in near[rank] else m.bytes for m in part.sent)
            last = self.kernel(rank, self.copied(packed), [steps.start])
            steps.pack.append(last)
            if self.transport.before:
                last = self.delay(rank, self.transport.before * MICRO, [last])
            steps.arrived[-1] = last
            self.messages(part, [last])
        for part in self.parts:
            rank, steps = part.rank, self.steps[part.rank]
            busy = [node for key in near[rank] for node in self.nodes[rank, key]]
            main = [steps.arrived[-1], *busy]
            if self.policy.overlap and part.bulk.sites > 0:
                main = [self.kernel(rank, self.seconds(part, part.bulk), main, BULK)]
                steps.bulk += main
            came = [*main, *self.received(rank, len(part.extents))]
            arrived = self.delay(rank, self.transport.after * MICRO, came)
            unpacked = sum(m.bytes for m in self.to[rank] if m.key not in near[m.source])
            if unpacked:
                arrived = self.kernel(rank, self.copied(unpacked), [arrived])
            steps.arrived[len(part.extents)] = arrived
            late = part.late if self.policy.overlap else part.whole
            node = self.kernel(rank, self.seconds(part, late), [arrived], BOUNDARY)
            steps.boundary.append(node)
            steps.end = node
        return self._run()

    def _run(self) -> Any:
        self.graph.finish()
        return _core.simulate_graph(self.graph, self.core)

    # -- results

    def simulated(self) -> PolicyPrediction:
        """The prediction for the policy, of the rank that ends last."""
        found = self.on_hosts() if self.device.kind == "cpu" else self.on_devices()
        begin, end = found.begin, found.end
        rank = max(range(len(self.parts)), key=lambda r: end[self.steps[r].end])
        steps = self.steps[rank]

        def span(nodes: Iterable[int]) -> Span:
            nodes = list(nodes)
            return Span(min(begin[k] for k in nodes), max(end[k] for k in nodes)) if nodes else Span()

        exchange = Span(0.0, max((end[k] for k in steps.arrived.values()), default=0.0))
        bulk, boundary = span(steps.bulk), span(steps.boundary)
        sent = [*steps.transfer, *self.own(rank)]
        wait = max(0.0, boundary.begin - max(bulk.end, span(steps.pack).end))
        host = steps.enqueued * self.device.host * MICRO
        return PolicyPrediction(
            self.policy.name,
            self.policy.description,
            time=max(end[steps.end], host),
            host=host,
            wait=wait,
            pack=span(steps.pack),
            transfer=span(sent),
            exchange=exchange,
            bulk=bulk,
            boundary=boundary,
            bottleneck=self.core.link_name(found.bottleneck) if found.bottleneck >= 0 else "",
        )


# ---- all policies ------------------------------------------------------------------------------------------


def simulate_update(
    update: Update,
    machine: Machine,
    extents: Sequence[int],
    grid: Sequence[int],
    policies: Sequence[str] = (),
    site_seconds: float | None = None,
) -> UpdateSimulation:
    """Simulates an update of a lattice of these extents, split over a grid of ranks, with every halo policy, or those
    named.

    The machine has as many nodes as needed; ranks fill them from the first on. `site_seconds` is what the kernel was
    measured to take per site on one rank, in place of the time by bytes and operations. Raises ParameterError for a
    machine without a `[device]`, for one rank and for more than 2^14; LayoutError where the lattice does not fit.
    """
    for name, numbers in (("extents", extents), ("grid", grid)):
        if not isinstance(numbers, Sequence | np.ndarray) or not all(
            isinstance(n, int | np.integer) and n > 0 for n in numbers
        ):
            raise ParameterError(
                f"{name} are a positive whole number for each direction, such as {(2,) * update.ndim}, not {value_shown(numbers)}"
            )
    if site_seconds is not None and (
        isinstance(site_seconds, bool)
        or not isinstance(site_seconds, Real)
        or not 0 < site_seconds < math.inf
    ):
        raise ParameterError(
            f"site_seconds is a positive number of seconds, such as 1e-9, not {value_shown(site_seconds)}"
        )
    split = update.on(list(map(int, extents)), list(map(int, grid)))
    device, ranks = machine.device, split.ranks
    if device is None:
        raise ParameterError(
            f"machine '{machine.name}' does not say what its ranks compute; a table [device] with kind and memory does"
        )
    if not 1 < ranks <= MOST_RANKS:
        raise ParameterError(
            f"the grid {split.grid} has {ranks} rank{'s' if ranks > 1 else ''}; halos are simulated between 2 and "
            f"{MOST_RANKS}"
        )
    machine = machine.with_nodes(-(-ranks // machine.ranks_per_node))
    parts = [split.part(rank) for rank in range(ranks)]
    if not split.ghosts:
        raise LayoutError(
            f"{update.name} reads no ghosts that travel on a grid {split.grid}: there is nothing to simulate"
        )
    known: dict[tuple[tuple[int, ...], Work, float], float] = {}

    def seconds(part: Part, work: Work, places: float = 1.0) -> float:
        key = (part.extents, work, places)
        if key not in known:
            modelled = kernel_seconds(device, work, update.precision, part.whole.least, places)
            if site_seconds is not None and work.sites:
                whole = kernel_seconds(device, part.whole, update.precision, part.whole.least)
                alone = max(0.0, site_seconds * part.whole.sites - device.launch * MICRO)
                modelled *= alone / whole
            known[key] = modelled
        return known[key]

    core = machine.core_of_halos()
    levels = {core.level_between(part.rank, m.to) for part in parts for m in part.sent}
    predictions = []
    offered = [_Policy(*entry) for entry in _core.halo_policies(device.kind)]
    unknown = sorted(set(policies) - {policy.name for policy in offered})
    if unknown:
        raise ParameterError(
            f"no halo policy {', '.join(unknown)} on {device.kind}; there are "
            f"{', '.join(policy.name for policy in offered)}"
        )
    for policy in offered:
        if policies and policy.name not in policies:
            continue
        why_not = policy.why_never or why_no_transport(machine, policy.transport, levels)
        if why_not:
            predictions.append(PolicyPrediction(policy.name, policy.description, why_not))
        else:
            predictions.append(_PolicyGraph(policy, machine, core, parts, seconds).simulated())
    first = parts[0]
    return UpdateSimulation(
        name=update.name,
        machine=machine,
        extents=split.extents,
        grid=split.grid,
        precision=update.precision,
        compute=max(seconds(part, part.whole) for part in parts) + device.launch * MICRO,
        sites=first.whole.sites,
        bulk_sites=first.bulk.sites,
        sent=sum(m.bytes for m in first.sent),
        messages=len(first.sent),
        predictions=tuple(
            sorted(predictions, key=lambda prediction: (bool(prediction.why_not), prediction.time))
        ),
    )


def why_no_transport(machine: Machine, transport: str, levels: Iterable[int]) -> str:
    """Why a transport cannot move messages over all these levels of a machine; empty: it can."""
    if transport not in machine.transports:
        return f"machine '{machine.name}' says nothing of it; a table [transport.{transport}] does"
    for level in sorted(levels):
        name = machine.level_names[level]
        if name not in machine.transports[transport].messages.at:
            return "not between nodes" if level == 0 else f"not between parts of a {name}"
    return ""


def load_machine(machine: Machine | str | Path) -> Machine:
    """A machine, or that of a name or file. Raises ParameterError."""
    if not isinstance(machine, Machine | str | Path):
        raise ParameterError(f"a machine is one, its name or its file, not {value_shown(machine)}")
    return machine if isinstance(machine, Machine) else Machine.load(machine)
