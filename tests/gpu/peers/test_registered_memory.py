"""The library of collectives gets memory of one kind from all ranks, whatever arrays they have: else it would wait for ever."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_library import ByLibrary
from ccl_ranks import FAKE, on_device, on_host, on_ranks, to_bits
from programs import need_mpi, run_program
from programs import on_ranks as on_processes

from jali import _core, settings
from jali.comm import DeviceArray, current, virtual_ranks
from jali.devices import open_device

pytestmark = FAKE

COUNT = 5 << 18  # float64 numbers, a block of their own


def windowed(gpus: ByLibrary, numbers: Any) -> DeviceArray:
    array = gpus.symmetric(np.shape(numbers), "fp64")
    gpus.gpu.upload_address(array.address, to_bits(numbers, "fp64").reshape(-1).view(np.uint8))
    return array


def in_graph(gpu: Any, work: Callable[[], object]) -> None:
    gpu.launch_graph(_core.GpuGraph(gpu, work))


@pytest.fixture(autouse=True)
def short_timeout(use_settings: Callable[..., None]) -> None:
    use_settings(watchdog="20")


@pytest.fixture(autouse=True)
def nothing_mixed(tmp_path: Path, short_timeout: None) -> Any:
    yield
    assert not list(tmp_path.glob("fault-*"))


def test_memory_of_symmetric_arrays_that_have_gone_is_not_given_out_as_ordinary_memory_of_one_rank() -> None:
    def body(gpus: ByLibrary) -> None:
        if gpus.rank == 1:  # whose pool has a block of that size, of the ordinary kind
            on_device(np.zeros(COUNT), "fp64", gpus.gpu)
        windowed(gpus, np.zeros(COUNT))
        gc.collect()
        gpus.symmetric((3 * COUNT,), "fp64")  # what all have let go goes
        x = on_device(np.full(COUNT, 1.0 + gpus.rank), "fp64", gpus.gpu)
        assert not gpus.gpu.has_handle(x.address)
        out = DeviceArray.empty(gpus.gpu, (COUNT,), "fp64")
        gpus.all_reduce(x, out)
        in_graph(gpus.gpu, lambda: gpus.all_reduce(x, out))
        np.testing.assert_array_equal(on_host(out), 3.0)

    on_ranks(2, body)


@pytest.mark.parametrize("algorithm", ["nccl", "nccl-streams", "two_step"])
def test_a_symmetric_array_of_one_rank_among_ordinary_ones(
    use_settings: Callable[..., None], algorithm: str
) -> None:
    use_settings(device_transport="nccl")

    def body(gpus: ByLibrary) -> None:
        window = windowed(gpus, np.full(COUNT, 1.0 + gpus.rank))
        x = window if gpus.rank == 0 else on_device(np.full(COUNT, 1.0 + gpus.rank), "fp64", gpus.gpu)
        out = DeviceArray.empty(gpus.gpu, (COUNT,), "fp64")
        world = gpus.communicator
        world.all_reduce(x, out, algorithm=algorithm)
        np.testing.assert_array_equal(on_host(out), 3.0)
        gpus.gpu.fill(out.memory, 0)
        in_graph(gpus.gpu, lambda: world.all_reduce(x, out, algorithm=algorithm))
        np.testing.assert_array_equal(on_host(out), 3.0)
        np.testing.assert_array_equal(on_host(window), 1.0 + gpus.rank)  # which was only read

    on_ranks(2, body)


def test_messages_between_symmetric_and_ordinary_arrays(use_settings: Callable[..., None]) -> None:
    use_settings(message_transport="nccl")

    def run() -> None:
        world = current()
        gpu = open_device("cuda", world)
        gpus = ByLibrary(world, gpu)
        numbers = np.arange(7.0) + 10 * world.rank
        x, y = windowed(gpus, numbers), DeviceArray.empty(gpu, (7,), "fp64")
        other = 1 - world.rank
        for source, target in ((x, y), (y, x)):
            ends = [world.persistent_send(source, other), world.persistent_receive(target, other)]
            expected = np.arange(7.0) + 10 * (other if target is y else world.rank)
            world.start(ends)
            np.testing.assert_array_equal(on_host(target), expected)
            gpu.fill(target.memory, 0)
            in_graph(gpu, lambda ends=ends: world.start(ends))
            np.testing.assert_array_equal(on_host(target), expected)

    virtual_ranks(2, run)


@pytest.mark.parametrize("algorithm", ["nccl", "two_step"])
def test_an_array_of_another_library_whose_memory_has_a_handle(
    use_settings: Callable[..., None], algorithm: str
) -> None:
    use_settings(device_transport="nccl")

    def body(gpus: ByLibrary) -> None:
        another = ByLibrary(
            current().duplicate(), gpus.gpu
        )  # of whose windows the world's group knows nothing
        x = windowed(another, np.full(COUNT, 1.0 + gpus.rank))
        if gpus.rank == 1:
            x = on_device(np.full(COUNT, 2.0), "fp64", gpus.gpu)
        out = DeviceArray.empty(gpus.gpu, (COUNT,), "fp64")
        world = gpus.communicator
        world.all_reduce(x, out, algorithm=algorithm)
        np.testing.assert_array_equal(on_host(out), 3.0)
        gpus.gpu.fill(out.memory, 0)
        in_graph(gpus.gpu, lambda: world.all_reduce(x, out, algorithm=algorithm))
        np.testing.assert_array_equal(on_host(out), 3.0)

    on_ranks(2, body)


PLAIN = """
import ctypes
import numpy as np
from jali import _core, comm, settings
from jali.comm import DeviceArray
from jali.devices import open_device
from jali.comm.current_device import current_device

world = comm.current()
gpu = open_device("cuda", world)
assert gpu.peer_handles == "virtual"
driver = ctypes.CDLL(_core.Gpu.driver("cuda")[0])
COUNT = 5 << 18

class Plain:  # an array of another library, in memory that the driver has allocated as usual
    def __init__(self, numbers):
        address = ctypes.c_uint64()
        with current_device("cuda", gpu.ordinal):
            assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(numbers.nbytes)) == 0
        gpu.upload_address(address.value, numbers.view(np.uint8))
        gpu.synchronize()
        self.__cuda_array_interface__ = {
            "shape": numbers.shape, "typestr": numbers.dtype.str, "data": (address.value, False), "version": 3,
            "stream": gpu.stream,
        }

numbers = np.full(COUNT, 1.0 + world.rank)
own = DeviceArray.from_host(numbers, gpu)
x = Plain(numbers) if world.rank == 1 else own
out = DeviceArray.empty(gpu, (COUNT,), "float64")
with settings.using(device_transport="nccl"):
    for algorithm in ("nccl", "two_step"):
        world.all_reduce(x, out, algorithm=algorithm)  # no graph connects ranks
        gpu.fill(out.memory, 0)
        graph = _core.GpuGraph(gpu, lambda: world.all_reduce(x, out, algorithm=algorithm))
        gpu.launch_graph(graph)
        assert np.all(out.to_host() == 3), algorithm
print("is content")
"""


@pytest.mark.mpi
def test_ordinary_memory_of_another_library_where_that_of_the_ranks_has_handles(tmp_path: Path) -> None:
    need_mpi()
    program = tmp_path / "program.py"
    program.write_text(PLAIN)
    environment = settings.environment() | {"JALI_PEER_HANDLES": "virtual"}
    done = run_program(on_processes(2, sys.executable, program), env=environment)
    assert done.stdout.count("is content") == 2
