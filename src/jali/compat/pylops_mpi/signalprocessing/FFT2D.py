"""Fourier transforms of two dimensions, under the name of pylops_mpi.signalprocessing.FFT2D."""

from __future__ import annotations

from jali.compat.pylops_mpi._parts import TransformByRows
from jali.linops.fourier import FFT2D

__all__ = ["MPIFFT2D"]


class MPIFFT2D(TransformByRows, FFT2D):
    """`jali.linops.FFT2D`, whose results are split by rows."""
