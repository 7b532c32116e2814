"""Links of U(1), 1 x 1 matrices, are phases to numbers, vectors and matrices."""

import numpy as np
import pytest
from support import assert_close, random_field

import jali
from jali import SU, Complex, Field, Lattice, Matrix, Real, Vector
from jali.gauge import GaugeField

EXTENTS = (3, 4, 5)
precisions = pytest.mark.parametrize("precision", ["float64", "float32"])


@jali.site_function
def covariant_laplace(X, out, phi, U, mass):
    out[X] = (mass + 2 * X.ndim) * phi[X]
    for mu in X.directions():
        out[X] -= U[mu][X] * phi[X + mu] + phi[X - mu] * U[mu][X - mu].dagger()


@jali.site_function
def hopping(X, phi, U, total):
    for mu in X.directions():
        total += (phi[X].conj() * U[mu][X] * phi[X + mu]).real


def fields(lattice, precision):
    phi = random_field(lattice, Complex(), 1, precision=precision)
    U = GaugeField(lattice, SU(1), precision=precision)
    for k, field in enumerate(U.fields):
        field[...] = random_field(lattice, SU(1), k)[...]
    return phi, U


@precisions
def test_covariant_differences_of_a_complex_field(precision):
    phi, U = fields(Lattice(*EXTENTS), precision)
    out = phi.like()
    covariant_laplace(out, phi, U, 0.5)
    p, u = phi[...], [field[...][..., 0, 0] for field in U.fields]
    expected = 6.5 * p
    hop = 0.0
    for mu in range(3):
        back = np.roll(u[mu], 1, mu).conj() * np.roll(p, 1, mu)
        expected = expected - u[mu] * np.roll(p, -1, mu) - back
        hop += (p.conj() * u[mu] * np.roll(p, -1, mu)).real.sum()
    assert_close(out[...], expected, precision, scale=4)
    assert_close(phi.lattice.sum(hopping, phi, U), hop, precision, scale=60)


@precisions
def test_phases_times_vectors_matrices_and_numbers(precision):
    @jali.site_function
    def f(X, v, m, z, w, u, r):
        v[X] = u[X] * v[X]
        m[X] = m[X] * u[X] + u[X].dagger() * m[X]
        z[X] = u[X] * 0.5 + z[X] - jali.where(r[X] > 0, u[X], z[X])
        w[X] = 2j * u[X].trace() + (r[X] * u[X]).trace() + (z[X] * u[X]).trace() + z[X].dot(u[X])

    lattice = Lattice(*EXTENTS)
    elements = (Vector(3), Matrix(2), Complex(), Complex(), SU(1), Real())
    given = [random_field(lattice, e, k, precision=precision) for k, e in enumerate(elements)]
    v, m, z, w, u, r = (field[...] for field in given)
    f(*given)
    u = u[..., 0, 0]
    Z = 0.5 * u + z - np.where(r > 0, u, z)
    expected = (
        u[..., None] * v,
        m * u[..., None, None] + u.conj()[..., None, None] * m,
        Z,
        2j * u + r * u + Z * u + Z.conj() * u,
    )
    for field, values in zip(given, expected, strict=False):
        assert_close(field[...], values, precision, scale=4)


def test_a_number_is_stored_as_a_link_and_multiples_of_links_stay_matrices():
    @jali.site_function
    def f(X, u, out, angle, z):
        u[X] = jali.exp(jali.complex(0, angle * X.coordinate(0)))
        out[X] = z * (2 * u[X]) + 1j * u[X]

    lattice = Lattice(4, 3)
    u, out = Field(lattice, SU(1)), Field(lattice, Matrix(1))
    f(u, out, 0.5, 2.0 - 1j)
    phase = np.exp(0.5j * np.arange(4))[:, None] * np.ones(3)
    assert np.allclose(u[...][..., 0, 0], phase)
    assert np.allclose(out[...][..., 0, 0], (4 - 1j) * phase)


def test_sums_of_links_are_matrices_and_sums_of_products_are_numbers():
    @jali.site_function
    def f(X, u, phi, links, numbers):
        links += 2 * u[X]
        numbers += u[X] * phi[X]

    lattice = Lattice(3, 3)
    u, phi = random_field(lattice, SU(1), 1), random_field(lattice, Complex(), 2)
    links, numbers = lattice.sum(f, u, phi)
    assert links.shape == (1, 1)
    assert isinstance(numbers, complex)


def test_other_matrices_are_no_numbers():
    @jali.site_function
    def f(X, out, m):
        out[X] = m[X]

    lattice = Lattice(3, 3)
    with pytest.raises(jali.TraceError, match="cannot be stored in out"):
        f(Field(lattice, Complex()), Field(lattice, Matrix(2)))
    with pytest.raises(jali.TraceError, match="cannot be stored in out"):
        f(Field(lattice, Complex()), Field(lattice, Vector(1)))


def test_functions_and_comparisons_take_links_as_numbers():
    lattice = Lattice(5, 3)
    U = GaugeField(lattice, SU(1)).hot_start(1)
    angle, chosen, root = Field(lattice, Real()), Field(lattice, Real()), Field(lattice, Complex())

    @jali.site_function
    def functions(X, U, angle, chosen, root):
        link = U[0][X]
        both = link * U[1][X]
        angle[X] = jali.arg(both) + abs(both)
        chosen[X] = jali.where(link.real > 0, 1.0, jali.atan2(link.imag, link.real))
        root[X] = jali.sqrt(link)

    functions(U, angle, chosen, root)
    u, v = (field[..., 0, 0] for field in U.fields)
    assert np.allclose(angle, np.angle(u * v) + 1)
    assert np.allclose(chosen, np.where(u.real > 0, 1, np.angle(u)))
    assert np.allclose(root, np.sqrt(u))
