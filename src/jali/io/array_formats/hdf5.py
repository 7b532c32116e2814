"""HDF5 through h5py: each array a dataset, with what stands beside it as the dataset's attributes.

One rank makes the file. Its datasets are contiguous and allocated at once, so their bytes have places, and all ranks write
there without HDF5. Datasets of others are read likewise where they are contiguous and of numbers as NumPy has them, else
(chunks, compression, other files behind) by h5py on every rank.

Complex numbers are h5py's: a compound of r and i.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.amounts import counted
from jali.errors import FileFormatError
from jali.files import package_for, read_by, shown

from . import ArrayFormat, Outline

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def h5py_for(path: str) -> Any:
    """The package. Raises ParameterError where it is not installed."""
    return package_for(path, "HDF5 files", "h5py", "hdf5")


def _is_hdf5(fd: int, size: int) -> bool:
    """The signature stands at the beginning, or at 512, 1024, 2048, ... behind somebody's own bytes."""
    at = 0
    while at < size:
        if os.pread(fd, len(_SIGNATURE), at) == _SIGNATURE:
            return True
        at = max(512, 2 * at)
    return False


def _create(path: str, outlines: Sequence[Outline]) -> list[int]:
    h5py = h5py_for(path)
    try:
        with h5py.File(path, "w", locking=False) as file:
            offsets = [_add_dataset(h5py, file, outline) for outline in outlines]
    except (OSError, RuntimeError, ValueError) as error:  # of HDF5: full disks too, by various classes
        said = re.search(r"errno = (\d+)", str(error))
        raise OSError(int(said[1]) if said else errno.EIO, f"HDF5: {shown(error)}") from error
    return offsets


def _add_dataset(h5py: Any, file: Any, outline: Outline) -> int:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plan.set_obj_track_times(False)  # the same bytes whenever it is written
    kind = h5py.h5t.py_create(outline.dtype, logical=True)
    space = h5py.h5s.create_simple(outline.shape)
    dataset = h5py.Dataset(h5py.h5d.create(file.id, outline.name.encode(), kind, space, plan))
    for name, value in outline.told.items():
        dataset.attrs[name] = value
    return int(dataset.id.get_offset())


def _parse(path: str, fd: int, size: int, strict: bool) -> list[Outline]:
    h5py = h5py_for(path)
    found: list[Outline] = []

    def look(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape:
            if strict and item.is_virtual:
                _check_sources(path, name, item)
            found.append(_outline(h5py, name, item))

    with read_by("HDF5", path), h5py.File(path, "r") as file:
        file.visititems(look)
    return found


def _check_sources(path: str, name: str, dataset: Any) -> None:
    """HDF5 has fill values where a file of a virtual dataset is missing, without a word."""
    beside = os.path.dirname(os.path.realpath(path))
    files = sorted({source.file_name for source in dataset.virtual_sources()} - {"."})
    # HDF5 looks beside the file, then where the program runs; names with % are patterns of names
    looked = [file for file in files if "%" not in file]
    missing = [f for f in looked if not (os.path.exists(os.path.join(beside, f)) or os.path.exists(f))]
    if missing:
        raise FileFormatError(
            f"{path}: {shown(name)!r} lies in {counted(len(files), 'other file')}, of which {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing, such as {shown(missing[0])}; verify=False takes fill values in their place"
        )


def _outline(h5py: Any, name: str, dataset: Any) -> Outline:
    try:
        dtype = dataset.dtype
    except TypeError:  # no NumPy equivalent
        return Outline(name, dataset.shape, None)
    if dtype.kind not in "biufc":
        return Outline(name, dataset.shape, None)
    told = {}
    if not {"format", "checksum", "seal"}.isdisjoint(dataset.attrs):  # jali's, or what is left of it
        told = {str(key): _plain(dataset.attrs[key]) for key in dataset.attrs}
    there = dataset.id.get_create_plist()
    as_numpy_has_them = (
        there.get_layout() == h5py.h5d.CONTIGUOUS
        and there.get_external_count() == 0
        and dataset.id.get_type() == h5py.h5t.py_create(dtype, logical=True)
    )
    # None where nothing was ever written
    offset = dataset.id.get_offset() if as_numpy_has_them and dtype.kind != "b" else None
    return Outline(name, dataset.shape, dtype, told, offset)


def _plain(value: Any) -> Any:
    """An attribute as a text, a whole number or a list of texts; others as what they look like."""
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return [str(item) for item in value]
    return str(value)


def _read(path: str, outline: Outline, part: tuple[slice, ...]) -> NDArray[Any]:
    h5py = h5py_for(path)
    with read_by("HDF5", path), h5py.File(path, "r") as file:
        values: NDArray[Any] = file[outline.name][part]
    return values


FORMAT = ArrayFormat("hdf5", (".h5", ".hdf5"), _is_hdf5, _create, _parse, _read)
