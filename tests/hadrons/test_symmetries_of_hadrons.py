"""What correlators do not depend on: the gauge, where the lattice begins, and conserved charges on time."""

from __future__ import annotations

import cmath

import numpy as np
import pytest
from quarks import G5, gauge_field, random_links

import jali
from jali import SU, Lattice, LayoutError
from jali.fermions import HISQ, Staggered, TwistedMassDirac, WilsonDirac, gamma, gamma5
from jali.gauge import GaugeField, ape_smear, hyp_smear, stout_smear
from jali.hadrons import (
    GAMMAS,
    gaussian_smear,
    mesons,
    nucleon,
    point_source,
    staggered_mesons,
    wall_sink,
    wall_source,
    wuppertal_smear,
)

EXTENTS = (4, 2, 4, 6)
MOMENTA = [(0, 0, 0), (1, 0, 0), (0, 1, -1)]
SPACE = range(3)
# Solves are to 1e-12 of each source, and correlators of them to some 1e-10 of the largest.
TOLERANCE, CLOSE = 1e-12, 1e-10


def close(a, b):
    return np.allclose(a, b, rtol=1e-8, atol=CLOSE * abs(b).max())


@pytest.fixture(scope="module")
def two_gauges():
    """The same links in two gauges, none of which is smooth."""
    both = [gauge_field(Lattice(*EXTENTS), random_links(EXTENTS, 3, 5)) for _ in range(2)]
    both[1].random_gauge_transform(seed=3)
    return both


SMEARED = {
    "points": lambda U, psi: psi,
    "APE": lambda U, psi: gaussian_smear(psi, ape_smear(U, 0.4, 2, SPACE), 1.5, 5),
    "stout": lambda U, psi: gaussian_smear(psi, stout_smear(U, 0.1, 2, SPACE), 1.5, 5),
    "HYP": lambda U, psi: wuppertal_smear(psi, hyp_smear(U, directions=SPACE), 0.3, 4),
}


@pytest.mark.parametrize("smearing", SMEARED)
def test_correlators_of_points_and_smeared_quarks_are_those_of_any_gauge(two_gauges, smearing):
    found, smear = [], SMEARED[smearing]
    for U in two_gauges:
        D = WilsonDirac(U, 0.4)
        S = D.propagator(smear(U, point_source(D, (1, 1, 0, 2))), TOLERANCE)
        S = smear(U, S)
        pairs = mesons(S, origin=(1, 1, 0, 2), momenta=MOMENTA)
        found.append((pairs.values, nucleon(S, origin=(1, 1, 0, 2), momenta=MOMENTA).values))
    assert all(close(b, a) for a, b in zip(*found, strict=True))


def test_correlators_of_walls_are_those_of_one_gauge(two_gauges):
    found = []
    for U in two_gauges:
        D = WilsonDirac(U, 0.4)
        S = D.propagator(wall_source(D), 1e-8)
        found.append((mesons(S)["pion"], mesons(wall_sink(S))["pion"]))
    assert all(np.all(abs(b / a - 1).max() > 0.01) for a, b in zip(*found, strict=True))


def test_staggered_correlators_are_those_of_any_gauge(two_gauges):
    found = []
    for U in two_gauges:
        M = Staggered(U, 0.3)
        S = M.propagator(point_source(M, (1, 1, 0, 2)), TOLERANCE)
        found.append(staggered_mesons(S, origin=(1, 1, 0, 2), momenta=MOMENTA).values)
    assert close(found[1], found[0])


def moved_links(y):
    """Links as they are seen from y: U(x + y)."""
    return np.array([np.roll(u, [-k for k in y], axis=range(4)) for u in random_links(EXTENTS, 3, 5)])


SITES = [(1, 0, 0, 0), (0, 1, 3, 0), (0, 0, 0, 1), (3, 1, 2, 5)]


@pytest.mark.short(3)
@pytest.mark.parametrize("y", SITES[::-1])
@pytest.mark.parametrize("conditions", [("antiperiodic", "antiperiodic"), (cmath.exp(0.5j), "periodic")])
def test_wilson_correlators_do_not_depend_on_where_the_source_is(y, conditions):
    """Neither do those of quarks with other phases around time."""
    found = []
    for links, origin in ((random_links(EXTENTS, 3, 5), y), (moved_links(y), (0, 0, 0, 0))):
        D = WilsonDirac(gauge_field(Lattice(*EXTENTS), links), 0.4)
        S, other = (
            D.propagator(point_source(D, origin, boundary={3: condition}), TOLERANCE)
            for condition in conditions
        )
        options = {"origin": origin, "momenta": MOMENTA}
        found.append(
            [make(a, b, **options).values for make in (mesons, nucleon) for a, b in ((S, other), (other, S))]
        )
    assert all(close(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("y", SITES)
def test_staggered_correlators_do_not_depend_on_where_the_source_is(y):
    """Signs count from the source. The phases of the operator move by a sign at each site, which is none of |S|^2."""
    found = []
    for links, origin in ((random_links(EXTENTS, 3, 5), y), (moved_links(y), (0, 0, 0, 0))):
        M = Staggered(gauge_field(Lattice(*EXTENTS), links), 0.3)
        S = M.propagator(point_source(M, origin), TOLERANCE)
        found.append(staggered_mesons(S, origin=origin, momenta=MOMENTA).values)
    assert close(*found)


@pytest.mark.full
def test_hisq_correlators_do_not_depend_on_where_the_source_is():
    extents, y = (4, 4, 4, 6), (1, 3, 0, 4)
    links, found = random_links(extents, 3, 5), []
    moved = np.array([np.roll(u, [-k for k in y], axis=range(4)) for u in links])
    for values, origin in ((links, y), (moved, (0, 0, 0, 0))):
        M = HISQ(gauge_field(Lattice(*extents), values), 0.3, 0)
        S = M.propagator(point_source(M, origin), TOLERANCE)
        found.append(staggered_mesons(S, origin=origin, momenta=MOMENTA).values)
    assert close(*found)


def test_smeared_sources_move_with_the_links():
    y, found = (3, 1, 2, 5), []
    for links, origin in ((random_links(EXTENTS, 3, 5), y), (moved_links(y), (0, 0, 0, 0))):
        U = gauge_field(Lattice(*EXTENTS), links)
        psi = gaussian_smear(point_source(WilsonDirac(U, 0.4), origin), U, 1.5, 4)[...]
        found.append(np.roll(psi, [-k for k in origin], axis=range(4)))
    assert np.allclose(*found, rtol=0, atol=1e-14)


# ---- a correlator of one's own: the current that Wilson quarks conserve ---------------------------------------


@jali.site_function
def divergence(X, out, chi, psi, U):
    """sum_mu j_mu(x) - j_mu(x - mu) of j_mu(x) = [ chi(x+mu)^dagger gamma_5 (1 + gamma_mu) U^dagger psi(x)
    - chi(x)^dagger gamma_5 (1 - gamma_mu) U psi(x+mu) ] / 2; spinors are colours by spins."""
    total = 0.0
    for k, mu in enumerate(X.directions()):
        for here, sign in ((X, 1.0), (X - mu, -1.0)):
            there = here + mu
            total = total + sign * current_between(here, there, k, chi, psi, U)
    out[X] = total


@jali.site_function
def current(X, chi, psi, U, total):
    mu = X.directions()[3]
    total += current_between(X, X + mu, 3, chi, psi, U)


def current_between(here, there, k, chi, psi, U):
    one_plus, one_minus = gamma5 * (1 + gamma[k]), gamma5 * (1 - gamma[k])
    forward = chi[there].dot(one_plus * (U[k][here].dagger() * psi[here]))
    backward = chi[here].dot(one_minus * (U[k][here] * psi[there]))
    return 0.5 * (forward - backward)


def test_the_vector_current_of_wilson_quarks_is_conserved(two_gauges):
    """Away from both sources to the accuracy of the solves; its charge changes at their slices by what they give."""
    U = two_gauges[0]
    lattice, y, z = U.lattice, (1, 1, 0, 2), (2, 0, 3, 4)
    D = WilsonDirac(U, 0.4)
    of_psi, of_chi = point_source(D, y), point_source(D, z)
    S, other = (D.propagator(source, TOLERANCE) for source in (of_psi, of_chi))
    for a, b in ((0, 0), (3, 7)):
        chi, psi = other.members[a], S.members[b]
        found = lattice.field(jali.Complex())
        divergence(found, chi, psi, list(U))
        values = found[...]
        given = np.vdot(chi[y], G5 @ of_psi.members[b][y]), -np.vdot(of_chi.members[a][z], G5 @ psi[z])
        assert np.allclose((values[y], values[z]), given, rtol=0, atol=1e-11)
        assert abs(given[0]) > 1e-6
        values[y] = values[z] = 0
        assert abs(values).max() < 1e-11
        charge = lattice.sum(current, chi, psi, list(U), per=3)  # from t to t + 1
        steps = np.zeros(6, complex)
        steps[[2, 4]] = given
        assert np.allclose(charge - np.roll(charge, 1), steps, rtol=0, atol=1e-10)


def test_conjugated_links_exchange_quarks_and_antiquarks():
    """D of U^* is C^-1 D^T C: mesons of one matrix are the same, nucleons have the conjugate of the opposite momentum, so the mean of both is real."""
    found = []
    for links in (random_links(EXTENTS, 3, 5), random_links(EXTENTS, 3, 5).conj()):
        D = WilsonDirac(gauge_field(Lattice(*EXTENTS), links), 0.4)
        S = D.propagator(point_source(D), TOLERANCE)
        found.append((mesons(S, momenta=MOMENTA), nucleon(S, momenta=[*MOMENTA, (-1, 0, 0), (0, -1, 1)])))
    (m, n), (m_conjugated, n_conjugated) = found
    for p in MOMENTA:
        for name in GAMMAS:
            assert close(m_conjugated.correlator(name, momentum=p), m.correlator(name, momentum=p)), name
        opposite = tuple(-k for k in p)
        assert close(n_conjugated.correlator("+", p), n.correlator("+", opposite).conj())


def test_hadrons_with_a_phase_around_space_are_refused():
    """Their momenta are no multiples of 2 pi / L. Where phases of quarks cancel there is none."""
    D = WilsonDirac(gauge_field(Lattice(*EXTENTS), random_links(EXTENTS, 3, 5)), 0.4)
    turned, conjugated = (
        point_source(D, boundary={0: cmath.exp(sign * 2j * np.pi / 3), 3: "antiperiodic"}) for sign in (1, -1)
    )
    assert np.array_equal(mesons(turned)["pion"], mesons(point_source(D))["pion"])
    assert np.array_equal(nucleon(turned).values, nucleon(point_source(D)).values)  # three thirds
    with pytest.raises(LayoutError, match=r"multiplied by -0\.5\S* once around direction 0"):
        mesons(turned, conjugated)
    with pytest.raises(LayoutError, match="once around direction 1"):
        nucleon(point_source(D, boundary={1: "antiperiodic", 3: "antiperiodic"}))


def test_mesons_of_a_twisted_mass_are_charged_ones():
    """gamma_5 S(mu)^dagger gamma_5 is S(-mu) run backwards, by definition of a propagator from every site to every other one."""
    U = GaugeField(Lattice(2, 2, 2, 2), SU(2)).hot_start(seed=3)
    count = 8 * 16
    backwards = {}
    for mu in (0.3, -0.3):
        D = TwistedMassDirac(U, kappa=0.1, mu=mu)
        columns = []
        for site in np.ndindex(2, 2, 2, 2):
            columns.append(D.propagator(point_source(D, site), 1e-12)[...])  # x, member, spin, colour
        dense = np.stack(columns).reshape(16, 16, 8, 8)  # y, x, column, row
        backwards[mu] = dense.transpose(1, 3, 0, 2).reshape(count, count)  # (x, row), (y, column)
    sign = np.tile(np.repeat(np.diag(gamma5.dense()).real, 2), 16)
    assert np.allclose(sign[:, None] * backwards[0.3].conj().T * sign, backwards[-0.3], rtol=0, atol=1e-11)
