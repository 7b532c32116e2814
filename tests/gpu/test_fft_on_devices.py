"""Fourier transforms of arrays and fields on devices of several ranks: by the vendor's library and jali's collectives, where they are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL, make_fake_fft

import jali
from jali import Complex, Field, Lattice, Matrix, Real, Spinor, Vector, fft
from jali.arrays import DistributedArray, layout_of
from jali.arrays.libraries import LIBRARIES
from jali.comm import DeviceArray, current
from jali.errors import DeviceError, ParameterError, RecordingError
from jali.fft import vendors

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")
LIBRARY = {"cuda": "cufft", "hip": "hipfft"}


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, fake_ccl: str) -> Iterator[Any]:
    with fake_cupy.installed(fake_driver) as module:
        for name in vendors.ROWS:
            vendors.use_file(name, str(make_fake_fft()))
        yield module
        for name in vendors.ROWS:
            vendors.use_file(name, None)


def spread(a: np.ndarray, **split: Any) -> DistributedArray:
    """A whole array of the host on the devices of these ranks."""
    layout = layout_of(current(), a.shape, **split)
    part = a[tuple(slice(begin, end) for begin, end in layout.box)]
    return DistributedArray.of(layout, fake_cupy.there(part))


def whole(x: DistributedArray) -> np.ndarray:
    """All of it on the host, by way of the host."""
    here = DistributedArray.of(x.layout, fake_cupy.asnumpy(x.local))
    return here.asarray()


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.normal(size=shape)
    return (x + 1j * random.normal(size=shape) if dtype.startswith("c") else x).astype(dtype)


CASES: list[tuple[int, tuple[int, ...], dict[str, Any], Any]] = [
    (1, (4, 5, 6), {}, None),
    (2, (4, 5, 6), {}, None),
    (3, (7, 5, 4), {"axis": 1}, (0, 1)),
    (4, (4, 6, 5), {"axis": (0, 1), "grid": (2, 2)}, None),
    (2, (24,), {}, None),  # four steps
    (4, (16, 2), {}, (0,)),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_transforms_happen_where_arrays_are(case: Any, device: str) -> None:
    ranks, shape, split, axes = case

    def body() -> None:
        fake_cupy.use(device, current().rank)
        for dtype, exact in (("complex128", 1e-11), ("complex64", 1e-4)):
            a, b = numbers(shape, dtype), numbers(shape, dtype, 1)
            x, y = spread(a, **split), spread(b, **split)
            before = fake_cupy.copies_to_host()
            found = fft.fftn(x, axes=axes)
            plan = fft.Plan(x.layout, axes, result="transposed", norm="ortho", workspace=1 << 10)
            turned = plan(x)
            back, inverse = plan.adjoint(turned), fft.ifftn(y, axes=axes)
            assert fake_cupy.copies_to_host() == before
            np.testing.assert_allclose(whole(found), np.fft.fftn(a, axes=axes), atol=exact)
            np.testing.assert_allclose(whole(turned), np.fft.fftn(a, axes=axes, norm="ortho"), atol=exact)
            np.testing.assert_allclose(whole(back), a, atol=exact)
            np.testing.assert_allclose(whole(inverse), np.fft.ifftn(b, axes=axes), atol=exact)
            assert np.array_equal(whole(x), a)
        for dtype, exact in (("float64", 1e-11), ("float32", 1e-4)):
            a = numbers(shape, dtype)
            y = fft.rfftn(spread(a, **split), axes=axes)
            s = shape if axes is None else [shape[axis] for axis in axes]
            z = fft.irfftn(y, s, axes=axes)
            np.testing.assert_allclose(whole(y), np.fft.rfftn(a, axes=axes), atol=exact)
            np.testing.assert_allclose(whole(z), a, atol=exact)

    jali.virtual_ranks(ranks, body)


@pytest.mark.parametrize("provider", ["cufft", "cupy"])
def test_a_transform_puts_no_copy_to_the_host_on_a_stream(
    provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither what jali packs nor what carries it goes by way of the host, unless somebody asks for that."""
    monkeypatch.setattr(DeviceArray, "to_host", _refused)
    monkeypatch.setattr(type(LIBRARIES["cupy"]), "to_host", _refused)

    def body() -> str:
        gpu = fake_cupy.use("cuda", current().rank)
        a = numbers((6, 4, 5), "complex64")
        x = spread(a)
        plan = fft.Plan(x.layout, provider=provider)
        y = plan(x)
        np.testing.assert_allclose(whole(y), np.fft.fftn(a), atol=1e-4)
        there = current().collectives.on_device(gpu)
        call = jali._core.CollectiveCall("all_to_all", "complex64", 20, 0, "sum", False, None, False)
        return str(there.way_of(call).name)

    assert "host-staged" not in jali.virtual_ranks(3, body)


def _refused(*_: Any) -> Any:
    raise AssertionError("a copy to the host")


def test_the_vendors_library_is_taken_without_being_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    log = tmp_path / "calls"
    monkeypatch.setenv("JALI_FAKE_FFT_LOG", str(log))

    def body() -> None:
        fake_cupy.use("cuda", current().rank)
        fft.fftn(spread(numbers((4, 4), "complex64")))
        fake_cupy.wait()

    jali.virtual_ranks(2, body)
    assert log.read_text().count("cufftExecC2C") == 4
    log.unlink()
    vendors.use_file("cufft", "/nowhere/libcufft.so")
    jali.virtual_ranks(2, body)
    assert not log.exists()


def test_all_ranks_hear_of_a_rank_whose_library_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JALI_FAKE_FFT_FAIL", "cufftExecC2C:6")

    def body() -> None:
        fake_cupy.use("cuda", current().rank)
        fft.fftn(spread(numbers((4, 4), "complex64")))

    with pytest.raises(DeviceError, match=r"cufftExecC2C \(.*\) failed with code 6: CUFFT_EXEC_FAILED"):
        jali.virtual_ranks(2, body)


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 1), (1, 1, 3), (2, 2, 1)], ids=str)
def test_fields_stay_on_their_devices(grid: tuple[int, ...], device: str) -> None:
    def body() -> None:
        rank = current().rank
        fake_cupy.use(device, rank)
        lattice = Lattice(4, 5, 6, grid=grid, device=f"{device}:{rank}")
        for element, wanted in (
            (Complex(), Complex()),
            (Real(), Complex()),
            (Vector(3), Vector(3)),
            (Matrix(2, 3), Matrix(2, 3)),
            (Spinor(2), Spinor(2)),
        ):
            f = Field(lattice, element)
            f[...] = numbers(f.shape, str(f.dtype))
            before = fake_cupy.copies_to_host()
            g = fft.fftn(f, norm="ortho")
            back = fft.ifftn(g, norm="ortho")
            assert fake_cupy.copies_to_host() == before
            assert isinstance(g, Field)
            assert g.element == wanted
            np.testing.assert_allclose(g[...], np.fft.fftn(f[...], axes=(0, 1, 2), norm="ortho"), atol=1e-12)
            np.testing.assert_allclose(back[...], f[...], atol=1e-12)
        local = fake_cupy.there(numbers((*lattice.local_extents, 2), "complex64", rank))
        f = lattice.wrap(local)
        assert fft.array_of(f).local is local
        out = Field(lattice, Vector(2), "float32")
        assert fft.fft(f, axis=0, out=out) is out
        np.testing.assert_allclose(out[...], np.fft.fft(f[...], axis=0), atol=1e-4)

    jali.virtual_ranks(math.prod(grid), body)


def test_fields_of_a_device_need_a_library_of_arrays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(LIBRARIES["numpy"]), "installed", property(lambda self: False))
    lattice = Lattice(4, 4, device="cuda")
    with pytest.raises(
        ParameterError, match="is on a device, where transforms are of arrays of CuPy or PyTorch"
    ):
        fft.fftn(Field(lattice, Complex()))


def test_a_graph_does_not_record_transforms() -> None:
    fake_cupy.use("cuda", 0)
    lattice = Lattice(4, 4, device="cuda")
    x, f = spread(numbers((4, 4), "complex64")), Field(lattice, Complex())
    with pytest.raises(RecordingError, match="a Fourier transform is taken while a graph is recorded"):
        jali.graph(lambda: fft.fftn(x), lattice)
    with pytest.raises(RecordingError, match="the array of a field is made while a graph is recorded"):
        jali.graph(lambda: fft.fftn(f), lattice)
