"""The folder of `jali spectrum`: its parameters, and a file for the results of each configuration.

A result is named by the digest of the configuration's file, and has the digest of the parameters that it was measured with and a checksum of itself: what was changed
by hand, cut off or measured with other parameters is refused, not taken.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jali.cli.run_directory import LOCK, lock_folder
from jali.comm import Communicator
from jali.errors import FileFormatError, ParameterError
from jali.files import read_bytes, shown
from jali.io.ensemble import checkpoint_folder
from jali.io.parallel import together
from jali.io.writing import write_file

PARAMETERS, RESULTS, SUMMARY, REPORT = "parameters.json", "results", "spectrum.json", "report.html"
OWN = {PARAMETERS, RESULTS, SUMMARY, REPORT, LOCK}
MOST_BYTES = 1 << 30  # of a result


class ResultFolder:
    """A folder that one process writes, with all its ranks. The first rank reads and writes; all raise what it raises."""

    def __init__(self, path: Path, ranks: Communicator):
        self.path, self.ranks = path, ranks

    @classmethod
    @contextlib.contextmanager
    def opened(cls, name: str, ranks: Communicator) -> Iterator[ResultFolder]:
        """The folder of this name, made if it is missing. Raises ParameterError for one that holds other files, and where another process
        writes it."""
        folder = cls(Path(name), ranks)
        with together(ranks):
            if ranks.rank == 0:
                folder._make(name)
        with lock_folder(folder.path, ranks):
            yield folder

    def _make(self, name: str) -> None:
        if not name.strip():
            raise ParameterError("--output names a folder")
        path = self.path
        if path.exists() and not path.is_dir():
            raise ParameterError(f"--output: {shown(name)} is a file, no folder; name another one")
        others = sorted({p.name for p in path.iterdir()} - OWN) if path.exists() else []
        if others or (path.exists() and any(path.iterdir()) and not (path / RESULTS).is_dir()):
            what = f"{shown(others[0])} and others" if len(others) > 1 else shown((others or [REPORT])[0])
            raise ParameterError(
                f"--output: {shown(name)} holds {what}, which jali spectrum has not written; name an empty folder, or a new one"
            )
        try:
            (path / RESULTS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ParameterError(
                f"--output: {shown(name)} cannot be made: {os.strerror(error.errno or 0)}"
            ) from None

    # ---- parameters ----------------------------------------------------------------------------------------

    def stored_parameters(self) -> dict[str, Any] | None:
        """The parameters of the results that are here, the same on all ranks; None where there are no results. Raises FileFormatError for results
        without parameters."""
        with together(self.ranks):
            text = "null"
            if self.ranks.rank == 0 and any((self.path / RESULTS).glob("*.json")):
                path = self.path / PARAMETERS
                try:
                    found = json.loads(read_bytes(path, MOST_BYTES, "the parameters"))
                    text = json.dumps(dict(found))
                except FileNotFoundError:
                    raise FileFormatError(
                        f"{shown(str(self.path))} has results and no {PARAMETERS}: give another --output"
                    ) from None
                except (ValueError, TypeError, RecursionError):
                    raise FileFormatError(f"{shown(str(path))} is not what jali spectrum writes") from None
        return json.loads(self.ranks.broadcast_bytes(text.encode(), 0))

    def agree(self, parameters: dict[str, Any], stored: dict[str, Any] | None) -> None:
        """Writes the parameters of a folder without results, and compares them with those of one that has some. Raises ParameterError for others."""
        if stored is None:
            with together(self.ranks):
                if self.ranks.rank == 0:
                    write_file(self.path / PARAMETERS, document(parameters))
            return
        for name, there, here in _differences(stored, json.loads(document(parameters))):
            raise ParameterError(
                f"{shown(str(self.path))} has results of {name} {json.dumps(there)}, and these are of {json.dumps(here)}: give another --output"
            )

    # ---- results -------------------------------------------------------------------------------------------

    def _path_of(self, digest: str) -> Path:
        return self.path / RESULTS / f"{digest}.json"

    def read(self, digest: str, parameters: dict[str, Any]) -> dict[str, Any] | None:
        """The result of a configuration, the same on all ranks; None where there is none. Raises FileFormatError for one that is damaged or of other
        parameters."""
        with together(self.ranks):
            text = "null"
            path = self._path_of(digest)
            if self.ranks.rank == 0 and path.exists():
                try:
                    found = dict(json.loads(read_bytes(path, MOST_BYTES, "a result")))
                    own = (found.pop("checksum"), found["digest"], found.pop("parameters"))
                except (ValueError, KeyError, TypeError, RecursionError):
                    own = ("", "", "")
                    found = {}
                if own != (checksum_of(found, parameters), digest, digest_of(parameters)):
                    raise FileFormatError(
                        f"{shown(str(path))} is no result of jali spectrum with these parameters, or was changed: remove it, and its configuration is measured again"
                    )
                text = json.dumps(found)
        return json.loads(self.ranks.broadcast_bytes(text.encode(), 0))

    def write(self, result: dict[str, Any], parameters: dict[str, Any]) -> None:
        """Writes a result, on the first rank."""
        own = {"checksum": checksum_of(result, parameters), "parameters": digest_of(parameters)}
        with together(self.ranks):
            if self.ranks.rank == 0:
                write_file(self._path_of(result["digest"]), document({**own, **result}))


def digest_of_file(path: str) -> str:
    """SHA-256 of a configuration's file; of a run's folder that of its checkpoint, of another folder that of its files with their names."""
    total = hashlib.sha256()
    if os.path.isdir(path):
        path = checkpoint_folder(path)
        for folder, names, files in sorted(os.walk(path)):
            names.sort()
            for name in sorted(files):
                place = os.path.join(folder, name)
                total.update(os.fsencode(os.path.relpath(place, path)))
                _take(total, place)
    else:
        _take(total, path)
    return total.hexdigest()[:16]


def _take(total: Any, path: str) -> None:
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            total.update(block)


def document(values: dict[str, Any]) -> bytes:
    """JSON, the same bytes for the same values."""
    return (json.dumps(values, indent=1, allow_nan=False) + "\n").encode()


def digest_of(values: dict[str, Any]) -> str:
    """SHA-256 of values of JSON."""
    return hashlib.sha256(document(values)).hexdigest()[:16]


def checksum_of(result: dict[str, Any], parameters: dict[str, Any]) -> str:
    """Of a result, whose numbers JSON keeps to the last bit."""
    return digest_of({"result": result, "parameters": digest_of(parameters)})


def _differences(a: dict[str, Any], b: dict[str, Any], name: str = "") -> Sequence[tuple[str, Any, Any]]:
    """Keys whose values differ, and the values."""
    found: list[tuple[str, Any, Any]] = []
    for key in b:
        if isinstance(a.get(key), dict) and isinstance(b[key], dict):
            found += _differences(a[key], b[key], f"{name}{key} ")
        elif a.get(key) != b[key]:
            found.append((f"{name}{key}", a.get(key), b[key]))
    return found
