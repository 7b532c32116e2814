"""The directory of a run: which files are a run's, and tables that grow by rows and can go back to a
checkpoint.

A checkpoint keeps a mark of each table: its length and digest. Resuming cuts the table off there, so that
rows after the checkpoint are made again, and refuses a table that is not the one that the checkpoint belongs
to. Only rank 0 uses this.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jali.cli.parameters import render_parameters
from jali.cli.report_data import HISTORY_COLUMNS, TIMING_COLUMNS
from jali.cli.schema import Parameters
from jali.errors import FileFormatError, ParameterError
from jali.io.boxes import write_all

FLOW_COLUMNS = ("sweep", "flow_time", "energy", "energy_plaquette", "t2_energy", "charge")
TABLES = {"history": HISTORY_COLUMNS, "timing": TIMING_COLUMNS, "flow": FLOW_COLUMNS}

PARAMETERS, CHECKPOINT, REPORT = "parameters.toml", "checkpoint", "report.html"


def tables_of(parameters: Parameters) -> list[str]:
    """The tables that a run with these parameters keeps."""
    return [name for name in TABLES if name != "flow" or parameters.measure.flow]


def csv_field(value: float | None) -> str:
    """A number as the tables hold it: shortest exact decimal form; nothing where there is no value."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return repr(value)


class Table:
    """A CSV file that is written row by row, each row complete and flushed before the next."""

    def __init__(self, path: Path, fd: int, length: int, digest: Any) -> None:
        self.path = path
        self._fd = fd
        self._length = length
        self._digest = digest

    @classmethod
    def create(cls, path: Path, columns: Sequence[str]) -> Table:
        """A new table with a header line. Raises FileExistsError, OSError."""
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        _lock(fd, path)
        table = cls(path, fd, 0, hashlib.sha256())
        table._write((",".join(columns) + "\n").encode())
        return table

    @classmethod
    def reopen(cls, path: Path, mark: Mapping[str, Any]) -> Table:
        """The table as it was at `mark`; what follows is cut off.

        Raises FileFormatError if its beginning is not what it was, ParameterError if a running process has
        it, OSError.
        """
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        _lock(fd, path)
        length, digest, at = int(mark["bytes"]), hashlib.sha256(), 0
        while at < length and (chunk := os.pread(fd, min(length - at, 1 << 20), at)):
            digest.update(chunk)
            at += len(chunk)
        if at < length or digest.hexdigest() != mark["sha256"]:
            os.close(fd)
            found = f"ends after {at} bytes" if at < length else "has other contents"
            raise FileFormatError(
                f"{path} {found}, but the checkpoint belongs to a table whose first {length} bytes have "
                f"SHA-256 {mark['sha256'][:16]}...; was it edited? Restore it to resume this run"
            )
        os.ftruncate(fd, length)
        return cls(path, fd, length, digest)

    def append(self, rows: Sequence[Sequence[float | None]]) -> None:
        """Add rows; all of them or, if the disk is full, none. Raises OSError."""
        if rows:
            self._write("".join(",".join(map(csv_field, row)) + "\n" for row in rows).encode())

    def mark(self) -> dict[str, Any]:
        """Where the table stands now, safely on disk; for `reopen`."""
        os.fsync(self._fd)
        return {"bytes": self._length, "sha256": self._digest.hexdigest()}

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    def _write(self, text: bytes) -> None:
        try:
            write_all(self._fd, text, self._length)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._length)
            raise OSError(
                error.errno, f"cannot write {self.path}: {os.strerror(error.errno or 0)}"
            ) from error
        self._digest.update(text)
        self._length += len(text)


def _lock(fd: int, path: Path) -> None:
    """Keep the table for this process while it lives. Raises ParameterError if another one has it."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        raise ParameterError(
            f"{path} is being written by another process: is this run still going on?"
        ) from None
    except OSError:
        # Some network file systems know no locks; there is nothing to hold on to then.
        return


def refuse_if_running(directory: Path) -> None:
    """Raises ParameterError if a running process writes to this directory: its checkpoint may change at any moment."""
    path = directory / "history.csv"
    with contextlib.suppress(FileNotFoundError):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        _lock(fd, path)
        os.close(fd)


def prepare(directory: Path) -> bool:
    """Make sure that a new run can be written to `directory`; True if it had to be made.

    Raises ParameterError if it holds (part of) a run already, OSError if it cannot be made or written.
    """
    names = [PARAMETERS, CHECKPOINT, REPORT, *(f"{name}.csv" for name in TABLES)]
    if directory.exists() and not directory.is_dir():
        raise ParameterError(f"cannot write a run to {directory}: it is a file, not a directory")
    found = [name for name in names if (directory / name).exists()]
    if found:
        way = (
            f"jali run --resume {directory} continues it, another --output begins a new one"
            if (directory / CHECKPOINT / "manifest.json").exists()
            else "remove it, or give another --output"
        )
        raise ParameterError(f"{directory} holds a run already ({', '.join(found)}); {way}")
    made = not directory.exists()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / f".jali-{os.getpid()}.tmp"
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise OSError(error.errno, f"cannot write a run to {directory}: {reason}") from error
    return made


def write_parameters(directory: Path, parameters: Parameters) -> None:
    """Write parameters.toml, as understood, in place of an older one. Raises OSError."""
    beside = directory / f"{PARAMETERS}.new"
    beside.write_text(render_parameters(parameters), encoding="utf-8")
    os.replace(beside, directory / PARAMETERS)


def discard(directory: Path, tables: Iterable[str], made: bool) -> None:
    """Take back a run that has no checkpoint: parameters and tables, and the directory if it was `made` for it."""
    if (directory / CHECKPOINT / "manifest.json").exists():
        return
    names = [PARAMETERS, f"{PARAMETERS}.new", *(f"{name}.csv" for name in tables)]
    with contextlib.suppress(OSError):
        for name in names:
            (directory / name).unlink(missing_ok=True)
        if made:
            directory.rmdir()
