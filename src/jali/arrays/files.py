"""Distributed arrays in files that others read: `.npy`, HDF5, Zarr, SEG-Y. All ranks write and read their own parts at once.

    save("model.npy", x)
    y = load("model.npy", axis=1)  # on any number of ranks, in any layout

Each format is an entry of `jali.arrays.file_formats`. Here is what they share: which entry is meant, and what is read into which layout.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jali.array_namespaces import namespace_by_name, namespace_of
from jali.arrays import redistribution
from jali.arrays.distributed import DistributedArray
from jali.arrays.file_formats import Described, FileFormat, OpenedFile, file_formats
from jali.arrays.layout import Layout, Partition, communicator_of, extents, layout_of
from jali.comm import Communicator
from jali.comm.validation import flag
from jali.errors import FileFormatError, ParameterError, ShapeError
from jali.files import checked_path, require_memory, shown, value_shown
from jali.io.parallel import raised_alike, together
from jali.io.writing import explained


class Contents(NamedTuple):
    """The metadata of a file, without the numbers of its arrays."""

    format: str
    """Name of the entry that reads it."""
    arrays: dict[str, Described]
    """Shape and type of each array."""
    about: dict[str, Any]
    """What the format has beside: of SEG-Y files the sampling interval, numbers of inlines and crosslines, headers."""


def save(
    path: str | os.PathLike[str],
    x: DistributedArray,
    *,
    format: str | None = None,
    name: str | None = None,
    **options: Any,
) -> None:
    """Write an array; an older file under the name is replaced when the new one is complete. Collective.

    `format` or the ending of the name selects the format. Of arrays that all ranks have, that of rank 0 is written.

    - "npy" (`.npy`): one file, written by all ranks at once.
    - "hdf5" (`.h5`, `.hdf5`): likewise; `name` is the dataset's ("data").
    - "hdf5-parts": a file for each rank in a folder beside, joined by a virtual dataset; `name` as above.
    - "zarr" (`.zarr`): a folder of compressed chunks, each written by one rank. `chunks`, their shape, is chosen from the
      ranks' parts; where these do not end with chunks, ranks exchange what is missing first.
    - "segy" (`.sgy`, `.segy`): traces, the last dimension being samples; `interval` (seconds between samples) has to be given.
      `inlines` and `crosslines` number the first two of three dimensions, `headers` has numbers of traces by segyio's names, as
      arrays that all ranks have or distributed ones, and `text` is the textual header.

    Raises ShapeError for arrays without elements or dimensions, ParameterError for arrays that a format cannot hold, unknown
    options and packages that are not installed, OSError, the same on all ranks; the older file then stays.
    """
    if not isinstance(x, DistributedArray):
        raise ParameterError(f"save writes a DistributedArray, not {type(x).__name__}")
    if x.elements == 0 or x.ndim == 0:
        raise ShapeError(f"an array of shape {x.global_shape} has nothing that a file could hold")
    entry = _entry(format) if format is not None else _entry_of_ending(checked_path(path))
    given = options if name is None else {**options, "name": name}
    _check_options(entry, "written", entry.write, given)
    part = namespace_of(x.local).to_host(x.local)
    with raised_alike():
        entry.write(checked_path(path), x.layout, part, **given)


def load(
    path: str | os.PathLike[str],
    base_comm: Any = None,
    partition: Partition = Partition.SCATTER,
    axis: int | Sequence[int] = 0,
    *,
    grid: Sequence[int] | None = None,
    local_shapes: Sequence[Any] | None = None,
    mask: Sequence[Any] | None = None,
    engine: str = "numpy",
    name: str | None = None,
    verify: bool = True,
    format: str | None = None,
    **options: Any,
) -> DistributedArray:
    """Read an array into any layout; arguments are those of DistributedArray. Collective.

    The format is recognised by the content of the file, SEG-Y by its ending, or given by `format`. `name` is the array's,
    optional where a file has only one. Files of jali are compared with their checksum unless `verify` is False.

    A SEG-Y file holds "traces", of shape (traces, samples), and numbers of traces by segyio's names of header words ("SourceX",
    "CDP_X"). With `cube=True` both have inlines and crosslines as their first dimensions, which `iline` and `xline` (bytes of the header,
    189 and 193) number; offsets follow where there are several.

    Raises FileFormatError for damage, unknown formats and arrays, and traces that are no cube, ShapeError where the layout does not fit
    the array, ParameterError for packages that are not installed, OSError, the same on all ranks.
    """
    ranks = communicator_of(base_comm)
    namespace = namespace_by_name(engine)
    with raised_alike():
        _, file = _opened(path, ranks, verify, format, options)
        chosen = _chosen(file, name)
        shape, dtype, in_one_piece = file.arrays[chosen]
        if not shape:
            raise FileFormatError(f"{file.path}: {shown(chosen)!r} is a number, not an array")
        if dtype is None:
            raise FileFormatError(f"{file.path}: {shown(chosen)!r} does not hold numbers")
        try:
            shape = extents("a global shape", shape)
        except ShapeError as error:
            raise FileFormatError(f"{file.path}: {shown(chosen)!r} is no array: {error}") from None
        layout = layout_of(ranks, shape, partition, axis, grid=grid, local_shapes=local_shapes, mask=mask)
        parts = _parts_to_read(layout, set(in_one_piece))
        with together(ranks):
            needed = dtype.itemsize * int(np.prod(parts.local_shape, dtype=object))
            require_memory(f"{file.path}: {shown(chosen)!r}", needed)
        local = file.read(chosen, parts)
    local = np.ascontiguousarray(local, local.dtype.newbyteorder("=")).reshape(parts.local_shape)
    if engine != "numpy":
        local = namespace.from_host(local, namespace.empty((0,), local.dtype))
    if parts is not layout:
        local = redistribution.redistribute_part(local, parts, layout)
    return DistributedArray.of(layout, local, base_comm)


def contents(
    path: str | os.PathLike[str],
    base_comm: Any = None,
    *,
    verify: bool = True,
    format: str | None = None,
    **options: Any,
) -> Contents:
    """The metadata of a file, with the options of `load`. Collective. Raises as `load` does."""
    ranks = communicator_of(base_comm)
    with raised_alike():
        entry, file = _opened(path, ranks, verify, format, options)
    return Contents(entry.name, dict(file.arrays), dict(file.about))


def _entry(format: str) -> FileFormat:
    if not isinstance(format, str) or format not in file_formats():
        names = ", ".join(map(repr, file_formats()))
        raise ParameterError(f"arrays are written and read as {names}, not {value_shown(format)}")
    return file_formats()[format]


def _entry_of_ending(name: str) -> FileFormat:
    for entry in file_formats().values():
        if name.rstrip("/").endswith(entry.endings):
            return entry
    endings = [ending for entry in file_formats().values() for ending in entry.endings]
    raise ParameterError(
        f"{shown(name)}: what format is meant? Names end with {', '.join(endings)}; else say format="
    )


def _check_options(
    entry: FileFormat, doing: str, function: Callable[..., Any], given: Mapping[str, Any]
) -> None:
    known = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for option in given:
        if option not in known:
            there = f"there are {', '.join(known)}" if known else "there are none"
            raise ParameterError(
                f"{option} is no option of files that are {doing} as {entry.name!r}; {there}"
            )


def _opened(
    path: str | os.PathLike[str],
    ranks: Communicator,
    verify: bool,
    format: str | None,
    options: Mapping[str, Any],
) -> tuple[FileFormat, OpenedFile]:
    with together(ranks):
        name = checked_path(path)
        flag("verify", verify, ParameterError)
        if format is not None:
            _entry(format)
    found = ""
    with together(ranks), explained(f"cannot read {shown(name)}"):
        if ranks.rank == 0:
            os.stat(name)
            found = format or _recognised(name)
    entry = file_formats()[ranks.broadcast_bytes(found.encode(), 0).decode()]
    _check_options(entry, "read", entry.open, options)
    return entry, entry.open(name, ranks, verify, **options)


def _recognised(path: str) -> str:
    for entry in file_formats().values():
        if entry.is_one(path):
            return entry.name
    begins = ""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            begins = f"; it begins with {file.read(8)!r}"
    raise FileFormatError(f"{shown(path)}: neither of {', '.join(file_formats())}{begins}")


def _chosen(file: OpenedFile, name: str | None) -> str:
    if name is None or list(file.arrays) == [""]:
        if file.preferred is not None:
            return file.preferred
        if len(file.arrays) != 1:
            names = ", ".join(map(repr, file.arrays)) or "of which it has none"
            raise FileFormatError(f"{file.path}: which of its arrays, {names}? Say name=")
        return next(iter(file.arrays))
    if name not in file.arrays:
        names = ", ".join(map(repr, file.arrays))
        raise FileFormatError(f"{file.path}: has no {shown(name)!r}, but {names}")
    return name


def _parts_to_read(layout: Layout, in_one_piece: set[int]) -> Layout:
    """What ranks read before it becomes the layout: what all ranks have is read in parts as well."""
    if layout.scattered and not in_one_piece & set(layout.axes):
        return layout
    axis = min((k for k in range(layout.ndim) if k not in in_one_piece), default=0)
    return layout_of(layout.communicator, layout.shape, axis=axis, mask=layout.mask)
