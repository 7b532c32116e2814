"""Arrays that are vectors in the files of checkpoints: each vector one field, whose sites are the elements, with what else its program wants to know."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jali import io
from jali.errors import FileFormatError, LayoutError

Read = Callable[[str], Any]
"""The vector of this name in a file."""


def write_boxes(
    path: str | os.PathLike[str],
    extents: Sequence[int],
    origin: Sequence[int],
    parts: Mapping[str, np.ndarray],
    state: Mapping[str, Any],
    ranks: Any = None,
) -> None:
    """Writes boxes of arrays of these extents, of which this rank has those from `origin` on. Raises what `jali.io.write_checkpoint` does."""
    shape = next(iter(parts.values())).shape
    io.write_checkpoint(
        path, extents[::-1], io.Box(tuple(origin[::-1]), tuple(shape[::-1])), parts, state=state, ranks=ranks
    )


def box_reader(
    path: str | os.PathLike[str],
    extents: Sequence[int],
    origin: Sequence[int],
    shape: Sequence[int],
    ranks: Any = None,
) -> tuple[dict[str, Any], Callable[[str], np.ndarray]]:
    """What a program had to say beside its vectors, and a function that reads a box of one by name. Raises what `jali.io.open_checkpoint` does, LayoutError
    where the file holds arrays of other extents, and FileFormatError where it holds fields."""
    file = io.open_checkpoint(path, ranks=ranks)
    if file.lattice != tuple(extents[::-1]):
        raise LayoutError(f"{file.path} holds arrays of shape {file.lattice[::-1]}, not {tuple(extents)}")
    if any(info.format is not None or info.element_shape for info in file.fields.values()):
        raise FileFormatError(f"{file.path} holds fields, not arrays")
    box = io.Box(tuple(origin[::-1]), tuple(shape[::-1]))
    return file.state, lambda name: file.read(name, box)
