"""Zero frequencies in the middle of arrays, under the names of pylops_mpi.utils.fft_helper."""

from jali.fft import fftshift_nd, ifftshift_nd

__all__ = ["fftshift_nd", "ifftshift_nd"]
