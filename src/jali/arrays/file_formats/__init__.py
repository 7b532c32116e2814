"""File formats of distributed arrays: one module each, discovered in this folder.

A file of this folder has a `FORMAT`: how a file is recognised, how one is written by all ranks at once, and how one is opened,
so that ranks may read boxes of its arrays. `jali.arrays.files` uses these entries. Further options of an entry, such as chunks
or a sampling interval, are keyword arguments of its functions.

An entry raises every error on all ranks (`jali.io.parallel.together`). A file appears complete or not at all.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from jali.arrays.layout import Layout
from jali.registry import entry_names


class Described(NamedTuple):
    """An array in a file, but its numbers."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """None: nothing that NumPy has a type for."""
    in_one_piece: tuple[int, ...] = ()
    """Dimensions along which no parts are read, since files have them in one piece."""


class OpenedFile(Protocol):
    """What `open` of an entry returns; nothing stays open."""

    path: str

    @property
    def arrays(self) -> Mapping[str, Described]:
        """By name; the same on all ranks."""

    @property
    def preferred(self) -> str | None:
        """Which of the arrays is read where no name is given, if there are several."""

    @property
    def about(self) -> Mapping[str, Any]:
        """The other metadata of the file."""

    def read(self, name: str, layout: Layout) -> np.ndarray:
        """This rank's part of an array, in a layout that scatters it (collective)."""


@dataclass(frozen=True)
class FileFormat:
    """An entry: a format that is read and written."""

    name: str
    """As `save(format=)` takes it."""
    endings: tuple[str, ...]
    """Of names of files: ".npy"."""
    is_one: Callable[[str], bool]
    """Whether the file or folder of this name has this format. Called on one rank; may raise OSError."""
    write: Callable[..., None]
    """`(path, layout, part, **options)`, `part` being this rank's on the host. Of arrays that all ranks have, that of rank 0 is
    written (collective)."""
    open: Callable[..., OpenedFile]
    """`(path, ranks, verify, **options)` (collective)."""


@functools.cache
def file_formats() -> dict[str, FileFormat]:
    """All entries by name, in the alphabetical order of their files."""
    entries = (importlib.import_module(f"{__name__}.{name}").FORMAT for name in entry_names(__file__))
    return {entry.name: entry for entry in entries}
