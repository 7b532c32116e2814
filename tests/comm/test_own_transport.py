"""A transport of 50 lines of Python carries halos, collectives, plans and errors: nothing else knows of it."""

from __future__ import annotations

import inspect
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from delayed_transport import Delayed, on_delayed_ranks

import jali
from jali import comm
from jali.errors import ParameterError, RankError

RANKS = [1, 2, 3, 4]


def test_a_transport_is_one_file_of_at_most_100_lines():
    assert len(Path(inspect.getfile(Delayed)).read_text().splitlines()) <= 100


@jali.site_function
def around(X, y, U, x):
    for mu in X.directions():
        y[X] += U[mu][X] * x[X + mu] - U[mu][X - mu].dagger() * x[X - mu]
    y[X] += x[X + X.directions()[0] - X.directions()[1]]


def stencil(precision: str) -> bytes:
    lattice = jali.Lattice(6, 5, 4)
    U = [lattice.field(jali.SU(3), precision=precision) for _ in range(3)]
    x, y = (lattice.field(jali.Vector(3), precision=precision) for _ in range(2))
    rng = np.random.default_rng(3)
    for field in (*U, x):
        shape = field[...].shape
        field[...] = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    for _ in range(2):
        around(y, U, x)
        around[jali.EVEN](x, U, y)
    return y[...].tobytes() + x[...].tobytes()


@pytest.mark.parametrize("policy", ["messages-overlap", "messages-wait", ""])
@pytest.mark.parametrize("ranks", RANKS)
def test_halos(ranks, policy, use_settings):
    use_settings(halo_policy=policy)
    for precision in ("float64", "float32"):
        alone = stencil(precision)
        assert on_delayed_ranks(ranks, stencil, precision) == [alone] * ranks


def called_collectives() -> None:
    world = comm.current()
    n, me = world.size, world.rank
    x = np.arange(12.0 * n) + 100 * me
    everyone = np.array([np.arange(12.0 * n) + 100 * r for r in range(n)])
    assert np.array_equal(world.all_reduce(x), everyone.sum(0))
    assert np.array_equal(world.all_gather(x), everyone.reshape(-1))
    assert np.array_equal(world.reduce_scatter(x), everyone.sum(0)[12 * me : 12 * (me + 1)])
    assert np.array_equal(world.all_to_all(x), everyone[:, 12 * me : 12 * (me + 1)].reshape(-1))
    assert np.array_equal(world.broadcast(x.copy(), root=n - 1), everyone[-1])
    long = np.full(300_000, me, np.int32)
    assert np.all(world.all_reduce(long, op="max") == n - 1)
    assert list(world.all_reduce_sum([1, me])) == [n, n * (n - 1) // 2]


@pytest.mark.parametrize("ranks", RANKS)
def test_collectives(ranks):
    on_delayed_ranks(ranks, called_collectives)


def called_in_groups() -> tuple:
    world = comm.current()
    half = world.split(world.rank % 2, key=-world.rank)
    again = half.duplicate()
    reported = np.zeros((half.size, 1), np.int64)
    # the same tag on three communicators at once
    sends = [
        c.send(np.array([k, world.rank]), (c.rank + 1) % c.size, 5)
        for k, c in enumerate((world, half, again))
    ]
    came = [np.zeros(2, np.int64) for _ in range(3)]
    receives = [
        c.receive(a, (c.rank - 1) % c.size, 5) for c, a in zip((world, half, again), came, strict=True)
    ]
    for c, pair in zip((again, half, world), list(zip(sends, receives, strict=True))[::-1], strict=True):
        c.wait(list(pair))
    half.all_gather(np.array([world.rank]), out=reported.reshape(-1))
    return [list(c) for c in came], reported.reshape(-1).tolist()


def test_groups_do_not_meet():
    found = on_delayed_ranks(5, called_in_groups)
    for rank, (came, reported) in enumerate(found):
        members = list(range(rank % 2, 5, 2))[::-1]  # ordered by key
        assert reported == members
        before = members[members.index(rank) - 1]
        assert came == [[0, (rank - 1) % 5], [1, before], [2, before]]


def test_messages_are_long_short_and_in_order():
    def talked() -> bool:
        world = comm.current()
        sizes = [0, 1, 100_000, 7, 8193]
        if world.rank == 0:
            world.wait([world.send(np.full(s, k, np.uint8), 1, 3) for k, s in enumerate(sizes)])
            return True
        came = [np.empty(s, np.uint8) for s in sizes]
        world.wait([world.receive(a, 0, 3) for a in came])
        return all((a == k).all() for k, a in enumerate(came))

    assert on_delayed_ranks(2, talked, delay=0.01) == [True, True]


def test_a_message_of_another_size_is_an_error_at_its_receiver():
    def talked() -> None:
        world = comm.current()
        if world.rank == 0:
            world.wait([world.send(np.zeros(3), 1, 0)])
        else:
            world.wait([world.receive(np.zeros(2), 0, 0)])

    with pytest.raises(RankError, match="expected 16 bytes from rank 0 with tag 0, but 24 came"):
        on_delayed_ranks(2, talked)


def test_a_failure_reaches_all_ranks():
    seen = []

    def failing() -> None:
        world = comm.current()
        try:
            part = world.split(0 if world.rank < 2 else 1)  # others may hear of it before they are through
            if world.rank == 1:
                raise ValueError("no such mass")
            part.barrier() if world.rank == 0 else world.barrier()
        except RankError as error:
            seen.append(str(error))
            raise

    with pytest.raises((ValueError, RankError), match="no such mass"):
        on_delayed_ranks(3, failing)
    assert len(seen) == 2
    assert all("rank 1 failed: ValueError: no such mass" in text for text in seen)


def test_a_rank_that_left_is_not_waited_for():
    def left() -> None:
        world = comm.current()
        if world.rank == 0:
            world.wait([world.receive(np.zeros(1), 1, 0)], "the answer")

    with pytest.raises(RankError, match="its program ended while rank 0 waited for the answer"):
        on_delayed_ranks(2, left)


def test_a_message_that_was_overtaken_by_the_notice_of_its_rank_s_end_arrives():
    def overtaken() -> float:
        world, x = comm.current(), np.zeros(1)
        if world.rank == 0:
            world.wait([world.receive(x, 1, 0)], "the answer")
        else:
            time.sleep(1.3)  # longer than what is given to late messages of ranks that have left before
            world.core.leave()
            time.sleep(0.3)
            world.wait([world.send(np.full(1, 3.0), 0, 0)])
        return x[0]

    assert on_delayed_ranks(2, overtaken) == [3.0, 0.0]


def test_the_watchdog_names_what_does_not_come(use_settings):
    use_settings(watchdog=0.5)

    def waiting() -> None:
        world = comm.current()
        if world.rank == 0:
            world.wait([world.receive(np.zeros(1), 1, 9)], "the answer")
        else:
            time.sleep(1.5)

    with pytest.raises(
        RankError, match=r"rank 0 waited for the answer \(message from rank 1, tag 9, 8 bytes\)"
    ):
        on_delayed_ranks(2, waiting)


def test_ranks_that_part_hear_of_it():
    def parting() -> None:
        world = comm.current()
        world.barrier() if world.rank == 0 else world.all_reduce_sum([1])

    with pytest.raises(RankError, match="ranks disagree"):
        on_delayed_ranks(2, parting)


def test_what_a_transport_raises_is_raised():
    class Broken(Delayed):
        def send(self, data, to, tag):
            if tag >> 16 != 0:  # failures still get through
                raise OSError("the cable is cut")
            return super().send(data, to, tag)

    boxes = {}
    caught = [None, None]

    def run(rank: int) -> None:
        try:
            with comm.over((Delayed, Broken)[rank](rank, boxes, 2, 0)) as world:
                world.barrier()
        except Exception as error:
            caught[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert isinstance(caught[1], OSError)
    assert isinstance(caught[0], RankError)
    assert "the cable is cut" in str(caught[0])


@pytest.mark.parametrize(
    ("rank", "size", "name", "wrong"),
    [
        (2, 2, "x", "rank 2 does not exist among 2 ranks"),
        (0, "2", "x", "size of Delayed is '2', not int"),
        (0, 1, None, "name of Delayed is None, not str"),
        (0, 1, "\udc80", "name of Delayed is a word, not"),
        (0, 2**70, "x", "size of Delayed 1180591620717411303424 is beyond all"),
    ],
)
def test_what_is_no_transport(rank, size, name, wrong):
    transport = Delayed(rank, {}, size, 0)
    transport.name = name
    with pytest.raises(ParameterError, match=wrong), comm.over(transport):
        pass
    with pytest.raises(ParameterError, match=r"a transport is a jali\.comm\.Transport, not 3"), comm.over(3):
        pass
    for threads, wrong in (
        (0, "threads is a number from 1, not 0"),
        ("2", "threads is a whole number, not '2'"),
    ):
        with pytest.raises(ParameterError, match=wrong), comm.over(Delayed(0, {}, 1, 0), threads):
            pass


def test_memory_of_a_message_is_taken_back():
    """A transport that looks at bytes after their message was given up gets an error of Python's."""
    held = []

    class Holding(Delayed):
        def send(self, data, to, tag):
            if tag >> 16 == 1:
                held.append(data)
            return super().send(data, to, tag)

        def sent(self, message):
            return False

    with comm.over(Holding(0, {}, 2, 0)) as world:
        message = world.send(np.arange(3), 1, 0)
        assert bytes(held[0]) == np.arange(3).tobytes()
        del message
        with pytest.raises(ValueError, match="released"):
            held[0][0]
