"""core/schedule/executor: dataflow execution, several schedules in flight, errors, timeouts."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from programs import TIMEOUT

from jali import _core
from jali._core import Executor, Schedule
from jali.errors import RankError


def exchange(rank, count, tag=0, library=0):
    """Each of two ranks sends its vector to the other, which adds it to its own."""
    s = Schedule()
    data = s.add_buffer("data", 8 * count, True)
    other, total = s.add_buffer("other", 8 * count), s.add_buffer("total", 8 * count)
    received = s.add_receive("receive", (other, 0, 8 * count), 1 - rank, tag, library=library)
    s.add_send("send", (data, 0, 8 * count), 1 - rank, tag, library=library)
    s.add_reduce(
        "add",
        [(data, 0, 8 * count), (other, 0, 8 * count)],
        (total, 0, 8 * count),
        "fp64",
        "sum",
        [(received, 0)],
    )
    s.check()
    return s


def arrays(rank, count, factor=1.0):
    return [factor * (rank + 1) * np.arange(count), np.zeros(count), np.zeros(count)]


@pytest.mark.parametrize("count", [0, 1, 1021, 200_000])
def test_an_executor_runs_again_on_other_arrays(on_ranks, count):
    def body(communicator):
        executor = Executor(exchange(communicator.rank, count))
        for factor in (1.0, 2.0, 3.0):
            data = arrays(communicator.rank, count, factor)
            executor.start(data, [communicator])
            executor.wait()
            assert not executor.running
            assert np.array_equal(data[2], 3 * factor * np.arange(count))

    on_ranks(2, body)


def test_a_test_loop_ends_what_was_started(on_ranks):
    def body(communicator):
        executor = Executor(exchange(communicator.rank, 5000))
        data = arrays(communicator.rank, 5000)
        executor.start(data, [communicator])
        while not executor.test():
            pass
        assert executor.test()
        assert np.array_equal(data[2], 3.0 * np.arange(5000))

    on_ranks(2, body)


def test_ranks_may_wait_for_schedules_in_different_orders(on_ranks):
    """The second hop of each schedule needs its rank to go on while that rank waits for another one."""

    def there_and_back(rank, tag, count):
        s = Schedule()
        out, back = s.add_buffer("out", 8 * count, True), s.add_buffer("back", 8 * count)
        if rank == 0:
            s.add_send("ask", (out, 0, 8 * count), 1, tag)
            s.add_receive("answer", (back, 0, 8 * count), 1, tag)
        else:
            request = s.add_receive("asked", (back, 0, 8 * count), 0, tag)
            s.add_send("answer", (back, 0, 8 * count), 0, tag, [(request, 0)])
        return s

    def body(communicator):
        count = 5000  # beyond what is put aside: no message moves by itself
        executors, data = [], []
        for k in range(3):
            executors.append(Executor(there_and_back(communicator.rank, k, count), f"plan {k}"))
            data.append([np.arange(count) + 1000.0 * k, np.zeros(count)])
            executors[k].start(data[k], [communicator])
        for k in (0, 1, 2) if communicator.rank == 0 else (2, 1, 0):
            executors[k].wait()
        for k in range(3):
            assert np.array_equal(data[k][1], np.arange(count) + 1000.0 * k)

    on_ranks(2, body)


def test_first_tag_keeps_two_runs_of_one_schedule_apart(on_ranks):
    def body(communicator):
        schedule = exchange(communicator.rank, 4, tag=3)
        first, second = Executor(schedule), Executor(schedule)
        a, b = arrays(communicator.rank, 4), arrays(communicator.rank, 4, 10.0)
        runs = [(first, a, 0), (second, b, 100)]
        for executor, data, tag in runs if communicator.rank == 0 else runs[::-1]:
            executor.start(data, [communicator], tag)
        first.wait()
        second.wait()
        assert np.array_equal(a[2], 3.0 * np.arange(4))
        assert np.array_equal(b[2], 30.0 * np.arange(4))

    on_ranks(2, body)


def test_each_library_has_its_transport(on_ranks):
    groups = _core.make_thread_communicators(2)

    def body(communicator):
        rank = communicator.rank
        s = Schedule()
        s.libraries = ["slow", "fast"]
        data, got = s.add_buffer("data", 16, True), s.add_buffer("got", 16)
        for library in range(2):
            s.add_receive(f"receive {library}", (got, 8 * library, 8), 1 - rank, 0, library=library)
            s.add_send(f"send {library}", (data, 8 * library, 8), 1 - rank, 0, library=library)
        assert "by fast" in s.describe()
        executor = Executor(s)
        with pytest.raises(ValueError, match="3 transports for 2 libraries"):
            executor.start([np.zeros(2), np.zeros(2)], [communicator] * 3)
        result = np.zeros(2)
        order = [communicator, groups[rank]]
        executor.start([np.array([rank + 1.0, rank + 10.0]), result], order)
        executor.wait()
        return list(result)

    assert on_ranks(2, body) == [[2.0, 11.0], [1.0, 10.0]]


def test_messages_of_one_lane_start_in_the_order_of_the_schedule(on_ranks):
    """The second send is ready long before the first; both ends count them in the order of the schedule."""

    def body(communicator):
        s = Schedule()
        a, b = s.add_buffer("a", 16, True), s.add_buffer("b", 16)
        if communicator.rank == 0:
            slow = s.add_copy("slow", (a, 0, 8), (b, 0, 8), 8)
            s.add_send("first", (b, 0, 8), 1, 0, [(slow, 0)])
            s.add_send("second", (a, 8, 8), 1, 0)
        else:
            s.add_receive("first", (b, 0, 8), 0, 0)
            s.add_receive("second", (b, 8, 8), 0, 0)
        s.check()
        data = [np.array([1.0, 2.0]), np.zeros(2)]
        s.run(data, communicator)
        return list(data[1])

    assert on_ranks(2, body)[1] == [1.0, 2.0]


def test_a_kernel_in_progress_starts_messages_that_become_ready(on_ranks):
    """Rank 1 forwards what it gets while its kernel runs; the kernel ends only when the answer has been seen."""
    answered = threading.Event()

    def body(communicator):
        s = Schedule()
        a, b = s.add_buffer("a", 8, True), s.add_buffer("b", 8)
        if communicator.rank == 0:
            s.add_send("ask", (a, 0, 8), 1, 0)
            back = s.add_receive("answer", (b, 0, 8), 1, 0)
            s.add_kernel("see", lambda part: answered.set(), [[]], [[]], [[(back, 0)]])
        else:
            request = s.add_receive("asked", (b, 0, 8), 0, 0)
            s.add_send("answer", (b, 0, 8), 0, 0, [(request, 0)])

            def work(part, progress):
                limit = time.monotonic() + TIMEOUT
                while not answered.is_set() and time.monotonic() < limit:
                    progress()
                    time.sleep(1e-4)

            s.add_kernel("work", work, [[]], [[]], [[]], progress=True)
        data = [np.array([7.0]), np.zeros(1)]
        s.run(data, communicator)
        assert answered.is_set()
        return data[1][0]

    assert on_ranks(2, body) == [7.0, 7.0]


def test_starting_a_running_schedule_is_refused(on_ranks):
    gate = threading.Event()

    def body(communicator):
        executor = Executor(exchange(communicator.rank, 4), "the plan")
        data = arrays(communicator.rank, 4)
        if communicator.rank == 1:
            gate.wait(20)
        executor.start(data, [communicator])
        if communicator.rank == 0:
            with pytest.raises(RuntimeError, match="the plan is still running"):
                executor.start(data, [communicator])
            gate.set()
        executor.wait()
        assert np.array_equal(data[2], 3.0 * np.arange(4))

    on_ranks(2, body)


def test_the_watchdog_names_step_plan_peer_and_transport(use_settings, on_ranks):
    use_settings(watchdog="0.3")
    release = threading.Event()

    def body(communicator):
        if communicator.rank == 1:
            release.wait(TIMEOUT)
            return ""
        executor = Executor(exchange(0, 4, tag=9), "the sum")
        try:
            executor.start(arrays(0, 4), [communicator])
            with pytest.raises(RankError) as caught:
                executor.wait()
        finally:
            release.set()
        return str(caught.value)

    text = on_ranks(2, body)[0]
    assert text.startswith(
        "rank 0 waited for step 'receive' of the sum (message from rank 1, tag 9, 32 bytes) (transport thread)"
    )
    assert "nothing has moved for 0.3 s" in text


@pytest.mark.parametrize("waiting", ["wait", "test"])
def test_a_rank_that_has_left_is_not_waited_for(on_ranks, waiting):
    def body(communicator):
        if communicator.rank == 1:
            communicator.leave()
            return ""
        executor = Executor(exchange(0, 4))
        executor.start(arrays(0, 4), [communicator])
        with pytest.raises(RankError, match="rank 1 failed: its program ended while rank 0 waited for step"):
            if waiting == "wait":
                executor.wait()
            while not executor.test():
                pass
        assert not executor.running
        return "reported"

    assert on_ranks(2, body)[0] == "reported"


@pytest.mark.parametrize("waiting", ["wait", "test"])
def test_a_failure_elsewhere_is_received(on_ranks, waiting):
    def body(communicator):
        if communicator.rank == 1:
            communicator.fail("smoke")
            return ""
        executor = Executor(exchange(0, 4))
        with pytest.raises(RankError, match="rank 1 failed: smoke"):
            executor.start(arrays(0, 4), [communicator])
            if waiting == "wait":
                executor.wait()
            while not executor.test():
                pass
        return "reported"

    assert on_ranks(2, body)[0] == "reported"


def test_an_executor_works_again_after_an_error(on_ranks):
    def body(communicator):
        calls = []

        def work(part):
            calls.append(part)
            if len(calls) == 1:
                raise KeyError("once")

        s = Schedule()
        s.add_kernel("kernel", work, [[]], [[]], [[]])
        executor = Executor(s)
        executor.start([], [communicator])
        with pytest.raises(KeyError):
            executor.wait()
        executor.wait()  # nothing is running
        executor.start([], [_core.make_self_communicator()])
        executor.wait()
        return len(calls)

    assert on_ranks(1, body) == [2]


def test_the_only_rank_does_not_wait_for_itself():
    s = Schedule()
    s.add_receive("receive", (s.add_buffer("a", 8), 0, 8), 0, 0)
    with pytest.raises(RankError, match="the only rank waits for itself: .*'receive'"):
        s.run([np.zeros(1)], _core.make_self_communicator())


def test_eight_ranks_on_fewer_cores_all_make_progress(on_ranks):
    """Rings of many small messages; ranks that hogged their cores while waiting would take far longer than this test may."""
    ranks, rounds = 8, 50

    def body(communicator):
        rank = communicator.rank
        s = Schedule()
        token = s.add_buffer("token", 8 * (rounds + 1), True)
        need: list[tuple[int, int]] = []
        for k in range(rounds):
            if rank == 0:
                s.add_send(f"send {k}", (token, 8 * k, 8), 1, 0, need)
                need = [(s.add_receive(f"receive {k}", (token, 8 * (k + 1), 8), ranks - 1, 0), 0)]
            else:
                got = s.add_receive(f"receive {k}", (token, 8 * k, 8), rank - 1, 0)
                s.add_send(f"send {k}", (token, 8 * k, 8), (rank + 1) % ranks, 0, [(got, 0)])
        data = np.zeros(rounds + 1)
        data[0] = 5.0 if rank == 0 else 0.0
        executor = Executor(s)
        executor.start([data], [communicator])
        executor.wait()
        return data[rounds if rank == 0 else rounds - 1]

    assert on_ranks(ranks, body) == [5.0] * ranks


def test_long_plans_are_checked_and_run():
    steps = 6000
    s = Schedule()
    data, scratch = s.add_buffer("data", 8 * steps, True), s.add_buffer("scratch", 64)
    free: list[list[tuple[int, int]]] = [[] for _ in range(8)]
    for k in range(steps // 3):
        slot = (scratch, 8 * (k % 8), 8)
        got = s.add_receive(f"receive {k}", slot, 0, k, free[k % 8])
        s.add_send(f"send {k}", (data, 8 * k, 8), 0, k, free[k % 8])
        free[k % 8] = [(s.add_copy(f"keep {k}", slot, (data, 8 * (2000 + k), 8), 8, needs=[(got, 0)]), 0)]
    s.check()
    values = np.arange(float(steps))
    s.run([values, np.zeros(8)], _core.make_self_communicator())
    assert np.array_equal(values[2000:4000], np.arange(2000.0))
