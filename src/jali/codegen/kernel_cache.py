"""The kernel cache as Python uses it: kernels of the host, and those of devices by the core.

How files are kept, locked and checked is core/device/kernel_files.hpp, kernels of devices are core/device/kernel_cache.hpp.
A key covers the text, the prelude, the flags, the compiler and the processor, so nothing here is ever stale. Sources are kept
and may be edited: a source newer than its object is compiled again.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import threading
from pathlib import Path
from typing import Any

from jali import _core, version
from jali.codegen import compiler, target
from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.stage_cache import COUNTS
from jali.errors import CompileError

PRELUDE = (
    "rounded",
    "target_cpu",
    "lanes",
    "storage",
    "memory_cpu",
    "sites_cpu",
    "elementary",
    "matrix",
    "group",
    "hermitian",
    "random",
    "kernel",
)

_FORMAT = "4"  # of the files here; another one is another key

_loaded: dict[str, tuple[ctypes.CDLL, int]] = {}
_guard = threading.Lock()


def cache_directory() -> Path:
    """$JALI_CACHE_DIR, or jali/ in the user's cache directory. Made if absent, with mode 0700.

    Raises CompileError when it cannot be made, belongs to another user or can be written by others.
    """
    return _core.cache_directory()


@functools.cache
def prelude() -> str:
    """The C++ that every kernel of the host starts with."""
    return "".join(_core.prelude(name) for name in PRELUDE)


def kernel_key(name: str, text: str, lanes: int, precision: str, block_bits: int = target.BLOCK_BITS) -> str:
    """Name of a kernel in the cache."""
    found = compiler.find_compiler()
    parts = (
        _FORMAT,
        version.__version__,
        found.identity,
        " ".join((*found.flags, *found.optional)),
        target.host().fingerprint,
        f"{lanes} {precision} {block_bits}",
        _prelude_digest(),
        _core.without_comments(_define_number(precision) + text),
    )
    return _core.cache_key(name, parts)


@functools.cache
def _prelude_digest() -> str:
    return hashlib.sha256(prelude().encode()).hexdigest()


def source_digest(text: str, lanes: int, precision: str, gpu: bool) -> str:
    """A name for what a kernel computes: its source with the prelude, independent of compiler and flags."""
    digest = _core.gpu_prelude_digest() if gpu else _prelude_digest()
    parts = (digest, f"{lanes} {precision}", _core.without_comments(_define_number(precision) + text))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def load(
    name: str, text: str, lanes: int, precision: str, block_bits: int = target.BLOCK_BITS
) -> tuple[int, Path]:
    """Address of the compiled kernel and the path of its source; compiles on first use.

    `block_bits` of an entry of a neighbour table hold the block. Raises CompileError: no compiler, rejected text, unusable cache.
    """
    key = kernel_key(name, text, lanes, precision, block_bits)

    def compile_to(source: Path, shared: Path) -> None:
        _core.keep_text(source.parent / _prelude_name(), prelude())
        compiler.find_compiler().compile(source, shared, source.parent)

    with _guard:
        directory = cache_directory()
        source, shared = directory / f"{key}.cpp", directory / f"{key}.so"
        memory = str(shared)
        found = _loaded.get(memory)
        COUNTS["binary"].count(found is not None)
        if found is None:
            kept = source, shared, _host_source(text, lanes, precision, block_bits), compile_to
            _core.compile_cached(*kept)
            try:
                library = ctypes.CDLL(memory)
            except OSError as error:
                _refuse_unmappable(shared, error)
                _core.compile_again(*kept, f"cannot be loaded ({error})", _core.file_identity(shared))
                try:
                    library = ctypes.CDLL(memory)
                except OSError as again:
                    raise CompileError(
                        f"the kernel {shared} cannot be loaded, nor when made anew: {again}"
                    ) from None
            address = ctypes.cast(library.kernel, ctypes.c_void_p).value
            assert address is not None
            found = _loaded[memory] = (library, address)
    return found[1], source


def _refuse_unmappable(shared: Path, error: OSError) -> None:
    """Raise CompileError if no program can run from where the cache is."""
    if os.statvfs(shared.parent).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise CompileError(
            f"kernels cannot be loaded from the kernel cache {shared.parent}: its file system is mounted noexec ({error}); "
            "set JALI_CACHE_DIR to a directory on another one"
        ) from None


def load_on_device(
    gpu: Any,
    name: str,
    text: str,
    precision: str,
    threads: int = 128,
    blocks: int = 1,
    sites: int = 1,
    width: int = 1,
    block_bits: int = target.BLOCK_BITS,
    with_halos: bool = False,
) -> tuple[Any, Path]:
    """The kernel on a device (of the core) and the path of its source; compiles on first use.

    `threads` is the number of threads of its blocks, `blocks` how many of them should fit a multiprocessor; a text of several
    sites per thread takes `sites` rounds of `width` neighbours; one `with_halos` has roles for its blocks. Raises CompileError: no compiler, rejected text, unusable cache;
    DeviceError: the device does not take the code.
    """
    head = _define_number(precision)
    head += f"#define JALI_LANES 1\n#define JALI_REAL {ARITHMETICS[precision].c_type}\n#define JALI_THREADS {threads}\n#define JALI_BLOCKS {blocks}\n"
    if sites * width > 1:
        head += f"#define JALI_SITES {sites}\n#define JALI_WIDTH {width}\n"
    head += _define_block_bits(block_bits)
    if with_halos:
        text = _core.prelude("signals") + _core.prelude("halos") + text
    function, source, found = _core.load_kernel(gpu, name, head, text, "kernel")
    COUNTS["binary"].count(found)
    return function, source


def _prelude_name() -> str:
    return f"prelude-{_prelude_digest()[:12]}.hpp"


def _host_source(text: str, lanes: int, precision: str, block_bits: int) -> str:
    real = ARITHMETICS[precision].c_type
    head = f"#define JALI_LANES {lanes}\n#define JALI_REAL {real}\n{_define_block_bits(block_bits)}"
    return f'{_define_number(precision)}{head}#include "{_prelude_name()}"\n\n{text}'


def _define_number(precision: str) -> str:
    """The number type of an arithmetic as a macro, since it needs what the prelude says of the target before."""
    text = re.sub(r"//[^\n]*", "", ARITHMETICS[precision].text)
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return " \\\n".join(["#define JALI_NUMBER", *lines]) + "\n" if lines else ""


def _define_block_bits(bits: int) -> str:
    return f"#define JALI_BLOCK_BITS {bits}\n" if bits != target.BLOCK_BITS else ""
