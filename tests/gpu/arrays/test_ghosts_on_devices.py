"""Ghost cells of arrays on devices go from device to device: derivatives, halos and windows have the values of NumPy's arrays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL
from test_fft_on_devices import numbers, spread

import jali
from jali import linops
from jali.arrays import DistributedArray, StackedDistributedArray, ghosts, layout_of
from jali.comm import current
from jali.errors import RecordingError
from jali.tune import experiment

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, fake_ccl: str) -> Iterator[Any]:
    with fake_cupy.installed(fake_driver) as module:
        yield module


def on_host(a: np.ndarray, **split: Any) -> DistributedArray:
    layout = layout_of(current(), a.shape, **split)
    return DistributedArray.of(layout, a[tuple(slice(begin, end) for begin, end in layout.box)].copy())


def same(found: Any, right: Any) -> None:
    """This rank's parts, to the last bit."""
    if isinstance(right, DistributedArray):
        found, right = found.local, right.local
    if isinstance(right, StackedDistributedArray):
        for one, other in zip(found, right, strict=True):
            same(one, other)
        return
    assert isinstance(found, fake_cupy.ndarray)
    here = fake_cupy.asnumpy(found)
    assert here.dtype == right.dtype
    assert np.array_equal(here, right)


SPLITS = [
    (1, (5, 3), {}),
    (2, (5, 4), {}),
    (3, (7, 4, 3), {}),
    (3, (4, 7), {"axis": 1}),
    (4, (6, 3), {}),  # one or two rows each: ghosts come from several ranks
    (4, (3, 5), {}),  # a rank has nothing
    (4, (9, 2), {"mask": [0, 0, 1, 1]}),
]


@pytest.mark.parametrize("dtype", ["float32", "complex128", "int64", "bool"])
@pytest.mark.parametrize("case", SPLITS, ids=str)
def test_ghost_cells_are_those_of_the_host_and_never_there(case: Any, dtype: str, device: str) -> None:
    ranks, shape, split = case

    def body() -> None:
        fake_cupy.use(device, current().rank)
        a = (10 * numbers(shape, "float64")).astype(dtype)
        x, y = spread(a, **split), on_host(a, **split)
        for front, back in ((1, 1), (0, 2), (3, 0), (1, 1)):
            before = fake_cupy.copies_to_host()
            found = [x.add_ghost_cells(front, back), *x.ghost_cells(front, back)]
            assert fake_cupy.copies_to_host() == before
            for one, right in zip(
                found, [y.add_ghost_cells(front, back), *y.ghost_cells(front, back)], strict=True
            ):
                same(one, right)

    jali.virtual_ranks(ranks, body)


@pytest.mark.short(1)
@pytest.mark.parametrize("transport", [None, "copy-engine", "host-staged"])
@pytest.mark.parametrize("case", SPLITS, ids=str)
def test_derivatives_have_the_bits_of_the_host(case: Any, transport: str | None, device: str) -> None:
    ranks, shape, split = case

    def body() -> None:
        fake_cupy.use(device, current().rank)
        a = numbers(shape, "float64")
        x, y = spread(a, **split), on_host(a, **split)
        operators = [
            linops.FirstDerivative(shape, kind=kind, edge=edge)
            for kind, edge in (("centered", False), ("centered", True), ("forward", False))
        ]
        operators.append(linops.Laplacian(shape, axes=(0, 1), weights=(1, 2), sampling=(1, 3)))
        operators.append(linops.Gradient(shape))
        for op in operators:
            for _ in range(3):  # buffers are used again
                before = fake_cupy.copies_to_host()
                u = op @ x
                v = op.H @ u
                assert fake_cupy.copies_to_host() == before
                right = op @ y
                same(u, right)
                same(v, op.H @ right)

    with experiment(message_transport=transport):
        jali.virtual_ranks(ranks, body)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_halos_and_windows_have_the_bits_of_the_host(ranks: int, device: str) -> None:
    def body() -> None:
        fake_cupy.use(device, current().rank)
        shape = (8, 6)
        grid = {1: (1, 1), 2: (2, 1), 4: (2, 2)}[ranks]
        halo = linops.Halo(shape, (1, 2), grid)
        a = numbers(shape, "float64")
        split = {"axis": (0, 1), "grid": grid}
        x, y = spread(a, **split), on_host(a, **split)
        for _ in range(2):
            u, right = halo @ x, halo @ y
            same(u, right)
            same(halo.H @ u, halo.H @ right)

    jali.virtual_ranks(ranks, body)


def test_transits_of_one_exchange_may_be_under_way_together(device: str) -> None:
    def body() -> None:
        rank = current().rank
        fake_cupy.use(device, rank)
        a = numbers((6, 3), "float64")
        parts = [spread(f * a) for f in (1.0, 2.0, 3.0)]
        exchange = ghosts.along_the_split(parts[0].layout, 1, 1)
        assert exchange is not None
        right = [ghosts.with_ghosts(x.layout, x.local, 1, 1) for x in map(on_host, (a, 2 * a, 3 * a))]
        for _ in range(3):
            under_way = [exchange.start(x.local) for x in parts]
            order = (2, 0, 1)
            for k in order:
                same(ghosts.joined(exchange, parts[k].local, under_way[k]), right[k])
        assert [len(sets) for sets in exchange._there._buffer_sets.values()] == [3]

    jali.virtual_ranks(2, body)


def test_the_library_may_change_its_stream_between_applications(device: str) -> None:
    """What is on the stream of before is done before its pieces are overwritten, and sent when they are."""

    def body() -> None:
        fake_cupy.use(device, current().rank)
        a = numbers((64, 50), "float64")
        op = linops.FirstDerivative(a.shape)
        x, y = spread(a), on_host(a)
        right = op @ y
        for _ in range(6):
            u = op @ x
            fake_cupy.use(device, current().rank)  # another stream
            same(u, right)

    jali.virtual_ranks(3, body)


@pytest.mark.parametrize("transport", [None, "copy-engine", "host-staged"])
def test_pieces_are_sent_before_another_stream_puts_others_there(transport: str | None, device: str) -> None:
    """The first rank gets nothing, so nothing that it computes has waited for what it sends."""

    def body() -> None:
        gpu = fake_cupy.use(device, current().rank)
        a = numbers((6, 40_000), "float64")
        parts = [spread(factor * a) for factor in range(1, 7)]
        gpu.synchronize()
        fake_cupy.wait()
        found = []
        for x in parts:
            with fake_cupy.another_stream():
                found.append(x.add_ghost_cells(1, 0))
                if current().rank:
                    fake_cupy.wait()
        gpu.synchronize()
        for factor, one in enumerate(found, 1):
            same(one, on_host(factor * a).add_ghost_cells(1, 0))

    with experiment(message_transport=transport):
        jali.virtual_ranks(3, body)


def test_what_fails_gives_its_buffers_back(device: str) -> None:
    """On one rank, while the others go on with what they have."""

    def body() -> None:
        fake_cupy.use(device, current().rank)
        a = numbers((7, 3), "float64")
        x, y = spread(a), on_host(a)
        exchange = ghosts.along_the_split(x.layout, 1, 1)
        assert exchange is not None
        for _ in range(3):
            if current().rank == 1:
                nothing = object()
                with pytest.raises(AttributeError):
                    ghosts.joined(exchange, nothing, exchange.start(x.local))
            else:
                ghosts.joined(exchange, x.local, exchange.start(x.local))
            same(x.add_ghost_cells(1, 1), y.add_ghost_cells(1, 1))
        assert [len(sets) for sets in exchange._there._buffer_sets.values()] == [1]

    jali.virtual_ranks(3, body)


@pytest.mark.parametrize("sampling", [2.0**-130, -(2.0**-130), 1e-60, float("inf"), 1e300])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_kernels_have_numbers_that_a_type_does_not(sampling: float, dtype: str, device: str) -> None:
    def body() -> None:
        fake_cupy.use(device, current().rank)
        a = numbers((9, 3), dtype)
        op = linops.FirstDerivative(a.shape, sampling, dtype=dtype)
        with np.errstate(all="ignore"):
            right = (op @ on_host(a)).local
        found = fake_cupy.asnumpy((op @ spread(a)).local)
        np.testing.assert_array_equal(found, right)

    jali.virtual_ranks(2, body)


OPERATORS = {
    "first": lambda shape, dtype: linops.FirstDerivative(shape, 0.7, axis=1, dtype=dtype),
    "five points": lambda shape, dtype: linops.FirstDerivative(shape, 0.3, edge=True, order=5, dtype=dtype),
    "second": lambda shape, dtype: linops.SecondDerivative(shape, 1.1, "forward", axis=2, dtype=dtype),
    "laplacian": lambda shape, dtype: linops.Laplacian(
        shape, (0, 1, 2), (1, 3, 0.1), (1, 0.9, 2), True, dtype=dtype
    ),
}


@pytest.mark.short(2)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("name", OPERATORS)
def test_kernels_round_as_numpy_does(name: str, dtype: str, device: str) -> None:
    """Complex numbers are divided part by part, which NumPy does otherwise."""

    def body() -> None:
        fake_cupy.use(device, current().rank)
        shape = (11, 7, 13)
        a = numbers(shape, dtype)
        op = OPERATORS[name](shape, dtype)
        for split in ({}, {"axis": 1}, {"axis": 2}):
            x, y = spread(a, **split), on_host(a, **split)
            for found, right in ((op @ x, op @ y), (op.H @ x, op.H @ y)):
                if dtype.startswith("f"):
                    same(found, right)
                else:
                    assert found.dtype == right.dtype
                    np.testing.assert_allclose(
                        fake_cupy.asnumpy(found.local), right.local, atol=20 * np.finfo(dtype).eps
                    )

    jali.virtual_ranks(2, body)


def test_graphs_refuse_an_exchange(device: str) -> None:
    def body() -> None:
        fake_cupy.use(device, current().rank)
        x = spread(numbers((6, 3), "float64"))
        op = linops.FirstDerivative((6, 3))
        with pytest.raises(RecordingError, match="exchange of pieces of arrays is called"):
            jali.graph(lambda: op @ x, jali.Lattice(4, device=f"{device}:{current().rank}"))()

    jali.virtual_ranks(2, body)
