"""Roofs of a device, in bytes and operations per second, and how work on it is timed.

Memory is the driver's copy of two arrays. The others are kernels in the dialect of site functions. A roof is what
the best of a few shapes reaches.
"""

from __future__ import annotations

import functools
import statistics
import struct
from collections.abc import Callable
from typing import Any

from jali import _core
from jali.codegen import kernel_cache

THREADS = 256
CHAINS = 8  # independent multiply-adds of a thread

# Each thread has its own chains, and writes them only if they have become something that they cannot.
ARITHMETIC = """
struct peak_arguments { int64_t rounds; JALI_REAL* out; };
JALI_KERNEL(kernel, peak_arguments) {
    JALI_REAL chain[CHAINS];
    const JALI_REAL factor = JALI_REAL(0.999), summand = JALI_REAL(1e-6);
    JALI_UNROLL
    for (int k = 0; k < CHAINS; ++k) chain[k] = JALI_REAL(1) + JALI_REAL(k + thread_in_block() % 2);
    for (int64_t n = 0; n < a.rounds; ++n) {
        JALI_UNROLL
        for (int k = 0; k < CHAINS; ++k) chain[k] = fma_one(chain[k], factor, summand);
    }
    JALI_REAL sum = 0;
    JALI_UNROLL
    for (int k = 0; k < CHAINS; ++k) sum += chain[k];
    if (sum < JALI_REAL(-1)) *a.out = sum;
}
"""

# Every block reads all of it, from another place on, so that no first-level cache helps.
READING = """
struct alignas(16) two_doubles { double x, y; };
struct read_arguments { const two_doubles* from; int64_t packets, rounds; double* out; };
JALI_KERNEL(kernel, read_arguments) {
    double sum = 0;
    const int64_t threads = threads_in_block();
    const int64_t start = block_in_grid() * a.packets / blocks_in_grid();
    for (int64_t n = 0; n < a.rounds; ++n) {
        for (int64_t i = thread_in_block(); i < a.packets; i += 4 * threads) {
            two_doubles found[4];
            JALI_UNROLL
            for (int k = 0; k < 4; ++k) {
                int64_t at = start + i + k * threads;
                if (at >= a.packets) at -= a.packets;
                found[k] = a.from[at];
            }
            JALI_UNROLL
            for (int k = 0; k < 4; ++k) sum += found[k].x + found[k].y;
        }
    }
    if (sum < -1) *a.out = sum;
}
"""


def seconds_on(
    gpu: Any, work: Callable[[], object], batches: int = 7, least: float = 2e-3
) -> tuple[float, float]:
    """Median time of one `work()` between two events, warm, over batches of at least `least` seconds; and its spread."""
    begin, end = _core.GpuEvent(gpu), _core.GpuEvent(gpu)
    work()
    repeats = 1
    times: list[float] = []
    while len(times) < batches:
        gpu.record(begin)
        for _ in range(repeats):
            work()
        gpu.record(end)
        end.wait()
        time = end.seconds_since(begin)
        if time < least and not times:
            repeats = max(2 * repeats, int(1.2 * repeats * least / max(time, 1e-6)))
        else:
            times.append(time / repeats)
    median = statistics.median(times)
    return median, (max(times) - min(times)) / median


def copy_rate(gpu: Any, most: int = 1 << 30) -> float:
    """Bytes per second, read plus written, of a copy of up to `most` bytes by the driver."""
    size = min(most, gpu.free_memory // 8) // 4096 * 4096
    a, b = (gpu.allocate(size, "roofs") for _ in range(2))
    return 2 * size / seconds_on(gpu, lambda: gpu.copy(a, b))[0]


def cache_rate(gpu: Any) -> float:
    """Bytes per second of reading an eighth or a quarter of the second-level cache again and again, all multiprocessors together."""
    out = gpu.allocate(256, "roofs")
    function, _ = kernel_cache.load_on_device(gpu, "roof_of_cache", READING, "float64", THREADS, 1)
    best = 0.0
    for share in (8, 4):
        # whole turns of a block that loads four packets per thread
        size = max(gpu.l2_bytes // share // (64 * THREADS), 1) * 64 * THREADS
        memory = gpu.allocate(size, "roofs")
        for per in (2, 4, 8):
            blocks = gpu.multiprocessors * min(per, max(1, gpu.occupancy(function, THREADS)))
            arguments = struct.pack("=QqqQ", memory.address, size // 16, 1, out.address)
            work = functools.partial(gpu.launch, function, blocks, THREADS, arguments)
            time, _ = seconds_on(gpu, work)
            best = max(best, blocks * size / time)
    return best


def arithmetic_rate(gpu: Any, precision: str = "float64", rounds: int = 4096) -> float:
    """Operations per second of independent fused multiply-adds, two operations each."""
    out = gpu.allocate(256, "roofs")
    text = f"#define CHAINS {CHAINS}\n{ARITHMETIC}"
    function, _ = kernel_cache.load_on_device(gpu, "roof_of_arithmetic", text, precision, THREADS, 1)
    blocks = gpu.multiprocessors * max(1, gpu.occupancy(function, THREADS))
    arguments = struct.pack("=qQ", rounds, out.address)
    time, _ = seconds_on(gpu, lambda: gpu.launch(function, blocks, THREADS, arguments))
    return 2 * CHAINS * rounds * blocks * THREADS / time
