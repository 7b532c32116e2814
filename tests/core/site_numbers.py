"""Storages of plain numbers, as fields of float64 and float32 have them, seen as arrays of these."""

from __future__ import annotations

from typing import Any

import numpy as np

from jali._core import FieldStorage


class Numbers(FieldStorage):
    """So many numbers of 8 or 4 bytes per site."""

    def __init__(self, layout: Any, reals: int, scalar_bytes: int, label: str):
        super().__init__(layout, [(reals, scalar_bytes, 1)], label)
        self.reals, self.scalar_bytes = reals, scalar_bytes
        self.dtype = np.float64 if scalar_bytes == 8 else np.float32

    def import_box(self, array: Any, pool: Any = None) -> None:
        """The box from numbers."""
        super().import_box(np.ascontiguousarray(array, self.dtype), pool)

    def export_box(self, out: Any = None, pool: Any = None) -> Any:
        """The box as numbers."""
        return super().export_box(out, pool).view(self.dtype)

    def export_part(self, origin: Any, extents: Any) -> Any:
        """A part of the box as numbers."""
        return super().export_part(origin, extents).view(self.dtype)
