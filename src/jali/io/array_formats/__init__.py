"""Array formats that other programs read: one module each, discovered in this folder.

A module of this folder has a `FORMAT`: how a file is recognised, the function that makes one with all but the numbers in it,
and the one that reads its metadata. `jali.io.arrays` uses these entries, and has what all share (positions of numbers,
checksums, the seal, writing by many ranks at once).
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.registry import entry_names


@dataclass(frozen=True)
class Outline:
    """An array in a file: all but its numbers."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any] | None
    """None: nothing that NumPy has a type for."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Its metadata: texts, whole numbers and lists of texts by name."""
    offset: int | None = None
    """Where its bytes begin in the file, as NumPy has them in memory; None where the format's own `read` is needed."""
    fortran: bool = False
    """Whether the first index runs fastest."""


@dataclass(frozen=True)
class ArrayFormat:
    """An entry: a format that is read and written."""

    name: str
    """As `Field.save(format=)` takes it."""
    endings: tuple[str, ...]
    """Of names of files: ".npy"."""
    is_one: Callable[[int, int], bool]
    """Whether a file, given by descriptor and size, has this format."""
    create: Callable[[str, Sequence[Outline]], list[int]]
    """Makes the file of this name, which exists and is empty, with all but the numbers of its arrays, and returns the offsets
    at which these belong. Raises ParameterError where the format cannot, OSError.
    """
    parse: Callable[[str, int, int, bool], list[Outline]]
    """(name, descriptor, size, whether what cannot be right is an error) -> what the file holds. Raises FileFormatError."""
    read: Callable[[str, Outline, tuple[slice, ...]], NDArray[Any]] | None = None
    """Part of an array that has no offset. Raises FileFormatError."""


@functools.cache
def array_formats() -> dict[str, ArrayFormat]:
    """All entries by name, in the alphabetical order of their files."""
    entries = (importlib.import_module(f"{__name__}.{name}").FORMAT for name in entry_names(__file__))
    return {entry.name: entry for entry in entries}
