"""HDF5 through h5py: each array is a dataset, and its metadata are the dataset's attributes.

One rank makes the file. Its datasets are contiguous and allocated at once, so their bytes have known offsets, where all
ranks write without HDF5. Other datasets are read likewise where they are contiguous and have NumPy's types.

The descriptions of datasets are read by another process (`_reader_process.py`), and so are numbers that only HDF5 can read
(chunks, compression, external files), by one on every rank: in a damaged file the library may hang, or end its process.

Complex numbers are h5py's: a compound of r and i.
"""

from __future__ import annotations

import errno
import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.amounts import counted
from jali.errors import FileFormatError
from jali.files import package_for, shown

from . import ArrayFormat, Outline
from ._reader_process import found_in, numbers_in

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def h5py_for(path: str) -> Any:
    """The package. Raises ParameterError where it is not installed."""
    return package_for(path, "HDF5 files", "h5py", "hdf5")


def _is_hdf5(fd: int, size: int) -> bool:
    """The signature is at offset 0, or at 512, 1024, 2048, ... after a user block."""
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
    for name, value in outline.metadata.items():
        dataset.attrs[name] = value
    return int(dataset.id.get_offset())


def _parse(path: str, fd: int, size: int, strict: bool) -> list[Outline]:
    found = []
    for dataset in datasets_of(path):
        if strict:
            _check_sources(path, dataset["name"], dataset["sources"])
        dtype = np.dtype(dataset["dtype"]) if "dtype" in dataset else None
        metadata, offset = dataset.get("metadata", {}), dataset.get("offset")
        found.append(Outline(dataset["name"], tuple(dataset["shape"]), dtype, metadata, offset))
    return found


def datasets_of(path: str) -> list[dict[str, Any]]:
    """What another process finds in a file: of each dataset "name", "shape" and "sources", files behind it, and of those of
    numbers "dtype", "attributes" and "offset".

    Raises FileFormatError where HDF5 finds no end, or ends the process, too.
    """
    if importlib.util.find_spec("h5py") is None:
        h5py_for(path)
    return found_in(path)


def _check_sources(path: str, name: str, files: Sequence[str]) -> None:
    """HDF5 has fill values where a file of a virtual dataset is missing, without a word."""
    beside = os.path.dirname(os.path.realpath(path))
    # HDF5 searches beside the file, then in the working directory; names with % are patterns of names
    looked = [file for file in files if "%" not in file]
    missing = [f for f in looked if not (os.path.exists(os.path.join(beside, f)) or os.path.exists(f))]
    if missing:
        raise FileFormatError(
            f"{path}: {shown(name)!r} lies in {counted(len(files), 'other file')}, of which {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing, such as {shown(missing[0])}; verify=False takes fill values in their place"
        )


def _read(path: str, outline: Outline, part: tuple[slice, ...]) -> NDArray[Any]:
    if importlib.util.find_spec("h5py") is None:
        h5py_for(path)
    begins = [one.start for one in part] + [0] * (len(outline.shape) - len(part))
    ends = [one.stop for one in part] + list(outline.shape[len(part) :])
    return numbers_in(path, outline, list(zip(begins, ends, strict=True)))


FORMAT = ArrayFormat("hdf5", (".h5", ".hdf5"), _is_hdf5, _create, _parse, _read)
