"""Device kernels that the core compiles itself: by several processes at once, from a damaged cache or none, without a compiler."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_driver import REAL, make_fake_ccl, use_fake_gpus
from programs import run_python

from jali import _core, comm
from jali.comm import DeviceArray
from jali.devices import open_device
from jali.errors import CompileError

pytestmark = pytest.mark.skipif(REAL, reason="the fake compiler counts and fails as it is told")

# A kernel of collectives; one that is builtin; both.
COLLECT = """
import numpy as np, sys
from jali import comm
from jali.comm import DeviceArray
from jali.devices import open_device

def sum_of_ranks():
    c = comm.current()
    x = DeviceArray.from_host(np.arange(8.0) + c.rank, open_device("cuda", c))
    return c.all_reduce(x, algorithm="two_step").to_host()[0]

assert comm.virtual_ranks(2, sum_of_ranks) == [1.0, 1.0]
"""
COPY = """
import jali
f = jali.Field(jali.Lattice(4, device="cuda"), jali.Real())
f[...] = 3.0
assert f[0] == 3.0
"""
BOTH = COLLECT + COPY


@pytest.fixture
def environment(fake_environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An empty cache, and a compiler that writes a line into `compiled` for each text that it gets."""
    counts = tmp_path / "c++"
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    counts.write_text(f'#!/bin/sh\necho >> {tmp_path}/compiled\nexec {shlex.join(compiler)} "$@"\n')
    counts.chmod(0o700)
    return {
        **fake_environment,
        "JALI_FAKE_GPUS": "4",
        "JALI_CACHE_DIR": str(tmp_path / "cache"),
        "CXX": str(counts),
    }


def compiled(tmp_path: Path) -> int:
    """How many texts since the last time."""
    lines = tmp_path / "compiled"
    number = len(lines.read_text().splitlines()) if lines.exists() else 0
    lines.write_text("")
    return number


def files(tmp_path: Path, ending: str) -> list[Path]:
    return sorted((tmp_path / "cache").glob(f"*{ending}"))


def refused(code: str, environment: dict[str, str]) -> str:
    done = run_python(code, env=environment, status=1)
    return done.stderr


def test_processes_that_need_a_kernel_at_once_compile_it_once(
    environment: dict[str, str], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", BOTH]
    running = [subprocess.Popen(command, env=environment) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert compiled(tmp_path) == len(files(tmp_path, ".bin")) == len(files(tmp_path, ".cu")) > 1
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} == {".bin", ".cu"}


@pytest.mark.parametrize(
    "damage", ["flipped", *(pytest.param(d, marks=pytest.mark.full) for d in ("cut", "empty"))]
)
def test_damaged_images_are_made_again_with_a_warning_that_names_them(
    damage: str, environment: dict[str, str], tmp_path: Path
) -> None:
    run_python(BOTH, env=environment)
    number = compiled(tmp_path)
    images = files(tmp_path, ".bin")
    good = [image.read_bytes() for image in images]
    for image, whole in zip(images, good, strict=True):
        middle = len(whole) // 2
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        image.write_bytes({"flipped": flipped, "cut": whole[:middle], "empty": b""}[damage])
    done = run_python(BOTH, env=environment)
    for image in images:
        assert f"RuntimeWarning: the kernel cache: {image}" in done.stderr
    assert "it is made again" in done.stderr
    assert compiled(tmp_path) == number == len(images)
    assert run_python(BOTH, env=environment).stderr == ""
    assert compiled(tmp_path) == 0


@pytest.mark.full
def test_image_of_another_kernel_is_not_given_to_the_driver(
    environment: dict[str, str], tmp_path: Path
) -> None:
    run_python(BOTH, env=environment)
    first, second, *_ = files(tmp_path, ".bin")
    shutil.copyfile(first, second)
    assert (
        f"{second} is damaged (its digest is that of other contents); it is made again"
        in run_python(BOTH, env=environment).stderr
    )


@pytest.mark.short(1)
@pytest.mark.parametrize("code", [COLLECT, COPY], ids=["collective", "builtin"])
def test_cache_in_which_no_file_can_be_made_says_so(
    code: str, environment: dict[str, str], tmp_path: Path
) -> None:
    run_python(code, env=environment)
    for image in files(tmp_path, ".bin"):
        image.with_suffix(".lock").mkdir()  # root could write into a directory that is read-only
        image.unlink()
    said = refused(code, environment)
    assert f"CompileError: the kernel cache {tmp_path}/cache cannot be written: Is a directory" in said
    assert "set JALI_CACHE_DIR" in said
    assert files(tmp_path, ".bin") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_cache_that_can_only_be_read_is_used_or_says_so(environment: dict[str, str], tmp_path: Path) -> None:
    run_python(COPY, env=environment)
    cache = tmp_path / "cache"
    cache.chmod(0o500)
    try:
        run_python(COPY, env=environment)
        assert f"CompileError: the kernel cache {cache} cannot be written: Permission denied" in refused(
            COLLECT, environment
        )
    finally:
        cache.chmod(0o700)


@pytest.mark.short(1)
@pytest.mark.parametrize(
    ("code", "name"), [(COLLECT, "flagged_sum_fp64"), (COPY, "builtin")], ids=["collective", "builtin"]
)
def test_kernel_that_does_not_compile_shows_its_line_and_leaves_nothing(
    code: str, name: str, environment: dict[str, str], tmp_path: Path
) -> None:
    run_python(code, env=environment)
    (image,) = (tmp_path / "cache").glob(f"{name}-*.bin")
    source = image.with_suffix(".cu")
    text, end, last = source.read_text().rpartition("// the end of ")
    source.write_text(f"{text}\nwhat is not C++\n{end}{last}")
    os.utime(source, (2**31, 2**31))
    image.unlink()
    said = refused(code, environment)
    assert f"CompileError: the GPU compiler rejected kernel '{name}'" in said
    assert ": what is not C++" in said
    assert not image.exists()
    assert {path.suffix for path in (tmp_path / "cache").iterdir()} <= {".bin", ".cu"}


def without_kernels(library: bool) -> str:
    """What is left where no rank, or only another one, has a compiler; the words for those who insist."""
    c = comm.current()
    gpu = open_device("cuda", c)
    x = DeviceArray.from_host(np.arange(8.0) + c.rank, gpu)
    assert np.array_equal(c.all_reduce(x).to_host(), 2 * np.arange(8.0) + 1)
    call = _core.CollectiveCall("all_reduce", "fp64", 8)
    assert c.collectives.on_device(gpu).algorithm_of(call).name == ("nccl" if library else "host-staged")
    with pytest.raises(CompileError) as refusal:
        c.all_reduce(x, algorithm="two_step")
    assert np.array_equal(c.all_reduce(x).to_host(), 2 * np.arange(8.0) + 1)  # no harm was done
    message = c.persistent_send(x, 1) if c.rank == 0 else c.persistent_receive(x, 0)
    message.start()
    assert message.transport == ("nccl" if library else "host-staged")
    assert np.array_equal(x.to_host(), np.arange(8.0))
    why = c.device_messages(gpu).why_not("remote-write", 1 - c.rank)
    assert "need NVRTC" in why
    return str(refusal.value)


@pytest.mark.parametrize("library", [True, False], ids=["library", "host"])
def test_without_a_compiler_the_library_or_the_host_carries(
    library: bool,
    use_settings: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    use_fake_gpus(monkeypatch, 4, folder=tmp_path)
    use_settings(nvrtc="/nowhere/librtc.so", nccl=str(make_fake_ccl()) if library else "/nowhere/libnccl.so")
    for text in comm.virtual_ranks(2, without_kernels, library):
        assert "kernels for cuda devices need NVRTC, which was not found" in text
        assert "without kernels collectives go by " in text
        assert "'nccl'" in text
        assert "'host-staged'" in text
        assert "\n" not in text
    assert capfd.readouterr().err.count("need NVRTC") <= 2  # once for collectives, once for messages
