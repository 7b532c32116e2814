"""jali's lines of docs/notes/dirac-conventions.md."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from test_wilson import random_links, random_spinor, unit_links

import jali
from jali import SU, Algebra, Field, Lattice, Random, Spinor
from jali.fermions import WilsonDirac, gamma, gamma5
from jali.fermions.bases import BASES
from jali.fermions.clover import CloverDirac
from jali.gauge import GaugeField, plaquette
from jali.gauge.groups import gaussian_algebra

PAGE = Path(__file__).resolve().parents[2] / "docs" / "notes" / "dirac-conventions.md"
TIME = {3: "antiperiodic"}


def test_two_kappa_times_the_operator_is_one_minus_kappa_times_the_hops():
    lattice = Lattice(2, 4, 2, 4)
    D = WilsonDirac(random_links(lattice, 3, 1), kappa=0.14)
    psi = random_spinor(lattice, 3, 2, boundary=TIME)
    assert D.mass == pytest.approx(1 / 0.28 - 4)
    H = -2 * D.hop(psi)[...]
    assert np.allclose(D.apply(psi)[...], (D.mass + 4) * psi[...] - H / 2, atol=1e-13)
    assert np.allclose(0.28 * D.apply(psi)[...], psi[...] - 0.14 * H, atol=1e-13)


def test_a_hop_forwards_has_one_minus_gamma():
    """Of a spinor at one site: what comes to the site in front of it, and behind it, on unit links."""
    lattice = Lattice(6, 6, 6, 6)
    D = WilsonDirac(unit_links(lattice, 1), 0.0)
    spins = np.array([1, 2j, -0.5, 1 - 1j])
    psi = Field(lattice, Spinor(1))
    psi[2, 2, 2, 2] = spins[:, None]
    out = D.apply(psi)
    for mu in range(4):
        behind, ahead = [2] * 4, [2] * 4
        behind[mu], ahead[mu] = 1, 3
        g = gamma[mu].dense()
        assert np.allclose(out[tuple(behind)][:, 0], -0.5 * (np.eye(4) - g) @ spins)
        assert np.allclose(out[tuple(ahead)][:, 0], -0.5 * (np.eye(4) + g) @ spins)


def test_gamma_matrices_are_those_that_other_codes_list():
    """Columns of the entries in each row, and entries, as QUDA's table has them."""
    listed = (
        ([3, 2, 1, 0], [1j, 1j, -1j, -1j]),
        ([3, 2, 1, 0], [-1, 1, 1, -1]),
        ([2, 3, 0, 1], [1j, -1j, -1j, 1j]),
        ([2, 3, 0, 1], [1, 1, 1, 1]),
    )
    for g, (columns, entries) in zip(gamma, listed, strict=True):
        dense = np.zeros((4, 4), complex)
        dense[range(4), columns] = entries
        assert np.array_equal(g.dense(), dense)
    product = np.linalg.multi_dot([g.dense() for g in gamma])
    assert np.array_equal(gamma5.dense(), product)
    assert np.array_equal(product, np.diag([1, 1, -1, -1]))
    for name, theirs in (
        ("UKQCD", [[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]]),
        ("tmLQCD", np.diag([-1, -1, 1, 1])),
    ):
        R = BASES[name].dense()
        assert np.allclose(R @ product @ R.conj().T, theirs, atol=1e-15)


def test_the_clover_term_has_the_sign_of_the_table():
    """Links exp(i theta x) of direction y give F = i sin theta in the plane of x and y, where gamma_x gamma_y = diag(-i, i, -i, i)."""
    lattice, mass, c = Lattice(4, 4, 2, 2), 0.3, 1.2
    U = GaugeField(lattice, SU(1)).cold_start()
    U[1][...] = np.exp(0.5j * np.pi * np.arange(4))[:, None, None, None, None, None]
    assert plaquette(U) == pytest.approx(5 / 6)
    assert np.allclose((gamma[0] * gamma[1]).dense(), np.diag([-1j, 1j, -1j, 1j]))
    psi = Field(lattice, Spinor(1))
    psi[...] = 1.0
    found = CloverDirac(U, mass, csw=c).diagonal(psi)[...][..., 0]
    assert np.allclose(found, mass + 4 - c / 2 * np.array([1, -1, 1, -1]))


def test_boundaries_of_spinors_are_those_of_other_codes_in_their_links():
    lattice = Lattice(2, 2, 2, 4)
    U = random_links(lattice, 2, 1)
    psi = random_spinor(lattice, 2, 2, boundary=TIME)
    ours = WilsonDirac(U, 0.2).apply(psi)[...]
    flipped = [*U[:3], Field(lattice, jali.Matrix(2))]
    flipped[3][...] = U[3][...] * np.array([1, 1, 1, -1])[:, None, None]
    periodic = psi.like(boundary="periodic")
    periodic[...] = psi[...]
    assert np.allclose(WilsonDirac(flipped, 0.2).apply(periodic)[...], ours, atol=1e-13)
    phase = np.exp(-1j * np.pi / 4 * np.arange(4))[:, None, None]
    spread = [*U[:3], Field(lattice, jali.Matrix(2))]
    spread[3][...] = U[3][...] * np.exp(1j * np.pi / 4)
    periodic[...] = psi[...] * phase
    assert np.allclose(WilsonDirac(spread, 0.2).apply(periodic)[...], ours * phase, atol=1e-13)


def test_the_plaquette_of_a_cold_lattice_is_one():
    assert plaquette(GaugeField(Lattice(2, 2, 2, 2), SU(3)).cold_start()) == 1


def test_momenta_have_components_of_unit_variance():
    """Of 4096 sites, within five standard errors."""
    lattice = Lattice(8, 8, 8, 8)
    P = Field(lattice, Algebra(3))

    @jali.site_function
    def draw(X, P, rng):
        P[X] = gaussian_algebra(X, rng, 3)

    draw(P, Random(seed=1))
    values = P[...]
    weights = -2 * np.einsum("...ij,...ji->...", values, values).real
    assert weights.mean() == pytest.approx(8, abs=5 * 4 / 64)  # chi-squared with 8 degrees of freedom
    assert (abs(values[..., 0, 1]) ** 2).mean() == pytest.approx(0.5, abs=5 * 0.5 / 64)


def test_every_line_of_another_code_names_file_and_commit():
    rows = [line.split("|")[1:-1] for line in PAGE.read_text().splitlines() if line.startswith("|")]
    others = [
        row
        for row in rows
        if row[0].split(",")[0].split()[0] in ("Chroma", "Grid", "MILC", "QUDA", "openQCD", "tmLQCD")
    ]
    assert len(others) == len(rows) - 6 * 3  # of six tables heading, rule and jali's line
    for row in others:
        assert re.search(r"[\w/]+\.\w+, [0-9a-f]{8}\b", row[-1]), row
