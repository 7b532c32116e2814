"""Hadrons of free quarks: against sums over momenta in NumPy, and in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from jali import SU, Lattice
from jali.fermions import Staggered, WilsonDirac, gamma, gamma5
from jali.gauge import GaugeField
from jali.hadrons import (
    CHARGE,
    GAMMAS,
    mesons,
    nucleon,
    pcac_mass,
    point_source,
    staggered_mesons,
    wall_sink,
    wall_source,
)

EXTENTS = (4, 6, 5, 8)
MOMENTA = [(0, 0, 0), (1, 0, 0), (0, -2, 1)]
G5, GT = gamma5.dense(), gamma[3].dense()


def momenta_of(extents):
    """p of all modes, (4, *extents), antiperiodic in time."""
    k = np.indices(extents).astype(float)
    k[3] += 0.5
    return 2 * np.pi * k / np.array(extents).reshape(4, 1, 1, 1, 1)


def in_space(modes):
    """1 / V sum_p exp(i p x) of modes on the momenta of `momenta_of`."""
    T = modes.shape[3]
    half = np.exp(1j * np.pi * np.arange(T) / T)
    return np.fft.ifftn(modes, axes=(0, 1, 2, 3)) * half.reshape(T, *[1] * (modes.ndim - 4))


def free_wilson(extents, mass):
    """S(x, 0), (*extents, s, s'): in momentum space (M - i gamma sin p) / (M^2 + sin^2 p) with M = m + sum (1 - cos p)."""
    p = momenta_of(extents)
    M = mass + (1 - np.cos(p)).sum(0)
    slash = np.einsum("mxyzt,mij->xyztij", np.sin(p), [g.dense() for g in gamma])
    norm = M**2 + (np.sin(p) ** 2).sum(0)
    return in_space((M[..., None, None] * np.eye(4) - 1j * slash) / norm[..., None, None])


def free_staggered(extents, mass):
    """S(x, 0): (m - hop) of the sum over modes of 1 / (m^2 + sin^2 p), with the phases that count x first."""
    p = momenta_of(extents)
    h = in_space(1 / (mass**2 + (np.sin(p) ** 2).sum(0)) + 0j)
    found, phase = mass * h, np.ones(extents)
    for mu, x in enumerate(np.indices(extents)):
        sign = np.ones(extents)
        if mu == 3:
            sign[..., -1] = -1
        ahead = np.roll(h, -1, mu) * sign
        behind = np.roll(h * sign, 1, mu)
        found = found - phase * (ahead - behind) / 2
        phase = phase * (-1.0) ** x
    return found


def projected(site, extents, p):
    """The sum over space with exp(-i p x)."""
    x = np.indices(extents)
    return (site * np.exp(-2j * np.pi * sum(p[k] * x[k] / extents[k] for k in range(3)))).sum((0, 1, 2))


@pytest.fixture(scope="module")
def free():
    """A propagator of jali, and that of the sum over momenta. On odd extents there are no even-odd forms."""
    D = WilsonDirac(GaugeField(Lattice(*EXTENTS), SU(3)).cold_start(), 0.3)
    return D.propagator(point_source(D), 1e-13, form="full"), free_wilson(EXTENTS, 0.3)


def test_free_propagators_are_sums_over_momenta(free):
    S, expected = free
    values = S[...].reshape(*EXTENTS, 4, 3, 4, 3)
    assert np.allclose(values, np.einsum("xyztij,cd->xyztjdic", expected, np.eye(3)), rtol=0, atol=1e-12)


def test_free_mesons_are_sums_over_momenta(free):
    S, q = free
    found = mesons(S, momenta=MOMENTA)
    for p in MOMENTA:
        pion = projected(3 * (abs(q) ** 2).sum((4, 5)), EXTENTS, p)
        assert np.allclose(found.correlator("g5", "g5", p), pion, rtol=0, atol=1e-10 * abs(pion[0]))
        for name in GAMMAS:
            G = GAMMAS[name].dense()
            pair = G5 @ G, GT @ G.conj().T @ GT @ G5
            site = -3 * np.einsum("...ba,bc,...cd,da->...", q.conj(), pair[0], q, pair[1], optimize=True)
            expected = projected(site, EXTENTS, p)
            assert np.allclose(
                found.correlator(name, momentum=p), expected, rtol=0, atol=1e-10 * abs(pion[0])
            ), (name, p)


def test_free_nucleons_are_sums_over_momenta(free):
    """Of quarks that keep their colours both sums of epsilon are six."""
    S, q = free
    diquark = (CHARGE * gamma5).dense()
    D = diquark @ q @ (GT @ diquark.conj().T @ GT)
    found = nucleon(S, momenta=MOMENTA)
    for sign, name in ((1, "+"), (-1, "-")):
        P = (np.eye(4) + sign * GT) / 2
        first = np.einsum("...ij,...ij->...", q, D) * np.einsum("ij,...ji->...", P, q)
        second = np.einsum("ij,...jk,...lk,...li->...", P, q, D, q, optimize=True)
        for p in MOMENTA:
            expected = projected(6 * (first + second), EXTENTS, p)
            # rounding and the solve are relative to the largest, while C falls by orders of magnitude in time
            assert np.allclose(found.correlator(name, p), expected, rtol=1e-8, atol=1e-12), (name, p)


def test_free_staggered_mesons_are_sums_over_momenta():
    extents = (4, 6, 4, 8)
    M = Staggered(GaugeField(Lattice(*extents), SU(3)).cold_start(), 0.2)
    found = staggered_mesons(M.propagator(point_source(M), 1e-13), momenta=MOMENTA)
    density = 3 * abs(free_staggered(extents, 0.2)) ** 2
    x, y, z, _ = (-1.0) ** np.indices(extents)
    signs = {"pion": 1, "scalar": x * y * z, "vector": x + y + z, "pseudovector": x * y + y * z + z * x}
    for name, sign in signs.items():
        for p in MOMENTA:
            expected = projected(density * sign, extents, p)
            assert np.allclose(
                found.correlator(name, p), expected, rtol=0, atol=1e-10 * abs(density).sum()
            ), name


def test_free_quarks_from_a_wall_are_at_rest():
    """S(t) = (1 + gamma_t)/2 (1 + m)^-(t + 1) but for what comes back around time, and at t = 0 for the other projector."""
    mass, lattice = 2.0, Lattice(4, 2, 2, 16)
    D = WilsonDirac(GaugeField(lattice, SU(3)).cold_start(), mass)
    S = D.propagator(wall_source(D), 1e-14)
    found = mesons(S)
    # three colours, two spins, of all sites
    t = np.arange(1, 8)
    around = 4 * (3.0 ** (-2 * (16 - 2 * t)) + 3.0**-16)  # of what has come back, and of what has gone around
    for name, sign in (("pion", 1), ("rho", 3), ("pion by its axial charge", 1)):
        expected = sign * 6 * 16 * 3.0 ** (-2 * t - 2)
        assert np.all(abs(found[name][1:8] - expected) < around * expected), name
    # wall to wall: the sum over the sink of each quark
    walls = mesons(wall_sink(S))
    assert np.allclose(walls["pion"], 16 * found["pion"], rtol=1e-12)
    # d_t <A P> = 2 m <P P> with A = P: sinh(2 M) / 2 for M = log(1 + m)
    assert pcac_mass(found)[2:6] == pytest.approx((9 - 1 / 9) / 4, rel=4 * 3.0**-8)


def test_pcac_masses_of_free_quarks_are_those_of_the_sum_over_momenta(free):
    S, q = free
    pair = G5 @ GT @ G5, GT @ G5.conj().T @ GT @ G5
    axial = -3 * np.einsum("...ba,bc,...cd,da->...", q.conj(), pair[0], q, pair[1], optimize=True)
    axial, density = axial.sum((0, 1, 2)).real, 3 * (abs(q) ** 2).sum((0, 1, 2, 4, 5))
    expected = [(axial[(t + 1) % 8] - axial[t - 1]) / (4 * density[t]) for t in range(8)]
    found = pcac_mass(mesons(S, momenta=[(1, 0, 0), (0, 0, 0)]))  # at rest, whatever else there is
    assert np.allclose(found, expected, rtol=1e-10)
    assert np.all(np.isfinite(found))
    assert np.allclose(found[1:], found[1:][::-1], rtol=1e-10)  # the same forwards and backwards in time
    assert np.all(abs(found[3:6] - 0.3) < 0.05)  # the bare mass, up to effects of the lattice spacing
