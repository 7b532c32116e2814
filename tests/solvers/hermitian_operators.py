"""Operators whose eigenvalues are known, for tests of eigenvectors."""

from __future__ import annotations

import functools
import math

import numpy as np

import jali
from jali import SU, Field, Lattice, Spinor
from jali.fermions import WilsonDirac, gamma5
from jali.gauge import GaugeField


class OfMatrix:
    """A matrix as an operator that counts its applications."""

    def __init__(self, matrix):
        self.matrix = matrix
        self.calls = 0

    def matvec(self, x):
        self.calls += 1
        with np.errstate(all="ignore"):
            return self.matrix @ x


class Counted:
    """A function on fields that writes, with its calls counted."""

    def __init__(self, function):
        self.function = function
        self.calls = 0

    def __call__(self, p, q):
        self.calls += 1
        self.function(p, q)


@jali.site_function
def times_gamma5(X, out, psi):
    out[X] = gamma5 * psi[X]


def hermitian(n, complex_=True, seed=1):
    """A random matrix, whose eigenvalues lie on both sides of zero."""
    rng = np.random.default_rng(seed)
    M = rng.normal(size=(n, n)) + (1j * rng.normal(size=(n, n)) if complex_ else 0)
    return (M + M.conj().T) / 2


def with_spectrum(values, seed=1):
    """A matrix with these eigenvalues."""
    Q, _ = np.linalg.qr(hermitian(len(values), seed=seed))
    M = (Q * np.array(values, float)) @ Q.conj().T
    return (M + M.conj().T) / 2


@functools.cache
def dense(A, like):
    """The matrix of a function on fields that writes."""
    p, q = like.like(), like.like()
    n = math.prod(like.shape)
    M = np.zeros((n, n), complex)
    for k, unit in enumerate(np.eye(n)):
        p[...] = unit.reshape(like.shape)
        A(p, q)
        M[:, k] = q[...].ravel()
    return M


@functools.cache
def wilson(n=2, mass=0.1, seed=1):
    """The Wilson operator on a small lattice, a vector, D^dagger D, gamma5 D."""
    lattice = Lattice(2, 2, 2, 4)
    D = WilsonDirac(GaugeField(lattice, SU(n)).hot_start(seed=seed), mass)
    return Field(lattice, Spinor(n)), D.normal, gamma5_times(D)


def gamma5_times(D):
    """gamma5 D, Hermitian and indefinite, of fields with a batch or without."""
    between = {}

    def apply(p, q):
        r = between.setdefault(p.batch, p.like())
        D.apply(p, r)
        times_gamma5(q, r)

    return apply
