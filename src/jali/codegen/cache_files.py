"""Files of the kernel cache: what is compiled, sealed with a digest, beside its source, which may be edited.

One process compiles, others wait on a file lock and load what it made. Files appear complete, by a rename, and are never changed;
what is damaged, or could have been changed by others, is made again.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from jali.errors import CompileError, FileFormatError
from jali.files import open_lock, read_bytes, reading

_MARK = b"\njali-2\n"  # the end of what is compiled, behind two digests
_DIGEST = hashlib.sha256().digest_size
_MOST = 1 << 30  # bytes of a file here; far more than any kernel has


def without_comments(text: str) -> str:
    """The text without comments: who is bound to a kernel does not make another kernel."""
    return re.sub(r"//[^\n]*", "", text)


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
        file = contents_of(path)
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
    return hashlib.sha256(without_comments(kernel).strip().encode()).digest()


def contents(source: Path, result: Path, kernel: str, compile_to: Callable[[Path, Path], None]) -> bytes:
    """The machine code in `result`, compiled where it is missing, damaged or older than its source.

    There are warnings where it was damaged, and where somebody has edited the source. Raises CompileError.
    """
    compiled = _current(source, result)
    if not isinstance(compiled, _Compiled):
        compiled = make(source, result, kernel, compile_to, compiled)
    if compiled.origin != _origin(kernel):
        warn(f"{source} was edited and is used as it is; remove it to have what jali generates")
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


def make(
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
            if isinstance(found, _Compiled) and identity(result) != useless:
                return found  # made while we waited
            for left in directory.glob(f".{result.name}.*"):
                left.unlink(missing_ok=True)  # by processes that were killed
            if wrong:
                warn(f"{result} {wrong}; it is made again")
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
        kept = contents_of(source).decode(errors="replace")
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
        warn(f"{source} is damaged ({wrong}); it is written anew, and was moved to {aside}")
    write(source, f"{kernel.rstrip()}\n{_last_line(source)}")
    return kernel


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold the lock that is this file, which goes afterwards. Raises OSError."""
    while True:
        with open_lock(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # Whoever held it has removed it, and somebody else may have made another one.
            if identity(path) != identity(lock.fileno()):
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def identity(file: Path | int) -> tuple[int, int] | None:
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


def warn(what: str) -> None:
    """A warning about a file of the cache."""
    warnings.warn(f"the kernel cache: {what}", RuntimeWarning, stacklevel=2)


def _beside(path: Path) -> Path:
    """The name of a temporary file that nobody else has, on whichever host."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}")


def _make_ours(path: Path) -> None:
    """Whatever the umask permits, nobody else may write what this user runs."""
    os.chmod(path, stat.S_IMODE(path.stat().st_mode) & ~0o022)


def contents_of(path: Path) -> bytes:
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


def write(path: Path, text: str) -> None:
    """Writes a file so that other processes see all of it or none."""
    temporary = _beside(path)
    try:
        temporary.write_text(text)
        _make_ours(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
