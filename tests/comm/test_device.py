"""The host as a device: memory with labels, threads, compiled kernels."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from jali import _core
from jali.errors import CompileError

SOURCES = Path(__file__).parents[2] / "core"


def compiler() -> str:
    """The C++ compiler, or a skipped test."""
    found = shutil.which("g++") or shutil.which("clang++")
    if found is None:
        pytest.skip("no C++ compiler")
    return found


@pytest.mark.parametrize("size", [0, 1, 63, 4096, 2**21, 2**21 + 1, 10**7])
def test_memory_is_aligned_writable_and_counted_under_its_label(size: int) -> None:
    before = _core.memory_held()
    blocks = [_core.allocate(size, "test block") for _ in range(3)]
    assert _core.memory_held() - before == 3 * size
    assert ("test block", 3 * size, 3) in _core.memory_usage()
    assert _core.memory_peak() >= _core.memory_held()
    for number, block in enumerate(blocks):
        assert block.address % 64 == 0
        assert block.nbytes == size
        block.array()[:] = number + 1
    for number, block in enumerate(blocks):
        assert (block.array() == number + 1).all()
    del blocks, block
    assert _core.memory_held() == before
    assert not any(label == "test block" for label, _, _ in _core.memory_usage())


def resident_bytes() -> int:
    """Memory of this process that is in use."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_names_of_blocks_that_are_gone_take_no_memory() -> None:
    _core.allocate(64, "warm")
    before = resident_bytes()
    for number in range(200_000):
        _core.allocate(64, f"a name that is used once, and is longer than what fits in a string: {number}")
    assert resident_bytes() - before < 8 << 20  # the names alone are 14 MB
    kept = [_core.allocate(64, "twice") for _ in range(2)]
    del kept[0]
    assert ("twice", 64, 1) in [usage for usage in _core.memory_usage() if usage[0] == "twice"]


def test_array_keeps_its_memory_alive() -> None:
    array = _core.allocate(2**22, "kept").array()
    array[:] = 7
    assert ("kept", 2**22, 1) in _core.memory_usage()
    assert (array == 7).all()


def test_big_blocks_start_in_different_cache_sets() -> None:
    blocks = [_core.allocate(2**22, "links") for _ in range(8)]
    assert len({block.address % 4096 for block in blocks}) == 8


def test_the_error_of_exhausted_memory_names_the_request_and_the_holders() -> None:
    held = _core.allocate(3 * 2**20, "links")
    with pytest.raises(MemoryError) as caught:
        _core.allocate(2**50, "propagator")
    text = str(caught.value)
    # by jali's own count, or by the kernel's where memory is added as it is used
    assert re.match(
        r"out of memory: 'propagator' asked for 1.0 PiB, but (only .* are left|the kernel says: )", text
    )
    assert "links: 3.0 MiB in 1 block" in text
    with pytest.raises(MemoryError, match="no address space is that large"):
        _core.allocate(2**63, "propagator")
    del held


def test_default_threads_divide_the_cores(use_settings: Callable[..., None]) -> None:
    use_settings(threads=None)
    cores = _core.usable_cores()
    assert [_core.default_threads(ranks) for ranks in (1, 2, 10**6)] == [cores, max(1, cores // 2), 1]
    use_settings(threads="5")
    assert _core.default_threads(2) == 5
    with pytest.raises(ValueError, match="a thread pool of 0 threads"):
        _core.ThreadPool(0)


@pytest.mark.full
def test_thread_pool_covers_every_range_once_and_passes_errors_on(tmp_path: Path) -> None:
    program = tmp_path / "pool_check"
    sources = [
        Path(__file__).with_name("pool_check.cpp"),
        SOURCES / "device" / "thread_pool.cpp",
        *(p for p in (SOURCES / "settings").glob("*.cpp") if p.name != "version.cpp"),  # which CMake tells it
    ]
    command = [
        compiler(),
        "-std=c++20",
        "-O1",
        f"-I{SOURCES}",
        *map(str, sources),
        "-pthread",
        "-o",
        str(program),
    ]
    subprocess.run(command, check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all facts hold\n")


def test_compiled_kernel_is_loaded_and_called(tmp_path: Path) -> None:
    source, kernel = tmp_path / "kernel.cpp", tmp_path / "kernel.so"
    source.write_text('extern "C" void twice(double* x) { *x *= 2; }')
    subprocess.run([compiler(), "-shared", "-fPIC", str(source), "-o", str(kernel)], check=True)
    module = _core.KernelModule(str(kernel))
    value = np.array([21.0])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(module.symbol("twice"))(value.ctypes.data)
    assert value[0] == 42
    assert module.symbol("twice") == _core.KernelModule(str(kernel)).symbol("twice")
    with pytest.raises(CompileError, match=r"kernel\.so has no function 'thrice'"):
        module.symbol("thrice")


def test_damaged_kernel_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    broken = tmp_path / "broken.so"
    broken.write_bytes(b"\x7fELF and nothing more")
    with pytest.raises(CompileError, match=r"cannot load the compiled kernel .*broken\.so"):
        _core.KernelModule(str(broken))
    with pytest.raises(CompileError, match="cannot load the compiled kernel"):
        _core.KernelModule(str(tmp_path / "absent.so"))
