"""Linear operators on distributed arrays: see `jali.arrays`."""

from jali.linops.fourier import FFT, FFT2D, FFTND
from jali.linops.operator import LinearOperator, StackedLinearOperator

__all__ = ["FFT", "FFT2D", "FFTND", "LinearOperator", "StackedLinearOperator"]
