"""Measures the machine that ranks run on, and writes it as a description for the simulator.

Between two ranks of one host, and between two hosts if there are several, for each library that connects them: half
of a ping-pong is the latency, the time per message of a burst the gap, long messages one way and both ways give the
bandwidths. Copies and reductions are timed on every rank at once, since they share the memory. A host's inside is
described as one level of ports; NUMA nodes and caches are not distinguished. The caller measures the computing of
ranks (`jali.bench.host_device`), and passes it in with the transport of halos.
"""

from __future__ import annotations

import platform
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from jali import _core
from jali.comm.communicator import Communicator
from jali.errors import ParameterError
from jali.planner.machine import GIGA, MICRO, Device, LibraryLevel, Machine

LONG = 8 << 20  # bytes of the messages that give bandwidths
SHORT = 8
BURST = 32
REPEATS = 5


@dataclass(frozen=True)
class Link:
    """What two ranks measured: seconds and bytes per second; `duplex` counts both directions."""

    latency: float
    gap: float
    bandwidth: float
    duplex: float


def measure(
    communicator: Communicator,
    name: str | None = None,
    device: Device | None = None,
    transports: Mapping[str, LibraryLevel] | None = None,
) -> str:
    """The text of a machine file, the same on all ranks; with what each of them computes, and what carries halos within a host, if that
    is given. Collective.

    Raises ParameterError unless there are two ranks or more, as many on each host.
    """
    ranks = communicator.collectives
    hosts = ranks.hosts
    per_host = len(hosts[0])
    if communicator.size < 2 or any(len(host) != per_host for host in hosts):
        raise ParameterError(
            f"a machine is measured by 2 ranks or more, as many on each host; here are "
            f"{', '.join(str(len(host)) for host in hosts)}"
        )
    inside: dict[str, Link] = {}
    between: dict[str, Link] = {}
    for library, core in ranks.transports:
        if per_host > 1:
            inside[library] = _measure_pair(communicator, core, hosts[0][0], hosts[0][1])
        if len(hosts) > 1 and library != "shm":
            between[library] = _measure_pair(communicator, core, hosts[0][0], hosts[1][0])
    copy, reduction = _measure_memory(communicator)
    text = _write(
        name or platform.node() or "measured",
        len(hosts),
        per_host,
        inside,
        between,
        copy,
        reduction,
        device,
        dict(transports or {}),
    )
    text = communicator.broadcast_bytes(text.encode(), 0).decode()
    Machine.from_table(tomllib.loads(text), "what was measured")  # it must be readable
    return text


def _measure_pair(communicator: Communicator, core: _core.Communicator, first: int, second: int) -> Link:
    """Ranks `first` and `second` measure, the others wait; all ranks receive the result of `first`."""
    me = communicator.rank
    found = np.zeros(4)
    communicator.barrier()
    if me in (first, second):
        peer = second if me == first else first
        short, long, other = np.zeros(SHORT, np.uint8), np.ones(LONG, np.uint8), np.ones(LONG, np.uint8)
        some = [np.zeros(SHORT, np.uint8) for _ in range(BURST)]

        def turn(data: np.ndarray, sends: bool) -> None:
            message = core.send(data, peer, 0) if sends else core.receive(data, peer, 0)
            core.wait([message], "measuring the machine")

        def ping_pong(data: np.ndarray) -> None:
            turn(data, me == first)
            turn(data, me != first)

        def burst() -> None:
            move = core.send if me == first else core.receive
            core.wait([move(data, peer, 0) for data in some], "measuring the machine")
            turn(short, me != first)

        def both() -> None:
            core.wait([core.receive(other, peer, 0), core.send(long, peer, 0)], "measuring the machine")

        def many() -> None:
            for _ in range(50):
                ping_pong(short)

        latency = _best(many) / 100
        gap = max(0.0, _best(burst) - 2 * latency) / BURST
        bandwidth = LONG / max(1e-9, _best(lambda: ping_pong(long)) / 2 - latency)
        duplex = 2 * LONG / max(1e-9, _best(both) - latency)
        found[:] = latency, min(gap, latency), bandwidth, max(duplex, bandwidth)
    communicator.barrier()
    values = np.frombuffer(communicator.broadcast_bytes(found.tobytes(), first))
    return Link(*map(float, values))


def _measure_memory(communicator: Communicator) -> tuple[float, float]:
    """Bytes per second, read plus written, of copies and of sums of two; the slowest rank's, all working at once."""
    a, b, out = (np.ones(LONG // 4, np.float32) for _ in range(3))
    communicator.barrier()
    copy = 2 * LONG / _best(lambda: np.copyto(out, a))
    communicator.barrier()
    reduction = 3 * LONG / _best(lambda: _core.reduce("fp32", "sum", out, [a, b]))
    gathered = [np.frombuffer(t) for t in communicator.gather_bytes(np.array([copy, reduction]).tobytes())]
    slowest = np.min(gathered, axis=0)
    return float(slowest[0]), float(slowest[1])


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some repeats, after one that warms up."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _write(
    name: str,
    nodes: int,
    parts: int,
    inside: dict[str, Link],
    between: dict[str, Link],
    copy: float,
    reduction: float,
    device: Device | None,
    transports: dict[str, LibraryLevel],
) -> str:
    wire = max((link.bandwidth for link in inside.values()), default=0.0) / GIGA
    both = max((link.duplex for link in inside.values()), default=0.0) / GIGA
    lines = [
        f"# Measured by `jali machine measure` on {nodes} host{'s' if nodes > 1 else ''} with {parts} ranks each.",
        f'name = "{name}"',
        f"nodes = {nodes}",
    ]
    if between:
        network = max(link.bandwidth for link in between.values()) / GIGA
        duplex = max(link.duplex for link in between.values()) / GIGA
        lines += [
            "",
            "[network]",
            "nics = 1",
            f"rated = {network:.4g} # GB/s, one direction: the best that two ranks reached",
            f"bandwidth = {network:.4g}",
            f"duplex = {max(duplex, network):.4g}",
            "latency = 0.0 # contained in the libraries'",
        ]
    if parts > 1:
        lines += ["", "[[level]]", 'name = "core"', f"parts = {parts}", 'wiring = "ports"']
        lines += [f"bandwidth = {wire:.4g} # GB/s", f"duplex = {max(both, wire):.4g}"]
    lines += [
        "",
        "[compute]",
        f"copy = {copy / GIGA:.4g} # GB/s, read and written, all ranks of a host at once",
    ]
    lines += [f"reduction = {reduction / GIGA:.4g}"]
    for library in dict.fromkeys([*inside, *between]):
        at = {"core": inside.get(library), "node": between.get(library)}
        for level, link in at.items():
            if link is None or (level == "core" and parts == 1):
                continue
            lines += ["", f"[library.{library}.{level}]", f"latency = {link.latency / MICRO:.4g} # us"]
            lines += [f"gap = {link.gap / MICRO:.4g}", f"bandwidth = {link.bandwidth / GIGA:.4g} # GB/s"]
            lines += [f"duplex = {link.duplex / GIGA:.4g}"]
    if device is not None:
        lines += [*_device_lines(device), *_transport_lines(transports, between)]
    return "\n".join(lines) + "\n"


def _device_lines(device: Device) -> list[str]:
    lines = ["", "[device]", f'kind = "{device.kind}"']
    lines += [f"memory = {device.memory:.4g} # GB/s, read and written, all ranks of a host at once"]
    lines += [f"cache = {device.cache:.4g}", f"cache_size = {device.cache_size:.4g} # MB of this rank"]
    lines += [f"float64 = {device.float64:.4g} # GFLOP/s", f"float32 = {device.float32:.4g}"]
    return [*lines, f"launch = {device.launch:.4g} # us"]


def _transport_lines(near: dict[str, LibraryLevel], between: dict[str, Link]) -> list[str]:
    """Within a host as halos were measured, packing to unpacking; between hosts as messages of the first library there."""
    lines = []
    for transport, at in near.items():
        lines += [
            "",
            f"[transport.{transport}.core]",
            f"latency = {at.latency:.4g} # us, of all halos of a rank",
        ]
        lines += [f"bandwidth = {at.bandwidth:.4g} # GB/s that a rank sends, packing and unpacking included"]
        for far in list(between.values())[:1]:
            lines += [f"[transport.{transport}.node]", f"latency = {far.latency / MICRO:.4g}"]
            lines += [f"bandwidth = {far.bandwidth / GIGA:.4g}", f"duplex = {far.duplex / GIGA:.4g}"]
    return lines
