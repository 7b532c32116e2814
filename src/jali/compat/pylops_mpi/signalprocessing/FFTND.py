"""Fourier transforms of N dimensions, under the name of pylops_mpi.signalprocessing.FFTND."""

from jali.linops.fourier import FFTND as MPIFFTND

__all__ = ["MPIFFTND"]
