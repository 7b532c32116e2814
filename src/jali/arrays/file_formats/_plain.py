"""What `.npy` and HDF5 share: files of `jali.io.arrays`, whose numbers have places, and checksums."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jali.arrays import redistribution
from jali.arrays.file_formats import Described
from jali.arrays.layout import Box, Layout, shape_of
from jali.comm import Communicator
from jali.files import reading
from jali.io import boxes as io_boxes
from jali.io.array_formats import array_formats
from jali.io.arrays import ArrayFile, open_arrays, write_arrays


def starts_like(format: str, path: str) -> bool:
    """Whether a file begins as those of a format of `jali.io.array_formats` do. Raises OSError, FileFormatError for pipes and devices."""
    if os.path.isdir(path):
        return False
    with reading(path) as fd:
        return array_formats()[format].is_one(fd, os.fstat(fd).st_size)


def region_of(box: Box, axes: tuple[int, ...]) -> io_boxes.Box:
    """In a file. Dimensions behind the last that is split belong to the element: it is written in one piece."""
    deep = max(axes) + 1
    return io_boxes.Box(tuple(begin for begin, _ in box[:deep]), shape_of(box[:deep]))


def written_part(
    layout: Layout, part: np.ndarray, boxes: tuple[Box, ...] | None = None
) -> tuple[Box, np.ndarray]:
    """What this rank writes: its part, or of an array that all ranks have all on rank 0 and nothing elsewhere. With `boxes` parts are
    exchanged until they are these. Collective then."""
    if layout.scattered and boxes not in (None, layout.boxes):
        assert boxes is not None
        return boxes[layout.rank], redistribution.redistribute_boxes(
            np.ascontiguousarray(part), layout.communicator, layout.boxes, boxes
        )
    if layout.scattered or layout.rank == 0:
        return layout.box, part
    nothing = tuple((0, 0) if k <= max(layout.axes) else (0, n) for k, n in enumerate(layout.shape))
    return nothing, part[tuple(slice(*ends) for ends in nothing)]


def write(path: str, layout: Layout, part: np.ndarray, format: str, name: str) -> None:
    """By all ranks, each in its place."""
    box, part = written_part(layout, part)
    region = region_of(box, layout.axes)
    extents = layout.shape[: len(region.extents)]
    write_arrays(path, format, extents, region, {name: part}, {}, ranks=layout.communicator)


class Plain:
    """An open file of these."""

    preferred: str | None = None

    def __init__(self, file: ArrayFile, verify: bool) -> None:
        self.path, self._file, self._verify = file.path, file, verify
        self.arrays = {name: Described(one.shape, one.dtype) for name, one in file.arrays.items()}
        if list(self.arrays) == [""]:
            self.preferred = ""
        self.about: Mapping[str, Any] = {}

    def read(self, name: str, layout: Layout) -> np.ndarray:
        """This rank's part."""
        return self._file.read(name, region_of(layout.box, layout.axes), verify=self._verify)


def open(path: str, ranks: Communicator, verify: bool) -> Plain:
    """What a file holds."""
    return Plain(open_arrays(path, verify=verify, ranks=ranks), verify)
