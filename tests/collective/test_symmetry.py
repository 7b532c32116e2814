"""Ranks that stand for others: the graph without schedules is theirs, and one part's time is that of the whole."""

import itertools
import random

import pytest

from jali import _core
from jali.planner.choice import FormParameters, choose, simulate_collective
from jali.planner.machine import Level, Library, LibraryLevel, Machine, Network

SYMMETRIC = [("all_reduce", "composed"), ("all_gather", "single"), ("reduce_scatter", "single"), ("all_to_all", "single")]  # fmt: skip
COLLECTIVES = ("broadcast", "reduce", "gather", "scatter", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")  # fmt: skip


def nodes_of_graph(graph):
    return [(*row[:7], sorted(row[7])) for row in graph.content]


@pytest.mark.short(2)
@pytest.mark.parametrize("seed", range(60))
def test_graph_of_a_plan_is_that_of_its_schedules(seed):
    draw = random.Random(seed)
    factors = [draw.choice([2, 3, 4]) for _ in range(draw.randint(1, 3))]
    parameters = FormParameters.of_factors(factors, ("",) * len(factors))
    ranks, collective = parameters.ranks, draw.choice(COLLECTIVES)
    count = draw.choice([1, 7, 1000, 12345, 1 << 18, 3 << 20])
    composition = _core.standard_composition(
        ranks,
        collective,
        draw.choice(_core.forms_of(collective)),
        "fp32",
        [count if collective in ("broadcast", "reduce", "all_reduce") else max(1, count // ranks)],
        root=draw.randrange(ranks),
    )
    plan = _core.PlanParameters(
        parameters.plan_parameters().hierarchy,
        libraries=[draw.choice("ab") for _ in factors],
        stripe=draw.randint(1, ranks),
        stripe_weights=[draw.choice([1.0, 2.0]) for _ in range(ranks)] if draw.random() < 0.3 else [],
        ring=draw.choice([1, factors[0]]),
        depth=draw.choice([1, 2, 3, 5, 8]),
        pack_below=draw.choice([64, 1024, 65536]),
        reproducible=draw.random() < 0.15,
    )
    direct, by_schedules = (_core.plan_graph(composition, plan, by) for by in (False, True))
    assert nodes_of_graph(direct) == nodes_of_graph(by_schedules)


def test_graph_of_a_plan_knows_tags_that_come_again():
    # More messages between two ranks than there are tags: 2^15.
    composition = _core.standard_composition(2, "broadcast", "single", "int8", [1 << 17])
    plan = _core.PlanParameters(_core.Hierarchy(2), depth=1 << 16, pack_below=1)
    direct, by_schedules = (_core.plan_graph(composition, plan, by) for by in (False, True))
    assert nodes_of_graph(direct) == nodes_of_graph(by_schedules)
    assert max(len(row[7]) for row in direct.content) > 0


def machine_of(draw, nodes):
    """A machine with any wires, and cards that serve ranks evenly or not."""
    levels = tuple(
        Level(f"level{k}", draw.choice([1, 2, 3, 4]), draw.choice(["pairs", "ports"]), draw.choice([20.0, 50.0]),
              draw.choice([float("inf"), 60.0]), 1.0)
        for k in range(draw.randint(1, 2))
    )  # fmt: skip
    ranks = 1
    for level in levels:
        ranks *= level.parts
    nics = draw.randint(1, ranks)
    network = Network(
        (25.0,) * nics, (20.0,) * nics, (draw.choice([30.0, 40.0]),) * nics, 2.0,
        tuple(draw.choice([k * nics // ranks, k % nics]) for k in range(ranks)), draw.choice([4, 1000]), 0.7,
    )  # fmt: skip
    at = {name: LibraryLevel(3.0, 1.0) for name in ("node", *(level.name for level in levels))}
    return Machine("any", nodes, network, levels, {"any": Library(at)}, 1000.0, 800.0, 5.0)


@pytest.mark.parametrize("seed", range(60))
def test_a_part_takes_as_long_as_the_whole(seed):
    draw = random.Random(1000 + seed)
    machine = machine_of(draw, draw.choice([2, 3, 4, 5, 6]))
    shape = [n for n in (machine.nodes, *(level.parts for level in machine.levels)) if n > 1]
    factors = draw.choice([shape, [machine.ranks], [machine.nodes, machine.ranks // machine.nodes]])
    parameters = FormParameters.of_factors(
        [n for n in factors if n > 1],
        ("any",) * len([n for n in factors if n > 1]),
        depth=draw.choice([1, 2, 4]),
    )
    collective, form = draw.choice(SYMMETRIC)
    count = 48 * machine.ranks * draw.choice([1, 64, 4096])
    composition = _core.standard_composition(
        machine.ranks, collective, form, "fp32", [count if collective == "all_reduce" else count // machine.ranks]
    )  # fmt: skip
    core, plan = machine.core(), parameters.plan_parameters()
    part, whole = (_core.simulate_plan(composition, plan, core, how) for how in ("exactly", "never"))
    assert part.exact
    assert part.result.time == pytest.approx(whole.result.time, rel=2e-3)
    assert part.result.transfers == whole.result.transfers
    assert part.result.levels == whole.result.levels
    path = part.result.critical_path
    assert path[0][5] == 0
    assert path[-1][6] == part.result.time
    for before, after in itertools.pairwise(path):
        assert after[5] == pytest.approx(before[6], rel=1e-9)
        assert {before[1], before[2]} & {after[1], after[2]} - {-1}, (before, after)


@pytest.mark.parametrize("collective", ["broadcast", "reduce", "gather", "scatter"])
def test_plans_with_a_root_are_simulated_rank_by_rank(collective):
    machine = Machine.load("perlmutter")
    composition = _core.standard_composition(16, collective, "single", "fp32", [1 << 20])
    plan = FormParameters.of_factors((4, 4), ("nccl", "ipc"), depth=4).plan_parameters()
    for how in ("exactly", "everywhere"):
        simulated = _core.simulate_plan(composition, plan, machine.core(), how)
        assert simulated.planned == 16
        assert simulated.exact


def test_tiles_that_share_cards_unevenly_are_distinguished():
    machine = Machine.load("aurora", nodes=4)
    composition = _core.standard_composition(48, "all_gather", "single", "fp32", [1 << 20])
    plan = FormParameters.of_factors((4, 6, 2), ("mpi", "ipc", "ipc"), depth=4).plan_parameters()
    part, whole = (
        _core.simulate_plan(composition, plan, machine.core(), how) for how in ("exactly", "never")
    )
    assert 12 < part.planned < 48
    assert part.result.time == pytest.approx(whole.result.time, rel=1e-6)


def exhaustive(machine, collective, size):
    """The least time over all factorisations, libraries, stripes, rings and depths: an independent search."""
    best = float("inf")
    node = machine.ranks_per_node
    shapes = {
        (machine.ranks,),
        (machine.nodes, node),
        (2, 2, node // 2),
        (machine.nodes, 2, node // 2),
    }
    for factors in shapes:
        between = [k for k in range(len(factors)) if k == 0 or _product(factors[k:]) > node]
        names = [
            machine.libraries_at("node" if k in between else machine.level_names[1])
            for k in range(len(factors))
        ]
        for libraries, stripe, ring, depth, form in itertools.product(
            itertools.product(*names), (1, node), (1, machine.nodes), (1, 2, 8, 32),
            [f for f in _core.forms_of(collective) if f != "pairwise"],
        ):  # fmt: skip
            parameters = FormParameters.of_factors(
                factors, libraries, form=form, stripe=stripe, ring=ring, depth=depth
            )
            try:
                best = min(best, simulate_collective(machine, collective, size, parameters).time)
            except (ValueError, RuntimeError):
                continue
    return best


def _product(numbers):
    result = 1
    for n in numbers:
        result *= n
    return result


@pytest.mark.full
@pytest.mark.parametrize("size", [65536.0, 64e6])
@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "all_to_all"])
def test_choice_is_as_good_as_an_exhaustive_search(collective, size):
    machine = Machine.load("delta", nodes=2)
    assert choose(machine, collective, size).time <= 1.01 * exhaustive(machine, collective, size)


def test_a_thousand_gpus_are_searched_and_the_choice_is_exact():
    machine = Machine.load("perlmutter", nodes=256)
    said = []
    choice = choose(machine, "all_reduce", float(1 << 30), progress=said.append)
    assert choice.result.exact
    assert choice.result.transfers > 100_000
    assert said
    plain = FormParameters.of_factors((2,) * 8 + (4,), ("nccl",) * 8 + ("ipc",), form="composed", depth=16)
    assert choice.time <= simulate_collective(machine, "all_reduce", float(1 << 30), plain).time


def test_parts_that_differ_a_little_make_a_labelled_estimate():
    machine = Machine.load("perlmutter", nodes=64)
    parameters = FormParameters.of_factors((64, 4), ("nccl", "ipc"), form="composed")
    even = simulate_collective(machine, "all_reduce", 4.0 * 256 * 1000, parameters)
    uneven = simulate_collective(machine, "all_reduce", 4.0 * (256 * 1000 + 100), parameters)
    assert even.exact
    assert not uneven.exact
    assert uneven.time == pytest.approx(even.time, rel=0.01)
