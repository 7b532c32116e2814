"""The Wilson Dirac operator: against dense matrices, exact spectra and propagators, and its symmetries."""

from __future__ import annotations

import numpy as np
import pytest

import jali
from jali import SU, Field, Lattice, LayoutError, Spinor
from jali.fermions import WilsonDirac, gamma, gamma5
from jali.gauge import GaugeField
from jali.lattice.algebra import inner, norm2

pytestmark = pytest.mark.lanes


def random_links(lattice, n, seed, precision="float64"):
    links = []
    rng = np.random.default_rng(seed)
    for _ in lattice.directions:
        z = rng.normal(size=(*lattice.extents, n, n)) + 1j * rng.normal(size=(*lattice.extents, n, n))
        q, _ = np.linalg.qr(z)
        q[..., -1] /= np.linalg.det(q)[..., None]
        field = Field(lattice, SU(n), precision=precision)
        field[...] = q
        links.append(field)
    return links


def unit_links(lattice, n):
    links = [Field(lattice, SU(n)) for _ in lattice.directions]
    for field in links:
        field[...] = np.eye(n)
    return links


def random_spinor(lattice, n, seed, **options):
    field = Field(lattice, Spinor(n), **options)
    rng = np.random.default_rng(seed)
    shape = (*lattice.extents, 4, n)
    field[...] = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return field


def wilson_numpy(links, psi, mass, conditions):
    """The formula with full gamma matrices, NumPy rolls and explicit boundary factors; psi (..., spin, colour)."""
    ndim = len(links)
    out = (mass + ndim) * psi
    for mu, U in enumerate(links):
        factor = {"periodic": 1, "antiperiodic": -1, "open": 0}[conditions[mu]]
        ahead, behind = np.roll(psi, -1, mu), np.roll(psi, 1, mu)
        last, first = [slice(None)] * psi.ndim, [slice(None)] * psi.ndim
        last[mu], first[mu] = -1, 0
        ahead[tuple(last)] *= factor
        behind[tuple(first)] *= factor
        Ub = np.roll(U, 1, mu)
        g = gamma[mu].dense()
        out = out - 0.5 * np.einsum("st,...ij,...tj->...si", np.eye(4) - g, U, ahead)
        out = out - 0.5 * np.einsum("st,...ji,...tj->...si", np.eye(4) + g, Ub.conj(), behind)
    return out


@pytest.mark.short(3)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("extents", [(4, 4), (4, 2, 6), (4, 2, 3, 4), (2, 2, 2, 8), (8, 1, 1, 2)], ids=str)
def test_operator_agrees_with_numpy(extents, n):
    lattice = Lattice(*extents)
    U, psi = random_links(lattice, n, 1), random_spinor(lattice, n, 2)
    got = WilsonDirac(U, 0.3).apply(psi)[...]
    expected = wilson_numpy([u[...] for u in U], psi[...], 0.3, ["periodic"] * len(extents))
    assert np.allclose(got, expected, rtol=1e-13, atol=1e-13)


def test_boundary_conditions_are_those_of_the_spinor():
    lattice = Lattice(4, 3, 2, 6)
    conditions = ["periodic", "open", "periodic", "antiperiodic"]
    U, psi = random_links(lattice, 3, 1), random_spinor(lattice, 3, 2, boundary=conditions)
    got = WilsonDirac(U, -0.1).apply(psi)[...]
    assert np.allclose(
        got, wilson_numpy([u[...] for u in U], psi[...], -0.1, conditions), rtol=1e-13, atol=1e-13
    )


def test_single_precision_agrees_to_its_rounding():
    lattice = Lattice(4, 4, 4, 4)
    U, psi = random_links(lattice, 3, 1, "float32"), random_spinor(lattice, 3, 2, precision="float32")
    got = WilsonDirac(U, 0.3).apply(psi)[...]
    wide = wilson_numpy([u[...].astype(complex) for u in U], psi[...].astype(complex), 0.3, ["periodic"] * 4)
    assert np.allclose(got, wide, rtol=1e-4, atol=1e-4)


@pytest.fixture
def setting():
    lattice = Lattice(4, 2, 4, 6)
    D = WilsonDirac(random_links(lattice, 3, 3), 0.2)
    return D, *(random_spinor(lattice, 3, k, boundary={3: "antiperiodic"}) for k in (4, 5))


def test_adjoint_is_gamma5_times_operator_times_gamma5(setting):
    D, psi, _ = setting
    g5 = gamma5.dense()
    flipped = psi.like()
    flipped[...] = g5 @ psi[...]
    expected = g5 @ D.apply(flipped)[...]
    assert np.allclose(D.adjoint(psi)[...], expected, rtol=1e-13, atol=1e-13)


def test_adjoint_moves_to_the_other_side_of_the_inner_product(setting):
    D, psi, chi = setting
    assert inner(chi, D.apply(psi)) == pytest.approx(inner(D.adjoint(chi), psi), rel=1e-12)


def test_normal_operator_is_hermitian_and_positive(setting):
    D, psi, chi = setting
    assert inner(psi, D.normal(psi)) == pytest.approx(norm2(D.apply(psi)), rel=1e-12)
    assert inner(chi, D.normal(psi)) == pytest.approx(inner(psi, D.normal(chi)).conjugate(), rel=1e-12)


def test_result_goes_into_the_given_field(setting):
    D, psi, chi = setting
    assert D.apply(psi, chi) is chi
    assert np.array_equal(chi[...], D.apply(psi)[...])


def test_gauge_transformed_operator_is_the_transform_of_the_operator(setting):
    D, psi, _ = setting
    lattice = D.lattice
    (g,) = random_links(Lattice(*lattice.extents), 3, 9)[:1]
    g = g[...]
    moved = []
    for mu, U in enumerate(D.links):
        field = Field(lattice, SU(3))
        field[...] = g @ U[...] @ np.roll(g, -1, mu).conj().swapaxes(-1, -2)
        moved.append(field)
    rotated = psi.like()
    rotated[...] = np.einsum("...ij,...sj->...si", g, psi[...])
    got = WilsonDirac(moved, D.mass).apply(rotated)[...]
    assert np.allclose(got, np.einsum("...ij,...sj->...si", g, D.apply(psi)[...]), rtol=1e-12, atol=1e-12)


def test_constant_spinor_on_unit_links_is_an_eigenvector_with_eigenvalue_mass():
    lattice = Lattice(4, 3, 2, 6)
    psi = Field(lattice, Spinor(3))
    psi[...] = np.arange(12.0).reshape(4, 3) + 1j
    got = WilsonDirac(unit_links(lattice, 3), 0.7).apply(psi)[...]
    assert np.allclose(got, 0.7 * psi[...], rtol=1e-13)


def test_plane_waves_on_unit_links_have_the_exact_symbol():
    """D exp(ipx) = [m + sum (1 - cos p) + i sum gamma sin p] exp(ipx), antiperiodic in the last direction."""
    lattice = Lattice(4, 6, 2, 8)
    mass = 0.25
    momenta = 2 * np.pi * np.array([1 / 4, 2 / 6, 0 / 2, (3 + 0.5) / 8])
    x = np.indices(lattice.extents)
    wave = np.exp(1j * np.tensordot(momenta, x, axes=1))
    spins = np.array([1, 2j, -0.5, 1 - 1j])
    psi = Field(lattice, Spinor(1), boundary={3: "antiperiodic"})
    psi[...] = wave[..., None, None] * spins[:, None]
    symbol = (mass + np.sum(1 - np.cos(momenta))) * np.eye(4)
    symbol = symbol + 1j * sum(g.dense() * np.sin(p) for g, p in zip(gamma, momenta, strict=True))
    expected = wave[..., None, None] * (symbol @ spins)[:, None]
    got = WilsonDirac(unit_links(lattice, 1), mass).apply(psi)[...]
    assert np.allclose(got, expected, rtol=1e-13, atol=1e-13)


def test_operator_is_bit_identical_on_any_number_of_ranks():
    def run():
        lattice = Lattice(4, 4, 4, 6)
        D = WilsonDirac(random_links(lattice, 3, 1), 0.1)
        psi = random_spinor(lattice, 3, 2, boundary={3: "antiperiodic"})
        out = D.normal(psi)
        return out[...], norm2(out)

    one, size = run()
    for ranks in (2, 4):
        for values, others in jali.virtual_ranks(ranks, run):
            assert np.array_equal(values, one)
            assert others == size


def test_kappa_belongs_to_the_mass():
    lattice = Lattice(2, 2, 2, 2)
    assert WilsonDirac(unit_links(lattice, 3), 0.0).kappa == 0.125
    assert WilsonDirac(unit_links(lattice, 3), -0.5).kappa == pytest.approx(1 / 7)


def test_flops_are_those_of_the_projected_operator():
    """1320 for the hops (QUDA's count) plus 72 for the mass term: 24 + 48 of the sum with the factor 1/2, minus one add of hops."""
    lattice = Lattice(4, 4, 4, 4)
    D, psi = WilsonDirac(unit_links(lattice, 3), 0.0), Field(lattice, Spinor(3))
    flops = jali.inspect(D.kernel("apply"), psi.like(), psi, False, *D.data).flops
    assert 1320 <= flops <= 1400


def test_fields_that_do_not_fit_are_refused():
    lattice = Lattice(4, 4, 4, 4)
    D = WilsonDirac(unit_links(lattice, 2), 0.1)
    with pytest.raises(jali.LayoutError, match=r"acts on fields of Spinor\(2\), .* holds Spinor\(3\)"):
        D.apply(Field(lattice, Spinor(3)))
    psi = Field(lattice, Spinor(2))
    with pytest.raises(jali.LayoutError, match="needs a field other than the source"):
        D.apply(psi, psi)
    with pytest.raises(jali.LayoutError, match="3 link fields on a lattice of 4 dimensions"):
        WilsonDirac(D.links[:3], 0.1)
    other, tall = random_links(lattice, 3, 1)[0], Field(lattice, jali.Matrix(2, 1))
    for links, match in (
        ([*D.links[:2], other, D.links[3]], r"all of one size \(2\), and those of direction 2 are SU\(3\)"),
        ([tall] * 4, r"all of one size \(2\), and those of direction 0 are Matrix\(2, 1\)"),
    ):
        with pytest.raises(jali.LayoutError, match=match):
            WilsonDirac(links, 0.1)


def test_open_links_and_open_spinors_belong_together():
    """No hop uses what is stored where no link leads across the edge, and gamma_5 D gamma_5 = D^dagger holds."""
    lattice = Lattice(4, 3, 2, 4)
    U = GaugeField(lattice, SU(2), boundary={1: "open"}).hot_start(1)
    psi, chi = (random_spinor(lattice, 2, k, boundary={1: "open", 3: "antiperiodic"}) for k in (2, 3))
    D = WilsonDirac(U, 0.2)
    expected = wilson_numpy(
        [u[...] for u in U.fields], psi[...], 0.2, ["periodic", "open", "periodic", "antiperiodic"]
    )
    assert np.allclose(D.apply(psi)[...], expected, rtol=1e-13, atol=1e-13)
    assert inner(chi, D.apply(psi)) == pytest.approx(inner(D.adjoint(chi), psi), rel=1e-12)
    U[1][:, -1] = np.full((2, 2), 7.0)
    assert np.allclose(D.apply(psi)[...], expected, rtol=1e-13, atol=1e-13)
    closed = random_spinor(lattice, 2, 2)
    for apply in (D.apply, D.adjoint, D.normal):
        with pytest.raises(LayoutError, match=r"direction 1, which is open.*boundary=\{1: \"open\"\}"):
            apply(closed)


def test_links_with_a_sign_at_the_edge_are_refused():
    lattice = Lattice(4, 4)
    for condition in ("antiperiodic", 1j):
        U = GaugeField(lattice, SU(2), boundary={1: condition}).hot_start(1)
        with pytest.raises(LayoutError, match="signs and phases belong to the spinor's boundary"):
            WilsonDirac(U, 0.2).apply(random_spinor(lattice, 2, 1))
        links = [
            U[0],
            GaugeField(lattice, SU(2)).assign(U)[1],
        ]  # of one direction at the edge of another it matters not
        assert np.isfinite(WilsonDirac(links, 0.2).apply(random_spinor(lattice, 2, 1))[...]).all()
