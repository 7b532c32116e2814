"""Values of fields that a tape keeps in files: of each rank its own part, bit for bit, in a folder that goes with the tape."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import graph_recorder, tape_recorder
from jali.errors import ParameterError, TraceError
from jali.files import shown, value_shown
from jali.io.parallel import together
from jali.lattice.field import Field


@dataclass(frozen=True)
class Stored:
    """A value in a file."""

    path: Path
    format: tuple[str, int]

    def read_into(self, field: Field) -> Field:
        """Sets a field to the value. Raises OSError."""
        with tape_recorder.recording(None):
            with together(field.lattice.communicator):
                sites = np.load(self.path)
            return field.set_stored_bytes(sites, self.format)

    def remove(self) -> None:
        """Deletes the file."""
        self.path.unlink(missing_ok=True)


class Folder:
    """Where a tape writes. The files of a rank are in a folder of its own inside of the given one, which is deleted with this object."""

    def __init__(self, path: Any):
        if not isinstance(path, str | os.PathLike):
            raise ParameterError(f"disk= is a folder, not {value_shown(path)}")
        self._given = Path(path)
        if not self._given.is_dir():
            raise ParameterError(f"disk= is a folder that exists, and {shown(str(path))} is none")
        self._own: tempfile.TemporaryDirectory[str] | None = None
        self._count = 0

    def write(self, field: Field) -> Stored:
        """Writes what a field holds. Raises OSError on all ranks."""
        if graph_recorder.current() is not None:
            raise TraceError("a tape in a graph keeps no values on disk: record the tape without disk=")
        with tape_recorder.recording(None):
            sites = field.stored_bytes()
        with together(field.lattice.communicator):
            if self._own is None:
                self._own = tempfile.TemporaryDirectory(prefix="jali-tape-", dir=self._given)
            path = Path(self._own.name) / f"{self._count}.npy"
            np.save(path, sites)
        self._count += 1
        return Stored(path, field.format)

    def close(self) -> None:
        """Deletes all files."""
        if self._own is not None:
            self._own.cleanup()
            self._own = None
