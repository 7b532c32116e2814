"""What solvers of pylops_mpi take beside floating-point numbers, and what they leave when they end."""

from __future__ import annotations

from typing import Any

import numpy as np

from jali.arrays import StackedDistributedArray
from jali.arrays.libraries import numpy_dtype


def floating(x: Any) -> Any:
    """x, or where it holds whole numbers a copy in double precision."""
    if isinstance(x, StackedDistributedArray):
        return StackedDistributedArray([floating(part) for part in x], x._base_comm)
    return x.astype(np.float64) if hasattr(x, "dtype") and numpy_dtype(x).kind in "biu" else x


class CostAsArray:
    """A solver whose `cost` is an array in the end."""

    cost: Any

    def finalize(self, show: bool = False) -> None:
        """End."""
        super().finalize(show)  # type: ignore[misc]
        self.cost = np.array(self.cost)
