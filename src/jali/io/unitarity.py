"""How far links are from their group, and putting them back.

For links read from single-precision or two-row files. NumPy only; kernels on fields have their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_CHUNK = 1 << 14


def unitarity_deviation(links: NDArray) -> float:
    """max |U U^dagger - 1| over all elements of all matrices (..., n, n); 0 for no matrices."""
    n = links.shape[-1]
    flat = links.reshape(-1, n, n)
    one = np.eye(n)
    worst = 0.0
    for begin in range(0, len(flat), _CHUNK):
        u = flat[begin : begin + _CHUNK].astype(np.complex128)
        worst = max(worst, float(np.abs(u @ u.conj().swapaxes(-1, -2) - one).max()))
    return worst


def reunitarise(links: NDArray) -> NDArray:
    """Nearby matrices of SU(n), or phases for n = 1.

    Gram-Schmidt on the rows, twice so that rounding does not pile up, then the last row is turned so that det
    = 1. Takes and returns (..., n, n) complex of one type; computes in double precision. Matrices that are in
    the group stay as they are to rounding. Singular matrices give numbers that are not finite.
    """
    n = links.shape[-1]
    flat = links.reshape(-1, n, n)
    result = np.empty_like(flat)
    for begin in range(0, len(flat), _CHUNK):
        u = flat[begin : begin + _CHUNK].astype(np.complex128)
        with np.errstate(divide="ignore", invalid="ignore"):
            for i in list(range(n)) * 2:
                for j in range(i):
                    u[:, i] -= np.einsum("sk,sk->s", u[:, j].conj(), u[:, i])[:, None] * u[:, j]
                u[:, i] /= np.linalg.norm(u[:, i], axis=-1)[:, None]
            if n > 1:
                u[:, n - 1] *= np.linalg.det(u).conj()[:, None]
        result[begin : begin + _CHUNK] = u
    return result.reshape(links.shape)
