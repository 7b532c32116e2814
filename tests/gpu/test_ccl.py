"""Collectives of NCCL and RCCL against NumPy, and arrays that change hands, on an imaginary library and driver.

Ranks are threads of this process, each with an imaginary GPU of its own, or MPI processes. Streams are lazy, so a
missing wait shows in the numbers.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from fake_driver import make_fake_ccl

from jali import _core
from jali.comm import CclCommunicator, DeviceArray, current, virtual_ranks
from jali.comm.device_arrays import element_dtype, stream_handle, view_of
from jali.comm.elements import SIZES
from jali.comm.launcher import find_launcher
from jali.errors import DeviceError, ParameterError, RankError

pytestmark = pytest.mark.skipif(
    os.environ.get("JALI_TEST_REAL_GPU") == "1", reason="CUDA's driver is the machine's in this run"
)
HERE = Path(__file__).parent
RANKS = (1, 2, 3)
MOVED = tuple(SIZES)
COMBINED = tuple(name for name in SIZES if name not in ("int16", "uint16") and not name.startswith("complex"))
FLOATING = ("fp16", "bf16", "fp32", "fp64")
TOLERANCE = {"fp16": 2e-3, "bf16": 2e-2, "fp32": 1e-6, "complex64": 1e-6, "fp64": 1e-15, "complex128": 1e-15}


# --- libraries made for tests ---------------------------------------------------------------------------------------


@pytest.fixture(scope="session", params=["new", "old"])
def ccl_library(request: pytest.FixtureRequest) -> str:
    """With and without the functions that came last."""
    if not request.param:  # nothing that could be loaded
        return ""
    return str(make_fake_ccl(*(["-DJALI_OLD"] if request.param == "old" else [])))


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """Both kinds of library are imaginary, like both kinds of device; four devices."""
    library = str(make_fake_ccl())
    for name in ("JALI_NCCL", "JALI_RCCL"):
        monkeypatch.setenv(name, library)
    monkeypatch.setenv("JALI_FAKE_GPUS", "4")
    monkeypatch.setenv("JALI_FAKE_CCL_FOLDER", str(tmp_path))
    yield library
    assert not list(tmp_path.glob("fake-ccl-*/*.new"))


def on_ranks(ranks: int, body: Callable[[CclCommunicator], Any], kind: str = "cuda") -> list[Any]:
    """What `body` returns on each of these ranks."""

    def run() -> Any:
        with CclCommunicator(current(), _core.Gpu.open(kind, current().rank)) as gpus:
            return body(gpus)

    return virtual_ranks(ranks, run)


# --- data: small integers, so that all sums are exact --------------------------------------------------------------


def values(element: str, shape: tuple[int, ...], rank: int, seed: int = 0) -> npt.NDArray[Any]:
    """Numbers of this rank, as float64, complex128 or integers that the type can hold."""
    random = np.random.default_rng([seed, rank])
    numbers = random.integers(0 if element.startswith("uint") else -3, 4, shape)
    if element.startswith("complex"):
        return numbers + 1j * random.integers(-3, 4, shape)
    return numbers.astype(np.float64) if element in FLOATING else numbers


def to_bits(numbers: npt.NDArray[Any], element: str) -> npt.NDArray[Any]:
    if element == "bf16":
        return (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(numbers.astype(element_dtype(element)))


def on_device(numbers: npt.NDArray[Any], element: str, gpu: Any) -> DeviceArray:
    bits = DeviceArray.from_host(to_bits(numbers, element), gpu)
    return DeviceArray(gpu, bits.memory, bits.shape, element)


def on_host(array: DeviceArray) -> npt.NDArray[Any]:
    bits = array.to_host()
    if array.element == "bf16":
        return (bits.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return bits


def assert_close(got: npt.NDArray[Any], wanted: npt.NDArray[Any], element: str) -> None:
    assert got.shape == wanted.shape
    if element in TOLERANCE:
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[element], atol=0)
    else:
        np.testing.assert_array_equal(got, wanted.astype(got.dtype))


def reference(op: str, all_values: list[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    stacked = np.stack(all_values)
    combine = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
    return combine[op](stacked, axis=0)


# --- what is combined ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("op", ["sum", "prod", "min", "max", "avg"])
def test_reductions_are_those_of_numpy(op: str, ranks: int) -> None:
    elements = {"avg": (*FLOATING, "complex64", "complex128")}.get(op, COMBINED)
    if op == "sum":
        elements = (*elements, "complex64", "complex128")

    def body(gpus: CclCommunicator) -> None:
        for element in elements:
            whole = [values(element, (6, 5), r) for r in range(ranks)]
            wanted = reference(op, whole)
            mine = on_device(whole[gpus.rank], element, gpus.gpu)
            assert_close(on_host(gpus.all_reduce(mine, op=op)), wanted, element)
            for root in range(ranks):
                got = gpus.reduce(mine, op=op, root=root)
                assert (got is None) == (gpus.rank != root)
                if got is not None:
                    assert_close(on_host(got), wanted, element)
            rows = 6 // ranks
            part = wanted[gpus.rank * rows : (gpus.rank + 1) * rows]
            assert_close(on_host(gpus.reduce_scatter(mine, op=op)), part, element)
            assert_close(on_host(mine), whole[gpus.rank], element)  # the operands are as they were
            assert gpus.all_reduce(mine, mine, op) is mine
            assert_close(on_host(mine), wanted, element)

    on_ranks(ranks, body)


def test_reduce_scatter_in_place_leaves_the_result_at_its_part() -> None:
    def body(gpus: CclCommunicator) -> None:
        whole = [values("fp32", (6,), r) for r in range(3)]
        x = on_device(whole[gpus.rank], "fp32", gpus.gpu)
        gpus.reduce_scatter(x, x)
        part = slice(2 * gpus.rank, 2 * gpus.rank + 2)
        np.testing.assert_array_equal(on_host(x)[part], reference("sum", whole)[part])

    on_ranks(3, body)


def test_what_the_library_cannot_combine_is_refused_by_name() -> None:
    def body(gpus: CclCommunicator) -> None:
        def refused(element: str, op: str, error: type[Exception], text: str) -> None:
            with pytest.raises(error, match=text):
                gpus.all_reduce(DeviceArray.empty(gpus.gpu, (4,), element), op=op)

        refused("int16", "sum", DeviceError, "NCCL cannot combine elements of type int16")
        refused("uint16", "max", DeviceError, "uint16")
        refused("complex64", "prod", DeviceError, "knows no complex numbers: sum and avg of complex64 work")
        refused(
            "int32", "bit_and", DeviceError, "NCCL has no operation 'bit_and'; it has sum, prod, min, max"
        )
        refused("int32", "logical_or", DeviceError, "logical_or")
        refused("int32", "avg", ParameterError, "'avg' is not defined for int32")
        refused("fp32", "median", ParameterError, "median")
        x = on_device(values("fp32", (4,), gpus.rank), "fp32", gpus.gpu)
        got = on_host(gpus.all_reduce(x))  # nothing has been broken
        np.testing.assert_array_equal(got, reference("sum", [values("fp32", (4,), r) for r in range(2)]))

    on_ranks(2, body)


# --- what is moved -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
def test_parts_of_all_types_move_as_in_numpy(
    ranks: int, ccl_library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JALI_NCCL", ccl_library)

    def body(gpus: CclCommunicator) -> None:
        me, gpu = gpus.rank, gpus.gpu
        for element in MOVED:
            whole = [values(element, (6, 2), r) for r in range(ranks)]
            mine = on_device(whole[me], element, gpu)
            assert_close(on_host(gpus.all_gather(mine)), np.concatenate(whole), element)
            exchanged = np.concatenate([np.split(w, ranks)[me] for w in whole])
            assert_close(on_host(gpus.all_to_all(mine)), exchanged, element)
            for root in range(ranks):
                got = gpus.gather(mine, root=root)
                assert (got is None) == (me != root)
                if got is not None:
                    assert_close(on_host(got), np.concatenate(whole), element)
                part = DeviceArray.empty(gpu, (6 // ranks, 2), element)
                gpus.scatter(mine if me == root else None, part, root)
                assert_close(on_host(part), np.split(whole[root], ranks)[me], element)
                x = on_device(whole[me], element, gpu)
                assert gpus.broadcast(x, root) is x
                assert_close(on_host(x), whole[root], element)

    on_ranks(ranks, body)


@pytest.mark.parametrize("counts", [[2, 0, 5], [1, 4, 0], [0, 0, 3], [2, 2, 2]])
def test_uneven_and_empty_parts_move_too(
    counts: list[int], ccl_library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JALI_NCCL", ccl_library)
    matrix = np.array([counts, counts[::-1], np.roll(counts, 1)])

    def body(gpus: CclCommunicator) -> None:
        me, gpu = gpus.rank, gpus.gpu
        parts = [values("int16", (n, 3), r) for r, n in enumerate(counts)]
        mine, stacked = on_device(parts[me], "int16", gpu), np.concatenate(parts)
        assert_close(on_host(gpus.all_gather(mine, counts=counts)), stacked, "int16")
        place = np.zeros_like(stacked)
        place[sum(counts[:me]) : sum(counts[: me + 1])] = parts[me]
        x = on_device(place, "int16", gpu)
        gpus.all_gather(x, x, counts=counts)
        assert_close(on_host(x), stacked, "int16")
        for root in range(3):
            got = gpus.gather(mine, root=root, counts=counts)
            if got is not None:
                assert_close(on_host(got), stacked, "int16")
            part = DeviceArray.empty(gpu, (counts[me], 3), "int16")
            gpus.scatter(x if me == root else None, part, root, counts=counts)
            assert_close(on_host(part), parts[me], "int16")
        sent = [values("fp64", (int(matrix[r].sum()), 2), r, seed=1) for r in range(3)]
        pieces = [np.split(sent[r], np.cumsum(matrix[r])[:-1])[me] for r in range(3)]
        got = gpus.all_to_all(on_device(sent[me], "fp64", gpu), counts=matrix.tolist())
        assert_close(on_host(got), np.concatenate(pieces), "fp64")

    on_ranks(3, body)


def test_messages_of_a_group_go_on_at_once() -> None:
    def body(gpus: CclCommunicator) -> None:
        right, left = (gpus.rank + 1) % 3, (gpus.rank - 1) % 3
        mine = [on_device(values("fp64", (7,), gpus.rank, n), "fp64", gpus.gpu) for n in range(4)]
        came = [DeviceArray.empty(gpus.gpu, (7,), "fp64") for _ in range(4)]
        for _ in range(2):
            with gpus.group():
                for n in range(4):
                    gpus.send(mine[n], right)
                for n in range(4):
                    gpus.receive(came[n], left)
                with gpus.group():
                    gpus.send(mine[0], gpus.rank)  # to itself, and in a group of its own
                    gpus.receive(mine[3], gpus.rank)
            for n in range(4):
                np.testing.assert_array_equal(
                    on_host(came[n]), values("fp64", (7,), left, n if n < 3 or _ == 0 else 0)
                )
        np.testing.assert_array_equal(on_host(mine[3]), on_host(mine[0]))

    on_ranks(3, body)


def test_messages_in_turn_without_a_group_lose_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_WATCHDOG", "1")

    def body(gpus: CclCommunicator) -> None:
        x = DeviceArray.empty(gpus.gpu, (7,), "fp64")
        gpus.send(x, 1 - gpus.rank)
        gpus.receive(x, 1 - gpus.rank)
        gpus.synchronize("a ring")

    with pytest.raises(DeviceError, match="waiting for a ring: nothing has moved for 1 s"):
        on_ranks(2, body)


def test_what_was_in_a_group_that_failed_does_not_happen() -> None:
    def body(gpus: CclCommunicator) -> None:
        x = on_device(np.full(3, gpus.rank + 1.0), "fp64", gpus.gpu)
        with pytest.raises(ZeroDivisionError), gpus.group():
            gpus.all_reduce(x, x)
            raise ZeroDivisionError
        np.testing.assert_array_equal(on_host(x), gpus.rank + 1)
        np.testing.assert_array_equal(on_host(gpus.all_reduce(x)), 3)

    on_ranks(2, body)


def test_arguments_that_do_not_fit_are_refused_before_anything_moves() -> None:
    def body(gpus: CclCommunicator) -> None:
        gpu = gpus.gpu
        x = DeviceArray.empty(gpu, (5, 2), "fp32")
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: gpus.all_to_all(x), "5 rows .* are no 2 equal parts"),
            (lambda: gpus.all_to_all(x, x), "cannot work in place"),
            (lambda: gpus.broadcast(x, 2), "rank 2 does not exist among 2 ranks"),
            (lambda: gpus.all_gather(x, counts=[5]), r"counts \[5\] for 2 ranks"),
            (lambda: gpus.all_gather(x, counts=[1, 1]), "mean 1 rows"),
            (lambda: gpus.all_reduce(x, DeviceArray.empty(gpu, (4, 2), "fp32")), "cannot hold a result"),
            (lambda: gpus.all_reduce(x, DeviceArray.empty(gpu, (5, 2), "fp64")), "make them alike"),
            (lambda: gpus.scatter(None, root=1 - gpus.rank), "needs `out`"),
            (lambda: gpus.all_reduce(x, stream=gpu.stream), "needs `out`"),
            (lambda: gpus.all_to_all(x, counts=[[1, 1], [2, 2]]), "sends . rows"),
        ]
        for call, text in calls:
            with pytest.raises(ParameterError, match=text):
                call()
        with pytest.raises(
            DeviceError, match="ndarray is not in device memory; give a jali.comm.DeviceArray|host memory"
        ):
            gpus.all_reduce(np.zeros(3))
        other = _core.Gpu.open("cuda", 3)
        with pytest.raises(DeviceError, match=f"on device 3, but this rank uses device {gpus.rank}"):
            gpus.all_reduce(DeviceArray.empty(other, (3,), "fp32"))

    on_ranks(2, body)


def test_rccl_is_the_same_table() -> None:
    def body(gpus: CclCommunicator) -> tuple[str, list[float]]:
        x = on_device(np.arange(3.0) + gpus.rank, "fp64", gpus.gpu)
        exchanged = gpus.all_to_all(gpus.all_gather(x))
        return gpus.core.library[0], [*on_host(gpus.all_reduce(x)), *on_host(exchanged)]

    first, second = on_ranks(2, body, "hip")
    assert first == ("RCCL", [1, 3, 5, 0, 1, 2, 0, 1, 2])
    assert second == ("RCCL", [1, 3, 5, 1, 2, 3, 1, 2, 3])


def test_communicators_that_do_not_block_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_PROGRESS", "1")

    def body(gpus: CclCommunicator) -> float:
        x = on_device(np.ones(3), "fp32", gpus.gpu)
        for _ in range(3):
            x = gpus.all_reduce(x)
        gpus.synchronize()
        return float(on_host(x)[0])

    assert on_ranks(3, body) == [27.0] * 3


# --- faults --------------------------------------------------------------------------------------------------------


def how_it_ends(ranks: int, body: Callable[[CclCommunicator], Any]) -> list[Exception | None]:
    """The exception of each rank, or None."""

    def run() -> Exception | None:
        try:
            with CclCommunicator(current(), _core.Gpu.open("cuda", current().rank)) as gpus:
                body(gpus)
        except (DeviceError, RankError) as error:
            return error
        return None

    return virtual_ranks(ranks, run)


def add_up(gpus: CclCommunicator) -> None:
    x = on_device(np.ones(3), "fp32", gpus.gpu)
    for turn in range(3):
        gpus.all_reduce(x, x)
        gpus.synchronize(f"sum {turn}")


def test_error_of_the_library_is_told_to_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_ERROR_AFTER", "1")
    monkeypatch.setenv("JALI_FAKE_CCL_ONLY", "1")
    start = time.monotonic()
    first, second, third = how_it_ends(3, add_up)
    assert time.monotonic() - start < 20
    assert isinstance(second, DeviceError)
    text = (
        "NCCL on rank 1 of 3: an error while it ran: remote process exited or there was a network error, "
        "the imaginary cable is unplugged"
    )
    assert str(second) == text
    for other in (first, third):
        assert isinstance(other, RankError)
        assert (other.rank, other.cause) == (1, text)  # type: ignore[attr-defined]


def test_hang_ends_with_the_watchdog_and_is_told_to_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_HANG_AFTER", "2")
    monkeypatch.setenv("JALI_WATCHDOG", "1")
    start = time.monotonic()
    ends = how_it_ends(2, add_up)
    assert 1 < time.monotonic() - start < 20
    assert any(isinstance(end, DeviceError) for end in ends)
    for end in ends:
        assert "waiting for sum 2: nothing has moved for 1 s" in str(end)


def test_rank_that_fails_elsewhere_ends_the_waits_of_the_others() -> None:
    def body(gpus: CclCommunicator) -> None:
        if gpus.rank == 1:
            current().fail("out of ink")
            return
        gpus.all_reduce(on_device(np.ones(3), "fp32", gpus.gpu))
        gpus.synchronize()

    first, second = how_it_ends(2, body)
    assert isinstance(first, RankError)
    assert first.cause == "out of ink"  # type: ignore[attr-defined]
    assert second is None


def test_copies_to_the_host_hear_of_failures_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_HANG_AFTER", "1")
    monkeypatch.setenv("JALI_WATCHDOG", "1")

    def body(gpus: CclCommunicator) -> None:
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
    def body(gpus: CclCommunicator) -> None:
        x = on_device(np.ones(4), "fp32", gpus.gpu)
        gpus.all_reduce(x) if gpus.rank == 0 else gpus.all_gather(x)
        gpus.synchronize()

    ends = how_it_ends(2, body)
    assert all(end is not None and "invalid usage" in str(end) for end in ends)


def test_communicator_that_failed_says_why_it_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_CCL_ERROR_AFTER", "0")

    def body(gpus: CclCommunicator) -> None:
        with pytest.raises((DeviceError, RankError)):
            add_up(gpus)
        gpus.all_reduce(on_device(np.ones(3), "fp32", gpus.gpu))

    for end in how_it_ends(2, body):
        assert "is of no more use" in str(end)
        assert "unplugged" in str(end)


def test_end_does_not_wait_for_ranks_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_WATCHDOG", "1")

    def body(gpus: CclCommunicator) -> float:
        add_up(gpus)
        current().barrier()
        if gpus.rank == 0:
            monkeypatch.setenv("JALI_FAKE_CCL_STUCK", "1")
        current().barrier()
        start = time.monotonic()
        gpus.close()
        with pytest.raises(DeviceError, match="it has been closed"):
            add_up(gpus)
        return time.monotonic() - start

    assert all(0.5 < seconds < 10 for seconds in on_ranks(2, body))


def test_beginning_loses_patience_with_ranks_that_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_WATCHDOG", "1")
    monkeypatch.setenv("JALI_FAKE_CCL_STUCK", "1")
    ends = how_it_ends(2, add_up)
    monkeypatch.delenv("JALI_FAKE_CCL_STUCK")  # the threads that hang may go on
    assert any(isinstance(end, DeviceError) for end in ends)
    for end in ends:
        assert "waiting for making a group of 2 GPUs: nothing has moved for 1 s" in str(end)


def test_two_ranks_on_one_gpu_are_told_what_to_do() -> None:
    def run() -> str:
        with pytest.raises(DeviceError) as caught:
            CclCommunicator(current(), _core.Gpu.open("cuda", current().rank % 2))
        return str(caught.value)

    for text in virtual_ranks(4, run):
        assert text.startswith("ranks 0 and 2 use one GPU (imaginary GPU 0, 01")
        assert "start as many ranks per host as it has GPUs" in text


def test_missing_library_says_what_was_tried_and_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_NCCL", "/nowhere/libnccl.so.2")

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
def test_ranks_with_different_libraries_are_told_so(
    libraries: str, ccl_library: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JALI_NCCL")
    monkeypatch.setattr(
        "jali.comm.ccl.find_library", lambda kind: ccl_library if current().rank == 1 else libraries
    )

    def run() -> str:
        with pytest.raises(DeviceError) as caught:
            CclCommunicator(current(), _core.Gpu.open("cuda", current().rank))
        return str(caught.value)

    first, second, third = virtual_ranks(3, run)
    assert text in first
    assert third == first
    assert text.removeprefix("rank 1 cannot join: ") in second


def test_library_of_the_installed_package_is_found(
    libraries: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wheel = tmp_path / "site" / "nvidia" / "nccl" / "lib"
    wheel.mkdir(parents=True)
    (wheel / "libnccl.so.2").symlink_to(libraries)
    monkeypatch.delenv("JALI_NCCL")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site")])
    assert (
        on_ranks(2, lambda gpus: gpus.core.library) == [("NCCL", "2.28.3", str(wheel / "libnccl.so.2"))] * 2
    )


def test_old_library_is_refused_with_its_version(
    libraries: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "old.so").symlink_to(libraries)
    monkeypatch.setenv("JALI_NCCL", str(tmp_path / "old.so"))
    monkeypatch.setenv("JALI_FAKE_CCL_VERSION", "2708")
    with pytest.raises(DeviceError, match=r"NCCL 2\.7\.8 .* is too old; jali needs 2\.10\.0 or newer"):
        on_ranks(1, add_up)


# --- arrays of other libraries -------------------------------------------------------------------------------------


class Foreign:
    """A library with a stream of its own, on which it fills arrays late: memory by CUDA's array interface or DLPack."""

    def __init__(self, driver: str | Path, gpu: Any) -> None:
        self.driver, self.gpu = ctypes.CDLL(str(driver)), gpu
        handle = ctypes.c_void_p()
        assert self.driver.cuStreamCreateWithPriority(ctypes.byref(handle), 1, 0) == 0
        self.stream = handle.value or 0
        self.keep: list[Any] = []

    def array(self, numbers: npt.NDArray[Any], face: str = "interface", **more: Any) -> Any:
        """An array that will hold these numbers when this library's stream comes to it."""
        memory = DeviceArray.from_host(np.zeros_like(numbers), self.gpu)
        self.put(memory, numbers)
        return {"interface": ByInterface, "dlpack": ByDlpack}[face](self, memory, **more)

    def put(self, array: Any, numbers: npt.NDArray[Any]) -> None:
        self.keep.append(numbers)
        source, stream = ctypes.c_void_p(numbers.ctypes.data), ctypes.c_void_p(self.stream)
        to = ctypes.c_uint64(array.address)
        assert self.driver.cuMemcpyHtoDAsync_v2(to, source, ctypes.c_size_t(numbers.nbytes), stream) == 0

    def take(self, array: Any) -> npt.NDArray[Any]:
        """What this library's stream sees; it does not wait for anybody else."""
        got = np.zeros(array.shape, array.dtype)
        stream = ctypes.c_void_p(self.stream)
        at, bytes_ = ctypes.c_uint64(array.address), ctypes.c_size_t(got.nbytes)
        assert self.driver.cuMemcpyDtoHAsync_v2(ctypes.c_void_p(got.ctypes.data), at, bytes_, stream) == 0
        assert self.driver.cuStreamSynchronize(stream) == 0
        return got


class ByInterface:
    """As CuPy's arrays: `__cuda_array_interface__` with the stream."""

    def __init__(self, library: Foreign, memory: DeviceArray, **more: Any) -> None:
        self.memory, self.address, self.shape, self.dtype = memory, memory.address, memory.shape, memory.dtype
        self.__cuda_array_interface__ = {
            "shape": memory.shape,
            "typestr": memory.dtype.str,
            "data": (memory.address, False),
            "version": 3,
            "stream": library.stream,
            **more,
        }


class ByDlpack:
    """As PyTorch's tensors: DLPack, where the owner puts the streams in order."""

    def __init__(self, library: Foreign, memory: DeviceArray, device: int | None = None) -> None:
        self.library, self.memory = library, memory
        self.address, self.shape, self.dtype = memory.address, memory.shape, memory.dtype
        self.device = memory.gpu.ordinal if device is None else device

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.device

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        event = ctypes.c_void_p()
        driver, theirs = self.library.driver, ctypes.c_void_p(stream or 0)
        assert driver.cuEventCreate(ctypes.byref(event), 2) == 0
        assert driver.cuEventRecord(event, ctypes.c_void_p(self.library.stream)) == 0
        assert driver.cuStreamWaitEvent(theirs, event, 0) == 0
        return _core.to_dlpack(self.address, self.shape, self.memory.element, 2, self.device, self)


# Memory is reused with what was in it, so each test adds up numbers of its own.
numbers_of_tests = itertools.count(1000, 10)


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("face", ["interface", "dlpack"])
def test_work_waits_for_the_streams_of_its_arrays(fake_driver: Path, face: str, grouped: bool) -> None:
    n = next(numbers_of_tests)

    def body(gpus: CclCommunicator) -> None:
        other = Foreign(fake_driver, gpus.gpu)
        x = other.array(np.full(5, n + gpus.rank + 0.0), face)
        with gpus.group() if grouped else nullcontext():
            y = gpus.all_reduce(x)
        np.testing.assert_array_equal(on_host(y), 3 * n + 3)  # looks at jali's stream only

    on_ranks(3, body)


@pytest.mark.parametrize("grouped", [False, True])
def test_streams_of_arrays_wait_for_the_work(fake_driver: Path, grouped: bool) -> None:
    n = next(numbers_of_tests)

    def body(gpus: CclCommunicator) -> None:
        other = Foreign(fake_driver, gpus.gpu)
        x, y = other.array(np.full(5, n + gpus.rank + 0.0)), other.array(np.zeros(5))
        with gpus.group() if grouped else nullcontext():
            gpus.all_reduce(x, y)
        np.testing.assert_array_equal(other.take(y), 3 * n + 3)  # looks at the other stream only

    on_ranks(3, body)


def test_default_stream_waits_for_work_on_arrays_that_name_none(fake_driver: Path) -> None:
    n = next(numbers_of_tests)

    def body(gpus: CclCommunicator) -> None:
        other = Foreign(fake_driver, gpus.gpu)
        x = other.array(np.full((2, 2), n + gpus.rank + 0.0), "dlpack")
        gpus.all_reduce(x, x)
        other.stream = 0
        np.testing.assert_array_equal(other.take(x), 2 * n + 1)

    on_ranks(2, body)


def test_work_on_a_stream_of_the_user_is_in_its_order(fake_driver: Path) -> None:
    n = next(numbers_of_tests)

    def body(gpus: CclCommunicator) -> None:
        other = Foreign(fake_driver, gpus.gpu)

        class Stream:  # as CuPy's and PyTorch's
            def __cuda_stream__(self) -> tuple[int, int]:
                return 0, other.stream

        x = other.array(np.full(5, n + gpus.rank + 0.0), stream=None)  # nobody need wait, says the interface
        y = DeviceArray.empty(gpus.gpu, (5,), "fp64")
        gpus.all_reduce(x, y, stream=Stream())
        np.testing.assert_array_equal(other.take(y), 3 * n + 3)
        other.put(y, np.full(5, -1.0))
        gpus.all_reduce(y, y, stream=other.stream)
        np.testing.assert_array_equal(on_host(y), -3)  # jali's stream waits for what happened to its array

    on_ranks(3, body)


@pytest.mark.parametrize("face", ["interface", "dlpack", "jali"])
def test_stream_of_the_user_waits_for_those_of_the_arrays(fake_driver: Path, face: str) -> None:
    n = next(numbers_of_tests)

    def body(gpus: CclCommunicator) -> None:
        other, user = (Foreign(fake_driver, gpus.gpu) for _ in range(2))
        numbers = np.full(5, n + gpus.rank + 0.0)
        y = user.array(np.zeros(5))  # first, since it waits for jali's stream
        if face == "jali":  # the sum is not there yet
            x, wanted = gpus.all_reduce(on_device(numbers, "fp64", gpus.gpu)), 3 * (3 * n + 3)
        else:
            x, wanted = other.array(numbers, face), 3 * n + 3
        gpus.all_reduce(x, y, stream=user.stream)
        np.testing.assert_array_equal(user.take(y), wanted)

    on_ranks(3, body)


def test_streams_are_known_by_handle_or_as_objects() -> None:
    class Torch:
        cuda_stream = 17

    class Cupy:
        ptr = 18

    assert [stream_handle(s) for s in (None, 5, Torch(), Cupy())] == [None, 5, 17, 18]
    with pytest.raises(ParameterError, match="a str is no stream"):
        stream_handle("main")


def test_views_refuse_what_is_not_a_contiguous_array_of_this_device(fake_driver: Path) -> None:
    gpu = _core.Gpu.open("cuda", 1)
    other = Foreign(fake_driver, gpu)
    numbers = np.arange(6.0).reshape(2, 3)

    def refused(x: Any, error: type[Exception], text: str, writable: bool = False) -> None:
        with pytest.raises(error, match=text):
            view_of(x, gpu, writable=writable)

    refused(other.array(numbers, strides=(8, 16)), ParameterError, "not C-contiguous")
    refused(other.array(numbers, mask=numbers), ParameterError, "mask")
    refused(
        other.array(numbers, data=(numbers.ctypes.data, False)),
        DeviceError,
        "memory that no cuda device knows",
    )
    refused(other.array(numbers, typestr="<M8[s]"), ParameterError, "datetime64")
    refused(other.array(numbers, "dlpack", device=0), DeviceError, "on device 0, but this rank uses device 1")
    refused(numbers, DeviceError, "a ndarray in host memory is not on imaginary GPU 1")
    refused([1.0], DeviceError, "a list is not in device memory")

    class WithGradients:  # as PyTorch's
        @property
        def __cuda_array_interface__(self) -> dict[str, Any]:
            raise RuntimeError("Can't get __cuda_array_interface__ on Variable that requires grad.")

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 1

        def __dlpack__(self, *, stream: int | None = None) -> Any:
            raise BufferError("Can't export tensors that require gradient")

    refused(
        WithGradients(), ParameterError, "a WithGradients cannot lend its memory: Can't export tensors that"
    )
    x = other.array(numbers)
    x.__cuda_array_interface__["data"] = (x.address, True)
    refused(x, ParameterError, "read-only", writable=True)
    view = view_of(x, gpu)
    assert (view.address, view.element, view.shape, view.nbytes) == (x.address, "fp64", (2, 3), 48)
    assert view_of(other.array(numbers, strides=(24, 8)), gpu).shape == (2, 3)
    elsewhere = Foreign(fake_driver, _core.Gpu.open("cuda", 2)).array(numbers)
    refused(elsewhere, DeviceError, "on device 2, but this rank uses device 1")


class DlTensor(ctypes.Structure):
    """DLTensor of dlpack.h, the first member of DLManagedTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


@pytest.mark.parametrize(
    ("element", "code"), [("fp64", 2), ("bf16", 4), ("complex64", 5), ("int16", 0), ("uint8", 1)]
)
def test_capsules_say_what_dlpack_wants_to_know(element: str, code: int) -> None:
    gpu = _core.Gpu.open("cuda", 2)
    array = on_device(values(element, (3, 4), 0), element, gpu)
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = array.__dlpack__(stream=1, max_version=(1, 0))
    tensor = DlTensor.from_address(get(capsule, b"dltensor"))
    assert tensor.data == array.address
    assert (tensor.device_type, tensor.device_id) == array.__dlpack_device__() == (2, 2)
    assert (tensor.code, tensor.bits, tensor.lanes) == (code, 8 * SIZES[element], 1)
    assert tensor.shape[:2] == [3, 4]
    assert not tensor.strides or tensor.strides[:2] == [4, 1]
    assert tensor.byte_offset == 0
    held = gpu.memory_held
    del array, tensor
    assert gpu.memory_held == held  # the capsule keeps the memory
    del capsule
    assert gpu.memory_held == held - 12 * SIZES[element]
    assert _core.Gpu.open("hip", 0).kind == "hip"
    assert DeviceArray.empty(_core.Gpu.open("hip", 1), (3,), element).__dlpack_device__() == (10, 1)


@pytest.mark.parametrize("face", ["interface", "dlpack", "default"])
def test_takers_wait_for_what_jali_has_put_on_its_stream(fake_driver: Path, face: str) -> None:
    n = next(numbers_of_tests)

    def body(gpus: CclCommunicator) -> None:
        other = Foreign(fake_driver, gpus.gpu)
        x = gpus.all_reduce(on_device(np.full(5, n + gpus.rank + 0.0), "fp64", gpus.gpu))  # not done yet
        if face == "interface":
            told = x.__cuda_array_interface__
            assert (told["version"], told["typestr"], told["shape"]) == (3, "<f8", (5,))
            assert told["stream"] == gpus.gpu.stream  # who takes it waits for this
        else:
            stream = {"dlpack": other.stream, "default": None}[face]
            capsule = x.__dlpack__(stream=stream)
            other.stream = stream or 0
            np.testing.assert_array_equal(other.take(x), 3 * n + 3)
            assert _core.from_dlpack(capsule).shape == (5,)

    on_ranks(3, body)


def test_what_jali_lends_is_lent_as_it_is() -> None:
    array = DeviceArray.from_host(np.zeros(3), _core.Gpu.open("cuda", 0))
    for wish in ({"copy": True}, {"dl_device": (1, 0)}, {"stream": 0}, {"stream": -2}):
        with pytest.raises(BufferError):
            array.__dlpack__(**wish)  # type: ignore[arg-type]
    array.__dlpack__(copy=False, dl_device=(2, 0), stream=-1)
    assert not hasattr(DeviceArray.empty(array.gpu, (3,), "bf16"), "__cuda_array_interface__")
    with pytest.raises(ParameterError, match="needs 400 bytes, not 24"):
        DeviceArray(array.gpu, array.memory, (50,), "fp64")


# --- processes -----------------------------------------------------------------------------------------------------

PROGRAM = """
import os, sys
import numpy as np
from jali import _core, comm
from jali.errors import DeviceError, RankError

world = comm.current()
assert (world.transport, world.size) == ("mpi", 2)
gpus = comm.CclCommunicator(world, _core.Gpu.open("cuda", world.rank))
x = comm.DeviceArray.from_host(np.arange(1000.0) * (world.rank + 1), gpus.gpu)
np.testing.assert_array_equal(gpus.all_reduce(x).to_host(), 3 * np.arange(1000.0))
parts = [np.arange(n, dtype=np.int16) + n for n in (5, 2)]
part = comm.DeviceArray.from_host(parts[world.rank], gpus.gpu)
np.testing.assert_array_equal(gpus.all_gather(part, counts=[5, 2]).to_host(), np.concatenate(parts))
y = comm.DeviceArray.empty(gpus.gpu, (1000,), "fp64")
with gpus.group():
    gpus.send(x, 1 - world.rank)
    gpus.receive(y, 1 - world.rank)
world.barrier()  # with work under way
gpus.synchronize()
np.testing.assert_array_equal(y.to_host(), np.arange(1000.0) * (2 - world.rank))
world.barrier()  # or a rank would hear of the failure while it still waits above
if world.rank == 1:
    os.environ["JALI_FAKE_CCL_ERROR_AFTER"] = "0"
if os.environ.get("FAIL"):
    try:
        gpus.all_reduce(x, x)
        gpus.synchronize()
    except (DeviceError, RankError) as error:
        print(f"rank {world.rank}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        comm.end_job(error, 3)
print(f"rank {world.rank} is content", flush=True)
"""


@pytest.mark.mpi
@pytest.mark.parametrize("fail", ["", "1"])
def test_ranks_may_be_mpi_processes(fail: str, tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    try:
        find_launcher()
    except RankError as error:
        pytest.skip(str(error))
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    start = "import sys; from jali.comm.launcher import launch; sys.exit(launch(2, sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", start, sys.executable, str(program)],
        env={**os.environ, "FAIL": fail},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if not fail:
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("is content") == 2
    else:
        assert done.returncode == 3
        assert (
            "rank 1: DeviceError: NCCL on rank 1 of 2: an error while it ran: remote process" in done.stderr
        )
        assert "rank 0: RankError: rank 1 failed: NCCL on rank 1 of 2" in done.stderr
