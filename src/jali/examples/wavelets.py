"""Wavelets of seismic sources."""

from __future__ import annotations

import numpy as np


def ricker(frequency: float, interval: float, samples: int) -> np.ndarray:
    """The second derivative of a Gaussian, with its peak at a frequency: so many samples on both sides of its middle one."""
    a = (np.pi * frequency * interval * np.arange(-samples, samples + 1)) ** 2
    return np.asarray((1 - 2 * a) * np.exp(-a))
