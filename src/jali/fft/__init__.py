"""Fourier transforms of distributed arrays and fields: of 1 to N dimensions, along any axes, split ones too.

`fftn` and its like take what NumPy's take. A `Plan` is a transform of arrays of one layout that is made once. Local transforms come
from an entry of `jali.fft.providers`, redistributions are `jali.arrays.exchange`.
"""

from jali.fft.fields import array_of, field_of
from jali.fft.plan import FftPlan
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
    "FftPlan",
    "array_of",
    "fft",
    "fft2",
    "fftn",
    "fftshift_nd",
    "field_of",
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
