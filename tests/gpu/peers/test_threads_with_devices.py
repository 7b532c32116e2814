"""Several threads of a rank with arrays on its device: they take turns to start what ranks do together, and do all else at once."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ccl_ranks import FAKE
from fake_driver import run_on_devices, until_idle
from programs import run_program

from jali import comm
from jali.comm import DeviceArray
from jali.devices import open_device
from jali.errors import DeviceError, RankError

pytestmark = FAKE

# Programs of MPI ranks run this text as well.
WORK = """
import sys, threading
import numpy as np
from jali import comm, planner
from jali.comm import DeviceArray
from jali.devices import open_device
from test_foreign_arrays import Foreign


class Turns:
    '''Threads of a rank come by one after the other, in the same order on all ranks, until one has failed.'''

    def __init__(self, threads):
        self.threads, self.next, self.failed, self.changed = threads, 0, False, threading.Condition()

    def take(self, thread, work):
        with self.changed:
            self.changed.wait_for(lambda: self.failed or self.next == thread)
            assert not self.failed, "another thread has failed"
            result = work()
            self.next = (thread + 1) % self.threads
            self.changed.notify_all()
            return result

    def fail(self):
        with self.changed:
            self.failed = True
            self.changed.notify_all()


class Thread:
    '''What a thread has, made before it begins.'''

    def __init__(self, world, gpu, number, driver):
        self.c, self.gpu, self.number = world.duplicate(), gpu, number
        c, ranks = self.c, world.size
        self.plan = planner.Composition.standard("all_reduce", ranks=ranks, count=12 * ranks, dtype="float32").plan().on(c)
        self.x = DeviceArray.from_host(np.full(500, c.rank + 100 * number, np.float32), gpu)
        self.y = DeviceArray.from_host(np.zeros(500, np.float32), gpu)
        self.ends = [
            c.persistent_send(self.x, (c.rank + 1) % ranks, number),
            c.persistent_receive(self.y, (c.rank - 1) % ranks, number),
        ]
        c.collectives.on_device(gpu)
        self.user = Foreign(driver, gpu)

    def work(self, turns, rounds, errors):
        try:
            for n in range(rounds):
                self.round(lambda call: turns.take(self.number, call), n)
        except BaseException as error:
            errors.append(f"thread {self.number}: {type(error).__name__}: {error}")
            turns.fail()

    def round(self, take, n):
        c, gpu, k = self.c, self.gpu, self.number
        ranks, rank = c.size, c.rank
        count = 1 + (n * 977 + k * 131) % 3000
        x = DeviceArray.from_host(np.full(count, rank + k + n, np.float32), gpu)
        total = take(lambda: c.all_reduce(x))
        assert (total.to_host() == sum(r + k + n for r in range(ranks))).all(), ("sum", k, n)
        theirs = self.user.array(np.full(count, rank + 2 * k + n, np.float32))
        out = self.user.array(np.zeros(count, np.float32))
        take(lambda: c.all_reduce(theirs, out, stream=self.user.stream))
        assert (self.user.take(out) == sum(r + 2 * k + n for r in range(ranks))).all(), ("sum of theirs", k, n)
        a = DeviceArray.from_host(np.arange(12 * ranks, dtype=np.float32) + k + rank + n, gpu)
        b = DeviceArray.empty(gpu, a.shape, np.float32)
        take(lambda: self.plan.run(a, b))
        assert (b.to_host() == sum(np.arange(12 * ranks) + k + r + n for r in range(ranks))).all(), ("plan", k, n)
        gpu.fill(self.y.memory, 0)
        take(lambda: c.start(self.ends))
        assert (self.y.to_host() == (rank - 1) % ranks + 100 * k).all(), ("message", k, n)
        rows = take(lambda: c.all_gather(a, algorithm="ring" if n % 2 else None)).to_host().reshape(ranks, -1)
        assert (rows[:, 0] == np.arange(ranks) + k + n).all(), ("rows", k, n)


def in_threads(driver, count, rounds):
    world = comm.current()
    gpu = open_device("cuda", world)
    threads, turns, errors = [Thread(world, gpu, k, driver) for k in range(count)], Turns(count), []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    running = [threading.Thread(target=each.work, args=(turns, rounds, errors)) for each in threads]
    for thread in running: thread.start()
    for thread in running: thread.join()
    sys.setswitchinterval(interval)
    assert not errors, errors
"""


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_threads_of_virtual_ranks_that_take_turns_get_what_is_right(fake_driver: Path, ranks: int) -> None:
    scope: dict[str, Any] = {}
    exec(WORK, scope)
    comm.virtual_ranks(ranks, scope["in_threads"], fake_driver, 3, 12)


@pytest.mark.full
@pytest.mark.mpi
def test_threads_of_mpi_ranks_that_take_turns_get_what_is_right(
    fake_environment: dict[str, str], fake_driver: Path
) -> None:
    text = WORK + f"in_threads({str(fake_driver)!r}, 3, 12)\nprint('through', flush=True)\n"
    environment = {**fake_environment, "MPI4PY_RC_THREAD_LEVEL": "multiple"}
    assert run_on_devices(2, text, environment).stdout.count("through") == 2


@pytest.mark.mpi
def test_another_thread_than_that_of_mpi_is_refused_what_takes_mpi_before_anything_begins(
    fake_environment: dict[str, str],
) -> None:
    ended = run_on_devices(
        2,
        """
import threading
import numpy as np
from jali import comm, planner
from jali.comm import DeviceArray
from jali.devices import open_device
from jali.errors import RankError

world = comm.current()
gpu = open_device("cuda", world)
other = 1 - world.rank
x, y = (DeviceArray.from_host(np.full(30, world.rank + 1.0), gpu) for _ in range(2))
plan = planner.Composition.standard("all_reduce", ranks=2, count=30, dtype="float64").plan().on(world)
staged = [world.persistent_send(x, other, 1, transport="host-staged"), world.persistent_receive(y, other, 1)]
world.all_reduce(x, y)
plan.run(x, y)
world.start(staged)
new = world.duplicate()
said = []
def others():
    for name, call in (
        ("new", lambda: new.all_reduce(x)),
        ("host-staged", lambda: world.all_reduce(x, algorithm="host-staged")),
        ("function", lambda: world.all_reduce(x, op=lambda a, b: a + b)),
        ("checked", lambda: world.all_reduce(x, checked=True)),
        ("plan", lambda: plan.check(x, y)),
        ("end", lambda: world.persistent_send(x, other, 2)),
        ("messages", lambda: new.device_messages(gpu)),
        ("start", lambda: world.start(staged)),
        ("in memory of the host", lambda: world.all_reduce(np.ones(3))),
        # what goes from device to device takes no MPI
        ("collective", lambda: world.all_reduce(x, algorithm="ring")),
        ("run", lambda: plan.run(x, y)),
        ("read", lambda: y.to_host()),
    ):
        try:
            call()
            said.append((name, "taken"))
        except RankError as error:
            if "MPI was started for one thread" not in str(error): said.append((name, str(error)))
        except BaseException as error:
            said.append((name, repr(error)))
thread = threading.Thread(target=others)
thread.start()
thread.join()
assert said == [(name, "taken") for name in ("collective", "run", "read")], said
world.barrier()
assert world.all_reduce(x).to_host().tolist() == [3.0] * 30
assert new.all_reduce(x).to_host().tolist() == [3.0] * 30
world.start(staged)
assert y.to_host().tolist() == [other + 1.0] * 30
print("through", flush=True)
""",
        fake_environment,
        unproved="a thread that is refused proves nothing",
    )
    assert ended.stdout.count("through") == 2


@pytest.mark.full
@pytest.mark.mpi
def test_another_thread_than_that_of_mpi_may_wait_for_the_device(fake_environment: dict[str, str]) -> None:
    ended = run_on_devices(
        2,
        """
import threading, time
import numpy as np
from jali import comm
from jali.comm import DeviceArray
from jali.devices import open_device

world = comm.current()
gpu = open_device("cuda", world)
x, y = (DeviceArray.from_host(np.full(30, world.rank + 1.0), gpu) for _ in range(2))
world.all_reduce(x, y)
gpu.synchronize()
if world.rank == 1: time.sleep(2)  # longer than a device that nobody can hear is given to end
world.all_reduce(x, y)
said = []
thread = threading.Thread(target=lambda: said.append(y.to_host().tolist()))
thread.start()
thread.join()
assert said == [[3.0] * 30], said
assert world.all_reduce(y).to_host().tolist() == [6.0] * 30
print("through", flush=True)
""",
        fake_environment,
    )
    assert ended.stdout.count("through") == 2


@pytest.mark.unproved("what hangs is not in order")
def test_threads_in_other_orders_on_other_ranks_hear_of_the_watchdog(use_settings: Any) -> None:
    use_settings(watchdog=2.0, wait_warning=1.0)

    def run() -> list[str]:
        world = comm.current()
        gpu = open_device("cuda", world)
        groups = [world.duplicate() for _ in range(2)]
        x = DeviceArray.from_host(np.ones(3000, np.float32), gpu)
        for group in groups:
            group.all_reduce(x)
        gpu.synchronize()
        said = []

        def work(group: comm.Communicator) -> None:
            try:
                group.all_reduce(x).to_host()
                said.append("nothing")
            except (RankError, DeviceError) as error:
                said.append(str(error))

        threads = [threading.Thread(target=work, args=(group,)) for group in groups[:: 1 - 2 * world.rank]]
        for thread in threads:
            thread.start()
            time.sleep(0.3)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return said

    try:
        for said in comm.virtual_ranks(2, run):
            assert len(said) == 2
            assert all("JALI_WATCHDOG" in text for text in said), said
    finally:
        until_idle()


@pytest.mark.parametrize(("library", "status"), [("CDLL", 0), ("PyDLL", -6)])
def test_the_fake_driver_ends_who_keeps_the_interpreter_while_it_may_wait(library, status, fake_environment):
    program = f"import ctypes, os; print(ctypes.{library}(os.environ['JALI_CUDA_DRIVER']).cuCtxSynchronize(), flush=True)"
    done = run_program([sys.executable, "-c", program], status=status, env=fake_environment)
    assert ("cuCtxSynchronize with Python's interpreter held" in done.stderr) == (status != 0)
