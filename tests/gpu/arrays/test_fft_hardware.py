"""cuFFT itself, on a GPU: what the fake library says of it is so, for arrays of CuPy and PyTorch, on their streams and in graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Vector, _core, fft
from jali.array_namespaces import NAMESPACES
from jali.arrays import DistributedArray, layout_of
from jali.fft import vendors
from jali.fft.one_process import SpreadPlan
from jali.fft.providers import PROVIDERS, Resources

pytestmark = pytest.mark.gpu
SHAPES = [(64,), (12, 35), (7, 1, 30), (8, 9, 10), (3, 4, 5, 6), (17, 33, 31)]


@pytest.fixture(params=["cupy", "torch"])
def namespace(request: pytest.FixtureRequest) -> Any:
    pytest.importorskip(request.param)
    if why := vendors.why_not("cufft"):
        pytest.skip(why)
    return NAMESPACES[request.param]


def there(namespace: Any, a: np.ndarray) -> Any:
    like = namespace.empty_on(0, (1,), a.dtype)
    with namespace.where(like):
        return namespace.from_host(a, like)


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.normal(size=shape)
    return (x + 1j * random.normal(size=shape) if dtype.startswith("c") else x).astype(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_kind_and_axis(namespace: Any, shape: tuple[int, ...]) -> None:
    provider, ndim = PROVIDERS["cufft"], len(shape)
    some = [(k,) for k in range(ndim)] + [tuple(range(ndim)), tuple(reversed(range(ndim)))]
    for axes in some:
        for dtype, exact in (("complex64", 1e-5), ("complex128", 1e-12)):
            a = numbers(shape, dtype)
            x = there(namespace, a)
            out = namespace.empty_like(x)
            found = namespace.to_host(provider.c2c(x, axes, True, "ortho", out, Resources()))
            np.testing.assert_allclose(found, np.fft.fftn(a, axes=axes, norm="ortho"), atol=10 * exact)
            back = provider.c2c(out, axes, False, "ortho", out, Resources(workspace=1 << 24))
            np.testing.assert_allclose(namespace.to_host(back), a, atol=10 * exact)
        for dtype, exact in (("float32", 1e-5), ("float64", 1e-12)):
            a = numbers(shape, dtype)
            y = provider.r2c(there(namespace, a), axes, "ortho", Resources())
            wanted = np.fft.rfftn(a, axes=axes, norm="ortho")
            np.testing.assert_allclose(namespace.to_host(y), wanted, atol=10 * exact)
            z = provider.c2r(y, shape[axes[-1]], axes, "ortho", Resources())
            np.testing.assert_allclose(namespace.to_host(z), a, atol=10 * exact)


def test_views_are_transformed_where_they_are(namespace: Any) -> None:
    a = numbers((9, 10, 11), "complex64")
    x = there(namespace, a)
    for where in ((slice(1, 8), slice(2, 9), slice(0, 11)), (slice(None), slice(0, 10, 2), slice(1, 10))):
        part, wanted = x[where], np.fft.fftn(a[where], axes=(0, 2))
        out = namespace.empty_beside(x, tuple(part.shape))
        found = PROVIDERS["cufft"].c2c(part, (0, 2), True, "backward", out, Resources())
        np.testing.assert_allclose(namespace.to_host(found), wanted, atol=1e-3)


def test_arrays_and_graphs(namespace: Any) -> None:
    lattice = Lattice(4, 4, device="cuda:0")
    a, b = numbers((8, 9, 10), "complex128"), numbers((8, 9, 10), "complex128", 1)
    layout = layout_of(jali.comm.current(), a.shape)
    x = DistributedArray.of(layout, there(namespace, a))
    plan = fft.FftPlan(layout, (0, 1, 2))
    out = plan(x)
    np.testing.assert_allclose(namespace.to_host(out.local), np.fft.fftn(a), atol=1e-10)
    graph = jali.graph(lambda: plan(x, out), lattice)
    x.local[...] = there(namespace, b)
    graph.run(3)
    np.testing.assert_allclose(namespace.to_host(out.local), np.fft.fftn(b), atol=1e-10)


@pytest.mark.parametrize(("dtype", "exact"), [("complex64", 1e-5), ("complex128", 1e-12)])
@pytest.mark.parametrize("shape", [(64, 32, 128), (64, 96)])
def test_several_devices_of_one_process(shape: tuple[int, ...], dtype: str, exact: float) -> None:
    if why := vendors.why_not("cufft"):
        pytest.skip(why)
    if (count := _core.Gpu.count("cuda")) < 2:
        pytest.skip("cufftXt needs two GPUs")
    a = numbers(shape, dtype)
    out, wanted = np.empty_like(a), np.fft.fftn(a)
    plan = SpreadPlan(vendors.find("cufft"), range(min(4, count)), shape, dtype)
    plan.load(a)
    plan.transform()
    plan.to_natural()
    plan.copy_to_host(out)
    np.testing.assert_allclose(out, wanted, atol=exact * a.size**0.5 * 10)
    plan.copy_natural_to_host(out)
    np.testing.assert_allclose(out, wanted, atol=exact * a.size**0.5 * 10)
    plan.transform(inverse=True)
    plan.wait()
    plan.copy_to_host(out)
    np.testing.assert_allclose(out / a.size, a, atol=exact * 10)
    plan.close()


def test_fields(namespace: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "torch" if namespace.name == "cupy" else "cupy"
    monkeypatch.setitem(NAMESPACES[other].__dict__, "_module", "no_such_module")
    lattice = Lattice(8, 6, 4, device="cuda:0")
    f, g = Field(lattice, Vector(3)), Field(lattice, Vector(3))
    a = numbers(f.shape, "complex128")
    f[...] = a
    wanted = np.fft.fftn(a, axes=(0, 1, 2), norm="ortho")
    np.testing.assert_allclose(fft.fftn(f, norm="ortho")[...], wanted, atol=1e-12)
    graph = jali.graph(lambda: fft.fftn(f, norm="ortho", out=g), lattice)
    graph.run()
    np.testing.assert_allclose(g[...], wanted, atol=1e-12)
