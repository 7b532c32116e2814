"""Multi-dimensional convolution, under the name of pylops_mpi.waveeqprocessing.MDC."""

from __future__ import annotations

from typing import Any

from jali.linops.mdc import MDC

__all__ = ["MPIMDC"]


class MPIMDC(MDC):
    """`jali.linops.MDC`, whose `dims` and `dimsd` have nv also where it is 1."""

    def __init__(
        self,
        G: Any,
        nt: int,
        nv: int,
        nfreq: int,
        dt: float = 1.0,
        dr: float = 1.0,
        twosided: bool = True,
        fftengine: str = "numpy",
        saveGt: bool = True,
        conj: bool = False,
        usematmul: bool = False,
        prescaled: bool = False,
        base_comm: Any = None,
    ) -> None:
        super().__init__(
            G, nt, nv, nfreq, dt, dr, twosided, fftengine, saveGt, conj, usematmul, prescaled, base_comm
        )
        self.dims, self.dimsd = ((*shape[:2], self.nv) for shape in (self.dims, self.dimsd))
