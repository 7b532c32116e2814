"""Fourier transforms of N dimensions, under the name of pylops_mpi.signalprocessing.FFTND."""

from __future__ import annotations

from jali.compat.pylops_mpi._parts import TransformByRows
from jali.linops.fourier import FFTND

__all__ = ["MPIFFTND"]


class MPIFFTND(TransformByRows, FFTND):
    """`jali.linops.FFTND`, whose results are split by rows."""
