"""cuFFT on several devices of one process (cufftXt), by the fake library: parts, order, waiting, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fake_cupy
import numpy as np
import pytest
from fake_driver import REAL, make_fake_fft, use_fake_gpus

from jali.errors import DeviceError, ParameterError
from jali.fft import vendors
from jali.fft.one_process import SpreadPlan

pytestmark = pytest.mark.skipif(REAL, reason="CUDA's driver is the machine's in this run")


@pytest.fixture(autouse=True)
def devices(fake_driver: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    use_fake_gpus(monkeypatch, 3)
    with fake_cupy.installed(fake_driver):
        vendors.use_file("cufft", str(make_fake_fft()))
        yield
        vendors.use_file("cufft", None)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], int]:
    """How many transforms the devices have done."""
    file = tmp_path / "calls"
    monkeypatch.setenv("JALI_FAKE_FFT_LOG", str(file))
    return lambda: file.read_text().split().count("cufftXtRan")


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    random = np.random.default_rng(3)
    return (random.normal(size=shape) + 1j * random.normal(size=shape)).astype(dtype)


@pytest.mark.parametrize(("dtype", "exact"), [("complex64", 1e-4), ("complex128", 1e-11)])
@pytest.mark.parametrize(("shape", "devices_used"), [((32, 33, 35), 2), ((34, 32, 32), 3), ((40, 36), 3)])
def test_transforms_on_several_devices(
    shape: tuple[int, ...], devices_used: int, dtype: str, exact: float, ran: Callable[[], int]
) -> None:
    a = numbers(shape, dtype)
    out, wanted = np.empty_like(a), np.fft.fftn(a)
    plan = SpreadPlan(vendors.find("cufft"), range(devices_used), shape, dtype)
    plan.load(a)
    plan.transform()
    assert ran() == 0  # nobody has waited
    plan.wait()
    assert ran() == 1
    plan.to_natural()
    plan.copy_to_host(out)
    np.testing.assert_allclose(out, wanted, atol=exact * 300)
    plan.copy_natural_to_host(out)
    np.testing.assert_allclose(out, wanted, atol=exact * 300)
    plan.transform(inverse=True)
    plan.copy_to_host(out)
    np.testing.assert_allclose(out / a.size, a, atol=exact)
    with pytest.raises(ParameterError, match="is needed, not of"):
        plan.load(a.T.copy())
    plan.close()


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    log = tmp_path / "log"
    monkeypatch.setenv("JALI_FAKE_FFT_LOG", str(log))
    library = vendors.find("cufft")
    with pytest.raises(ParameterError, match="works with 2 to 16 devices, not with 1"):
        SpreadPlan(library, [0], (32, 32, 32), "complex64")
    with pytest.raises(ParameterError, match="2 or 3 dimensions, not of 1"):
        SpreadPlan(library, [0, 1], (32,), "complex64")
    with pytest.raises(ParameterError, match="complex64 and complex128, not float32"):
        SpreadPlan(library, [0, 1], (32, 32), "float32")
    with pytest.raises(DeviceError, match="MakePlan3d .32 x 8 x 32 numbers on 2 devices. .*INVALID_SIZE"):
        SpreadPlan(library, [0, 1], (32, 8, 32), "complex64")
    with pytest.raises(DeviceError, match="XtSetGPUs .*INVALID_DEVICE"):
        SpreadPlan(library, [0, 7], np.array([32, 32, 32]), "complex64")
    monkeypatch.setenv("JALI_FAKE_FFT_FAIL", "cufftXtMalloc:2")
    with pytest.raises(DeviceError, match="XtMalloc .*ALLOC_FAILED"):
        SpreadPlan(library, [0, 1], (32, 32, 32), "complex64")
    made = [line.split()[0] for line in log.read_text().splitlines()]
    assert made.count("cufftCreate") == made.count("cufftDestroy") == 3
