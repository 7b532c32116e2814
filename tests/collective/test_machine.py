"""Machine descriptions: what comes with jali loads, what is wrong is named by file and key, links are where they should be."""

import math
from types import SimpleNamespace

import pytest

from jali import comm
from jali.errors import ParameterError, PlanError
from jali.planner import bounds, measure
from jali.planner.choice import choose
from jali.planner.machine import Machine, shipped

GOOD = """
name = "small"
nodes = 2
[network]
nics = 2
rated = 10.0
latency = 1.0
[[level]]
name = "gpu"
parts = 4
wiring = "pairs"
bandwidth = 50.0
[library.any.node]
[library.any.gpu]
"""


def write(tmp_path, text):
    path = tmp_path / "machine.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["aurora", "delta", "frontier", "h100x8", "h200x8", "perlmutter"])
def test_shipped_machine_loads(name):
    machine = Machine.load(name)
    assert machine.name == name
    assert name in shipped()
    assert machine.core().ranks == machine.ranks


def test_number_of_ranks_follows_the_nodes():
    assert Machine.load("frontier", nodes=256).ranks == 2048
    with pytest.raises(ParameterError, match="nodes = 0"):
        Machine.load("frontier", nodes=0)


def test_unknown_machine_is_named_with_those_that_exist():
    with pytest.raises(ParameterError, match=r"no machine 'fronteer'; jali knows aurora, delta"):
        Machine.load("fronteer")


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ("rated = 10.0", "rate = 10.0", r"network\.rate: unknown key"),
        ("rated = 10.0", "rated = 0.0", r"network\.rated: 0\.0 must be positive"),
        ("rated = 10.0", "rated = [1.0, 2.0, 3.0]", r"network\.rated: 3 numbers for 2 NICs"),
        ("nics = 2", "nics = true", r"network\.nics: True"),
        ("latency = 1.0", "", r"network\.latency: missing"),
        ("latency = 1.0", 'latency = 1.0\nbinding = "random"', r"network\.binding: 'random'"),
        (
            "latency = 1.0",
            "latency = 1.0\nbinding = [0, 1, 2, 0]",
            r"network\.binding\[2\]: 2; NICs are 0 to 1",
        ),
        ("latency = 1.0", "latency = 1.0\ncrowded = 1.5", r"network\.crowded: 1\.5; at most 1"),
        ('wiring = "pairs"', 'wiring = "mesh"', r"level\[0\]\.wiring: 'mesh'"),
        ("[library.any.gpu]", "", r"no library works at level 'gpu'"),
        ("[library.any.gpu]", "[library.any.rack]", r"library\.any\.rack: unknown key"),
        ("[library.any.gpu]", "[library.any.gpu]\nlatency = -1.0", r"library\.any\.gpu\.latency: -1\.0"),
        ('name = "small"', 'name = "small" nonsense', r"machine\.toml is not TOML: "),
    ],
)
def test_mistake_in_a_file_is_named(tmp_path, before, after, key):
    assert before in GOOD
    path = write(tmp_path, GOOD.replace(before, after, 1))
    with pytest.raises(ParameterError, match=key) as caught:
        Machine.load(path)
    assert "machine.toml" in str(caught.value)


COMPUTING = """
[device]
kind = "cuda"
memory = 4000.0
[transport.nccl]
library = "any"
after = 2.0
[transport.remote-write.gpu]
bandwidth = 340.0
"""


def test_what_computes_and_what_carries_halos_is_read(tmp_path):
    machine = Machine.load(write(tmp_path, GOOD + COMPUTING))
    assert (machine.device.kind, machine.device.memory, machine.device.join) == ("cuda", 4000.0, 0.0)
    assert machine.transports["nccl"].messages == machine.libraries["any"]
    assert (machine.transports["nccl"].after, machine.transports["nccl"].queues) == (2.0, False)
    core = machine.core_of_halos()
    links, _ = core.path(0, 1, "remote-write")
    assert {"rank 0 memory", "rank 1 memory"} <= {core.link_name(link) for link in links}
    with pytest.raises(PlanError, match="does not work between nodes"):
        core.path(0, 4, "remote-write")
    links, _ = machine.core().path(0, 1)
    assert not any("memory" in machine.core().link_name(link) for link in links)  # collectives as before


@pytest.mark.parametrize(
    ("before", "after", "key"),
    [
        ('kind = "cuda"', 'kind = "abacus"', r"device\.kind: 'abacus'; there are cpu, cuda, hip"),
        ("memory = 4000.0", "", r"device\.memory: missing"),
        ("memory = 4000.0", "memory = 4000.0\nspeed = 1.0", r"device\.speed: unknown key"),
        ("memory = 4000.0", "memory = 4000.0\nlaunch = -1.0", r"device\.launch: -1\.0"),
        (
            'library = "any"',
            'library = "none"',
            r"transport\.nccl\.library: no library 'none'; there are any",
        ),
        ("after = 2.0", "queues = 1", r"transport\.nccl\.queues: 1; true or false is needed"),
        ("after = 2.0", "later = 1.0", r"transport\.nccl\.later: unknown key"),
        (
            "[transport.remote-write.gpu]",
            "[transport.remote-write.rack]",
            r"transport\.remote-write\.rack: unknown key",
        ),
        (
            "bandwidth = 340.0",
            "bandwidth = 0.0",
            r"transport\.remote-write\.gpu\.bandwidth: 0\.0 must be positive",
        ),
    ],
)
def test_mistake_in_what_computes_is_named(tmp_path, before, after, key):
    assert before in COMPUTING
    with pytest.raises(ParameterError, match=key):
        Machine.load(write(tmp_path, GOOD + COMPUTING.replace(before, after, 1)))


@pytest.mark.parametrize(
    ("binding", "wanted"),
    [('"packed"', (0, 0, 1, 1)), ('"round-robin"', (0, 1, 0, 1)), ("[1, 1, 1, 0]", (1, 1, 1, 0))],
)
def test_binding_decides_which_nic_a_message_takes(tmp_path, binding, wanted):
    machine = Machine.load(
        write(tmp_path, GOOD.replace("latency = 1.0", f"latency = 1.0\nbinding = {binding}"))
    )
    assert machine.network.binding == wanted
    core = machine.core()
    for rank in range(4):
        links, latency = core.path(rank, 4 + rank)
        names = [core.link_name(link) for link in links if math.isfinite(core.capacity(link))]
        assert names == [f"node 0 NIC {wanted[rank]} out", f"node 1 NIC {wanted[rank]} in"]
        assert latency == pytest.approx(1e-6)


def test_message_inside_a_node_takes_a_wire_and_no_card():
    core = Machine.load("perlmutter").core()
    links, _ = core.path(5, 6, "ipc")
    assert [core.link_name(link) for link in links] == ["gpu 5 -> 6"]


def test_level_between_is_the_outermost_that_differs():
    core = Machine.load("frontier").core()
    assert [core.level_between(0, other) for other in (1, 2, 7, 8)] == [2, 1, 1, 0]


def test_library_that_does_not_reach_other_nodes_is_refused():
    core = Machine.load("frontier").core()
    with pytest.raises((ParameterError, ValueError), match="library 'ipc' does not work between nodes"):
        core.path(0, 8, "ipc")
    with pytest.raises((ParameterError, ValueError), match="no library 'nccl'; it has mpi, rccl, ipc"):
        core.path(0, 8, "nccl")


# The paper's Table 3 for four nodes, in GB/s: broadcast, gather, all-reduce, all-to-all.
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("delta", (25, 100 / 3, 50 / 3, 25 / 3)),
        ("perlmutter", (100, 400 / 3, 200 / 3, 100 / 3)),
        ("frontier", (100, 400 / 3, 200 / 3, 50 / 3)),
        ("aurora", (200, 800 / 3, 400 / 3, 200 / 9)),
    ],
)
def test_bounds_are_those_of_the_papers_table(name, wanted):
    machine = Machine.load(name)
    for collectives, value in zip(
        (
            ("broadcast", "reduce"),
            ("gather", "scatter", "all_gather", "reduce_scatter"),
            ("all_reduce",),
            ("all_to_all",),
        ),
        wanted,
        strict=True,
    ):
        for collective in collectives:
            assert bounds.bound(machine, collective) == pytest.approx(value)


def test_equal_shares_reach_three_quarters_where_twelve_tiles_use_eight_cards():
    machine = Machine.load("aurora")
    for collective in bounds.COLLECTIVES:
        free, equal = bounds.bound(machine, collective), bounds.bound(machine, collective, shares="equal")
        assert equal / free == pytest.approx(0.75)


def test_bound_counts_unequal_nics_and_leaves_out_unused_ones(tmp_path):
    text = GOOD.replace("rated = 10.0", "rated = [10.0, 30.0]")
    assert bounds.bound(Machine.load(write(tmp_path, text)), "broadcast") == pytest.approx(40)
    unused = text.replace("latency = 1.0", "latency = 1.0\nbinding = [1, 1, 1, 1]")
    assert bounds.bound(Machine.load(write(tmp_path, unused)), "broadcast") == pytest.approx(30)


def test_bound_of_one_host_is_that_of_its_switch_ports():
    machine = Machine.load("h200x8")
    assert bounds.bound(machine, "broadcast") == pytest.approx(450)
    assert bounds.bound(machine, "all_reduce") == pytest.approx(450 * 8 / 14)


def test_machine_without_a_network_has_one_node(tmp_path):
    text = GOOD[: GOOD.index("[network]")] + GOOD[GOOD.index("[[level]]") :]
    with pytest.raises(ParameterError, match=r"machine\.toml: network: missing; 2 nodes need one"):
        Machine.load(write(tmp_path, text))
    machine = Machine.load(write(tmp_path, text.replace("nodes = 2", "nodes = 1")))
    assert bounds.bound(machine, "broadcast") == pytest.approx(150)
    with pytest.raises(ParameterError, match="describes one host and no network"):
        machine.with_nodes(2)


@pytest.mark.parametrize("ranks", [2, 3])
def test_measured_machine_is_the_same_on_all_ranks_and_can_be_simulated(tmp_path, ranks):
    found = comm.virtual_ranks(ranks, lambda: measure.measure(comm.current(), "here"))
    assert len(set(found)) == 1
    machine = Machine.load(write(tmp_path, found[0]))
    assert (machine.name, machine.nodes, machine.ranks) == ("here", 1, ranks)
    assert min(machine.copy, machine.reduction, machine.levels[0].bandwidth) > 0
    assert choose(machine, "all_reduce", 1e6).time > 0


def test_only_equally_many_ranks_on_each_host_are_measured():
    for hosts in ([[0]], [[0, 1], [2]]):
        ranks = SimpleNamespace(size=sum(map(len, hosts)), collectives=SimpleNamespace(hosts=hosts))
        with pytest.raises(ParameterError, match="as many on each host"):
            measure.measure(ranks)
