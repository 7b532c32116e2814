"""Files named by users: what can be read, how much of it, and how messages show names.

A name may lead to a pipe, a device or nothing, hold characters that no file system takes, or belong to a file that does not
fit into memory. Each of these is one exception with one line here, so that no reader hangs, crashes or fills the memory
because of it. Does not depend on formats.
"""

from __future__ import annotations

import errno
import importlib
import math
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from jali.errors import FileFormatError, ParameterError

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_LONGEST_NAME = 300

# New lines would look like other messages, escape sequences would be obeyed by terminals.
RECORD = "\x1e"  # ASCII's separator of records, between the messages of an error that has several
CONTROL = {code: repr(chr(code))[1:-1] for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


def checked_path(path: str | os.PathLike[str]) -> str:
    """The path as a string. Raises ParameterError for an impossible file name, and for objects that are not names."""
    try:
        name = os.fsdecode(path)
    except TypeError:
        raise ParameterError(f"the path of a file is a text, not {value_shown(path)}") from None
    if "\0" in name:
        raise ParameterError(f"the path '{shown(name)}' holds a NUL character, which no file's name can")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise ParameterError(
            f"the path '{shown(name)}' holds characters that no file's name here can"
        ) from None
    return name


def shown(text: object, most: int = _LONGEST_NAME) -> str:
    """A text for a message, always in one line, shortened in the middle where it is very long."""
    words = str(text).translate(CONTROL)
    if len(words) <= most:
        return words
    return f"{words[: most // 2]}...{words[-most // 4 :]} ({len(words)} characters)"


def name_shown(name: object) -> str:
    """A user's choice among several names, in a form for the core and for errors: short, in characters of UTF-8."""
    text = name if isinstance(name, str) else value_shown(name)
    return shown(text.encode(errors="backslashreplace").decode(), 80)


def open_to_read(path: str) -> int:
    """A descriptor of a regular file. Raises FileFormatError for anything else, without waiting for it, and OSError."""
    _refuse_other_kinds(path, os.stat(path))
    # A pipe that took the name in between must not keep us.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _refuse_other_kinds(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


@contextmanager
def reading(path: str) -> Iterator[int]:
    """`open_to_read`, closed in the end."""
    fd = open_to_read(path)
    try:
        yield fd
    finally:
        os.close(fd)


def read_bytes(path: str | os.PathLike[str], most: int, what: str) -> bytes:
    """The contents of a regular file of at most `most` bytes, `what` being what it should be.

    Raises ParameterError, FileFormatError, and OSError with a message that names the path.
    """
    name = checked_path(path)
    try:
        with reading(name) as fd:
            size = os.fstat(fd).st_size
            if size > most:
                raise FileFormatError(f"{shown(name)}: {size} bytes are too many for {what}")
            data = b""
            while len(data) < size and (more := os.pread(fd, size - len(data), len(data))):
                data += more
    except OSError as error:
        raise OSError(error.errno, f"cannot read {shown(name)}: {os.strerror(error.errno or 0)}") from error
    return data


def package_for(path: str, what: str, name: str, extra: str) -> Any:
    """The package that files of this kind ("HDF5 files") are read and written by. Raises ParameterError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ParameterError(
            f'{path}: {what} need the package {name}, which is not here ({error}): pip install "jali[{extra}]"'
        ) from None


@contextmanager
def read_by(reader: str, path: str) -> Iterator[None]:
    """Any error of a library inside is an error of the file: FileFormatError."""
    try:
        yield
    except (FileFormatError, ParameterError):
        raise
    except (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        raise FileFormatError(f"{path}: {reader} cannot read it: {shown(error)}") from error


def open_lock(path: str | os.PathLike[str]) -> TextIO:
    """A file to be locked, made if it is missing, without waiting for whom a pipe of that name would lead to. Raises OSError."""
    return open(
        path, "w", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    )


def parse_toml(text: str, source: str) -> dict[str, Any]:
    """The tables of a TOML text; a byte order mark in front is left out. Raises ParameterError that begins with `source`."""
    import tomllib  # most programs read no TOML

    try:
        return tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ParameterError(f"{source} is not TOML: {shown(error)}") from None
    except RecursionError:
        raise ParameterError(f"{source} is nested too deeply") from None
    except ValueError as error:  # numbers with more digits than Python reads, impossible dates
        reason = "a number has too many digits" if "digits" in str(error) else shown(error)
        raise ParameterError(f"{source} is not TOML: {reason}") from None


def value_shown(value: Any) -> str:
    """A value from a file, a command line or a caller for a message, however long or deep it is; of an array its shape and type."""
    if is_array(value):
        kind = type(value)
        return f"a {kind.__module__}.{kind.__qualname__} of shape {tuple(value.shape)} and type {value.dtype}"
    if isinstance(value, list | tuple) and _holds_numbers_of_arrays(value):
        return f"a {type(value).__name__} of {len(value)}, the first {value_shown(value[0])}"
    if type(value) is int and abs(value) >= 1 << 256:
        return f"a number of {value.bit_length()} bits"
    try:
        return shown(repr(value), 300 if type(value).__module__.startswith("jali.") else 80)
    except RecursionError:
        return "something nested very deeply"
    except ValueError:
        return "a number with thousands of digits"
    except Exception:  # its class fails to describe it: the error at hand is the one to report
        return f"a {type(value).__module__}.{type(value).__qualname__} that cannot be shown"


def _holds_numbers_of_arrays(value: Any, depth: int = 3) -> bool:
    """Whether one of the first elements of a list is an array, a number of one, or such a list."""
    if not isinstance(value, list | tuple) or depth == 0:
        return is_array(value) or type(value).__module__ == "numpy"
    return any(_holds_numbers_of_arrays(one, depth - 1) for one in value[:3])


def is_array(value: Any) -> bool:
    """Whether this is an array of NumPy or of another library, which shows its contents; jali's own show their
    shapes."""
    kind = type(value)
    shape = getattr(value, "shape", None) if hasattr(kind, "shape") and hasattr(kind, "dtype") else None
    return isinstance(shape, tuple) and len(shape) > 0 and not kind.__module__.startswith("jali.")


def memory_here() -> int:
    """Bytes of memory that this process could have at most: the machine's, or its control group's limit."""
    most = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(name, encoding="ascii") as file:
                most = min(most, int(file.read()))
        except (OSError, ValueError):
            continue
    return most


def require_memory(what: str, needed: int) -> None:
    """Raises ParameterError if `needed` bytes on this rank are more than there is memory."""
    if needed > memory_here():
        raise ParameterError(
            f"{what} need {in_words(needed)} on this rank, more than the {in_words(memory_here())} of this machine; "
            "use more ranks on more machines"
        )


def in_words(count: int) -> str:
    """A number of bytes as text."""
    if count < 1024:
        return f"{count} B"
    unit = min(int(math.log2(count)) // 10, 6)
    return f"{count / (1 << (10 * unit)):.3g} {('KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB')[unit - 1]}"


def _refuse_other_kinds(path: str, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "something else")
        raise FileFormatError(f"{shown(path)} is {kind}, not a file")
