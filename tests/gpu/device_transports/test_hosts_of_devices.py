"""Collectives inside hosts by one transport and between them by another, on devices that reach no others than those of their host."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL, use_fake_ccl, use_fake_gpus

import jali
from jali import comm
from jali._core import CollectiveCall
from jali.comm import DeviceArray
from jali.comm.algorithms import ALGORITHMS
from jali.devices import open_device
from jali.errors import DeviceError, ParameterError

pytestmark = pytest.mark.skipif(REAL, reason="hosts are pretended, of fake devices")
EVEN, UNEVEN = [[0, 1], [2, 3]], [[0, 1], [2]]
COLLECTIVES = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "gather",
    "scatter",
)


@pytest.fixture(autouse=True)
def small_queues(use_settings: Callable[..., None]) -> None:
    use_settings(
        device_queues="channels=6,slot_bytes=512,flagged_bytes=512,flagged_below=2048,bytes_per_channel=256"
    )


def there(hosts: list[list[int]]) -> tuple[Any, Any]:
    world = comm.current()
    world.collectives.override_hosts(hosts)
    return world, open_device("cuda", world)


def check(hosts: list[list[int]], specs: list[str], sizes: tuple[int, ...] = (1, 1000)) -> None:
    """Results of all collectives that have the ways, against NumPy."""
    world, gpu = there(hosts)
    p, me, root = world.size, world.rank, world.size - 1
    for spec, collective, count in itertools.product(specs, COLLECTIVES, sizes):
        name = spec.split(" ")[0]
        if not any(entry.name == name and collective in entry.collectives for entry in ALGORITHMS):
            continue
        chunks = [np.arange(count, dtype=np.float32) % 97 + 100 * r for r in range(p)]
        wholes = [np.arange(p * count, dtype=np.float32) % 89 + 100 * r for r in range(p)]
        mine = slice(me * count, (me + 1) * count)
        wanted = {
            "all_reduce": sum(chunks),
            "reduce": sum(chunks) if me == root else None,
            "broadcast": chunks[root],
            "all_gather": np.concatenate(chunks),
            "gather": np.concatenate(chunks) if me == root else None,
            "scatter": wholes[root][mine],
            "reduce_scatter": sum(wholes)[mine],
            "all_to_all": np.concatenate([whole[mine] for whole in wholes]),
        }[collective]
        big = collective in ("scatter", "reduce_scatter", "all_to_all")
        x = DeviceArray.from_host((wholes if big else chunks)[me], gpu)
        more: dict[str, Any] = (
            {"root": root} if collective in ("reduce", "broadcast", "gather", "scatter") else {}
        )
        if collective == "scatter":
            more["out"] = DeviceArray.from_host(np.zeros(count, np.float32), gpu)
            x = x if me == root else None
        for _ in range(2):  # queues go round
            found = getattr(world, collective)(x, algorithm=spec, **more)
            if wanted is None:
                assert found is None
            else:
                np.testing.assert_array_equal(
                    found.to_host(), wanted, err_msg=f"{spec}, {collective}, {count}"
                )


@pytest.mark.parametrize("hosts", [EVEN, UNEVEN], ids=str)
@pytest.mark.parametrize("algorithm", ["two_level", "slices"])
@pytest.mark.parametrize("inside", ["remote-write", "copy-engine", "nccl"])
def test_each_pair_of_transports(inside, algorithm, hosts, monkeypatch, use_settings, tmp_path) -> None:
    """Devices of different hosts do not reach each other's memory, so that only NCCL goes between them."""
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    monkeypatch.setenv("JALI_FAKE_ISLANDS", "2")
    use_fake_ccl(use_settings)
    comm.virtual_ranks(sum(map(len, hosts)), check, hosts, [f"{algorithm} by {inside} and nccl"])


@pytest.mark.short(2)
@pytest.mark.parametrize(
    "spec",
    ["slices", "two_level", "slices by nccl and remote-write", "two_level by copy-engine and remote-write",
     "two_level by remote-write and copy-engine", "slices by gpu-aware-mpi and copy-engine"],
)  # fmt: skip
def test_where_all_devices_reach_each_other(spec, monkeypatch, use_settings, tmp_path) -> None:
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)
    if "gpu-aware-mpi" in spec:

        def refused() -> None:
            world, gpu = there(EVEN)
            with pytest.raises(DeviceError, match="MPI"):
                world.all_reduce(DeviceArray.from_host(np.ones(3, np.float32), gpu), algorithm=spec)

        comm.virtual_ranks(4, refused)
    else:
        comm.virtual_ranks(4, check, EVEN, [spec])


def test_the_usual_transports_are_one_inside_hosts_and_one_between(
    monkeypatch, use_settings, tmp_path
) -> None:
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    monkeypatch.setenv("JALI_FAKE_ISLANDS", "2")
    use_fake_ccl(use_settings)

    def explained() -> str:
        world, gpu = there(EVEN)
        return world.explain(
            "all_reduce", DeviceArray.from_host(np.ones(1000, np.float32), gpu), algorithm="two_level"
        )

    for rank, text in enumerate(comm.virtual_ranks(4, explained)):
        assert text.startswith("two_level (asked for)")
        assert ("nccl: " in text) == (rank in (0, 2))  # messages between hosts are those of their first ranks
    comm.virtual_ranks(4, check, EVEN, ["two_level", "slices"])


RULES = """version = 1
[[rule]]
memory = "device"
collective = "all_reduce"
algorithms = ["two_level by shm and mpi", "slices by rccl and nccl", "two_level by remote-write and copy-engine",
        "node_only by nccl", "alpha by remote-write and nccl"]
[[rule]]
memory = "device"
collective = "broadcast"
algorithms = ["flat by nccl"]
[[rule]]
memory = "device"
collective = "reduce"
algorithms = ["flat by copy-engine", "gamma by nccl"]
"""


def test_rules_name_compositions_and_skip_what_is_closed(monkeypatch, use_settings, tmp_path) -> None:
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    monkeypatch.setenv("JALI_FAKE_ISLANDS", "2")
    use_fake_ccl(use_settings)
    file = tmp_path / "rules.toml"
    file.write_text(RULES)
    use_settings(collective_rules=str(file))

    def specs(hosts: list[list[int]]) -> list[tuple[str, str]]:
        world, gpu = there(hosts)
        calls = [
            CollectiveCall(c, "fp32", 500, in_place=c == "broadcast")
            for c in ("all_reduce", "broadcast", "reduce")
        ]
        choices = [world.collectives.on_device(gpu).algorithm_of(call) for call in calls]
        x = DeviceArray.from_host(np.full(500, world.rank, np.float32), gpu)
        assert world.all_reduce(x).to_host()[0] == 6
        return [(choice.spec, choice.why) for choice in choices]

    for (all_reduce, why), (broadcast, _), (reduce, _) in comm.virtual_ranks(4, specs, EVEN):
        assert all_reduce == "two_level by remote-write and nccl"
        assert "not two_level by shm and mpi: 'shm' is not for cuda devices" in why
        assert "not slices by rccl and nccl: 'rccl' is not for cuda devices" in why
        assert "not two_level by remote-write and copy-engine: the driver lets some device" in why
        assert "not node_only by nccl: 'node_only by nccl' is for the ranks of one host" in why
        assert (broadcast, reduce) == ("nccl", "nccl")
    for (all_reduce, why), *_ in comm.virtual_ranks(4, specs, [[0, 1, 2, 3]]):
        assert all_reduce == "nccl"
        assert "there is one host" in why


def test_mistakes(monkeypatch, use_settings, tmp_path) -> None:
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_fake_ccl(use_settings)

    def run() -> None:
        world, gpu = there(EVEN)
        x = DeviceArray.from_host(np.ones(5, np.float32), gpu)
        for spec, said in (
            (
                "two_level by shm and mpi",
                "'shm' carries no messages between devices; array-write, copy-engine",
            ),
            ("two_level by rccl and nccl", "'rccl' is not for cuda devices"),
            (
                "node_only by nccl",
                "asked for as 'node_only by nccl': .* is for the ranks of one host, and these are on 2",
            ),
            ("ring by nccl and nccl", "does not tell messages inside hosts from those between them"),
        ):
            with pytest.raises(ParameterError, match=said):
                world.all_reduce(x, algorithm=spec)
        assert world.all_reduce(x).to_host()[0] == 4

    comm.virtual_ranks(4, run)


def test_graphs_take_them_too(monkeypatch, use_settings, tmp_path) -> None:
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    monkeypatch.setenv("JALI_FAKE_ISLANDS", "2")
    use_fake_ccl(use_settings)
    use_settings(collective="two_level by copy-engine and nccl")

    def run() -> None:
        lattice = jali.Lattice(4, 4, device="cuda")
        world, gpu = lattice.communicator, lattice.gpu
        world.collectives.override_hosts(EVEN)
        x, out = (DeviceArray.from_host(np.full(300, world.rank, np.float32), gpu) for _ in range(2))

        def twice() -> None:
            world.all_reduce(x, out)
            world.all_reduce(out, x)

        graph = jali.graph(twice, lattice)
        graph.run()
        assert x.to_host()[7] == 24
        graph.run()
        assert x.to_host()[7] == 24 * 16

    comm.virtual_ranks(4, run)
