"""Compiles kernels for GPUs with the vendor's run-time compiler (`jali.vendors`), found at run time.

No toolkit is needed: NVRTC comes with `pip install jali[cuda]`, and compiles for any NVIDIA architecture on a machine that
has no GPU. hipRTC comes with ROCm. AMD's side has never run on hardware.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jali import settings, vendors
from jali.errors import CompileError

if TYPE_CHECKING:
    from jali.vendor import Compiler


@dataclass(frozen=True)
class GpuCompiler:
    """The run-time compiler of a vendor, loaded."""

    kind: str
    path: str
    version: str
    library: ctypes.CDLL
    row: Compiler

    @property
    def identity(self) -> str:
        """Changes when the compiler may make other code."""
        return f"{self.kind} rtc {self.version} {' '.join(self.row.options)}"

    def _function(self, what: str) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
        return getattr(self.library, self.row.functions[what])

    def compile(self, source: str, name: str, architecture: str, options: tuple[str, ...] = ()) -> bytes:
        """Machine code of `source` for an architecture such as "sm_90". Raises CompileError with the compiler's words."""
        program = ctypes.c_void_p()
        text, file = source.encode(), f"{name}.cu".encode()
        error = self._function("create")(ctypes.byref(program), text, file, 0, None, None)
        if error:
            raise CompileError(f"{self.path} cannot start on kernel '{name}' (error {error})")
        try:
            target = [f"{self.row.target}{architecture}"] if architecture else []
            arguments = [*self.row.options, *target, *options]
            array = (ctypes.c_char_p * len(arguments))(*(a.encode() for a in arguments))
            if self._function("compile")(program, len(arguments), array):
                raise CompileError(_complaint(name, source, self._text(program), arguments))
            size = ctypes.c_size_t()
            self._function("code_size")(program, ctypes.byref(size))
            code = ctypes.create_string_buffer(size.value)
            if self._function("code")(program, code) or size.value == 0:
                raise CompileError(f"{self.path} gave no code for kernel '{name}' on {architecture}")
            return code.raw
        finally:
            self._function("destroy")(ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self._function("log_size")(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(max(1, size.value))
        self._function("log")(program, log)
        return log.value.decode(errors="replace")


def _complaint(name: str, source: str, log: str, arguments: list[str]) -> str:
    """What the compiler said, with the lines of the kernel that it speaks of."""
    lines = source.splitlines()
    shown = []
    for said in log.splitlines()[:40]:
        shown.append(said)
        found = re.search(
            r"(?:\.cu[(:]|CompileSource:)(\d+)", said
        )  # NVRTC: name.cu(12), hipRTC: .../CompileSource:12:3
        if found and 0 < int(found[1]) <= len(lines):
            shown.append(f"    {found[1]}: {lines[int(found[1]) - 1].strip()}")
    return f"the GPU compiler rejected kernel '{name}' ({' '.join(arguments)})\n" + "\n".join(shown)


@functools.cache
def _find(kind: str, named: str) -> GpuCompiler:
    known = vendors.vendor(kind).compiler
    why = []
    for path in [named] if named else [*known.library.packaged(), *known.library.files]:
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            why.append(str(error))
            continue
        missing = [name for name in known.functions.values() if not hasattr(library, name)]
        if missing:
            why.append(f"{path} lacks {', '.join(missing)}")
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        getattr(library, known.functions["version"])(ctypes.byref(major), ctypes.byref(minor))
        return GpuCompiler(kind, path, f"{major.value}.{minor.value}", library, known)
    raise CompileError(
        f"kernels for {kind} devices need {known.library.title}, which was not found: {known.library.install}\n  "
        + "\n  ".join(why[-3:])
    )


def find_gpu_compiler(kind: str) -> GpuCompiler:
    """The run-time compiler for the devices of a vendor. Raises CompileError that says what to install."""
    setting = vendors.vendor(kind).compiler.library.setting
    return _find(kind, getattr(settings.current(), setting) if setting else "")


@functools.cache
def gpu_prelude() -> str:
    """The C++ that every kernel for a GPU starts with."""
    folder = Path(__file__).parent / "prelude"
    return "".join((folder / name).read_text() for name in GPU_PRELUDE)


GPU_PRELUDE = (
    "rounded.hpp",
    "target_gpu.hpp",
    "lanes.hpp",
    "storage.hpp",
    "memory_gpu.hpp",
    "elementary.hpp",
    "matrix.hpp",
    "group.hpp",
    "random.hpp",
    "kernel.hpp",
    "sums_gpu.hpp",
    "several.hpp",
)


def digest(*parts: str) -> str:
    """A short name for a combination of texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
