"""Wilson's operator on half of the sites: a configuration whose numbers are known, a dense Schur complement, and its symmetries."""

from __future__ import annotations

import re

import numpy as np
import pytest
from known_configuration import EXTENTS, known_links
from test_wilson import random_links, random_spinor, wilson_numpy

import jali
from jali import ALL, EVEN, ODD, SU, Field, Lattice, LayoutError, Spinor
from jali.fermions import EvenOdd, WilsonDirac, gamma5
from jali.gauge import GaugeField
from jali.lattice.algebra import inner, norm2
from jali.solvers import cg, cgls


def known_spinor():
    """Re 2 ((k^2 + 3 k) mod 103) / 103 - 1, Im 2 ((k^2 + 5 k) mod 107) / 107 - 1, k = 1 + j + 12 n, j = 3 s + c; (*EXTENTS, 4, 3)."""
    n = np.arange(np.prod(EXTENTS)).reshape(EXTENTS[::-1]).T
    k = 1 + np.arange(12).reshape(4, 3) + 12 * n[..., None, None]
    return 2 * ((k * k + 3 * k) % 103) / 103 - 1 + 1j * (2 * ((k * k + 5 * k) % 107) / 107 - 1)


def known_system():
    """D with mass 0.1 and antiperiodic time, and eta."""
    lattice = Lattice(*EXTENTS)
    U = GaugeField(lattice, SU(3))
    for field, links in zip(U.fields, known_links(), strict=True):
        field[...] = links
    eta = Field(lattice, Spinor(3), boundary={3: "antiperiodic"})
    eta[...] = known_spinor()
    return WilsonDirac(U, 0.1), eta


def solve(E, b, rtol=1e-10):
    """The solution on all sites, and what conjugate gradients found on half of them."""
    found = cg(E.normal, E.adjoint(E.prepare(b)), rtol=rtol)
    return E.reconstruct(found.x, b), found


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [2, 1])
def test_the_known_system_takes_106_iterations_and_41_on_half_of_the_sites(ranks):
    def run():
        D, eta = known_system()
        assert norm2(D.apply(eta)) == pytest.approx(91378.211798817, rel=1e-9)
        whole = cg(D.normal, D.adjoint(eta), rtol=1e-10)
        assert whole.iterations == 106
        for over in (ODD, EVEN):
            x, found = solve(D.even_odd(over), eta)
            assert found.iterations == 41
            assert norm2((D.apply(x) - eta).field()) < 1e-18 * norm2(eta)
            assert np.allclose(x[...], whole.x[...], rtol=0, atol=1e-8)
        return whole.history + found.history

    assert len({tuple(history) for history in jali.virtual_ranks(ranks, run)}) == 1


@pytest.fixture
def setting():
    """D and two spinors, on a lattice whose parts are uneven."""
    lattice = Lattice(4, 2, 2, 6)
    D = WilsonDirac(random_links(lattice, 3, 3), 0.2)
    return D, *(random_spinor(lattice, 3, k, boundary={3: "antiperiodic"}) for k in (4, 5))


@pytest.mark.lanes
@pytest.mark.parametrize("over", [EVEN, ODD], ids=str)
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.short(6)
def test_the_schur_complement_is_the_dense_one(over, n):
    lattice, mass = Lattice(2, 2, 2, 2), 0.3
    conditions = ["periodic", "periodic", "periodic", "antiperiodic"]
    links = random_links(lattice, n, 1)
    psi = random_spinor(lattice, n, 2, boundary=conditions)
    U = [u[...] for u in links]
    units = np.eye(psi.size).reshape(psi.size, *psi.shape)
    D = np.stack([wilson_numpy(U, unit, mass, conditions).ravel() for unit in units], axis=1)
    odd = np.indices(lattice.extents).sum(0) % 2 == 1
    mine = np.repeat((odd if over is ODD else ~odd).ravel(), 4 * n)
    own, across = D[mine][:, mine], D[mine][:, ~mine]
    A = own - across @ np.linalg.inv(D[~mine][:, ~mine]) @ D[~mine][:, mine]
    v = psi[...].ravel()
    E = WilsonDirac(links, mass).even_odd(over)
    half = psi.on(over)
    for found, expected in (
        (E.apply(half), A @ v[mine]),
        (E.adjoint(half), A.conj().T @ v[mine]),
        (E.normal(half), A.conj().T @ A @ v[mine]),
        (E.prepare(psi), v[mine] - across @ v[~mine] / (mass + 4)),
    ):
        assert found.over is over
        assert np.allclose(found[...].ravel()[mine], expected, rtol=1e-12, atol=1e-12)
    x, _ = solve(E, psi, rtol=1e-13)
    assert np.allclose(x[...].ravel(), np.linalg.solve(D, v), rtol=0, atol=1e-10)


@pytest.mark.parametrize("over", [EVEN, ODD], ids=str)
def test_gamma5_on_both_sides_gives_the_adjoint(setting, over):
    D, psi, _ = setting
    E, half, g5 = D.even_odd(over), psi.on(over), gamma5.dense()
    flipped = half.like()
    flipped[...] = g5 @ half[...]
    assert np.allclose(E.adjoint(half)[...], g5 @ E.apply(flipped)[...], rtol=1e-13, atol=1e-13)


def test_the_adjoint_moves_to_the_other_side(setting):
    D, psi, chi = setting
    E, p, q = D.even_odd(), psi.on(ODD), chi.on(ODD)
    assert inner(q, E.apply(p)) == pytest.approx(inner(E.adjoint(q), p), rel=1e-12)
    normal, number = E.normal_inner(p)
    assert number == inner(p, normal).real == pytest.approx(norm2(E.apply(p)), rel=1e-12)


def test_hops_lead_to_the_other_colour(setting):
    D, psi, _ = setting
    for adjoint in (False, True):
        whole = D.hop(psi, dagger=adjoint)
        for over in (EVEN, ODD):
            half = D.hop(psi.on(over), dagger=adjoint)
            assert half.over is over.opposite
            assert np.array_equal(half[...], whole.on(over.opposite)[...])


def test_open_directions_of_odd_extent_have_two_colours():
    lattice = Lattice(3, 4, 2, 2)
    U = GaugeField(lattice, SU(2), boundary={0: "open"}).hot_start(seed=1)
    b = random_spinor(lattice, 2, 1, boundary={0: "open"})
    D = WilsonDirac(U, 0.3)
    x, _ = solve(D.even_odd(), b)
    assert np.allclose(D.apply(x)[...], b[...], rtol=0, atol=1e-8)


def test_results_go_into_given_fields_and_the_mass_is_that_of_d(setting):
    D, psi, _ = setting
    E, half = D.even_odd(EVEN), psi.on(EVEN)
    out, whole = half.like(), psi.copy()
    for act in (E.apply, E.adjoint, E.normal):
        assert act(half, out) is out
        assert np.array_equal(out[...], act(half)[...])
    assert E.prepare(psi, out) is out
    x = E.reconstruct(half, psi)
    assert E.reconstruct(half, whole, whole) is whole
    assert np.array_equal(whole[...], x[...])
    assert E.reconstruct(half.astype("float32"), psi).precision == "float64"
    D.mass = 0.7
    assert np.array_equal(E.apply(half)[...], D.even_odd(EVEN).apply(half)[...])


def test_mistakes_are_reported(setting):
    D, psi, _ = setting
    E, even, odd = D.even_odd(), *psi.split()
    lattice = D.lattice
    elsewhere = Field(Lattice(2, 2, 2, 2), Spinor(3), over=ODD)
    periodic = odd.like(boundary="periodic")
    for act, match in (
        (lambda: E.apply(even), "acts on fields over ODD, and .* lives on EVEN"),
        (lambda: E.adjoint(psi), "acts on fields over ODD, and .* lives on ALL"),
        (lambda: E.normal(odd, even.like()), "acts on fields over ODD, and .* lives on EVEN"),
        (lambda: E.normal_inner(odd, psi.like()), "acts on fields over ODD, and .* lives on ALL"),
        (lambda: E.prepare(psi, even.like()), "acts on fields over ODD, and .* lives on EVEN"),
        (lambda: E.reconstruct(even, psi), "acts on fields over ODD, and .* lives on EVEN"),
        (lambda: E.prepare(odd), r"both colours, and .* lives on ODD: jali.join\(even, odd\)"),
        (lambda: E.reconstruct(odd, odd), "both colours, and .* lives on ODD"),
        (lambda: E.reconstruct(periodic, psi), "has the boundary of its right-hand side"),
        (lambda: E.reconstruct(odd, psi, odd.like()), "a field of .* on all sites"),
        (lambda: E.apply(Field(lattice, Spinor(2), over=ODD)), r"acts on fields of Spinor\(3\)"),
        (lambda: E.apply(elsewhere), "its own lattice, .* differ"),
        (lambda: E.apply(3), r"acts on fields of Spinor\(3\), not on 3"),
        (lambda: D.apply(even), r"both colours, and .* lives on EVEN: .*D.even_odd\(\) acts on one"),
        (lambda: D.normal_inner(odd), "both colours, and .* lives on ODD"),
        (lambda: D.hop(even, even.like()), "a hop leads from EVEN sites to ODD ones"),
        (lambda: D.even_odd(ALL), "over EVEN or ODD, not over ALL"),
        (lambda: D.even_odd("odd"), "over EVEN or ODD, not over 'odd'"),
        (lambda: EvenOdd(3), "that of a Dirac operator, not of 3"),
        (lambda: WilsonDirac(D.links, -4).even_odd(), "the mass -4 makes the diagonal of the operator zero"),
    ):
        with pytest.raises(LayoutError, match=match):
            act()
    assert re.search(r"EvenOdd\(WilsonDirac\(.*\), over=ODD\)", repr(E))


def test_last_kernels_give_inner_products_and_norms_with_the_bits_of_sums(setting):
    D, psi, chi = setting
    E, odd = D.even_odd(form="symmetric"), psi.on(ODD)
    for M, x in ((D, psi), (E, odd), (D.even_odd(EVEN), psi.on(EVEN))):
        Mx, adjoint = M.apply(x), M.adjoint(x)
        for (found, number), (result, known) in (
            (M.apply_inner(x), (Mx, inner(x, Mx))),
            (M.apply_norm2(x), (Mx, norm2(Mx))),
            (M.adjoint_norm2(x), (adjoint, norm2(adjoint))),
            (M.matvec_inner(x), (Mx, inner(x, Mx))),
            (M.matvec_norm2(x), (Mx, norm2(Mx))),
            (M.normal_inner(x), (M.normal(x), inner(x, M.normal(x)).real)),
        ):
            assert np.array_equal(found[...], result[...])
            assert number == known
        assert np.array_equal((M @ x)[...], Mx[...])
        assert np.array_equal((M.dagger @ x)[...], adjoint[...])
        assert M.dagger.dagger is M
    found = cgls(D, psi, rtol=1e-8)
    assert norm2((D @ found.x - psi).field()) < 1e-12 * norm2(psi)
