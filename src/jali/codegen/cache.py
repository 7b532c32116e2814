"""The kernel cache: sources and shared objects by content, shared by all processes of one user.

The key covers the text, the prelude, the flags, the compiler, the processor and jali's version, so nothing here is ever
stale. Sources are kept and may be edited: a source newer than its object is compiled again. The directory holds code, so
it must belong to its user alone. One process compiles, others wait on a file lock and load what it made.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jali import version
from jali.codegen import compiler, target
from jali.codegen.gpu_compiler import find_gpu_compiler, gpu_prelude
from jali.errors import CompileError

PRELUDE = (
    "rounded.hpp",
    "target_cpu.hpp",
    "lanes.hpp",
    "storage.hpp",
    "memory_cpu.hpp",
    "elementary.hpp",
    "matrix.hpp",
    "group.hpp",
    "random.hpp",
    "kernel.hpp",
)

_loaded: dict[str, tuple[ctypes.CDLL, int]] = {}
_on_device: dict[tuple[int, str], Any] = {}  # by the device and the file
_guard = threading.Lock()


def cache_directory() -> Path:
    """$JALI_CACHE_DIR, or jali/ in the user's cache directory. Made if absent, with mode 0700.

    Raises CompileError when it cannot be made, belongs to somebody else or can be written by others.
    """
    asked = os.environ.get("JALI_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    directory = Path(asked) if asked else Path(base) / "jali"
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


def _strip(text: str) -> str:
    """The text without comments: who is bound to a kernel does not make another kernel."""
    return re.sub(r"//[^\n]*", "", text)


def kernel_key(name: str, text: str, lanes: int, precision: str) -> str:
    """Name of a kernel in the cache."""
    found = compiler.find_compiler()
    parts = (
        version.__version__,
        found.identity,
        " ".join((*found.flags, *found.tuning)),
        target.host().fingerprint,
        f"{lanes} {precision}",
        prelude(),
        _strip(text),
    )
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    return f"{re.sub(r'[^A-Za-z0-9_]', '_', name)[:40]}-{digest}"


@functools.cache
def _prelude_digest(gpu: bool) -> str:
    return hashlib.sha256((gpu_prelude() if gpu else prelude()).encode()).hexdigest()


def source_digest(text: str, lanes: int, precision: str, gpu: bool) -> str:
    """A name for what a kernel computes: its source with the prelude, whoever compiles it and however."""
    parts = (_prelude_digest(gpu), f"{lanes} {precision}", _strip(text))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]


def load(name: str, text: str, lanes: int, precision: str) -> tuple[int, Path]:
    """Address of the compiled kernel and the path of its source; compiles on first use.

    Raises CompileError: no compiler, rejected text, unusable cache.
    """
    key = kernel_key(name, text, lanes, precision)

    def compile_to(source: Path, shared: Path) -> None:
        compiler.find_compiler().compile(source, shared, source.parent)

    with _guard:
        directory = cache_directory()
        source, shared = directory / f"{key}.cpp", directory / f"{key}.so"
        memory = str(shared)
        found = _loaded.get(memory)
        if found is None:
            if not _current(source, shared):
                _make(source, shared, _host_source(directory, text, lanes, precision), compile_to)
            try:
                library = ctypes.CDLL(memory)
            except OSError:
                # a damaged object: make it again, once
                shared.unlink(missing_ok=True)
                _make(source, shared, _host_source(directory, text, lanes, precision), compile_to)
                library = ctypes.CDLL(memory)
            address = ctypes.cast(library.kernel, ctypes.c_void_p).value
            assert address is not None
            found = _loaded[memory] = (library, address)
    return found[1], source


def load_on_device(
    gpu: Any,
    name: str,
    text: str,
    precision: str,
    threads: int = 128,
    blocks: int = 1,
    sites: int = 1,
    width: int = 1,
) -> tuple[Any, Path]:
    """The kernel on a device (of the core) and the path of its source; compiles on first use.

    `threads` is the number of threads of its blocks, `blocks` how many of them should fit a multiprocessor; a text of several
    sites per thread takes `sites` rounds of `width` neighbours. Raises CompileError: no compiler, rejected text, unusable cache;
    DeviceError: the device does not take the code.
    """
    scalar = "double" if precision == "float64" else "float"
    head = f"#define JALI_LANES 1\n#define JALI_REAL {scalar}\n#define JALI_THREADS {threads}\n#define JALI_BLOCKS {blocks}\n"
    if sites * width > 1:
        head += f"#define JALI_SITES {sites}\n#define JALI_WIDTH {width}\n"
    image, source = _image(gpu, name, head, text)
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


def gpu_kit(gpu: Any) -> bytes:
    """Machine code of jali's own kernels for a device (of the core)."""
    folder = Path(__file__).parent / "prelude"
    text = (folder / "kit.hpp").read_text() + (folder / "messages.hpp").read_text()
    head = "#define JALI_LANES 1\n#define JALI_REAL double\n#define JALI_THREADS 256\n#define JALI_BLOCKS 1\n"
    return _image(gpu, "kit", head, text)[0]


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
    folder = Path(__file__).parent / "prelude"
    text = (folder / "elements.hpp").read_text() + (folder / "collective.hpp").read_text()
    if operation == "none":
        head += "#define JALI_MOVES\n"
    if wire == "flagged":
        head += "#define JALI_FLAGGED\n"
    if checked:
        head += "#define JALI_CHECKED\n"
    return head, text


def collective_kernel(gpu: Any, wire: str, element: str, operation: str, checked: bool = False) -> Any:
    """The kernel of such collectives on a device (of the core); compiles on first use. Raises CompileError, DeviceError."""
    key = f"collective {gpu.kind} {wire} {element} {operation} {checked}"
    found = _on_device.get((gpu.ordinal, key))
    if found is None:
        head, text = collective_source(wire, element, operation, checked)
        image, _ = _image(gpu, f"{wire}_{operation}_{element}", head, text)
        found = _loaded_function(gpu, key, image, "collective")
    return found


def _image(gpu: Any, name: str, head: str, text: str) -> tuple[bytes, Path]:
    found = find_gpu_compiler(gpu.kind)
    architecture = gpu.architecture
    # a runtime compiler that asks the device itself may meet another one tomorrow
    device = architecture or f"{gpu.name} {gpu.identity}"
    parts = (version.__version__, found.identity, device, head, gpu_prelude(), _strip(text))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    key = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)[:40]}-{digest}"

    def compile_to(source: Path, image: Path) -> None:
        image.write_bytes(_sealed(found.compile(with_gpu_prelude(source.read_text()), name, architecture)))

    with _guard:
        directory = cache_directory()
        source, image = directory / f"{key}.cu", directory / f"{key}.bin"
        if not _current(source, image):
            _make(source, image, f"{head}\n{text}", compile_to)
        code = _unsealed(image.read_bytes())
        if code is None:
            # a damaged image: make it again, once
            image.unlink(missing_ok=True)
            _make(source, image, f"{head}\n{text}", compile_to)
            code = _unsealed(image.read_bytes())
        if code is None:
            raise CompileError(f"{image} is damaged as soon as it is written; set JALI_CACHE_DIR")
        return code, source


def with_gpu_prelude(kernel: str) -> str:
    """A kernel as the cache keeps it (its defines, an empty line, its text) with the prelude in between, as it is compiled."""
    defines, _, text = kernel.partition("\n\n")
    return f"{defines}\n{gpu_prelude()}\n{text}"


# A driver is told where an image begins, not where it ends, and may crash on a damaged one; so its digest comes first.
def _sealed(code: bytes) -> bytes:
    return hashlib.sha256(code).digest() + code


def _unsealed(file: bytes) -> bytes | None:
    digest, code = file[:32], file[32:]
    return code if hashlib.sha256(code).digest() == digest else None


def _host_source(directory: Path, text: str, lanes: int, precision: str) -> str:
    head = hashlib.sha256(prelude().encode()).hexdigest()[:12]
    include = directory / f"prelude-{head}.hpp"
    try:
        _write(include, prelude())
    except OSError as error:
        raise _unwritable(directory, error) from None
    scalar = "double" if precision == "float64" else "float"
    return f'#define JALI_LANES {lanes}\n#define JALI_REAL {scalar}\n#include "{include.name}"\n\n{text}'


def _current(source: Path, made_from_it: Path) -> bool:
    try:
        made = made_from_it.stat()
        return made.st_size > 0 and source.stat().st_mtime_ns <= made.st_mtime_ns
    except OSError:
        return False


def _make(source: Path, result: Path, text: str, compile_to: Callable[[Path, Path], None]) -> None:
    """Writes `source` unless somebody keeps an edited one there, and compiles it to `result`; one process does, others wait."""
    directory = source.parent
    try:
        with open(directory / f"{result.stem}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _current(source, result):
                return
            if not source.exists() or source.stat().st_size == 0:
                _write(source, text)
            temporary = directory / f"{result.name}.{os.getpid()}.{threading.get_ident()}"
            try:
                compile_to(source, temporary)
                os.replace(temporary, result)
            finally:
                temporary.unlink(missing_ok=True)
        (directory / f"{result.stem}.lock").unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(directory, error) from None


def _unwritable(directory: Path, error: OSError) -> CompileError:
    return CompileError(
        f"the kernel cache {directory} cannot be written: {error.strerror}; free some space or set JALI_CACHE_DIR"
    )


def _write(path: Path, text: str) -> None:
    """Writes a file so that other processes see all of it or none."""
    if path.exists() and path.stat().st_size > 0:
        return
    temporary = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
