"""Virtual ranks: messages, collectives, and what happens when one of them fails, ends early or hangs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from programs import TIMEOUT

from jali import comm
from jali.errors import ParameterError, RankError

RANKS = [1, 2, 3, 5, 7]


def content(seed: int, sender: int, receiver: int, tag: int, number: int, size: int) -> np.ndarray:
    """What message `number` between two ranks says: different for every one of them."""
    words = [seed, sender, receiver, tag, number]
    return np.random.default_rng(words).integers(0, 256, size, dtype=np.uint8)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("seed", [1, 2])
def test_random_messages_arrive_whole_and_in_order_per_sender_and_tag(ranks: int, seed: int) -> None:
    # Every rank draws the same plan; each posts its own sends and receives in its own random order, but keeps
    # the order within one (sender, receiver, tag).
    plan = []
    rng = np.random.default_rng(seed)
    for number in range(60 * ranks):
        sender, receiver = rng.integers(0, ranks, 2)
        size = int(rng.choice([0, 1, 24, 4096, 8192, 8193, 60_000]))
        plan.append((int(sender), int(receiver), int(rng.integers(0, 3)), number, size))

    def exchange() -> int:
        world = comm.current()
        mine = np.random.default_rng([seed, world.rank])
        queues: dict[tuple, list] = {}
        for sender, receiver, tag, number, size in plan:
            if sender == world.rank:
                queues.setdefault(("send", receiver, tag), []).append((number, size))
            if receiver == world.rank:
                queues.setdefault(("receive", sender, tag), []).append((number, size))
        pending, expected = [], []
        while queues:
            key = list(queues)[mine.integers(len(queues))]
            kind, peer, tag = key
            number, size = queues[key].pop(0)
            if not queues[key]:
                del queues[key]
            if kind == "send":
                data = content(seed, world.rank, peer, tag, number, size)
                pending.append(world.send(data, peer, tag))
            else:
                data = np.full(size, 0xEE, dtype=np.uint8)
                pending.append(world.receive(data, peer, tag))
                expected.append((data, content(seed, peer, world.rank, tag, number, size)))
            if mine.random() < 0.2:
                world.test(pending[mine.integers(len(pending))])
        world.wait(pending, "random messages")
        for got, wanted in expected:
            np.testing.assert_array_equal(got, wanted)
        return len(expected)

    assert sum(comm.virtual_ranks(ranks, exchange)) == len(plan)


@pytest.mark.parametrize("ranks", RANKS)
def test_collectives_agree_with_numpy_on_every_rank(ranks: int) -> None:
    def run() -> None:
        world = comm.current()
        assert (world.size, world.transport) == (ranks, "thread")
        for round_number in range(50):
            values = np.arange(7, dtype=np.int64) * (world.rank + 1) ** 3 - round_number
            wanted = sum(np.arange(7) * (rank + 1) ** 3 - round_number for rank in range(ranks))
            np.testing.assert_array_equal(world.all_reduce_sum(values), wanted)
            reported = world.gather_bytes(bytes([world.rank]) * (world.rank * round_number))
            assert reported == [bytes([rank]) * (rank * round_number) for rank in range(ranks)]
            root = round_number % ranks
            assert world.broadcast_bytes(
                b"%d says %d" % (world.rank, round_number), root
            ) == b"%d says %d" % (
                root,
                round_number,
            )
            world.barrier()

    comm.virtual_ranks(ranks, run)


def test_sums_wrap_around_instead_of_losing_bits() -> None:
    def run() -> list[int]:
        return comm.current().all_reduce_sum([2**63 - 1, -(2**63)]).tolist()

    assert comm.virtual_ranks(2, run) == [[-2, 0], [-2, 0]]


def test_sum_of_floats_is_refused() -> None:
    with pytest.raises(TypeError, match="takes integers, not float64"):
        comm.current().all_reduce_sum([0.5])


def test_barrier_holds_everybody_until_the_last_has_come() -> None:
    arrived = []

    def run() -> None:
        world = comm.current()
        for _ in range(20):
            if world.rank == 2:
                time.sleep(0.002)
            arrived.append(world.rank)
            world.barrier()
            assert len(arrived) % 3 == 0
            world.barrier()

    comm.virtual_ranks(3, run)


def test_big_message_crosses_between_ranks_that_wait_for_each_other() -> None:
    def run() -> bool:
        world = comm.current()
        other = 1 - world.rank
        mine = np.full(5_000_000, world.rank + 1.5)
        theirs = np.zeros_like(mine)
        world.wait([world.send(mine, other, 7), world.receive(theirs, other, 7)])
        return bool((theirs == other + 1.5).all())

    assert comm.virtual_ranks(2, run) == [True, True]


def test_message_to_oneself_arrives() -> None:
    world = comm.current()
    for size in (10, 100_000):
        got = np.zeros(size)
        world.wait([world.send(np.arange(size) * 1.0, 0, 3), world.receive(got, 0, 3)])
        np.testing.assert_array_equal(got, np.arange(size))


def test_waiting_for_oneself_is_an_error_at_once() -> None:
    world = comm.current()
    with pytest.raises(RankError, match="the only rank waits for itself: nothing \\(message from rank 0"):
        world.wait([world.receive(np.zeros(3), 0, 1)], "nothing")


@pytest.mark.parametrize("size", [8, 100_000])
@pytest.mark.parametrize("receiver_first", [True, False])
def test_message_of_another_size_is_an_error_at_the_receiver(size: int, receiver_first: bool) -> None:
    def run() -> None:
        world = comm.current()
        world.barrier()
        if (world.rank == 0) == receiver_first:
            time.sleep(0.02)
        if world.rank == 1:
            world.wait([world.send(np.zeros(size, dtype=np.uint8), 0, 5)])
        else:
            world.wait([world.receive(np.zeros(size + 1, dtype=np.uint8), 1, 5)])

    text = f"rank 0 expected {size + 1} bytes from rank 1 with tag 5, but {size} came"
    with pytest.raises(RankError, match=text):
        comm.virtual_ranks(2, run)


@pytest.mark.parametrize(("to", "tag"), [(-1, 0), (2, 0), (0, -1)])
def test_impossible_rank_or_tag_is_refused(to: int, tag: int) -> None:
    with pytest.raises(ValueError, match=r"rank .* does not exist among 1|not in 0..2147483647"):
        comm.current().send(np.zeros(1), to, tag)


def test_a_flag_is_no_rank() -> None:
    for call in (comm.current().send, comm.current().receive):
        with pytest.raises(ParameterError, match="False"):
            call(np.zeros(1), False)


@pytest.mark.parametrize("data", [np.zeros((4, 4))[:, 1], [1.0, 2.0], 3, None, "text", np.array([None])])
def test_what_is_no_contiguous_array_is_neither_sent_nor_received(data: object) -> None:
    with pytest.raises(ParameterError, match="a message is a C-contiguous array in host memory"):
        comm.current().send(data, 0, 0)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="array in host memory that may be written"):
        comm.current().receive(data, 0, 0)  # type: ignore[arg-type]


def test_read_only_array_cannot_receive() -> None:
    target = np.zeros(4)
    target.flags.writeable = False
    with pytest.raises(ParameterError, match="that may be written"):
        comm.current().receive(target, 0, 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: w.send(np.zeros(1), "0"), "to is a whole number, not '0'"),
        (lambda w: w.receive(np.zeros(1), 0, 10**20), "tag 100000000000000000000 is beyond all"),
        (lambda w: w.split(2.0), "color is a whole number, not 2.0"),
        (lambda w: w.split(0, "x"), "key is a whole number, not 'x'"),
        (lambda w: w.test(3), "messages are what send and receive returned"),
        (lambda w: w.wait(3), "messages are what send and receive returned, not 3"),
        (lambda w: w.start(3), "messages are a list of ends"),
        (lambda w: w.check_messages([3]), "messages are a list of ends"),
        (lambda w: w.explain_messages(3), "messages are a list of ends"),
        (lambda w: w.device_messages("cuda"), "on a device, such as lattice.gpu, not 'cuda'"),
        (lambda w: w.gather_bytes("x"), "gather_bytes takes bytes, not 'x'"),
        (lambda w: w.broadcast_bytes("x", 0), "broadcast_bytes takes bytes, not 'x'"),
        (lambda w: w.broadcast_bytes(b"x", None), "root is a whole number, not None"),
        (lambda w: w.start(["y" * 100_000]), r"persistent_receive made, not \['yyyy.*\(100004 characters\)$"),
        (lambda w: w.wait(one for one in [3]), r"messages are what send and receive returned, not \[3\]"),
        (lambda w: w.wait([], what=3), "what is a text, not 3"),
        (
            lambda w: w.gather_bytes(b"x", what=np.zeros((9, 9))),
            r"what is a text, not a numpy.ndarray of shape",
        ),
        (lambda w: w.fail(None), "cause is a text, not None"),
        (lambda w: w.barrier(checked=np.zeros(3)), "checked is True or False, not a numpy.ndarray"),
        (lambda w: comm.Communicator(None, 1), "one of the core's, .*, not None"),
        (lambda w: comm.CclCommunicator(w, None), "joins a communicator and a device, .* and None"),
        (
            lambda w: comm.DeviceArray.empty("cuda", (2,), "f8"),
            "on a device, such as lattice.gpu, not 'cuda'",
        ),
        (lambda w: comm.DeviceArray.from_host([1.0], 0), "on a device, such as lattice.gpu, not 0"),
        (lambda w: comm.from_mpi4py(None), "takes a communicator of mpi4py, not None"),
        (lambda w: comm.find_launcher_environment("PMI_RANK"), "a mapping of texts, not 'PMI_RANK'"),
        (lambda w: comm.relaunch(0, ["info"]), "ranks is a number of ranks from 1, not 0"),
        (lambda w: comm.relaunch(True, ["info"]), "ranks is a whole number, not True"),
        (lambda w: comm.relaunch(1, "info"), "arguments are words of a command line, not 'info'"),
        (lambda w: comm.relaunch(1, [None]), "arguments are words of a command line, not"),
    ],
)
def test_arguments_of_another_kind_are_named(call: Any, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        call(comm.current())


def test_a_cause_in_any_characters_reaches_the_other_ranks() -> None:
    def stop_one() -> None:
        c = comm.current()
        if c.rank == 1:
            c.fail("no file \udcff")
        c.barrier()

    with pytest.raises(RankError, match=r"no file \\udcff"):
        comm.virtual_ranks(2, stop_one)


def test_ranks_and_tags_may_be_numbers_of_numpy() -> None:
    c, arrived = comm.current(), np.zeros(3)
    c.wait([c.receive(arrived, np.int64(0), np.int32(4)), c.send(np.ones(3), np.uint8(0), np.int64(4))])
    assert arrived.tolist() == [1, 1, 1]


def wait_in_message(world: comm.Communicator) -> None:
    world.wait([world.receive(np.zeros(4), (world.rank + 1) % world.size, 9)], "the halo of U")


def wait_in_big_send(world: comm.Communicator) -> None:
    world.wait([world.send(np.zeros(100_000), (world.rank + 1) % world.size, 9)], "the halo of U")


def wait_in_test_loop(world: comm.Communicator) -> None:
    message = world.receive(np.zeros(4), (world.rank + 1) % world.size, 9)
    while not world.test(message):
        pass


WAITS = {
    "message": wait_in_message,
    "big send": wait_in_big_send,
    "test": wait_in_test_loop,
    "barrier": comm.Communicator.barrier,
    "sum": lambda world: world.all_reduce_sum([1]),
    "gather": lambda world: world.gather_bytes(b"x"),
    "broadcast": lambda world: world.broadcast_bytes(b"x", 0),
}


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_failure_of_one_rank_reaches_all_others_with_the_first_cause(wait: str, ranks: int) -> None:
    received = []

    def run() -> None:
        world = comm.current()
        world.barrier()
        if world.rank == ranks - 1:
            time.sleep(0.05)
            raise ZeroDivisionError("the seventh site")
        try:
            WAITS[wait](world)
        except RankError as error:
            received.append((str(error), error.rank, error.cause))
            raise

    with pytest.raises(ZeroDivisionError, match="the seventh site"):
        comm.virtual_ranks(ranks, run)
    cause = "ZeroDivisionError: the seventh site"
    assert received == [(f"rank {ranks - 1} failed: {cause}", ranks - 1, cause)] * (ranks - 1)


def test_failed_group_refuses_every_later_call() -> None:
    def run() -> int:
        world = comm.current()
        world.barrier()
        if world.rank == 0:
            world.fail("no more paper")
            world.fail("this comes too late")
        refused = 0
        calls = [
            world.barrier,
            world.check,
            lambda: world.send(np.zeros(1), 0, 0),
            lambda: world.gather_bytes(b""),
        ]
        while not refused:
            try:
                world.check()
            except RankError:
                refused = 1
        for call in calls:
            with pytest.raises(RankError, match="rank 0 failed: no more paper"):
                call()
            refused += 1
        return refused

    assert comm.virtual_ranks(3, run) == [5, 5, 5]


def test_first_of_several_failures_is_the_one_raised() -> None:
    def run() -> None:
        world = comm.current()
        if world.rank != 2:
            with pytest.raises(RankError, match="from rank 2"):
                wait_in_message(world)
        raise ValueError(f"from rank {world.rank}")

    with pytest.raises(ValueError, match="from rank 2"):
        comm.virtual_ranks(3, run)


def test_rank_that_ended_is_not_waited_for_but_its_messages_arrive() -> None:
    got = np.zeros(3)

    def run() -> None:
        world = comm.current()
        if world.rank == 1:
            world.wait([world.send(np.array([1.0, 2.0, 3.0]), 0, 1)])
            return
        time.sleep(0.05)
        world.wait([world.receive(got, 1, 1)])
        world.wait([world.receive(np.zeros(3), 1, 1)], "another message")

    with pytest.raises(
        RankError, match="rank 1 failed: its program ended while rank 0 waited for another message"
    ):
        comm.virtual_ranks(2, run)
    assert got.tolist() == [1.0, 2.0, 3.0]


def test_rank_that_ended_is_not_waited_for_in_a_collective() -> None:
    def run() -> None:
        if comm.current().rank != 1:
            comm.current().barrier()

    with pytest.raises(
        RankError, match=r"rank 1 failed: its program ended while rank . waited for a barrier"
    ):
        comm.virtual_ranks(3, run)


def test_ranks_in_different_collectives_are_distinguished() -> None:
    def run() -> None:
        world = comm.current()
        world.barrier() if world.rank == 0 else world.gather_bytes(b"x")

    with pytest.raises(RankError, match=r"ranks disagree: rank . came to a.*, rank . to a"):
        comm.virtual_ranks(2, run)


def test_watchdog_names_step_peer_and_transport(use_settings: Callable[..., None]) -> None:
    use_settings(watchdog="0.3")
    release = threading.Event()

    def run() -> None:
        world = comm.current()
        if world.rank == 0:
            try:
                wait_in_message(world)
            finally:
                release.set()
        release.wait(TIMEOUT)

    with pytest.raises(RankError) as caught:
        comm.virtual_ranks(2, run)
    text = str(caught.value)
    assert text.startswith(
        "rank 0 waited for the halo of U (message from rank 1, tag 9, 32 bytes) (transport thread)"
    )
    assert "nothing has moved for 0.3 s" in text
    assert "JALI_WATCHDOG" in text


def test_messages_that_were_given_up_leave_their_buffers_alone() -> None:
    def run() -> None:
        world = comm.current()
        first, second = np.zeros(50_000), np.zeros(50_000)
        if world.rank == 0:
            given_up = world.receive(first, 1, 4)
            del given_up
            message = world.receive(second, 1, 4)
            world.barrier()
            world.wait([message])
            assert first.sum() == 0
            assert second.sum() == 50_000
        else:
            given_up = world.send(first, 0, 6)
            del given_up
            world.barrier()
            world.wait([world.send(np.ones(50_000), 0, 4)])

    comm.virtual_ranks(2, run)


def test_virtual_ranks_nest() -> None:
    def inner(outer: int) -> tuple[int, int, int]:
        world = comm.current()
        return outer, world.rank, int(world.all_reduce_sum([outer])[0])

    def outer() -> list[tuple[int, int, int]]:
        world = comm.current()
        result = comm.virtual_ranks(3, inner, world.rank)
        assert comm.current() is world
        world.barrier()
        return result

    assert comm.virtual_ranks(2, outer) == [
        [(0, 0, 0), (0, 1, 0), (0, 2, 0)],
        [(1, 0, 3), (1, 1, 3), (1, 2, 3)],
    ]
    assert comm.current().size == 1


def test_failure_inside_nested_ranks_keeps_its_type() -> None:
    def inner() -> None:
        if comm.current().rank == 1:
            raise LookupError("deep down")
        comm.current().barrier()

    def outer() -> None:
        if comm.current().rank == 1:
            comm.virtual_ranks(2, inner)
        comm.current().barrier()

    with pytest.raises(LookupError, match="deep down"):
        comm.virtual_ranks(2, outer)


def test_results_come_in_rank_order_with_arguments_passed_on() -> None:
    def run(base: int, *, step: int) -> int:
        return base + step * comm.current().rank

    assert comm.virtual_ranks(4, run, 10, step=3) == [10, 13, 16, 19]


def test_threads_are_shared_out_among_virtual_ranks(use_settings: Callable[..., None]) -> None:
    use_settings(threads=None)
    cores = comm.current().threads
    assert comm.virtual_ranks(2, lambda: comm.current().threads) == [max(1, cores // 2)] * 2
    use_settings(threads="3")
    assert comm.virtual_ranks(2, lambda: comm.current().threads) == [3, 3]


@pytest.mark.parametrize("ranks", [0, -1, 5000])
def test_impossible_number_of_virtual_ranks_is_refused(ranks: int) -> None:
    with pytest.raises(ParameterError, match=f"{ranks} virtual ranks: give 1 to 1024"):
        comm.virtual_ranks(ranks, comm.current)


def test_what_is_no_message_is_not_waited_for() -> None:
    with pytest.raises(ParameterError, match=r"what send and receive returned, not \[None\]"):
        comm.current().wait([None])  # type: ignore[list-item]
