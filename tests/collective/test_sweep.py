"""Every plan of the sweep is proved by the checker, and gives on random data what the composition defines.

The sweep: eight collectives, in all their forms, on all hierarchies of 8 and 12 ranks, stripe 1, 2, 4, ring 1, 2,
4, depth 1, 3, 8, 1, 3, 1021 or 1024 elements per rank, root 0 or 5. Here a sample of fixed seed; all of it under
`full`. Plans run on virtual ranks in one thread, in an order that changes from plan to plan.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pytest
from plans import plan, random_inputs

from jali import _core
from jali.errors import PlanError


class Case(NamedTuple):
    collective: str
    form: str
    ranks: int
    count: int
    root: int
    factors: tuple[int, ...]
    stripe: int
    ring: int
    depth: int


def factorisations(ranks: int) -> list[tuple[int, ...]]:
    """All ways to write `ranks` as an ordered product of factors above 1."""
    if ranks == 1:
        return [()]
    return [
        (factor, *rest)
        for factor in range(2, ranks + 1)
        if ranks % factor == 0
        for rest in factorisations(ranks // factor)
    ]


COLLECTIVES = [
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "scatter",
    "gather",
    "all_to_all",
]


def sweep() -> Iterable[Case]:
    """Sorted so that neighbours share data."""
    for collective in COLLECTIVES:
        for form, ranks, count, root in itertools.product(
            _core.forms_of(collective), (8, 12), (1, 3, 1021, 1024), (0, 5)
        ):
            for factors, stripe, ring, depth in itertools.product(
                factorisations(ranks), (1, 2, 4), (1, 2, 4), (1, 3, 8)
            ):
                yield Case(collective, form, ranks, count, root, factors, stripe, ring, depth)


class Data:
    """Inputs and expected results of one composition, kept while neighbours need them."""

    def __init__(self, case: Case) -> None:
        whole = case.collective in ("broadcast", "reduce", "all_reduce")
        counts = [case.count * case.ranks if whole else case.count]
        self.composition = _core.standard_composition(
            case.ranks, case.collective, case.form, "int64", counts, root=case.root
        )
        first = plan(self.composition, [case.ranks])
        self.inputs = [mine[:-1] for mine in random_inputs(self.composition, first, case.count)]
        self.expected = [[buffer.copy() for buffer in mine] for mine in self.inputs]
        self.composition.evaluate(self.expected)


def wrong(case: Case, data: Data, number: int, **parameters) -> str | None:
    """What is wrong with one plan, or None."""
    all_ranks = plan(
        data.composition,
        list(case.factors),
        stripe=case.stripe,
        ring=case.ring,
        depth=case.depth,
        **parameters,
    )
    try:
        _core.check_plan(
            data.composition, all_ranks, hierarchy=_core.Hierarchy(case.ranks, list(case.factors))
        )
    except PlanError as error:
        return f"{case}: {error}"
    memory = [
        [*(buffer.copy() for buffer in mine), np.full(-(-schedule.buffers[-1][1] // 8), -(1 << 62) + rank)]
        for rank, (mine, schedule) in enumerate(zip(data.inputs, all_ranks, strict=True))
    ]
    order = ("random", "newest", "oldest")[number % 3]
    starved = number % (case.ranks + 1) - 1
    _core.VirtualRanks(all_ranks).run(
        memory, order=order, seed=number, starved=starved, buffered=number % 2 == 1
    )
    for rank, (mine, right) in enumerate(zip(memory, data.expected, strict=True)):
        for buffer, expected in zip(mine, right, strict=False):
            if not np.array_equal(buffer, expected):
                return f"{case}: rank {rank} differs from element {np.argmax(buffer != expected)} on"
    return None


def run_all(cases: Iterable[Case]) -> int:
    data, key, number = None, None, -1
    for number, case in enumerate(cases):
        if data is None or case[:5] != key:
            data, key = Data(case), case[:5]
        problem = wrong(case, data, number)
        assert problem is None, problem
    return number + 1


def test_some_plans_of_the_sweep_are_proved_and_run_right():
    """As the long run does with all of them."""
    cases = list(sweep())
    chosen = sorted(random.Random(2024).sample(range(len(cases)), 600))
    assert run_all(cases[k] for k in chosen) == 600


@pytest.mark.full
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_whole_sweep_is_proved_and_runs_right(collective):
    assert run_all(case for case in sweep() if case.collective == collective) >= 12 * 27 * 8


def test_plans_with_little_scratch_are_proved_and_run_right():
    """Places are used again, which is where ranks could come to wait for each other in a circle."""
    dice = random.Random(7)
    cases = [case for case in sweep() if case.count in (3, 1021)]
    proved = 0
    for number, case in enumerate(dice.sample(cases, 60)):
        data = Data(case)
        how = {"stripe": case.stripe, "ring": case.ring, "depth": case.depth}
        most = max(s.buffers[-1][1] for s in plan(data.composition, list(case.factors), **how))
        for sixteenths in (4, 6, 8, 10, 12):
            limit = most * sixteenths // 16
            try:
                plan(data.composition, list(case.factors), scratch_limit=limit, **how)
            except PlanError:
                continue  # it needs more
            assert wrong(case, data, number, scratch_limit=limit) is None
            proved += most > 0
    assert proved > 60


@pytest.mark.parametrize("type", ["float32", "float64", "float16"])
def test_reproducible_plans_give_the_bits_of_the_direct_evaluation(type):
    name = {"float16": "fp16", "float32": "fp32", "float64": "fp64"}[type]
    dice = np.random.default_rng(3)
    for number in range(12):
        collective, form = [("all_reduce", "composed"), ("reduce_scatter", "single"), ("reduce", "composed")][
            number % 3
        ]
        composition = _core.standard_composition(
            12,
            collective,
            form,
            name,
            [60],
            operation=("sum", "avg")[number % 2],
            root=5 if collective == "reduce" else 0,
        )
        factors = list(factorisations(12)[number % 8])
        all_ranks = plan(
            composition,
            factors,
            reproducible=True,
            depth=1 + number % 3,
            stripe=1 + number % 2,
            ring=(1, 2, 4)[number % 3],
        )
        _core.check_plan(composition, all_ranks, reproducible=True)
        expected, memory = [], []
        for schedule in all_ranks:
            sizes = [size // np.dtype(type).itemsize for _, size in schedule.buffers]
            mine = [dice.normal(size=size).astype(type) for size in sizes]
            memory.append(mine)
            expected.append([buffer.copy() for buffer in mine[:-1]])
        composition.evaluate(expected)
        _core.VirtualRanks(all_ranks).run(memory, seed=number)
        for mine, right in zip(memory, expected, strict=True):
            for buffer, exact in zip(mine, right, strict=False):
                assert buffer.tobytes() == exact.tobytes()
