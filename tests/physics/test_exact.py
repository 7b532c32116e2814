"""The exact reference: published numbers, quadrature over the groups, brute force on small lattices."""

from __future__ import annotations

import itertools
import math

import exact
import numpy as np
import pytest
from scipy.integrate import dblquad, quad
from scipy.special import iv

from jali.gauge.literature import plaquette_reference, torus_plaquette

INFINITE_PLANE = {
    "U(1)": {
        0.5: 0.2424996126,
        1: 0.4463899659,
        2: 0.6977746580,
        3: 0.8099852940,
        4: 0.8635226110,
        5: 0.8933831370,
    },
    "SU(2)": {
        0.5: 0.1237179283,
        1: 0.2401937239,
        2: 0.4331274267,
        2.5: 0.5071951000,
        4: 0.6580472674,
        8: 0.8192494104,
    },
    "SU(3)": {
        0.5: 0.0289316728,
        1: 0.0601265548,
        2: 0.1286277853,
        3: 0.2030750500,
        5.7: 0.4027166073,
        6: 0.4225317397,
        9: 0.5803755665,
        12: 0.6776720374,
    },
    "U(3)": {
        0.5: 0.0277777777,
        1: 0.0555555474,
        2: 0.1111100987,
        3: 0.1666503082,
        5.7: 0.3155436445,
        6: 0.3317875488,
        9: 0.4839856598,
        12: 0.6039212951,
    },
}

TORUS = {
    ("U(1)", 2.0): {2: 0.7795609227, 4: 0.6992519268, 8: 0.6977746580},
    ("SU(2)", 2.0): {2: 0.4461449705, 4: 0.4331280030, 8: 0.4331274267},
    ("SU(2)", 4.0): {2: 0.6786620756, 4: 0.6581850746, 8: 0.6580472674},
    ("SU(3)", 6.0): {2: 0.4321282516, 4: 0.4225320566, 8: 0.4225317397},
}


@pytest.mark.parametrize(
    ("group", "beta", "value"), [(g, b, v) for g, row in INFINITE_PLANE.items() for b, v in row.items()]
)
def test_infinite_plane_reproduces_the_published_digits(group, beta, value):
    assert exact.single_plaquette(group, beta) == pytest.approx(value, abs=0.6e-10)


@pytest.mark.parametrize(
    ("group", "beta", "length", "value"),
    [(g, b, length, v) for (g, b), row in TORUS.items() for length, v in row.items()],
)
def test_torus_reproduces_the_published_digits(group, beta, length, value):
    assert exact.torus_plaquette(group, beta, length**2) == pytest.approx(value, abs=0.6e-10)


@pytest.mark.parametrize(
    ("group", "beta", "value", "digits"),
    [
        ("SU(2)", 0.25, 0.06234161, 8),
        ("SU(2)", 0.5, 0.12383033, 8),
        ("SU(2)", 1.0, 0.2430, 4),
        ("SU(3)", 0.5, 0.02893176, 8),
        ("SU(3)", 1.0, 0.06013021, 8),
        ("SU(3)", 2.0, 0.128810, 6),
        ("SU(3)", 3.0, 0.20497, 5),
    ],
)
def test_strong_coupling_reproduces_the_published_digits(group, beta, value, digits):
    assert exact.strong_coupling_plaquette(group, beta) == pytest.approx(value, abs=0.6 * 10**-digits)


@pytest.mark.parametrize("beta", [0.3, 2.0, 11.0])
def test_u1_and_su2_plaquettes_are_ratios_of_bessel_functions(beta):
    assert exact.single_plaquette("U(1)", beta) == pytest.approx(iv(1, beta) / iv(0, beta), rel=1e-13)
    assert exact.single_plaquette("SU(2)", beta) == pytest.approx(iv(2, beta) / iv(1, beta), rel=1e-13)


def su2_integral(f):
    """Haar integral of a class function of SU(2) with eigenvalues exp(+-i a)."""
    return quad(lambda a: 2 / math.pi * math.sin(a) ** 2 * f(a), 0, math.pi, epsabs=1e-14)[0]


def su3_average(values, weight):
    """Haar average over SU(3) on a grid of eigenvalue angles; exact for trigonometric polynomials."""
    return np.sum(values * weight) / np.sum(weight)


def su3_grid(points=96):
    angle = 2 * math.pi * np.arange(points) / points
    a, b = np.meshgrid(angle, angle, indexing="ij")
    z = np.exp(1j * np.stack([a, b, -a - b]))
    haar = np.prod([np.abs(z[i] - z[j]) ** 2 for i, j in itertools.combinations(range(3), 2)], axis=0)
    return z, haar


@pytest.mark.parametrize("beta", [1.0, 6.0])
def test_su3_plaquette_is_the_weyl_integral(beta):
    z, haar = su3_grid()
    trace = z.sum(axis=0).real
    expected = su3_average(trace / 3, haar * np.exp(beta / 3 * trace))
    assert exact.single_plaquette("SU(3)", beta) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("weights", [(0, 0), (1, 0), (2, 0), (5, 0)])
def test_su2_character_coefficients_are_haar_integrals(weights):
    beta, twice_spin = 2.3, weights[0]

    def integrand(a):
        character = math.sin((twice_spin + 1) * a) / math.sin(a) if math.sin(a) else twice_spin + 1
        return character * math.exp(beta * math.cos(a) - beta)

    value, _ = exact.character_coefficient("SU(2)", beta, weights)
    assert value == pytest.approx(su2_integral(integrand), rel=1e-10)
    assert exact.dimension(weights) == twice_spin + 1


@pytest.mark.parametrize(
    ("weights", "size"), [((0, 0, 0), 1), ((1, 0, 0), 3), ((1, 1, 0), 3), ((2, 1, 0), 8), ((3, 1, 0), 15)]
)
def test_su3_character_coefficients_are_weyl_integrals_of_schur_functions(weights, size):
    beta = 4.0
    z, haar = su3_grid()
    numerator = np.moveaxis(
        np.array([[zi ** (w + 2 - j) for j, w in enumerate(weights)] for zi in z]), (0, 1), (-2, -1)
    )
    denominator = np.moveaxis(np.array([[zi ** (2 - j) for j in range(3)] for zi in z]), (0, 1), (-2, -1))
    vandermonde = np.linalg.det(denominator)
    # haar = |vandermonde|^2, so the division is avoided where eigenvalues coincide.
    character_times_haar = np.linalg.det(numerator) * vandermonde.conj()
    trace = z.sum(axis=0).real
    expected = np.sum(character_times_haar.conj() * np.exp(beta / 3 * trace - beta)) / np.sum(haar)
    value, _ = exact.character_coefficient("SU(3)", beta, weights)
    assert value == pytest.approx(expected.real, rel=1e-11)
    assert exact.dimension(weights) == size


def test_u1_torus_of_one_site_has_plaquette_one():
    # Its only plaquette is U V U* V* = 1.
    assert exact.torus_plaquette("U(1)", 1.5, 1) == pytest.approx(1, rel=1e-12)


def test_su2_torus_of_one_site_is_the_average_over_commutators():
    beta = 2.0

    def commutator(a, b, c):
        """(1/2) Tr U V U^-1 V^-1 for rotations by 2a and 2b about axes at angle c."""
        return 1 - 2 * (math.sin(a) * math.sin(b) * math.sin(c)) ** 2

    nodes, weights = np.polynomial.legendre.leggauss(60)
    a = b = math.pi * (nodes + 1) / 2
    haar = weights * np.sin(a) ** 2
    c = math.pi * (nodes + 1) / 2
    value = np.vectorize(commutator)(a[:, None, None], b[None, :, None], c[None, None, :])
    measure = np.einsum("a,b,c->abc", haar, haar, weights * np.sin(c)) * np.exp(beta * value)
    expected = np.sum(measure * value) / np.sum(measure)
    # One plaquette only: the sum over representations converges slowly, lambda_r itself rather than
    # lambda_r^V.
    assert exact.torus_plaquette("SU(2)", beta, 1) == pytest.approx(expected, rel=1e-10)


def test_large_torus_is_the_infinite_plane():
    for group, beta in (("U(1)", 1.0), ("SU(2)", 2.0), ("SU(3)", 3.0), ("SU(4)", 5.0)):
        assert exact.torus_plaquette(group, beta, 400, 6) == pytest.approx(
            exact.single_plaquette(group, beta), rel=1e-12
        )


@pytest.mark.short(1)
@pytest.mark.parametrize(("group", "beta"), [("U(1)", 2.0), ("SU(2)", 4.0), ("SU(3)", 6.0)])
def test_torus_wilson_loop_joins_one_plaquette_and_the_area_law(group, beta):
    assert exact.torus_wilson_loop(group, beta, 16, 0) == pytest.approx(1, rel=1e-9)
    assert exact.torus_wilson_loop(group, beta, 16, 1) == pytest.approx(
        exact.torus_plaquette(group, beta, 16), rel=1e-10
    )
    for area in (1, 4, 6):
        assert exact.torus_wilson_loop(group, beta, 400, area) == pytest.approx(
            exact.plane_wilson_loop(group, beta, area), rel=1e-10
        )


def test_u1_charge_of_three_plaquettes_is_the_integral_over_their_angles():
    # The angles, each in (-pi, pi], sum to 2 pi Q, so Q is -1, 0 or 1.
    beta = 1.0

    def weight(x, y, charge):
        third = 2 * math.pi * charge - x - y
        if not -math.pi < third <= math.pi:
            return 0.0
        return math.exp(beta * (math.cos(x) + math.cos(y) + math.cos(third)))

    # Q = 1 needs x + y > pi: integrate the triangle exactly, no discontinuity inside.
    one = dblquad(lambda y, x: weight(x, y, 1), 0, math.pi, lambda x: math.pi - x, lambda x: math.pi)[0]
    everything = dblquad(
        lambda y, x: math.exp(beta * (math.cos(x) + math.cos(y) + math.cos(x + y))),
        -math.pi,
        math.pi,
        -math.pi,
        math.pi,
    )[0]
    assert exact.u1_torus_charge(beta, 3)[0] == pytest.approx(2 * one / everything, rel=1e-7)


def test_u1_susceptibility_of_a_large_torus_is_that_of_the_plane_and_falls_with_beta():
    for beta in (0.5, 2.0, 5.0):
        plane = exact.u1_plane_susceptibility(beta)
        assert exact.u1_torus_charge(beta, 2500)[1] == pytest.approx(plane, rel=1e-9)
    # Semiclassically 1 / (4 pi^2 beta).
    assert 4 * math.pi**2 * 50 * exact.u1_plane_susceptibility(50.0) == pytest.approx(1, rel=0.02)
    assert exact.u1_plane_susceptibility(0.0) == pytest.approx(1 / 12)


def hop(extents, mu, antiperiodic):
    """Dense matrix T with (T psi)(x) = psi(x + mu)."""
    factors = []
    for axis, n in enumerate(extents):
        matrix = np.eye(n)
        if axis == mu:
            matrix = np.roll(np.eye(n), 1, axis=1)
            if antiperiodic[axis]:
                matrix[n - 1, 0] *= -1
        factors.append(matrix)
    result = np.eye(1)
    for factor in factors:
        result = np.kron(result, factor)
    return result


def dense_wilson(extents, mass, antiperiodic):
    d = len(extents)
    gamma = exact.gamma_matrices(d)
    unit = np.eye(gamma.shape[-1])
    operator = (mass + d) * np.kron(np.eye(math.prod(extents)), unit)
    for mu in range(d):
        forward = hop(extents, mu, antiperiodic)
        operator = (
            operator - 0.5 * np.kron(forward, unit - gamma[mu]) - 0.5 * np.kron(forward.T, unit + gamma[mu])
        )
    return operator


@pytest.mark.parametrize(
    ("extents", "antiperiodic"),
    [((4, 6), (False, False)), ((3, 4), (False, True)), ((2, 3, 2, 4), (False, False, False, True))],
)
def test_free_wilson_propagator_and_spectrum_are_those_of_the_dense_matrix(extents, antiperiodic):
    mass = 0.3
    operator = dense_wilson(extents, mass, antiperiodic)
    propagator = exact.wilson_propagator(extents, mass, antiperiodic=antiperiodic)
    spin = propagator.shape[-1]
    column = np.linalg.inv(operator)[:, :spin].reshape(*extents, spin, spin)
    assert np.abs(propagator - column).max() < 1e-13

    def ordered(values):
        return np.array(sorted(np.round(values, 9), key=lambda z: (z.real, z.imag)))

    eigenvalues = ordered(np.linalg.eigvals(operator))
    assert np.abs(eigenvalues - ordered(exact.wilson_spectrum(extents, mass, antiperiodic))).max() < 1e-7


def test_gamma_matrices_anticommute():
    for d in (2, 4):
        gamma = exact.gamma_matrices(d)
        for mu, nu in itertools.product(range(d), repeat=2):
            anticommutator = gamma[mu] @ gamma[nu] + gamma[nu] @ gamma[mu]
            assert np.allclose(anticommutator, 2 * (mu == nu) * np.eye(len(gamma[0])))
            assert np.allclose(gamma[mu], gamma[mu].conj().T)


def test_wilson_propagator_decays_with_the_wilson_energy():
    mass, p = 0.4, 2 * math.pi / 8
    propagator = exact.wilson_propagator((8, 128), mass, antiperiodic=(False, True))
    projected = np.einsum("x,xtab->tab", np.exp(-1j * p * np.arange(8)), propagator)
    norm = np.sqrt(np.sum(np.abs(projected) ** 2, axis=(1, 2)))
    assert math.log(norm[10] / norm[11]) == pytest.approx(exact.wilson_energy([p], mass), rel=1e-10)
    assert exact.wilson_energy([0.0, 0.0, 0.0], mass) == pytest.approx(math.log(1 + mass))


def test_free_pion_weighs_twice_the_quark_on_one_spatial_site():
    correlator = exact.free_pion_correlator((1, 128), 0.4, (False, True))
    assert correlator.shape == (128,)
    assert math.log(correlator[10] / correlator[11]) == pytest.approx(2 * math.log(1.4), rel=1e-9)


def test_scalar_propagator_inverts_the_lattice_laplacian_and_decays_with_its_energy():
    mass, extents = 0.5, (4, 5, 6)
    propagator = exact.scalar_propagator(extents, mass)
    applied = (mass**2 + 6) * propagator
    for axis in range(3):
        applied = applied - np.roll(propagator, 1, axis) - np.roll(propagator, -1, axis)
    source = np.zeros(extents)
    source[0, 0, 0] = 1
    assert np.abs(applied - source).max() < 1e-14
    p = 2 * math.pi / 6
    slices = np.exp(-1j * p * np.arange(6)) @ exact.scalar_propagator((6, 100), mass)
    assert math.log(abs(slices[10] / slices[11])) == pytest.approx(exact.scalar_energy([p], mass), rel=1e-10)


def test_staggered_energy_solves_its_dispersion_relation():
    energy = exact.staggered_energy([0.3, -0.7], 0.2)
    assert math.sinh(energy) ** 2 == pytest.approx(0.04 + math.sin(0.3) ** 2 + math.sin(0.7) ** 2)


def test_heat_kernel_on_the_ring_is_the_matrix_exponential_and_the_sum_over_images():
    n, time = 16, 1.7
    laplacian = np.roll(np.eye(n), 1, 0) + np.roll(np.eye(n), -1, 0) - 2 * np.eye(n)
    values, vectors = np.linalg.eigh(laplacian)
    expected = vectors @ np.diag(np.exp(time * values)) @ vectors.T
    kernel = exact.heat_kernel(n, time)
    assert np.abs(kernel - expected[:, 0]).max() < 1e-14
    x = np.arange(n)
    images = sum(exact.heat_kernel_line(x + n * k, time) for k in range(-6, 7))
    assert np.abs(kernel - images).max() < 1e-14
    assert kernel.sum() == pytest.approx(1)


def test_euler_heat_kernel_is_what_steps_on_the_ring_give():
    u = np.zeros(12)
    u[0] = 1
    for _ in range(9):
        u = u + 0.2 * (np.roll(u, 1) + np.roll(u, -1) - 2 * u)
    assert np.abs(exact.heat_kernel_euler(12, 0.2, 9) - u).max() < 1e-15


# --- the package's own table of known plaquettes ------------------------------------------------------------


@pytest.mark.parametrize(
    ("group", "beta", "volume"),
    [
        ("U(1)", 0.3, 4),
        ("U(1)", 2.0, 4),
        ("U(1)", 7.0, 64),
        ("U(1)", 60.0, 6),
        ("SU(2)", 0.3, 4),
        ("SU(2)", 4.0, 4),
        ("SU(2)", 9.0, 1024),
        ("SU(3)", 0.3, 4),
        ("SU(3)", 6.0, 4),
        ("SU(3)", 12.0, 64),
    ],
)
def test_installed_torus_formula_agrees_with_the_reference(group, beta, volume):
    expected = exact.torus_plaquette(group, beta, volume, 24 if beta < 50 else 60)
    assert torus_plaquette(group, beta, volume) == pytest.approx(expected, rel=1e-12)


def test_weak_coupling_on_the_torus_is_equipartition():
    # V - 1 of the V plaquettes are independent; each has N^2 - 1 modes that give 1 - P = 1 / (2 beta).
    for group, modes in (("U(1)", 1), ("SU(2)", 3), ("SU(3)", 8)):
        beta, volume = 400.0, 1024
        expected = modes / (2 * beta) * (1 - 1 / volume)
        assert 1 - torus_plaquette(group, beta, volume) == pytest.approx(expected, rel=0.02)


def test_known_plaquettes_say_where_they_hold():
    reference = plaquette_reference("SU(3)", 6.0, (12, 12, 12, 12))
    assert (reference.value, reference.caution) == (0.593679, "")
    assert "12 sites or more" in plaquette_reference("SU(3)", 6.0, (12, 12, 12, 4)).caution
    assert plaquette_reference("SU(2)", 2.4, (8, 8, 8, 8)).value == 0.629956
    assert plaquette_reference("SU(3)", 5.71, (8, 8, 8, 8)) is None
    assert plaquette_reference("SU(3)", 5.7, (8, 8, 8)) is None
    assert plaquette_reference("SU(4)", 5.7, (8, 8)) is None
    two = plaquette_reference("SU(3)", 6.0, (2, 2))
    assert two.value == pytest.approx(TORUS["SU(3)", 6.0][2], abs=1e-10)
    assert "exact" in two.source


def test_published_plaquettes_increase_smoothly_between_strong_and_weak_coupling():
    # 1 - P = 2/beta + 1.221/beta^2 + 2.96/beta^3 + 9.4/beta^4 for SU(3): a mistyped digit would stand out.
    betas = (5.7, 5.8, 5.95, 6.0, 6.07, 6.2, 6.4, 6.57)
    values = [plaquette_reference("SU(3)", beta, (48,) * 4).value for beta in betas]
    series = [1 - sum(c / beta**k for k, c in enumerate((2.0, 1.221, 2.96, 9.4), 1)) for beta in betas]
    remainder = [(s - v) * b**5 for s, v, b in zip(series, values, betas, strict=True)]
    assert all(a > b > 0 for a, b in itertools.pairwise(remainder))
