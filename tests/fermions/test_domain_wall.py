"""Domain wall operators: a configuration whose numbers are known, four dimensions and five, dense matrices, and symmetries."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from test_even_odd import EXTENTS, known_links
from test_wilson import random_links, unit_links, wilson_numpy

import jali
from jali import EVEN, ODD, SU, Field, Lattice, LayoutError, ParameterError, Spinor
from jali.codegen.stage_cache import COUNTS
from jali.errors import SolverError
from jali.fermions import DomainWallDirac, gamma, gamma5
from jali.gauge import GaugeField
from jali.lattice.algebra import inner, norm2
from jali.solvers import cg

COEFFICIENTS = {"Shamir": (1.0, 0.0), "Moebius": (1.5, 0.5), "Borici": (1.0, 1.0)}
TIME = {3: "antiperiodic"}
PERIODIC = ["periodic"] * 4
UP, DOWN = slice(0, 2), slice(2, 4)  # spins of P_plus and P_minus


def random_walls(lattice, n, Ls, seed, **options):
    field = Field(lattice, Spinor(n), batch=Ls, **options)
    rng = np.random.default_rng(seed)
    shape = (*lattice.extents, Ls, 4, n)
    field[...] = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return field


def joined_numpy(psi, mass):
    """Lambda psi of an array (..., Ls, spin, colour)."""
    ahead, behind = np.roll(psi, -1, -3), np.roll(psi, 1, -3)
    ahead[..., -1, :, :] *= -mass
    behind[..., 0, :, :] *= -mass
    return np.concatenate([behind[..., UP, :], ahead[..., DOWN, :]], axis=-2)


def domain_wall_numpy(links, psi, mass, M5, b, c, conditions):
    """D_plus psi - D_minus Lambda psi, slice by slice with full gamma matrices."""
    joined, out = joined_numpy(psi, mass), np.empty_like(psi)
    for s in range(psi.shape[-3]):
        here, there = psi[..., s, :, :], joined[..., s, :, :]
        out[..., s, :, :] = here + b * wilson_numpy(links, here, -M5, conditions)
        out[..., s, :, :] -= there - c * wilson_numpy(links, there, -M5, conditions)
    return out


def matrix_of(apply, shape):
    """The dense matrix of a function of arrays."""
    units = np.eye(np.prod(shape), dtype=complex).reshape(-1, *shape)
    return np.stack([apply(unit).ravel() for unit in units], axis=1)


def known_operator(b, c):
    lattice = Lattice(*EXTENTS)
    U = GaugeField(lattice, SU(3))
    for field, links in zip(U.fields, known_links(), strict=True):
        field[...] = links
    return DomainWallDirac(U, 0.1, 1.8, Ls=8, b=b, c=c)


def known_walls(lattice):
    """Re 2 ((k^2 + 3 k) mod 103) / 103 - 1, Im 2 ((k^2 + 5 k) mod 107) / 107 - 1, k = 1 + j + 12 (n + 512 s), j = 3 spin + colour."""
    n = np.arange(np.prod(EXTENTS)).reshape(EXTENTS[::-1]).T
    slices = n[..., None] + 512 * np.arange(8)
    k = 1 + np.arange(12).reshape(4, 3) + 12 * slices[..., None, None]
    phi = Field(lattice, Spinor(3), batch=8, boundary=TIME)
    phi[...] = 2 * ((k * k + 3 * k) % 103) / 103 - 1 + 1j * (2 * ((k * k + 5 * k) % 107) / 107 - 1)
    return phi


def point(lattice, spin=0, colour=0):
    eta = Field(lattice, Spinor(3), boundary=TIME)
    values = np.zeros((4, 3))
    values[spin, colour] = 1
    eta[0, 0, 0, 0] = values
    return eta


@pytest.mark.parametrize(
    ("name", "norm", "heavy"),
    [("Shamir", 552531.131640, 556047.567802), ("Moebius", 973638.922393, 981168.858237)],
)
def test_norms_on_the_known_configuration(name, norm, heavy):
    D = known_operator(*COEFFICIENTS[name])
    phi = known_walls(D.lattice)
    assert norm2(D.apply(phi)).sum() == pytest.approx(norm, rel=1e-11)
    assert norm2(D.pauli_villars.apply(phi)).sum() == pytest.approx(heavy, rel=1e-11)


def test_a_point_source_on_the_known_configuration_takes_287_iterations():
    D = known_operator(1, 0)
    b = D.source(point(D.lattice))
    found = cg(D.normal, D.adjoint(b), rtol=1e-10)
    assert found.iterations == 287
    assert np.sum(norm2((D.apply(found.x) - b).field())) < 1e-16 * np.sum(norm2(b))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "known", "iterations"),
    [
        ("Shamir", (0.435230975, 0.246717302, 0.047802142), 287),
        ("Moebius", (0.432913772, 0.248375440, 0.046426194), 311),
    ],
)
def test_correlators_on_the_known_configuration(name, known, iterations):
    D = known_operator(*COEFFICIENTS[name])
    E = D.even_odd(form="symmetric")
    total, counts = np.zeros(8), []

    def whole(b):
        found = cg(D.normal, D.adjoint(b), rtol=1e-10)
        counts.append(found.iterations)
        return found.x

    def half(b):
        return E.reconstruct(cg(E.normal, E.adjoint(E.prepare(b)), rtol=1e-11).x, b)

    for spin, colour in itertools.product(range(4), range(3)):
        q = D.quark(point(D.lattice, spin, colour), whole if spin == 0 else half)
        total += (abs(q[...]) ** 2).sum(axis=(0, 1, 2, 4, 5))
    assert total[[0, 1, 4]] == pytest.approx(known, abs=1e-9)
    assert iterations in counts  # of colours 0, 1, 2: 287, 293, 290 and 310, 311, 312


@pytest.mark.lanes
@pytest.mark.short(3)
@pytest.mark.parametrize("name", COEFFICIENTS)
@pytest.mark.parametrize(("extents", "n", "Ls"), [((4, 2, 3, 4), 2, 3), ((2, 2, 2, 6), 1, 2)], ids=str)
def test_operator_agrees_with_numpy(extents, n, Ls, name):
    lattice, (b, c) = Lattice(*extents), COEFFICIENTS[name]
    conditions = ["periodic", "open", "periodic", "antiperiodic"]
    U = random_links(lattice, n, 1)
    psi = random_walls(lattice, n, Ls, 2, boundary=conditions)
    links = [GaugeField(lattice, SU(n), boundary={1: "open"}).fields[mu] for mu in range(4)]
    for field, values in zip(links, U, strict=True):
        field[...] = values[...]
    D = DomainWallDirac(links, 0.2, 1.4, Ls=Ls, b=b, c=c)
    expected = domain_wall_numpy([u[...] for u in U], psi[...], 0.2, 1.4, b, c, conditions)
    assert np.allclose(D.apply(psi)[...], expected, rtol=1e-13, atol=1e-13)
    assert np.allclose((D.diagonal(psi) + D.hop(psi)).field()[...], expected, rtol=1e-13, atol=1e-13)


@pytest.fixture(params=["Shamir", "Moebius"])
def setting(request):
    """D and two spinors, on a lattice whose parts are uneven."""
    lattice = Lattice(4, 2, 2, 6)
    b, c = COEFFICIENTS[request.param]
    D = DomainWallDirac(random_links(lattice, 1, 3), 0.2, 1.3, Ls=3, b=b, c=c)
    return D, *(random_walls(lattice, 1, 3, k, boundary=TIME) for k in (4, 5))


def whole(x, y):
    return np.sum(inner(x, y))


def test_adjoints_move_to_the_other_side_of_the_inner_product(setting):
    D, psi, chi = setting
    for forward, adjoint in (
        (D.apply, D.adjoint),
        (D.hop, lambda x: D.hop(x, dagger=True)),
        (D.diagonal, lambda x: D.diagonal(x, dagger=True)),
        (D.diagonal_inverse, lambda x: D.diagonal_inverse(x, dagger=True)),
    ):
        assert whole(chi, forward(psi)) == pytest.approx(whole(adjoint(chi), psi), rel=1e-12)
    normal, number = D.normal_inner(psi)
    assert number == whole(psi, normal).real == pytest.approx(np.sum(norm2(D.apply(psi))), rel=1e-12)
    assert float(D.normal_inner(psi, wait=False)[1]) == number


def test_half_fields_have_the_bits_of_whole_ones(setting):
    D, psi, _ = setting
    for dagger, over in itertools.product((False, True), (EVEN, ODD)):
        part = psi.on(over)
        for act, to in ((D.hop, over.opposite), (D.diagonal, over), (D.diagonal_inverse, over)):
            found = act(part, dagger=dagger)
            assert found.over is to
            assert found.batch == D.Ls
            assert np.array_equal(found[...], act(psi, dagger=dagger).on(to)[...])


def test_even_odd_forms_have_the_solution_of_the_whole(setting):
    D, b, other = setting
    x = cg(D.normal, D.adjoint(b), rtol=1e-13).x
    for over, form in ((ODD, "asymmetric"), (EVEN, "symmetric")):
        E = D.even_odd(over, form)
        found = cg(E.normal, E.adjoint(E.prepare(b)), rtol=1e-13)
        assert np.allclose(E.reconstruct(found.x, b)[...], x[...], rtol=0, atol=1e-10)
        p, q = b.on(over), other.on(over)
        assert whole(q, E.apply(p)) == pytest.approx(whole(E.adjoint(q), p), rel=1e-12)
        normal, number = E.normal_inner(p)
        assert number == whole(p, normal).real == pytest.approx(np.sum(norm2(E.apply(p))), rel=1e-12)


def test_gamma5_and_the_reflection_of_slices_give_the_adjoint_of_shamirs_operator():
    lattice = Lattice(4, 2, 2, 6)
    D = DomainWallDirac.shamir(random_links(lattice, 1, 3), 0.2, 1.3, Ls=3)
    psi, g5 = random_walls(lattice, 1, 3, 1, boundary=TIME), gamma5.dense()
    flipped = psi.like()
    flipped[...] = g5 @ psi[...][..., ::-1, :, :]
    expected = g5 @ D.apply(flipped)[...][..., ::-1, :, :]
    assert np.allclose(D.adjoint(psi)[...], expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_the_quark_is_that_of_the_operator_with_the_sign_function(name):
    """D4 = (1 + m) / 2 + (1 - m) / 2 gamma_5 epsilon, det D(m) / det D(1) = det D4, and q = (D4^-1 - 1) eta / (1 - m)."""
    b, c = COEFFICIENTS[name]
    lattice, m, M5, Ls = Lattice(2, 2, 2, 2), 0.3, 1.4, 4
    U = random_links(lattice, 1, 1)
    D = DomainWallDirac(U, m, M5, Ls=Ls, b=b, c=c)
    eta = Field(lattice, Spinor(1), boundary=TIME)
    rng = np.random.default_rng(1)
    eta[...] = rng.normal(size=eta.shape) + 1j * rng.normal(size=eta.shape)
    walls = D.source(eta)
    links, conditions = [u[...] for u in U], ["periodic", "periodic", "periodic", "antiperiodic"]
    wilson = matrix_of(lambda psi: wilson_numpy(links, psi, -M5, conditions), eta.shape)
    one = np.eye(64)

    def dense(mass):
        """Of numbers in the order slice, site, spin."""
        joined = matrix_of(
            lambda v: np.moveaxis(joined_numpy(np.moveaxis(v, 0, -3), mass), -3, 0), (Ls, *eta.shape)
        )
        slices = np.eye(Ls)
        return np.kron(slices, one + b * wilson) - np.kron(slices, one - c * wilson) @ joined

    five, heavy = dense(m), dense(1.0)
    for operator, matrix in ((D, five), (D.pauli_villars, heavy)):
        found = np.moveaxis(operator.apply(walls)[...], -3, 0).ravel()
        assert np.allclose(found, matrix @ np.moveaxis(walls[...], -3, 0).ravel(), rtol=1e-13, atol=1e-13)
    g5 = np.kron(np.eye(16), gamma5.dense())
    H = g5 @ ((b + c) * wilson) @ np.linalg.inv(2 * one + (b - c) * wilson)
    plus, minus = (np.linalg.matrix_power(one + sign * H, Ls) for sign in (1, -1))
    four = (1 + m) / 2 * one + (1 - m) / 2 * g5 @ (plus - minus) @ np.linalg.inv(plus + minus)
    (s5, log5), (s1, log1), (s4, log4) = map(np.linalg.slogdet, (five, heavy, four))
    assert s5 / s1 * np.exp(log5 - log1 - log4) == pytest.approx(s4, rel=1e-12)
    q = D.quark(eta, lambda rhs: cg(D.normal, D.adjoint(rhs), rtol=1e-13).x)
    expected = (np.linalg.solve(four, eta[...].ravel()) - eta[...].ravel()) / (1 - m)
    assert np.allclose(q[...].ravel(), expected, rtol=0, atol=1e-10)
    out = q.like()
    assert D.physical(walls, out) is out
    assert D.source(eta, walls.like()).batch == Ls


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_plane_waves_on_unit_links_have_the_exact_symbol(name):
    """D_W exp(ipx) = [-M5 + sum (1 - cos p) + i sum gamma sin p] exp(ipx), in each of the matrices of slices."""
    (b, c), lattice, mass, M5, Ls = COEFFICIENTS[name], Lattice(4, 6, 2, 8), 0.25, 1.7, 5
    momenta = 2 * np.pi * np.array([1 / 4, 2 / 6, 0 / 2, (3 + 0.5) / 8])
    wave = np.exp(1j * np.tensordot(momenta, np.indices(lattice.extents), axes=1))[..., None, None, None]
    rng = np.random.default_rng(1)
    spins = rng.normal(size=(Ls, 4, 1)) + 1j * rng.normal(size=(Ls, 4, 1))
    psi = Field(lattice, Spinor(1), batch=Ls, boundary=TIME)
    psi[...] = wave * spins
    wilson = (-M5 + np.sum(1 - np.cos(momenta))) * np.eye(4)
    wilson = wilson + 1j * sum(g.dense() * np.sin(p) for g, p in zip(gamma, momenta, strict=True))
    joined = joined_numpy(spins, mass)
    expected = wave * (spins + b * wilson @ spins - joined + c * wilson @ joined)
    got = DomainWallDirac(unit_links(lattice, 1), mass, M5, Ls=Ls, b=b, c=c).apply(psi)[...]
    assert np.allclose(got, expected, rtol=1e-13, atol=1e-13)


def test_gauge_transformed_operator_is_the_transform_of_the_operator(setting):
    D, psi, _ = setting
    lattice = D.lattice
    g = random_links(Lattice(*lattice.extents), 1, 9)[0][...]
    moved = []
    for mu, U in enumerate(D.links):
        field = Field(lattice, SU(1))
        field[...] = g @ U[...] @ np.roll(g, -1, mu).conj().swapaxes(-1, -2)
        moved.append(field)

    def rotated(values):
        return np.einsum("...ij,...usj->...usi", g, values)

    there = psi.like()
    there[...] = rotated(psi[...])
    got = DomainWallDirac(moved, D.mass, D.M5, Ls=D.Ls, b=D.b, c=D.c).apply(there)[...]
    assert np.allclose(got, rotated(D.apply(psi)[...]), rtol=1e-12, atol=1e-12)


@pytest.mark.lanes
def test_operator_and_solves_are_bit_identical_on_any_number_of_ranks():
    def run():
        lattice = Lattice(4, 2, 2, 6)
        D = DomainWallDirac.moebius(random_links(lattice, 1, 1), 0.1, 1.5, Ls=3)
        psi = random_walls(lattice, 1, 3, 2, boundary=TIME)
        E = D.even_odd()
        found = cg(E.normal, E.adjoint(E.prepare(psi)), rtol=1e-3)
        return D.normal(psi)[...], D.normal_inner(psi)[1], found.x[...], found.history

    one, size, x, history = run()
    for ranks in (2, 3, 4):
        for values, number, solution, residuals in jali.virtual_ranks(ranks, run):
            assert np.array_equal(values, one)
            assert np.array_equal(solution, x)
            assert (number, residuals) == (size, history)


@pytest.mark.parametrize(
    ("mass", "M5", "b", "c"),
    [(0.1, 1.8, 1, 0), (0.1, 1.8, 1.5, 0.5), (0.3, 5.5, 0.5, 0.5), (0.3, 6.0, 0.5, 0.25), (-0.4, 1.0, 1, -1)],
)
def test_inverse_times_diagonal_is_one(mass, M5, b, c):
    """Also where Lambda outweighs 1, and where the factor of 1 is zero."""
    lattice, Ls = Lattice(2, 2, 2, 2), 5
    D = DomainWallDirac(unit_links(lattice, 1), mass, M5, Ls=Ls, b=b, c=c)
    psi = random_walls(lattice, 1, Ls, 1)
    for dagger in (False, True):
        for first, second in ((D.diagonal, D.diagonal_inverse), (D.diagonal_inverse, D.diagonal)):
            assert np.allclose(second(first(psi, dagger=dagger), dagger=dagger)[...], psi[...], atol=1e-13)
    one, joined = np.eye(Ls), np.diag(np.ones(Ls - 1), -1)
    joined[0, -1] = -mass
    plus, minus = 1 + b * (4 - M5), 1 - c * (4 - M5)
    expected = np.linalg.inv(plus * one - minus * joined)
    got = D.diagonal_inverse(psi)[...]
    assert np.allclose(got[..., UP, :], np.einsum("st,...tij->...sij", expected, psi[..., UP, :]))
    assert np.allclose(got[..., DOWN, :], np.einsum("ts,...tij->...sij", expected, psi[..., DOWN, :]))


def test_numbers_may_change_without_compiling_again():
    lattice = Lattice(2, 2, 2, 2)
    D = DomainWallDirac.moebius(random_links(lattice, 1, 1), 0.1, 1.5, Ls=3)
    psi = random_walls(lattice, 1, 3, 1)
    D.diagonal_inverse(D.apply(psi))
    made = COUNTS["traced"].made
    D.mass, D.M5, D.b, D.c = 0.4, 1.2, 2.0, 1.0
    other = DomainWallDirac(D.links, 0.4, 1.2, Ls=3, b=2.0, c=1.0)
    found = D.diagonal_inverse(D.apply(psi))
    assert COUNTS["traced"].made == made
    assert np.array_equal(found[...], other.diagonal_inverse(other.apply(psi))[...])


def test_all_members_are_one_vector_for_conjugate_gradients():
    """Graphs give the same bits; a function that hides the operator solves for members one by one, and fails."""
    lattice = Lattice(2, 2, 2, 2)
    D = DomainWallDirac.shamir(random_links(lattice, 1, 1), 0.1, 1.5, Ls=3)
    b = random_walls(lattice, 1, 3, 1)
    found = cg(D.normal, D.adjoint(b), rtol=1e-11)
    assert np.allclose(D.apply(found.x)[...], b[...], atol=1e-8)
    again = cg(D.normal, D.adjoint(b), rtol=1e-11, check_interval=4)
    assert (found.history, found.residual) == (again.history, again.residual)

    def apply(values):
        psi = b.like()
        psi[...] = values
        return D.apply(psi)[...]

    A = matrix_of(apply, b.shape)
    p = r = A.conj().T @ b[...].ravel()
    A, residuals = A.conj().T @ A, [1.0]
    start = np.vdot(r, r).real
    for _ in range(8):
        Ap, rr = A @ p, np.vdot(r, r).real
        r = r - rr / np.vdot(p, Ap).real * Ap
        p = r + np.vdot(r, r).real / rr * p
        residuals.append(np.sqrt(np.vdot(r, r).real / start))
    assert found.history[:9] == pytest.approx(residuals, rel=1e-8)
    for operator in (D, D.dagger):
        with pytest.raises(SolverError, match="^cg: p.dagger A p = .* the operator is not Hermitian"):
            cg(operator, b)
    with pytest.raises(SolverError):
        cg(lambda x, y: D.normal(x, y), D.adjoint(b), maxiter=100)
    b[0, 0, 0, 0, 0, 0, 0] = np.inf
    with pytest.raises(SolverError, match="cg: b has infinities or nan"):
        cg(D.normal, b)


def test_mistakes_are_reported():
    lattice = Lattice(2, 2, 2, 2)
    U = random_links(lattice, 2, 1)
    D = DomainWallDirac.shamir(U, 0.1, 1.8, Ls=4)
    single, other = Field(lattice, Spinor(2)), Field(lattice, Spinor(2), batch=3)
    walls = Field(lattice, Spinor(2), batch=4)
    for act, match in (
        (lambda: D.apply(single), "acts on fields with batch=4, one member for each slice.*has no batch"),
        (lambda: D.normal(other), "batch=4, .* has a batch of 3"),
        (lambda: D.hop(walls.on(EVEN), walls.like(over=EVEN)), "a hop leads from EVEN sites to ODD ones"),
        (lambda: D.even_odd().apply(other.on(ODD)), "batch=4, .* has a batch of 3"),
        (lambda: D.apply(Field(lattice, Spinor(3), batch=4)), r"acts on fields of Spinor\(2\)"),
        (lambda: D.source(walls), "a spinor of four dimensions has no batch, and .* one of 4"),
        (lambda: D.source(single.on(EVEN)), "a spinor of four dimensions has all sites"),
        (lambda: D.source(single, other), "its batch is 4, and that of .* is 3"),
        (lambda: D.physical(single), "batch=4"),
        (lambda: D.physical(walls, walls.like()), "its batch is None, and that of .* is 4"),
        (
            lambda: DomainWallDirac(U, 0.0, 5.0, Ls=4).even_odd(),
            r"the diagonal 0 - 1 Lambda of .* has no inverse",
        ),
        (
            lambda: DomainWallDirac(U, -1.0, 4.0, Ls=4).even_odd().apply(walls.on(ODD)),
            r"the diagonal 1 - 1 Lambda of .* has no inverse",
        ),
    ):
        with pytest.raises(LayoutError, match=match):
            act()
    for act, match in (
        (lambda: DomainWallDirac(U, 0.1, 1.8, Ls=1), "a whole number from 2 to 256, not 1"),
        (lambda: DomainWallDirac(U, 0.1, 1.8, Ls=8.0), "a whole number from 2 to 256, not 8.0"),
        (lambda: DomainWallDirac(U, 0.1, -1.8, Ls=4), "M5 is positive, .* has the mass -M5, not -1.8"),
        (lambda: DomainWallDirac(U, "0.1", 1.8, Ls=4), "mass is a finite real number, not '0.1'"),
        (lambda: DomainWallDirac(U, 0.1, np.inf, Ls=4), "M5 is a finite real number, not inf"),
        (lambda: DomainWallDirac(U, 0.1, 1.8, Ls=4, b=1j), "b is a finite real number, not 1j"),
        (lambda: DomainWallDirac(U, 0.1, 1.8, Ls=4, b=0), "b and c are both zero"),
    ):
        with pytest.raises(ParameterError, match=match):
            act()
    assert "Ls 4, mass 0.1, M5 1.8, b 1, c 0" in repr(D)
    assert (DomainWallDirac.moebius(U, 0.1, 1.8, Ls=4).b, D.pauli_villars.mass) == (1.5, 1.0)
