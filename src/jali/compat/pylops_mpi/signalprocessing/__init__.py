"""Operators of signals, under the names of pylops_mpi.signalprocessing."""

from jali.compat.pylops_mpi.signalprocessing import Fredholm1, NonStatConvolve1d
from jali.compat.pylops_mpi.signalprocessing.Fredholm1 import MPIFredholm1
from jali.compat.pylops_mpi.signalprocessing.NonStatConvolve1d import MPINonStationaryConvolve1D

__all__ = [
    "Fredholm1",
    "MPIFredholm1",
    "MPINonStationaryConvolve1D",
    "NonStatConvolve1d",
]
