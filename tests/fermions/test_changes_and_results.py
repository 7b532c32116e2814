"""What may change of an operator is followed, what may not is refused; results go where they fit."""

from __future__ import annotations

import numpy as np
import pytest
from test_wilson import random_links, random_spinor

import jali
from jali import EVEN, ODD, SU, Lattice, LayoutError, ParameterError, TraceError, Vector
from jali.fermions import (
    HISQ,
    Asqtad,
    CloverDirac,
    DomainWallDirac,
    Staggered,
    TwistedMassDirac,
    WilsonDirac,
    hisq_links,
    staggered_phase_at,
    to_basis,
)
from jali.gauge import GaugeField
from jali.lattice.algebra import inner


@pytest.fixture(scope="module")
def lattice():
    return Lattice(4, 2, 2, 4)


@pytest.fixture
def links(lattice):
    return random_links(lattice, 3, 3)


@pytest.fixture(scope="module")
def psi(lattice):
    return random_spinor(lattice, 3, 4, boundary={3: "antiperiodic"})


@pytest.mark.parametrize(
    "make",
    [
        lambda U: Asqtad(U, 0.1, 0.9),
        lambda U: HISQ(U, 0.1, epsilon=0.0),
        lambda U: HISQ(hisq_links(U), 0.1, epsilon=-0.2),
    ],
    ids=["asqtad", "HISQ", "HISQ with epsilon"],
)
def test_links_that_change_are_smeared_anew(make, lattice):
    U, other = (GaugeField(lattice, SU(3)).hot_start(seed=k) for k in (1, 2))
    chi = lattice.field(Vector(3), boundary={3: "antiperiodic"})
    chi[...] = np.random.default_rng(5).normal(size=chi.shape)
    D = make(U)
    before = (D @ chi)[...]
    U.assign(other)
    assert np.array_equal((D @ chi)[...], (make(U) @ chi)[...])
    assert not np.allclose((D @ chi)[...], before)


def test_a_fattened_link_that_is_singular_is_told_when_links_are_smeared(lattice):
    zero = [lattice.field(SU(3)) for _ in range(4)]
    with pytest.raises(jali.SingularError, match="site"):
        HISQ(zero, 0.1, epsilon=0.0)


def test_parameters_that_change_are_checked_and_others_do_not_change(links):
    D, S = WilsonDirac(links, 0.1), Staggered(links, 0.1)
    D.kappa = 0.125
    assert D.mass == 0
    for owner, name, value, match in (
        (D, "mass", 1j, "the mass is a finite real number, not 1j"),
        (D, "mass", "x", "the mass is a finite real number, not 'x'"),
        (D, "kappa", 0.0, "kappa is not zero"),
        (D, "anisotropy", 2.0, "anisotropy does not change: make an operator with another anisotropy="),
        (D, "nu", 2.0, "nu does not change"),
        (S, "phases", "milc", "phases does not change"),
        (S, "mass", np.nan, "finite real number, not nan"),
        (CloverDirac(links, 0.1), "csw", None, "csw is a finite real number, not None"),
        (TwistedMassDirac(links, 0.1, 0.2), "mu", np.inf, "mu is a finite real number, not inf"),
        (DomainWallDirac(links, 0.1, 1.8, Ls=4), "M5", -1.0, "M5 is positive, .* not -1"),
        (Asqtad(links, 0.1, 0.9), "u0", 0.8, "u0 does not change"),
        (HISQ(links, 0.1, epsilon=0.0), "epsilon", 0.1, r"HISQ\(D.smeared, mass, epsilon=...\)"),
    ):
        before = getattr(owner, name)
        with pytest.raises(ParameterError, match=match):
            setattr(owner, name, value)
        assert getattr(owner, name) == before
    with pytest.raises(ParameterError, match="phases are 'x first' or 'milc', not 'x_first'"):
        staggered_phase_at(None, None, "x_first")


def test_an_even_odd_form_notices_that_its_diagonal_has_become_zero(links, psi):
    D = WilsonDirac(links, 0.1)
    E = D.even_odd()
    D.mass = -4.0
    with pytest.raises(LayoutError, match="has no inverse on one colour"):
        E.apply(psi.on(ODD))


def test_results_fit_their_sources(links, psi):
    D = WilsonDirac(links, 0.1)
    E, odd = D.even_odd(), psi.on(ODD)
    periodic, batch = psi.like(boundary="periodic"), psi.like(batch=2)
    for act, match in (
        (lambda: D.apply(psi, periodic), "its boundary is .*antiperiodic"),
        (lambda: D.apply(psi, batch), "its batch is None, and that of .* is 2"),
        (lambda: D.apply(psi, psi.on(EVEN)), "a result lives where its source does, on ALL, and .* on EVEN"),
        (lambda: D.hop(psi, plus=periodic), "what is added fits its source .* boundary"),
        (lambda: E.apply(odd, odd.like(boundary="periodic")), "its boundary is"),
        (lambda: E.prepare(psi, odd.like(boundary="periodic")), "its boundary is"),
        (lambda: E.reconstruct(odd, psi, periodic), "a solution has the boundary of its right-hand side"),
        (lambda: to_basis(psi, "tmLQCD", periodic), "its boundary is"),
        (lambda: to_basis(psi, "tmLQCD", psi.on(EVEN)), "its over is ALL, and that of .* is EVEN"),
        (lambda: D.normal_inner(psi, psi), "needs a field other than the source"),
        (lambda: E.normal_inner(odd, odd), "needs a field other than the source"),
    ):
        with pytest.raises(LayoutError, match=match):
            act()
    p = psi.copy()
    assert inner(p, D.normal(psi)).real == D.normal_inner(psi)[1]
    assert np.array_equal(D.diagonal(p, p)[...], D.diagonal(psi)[...])


def test_links_of_two_lattices_are_refused(links):
    elsewhere = random_links(Lattice(4, 2, 2, 4), 3, 3)
    with pytest.raises(LayoutError, match="of one lattice, and those of direction 3"):
        WilsonDirac([*links[:3], elsewhere[3]], 0.1)


class Neighbour(WilsonDirac):
    @staticmethod
    def inverse_at(X, psi, dagger, *data):
        return psi[X + X.directions()[0]]


class Doubled(WilsonDirac):
    def apply(self, psi, out=None):
        out = super().apply(psi, out)
        out *= 2.0
        return out


class Unfinished(jali.Dirac):
    @staticmethod
    def diagonal_at(X, psi, dagger, U):
        return psi[X]


def test_an_operator_without_a_hop_is_told_so(links, psi):
    with pytest.raises(LayoutError, match="Unfinished states no hop_at"):
        Unfinished(links, jali.Spinor).apply(psi)


def test_even_odd_forms_are_made_of_formulas(links, psi):
    with pytest.raises(TraceError, match=r"reads psi\[X\] only: other sites are the hop's"):
        Neighbour(links, 0.1).even_odd().apply(psi.on(ODD))
    with pytest.raises(LayoutError, match="Doubled has an apply or adjoint of its own"):
        Doubled(links, 0.1).even_odd()
