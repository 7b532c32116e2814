"""Smeared quarks: against NumPy's rolls, in closed form, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from quarks import filled, gauge_field, random_links

from jali import SU, Lattice, ParameterError, Spinor, Vector
from jali.fermions import Laplace, WilsonDirac
from jali.gauge import GaugeField, ape_smear
from jali.hadrons import gaussian_smear, mesons, point_source, wall_source, wuppertal_smear

EXTENTS = (4, 3, 5, 4)


def hops(links, psi, directions):
    """sum_mu U_mu(x) psi(x+mu) + U_mu(x-mu)^dagger psi(x-mu), psi (*extents, ..., colour), periodic."""
    total = 0
    for mu in directions:
        shape = (*links[mu].shape[:4], *[1] * (psi.ndim - 5), 3, 3)
        u = links[mu].reshape(shape)
        before = np.roll(u, 1, mu).conj().swapaxes(-1, -2)
        total = total + np.einsum("...ij,...j->...i", u, np.roll(psi, -1, mu))
        total = total + np.einsum("...ij,...j->...i", before, np.roll(psi, 1, mu))
    return total


@pytest.fixture(scope="module")
def links():
    return random_links(EXTENTS, 3, 6)


@pytest.fixture(scope="module")
def U(links):
    return gauge_field(Lattice(*EXTENTS), links)


@pytest.mark.parametrize("element", [Spinor(3), Vector(3)])
@pytest.mark.parametrize(("batch", "directions"), [(None, None), (3, None), (2, (0, 2)), (None, range(4))])
def test_smearing_is_the_polynomial_of_the_hops(U, links, element, batch, directions):
    psi = filled(U.lattice.field(element, batch=batch), 1)
    axes = range(3) if directions is None else directions
    d, b, alpha = len(axes), 1.3**2 / (4 * 7), 0.35
    gaussian = wuppertal = psi[...]
    for _ in range(7):
        gaussian = gaussian + b * (hops(links, gaussian, axes) - 2 * d * gaussian)
        wuppertal = (wuppertal + alpha * hops(links, wuppertal, axes)) / (1 + 2 * d * alpha)
    assert np.allclose(gaussian_smear(psi, U, 1.3, 7, directions)[...], gaussian, rtol=0, atol=1e-13)
    assert np.allclose(wuppertal_smear(psi, U, alpha, 7, directions)[...], wuppertal, rtol=0, atol=1e-13)


def test_both_smearings_are_one(U):
    """alpha = b / (1 - 2 d b) with b = w^2 / (4 N)."""
    psi = filled(U.lattice.field(Spinor(3)), 1)
    b = 1.5**2 / (4 * 9)
    other = wuppertal_smear(psi, list(U), b / (1 - 6 * b), 9)
    assert np.allclose(gaussian_smear(psi, U, 1.5, 9)[...], other[...], rtol=0, atol=1e-13)


def test_steps_follow_one_another(U):
    psi = filled(U.lattice.field(Spinor(3)), 1)
    two_and_three = wuppertal_smear(wuppertal_smear(psi, U, 0.2, 2), U, 0.2, 3)
    assert np.array_equal(two_and_three[...], wuppertal_smear(psi, U, 0.2, 5)[...])


def test_no_steps_and_no_width_leave_a_field_as_it_is(U):
    psi = filled(U.lattice.field(Spinor(3), batch=2), 1)
    for found in (
        gaussian_smear(psi, U, 0, 0),
        wuppertal_smear(psi, U, 0.3, 0),
        wuppertal_smear(psi, U, 0.0, 4),
        gaussian_smear(psi, U, 0.0, 4),
    ):
        assert found is not psi
        assert np.array_equal(found[...], psi[...])
        found[...] = 0
    assert abs(psi[...]).max() > 0


def test_a_point_becomes_a_gaussian():
    """On unit links the second moment of each direction is exactly w^2 / 2 while nothing has come around the lattice, as that of exp(-x^2 / w^2), and the sum stays
    one; shape and width are those of exp(-x^2 / w^2) up to terms of 1 / N."""
    size, width, steps = 41, 3.0, 16
    lattice = Lattice(size, 1, 1, 2)
    U = GaugeField(lattice, SU(3)).cold_start()
    psi = lattice.field(Vector(3))
    psi[20, 0, 0, 1, 0] = 1.0
    for count, near in ((steps, 0.02), (20, 0.02)):
        found = gaussian_smear(psi, U, width, count, directions=[0])[:, 0, 0, 1, 0].real
        x = np.arange(size) - 20
        assert found.sum() == pytest.approx(1, rel=1e-13)
        assert (x**2 * found).sum() == pytest.approx(width**2 / 2, rel=1e-12)
        gauss = np.exp(-(x**2) / width**2) / (np.sqrt(np.pi) * width)
        assert np.allclose(found, gauss, rtol=0, atol=near * gauss.max())


def test_a_wall_of_unit_links_is_smeared_to_itself():
    U = GaugeField(Lattice(4, 4, 4, 4), SU(3)).cold_start()
    wall = wall_source(WilsonDirac(U, 1.0), 1)
    assert np.allclose(gaussian_smear(wall, U, 1.5, 6)[...], wall[...], rtol=0, atol=1e-15)


def test_smearing_in_space_stays_on_a_slice(U):
    source = point_source(WilsonDirac(U, 1.0), (0, 0, 0, 2))
    found = abs(gaussian_smear(source, ape_smear(U, 0.5, 1, range(3)), 1.5, 6)[...])
    assert not np.any(np.delete(found, 2, axis=3))
    assert np.count_nonzero(found[:, :, :, 2]) > 12


def test_smearing_is_hermitian_so_it_moves_from_a_source_to_a_sink():
    """sum_x <F chi, S psi> = <chi, F S psi>, and a propagator between smeared points is F S F."""
    extents = (2, 2, 2, 4)
    U = gauge_field(Lattice(*extents), random_links(extents, 3, 6))
    D = WilsonDirac(U, 0.8)
    source = gaussian_smear(point_source(D), U, 1.2, 3)
    sink = gaussian_smear(D.propagator(source, 1e-12), U, 1.2, 3)
    points = [
        D.propagator(point_source(D, (x, y, z, 0)), 1e-12)[...] * 1.0
        for x in range(2)
        for y in range(2)
        for z in range(2)
    ]
    weights = source[:, :, :, 0].reshape(8, 12, 12)  # site, member, spin and colour
    # linear in the source: the sum of points with its numbers
    sum_of_points = sum(np.einsum("kn,xyztnsc->xyztksc", w, S) for w, S in zip(weights, points, strict=True))
    unsmeared = D.propagator(source, 1e-12)
    assert np.allclose(unsmeared[...], sum_of_points, rtol=0, atol=1e-10)
    assert np.all(mesons(sink)["pion"] > 0)
    chi, psi = (filled(U.lattice.field(Spinor(3)), seed) for seed in (1, 2))
    left = np.vdot(gaussian_smear(chi, U, 1.2, 3)[...], psi[...])
    assert left == pytest.approx(np.vdot(chi[...], gaussian_smear(psi, U, 1.2, 3)[...]), rel=1e-12)


def test_as_many_steps_as_a_width_needs_are_enough(U):
    """Width^2 / (4 N) is at most 1 / (2 d): there large momenta do not grow, with a step less they would."""
    psi = U.lattice.field(Vector(3))
    for width in np.linspace(0.1, 7.0, 70):
        least = int(np.ceil(1.5 * width**2))
        gaussian_smear(psi, U, width, least)
        with pytest.raises(ParameterError, match=f"takes (at least|steps, at least) {least}"):
            gaussian_smear(psi, U, width, least - 1)


def test_the_largest_eigenvalue_of_a_smearing_is_one():
    """The alternating field of unit links, on which Delta is -4 d, is the one that grows first."""
    U = GaugeField(Lattice(4, 4, 4, 2), SU(3)).cold_start()
    psi = U.lattice.field(Vector(3))
    x = np.indices((4, 4, 4, 2))
    psi[...] = ((-1.0) ** (x[0] + x[1] + x[2]))[..., None] * np.ones(3)
    assert np.allclose(gaussian_smear(psi, U, 2.0, 6)[...], psi[...], rtol=1e-13)  # (1 - 2)^6
    Delta = Laplace(U, range(3))
    assert np.allclose((Delta @ psi)[...], -12 * psi[...], rtol=1e-14)


def test_numbers_of_numpy_are_numbers(U):
    psi = filled(U.lattice.field(Vector(3)), 1)
    expected = gaussian_smear(psi, U, 1.0, 3)[...]
    assert np.array_equal(gaussian_smear(psi, U, np.float32(1.0), np.int64(3))[...], expected)
    assert np.array_equal(gaussian_smear(psi, U, 1, 3)[...], expected)
    assert np.array_equal(
        wuppertal_smear(psi, U, np.float64(0.5), np.int32(2))[...], wuppertal_smear(psi, U, 0.5, 2)[...]
    )
