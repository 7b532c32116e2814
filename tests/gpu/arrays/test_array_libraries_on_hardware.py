"""Distributed arrays whose parts are CuPy's or PyTorch's, on real GPUs: what the same lines give with NumPy.

Without a GPU ranks are threads, this file checks itself with NumPy as the other library, and tensors of the host stand in. On GPUs a
rank is a process: memory of CuPy and PyTorch comes from calls of the driver that wait for all devices of a process, so that a rank which
is a thread may wait for one that waits for it. The tests here use one GPU; all of them are used by

    mpiexec -n 4 python tests/gpu/arrays/test_array_libraries_on_hardware.py
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[1]))
from fake_driver import REAL

from jali import comm, linops, solvers
from jali.array_namespaces import namespace_by_name, namespace_of
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.comm import end_job
from jali.fft import fftn, ifftn, irfftn, rfftn

pylops = pytest.importorskip("pylops")


def devices_of(engine: str) -> int:
    """None where tensors of the host stand in."""
    if engine == "numpy" or not REAL:
        return 0
    xp = namespace_by_name(engine).xp
    return int(xp.cuda.runtime.getDeviceCount() if engine == "cupy" else xp.cuda.device_count())


@pytest.fixture(params=["numpy", pytest.param("cupy", marks=pytest.mark.gpu), "torch"])
def engine(request: pytest.FixtureRequest) -> str:
    if request.param != "numpy":
        pytest.importorskip(request.param)
    return str(request.param)


class Here:
    """Arrays of a library, on this rank's device."""

    def __init__(self, engine: str) -> None:
        self.engine, self.namespace = engine, namespace_by_name(engine)

    def array(self, numbers: Any) -> Any:
        numbers = np.ascontiguousarray(numbers)
        if self.engine == "torch":
            tensor = self.namespace.xp.from_numpy(numbers)
            return tensor.cuda() if devices_of("torch") else tensor
        return self.namespace.xp.asarray(numbers)

    def matrix(self, numbers: Any) -> Any:
        """For operators of pylops, which have NumPy's or CuPy's; vectors of PyTorch are shown to these without a copy."""
        if self.engine != "torch":
            return self.array(numbers)
        return Here("cupy").array(numbers) if devices_of("torch") else numbers

    def spread(
        self, numbers: Any, partition: Partition = Partition.SCATTER, **named: Any
    ) -> DistributedArray:
        return DistributedArray.to_dist(self.array(numbers), partition=partition, **named)


@contextlib.contextmanager
def on_device(engine: str) -> Iterator[None]:
    if not devices_of(engine):
        yield
        return
    xp = namespace_by_name(engine).xp
    device = comm.current().rank % devices_of(engine)
    with xp.cuda.Device(device) if engine == "cupy" else xp.cuda.device(device):
        yield


def numbers(shape: Any, seed: int, dtype: Any = np.complex128) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape)
    return np.asarray(x + 1j * generator.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(
        dtype
    )


def flat(result: Any) -> list[Any]:
    """Everything of a result as arrays of the host."""
    if isinstance(result, dict):
        return [one for each in result.values() for one in flat(each)]
    if isinstance(result, (list, tuple)):
        return [one for each in result for one in flat(each)]
    if isinstance(result, StackedDistributedArray):
        return [one for each in result.distarrays for one in flat(each)]
    if isinstance(result, DistributedArray):
        result = result.local
    return [namespace_of(result).to_host(result) if hasattr(result, "dtype") else np.asarray(result)]


def compare(engine: str, program: Callable[[Here], Any], rtol: float = 1e-11) -> None:
    """What `program` gives on 1 to 4 ranks with the library, and with NumPy."""

    def run(name: str) -> list[Any]:
        with on_device(name):
            result = program(Here(name))
            if name != "numpy":
                for one in result.values():
                    if isinstance(one, DistributedArray):
                        assert one.engine == name
            return flat(result)

    if comm.current().size > 1:
        of_rank = run(engine), run("numpy")
        return same(*of_rank, rtol)
    for count in (1,) if devices_of(engine) else (1, 2, 3, 4):
        for found, right in zip(
            comm.virtual_ranks(count, run, engine), comm.virtual_ranks(count, run, "numpy"), strict=True
        ):
            same(found, right, rtol)
    return None


def same(found: list[Any], right: list[Any], rtol: float) -> None:
    for a, b in zip(found, right, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * max(1.0, np.abs(b).max(initial=0)))


TYPES = (np.float32, np.float64, np.complex64, np.complex128)
TOLERANCE = {np.float32: 2e-5, np.complex64: 2e-5, np.float64: 1e-12, np.complex128: 1e-12}


@pytest.mark.parametrize("dtype", TYPES)
def test_arithmetic(engine: str, dtype: Any) -> None:
    def program(here: Here) -> dict[str, Any]:
        x, y = (here.spread(numbers((7, 5), seed, dtype)) for seed in (1, 2))
        z = x.copy()
        z += 2 * y
        z *= 0.5
        out = x.empty_like()
        np.add(x, y, out=out)
        return {
            "sum": x + y, "difference": x - 3 * y, "product": x * y, "quotient": x / (y + 5), "in place": z, "out": out,
            "power": x**2, "reflected": 1 - x, "negative": -x, "conjugate": x.conj(), "exp": np.exp(x), "abs": np.abs(x),
            "real": x.real, "imag": x.imag, "type": x.astype(np.complex128),
        }  # fmt: skip

    compare(engine, program, TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", TYPES)
def test_sums(engine: str, dtype: Any) -> None:
    def program(here: Here) -> dict[str, Any]:
        x, y = (here.spread(numbers((9, 50, 3), seed, dtype)) for seed in (1, 2))
        found = {"dot": x.dot(y), "vdot": x.dot(y, vdot=True), "sum": x.sum(), "mean": x.mean()}
        for order in (None, 0, 1, 2, 3.5, np.inf, -np.inf):
            found[f"norm {order}"] = x.ravel().norm(order)
            for axis in (0, 1, 2):
                found[f"norm {order} of {axis}"] = x.norm(order, axis=axis)
        return {name: np.asarray(namespace_of(n).to_host(n) if hasattr(n, "get") or hasattr(n, "cpu") else n).astype(complex)
                for name, n in found.items()}  # fmt: skip

    compare(engine, program, 10 * TOLERANCE[dtype])


def test_moves(engine: str) -> None:
    def program(here: Here) -> dict[str, Any]:
        whole = numbers((11, 6, 5), 1)
        x = here.spread(whole)
        front, back = x.ghost_cells(2, 1)
        y = here.spread(whole, axis=1)
        masked = here.spread(whole, mask=[0] * comm.current().size)
        return {
            "all": x.asarray(), "moved": x.redistribute(1), "back": x.redistribute(2).redistribute(0), "flat": x.ravel(),
            "ghosts": x.add_ghost_cells(1, 2), "front": front, "back ghosts": back, "of columns": y.add_ghost_cells(1, 1),
            "slice": x.global_index[2:9, 1:4], "replicated": here.spread(whole, Partition.BROADCAST), "masked": masked,
        }  # fmt: skip

    compare(engine, program, 0)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_derivatives(engine: str, dtype: Any) -> None:
    def program(here: Here) -> dict[str, Any]:
        dims = (13, 6, 5)
        x = here.spread(numbers(dims, 3, dtype)).ravel()
        found: dict[str, Any] = {}
        for kind in ("forward", "backward", "centered"):
            for edge in (False, True):
                for A in (
                    linops.FirstDerivative(dims, 0.5, kind, edge),
                    linops.SecondDerivative(dims, 0.5, kind, edge),
                    linops.Laplacian(dims, (0, 2), (1, 2), (1, 2), edge, kind),
                ):
                    found[f"{A} {kind} {edge}"], found[f"{A}^H {kind} {edge}"] = A @ x, A.H @ x
        gradient = linops.Gradient(dims, kind="centered")
        found["gradient"] = gradient @ x
        found["divergence"] = gradient.H @ found["gradient"]
        return found

    compare(engine, program, TOLERANCE[dtype])


def test_blocks(engine: str) -> None:
    def program(here: Here) -> dict[str, Any]:
        rank, size = comm.current().rank, comm.current().size
        A = here.matrix(numbers((6, 4), 10 + rank))
        local = pylops.MatrixMult(A, dtype="complex128")
        x, replicated = here.spread(numbers(4 * size, 1)), here.spread(numbers(4, 1), Partition.BROADCAST)
        diagonal, column, row = linops.BlockDiag([local]), linops.VStack([local]), linops.HStack([local])
        found = {"diagonal": diagonal @ x, "column": column @ replicated, "row": row @ x}
        found |= {
            "diagonal^H": diagonal.H @ found["diagonal"], "column^H": column.H @ found["column"],
            "row^H": row.H @ found["row"], "algebra": (2j * diagonal.H * diagonal - 3 * linops.Identity(4 * size)) @ x,
        }  # fmt: skip
        assert linops.dottest(diagonal, *[here.spread(numbers(n * size, 7)) for n in (4, 6)], rtol=1e-10)
        return found

    compare(engine, program)


def test_matrices_and_kernels(engine: str) -> None:
    def program(here: Here) -> dict[str, Any]:
        rank, size = comm.current().rank, comm.current().size
        found: dict[str, Any] = {}
        blocks = (
            linops.MatrixMult(here.array(numbers((3, 2), rank)), 8, kind="block") if size in (1, 4) else None
        )
        summa = (
            linops.MatrixMult(here.array(numbers((3, 2), rank)), 8, kind="summa") if size in (1, 4) else None
        )
        for name, A in (("block", blocks), ("summa", summa)):
            if A is not None:
                x = here.array(numbers(A.shape[1], 5))
                part = DistributedArray.to_dist(x, local_shapes=A.domain().local_shapes).local
                y = A @ DistributedArray.of(A.domain(), part)  # flat blocks, whatever the numbers
                found |= {name: y, f"{name}^H": A.H @ y}
        G = here.array(numbers((3, 4, 5), 20 + rank))
        fredholm = linops.Fredholm1(G, 2)
        found["fredholm"] = fredholm @ here.spread(numbers(fredholm.shape[1], 2), Partition.BROADCAST)
        found["fredholm^H"] = fredholm.H @ found["fredholm"]
        mdc = linops.MDC(G, 6 * size - 1, 1, 3 * size)
        found["mdc"] = mdc @ here.spread(numbers(mdc.shape[1], 2), Partition.BROADCAST)
        found["mdc^H"] = mdc.H @ found["mdc"]
        hs = here.array(numbers((3, 5), 1))
        convolve = linops.NonStationaryConvolve1D((24, 3), hs, [2, 8, 14], axis=0)
        found["convolve"] = convolve @ here.spread(numbers((24, 3), 3)).ravel()
        found["convolve^H"] = convolve.H @ found["convolve"]
        return found

    compare(engine, program)


def test_halos(engine: str) -> None:
    def program(here: Here) -> dict[str, Any]:
        size = comm.current().size
        dims = (6 * size, 5)
        halo = linops.Halo(dims, (1, 0), (size, 1))
        x = here.spread(numbers(dims, 3)).ravel()
        y = halo @ x
        return {"halo": y, "adjoint": halo.H @ y}

    compare(engine, program, 1e-13)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_kirchhoff(engine: str, dtype: Any) -> None:
    def program(here: Here) -> dict[str, Any]:
        rank = comm.current().rank
        z, x, t = np.arange(12) * 4.0, np.arange(15) * 4.0, np.arange(60) * 0.004
        sources = np.array([[8.0 + 4 * rank, 30.0 + rank], [5.0, 5.0]])
        receivers = np.array([[4.0, 20.0, 44.0], [10.0, 10.0, 10.0]])
        wavelet = numbers(9, 4, np.float64)
        A = linops.VStack([linops.Kirchhoff(z, x, t, sources, receivers, 1000.0, wavelet, 4, dtype=dtype)])
        d = A @ here.spread(numbers(12 * 15, 3, dtype), Partition.BROADCAST)
        return {"data": d, "image": A.H @ d, "inverse": solvers.cgls(A, d, maxiter=3).x}

    compare(engine, program, 2e-4 if dtype == np.float32 else 1e-9)


@pytest.mark.short(2)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(8, 6, 5), (7, 9, 4)])
def test_fourier_transforms(engine: str, dtype: Any, shape: tuple[int, ...]) -> None:
    tolerance = TOLERANCE[dtype] * 100

    def program(here: Here) -> dict[str, Any]:
        x = here.spread(numbers(shape, 3, dtype))
        z = here.spread(numbers(shape, 3, np.result_type(dtype, np.complex64)))
        found = {"c": fftn(z), "r": rfftn(x), "two": fftn(z, axes=(0, 1)), "one": fftn(z, axes=(0,))}
        found |= {"ic": ifftn(found["c"]), "ir": irfftn(found["r"], s=shape)}
        A = linops.FFTND(shape, (0, 1, 2), norm="1/n", dtype=z.dtype)
        found["operator"] = A @ z.ravel()
        found["adjoint"] = A.H @ found["operator"]
        return found

    compare(engine, program, tolerance)


def test_solvers(engine: str) -> None:
    def program(here: Here) -> dict[str, Any]:
        rank, size = comm.current().rank, comm.current().size
        G = numbers((12, 8), 30 + rank, np.float64)
        A = linops.BlockDiag([pylops.MatrixMult(here.matrix(G))])
        square = linops.BlockDiag([pylops.MatrixMult(here.matrix(G.T @ G))])
        y = A @ here.spread(numbers(8 * size, 1, np.float64))
        zero = here.spread(np.zeros(8 * size))
        found: dict[str, Any] = {
            "cg": solvers.cg(square, A.H @ y, rtol=1e-09).x,
            "cgls": solvers.cgls(A, y, zero.copy(), maxiter=20).x,
            "lsqr": solvers.lsqr(A, y, zero.copy(), maxiter=20).x,
            "ista": solvers.ista(A, y, zero.copy(), maxiter=20, alpha=1e-2, eps=0.1).x,
            "fista": solvers.fista(A, y, zero.copy(), maxiter=20, alpha=1e-2, eps=0.1).x,
        }
        return found

    compare(engine, program, 1e-7)


def main() -> None:
    """Every test with every library that is here, on the ranks of a launcher; the first failure ends all."""
    ranks = comm.current()
    for engine in [name for name in ("numpy", "cupy", "torch") if importlib.util.find_spec(name)]:
        for name, test in [(n, f) for n, f in globals().items() if n.startswith("test_")]:
            marks = [mark.args for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize"]
            for chosen in itertools.product(*(values for _, values in marks)):
                given = dict(zip((argument for argument, _ in marks), chosen, strict=True))
                began = time.perf_counter()
                try:
                    test(engine, **given)
                except Exception as error:
                    traceback.print_exc()
                    end_job(error)
                if ranks.rank == 0:
                    shown = ", ".join(getattr(v, "__name__", str(v)) for v in given.values())
                    print(
                        f"{engine} {name}({shown}) as NumPy, {time.perf_counter() - began:.1f} s", flush=True
                    )


if __name__ == "__main__":
    main()
