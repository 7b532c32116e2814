"""Systems that every solver of A x = b is tried on: matrices of NumPy, and Wilson's operator with a source."""

from __future__ import annotations

from typing import Any

import numpy as np

from jali import SU, Field, Spinor
from jali.fermions import WilsonDirac
from jali.gauge import GaugeField
from jali.vectors import vectors_of

HERMITIAN = {"minres", "cg with M", "chebyshev"}  # solvers, by the names of tests, that need such an operator


def halved(r, z):
    """A preconditioner that is a multiple of the identity."""
    vectors_of("z", z).update([(z, 0, [(0.5, r)])])


class OfMatrix:
    """A matrix as an operator."""

    def __init__(self, matrix):
        self.matrix = matrix

    def matvec(self, x):
        with np.errstate(invalid="ignore"):  # after a breakdown
            return self.matrix @ x

    def rmatvec(self, x):
        return self.matrix.conj().T @ x


def matrix_for(name, complex_, n=24):
    """With a definite Hermitian part, Hermitian where the solver needs it."""
    rng = np.random.default_rng(3)
    M = rng.normal(size=(n, n)) + (1j * rng.normal(size=(n, n)) if complex_ else 0)
    M = M @ M.conj().T / n + 0.5 * np.eye(n) if name in HERMITIAN else 4 * np.eye(n) + 0.3 * M
    b = rng.normal(size=n) + (1j * rng.normal(size=n) if complex_ else 0)
    return M, b


def wilson(lattice, name, mass=0.4, half=False):
    """The Wilson operator or its even-odd form, the normal one where a Hermitian one is needed; and what it is of."""
    D: Any = WilsonDirac(GaugeField(lattice, SU(2)).hot_start(seed=2), mass)
    D = D.even_odd() if half else D
    return (D.normal if name in HERMITIAN else D), D


def source(lattice, batch=None, seed=1):
    """Random numbers; members of a batch are of many sizes, and zero at another site each."""
    rng = np.random.default_rng(seed)
    b = Field(lattice, Spinor(2))
    b[...] = rng.normal(size=b.shape) + 1j * rng.normal(size=b.shape)
    if batch is None:
        return b
    many = b.like(batch=batch)
    for k in range(batch):
        many.members[k][...] = 10.0**k * b[...]
        many.members[k][np.unravel_index(k, lattice.extents)] = 0
    return many
