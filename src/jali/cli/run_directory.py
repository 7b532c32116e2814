"""The directory of a run: the files of a run, and tables that grow by rows and can be reset to a
checkpoint.

A checkpoint keeps a mark of each table: its length and digest. Resuming cuts the table off there, so that
rows after the checkpoint are made again, and refuses a table that is not the one that the checkpoint belongs
to. One process at a time holds a run's directory, from before its first file on. Only rank 0 uses this.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jali import io
from jali.cli.hmc_summary import (
    FORCE_COLUMNS,
    FORCES,
    KICK_COLUMNS,
    KICKS,
    SCALAR_FORCE_COLUMNS,
    SCALAR_FORCES,
    TRAJECTORIES,
    TRAJECTORY_COLUMNS,
)
from jali.cli.parameters import render_parameters
from jali.cli.report_data import FLOW_COLUMNS, HISTORY_COLUMNS, TIMING_COLUMNS
from jali.cli.scalar_summary import SCALAR_COLUMNS, SCALARS
from jali.cli.schema import HMC, RunParameters
from jali.errors import FileFormatError, ParameterError
from jali.files import shown
from jali.io.boxes import write_all
from jali.io.ensemble import CHECKPOINT, CONFIGURATIONS, MANIFEST
from jali.io.ensemble import COLUMNS as ENSEMBLE_COLUMNS
from jali.io.parallel import RankGroup, together
from jali.io.writing import TEMPORARY, create_beside

ENSEMBLE = f"{CONFIGURATIONS}/{Path(MANIFEST).stem}"
"""The table of the configurations that are saved."""
TABLES = {
    "history": HISTORY_COLUMNS,
    "timing": TIMING_COLUMNS,
    "flow": FLOW_COLUMNS,
    TRAJECTORIES: TRAJECTORY_COLUMNS,
    FORCES: FORCE_COLUMNS,
    SCALARS: SCALAR_COLUMNS,
    SCALAR_FORCES: SCALAR_FORCE_COLUMNS,
    KICKS: KICK_COLUMNS,
    ENSEMBLE: ENSEMBLE_COLUMNS,
}

PARAMETERS, REPORT = "parameters.toml", "report.html"

LOCK = ".lock"  # locked by the process that writes the run, and there while it does


def tables_of(parameters: RunParameters) -> list[str]:
    """The tables that a run with these parameters keeps."""
    hmc = parameters.update.algorithm == HMC
    forces, scalars = hmc and parameters.hmc.forces_every > 0, bool(parameters.hmc.scalars)
    wanted = {
        "flow": parameters.measure.flow,
        TRAJECTORIES: hmc,
        FORCES: forces,
        KICKS: hmc,
        SCALARS: scalars,
        SCALAR_FORCES: scalars and forces,
        ENSEMBLE: parameters.run.save_every > 0,
    }
    return [name for name in TABLES if wanted.get(name, True)]


def csv_field(value: float | str | None) -> str:
    """A number as the tables hold it: shortest exact decimal form; nothing where there is no value. Names as they are."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    return value if isinstance(value, str) else repr(value)


class Table:
    """A CSV file that is written row by row, each row complete and flushed before the next."""

    def __init__(self, path: Path, fd: int, length: int, digest: Any) -> None:
        self.path = path
        self._fd = fd
        self._length = length
        self._digest = digest

    @classmethod
    def create(cls, path: Path, columns: Sequence[str]) -> Table:
        """A new table with a header line, its folder included. Raises FileExistsError, OSError."""
        path.parent.mkdir(exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        table = cls(path, fd, 0, hashlib.sha256())
        table._write((",".join(columns) + "\n").encode())
        return table

    @classmethod
    def reopen(cls, path: Path, mark: Mapping[str, Any]) -> Table:
        """The table as it was at `mark`; what follows is cut off.

        Raises FileFormatError if it is missing or its beginning has changed, OSError.
        """
        length, digest, at = int(mark["bytes"]), hashlib.sha256(), 0
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            gone = path if path.parent.exists() else path.parent
            raise FileFormatError(
                f"{shown(gone)} is gone, and going on does not make again what the first {length} bytes of {path.name} "
                "held at the checkpoint. Put it back to resume this run, or begin another one from its links: "
                "jali convert DIR links.ildg, then --set start=file --set start_file=links.ildg"
            ) from None
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

    def append(self, rows: Sequence[Sequence[float | str | None]]) -> None:
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


class HeldDirectory:
    """The directory of a run, which no other process writes to until this is closed; remembers what was made in it."""

    def __init__(self, directory: Path, lock: int, made: bool) -> None:
        self.directory = directory
        self._lock = lock
        self._made_directory = made
        self._made: list[Path] = []

    @classmethod
    def for_new_run(cls, directory: Path) -> HeldDirectory:
        """Make the directory if it does not exist.

        Raises ParameterError if it holds (part of) a run or another process has it, OSError if it cannot be made
        or written.
        """
        if directory.exists() and not directory.is_dir():
            raise ParameterError(f"cannot write a run to {shown(directory)}: it is a file, not a directory")
        made = False
        try:
            for attempt in reversed(range(10)):
                with contextlib.suppress(FileExistsError):
                    directory.mkdir(parents=True)
                    made = True
                try:
                    lock = _locked(directory)
                    break
                except FileNotFoundError:
                    # Another process may just have taken back a run that it could not begin, with its directory.
                    if attempt == 0:
                        raise
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise OSError(error.errno, f"cannot write a run to {shown(directory)}: {reason}") from error
        names = [PARAMETERS, CHECKPOINT, REPORT, *(f"{name}.csv" for name in TABLES)]
        found = [name for name in names if (directory / name).exists()]
        held = cls(directory, lock, made)
        if found:
            held.__exit__()
            way = (
                f"jali run --resume {shown(directory)} continues it, another --output begins a new one"
                if (directory / CHECKPOINT / "manifest.json").exists()
                else "remove it, or give another --output"
            )
            raise ParameterError(f"{shown(directory)} holds a run already ({', '.join(found)}); {way}")
        return held

    @classmethod
    def of_run(cls, directory: Path) -> HeldDirectory:
        """For going on with a run. Raises ParameterError if another process has it, OSError."""
        return cls(directory, _locked(directory), False)

    def create_parameters(self, parameters: RunParameters) -> None:
        """Write parameters.toml, as understood. Raises FileExistsError, OSError."""
        path = self.directory / PARAMETERS
        with open(path, "x", encoding="utf-8") as file:
            self._made.append(path)
            file.write(render_parameters(parameters))

    def create_table(self, name: str) -> Table:
        """A new table of the run. Raises FileExistsError, OSError."""
        table = Table.create(self.directory / f"{name}.csv", TABLES[name])
        self._made.append(table.path)
        return table

    def discard(self) -> None:
        """Take back a run that has no checkpoint: what was made here, and the directory if that was made for it."""
        if (self.directory / CHECKPOINT / "manifest.json").exists():
            return
        with contextlib.suppress(OSError):
            for path in self._made:
                path.unlink(missing_ok=True)
            for name in (CHECKPOINT, CONFIGURATIONS):
                with contextlib.suppress(FileNotFoundError):
                    (self.directory / name).rmdir()
            self._remove_lock()
            if self._made_directory:
                self.directory.rmdir()

    def __enter__(self) -> HeldDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self._remove_lock()
        os.close(self._lock)

    def _remove_lock(self) -> None:
        # After `discard` there may be another process's.
        path = self.directory / LOCK
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self._lock), os.stat(path)):
                path.unlink()


@contextlib.contextmanager
def lock_folder(directory: Path, ranks: RankGroup) -> Iterator[None]:
    """Holds a folder, on the first rank, against other processes that write into it. Raises ParameterError on all ranks where one does."""
    with together(ranks):
        lock = _locked(directory) if ranks.rank == 0 else -1
    try:
        yield
    finally:
        if ranks.rank == 0:
            with contextlib.suppress(OSError):
                (directory / LOCK).unlink()
            os.close(lock)


def _locked(directory: Path) -> int:
    """A descriptor of the directory's lock, which is held until it is closed.

    Raises ParameterError if another process holds it, OSError if it cannot be written.
    """
    path = directory / LOCK
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Its holder has removed it in the meantime.
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except FileNotFoundError:
            pass
        except BlockingIOError:
            os.close(fd)
            raise ParameterError(
                f"{shown(directory)} is being written by another process: is this run still going on?"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                os.close(fd)
                raise
            warnings.warn(
                f"the file system of {directory} knows no locks ({error.strerror}): take care that no other process "
                "resumes this run while it goes on",
                RuntimeWarning,
                stacklevel=2,
            )
            return fd
        os.close(fd)


def remove_half_written(directory: Path) -> None:
    """Remove what a killed run has left of the configuration that it was writing; the caller holds the directory."""
    for path in (directory / CONFIGURATIONS).glob(".*.tmp"):
        if TEMPORARY.fullmatch(path.name):
            path.unlink()


def check_saved(directory: Path) -> None:
    """Raise FileFormatError if the manifest names a file that is not the one that was saved.

    Missing files have been moved elsewhere, which is not an error.
    """
    for saved in io.saved_configurations(directory):
        if os.path.exists(saved.path):
            mismatch = saved.mismatch(io.open_configuration(saved.path))
            if mismatch:
                raise FileFormatError(mismatch)


def replace_parameters(directory: Path, parameters: RunParameters) -> None:
    """Write parameters.toml, as understood, in place of an older one. Raises OSError."""
    target = directory / PARAMETERS
    beside = Path(create_beside(str(target)))
    try:
        beside.write_text(render_parameters(parameters), encoding="utf-8")
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
