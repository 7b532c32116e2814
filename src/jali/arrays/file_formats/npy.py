"""`.npy`, as NumPy reads and maps it: all ranks write their parts of one file at once."""

from __future__ import annotations

from functools import partial

import numpy as np

from jali.arrays.file_formats import FileFormat, _plain
from jali.arrays.layout import Layout


def _write(path: str, layout: Layout, part: np.ndarray) -> None:
    _plain.write(path, layout, part, "npy", "data")


FORMAT = FileFormat("npy", (".npy",), partial(_plain.starts_like, "npy"), _write, _plain.open)
