"""The kind of a command's input file, by its content, and the command that accepts it: for errors about files of the wrong kind.

A command checks before it reads (`refuse_other_kinds`). Files of unknown kind are left to the reader of the command, which
reports what is missing.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jali import io
from jali.cli.schema import parameter_specs
from jali.errors import FileFormatError, JaliError
from jali.files import checked_path, read_bytes, shown
from jali.io.arrays import holds_arrays
from jali.io.ensemble import checkpoint_folder, saved_configurations

MOST_BYTES = 1 << 20
"""Of files written by users."""
HEAD = 16


@dataclass(frozen=True)
class Kind:
    """A description of a file, and the command that accepts it."""

    words: str
    taken: str = ""

    def __str__(self) -> str:
        return f"{self.words}, which {self.taken}" if self.taken else self.words


RUN = Kind("the folder of a run", "`jali run --resume`, `jali measure` and `jali convert` take")
CONFIGURATION = Kind("a gauge configuration", "`jali measure` and `jali convert` take")
PARAMETERS = Kind("a parameter file", "`jali run` and `jali profile` take")
MACHINE = Kind("the description of a machine", "`--machine` of `jali plan`, `simulate` and `explain` takes")
RULES = Kind("a file of rules of collectives", "JALI_COLLECTIVE_RULES and `--rules` of `jali explain` name")
JSON = Kind("a JSON file")
TEXT = Kind("a text file")
FOLDER = Kind("a folder")
TOML = Kind("a TOML file")
EMPTY = Kind("empty")
PROGRAM = Kind("a program", "`jali mpirun` starts")
OTHERS = {
    b"\x89PNG": "a picture",
    b"%PDF": "a PDF file",
    b"PK\x03\x04": "a ZIP archive",
    b"\x1f\x8b": "a gzip archive",
}


def kind_of(path: str | os.PathLike[str]) -> Kind | None:
    """The kind of a file; None for an unknown one. Raises OSError, and FileFormatError for pipes and devices."""
    name = checked_path(path)
    if os.path.isdir(name):
        return RUN if _is_run(name) else FOLDER
    if holds_arrays(name):
        return CONFIGURATION
    size = os.stat(name).st_size
    if size == 0:
        return EMPTY
    with open(name, "rb") as file:
        head = file.read(HEAD)
    if head.startswith((b"\x7fELF", b"#!")):
        return PROGRAM
    other = next((words for mark, words in OTHERS.items() if head.startswith(mark)), None)
    if other is not None:
        return Kind(other)
    try:
        io.recognise(name)
    except FileFormatError:
        return _kind_of_text(name) if size <= MOST_BYTES else None
    return CONFIGURATION


def refuse_other_kinds(path: str | os.PathLike[str], wanted: Sequence[Kind], needed: str) -> None:
    """Raise FileFormatError where the file is known to be of another kind than those `wanted`; `needed` says what would be right.

    Names without a file, and files of unknown kind, are left to the reader.
    """
    try:
        found = kind_of(path)
    except (OSError, JaliError):
        return
    if found is not None and found not in wanted:
        raise FileFormatError(f"{shown(os.fspath(path))} is {found}; {needed}")


def _is_run(folder: str) -> bool:
    try:
        return os.path.isdir(checkpoint_folder(folder)) or bool(saved_configurations(folder))
    except (OSError, JaliError):
        return False


def _kind_of_text(name: str) -> Kind | None:
    try:
        text = read_bytes(name, MOST_BYTES, "a text").decode().removeprefix("\ufeff")
    except UnicodeDecodeError:
        return None
    if text.lstrip().startswith(("{", "[{")):
        return JSON
    if Path(name).suffix == ".py":
        return Kind("a Python script", "`python` runs")
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError):
        return TEXT if "\0" not in text else None
    if "rule" in tables or set(tables) == {"version"}:
        return RULES
    if {"network", "level", "library"} & set(tables):
        return MACHINE
    if {spec.section for spec in parameter_specs()} & set(tables):
        return PARAMETERS
    return TOML if tables else TEXT
