"""Compiles kernels for GPUs: NVRTC for CUDA and hipRTC for HIP, found at run time and called through one table.

No toolkit is needed: NVRTC comes with `pip install jali[cuda]`, and compiles for any NVIDIA architecture on a machine that
has no GPU. hipRTC comes with ROCm. AMD's side has never run on hardware.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from jali import settings
from jali.errors import CompileError

# what is called, with its name in either library
_FUNCTIONS = {
    "version": ("nvrtcVersion", "hiprtcVersion"),
    "create": ("nvrtcCreateProgram", "hiprtcCreateProgram"),
    "compile": ("nvrtcCompileProgram", "hiprtcCompileProgram"),
    "log_size": ("nvrtcGetProgramLogSize", "hiprtcGetProgramLogSize"),
    "log": ("nvrtcGetProgramLog", "hiprtcGetProgramLog"),
    "code_size": ("nvrtcGetCUBINSize", "hiprtcGetCodeSize"),
    "code": ("nvrtcGetCUBIN", "hiprtcGetCode"),
    "destroy": ("nvrtcDestroyProgram", "hiprtcDestroyProgram"),
}
_OPTIONS = {
    # a fused multiply-add is written where it is meant; everything in a kernel's text is for the device
    "cuda": (
        "--std=c++17",
        "--fmad=false",
        "--device-as-default-execution-space",
        "--device-int128",
        "--diag-suppress=177",
    ),
    "hip": ("-std=c++17", "-ffp-contract=off", "-O3"),
}
_INSTALL = {
    "cuda": "pip install 'jali[cuda]' (or nvidia-cuda-nvrtc of your driver's CUDA version), or set JALI_NVRTC to the library",
    "hip": "install ROCm's hipRTC, or set JALI_HIPRTC to the library",
}


def _candidates(kind: str) -> list[str]:
    named = settings.current().nvrtc if kind == "cuda" else settings.current().hiprtc
    if named:
        return [named]
    if kind == "hip":
        # before ROCm 6 hipRTC was part of the runtime
        return [
            *("libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6", "/opt/rocm/lib/libhiprtc.so"),
            *("libamdhip64.so", "libamdhip64.so.5"),
        ]
    found = []
    for folder in sys.path:
        for pattern in ("cu*/lib/libnvrtc.so.*", "cuda_nvrtc/lib/libnvrtc.so.*"):
            found += sorted(str(p) for p in Path(folder, "nvidia").glob(pattern) if "builtins" not in p.name)
    return [*found, "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so", "/usr/local/cuda/lib64/libnvrtc.so"]


@dataclass(frozen=True)
class GpuCompiler:
    """A run-time compiler of one kind ("cuda" or "hip")."""

    kind: str
    path: str
    version: str
    library: ctypes.CDLL

    @property
    def identity(self) -> str:
        """Changes when the compiler may make other code."""
        return f"{self.kind} rtc {self.version} {' '.join(_OPTIONS[self.kind])}"

    def _function(self, what: str) -> ctypes._CFuncPtr:  # type: ignore[name-defined]
        return getattr(self.library, _FUNCTIONS[what][self.kind == "hip"])

    def compile(self, source: str, name: str, architecture: str, options: tuple[str, ...] = ()) -> bytes:
        """Machine code of `source` for an architecture such as "sm_90". Raises CompileError with the compiler's words."""
        program = ctypes.c_void_p()
        text, file = source.encode(), f"{name}.cu".encode()
        error = self._function("create")(ctypes.byref(program), text, file, 0, None, None)
        if error:
            raise CompileError(f"{self.path} cannot start on kernel '{name}' (error {error})")
        try:
            target = {"cuda": f"--gpu-architecture={architecture}", "hip": f"--offload-arch={architecture}"}
            arguments = [*_OPTIONS[self.kind], *([target[self.kind]] if architecture else []), *options]
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
def _find(kind: str, *_named: str | None) -> GpuCompiler:
    why = []
    for path in _candidates(kind):
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            why.append(str(error))
            continue
        missing = [
            names[kind == "hip"]
            for names in _FUNCTIONS.values()
            if not hasattr(library, names[kind == "hip"])
        ]
        if missing:
            why.append(f"{path} lacks {', '.join(missing)}")
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        getattr(library, _FUNCTIONS["version"][kind == "hip"])(ctypes.byref(major), ctypes.byref(minor))
        return GpuCompiler(kind, path, f"{major.value}.{minor.value}", library)
    raise CompileError(
        f"kernels for {kind} devices need {'NVRTC' if kind == 'cuda' else 'hipRTC'}, which was not found: {_INSTALL[kind]}\n  "
        + "\n  ".join(why[-3:])
    )


def find_gpu_compiler(kind: str) -> GpuCompiler:
    """The run-time compiler for "cuda" or "hip". Raises CompileError that says what to install."""
    return _find(kind, settings.current().nvrtc, settings.current().hiprtc)


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
