"""NCCL on real GPUs against NumPy: the same operations as test_ccl.py, at sizes that use all of its algorithms.

For a machine with a GPU per rank, where NCCL is installed (pip install nvidia-nccl-cu12, or -cu13):

    JALI_TEST_REAL_GPU=1 pytest tests/gpu/peers/test_ccl_hardware.py               ranks are threads of one process
    mpiexec -n 4 python tests/gpu/peers/test_ccl_hardware.py                       ranks are MPI processes

The second prints, on rank 0, what was checked and how fast an all-reduce was beside its roof.
"""

from __future__ import annotations

import importlib
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
from by_library import ByLibrary

import jali
from jali import _core
from jali.comm import Communicator, DeviceArray, current, end_job, virtual_ranks
from jali.comm.device_arrays import element_dtype
from jali.comm.elements import SIZES
from jali.errors import DeviceError, JaliError

FLOATING = ("fp16", "bf16", "fp32", "fp64")
COMBINED = ("int8", "uint8", "int32", "uint32", "int64", "uint64", *FLOATING)
COMPLEX = ("complex64", "complex128")
TOLERANCE = {"fp16": 4e-3, "bf16": 4e-2, "fp32": 1e-6, "fp64": 1e-15, "complex64": 1e-6, "complex128": 1e-15}
ROWS = (1, 50, 40_000)  # of 5 elements, for each rank: latency, then bandwidth


def values(element: str, shape: tuple[int, ...], rank: int) -> npt.NDArray[Any]:
    """Small integers of this rank, so that sums are exact."""
    random = np.random.default_rng([rank, len(element)])
    numbers = random.integers(0 if element.startswith("uint") else -2, 3, shape)
    if element in COMPLEX:
        return numbers + 1j * random.integers(-2, 3, shape)
    return numbers.astype(np.float64) if element in FLOATING else numbers


def on_device(numbers: npt.NDArray[Any], element: str, gpu: Any) -> DeviceArray:
    if element == "bf16":
        bits: npt.NDArray[Any] = (numbers.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        bits = numbers.astype(element_dtype(element))
    return DeviceArray(gpu, DeviceArray.from_host(bits, gpu).memory, numbers.shape, element)


def assert_holds(array: DeviceArray, wanted: npt.NDArray[Any]) -> None:
    got = array.to_host()
    if array.element == "bf16":
        got = (got.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if array.element in TOLERANCE:
        np.testing.assert_allclose(got, wanted, rtol=TOLERANCE[array.element], atol=0)
    else:
        np.testing.assert_array_equal(got, wanted.astype(got.dtype))


def check_reductions(gpus: ByLibrary) -> None:
    combine = {"sum": np.sum, "prod": np.prod, "min": np.min, "max": np.max, "avg": np.mean}
    for op, function in combine.items():
        elements = {"sum": (*COMBINED, *COMPLEX), "avg": (*FLOATING, *COMPLEX)}.get(op, COMBINED)
        for element in elements:
            for rows in ROWS:
                shape = (rows * gpus.size, 5)
                whole = np.stack([values(element, shape, r) for r in range(gpus.size)])
                wanted = function(whole, axis=0)
                mine = on_device(whole[gpus.rank], element, gpus.gpu)
                assert_holds(gpus.all_reduce(mine, op=op), wanted)
                part = slice(gpus.rank * rows, (gpus.rank + 1) * rows)
                assert_holds(gpus.reduce_scatter(mine, op=op), wanted[part])
                root = gpus.size - 1
                got = gpus.reduce(mine, op=op, root=root)
                assert (got is None) == (gpus.rank != root)
                if got is not None:
                    assert_holds(got, wanted)
                gpus.all_reduce(mine, mine, op)
                assert_holds(mine, wanted)


def check_moves(gpus: ByLibrary) -> None:
    me, size, gpu = gpus.rank, gpus.size, gpus.gpu
    for element in SIZES:
        for rows in ROWS:
            whole = [values(element, (rows * size, 5), r) for r in range(size)]
            mine = on_device(whole[me], element, gpu)
            assert_holds(gpus.all_gather(mine), np.concatenate(whole))
            assert_holds(gpus.all_to_all(mine), np.concatenate([np.split(w, size)[me] for w in whole]))
            root = size - 1
            got = gpus.gather(mine, root=root)
            if got is not None:
                assert_holds(got, np.concatenate(whole))
            part = DeviceArray.empty(gpu, (rows, 5), element)
            gpus.scatter(mine if me == root else None, part, root)
            assert_holds(part, np.split(whole[root], size)[me])
            gpus.broadcast(mine, root)
            assert_holds(mine, whole[root])


def check_uneven_parts(gpus: ByLibrary) -> None:
    me, size, gpu = gpus.rank, gpus.size, gpus.gpu
    counts = [(7 * r + 3) % 5 * 1000 for r in range(size)]
    parts = [values("int16", (n, 3), r) for r, n in enumerate(counts)]
    mine = on_device(parts[me], "int16", gpu)
    assert_holds(gpus.all_gather(mine, counts=counts), np.concatenate(parts))
    got = gpus.gather(mine, counts=counts)
    if got is not None:
        assert_holds(got, np.concatenate(parts))
    matrix = [[(i + 2 * j) % 4 * 100 for j in range(size)] for i in range(size)]
    sent = [values("fp64", (sum(matrix[r]), 2), r) for r in range(size)]
    pieces = [np.split(sent[r], np.cumsum(matrix[r])[:-1])[me] for r in range(size)]
    assert_holds(gpus.all_to_all(on_device(sent[me], "fp64", gpu), counts=matrix), np.concatenate(pieces))


def check_messages(gpus: ByLibrary) -> None:
    right, left = (gpus.rank + 1) % gpus.size, (gpus.rank - 1) % gpus.size
    ranks = gpus.communicator.duplicate()
    with jali.tune.experiment(message_transport="nccl"):
        ranks.device_messages(gpus.gpu)
    for rows in ROWS:
        x = on_device(values("fp32", (rows,), gpus.rank), "fp32", gpus.gpu)
        y = DeviceArray.empty(gpus.gpu, (rows,), "fp32")
        ranks.start([ranks.persistent_send(x, right), ranks.persistent_receive(y, left)])
        gpus.synchronize("a ring")
        assert_holds(y, values("fp32", (rows,), left))


def check_refusals(gpus: ByLibrary) -> None:
    for element, op in (("int16", "sum"), ("complex64", "prod"), ("int32", "bit_xor")):
        with pytest.raises(DeviceError):
            gpus.all_reduce(DeviceArray.empty(gpus.gpu, (4,), element), op=op)


def check_other_libraries(gpus: ByLibrary) -> None:
    """Arrays of CuPy and PyTorch in, `DeviceArray`s out; nobody waits on the host in between."""
    wanted = sum(range(1, gpus.size + 1))
    for name in ("cupy", "torch"):
        try:
            library = importlib.import_module(name)
        except ImportError:
            if gpus.rank == 0:
                print(f"without {name}", flush=True)
            continue
        device = (
            library.cuda.Device(gpus.gpu.ordinal) if name == "cupy" else library.cuda.device(gpus.gpu.ordinal)
        )
        with device:
            for turn in range(1, 4):
                large = {"cupy": {}, "torch": {"device": "cuda"}}[name]
                x = library.zeros((1000, 1000), dtype=library.float32, **large)
                for _ in range(20):  # is still at it when the call comes
                    x += turn * (gpus.rank + 1) / 20
                y = library.empty_like(x)
                gpus.all_reduce(x, y)
                y += 1
                got = float(y.mean())
                assert abs(got - turn * wanted - 1) < 1e-3 * got, (name, got)
                ours = gpus.all_reduce(y)
                taken = library.asarray(ours) if name == "cupy" else library.from_dlpack(ours)
                assert taken.data_ptr() == ours.address if name == "torch" else taken.data.ptr == ours.address
                got = float((taken * 2).mean())
                assert abs(got - 2 * gpus.size * (turn * wanted + 1)) < 1e-3 * got, (name, got)
            stream = library.cuda.Stream(non_blocking=True) if name == "cupy" else library.cuda.Stream()
            with stream if name == "cupy" else library.cuda.stream(stream):
                z = library.ones(1000, dtype=library.float64, **large)
                gpus.all_reduce(z, z, stream=stream)
                assert float((z + 1).mean()) == gpus.size + 1
            if name == "torch":
                half = library.full((1000,), 1.0, dtype=library.bfloat16, device="cuda")
                gpus.all_reduce(half, half)
                assert float(half.float().mean()) == gpus.size


def check_symmetric(gpus: ByLibrary) -> None:
    """Sums between windows, and windows that are made, dropped and made again; or why there are none."""
    if gpus.why_not_symmetric():
        print(f"no symmetric windows: {gpus.why_not_symmetric()}", flush=True)
        return
    for count in (1, 1000, 3 << 20):
        numbers = np.arange(count, dtype=np.float32) % 64 + gpus.rank
        try:
            x, out = gpus.symmetric((count,), "fp32"), gpus.symmetric((count,), "fp32")
        except DeviceError as error:  # found when it is tried
            print(error, flush=True)
            assert gpus.why_not_symmetric()
            return
        gpus.gpu.upload_address(x.address, numbers.view(np.uint8))
        wanted = gpus.size * (np.arange(count) % 64) + sum(range(gpus.size))
        for _ in range(2):
            gpus.gpu.fill(out.memory, 0)
            np.testing.assert_array_equal(gpus.all_reduce(x, out).to_host(), wanted)


CHECKS: tuple[Callable[[ByLibrary], None], ...] = (
    check_reductions,
    check_moves,
    check_uneven_parts,
    check_messages,
    check_refusals,
    check_symmetric,
    check_other_libraries,
)


def open_own_gpu(ranks: Communicator) -> Any:
    """The next GPU for each rank of this host, as lattices choose it."""
    from jali.devices import open_device

    return open_device("cuda", ranks)


def bandwidth(gpus: ByLibrary, megabytes: int = 256) -> float:
    """GB/s of an all-reduce on each link: 2 (n-1)/n of the data go out of every GPU."""
    x = DeviceArray.from_host(np.zeros(megabytes * 2**20 // 4, np.float32), gpus.gpu)
    for turn in range(6):
        if turn == 1:
            gpus.synchronize()
            start = time.perf_counter()
        gpus.all_reduce(x, x)
    gpus.synchronize()
    return 5 * 2 * (gpus.size - 1) / gpus.size * x.nbytes / (time.perf_counter() - start) / 1e9


# --- in one process ------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_virtual_ranks_with_a_gpu_each(check: Callable[[ByLibrary], None]) -> None:
    ranks = _core.Gpu.count("cuda")

    def run() -> None:
        check(ByLibrary(current(), _core.Gpu.open("cuda", current().rank)))

    virtual_ranks(ranks, run)


@pytest.mark.gpu
def test_two_ranks_on_one_real_gpu_are_refused() -> None:

    def run() -> None:
        with pytest.raises(DeviceError, match="ranks 0 and 1 use one GPU"):
            ByLibrary(current(), _core.Gpu.open("cuda", 0))

    virtual_ranks(2, run)


@pytest.mark.gpu
def test_rank_that_fails_ends_a_real_collective_of_the_others(use_settings: Callable[..., None]) -> None:
    if _core.Gpu.count("cuda") < 2:
        pytest.skip("needs two GPUs")
    use_settings(watchdog="120")

    def run() -> str:
        gpus = ByLibrary(current(), _core.Gpu.open("cuda", current().rank))
        x = on_device(np.ones(1000), "fp32", gpus.gpu)
        gpus.all_reduce(x, x)
        gpus.synchronize()
        current().barrier()  # the other one has come this far, too
        if gpus.rank == 1:
            current().fail("out of ink")
            return "failed"
        try:
            gpus.all_reduce(x, x)
            gpus.synchronize("a sum that nobody joins")
        except JaliError as error:
            with pytest.raises(DeviceError, match="give up what waits for other ranks .*out of ink"):
                gpus.gpu.synchronize()  # which comes back: the stream is free again
            return str(error)
        return "came back"

    ends = virtual_ranks(2, run)
    assert "out of ink" in ends[0]


# --- under mpiexec -------------------------------------------------------------------------------------------------


def main() -> None:
    ranks = current()
    gpus = ByLibrary(ranks, open_own_gpu(ranks))
    if gpus.rank == 0:
        print(gpus.ccl, gpus.library[2], flush=True)
    for check in CHECKS:
        start = time.perf_counter()
        check(gpus)
        ranks.barrier()
        if gpus.rank == 0:
            print(f"{check.__name__:20} {time.perf_counter() - start:6.1f} s", flush=True)
    if gpus.size > 1:
        rate = bandwidth(gpus)
        if gpus.rank == 0:
            print(f"all-reduce of 256 MB: {rate:.0f} GB/s out of each GPU (NVLink 4 has 450)", flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        traceback.print_exc()
        end_job(error)
        sys.exit(1)
