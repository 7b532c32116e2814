"""core/schedule: what is put into another rank's memory, with signals: run, proved, and faults that are found."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jali._core import Executor, Schedule, VirtualRanks

ROOM, THERE = 100, 0  # tags
BYTES = 64
STEPS = ("open", "room", "put", "say", "await", "use", "change")


def halo(rank: int, ranks: int, fault: Callable[[str, dict[str, Any]], dict[str, Any] | None]) -> Schedule:
    """Each rank puts its data into the ghosts of the next; `fault` changes the arguments of a step or leaves it out (None)."""
    right, left = (rank + 1) % ranks, (rank - 1) % ranks
    s = Schedule()
    data, ghosts, out = (
        s.add_buffer("data", BYTES, True),
        s.add_buffer("ghosts", BYTES, True),
        s.add_buffer("out", BYTES),
    )
    theirs = s.add_buffer("their ghosts", BYTES, True, right)
    of: dict[str, int] = {}

    def add(step: str, method: str, needs: tuple[str, ...] = (), **arguments: Any) -> None:
        changed = fault(step, {"needs": needs, **arguments})
        if changed is None:
            return
        changed["needs"] = [(of[n], 0) for n in changed["needs"] if n in of]
        of[step] = getattr(s, method)(step, **changed)

    add("open", "add_signal", to=left, tag=ROOM)
    add("room", "add_wait", source=right, tag=ROOM)
    add(
        "put",
        "add_copy",
        ("room",),
        data=(data, 0, BYTES),
        to=(theirs, 0, BYTES),
        row_bytes=16,
        rows=[3, 2, 1, 0],
    )
    add("say", "add_signal", ("put",), to=right, tag=THERE)
    add("await", "add_wait", source=left, tag=THERE)
    add("use", "add_copy", ("await",), data=(ghosts, 0, BYTES), to=(out, 0, BYTES), row_bytes=BYTES)
    add("change", "add_copy", ("put", "use"), data=(out, 0, BYTES), to=(data, 0, BYTES), row_bytes=BYTES)
    return s


def right_one(step: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return arguments


def addresses(ranks: int) -> list[list[tuple[int, int]]]:
    return [[(r, 0), (r, 1000), (r, 2000), ((r + 1) % ranks, 1000)] for r in range(ranks)]


def prove(ranks: int, fault: Callable[..., Any], faulty: int = 0) -> None:
    schedules = [halo(r, ranks, fault if r == faulty else right_one) for r in range(ranks)]
    Schedule.prove(schedules, addresses(ranks))


def memory_of(ranks: int) -> list[list[np.ndarray]]:
    data = [np.arange(8, dtype=np.int64) + 100 * r for r in range(ranks)]
    ghosts = [np.zeros(8, np.int64) for _ in range(ranks)]
    return [[data[r], ghosts[r], np.zeros(8, np.int64), ghosts[(r + 1) % ranks]] for r in range(ranks)]


def expected(ranks: int, rounds: int) -> list[np.ndarray]:
    data = [np.arange(8, dtype=np.int64) + 100 * r for r in range(ranks)]
    for _ in range(rounds):
        data = [data[(r - 1) % ranks].reshape(4, 2)[::-1].reshape(8) for r in range(ranks)]
    return data


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_puts_with_signals_move_data_whatever_the_order(ranks):
    schedules = [halo(r, ranks, right_one) for r in range(ranks)]
    Schedule.check_messages(schedules)
    prove(ranks, right_one)
    virtual = VirtualRanks(schedules)
    for order in ("random", "oldest", "newest"):
        for seed in range(20):
            memory = memory_of(ranks)
            for _ in range(2):
                virtual.run(memory, order, seed, seed % ranks, bool(seed % 2))
            for got, want in zip(memory, expected(ranks, 2), strict=True):
                assert (got[0] == want).all()


def test_puts_run_on_virtual_ranks(on_ranks):
    ranks, rounds = 3, 50
    memory = memory_of(ranks)

    def body(communicator: Any) -> None:
        executor = Executor(halo(communicator.rank, ranks, right_one), "a ring of puts")
        for _ in range(rounds):
            executor.start(memory[communicator.rank], [communicator])
            executor.wait()

    on_ranks(ranks, body)
    for got, want in zip(memory, expected(ranks, rounds), strict=True):
        assert (got[0] == want).all()


def faults() -> dict[str, Callable[[str, dict[str, Any]], dict[str, Any] | None]]:
    def left_out(name: str) -> Any:
        return lambda step, a: None if step == name else a

    def without(name: str, need: str) -> Any:
        return lambda step, a: (
            {**a, "needs": tuple(n for n in a["needs"] if n != need)} if step == name else a
        )

    def other(name: str, **changes: Any) -> Any:
        return lambda step, a: {**a, **changes} if step == name else a

    return {
        **{f"{name} left out": left_out(name) for name in ("open", "room", "say", "await")},
        "put without room": without("put", "room"),
        "signal before its data": without("say", "put"),
        "ghosts used before they come": without("use", "await"),
        "data changed while it is put": without("change", "put"),
        "signal of another tag": other("say", tag=THERE + 1),
        "signal to another rank": other("say", to=0),
        "room of another tag": other("room", tag=ROOM + 1),
        "room of another rank": other("room", source=2),
        "await of another rank": other("await", source=1),
    }


@pytest.mark.parametrize("name", faults())
def test_a_fault_in_signals_is_found(name):
    with pytest.raises(RuntimeError):
        prove(3, faults()[name])


def test_a_put_elsewhere_is_found():
    """Two ranks that put into the same ghosts."""
    schedules = [halo(r, 3, right_one) for r in range(3)]
    wrong = addresses(3)
    wrong[1][3] = (1, 1000)
    with pytest.raises(RuntimeError, match="nothing orders them"):
        Schedule.prove(schedules, wrong)


def swap(peer: int, tags: tuple[int, int], receive_first: bool) -> Schedule:
    """Sends two pieces to another rank, and receives two."""
    s = Schedule()
    data, came = s.add_buffer("data", BYTES, True), s.add_buffer("came", BYTES)
    half = BYTES // 2
    sends = [(s.add_send(f"send {k}", (data, k * half, half), peer, tags[k]), 0) for k in range(2)]
    for k in range(2):
        s.add_receive(f"receive {k}", (came, k * half, half), peer, tags[k], [] if receive_first else sends)
    return s


@pytest.mark.parametrize(
    ("tags", "receive_first", "words"),
    [
        ((1, 2), True, ""),
        ((1, 2), False, "nothing can go on: 'end of send 0.* which waits for"),
        ((1, 1), True, "'send 1 .* may start before 'send 0 .* which has the same peer and tag"),
    ],
)
def test_messages_that_only_buffering_or_luck_could_save_are_found(tags, receive_first, words):
    both = [swap(1 - rank, tags, receive_first) for rank in range(2)]
    where = [[(r, 0), (r, 1000)] for r in range(2)]
    if not words:
        return Schedule.prove(both, where)
    with pytest.raises(RuntimeError, match=words):
        Schedule.prove(both, where)


def test_memory_of_others_is_only_written():
    s = Schedule()
    theirs, mine = s.add_buffer("ghosts of f", 8, True, 1), s.add_buffer("f", 8)
    s.add_copy("take", (theirs, 0, 8), (mine, 0, 8), 8)
    with pytest.raises(
        RuntimeError, match="reads buffer 'ghosts of f' of rank 1: memory of others is only written"
    ):
        s.check()


def test_signals_and_waits_that_do_not_meet_are_named():
    schedules = [Schedule(), Schedule()]
    schedules[0].add_signal("say", 1, 3)
    with pytest.raises(RuntimeError, match="signals from rank 0 to rank 1, tag 3: 1, and 0 waits for them"):
        Schedule.check_messages(schedules)


def test_random_faults_do_harm_or_are_found():
    """Whatever the adversarial scheduler shows to be wrong, the proof refuses."""
    draw = random.Random(5)
    harmful = 0
    for _ in range(300):
        name = draw.choice(STEPS)
        need = draw.choice(STEPS)
        dropped = draw.random() < 0.3

        def fault(step: str, a: dict[str, Any], name=name, need=need, dropped=dropped) -> Any:
            if step != name:
                return a
            return None if dropped else {**a, "needs": tuple(n for n in a["needs"] if n != need)}

        ranks = draw.choice([2, 3])
        schedules = [halo(r, ranks, fault if r == 0 else right_one) for r in range(ranks)]
        try:
            virtual = VirtualRanks(schedules)
            memory, wrong = memory_of(ranks), False
            for seed in range(6):
                memory = memory_of(ranks)
                for _ in range(2):
                    virtual.run(memory, draw.choice(["random", "newest"]), seed, seed % (ranks + 1) - 1, True)
                wrong |= any((g[0] != w).any() for g, w in zip(memory, expected(ranks, 2), strict=True))
        except RuntimeError:
            wrong = True
        if not wrong or (dropped and name in ("put", "use", "change")):
            continue  # what is not computed at all is no matter of order
        harmful += 1
        with pytest.raises(RuntimeError):
            Schedule.prove(schedules, addresses(ranks))
    assert harmful > 30
