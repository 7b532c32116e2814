"""Arrays that are spread over ranks, for people who think of arrays rather than of lattices.

`DistributedArray` has NumPy's arithmetic, dot products and norms over all ranks, ghost cells, and other layouts. Operators on
them are in `jali.linops`, solvers in `jali.solvers`, Fourier transforms in `jali.fft`.
"""

from jali.arrays.distributed import DistributedArray, Globally
from jali.arrays.layout import Layout, Partition, communicator_of, layout_of, local_split
from jali.arrays.stacked import StackedDistributedArray

__all__ = [
    "DistributedArray",
    "Globally",
    "Layout",
    "Partition",
    "StackedDistributedArray",
    "communicator_of",
    "layout_of",
    "local_split",
]
