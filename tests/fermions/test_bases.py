"""Bases of gamma matrices: the matrices that the page lists, and operators and currents in another basis."""

from __future__ import annotations

import numpy as np
import pytest
from test_wilson import random_links, random_spinor

import jali
from jali import EVEN, Field, Lattice, LayoutError, Matrix, ParameterError, Spinor
from jali.fermions import WilsonDirac, from_basis, gamma, gamma5, to_basis
from jali.fermions.bases import BASES

SIGMA = np.array([[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]])
ONE, NONE = np.eye(2), np.zeros((2, 2))


def blocks(upper_left, upper_right, lower_left, lower_right):
    return np.block([[upper_left, upper_right], [lower_left, lower_right]])


SPACE = [blocks(NONE, -1j * s, 1j * s, NONE) for s in SIGMA]
DEGRAND_ROSSI = [blocks(NONE, B, B.conj().T, NONE) for B in (1j * SIGMA[0], -1j * SIGMA[1], 1j * SIGMA[2])]
LISTED = {  # gamma_1 to gamma_4 and their product, as the docstring of jali.fermions.bases has them
    "DeGrand-Rossi": (*DEGRAND_ROSSI, blocks(NONE, ONE, ONE, NONE), np.diag([1, 1, -1, -1])),
    "Dirac-Pauli": (*SPACE, np.diag([1, 1, -1, -1]), blocks(NONE, -ONE, -ONE, NONE)),
    "UKQCD": (*(-g for g in SPACE), np.diag([1, 1, -1, -1]), blocks(NONE, ONE, ONE, NONE)),
    "chiral": (*SPACE, blocks(NONE, ONE, ONE, NONE), np.diag([1, 1, -1, -1])),
    "tmLQCD": (*SPACE, blocks(NONE, -ONE, -ONE, NONE), np.diag([-1, -1, 1, 1])),
}


@pytest.mark.parametrize("name", LISTED)
def test_the_matrix_of_a_basis_leads_to_the_gamma_matrices_that_are_listed(name):
    R = BASES[name].dense()
    assert np.allclose(R @ R.conj().T, np.eye(4), atol=1e-15)
    for ours, theirs in zip((*gamma, gamma5), LISTED[name], strict=True):
        assert np.allclose(R @ ours.dense() @ R.conj().T, theirs, atol=1e-15)
    assert list(BASES) == list(LISTED)


@pytest.mark.parametrize("name", LISTED)
def test_spinors_are_rotated_and_come_back(name):
    lattice = Lattice(4, 2, 2, 4)
    R = BASES[name].dense()
    for psi in (
        random_spinor(lattice, 3, 1, boundary={3: "antiperiodic"}),
        random_spinor(lattice, 2, 2).on(EVEN),
    ):
        there = to_basis(psi, name)
        assert np.allclose(there[...], R @ psi[...], atol=1e-15)
        assert (there.boundary, there.over) == (psi.boundary, psi.over)
        assert np.allclose(from_basis(there, name)[...], psi[...], atol=1e-15)
        assert from_basis(there, name, there) is there
        assert np.allclose(there[...], psi[...], atol=1e-15)
    walls = Field(lattice, Spinor(2), batch=3)
    walls[...] = np.random.default_rng(1).normal(size=walls.shape)
    assert np.allclose(to_basis(walls, name)[...], R @ walls[...], atol=1e-15)


def test_the_wilson_operator_in_another_basis_has_the_matrices_of_that_basis():
    """A site function with the listed matrices of the basis tmLQCD, on psi'."""
    lattice, mass = Lattice(4, 2, 2, 4), 0.2
    U, psi = random_links(lattice, 2, 1), random_spinor(lattice, 2, 2, boundary={3: "antiperiodic"})
    theirs = [jali.fermions.SpinMatrix(matrix) for matrix in LISTED["tmLQCD"][:4]]

    @jali.site_function
    def wilson(X, out, psi, U):
        hops = jali.zero(psi.element)
        for mu, g in zip(X.directions(), theirs, strict=True):
            hops = hops + (1 - g) * (U[mu][X] * psi[X + mu])
            hops = hops + (1 + g) * (U[mu][X - mu].dagger() * psi[X - mu])
        out[X] = (mass + 4) * psi[X] - 0.5 * hops

    there = to_basis(psi, "tmLQCD")
    out = there.like()
    wilson(out, there, U)
    assert np.allclose(from_basis(out, "tmLQCD")[...], WilsonDirac(U, mass).apply(psi)[...], atol=1e-13)


def test_mistakes_are_reported():
    psi = Field(Lattice(2, 2), Spinor(2))
    with pytest.raises(ParameterError, match="a basis is one of DeGrand-Rossi, .*, tmLQCD, not 'Weyl'"):
        to_basis(psi, "Weyl")
    with pytest.raises(LayoutError, match="a field of spinors, not of 3"):
        from_basis(3, "chiral")
    with pytest.raises(LayoutError, match=r"holds Matrix\(4, 2\)"):
        to_basis(Field(psi.lattice, Matrix(4, 2)), "chiral")
    with pytest.raises(LayoutError, match=r"its element is Spinor\(2\), .* is Spinor\(3\)"):
        to_basis(psi, "chiral", Field(psi.lattice, Spinor(3)))
