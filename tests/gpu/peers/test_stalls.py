"""Ranks that all wait for devices that do not move end soon, and say what these run; ranks that wait for a late one do not."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ccl_ranks import FAKE, on_device, on_host

from jali import _core
from jali.comm import current, virtual_ranks
from jali.devices import open_device
from jali.errors import DeviceError, RankError

pytestmark = FAKE

LARGE = 1 << 17  # float64 numbers: a collective of them is followed by itself


@pytest.fixture
def short_limit(use_settings: Callable[..., None]) -> None:
    use_settings(device_watchdog="1", watchdog="300", device_transport="nccl")


def how_it_ends(body: Callable[[Any, Any], object]) -> list[str]:
    def run() -> str:
        world = current()
        try:
            body(world, open_device("cuda", world))
        except (DeviceError, RankError) as error:
            return str(error)
        return ""

    return virtual_ranks(2, run)


@pytest.mark.parametrize("graph", [False, True], ids=["stream", "graph"])
@pytest.mark.parametrize("algorithm", ["nccl", "one_shot"])
@pytest.mark.usefixtures("short_limit")
def test_a_stall_ends_and_names_the_algorithm_and_the_peer(
    monkeypatch: pytest.MonkeyPatch, algorithm: str, graph: bool
) -> None:
    def body(world: Any, gpu: Any) -> None:
        x, y = (on_device(np.ones(LARGE), "fp64", gpu) for _ in range(2))
        world.all_reduce(x, y, algorithm=algorithm)
        gpu.synchronize()
        world.barrier()
        monkeypatch.setenv("JALI_FAKE_CCL_HANG_AFTER", "0")
        world.barrier()

        def call() -> None:
            world.all_reduce(x, y, algorithm=algorithm)

        if graph:
            gpu.launch_graph(_core.GpuGraph(gpu, call))
        else:
            call()
        gpu.synchronize()

    start = time.monotonic()
    for end in how_it_ends(body):
        assert "the devices of all 2 ranks stall: nothing has moved for 1 s (JALI_DEVICE_WATCHDOG)" in end
        assert f"all_reduce of {8 * LARGE} bytes on devices ({algorithm}" in end
        for rank in (0, 1):
            assert f"rank {rank}: " in end
        if graph and algorithm == "one_shot":
            assert "NCCL: a send to rank 1, a receive from rank 1" in end
    assert time.monotonic() - start < 60


@pytest.mark.usefixtures("short_limit")
def test_ranks_that_wait_for_one_that_computes_wait_on() -> None:
    def body(world: Any, gpu: Any) -> None:
        x = on_device(np.ones(LARGE), "fp64", gpu)
        for late in (0, 1, 0):
            if world.rank == late:
                time.sleep(2)
            y = world.all_reduce(x, algorithm="nccl")
            np.testing.assert_array_equal(on_host(y), 2)

    assert how_it_ends(body) == ["", ""]
