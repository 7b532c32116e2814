"""What NVRTC hands to the assembler, with the options of jali's kernels."""

from __future__ import annotations

import ctypes

from jali import _core, vendors


def ptx_text(nvrtc: _core.GpuCompiler, source: str, architecture: str = "compute_90") -> str:
    """The PTX of a text, prelude included."""
    library, program = ctypes.CDLL(nvrtc.path), ctypes.c_void_p()
    assert library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"text.cu", 0, None, None) == 0
    options = [*vendors.vendor("cuda").compiler.options, f"--gpu-architecture={architecture}"]
    array = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    assert library.nvrtcCompileProgram(program, len(options), array) == 0
    size = ctypes.c_size_t()
    assert library.nvrtcGetPTXSize(program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert library.nvrtcGetPTX(program, buffer) == 0
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return buffer.value.decode()
