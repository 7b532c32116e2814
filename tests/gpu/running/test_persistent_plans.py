"""Collectives of graphs, whose arrays stay where they are: peers write into them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ccl_ranks import FAKE

import jali
from jali import Lattice, _core
from jali._core import CollectiveCall
from jali.comm import DeviceArray
from jali.errors import ParameterError, PlanError

pytestmark = FAKE
LANDING = "landing of a message"
ROWS = 5


@pytest.fixture(autouse=True, params=["copy-engine", "array-write"])
def into_arrays(request: pytest.FixtureRequest, use_settings: Callable[..., None]) -> None:
    use_settings(device_transport=request.param)


def numbers(rank: int, turn: int, count: int) -> Any:
    return np.arange(count) * 7.0 + 1000 * rank + 100_000 * turn


def landings(gpu: _core.Gpu) -> int:
    return sum(bytes_ for label, bytes_, _ in gpu.memory_usage() if label == LANDING)


def moved(name: str, in_place: bool) -> tuple[int, int]:
    """Repetitions of a graph whose arrays change in between; the memory in which messages land, in graphs and in calls."""
    lattice = Lattice(4, 4, device="cuda")
    c, gpu = lattice.communicator, lattice.gpu
    x = DeviceArray.from_host(numbers(c.rank, 0, ROWS * c.size if name == "all_to_all" else ROWS), gpu)
    out = DeviceArray.empty(gpu, (ROWS * c.size,), "fp64")
    source = x
    if in_place:
        source = out
    before = landings(gpu)

    def step() -> None:
        if in_place:
            c.all_gather(out, out, counts=[ROWS] * c.size, algorithm="direct")
        else:
            getattr(c, name)(x, out, algorithm="direct")
            getattr(c, name)(x, out, algorithm="direct")  # the same plan

    graph = jali.graph(step, lattice)
    in_graph = landings(gpu) - before
    for turn in range(4):
        mine = numbers(c.rank, turn, x.shape[0])
        if in_place:
            whole = np.full(ROWS * c.size, -1.0)
            whole[ROWS * c.rank : ROWS * (c.rank + 1)] = mine
            gpu.upload_address(source.address, whole)
        else:
            gpu.upload_address(source.address, mine)
        graph.run()
        theirs = [numbers(r, turn, x.shape[0]) for r in range(c.size)]
        if name == "all_to_all":
            theirs = [one[ROWS * c.rank : ROWS * (c.rank + 1)] for one in theirs]
        np.testing.assert_array_equal(out.to_host(), np.concatenate(theirs))
    if not in_place:
        getattr(c, name)(x, out, algorithm="direct")
    in_calls = landings(gpu) - before - in_graph
    return in_graph, in_calls


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("name", "in_place"), [("all_to_all", False), ("all_gather", False), ("all_gather", True)]
)
def test_peers_write_into_arrays_of_graphs_and_beside_those_of_calls(
    name: str, in_place: bool, ranks: int
) -> None:
    for in_graph, in_calls in jali.virtual_ranks(ranks, moved, name, in_place):
        assert in_graph == 0
        assert in_calls > 0 or in_place


def held() -> None:
    lattice = Lattice(4, 4, device="cuda")
    c, gpu = lattice.communicator, lattice.gpu
    there = c.collectives.on_device(gpu)
    x, out, other = (DeviceArray.from_host(numbers(c.rank, k, 6 * c.size), gpu) for k in range(3))
    call = CollectiveCall("all_to_all", "fp64", 6, 0, "sum", False, "direct", False)
    plan = there.persistent_plan(call, (x, out))
    assert there.persistent_plan(call, (x, out)) is plan
    another = there.persistent_plan(call, (x, other if c.rank else out))  # new on one rank, so on all
    assert another is not plan
    plan((x, out))
    with pytest.raises(PlanError, match="is for arrays that stay where they were when it was made"):
        plan((x, other))
    with pytest.raises(PlanError, match="buffer 1 has .* bytes on this rank and no address"):
        there.persistent_plan(call, (x, None))
    gpu.synchronize()
    del plan, another
    again = there.persistent_plan(call, (x, out))
    again((x, out))
    wanted = [numbers(r, 0, 6 * c.size)[6 * c.rank : 6 * c.rank + 6] for r in range(c.size)]
    np.testing.assert_array_equal(out.to_host(), np.concatenate(wanted))


@pytest.mark.unproved("runs plans of the core by themselves")
def test_a_plan_of_a_graph_is_for_its_arrays_and_found_again_where_all_ranks_have_it() -> None:
    jali.virtual_ranks(3, held)


def specs() -> tuple[str, str]:
    lattice = Lattice(4, 4, device="cuda")
    there = lattice.communicator.collectives.on_device(lattice.gpu)
    call = CollectiveCall("all_to_all", "fp64", 6, 0, "sum", False, None, False)
    eager, in_graph = there.algorithm_of(call), there.algorithm_of(call, persistent=True)
    return f"{eager.name} {eager.transport}".strip(), f"{in_graph.name} {in_graph.transport}".strip()


def test_rules_ask_whether_arrays_stay(use_settings: Callable[..., None], tmp_path: Any) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "version = 1\n[[rule]]\npersistent = true\nalgorithms = ['pairwise by nccl']\n[[rule]]\nalgorithms = ['bruck']\n"
    )
    use_settings(collective_rules=str(file), device_transport=None)
    assert jali.virtual_ranks(2, specs) == [("bruck", "pairwise nccl")] * 2
    use_settings(device_transport="copy-engine")  # carries all messages, whatever rules say
    assert jali.virtual_ranks(2, specs) == [("bruck", "bruck")] * 2
    file.write_text("version = 1\n[[rule]]\npersistent = 1\nalgorithms = ['bruck']\n")
    use_settings(collective_rules=None)
    with pytest.raises(ParameterError, match="persistent is true or false"):
        use_settings(collective_rules=str(file))
    with pytest.raises(ParameterError, match="persistent is true or false"):
        _core.check_rules(file.read_text(), str(file))
