"""core/schedule/adversarial_scheduler: all ranks in one thread, in unkind orders."""

from __future__ import annotations

import numpy as np
import pytest

from jali._core import Schedule, VirtualRanks

ORDERS = [
    {"order": order, "starved": starved, "buffered": buffered}
    for order in ("random", "oldest", "newest")
    for starved in (-1, 0, 2)
    for buffered in (False, True)
]


def ring_all_gather(rank, ranks, count, forgetful=False):
    """Each chunk goes around the ring; `forgetful` sends a chunk on before it has come."""
    s = Schedule()
    mine = s.add_buffer("send", 8 * count, True)
    all_ = s.add_buffer("recv", 8 * count * ranks)
    chunk = [(all_, 8 * count * k, 8 * count) for k in range(ranks)]
    last = s.add_copy("own", (mine, 0, 8 * count), chunk[rank], 8 * count)
    for hop in range(1, ranks):
        s.add_send(
            f"send {hop}",
            chunk[(rank - hop + 1) % ranks],
            (rank + 1) % ranks,
            0,
            [] if forgetful and hop > 1 else [(last, 0)],
        )
        last = s.add_receive(f"receive {hop}", chunk[(rank - hop) % ranks], (rank - 1) % ranks, 0)
    return s


def memory(ranks, count):
    return [[np.arange(count) + 100.0 * (rank + 1), np.full(count * ranks, np.nan)] for rank in range(ranks)]


def gathered(ranks, count):
    return np.concatenate([np.arange(count) + 100.0 * (rank + 1) for rank in range(ranks)])


@pytest.mark.parametrize("how", ORDERS, ids=lambda how: "-".join(map(str, how.values())))
def test_a_right_plan_gives_the_same_in_any_order(how):
    ranks, count = 5, 3
    schedules = [ring_all_gather(rank, ranks, count) for rank in range(ranks)]
    for s in schedules:
        s.check()
    Schedule.check_messages(schedules)
    world = VirtualRanks(schedules)
    for seed in range(20):
        data = memory(ranks, count)
        world.run(data, seed=seed, **how)
        for rank in range(ranks):
            assert (data[rank][1] == gathered(ranks, count)).all()


def test_a_forgotten_need_is_shown_by_some_order():
    ranks, count = 4, 2
    schedules = [ring_all_gather(rank, ranks, count, forgetful=True) for rank in range(ranks)]
    with pytest.raises(RuntimeError, match="before it is written|may run in either order"):
        schedules[0].check()
    world = VirtualRanks(schedules)
    wrong = 0
    for seed in range(50):
        data = memory(ranks, count)
        world.run(data, seed=seed)
        wrong += not all(np.array_equal(data[rank][1], gathered(ranks, count)) for rank in range(ranks))
    assert wrong > 0


def test_a_seed_always_gives_the_same_order():
    def trace(seed):
        log = []
        s = Schedule()
        for k in range(20):
            s.add_kernel(str(k), lambda part, k=k: log.append(k), [[]], [[]], [[]])
        VirtualRanks([s]).run([[]], seed=seed)
        return log

    assert trace(3) == trace(3)
    assert trace(3) != trace(4)
    assert sorted(trace(3)) == list(range(20))


def test_newest_and_oldest_are_opposite_orders():
    def trace(order):
        log = []
        s = Schedule()
        for k in range(6):
            s.add_kernel(str(k), lambda part, k=k: log.append(k), [[]], [[]], [[]])
        VirtualRanks([s]).run([[]], order=order)
        return log

    assert trace("oldest") == [0, 1, 2, 3, 4, 5]
    assert trace("newest") == [5, 4, 3, 2, 1, 0]


def test_a_starved_rank_moves_only_when_no_other_can():
    log = []
    schedules = []
    for rank in range(3):
        s = Schedule()
        for k in range(3):
            s.add_kernel(str(k), lambda part, rank=rank: log.append(rank), [[]], [[]], [[]])
        schedules.append(s)
    VirtualRanks(schedules).run([[], [], []], starved=1, seed=5)
    assert log[-3:] == [1, 1, 1]


def head_to_head(rank):
    """Both ranks send before they receive: right only where sends are buffered."""
    s = Schedule()
    a, b = s.add_buffer("a", 8, True), s.add_buffer("b", 8)
    sent = s.add_send("send", (a, 0, 8), 1 - rank, 7)
    s.add_receive("receive", (b, 0, 8), 1 - rank, 7, [(sent, 0)])
    return s


def test_deadlock_of_rendezvous_messages_is_found_and_named():
    world = VirtualRanks([head_to_head(0), head_to_head(1)])
    data = [[np.array([rank + 5.0]), np.zeros(1)] for rank in range(2)]
    with pytest.raises(
        RuntimeError, match="deadlock, 4 parts.*rank 0 waits in step 'send' for step 'receive' of rank 1"
    ):
        world.run(data)
    world.run(data, buffered=True)
    assert (data[0][1][0], data[1][1][0]) == (6.0, 5.0)


def test_messages_that_do_not_meet_are_refused():
    with pytest.raises(RuntimeError, match="from rank 0 to rank 1, tag 7: 8 B sent, nothing received"):
        VirtualRanks([head_to_head(0), Schedule()])


def test_memory_of_too_few_ranks_or_bytes_is_refused():
    world = VirtualRanks([head_to_head(0), head_to_head(1)])
    with pytest.raises(RuntimeError, match="memory of 1 rank for 2"):
        world.run([[np.zeros(1), np.zeros(1)]])
    with pytest.raises(RuntimeError, match="buffer 'b' has 8 bytes, its array 4"):
        world.run([[np.zeros(1), np.zeros(1, "f4")]] * 2)
    with pytest.raises(ValueError, match="choose random, oldest or newest"):
        world.run([[np.zeros(1), np.zeros(1)]] * 2, order="worst")
