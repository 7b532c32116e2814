"""Roofs of the host: kernels of their own, compiled with the flags of site functions, one instance per thread.

Rates are medians over several tries, each of which runs long enough to be measured with all threads together.
"""

from __future__ import annotations

import ctypes
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from jali import _core
from jali.codegen import compiler, target
from jali.codegen.arithmetics import ARITHMETICS

SOURCE = r"""
typedef {scalar} V __attribute__((vector_size({bytes})));
static inline V fma_(V a, V b, V c) {{
  V r;
  for (unsigned l = 0; l < sizeof(V) / sizeof({scalar}); ++l) r[l] = __builtin_fma{suffix}(a[l], b[l], c[l]);
  return r;
}}
extern "C" {scalar} peak(long n) {{
  V one = {{}};
  one += ({scalar})1;
  V m = one * ({scalar})0.999, c = one * ({scalar})1e-6;
  V a0 = one, a1 = one, a2 = one, a3 = one, a4 = one, a5 = one, a6 = one, a7 = one, a8 = one, a9 = one, a10 = one, a11 = one;
  for (long k = 0; k < n; ++k) {{
    {peak}
  }}
  return (a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7 + a8 + a9 + a10 + a11)[0];
}}
extern "C" void copy({scalar}* y, const {scalar}* x, long n) {{
  for (long i = 0; i < n; i += sizeof(V) / sizeof({scalar})) *(V*)(y + i) = *(const V*)(x + i);
}}
extern "C" void triad({scalar}* z, const {scalar}* y, const {scalar}* x, long n) {{
  V s = *(const V*)x * 0 + ({scalar})0.5;
  for (long i = 0; i < n; i += sizeof(V) / sizeof({scalar})) *(V*)(z + i) = *(const V*)(y + i) + s * *(const V*)(x + i);
}}
extern "C" {scalar} read_all(const {scalar}* x, long n) {{
  V s[8] = {{}};
  for (long i = 0; i < n; i += 8 * sizeof(V) / sizeof({scalar}))
    for (int k = 0; k < 8; ++k) s[k] += ((const V*)(x + i))[k];
  {scalar} t = 0;
  for (int k = 0; k < 8; ++k) for (unsigned l = 0; l < sizeof(V) / sizeof({scalar}); ++l) t += s[k][l];
  return t;
}}
"""

# By the bytes of a vector: the macro of compilers that have the instruction, and the constraint of its registers.
_FMA_FORMS = {64: ("__AVX512F__", "v"), 32: ("__FMA__", "x")}


def _fma_chains(precision: str, width: int) -> str:
    """Twelve independent multiply-adds, as instructions where we know them and the processor has them."""
    portable = "\n".join(f"a{i} = fma_(a{i}, m, c);" for i in range(12))
    if width not in _FMA_FORMS:
        return portable
    macro, register = _FMA_FORMS[width]
    name = f"vfmadd213p{ARITHMETICS[precision].letter}"
    instructions = "\n".join(
        f'asm volatile("{name} %2, %1, %0" : "+{register}"(a{i}) : "{register}"(m), "{register}"(c));'
        for i in range(12)
    )
    return f"\n#ifdef {macro}\n{instructions}\n#else\n{portable}\n#endif\n"


@functools.cache
def _library(precision: str) -> ctypes.CDLL:
    """The compiled roof kernels. Raises CompileError."""
    width = target.host().vector_bytes
    arithmetic = ARITHMETICS[precision]
    with tempfile.TemporaryDirectory(prefix="jali-roofs-") as name:
        folder = Path(name)
        (folder / "roofs.cpp").write_text(
            SOURCE.format(
                scalar=arithmetic.c_type,
                bytes=width,
                suffix=arithmetic.suffix,
                peak=_fma_chains(precision, width),
            )
        )
        compiler.find_compiler().compile(folder / "roofs.cpp", folder / "roofs.so", folder)
        library = ctypes.CDLL(str(folder / "roofs.so"))
    library.peak.restype = library.read_all.restype = np.ctypeslib.as_ctypes_type(arithmetic.dtype("real"))
    return library


def _median_seconds(work: Callable[[int], object], threads: int, repeats: int) -> float:
    """Median time of `work(thread)` on all threads together (ctypes lets them run at once), after one try."""
    times = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats + 1):
            start = time.perf_counter()
            list(pool.map(work, range(threads)))
            times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def arithmetic_rate(
    precision: str = "float64", repeats: int = 7, rounds: int = 2_000_000, threads: int = 1
) -> float:
    """Operations per second of independent fused multiply-adds, two operations each."""
    library = _library(precision)
    seconds = _median_seconds(lambda _: library.peak(ctypes.c_long(rounds)), threads, repeats)
    return 12 * 2 * target.host().lanes(precision) * rounds * threads / seconds


def copy_rate(
    precision: str = "float64", megabytes: int = 256, repeats: int = 7, threads: int = 1, name: str = "copy"
) -> float:
    """Bytes per second, read plus written, of "copy" or "triad" over arrays of `megabytes` MiB together."""
    library = _library(precision)
    streams = 2 if name == "copy" else 3
    count = megabytes * 2**20 // np.dtype(precision).itemsize // 3 // threads // 64 * 64
    size = count * np.dtype(precision).itemsize
    # the memory that fields use, huge pages included; different places within a page, since equal ones make
    # stores look like they hit later loads
    blocks = [[_core.allocate(size + 16384, "roof") for _ in range(streams)] for _ in range(threads)]

    def fill(thread: int) -> None:  # by the thread that will use it, so that it is near
        for block in blocks[thread]:
            block.array().view(precision)[:] = 1

    _median_seconds(fill, threads, 1)
    function = getattr(library, name)

    def run(thread: int) -> None:
        positions = [ctypes.c_void_p(block.address + 1344 * k) for k, block in enumerate(blocks[thread])]
        function(*positions, ctypes.c_long(count))

    return streams * size * threads / _median_seconds(run, threads, repeats)


def cache_rate(
    size: int | None = None, precision: str = "float64", repeats: int = 9, threads: int = 1
) -> float:
    """Bytes per second of reading a working set of `size` bytes per thread again and again (default: half the second-level cache).

    The roof of kernels that reuse nothing in the first-level cache.
    """
    size = size or _second_level_bytes() // 2
    library = _library(precision)
    count = size // np.dtype(precision).itemsize // 512 * 512
    blocks = [_core.allocate(size + 4096, "roof") for _ in range(threads)]
    for block in blocks:
        block.array().view(precision)[:] = 1
    rounds = max(1, 100_000_000 // size)

    def run(thread: int) -> None:
        for _ in range(rounds):
            library.read_all(ctypes.c_void_p(blocks[thread].address), ctypes.c_long(count))

    return rounds * size * threads / _median_seconds(run, threads, repeats)


def last_cache_bytes() -> int:
    """Of the third-level cache; 0 where the system does not report it, which need not mean that there is none."""
    return _cache_bytes("SC_LEVEL3_CACHE_SIZE")


def _second_level_bytes() -> int:
    """Of one core; 1 MiB where the system does not report it."""
    return _cache_bytes("SC_LEVEL2_CACHE_SIZE") or 1 << 20


def _cache_bytes(name: str) -> int:
    try:
        return max(0, os.sysconf(name))
    except (ValueError, OSError):
        return 0
