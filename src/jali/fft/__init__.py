"""Fourier transforms of distributed arrays: of 1 to N dimensions, along any axes, split ones too.

`fftn` and its like take what NumPy's take. A `Plan` is a transform of arrays of one layout that is made once. Local transforms come
from a row of `jali.fft.providers`, redistributions are `jali.arrays.exchange`.
"""

from jali.fft.plan import Plan
from jali.fft.shifts import fftshift_nd, ifftshift_nd
from jali.fft.transforms import (
    fft,
    fft2,
    fftn,
    ifft,
    ifft2,
    ifftn,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)

__all__ = [
    "Plan",
    "fft",
    "fft2",
    "fftn",
    "fftshift_nd",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift_nd",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftn",
]
