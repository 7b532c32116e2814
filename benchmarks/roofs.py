"""The roofs of one core, measured: peak of fused multiply-adds, and bandwidth of copy and triad from memory and cache.

Kernels are written in jali's dialect and compiled by its compiler, with the vector width that jali uses.
"""

from __future__ import annotations

import ctypes
import functools
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jali import _core
from jali.codegen import compiler, target

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

FMA_FORMS = {
    ("float64", 64): ("vfmadd213pd", "v"),
    ("float64", 32): ("vfmadd213pd", "x"),
    ("float32", 64): ("vfmadd213ps", "v"),
    ("float32", 32): ("vfmadd213ps", "x"),
}


def fma_chains(precision: str, width: int) -> str:
    """Twelve independent multiply-adds, as instructions where we know them."""
    form = FMA_FORMS.get((precision, width))
    if form is None:
        return "\n".join(f"a{i} = fma_(a{i}, m, c);" for i in range(12))
    name, register = form
    return "\n".join(
        f'asm volatile("{name} %2, %1, %0" : "+{register}"(a{i}) : "{register}"(m), "{register}"(c));'
        for i in range(12)
    )


@dataclass(frozen=True)
class Roofs:
    """GFLOP/s of fused multiply-adds; GB/s of copy and triad, bytes read plus bytes written (no write-allocate counted)."""

    precision: str
    peak: float
    copy: float
    triad: float

    def __str__(self) -> str:
        return f"roofs ({self.precision}, one core): FMA {self.peak:.1f} GFLOP/s, copy {self.copy:.1f} GB/s, triad {self.triad:.1f} GB/s"


@functools.cache
def library(precision: str) -> ctypes.CDLL:
    """The compiled roof kernels."""
    width = target.host().vector_bytes
    scalar, suffix = ("double", "") if precision == "float64" else ("float", "f")
    folder = Path(tempfile.mkdtemp(prefix="jali-roofs-"))
    (folder / "roofs.cpp").write_text(
        SOURCE.format(scalar=scalar, bytes=width, suffix=suffix, peak=fma_chains(precision, width))
    )
    compiler.find_compiler().compile(folder / "roofs.cpp", folder / "roofs.so", folder)
    return ctypes.CDLL(str(folder / "roofs.so"))


def measure_roofs(precision: str = "float64", megabytes: int = 256, repeats: int = 7) -> Roofs:
    """Measures all roofs now, on the core this process is pinned to."""
    lib = library(precision)
    real = ctypes.c_double if precision == "float64" else ctypes.c_float
    lib.peak.restype = real
    n = 2_000_000
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        lib.peak(ctypes.c_long(n))
        times.append(time.perf_counter() - start)
    lanes = target.host().lanes(precision)
    peak = 12 * 2 * lanes * n / float(np.median(times)) / 1e9
    count = megabytes * 2**20 // np.dtype(precision).itemsize // 3 // 64 * 64
    size = count * np.dtype(precision).itemsize
    blocks = [
        _core.allocate(size + 16384, "roof") for _ in range(3)
    ]  # the memory that fields use, huge pages included
    for block in blocks:
        block.array().view(precision)[:] = 1
    # different places within a page, since equal ones make stores look like they hit later loads
    aligned = [ctypes.c_void_p(block.address + 1344 * k) for k, block in enumerate(blocks)]

    def bandwidth(function, arrays, streams):
        out = []
        for _ in range(repeats):
            start = time.perf_counter()
            function(*arrays, ctypes.c_long(count))
            out.append(time.perf_counter() - start)
        return streams * size / float(np.median(out)) / 1e9

    copy = bandwidth(lib.copy, aligned[:2], 2)
    triad = bandwidth(lib.triad, aligned, 3)
    return Roofs(precision, peak, copy, triad)


def read_bandwidth(size: int, precision: str = "float64", repeats: int = 9) -> float:
    """GB/s of reading a working set of `size` bytes again and again: the roof of kernels that reuse nothing in L1."""
    lib = library(precision)
    lib.read_all.restype = ctypes.c_double if precision == "float64" else ctypes.c_float
    count = size // np.dtype(precision).itemsize // 512 * 512
    block = _core.allocate(size + 4096, "roof")
    block.array().view(precision)[:] = 1
    rounds = max(1, 100_000_000 // size)
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        for _ in range(rounds):
            lib.read_all(ctypes.c_void_p(block.address), ctypes.c_long(count))
        times.append((time.perf_counter() - start) / rounds)
    return size / float(np.median(times)) / 1e9


if __name__ == "__main__":
    for precision in ("float64", "float32"):
        print(measure_roofs(precision))
