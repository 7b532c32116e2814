"""Plans from Python: proved, explained, simulated, drawn, run; parameters that make no sense are refused by name."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jali import _core, comm, planner
from jali.errors import ParameterError, PlanError


def three_roots(ranks: int, count: int = 60) -> planner.Composition:
    """A reduce to ranks 0, 1 and the last."""
    c = planner.Composition(ranks=ranks, dtype="float64")
    x, out = c.buffer("x", count), c.buffer("out", count, input=False)
    for root in sorted({0, min(1, ranks - 1), ranks - 1}):
        c.reduce(x, out, root=root)
    return c


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"hierarchy": (2, 2)},
        {"hierarchy": "binary", "depth": 3},
        {"hierarchy": [[3, 1]], "reproducible": True},
        {"stripe": 2, "depth": 2},
        {"ring": 4, "depth": 5},
    ],
)
def test_composed_collective_runs_as_it_was_proved(parameters: dict) -> None:
    plan = three_roots(4).plan(**parameters)
    plan.check()

    def run() -> None:
        me = comm.current().rank
        x, out = np.arange(60.0) * (me + 1), np.full(60, np.nan)
        for _ in range(2):
            plan.run(x, out)
            expected = np.arange(60.0) * 10 if me in (0, 1, 3) else np.full(60, np.nan)
            np.testing.assert_array_equal(out, expected)
            out = np.full(60, np.nan)

    comm.virtual_ranks(4, run)


def test_several_plans_are_under_way_at_once() -> None:
    plans = [three_roots(3, 40 + k).plan(depth=1 + k % 3) for k in range(6)]

    def run() -> None:
        me = comm.current().rank
        arrays = [(np.full(40 + k, float(me + k)), np.zeros(40 + k)) for k in range(6)]
        running = [plan.start(*a) for plan, a in zip(plans, arrays, strict=True)]
        with pytest.raises(RuntimeError, match="is under way already"):
            running[0].start(*arrays[0])
        for k in np.random.default_rng(me).permutation(6):
            running[k].wait()
            assert not running[k].running
            assert (arrays[k][1] == 3 + 3 * k).all()

    comm.virtual_ranks(3, run)


def test_explanation_counts_messages_and_bytes_by_level() -> None:
    plan = planner.Composition.standard("broadcast", ranks=8, count=1000, dtype="float32").plan(
        hierarchy=(2, 2, 2)
    )
    assert [(stage.messages, stage.bytes) for stage in plan.stages] == [(1, 4000), (2, 8000), (4, 16000)]
    assert [list(stage.levels) for stage in plan.stages] == [[0], [1], [2]]
    text = plan.explain()
    assert "broadcast over 8 ranks, 3.906 KiB of fp32" in text
    assert "hierarchy 2 x 2 x 2" in text
    json.dumps(plan.facts())


def listed(plan: planner.Plan) -> list[dict[int, tuple[int, int]]]:
    """Messages and bytes by stage and level, counted one by one."""
    found: list[dict[int, tuple[int, int]]] = [{} for _ in plan.stages]
    for _, _, size, stage, _, level in plan.messages:
        messages, volume = found[stage].get(level, (0, 0))
        found[stage][level] = (messages + 1, volume + size)
    return found


@pytest.mark.parametrize("seed", range(3))
def test_counts_are_those_of_all_messages_one_by_one(seed: int) -> None:
    random = np.random.default_rng(seed)
    for _ in range(40):
        name = str(
            random.choice(
                ["broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce", "scatter", "all_to_all"]
            )
        )
        hierarchy = [int(n) for n in random.integers(1, 5, random.integers(1, 4))]
        ranks = math.prod(hierarchy)
        count = int(random.choice([0, 1, 7, 64, 1000, 99991]))
        root = int(random.integers(ranks)) if name in ("broadcast", "reduce", "scatter") else 0
        plan = planner.Composition.standard(name, ranks=ranks, count=count, root=root).plan(
            hierarchy=hierarchy,
            depth=int(random.choice([1, 2, 3, 8])),
            stripe=min(int(random.integers(1, 3)), ranks),
            ring=hierarchy[0] if random.random() < 0.3 else 1,
            reproducible=bool(random.random() < 0.2),
            pack_below=int(random.choice([1, 100, 65536])),
        )
        counted, ranks_counted, uneven = _core.count_messages(plan.composition.core, plan.parameters)
        assert (counted, ranks_counted, uneven) == (listed(plan), ranks, 0.0)


@pytest.mark.parametrize(
    ("name", "hierarchy", "count", "counted"),
    [
        ("all_reduce", (32, 8), 1 << 16, 1),
        ("all_to_all", (16, 4, 4), 5, 1),
        ("all_reduce", (32, 8), 99991, 256),
        ("broadcast", (32, 8), 1000, 256),
        ("gather", (32, 8), 10, 256),
    ],
)
def test_one_rank_is_counted_for_all_where_all_do_exactly_alike(
    name: str, hierarchy: tuple[int, ...], count: int, counted: int
) -> None:
    plan = planner.Composition.standard(name, ranks=256, count=count).plan(hierarchy=hierarchy, depth=2)
    levels, ranks, uneven = _core.count_messages(plan.composition.core, plan.parameters)
    assert (levels, ranks, uneven) == (listed(plan), counted, 0.0)


def test_the_table_of_a_plan_of_thousands_of_ranks_has_its_numbers() -> None:
    ranks = 4096
    plan = planner.Composition.standard("all_gather", ranks=ranks, count=1024).plan(hierarchy=(512, 8))
    # Between the groups each chunk goes to one rank of every other group, inside them to all others.
    expected = [(511 * ranks, 511 * ranks * 8192), (512 * 7 * ranks, 512 * 7 * ranks * 8192)]
    assert [stage.bytes for stage in plan.stages] == [volume for _, volume in expected]
    assert plan.uneven == 0
    rows = [line for line in plan.explain().splitlines() if line.startswith("  level ")]
    assert len(rows) == 2
    assert all(len(row.split()) > 4 for row in rows)
    uneven = planner.Composition.standard("all_reduce", ranks=ranks, count=4096 * 1000 + 1).plan(
        hierarchy=(512, 8)
    )
    assert 0 < uneven.uneven < 0.01
    assert sum(stage.bytes for stage in uneven.stages) == pytest.approx(
        2 * 8 * (4096 * 1000 + 1) * 4095, rel=0.01
    )
    assert "ranks that do nearly the same were counted as one" in uneven.explain()


def test_numbers_of_ranks_and_elements_are_named() -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        planner.Composition.standard("all_reduce", 10**6, 12)  # type: ignore[misc, call-arg]
    assert planner.Composition.standard("all_reduce", ranks=4, count=12).ranks == 4


def test_given_parameters_are_simulated_on_as_many_nodes_as_the_ranks_need() -> None:
    plan = three_roots(12).plan(hierarchy=(3, 4))
    result = plan.simulate("frontier")
    assert (result.machine.nodes, result.machine.ranks_per_node) == (2, 8)
    assert result.time > 0
    with pytest.raises(ParameterError, match="no machine to simulate on"):
        plan.simulate()


def test_parameters_are_searched_for_and_reasons_given() -> None:
    plan = planner.plan_collective("all-gather", "delta", 1 << 22, ranks=8)
    assert plan.choice is not None
    assert plan.choice.runners_up
    assert plan.choice.time <= plan.choice.runners_up[0].time
    text = plan.explain()
    assert "structures estimated" in text
    assert "% of the bound" in text
    plan.check()
    composed = three_roots(8, 4096).plan(machine="delta")
    assert composed.choice is not None
    assert composed.simulate().time == pytest.approx(composed.choice.time)


@pytest.mark.parametrize(("suffix", "machine"), [("png", None), ("svg", "delta")])
def test_pictures_are_drawn_with_and_without_a_machine(
    suffix: str, machine: str | None, tmp_path: Path
) -> None:
    plan = planner.Composition.standard("all_reduce", ranks=8, count=4096).plan(hierarchy=(2, 4), depth=4)
    assert plan.draw(tmp_path / "folder" / f"plan.{suffix}", machine).stat().st_size > 5000
    with pytest.raises(ParameterError, match=r"the name must end in \.png, \.svg, \.pdf"):
        plan.draw(tmp_path / "plan.gif")


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"hierarchy": (3, 3)}, "ranks, but there are 8; the product must agree"),
        ({"hierarchy": "ternary"}, "hierarchy 'ternary'"),
        (
            {"hierarchy": (2, 4), "libraries": ("mpi", "mpi", "mpi")},
            "3 libraries for a hierarchy of 2 levels",
        ),
        ({"machine": "delta", "libraries": "gasnet"}, "machine 'delta' has no library 'gasnet'; it has"),
        ({"machine": "summit"}, "no machine 'summit'; jali knows"),
        ({"stripe": 9}, "stripe 9"),
        ({"ring": 3}, "ring|nodes"),
        ({"depth": -1}, "depth -1"),
        ({"stripe": 2, "stripe_weights": (1.0, 2.0)}, "2 stripe weights for 8 ranks"),
        ({"hierarchy": 4}, "hierarchy 4; give factors like"),
        ({"hierarchy": ()}, r"hierarchy \(\); give factors like"),
        ({"hierarchy": (2, 4.0)}, "a factor of hierarchy is a whole number, not 4.0"),
        ({"hierarchy": [[3, "5"]]}, "a group's size in hierarchy is a whole number, not '5'"),
        ({"stripe": True}, "stripe is a whole number, not True"),
        ({"ring": 2.0}, "ring is a whole number, not 2.0"),
        ({"depth": "x"}, "depth is a whole number, not 'x'"),
        ({"depth": 10**9}, "depth 1000000000: a pipeline has 1 to 65536 chunks"),
        ({"depth": 10**20}, "depth 100000000000000000000 is beyond all"),
        ({"scratch_limit": -1}, "scratch_limit is a number of bytes from 0, not -1"),
        ({"pack_below": 0.5}, "pack_below is a number of bytes from 0, not 0.5"),
        ({"libraries": 4}, "libraries are names like 'mpi', one or one for each level, not 4"),
        ({"libraries": [None]}, "libraries are names"),
        ({"stripe_weights": "12345678"}, "stripe_weights are real numbers"),
        ({"stripe_weights": [10**400] * 8}, "stripe_weights are finite"),
        ({"reproducible": "yes"}, "reproducible is True or False, not 'yes'"),
        ({"machine": 7}, "the path of a file is a text, not 7"),
    ],
)
def test_parameters_that_make_no_sense_are_refused_by_name(parameters: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        planner.Composition.standard("all_reduce", ranks=8, count=64).plan(**parameters)


def test_scratch_that_does_not_fit_says_how_much_would() -> None:
    plan = planner.Composition.standard("reduce", ranks=4, count=10_000).plan(scratch_limit=100)
    with pytest.raises(PlanError, match=r"rank 0: .*; allow more"):
        plan.schedule(0)


def test_plans_of_what_is_no_collective_size_or_rank_are_refused() -> None:
    for collective, size, more, message in (
        (3, 1 << 20, {}, "no collective '3'"),
        ("reduce", "x", {}, "size is a number of bytes below 2\\^50, not 'x'"),
        ("reduce", 1 << 20, {"root": 1.5}, "root is a whole number, not 1.5"),
        ("reduce", 1 << 20, {"ranks": 0}, "a plan for 0 ranks"),
    ):
        with pytest.raises(ParameterError, match=message):
            planner.plan_collective(collective, "delta", size, **more)
    plan = three_roots(1).plan()
    for wrong in (
        lambda: plan.schedule(0.5),
        lambda: plan.on(3),
        lambda: plan.draw(3),
        lambda: plan.replace(depth="x"),
    ):
        with pytest.raises(ParameterError, match="not 0.5|not on 3|not 3|not 'x'"):
            wrong()


def through_one(ranks: int, source: Any = None, leaves: Any = planner.ALL) -> None:
    c = planner.Composition(ranks)
    x, y = c.buffer("x", 4), c.buffer("y", 4, input=False)
    c.multicast(x if source is None else source, y, root=0, leaves=leaves)


@pytest.mark.parametrize(
    "wrong",
    ["x" * 100_000, "\udc80", ["y" * 100_000], b"ring", {"a": 1}],
    ids=("long", "no text", "list", "bytes", "dict"),
)
@pytest.mark.parametrize(
    "call",
    [
        lambda wrong: planner.Composition(2, wrong),
        lambda wrong: planner.Composition.standard(wrong, ranks=2, count=4),
        lambda wrong: planner.Composition.standard("reduce", ranks=2, count=4, form=wrong),
        lambda wrong: planner.Composition.standard("reduce", ranks=2, count=4, op=wrong),
        lambda wrong: planner.Composition.standard("reduce", ranks=2, count=wrong),
        lambda wrong: planner.Composition(2).buffer(wrong, 4),
        lambda wrong: planner.Composition(2).buffer("a", wrong),
        lambda wrong: planner.Composition(2).buffer("a", 4, parts=wrong),
        lambda wrong: through_one(2, leaves=wrong),
        lambda wrong: through_one(2, source=wrong),
        lambda wrong: planner.Plan(wrong, wrong),
        lambda wrong: planner.plan_collective(wrong, "delta", 64),
        lambda wrong: planner.plan_collective("reduce", "delta", 64, progress=wrong),
        lambda wrong: planner.plan_collective("reduce", "delta", 64, hierarchy=(16,), libraries=wrong),
    ],
)
def test_names_that_are_none_are_short_errors(call: Callable[[Any], object], wrong: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        call(wrong)
    assert len(str(caught.value)) < 500
    str(caught.value).encode()


@pytest.mark.parametrize("name", ["stripe", "ring", "depth"])
def test_none_of_something_is_refused_and_not_taken_for_the_default(name: str) -> None:
    with pytest.raises(PlanError, match=f"{name} 0: "):
        planner.Composition.standard("reduce", ranks=4, count=10).plan(**{name: 0})


def test_arrays_are_matched_with_buffers_by_name_and_type() -> None:
    plan = three_roots(1).plan()
    good = np.zeros(60), np.zeros(60)
    for arrays, message in (
        ({"y": good[0]}, "no buffer is named y; there are x, out"),
        ({"x": good[0]}, "buffer 'out' has 480 bytes on this rank, the array given for it has 0"),
        (
            {"x": good[0], "out": np.zeros(60, "f4")},
            "buffer 'out' holds fp64, the array given for it float32",
        ),
        ({"x": good[0], "out": good[0]}, "overlap"),
        ({"x": good[0], "out": "text"}, "takes an array of numbers, not a str"),
        ({"x": good[0], "out": np.zeros(60, object)}, "elements of type object cannot be sent"),
    ):
        with pytest.raises(ParameterError, match=message):
            plan.run(**arrays)
    with pytest.raises(ParameterError, match="buffer 'number 2' holds fp64, the array given for it int8"):
        plan.run(*good, np.zeros(60, np.int8))
    with pytest.raises(ParameterError, match="buffer 'x' is given twice, as number 0 and by its name"):
        plan.run(*good, x=good[0])
    with pytest.raises(ParameterError, match="composition takes 2 arrays, 3 were given"):
        plan.run(*good, np.zeros(60))
    with pytest.raises(ParameterError, match="a plan for 2 ranks cannot run on 1"):
        three_roots(2).plan().run(*good)


def test_a_plan_takes_whatever_has_memory_on_the_host_and_ends_what_it_started() -> None:
    plan, x = three_roots(1).plan(), np.arange(60.0)
    for given in (x.tolist(), memoryview(x), x.reshape(3, 20)):
        out = np.zeros(60)
        running = plan.start(given, out=out)
        running.wait()
        assert running.test()
        assert not running.running
        assert running is plan.on()
        assert running.plan is plan
        assert np.array_equal(out, x)


def test_a_plan_and_its_part_on_a_rank_go_together() -> None:
    plan, good = three_roots(1).plan(), (np.zeros(60), np.zeros(60))
    plan.run(*good)
    gone = weakref.ref(plan), weakref.ref(plan.on())
    del plan
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_replaced_parameters_keep_the_rest() -> None:
    plan = planner.Composition.standard("all_reduce", ranks=4, count=64).plan(hierarchy=(2, 2), depth=3)
    other = plan.replace(depth=5, libraries=["mpi"])
    assert (other.parameters.depth, other.parameters.hierarchy.describe()) == (5, "2 x 2")
    assert plan.parameters.depth == 3
    with pytest.raises(ParameterError, match="no parameter speed"):
        plan.replace(speed=3)


@pytest.mark.parametrize("name", planner.composition.NO_NAMES)
def test_keywords_of_runs_are_no_names_of_buffers(name):
    with pytest.raises(
        PlanError, match="another name than communicator and stream, which say how a plan runs"
    ):
        planner.Composition(2).buffer(name, 4)


def test_plans_of_operations_that_do_not_commute_keep_the_order_of_ranks() -> None:
    def later(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return np.where(b == 0, a, b)

    standard = planner.Composition.standard("all_reduce", ranks=6, count=11, op=later, commutative=False)
    own = planner.Composition(6)
    x, out = own.buffer("x", 11), own.buffer("out", 11, input=False)
    own.reduce(x, out, root=4, op=later, commutative=False)
    for c in (standard, own):
        for plan in (c.plan(hierarchy=(3, 2)), c.plan("delta"), c.plan(hierarchy="binary").replace(depth=2)):
            assert plan.parameters.reproducible
            plan.check()
        with pytest.raises(PlanError, match="does not commute.*reproducible=True"):
            c.plan().replace(reproducible=False)
    assert (
        not planner.Composition.standard("all_reduce", ranks=6, count=11, op=later)
        .plan()
        .parameters.reproducible
    )

    def run() -> list[float]:
        world = comm.current()
        mine, found = np.full(11, float(world.rank if world.rank < 5 else 0)), np.zeros(11)
        standard.plan(hierarchy=(2, 3)).on(world).run(mine, found)
        return found.tolist()

    assert comm.virtual_ranks(6, run) == [[4.0] * 11] * 6
