"""Mesons and nucleons of random fields against their definitions, term by term in NumPy, and against dense linear algebra."""

from __future__ import annotations

import cmath

import numpy as np
import pytest
from quarks import (
    as_matrices,
    dense,
    filled,
    gauge_field,
    known_gauge_field,
    meson,
    nucleon_of,
    random_links,
)

from jali import SU, Field, Lattice, LayoutError, Spinor
from jali.fermions import SpinMatrix, Staggered, WilsonDirac, gamma, gamma5
from jali.gauge import GaugeField
from jali.hadrons import (
    DIQUARK,
    GAMMAS,
    MESONS,
    PROJECTORS,
    mesons,
    nucleon,
    pcac_mass,
    point_source,
    staggered_mesons,
)

EXTENTS = (2, 3, 4, 5)
ORIGIN = (1, 2, 0, 3)
MOMENTA = [(0, 0, 0), (1, 0, 0), (0, -1, 3), (2, 3, 4)]  # the last one is zero: a whole winding
ANTIPERIODIC = {3: "antiperiodic"}
# Terms of a sum are added in another order: some thousand of them, each of relative rounding 1e-16.
ROUNDING = 1e-12


def random_propagator(extents, seed, colours=3, boundary=ANTIPERIODIC, batch=None):
    """Gaussian numbers in place of a solution: what is tested holds for any."""
    lattice = extents if isinstance(extents, Lattice) else Lattice(*extents)
    return filled(Field(lattice, Spinor(colours), boundary=boundary, batch=batch or 4 * colours), seed)


def brought_to_the_beginning(values, factor, time=3):
    """The slice of the source first; slices before it are reached across the edge, where a field is multiplied by the factor."""
    moved = np.roll(values, -time, axis=0)
    moved[len(moved) - time :] *= factor
    return moved


@pytest.fixture(scope="module")
def two_quarks():
    lattice = Lattice(*EXTENTS)
    return random_propagator(lattice, 1), random_propagator(lattice, 2)


def test_all_pairs_of_matrices_have_their_definition(two_quarks):
    S, anti = two_quarks
    found = mesons(S, anti, momenta=MOMENTA, origin=ORIGIN)
    arrays = as_matrices(S), as_matrices(anti)
    scale = abs(found.values).max()
    for p in MOMENTA[:3]:
        for sink in GAMMAS:
            for source in GAMMAS if p == (0, -1, 3) else [sink]:  # all 256 pairs at the last of them
                pair = GAMMAS[sink].dense(), GAMMAS[source].dense()
                expected = np.roll(meson(*arrays, *pair, p, ORIGIN), -3)
                assert np.allclose(found.correlator(sink, source, p), expected, rtol=0, atol=ROUNDING * scale)


def test_matrices_that_have_no_name_have_their_definition(two_quarks):
    S, anti = two_quarks
    rng = np.random.default_rng(7)
    sink, source = (rng.normal(size=(4, 4)) + 1j * rng.normal(size=(4, 4)) for _ in range(2))
    found = mesons(S, anti, momenta=[(0, 1, 1)], origin=ORIGIN)
    expected = np.roll(meson(as_matrices(S), as_matrices(anti), sink, source, (0, 1, 1), ORIGIN), -3)
    assert np.allclose(found.correlator(SpinMatrix(sink), SpinMatrix(source)), expected, rtol=1e-11)


def test_whole_windings_of_a_momentum_are_none(two_quarks):
    found = mesons(*two_quarks, momenta=MOMENTA, origin=ORIGIN)
    assert np.array_equal(found.at((2, 3, 4)), found.at((0, 0, 0)))
    assert found.at(np.array([0, -1, 3])) is not None
    assert np.array_equal(found.at([0, -1, 3]), found.values[2])


def test_half_of_the_sums_of_one_quark_are_conjugates_of_the_other_half(two_quarks):
    S, _ = two_quarks
    twin = S.copy()
    assert np.allclose(mesons(S, S).values, mesons(S, twin).values, rtol=1e-13, atol=0)


def test_names_are_sums_of_matrices(two_quarks):
    found = mesons(two_quarks[0])
    for name, matrices in MESONS.items():
        assert np.allclose(found[name], sum(found.correlator(m).real for m in matrices), rtol=1e-14)
    assert set(found.keys()) == {*MESONS, *GAMMAS}
    assert all(values.shape == (5,) for values in dict(found).values())
    assert "rho" in found
    assert "sigma" not in found


def test_names_are_those_of_products_of_gamma_matrices():
    """In the order of Chroma's numbers bit k is gamma_k; four of them are written with gamma_5, up to a sign."""
    for number, (name, matrix) in enumerate(GAMMAS.items()):
        product = SpinMatrix(np.eye(4))
        for k in range(4):
            product = product * gamma[k] if number >> k & 1 else product
        assert matrix in (product, -product), name
        assert matrix == product or number in (7, 11, 13, 14), name


def test_batches_of_more_columns_than_colours_are_summed(two_quarks):
    """Of a source that is diluted in more, such as parity, too."""
    lattice = two_quarks[0].lattice
    S = random_propagator(lattice, 3, colours=2, batch=24)
    arrays = as_matrices(S)
    for name in ("g5", "gx", "1"):
        matrix = GAMMAS[name].dense()
        expected = meson(arrays, arrays, matrix, matrix)
        assert np.allclose(mesons(S).correlator(name), expected, rtol=1e-11)


def test_the_pion_is_the_sum_of_squares_and_the_largest_of_all(two_quarks):
    S, _ = two_quarks
    found = mesons(S, origin=ORIGIN)
    pion = found.correlator("g5")
    squares = np.roll((abs(S[...]) ** 2).sum((0, 1, 2, 4, 5, 6)), -3)
    assert np.allclose(pion, squares, rtol=1e-13, atol=0)
    for name in GAMMAS:
        one = found.correlator(name)
        assert np.all(abs(one.imag) < 1e-12 * abs(pion)), name  # of one matrix at both ends it is real
        assert np.all(abs(one) <= pion * (1 + 1e-13)), name


@pytest.mark.parametrize(
    ("quark", "antiquark"),
    [
        ("antiperiodic", "antiperiodic"),
        ("antiperiodic", "periodic"),
        ("open", "open"),
        (cmath.exp(0.7j), cmath.exp(-0.2j)),
    ],
)
def test_mesons_are_as_if_the_source_were_in_the_first_slice(quark, antiquark):
    """A quark that is multiplied by a phase once around time has that phase behind the edge, an antiquark its conjugate."""
    lattice = Lattice(*EXTENTS)
    S = random_propagator(lattice, 1, boundary={3: quark})
    anti = random_propagator(lattice, 2, boundary={3: antiquark})
    phases = {"antiperiodic": -1, "periodic": 1, "open": 1}
    factor = phases.get(quark, quark) * np.conj(phases.get(antiquark, antiquark))
    site = meson(as_matrices(S), as_matrices(anti), gamma5.dense(), gamma[1].dense())
    expected = brought_to_the_beginning(site, factor)
    found = mesons(S, anti, origin=(0, 0, 0, 3)).correlator("g5", "gy")
    assert np.allclose(found, expected, rtol=1e-11)


@pytest.mark.short(1)
@pytest.mark.parametrize("up", ["antiperiodic", "periodic", cmath.exp(0.7j)])
@pytest.mark.parametrize("down", ["antiperiodic", cmath.exp(-0.2j)])
def test_nucleons_have_their_definition(up, down):
    lattice = Lattice(*EXTENTS)
    S = random_propagator(lattice, 4, boundary={3: up})
    other = random_propagator(lattice, 5, boundary={3: down})
    phases = {"antiperiodic": -1, "periodic": 1}
    factor = phases.get(up, up) ** 2 * phases.get(down, down)
    rng = np.random.default_rng(6)
    diquark, projector = (
        SpinMatrix(rng.normal(size=(4, 4)) + 1j * rng.normal(size=(4, 4))) for _ in range(2)
    )
    arrays = as_matrices(S), as_matrices(other)
    for p, pair in zip(
        MOMENTA[:3],
        [(DIQUARK, PROJECTORS["+"]), (DIQUARK, PROJECTORS["-"]), (diquark, projector)],
        strict=True,
    ):
        expected = nucleon_of(*arrays, *(m.dense() for m in pair), p, ORIGIN)
        found = nucleon(S, other, momenta=[p], origin=ORIGIN, diquark=pair[0]).correlator(pair[1])
        expected = brought_to_the_beginning(expected, factor)
        assert np.allclose(found, expected, rtol=0, atol=ROUNDING * abs(expected).max()), p


def test_signs_of_parity_are_names_of_projectors(two_quarks):
    found = nucleon(two_quarks[0], momenta=[(0, 0, 1), (0, 0, 0)])
    assert np.array_equal(found.correlator(), found.correlator(0.5 * (1 + gamma[3]), (0, 0, 1)))
    assert np.array_equal(found.correlator("-", (0, 0, 0)), found.correlator(PROJECTORS["-"], (0, 0, 0)))


def test_charge_conjugation_turns_gamma_matrices_into_minus_their_transpose():
    C = (gamma[3] * gamma[1]).dense()
    for g in gamma:
        assert np.array_equal(C @ g.dense() @ np.linalg.inv(C), -g.dense().T)


@pytest.mark.short(1)
@pytest.mark.parametrize("colours", [2, 1, 4])
def test_mesons_of_other_groups_have_the_inverse_of_the_dense_operator(colours):
    """Also from a source in the middle, against all definitions at once: no gamma_5-hermiticity, S(y, x) from the inverse itself."""
    extents, y = (2, 2, 2, 4), (1, 0, 1, 1)
    U = gauge_field(Lattice(*extents), random_links(extents, colours, 3))
    D = WilsonDirac(U, 0.3)
    S = D.propagator(point_source(D, y), 1e-12)
    inverse = np.linalg.inv(dense(D, boundary=ANTIPERIODIC))
    whole = inverse.reshape(*extents, 4, colours, *extents, 4, colours)
    there = whole[(slice(None),) * 6 + y]  # S(x, y): (*extents, s, c, s', c')
    back = np.moveaxis(whole[y], (0, 1), (-2, -1))
    back = np.moveaxis(back, (4, 5, 6, 7), (6, 7, 4, 5))  # S(y, x): (*extents, s', c', s, c)
    assert np.allclose(as_matrices(S), there, rtol=0, atol=1e-10)
    found = mesons(S, origin=y, momenta=[(0, 0, 0), (1, 0, 1)])
    T = gamma[3].dense()
    for p in found.momenta:
        angle = sum(2 * np.pi * p[k] / extents[k] * (np.indices(extents)[k] - y[k]) for k in range(3))
        for sink, source in (("g5", "g5"), ("gx", "gx"), ("gtg5", "g5"), ("1", "gt")):
            a, b = GAMMAS[sink].dense(), T @ GAMMAS[source].dense().conj().T @ T
            site = -np.einsum("...icjd,jk,...kdlc,li->...", back, a, there, b, optimize=True)
            expected = np.roll((site * np.exp(-1j * angle)).sum((0, 1, 2)), -y[3])
            assert np.allclose(found.correlator(sink, source, p), expected, rtol=0, atol=1e-9)
    with pytest.raises(LayoutError, match="a nucleon has three colours"):
        nucleon(S)


@pytest.mark.short(1)
@pytest.mark.parametrize("extents", [(4, 6), (2, 4, 4), (6,)])
def test_mesons_in_fewer_dimensions_have_time_last(extents):
    """Of U(1), such as the Schwinger model: gamma_t is the matrix of the last direction, and names are those without a spin."""
    d = len(extents)
    y = tuple(n - 1 for n in extents)
    lattice = Lattice(*extents)
    links = [Field(lattice, SU(1)) for _ in range(d)]
    for u, values in zip(links, random_links(extents, 1, 3), strict=True):
        u[...] = values
    D = WilsonDirac(links, 0.3)
    S = D.propagator(point_source(D, y), 1e-12)
    inverse = np.linalg.inv(dense(D, boundary={d - 1: "antiperiodic"}))
    whole = inverse.reshape(*extents, 4, *extents, 4)
    there = whole[(slice(None),) * (d + 1) + y]  # S(x, y): (*extents, s, s')
    back = np.moveaxis(whole[y], 0, -2)  # S(y, x): (*extents, s', s)
    T = gamma[d - 1]
    momentum = (1,) * (d - 1)
    found = mesons(S, origin=y, momenta=[(0,) * (d - 1), momentum])
    angle = sum(2 * np.pi * momentum[k] / extents[k] * (np.indices(extents)[k] - y[k]) for k in range(d - 1))
    for sink, source in (
        (gamma5, gamma5),
        (T * gamma5, gamma5),
        (gamma[0], gamma[0]),
        (T, SpinMatrix(np.eye(4))),
    ):
        b = (T * source.dagger() * T).dense()
        site = -np.einsum("...sa,ab,...bc,cs->...", back, sink.dense(), there, b, optimize=True)
        for p, factor in zip(found.momenta, (1.0, np.exp(-1j * angle)), strict=True):
            expected = np.roll((site * factor).sum(tuple(range(d - 1))), 1)
            assert np.allclose(found.correlator(sink, source, p), expected, rtol=0, atol=1e-10)
    assert np.allclose(found["pion"], found.correlator(gamma5).real)
    assert "rho" not in found
    # d_t A = 2 m P holds with the current in time
    axial, density = (found.correlator(m, gamma5).real for m in (T * gamma5, gamma5))
    expected = (np.roll(axial, -1) - np.roll(axial, 1)) / (4 * density)
    assert np.array_equal(pcac_mass(found), expected)


def test_staggered_mesons_have_their_definition():
    """Signs of x - y, on all members of any batch."""
    extents, y = (4, 6, 2, 8), (1, 2, 1, 3)
    lattice = Lattice(*extents)
    D = Staggered(GaugeField(lattice, SU(3)).hot_start(1), 0.2)
    S = filled(point_source(D, y), 8)
    density = (abs(S[...]) ** 2).sum((4, 5))
    x, z, w, _ = (c - at for c, at in zip(np.indices(extents), y, strict=True))
    ones = [(-1.0) ** k for k in (x, z, w)]
    signs = {
        "pion": 1,
        "scalar": ones[0] * ones[1] * ones[2],
        "vector": sum(ones),
        "pseudovector": ones[0] * ones[1] + ones[1] * ones[2] + ones[2] * ones[0],
    }
    found = staggered_mesons(S, origin=y, momenta=[(0, 0, 0), (1, -2, 1)])
    assert found.keys() == list(signs)
    for name, sign in signs.items():
        for p in found.momenta:
            angle = 2 * np.pi * (p[0] * x / 4 + p[1] * z / 6 + p[2] * w / 2)
            expected = np.roll((density * sign * np.exp(-1j * angle)).sum((0, 1, 2)), -3)
            assert np.allclose(found.correlator(name, p), expected, rtol=1e-12, atol=1e-11)
        assert np.array_equal(found[name], found.correlator(name).real)


def test_correlators_of_single_precision_are_those_of_double_to_its_digits():
    D = WilsonDirac(known_gauge_field(), 0.5)
    S = D.propagator(point_source(D), 1e-6)
    single = S.astype("float32")
    for name in ("g5", "gx"):
        assert np.allclose(mesons(single)[name], mesons(S)[name], rtol=1e-5)
    assert np.allclose(nucleon(single).correlator(), nucleon(S).correlator(), rtol=1e-5)
