"""Fredholm integrals and multi-dimensional convolution against NumPy and serial pylops, on 1 to 4 virtual ranks."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition
from jali.arrays.layout import even_split
from jali.comm import Communicator
from jali.errors import ParameterError, ShapeError
from jali.linops.fredholm import Fredholm1
from jali.linops.mdc import MDC

TYPES = ["float32", "float64", "complex64", "complex128"]
SPLITS = {
    "even": even_split,
    "one": lambda n, p: (*[1] * (p - 1), n - p + 1),
    "none": lambda n, p: (*[0] * (p - 1), n),
}


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape) + (1j * generator.normal(size=shape) if dtype[0] == "c" else 0)
    return x.astype(dtype)


def precision(dtype: Any) -> float:
    return 2e-5 if np.dtype(dtype).name in ("float32", "complex64") else 1e-12


def assert_adjoint(Op: Any, x: DistributedArray, y: DistributedArray) -> None:
    forward, backward = (Op @ x).dot(y, vdot=True), x.dot(Op.H @ y, vdot=True)
    size = (x.norm() * y.norm()) * np.finfo(x.dtype).eps * 100
    assert abs(forward - backward) <= precision(x.dtype) * abs(forward) + size


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("split", list(SPLITS))
@pytest.mark.parametrize("nz", [1, 3])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("saveGt", "usematmul"), [(False, True), (True, False), (True, True), (False, False)]
)
def test_fredholm_is_numpys_products(
    ranks: int, split: str, nz: int, dtype: str, saveGt: bool, usematmul: bool
) -> None:
    nsl, nx, ny = 7, 4, 3
    G, m, d = (
        numbers((nsl, nx, ny), dtype, 1),
        numbers((nsl, ny, nz), dtype, 2),
        numbers((nsl, nx, nz), dtype, 3),
    )
    close = {"rtol": precision(dtype), "atol": precision(dtype) * 10}
    data, model = G @ m, G.conj().swapaxes(1, 2) @ d

    def run() -> None:
        world = comm.current()
        slices = SPLITS[split](nsl, world.size)
        begin = sum(slices[: world.rank])
        mine = slice(begin, begin + slices[world.rank])
        Op = Fredholm1(G[mine], nz, saveGt=saveGt, usematmul=usematmul)
        assert Op.shape == (nsl * nx * nz, nsl * ny * nz)
        assert Op.dtype == np.dtype(dtype)
        shapes = [Op.dims, Op.dimsd]
        for flat in (True, False):
            vectors = [v.reshape(-1 if flat else s) for v, s in zip((m, d), shapes, strict=True)]
            x, y = (DistributedArray.to_dist(v, partition=Partition.BROADCAST) for v in vectors)
            found, back = Op @ x, Op.H @ y
            assert (found.partition, found.dtype) == (Partition.BROADCAST, np.dtype(dtype))
            assert not flat or (x.layout, found.layout) == (Op.domain(), Op.range_())
            assert (found.global_shape, back.global_shape) == (y.global_shape, x.global_shape)
            np.testing.assert_allclose(found.asarray(), data.reshape(found.shape), **close)
            np.testing.assert_allclose(back.asarray(), model.reshape(back.shape), **close)
            assert_adjoint(Op, x, y)
            sizes = [(n * v.size // nsl,) if flat else (n, *v.shape[1:]) for v in vectors for n in slices]
            x, y = (
                DistributedArray.to_dist(v, local_shapes=sizes[k * world.size : (k + 1) * world.size])
                for k, v in enumerate(vectors)
            )
            found, back = Op @ x, Op.H @ y
            assert found.local_shapes == y.local_shapes
            np.testing.assert_allclose(found.asarray(), data.reshape(found.shape), **close)
            np.testing.assert_allclose(back.asarray(), model.reshape(back.shape), **close)
            assert_adjoint(Op, x, y)

    comm.virtual_ranks(ranks, run)


def test_fredholm_gathers_once_and_not_where_vectors_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: dict[int, list[str]] = {}

    def counted(name: str) -> Any:
        function = getattr(Communicator, name)

        def call(self: Communicator, *arguments: Any, **named: Any) -> Any:
            calls.setdefault(threading.get_ident(), []).append(name)
            return function(self, *arguments, **named)

        return call

    for name in ("split", "broadcast", "all_reduce", "all_gather", "all_to_all", "gather_bytes", "send"):
        monkeypatch.setattr(Communicator, name, counted(name))

    def run() -> None:
        mine = calls.setdefault(threading.get_ident(), [])
        Op = Fredholm1(np.ones((2, 3, 4), "float32"))
        assert mine == ["gather_bytes"]
        mine.clear()
        x = DistributedArray.of(
            DistributedArray(32, partition=Partition.BROADCAST).layout, np.ones(32, "float32")
        )
        y = Op @ x
        Op.H @ y
        assert mine == ["all_gather"] * 2
        mine.clear()
        Op.H @ (Op @ DistributedArray(32, local_array=np.ones(8)))
        assert mine == []
        MDCop = MDC(np.ones((2, 3, 4), "complex64"), nt=15, nv=1, nfreq=8)
        assert mine == ["gather_bytes"]
        mine.clear()
        m = DistributedArray.of(
            DistributedArray(60, partition=Partition.BROADCAST).layout, np.ones(60, "float32")
        )
        MDCop.H @ (MDCop @ m)
        assert mine == ["all_gather"] * 2

    comm.virtual_ranks(4, run)


def test_mistakes_in_kernels_raise_on_all_ranks() -> None:
    def run() -> None:
        rank = comm.current().rank
        with pytest.raises(ShapeError, match="one nx and one ny"):
            Fredholm1(np.ones((2, 3, 4 + (rank == 2))))
        with pytest.raises(ShapeError, match="shape"):
            Fredholm1(np.ones((3, 4)))
        with pytest.raises(ParameterError, match="imaginary"):
            Fredholm1(np.ones((2, 3, 4), complex), dtype="float32")
        Op = Fredholm1(np.ones((2, 3, 4)))
        with pytest.raises(ShapeError, match="split as its slices"):
            Op @ DistributedArray(24, local_shapes=[5, 11, 8])
        with pytest.raises(ShapeError, match="elements"):
            Op @ DistributedArray(23, partition=Partition.BROADCAST)
        kernel = np.ones((2, 3, 4), complex)
        with pytest.raises(ValueError, match="nt must be an odd number"):
            MDC(kernel, nt=16, nv=1, nfreq=6)
        with pytest.raises(ShapeError, match="6 frequencies of the kernel, nfreq is 5"):
            MDC(kernel, nt=15, nv=1, nfreq=5)
        with pytest.raises(ShapeError, match="9 times have 5 frequencies"):
            MDC(kernel, nt=9, nv=1, nfreq=6)
        with pytest.raises(ParameterError, match="numpy, scipy"):
            MDC(kernel, nt=15, nv=1, nfreq=6, fftengine="fftw")
        with pytest.raises(ShapeError, match="BROADCAST"):
            MDC(kernel, nt=15, nv=1, nfreq=6) @ DistributedArray(15 * 4)

    comm.virtual_ranks(3, run)


@pytest.mark.filterwarnings("ignore:numpy backend always returns complex128")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize(("nt", "twosided"), [(15, True), (15, False), (16, False)])
@pytest.mark.parametrize("nv", [1, 2])
@pytest.mark.parametrize("nfreq", [5, 8])
@pytest.mark.parametrize(
    "named",
    [{}, {"conj": True, "fftengine": "scipy"}, {"prescaled": True, "saveGt": False, "usematmul": True}],
)
def test_convolution_is_that_of_pylops(
    ranks: int, dtype: str, nt: int, twosided: bool, nv: int, nfreq: int, named: dict[str, Any]
) -> None:
    pylops = pytest.importorskip("pylops")
    ns, nr = 4, 3
    real = "float32" if dtype == "complex64" else "float64"
    G = numbers((nfreq, ns, nr), dtype, 1)
    m, d = numbers((nt, nr, nv), real, 2), numbers((nt, ns, nv), real, 3)
    close = {"rtol": precision(dtype), "atol": precision(dtype) * 10}
    serial = pylops.waveeqprocessing.MDC(G, nt, nv, dt=0.5, dr=2.0, twosided=twosided, **named)
    data, model = serial @ m.ravel(), serial.H @ d.ravel()

    def run() -> None:
        world = comm.current()
        slices = even_split(nfreq, world.size)
        begin = sum(slices[: world.rank])
        Op = MDC(
            G[begin : begin + slices[world.rank]], nt, nv, nfreq, dt=0.5, dr=2.0, twosided=twosided, **named
        )
        assert (Op.shape, Op.dtype) == (serial.shape, np.dtype(real))
        x, y = (DistributedArray.to_dist(v.ravel(), partition=Partition.BROADCAST) for v in (m, d))
        found, back = Op @ x, Op.H @ y
        assert found.dtype == back.dtype == np.dtype(real)
        np.testing.assert_allclose(found.asarray(), data, **close)
        np.testing.assert_allclose(back.asarray(), model, **close)
        assert_adjoint(Op, x, y)
        shaped = DistributedArray.to_dist(m.reshape(Op.dims), partition=Partition.BROADCAST)
        assert (Op @ shaped).global_shape == Op.dimsd
        result = Op @ (x * (1 + 2j))  # of a real matrix
        assert result.dtype == np.dtype(dtype)
        np.testing.assert_allclose(result.asarray(), (1 + 2j) * data, rtol=1e-4, atol=close["atol"] * 3)

    comm.virtual_ranks(ranks, run)
