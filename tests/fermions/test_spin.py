"""Gamma matrices: algebra, action on spinors, projection."""

from __future__ import annotations

import enum
import itertools

import numpy as np
import pytest

import jali
from jali import Field, Lattice, Matrix, Spinor, TraceError
from jali.codegen.stage_cache import COUNTS
from jali.fermions import SpinMatrix, gamma, gamma5, project, reconstruct

LATTICE = Lattice(4, 2, 3)


def random_spinor(n, seed, **options):
    field = Field(LATTICE, Spinor(n), **options)
    rng = np.random.default_rng(seed)
    shape = (*LATTICE.extents, 4, n)
    field[...] = rng.normal(size=shape) + 1j * rng.normal(size=shape)
    return field


def test_gamma_matrices_anticommute_and_are_hermitian():
    for mu, nu in itertools.product(range(4), repeat=2):
        anticommutator = gamma[mu] * gamma[nu] + gamma[nu] * gamma[mu]
        assert anticommutator == SpinMatrix(2 * (mu == nu) * np.eye(4))
    assert all(g.dagger() == g for g in (*gamma, gamma5))


def test_gamma5_anticommutes_with_all_and_is_diagonal():
    assert all(gamma5 * g == -(g * gamma5) for g in gamma)
    assert gamma5 == SpinMatrix(np.diag([1, 1, -1, -1]))


def test_documented_matrices_are_those_in_use():
    """The pictures in the module's docstring, read row by row."""
    import jali.fermions.spin as module

    rows = [line.split("[")[1:] for line in module.__doc__.splitlines() if line.count("]") == 4]
    symbols = {".": 0, "1": 1, "-1": -1, "i": 1j, "-i": -1j}
    assert len(rows) == 4
    for mu in range(4):
        dense = [[symbols[s] for s in row[mu].split("]")[0].split()] for row in rows]
        assert np.array_equal(gamma[mu].dense(), dense)


def test_numbers_in_sums_are_multiples_of_the_unit_matrix():
    eye = np.eye(4)
    assert np.array_equal((1 - gamma[0]).dense(), eye - gamma[0].dense())
    assert np.array_equal((gamma[2] + 0.5).dense(), 0.5 * eye + gamma[2].dense())
    assert np.array_equal((gamma[2] - 1j).dense(), gamma[2].dense() - 1j * eye)
    assert np.array_equal((2j * gamma[1] * gamma[3]).dense(), 2j * gamma[1].dense() @ gamma[3].dense())
    assert np.array_equal((gamma[1] * np.float64(3)).dense(), 3 * gamma[1].dense())


def test_spin_matrix_is_four_by_four():
    with pytest.raises(jali.ParameterError, match="4 x 4"):
        SpinMatrix(np.eye(3))


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_spin_matrix_acts_on_the_spin_of_every_colour(n):
    psi = random_spinor(n, 1)
    out = Field(LATTICE, Spinor(n))
    sigma = 0.5j * (gamma[0] * gamma[1] - gamma[1] * gamma[0]) + (1 - gamma5) * gamma[3] - 0.25

    @jali.site_function
    def act(X, out, psi):
        out[X] = sigma * psi[X]

    act(out, psi)
    expected = sigma.dense() @ psi[...]
    assert np.allclose(out[...], expected, rtol=1e-14, atol=1e-14)


def test_products_of_gamma_matrices_act_one_after_the_other():
    psi, one, two = random_spinor(3, 2), Field(LATTICE, Spinor(3)), Field(LATTICE, Spinor(3))

    @jali.site_function
    def both(X, one, two, psi):
        one[X] = gamma[1] * (gamma5 * psi[X])
        two[X] = (gamma[1] * gamma5) * psi[X]

    both(one, two, psi)
    assert np.array_equal(one[...], two[...])


def test_gamma_and_projection_cost_no_multiplication():
    psi, out, half = Field(LATTICE, Spinor(3)), Field(LATTICE, Spinor(3)), Field(LATTICE, Matrix(3, 2))

    @jali.site_function
    def act(X, out, psi):
        out[X] = gamma[1] * psi[X]

    @jali.site_function
    def projected(X, half, psi):
        half[X] = project(psi[X], LATTICE.directions[0], -1)

    assert jali.inspect(act, out, psi).flops == 0
    assert jali.inspect(projected, half, psi).flops == 12


@pytest.mark.short(2)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("mu", range(4))
def test_reconstruction_of_the_projection_is_the_projector(mu, sign):
    psi = random_spinor(3, 3)
    out = Field(LATTICE, Spinor(3))

    @jali.site_function
    def through_half(X, out, psi):
        out[X] = reconstruct(project(psi[X], mu, sign), mu, sign)

    through_half(out, psi)
    expected = (1 + sign * gamma[mu]).dense() @ psi[...]
    assert np.array_equal(out[...], expected)


def test_colour_matrices_commute_with_projection():
    psi, links = random_spinor(3, 4), Field(LATTICE, Matrix(3))
    rng = np.random.default_rng(5)
    links[...] = rng.normal(size=(*LATTICE.extents, 3, 3)) + 1j * rng.normal(size=(*LATTICE.extents, 3, 3))
    out, expected = Field(LATTICE, Spinor(3)), Field(LATTICE, Spinor(3))

    @jali.site_function
    def cheap(X, out, expected, U, psi):
        mu = X.directions()[2]
        out[X] = reconstruct(U[X] * project(psi[X + mu], mu, -1), mu, -1)
        expected[X] = U[X] * ((1 - gamma[mu]) * psi[X + mu])

    cheap(out, expected, links, psi)
    assert np.allclose(out[...], expected[...], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (lambda X, psi: project(psi[X], 0, 2), "the sign of a projector is 1 or -1, not 2"),
        (lambda X, psi: project(psi[X], 4, 1), "gamma matrices for directions 0 to 3, not for 4"),
        (
            lambda X, psi: project(psi[X][:, 0:2], 0, 1),
            r"project takes a matrix of n colours by 4 spins, not complex Matrix\(3, 2\)",
        ),
        (lambda X, psi: reconstruct(psi[X], 0, 1), r"reconstruct takes a matrix of n colours by 2 spins"),
        (lambda X, psi: psi[X] * gamma[0], "a spin matrix acts from the left"),
        (lambda X, psi: psi[X].norm2() * gamma[0], "a spin matrix holds fixed numbers"),
    ],
)
def test_misuse_of_spin_is_a_trace_error(expression, message):
    psi = Field(LATTICE, Spinor(3))

    @jali.site_function
    def f(X, psi):
        psi[X] = expression(X, psi)

    with pytest.raises(TraceError, match=message) as caught:
        f(psi)
    assert f"{__file__}:" in str(caught.value).splitlines()[-1]


@jali.site_function
def apply_matrix(X, out, psi, matrix, factor=1.0):
    out[X] = factor * (matrix * psi[X])


@jali.site_function
def apply_all(X, out, psi, matrices):
    out[X] = sum(matrices[mu] * psi[X + mu] for mu in X.directions())


@pytest.mark.short(1)
@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_a_spin_matrix_is_an_argument(precision):
    psi, n = random_spinor(3, 1, precision=precision), 3
    out = psi.like()
    values = psi[...]
    for matrix in (*gamma, gamma5, 1 - gamma[n], gamma[0] * gamma[1] * 2j):
        apply_matrix(out, psi, matrix)
        assert np.allclose(out[...], matrix.dense() @ values, rtol=1e-5)
        apply_matrix(out, psi, matrix=SpinMatrix(matrix.dense()), factor=0.5)
        assert np.allclose(out[...], 0.5 * (matrix.dense() @ values), rtol=1e-5)


def test_equal_spin_matrices_are_one_kernel_and_others_are_others():
    psi = random_spinor(3, 1)
    out = psi.like()
    apply_matrix(out, psi, gamma[1])
    made = COUNTS["traced"].made
    apply_matrix(out, psi, SpinMatrix(gamma[1].dense()))
    assert COUNTS["traced"].made == made
    assert (
        jali.inspect(apply_matrix, out, psi, gamma5).flops
        < jali.inspect(apply_matrix, out, psi, 1 - gamma[0]).flops
    )


def test_a_list_of_spin_matrices_is_indexed_by_directions():
    psi = random_spinor(2, 3)
    out = psi.like()
    apply_all(out, psi, gamma)
    expected = sum(gamma[mu].dense() @ np.roll(psi[...], -1, mu) for mu in range(3))
    assert np.allclose(out[...], expected)


def test_members_of_enumerations_are_fixed_while_tracing():
    class Boundary(enum.Enum):
        FREE = "free"
        FIXED = "fixed"

    @jali.site_function
    def f(X, out, kind):
        out[X] = 1.0 if kind is Boundary.FREE else 2.0

    out = Field(LATTICE, jali.Real())
    for kind, value in ((Boundary.FREE, 1.0), (Boundary.FIXED, 2.0)):
        f(out, kind)
        assert np.all(out[...] == value)
