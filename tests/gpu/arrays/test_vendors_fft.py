"""cuFFT and hipFFT as providers of local transforms: every kind, strides, batches, work areas, and what goes wrong."""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL, make_fake_driver, make_fake_fft, use_fake_gpus

from jali import _core
from jali.errors import DeviceError, ParameterError
from jali.fft import vendors
from jali.fft.providers import PROVIDERS, Resources, provider_for

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")
KINDS = {"cuda": "cufft", "hip": "hipfft"}
EXACT = {"complex64": 2e-6, "complex128": 1e-13, "float32": 2e-6, "float64": 1e-13}


@pytest.fixture(autouse=True)
def cupy(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    use_fake_gpus(monkeypatch, 3)
    with fake_cupy.installed(fake_driver) as module:
        yield module


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], list[str]]:
    """Calls of the library since the last question, of a function whose name ends so."""
    gc.collect()  # plans of other tests
    file = tmp_path / "calls"
    monkeypatch.setenv("JALI_FAKE_FFT_LOG", str(file))

    def found(name: str) -> list[str]:
        lines = file.read_text().splitlines() if file.exists() else []
        file.write_text("")
        return [line for line in lines if line.split()[0].endswith(name)]

    return found


def numbers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.normal(size=shape)
    return (x + 1j * random.normal(size=shape) if dtype.startswith("c") else x).astype(dtype)


def close(found: Any, wanted: np.ndarray) -> None:
    got = fake_cupy.asnumpy(found)
    assert got.shape == wanted.shape
    assert got.dtype == (np.complex64 if got.dtype.itemsize == 8 and got.dtype.kind == "c" else got.dtype)
    scale = float(np.abs(wanted).max()) or 1.0
    np.testing.assert_allclose(got, wanted, rtol=0, atol=EXACT[str(got.dtype)] * 10 * scale)


def views(x: np.ndarray) -> dict[str, Callable[[Any], Any]]:
    """The same numbers stored otherwise."""
    ndim = x.ndim

    def within(y: Any) -> Any:
        room = fake_cupy.empty([n + 3 for n in y.shape], y.dtype)
        room[...] = 7.0
        part = room[tuple(slice(1, n + 1) for n in y.shape)]
        part[...] = y
        return part

    def transposed(y: Any) -> Any:
        back = tuple(reversed(range(ndim)))
        return y.transpose(back).copy().transpose(back)

    def every_second(y: Any) -> Any:
        room = fake_cupy.empty([2 * n for n in y.shape], y.dtype)
        room[...] = 7.0
        part = room[(slice(None, None, 2),) * ndim]
        part[...] = y
        return part

    def backwards(y: Any) -> Any:
        return y[::-1].copy()[::-1]

    return {"plain": lambda y: y, "within": within, "turned": transposed, "every second": every_second, "backwards": backwards}  # fmt: skip


SHAPES = [(6,), (4, 5), (3, 1, 5), (2, 3, 4), (2, 3, 2, 5), (2, 3, 2, 3, 2)]


@pytest.mark.short(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_complex_transforms_of_every_axis_and_storage(kind: str, shape: tuple[int, ...]) -> None:
    fake_cupy.use(kind, 1)
    provider, ndim = PROVIDERS[KINDS[kind]], len(shape)
    for dtype in ("complex64", "complex128"):
        a = numbers(shape, dtype)
        for count in range(1, ndim + 1):
            for axes in itertools.permutations(range(ndim), count) if ndim < 4 else [range(ndim - count, ndim), range(count)]:  # fmt: skip
                for norm, (name, view) in zip(
                    itertools.cycle(("backward", "ortho", "forward")), views(a).items(), strict=False
                ):
                    x = view(fake_cupy.there(a))
                    out = x if name == "within" else fake_cupy.empty(shape, dtype)
                    found = provider.c2c(x, axes, True, norm, out, Resources())
                    assert found is out
                    close(out, np.fft.fftn(a, axes=axes, norm=norm))
                    if name != "within":
                        close(x, a)  # as it was
                    back = fake_cupy.empty(shape, dtype)
                    close(provider.c2c(out, axes, False, norm, back, Resources()), a)


@pytest.mark.short(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_real_transforms_of_every_axis_and_storage(kind: str, shape: tuple[int, ...]) -> None:
    fake_cupy.use(kind, 0)
    provider, ndim = PROVIDERS[KINDS[kind]], len(shape)
    for dtype in ("float32", "float64"):
        a = numbers(shape, dtype)
        for count in range(1, ndim + 1):
            for axes in itertools.permutations(range(ndim), count) if ndim < 4 else [range(ndim - count, ndim), range(count)]:  # fmt: skip
                axes = tuple(axes)
                for norm, view in zip(itertools.cycle(("backward", "ortho", "forward")), views(a).values(), strict=False):  # fmt: skip
                    x = view(fake_cupy.there(a))
                    y = provider.r2c(x, axes, norm, Resources())
                    close(y, np.fft.rfftn(a, axes=axes, norm=norm))
                    close(x, a)
                    spectrum = fake_cupy.asnumpy(y)
                    close(provider.c2r(y, shape[axes[-1]], axes, norm, Resources()), a)
                    close(y, spectrum)  # which the library would have overwritten


def test_a_block_is_one_call_and_plans_are_kept(log: Callable[[str], list[str]]) -> None:
    fake_cupy.use("cuda", 0)
    library, provider = vendors.find("cufft"), PROVIDERS["cufft"]
    library.forget()
    x = fake_cupy.there(numbers((3, 4, 5), "complex64"))
    for axes, wanted in (
        ((1, 2), "3 of 4 5"),
        ((0,), "20 of 3"),
        ((2, 1, 0), "1 of 3 4 5"),
        ((0, 1), "5 of 3 4"),
        ((1,), "5 of 4"),  # for each of 3 planes
    ):
        for _ in range(2):
            provider.c2c(x, axes, True, "backward", x, Resources())
        assert log("MakePlanMany64") == [f"cufftMakePlanMany64 {wanted}"]
    assert library.plans == 5
    for n in range(6, 6 + vendors.MOST_PLANS):
        y = fake_cupy.there(numbers((n,), "complex64"))
        provider.c2c(y, (0,), True, "backward", y, Resources())
    assert library.plans == vendors.MOST_PLANS
    assert len(log("Destroy")) == 5
    library.forget()
    assert len(log("Destroy")) == vendors.MOST_PLANS


def test_many_small_calls_become_one_on_a_copy(log: Callable[[str], list[str]]) -> None:
    fake_cupy.use("cuda", 0)
    a = numbers((40, 4, 30), "complex128")
    for workspace, calls in ((None, 1), (1 << 20, 30)):  # a copy is no small work area
        x = fake_cupy.there(a)
        PROVIDERS["cufft"].c2c(x, (1,), True, "ortho", x, Resources(workspace=workspace))
        close(x, np.fft.fft(a, axis=1, norm="ortho"))
        assert len(log("ExecZ2Z")) == calls
    a = numbers((40, 4, 30), "float32")
    y = PROVIDERS["cufft"].r2c(fake_cupy.there(a), (1,), "ortho", Resources())
    close(y, np.fft.rfft(a, axis=1, norm="ortho"))
    assert len(log("ExecR2C")) == 1


def test_work_areas_stay_below_the_limit(log: Callable[[str], list[str]]) -> None:
    gpu = fake_cupy.use("cuda", 0)
    a = numbers((10, 8), "complex64")  # 64 bytes each
    x = fake_cupy.there(a)
    PROVIDERS["cufft"].c2c(x, (1,), True, "backward", x, Resources(workspace=3 * 64 + 5))
    close(x, np.fft.fft(a))
    assert [line.split()[1] for line in log("MakePlanMany64")] == ["10", "3", "1"]
    x = fake_cupy.there(a)
    PROVIDERS["cufft"].c2c(x, (1,), True, "backward", x, Resources(workspace=3 * 64 + 5))
    assert len(log("ExecC2C")) == 4
    with pytest.raises(
        ParameterError, match=r"a transform C2C of 8 numbers takes 64 bytes .* limit is 63 bytes"
    ):
        PROVIDERS["cufft"].c2c(x, (1,), True, "backward", x, Resources(workspace=63))
    b = numbers((9, 7), "float64")  # every second one begins where no complex number may
    y = PROVIDERS["cufft"].r2c(fake_cupy.there(b), (1,), "backward", Resources(workspace=3 * 7 * 16))
    close(y, np.fft.rfft(b))
    close(PROVIDERS["cufft"].c2r(y, 7, (1,), "backward", Resources(workspace=3 * 7 * 16)), b)
    assert {line.split()[1] for line in log("MakePlanMany64")} == {"9", "2", "1"}
    c = numbers((4, 6, 5), "float32")
    tight = Resources(workspace=6 * 5 * 8 - 1)  # less than a plane: one axis at a time
    y = PROVIDERS["cufft"].r2c(fake_cupy.there(c), (0, 1, 2), "ortho", tight)
    close(y, np.fft.rfftn(c, norm="ortho"))
    close(PROVIDERS["cufft"].c2r(y, 5, (0, 1, 2), "ortho", tight), c)
    gpu.synchronize()


def test_the_best_provider_is_that_of_the_array(cupy: Any) -> None:
    fake_cupy.use("cuda", 0)
    x = fake_cupy.there(numbers((4,), "complex64"))
    assert provider_for(x).name == "cufft"
    assert provider_for(x, "cupy").name == "cupy"
    with pytest.raises(ParameterError, match="hipfft transforms arrays of hip devices, this one is of cupy"):
        provider_for(x, "hipfft")
    with pytest.raises(ParameterError, match="cufft transforms arrays of cuda devices, this one is of numpy"):
        provider_for(np.zeros(3, complex), "cufft")
    assert provider_for(np.zeros(3, complex)).name == "scipy"
    vendors.use_file("cufft", "/nowhere/libcufft.so")
    assert provider_for(x).name == "cupy"
    why = r"cuFFT was not found \(/nowhere/libcufft.so: .*\): pip install nvidia-cufft.*; without a name there is cupy"
    with pytest.raises(ParameterError, match=why):
        provider_for(x, "cufft")
    fake_cupy.use("hip", 0)
    assert provider_for(fake_cupy.there(numbers((4,), "complex64"))).name == "hipfft"
    with pytest.raises(
        ParameterError, match="'rocfft' is no vendor's library of transforms; there are cufft, hip"
    ):
        vendors.use_file("rocfft", "x")


def test_packages_are_looked_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    vendors.use_file("cufft", None)
    folder = tmp_path / "nvidia" / "cufft" / "lib"
    folder.mkdir(parents=True)
    (folder / "libcufft.so.11").symlink_to(make_fake_fft())
    monkeypatch.syspath_prepend(tmp_path)
    spec = vendors.FFT_LIBRARIES["cufft"]
    monkeypatch.setitem(
        vendors.FFT_LIBRARIES, "cufft", vendors.LibrarySpec(**{**vars(spec), "files": ("libnowhere.so.1",)})
    )
    library = vendors.find("cufft")
    assert library.path == str(folder / "libcufft.so.11")
    assert library.version == 11206


def test_a_library_without_the_functions_is_refused() -> None:
    vendors.use_file("hipfft", str(make_fake_fft("-DJALI_OLD")))
    with pytest.raises(DeviceError, match="has no function hipfftSetWorkArea, so it is no hipFFT"):
        vendors.find("hipfft")


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("Create", 7, "SETUP_FAILED, the library could not be initialised"),
        ("MakePlanMany64", 2, "ALLOC_FAILED, no memory for the plan"),
        ("SetStream", 1, "INVALID_PLAN, the plan is none"),
        ("SetWorkArea", 4, "INVALID_VALUE"),
        ("ExecC2C", 6, "EXEC_FAILED, the transform could not be started"),
        ("ExecC2C", 99, "an error that jali does not know"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_failing_calls_say_what_failed(
    kind: str,
    name: str,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    log: Callable[[str], list[str]],
) -> None:
    fake_cupy.use(kind, 0)
    prefix = KINDS[kind]
    vendors.find(prefix).forget()
    x = fake_cupy.there(numbers((3, 11), "complex64"))
    monkeypatch.setenv("JALI_FAKE_FFT_FAIL", f"{prefix}{name}:{code}")
    words = f"{prefix.upper()}_{words}" if code != 99 else words
    text = f"{prefix}{name} .3 transforms C2C of 11 numbers. failed with code {code}: {words}"
    with pytest.raises(DeviceError, match=text):
        PROVIDERS[prefix].c2c(x, (1,), True, "backward", x, Resources())
    monkeypatch.delenv("JALI_FAKE_FFT_FAIL")
    PROVIDERS[prefix].c2c(x, (1,), True, "backward", x, Resources())
    if name == "MakePlanMany64":
        assert len(log("Destroy")) == 1  # what came to nothing


def test_a_plan_is_made_in_the_context_of_its_array(fake_driver: Path) -> None:
    driver = ctypes.CDLL(str(fake_driver))
    context = ctypes.c_void_p()

    def now() -> int:
        assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
        return context.value or 0

    fake_cupy.use("cuda", 1)
    a = numbers((6,), "complex128")
    x = fake_cupy.there(a)
    _core.Gpu.open("cuda", 2).synchronize()
    before = now()
    PROVIDERS["cufft"].c2c(x, (0,), True, "backward", x, Resources())
    assert now() == before
    close(x, np.fft.fft(a))


def test_work_is_on_the_stream_of_the_array() -> None:
    """Whose work so far is not done yet when the transform is put there."""
    fake_cupy.use("cuda", 0)
    a, b = numbers((50,), "complex128"), numbers((50,), "complex128", 2)
    x = fake_cupy.there(a)
    fake_cupy.wait()
    copy, stream = make_driver().cuMemcpyHtoDAsync_v2, ctypes.c_void_p(fake_cupy.stream())
    assert (
        copy(ctypes.c_uint64(x.data.ptr), ctypes.c_void_p(b.ctypes.data), ctypes.c_size_t(b.nbytes), stream)
        == 0
    )
    PROVIDERS["cufft"].c2c(x, (0,), True, "backward", x, Resources())
    assert np.array_equal(np.array(fake_cupy._plain(x)), a)  # nobody has waited
    close(x, np.fft.fft(b))


def make_driver() -> Any:
    return ctypes.CDLL(str(make_fake_driver()))
