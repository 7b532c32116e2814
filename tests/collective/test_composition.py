"""What compositions accept, refuse and mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jali import _core
from jali.errors import PlanError
from jali.planner import ALL, OTHERS, Composition


def filled(composition: Composition, value: Callable[[str, int, int], Any]) -> list[dict[str, Any]]:
    """Arrays for all ranks: value(buffer, rank, element) in inputs, NaN elsewhere."""
    memory = []
    for rank in range(composition.ranks):
        arrays = {}
        for number, buffer in enumerate(composition.buffers.values()):
            is_input = composition.core.buffers[number][2]
            arrays[buffer.name] = np.array(
                [value(buffer.name, rank, k) if is_input else np.nan for k in range(buffer.count(rank))],
                float,
            )
        memory.append(arrays)
    return memory


def test_all_reduce_written_by_hand_adds_all_ranks() -> None:
    p, n = 5, 13
    c = Composition(ranks=p)
    send, recv = c.buffer("send", n, parts=p), c.buffer("recv", n, parts=p, input=False)
    for i in range(p):
        c.reduce(send[i], recv[i], sources=ALL, root=i, op="sum")
    c.fence()
    for i in range(p):
        c.multicast(recv[i], recv[i], root=i, leaves=OTHERS)
    c.check()
    memory = filled(c, lambda _, rank, k: 100.0**rank * (k + 1))
    c.evaluate(memory)
    for arrays in memory:
        np.testing.assert_array_equal(arrays["recv"], (np.arange(n) + 1) * sum(100.0**r for r in range(p)))


def test_multicast_reaches_its_leaves_and_nobody_else() -> None:
    c = Composition(ranks=6)
    data, out = c.buffer("data", 4), c.buffer("out", 3)
    c.multicast(data[1:3], out[0:2], root=4, leaves=[5, 1, 4])
    memory = filled(c, lambda name, rank, k: 10 * rank + k if name == "data" else -1)
    c.evaluate(memory)
    for rank, arrays in enumerate(memory):
        np.testing.assert_array_equal(arrays["out"], [41, 42, -1] if rank in (1, 4, 5) else [-1, -1, -1])


def test_reduction_to_a_root_that_is_no_source() -> None:
    c = Composition(ranks=4)
    data, out = c.buffer("data", 2), c.buffer("out", 2)
    c.reduce(data, out, sources={0, 3}, root=1, op="max")
    memory = filled(c, lambda name, rank, k: rank * (-1) ** k)
    c.evaluate(memory)
    np.testing.assert_array_equal(memory[1]["out"], [3, 0])
    np.testing.assert_array_equal(memory[2]["out"], [2, -2])


def test_average_divides_by_the_number_of_sources() -> None:
    c = Composition(ranks=5)
    data = c.buffer("data", 1)
    c.reduce(data, data, sources=[1, 2, 4], root=2, op="avg")
    memory = filled(c, lambda name, rank, k: 3.0 * rank)
    c.evaluate(memory)
    assert [float(arrays["data"][0]) for arrays in memory] == [0, 3, 7, 9, 12]


def test_user_operation_goes_through_sources_in_the_order_of_ranks() -> None:
    c = Composition(ranks=4)
    data = c.buffer("data", 1)
    c.reduce(data, data, sources=[3, 0, 2], root=0, op=lambda a, b: 10 * a + b)
    memory = filled(c, lambda name, rank, k: rank + 1)
    c.evaluate(memory)
    assert memory[0]["data"][0] == 134


def test_steps_see_what_steps_before_wrote() -> None:
    c = Composition(ranks=3)
    data = c.buffer("data", 1)
    for rank in range(2):
        c.multicast(data, data, root=rank, leaves=rank + 1)
        c.fence()
    memory = filled(c, lambda name, rank, k: rank + 5)
    c.evaluate(memory)
    assert [float(arrays["data"][0]) for arrays in memory] == [5, 5, 5]


def test_parts_cut_a_buffer_without_gaps() -> None:
    c = Composition(ranks=2)
    near = c.buffer("near", 11, parts=4)
    assert [(near[i].offset, near[i].count) for i in range(4)] == [(0, 3), (3, 3), (6, 3), (9, 2)]
    assert near[-1] == near[3]
    assert (near[1:3].offset, near[1:3].count) == (3, 6)
    sized = c.buffer("sized", parts=[2, 0, 5])
    assert sized.counts == [7]
    assert [(sized[i].offset, sized[i].count) for i in range(3)] == [(0, 2), (2, 0), (2, 5)]
    plain = c.buffer("plain", [4, 9])
    assert (plain[2:8].offset, plain[2:8].count) == (2, 6)
    assert (plain[3].offset, plain[3].count) == (3, 1)


def test_whole_buffers_take_their_size_at_the_root() -> None:
    c = Composition(ranks=3)
    send, recv = c.buffer("send", [2, 3, 4]), c.buffer("recv", parts=[2, 3, 4], input=False)
    for i in range(3):
        c.multicast(send, recv[i], root=i)
    small = c.buffer("small", [3, 0, 0])
    c.reduce(recv[1], small, root=0, sources=[1])
    assert [p["count"] for p in c.core.steps[0]] == [2, 3, 4, 3]


def test_equal_sets_of_ranks_are_kept_in_one_form() -> None:
    c = Composition(ranks=4)
    data, out = c.buffer("data", 1), c.buffer("out", 9)
    sets = [ALL, [3, 1, 0, 2], OTHERS, [0, 1, 3], 2, [2], np.array([0, 1]), range(2, 4)]
    for k, ranks in enumerate(sets):
        c.multicast(data, out[k], root=2, leaves=ranks)
    given = [p["ranks"] for p in c.core.steps[0]]
    assert given == ["all", "all", "others", "others", [2], [2], [0, 1], [2, 3]]


def test_nothing_is_added_for_nothing() -> None:
    c = Composition(ranks=1)
    data = c.buffer("data", 4)
    c.fence()
    c.multicast(data[0:0], data[2:2], root=0)
    c.multicast(data, data, root=0)
    c.multicast(data, data, root=0, leaves=OTHERS)
    c.fence()
    assert c.core.steps == []
    c.reduce(data[0:2], data[2:4], root=0)
    c.fence()
    assert len(c.core.steps) == 1


def make(ranks: int = 3, counts: Any = 8) -> tuple[Composition, Any, Any]:
    c = Composition(ranks, "float32")
    return c, c.buffer("a", counts), c.buffer("b", counts, input=False)


REFUSED: list[tuple[str, Callable[[Composition, Any, Any], object]]] = [
    (r"b\[4:9\] does not exist on rank 0", lambda c, a, b: c.multicast(a[0:5], b[4:9], root=1)),
    (r"a\[7:9\] does not exist on rank 1", lambda c, a, b: c.multicast(a[7:9], b[0:2], root=1)),
    ("root 3 does not exist; ranks are 0 to 2", lambda c, a, b: c.multicast(a, b, root=3)),
    ("rank 5 does not exist", lambda c, a, b: c.multicast(a, b, root=0, leaves=[1, 5])),
    ("rank -1 does not exist", lambda c, a, b: c.reduce(a, b, root=0, sources=-1)),
    ("rank 1 is named twice", lambda c, a, b: c.multicast(a, b, root=0, leaves=[1, 2, 1])),
    ("no ranks; name at least one", lambda c, a, b: c.multicast(a, b, root=0, leaves=[])),
    ("'some' is no set of ranks", lambda c, a, b: c.multicast(a, b, root=0, leaves="some")),
    ("a rank or several, not None", lambda c, a, b: c.multicast(a, b, root=0, leaves=None)),
    (
        r"3 elements of a\[0:3\] on rank 0 do not fit the 2 of b\[0:2\]",
        lambda c, a, b: c.multicast(a[0:3], b[0:2], root=0),
    ),
    (
        "8 elements of a on rank 0 do not fit the 9 of d on rank 0",
        lambda c, a, b: c.multicast(a, c.buffer("d", 9), root=0),
    ),
    (
        "8 elements of b on rank 2 do not fit the 7 of d on rank 1",
        lambda c, a, b: c.reduce(c.buffer("d", [8, 7, 8]), b, root=2),
    ),
    (
        "8 elements of b on rank 2 do not fit the 7 of d on rank 0",
        lambda c, a, b: c.reduce(c.buffer("d", [7, 8, 8]), b, root=2, sources=[0, 1]),
    ),
    (
        "4 elements of a.0:4. on rank 0 do not fit the 8 of b on rank 1",
        lambda c, a, b: c.multicast(a[0:4], b, root=0, leaves=[1]),
    ),
    ("root is a whole number, not 1.0", lambda c, a, b: c.multicast(a, b, root=1.0)),
    ("root is a whole number, not True", lambda c, a, b: c.reduce(a, b, root=True)),
    ("a rank or several, not .True.", lambda c, a, b: c.multicast(a, b, root=0, leaves=[True])),
    ("an index of buffer 'a' is a whole number, not 2.0", lambda c, a, b: a[0:2.0]),
    ("rank 3 does not exist", lambda c, a, b: a.count(3)),
    ("input is True or False, not 2", lambda c, a, b: c.buffer("d", 2, input=2)),
    ("the name of a buffer is a text, not 7", lambda c, a, b: c.buffer(7, 2)),
    ("1000000000 parts; it needs at least one, and", lambda c, a, b: c.buffer("d", 8, parts=10**9)),
    ("more than 64 bits can number", lambda c, a, b: c.buffer("d", 10**20)),
    ("the arrays of every rank, by name or in order, not 3", lambda c, a, b: c.evaluate(3)),
    (r"a\[0:3\] and a\[2:5\] overlap", lambda c, a, b: c.multicast(a[0:3], a[2:5], root=0)),
    (r"a\[0:3\] and a\[2:5\] overlap", lambda c, a, b: c.reduce(a[0:3], a[2:5], root=1)),
    ("no operation 'plus'; use one of sum", lambda c, a, b: c.reduce(a, b, root=0, op="plus")),
    ("'bit_and' is not defined for fp32", lambda c, a, b: c.reduce(a, b, root=0, op="bit_and")),
    ("takes buffers and pieces", lambda c, a, b: c.multicast((0, 3), b, root=0)),
    ("a buffer 'a' already", lambda c, a, b: c.buffer("a", 3)),
    ("2 counts; give one, or one for each of 3", lambda c, a, b: c.buffer("d", [1, 2])),
    ("-4 elements", lambda c, a, b: c.buffer("d", -4)),
    ("counts are integers", lambda c, a, b: c.buffer("d", 2.5)),
    ("needs a count", lambda c, a, b: c.buffer("d", parts=3)),
    ("together 9; it has 8", lambda c, a, b: c.buffer("d", 8, parts=[4, 5])),
    ("0 parts; it needs at least one", lambda c, a, b: c.buffer("d", 8, parts=0)),
    ("'e' has 2 parts", lambda c, a, b: c.buffer("e", 8, parts=2)[2]),
    ("without gaps", lambda c, a, b: a[0:8:2]),
    ("ends before it begins", lambda c, a, b: a[5:3]),
    ("belongs to another composition", lambda c, a, b: c.multicast(make()[1], b, root=0)),
    ("arrays of 1 rank for a composition of 3", lambda c, a, b: c.evaluate([{}])),
    ("32 bytes on rank 0, its array 4", lambda c, a, b: c.evaluate([{"a": np.zeros(1, "f4")}] * 3)),
    ("no buffer is named x; there are a, b", lambda c, a, b: c.evaluate([{"x": np.zeros(1, "f4")}] * 3)),
    ("an array of float64 for a composition of fp32", lambda c, a, b: c.evaluate([{"a": np.zeros(8)}] * 3)),
    ("contiguous and writable", lambda c, a, b: c.evaluate([{"a": np.zeros((8, 2), "f4")[:, 0]}] * 3)),
]


@pytest.mark.parametrize(("message", "mistake"), REFUSED)
def test_mistakes_are_refused_where_they_are_made(
    message: str, mistake: Callable[[Composition, Any, Any], object]
) -> None:
    with pytest.raises(PlanError, match=message):
        mistake(*make())


def test_pieces_are_checked_on_every_rank_that_uses_them() -> None:
    c, a, b = make(counts=[8, 3, 8])
    c.multicast(a[4:8], b[4:8], root=0, leaves=[2])
    with pytest.raises(PlanError, match=r"b\[4:8\] does not exist on rank 1, where 'b' has 3 elements"):
        c.multicast(a[4:8], b[4:8], root=0, leaves=ALL)
    with pytest.raises(PlanError, match=r"a\[2:4\] does not exist on rank 1"):
        c.reduce(a[2:4], b[2:4], root=0, sources=OTHERS)


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (0, "0 ranks; it needs at least one"),
        (10**9, "1000000000 ranks; it needs at least one, and 1048576 are the most"),
        (10**20, "is beyond all that there can be"),
        (2.5, "the number of ranks is a whole number, not 2.5"),
        (True, "the number of ranks is a whole number, not True"),
    ],
)
def test_compositions_need_ranks(ranks: Any, message: str) -> None:
    for make in (Composition, lambda ranks: Composition.standard("broadcast", ranks=ranks, count=1)):
        with pytest.raises(PlanError, match=message):
            make(ranks)


def test_whole_numbers_may_be_those_of_numpy() -> None:
    c = Composition(np.int64(3))
    data, out = c.buffer("data", np.int32(4)), c.buffer("out", np.array(8), parts=np.int64(2), input=False)
    c.multicast(data[np.int64(0) : np.int16(4)], out[np.uint8(1)], root=np.int64(1), leaves=np.array(2))
    assert [(p["root"], p["ranks"], p["target"], p["count"]) for p in c.core.steps[0]] == [
        (1, [2], (1, 4), 4)
    ]
    c.plan(hierarchy=np.array([3]), stripe=np.int64(2), depth=np.int32(2), pack_below=np.uint64(9)).check()


RACES: list[tuple[str, Callable[[Composition, Any, Any], object]]] = [
    # two writers of one place
    (r"races on rank 1: .* writes b\[2:3\]", lambda c, a, b: [c.multicast(a[0:3], b[0:3], root=0, leaves=1), c.multicast(a[0:3], b[2:5], root=2, leaves=[1, 2])]),
    # one reads what another writes, in both orders
    (r"races on rank 0: .* reads and .* writes a\[1:3\]", lambda c, a, b: [c.multicast(a[0:2], a[1:3], root=1, leaves=0), c.reduce(a[1:4], b[1:4], root=2)]),
    (r"races on rank 0: .* reads and .* writes a\[1:3\]", lambda c, a, b: [c.reduce(a[0:4], b[0:4], root=2), c.multicast(a[0:2], a[1:3], root=1, leaves=0)]),
    # in place: others still read what the root's own result replaces
    (r"races on rank 0: .* a\[0:8\]", lambda c, a, b: [c.reduce(a, a, root=i) for i in range(3)]),
    # a long piece, and a short one inside it behind another
    (r"races on rank 2", lambda c, a, b: [c.multicast(a[0:8], b[0:8], root=0, leaves=2), c.multicast(a[0:1], a[0:1], root=0, leaves=2), c.multicast(a[5:6], b[5:6], root=1, leaves=ALL)]),
]  # fmt: skip


@pytest.mark.parametrize(("message", "step"), RACES)
def test_races_within_a_step_are_found(message: str, step: Callable[[Composition, Any, Any], object]) -> None:
    c, a, b = make()
    step(c, a, b)
    with pytest.raises(PlanError, match=message):
        c.check()


def test_places_that_only_touch_do_not_race() -> None:
    c, a, b = make()
    c.multicast(a[0:3], b[0:3], root=0)
    c.multicast(a[0:3], b[3:6], root=1)
    c.multicast(a[0:2], b[6:8], root=2)
    c.reduce(a[4:6], a[4:6], root=2)
    c.reduce(a[6:8], a[6:8], root=1)
    c.multicast(a[3:4], a[3:4], root=1, leaves=ALL)
    c.check()


def test_undefined_data_may_not_be_read() -> None:
    c, a, b = make()
    c.multicast(a[0:3], b[0:3], root=0, leaves=[0, 1])
    c.multicast(a[0:3], b[4:7], root=0, leaves=[0, 1])
    c.fence()
    c.multicast(b[1:3], a[0:2], root=1, leaves=2)
    c.check()
    c.multicast(b[2:6], a[2:6], root=1, leaves=2)
    with pytest.raises(PlanError, match=r"reads b\[3:4\] on rank 1, which is no input"):
        c.check()
    c, a, b = make()
    c.multicast(a, b, root=0, leaves=[0, 1])
    c.fence()
    c.reduce(b, a, root=0)
    with pytest.raises(PlanError, match=r"reads b\[0:8\] on rank 2"):
        c.check()


def test_writing_counts_from_the_next_step_on() -> None:
    c, a, b = make()
    c.multicast(a[0:4], b[0:4], root=0)
    c.multicast(a[4:8], b[4:8], root=0)
    c.fence()
    c.reduce(b, b, root=1)
    c.check()


def test_describe_names_every_kind() -> None:
    c = Composition(3, "int32")
    send, recv = c.buffer("send", [1, 2, 3]), c.buffer("recv", 20, input=False)
    c.multicast(send, recv[0:2], root=1, leaves=OTHERS)
    c.fence()
    for k in range(18):
        c.reduce(recv[0], recv[2 + k], sources=[0, 2], root=2, op="bit_or")
    text = c.describe()
    assert "composition of 3 ranks, int32" in text
    assert "buffer send: 1 to 3 elements\n" in text
    assert "buffer recv: 20 elements, undefined at the start" in text
    assert "multicast send[0:2] of 1 -> recv[0:2] of all but 1" in text
    assert "reduce(bit_or) recv[0:1] of all but 1 -> recv[2:3] of 2" in text
    assert "... and 2 more" in text
    assert repr(c) == "<composition of 3 ranks, 19 primitives in 2 steps>"


def test_all_reduce_of_two_thousand_ranks_is_made_of_two_primitives_each_and_checked() -> None:
    c = _core.standard_composition(2048, "all_reduce", "composed", "fp32", [1_000_003])
    c.check()  # p^2 lists or pairs would not end in this test's time
    assert c.primitives == 4096
