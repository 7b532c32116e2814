"""Twisted mass, with Wilson's and the clover operator: known numbers, dense matrices, and what mu changes in symmetries and inverses."""

from __future__ import annotations

import numpy as np
import pytest
from properties import (
    FORMS,
    check_batches_and_colours,
    check_bits_on_ranks,
    check_even_odd,
    check_gauge_covariance,
    check_symmetries,
    check_value,
    correlator,
    dense,
    log_det_by_colours,
    random_field,
)
from test_clover import clover_numpy, planes_of
from test_even_odd import known_system
from test_wilson import random_links, random_spinor, unit_links, wilson_numpy

from jali import EVEN, ODD, Lattice, LayoutError, ParameterError
from jali.fermions import WilsonDirac, gamma5
from jali.fermions.clover import CloverDirac
from jali.fermions.twisted_mass import TwistedCloverDirac, TwistedMassDirac
from jali.lattice.algebra import norm2
from jali.solvers import cg

KINDS = {
    "twisted clover": lambda U, mass, mu: TwistedCloverDirac(U, mass, mu, 1.2),
    "twisted": lambda U, mass, mu: TwistedMassDirac(U, mass, mu),
    "twisted clover by Cholesky": lambda U, mass, mu: TwistedCloverDirac(
        U, mass, mu, 1.2, inverse="cholesky"
    ),
}
both = pytest.mark.parametrize("kind", ["twisted clover", "twisted"])
all_kinds = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def links():
    return random_links(Lattice(4, 2, 4, 6), 3, 3)


@pytest.mark.lanes
@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("extents", "n"), [((4, 2, 2, 4), 3), ((4, 6), 1), ((4, 3, 2), 2), ((2, 3, 2, 4), 4)], ids=str
)
def test_operators_agree_with_numpy(extents, n):
    lattice, ndim = Lattice(*extents), len(extents)
    U, psi = random_links(lattice, n, 1), random_spinor(lattice, n, 2)
    expected = wilson_numpy([u[...] for u in U], psi[...], 0.3, ["periodic"] * ndim)
    expected = expected + 0.7j * gamma5.dense() @ psi[...]
    found = TwistedMassDirac(U, 0.3, 0.7).apply(psi)[...]
    assert np.allclose(found, expected, rtol=1e-13, atol=1e-13)
    expected = expected + clover_numpy(U, psi[...], planes_of(ndim, 1.7))
    found = TwistedCloverDirac(U, 0.3, 0.7, 1.7).apply(psi)[...]
    assert np.allclose(found, expected, rtol=1e-13, atol=1e-13)


KNOWN = {  # |D eta|^2, phi^dagger (D D^dagger)^-1 phi, iterations, C(0), C(1), C(4), log det
    "twisted": (
        (91563.159964324, 405.703213968, 100),
        (0.885277253777, 0.046710103153, 0.000814137429),
        8690.20759094,
    ),
    "twisted clover": (
        (92347.97490272, 436.621068834, 123),
        (0.934118302656, 0.055639024519, 0.001539800231),
        8651.63442371,
    ),
}
WITHOUT = {
    91378.211798817: "neither mu nor c_sw",
    92163.026737213: "mu is 0",
    91563.159964324: "c_sw is 0",
}


@both
def test_numbers_of_the_known_configuration(kind):
    wilson, eta = known_system()
    D = KINDS[kind](wilson.links, 0.1, 0.2)
    size, action, iterations = KNOWN[kind][0]
    wrong = {number: cause for number, cause in WITHOUT.items() if number != size}
    check_value(norm2(D.apply(eta)), size, wrong, "|D eta|^2", abs=1e-8)
    full = cg(D.normal, D.adjoint(eta), rtol=1e-10)
    assert full.iterations == iterations
    assert norm2(full.x) == pytest.approx(action, abs=1e-7)
    for over, form in FORMS[::3]:  # each colour and each form
        E = D.even_odd(over, form)
        found = cg(E.normal, E.adjoint(E.prepare(eta)), rtol=1e-10)
        assert np.allclose(E.reconstruct(found.x, eta)[...], full.x[...], rtol=0, atol=1e-8)


@pytest.mark.short(1)
@both
def test_correlators_of_the_known_configuration(kind):
    found = correlator(KINDS[kind](known_system()[0].links, 0.1, 0.2))
    wrong = {0.001011796315: "neither mu nor c_sw", 0.002032754327: "mu is 0", 0.000814137429: "c_sw is 0"}
    wrong = {number: cause for number, cause in wrong.items() if number != KNOWN[kind][1][2]}
    check_value(found[4], KNOWN[kind][1][2], wrong, "C(4)", abs=2e-12)
    assert found[[0, 1, 4]] == pytest.approx(KNOWN[kind][1], abs=2e-12)


@pytest.mark.full
@both
def test_determinants_of_the_known_configuration(kind):
    D = KINDS[kind](known_system()[0].links, 0.1, 0.2)
    schur, phase = log_det_by_colours(D)
    assert D.log_det(EVEN) + schur == pytest.approx(KNOWN[kind][2], abs=1e-7)
    if kind == "twisted clover":
        even = np.indices(D.lattice.extents).sum(0) % 2 == 0
        angles = [np.arctan(0.2 / np.linalg.eigvalsh(block[...][even])).sum() for block in D.blocks]
        assert phase + angles[0] - angles[1] == pytest.approx(-0.13488, abs=1e-5)


@pytest.mark.short(2)
@all_kinds
def test_gamma5_exchanges_the_flavours(links, kind):
    check_symmetries(KINDS[kind](links, 0.2, 0.3), KINDS[kind](links, 0.2, -0.3))


@both
def test_moved_links_move_the_operator(kind):
    check_gauge_covariance(lambda U: KINDS[kind](U, 0.2, 0.3), Lattice(4, 2, 4, 6), 3)


@pytest.mark.short(1)
@all_kinds
def test_even_odd_forms_give_the_full_solution(links, kind):
    check_even_odd(KINDS[kind](links, 0.5, 0.3))


@pytest.mark.short(1)
@all_kinds
def test_batches_and_colours_have_the_bits_of_single_whole_fields(links, kind):
    check_batches_and_colours(KINDS[kind](links, 0.2, 0.3))


@pytest.mark.lanes
@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [4, 3, 2])
@both
def test_bits_are_those_of_one_rank(ranks, kind):
    check_bits_on_ranks(lambda lattice: KINDS[kind](random_links(lattice, 3, 1), 0.2, 0.3), ranks)


@pytest.mark.short(1)
@all_kinds
def test_dense_matrices_have_the_determinant_and_the_inverse(kind):
    lattice = Lattice(2, 2, 2, 2)
    U, psi = random_links(lattice, 3, 1), random_spinor(lattice, 3, 2)
    D, other = KINDS[kind](U, 0.3, 0.4), KINDS[kind](U, 0.3, -0.4)
    E, matrix, A = D.even_odd(), dense(D.apply, psi), dense(D.diagonal, psi)
    odd = np.repeat((np.indices(lattice.extents).sum(0) % 2 == 1).ravel(), 12)
    schur = dense(lambda units: E.apply(units.on(ODD)), psi)[odd][:, odd]
    size = np.linalg.slogdet(matrix)[1]
    assert D.log_det(EVEN) + np.linalg.slogdet(schur)[1] == pytest.approx(size, rel=1e-13)
    assert D.log_det() == pytest.approx(np.linalg.slogdet(A)[1], rel=1e-13)
    assert D.log_det(ODD) + D.log_det(EVEN) == pytest.approx(D.log_det(), rel=1e-14)
    sign, pair = np.linalg.slogdet(matrix @ dense(other.apply, psi))  # of both flavours
    assert (sign, pair) == pytest.approx((1, 2 * size), rel=1e-12)
    inverse = dense(D.diagonal_inverse, psi)
    assert np.allclose(inverse @ A, np.eye(len(A)), rtol=0, atol=1e-13)


def test_a_twist_inverts_a_diagonal_that_is_not_positive():
    """A^2 + mu^2 is positive, also where A has zeros or is negative."""
    U = unit_links(Lattice(4, 2, 2, 4), 3)
    psi = random_spinor(U[0].lattice, 3, 1)
    for mass in (-4.0, -4.5):
        for make in KINDS.values():
            D = make(U, mass, 0.3)
            assert np.allclose(D.diagonal(D.diagonal_inverse(psi))[...], psi[...], rtol=0, atol=1e-13)
            assert D.log_det() == pytest.approx(64 * 6 * np.log((mass + 4) ** 2 + 0.09), rel=1e-13)


@all_kinds
def test_the_twist_may_change_its_sign(links, kind):
    D, other = KINDS[kind](links, 0.2, 0.3), KINDS[kind](links, 0.2, -0.7)
    psi = random_field(D, 1)
    D.diagonal_inverse(psi)
    D.mu = -0.7
    for act in ("apply", "diagonal_inverse"):
        assert np.array_equal(getattr(D, act)(psi)[...], getattr(other, act)(psi)[...])
    assert D.log_det() == other.log_det()


def test_operators_without_twist_are_those_of_wilson_and_clover(links):
    psi = random_field(WilsonDirac(links, 0.2), 1)
    numbers = {"kappa": 0.11, "anisotropy": 2.0, "nu": 1.1}
    for D, plain in (
        (TwistedMassDirac(links, mu=0, **numbers), WilsonDirac(links, **numbers)),
        (
            TwistedCloverDirac(links, mu=0, csw=1.3, csw_time=0.8, **numbers),
            CloverDirac(links, csw=1.3, csw_time=0.8, **numbers),
        ),
    ):
        for act in ("apply", "adjoint", "diagonal_inverse"):
            expected = getattr(plain, act)(psi)[...]
            assert np.allclose(getattr(D, act)(psi)[...], expected, rtol=0, atol=1e-13)


@pytest.mark.short(1)
@pytest.mark.parametrize(("storage", "bound"), [("fixed16", 2.2e-5), ("float16-scaled", 2.2e-4)])
def test_blocks_stored_in_less_are_as_close_as_their_format(links, storage, bound):
    exact, D = (TwistedCloverDirac(links, 0.2, 0.3, 1.2, storage=s) for s in (None, storage))
    psi = random_field(D, 1)
    for act in ("apply", "diagonal_inverse"):
        expected, found = (getattr(operator, act)(psi)[...] for operator in (exact, D))
        assert 0 < np.linalg.norm(found - expected) < 3 * bound * np.linalg.norm(expected), act


def test_mistakes_are_reported():
    U = unit_links(Lattice(4, 4), 2)
    for error, act, match in (
        (ParameterError, lambda: TwistedMassDirac(U, 0.1), "mu is a finite real number, not None"),
        (ParameterError, lambda: TwistedCloverDirac(U, 0.1, 1j), "mu is a finite real number, not 1j"),
        (ParameterError, lambda: TwistedMassDirac(U, mu=0.1), "mass= or kappa=, and neither"),
        (LayoutError, lambda: TwistedMassDirac(U, -2, 0).even_odd(), "the mass -2 makes the diagonal"),
        (LayoutError, lambda: TwistedMassDirac(U, -2, 0).log_det(), "the mass -2 makes the diagonal"),
    ):
        with pytest.raises(error, match=match):
            act()
    assert repr(TwistedMassDirac(U, 0.1, 0.2)).endswith("mass 0.1, mu 0.2)")
    assert repr(TwistedCloverDirac(U, 0.1, 0.2, 1.5)).endswith("mass 0.1, csw 1.5, mu 0.2)")
