"""The base of Fourier transforms, under the name of pylops_mpi.signalprocessing._baseffts."""

from jali.linops import fourier

_MPIBaseFFTND = fourier.FFTND

__all__ = ["_MPIBaseFFTND"]
