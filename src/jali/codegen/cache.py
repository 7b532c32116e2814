"""The kernel cache: sources and shared objects by content, shared by all processes of one user.

The key covers the text, the prelude, the flags, the compiler, the processor and jali's version, so nothing here is ever
stale. Sources are kept and may be edited: a source newer than its object is compiled again. The directory holds code, so
it must belong to its user alone. One process compiles, others wait on a file lock and load what it made. What is
compiled ends with its digest and is believed only with it; files appear complete, by a rename, and are never changed.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import stat
import threading
from pathlib import Path
from typing import Any

from jali import settings, version
from jali.codegen import compiler, target
from jali.codegen.cache_files import contents, contents_of, identity, make, warn, without_comments, write
from jali.codegen.gpu_compiler import find_gpu_compiler, gpu_prelude
from jali.codegen.stage_cache import COUNTS
from jali.errors import CompileError

PRELUDE = (
    "rounded.hpp",
    "target_cpu.hpp",
    "lanes.hpp",
    "storage.hpp",
    "memory_cpu.hpp",
    "sites_cpu.hpp",
    "elementary.hpp",
    "matrix.hpp",
    "group.hpp",
    "random.hpp",
    "kernel.hpp",
)

_FORMAT = "3"  # of the files here; another one is another key

_loaded: dict[str, tuple[ctypes.CDLL, int]] = {}
_on_device: dict[tuple[int, str], Any] = {}  # by the device and the file
_guard = threading.Lock()


def cache_directory() -> Path:
    """$JALI_CACHE_DIR, or jali/ in the user's cache directory. Made if absent, with mode 0700.

    Raises CompileError when it cannot be made, belongs to somebody else or can be written by others.
    """
    asked = settings.current().cache_dir
    base = settings.current().xdg_cache_home or os.path.join(os.path.expanduser("~"), ".cache")
    if not asked and not os.path.isabs(base):
        raise CompileError(
            f"there is no place for the kernel cache: this user has no home directory (it would be {base}); set "
            "JALI_CACHE_DIR to a directory of yours"
        )
    directory = Path(asked).absolute() if asked else Path(base) / "jali"
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = directory.stat()
    except OSError as error:
        raise CompileError(
            f"the kernel cache {directory} cannot be made: {error.strerror}; set JALI_CACHE_DIR to a directory of yours"
        ) from None
    if not stat.S_ISDIR(status.st_mode):
        raise CompileError(f"the kernel cache {directory} is not a directory; set JALI_CACHE_DIR to one")
    if status.st_uid != os.getuid():
        raise CompileError(
            f"the kernel cache {directory} belongs to another user; set JALI_CACHE_DIR to a directory of yours"
        )
    if status.st_mode & 0o022:
        raise CompileError(
            f"the kernel cache {directory} can be written by others (mode {stat.S_IMODE(status.st_mode):o}) and would be "
            f"run as your code: chmod 700 {directory}, or set JALI_CACHE_DIR"
        )
    return directory


@functools.cache
def prelude() -> str:
    """The C++ that every kernel starts with."""
    folder = Path(__file__).parent / "prelude"
    return "".join((folder / name).read_text() for name in PRELUDE)


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
        prelude(),
        without_comments(text),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', name)[:40]}-{digest}"


@functools.cache
def _prelude_digest(gpu: bool) -> str:
    return hashlib.sha256((gpu_prelude() if gpu else prelude()).encode()).hexdigest()


def source_digest(text: str, lanes: int, precision: str, gpu: bool) -> str:
    """A name for what a kernel computes: its source with the prelude, whoever compiles it and however."""
    parts = (_prelude_digest(gpu), f"{lanes} {precision}", without_comments(text))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def load(
    name: str, text: str, lanes: int, precision: str, block_bits: int = target.BLOCK_BITS
) -> tuple[int, Path]:
    """Address of the compiled kernel and the path of its source; compiles on first use.

    `block_bits` of an entry of a neighbour table hold the block. Raises CompileError: no compiler, rejected text, unusable cache.
    """
    key = kernel_key(name, text, lanes, precision, block_bits)

    def compile_to(source: Path, shared: Path) -> None:
        _write_prelude(source.parent / _prelude_name())
        compiler.find_compiler().compile(source, shared, source.parent)

    with _guard:
        directory = cache_directory()
        source, shared = directory / f"{key}.cpp", directory / f"{key}.so"
        memory = str(shared)
        found = _loaded.get(memory)
        COUNTS["binary"].count(found is not None)
        if found is None:
            kernel = _host_source(text, lanes, precision, block_bits)
            contents(source, shared, kernel, compile_to)
            try:
                library = ctypes.CDLL(memory)
            except OSError as error:
                _refuse_unmappable(shared, error)
                make(source, shared, kernel, compile_to, f"cannot be loaded ({error})", identity(shared))
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
    scalar = "double" if precision == "float64" else "float"
    head = f"#define JALI_LANES 1\n#define JALI_REAL {scalar}\n#define JALI_THREADS {threads}\n#define JALI_BLOCKS {blocks}\n"
    if sites * width > 1:
        head += f"#define JALI_SITES {sites}\n#define JALI_WIDTH {width}\n"
    head += _define_block_bits(block_bits)
    if with_halos:
        text = _of_prelude("signals", "halos") + text
    image, source = _image(gpu, name, head, text)
    COUNTS["binary"].count((gpu.ordinal, str(source)) in _on_device)
    return _loaded_function(gpu, str(source), image, "kernel"), source


def _loaded_function(gpu: Any, key: str, image: bytes, name: str) -> Any:
    """A function of an image on a device (of the core), loaded once.

    Without the lock: a driver may wait for its device before it loads, where a kernel may wait for the device of another thread,
    which would wait here.
    """
    found = _on_device.get((gpu.ordinal, key))
    if found is None:
        found = _on_device.setdefault((gpu.ordinal, key), gpu.function(image, name))
    return found


def builtin_kernels(gpu: Any) -> bytes:
    """Machine code of the builtin kernels for a device (of the core)."""
    return _image(gpu, "builtin", *builtin_source())[0]


def builtin_source() -> tuple[str, str]:
    """Defines and text of the builtin kernels."""
    head = "#define JALI_LANES 1\n#define JALI_REAL double\n#define JALI_THREADS 256\n#define JALI_BLOCKS 1\n"
    return head, _of_prelude("signals", "halos", "builtin", "messages")


def _of_prelude(*names: str) -> str:
    folder = Path(__file__).parent / "prelude"
    return "".join((folder / f"{name}.hpp").read_text() for name in names)


# How elements are stored on devices, and as what they are combined.
_ELEMENTS = {
    "int8": ("signed char", "signed char"),
    "int16": ("short", "short"),
    "int32": ("int32_t", "int32_t"),
    "int64": ("int64_t", "int64_t"),
    "uint8": ("unsigned char", "unsigned char"),
    "uint16": ("unsigned short", "unsigned short"),
    "uint32": ("uint32_t", "uint32_t"),
    "uint64": ("uint64_t", "uint64_t"),
    "fp16": ("half_bits", "float"),
    "bf16": ("brain_bits", "float"),
    "fp32": ("float", "float"),
    "fp64": ("double", "double"),
    "complex64": ("complex_pair<float>", "complex_pair<float>"),
    "complex128": ("complex_pair<double>", "complex_pair<double>"),
}
COLLECTIVE_THREADS = 512  # of a block; GpuPlan::most_threads


def collective_source(wire: str, element: str, operation: str, checked: bool = False) -> tuple[str, str]:
    """Defines and text of the kernel of collectives whose messages are `wire` ("flagged" or "slotted") and that combine
    elements in this way; "none" only moves."""
    stored, value = _ELEMENTS[element]
    head = (
        f"#define JALI_LANES 1\n#define JALI_REAL double\n#define JALI_THREADS {COLLECTIVE_THREADS}\n"
        f"#define JALI_BLOCKS 1\n#define JALI_STORED {stored}\n#define JALI_VALUE {value}\n"
        f"#define JALI_OPERATION operation_{operation}\n"
    )
    if operation == "none":
        head += "#define JALI_MOVES\n"
    if wire == "flagged":
        head += "#define JALI_FLAGGED\n"
    if checked:
        head += "#define JALI_CHECKED\n"
    return head, _of_prelude("signals", "elements", "collective")


def collective_kernel(gpu: Any, wire: str, element: str, operation: str, checked: bool = False) -> Any:
    """The kernel of such collectives on a device (of the core); compiles on first use. Raises CompileError, DeviceError."""
    key = f"collective {gpu.kind} {wire} {element} {operation} {checked}"
    found = _on_device.get((gpu.ordinal, key))
    if found is None:
        head, text = collective_source(wire, element, operation, checked)
        image, _ = _image(gpu, f"{wire}_{operation}_{element}", head, text)
        found = _loaded_function(gpu, key, image, "collective")
    found.variant = f"{wire} {element} {operation}"  # as core/collective/decoded_plan.cpp reads it
    return found


def _image(gpu: Any, name: str, head: str, text: str) -> tuple[bytes, Path]:
    found = find_gpu_compiler(gpu.kind)
    architecture = gpu.architecture
    # a runtime compiler that asks the device itself may meet another one tomorrow
    device = architecture or f"{gpu.name} {gpu.identity}"
    parts = (
        _FORMAT,
        version.__version__,
        found.identity,
        device,
        head,
        gpu_prelude(),
        without_comments(text),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    key = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)[:40]}-{digest}"

    def compile_to(source: Path, image: Path) -> None:
        image.write_bytes(found.compile(with_gpu_prelude(source.read_text()), name, architecture))

    with _guard:
        directory = cache_directory()
        source, image = directory / f"{key}.cu", directory / f"{key}.bin"
        return contents(source, image, f"{head}\n{text}", compile_to), source


def with_gpu_prelude(kernel: str) -> str:
    """A kernel as the cache keeps it (its defines, an empty line, its text) with the prelude in between, as it is compiled."""
    defines, _, text = kernel.partition("\n\n")
    return f"{defines}\n{gpu_prelude()}\n{text}"


def _prelude_name() -> str:
    return f"prelude-{_prelude_digest(gpu=False)[:12]}.hpp"


def _host_source(text: str, lanes: int, precision: str, block_bits: int) -> str:
    scalar = "double" if precision == "float64" else "float"
    head = f"#define JALI_LANES {lanes}\n#define JALI_REAL {scalar}\n{_define_block_bits(block_bits)}"
    return f'{head}#include "{_prelude_name()}"\n\n{text}'


def _define_block_bits(bits: int) -> str:
    return f"#define JALI_BLOCK_BITS {bits}\n" if bits != target.BLOCK_BITS else ""


def _write_prelude(path: Path) -> None:
    """Write the file that all sources include, unless it is there as it has to be."""
    try:
        if contents_of(path) == prelude().encode():
            return
        warn(f"{path} is damaged (it differs from what jali brings along); it is written anew")
    except FileNotFoundError:
        pass
    except ValueError as error:
        warn(f"{path} is damaged ({error}); it is written anew")
    write(path, prelude())
