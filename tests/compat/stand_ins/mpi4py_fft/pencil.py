"""Layouts: a communicator for each axis, among whose ranks it is split; the first ranks have one element more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mpi4py import MPI


def Subcomm(comm: Any, dims: Sequence[int]) -> list[Any]:
    """A communicator for each axis of a grid of ranks; MPI chooses the extents that are 0."""
    grid = comm.Create_cart(MPI.Compute_dims(comm.Get_size(), [int(n) for n in dims]))
    return [grid.Sub([k == axis for k in range(len(dims))]) for axis in range(len(dims))]


class Pencil:
    """Arrays of this shape in a layout."""

    def __init__(self, subcomm: Sequence[Any], shape: Sequence[int]) -> None:
        self.subcomm = list(subcomm)
        self.local_shape = tuple(
            n // comm.Get_size() + (comm.Get_rank() < n % comm.Get_size())
            for n, comm in zip(shape, subcomm, strict=True)
        )

    def moved(self, x: np.ndarray, other: Pencil) -> np.ndarray:
        """This rank's part in the other layout, in which two axes have changed places."""
        for axis, comm in enumerate(self.subcomm):
            if comm.Get_size() > 1 and other.subcomm[axis] is not comm:
                to = next(k for k, it in enumerate(other.subcomm) if it is comm)
                return np.concatenate(comm.alltoall(np.array_split(x, comm.Get_size(), axis=to)), axis=axis)
        return x
