"""HDF5 with a file for each rank, and a virtual dataset that joins them: what is behind `hdf5-parts`.

`model.h5` is small and names files in the folder `model.h5.parts-...` beside it, by names relative to its own place: the two
are moved together. The folder has another name each time, so an older array is whole until the small file takes its name; then
the older one's folder is removed. Every rank writes a file of its own, which suits file systems on which one file has one
writer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator

import numpy as np

from jali.arrays.file_formats import _plain
from jali.arrays.layout import Box, Layout, shape_of
from jali.comm import Communicator
from jali.errors import FileFormatError
from jali.files import checked_path, shown
from jali.io.array_formats import Outline, array_formats
from jali.io.array_formats.hdf5 import datasets_of, h5py_for
from jali.io.arrays import checked_and_sealed
from jali.io.boxes import write_all
from jali.io.parallel import together
from jali.io.writing import explained, opened, writing_beside

_NAME = "data"  # of the dataset in each part


def write(path: str, layout: Layout, part: np.ndarray, name: str) -> None:
    """Collective."""
    ranks = layout.communicator
    box, part = _plain.written_part(layout, part)
    region = _plain.region_of(box, layout.axes)
    extents = layout.shape[: len(region.extents)]
    (sealed,), parts = checked_and_sealed(path, "hdf5", extents, region, {name: part}, {}, ranks)
    boxes = layout.boxes if layout.scattered else (layout.boxes[0],)
    with replacing(path, ranks):
        token = secrets.token_hex(6) if ranks.rank == 0 else ""
        token = ranks.broadcast_bytes(token.encode(), 0).decode()
        with together(ranks):
            target = os.path.realpath(checked_path(path))
        folder = f"{target}.parts-{token}"
        done = False
        try:
            with writing_beside(path, ranks) as (_, temporary):
                with together(ranks), explained(f"cannot write {folder}"):
                    if ranks.rank == 0:
                        os.mkdir(folder)
                with together(ranks), explained(f"cannot write {folder}"):
                    if part.size:
                        _write_part(os.path.join(folder, f"{ranks.rank}.h5"), parts[name])
                with together(ranks), explained(f"cannot write {target}"):
                    if ranks.rank == 0:
                        _join(temporary, os.path.basename(folder), sealed, boxes)
            done = True
        finally:
            if not done and ranks.rank == 0:
                shutil.rmtree(folder, ignore_errors=True)


def _write_part(path: str, part: np.ndarray) -> None:
    (offset,) = array_formats()["hdf5"].create(path, [Outline(_NAME, part.shape, part.dtype)])
    with opened(path, os.O_WRONLY) as fd:
        write_all(fd, part.reshape(-1).view(np.uint8).data, offset)
        os.fsync(fd)


def _join(path: str, folder: str, sealed: Outline, boxes: tuple[Box, ...]) -> None:
    """The file that names all parts."""
    import h5py

    whole = h5py.VirtualLayout(sealed.shape, sealed.dtype)
    for rank, box in enumerate(boxes):
        if 0 not in shape_of(box):
            source = h5py.VirtualSource(f"{folder}/{rank}.h5", _NAME, shape=shape_of(box), dtype=sealed.dtype)
            whole[tuple(slice(*ends) for ends in box)] = source
    try:
        with h5py.File(path, "w", locking=False) as file:
            dataset = file.create_virtual_dataset(sealed.name, whole)
            for name, value in sealed.metadata.items():
                dataset.attrs[name] = value
    except (RuntimeError, ValueError) as error:
        raise OSError(errno.EIO, f"HDF5: {shown(error)}") from error
    with opened(path, os.O_RDONLY) as fd:
        os.fsync(fd)


@contextlib.contextmanager
def replacing(path: str, ranks: Communicator) -> Iterator[None]:
    """Around the writing of an HDF5 file: after success, folders of parts of an older file are removed."""
    older: list[str] = []
    with together(ranks):
        h5py_for(path)
        if ranks.rank == 0:
            older = _folders_of(os.path.realpath(checked_path(path)))
    yield
    for folder in older:
        shutil.rmtree(folder, ignore_errors=True)


def _folders_of(target: str) -> list[str]:
    """Folders, written by jali, that a file names."""
    found: set[str] = set()
    with contextlib.suppress(OSError, FileFormatError):
        if os.path.exists(target) and _plain.starts_like("hdf5", target):
            for dataset in datasets_of(target):
                found.update(map(os.path.dirname, dataset["sources"]))
    own = re.escape(os.path.basename(target)) + r"\.parts-[0-9a-f]{12}"
    beside = os.path.dirname(target)
    return [os.path.join(beside, folder) for folder in sorted(found) if re.fullmatch(own, folder)]
