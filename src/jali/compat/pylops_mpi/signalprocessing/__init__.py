"""Operators of signals, under the names of pylops_mpi.signalprocessing."""

from jali.compat.pylops_mpi.signalprocessing import FFT2D, FFTND, Fredholm1, NonStatConvolve1d, _baseffts
from jali.compat.pylops_mpi.signalprocessing.FFT2D import MPIFFT2D
from jali.compat.pylops_mpi.signalprocessing.FFTND import MPIFFTND
from jali.compat.pylops_mpi.signalprocessing.Fredholm1 import MPIFredholm1
from jali.compat.pylops_mpi.signalprocessing.NonStatConvolve1d import MPINonStationaryConvolve1D

__all__ = [
    "FFT2D",
    "FFTND",
    "MPIFFT2D",
    "MPIFFTND",
    "Fredholm1",
    "MPIFredholm1",
    "MPINonStationaryConvolve1D",
    "NonStatConvolve1d",
    "_baseffts",
]
