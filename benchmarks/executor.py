"""Claims: the executor spends under 1 us on a ready step that does nothing; a plan of 8,000 steps per rank is checked in under 1 s.

Zero-byte copies (they touch no memory) in a chain and in a fan, zero-byte messages from a rank to itself, and steps of all ranks
in one thread (`VirtualRanks`).
"""

import numpy as np

from jali.bench.timing import Result, arguments, pin, show, time_call


def chain(steps: int):
    from jali._core import Schedule

    s = Schedule()
    s.add_buffer("a", 8, True)
    last: list[tuple[int, int]] = []
    for k in range(steps):
        last = [(s.add_copy(f"copy {k}", (0, 0, 0), (0, 0, 0), 0, needs=last), 0)]
    return s


def fan(steps: int):
    from jali._core import Schedule

    s = Schedule()
    s.add_buffer("a", 8, True)
    first = s.add_copy("first", (0, 0, 0), (0, 0, 0), 0)
    middle = [
        (s.add_copy(f"copy {k}", (0, 0, 0), (0, 0, 0), 0, needs=[(first, 0)]), 0) for k in range(steps - 2)
    ]
    s.add_copy("last", (0, 0, 0), (0, 0, 0), 0, needs=middle)
    return s


def messages(steps: int):
    from jali._core import Schedule

    s = Schedule()
    s.add_buffer("a", 8, True)
    last: list[tuple[int, int]] = []
    for k in range(steps // 2):
        received = s.add_receive(f"receive {k}", (0, 0, 0), 0, k % 1000, last)
        s.add_send(f"send {k}", (0, 0, 0), 0, k % 1000, last)
        last = [(received, 0)]
    return s


def scratch_reuse(steps: int):
    """Receive, reduce, send on through 16 slots of scratch, as a deep pipeline does."""
    from jali._core import Schedule

    s = Schedule()
    data, scratch = s.add_buffer("data", 64 * steps, True), s.add_buffer("scratch", 16 * 64)
    free: list[list[tuple[int, int]]] = [[] for _ in range(16)]
    for k in range(steps // 3):
        slot, own = (scratch, 64 * (k % 16), 64), (data, 64 * k, 64)
        received = s.add_receive(f"receive {k}", slot, 1, k % 30000, free[k % 16])
        combined = s.add_reduce(f"reduce {k}", [own, slot], slot, "fp64", needs=[(received, 0)])
        free[k % 16] = [(s.add_send(f"send {k}", slot, 2, k % 30000, [(combined, 0)]), 0)]
    return s


def main() -> None:
    options = arguments(__doc__)
    pin()
    from jali import _core

    steps = 8000
    alone = _core.make_self_communicator()
    data = [np.zeros(8, np.uint8)]
    cases = []
    for name, make in (("chain", chain), ("fan", fan), ("messages to itself", messages)):
        executor = _core.Executor(make(steps))

        def run(executor=executor) -> None:
            executor.start(data, [alone])
            executor.wait()

        cases.append(
            Result(f"{name} of {steps} empty steps, per step", *time_call(run, 1, scale=1e9 / steps), "ns")
        )
    world = _core.VirtualRanks([chain(steps // 8) for _ in range(8)])
    call = time_call(lambda: world.run([data] * 8), 1, scale=1e9 / steps)
    cases.append(Result("8 virtual ranks in random order, per step", *call, "ns"))
    reuse = scratch_reuse(steps)
    cases.append(Result(f"check of {steps} steps", *time_call(reuse.check, 1, scale=1e3), "ms"))
    show(cases, options)


if __name__ == "__main__":
    main()
