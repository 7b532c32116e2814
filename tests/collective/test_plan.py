"""The planner: shapes of plans that are known, roles that agree, scratch, latency algorithms, time to plan."""

from __future__ import annotations

from collections import Counter
from math import ceil, log2
from typing import Any

import numpy as np
import pytest
from plans import plain, plan

from jali import _core
from jali.errors import PlanError


def standard(collective: str, form: str, count: int = 8, ranks: int = 8, **more: Any) -> _core.Composition:
    return _core.standard_composition(ranks, collective, form, more.pop("type", "int64"), [count], **more)


def sends(schedules: list[_core.Schedule]) -> list[tuple[int, int, int]]:
    """(stage, from, to) of every message of a plan."""
    return [
        (step["mark"][0], rank, step["peer"])
        for rank, one in enumerate(plain(schedules))
        for step in one["steps"]
        if step["kind"] == "send"
    ]


def per_stage(schedules: list[_core.Schedule]) -> list[int]:
    counts = Counter(stage for stage, _, _ in sends(schedules))
    return [counts[stage] for stage in sorted(counts)]


def run_and_compare(
    composition: _core.Composition, schedules: list[_core.Schedule], order: str = "random"
) -> None:
    """The plan leaves what direct evaluation leaves, in every buffer but those that only pass data on."""
    dice = np.random.default_rng(3)
    start = [
        [dice.integers(-1000, 1000, bytes // 8) for _, bytes in schedules[rank].buffers]
        for rank in range(composition.ranks)
    ]
    wanted = [[array.copy() for array in arrays[:-1]] for arrays in start]
    composition.evaluate(wanted)
    _core.VirtualRanks(schedules).run(start, order)
    for rank in range(composition.ranks):
        for (name, _, _), got, right in zip(composition.buffers, start[rank], wanted[rank], strict=False):
            if name != "work":
                np.testing.assert_array_equal(got, right, err_msg=f"rank {rank}, buffer {name}")


# Shapes given in the literature's reference code for eight ranks as 2 x 2 x 2.


def test_all_reduce_of_eight_ranks_has_the_known_shape() -> None:
    schedules = plan(standard("all_reduce", "composed", 64), [2, 2, 2], pack_below=0)
    assert per_stage(schedules) == [32, 16, 8, 8, 16, 32]


def test_broadcast_of_eight_ranks_has_the_known_shape() -> None:
    schedules = plan(standard("broadcast", "single"), [2, 2, 2])
    assert sorted(sends(schedules)) == sorted(
        [(0, 0, 4), (1, 0, 2), (1, 4, 6), (2, 0, 1), (2, 2, 3), (2, 4, 5), (2, 6, 7)]
    )
    assert all(schedule.buffers[-1][1] == 0 for schedule in schedules), "a broadcast to all needs no scratch"


def test_striped_tree_and_striped_ring_of_twelve_ranks_have_four_and_five_stages() -> None:
    composition = standard("broadcast", "single", 12, ranks=12)
    tree = _core.PlanParameters(_core.Hierarchy(12, [2, 2, 3]), stripe=3)
    assert [name for name, _ in _core.stages_of(composition, tree)] == [
        "stripe",
        "level 0",
        "level 1",
        "level 2",
    ]
    ring = _core.PlanParameters(_core.Hierarchy(12, [4, 3]), stripe=3, ring=4)
    names = [name for name, _ in _core.stages_of(composition, ring)]
    assert names == ["stripe", "ring hop 1", "ring hop 2", "ring hop 3", "level 1"]
    run_and_compare(composition, plan(composition, [4, 3], stripe=3, ring=4))


def test_ring_hops_go_from_node_to_node_at_the_same_index() -> None:
    composition = standard("broadcast", "single", 3, ranks=12, root=5)
    ring = [(a, b) for stage, a, b in sends(plan(composition, [4, 3], ring=4)) if stage < 3]
    assert sorted(ring) == [(5, 8), (8, 11), (11, 2)]


# Latency algorithms are hierarchies of halves.


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8, 13, 16])
def test_one_step_all_reduce_over_halves_is_recursive_doubling(ranks: int) -> None:
    composition = standard("all_reduce", "single", 5, ranks=ranks)
    how = _core.PlanParameters(_core.Hierarchy.binary(ranks))
    schedules = [_core.plan_rank(composition, how, rank) for rank in range(ranks)]
    received = Counter(to for _, _, to in sends(schedules))
    assert max(received.values()) == ceil(log2(ranks))
    assert {stage for stage, _, _ in sends(schedules)} == set(range(ceil(log2(ranks))))
    _core.check_plan(composition, schedules)
    run_and_compare(composition, schedules)


@pytest.mark.parametrize("collective", ["all_to_all", "all_gather", "reduce_scatter"])
@pytest.mark.parametrize("ranks", [3, 8, 13])
def test_small_messages_over_halves_take_a_logarithm_of_messages(collective: str, ranks: int) -> None:
    composition = standard(collective, "single", 2, ranks=ranks)
    how = _core.PlanParameters(_core.Hierarchy.binary(ranks))
    schedules = [_core.plan_rank(composition, how, rank) for rank in range(ranks)]
    rounds = {stage for stage, _, _ in sends(schedules)}
    assert len(rounds) == ceil(log2(ranks))
    # Where halves are unequal, a rank of the smaller one hears from (or tells) two of the larger one.
    busiest = Counter((stage, to) for stage, _, to in sends(schedules)).most_common(1)[0][1]
    assert busiest <= (1 if ranks == 8 else 2)
    run_and_compare(composition, schedules)


# Stripes.


def test_stripes_are_cut_in_proportion_to_their_weights() -> None:
    composition = standard("broadcast", "single", 12000, ranks=8)
    how = _core.PlanParameters(
        _core.Hierarchy(8, [2, 4]), stripe=4, stripe_weights=[3.0, 1.0, 1.0, 1.0] * 2, pack_below=0
    )
    schedules = [_core.plan_rank(composition, how, rank) for rank in range(8)]
    across = {
        rank: sum(s["region"][2] for s in one["steps"] if s["kind"] == "send" and s["mark"][2] == 0)
        for rank, one in enumerate(plain(schedules))
    }
    assert across[0] == pytest.approx(3 * across[1], rel=0.02)
    assert across[1] == pytest.approx(across[3], rel=0.02)
    assert sum(across.values()) == 12000 * 8
    run_and_compare(composition, schedules)


# Scratch.


def test_scratch_stays_within_the_limit_and_the_plan_stays_right() -> None:
    composition = standard("all_reduce", "composed", 8 * 240)
    free = plan(composition, [2, 2, 2], depth=6)
    most = max(schedule.buffers[-1][1] for schedule in free)
    tight = plan(composition, [2, 2, 2], depth=6, scratch_limit=most // 2)
    assert max(schedule.buffers[-1][1] for schedule in tight) <= most // 2
    _core.check_plan(composition, tight, scratch_limit=most // 2)
    for order in ("random", "newest", "oldest"):
        run_and_compare(composition, tight, order=order)


def test_scratch_that_does_not_fit_is_refused_with_what_would() -> None:
    with pytest.raises(PlanError, match=r"scratch of 64 bytes does not suffice: \d+ are needed"):
        plan(standard("all_reduce", "composed", 8 * 1024), [2, 2, 2], scratch_limit=64)


# Reproducible.


@pytest.mark.parametrize("type", ["fp32", "fp16", "bf16"])
def test_reproducible_plans_give_the_bits_of_the_direct_sum_whatever_the_plan(type: str) -> None:
    dice = np.random.default_rng(5)
    item = {"fp32": np.float32, "fp16": np.float16, "bf16": np.uint16}[type]
    given = [(dice.standard_normal(24) * 10.0 ** dice.integers(-3, 3)).astype(np.float32) for _ in range(6)]
    data = [(g.view(np.uint32) >> 16).astype(np.uint16) if type == "bf16" else g.astype(item) for g in given]
    plans = [
        ("single", [6], {}),
        ("composed", [6], {"depth": 4}),
        ("composed", [2, 3], {"ring": 2, "stripe": 2}),
        ("rooted", [3, 2], {"depth": 3}),
    ]
    results = set()
    for form, factors, how in plans:
        composition = standard("all_reduce", form, 24, ranks=6, type=type)
        schedules = plan(composition, factors, reproducible=True, **how)
        _core.check_plan(composition, schedules, reproducible=True)
        memory = [
            [data[rank].copy(), np.zeros(24, item)]
            + [np.zeros(bytes, np.uint8) for _, bytes in schedules[rank].buffers[2:]]
            for rank in range(6)
        ]
        _core.VirtualRanks(schedules).run(memory)
        results |= {arrays[1].tobytes() for arrays in memory}
    assert len(results) == 1


# Bad input.


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"factors": [3, 3]}, r"hierarchy \(3, 3\) makes more than 8 ranks"),
        ({"factors": [2, 2]}, r"hierarchy \(2, 2\) makes 4 ranks, but there are 8"),
        ({"factors": [2, 0]}, "factor 0"),
        ({"ring": 3}, "a ring of 3 nodes does not fit 8 ranks"),
        ({"stripe": 9}, "stripe 9: a piece is spread over 1 to 8"),
        ({"stripe": 0}, "stripe 0"),
        ({"depth": 0}, "depth 0"),
        ({"libraries": ["mpi", "shm"]}, "2 libraries for a hierarchy of 3 levels"),
        ({"stripe_weights": [1.0]}, "1 stripe weights for 8 ranks"),
        ({"stripe_weights": [1.0] * 7 + [0.0]}, "stripe weight of rank 7"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(how: dict[str, Any], words: str) -> None:
    factors = how.pop("factors", [2, 2, 2])
    with pytest.raises(PlanError, match=words):
        plan(standard("all_reduce", "composed"), factors, **how)


def test_groups_that_do_not_nest_are_refused() -> None:
    with pytest.raises(PlanError, match="do not nest"):
        _core.Hierarchy.from_sizes(8, [[3, 5], [4, 4]])


# Uneven nodes, permuted ranks.


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all"])
def test_uneven_nodes_and_permuted_ranks_are_planned_right(collective: str) -> None:
    hierarchy = _core.Hierarchy.from_sizes(11, [[6, 5], [2, 4, 5]])
    hierarchy.set_order([7, 2, 9, 0, 4, 10, 1, 3, 8, 6, 5])
    form = "composed" if collective == "all_reduce" else "single"
    composition = standard(collective, form, 33, ranks=11)
    for stripe, ring in ((1, 1), (2, 1), (3, 2), (2, 3)):
        how = _core.PlanParameters(hierarchy, stripe=stripe, ring=ring, depth=2)
        schedules = [_core.plan_rank(composition, how, rank) for rank in range(11)]
        _core.check_plan(composition, schedules)
        run_and_compare(composition, schedules)


@pytest.mark.parametrize("ranks", [1024, 2048])
def test_a_rank_plans_only_its_part_of_a_large_all_reduce(ranks: int) -> None:
    composition = standard("all_reduce", "composed", ranks * 4096, ranks=ranks, type="fp32")
    schedule = _core.plan_rank(composition, _core.PlanParameters(_core.Hierarchy.binary(ranks), depth=16), 7)
    assert schedule.steps < 2000, "the steps of one rank, not of all"
