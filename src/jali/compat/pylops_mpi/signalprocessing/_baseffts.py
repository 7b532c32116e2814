"""The base of Fourier transforms, under the name of pylops_mpi.signalprocessing._baseffts."""

from jali.linops.fourier import FFTND as _MPIBaseFFTND

__all__ = ["_MPIBaseFFTND"]
