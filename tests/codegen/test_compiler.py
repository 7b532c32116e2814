"""The compiler's processes: they end when their time is up, when they are interrupted, and with the process that started them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from programs import TIMEOUT, alive, wait_until

from jali import settings
from jali.codegen import compiler
from jali.errors import CompileError

LOAD = """
from jali.codegen import kernel_cache
kernel_cache.load("probe", "", 4, "float64")
"""


@pytest.fixture
def endless(tmp_path, use_settings) -> Path:
    """A compiler that starts another process, as compilers do, and never ends; returns the file with both process numbers."""
    program, started = tmp_path / "endless-c++", tmp_path / "started"
    program.write_text(
        f"#!/bin/sh\nsleep 1000 &\necho $$ $! > {started}.new\nmv {started}.new {started}\nwait\n"
    )
    program.chmod(0o755)
    use_settings(cxx=str(program))
    use_settings(cache_dir=str(tmp_path / "cache"))
    return started


def processes(started: Path) -> list[int]:
    wait_until(started.exists)
    return [int(word) for word in started.read_text().split()]


def test_compiler_that_takes_too_long_is_stopped_with_its_children(endless, tmp_path, monkeypatch):
    monkeypatch.setattr(compiler, "TIME_LIMIT", 3.0)
    with pytest.raises(CompileError, match="took more than 3 s and was stopped"):
        compiler.find_compiler().compile(tmp_path / "a.cpp", tmp_path / "a.so", tmp_path)
    if endless.exists():
        wait_until(lambda: not any(map(alive, processes(endless))))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_compiler_ends_with_the_process_that_started_it(number, endless):
    with subprocess.Popen(
        [sys.executable, "-c", LOAD], env=settings.environment(), stderr=subprocess.DEVNULL
    ) as process:
        compilers = processes(endless)
        assert all(map(alive, compilers))
        process.send_signal(number)
        process.wait(TIMEOUT)
    wait_until(lambda: not any(map(alive, compilers)))


def test_full_disk_of_the_compiler_is_called_so(tmp_path, use_settings):
    program = tmp_path / "full-c++"
    program.write_text("#!/bin/sh\necho 'ld: final link failed: No space left on device' >&2\nexit 1\n")
    program.chmod(0o755)
    use_settings(cxx=str(program))
    with pytest.raises(CompileError, match=r"no space left in .*JALI_CACHE_DIR or TMPDIR"):
        compiler.find_compiler().compile(tmp_path / "a.cpp", tmp_path / "a.so", tmp_path)


def test_compiler_that_cannot_be_executed_is_called_so(tmp_path, use_settings):
    program = tmp_path / "broken-c++"
    program.write_text("#!/no/such/interpreter\n")
    program.chmod(0o755)
    use_settings(cxx=str(program))
    with pytest.raises(CompileError, match="cannot start the compiler .*broken-c"):
        compiler.find_compiler().compile(tmp_path / "a.cpp", tmp_path / "a.so", tmp_path)


def test_only_the_flags_that_a_compiler_refuses_are_left_out(tmp_path, use_settings):
    program = tmp_path / "old-c++"
    program.write_text(
        "#!/bin/sh\nset -- $*\nfor word; do case $word in\n"
        "-mincoming*) echo \"unknown argument '$word'\" >&2; exit 1;;\nesac; done\n"
        f"echo $* > {tmp_path}/said\n"
    )
    program.chmod(0o755)
    use_settings(cxx=str(program))
    found = compiler.find_compiler()
    found.compile(tmp_path / "a.cpp", tmp_path / "a.so", tmp_path)
    said = (tmp_path / "said").read_text().split()
    assert all(flag in said for flag in found.flags)
    assert [f for f in found.optional if f not in said] == ["-mincoming-stack-boundary=3"]
