"""Distributed arrays in files that NumPy and h5py read: `.npy` and HDF5. All ranks write and read their own parts at once.

    save("model.npy", x)
    y = load("model.npy", axis=1)  # on any number of ranks, in any layout

What one file holds, checksums, and how it appears complete or not at all, is `jali.io.arrays`' affair. Files of others are read too;
what jali wrote is compared with its checksum.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.arrays.distributed import DistributedArray
from jali.arrays.layout import Layout, Partition, communicator_of, layout_of, shape_of
from jali.arrays.libraries import library_by_name, library_of
from jali.errors import FileFormatError, ParameterError, ShapeError
from jali.files import checked_path, shown
from jali.io.array_formats import array_formats
from jali.io.arrays import open_arrays, write_arrays
from jali.io.boxes import Box
from jali.io.parallel import raised_alike

NAME = "data"  # of the dataset in HDF5 files


def _format(path: str | os.PathLike[str], format: str | None) -> str:
    if format is not None:
        return format
    name = checked_path(path)
    for row in array_formats().values():
        if name.endswith(row.endings):
            return row.name
    endings = [ending for row in array_formats().values() for ending in row.endings]
    raise ParameterError(
        f"{shown(name)}: what format is meant? Names end with {', '.join(endings)}; else say format="
    )


def _box(layout: Layout, box: tuple[tuple[int, int], ...]) -> Box:
    """In a file. Dimensions behind the last that is split belong to the element: it is written in one piece."""
    deep = max(layout.axes) + 1
    return Box(tuple(begin for begin, _ in box[:deep]), shape_of(box[:deep]))


def save(
    path: str | os.PathLike[str], x: DistributedArray, *, format: str | None = None, name: str = NAME
) -> None:
    """Write an array; an older file under the name is replaced when the new one is complete. Collective.

    The ending of the name says the format, `.npy`, `.h5` or `.hdf5`, or `format` does, "npy" or "hdf5"; `name` is the dataset's in
    HDF5. Of arrays that all ranks have, that of rank 0 is written. Raises ShapeError for arrays without elements or dimensions,
    ParameterError, OSError, the same on all ranks; the older file then stays.
    """
    if not isinstance(x, DistributedArray):
        raise ParameterError(f"save writes a DistributedArray, not {type(x).__name__}")
    if x.elements == 0 or x.ndim == 0:
        raise ShapeError(f"an array of shape {x.global_shape} has nothing that a file could hold")
    layout = x.layout
    part = library_of(x.local).to_host(x.local)
    box = layout.box
    if not layout.scattered and x.rank != 0:
        box = tuple((0, 0) for _ in x.global_shape)
        part = part[tuple(slice(0, 0 if k <= max(layout.axes) else None) for k in range(x.ndim))]
    place = _box(layout, box)
    with raised_alike():
        write_arrays(
            path, _format(path, format), x.global_shape[: len(place.extents)], place, {name: part}, {},
            ranks=x.communicator,
        )  # fmt: skip


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
) -> DistributedArray:
    """Read an array into any layout; arguments are those of DistributedArray. Collective.

    `name` is the dataset's, which need not be said where a file has one only. Raises FileFormatError for damage, unknown formats and
    datasets, ShapeError where the layout does not fit the array, OSError, the same on all ranks.
    """
    ranks = communicator_of(base_comm)
    with raised_alike():
        file = open_arrays(path, verify=verify, ranks=ranks)
        names = ", ".join(map(repr, file.arrays))
        if name is None or list(file.arrays) == [""]:
            if len(file.arrays) != 1:
                raise FileFormatError(
                    f"{file.path}: which of its arrays, {names or 'of which it has none'}? Say name="
                )
            name = next(iter(file.arrays))
        if name not in file.arrays:
            raise FileFormatError(f"{file.path}: has no {shown(name)!r}, but {names}")
        shape = file.arrays[name].shape
        if not shape:
            raise FileFormatError(f"{file.path}: {shown(name)!r} is a number, not an array")
        layout = layout_of(ranks, shape, partition, axis, grid=grid, local_shapes=local_shapes, mask=mask)
        # What all ranks have is read in parts as well.
        parts = layout if layout.scattered else layout_of(ranks, shape, mask=mask)
        local = file.read(name, _box(parts, parts.box), verify=verify)
    local = np.ascontiguousarray(local, local.dtype.newbyteorder("="))
    if engine != "numpy":
        library = library_by_name(engine)
        local = library.from_host(local, library.empty((0,), local.dtype))
    x = DistributedArray.of(parts, local.reshape(parts.local_shape), base_comm)
    return x if layout.scattered else x.redistribute(layout.axes, partition=partition)
