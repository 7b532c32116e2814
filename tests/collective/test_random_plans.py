"""Whatever the composition and the parameters of its plan: executed, proved and evaluated, it is the same."""

from __future__ import annotations

from functools import reduce as fold
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import Drawn, Memory, compositions, parameters

from jali import _core
from jali.comm import current, virtual_ranks
from jali.planner import Composition

RANDOM = settings(
    deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
SOME, MANY = settings(RANDOM, max_examples=60), settings(RANDOM, max_examples=2000)


def plan(drawn: Drawn, how: _core.PlanParameters) -> list[_core.Schedule]:
    return [_core.plan_rank(drawn.core, how, rank) for rank in range(drawn.core.ranks)]


def executed(drawn: Drawn, schedules: list[_core.Schedule], memory: Memory, **how: Any) -> Memory:
    """The memory of all ranks after running the schedules in this process; scratch begins as garbage."""
    result = [[array.copy() for array in of_rank] for of_rank in memory]
    scratch = [np.full(schedule.buffers[-1][1], 0xA5, np.uint8) for schedule in schedules]
    with_scratch = [
        [*(array.view(np.uint8) for array in of_rank), more]
        for of_rank, more in zip(result, scratch, strict=True)
    ]
    _core.VirtualRanks(schedules).run(with_scratch, **how)
    return result


def evaluated(drawn: Drawn, memory: Memory) -> Memory:
    result = [[array.copy() for array in of_rank] for of_rank in memory]
    drawn.composition.evaluate(result)
    return result


def judge(drawn: Drawn, data: st.DataObject, reproducible: bool | None) -> None:
    drawn.composition.check()
    how = data.draw(parameters(drawn.core, reproducible))
    memory = drawn.memory(data.draw(st.integers(0, 2**32)))
    expected = evaluated(drawn, memory)
    schedules = plan(drawn, how)
    _core.check_plan(drawn.core, schedules, reproducible=how.reproducible)
    order = data.draw(st.sampled_from(["random", "oldest", "newest"]))
    starved = data.draw(st.integers(-1, drawn.core.ranks - 1))
    for seed in range(2):
        drawn.same(executed(drawn, schedules, memory, order=order, seed=seed, starved=starved), expected)


@SOME
@given(compositions())
def test_random_compositions_are_free_of_races(drawn: Drawn) -> None:
    drawn.composition.check()


@SOME
@given(compositions(), st.data())
def test_plans_of_random_compositions_do_what_evaluation_does(drawn: Drawn, data: st.DataObject) -> None:
    judge(drawn, data, None)


@SOME
@given(compositions(exact=False), st.data())
def test_reproducible_plans_give_the_bits_of_the_evaluation(drawn: Drawn, data: st.DataObject) -> None:
    judge(drawn, data, True)


@pytest.mark.full
@MANY
@given(compositions(most_ranks=13, most_count=40), st.data())
def test_plans_of_many_random_compositions_do_what_evaluation_does(drawn: Drawn, data: st.DataObject) -> None:
    judge(drawn, data, None)


@pytest.mark.full
@MANY
@given(compositions(exact=False, most_ranks=13, most_count=40), st.data())
def test_many_reproducible_plans_give_the_bits_of_the_evaluation(drawn: Drawn, data: st.DataObject) -> None:
    judge(drawn, data, True)


def later_of_equal_keys(a: Any, b: Any) -> Any:
    """Associative, not commutative: of two numbers with the same tens the later, else the larger."""
    return np.where(a // 10 > b // 10, a, b)


@pytest.mark.parametrize("reproducible", [True, False])
def test_plans_run_operations_written_in_python(reproducible: bool) -> None:
    c = Composition.standard(
        "all_reduce", ranks=4, count=23, dtype="int64", op=later_of_equal_keys if reproducible else np.fmax
    )
    how = _core.PlanParameters(_core.Hierarchy(4, [2, 2]), depth=2, reproducible=reproducible)
    send = [np.random.default_rng(rank).integers(0, 100, 23) for rank in range(4)]

    def rank_program() -> npt.NDArray[np.int64]:
        here = current()
        schedule = _core.plan_rank(c.core, how, here.rank)
        recv, scratch = np.zeros(23, np.int64), np.zeros(schedule.buffers[-1][1], np.uint8)
        schedule.run([send[here.rank], recv, scratch], here.core)
        return recv

    stacked = np.array(send)
    expected = fold(later_of_equal_keys, send) if reproducible else stacked.max(axis=0)
    for recv in virtual_ranks(4, rank_program):
        np.testing.assert_array_equal(recv, expected)


def test_error_of_an_operation_in_a_plan_reaches_the_caller() -> None:
    def fail(a: Any, b: Any) -> Any:
        raise ArithmeticError("cannot be combined")

    c = Composition.standard("reduce", ranks=3, count=5, dtype="float32", op=fail, root=1)
    how = _core.PlanParameters(_core.Hierarchy(3))

    def rank_program() -> None:
        here = current()
        schedule = _core.plan_rank(c.core, how, here.rank)
        arrays = [np.zeros(size, np.uint8) for _, size in schedule.buffers]
        schedule.run(arrays, here.core)

    with pytest.raises(ArithmeticError, match="cannot be combined"):
        virtual_ranks(3, rank_program)
