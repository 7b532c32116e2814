"""Hermitian matrices: what their fields hold, Cholesky's factor and what follows of it, against NumPy."""

import numpy as np
import pytest

import jali
from jali import (
    Field,
    Hermitian,
    Lattice,
    LayoutError,
    Matrix,
    Real,
    SingularError,
    TraceError,
    Vector,
    virtual_ranks,
)
from jali.codegen.types import element_named

pytestmark = pytest.mark.lanes

EXTENTS = (4, 3, 5)
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23}
SIZES = range(1, 9)
precisions = pytest.mark.parametrize("precision", ["float64", "float32"])


def dagger(a):
    return np.swapaxes(a, -1, -2).conj()


def general(*shape, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def positive(n, extents=EXTENTS, seed=1):
    """Positive definite matrices with condition numbers below 100 or so."""
    a = general(*extents, n, n, seed=seed)
    product = a @ dagger(a) + n * np.eye(
        n
    )  # which a library may round to a matrix that is not quite Hermitian
    return (product + dagger(product)) / 2


def field_of(lattice, element, values, **options):
    field = Field(lattice, element, **options)
    field[...] = values
    return field


@jali.site_function
def all_of_it(X, factor, x, y, inverse, number, h, v, m):
    factor[X] = h[X].cholesky()
    x[X] = h[X].solve(v[X])
    y[X] = h[X].solve(m[X])
    inverse[X] = h[X].inverse()
    number[X] = h[X].log_det()


def fields_for(lattice, n, columns, precision):
    """Results, and behind them the arguments of `all_of_it`."""
    elements = (Matrix(n), Vector(n), Matrix(n, columns), Hermitian(n), Real())
    results = [Field(lattice, element, precision=precision) for element in elements]
    return [
        *results,
        field_of(lattice, Hermitian(n), positive(n, lattice.extents), precision=precision),
        field_of(lattice, Vector(n), general(*lattice.extents, n, seed=2), precision=precision),
        field_of(
            lattice, Matrix(n, columns), general(*lattice.extents, n, columns, seed=3), precision=precision
        ),
    ]


@pytest.mark.short(8)
@precisions
@pytest.mark.parametrize("n", SIZES)
def test_factors_solutions_inverses_and_determinants_are_those_of_numpy(n, precision):
    factor, x, y, inverse, number, h, v, m = fields = fields_for(Lattice(*EXTENTS), n, 1 + n // 2, precision)
    all_of_it(*fields)
    a = h[...].astype(complex)
    scale, error = np.abs(a).max(), 20 * n * EPSILON[precision]
    assert np.abs(factor[...] - np.linalg.cholesky(a)).max() < error * scale
    assert not np.triu(factor[...], 1).any()
    condition = np.linalg.cond(a).max()
    expected = np.linalg.solve(a, v[...].astype(complex)[..., None])[..., 0]
    assert np.abs(x[...] - expected).max() < error * condition * np.abs(expected).max()
    expected = np.linalg.solve(a, m[...].astype(complex))
    assert np.abs(y[...] - expected).max() < error * condition * np.abs(expected).max()
    assert np.abs(inverse[...] - np.linalg.inv(a)).max() < error * condition / np.abs(a).min()
    assert np.array_equal(inverse[...], dagger(inverse[...]))
    assert np.abs(number[...] - np.linalg.slogdet(a)[1]).max() < error * np.log(scale) + error


@precisions
def test_one_kernel_factors_a_matrix_once(precision):
    fields = fields_for(Lattice(*EXTENTS), 4, 2, precision)
    text = jali.inspect(all_of_it, *fields).source
    assert text.count(" cholesky<4>(") == 1
    assert text.count("cholesky_solve<4, 1>(") == text.count("cholesky_solve<4, 2>(") == 1


@precisions
def test_special_matrices(precision):
    """One by one and diagonal ones are exact, the factor of a nearly singular one is good."""
    lattice = Lattice(4, 2)

    @jali.site_function
    def f(X, factor, x, number, h, v):
        factor[X] = h[X].cholesky()
        x[X] = h[X].solve(v[X])
        number[X] = h[X].log_det()

    def found(n, a):
        element = {"precision": precision}
        factor, x, number = (Field(lattice, e, **element) for e in (Matrix(n), Vector(n), Real()))
        f(
            factor,
            x,
            number,
            field_of(lattice, Hermitian(n), a, **element),
            field_of(lattice, Vector(n), 1.0, **element),
        )
        return factor[0, 0], x[0, 0], number[0, 0]

    factor, x, number = found(1, [[4.0]])
    assert factor == 2
    assert x == 0.25
    assert number == pytest.approx(2 * np.log(2), rel=4 * EPSILON[precision])
    factor, x, _ = found(3, np.diag([1.0, 4.0, 16.0]))
    assert np.array_equal(factor, np.diag([1, 2, 4]))
    assert np.array_equal(x, [1, 0.25, 0.0625])
    epsilon = EPSILON[precision]
    nearly = np.array([[1, 1j], [-1j, 1 + 4 * epsilon]])
    factor, _, number = found(2, nearly)
    assert np.allclose(factor, [[1, 0], [-1j, 2 * epsilon**0.5]], rtol=epsilon, atol=0)
    assert number == pytest.approx(np.log(4 * epsilon), rel=4 * epsilon)


def test_a_determinant_beyond_the_range_has_its_logarithm():
    lattice = Lattice(4)
    h = field_of(lattice, Hermitian(8), 1e-30 * np.eye(8), precision="float32")
    assert np.allclose(h.log_det()[...], -240 * np.log(10), rtol=1e-6)
    assert np.array_equal(h.det()[...], np.zeros(4))


def test_only_the_site_that_is_not_positive_is_lost():
    lattice = Lattice(4, 4)
    a = positive(3, lattice.extents)
    a[1, 2] = -a[1, 2]
    h, v = field_of(lattice, Hermitian(3), a), field_of(lattice, Vector(3), general(4, 4, 3))
    x = h.solve(v).field()
    with pytest.raises(SingularError):
        x[...]
    x, bad = x[...], np.zeros((4, 4), bool)  # told once
    bad[1, 2] = True
    assert np.isnan(x[1, 2]).all()
    assert np.isfinite(x[~bad]).all()


@precisions
def test_the_solution_for_the_unit_matrix_is_the_inverse(precision):
    @jali.site_function
    def f(X, out, h):
        out[X] = h[X].solve(jali.identity(4)).hermitian()

    lattice = Lattice(*EXTENTS)
    h = field_of(lattice, Hermitian(4), positive(4), precision=precision)
    out = h.like()
    f(out, h)
    assert np.abs(out[...] @ h[...] - np.eye(4)).max() < 1000 * EPSILON[precision]


@precisions
def test_real_symmetric_matrices_have_real_factors(precision):
    lattice = Lattice(4, 3)
    a = positive(3, lattice.extents).real
    m = field_of(lattice, Matrix(3, kind="real"), a, precision=precision)
    v = field_of(lattice, Vector(3, kind="real"), 1.0, precision=precision)
    symmetric = m.hermitian()
    close = {"rtol": 100 * EPSILON[precision], "atol": 100 * EPSILON[precision]}
    assert np.allclose(symmetric.cholesky()[...], np.linalg.cholesky(a), **close)
    x = symmetric.solve(v).field()
    assert x.element == Vector(3, kind="real")
    assert np.allclose(x[...], np.linalg.solve(a, np.ones((4, 3, 3, 1)))[..., 0], **close)


@precisions
def test_what_is_known_to_be_hermitian_is_accepted_and_is_so_to_the_last_bit(precision):
    @jali.site_function
    def f(X, out, h, g, m, a):
        unit = jali.identity(3)
        value = 2 * h[X] - g[X] / 3 + a[X] * unit + h[X].inverse() + (m[X].dagger() * h[X] * m[X]).hermitian()
        value = (
            jali.where(a[X] > 0, value, -g[X].dagger())
            + h[X].conj()
            + h[X].transpose()
            + jali.zero(Matrix(3))
        )
        out[X] = value
        out[X] += unit
        out[X] *= 0.5

    lattice = Lattice(*EXTENTS)
    options = {"precision": precision}
    H, G, M, A = positive(3), positive(3, seed=2), general(*EXTENTS, 3, 3, seed=3), general(*EXTENTS).real
    h, g = (field_of(lattice, Hermitian(3), x, **options) for x in (H, G))
    m, a = field_of(lattice, Matrix(3), M, **options), field_of(lattice, Real(), A, **options)
    out = Field(lattice, Hermitian(3), **options)
    f(out, h, g, m, a)
    expected = 2 * H - G / 3 + A[..., None, None] * np.eye(3) + np.linalg.inv(H) + dagger(M) @ H @ M
    expected = (np.where((A > 0)[..., None, None], expected, -G) + 2 * H.conj() + np.eye(3)) / 2
    assert np.abs(out[...] - expected).max() < 100 * EPSILON[precision] * np.abs(expected).max()
    assert np.array_equal(out[...], dagger(out[...]))


def test_numbers_are_elements_of_order_one_where_they_are_real():
    @jali.site_function
    def f(X, h, a):
        h[X] = a[X]

    lattice = Lattice(4)
    h = Field(lattice, Hermitian(1))
    f(h, field_of(lattice, Real(), [1.0, 2, 3, 4]))
    assert np.array_equal(h[:, 0, 0], [1, 2, 3, 4])
    with pytest.raises(TraceError, match="hermitian"):
        f(h, Field(lattice, jali.Complex()))


def test_whole_fields_keep_the_element():
    lattice = Lattice(4, 3)
    h = field_of(lattice, Hermitian(2), positive(2, lattice.extents))
    m = field_of(lattice, Matrix(2), general(4, 3, 2, 2))
    for kept in (
        2 * h,
        h - h / 2,
        h.inverse(),
        m.hermitian(),
        h + (m * h).hermitian(),
        h.dagger(),
        h.inverse().conj(),
    ):
        assert kept.field().element == Hermitian(2), kept
    for other in (h * h, 1j * h, m + h, m.inverse(), h.cholesky()):
        assert other.field().element == Matrix(2), other
    assert repr(h.solve(m)).startswith("<f0.solve(f1), of fields")
    with pytest.raises(TraceError, match=r"f0 holds Hermitian\(2\)|holds Hermitian\(2\)"):
        h[...] = h * h


def test_arrays_that_are_not_hermitian_are_refused():
    lattice = Lattice(4, 3)
    h = Field(lattice, Hermitian(2), name="h")
    a = positive(2, lattice.extents)
    a[1, 1, 0, 1] += 0.5
    with pytest.raises(
        LayoutError, match=r"Hermitian\(2\) holds Hermitian matrices; 1 of those given differ.*0.5"
    ):
        h[...] = a
    with pytest.raises(LayoutError, match="12 of those|1 of those"):
        h[...] = 1j
    with pytest.raises(LayoutError, match="set whole elements, not components"):
        h[0, 0, 0, 1] = 1.0
    h[0, 0] = [[1, 2j], [-2j, 3]]
    h[1, :] = np.eye(2)
    assert np.array_equal(h[0, 0], [[1, 2j], [-2j, 3]])
    assert np.array_equal(h[1, 2], np.eye(2))
    with pytest.raises(LayoutError, match="Hermitian.* cannot carry the complex phase"):
        Field(lattice, Hermitian(2), boundary=1j)


def test_the_element_is_found_by_its_name_and_stores_independent_reals():
    element = Hermitian(6)
    assert element_named("Hermitian(6)") == element
    assert element.stored_reals == 36
    with pytest.raises(LayoutError, match="Hermitian needs positive whole numbers"):
        Hermitian(0)
    a = positive(6)
    reals = element.to_reals(a, "float64")
    assert reals.shape == (*EXTENTS, 36)
    assert np.array_equal(
        element.from_reals(reals),
        (np.triu(a) + dagger(np.triu(a, 1))).real
        + 1j * (np.triu(a, 1) - np.triu(a, 1).swapaxes(-1, -2)).imag,
    )


@pytest.mark.parametrize(
    ("storage", "bytes_of_site", "error"),
    [
        ("float64", 72, 0),
        ("float32", 36, 2**-24),
        ("float16", 18, 2**-11),
        ("bfloat16", 18, 2**-8),
        ("fixed16", 22, 1 / 65534),
    ],
)
def test_storage_formats_keep_the_independent_reals(storage, bytes_of_site, error):
    lattice = Lattice(*EXTENTS)
    a = positive(3)
    h = field_of(lattice, Hermitian(3), a, storage=storage)
    assert h.stored.site_bytes == bytes_of_site
    found = h[...]
    assert np.array_equal(found, dagger(found))
    largest = np.abs(a).max(axis=(-2, -1))  # of each site, which fixed point is relative to
    assert (np.abs(found - a).max(axis=(-2, -1)) <= 1.5 * error * largest).all()
    again = Field(lattice, Hermitian(3), storage=storage)
    again[...] = h
    assert again[...].tobytes() == found.tobytes()


@pytest.mark.parametrize("storage", ["float64", "fixed16"])
def test_bits_on_ranks_are_those_on_one(storage):
    @jali.site_function
    def f(X, out, number, h, v):
        total = jali.zero(Hermitian(6))
        for mu in X.directions():
            total += h[X + mu] + h[X - mu]
        out[X] = total.solve(v[X]) + h[X].inverse() * v[X + X.directions()[0]]
        number[X] = total.log_det()

    def run():
        lattice = Lattice(4, 4, 2)
        h = field_of(lattice, Hermitian(6), positive(6, (4, 4, 2)), storage=storage, boundary={1: "periodic"})
        v = field_of(lattice, Vector(6), general(4, 4, 2, 6))
        out, number = Field(lattice, Vector(6)), Field(lattice, Real())
        f(out, number, h, v)
        return out[...].tobytes() + number[...].tobytes()

    assert virtual_ranks(2, run) == [run()] * 2
