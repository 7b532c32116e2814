"""The simulator against closed forms, bounds and conservation laws."""

import dataclasses
import itertools
import math

import pytest

from jali import _core
from jali.planner.bounds import bound, ring_time, tree_time
from jali.planner.choice import FormParameters, simulate_collective
from jali.planner.machine import Library, LibraryLevel, Machine
from jali.planner.simulation import simulate_schedules

INF = math.inf


def line(nodes, bandwidth=25e9, gap=0.0, duplex=INF):
    """One rank per node, a card each."""
    return _core.Machine(
        "line", nodes, [], [(bandwidth, bandwidth, duplex, 2**30, 1.0)], [0], 0.0,
        [("any", INF, [(True, 0.0, gap, INF, INF, 1.0)])], INF, INF, 0.0,
    )  # fmt: skip


def ring(nodes, depth, size):
    graph = _core.TransferGraph(nodes)
    for chunk in range(depth):
        needs = []
        for hop in range(nodes - 1):
            needs = [graph.add_transfer(hop, hop + 1, size / depth, needs, (hop, chunk, 0))]
    graph.finish()
    return graph


def tree(nodes, depth, size):
    graph = _core.TransferGraph(nodes)
    for chunk in range(depth):
        have = {0: []}
        for stage in range(nodes.bit_length() - 1):
            step = nodes >> (stage + 1)
            for rank in list(have):
                needs = have[rank]
                have[rank + step] = [
                    graph.add_transfer(rank, rank + step, size / depth, needs, (stage, chunk, stage))
                ]
    graph.finish()
    return graph


@pytest.mark.parametrize("nodes", [4, 8, 16])
@pytest.mark.parametrize("depth", [1, 3, 64])
@pytest.mark.parametrize("latency", [0.0, 1e-5, 1e-2])
def test_ring_and_tree_cost_what_the_papers_equations_say(nodes, depth, latency):
    machine, size = line(nodes, gap=latency), 1e9
    ours = _core.simulate_graph(ring(nodes, depth, size), machine).time
    assert ours == pytest.approx(ring_time(size, nodes, depth, 25e9, latency, inside=False), rel=1e-3)
    ours = _core.simulate_graph(tree(nodes, depth, size), machine).time
    assert ours == pytest.approx(tree_time(size, nodes, depth, 25e9, latency, inside=False), rel=1e-3)


@pytest.mark.parametrize("depth", [1, 4, 32, 256])
@pytest.mark.parametrize("latency", [0.0, 5.0])
@pytest.mark.parametrize("topology", ["ring", "tree"])
def test_planned_broadcast_costs_what_the_papers_equations_say(depth, latency, topology):
    # Two ranks and two cards per node. A stage inside a node moves half a piece; with a wire of one card's bandwidth
    # it takes what the equations say, d / (k B m). Two stages leave the root by that wire: a deep ring, which sends
    # every piece between nodes only once, needs one of twice the bandwidth, and then the stages take half as long.
    wire = 50.0 if topology == "ring" and depth > 1 else 25.0
    plain = Machine.load("perlmutter").ideal()
    at = LibraryLevel(gap=latency)
    machine = dataclasses.replace(
        plain,
        network=dataclasses.replace(
            plain.network, rated=(25.0,) * 2, bandwidth=(25.0,) * 2, duplex=(INF,) * 2, binding=(0, 1)
        ),
        levels=(dataclasses.replace(plain.levels[0], parts=2, wiring="pairs", bandwidth=wire),),
        libraries={"any": Library({"node": at, "gpu": at})},
    )
    size, alpha = 4e9, latency * 1e-6
    inside = 2 * (alpha + size / (2 * depth * wire * 1e9))
    if topology == "ring":
        parameters = FormParameters.of_factors((4, 2), ("any", "any"), stripe=2, ring=4, depth=depth)
        between, whole = (ring_time(size, 4, depth, 50e9, alpha, inside=i) for i in (False, True))
    else:
        parameters = FormParameters.of_factors((2, 2, 2), ("any",) * 3, stripe=2, depth=depth)
        between, whole = (tree_time(size, 4, depth, 50e9, alpha, inside=i) for i in (False, True))
    time = simulate_collective(machine, "broadcast", size, parameters).time
    assert time == pytest.approx(between + inside, rel=0.05)
    if wire == 25.0 or depth >= 32:
        assert time == pytest.approx(whole, rel=0.05)


def saturating(machine, collective):
    """Parameters that use all cards alike, with deep pipelines where a stage waits for another."""
    node, names = machine.ranks_per_node, tuple(machine.libraries)
    library = next(n for n in names if "node" in machine.libraries[n].at)
    inside = next(n for n in names if machine.levels[0].name in machine.libraries[n].at)
    factors, libraries = (machine.nodes, node), (library, inside)
    form = {"all_reduce": "composed", "scatter": "mirrored"}.get(collective, "single")
    if collective in ("broadcast", "reduce"):
        return FormParameters.of_factors(factors, libraries, stripe=node, ring=machine.nodes, depth=256)
    if collective == "all_to_all":
        return FormParameters.of_factors((machine.ranks,), (library,))
    return FormParameters.of_factors(
        factors, libraries, form=form, depth=64 if collective == "all_reduce" else 1
    )


@pytest.mark.parametrize("name", ["delta", "perlmutter", "frontier"])
@pytest.mark.parametrize(
    "collective",
    ["broadcast", "reduce", "gather", "scatter", "all_gather", "reduce_scatter", "all_reduce", "all_to_all"],
)
def test_bounds_are_reached_without_latency_and_at_depth(name, collective):
    machine = Machine.load(name).ideal()
    result = simulate_collective(machine, collective, 64e9, saturating(machine, collective))
    assert 0.98 <= result.fraction_of_bound <= 1.0001


@pytest.mark.parametrize("collective", ["broadcast", "all_gather", "all_to_all"])
def test_equal_shares_reach_three_quarters_of_auroras_bound(collective):
    machine = Machine.load("aurora").ideal()
    result = simulate_collective(machine, collective, 64e9, saturating(machine, collective))
    assert result.throughput == pytest.approx(bound(machine, collective, shares="equal"), rel=0.02)


def test_flows_share_a_link_max_min_fairly():
    # Two cards of 1 and 10 GB/s per node: rank 0 uses the slow one, ranks 1 and 2 share the fast one.
    core = _core.Machine(
        "shared", 2, [("gpu", 3, False, INF, INF, 0.0)], [(1e9, 1e9, INF, 2**30, 1.0), (10e9, 10e9, INF, 2**30, 1.0)],
        [0, 1, 1], 0.0, [("any", INF, [(True, 0.0, 0.0, INF, INF, 1.0)] * 2)], INF, INF, 0.0,
    )  # fmt: skip
    graph = _core.TransferGraph(6)
    graph.add_transfer(0, 4, 1e9)  # at 1 GB/s: ends after 1 s, into the fast card
    graph.add_transfer(1, 4, 4.5e9)  # the other two at 4.5 GB/s each: end after 1 s
    graph.add_transfer(2, 4, 4.5e9)
    graph.finish()
    result = _core.simulate_graph(graph, core)
    assert result.time == pytest.approx(1.0, rel=1e-3)
    for *_, begin, end, _bytes in result.critical_path:
        assert (begin, end) == (0.0, pytest.approx(1.0, rel=1e-3))


def test_rest_of_a_link_goes_to_those_who_can_use_it():
    # Two messages leave one card; one of them enters a card with half the rate. The other gets the rest, not half.
    core = _core.Machine(
        "rest", 3, [], [(10e9, 10e9, INF, 2**30, 1.0)], [0], 0.0,
        [("slow", INF, [(True, 0.0, 0.0, 2e9, INF, 1.0)]), ("fast", INF, [(True, 0.0, 0.0, INF, INF, 1.0)])], INF, INF, 0.0,
    )  # fmt: skip
    graph = _core.TransferGraph(3)
    graph.add_transfer(0, 1, 2e9, library="slow")
    graph.add_transfer(0, 2, 8e9, library="fast")
    graph.finish()
    assert _core.simulate_graph(graph, core).time == pytest.approx(1.0, rel=1e-3)


def test_earlier_chunk_leaves_first():
    graph = _core.TransferGraph(3)
    graph.add_transfer(0, 1, 25e9, mark=(0, 1, 0))
    graph.add_transfer(0, 2, 25e9, mark=(0, 0, 0))
    last = graph.add_transfer(2, 1, 1.0, needs=[1], mark=(1, 0, 0))
    assert last == 2
    graph.finish()
    result = _core.simulate_graph(graph, line(3))
    stages = {stage: (begin, end) for stage, begin, end, *_ in result.stages}
    assert stages[1][0] == pytest.approx(1.0, rel=1e-6)
    assert result.time == pytest.approx(2.0, rel=1e-3)


def test_both_directions_share_a_duplex_limit():
    graph = _core.TransferGraph(2)
    graph.add_transfer(0, 1, 10e9)
    graph.add_transfer(1, 0, 10e9)
    graph.finish()
    assert _core.simulate_graph(graph, line(2, 10e9)).time == pytest.approx(1.0)
    assert _core.simulate_graph(graph, line(2, 10e9, duplex=10e9)).time == pytest.approx(2.0, rel=1e-3)


def test_crowd_at_a_card_slows_it():
    core = _core.Machine(
        "crowd",
        6,
        [],
        [(10e9, 10e9, INF, 3, 0.5)],
        [0],
        0.0,
        [("any", INF, [(True, 0.0, 0.0, INF, INF, 1.0)])],
        INF,
        INF,
        0.0,
    )
    for senders, time in ((3, 3.0), (5, 10.0)):
        graph = _core.TransferGraph(6)
        for sender in range(senders):
            graph.add_transfer(1 + sender, 0, 10e9)
        graph.finish()
        # Equal messages end together, so that a crowd stays one to the end.
        assert _core.simulate_graph(graph, core).time == pytest.approx(time, rel=1e-3)


def test_a_rank_computes_one_thing_at_a_time():
    core = _core.Machine(
        "work",
        2,
        [],
        [(1e9, 1e9, INF, 2**30, 1.0)],
        [0],
        0.0,
        [("any", INF, [(True, 0.0, 0.0, INF, INF, 1.0)])],
        2e9,
        1e9,
        0.25,
    )
    graph = _core.TransferGraph(2)
    graph.add_work(0, 1e9, False)  # 0.25 + 0.5 s
    graph.add_work(0, 1e9, True)  # 0.25 + 1 s
    graph.add_work(1, 1e9, True)
    graph.finish()
    assert _core.simulate_graph(graph, core).time == pytest.approx(2.0)


def with_memory(bandwidth=10e9, memory=100e9):
    """Two hosts of one rank, whose kernels and messages share its memory."""
    return _core.Machine(
        "memories", 2, [], [(bandwidth, bandwidth, INF, 2**30, 1.0)], [0], 0.0,
        [("any", INF, [(True, 0.0, 0.0, INF, INF, 1.0)])], INF, INF, 0.0, memory,
    )  # fmt: skip


def test_kernels_side_by_side_share_a_rank_and_those_of_other_ranks_do_not():
    graph = _core.TransferGraph(2)
    short, long = graph.add_kernel(0, 1.0), graph.add_kernel(0, 3.0)
    other = graph.add_kernel(1, 3.0)
    graph.finish()
    found = _core.simulate_graph(graph, with_memory())
    assert [found.end[k] for k in (short, long, other)] == pytest.approx([2.0, 4.0, 3.0])
    assert found.time == pytest.approx(4.0)


def test_the_more_urgent_kernel_goes_first_and_the_other_takes_what_is_left():
    graph = _core.TransferGraph(1)
    later = graph.add_kernel(0, 3.0, [], (2, 0, 0))
    first = graph.add_kernel(0, 1.0, [], (1, 0, 0))
    graph.finish()
    found = _core.simulate_graph(graph, with_memory())
    assert (found.end[first], found.end[later]) == pytest.approx((1.0, 4.0))


def test_a_message_takes_its_part_of_the_memory_at_both_ends():
    graph = _core.TransferGraph(2)
    kernels = [graph.add_kernel(rank, 2.0, [], (1, 0, 0)) for rank in range(2)]
    message = graph.add_transfer(0, 1, 10e9, [], (0, 0, 0))
    graph.finish()
    found = _core.simulate_graph(graph, with_memory())
    assert found.end[message] == pytest.approx(1.0)  # its link, not the memory, decides
    assert [found.end[k] for k in kernels] == pytest.approx([2.1, 2.1])


def test_a_delay_uses_nothing_up_and_a_kernel_without_a_memory_takes_its_time():
    graph = _core.TransferGraph(1)
    kernel, delay = graph.add_kernel(0, 2.0), graph.add_delay(0, 1.0)
    after = graph.add_kernel(0, 1.0, [kernel, delay])
    graph.finish()
    for memory, expected in ((100e9, 3.0), (INF, 3.0)):
        found = _core.simulate_graph(graph, with_memory(memory=memory))
        assert (found.begin[after], found.time) == pytest.approx((2.0, expected))
        assert [kind for kind, *_ in found.critical_path] == ["kernel", "kernel"]
    with pytest.raises(RuntimeError, match="rank 3 of 1 works"):
        graph.add_delay(3, 1.0)


def test_transfers_that_wait_for_each_other_are_reported():
    # Each rank receives before it sends.
    def schedule_of(rank):
        schedule = _core.Schedule()
        buffer = schedule.add_buffer("data", 16, True)
        got = schedule.add_receive("from", (buffer, 0, 8), 1 - rank, 0)
        schedule.add_send("to", (buffer, 8, 8), 1 - rank, 0, [(got, 0)])
        return schedule

    with pytest.raises(RuntimeError, match="wait for each other"):
        simulate_schedules(schedule_of, 2, Machine.load("delta"))


def test_send_without_its_receive_is_reported():
    def schedule_of(rank):
        schedule = _core.Schedule()
        buffer = schedule.add_buffer("data", 16, True)
        if rank == 0:
            schedule.add_send("to", (buffer, 8, 8), 1, 0)
        return schedule

    with pytest.raises(RuntimeError, match="rank 0 sends to rank 1"):
        simulate_schedules(schedule_of, 2, Machine.load("delta"))


def test_bytes_between_nodes_are_those_of_the_algorithm():
    machine = Machine.load("perlmutter")
    size = 16 * 1024.0 * 1024
    flat = simulate_collective(machine, "broadcast", size, FormParameters.of_factors((16,), ("nccl",)))
    nested = simulate_collective(
        machine, "broadcast", size, FormParameters.of_factors((4, 4), ("nccl", "ipc"))
    )
    assert flat.levels["node"][0] == 12 * size
    assert nested.levels["node"][0] == 3 * size
    assert flat.levels["gpu"][0] == 3 * size
    assert nested.levels["gpu"][0] == 12 * size
    assert nested.bottleneck == "node 0 NIC 0 out"


def test_critical_path_has_no_gaps_and_ends_with_the_plan():
    machine = Machine.load("frontier")
    parameters = FormParameters.of_factors(
        (2, 2, 4, 2), ("mpi", "mpi", "ipc", "ipc"), depth=4, form="composed"
    )
    result = simulate_collective(machine, "all_reduce", 1e8, parameters)
    path = result.critical_path
    assert path[0].begin == 0
    assert path[-1].end == result.time
    for before, after in itertools.pairwise(path):
        assert after.begin == pytest.approx(before.end, rel=1e-9)


def test_plans_that_look_alike_give_the_same_time_as_planning_every_rank():
    parameters = FormParameters.of_factors(
        (2,) * 5 + (4,), ("nccl",) * 5 + ("ipc",), depth=2, form="composed"
    )
    machine = Machine.load("perlmutter", nodes=32)
    composition = _core.standard_composition(128, "all_reduce", "composed", "fp32", [1 << 28])
    alike = _core.simulate_plan(composition, parameters.plan_parameters(), machine.core())
    assert alike.exact
    assert alike.planned < 16
    every = simulate_schedules(
        lambda rank: _core.plan_rank(composition, parameters.plan_parameters(), rank), 128, machine, 1e9
    )
    assert alike.result.time == pytest.approx(every.time, rel=1e-6)
    assert alike.result.transfers == every.transfers
    whole = _core.simulate_plan(composition, parameters.plan_parameters(), machine.core(), "never")
    assert whole.planned == 128
    assert whole.result.time == pytest.approx(every.time, rel=1e-9)
    assert [link for link, *_ in alike.result.links] == [link for link, *_ in whole.result.links]
    for ours, theirs in zip(alike.result.links, whole.result.links, strict=True):
        assert ours[1:] == pytest.approx(theirs[1:], rel=1e-3)
    assert alike.result.levels == whole.result.levels


@pytest.mark.full
@pytest.mark.timeout(600)
def test_all_reduce_of_2048_gpus_is_simulated():
    machine = Machine.load("perlmutter", nodes=512)
    parameters = FormParameters.of_factors(
        (2,) * 9 + (4,), ("nccl",) * 9 + ("ipc",), depth=16, form="composed"
    )
    result = simulate_collective(machine, "all_reduce", 8.6e9, parameters)
    assert result.transfers > 700_000
    assert 0.3 < result.fraction_of_bound < 1
