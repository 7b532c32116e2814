"""Collectives on arrays in device memory: every way, type and operation gives the bits of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jali
from jali import _core, comm
from jali.comm import DeviceArray, algorithms
from jali.comm.elements import OPERATIONS, SIZES
from jali.errors import DeviceError, ParameterError

RANKS = 4


@pytest.fixture(autouse=True)
def four_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_GPUS", "4")
    # small queues: a few KiB take several lanes and iterations
    monkeypatch.setenv(
        "JALI_DEVICE_QUEUES",
        "lanes=6,slot_bytes=512,flagged_bytes=512,flagged_below=2048,bytes_per_lane=256",
    )


def open_gpu(device: str = "cuda") -> Any:
    from jali.devices import open_device

    return open_device(device, comm.current())


def numbers(rank: int, count: int, dtype: str) -> Any:
    """Different on all ranks, and not so large that everything becomes infinite."""
    rng = np.random.default_rng(100 + rank)
    kind = np.dtype(dtype)
    if kind.kind in "iu":
        info = np.iinfo(kind)
        return rng.integers(max(info.min, -5), 7, count).astype(kind)
    if kind.kind == "c":
        return (rng.normal(size=count) + 1j * rng.normal(size=count)).astype(kind)
    return rng.normal(size=count).astype(kind)


def raw(x: Any) -> bytes:
    host = x.to_host() if isinstance(x, DeviceArray) else np.asarray(x)
    return bytes(host.tobytes())


def counts_of(ranks: int, rows: int) -> list[int]:
    return [(rows + 3 * r) % (rows + 2) for r in range(ranks)]


def one_call(c: Any, name: str, x: Any, make: Any, uneven: bool, **more: Any) -> Any:
    """A collective on `x`, of `rows` per rank; `make` puts NumPy arrays where they are wanted."""
    ranks, rows = c.size, len(x) // c.size
    counts = counts_of(ranks, rows)
    if name in ("all_reduce", "reduce"):
        root = {} if name == "all_reduce" else {"root": ranks - 1}
        return getattr(c, name)(make(x), **root, **more)
    if name == "broadcast":
        return c.broadcast(make(x), root=1 % ranks, **more)
    if name == "reduce_scatter":
        if uneven:
            return c.reduce_scatter(make(x[: sum(counts)]), counts=counts, **more)
        return c.reduce_scatter(make(x[: ranks * rows]), **more)
    if name in ("all_gather", "gather"):
        root = {} if name == "all_gather" else {"root": ranks - 1}
        if uneven:
            return getattr(c, name)(make(x[: counts[c.rank]]), counts=counts, **root, **more)
        return getattr(c, name)(make(x[:rows]), **root, **more)
    if name == "scatter":
        if uneven:
            out = make(np.zeros(counts[c.rank], x.dtype))
            whole = make(x[: sum(counts)]) if c.rank == 0 else None
            return c.scatter(whole, out, counts=counts, **more)
        out = make(np.zeros(rows, x.dtype))
        return c.scatter(make(x[: ranks * rows]) if c.rank == 0 else None, out, **more)
    if uneven:
        matrix = [[(rows + i + 2 * j) % (rows + 1) for j in range(ranks)] for i in range(ranks)]
        return c.all_to_all(make(x[: sum(matrix[c.rank])]), counts=matrix, **more)
    return c.all_to_all(make(x[: ranks * rows]), **more)


def compare(device: str, name: str, sizes: list[int], ways: list[str], uneven: bool) -> None:
    c = comm.current()
    gpu = open_gpu(device)
    reduces = name in ("all_reduce", "reduce", "reduce_scatter")
    dtype = "float32" if reduces else "int16"

    def on_device(x: Any) -> Any:
        return DeviceArray.from_host(x, gpu)

    for count in sizes:
        x = numbers(c.rank, count, dtype)
        for way in ways:
            if way in ("ccl", "staged"):
                continue
            wanted = one_call(c, name, x.copy(), np.ascontiguousarray, uneven, algorithm=way)
            for _ in range(2):  # queues go round
                got = one_call(c, name, x.copy(), on_device, uneven, algorithm=way)
                if wanted is None:
                    assert got is None
                else:
                    assert raw(got) == raw(wanted), (name, way, count, uneven)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("name", algorithms.COLLECTIVES)
def test_every_algorithm_gives_the_bits_of_the_host(name: str, ranks: int) -> None:
    ways = [row.name for row in algorithms.rows(name, on_device=True)]
    comm.virtual_ranks(ranks, compare, "cuda", name, [1, 7, 64, 1000], ways, False)
    if name in ("reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"):
        comm.virtual_ranks(ranks, compare, "cuda", name, [8, 1000], ways, True)
