"""Hadrons on configurations whose correlators are known: "G" (`known_configuration`), unit links, and a file of another code."""

from __future__ import annotations

import numpy as np
import pytest
from known_configuration import EXTENTS
from quarks import known_gauge_field, shared_configuration

from jali import SU, Lattice
from jali.fermions import HISQ, Asqtad, CloverDirac, DomainWallDirac, Staggered, TwistedMassDirac, WilsonDirac
from jali.gauge import GaugeField
from jali.hadrons import mesons, nucleon, point_source, staggered_mesons

# Solves are to 1e-13, so that what is known has all of its digits: numbers of the reference are dense, rounded in the last digit printed.
TOLERANCE = 1e-13
WILSON = {
    "pion": (0.892166748951, 0.047805828787, 0.007318686701, 0.001887387436, 0.001011796315),
    "rho": (2.47984626523, 0.125743214409, 0.0198887602422, 0.00530172685121, 0.00288219717777),
    "gx": (0.824111554656, 0.041729612940, 0.006674543160, 0.001775036858, 0.000959346569),
    "scalar": (-0.708093136923, 0.009158730452, 0.001328039318, 0.000842160400, 0.000768188023),
    "pion by its axial charge": (
        0.707843444798,
        0.031991306246,
        0.005566282307,
        0.001600466642,
        0.000895501769,
    ),
}
CLOVER = {
    "pion": (0.943313129170, 0.057410595793, 0.010584954176, 0.003367675653, 0.002032754327),
    "rho": (2.56479053835, 0.143318342565, 0.0270645594920, 0.00886599421008, 0.00541717147871),
}
WILSON_NUCLEON = (
    0.884588578838,
    0.010363556432,
    3.20106645727e-4,
    2.42166926e-5,
    4.77512979e-6,
    4.14345331e-6,
    1.62585502e-5,
    3.47632122795e-4,
)
CLOVER_NUCLEON = (0.928581228875, 0.0119967922012, 4.56421959572e-4, 5.0053746559e-5, 1.33227157e-5)


@pytest.fixture(scope="module")
def known():
    return known_gauge_field()


@pytest.fixture(scope="module")
def wilson(known):
    D = WilsonDirac(known, 0.1)
    return D.propagator(point_source(D), TOLERANCE)


@pytest.fixture(scope="module")
def clover(known):
    D = CloverDirac(known, 0.1, 1.2)
    return D.propagator(point_source(D), TOLERANCE)


def test_mesons_of_wilson_quarks(wilson):
    found = mesons(wilson)
    for name, expected in WILSON.items():
        assert found[name][:5] == pytest.approx(expected, rel=1e-9, abs=1e-12), name
        assert found[name].shape == (8,)


def test_the_nucleon_of_wilson_quarks(wilson):
    found = nucleon(wilson).correlator()
    assert found.real == pytest.approx(WILSON_NUCLEON, rel=2e-9)  # known to nine digits
    assert abs(found.imag[0] / found.real[0]) > 1e-5  # on one configuration it is complex


def test_hadrons_of_clover_quarks(clover):
    found = mesons(clover)
    for name, expected in CLOVER.items():
        assert found[name][:5] == pytest.approx(expected, rel=1e-9, abs=1e-12), name
    assert nucleon(clover).correlator().real[:5] == pytest.approx(CLOVER_NUCLEON, rel=2e-9)


def test_the_pion_of_twisted_quarks_of_both_signs(known):
    """gamma_5 D(mu) gamma_5 = D(-mu)^dagger, so sum |S|^2 is the charged pion."""
    D = TwistedMassDirac(known, 0.1, 0.2)
    S = D.propagator(point_source(D), TOLERANCE)
    expected = 0.885277253777, 0.046710103153, 0.000814137429
    assert mesons(S)["pion"][[0, 1, 4]] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda U: Staggered(U, 0.1), (2.502584188590, 1.160940552473, 0.278411300495)),
        (lambda U: Asqtad(U, 0.1), (2.073367929854, 0.916187240243, 0.113388875902)),
        (lambda U: HISQ(U, 0.1, 0), (0.930512254482, 0.421207526291, 0.008594698409)),
    ],
    ids=["staggered", "asqtad", "HISQ"],
)
def test_pions_of_staggered_quarks(known, make, expected):
    D = make(known)
    found = staggered_mesons(D.propagator(point_source(D), TOLERANCE))["pion"]
    assert found[[0, 1, 4]] == pytest.approx(expected, rel=1e-9)


def test_pions_of_unit_links():
    U = GaugeField(Lattice(*EXTENTS), SU(3)).cold_start()
    D, M = WilsonDirac(U, 0.1), Staggered(U, 0.1)
    expected = 0.843602498318, 0.075815895179, 0.039773899495, 0.034664443325, 0.033722596080
    S = D.propagator(point_source(D), TOLERANCE)
    assert mesons(S)["pion"][:5] == pytest.approx(expected, rel=1e-9)
    expected = 1.078365236861, 0.487732482923, 0.032312118193, 0.325311422505, 0
    S = M.propagator(point_source(M), TOLERANCE)
    assert staggered_mesons(S)["pion"][:5] == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.full
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (DomainWallDirac.shamir, (0.435230975, 0.246717302, 0.047802142)),
        (DomainWallDirac.moebius, (0.432913772, 0.248375440, 0.046426194)),
    ],
    ids=["Shamir", "Moebius"],
)
def test_pions_of_domain_wall_quarks(known, make, expected):
    D = make(known, 0.1, 1.8, Ls=8)
    found = mesons(D.propagator(point_source(D), 1e-11))["pion"]
    assert found[[0, 1, 4]] == pytest.approx(expected, abs=1e-9)  # known to nine digits


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda U: WilsonDirac(U, kappa=0.14), (1.209060014, 0.086401102, 0.022907215)),
        (lambda U: CloverDirac(U, kappa=0.13, csw=1.5), (1.195380901, 0.087272888, 0.024305806)),
        (lambda U: Staggered(U, 0.1), (3.560350107, 1.831326187, 1.007882598)),
        (lambda U: Asqtad(U, 0.1), (2.929587119, 1.169424768, 0.430610687)),
        (lambda U: HISQ(U, 0.1, 0), (1.037035625, 0.298954694, 0.076952795)),
    ],
    ids=["Wilson", "clover", "staggered", "asqtad", "HISQ"],
)
def test_pions_of_the_shared_configuration(make, expected):
    D = make(shared_configuration())
    S = D.propagator(point_source(D), 1e-11)
    pion = mesons(S)["pion"] if S.element.spinor else staggered_mesons(S)["pion"]
    assert pion[:3] == pytest.approx(expected, abs=1e-9)  # known to nine digits
    assert np.allclose(pion[3], pion[1], rtol=0.2)  # as far as one configuration is symmetric in time
