"""Spectra that are known: free quarks by formula, a configuration of the reference, and one of 8^4 by SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hermitian_operators import gamma5_times
from known_configuration import EXTENTS, known_links

from jali import SU, Field, Lattice, Spinor, Vector
from jali.fermions import Staggered, WilsonDirac
from jali.gauge import GaugeField, stout_smear
from jali.solvers import lanczos

ANTIPERIODIC = {3: "antiperiodic"}


def momenta(extents):
    """All of them, of fields that are antiperiodic in the last direction."""
    last = len(extents) - 1
    axes = [2 * np.pi * (np.arange(n) + (0.5 if mu == last else 0)) / n for mu, n in enumerate(extents)]
    return np.array(list(itertools.product(*axes)))


def free(name, extents, mass):
    """Eigenvalues of D^dagger D of one colour, ascending."""
    p = momenta(extents)
    squares = np.sum(np.sin(p) ** 2, axis=1)
    if name == "wilson":
        return np.sort(np.repeat((mass + np.sum(1 - np.cos(p), axis=1)) ** 2 + squares, 4))
    return np.sort(mass**2 + squares)


@pytest.mark.parametrize(
    ("name", "extents", "block"), [("wilson", (2, 2, 2, 4), 9), ("staggered", (2, 2, 4, 4), 6)]
)
@pytest.mark.short(1)
def test_free_quarks_have_the_eigenvalues_of_their_formula(name, extents, block):
    """The lowest one of Wilson quarks is eightfold, which a block of nine finds at once; staggered ones have more copies."""
    lattice, mass = Lattice(*extents), 0.1
    U = GaugeField(lattice, SU(1)).cold_start()
    if name == "wilson":
        A, like = WilsonDirac(U, mass).normal, Field(lattice, Spinor(1), boundary=ANTIPERIODIC)
    else:
        A, like = Staggered(U, mass).normal, Field(lattice, Vector(1), boundary=ANTIPERIODIC)
    expected = free(name, extents, mass)
    assert expected[7] - expected[0] < 1e-12
    for count, some in ((10, 1), (8, block)):
        pairs = lanczos(A, like, count, block=some)
        assert np.abs(pairs.values - expected[:count]).max() < 1e-12
        assert pairs.converged
    top = lanczos(A, like, 1, which="largest")
    assert abs(top.values[0] - expected[-1]) < 1e-11


def test_eigenvalues_of_gamma5_D_of_free_quarks_are_roots_of_both_signs():
    lattice, mass = Lattice(2, 2, 2, 4), 0.1
    D = WilsonDirac(GaugeField(lattice, SU(1)).cold_start(), mass)
    like = Field(lattice, Spinor(1), boundary=ANTIPERIODIC)
    expected = np.sqrt(free("wilson", lattice.extents, mass))
    low = lanczos(gamma5_times(D), like, 4, block=3)
    high = lanczos(gamma5_times(D), like, 4, which="largest", block=3)
    assert np.abs(low.values + expected[:-5:-1]).max() < 1e-12
    assert np.abs(high.values - expected[-4:]).max() < 1e-12


def test_the_known_configuration_has_its_extreme_eigenvalues():
    lattice = Lattice(*EXTENTS)
    U = GaugeField(lattice, SU(3))
    for field, links in zip(U.fields, known_links(), strict=True):
        field[...] = links
    D, eta = WilsonDirac(U, 0.1), Field(lattice, Spinor(3), boundary=ANTIPERIODIC)
    low = lanczos(D.normal, eta, 1, rtol=1e-6, degree=12, window=(1.0, 60.0), space=16)
    high = lanczos(D.normal, eta, 1, which="largest", rtol=1e-6, degree=6, window=(0.0, 57.0), space=16)
    assert low.values[0] == pytest.approx(0.4843485144, abs=1.5e-10)
    assert high.values[0] == pytest.approx(59.2632156, abs=1.5e-7)


@pytest.mark.full
def test_the_50_lowest_eigenvalues_of_8_to_the_4_are_those_of_scipy():
    linalg = pytest.importorskip("scipy.sparse.linalg")
    lattice = Lattice(8, 8, 8, 8)
    U = stout_smear(GaugeField(lattice, SU(3)).hot_start(seed=5), rho=0.1, steps=4)
    D, b = WilsonDirac(U, 0.1), Field(lattice, Spinor(3), boundary=ANTIPERIODIC)
    largest = lanczos(D.normal, b, 1, which="largest", rtol=1e-3).values[0]
    pairs = lanczos(D.normal, b, 50, degree=24, window=(1.95, 1.01 * largest))
    p, q = b.like(), b.like()

    def apply(x):
        D.normal(p.set_local(x.reshape(b.shape)), q)
        return q.local().ravel()

    n = int(np.prod(b.shape))
    A = linalg.LinearOperator((n, n), matvec=apply, dtype=complex)
    expected = linalg.eigsh(A, k=50, which="SA", ncv=140, tol=1e-12, return_eigenvectors=False)
    assert np.abs(pairs.values - np.sort(expected)).max() < 1e-10
