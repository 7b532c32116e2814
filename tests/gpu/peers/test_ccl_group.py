"""One communicator of NCCL or RCCL for the ranks of a communicator and a device, whoever uses it, and its symmetric windows."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_library import ByLibrary
from ccl_ranks import FAKE, on_device, on_host, on_ranks, to_bits, values
from fake_driver import current_device

import jali
from jali import _core
from jali.comm import Communicator, DeviceArray, current, virtual_ranks
from jali.comm.elements import SIZES
from jali.devices import open_device
from jali.errors import DeviceError, ParameterError, RankError

pytestmark = FAKE
KINDS = {"cuda": "nccl", "hip": "rccl"}


def made(folder: Path) -> int:
    """How many communicators the fake library has made so far."""
    return len(list(folder.glob("made-*")))


def between_windows(folder: Path, rank: int) -> int:
    """How many collectives of a rank the fake library has done between windows so far."""
    log = folder / f"symmetric-{rank}"
    return len(log.read_text().splitlines()) if log.exists() else 0


# --- one communicator -----------------------------------------------------------------------------------------------


@jali.site_function
def shifted(X, y, x):
    y[X] = x[X + X.directions()[1]]


def exchange(device: str) -> None:
    """A halo, and what it brings."""
    lattice = jali.Lattice(4, 8, device=device, grid=(1, current().size))
    x, y = lattice.field(jali.Real()), lattice.field(jali.Real())
    numbers = np.arange(32.0).reshape(4, 8)
    x[...] = numbers
    shifted(y, x)
    np.testing.assert_array_equal(y[...], np.roll(numbers, -1, axis=1))
    x[...] = numbers
    graph = _core.GpuGraph(lattice.gpu, lambda: shifted(y, x))
    x[...] = numbers + 1
    lattice.gpu.launch_graph(graph)
    np.testing.assert_array_equal(y[...], np.roll(numbers + 1, -1, axis=1))


def add_up(ranks: Communicator, gpu: Any, algorithm: str) -> None:
    """A sum of the library's, and one whose messages it carries; in a graph, too."""
    x = on_device(np.arange(5.0) + ranks.rank, "fp64", gpu)
    total = ranks.size * np.arange(5.0) + sum(range(ranks.size))
    for spec in (algorithm, "two_step"):
        np.testing.assert_array_equal(on_host(ranks.all_reduce(x, algorithm=spec)), total)
    out = DeviceArray.empty(gpu, (5,), "fp64")
    graph = _core.GpuGraph(gpu, lambda: ranks.all_reduce(x, out, algorithm=algorithm))
    gpu.launch_graph(graph)
    np.testing.assert_array_equal(on_host(out), total)


def pass_on(ranks: Communicator, gpu: Any) -> None:
    """Messages around the ring."""
    right, left = (ranks.rank + 1) % ranks.size, (ranks.rank - 1) % ranks.size
    x, y = on_device(np.full(3, float(ranks.rank)), "fp64", gpu), DeviceArray.empty(gpu, (3,), "fp64")
    ends = [ranks.persistent_send(x, right), ranks.persistent_receive(y, left)]
    for _ in range(2):
        ranks.start(ends)
    np.testing.assert_array_equal(on_host(y), left)


@pytest.mark.parametrize("kind", KINDS)
def test_halos_messages_and_collectives_of_a_group_share_one_communicator(
    kind: str, use_settings: Callable[..., None], tmp_path: Path
) -> None:
    name = KINDS[kind]
    use_settings(halo_policy=f"{name}-overlap", message_transport=name, device_transport=name)

    def run() -> list[int]:
        counts = []
        world = current()
        gpu = open_device(kind, world)

        def count() -> None:
            world.barrier()
            counts.append(made(tmp_path))
            world.barrier()

        exchange(kind)
        count()
        pass_on(world, gpu)
        count()
        add_up(world, gpu, name)
        ByLibrary(world, gpu).all_reduce(on_device(np.ones(3), "fp64", gpu))
        exchange(kind)
        count()
        part = world.split(world.rank % 2)
        assert part is not None
        add_up(part, gpu, name)
        pass_on(part, gpu)
        count()  # two more: each part is a group
        return counts

    assert virtual_ranks(4, run) == [[1, 1, 1, 3]] * 4
    gc.collect()
    assert not list(tmp_path.glob("fake-ccl-*"))  # all have ended with their ranks
    assert not list(tmp_path.glob("fault-*"))


def another_stream(path: Path, gpu: _core.Gpu) -> int:
    """A stream of a fake device that is not jali's."""
    driver, handle = ctypes.CDLL(str(path)), ctypes.c_void_p()
    with current_device(driver, gpu.ordinal):
        assert driver.cuStreamCreateWithPriority(ctypes.byref(handle), 1, 0) == 0
    return handle.value or 0


def test_operations_run_in_the_order_in_which_they_were_issued_whatever_their_streams(
    fake_driver: Path,
) -> None:
    def body(gpus: ByLibrary) -> None:
        gpu, stream = gpus.gpu, another_stream(fake_driver, gpus.gpu)
        x, y, z = (on_device(np.full(3, 1.0 + gpus.rank), "fp64", gpu) for _ in range(3))
        gpu.let_wait(stream)
        there = gpus.communicator.collectives.on_device(gpu)
        plan = there.plan_of(_core.CollectiveCall("all_reduce", "fp64", 3, 0, "sum", False, "nccl", False))
        plan.run([x.address, y.address], stream)
        plan.run([y.address, z.address])  # no event of ours between the two
        np.testing.assert_array_equal(on_host(z), 6.0)

    on_ranks(2, body)


def test_different_orders_on_two_ranks_end_with_the_watchdog(
    use_settings: Callable[..., None], fake_driver: Path
) -> None:
    use_settings(watchdog="1", message_transport="nccl")

    def run() -> None:
        world = current()
        gpu = open_device("cuda", world)
        x = on_device(np.ones(3), "fp64", gpu)
        end = (world.persistent_send if world.rank == 0 else world.persistent_receive)(x, 1 - world.rank)
        end.meet()
        stream = another_stream(fake_driver, gpu)
        calls: list[Callable[[], Any]] = [
            lambda: end.start(stream),
            lambda: ByLibrary(world, gpu).all_reduce(x),
        ]
        for call in calls if world.rank == 0 else reversed(calls):
            call()
        gpu.synchronize()

    with pytest.raises((DeviceError, RankError), match="nothing has moved for 1 s"):
        virtual_ranks(2, run)


# --- symmetric windows ----------------------------------------------------------------------------------------------


def filled(gpus: ByLibrary, numbers: Any, element: str) -> DeviceArray:
    array = gpus.symmetric(np.shape(numbers), element)
    gpus.gpu.upload_address(array.address, to_bits(numbers, element).reshape(-1).view(np.uint8))
    return array


@pytest.mark.short(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_collectives_between_symmetric_arrays_go_by_windows_and_are_those_of_numpy(
    kind: str, ranks: int, tmp_path: Path
) -> None:
    shapes = ((6, 7), (3, 123), (3 * 2**18 + 6,))  # the last one beyond a page

    def body(gpus: ByLibrary) -> int:
        done = 0
        for element in ("fp32", "fp64", "int32"):
            for shape in shapes:
                whole = [values(element, shape, r) for r in range(ranks)]
                x = filled(gpus, whole[gpus.rank], element)
                total = gpus.symmetric(shape, element)
                assert gpus.all_reduce(x, total) is total
                np.testing.assert_array_equal(on_host(total), sum(whole))
                stacked = gpus.symmetric((ranks * shape[0], *shape[1:]), element)
                gpus.all_gather(x, stacked)
                np.testing.assert_array_equal(on_host(stacked), np.concatenate(whole))
                done += 2
                plain = on_device(whole[gpus.rank], element, gpus.gpu)
                np.testing.assert_array_equal(on_host(gpus.all_reduce(plain)), sum(whole))
        assert between_windows(tmp_path, gpus.rank) == done
        return done

    assert on_ranks(ranks, body, kind) == [18] * ranks


def test_public_collectives_of_symmetric_arrays_go_by_windows_also_when_planned_and_in_graphs(
    tmp_path: Path,
) -> None:
    def run() -> int:
        world = current()
        gpu = open_device("cuda", world)
        gpus = ByLibrary(world, gpu)
        x, out = filled(gpus, np.full(5, 1.0 + world.rank), "fp64"), gpus.symmetric((5,), "fp64")
        for _ in range(3):
            world.all_reduce(x, out, algorithm="nccl")
        np.testing.assert_array_equal(on_host(out), 3.0)
        graph = _core.GpuGraph(gpu, lambda: world.all_reduce(x, out, algorithm="nccl"))
        gpu.fill(out.memory, 0)
        gpu.launch_graph(graph)
        np.testing.assert_array_equal(on_host(out), 3.0)
        return between_windows(tmp_path, world.rank)

    assert virtual_ranks(2, run) == [4, 4]


def test_symmetric_memory_is_used_again_when_all_ranks_have_let_it_go() -> None:
    def body(gpus: ByLibrary) -> None:
        first = gpus.symmetric((5,), "fp64")
        kept = gpus.symmetric((6,), "fp32")
        address = first.address
        assert address % 4096 == 0
        assert address != kept.address
        if gpus.rank == 0:  # the other rank still has it
            del first
        second = gpus.symmetric((5,), "fp64")
        assert second.address != address
        if gpus.rank == 1:
            del first
        gc.collect()
        current().barrier()
        third = gpus.symmetric((9,), "int16")  # of as many pages
        assert third.address == address
        del second, third
        gc.collect()
        big = gpus.symmetric((3 << 20,), "uint8")  # nothing of that size is free, and what is goes
        assert gpus.symmetric((3 << 20,), "uint8").address != big.address
        x = filled(gpus, np.ones(6), "fp32")
        gpus.all_reduce(x, kept)
        np.testing.assert_array_equal(on_host(kept), 2.0)

    on_ranks(2, body)


def test_windows_wait_for_what_uses_them_on_any_stream_before_they_go(
    fake_driver: Path, tmp_path: Path
) -> None:
    def body(gpus: ByLibrary) -> None:
        stream = another_stream(fake_driver, gpus.gpu)
        x, out = filled(gpus, np.ones(7), "fp64"), gpus.symmetric((7,), "fp64")
        gpus.gpu.let_wait(stream)
        busy = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), ctypes.c_void_p(300_000)  # us
        assert ctypes.CDLL(str(fake_driver)).cuLaunchHostFunc(ctypes.c_void_p(stream), *busy) == 0
        there = gpus.communicator.collectives.on_device(gpus.gpu)
        plan = there.plan_of(_core.CollectiveCall("all_reduce", "fp64", 7, 0, "sum", False, "nccl", False))
        plan.run([x.address, out.address], stream)  # jali's stream does not wait for it
        del x, out
        gc.collect()
        gpus.symmetric((5 << 20,), "uint8")
        assert (tmp_path / f"windows-{gpus.rank}").read_text().split() == ["+0", "+1", "-0", "-1", "+2"]

    on_ranks(2, body)


def test_windows_of_a_plan_that_goes_are_given_out_behind_its_last_run(fake_driver: Path) -> None:
    def body(gpus: ByLibrary) -> None:
        gpu, stream = gpus.gpu, another_stream(fake_driver, gpus.gpu)
        there = gpus.communicator.collectives.on_device(gpu)
        there.keep_at_most(1)

        def plan_of(collective: str, count: int) -> Any:
            return there.plan_of(
                _core.CollectiveCall(collective, "fp64", count, 0, "sum", False, "nccl-windows", False)
            )

        x, out = on_device(np.ones(7), "fp64", gpu), on_device(np.zeros(7), "fp64", gpu)
        gpu.let_wait(stream)
        busy = ctypes.cast(ctypes.CDLL(None).usleep, ctypes.c_void_p), ctypes.c_void_p(300_000)  # us
        assert ctypes.CDLL(str(fake_driver)).cuLaunchHostFunc(ctypes.c_void_p(stream), *busy) == 0
        plan_of("all_reduce", 7).run([x.address, out.address], stream)  # jali's stream does not wait for it
        plan_of("all_gather", 200_000)  # for a result in a larger window
        mine = gpus.symmetric((7,), "fp64")  # in the other one
        gpu.fill(mine.memory, 119)
        gpu.wait_for(stream)
        np.testing.assert_array_equal(on_host(mine).view(np.uint8), 119)
        np.testing.assert_array_equal(on_host(out), 2.0)

    on_ranks(2, body)


def test_arrays_outlive_the_ranks_that_shared_them() -> None:
    def run() -> DeviceArray:
        gpus = ByLibrary(current(), _core.Gpu.open("cuda", current().rank))
        return filled(gpus, np.full(3, 7.0), "fp64")

    for array in virtual_ranks(2, run):
        np.testing.assert_array_equal(on_host(array), 7.0)


def test_windows_go_with_a_duplicate_and_before_its_communicator() -> None:
    def body(gpus: ByLibrary) -> None:
        more = ByLibrary(current().duplicate(), gpus.gpu)
        x = filled(more, np.ones(3), "fp64")
        np.testing.assert_array_equal(on_host(more.all_reduce(x)), 2.0)
        del more
        gc.collect()
        np.testing.assert_array_equal(on_host(x), 1.0)

    on_ranks(2, body)


def test_after_an_error_there_is_no_symmetric_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def body(gpus: ByLibrary) -> None:
        x = filled(gpus, np.ones(3), "fp64")
        current().barrier()
        monkeypatch.setenv("JALI_FAKE_CCL_ERROR_AFTER", "0")
        with pytest.raises((DeviceError, RankError), match="unplugged"):
            gpus.all_reduce(x, x)
            gpus.synchronize()
        gpus.symmetric((3,), "fp64")

    with pytest.raises((DeviceError, RankError), match="unplugged"):
        on_ranks(2, body)


def test_ranks_that_request_different_sizes_raise_and_nothing_has_happened() -> None:
    def body(gpus: ByLibrary) -> None:
        with pytest.raises(
            ParameterError, match="of 32 bytes on rank 0, but of 40 on rank 2: give all ranks the same shape"
        ):
            gpus.symmetric((4 + gpus.rank // 2,), "fp64")
        x = filled(gpus, np.ones(4), "fp64")
        np.testing.assert_array_equal(on_host(gpus.all_reduce(x)), 3.0)

    on_ranks(3, body)


def test_where_there_are_no_windows_all_ranks_say_why(
    ccl_library: str, use_settings: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_settings(nccl=ccl_library)
    monkeypatch.setenv("JALI_FAKE_CCL_NO_WINDOWS", "1")

    def body(gpus: ByLibrary) -> tuple[str, str]:
        before = gpus.why_not_symmetric()
        for _ in range(2):
            with pytest.raises(DeviceError, match="no symmetric windows here") as caught:
                gpus.symmetric((4,), "fp64")
            assert gpus.why_not_symmetric() in str(caught.value)
        x = on_device(np.ones(4), "fp64", gpus.gpu)
        np.testing.assert_array_equal(on_host(gpus.all_reduce(x)), 2.0)
        return before, gpus.why_not_symmetric()

    (before, after), other = on_ranks(2, body)
    assert other == (before, after)
    if "NCCL 2.22.3" in after:
        assert before == after == "rank 0: NCCL 2.22.3 has no symmetric windows; NCCL has them since 2.27"
    else:
        assert before == ""
        assert after.startswith("NCCL makes none between these devices")


def test_one_rank_without_memory_is_an_error_on_all() -> None:
    def body(gpus: ByLibrary) -> str:
        x = DeviceArray.empty(gpus.gpu, (3,), "fp64")
        huge = gpus.gpu.total_memory
        with pytest.raises((MemoryError, DeviceError)) as caught:
            gpus.symmetric((huge // SIZES["fp64"] + 1,), "fp64")
        gpus.all_reduce(x, x)
        return str(caught.value)

    for text in on_ranks(2, body):
        assert "symmetric arrays" in text
