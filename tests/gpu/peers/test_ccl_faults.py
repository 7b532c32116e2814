"""Faults of NCCL and RCCL: every rank hears of them, in time, and is told what would help; also between processes."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from by_library import ByLibrary
from ccl_ranks import FAKE, on_device, on_host, on_ranks
from programs import need_mpi, run_program
from programs import on_ranks as on_processes

from jali import _core, settings
from jali.comm import CclCommunicator, current, virtual_ranks
from jali.errors import DeviceError, RankError
from jali.vendors import suggest_libraries

pytestmark = FAKE


def how_it_ends(ranks: int, body: Callable[[ByLibrary], Any]) -> list[Exception | None]:
    """The exception of each rank, or None."""

    def run() -> Exception | None:
        try:
            body(ByLibrary(current(), _core.Gpu.open("cuda", current().rank)))
        except (DeviceError, RankError) as error:
            return error
        return None

    return virtual_ranks(ranks, run)


def add_up(gpus: ByLibrary) -> None:
    x = on_device(np.ones(3), "fp32", gpus.gpu)
    for turn in range(3):
        gpus.all_reduce(x, x)
        gpus.synchronize(f"sum {turn}")


def test_error_of_the_library_raises_on_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_ERROR_AFTER", "1")
    monkeypatch.setenv("JALI_FAKE_CCL_ONLY", "1")
    first, second, third = how_it_ends(3, add_up)
    assert isinstance(second, DeviceError)
    text = (
        "NCCL on rank 1 of 3: an error while it ran: remote process exited or there was a network error, "
        "the fake cable is unplugged"
    )
    assert str(second) == text
    for other in (first, third):
        assert isinstance(other, RankError)
        assert (other.rank, other.cause) == (1, text)  # type: ignore[attr-defined]


def test_hang_ends_with_the_watchdog_and_raises_on_all_ranks(
    monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]
) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_HANG_AFTER", "2")
    use_settings(watchdog="1")
    ends = how_it_ends(2, add_up)
    assert any(isinstance(end, DeviceError) for end in ends)
    for end in ends:
        assert "waiting for sum 2: nothing has moved for 1 s" in str(end)


def test_rank_that_fails_elsewhere_ends_the_waits_of_the_others() -> None:
    def body(gpus: ByLibrary) -> None:
        if gpus.rank == 1:
            current().fail("out of ink")
            return
        gpus.all_reduce(on_device(np.ones(3), "fp32", gpus.gpu))
        gpus.synchronize()

    first, second = how_it_ends(2, body)
    assert isinstance(first, RankError)
    assert first.cause == "out of ink"  # type: ignore[attr-defined]
    assert second is None


def test_copies_to_the_host_hear_of_failures_too(
    monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]
) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_HANG_AFTER", "1")
    use_settings(watchdog="1")

    def body(gpus: ByLibrary) -> None:
        x = on_device(np.ones(3), "fp32", gpus.gpu)
        np.testing.assert_array_equal(gpus.all_reduce(x).to_host(), 3)
        if gpus.rank != 1:
            gpus.all_reduce(x).to_host()

    first, second, third = how_it_ends(3, body)
    assert second is None
    assert any(isinstance(end, DeviceError) for end in (first, third))
    for end in (first, third):
        assert "waiting for the device, where other ranks may be missing: nothing has moved for 1 s" in str(
            end
        )


def test_different_collectives_are_an_error_not_a_hang() -> None:
    def body(gpus: ByLibrary) -> None:
        x = on_device(np.ones(4), "fp32", gpus.gpu)
        for spec in (gpus.all_reduce, gpus.all_gather):  # to set up collectives is one of its own
            spec(x)
        gpus.all_reduce(x) if gpus.rank == 0 else gpus.all_gather(x)
        gpus.synchronize()

    ends = how_it_ends(2, body)
    assert all(end is not None and "invalid usage" in str(end) for end in ends)


def test_communicator_that_failed_says_why_it_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_ERROR_AFTER", "0")

    def body(gpus: ByLibrary) -> None:
        x = on_device(np.ones(3), "fp32", gpus.gpu)
        with pytest.raises((DeviceError, RankError)):
            add_up(gpus)
        with pytest.raises(DeviceError, match="so what it has computed since is not there"):
            on_host(x)
        with pytest.raises(DeviceError, match="give up what waits for other ranks .*unplugged"):
            gpus.all_reduce(x)
        gpus.check()

    for end in how_it_ends(2, body):
        assert "is of no more use" in str(end)
        assert "unplugged" in str(end)


def test_end_does_not_wait_for_ranks_that_do_not_come(
    monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]
) -> None:
    use_settings(watchdog="1")

    def body(gpus: ByLibrary) -> None:
        add_up(gpus)
        current().barrier()
        if gpus.rank == 0:
            monkeypatch.setenv("JALI_FAKE_CCL_STUCK", "1")
        current().barrier()
        current().core.leave()
        with pytest.raises(DeviceError, match="it has been closed"):
            add_up(gpus)

    on_ranks(2, body)


def test_beginning_times_out_with_ranks_that_do_not_come(
    monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None]
) -> None:
    use_settings(watchdog="1")
    monkeypatch.setenv("JALI_FAKE_CCL_STUCK", "1")
    ends = how_it_ends(2, add_up)
    monkeypatch.delenv("JALI_FAKE_CCL_STUCK")  # the threads that hang may go on
    assert any(isinstance(end, DeviceError) for end in ends)
    for end in ends:
        assert "waiting for making a group of 2 GPUs: nothing has moved for 1 s" in str(end)


def test_two_ranks_on_one_gpu_get_an_error_with_the_remedy() -> None:
    def run() -> str:
        with pytest.raises(DeviceError) as caught:
            CclCommunicator(current(), _core.Gpu.open("cuda", current().rank % 2))
        return str(caught.value)

    for text in virtual_ranks(4, run):
        assert text.startswith("ranks 0 and 2 use one GPU (fake GPU 0, 01")
        assert "start as many ranks per host as it has GPUs" in text


def test_missing_library_says_what_was_tried_and_what_to_install(use_settings: Callable[..., None]) -> None:
    use_settings(nccl="/nowhere/libnccl.so.2")

    def run() -> str:
        with pytest.raises(DeviceError) as caught:
            CclCommunicator(current(), _core.Gpu.open("cuda", current().rank))
        return str(caught.value)

    for text in virtual_ranks(2, run):
        assert text.startswith("NCCL was not found (/nowhere/libnccl.so.2: cannot open shared object file")
        assert "pip install nvidia-nccl-cu12 or nvidia-nccl-cu13" in text


@pytest.mark.parametrize(
    ("ccl_library", "text"),
    [
        ("", "rank 1 cannot join: NCCL was not found"),
        ("old", "rank 0 has NCCL 2.28.3, but rank 1 has NCCL 2.22.3: give all ranks the same library"),
    ],
    indirect=["ccl_library"],
)
def test_ranks_with_different_libraries_raise(
    fake_ccl: str,
    ccl_library: str,
    text: str,
    use_settings: Callable[..., None],
) -> None:
    use_settings(nccl=None)
    if not ccl_library:
        with pytest.raises(DeviceError):
            pytest.skip(f"one is installed: {_core.find_ccl('cuda')}")

    def run() -> str:
        world = current()
        library = ccl_library if world.rank == 1 else fake_ccl
        with pytest.raises(DeviceError) as caught:
            _core.CclGroup(world.core, _core.Gpu.open("cuda", world.rank), library)
        return str(caught.value)

    first, second, third = virtual_ranks(3, run)
    assert text in first
    assert third == first
    assert text.removeprefix("rank 1 cannot join: ") in second


def test_library_of_the_installed_package_is_found(
    fake_ccl: str, monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path
) -> None:
    wheel = tmp_path / "site" / "nvidia" / "nccl" / "lib"
    wheel.mkdir(parents=True)
    (wheel / "libnccl.so.2").symlink_to(fake_ccl)
    use_settings(nccl=None)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site"), *sys.path])
    suggest_libraries.cache_clear()
    try:
        found = on_ranks(2, lambda gpus: gpus.library)
        assert found == [("NCCL", "2.28.3", str(wheel / "libnccl.so.2"))] * 2
    finally:
        _core.suggest_library("cuda", "ccl", [])
        suggest_libraries.cache_clear()


def test_old_library_is_refused_with_its_version(
    fake_ccl: str, monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path
) -> None:
    (tmp_path / "old.so").symlink_to(fake_ccl)
    use_settings(nccl=str(tmp_path / "old.so"))
    monkeypatch.setenv("JALI_FAKE_CCL_VERSION", "2708")
    with pytest.raises(DeviceError, match=r"NCCL 2\.7\.8 .* is too old; jali needs 2\.10\.0 or newer"):
        on_ranks(1, add_up)


# --- processes -----------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
import numpy as np
import jali
from jali import _core, comm
from jali.errors import DeviceError, RankError

world = comm.current()
assert (world.transport, world.size) == ("mpi", 2)
gpus = comm.CclCommunicator(world, _core.Gpu.open("cuda", world.rank))
x = comm.DeviceArray.from_host(np.arange(1000.0) * (world.rank + 1), gpus.gpu)
total = world.all_reduce(x, algorithm="nccl")
np.testing.assert_array_equal(total.to_host(), 3 * np.arange(1000.0))
parts = [np.arange(n, dtype=np.int16) + n for n in (5, 2)]
part = comm.DeviceArray.from_host(parts[world.rank], gpus.gpu)
stacked = world.all_gather(part, counts=[5, 2], algorithm="nccl")
np.testing.assert_array_equal(stacked.to_host(), np.concatenate(parts))
y = comm.DeviceArray.empty(gpus.gpu, (1000,), "fp64")
with jali.tune.experiment(message_transport="nccl"):
    world.start([world.persistent_send(x, 1 - world.rank), world.persistent_receive(y, 1 - world.rank)])
world.barrier()  # with work under way
gpus.synchronize()
np.testing.assert_array_equal(y.to_host(), np.arange(1000.0) * (2 - world.rank))
world.barrier()  # or a rank would hear of the failure while it still waits above
if world.rank == 1:
    os.environ["JALI_FAKE_CCL_ERROR_AFTER"] = "0"
if os.environ.get("FAIL"):
    try:
        world.all_reduce(x, x, algorithm="nccl")
        gpus.synchronize()
    except (DeviceError, RankError) as error:
        print(f"rank {world.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        comm.end_job(error, 3)
print(f"rank {world.rank} is content", flush=True)
"""


@pytest.mark.short(1)
@pytest.mark.mpi
@pytest.mark.parametrize("fail", ["", "1"])
def test_ranks_may_be_mpi_processes(fail: str, tmp_path: Path) -> None:
    need_mpi()
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    command = on_processes(2, sys.executable, program)
    done = run_program(command, env=settings.environment() | {"FAIL": fail}, status=3 if fail else 0)
    if not fail:
        assert done.stderr == ""
        assert done.stdout.count("is content") == 2
    else:
        assert (
            "rank 1: DeviceError: NCCL on rank 1 of 2: an error while it ran: remote process" in done.stderr
        )
        assert "rank 0: RankError: rank 1 failed: NCCL on rank 1 of 2" in done.stderr
