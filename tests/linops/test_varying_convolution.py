"""Convolution with varying filters against serial pylops, on 1 to 4 virtual ranks and all splits."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.comm import Communicator
from jali.errors import ParameterError, ShapeError
from jali.linops import NonStationaryConvolve1D, NonStationaryConvolve2D

TYPES = ["float32", "float64", "complex64", "complex128"]


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape) + (1j * generator.normal(size=shape) if dtype[0] == "c" else 0)
    return x.astype(dtype)


def precision(dtype: Any) -> float:
    return 1e-5 if np.dtype(dtype).name in ("float32", "complex64") else 1e-12


def forms(v: np.ndarray, flat_axis: int) -> list[DistributedArray]:
    """An array as one on all ranks, split evenly or not along each axis, and flat."""
    size = comm.current().size
    found = [DistributedArray.to_dist(v, partition=Partition.BROADCAST)]
    found.append(DistributedArray.to_dist(v.ravel(), partition=Partition.BROADCAST))
    for axis in range(v.ndim):
        x = DistributedArray.to_dist(v, axis=axis)
        extents = [0] * (size - 1) + [v.shape[axis]]
        if size > 1:
            extents[0], extents[-1] = 1, v.shape[axis] - 1
        shapes = [(*v.shape[:axis], n, *v.shape[axis + 1 :]) for n in extents]
        found += [x, DistributedArray.to_dist(v, axis=axis, local_shapes=shapes)]
        if axis == flat_axis:
            found.append(x.ravel())
    return found


def whole(y: DistributedArray, like: DistributedArray, dims: tuple[int, ...], axis: int) -> np.ndarray:
    assert y.layout is like.layout
    if y.ndim == 1 and y.layout.scattered and len(dims) > 1:
        shaped = DistributedArray.to_dist(np.zeros(dims), axis=axis)
        y = DistributedArray.of(shaped.layout, y.local.reshape(shaped.local_shape))
    return y.asarray().reshape(dims)


def compare(Op: Any, serial: Any, m: np.ndarray, axis: int, dtype: str) -> None:
    close = {"rtol": precision(dtype), "atol": 20 * precision(dtype)}
    data = (serial @ m.ravel()).reshape(m.shape)
    # the serial adjoint takes complex filters as they are
    back = (serial.H @ data.conj().ravel()).reshape(m.shape).conj()
    assert Op.shape == serial.shape
    for x in forms(m, axis):
        y = Op @ x
        z = Op.H @ y
        assert y.dtype == z.dtype == np.dtype(dtype)
        np.testing.assert_allclose(whole(y, x, m.shape, axis), data, **close)
        np.testing.assert_allclose(whole(z, x, m.shape, axis), back, **close)
        np.testing.assert_allclose(y.dot(y, vdot=True), x.dot(z, vdot=True), rtol=10 * precision(dtype))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(("dims", "axis"), [((17,), 0), ((17, 3), 0), ((3, 17), -1), ((2, 17, 3), 1)])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("length", "positions"), [(5, [2, 6, 10]), (9, [0, 16]), (3, range(0, 17)), (1, [4, 5])]
)
def test_one_axis(
    ranks: int, dims: tuple[int, ...], axis: int, dtype: str, length: int, positions: Any
) -> None:
    pylops = pytest.importorskip("pylops")
    positions = list(positions)
    hs, m = numbers((len(positions), length), dtype, 1), numbers(dims, dtype, 2)
    serial = pylops.signalprocessing.NonStationaryConvolve1D(dims, hs, positions, axis=axis, dtype=dtype)

    def run() -> None:
        compare(NonStationaryConvolve1D(dims, hs, positions, axis), serial, m, axis % len(dims), dtype)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("lengths", [(3, 5), (7, 1)])
@pytest.mark.parametrize(("ihx", "ihz"), [([2, 5, 8], [1, 5]), ([0, 9], [0, 3, 6])])
def test_two_axes(ranks: int, dtype: str, lengths: tuple[int, int], ihx: list[int], ihz: list[int]) -> None:
    pylops = pytest.importorskip("pylops")
    dims = (10, 7)
    hs, m = numbers((len(ihx), len(ihz), *lengths), dtype, 1), numbers(dims, dtype, 2)
    serial = pylops.signalprocessing.NonStationaryConvolve2D(dims, hs, ihx, ihz, dtype=dtype)

    def run() -> None:
        compare(NonStationaryConvolve2D(dims, hs, ihx, ihz), serial, m, 0, dtype)

    comm.virtual_ranks(ranks, run)


def test_one_filter_is_a_convolution_everywhere() -> None:
    h, m = numbers((1, 5), "float64", 1), numbers((20,), "float64", 2)

    def run() -> None:
        Op = NonStationaryConvolve1D(20, h, [7])
        np.testing.assert_allclose((Op @ DistributedArray.to_dist(m)).asarray(), np.convolve(m, h[0], "same"))

    comm.virtual_ranks(3, run)


def test_neighbours_exchange_half_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[int, list[int]] = {}
    send = Communicator.send

    def counted(self: Communicator, data: Any, *arguments: Any, **named: Any) -> Any:
        sent.setdefault(threading.get_ident(), []).append(data.size)
        return send(self, data, *arguments, **named)

    monkeypatch.setattr(Communicator, "send", counted)

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("nothing but messages of neighbours is needed")

    def run() -> int:
        rank = comm.current().rank
        Op = NonStationaryConvolve1D((40, 3), np.ones((2, 5)), [10, 30], axis=0)
        Op @ DistributedArray.to_dist(np.ones((40, 3)), axis=1)
        assert threading.get_ident() not in sent
        Op.H @ (Op @ DistributedArray.to_dist(np.ones((40, 3))))
        assert sent[threading.get_ident()] == [6] * (2 if rank in (0, 3) else 4)
        return rank

    comm.virtual_ranks(4, lambda: comm.current().sharing_memory())
    for name in ("all_reduce", "all_gather", "broadcast", "gather_bytes"):
        monkeypatch.setattr(Communicator, name, refuse)
    comm.virtual_ranks(4, run)


def test_mistakes_say_what_would_be_right() -> None:
    hs, positions = np.ones((3, 5)), [2, 6, 10]
    with pytest.raises(ValueError, match="filters hs must have odd length"):
        NonStationaryConvolve1D(17, hs[:, :-1], positions)
    with pytest.raises(ValueError, match="must be regularly sampled"):
        NonStationaryConvolve1D(17, hs, [2, 6, 11])
    with pytest.raises(ValueError, match="smaller than dims, 10"):
        NonStationaryConvolve1D(10, hs, positions)
    with pytest.raises(ShapeError, match="3 filters, ih has positions for 2"):
        NonStationaryConvolve1D(17, hs, positions[:2])
    with pytest.raises(ShapeError, match="axis 1"):
        NonStationaryConvolve1D(17, hs, positions, axis=1)
    with pytest.raises(ParameterError, match="imaginary"):
        NonStationaryConvolve1D(17, hs * 1j, positions, dtype="float64")
    with pytest.raises(ValueError, match="filters hs must have odd length"):
        NonStationaryConvolve2D((17, 17), np.ones((3, 3, 5, 4)), positions, positions)
    with pytest.raises(ValueError, match="ihz of the filters must be regularly sampled"):
        NonStationaryConvolve2D((17, 17), np.ones((3, 3, 5, 5)), positions, [1, 2, 4])

    def run() -> None:
        Op = NonStationaryConvolve1D((17, 3), hs, positions, axis=0)
        with pytest.raises(ShapeError, match="no whole rows of 3"):
            Op @ DistributedArray(51, local_shapes=[25, 26])
        with pytest.raises(ShapeError, match=r"arrays of shape \(17, 3\)"):
            Op @ DistributedArray((3, 17))
        with pytest.raises(ShapeError, match="split along one axis"):
            Op @ DistributedArray((17, 3), axis=(0, 1))

    comm.virtual_ranks(2, run)
