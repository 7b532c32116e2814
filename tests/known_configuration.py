"""A configuration of SU(3) links by a formula, whose numbers are known: "G" of the reference."""

from __future__ import annotations

import numpy as np

EXTENTS = (4, 4, 4, 8)


def gell_mann():
    """The eight matrices lambda_a."""
    matrices = np.zeros((8, 3, 3), complex)
    for a, i, j in ((0, 0, 1), (3, 0, 2), (5, 1, 2)):
        matrices[a, i, j] = matrices[a, j, i] = 1
        matrices[a + 1, i, j], matrices[a + 1, j, i] = -1j, 1j
    matrices[2] = np.diag([1, -1, 0])
    matrices[7] = np.diag([1, 1, -2]) / np.sqrt(3)
    return matrices


def known_links():
    """U = exp(i theta_a lambda_a / 2) with theta_a = 0.8 (2 ((k^2 + 7 k) mod 101) / 101 - 1), k = a + 8 (mu + 4 n); (4, *EXTENTS, 3, 3)."""
    n = np.arange(np.prod(EXTENTS)).reshape(EXTENTS[::-1]).T  # x fastest
    mu, a = np.arange(4), np.arange(1, 9)
    k = a + 8 * (mu[:, None, None, None, None] + 4 * n)[..., None]
    theta = 0.8 * (2 * ((k * k + 7 * k) % 101) / 101 - 1)
    values, vectors = np.linalg.eigh(np.einsum("...a,aij->...ij", theta / 2, gell_mann()))
    return np.einsum("...ik,...k,...jk->...ij", vectors, np.exp(1j * values), vectors.conj())
