"""Fourier transforms of two dimensions, under the name of pylops_mpi.signalprocessing.FFT2D."""

from jali.linops.fourier import FFT2D as MPIFFT2D

__all__ = ["MPIFFT2D"]
