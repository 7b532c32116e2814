"""A driver and a compiler made of host memory and the host's compiler (fake_gpu.cpp), and how programs find them."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from programs import TESTS, on_ranks, run_program

from jali import _core
from jali.errors import DeviceError, RankError

HERE = Path(__file__).parent
SOURCE = HERE / "fake_gpu.cpp"
ROOMS = tuple(sorted({test.parent for test in HERE.glob("*/test_*.py")}))
PATH = (HERE, *ROOMS, TESTS)  # from where programs can import what tests import
# "cuda" is what the machine has
REAL = os.environ.get("JALI_TEST_REAL_GPU") == "1"
# Ranks of one process have a device each; the fake driver has as many as a test wants.
TWO_DEVICES = pytest.mark.skipif(
    REAL and _core.Gpu.count("cuda") < 2, reason="ranks of one process need a device each: two"
)
# a library of collectives that the machine may have works on no fake device
NO_COLLECTIVES = {"cuda": ("nccl", "/nowhere/libnccl.so.2"), "hip": ("rccl", "/nowhere/librccl.so.1")}
FILES = {"cuda": ("cuda_driver", "nvrtc"), "hip": ("hip_driver", "hiprtc")}  # settings that name them


def make_fake_driver(*options: str) -> Path:
    """The fake driver, compiled once for all processes that run this text of it; `options` are the compiler's."""
    return _build(SOURCE, "-std=c++20", "-pthread", *options)


def make_fake_ccl(*options: str) -> Path:
    """The fake library of collectives, likewise; `options` are the compiler's."""
    return _build(SOURCE.with_name("fake_ccl.cpp"), "-std=c++20", *options)


def make_fake_fft(*options: str) -> Path:
    """The fake library of Fourier transforms, likewise; `options` are the compiler's."""
    return _build(SOURCE.with_name("fake_fft.cpp"), "-std=c++20", *options)


def primary_context(driver: ctypes.CDLL, ordinal: int) -> ctypes.c_void_p:
    """That of a device of CUDA's driver."""
    context = ctypes.c_void_p()
    assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal) == 0
    return context


def current_context(driver: ctypes.CDLL) -> int | None:
    """That of this thread, by CUDA's driver."""
    context = ctypes.c_void_p()
    assert driver.cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value


@contextlib.contextmanager
def current_device(driver: ctypes.CDLL, ordinal: int) -> Iterator[None]:
    """Inside, this thread works on a device of CUDA's driver, as libraries of arrays do on those of their arrays."""
    before = current_context(driver)
    driver.cuCtxSetCurrent(primary_context(driver, ordinal))
    try:
        yield
    finally:
        driver.cuCtxSetCurrent(ctypes.c_void_p(before))


def use_fake_gpus(patch: pytest.MonkeyPatch, count: int, *, folder: Path | None = None) -> None:
    """From now on there are so many fake devices in this process and its children; the fake library of collectives keeps
    its files in `folder`."""
    patch.setenv("JALI_FAKE_GPUS", str(count))
    if folder is not None:
        patch.setenv("JALI_FAKE_CCL_FOLDER", str(folder))


def use_fake_ccl(use_settings: Callable[..., None]) -> None:
    """From now on this process finds the fake library of collectives, where it is not that of the machine."""
    if not REAL:
        use_settings(nccl=str(make_fake_ccl()))


# Around a program: what it gives to fake devices is proved to be in order before its first run.
PROVED = """import jali
jali.settings.use(prove_launches=True)
{}
assert jali._core.first_runs()[1] == 0, f"{{jali._core.first_runs()[1]}} launches, collectives or starts of messages ran unproved"
"""


def run_on_devices(
    ranks: int, text: str, environment: dict[str, str], *, unproved: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run Python text, which can import the modules of this folder, on so many MPI ranks with four fake devices and the
    fake library of collectives. `unproved` says why what it gives to the devices is not proved, as all else is."""
    if not REAL and not unproved:
        text = PROVED.format(text)
    env = {**environment, "JALI_FAKE_GPUS": "4", "JALI_NCCL": str(make_fake_ccl())}
    return run_program(on_ranks(ranks, sys.executable, "-c", text), env=env, path=PATH)


def _build(source: Path, *options: str) -> Path:
    texts = [p.read_bytes() for p in sorted(source.parent.glob(f"{source.stem}*.[ch]pp"))]  # with its parts
    # A C++ library that the toolchain links in stays this library's own: see CMakeLists.txt.
    flags = [*options, "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    flags.append("-Wl,--exclude-libs,libstdc++.a:libgcc.a:libgcc_eh.a")
    digest = hashlib.sha256(b"".join(texts) + " ".join(flags).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"jali-fake-gpu-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.stat()
    assert status.st_uid == os.getuid(), f"{folder} belongs to somebody else"
    assert not status.st_mode & 0o022, f"{folder} can be written by others"
    library = folder / f"{digest}.so"
    if not library.exists():
        partial = folder / f"{digest}.{os.getpid()}"
        compiler = os.environ.get("CXX", "c++").split()
        done = subprocess.run(
            [*compiler, *flags, "-o", str(partial), str(source), "-ldl"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        partial.replace(library)
    return library


def until_idle() -> None:
    """Until the devices of two ranks have stopped waiting for what was given up: the next test uses them too."""
    for ordinal in range(2):
        gpu = _core.Gpu.open("cuda", ordinal)
        for _ in range(1000):
            with contextlib.suppress(RankError):
                with contextlib.suppress(DeviceError):  # idle, though what it has computed is of no use
                    gpu.synchronize()
                break
            time.sleep(0.01)
