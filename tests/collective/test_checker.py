"""The checker accepts what is right and names what is wrong: its kind, the rank, the step and the elements."""

import copy

import pytest
from brute_force import ITEM, prove
from plans import (
    Drawing,
    Spec,
    composition_of,
    direct_reduce_scatter,
    plain,
    plan,
    ring_all_gather,
    schedules,
)

from jali import _core
from jali.errors import CheckError


def check(spec, plan_, **options):
    _core.check_plan(composition_of(spec), schedules(plan_), **options)


@pytest.mark.parametrize("ranks", [2, 3, 4, 5])
@pytest.mark.parametrize("draw", [ring_all_gather, direct_reduce_scatter])
def test_plans_drawn_by_hand_are_accepted(draw, ranks):
    spec, drawing = draw(ranks, 3)
    check(spec, drawing.plan)
    prove(spec, drawing.plan)


def step(plan_, rank, number):
    return plan_[rank]["steps"][number]


def edit(rank, number, **fields):
    return lambda plan_: step(plan_, rank, number).update(fields)


# The plan below, rank 0: 0 copy; then for turns 1, 2 of rank 0 and of the others, in the order of messages.
# fmt: off
FAULTS = [
    # kind, change, what the message says
    ("message", edit(0, 1, tag=77), r"rank 1, step 1 'receive 1' waits for 24 bytes from rank 0 with tag 1, which does not send them$"),
    ("message", edit(0, 1, peer=2), r"rank 1, step 1 .*waits for 24 bytes from rank 0"),
    ("message", edit(0, 1, peer=0), r"its peer is rank 0; there are 3 ranks, and none sends to itself"),
    ("message", edit(0, 1, peer=3), r"its peer is rank 3"),
    ("message", edit(0, 1, tag=-1), r"tag -1"),
    ("message", edit(0, 1, region=(0, 0, 2 * ITEM)), r"rank 1, .*expects 24 bytes; rank 0, step 1 'send 1' sends 16"),
    ("message", lambda p: (p[0].update(libraries=["mpi", ""])), r"rank 1, step 1 'receive 1' waits for 24 bytes from rank 0 with tag 1, which does not send them by the same library"),
    ("bounds", edit(0, 1, region=(0, 7 * ITEM, 3 * ITEM)), r"rank 0: step 'send 1' uses bytes 56 to 80 of buffer 'send', which has 72"),
    ("bounds", edit(0, 1, region=(5, 0, 3 * ITEM)), r"uses bytes 0 to 24 of buffer 5, which does not exist"),
    ("structure", edit(0, 2, needs=[99]), r"needs part 0 of step 99, which does not exist"),
    ("structure", lambda p: p.pop(), r"2 schedules for a composition of 3 ranks"),
    ("structure", lambda p: p[1]["buffers"].__setitem__(0, ("send", 64, True)), r"rank 1: buffer 'send' has 64 bytes instead of 72"),
    ("deadlock", lambda p: [step(p, 0, 1)["needs"].append(2), step(p, 1, 3)["needs"].append(1), step(p, 2, 3)["needs"].append(1)], r"nothing can go on: .*which waits for the first"),
    ("unwritten", edit(2, 0, specs=[]), r"rank 2, step 2 'reduce 2' reads elements 0 to 2 of 'recv', but nothing filled elements 0 to 2 of 'recv'"),
    ("overwritten", lambda p: step(p, 0, 0)["specs"][0].update(to=(0, 3 * ITEM, 3 * ITEM)), r"writes elements 3 to 5 of 'send'; the composition does not write element 3 there"),
    ("contribution", lambda p: step(p, 0, 0)["specs"][0].update({"from": (0, 3 * ITEM, 3 * ITEM)}), r"rank 0 in the end finds in elements 0 to 2 of 'recv' .*the sum of.*missing: rank 0's 'send'\[0\]; too much: rank 0's 'send'\[3\]"),
    ("contribution", lambda p: [s.update(operation="max") for s in p[1]["steps"] if s["kind"] == "reduce"][:0], r"rank 1 in the end .*the max of .* instead of the sum"),
    ("scratch", lambda p: p[2]["buffers"].__setitem__(2, ("scratch", 96, False)), r"rank 2: 96 bytes of scratch, more than the 48 allowed"),
]
# fmt: on


@pytest.mark.parametrize(("kind", "change", "words"), FAULTS)
def test_faults_are_named(kind, change, words):
    spec, drawing = direct_reduce_scatter(3, 3)
    plan_ = copy.deepcopy(drawing.plan)
    change(plan_)
    with pytest.raises(CheckError, match=words) as caught:
        check(spec, plan_, scratch_limit=48)
    assert caught.value.kind == kind


def test_a_slot_received_into_before_it_was_read_is_a_race():
    spec, drawing = direct_reduce_scatter(4, 1, slots=1)
    receives = [s for s in drawing.plan[2]["steps"] if s["kind"] == "receive"]
    receives[1]["needs"] = []
    with pytest.raises(
        CheckError,
        match=r"rank 2, .*writes element 0 of 'scratch', which rank 2, step \d+ .* reads, and nothing orders them",
    ) as caught:
        check(spec, drawing.plan)
    assert (caught.value.kind, caught.value.rank) == ("race", 2)


def exchange_with_one_slot():
    """Two ranks swap a number through one place of scratch, from which it is sent and into which it comes."""
    spec = Spec(2)
    data = spec.buffer("data", 1)
    result = spec.buffer("result", 1, False)
    spec.multicast((data, 0), (result, 0), 1, 0, [1])
    spec.multicast((data, 0), (result, 0), 1, 1, [0])
    drawing = Drawing(spec, 1)
    for rank in range(2):
        drawing.copy(rank, (data, 0), (drawing.scratch, 0), 1)
    for rank in range(2):
        drawing.add(rank, "send", region=(2, 0, ITEM), peer=1 - rank, tag=rank, library=0)
    for rank in range(2):
        drawing.add(rank, "receive", region=(2, 0, ITEM), peer=1 - rank, tag=1 - rank, library=0)
        drawing.copy(rank, (drawing.scratch, 0), (result, 0), 1)
    return spec, drawing


def test_an_exchange_that_only_buffering_could_save_is_a_deadlock():
    with pytest.raises(
        CheckError, match="rank 0, step 1 'send 1', which waits for rank 1, step 2 'receive 2'"
    ):
        check(*(lambda s, d: (s, d.plan))(*exchange_with_one_slot()))


def test_two_messages_of_one_envelope_have_to_be_ordered_on_both_sides():
    spec = Spec(2)
    a, b = spec.buffer("a", 2), spec.buffer("b", 2, False)
    spec.multicast((a, 0), (b, 0), 2, 0, [1])
    drawing = Drawing(spec)
    for k in range(2):
        drawing.message(0, 1, (a, k), (b, k), 1)
    for rank in range(2):
        for one in drawing.plan[rank]["steps"]:
            one["tag"] = 5
    with pytest.raises(CheckError, match="may start before rank 0, step 0.*same peer and tag") as caught:
        check(spec, drawing.plan)
    assert caught.value.kind == "message"
    step(drawing.plan, 0, 1)["needs"] = [0]
    with pytest.raises(CheckError, match="rank 1, step 1"):
        check(spec, drawing.plan)
    step(drawing.plan, 1, 1)["needs"] = [0]
    check(spec, drawing.plan)


def test_an_order_forced_through_another_rank_is_seen():
    """Rank 0 overwrites its place only after rank 1 has answered to have it: no need of rank 0 says so."""
    spec = Spec(2)
    a, b = spec.buffer("a", 1), spec.buffer("b", 1, False)
    spec.multicast((a, 0), (b, 0), 1, 0, [1])
    spec.fence()
    spec.multicast((b, 0), (a, 0), 1, 1, [0])
    drawing = Drawing(spec)
    drawing.message(0, 1, (a, 0), (b, 0), 1)
    drawing.message(1, 0, (b, 0), (a, 0), 1)
    check(spec, drawing.plan)
    # The receive of the answer now needs nothing; it ends after the send began, but may begin before.
    step(drawing.plan, 0, 1)["needs"] = []
    with pytest.raises(
        CheckError,
        match="rank 0, step 1 .* writes element 0 of 'a', which rank 0, step 0 .* reads, and nothing orders",
    ):
        check(spec, drawing.plan)


def reduction(operation, count=2, ranks=3):
    spec = Spec(ranks)
    send, recv = spec.buffer("send", count), spec.buffer("recv", count, False)
    spec.reduce((send, 0), (recv, 0), count, range(ranks), 0, operation)
    drawing = Drawing(spec, ranks * count)
    for rank in range(1, ranks):
        drawing.message(rank, 0, (send, 0), (drawing.scratch, rank * count), count)
    return spec, drawing


@pytest.mark.parametrize(
    ("order", "type", "reproducible", "right"),
    [
        ((0, 1, 2), "fp64", True, True),
        ((0, 2, 1), "fp64", True, False),
        ((0, 2, 1), "fp64", False, True),
        ((0, 2, 1), "int64", True, True),
    ],
)
def test_the_order_of_ranks_counts_where_bits_depend_on_it(order, type, reproducible, right):
    spec, drawing = reduction("sum")
    drawing.reduce(0, [(2, 2 * r) if r else (0, 0) for r in order], (1, 0), 2, type=type)
    composition = composition_of(spec, type)
    if right:
        _core.check_plan(composition, schedules(drawing.plan), reproducible=reproducible)
    else:
        with pytest.raises(CheckError, match="the same terms, in another order"):
            _core.check_plan(composition, schedules(drawing.plan), reproducible=reproducible)


@pytest.mark.parametrize(("grouping", "right"), [("prefix", True), ("suffix", False)])
def test_reproducible_sums_may_be_grouped_from_the_left_only(grouping, right):
    spec, drawing = reduction("sum")
    scratch = drawing.scratch
    if grouping == "prefix":
        drawing.reduce(0, [(0, 0), (scratch, 2)], (scratch, 0), 2, type="fp64")
        drawing.reduce(0, [(scratch, 0), (scratch, 4)], (1, 0), 2, type="fp64")
    else:
        drawing.reduce(0, [(scratch, 2), (scratch, 4)], (scratch, 0), 2, type="fp64")
        drawing.reduce(0, [(0, 0), (scratch, 0)], (1, 0), 2, type="fp64")
    composition = composition_of(spec, "fp64")
    _core.check_plan(composition, schedules(drawing.plan))
    if right:
        _core.check_plan(composition, schedules(drawing.plan), reproducible=True)
    else:
        with pytest.raises(CheckError):
            _core.check_plan(composition, schedules(drawing.plan), reproducible=True)


@pytest.mark.parametrize(
    ("first", "second", "right"), [(1, 3, True), (3, 1, False), (3, 3, False), (1, 1, False)]
)
def test_an_average_is_divided_once_and_at_the_end(first, second, right):
    spec, drawing = reduction("avg")
    scratch = drawing.scratch
    drawing.reduce(0, [(0, 0), (scratch, 2)], (scratch, 0), 2, type="fp64", operation="avg", divide_by=first)
    drawing.reduce(0, [(scratch, 0), (scratch, 4)], (1, 0), 2, type="fp64", operation="avg", divide_by=second)
    composition = composition_of(spec, "fp64")
    if right:
        _core.check_plan(composition, schedules(drawing.plan))
    else:
        with pytest.raises(CheckError) as caught:
            _core.check_plan(composition, schedules(drawing.plan))
        assert caught.value.kind == "contribution"


def test_operations_do_not_mix():
    spec, drawing = reduction("sum")
    drawing.reduce(0, [(0, 0), (2, 2)], (2, 0), 2, operation="max")
    drawing.reduce(0, [(2, 0), (2, 4)], (1, 0), 2)
    with pytest.raises(
        CheckError, match=r"the sum of \(the max of rank 0's 'send'\[0\], rank 1's 'send'\[0\]\)"
    ):
        check(spec, drawing.plan)


def test_reductions_that_cut_elements_are_refused():
    spec, drawing = reduction("sum")
    drawing.reduce(0, [(0, 0), (2, 2), (2, 4)], (1, 0), 2)
    last = step(drawing.plan, 0, -1)["specs"][0]
    last["from"][1] = (2, 2 * ITEM + 4, 2 * ITEM)
    with pytest.raises(CheckError, match="no element begins") as caught:
        check(spec, drawing.plan)
    assert caught.value.kind in ("bounds", "unwritten")


def test_marked_levels_are_compared_with_the_hierarchy():
    composition = _core.standard_composition(8, "all_reduce", "composed", "fp64", [100])
    all_ranks = plan(composition, [2, 4], depth=2)
    hierarchy = _core.Hierarchy(8, [2, 4])
    _core.check_plan(composition, all_ranks, hierarchy=hierarchy)
    with pytest.raises(
        CheckError, match=r"crosses level 0 of the hierarchy .*, but is marked with level 1"
    ) as caught:
        plans = plain(all_ranks)
        for one in plans:
            for s in one["steps"]:
                s["mark"] = (*s["mark"][:2], 1 if s["kind"] in ("send", "receive") else -1)
        _core.check_plan(composition, schedules(plans), hierarchy=hierarchy)
    assert caught.value.kind == "hierarchy"


def test_schedules_survive_the_way_through_plain_data():
    composition = _core.standard_composition(6, "reduce_scatter", "single", "fp32", [5], operation="avg")
    original = plain(plan(composition, [3, 2], depth=2, libraries=["mpi", "shm"]))
    assert plain(schedules(original)) == original


def test_an_all_reduce_of_sixty_four_ranks_is_checked():
    composition = _core.standard_composition(64, "all_reduce", "composed", "fp64", [64 * 1024])
    all_ranks = plan(composition, [4, 4, 4], depth=4)
    _core.check_plan(composition, all_ranks)
