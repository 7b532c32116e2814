"""Fourier operators against serial pylops, and their adjoints."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.errors import ParameterError, ShapeError
from jali.linops.fourier import FFT, FFT2D, FFTND

pylops = pytest.importorskip("pylops")
serial = pytest.importorskip("pylops.signalprocessing")

RANKS = [1, 2, 3, 4]


def numbers(size: Any, kind: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=size)
    return x + 1j * generator.normal(size=size) if kind == "c" else x


def of_pylops(kind: Any, *arguments: Any, **named: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return kind(*arguments, **named)


CASES: list[tuple[Any, Any, tuple[int, ...], dict[str, Any]]] = [
    (FFT2D, serial.FFT2D, (4, 5), {"axes": (0, 1)}),
    (FFT2D, serial.FFT2D, (5, 6), {"axes": (1, 0)}),
    (FFTND, serial.FFTND, (4, 5, 6), {"axes": (0, 1, 2)}),
    (FFTND, serial.FFTND, (4, 5, 3), {"axes": (2, 0, 1), "nffts": (4, None, 8)}),
    (FFTND, serial.FFTND, (2, 7, 3), {"axes": (1,), "sampling": 0.5}),
    (FFT, serial.FFT, (6, 5), {"axis": 0}),
    (FFT, serial.FFT, (6, 5), {"axis": 1, "nfft": 9}),
    (FFT, serial.FFT, (48,), {}),
    (FFT, serial.FFT, (13,), {"sampling": 0.1}),
]


def flat(op: object, x: np.ndarray) -> np.ndarray:
    """A product with a vector: whether pylops takes arrays is a switch of the process, which ranks that are threads may leave off."""
    return op @ x.ravel()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("norm", ["none", "1/n", "ortho"])
@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize(("before", "after"), [(False, False), (True, False), (False, True), (True, True)])
def test_they_are_those_of_pylops(ranks: int, norm: str, real: bool, before: bool, after: bool) -> None:
    dtype = "float64" if real else "complex128"

    def run() -> None:
        for kind, of_serial, dims, named in CASES:
            shifts = {"ifftshift_before": before, "fftshift_after": after}
            op = kind(dims, norm=norm, real=real, dtype=dtype, **named, **shifts)
            right = of_pylops(of_serial, dims, norm=norm, real=real, dtype=dtype, **named, **shifts)
            assert op.shape == right.shape
            assert tuple(op.dimsd) == tuple(right.dimsd)
            assert op.dtype == right.dtype
            x = numbers(op.shape[1], "f" if real else "c")
            y = right @ x
            close = {"rtol": 1e-11, "atol": 1e-11}
            given = DistributedArray.to_dist(x)
            found = op @ given
            np.testing.assert_allclose(found.asarray(), y, **close)
            back = op.H @ found
            np.testing.assert_allclose(back.asarray(), right.H @ y, **close)
            assert back.layout is given.layout
            solved = op / found
            assert solved.layout is given.layout
            np.testing.assert_allclose(solved.asarray(), right / y if not named.get("nffts") else x, **close)
            assert solved.dtype == dtype

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_arrays_stay_arrays(ranks: int) -> None:
    dims = (5, 4, 6)
    x = numbers(dims, "c")

    def run() -> None:
        op = FFTND(dims)
        real = FFTND(dims, axes=(0, 2, 1), real=True, dtype="float64")
        for axis in (0, 1, 2, (0, 2)):
            for op_now, model in ((op, x), (real, x.real)):
                given = DistributedArray.to_dist(model, axis=axis)
                y = op_now @ given
                right = of_pylops(
                    serial.FFTND, dims, op_now.axes, norm="none", real=op_now.real, dtype=op_now.rdtype
                )
                wanted = flat(right, model).reshape(right.dimsd)
                np.testing.assert_allclose(y.asarray(), wanted, rtol=1e-11, atol=1e-11)
                assert y.global_shape == op_now.dimsd
                assert (op_now.H @ y).layout is given.layout
                np.testing.assert_allclose((op_now / y).asarray(), model, rtol=1e-11, atol=1e-11)
        uneven = DistributedArray.to_dist(
            x.real, axis=1, local_shapes=[(5, 4 if r == ranks - 1 else 0, 6) for r in range(ranks)]
        )
        y = real @ uneven
        assert (real.H @ y).layout is uneven.layout
        replicated = DistributedArray.to_dist(x.reshape(-1), partition=Partition.BROADCAST)
        y = op @ replicated
        assert y.partition is Partition.BROADCAST
        np.testing.assert_allclose(y.local, np.fft.fftn(x).reshape(-1), rtol=1e-11, atol=1e-11)
        np.testing.assert_allclose((op / y).local, x.reshape(-1), rtol=1e-11, atol=1e-11)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "complex64", "complex128"])
@pytest.mark.parametrize("norm", ["none", "1/n", "ortho"])
def test_the_adjoint_is_one(ranks: int, dtype: str, norm: str) -> None:
    tolerance = 1e-5 if dtype in ("float32", "complex64") else 1e-12

    def run() -> None:
        for kind, _, dims, named in CASES:
            for shifts in (False, True):
                real = dtype.startswith("float")
                op = kind(
                    dims,
                    norm=norm,
                    real=real,
                    dtype=dtype,
                    ifftshift_before=shifts,
                    fftshift_after=shifts,
                    **named,
                )
                u = DistributedArray.to_dist(numbers(op.shape[1], "f" if real else "c").astype(dtype))
                v = DistributedArray.to_dist(numbers(op.shape[0], "c", 1).astype(op.dtype))
                y, x = op @ u, op.H @ v
                assert y.dtype == op.dtype
                assert x.dtype == dtype
                left, right = np.vdot(y.asarray(), v.asarray()), np.vdot(u.asarray(), x.asarray())
                scale = np.linalg.norm(y.asarray()) * np.linalg.norm(v.asarray())
                assert abs(left.real - right.real) < tolerance * scale
                assert real or abs(left - right) < tolerance * scale

    comm.virtual_ranks(ranks, run)


def test_models_of_a_real_type_without_halving() -> None:
    x = numbers((4, 6), "c")

    def run() -> None:
        op = FFT2D((4, 6), dtype="float64")
        right = of_pylops(serial.FFT2D, (4, 6), norm="none", dtype="float64")
        y = op @ DistributedArray.to_dist(x)
        np.testing.assert_allclose(y.asarray(), flat(right, x).reshape(4, 6), rtol=1e-12, atol=1e-12)
        back = op.H @ y
        assert back.dtype == np.float64
        wanted = flat(right.H, y.asarray()).reshape(4, 6)
        np.testing.assert_allclose(back.asarray(), wanted, rtol=1e-12, atol=1e-12)
        assert not op.clinear

    comm.virtual_ranks(2, run)


def test_frequencies() -> None:
    for real in (False, True):
        for after in (False, True):
            op = FFTND((6, 5), axes=(0, 1), sampling=(0.5, 2.0), real=real, fftshift_after=after)
            right = of_pylops(
                serial.FFTND, (6, 5), axes=(0, 1), sampling=(0.5, 2.0), real=real, fftshift_after=after
            )
            for mine, theirs in zip(op.fs, right.fs, strict=True):
                np.testing.assert_allclose(mine, theirs)
    op = FFT2D((6, 5), sampling=0.5)
    np.testing.assert_allclose(op.f1, np.fft.fftfreq(6, 0.5))
    np.testing.assert_allclose(op.f2, np.fft.fftfreq(5, 0.5))
    np.testing.assert_allclose(FFT((6, 5), axis=0, sampling=0.1).f, np.fft.fftfreq(6, 0.1))


def test_what_makes_no_sense_is_refused() -> None:
    def run() -> None:
        op = FFT2D((4, 6))
        for call, error, words in (
            (lambda: FFTND((4, 6)), ShapeError, r"axis 2 does not exist in an array of shape \(4, 6\)"),
            (lambda: FFT2D((4, 6), axes=(0, 0)), ShapeError, "one occurs twice"),
            (lambda: FFT2D((4, 6), axes=(0,)), ShapeError, "along two axes"),
            (lambda: FFT2D((4, 6), norm="backward"), ParameterError, "not one of 'none', '1/n', 'ortho'"),
            (lambda: FFT2D((4, 6), sampling=(1, 2, 3)), ShapeError, "sampling of a transform along"),
            (lambda: FFT2D((4, 6), dtype="int64"), ParameterError, "real or complex numbers, not int64"),
            (lambda: op @ DistributedArray((23,)), ShapeError, "x has 23 elements"),
            (lambda: op @ DistributedArray((6, 4)), ShapeError, r"an array of shape \(6, 4\), not \(4, 6\)"),
            (lambda: op / DistributedArray((23,)), ShapeError, "y has 23 elements"),
        ):
            with pytest.raises(error, match=words):
                call()

    comm.virtual_ranks(2, run)
