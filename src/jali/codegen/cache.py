"""The kernel cache: sources and shared objects by content, shared by all processes of one user.

The key covers the text, the prelude, the flags, the compiler, the processor and jali's version, so nothing here is ever
stale. Sources are kept and may be edited: a source newer than its object is compiled again. The directory holds code, so
it must belong to its user alone. One process compiles, others wait on a file lock and load what it made. What is
compiled ends with its digest and is believed only with it; files appear complete, by a rename, and are never changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import hashlib
import os
import re
import secrets
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jali import version
from jali.codegen import compiler, target
from jali.codegen.gpu_compiler import find_gpu_compiler, gpu_prelude
from jali.codegen.stage_cache import COUNTS
from jali.errors import CompileError, FileFormatError
from jali.files import open_lock, read_bytes, reading

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

_FORMAT = "3"  # of the files here; another one is another key
_MARK = b"\njali-2\n"  # the end of what is compiled, behind two digests
_DIGEST = hashlib.sha256().digest_size
_MOST = 1 << 30  # bytes of a file here; far more than any kernel has

_loaded: dict[str, tuple[ctypes.CDLL, int]] = {}
_on_device: dict[tuple[int, str], Any] = {}  # by the device and the file
_guard = threading.Lock()


def cache_directory() -> Path:
    """$JALI_CACHE_DIR, or jali/ in the user's cache directory. Made if absent, with mode 0700.

    Raises CompileError when it cannot be made, belongs to somebody else or can be written by others.
    """
    asked = os.environ.get("JALI_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
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


def _strip(text: str) -> str:
    """The text without comments: who is bound to a kernel does not make another kernel."""
    return re.sub(r"//[^\n]*", "", text)


def kernel_key(name: str, text: str, lanes: int, precision: str, block_bits: int = target.BLOCK_BITS) -> str:
    """Name of a kernel in the cache."""
    found = compiler.find_compiler()
    parts = (
        _FORMAT,
        version.__version__,
        found.identity,
        " ".join((*found.flags, *found.tuning)),
        target.host().fingerprint,
        f"{lanes} {precision} {block_bits}",
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
            _contents(source, shared, kernel, compile_to)
            try:
                library = ctypes.CDLL(memory)
            except OSError as error:
                _refuse_unmappable(shared, error)
                _make(source, shared, kernel, compile_to, f"cannot be loaded ({error})", _identity(shared))
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
    head += _define_block_bits(block_bits)
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
    parts = (_FORMAT, version.__version__, found.identity, device, head, gpu_prelude(), _strip(text))
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:20]
    key = f"{re.sub(r'[^A-Za-z0-9_]', '_', name)[:40]}-{digest}"

    def compile_to(source: Path, image: Path) -> None:
        image.write_bytes(found.compile(with_gpu_prelude(source.read_text()), name, architecture))

    with _guard:
        directory = cache_directory()
        source, image = directory / f"{key}.cu", directory / f"{key}.bin"
        return _contents(source, image, f"{head}\n{text}", compile_to), source


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


@dataclass(frozen=True)
class _Compiled:
    """What is compiled, as the cache keeps it: machine code, and a name for the source that it was made from.

    Its digest also covers the name of the file, so that no kernel can stand in for another one. A loader ignores what
    follows an object; a driver is given the code only, since it is not told where an image ends and may crash on a damaged one.
    """

    code: bytes
    origin: bytes

    def seal(self, file: str) -> bytes:
        """What follows the code in the file of this name."""
        digest = hashlib.sha256(b"\0".join((file.encode(), self.origin, self.code))).digest()
        return self.origin + digest + _MARK

    @classmethod
    def read(cls, path: Path) -> _Compiled:
        """Raises ValueError that says what is wrong with the file, OSError."""
        file = _contents_of(path)
        at = len(file) - 2 * _DIGEST - len(_MARK)
        if at < 0 or not file.endswith(_MARK):
            raise ValueError(f"{len(file)} bytes do not end with a digest")
        found = cls(file[:at], file[at : at + _DIGEST])
        if found.seal(path.name) != file[at:]:
            raise ValueError("its digest is that of other contents")
        return found


def _last_line(source: Path) -> str:
    """The end of this source, by which it is told from a truncated one and from that of another kernel."""
    return f"// the end of {source.name}; without this line the file is taken for damaged and written anew\n"


def _origin(kernel: str) -> bytes:
    return hashlib.sha256(_strip(kernel).strip().encode()).digest()


def _contents(source: Path, result: Path, kernel: str, compile_to: Callable[[Path, Path], None]) -> bytes:
    """The machine code in `result`, compiled where it is missing, damaged or older than its source.

    There are warnings where it was damaged, and where somebody has edited the source. Raises CompileError.
    """
    compiled = _current(source, result)
    if not isinstance(compiled, _Compiled):
        compiled = _make(source, result, kernel, compile_to, compiled)
    if compiled.origin != _origin(kernel):
        _warn(f"{source} was edited and is used as it is; remove it to have what jali generates")
    return compiled.code


def _current(source: Path, result: Path) -> _Compiled | str:
    """What was compiled, or what is wrong with it: nothing to speak of ("") if it is missing or its source is newer."""
    try:
        if source.stat().st_mtime_ns > result.stat().st_mtime_ns:
            return ""
        return _Compiled.read(result)
    except FileNotFoundError:
        return ""
    except (ValueError, OSError) as error:
        return f"is damaged ({error})"


def _make(
    source: Path,
    result: Path,
    kernel: str,
    compile_to: Callable[[Path, Path], None],
    wrong: str = "",
    useless: tuple[int, int] | None = None,
) -> _Compiled:
    """Write `source` unless somebody keeps an edited one there, and compile it to `result`; one process does, others wait.

    `wrong` is what is wrong with the result there, for a warning; `useless` its identity if its digest does not show it.
    """
    directory = source.parent
    try:
        with _locked(directory / f"{result.stem}.lock"):
            found = _current(source, result)
            if isinstance(found, _Compiled) and _identity(result) != useless:
                return found  # made while we waited
            for left in directory.glob(f".{result.name}.*"):
                left.unlink(missing_ok=True)  # by processes that were killed
            if wrong:
                _warn(f"{result} {wrong}; it is made again")
            kept = _kept_source(source, kernel)
            made_from = source.stat().st_mtime_ns
            temporary = _beside(result)
            try:
                compile_to(source, temporary)
                compiled = _Compiled(temporary.read_bytes(), _origin(kept))
                with open(temporary, "ab") as file:
                    file.write(compiled.seal(result.name))
                _make_ours(temporary)
                # As old as its source, so that a source edited meanwhile is newer, whatever the clocks say.
                os.utime(temporary, ns=(made_from, made_from))
                os.replace(temporary, result)
            finally:
                temporary.unlink(missing_ok=True)
            return compiled
    except OSError as error:
        raise _unwritable(directory, error) from None


def _kept_source(source: Path, kernel: str) -> str:
    """The kernel in `source`, edited or not, which is written where there is none."""
    try:
        kept = _contents_of(source).decode(errors="replace")
        wrong = "its last line is missing" if kept else ""
    except FileNotFoundError:
        kept = wrong = ""
    except ValueError as error:
        kept, wrong = "", str(error)
    text, end, after = kept.rpartition(_last_line(source).strip())
    if end and not after.strip() and "\0" not in text:
        return text
    if wrong:
        aside = source.with_name(f"{source.name}.damaged")
        os.replace(source, aside)
        _warn(f"{source} is damaged ({wrong}); it is written anew, and was moved to {aside}")
    _write(source, f"{kernel.rstrip()}\n{_last_line(source)}")
    return kernel


def _write_prelude(path: Path) -> None:
    """Write the file that all sources include, unless it is there as it has to be."""
    try:
        if _contents_of(path) == prelude().encode():
            return
        _warn(f"{path} is damaged (it differs from what jali brings along); it is written anew")
    except FileNotFoundError:
        pass
    except ValueError as error:
        _warn(f"{path} is damaged ({error}); it is written anew")
    _write(path, prelude())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that is this file, which goes afterwards. Raises OSError."""
    while True:
        with open_lock(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever held it has removed it, and somebody else may have made another one.
            if _identity(path) != _identity(lock.fileno()):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def _identity(file: Path | int) -> tuple[int, int] | None:
    """Equal for one and the same file; None for none."""
    try:
        status = os.stat(file)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def _unwritable(directory: Path, error: OSError) -> CompileError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = "free some space or set JALI_CACHE_DIR" if full else "set JALI_CACHE_DIR to a directory of yours"
    return CompileError(f"the kernel cache {directory} cannot be written: {error.strerror}; {advice}")


def _warn(what: str) -> None:
    warnings.warn(f"the kernel cache: {what}", RuntimeWarning, stacklevel=2)


def _beside(path: Path) -> Path:
    """The name of a temporary file that nobody else has, on whichever host."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}")


def _make_ours(path: Path) -> None:
    """Whatever the umask permits, nobody else may write what this user runs."""
    os.chmod(path, stat.S_IMODE(path.stat().st_mode) & ~0o022)


def _contents_of(path: Path) -> bytes:
    """Raises ValueError for what is no file, or one that somebody else has put or could have changed here, OSError."""
    try:
        with reading(str(path)) as fd:
            status = os.fstat(fd)
            if status.st_uid not in (os.getuid(), 0):
                raise ValueError("it belongs to another user")
            if status.st_mode & 0o002:
                raise ValueError("it can be written by others")
        return read_bytes(path, _MOST, "this")
    except FileFormatError as error:
        raise ValueError(str(error)) from None


def _write(path: Path, text: str) -> None:
    """Writes a file so that other processes see all of it or none."""
    temporary = _beside(path)
    try:
        temporary.write_text(text)
        _make_ours(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
