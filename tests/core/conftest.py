"""Fixtures for tests of the core: kernels written by hand in the kernel ABI, and virtual ranks.

The kernels loop over lanes, so that every lane count is tested.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from programs import TIMEOUT

from jali import _core

SOURCE = r"""
#include <cstdint>
#include <cstring>

static inline int64_t block_at(const uint64_t* w, int64_t p) {
    const int32_t* blocks = (const int32_t*)w[0];
    return blocks ? blocks[p] : p;
}
static inline bool active(const uint64_t* w, int64_t p, int lane) {
    const uint32_t* masks = (const uint32_t*)w[1];
    return !masks || (masks[p] >> lane & 1);
}

// 8: lanes, 9: reals, 10: out, 11: in, 12: table, 13: permutations.   out[X] = 3 in[X + offset] + out[X]
extern "C" void shift_add(const uint64_t* w, int64_t begin, int64_t end) {
    const int64_t W = w[8], R = w[9];
    double* out = (double*)w[10];
    const double* in = (const double*)w[11];
    const uint32_t* table = (const uint32_t*)w[12];
    const int32_t* perm = (const int32_t*)w[13];
    for (int64_t p = begin; p < end; p++) {
        int64_t x = block_at(w, p);
        uint32_t entry = table[x];
        const int32_t* from = perm + (entry >> 26) * W;
        int64_t y = entry & 0x3ffffff;
        for (int64_t r = 0; r < R; r++)
            for (int64_t l = 0; l < W; l++)
                if (active(w, p, l)) out[(x * R + r) * W + l] += 3 * in[(y * R + r) * W + from[l]];
    }
}

// 8: lanes, 9: number of terms, 10: out (one real), then per term: field, reals, float?, table, permutations,
// unused.   out[X] = sum over terms and reals of field[X + offset] * (1 + real)
extern "C" void gather(const uint64_t* w, int64_t begin, int64_t end) {
    const int64_t W = w[8], n = w[9];
    double* out = (double*)w[10];
    for (int64_t p = begin; p < end; p++) {
        int64_t x = block_at(w, p);
        for (int64_t l = 0; l < W; l++) {
            double sum = 0;
            for (int64_t t = 0; t < n; t++) {
                const uint64_t* a = w + 11 + 6 * t;
                uint32_t entry = ((const uint32_t*)a[3])[x];
                int64_t y = entry & 0x3ffffff, from = ((const int32_t*)a[4])[(entry >> 26) * W + l];
                for (int64_t r = 0; r < (int64_t)a[1]; r++) {
                    int64_t at = (y * a[1] + r) * W + from;
                    sum += (1 + r) * (a[2] ? (double)((const float*)a[0])[at] : ((const double*)a[0])[at]);
                }
            }
            if (active(w, p, l)) out[x * W + l] = sum;
        }
    }
}

// 8: lanes, 9: reals, 10: field, 11: output.  A halo item: the sum of the reals, and twice the first
extern "C" void project(const uint64_t* w, int64_t begin, int64_t end) {
    const int64_t W = w[8], R = w[9];
    const double* in = (const double*)w[10];
    double* out = (double*)w[11];
    for (int64_t p = begin; p < end; p++) {
        int64_t x = block_at(w, p);
        for (int64_t l = 0; l < W; l++) {
            double sum = 0;
            for (int64_t r = 0; r < R; r++) sum += in[(x * R + r) * W + l];
            out[(p * 2 + 0) * W + l] = sum;
            out[(p * 2 + 1) * W + l] = 2 * in[x * R * W + l];
        }
    }
}

// 8: lanes, 9: out, 10: item, 11: field, 12: reals, 13: table, 14: permutations, 15: owned blocks.
// out[X] = (sum of reals + 2 * first real) at X + offset, from the item where X + offset is a ghost
extern "C" void use_item(const uint64_t* w, int64_t begin, int64_t end) {
    const int64_t W = w[8], R = w[12];
    double* out = (double*)w[9];
    const double *item = (const double*)w[10], *in = (const double*)w[11];
    for (int64_t p = begin; p < end; p++) {
        int64_t x = block_at(w, p);
        uint32_t entry = ((const uint32_t*)w[13])[x];
        int64_t y = entry & 0x3ffffff;
        for (int64_t l = 0; l < W; l++) {
            int64_t from = ((const int32_t*)w[14])[(entry >> 26) * W + l];
            double a = 0, b;
            if (y >= (int64_t)w[15]) {
                a = item[(y * 2 + 0) * W + from];
                b = item[(y * 2 + 1) * W + from];
            } else {
                for (int64_t r = 0; r < R; r++) a += in[(y * R + r) * W + from];
                b = 2 * in[y * R * W + from];
            }
            out[x * W + l] = a + b;
        }
    }
}

// 8: lanes, 9: reals, 10: field.  One sum per real; counter 0 counts blocks
extern "C" void sum_reals(const uint64_t* w, int64_t begin, int64_t end) {
    const int64_t W = w[8], R = w[9], stride = w[3];
    double* sums = (double*)w[2];
    const double* in = (const double*)w[10];
    for (int64_t p = begin; p < end; p++) {
        int64_t x = block_at(w, p);
        for (int64_t r = 0; r < R; r++)
            for (int64_t l = 0; l < W; l++) sums[(r * stride + p - begin) * W + l] = in[(x * R + r) * W + l];
        if (w[6]) ((int64_t*)w[6])[0]++;
    }
}

// 8: lanes, 9: dimensions, 10: blocks, 11: out.  out[X] = site number from the coordinate tables
extern "C" void number_sites(const uint64_t* w, int64_t begin, int64_t end) {
    const int64_t W = w[8], D = w[9], B = w[10];
    double* out = (double*)w[11];
    const int32_t *coordinates = (const int32_t*)w[4], *lanes = (const int32_t*)w[5];
    const int64_t* extents = (const int64_t*)w[7];
    for (int64_t p = begin; p < end; p++) {
        int64_t x = block_at(w, p);
        for (int64_t l = 0; l < W; l++) {
            int64_t site = 0;
            for (int64_t d = D - 1; d >= 0; d--)
                site = site * extents[d] + coordinates[d * B + x] + lanes[coordinates[D * B + x] + d * W + l];
            out[x * W + l] = site;
        }
    }
}
"""


@pytest.fixture(scope="session")
def kernel_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kernels above as a shared object."""
    folder: Path = tmp_path_factory.mktemp("kernels")
    source, library = folder / "kernels.cpp", folder / "kernels.so"
    source.write_text(SOURCE)
    command = ["g++", "-std=c++20", "-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(command, check=True)
    return library


@pytest.fixture(scope="session")
def kernels(kernel_library: Path) -> Callable[[str], int]:
    """Address of a hand-written kernel by name."""
    return _core.KernelModule(str(kernel_library)).symbol


@pytest.fixture
def on_ranks() -> Callable[..., list[Any]]:
    """Runs `body(communicator)` on n virtual ranks; returns results by rank, raises the first error."""

    def run(n: int, body: Callable[[Any], Any], timeout: float = TIMEOUT) -> list[Any]:
        results: list[Any] = [None] * n
        errors: list[tuple[int, BaseException]] = []

        def one(rank: int, communicator: Any) -> None:
            try:
                results[rank] = body(communicator)
            except BaseException as error:
                errors.append((rank, error))
                communicator.fail(f"{type(error).__name__}: {error}")

        threads = [
            threading.Thread(target=one, args=(rank, communicator), daemon=True)
            for rank, communicator in enumerate(_core.make_thread_communicators(n))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            assert not thread.is_alive(), "a rank hangs"
        if errors:
            raise errors[0][1]
        return results

    return run
