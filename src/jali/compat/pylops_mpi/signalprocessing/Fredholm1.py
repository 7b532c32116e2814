"""Fredholm integrals of the first kind, under the name of pylops_mpi.signalprocessing.Fredholm1."""

from __future__ import annotations

from typing import Any

from jali.linops.fredholm import Fredholm1

__all__ = ["MPIFredholm1"]


class MPIFredholm1(Fredholm1):
    """`jali.linops.Fredholm1` with the default type of pylops_mpi."""

    def __init__(
        self,
        G: Any,
        nz: int = 1,
        saveGt: bool = False,
        usematmul: bool = True,
        base_comm: Any = None,
        dtype: Any = "float64",
    ) -> None:
        super().__init__(G, nz, saveGt, usematmul, base_comm, dtype)
