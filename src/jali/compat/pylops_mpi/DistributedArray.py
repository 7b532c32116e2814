"""The arrays of `jali.arrays` under the names of pylops_mpi.DistributedArray."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jali.arrays import DistributedArray, Partition, StackedDistributedArray, communicator_of, local_split

__all__ = [
    "DistributedArray",
    "Partition",
    "StackedDistributedArray",
    "local_split",
    "subcomm_split",
    "to_scalar",
]


def subcomm_split(mask: Sequence[Any], comm: Any = None) -> Any:
    """The ranks with this rank's number in the mask, as a communicator of jali; the same one every time. Collective at first."""
    from jali.arrays import layout_of

    return layout_of(communicator_of(comm), (0,), mask=mask).group


def to_scalar(x: Any) -> bool | int | float | complex:
    """A number of Python from an array of one element, or from a number."""
    found: bool | int | float | complex = x.item() if hasattr(x, "item") else x
    return found
