"""Finds a C++ compiler and runs it. No CMake, no linker scripts: one source, one shared object.

A compiler is several programs. They end with this process, for any cause (`jali.processes`), and at their timeout.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jali import settings
from jali.codegen import target
from jali.errors import CompileError
from jali.processes import ended_with_us

FLAGS = (
    "-std=c++17",
    "-O2",
    "-march=native",
    "-ffp-contract=off",  # a fused multiply-add is written where it is meant
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-w",
)

TIME_LIMIT = 600.0  # seconds for one kernel


@dataclass(frozen=True)
class Compiler:
    """A C++ compiler. `identity` changes when the program on disk does."""

    command: tuple[str, ...]
    path: str
    identity: str
    flags: tuple[str, ...] = FLAGS

    @property
    def optional(self) -> tuple[str, ...]:
        """Flags that a compiler which refuses them does not need, or has no better way without.

        GCC assumes that a caller aligns the stack to 16 bytes, and up to version 14 then sometimes fails to align a frame of
        16-byte vectors where it had planned for longer ones; with a flag that callers align less, it aligns every frame itself.
        Local vectors are copied whole (from version 12 on): its models of several processors copy them in 16-byte halves, and a
        later load of the whole then waits for both stores.
        """
        bits = 8 * target.host().vector_bytes
        whole = (f"-mmove-max={bits}", f"-mstore-max={bits}") if bits >= 256 else ()
        return ("-mincoming-stack-boundary=3", *whole)

    @property
    def version(self) -> str:
        """First line of `--version`."""
        try:
            out = subprocess.run(
                [*self.command, "--version"], capture_output=True, text=True, timeout=30, check=True
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise CompileError(f"{self.path} does not run: {error}") from None
        return out.stdout.splitlines()[0] if out.stdout else "unknown"

    def compile(self, source: Path, output: Path, include: Path) -> None:
        """Compiles `source` to the shared object `output`. Raises CompileError with the compiler's words."""
        files = [f"-I{include}", "-o", str(output), str(source)]
        done = self._run([*self.command, *self.flags, *self.optional, *files])
        known = [flag for flag in self.optional if flag.partition("=")[0] not in done.stderr]
        if done.returncode != 0 and len(known) < len(self.optional):
            done = self._run([*self.command, *self.flags, *known, *files])
        if done.returncode == 0:
            return
        said = done.stderr or done.stdout
        if done.returncode in (126, 127):
            raise CompileError(f"cannot start the compiler {self.path}: {said.strip()}")
        if os.strerror(errno.ENOSPC) in said or os.strerror(errno.EDQUOT) in said:
            raise CompileError(
                f"the compiler found no space left in {output.parent} or in {tempfile.gettempdir()}; free some, or set "
                "JALI_CACHE_DIR or TMPDIR"
            )
        tail = "\n".join(said.splitlines()[:30])
        if done.returncode == 128 + signal.SIGKILL or "Killed signal" in said:
            raise CompileError(
                f"the compiler was killed while it compiled {source}; is there enough memory?\n{tail}"
            )
        raise CompileError(f"the compiler rejected a generated kernel\n  {shlex.join(done.args)}\n{tail}")

    def _run(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        output: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with contextlib.ExitStack() as stack:
            try:
                process = stack.enter_context(ended_with_us(command, **output, errors="replace"))
            except OSError as error:
                raise CompileError(f"cannot start a shell for the compiler {self.path}: {error}") from None
            try:
                out, err = process.communicate(timeout=TIME_LIMIT)
            except subprocess.TimeoutExpired:
                raise CompileError(
                    f"the compiler took more than {TIME_LIMIT:g} s and was stopped: {shlex.join(command)}"
                ) from None
            return subprocess.CompletedProcess(command, process.returncode, out, err)


@functools.cache
def _find(cxx: str, path: str) -> Compiler:
    candidates = [tuple(shlex.split(cxx))] if cxx else [("c++",), ("g++",), ("clang++",)]
    for command in candidates:
        found = shutil.which(command[0], path=path)
        if found:
            real = os.path.realpath(found)
            status = os.stat(real)
            return Compiler(
                (found, *command[1:]), found, f"{real} {status.st_size} {status.st_mtime_ns} {command[1:]}"
            )
    if not cxx:
        try:
            import ziglang
        except ImportError:
            pass
        else:
            version = Path(ziglang.__file__).parent
            command = (sys.executable, "-m", "ziglang", "c++")
            return Compiler(command, "ziglang", f"{version} {os.stat(version).st_mtime_ns}")
    requested = (
        f"CXX is set to {cxx!r}, which is not on the PATH" if cxx else "no c++, g++ or clang++ is on the PATH"
    )
    raise CompileError(
        f"kernels need a C++17 compiler, such as g++ 12 or clang 14: {requested}. Install one (Debian, Ubuntu: apt install g++; "
        "Fedora: dnf install gcc-c++; conda: conda install -c conda-forge gxx; without root: pip install ziglang), "
        "or set CXX to the command that runs one"
    )


def find_compiler() -> Compiler:
    """$CXX if set, else c++, g++ or clang++ on the PATH, else the `ziglang` wheel. Raises CompileError if there is none."""
    return _find(settings.current().cxx, os.pathsep.join(os.get_exec_path()))
