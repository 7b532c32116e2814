"""HDF5 with a file for each rank: requested by its name, `format="hdf5-parts"`. It is read as HDF5."""

from __future__ import annotations

import numpy as np

from jali.arrays.file_formats import FileFormat, _hdf5_parts, _plain
from jali.arrays.layout import Layout


def _write(path: str, layout: Layout, part: np.ndarray, *, name: str = "data") -> None:
    _hdf5_parts.write(path, layout, part, name)


FORMAT = FileFormat("hdf5-parts", (), lambda path: False, _write, _plain.open)
