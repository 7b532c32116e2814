"""The covariant Laplacian: against NumPy on several elements, its exact spectrum on unit links, and its symmetries."""

from __future__ import annotations

import numpy as np
import pytest
from properties import (
    check_batches_and_colours,
    check_even_odd,
    check_gauge_covariance,
    check_symmetries,
    dense,
)
from test_wilson import random_links, unit_links

import jali
from jali import ODD, SU, Field, Lattice, LayoutError, Matrix, Real, Spinor, Vector
from jali.fermions.laplace import Laplace
from jali.gauge import GaugeField
from jali.lattice.algebra import inner


def random_field(lattice, element, seed=2, **options):
    psi = Field(lattice, element, **options)
    rng = np.random.default_rng(seed)
    psi[...] = rng.normal(size=psi.shape) + 1j * rng.normal(size=psi.shape)
    return psi


def laplace_numpy(links, psi, directions, conditions):
    """The sum over neighbours with explicit factors of the boundary; psi (*extents, n, k)."""
    out = -2 * len(directions) * psi
    for mu in directions:
        U, factor = links[mu], {"periodic": 1, "antiperiodic": -1, "open": 0}[conditions[mu]]
        edges = [np.ones(psi.shape[mu]) for _ in range(2)]
        edges[0][-1] = edges[1][0] = factor
        ahead, behind = (
            edge.reshape(-1, *(1,) * (psi.ndim - mu - 1)) * np.roll(psi, step, mu)
            for edge, step in zip(edges, (-1, 1), strict=True)
        )
        out = out + U @ ahead + np.roll(U, 1, mu).conj().swapaxes(-1, -2) @ behind
    return out


@pytest.mark.lanes
@pytest.mark.short(4)
@pytest.mark.parametrize(
    ("extents", "element", "directions"),
    [
        ((4, 2, 3, 4), Vector(3), (0, 1, 2)),
        ((4, 2, 4), Spinor(2), None),
        ((4, 6), Vector(1), (1,)),
        ((4, 2, 2, 4), Matrix(3, 2), (3, 1)),
        ((6,), Vector(2), None),
        ((4, 2, 2), Spinor(4), (2, 0)),
        ((2, 2, 2, 2, 2), Vector(2), None),
    ],
    ids=str,
)
def test_laplacian_agrees_with_numpy(extents, element, directions):
    lattice, ndim, n = Lattice(*extents), len(extents), element.type.shape[0]
    conditions = ["periodic", "open", "antiperiodic", "periodic", "periodic"][:ndim]
    U = random_links(lattice, n, 1)
    psi = random_field(lattice, element, boundary=conditions)

    def columns(values):
        if element == Spinor(n):
            return values.swapaxes(-1, -2)
        return values[..., None] if element == Vector(n) else values

    D = Laplace(U, directions, element)
    chosen = range(ndim) if directions is None else directions
    expected = laplace_numpy([u[...] for u in U], columns(psi[...]), chosen, conditions)
    assert np.allclose(columns(D.apply(psi)[...]), expected, rtol=1e-13, atol=1e-13)
    assert np.array_equal(D.adjoint(psi)[...], D.apply(psi)[...])


def test_plane_waves_on_unit_links_have_the_exact_eigenvalues():
    """2 sum (cos p - 1), antiperiodic in the last direction; a constant has 0 in the others."""
    lattice = Lattice(4, 6, 2, 8)
    U = unit_links(lattice, 3)
    p = 2 * np.pi * np.array([1 / 4, 2 / 6, 1 / 2, 2.5 / 8])
    psi = Field(lattice, Vector(3), boundary={3: "antiperiodic"})
    psi[...] = np.exp(1j * np.tensordot(p, np.indices(lattice.extents), axes=1))[..., None] * [1, 2j, -0.5]
    for directions in (None, (0, 2), (3,)):
        axes = list(range(4) if directions is None else directions)
        value = 2 * np.sum(np.cos(p[axes]) - 1)
        found = Laplace(U, directions).apply(psi)[...]
        assert np.allclose(found, value * psi[...], rtol=0, atol=1e-13)
    psi[...] = 1.0
    assert np.allclose(Laplace(U, lattice.directions[:3]).apply(psi)[...], 0, rtol=0, atol=1e-14)


@pytest.fixture(scope="module")
def setting():
    return Laplace(random_links(Lattice(4, 2, 4, 6), 3, 3), element=Spinor)


def test_symmetries_are_those_of_dirac_operators(setting):
    check_symmetries(setting, setting)


def test_moved_links_move_the_operator():
    check_gauge_covariance(lambda U: Laplace(U, range(3), Spinor), Lattice(4, 2, 4, 6), 3)


def test_even_odd_forms_give_the_full_solution(setting):
    check_even_odd(setting)


def test_batches_and_colours_have_the_bits_of_single_whole_fields(setting):
    check_batches_and_colours(setting)


def test_minus_the_laplacian_is_hermitian_and_positive():
    lattice = Lattice(2, 2, 2, 2)
    D = Laplace(random_links(lattice, 3, 1), range(3))
    matrix = dense(D.apply, Field(lattice, Vector(3)))
    assert np.allclose(matrix, matrix.conj().T, rtol=0, atol=1e-14)
    values = np.linalg.eigvalsh(-matrix)
    assert 0 < values[0] < values[-1] < 12
    psi = random_field(lattice, Vector(3))
    assert inner(psi, D.apply(psi)).real < 0


def test_spinors_are_four_vectors(setting):
    """Spins do not mix: members of a batch of vectors have the same bits."""
    lattice = setting.lattice
    psi = random_field(lattice, Spinor(3))
    spins = Field(lattice, Vector(3), batch=4)
    spins[...] = psi[...]
    found = Laplace(setting.links, range(3), Vector(3)).apply(spins)[...]
    assert np.array_equal(found, Laplace(setting.links, range(3), Spinor(3)).apply(psi)[...])


@pytest.mark.lanes
@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [4, 3, 2])
def test_bits_are_those_of_one_rank(ranks):
    def run(n):
        lattice = Lattice(4, 2, 2, 12, grid=(1, 1, 1, n))
        D = Laplace(random_links(lattice, 3, 1))
        psi = random_field(lattice, Vector(3))
        return D.normal(psi)[...], D.even_odd().apply(psi.on(ODD))[...]

    one = run(1)
    for found in jali.virtual_ranks(ranks, lambda: run(ranks)):
        assert all(np.array_equal(a, b) for a, b in zip(found, one, strict=True))


def test_open_links_and_open_fields_belong_together():
    lattice = Lattice(4, 3, 2, 4)
    U = GaugeField(lattice, SU(2), boundary={1: "open"}).hot_start(seed=1)
    psi = random_field(lattice, Vector(2), boundary={1: "open"})
    conditions = ["periodic", "open", "periodic", "periodic"]
    expected = laplace_numpy([u[...] for u in U.fields], psi[...][..., None], range(4), conditions)
    assert np.allclose(Laplace(U).apply(psi)[...], expected[..., 0], rtol=0, atol=1e-13)
    with pytest.raises(LayoutError, match="direction 1, which is open"):
        Laplace(U).apply(random_field(lattice, Vector(2)))


def test_mistakes_are_reported():
    U = unit_links(Lattice(4, 4), 2)
    for act, match in (
        (lambda: Laplace(U, (0, 2)), r"different numbers from 0 to 1, at least one, not \(0, 2\)"),
        (lambda: Laplace(U, ()), r"at least one, not \(\)"),
        (lambda: Laplace(U, (1, 1)), r"different numbers from 0 to 1, at least one, not \(1, 1\)"),
        (lambda: Laplace(U, "x"), "different numbers from 0 to 1, at least one, not 'x'"),
        (lambda: Laplace(U, 1), "different numbers from 0 to 1, at least one, not 1"),
        (lambda: Laplace(U, None, Vector(3)), "links of 2 colours act on elements with as many rows, not on"),
        (lambda: Laplace(U, None, Real()), "links of 2 colours act on elements with as many rows, not on"),
        (lambda: Laplace(U).apply(Field(U[0].lattice, Spinor(2))), r"acts on fields of Vector\(2"),
    ):
        with pytest.raises(LayoutError, match=match):
            act()
    assert repr(Laplace(U, (1,))).endswith("directions (1,))")
