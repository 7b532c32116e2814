"""Collectives of every algorithm and transport, on streams and in graphs, of all sizes, in random orders within one program.

`python collectives_in_any_order.py TURNS SEED BYTES...` on ranks with a device each, or `any_order` in a test. Earlier graphs stay, and run
again between others. Each result is compared. What is not possible on this machine is passed over, by all ranks alike.
"""

from __future__ import annotations

import random
import sys
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from jali.bench.cases import COLLECTIVES
from jali.bench.collective_algorithms import DEVICE_TRANSPORTS, in_force, ranks_per_host, specs_of
from jali.bench.collectives import JaliSide
from jali.bench.device_collectives import ORDERS, DeviceCase, batch_of
from jali.comm import CclCommunicator, current
from jali.devices import open_device
from jali.errors import DeviceError, ParameterError, RankError, RecordingError
from jali.lattice import Lattice

EARLIER = 4  # graphs that stay


def any_order(turns: int, seed: int, sizes: Sequence[int], kind: str = "cuda") -> Counter[str]:
    """How often each way ran, by its name and whether it was on a stream or in a graph. Collective."""
    world, rng = current(), random.Random(seed)
    gpu = open_device(kind, world)
    lattice = Lattice(2, 2 * world.size, device=kind, grid=(1, world.size))
    control, by_transport, ran = world.duplicate(), {}, Counter[str]()
    hosts = list(ranks_per_host(world))
    graphs: deque[tuple[str, DeviceCase, Any]] = deque(maxlen=EARLIER)

    def agree(problem: str) -> str:
        return next((text.decode() for text in control.gather_bytes(problem.encode()) if text), "")

    def check(what: str, case: DeviceCase, run: Any) -> None:
        case.poison()
        gpu.synchronize()
        control.barrier()
        run()
        gpu.synchronize()
        if problem := agree(case.wrong()):
            raise RankError(f"{what}: {problem}")

    try:
        windows = CclCommunicator(world.duplicate(), gpu)
        reason = windows.why_not_symmetric()
    except DeviceError as error:
        reason = str(error)
    has_windows = not agree(reason or "")
    for _ in range(turns):
        collective, size, order = rng.choice(COLLECTIVES), rng.choice(sizes), rng.choice(ORDERS)
        spec = rng.choice(specs_of(collective, kind, hosts))
        symmetric = has_windows and rng.random() < 0.25  # of these, memory goes and comes back as any other
        transports = f"{spec.transport} {spec.between}".strip()
        if transports not in by_transport:
            by_transport[transports] = world.duplicate()
        ranks = by_transport[transports]
        what = f"{collective} of {size} bytes ({spec}), {order}{', symmetric' if symmetric else ''}"
        case = DeviceCase(
            collective, size, world.rank, world.size, gpu, windows=windows if symmetric else None
        )
        transport = None if spec.between else spec.transport or DEVICE_TRANSPORTS[0]
        name, reason = str(spec) if spec.between else spec.name, ""
        with in_force(control, collective_rules=None, collective=None, device_transport=transport):
            call = JaliSide(ranks, "", {collective: name}).prepare(case)
            try:
                call()
                run = batch_of(lattice, call, 1 + rng.randrange(3), order)
            except (DeviceError, ParameterError, RecordingError, MemoryError) as error:
                reason = str(error) or type(error).__name__
            if agree(reason):
                continue
            check(what, case, run)
        ran[f"{spec}, {order}"] += 1
        if order == "graph":
            graphs.append((what, case, run))
        if graphs and rng.random() < 0.5:
            check(*rng.choice(list(graphs)))
    return ran


if __name__ == "__main__":
    turns, seed, *sizes = map(int, sys.argv[1:])
    ran = any_order(turns, seed, sizes)
    if current().rank == 0:
        print(f"{ran.total()} of {turns} collectives ran, {len(ran)} ways:", *sorted(ran), sep="\n  ")
