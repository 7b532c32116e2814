"""cuFFT on all devices of a host in the process of rank 0 (`jali.fft.one_process`), measured while the other ranks wait.

The input is a product of one random vector for each dimension, since its transform is the product of theirs: so results are
compared with what a host computes at once. The library does not scale, so numbers grow with every transform there and back;
they begin small and are loaded again before they are too large.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali import _core
from jali.amounts import size_text
from jali.arrays import DistributedArray
from jali.comm.device_of_array import gpu_of
from jali.errors import DeviceError, ParameterError, RankError
from jali.fft import vendors
from jali.fft.one_process import SpreadPlan

ONE_PROCESS = "cuFFT, one process"
CLOSE = {"complex64": 1e-4, "complex128": 1e-10}
MOST_ROUNDS = 200
EXPONENTS = {"complex64": (-100, 126), "complex128": (-900, 1022)}  # of two: at first, and at most
ARRAYS = 4  # two, and work areas
COMPARED = 64  # planes


def no_room(needed: float, free: float) -> str:
    """That a device has not so many bytes; empty if it has."""
    if needed <= free:
        return ""
    return f"no room: about {size_text(needed)} are needed on a device, {size_text(free)} are free"


def measure_one_process(
    ranks: Any, x: DistributedArray, rounds: int, seconds: float
) -> tuple[dict[str, list[float]], str]:
    """Seconds of transforms of arrays like `x`, "transposed" and "natural", or why there are none. Collective. Raises RankError where
    results are wrong."""
    mine = gpu_of(x.local).identity.encode()
    devices = [ranks.broadcast_bytes(mine, root) for root in range(ranks.size)]
    found: dict[str, list[float]] = {}
    why = wrong = ""
    if ranks.rank == 0:
        dtype = str(x.dtype).removeprefix("torch.")
        try:
            found = _measure([device.decode() for device in devices], x.global_shape, dtype, rounds, seconds)
        except (DeviceError, ParameterError) as error:
            why = str(error)
        except MemoryError:
            why = "no room on the host for two arrays"
        except RankError as error:
            wrong = str(error)
    answer = ranks.broadcast_bytes(json.dumps([found, why, wrong]).encode(), 0)
    found, why, wrong = json.loads(answer)
    if wrong:
        raise RankError(wrong)
    return found, why


def _measure(
    devices: Sequence[str], dims: Sequence[int], dtype: str, rounds: int, seconds: float
) -> dict[str, list[float]]:
    gpus = [_core.Gpu.open("cuda", ordinal) for ordinal in range(_core.Gpu.count("cuda"))]
    there = {gpu.identity: gpu for gpu in gpus}
    used = list(dict.fromkeys(devices))
    if missing := [device for device in used if device not in there]:
        raise ParameterError(
            f"rank 0 sees {len(used) - len(missing)} of the ranks' {len(used)} devices; let each process see all, on one host"
        )
    needed = ARRAYS * math.prod(dims) * np.dtype(dtype).itemsize / len(used)
    if len(used) > 1 and (why := no_room(needed, min(there[device].free_memory for device in used))):
        raise ParameterError(why)
    plan = SpreadPlan(vendors.find("cufft"), [there[device].ordinal for device in used], dims, dtype)
    try:
        return _timed(plan, rounds, seconds)
    finally:
        plan.close()


def _timed(plan: SpreadPlan, rounds: int, seconds: float) -> dict[str, list[float]]:
    size, (first, most) = math.prod(plan.extents), EXPONENTS[plan.dtype.name]
    x = np.empty(plan.extents, plan.dtype)
    trips = max(1, int((most - first - 10) / math.log2(size) - 0.5))  # until numbers are too large
    _compare(plan, x, 2.0**first)
    left, loading = 0, 0.0

    def trip(natural: bool) -> float:
        nonlocal left, loading
        if left == 0:
            start = time.perf_counter()
            plan.load(x)
            left, loading = trips, time.perf_counter() - start
        left -= 1
        plan.wait()
        start = time.perf_counter()
        plan.transform()
        if natural:
            plan.to_natural()
        plan.wait()
        taken = time.perf_counter() - start
        plan.transform(inverse=True)
        return taken

    found = {}
    for case in ("transposed", "natural"):
        each = float(np.median([trip(case == "natural") for _ in range(3)]))
        count = max(rounds, min(MOST_ROUNDS, int(seconds / (each + loading / trips))))
        found[case] = [trip(case == "natural") for _ in range(count)]
    return found


def _compare(plan: SpreadPlan, x: np.ndarray, scale: float) -> None:
    """Fill `x`, and transform it there and back. Raises RankError."""
    random = np.random.default_rng(1)
    vectors = [random.normal(size=n) + 1j * random.normal(size=n) for n in plan.extents]
    spectra = [np.fft.fft(vector) for vector in vectors]
    planes = _planes(vectors, plan.dtype)
    for k, number in enumerate(vectors[0]):
        np.multiply(planes, complex(number * scale), out=x[k])
    out = np.empty_like(x)
    plan.load(x)
    plan.transform()
    plan.to_natural()
    plan.copy_to_host(out)
    _check(out, spectra, scale, "a transform")
    plan.copy_natural_to_host(out)
    _check(out, spectra, scale, "a transform in natural order")
    plan.transform(inverse=True)
    plan.copy_to_host(out)
    _check(out, vectors, scale * x.size, "a transform there and back")


def _planes(vectors: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    product: np.ndarray = functools.reduce(np.multiply.outer, vectors[1:])
    return product.astype(dtype)


def _check(found: np.ndarray, vectors: Sequence[np.ndarray], scale: float, what: str) -> None:
    planes, off, whole = _planes(vectors, np.complex128), 0.0, 0.0
    for k in np.unique(np.linspace(0, len(found) - 1, COMPARED).astype(int)):
        wanted = planes * vectors[0][k]
        off += float(np.linalg.norm(found[k] / scale - wanted)) ** 2
        whole += float(np.linalg.norm(wanted)) ** 2
    part = math.sqrt(off / whole)
    if not part < CLOSE[found.dtype.name]:
        raise RankError(f"{ONE_PROCESS}: {what} is off by {part:.1e} of the whole")
