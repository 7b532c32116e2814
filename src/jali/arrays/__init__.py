"""Arrays that are distributed over ranks, for programs of arrays rather than of lattices.

`DistributedArray` has NumPy's arithmetic, dot products and norms over all ranks, ghost cells, and other layouts. Operators on
them are in `jali.linops`, solvers in `jali.solvers`, Fourier transforms in `jali.fft`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jali.arrays import vectors as _vectors  # noqa: F401 (arrays are vectors of solvers)
from jali.arrays.distributed import DistributedArray, GlobalIndex, from_field
from jali.arrays.layout import Layout, Partition, communicator_of, layout_of, local_split
from jali.arrays.stacked import StackedDistributedArray

if TYPE_CHECKING:
    from jali.arrays.files import Contents, contents, load, save

__all__ = [
    "Contents",
    "DistributedArray",
    "GlobalIndex",
    "Layout",
    "Partition",
    "StackedDistributedArray",
    "communicator_of",
    "contents",
    "from_field",
    "layout_of",
    "load",
    "local_split",
    "save",
]

if not TYPE_CHECKING:

    def __getattr__(name):
        if name in ("Contents", "contents", "load", "save"):  # programs without files need no formats
            from jali.arrays import files

            return getattr(files, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
