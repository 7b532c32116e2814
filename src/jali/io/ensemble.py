"""What the folder of a run holds of configurations: those it has saved, and its checkpoint.

Saved configurations are files of `configurations/`, and `configurations/manifest.csv` has a row for each: number of
the update, name, format, plaquette and the checksum that stands in the file. A row is written when its file is
complete, so what the manifest lists is there; a last line that lacks its end is no row yet. Runs write them
(`jali.cli.run_directory`); here they are named and read.
"""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass

from jali.errors import FileFormatError
from jali.files import read_bytes, shown

from .checkpoint import Checkpoint, FieldInfo
from .configuration import ConfigurationFile
from .formats import writers

CONFIGURATIONS, MANIFEST = "configurations", "manifest.csv"
COLUMNS = ("number", "file", "format", "plaquette", "checksum")

CHECKPOINT = "checkpoint"
LINKS = "links"
"""The field of a run's checkpoint that is its gauge field."""

_DIGITS = 8
_MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class SavedConfiguration:
    """A row of a manifest: `number` counts updates, `checksum` is as `checksum_text` writes it."""

    number: int
    path: str
    format: str
    plaquette: float
    checksum: str

    @property
    def manifest(self) -> str:
        """Name of the manifest that has this row."""
        return os.path.join(os.path.dirname(self.path), MANIFEST)

    def mismatch(self, file: ConfigurationFile) -> str | None:
        """The fault of the file under this name; None if it is the one that was saved."""
        found = checksum_text(file)
        if found == self.checksum:
            return None
        return (
            f"{shown(self.path)} has the checksum {found or '(none)'}, the manifest says {self.checksum}: another file "
            "has taken the name of the configuration that was saved"
        )


def configuration_name(number: int, format: str) -> str:
    """The name of a saved configuration: the number, such that names sort like numbers, and the ending of the format."""
    endings = writers()[format].endings
    return f"{number:0{_DIGITS}d}{endings[0] if endings else f'.{format}'}"


def checksum_text(file: ConfigurationFile) -> str:
    """The checksum that a file carries, for a manifest: "scidac 01234567 89abcdef"."""
    return " ".join([file.checksum_kind or "", *(f"{value:08x}" for value in file.checksum)]).strip()


def saved_configurations(folder: str | os.PathLike[str]) -> list[SavedConfiguration]:
    """The configurations that a run has saved, in the order of their numbers; none where it saves none.

    `folder` is that of a run, or its `configurations`. Raises FileFormatError for a manifest that is none, OSError.
    """
    for path in (os.path.join(folder, CONFIGURATIONS), os.fspath(folder)):
        manifest = os.path.join(path, MANIFEST)
        if os.path.exists(manifest):
            return _read(manifest)
    return []


def newest_configuration(folder: str) -> SavedConfiguration | str:
    """The last configuration that a run has saved or, if there is none, the folder of its checkpoint, or itself.

    Raises FileFormatError where there is neither, OSError.
    """
    saved = saved_configurations(folder)
    return saved[-1] if saved else checkpoint_folder(folder)


def checkpoint_folder(folder: str) -> str:
    """The folder of a run's checkpoint, or itself if it is one. Raises FileFormatError where there is none."""
    for path in (os.path.join(folder, CHECKPOINT), folder):
        if os.path.exists(os.path.join(path, "manifest.json")):
            return path
    raise FileFormatError(
        f"{shown(folder)} is a directory, but neither a run nor a checkpoint (no manifest.json)"
    )


def links_of(checkpoint: Checkpoint) -> FieldInfo:
    """What a checkpoint holds as its gauge field. Raises FileFormatError where it has none."""
    info = checkpoint.fields.get(LINKS)
    shape = () if info is None else info.element_shape
    if info is None or len(shape) != 3 or shape[0] != len(checkpoint.lattice) or shape[1] != shape[2]:
        raise FileFormatError(
            f"{shown(checkpoint.path)} holds no gauge field (fields: {sorted(checkpoint.fields)})"
        )
    return info


def _read(manifest: str) -> list[SavedConfiguration]:
    try:
        text = read_bytes(manifest, _MOST_BYTES, "the manifest of an ensemble").decode()
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{manifest} is not a table: byte {error.start} is not UTF-8 text") from None
    lines = text.split("\n")[:-1]  # what follows the last end of a line is being written
    if not lines and ",".join(COLUMNS).startswith(text):
        return []  # so is the header
    if not lines or lines[0] != ",".join(COLUMNS):
        found = repr(lines[0]) if lines else "nothing"
        raise FileFormatError(f"{manifest}, line 1: the header is {shown(found)}, not {','.join(COLUMNS)!r}")
    saved: list[SavedConfiguration] = []
    for line, text_of_row in enumerate(lines[1:], start=2):
        try:
            ((number, name, format, plaquette, checksum),) = csv.reader([text_of_row])
            row = SavedConfiguration(
                int(number), os.path.join(os.path.dirname(manifest), name), format, float(plaquette), checksum
            )
        except (ValueError, csv.Error):
            raise FileFormatError(
                f"{manifest}, line {line}: {shown(text_of_row)!r} is not {', '.join(COLUMNS)}"
            ) from None
        if os.path.basename(name) != name or not name:
            raise FileFormatError(
                f"{manifest}, line {line}: {shown(name)!r} is not the name of a file beside it"
            )
        if saved and row.number <= saved[-1].number:
            raise FileFormatError(
                f"{manifest}, line {line}: configuration {row.number} follows {saved[-1].number}; numbers grow"
            )
        saved.append(row)
    return saved
