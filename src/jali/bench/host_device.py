"""The computing speed of a rank of this host, and the transport of its halos, measured by all ranks at once, in the
form of machine files.

Halos are measured as they are, from packing to unpacking, at two sizes: what remains at none is the latency.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import jali
from jali import _core
from jali.bench import halo
from jali.comm import Communicator
from jali.lattice.lattice import Lattice
from jali.lattice.prefetch import cache_share
from jali.planner.machine import GIGA, MICRO, Device, LibraryLevel
from jali.profile import host_roofs

MEGA = 1e6
MEMORY = 96  # MiB that are copied
TRIES, CALLS = 7, 200
HALOS = (4, 12)  # sites in each direction of the boxes whose halos are measured


@jali.site_function
def nothing_much(X: Any, x: Any) -> None:
    """The least that a kernel does."""
    x[X] = 0.0


def host_device(ranks: Communicator) -> Device:
    """Memory, caches and arithmetic of the slowest rank, all working at once with their threads: the best of a few
    tries, as of links. Collective. Raises CompileError without a compiler.
    """
    threads = ranks.threads
    rates: list[Callable[[], float]] = [
        lambda: host_roofs.copy_rate(megabytes=MEMORY, repeats=1, threads=threads),
        lambda: host_roofs.cache_rate(repeats=1, threads=threads),
        lambda: host_roofs.arithmetic_rate("float64", repeats=1, threads=threads),
        lambda: host_roofs.arithmetic_rate("float32", repeats=1, threads=threads),
        _calls_per_second(),
    ]
    mine = []
    for rate in rates:
        ranks.barrier()
        mine.append(max(rate() for _ in range(TRIES)))
    gathered = [np.frombuffer(one) for one in ranks.gather_bytes(np.array(mine).tobytes())]
    memory, cache, float64, float32, calls = map(float, np.min(gathered, axis=0))
    return Device(
        kind="cpu",
        memory=memory / GIGA,
        cache=cache / GIGA,
        cache_size=cache_share(threads, ranks.size) / MEGA,
        float64=float64 / GIGA,
        float32=float32 / GIGA,
        launch=1 / calls / MICRO,
    )


def _calls_per_second() -> Callable[[], float]:
    """How often a kernel is called that does as good as nothing."""
    lattice = Lattice(2, 2, communicator=Communicator(_core.make_self_communicator(), 1), device="cpu")
    call = nothing_much.bind(lattice.field(jali.Real()))

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(CALLS):
            call()
        return CALLS / (time.perf_counter() - start)

    return measure


def host_transports(ranks: Communicator) -> dict[str, LibraryLevel]:
    """Latency and bandwidth of halos between ranks of a host, by transport; none where ranks are on several hosts.
    Collective."""
    if len(ranks.collectives.hosts) > 1:
        return {}
    policies = {
        transport: name for name, _, _, transport, overlap, *_ in _core.halo_policies("cpu") if not overlap
    }
    found: dict[str, list[tuple[int, float]]] = {transport: [] for transport in policies}
    for size in HALOS:
        case = halo.make_case("staple", [size] * 4, (1, 1, 1, ranks.size), "cpu")
        report = halo.measure(
            case, tuple(policies.values()), rounds=100, seconds=5e-4, parts=(), graphs=False
        )
        for transport, policy in policies.items():
            measurement = report.measurement(policy)
            if measurement is not None:
                found[transport].append((measurement.sent, min(measurement.times["exchange"].seconds)))
    transports = {}
    for transport, measured in found.items():
        if not measured:
            continue
        (few, short), (many, long) = measured
        rate = (many - few) / max(long - short, 1e-9)
        latency = max(0.0, short - few / rate)
        transports[transport] = LibraryLevel(latency=latency / MICRO, bandwidth=rate / GIGA)
    return transports
