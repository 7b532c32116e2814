"""Later calls of a kind take the plan of the first, and nobody can tell but the clock."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_driver import REAL
from programs import run_python
from test_foreign_arrays import Foreign

from jali import _core, comm
from jali.comm import DeviceArray, algorithms
from jali.comm.requests import DeviceRequest
from jali.errors import ParameterError

RANKS = 2


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]) -> None:
    monkeypatch.setenv("JALI_FAKE_GPUS", "2")
    use_settings(
        device_queues="channels=6,slot_bytes=512,flagged_bytes=512,flagged_below=2048,bytes_per_channel=256"
    )
    if REAL and _core.Gpu.count("cuda") < RANKS:
        pytest.skip("ranks of one process need a device each")


def open_gpu() -> Any:
    from jali.devices import open_device

    return open_device("cuda", comm.current())


class Plans:
    """Counts plans that were made, and found, since."""

    def __init__(self, c: comm.Communicator, gpu: Any) -> None:
        self._there = c.collectives.on_device(gpu)
        self._before = self._there.plans

    def __getattr__(self, name: str) -> int:
        return int(self._there.plans[name] - self._before[name])


def numbers(rank: int, count: int, dtype: str = "float32") -> Any:
    return (np.arange(count) % 13 + 3 * rank + 1).astype(dtype)


def on_ranks(run: Any, *arguments: Any) -> list[Any]:
    return comm.virtual_ranks(RANKS, run, *arguments)


def arguments_of(name: str, rank: int) -> dict[str, Any]:
    """Keywords beside the array."""
    return {"root": 1} if name in ("reduce", "gather", "scatter", "broadcast") else {}


def every_collective(name: str, given: bool) -> None:
    c, gpu = comm.current(), open_gpu()
    plans = Plans(c, gpu)
    more = arguments_of(name, c.rank)
    shapes = {"all_gather": (12,), "gather": (12,), "scatter": (3,), "reduce_scatter": (3,)}
    for turn in range(4):
        x = numbers(c.rank + turn, 6)  # another array every time
        kept = {}
        for where in ("host", "device"):
            mine = x.copy() if where == "host" else DeviceArray.from_host(x, gpu)
            positional = [mine]
            if name == "scatter":
                positional = [mine if c.rank == 1 else None]
            if name != "broadcast" and (given or name == "scatter"):
                shape = shapes.get(name, (6,))
                positional.append(
                    np.zeros(shape, np.float32)
                    if where == "host"
                    else DeviceArray.from_host(np.zeros(shape, np.float32), gpu)
                )
            kept[where] = getattr(c, name)(*positional, **more)
            if where == "device" and kept[where] is not None and (given or name == "broadcast"):
                assert kept[where] is positional[-1]
        assert (kept["host"] is None) == (kept["device"] is None)
        if kept["host"] is not None:
            assert isinstance(kept["device"], DeviceArray)
            assert kept["device"].shape == kept["host"].shape
            assert kept["device"].to_host().tobytes() == kept["host"].tobytes(), (name, turn)
    assert (plans.made, plans.found) == (1, 3)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("name", algorithms.COLLECTIVES)
def test_a_plan_is_made_once(name: str, given: bool) -> None:
    on_ranks(every_collective, name, given)


def test_whatever_differs_has_another_plan() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        plans = Plans(c, gpu)
        x = DeviceArray.from_host(numbers(c.rank, 6), gpu)
        wide = DeviceArray.from_host(numbers(c.rank, 6).reshape(2, 3), gpu)
        exact = DeviceArray.from_host(numbers(c.rank, 6, "float64"), gpu)
        out = DeviceArray.empty(gpu, (6,), np.float32)
        calls = [
            lambda: c.all_reduce(x),
            lambda: c.all_reduce(wide),
            lambda: c.all_reduce(exact),
            lambda: c.all_reduce(x, out),
            lambda: c.all_reduce(x, out=out),
            lambda: c.all_reduce(x, op="max"),
            lambda: c.all_reduce(x, op="".join(["m", "in"])),  # equal words need not be the same
            lambda: c.all_reduce(x, reproducible=True),
            lambda: c.all_reduce(x, algorithm="two_step"),
            lambda: c.all_reduce(x, algorithm="host-staged"),
            lambda: c.all_reduce(x, out, algorithm="host-staged"),
            lambda: c.reduce(x, root=0),
            lambda: c.reduce(x, root=1),
            lambda: c.all_gather(x, counts=[6, 6]),
            lambda: c.all_gather(x),
        ]
        for call in calls:
            call()
        # equal but for shapes, names of arguments, who owns the result; and counts that are alike are still counts
        assert plans.made == len(calls) - 4
        results = [call() for call in calls]
        assert (plans.made, plans.found) == (len(calls) - 4, len(calls) + 4)
        assert results[1].shape == (2, 3)
        assert results[2].element == "fp64"
        both = numbers(0, 6) + numbers(1, 6)
        for k in (0, 3, 4, 7, 8, 9, 10):
            np.testing.assert_array_equal(results[k].to_host(), both)
        np.testing.assert_array_equal(results[5].to_host(), numbers(1, 6))
        np.testing.assert_array_equal(results[6].to_host(), numbers(0, 6))
        in_place = DeviceArray.from_host(numbers(c.rank, 6), gpu)
        for turn in range(1, 4):  # not what x and out in two arrays do
            assert c.all_reduce(in_place, in_place) is in_place
            np.testing.assert_array_equal(in_place.to_host(), both * 2 ** (turn - 1))

    on_ranks(run)


def test_new_results_have_memory_of_their_own() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        results = [c.all_reduce(DeviceArray.from_host(np.full(5, k), gpu)) for k in range(20)]
        assert len({result.address for result in results}) == 20
        assert [int(result.to_host()[4]) for result in results] == [2 * k for k in range(20)]
        held = gpu.memory_held
        del results
        assert gpu.memory_held < held

    on_ranks(run)


def test_mistakes_are_found_in_later_calls_too() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        x = DeviceArray.from_host(numbers(c.rank, 6), gpu)
        out = DeviceArray.empty(gpu, (6,), np.float32)
        for _ in range(2):
            c.all_reduce(x, out)
            c.reduce(x, root=0)
        short, other = (DeviceArray.empty(gpu, *how) for how in (((2,), np.float32), ((6,), np.int32)))
        for _ in range(2):
            with pytest.raises(
                ParameterError, match="has 24 bytes on this rank, the array given for it has 8"
            ):
                c.all_reduce(x, short)
            with pytest.raises(ParameterError, match="the result is to be int32, but fp32 is sent"):
                c.all_reduce(x, other)
            with pytest.raises(ParameterError, match="one array is in device memory"):
                c.all_reduce(x, np.zeros(6, np.float32))
            with pytest.raises(ParameterError, match="root 2 does not exist among 2 ranks"):
                c.reduce(x, root=2)
            with pytest.raises(ParameterError, match="operation 'plus' is not one of"):
                c.all_reduce(x, out, "plus")
            with pytest.raises(TypeError, match="unexpected keyword argument 'into'"):
                c.all_reduce(x, into=out)  # type: ignore[call-arg]
            with pytest.raises(ParameterError, match="cannot work in place"):
                c.all_to_all(x, x)
        np.testing.assert_array_equal(c.all_reduce(x, out).to_host(), numbers(0, 6) + numbers(1, 6))

    on_ranks(run)


def test_checked_calls_are_always_checked(use_settings: Callable[..., None]) -> None:
    def run(said: bool) -> list[str]:
        c, gpu = comm.current(), open_gpu()
        more = {"checked": True} if said else {}
        reported = []
        for value in (100, 100, 60000, 60000):
            x = DeviceArray.from_host(np.full(8, value, np.float16), gpu)
            try:
                c.all_reduce(x, **more)
                reported.append("")
            except ParameterError as error:
                reported.append(str(error))
        assert c.collectives.on_device(gpu).plans["made"] == 0  # of calls that are not checked
        return reported

    for said in (True, False):
        if not said:
            use_settings(checked="1")
        for reported in on_ranks(run, said):
            assert [bool(text) for text in reported] == [False, False, True, True]
            assert "16 results are too large for fp16" in reported[3]


def test_requests_of_later_calls() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        plans = Plans(c, gpu)
        x = DeviceArray.from_host(numbers(c.rank, 6), gpu)
        for _ in range(3):
            request = c.all_reduce(x, blocking=False)
            assert type(request) is DeviceRequest
            np.testing.assert_array_equal(request.wait().to_host(), numbers(0, 6) + numbers(1, 6))
            assert request.test()
        assert plans.made == 1

    on_ranks(run)


def test_plans_in_use_are_not_dropped() -> None:
    def run() -> tuple[int, int, int]:
        c, gpu = comm.current(), open_gpu()
        there = c.collectives.on_device(gpu)
        there.keep_at_most(8)
        arrays = [DeviceArray.from_host(numbers(c.rank, n), gpu) for n in range(1, 30)]
        c.all_reduce(arrays[0])
        for n, x in enumerate(arrays, 1):
            for _ in range(2):
                np.testing.assert_array_equal(c.all_reduce(x).to_host(), numbers(0, n) + numbers(1, n))
                c.all_reduce(arrays[0])
        plans = there.plans
        return plans["kept"], plans["made"], plans["dropped"]

    assert on_ranks(run) == [(8, 29, 21)] * 2  # that of arrays[0] was made once


def test_graphs_and_plans_of_later_calls() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        x = DeviceArray.from_host(numbers(c.rank, 40), gpu)
        out = DeviceArray.empty(gpu, (40,), np.float32)
        c.all_reduce(x, out)
        graph = _core.GpuGraph(gpu, lambda: c.all_reduce(x, out))
        for _ in range(5):
            gpu.fill(out.memory, 3)
            gpu.launch_graph(graph)
            c.all_reduce(x)
            np.testing.assert_array_equal(out.to_host(), numbers(0, 40) + numbers(1, 40))

    on_ranks(run)


@pytest.mark.parametrize("face", ["interface", "dlpack"])
def test_arrays_of_other_libraries_keep_their_order(fake_driver: Path, face: str) -> None:
    if REAL:
        pytest.skip("CUDA's driver is the machine's in this run")

    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        other = Foreign(fake_driver, gpu)
        plans = Plans(c, gpu)
        for turn in range(4):
            x = other.array(numbers(c.rank + turn, 6), face)  # filled late, on the library's stream
            out = other.array(np.zeros(6, np.float32), face)
            assert c.all_reduce(x, out) is out
            wanted = numbers(turn, 6) + numbers(1 + turn, 6)
            if face == "interface":  # it said its stream, which therefore waits
                np.testing.assert_array_equal(other.take(out), wanted)
            gpu.synchronize()
            np.testing.assert_array_equal(other.take(out), wanted)
            # two views of one memory are two arrays
            assert c.all_reduce(x, x) is x
            gpu.synchronize()
            np.testing.assert_array_equal(other.take(x), wanted)
        assert plans.made == 2

    on_ranks(run)


def test_read_only_arrays_are_not_written(fake_driver: Path) -> None:
    if REAL:
        pytest.skip("CUDA's driver is the machine's in this run")

    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        other = Foreign(fake_driver, gpu)
        x, y, locked = (other.array(numbers(c.rank, 6)) for _ in range(3))
        locked.__cuda_array_interface__["data"] = (locked.address, True)
        for _ in range(2):
            c.all_reduce(x, y)
            c.all_reduce(locked)
            with pytest.raises(ParameterError, match="read-only"):
                c.all_reduce(x, locked)

    on_ranks(run)


def test_methods_still_say_what_they_take() -> None:
    method = comm.Communicator.all_reduce
    assert list(inspect.signature(method).parameters)[:4] == ["self", "x", "out", "op"]
    assert list(inspect.signature(comm.current().all_reduce).parameters)[:3] == ["x", "out", "op"]
    assert (method.__name__, method.__qualname__) == ("all_reduce", "Communicator.all_reduce")
    assert "element by element" in (method.__doc__ or "")
    np.testing.assert_array_equal(method(comm.current(), np.ones(2)), np.ones(2))
    with pytest.raises(TypeError, match="missing 2 required positional arguments: 'self' and 'x'"):
        method()  # type: ignore[call-arg]


def test_a_dropped_communicator_gives_its_memory_back() -> None:
    def run() -> None:
        c, gpu = comm.current(), open_gpu()
        x = DeviceArray.from_host(numbers(c.rank, 6), gpu)
        c.all_reduce(x)
        held = gpu.memory_held
        twin = c.duplicate()
        for _ in range(3):
            twin.all_reduce(x)
        assert twin.collectives.on_device(gpu).plans["made"] == 1
        assert gpu.memory_held > held
        gpu.synchronize()
        c.barrier()  # all ranks are done with each other's memory
        del twin  # nobody has to collect garbage
        assert gpu.memory_held == held

    on_ranks(run)


def test_a_communicator_is_dropped_while_its_work_waits_for_the_other_rank() -> None:
    """In a process of its own, since a thread that waits with Python's lock would hold the tests up."""
    text = (
        "import threading, time, numpy as np\n"
        "from jali import comm\n"
        "from jali.comm import DeviceArray\n"
        "from jali.devices import open_device\n"
        "def run():\n"
        "    c = comm.current()\n"
        "    gpu = open_device('cuda', c)\n"
        "    x = DeviceArray.from_host(np.full(6, c.rank + 1.0, np.float32), gpu)\n"
        "    twin = c.duplicate()\n"
        "    twin.all_reduce(x)\n"
        "    gpu.synchronize()\n"
        "    c.barrier()\n"
        "    if c.rank == 1:\n"
        "        time.sleep(0.3)\n"
        "    y = twin.all_reduce(x)\n"
        "    del twin\n"
        "    assert (y.to_host() == 3).all()\n"
        "    c.barrier()\n"
        "comm.virtual_ranks(2, run)\n"
        "print('done')\n"
    )
    assert run_python(text).stdout.split() == ["done"]


@pytest.mark.skipif(REAL, reason="fills the memory of a fake device")
def test_other_ranks_go_on_while_memory_for_a_result_is_got() -> None:
    """Memory has to be given back first, for which the device is waited for, and it waits for a rank that has yet to call.

    In a process of its own, as the test above.
    """
    text = (
        "import os, time, numpy as np\n"
        "from jali import comm\n"
        "from jali.comm import DeviceArray\n"
        "from jali.devices import open_device\n"
        "def run():\n"
        "    c = comm.current()\n"
        "    gpu = open_device('cuda', c)\n"
        "    small = DeviceArray.from_host(np.ones(6), gpu)\n"
        "    large = DeviceArray.from_host(np.full(1 << 19, c.rank + 1.0), gpu)\n"
        "    first = [c.all_reduce(small), c.all_reduce(large)]  # their plans are there from now on\n"
        "    gpu.allocate(2 * large.nbytes, 'spare')  # the pool has it at once\n"
        "    gpu.synchronize()\n"
        "    used = c.all_reduce(np.array([gpu.total_memory - gpu.free_memory]), op='max')[0]\n"
        "    if c.rank == 0:\n"
        "        os.environ['JALI_FAKE_GPU_BYTES'] = str(used)\n"
        "    c.barrier()\n"
        "    cached = gpu.memory_cached\n"
        "    if c.rank == 0:\n"
        "        time.sleep(0.5)\n"
        "    c.all_reduce(small, first[0])\n"
        "    assert (c.all_reduce(large).to_host() == 3).all()\n"
        "    assert gpu.memory_cached < cached  # it was given back\n"
        "comm.virtual_ranks(2, run)\n"
        "print('done')\n"
    )
    assert run_python(text).stdout.split() == ["done"]


def test_explain_says_what_a_call_runs_and_starts_nothing() -> None:
    def run() -> tuple[str, str]:
        c, gpu = comm.current(), open_gpu()
        x = DeviceArray.from_host(numbers(c.rank, 3000), gpu)
        said = c.explain("all_reduce", x, algorithm="ring"), c.explain("all_reduce", x=x, op="max")
        np.testing.assert_array_equal(x.to_host(), numbers(c.rank, 3000))
        assert c.collectives.on_device(gpu).plans["made"] == 0
        return said

    for requested, chosen in on_ranks(run):
        assert requested.startswith("ring (asked for): ")
        assert "channels" in requested
        assert "of jali's own rules): " in chosen
