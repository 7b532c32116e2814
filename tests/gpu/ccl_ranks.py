"""What the tests of NCCL and RCCL share: ranks that are threads, each with a fake GPU, and numbers whose sums are exact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from by_library import ByLibrary
from fake_driver import REAL

from jali import _core
from jali.comm import DeviceArray, current, virtual_ranks
from jali.comm.device_arrays import element_dtype

FLOATING = ("fp16", "bf16", "fp32", "fp64")

# what a module of such tests names as its `pytestmark`
FAKE = [
    pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run"),
    pytest.mark.usefixtures("fake_ccl"),
]


def on_ranks(ranks: int, body: Callable[[ByLibrary], Any], kind: str = "cuda") -> list[Any]:
    """What `body` returns on each of these ranks."""

    def run() -> Any:
        return body(ByLibrary(current(), _core.Gpu.open(kind, current().rank)))

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
