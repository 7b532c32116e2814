"""Devices for the tests: a driver and a compiler made of host memory and the host's compiler (fake_gpu.cpp).

"cuda" and "hip" are both that fake, in this process and in programs started with `fake_environment`. With
JALI_TEST_REAL_GPU=1, as `make test-gpu` sets it, "cuda" is what the machine has. Tests that need real hardware
are marked `gpu`.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fake_cupy
import pytest
from fake_driver import (
    FILES,
    NO_COLLECTIVES,
    REAL,
    ROOMS,
    current_context,
    make_fake_ccl,
    make_fake_driver,
    primary_context,
    use_fake_gpus,
)

from jali import _core, settings
from jali._core import find_gpu_compiler
from jali.comm import virtual
from jali.errors import CompileError, JaliError
from jali.tune import experiment

sys.path += [str(room) for room in ROOMS]  # tests take programs and kernels from each other

# jali's calls never keep it where a device may be waited for.
FREE_INTERPRETER = "JALI_FAKE_FREE_INTERPRETER"


@pytest.fixture(scope="session")
def fake_driver() -> Path:
    """The shared object of the fake driver."""
    return make_fake_driver()


@pytest.fixture(scope="module", autouse=True)
def fake_devices(fake_driver: Path) -> Iterator[None]:
    """This process and its children find the fake drivers, unless they shall find a real GPU."""
    if REAL:  # the driver of CUDA is the machine's; HIP stays fake
        assert "JALI_CUDA_DRIVER" not in os.environ, (
            "JALI_TEST_REAL_GPU=1 with a driver named in JALI_CUDA_DRIVER"
        )
    kinds = [kind for kind in FILES if not (REAL and kind == "cuda")]
    fake = {name: str(fake_driver) for kind in kinds for name in FILES[kind]}
    fake |= dict(NO_COLLECTIVES[kind] for kind in kinds)
    with pytest.MonkeyPatch.context() as patch, settings.using(**fake):
        for name, path in fake.items():
            patch.setenv(f"JALI_{name.upper()}", path)
        patch.setenv(FREE_INTERPRETER, "1")
        yield
        # Devices of both kinds share the fake driver's memory, and what one pool keeps the other cannot have.
        use_fake_gpus(patch, 4)
        gc.collect()
        for kind in ("hip",) if REAL else ("cuda", "hip"):
            for ordinal in range(_core.Gpu.count(kind)):
                with contextlib.suppress(JaliError, MemoryError):  # a device that a test has broken
                    _core.Gpu.open(kind, ordinal).trim()


@pytest.fixture(autouse=True)
def the_callers_device(fake_devices: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Other libraries ask the driver on which device a thread works. For threads, those of ranks too, it is another one than what tests
    begin with, and at the end it is what it was, or what they chose themselves."""
    if _core.Gpu.count("cuda") == 0:
        yield
        return
    driver = ctypes.CDLL(_core.Gpu.driver("cuda")[0])

    @contextlib.contextmanager
    def on_another_device() -> Iterator[None]:
        if not REAL:
            driver.cuCtxSetCurrent(primary_context(driver, 3))
        before = current_context(driver)
        yield
        chosen = fake_cupy.chosen_device()
        wanted = before if chosen is None else primary_context(driver, chosen).value
        # a thread that had none keeps the first
        assert wanted in (None, current_context(driver)), "the caller's device is another one"

    @contextlib.contextmanager
    def rank_of_thread(communicator: Any) -> Iterator[None]:
        with as_rank(communicator), on_another_device():
            yield

    as_rank = virtual.rank_of_thread
    monkeypatch.setattr(virtual, "rank_of_thread", rank_of_thread)
    with on_another_device():
        yield


@pytest.fixture(autouse=True)
def devices_that_are_kept(fake_driver: Path, fake_devices: None) -> Iterator[None]:
    """What a test does to devices is over when it ends: those of its process would refuse whatever the next ones ask."""
    yield
    driver = ctypes.CDLL(str(fake_driver))
    if driver.fakeIsLost():
        driver.fakeRecover()
        gc.collect()  # what failed hears of its ranks whenever a device is waited for, until it goes


@pytest.fixture(autouse=True)
def proved(request: pytest.FixtureRequest, fake_devices: None) -> Iterator[None]:
    """What a test gives to fake devices is proved to be in order before its first run, unless the test says why not."""
    unproved = request.node.get_closest_marker("unproved")
    assert unproved is None or unproved.args, "say why: pytest.mark.unproved(reason)"
    if REAL or unproved is not None:
        yield
        return
    _, before = _core.first_runs()
    with experiment(prove_launches=True):
        yield
    _, after = _core.first_runs()
    assert after == before, f"{after - before} launches, collectives or starts of messages ran unproved"


@pytest.fixture
def fake_environment(fake_driver: Path) -> dict[str, str]:
    """Environment of a program for which both kinds of device are fake."""
    files = {name: str(fake_driver) for names in FILES.values() for name in names} | dict(
        NO_COLLECTIVES.values()
    )
    named = {f"JALI_{name.upper()}": path for name, path in files.items()}
    return {**settings.environment(), **named, FREE_INTERPRETER: "1"}


@pytest.fixture
def fake_ccl(
    monkeypatch: pytest.MonkeyPatch, use_settings: Callable[..., None], tmp_path: Path
) -> Iterator[str]:
    """Both kinds of library are fake, like both kinds of device; four devices, which are small."""
    library = str(make_fake_ccl())
    queues = "channels=4,slot_bytes=1024,flagged_bytes=512,flagged_below=1024"
    use_settings(nccl=library, rccl=library, device_queues=queues)
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    yield library
    assert not list(tmp_path.glob("fake-ccl-*/*.new"))
    assert not [text.read_text() for text in tmp_path.glob("fault-*")]


@pytest.fixture(scope="session", params=["new", "old"])
def ccl_library(request: pytest.FixtureRequest) -> str:
    """With and without the functions that came last."""
    if not request.param:  # nothing that could be loaded
        return ""
    return str(make_fake_ccl(*(["-DJALI_OLD"] if request.param == "old" else [])))


@pytest.fixture(params=["cuda", "hip"])
def device(request: pytest.FixtureRequest) -> str:
    """The name of a device, as `Lattice(..., device=...)` takes it."""
    return str(request.param)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The short run has each function of the tests once on HIP's devices, which differ from CUDA's in names alone."""
    on_hip = set()
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("device") == "hip" and item.get_closest_marker("full") is None:
            if item.function in on_hip:
                item.add_marker(pytest.mark.full)
            on_hip.add(item.function)
        if item.get_closest_marker("gpu") is not None and not REAL:
            item.add_marker(
                pytest.mark.skip(reason="needs an NVIDIA GPU: `make test-gpu` on a machine that has one")
            )


@pytest.fixture(scope="module")
def nvrtc():
    """The real compiler; CI must have it."""
    with settings.using(nvrtc=None):
        try:
            return find_gpu_compiler("cuda")
        except CompileError as error:
            if os.environ.get("CI"):
                pytest.fail(f"CI is set and NVRTC is missing: {error}")
            pytest.skip(str(error).splitlines()[0])


@pytest.fixture(scope="module")
def cache_of_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel cache for a file of tests, since compiling takes longer than all else."""
    return tmp_path_factory.mktemp("cache", numbered=True)


@pytest.fixture
def kernels_of_file(cache_of_file: Path, use_settings: Callable[..., None]) -> Path:
    """That cache, with nothing tuned in it and no launch or halo policy asked for."""
    cache_of_file.chmod(0o700)
    shutil.rmtree(cache_of_file / "tune", ignore_errors=True)
    use_settings(cache_dir=str(cache_of_file), launch=None, halo_policy=None)
    return cache_of_file
