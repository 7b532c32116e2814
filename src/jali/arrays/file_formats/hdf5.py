"""HDF5 in one file, as h5py reads it: all ranks write their parts of a contiguous dataset at once, without HDF5.

Files with a part for each rank (`hdf5-parts`) are HDF5, too, and read here.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from jali.arrays.file_formats import FileFormat, _plain
from jali.arrays.file_formats._hdf5_parts import replacing
from jali.arrays.layout import Layout


def _write(path: str, layout: Layout, part: np.ndarray, *, name: str = "data") -> None:
    with replacing(path, layout.communicator):
        _plain.write(path, layout, part, "hdf5", name)


FORMAT = FileFormat("hdf5", (".h5", ".hdf5"), partial(_plain.starts_like, "hdf5"), _write, _plain.open)
