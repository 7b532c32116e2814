"""Claim: a repeated collective on arrays of a device costs the host under 1 us more than its launch.

Host time only: BATCH calls are put on an idle stream, without a graph, and the clock stops before the device is waited for. Beside a
call stand the C++ part of it (the plan run on addresses, in a loop in C++) and a bare launch of a kernel that does nothing, in such a
loop as well. What remains on top of the plan is Python and bindings. Runs on one rank, or on several with `mpiexec -n 2`, whose
slowest counts; `--device cuda` is the machine's, or what JALI_CUDA_DRIVER and JALI_NVRTC name.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from jali import comm
from jali._core import CollectiveCall
from jali.bench.cases import COLLECTIVES
from jali.bench.collectives import JaliSide
from jali.bench.device_collectives import DeviceCase
from jali.codegen import kernel_cache
from jali.comm import DeviceArray
from jali.devices import open_device

BATCH = 200  # calls that certainly fit into the queue of a stream: no launch waits for the device
NOTHING = """
struct no_arguments { int64_t none; };
JALI_KERNEL(kernel, no_arguments) { (void)a; }
"""


class Lent:
    """An array as another library shows it; the stream is jali's, so that nobody waits."""

    def __init__(self, array: DeviceArray) -> None:
        self.array, self.__cuda_array_interface__ = array, array.__cuda_array_interface__


def host_time(gpu, communicator, put: Callable[[int], object], rounds: int) -> tuple[float, float]:
    """Median and lowest time of one of BATCH calls, in us; `put(n)` puts n of them on the stream."""
    times = []
    for _ in range(rounds + 2):  # the first two warm up
        gpu.synchronize()
        communicator.barrier()
        start = time.perf_counter()
        put(BATCH)
        times.append((time.perf_counter() - start) / BATCH * 1e6)
        gpu.synchronize()
    slowest = communicator.all_reduce(np.array(times[2:]), op="max")
    return float(np.median(slowest)), float(slowest.min())


def again(call: Callable[[], object]) -> Callable[[int], object]:
    def put(count: int) -> None:
        for _ in range(count):
            call()

    return put


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--bytes", type=int, default=4096, help="of the larger buffer")
    parser.add_argument("--rounds", type=int, default=51)
    options = parser.parse_args()
    world = comm.current()
    gpu = open_device(options.device, world)

    def say(name: str, put: Callable[[int], object]) -> None:
        median, least = host_time(gpu, world, put, options.rounds)
        if world.rank == 0:
            print(f"{name:44s} {median:8.3f} us  (lowest {least:.3f})", flush=True)

    if world.rank == 0:
        print(f"{gpu.name}, {world.size} ranks, {options.bytes} bytes, batches of {BATCH}")
    empty, _ = kernel_cache.load_on_device(gpu, "nothing", NOTHING, "float64", 32)
    say("bare launch", lambda n: gpu.launch(empty, 1, 32, bytes(8), n))
    case = DeviceCase("all_reduce", options.bytes, world.rank, world.size, gpu)
    call = CollectiveCall("all_reduce", "fp32", case.send.size, 0, "sum", False, None, False)
    there = world.collectives.on_device(gpu)
    plan = there.plan_of(call)
    say("all_reduce: its plan alone", lambda n: plan.run([case.send.address, case.receive.address], times=n))
    say("all_reduce(x, out) again", again(partial(world.all_reduce, case.send, case.receive)))
    say("all_reduce(x), a new result", again(partial(world.all_reduce, case.send)))
    say(
        "all_reduce(x, out), not waited for",
        again(partial(world.all_reduce, case.send, case.receive, blocking=False)),
    )
    x, out = Lent(case.send), Lent(case.receive)
    say("all_reduce(x, out) of another library", again(partial(world.all_reduce, x, out)))
    for name in COLLECTIVES:
        say(
            name, again(JaliSide(world).prepare(DeviceCase(name, options.bytes, world.rank, world.size, gpu)))
        )


if __name__ == "__main__":
    main()
