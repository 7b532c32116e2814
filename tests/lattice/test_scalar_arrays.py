"""Arrays of numbers that stay where they are made: elements have the bits of Scalars, shapes are NumPy's, factors are as accurate as theory
says, and graphs repeat all of it."""

from __future__ import annotations

import itertools
import operator
import re

import numpy as np
import pytest

import jali
from jali import Complex, Field, Hermitian, Lattice, Matrix, Real, Vector
from jali.errors import LayoutError, ParameterError, RecordingError, ShapeError, TraceError

LATTICE = Lattice(4)
EPS = np.finfo(np.float64).eps
KINDS = ["real", "complex"]
ORDERS = [1, 2, 3, 5, 8, 13, 16]


def values(shape, kind="real", seed=1):
    rng = np.random.default_rng(seed)
    found = rng.normal(size=shape)
    return found if kind == "real" else found + 1j * rng.normal(size=shape)


def hermitian(n, kind, seed=1, condition=100.0):
    """One that is positive definite, with eigenvalues from 1 to `condition`."""
    q = np.linalg.qr(values((n, n), kind, seed))[0]
    found = (q * np.geomspace(1.0, condition, n)) @ q.conj().T
    return (found + found.conj().T) / 2


def exactly(a):
    return np.asarray(a, np.clongdouble)


def size(a):
    return float(np.linalg.norm(np.asarray(a, complex)))


def same_bits(a, b):
    assert a.dtype == b.dtype
    assert a.shape == b.shape
    return np.array_equal(a.view(np.uint64), b.view(np.uint64))


# ---- elements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [operator.add, operator.sub, operator.mul, operator.truediv])
def test_elements_have_the_bits_of_scalars(op):
    for one, other in itertools.product(KINDS, KINDS):
        x, y = values(7, one, 1), values(7, other, 2)
        found = op(LATTICE.scalars(x), LATTICE.scalars(y)).read()
        expected = np.array(
            jali.read(
                *(
                    op(LATTICE.scalar(a), LATTICE.scalar(b))
                    for a, b in zip(x.tolist(), y.tolist(), strict=True)
                )
            )
        )
        assert same_bits(found, expected)


def test_functions_are_those_of_scalars():
    x, z = values(6), values(6, "complex")
    functions = [
        jali.exp,
        jali.sin,
        jali.tanh,
        jali.floor,
        jali.sign,
        jali.sqrt,
        abs,
        lambda s: s**3,
        lambda s: -s,
    ]
    for f, given in [(f, x) for f in functions] + [
        (f, z) for f in (jali.exp, jali.log, jali.sqrt, abs, jali.arg)
    ]:
        expected = np.array(jali.read(*(f(LATTICE.scalar(v)) for v in given.tolist())))
        assert np.array_equal(f(LATTICE.scalars(given)).read(), expected, equal_nan=True)
    two = jali.atan2(LATTICE.scalars(x), LATTICE.scalar(0.5)).read()
    assert two.tolist() == [float(jali.atan2(LATTICE.scalar(v), 0.5)) for v in x.tolist()]
    assert jali.power(2.0, LATTICE.scalars(x)).read().tolist() == [
        float(jali.power(2.0, LATTICE.scalar(v))) for v in x.tolist()
    ]
    assert np.array_equal(jali.complex(LATTICE.scalars(x), 1).read(), x + 1j)
    assert np.array_equal(LATTICE.scalars(abs(x)).sqrt().read(), np.sqrt(abs(x)))


def test_shapes_are_broadcast_as_numpy_does():
    m, row, column = values((3, 4)), values(4, seed=2), values((3, 1), seed=3)
    a, b, c, s = LATTICE.scalars(m), LATTICE.scalars(row), LATTICE.scalars(column), LATTICE.scalar(0.25)
    assert np.array_equal((a + b).read(), m + row)
    assert np.array_equal((a * c).read(), m * column)
    assert np.array_equal((b - c).read(), row - column)
    assert np.array_equal((s * a).read(), 0.25 * m)
    assert np.array_equal((a * s).read(), 0.25 * m)
    assert np.array_equal((1 - a).read(), 1 - m)
    assert np.array_equal((np.float64(2) / a).read(), 2 / m)
    assert np.array_equal((a + 1j).read(), m + 1j)


def test_conditions_are_arrays_too():
    m, row = values((3, 4)), values(4, seed=2)
    a, b = LATTICE.scalars(m), LATTICE.scalars(row)
    for op in (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne):
        assert np.array_equal(op(a, b).read(), op(m, row))
        assert np.array_equal(op(0.5, a).read(), op(0.5, m))
        assert np.array_equal(op(LATTICE.scalar(0.5), a).read(), op(0.5, m))
    positive, small = a > 0, abs(a) < 1
    assert positive.dtype == bool
    assert np.array_equal((positive & ~small | (b > a)).read(), (m > 0) & ~(abs(m) < 1) | (row > m))
    assert np.array_equal(jali.where(positive, a, b).read(), np.where(m > 0, m, row))
    assert np.array_equal(jali.where(LATTICE.scalar(1.0) < 2, a, 1j).read(), m.astype(complex))
    assert np.array_equal(positive.where(1, b).read(), np.where(m > 0, 1, row))
    assert [bool(positive.all()), bool(positive.any()), bool((a == a).all()), bool((a != a).any())] == [
        False,
        True,
        True,
        False,
    ]
    assert float(positive.sum()) == (m > 0).sum()
    assert isinstance(positive[0, 0], jali.Condition)
    assert bool(positive[0, 0]) == (m[0, 0] > 0)


def test_parts_are_those_of_numpy():
    m = values((5, 4), "complex")
    a = LATTICE.scalars(m)
    for index in (
        0,
        -1,
        slice(1, 4),
        slice(None, None, -2),
        (slice(None), 2),
        (slice(3, 0, -1), slice(1, None, 2)),
        (2, slice(1, 3)),
    ):
        assert np.array_equal(a[index].read(), m[index])
        assert np.array_equal((a[index] * 2).read(), m[index] * 2)
    assert complex(a[3, -2]) == m[3, -2]
    assert np.array_equal(a.T.read(), m.T)
    assert np.array_equal(a.T[1:, ::-1].real.read(), m.T[1:, ::-1].real)
    assert np.array_equal(a.imag.T.read(), m.imag.T)
    assert np.array_equal(a.conj().read(), m.conj())
    assert np.array_equal(a.dagger().read(), m.conj().T)
    assert np.array_equal(a.diagonal().read(), np.diagonal(m))
    assert np.array_equal(a.real.imag.read(), np.zeros((5, 4)))
    assert [row.shape for row in a] == [(4,)] * 5
    assert (a.shape, a.ndim, a.size, len(a), a.kind, a.dtype) == ((5, 4), 2, 20, 5, "complex", np.complex128)
    assert np.array_equal(np.asarray(a), m)
    assert re.fullmatch("<array of 5 x 4 complex numbers on (the host|cuda:0)>", repr(a))
    assert np.array_equal(jali.read(a[0], a[0, 0], 2)[0], m[0])


def test_elements_are_scalars_for_site_functions_and_stacked_again():
    v = values(3)
    a = LATTICE.scalars(v)
    f = Field(LATTICE, Real())

    @jali.site_function
    def fill(X, f, s):
        f[X] = s

    fill(f, (a * 2)[1])
    assert f[0] == 2 * v[1]
    assert np.array_equal(jali.stack([a[2], a[0], a[0], 1.5]).read(), [v[2], v[0], v[0], 1.5])
    assert np.array_equal(jali.stack([a[0], 1j]).read(), [v[0], 1j])
    assert np.array_equal(jali.stack([a, 1j * a]).read(), [v, 1j * v])
    assert np.array_equal(jali.stack([a, a + 1], axis=1).read(), np.stack([v, v + 1], axis=1))
    many = [a[0] + k for k in range(40)]
    assert np.array_equal(jali.stack(many).read(), v[0] + np.arange(40))


@jali.site_function
def transform(X, out, f, m, v, s):
    out[X] = m @ f[X] + s * v


def test_arrays_are_matrices_and_vectors_in_site_functions():
    lattice = Lattice(3)
    for kind in KINDS:
        f, out = Field(lattice, Vector(3)), Field(lattice, Vector(2))
        f[...] = values((3, 3), "complex")
        m, v = values((3, 4), kind, 2), values(2, kind, 3)
        a, b = lattice.scalars(m).T[1:3], lattice.scalars(v)
        transform(out, f, a, b, a[0, 0])
        found = out[...]
        transform(out, f, np.ascontiguousarray(m.T[1:3]), v, m.T[1, 0].item())
        assert np.array_equal(found, out[...])
    small = lattice.scalars(np.ones((17, 16)))
    for wrong, message in ((small, "up to 256 numbers; pass a part"), (small > 1, r"pass jali\.where")):
        with pytest.raises(TraceError, match=message):
            transform(out, f, wrong, b, 1.0)


def test_sums_are_added_in_order():
    m = values((5, 7), "complex")
    a = LATTICE.scalars(m)
    assert complex(a.sum()) == sum(m.reshape(-1).tolist())
    for axis in (0, 1, -1):
        expected = [sum(row) for row in (m if axis % 2 else m.T).tolist()]
        assert a.sum(axis).read().tolist() == expected
    assert complex(a[1].sum(0)) == sum(m[1].tolist())
    assert complex(a[:5, :5].trace()) == sum(np.diagonal(m).tolist())


def test_a_function_of_several_operations_is_one_kernel():
    v, w = values(4), values(4, seed=2)
    a, b = LATTICE.scalars(v), LATTICE.scalars(w)

    def step(x, y, s):
        return jali.where(x < y, x * y - s, 0)

    assert np.array_equal(
        a.elementwise(step, a, b, LATTICE.scalar(2.0)).read(), np.where(v < w, v * w - 2, 0)
    )


@jali.site_function
def two_sums(X, f, z, first, second):
    first += f[X]
    second += z[X] * f[X]


def test_sums_per_slice_that_stay_are_arrays_with_the_bits_of_those_that_are_waited_for():
    lattice = Lattice(4, 6, 2)
    f, z = Field(lattice, Real()), Field(lattice, Complex())
    f[...], z[...] = values((4, 6, 2)), values((4, 6, 2), "complex", 2)
    for per in (0, 1, (1, 0), (0, 2)):
        for one, other in zip(
            lattice.sum(two_sums, f, z, per=per, wait=False),
            lattice.sum(two_sums, f, z, per=per),
            strict=True,
        ):
            assert same_bits(one.read(), other)


@jali.site_function
def gram(X, a, b, matrix, vector, number):
    matrix += a[X].outer(b[X])
    vector += b[X]
    number += a[X].norm2()


@pytest.mark.parametrize("kind", KINDS)
def test_sums_of_vectors_and_matrices_stay_as_arrays(kind):
    lattice = Lattice(4, 6)
    a, b = Field(lattice, Vector(3, kind=kind)), Field(lattice, Vector(2, kind=kind))
    a[...], b[...] = values((4, 6, 3), kind), values((4, 6, 2), kind, 2)
    waited = lattice.sum(gram, a, b)
    matrix, vector, number = lattice.sum(gram, a, b, wait=False)
    assert same_bits(matrix.read(), waited[0])
    assert same_bits(vector.read(), waited[1])
    assert float(number) == waited[2]
    graph = jali.graph(lambda: lattice.sum(gram, a, b, wait=False), lattice)
    graph.run(2)
    for one, other in zip(graph.read(), waited, strict=True):
        assert np.array_equal(one, other)


# ---- assignment and graphs -----------------------------------------------------------------------------


def test_what_was_made_before_an_assignment_keeps_its_values():
    m = values((3, 3))
    a = LATTICE.scalars(m)
    before = [2 * a, a.T, a[1], a.diagonal(), a[0, 0], a.real]
    assert a.assign(a + 1) is a
    after = [2 * m, m.T, m[1], np.diagonal(m), m[0, 0], m]
    for one, expected in zip(jali.read(*before), after, strict=True):
        assert np.array_equal(one, expected)
    assert np.array_equal(a.read(), m + 1)
    a.assign(a[0])
    assert np.array_equal(a.read(), np.broadcast_to(m[0] + 1, (3, 3)))
    z = LATTICE.scalars(m + 0j)
    assert np.array_equal(z.assign(3.0).read(), np.full((3, 3), 3 + 0j))


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_carry_arrays_from_one_repetition_to_the_next(kind):
    h = hermitian(4, kind)
    results = []
    for recorded in (False, True):
        lattice = Lattice(4)
        matrix, vectors, count = (
            lattice.scalars(h),
            lattice.scalars(np.eye(4, dtype=h.dtype)),
            lattice.scalar(0),
        )

        def step(matrix=matrix, vectors=vectors, count=count):
            q, r = (matrix @ vectors).qr()
            old = vectors[:, 0]
            vectors.assign(q)
            count.assign(count + r[0, 0].real)
            change = abs(vectors[:, 0] - old).sum()
            return r.diagonal(), change, vectors.sum(0), vectors.T[1:].sum(1)[0], (abs(q) < 2).all()

        if recorded:
            graph = jali.graph(step, lattice)
            assert float(count) == 0
            graph.run(3)
            middle = graph.result[0][0] * 2
            expected = 2 * graph.read()[0][0]
            graph.run(4)
            assert complex(middle) == expected  # made outside of it: of the values of then
            found = graph.read()
        else:
            for _ in range(7):
                last = step()
            found = jali.read(*last)
        results.append([*found, vectors.read(), float(count)])
    for one, other in zip(*results, strict=True):
        assert np.array_equal(one, other)
    assert results[0][4] is True


def test_what_a_graph_cannot_repeat_is_refused_at_its_line():
    a = LATTICE.scalars([1.0, 2.0])
    for step in (a.read, lambda: float(a[0]), lambda: LATTICE.scalars([1.0]), lambda: np.asarray(a)):
        with pytest.raises(RecordingError, match=r"test_scalar_arrays\.py"):
            jali.graph(step, LATTICE)


# ---- matrices ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("one", "other"), [*itertools.product(KINDS, KINDS)])
def test_products_are_exact_to_their_roundings(one, other):
    for rows, inner, columns in ((1, 1, 1), (2, 3, 4), (16, 16, 16), (64, 5, 3), (1, 64, 2)):
        x, y = values((rows, inner), one), values((inner, columns), other, 2)
        a, b = LATTICE.scalars(x), LATTICE.scalars(y)
        bound = 2 * (inner + 2) * EPS * (abs(x) @ abs(y))
        assert np.all(abs((a @ b).read() - exactly(x) @ exactly(y)) <= bound)
        # a product of two complex numbers rounds one of its terms alone: the first factor's real part's
        if "real" in (one, other):
            assert np.array_equal((b.T @ a.T).T.read(), (a @ b).read())
        assert np.array_equal((a @ b[:, 0]).read(), (a @ b).read()[:, 0])
        assert np.array_equal((a[0] @ b).read(), (a @ b).read()[0])
        assert complex(a[0] @ b[:, 0]) == (a @ b).read()[0, 0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", ORDERS)
def test_cholesky_factors_are_exact_to_their_roundings(n, kind):
    for condition in (10.0, 1e12):
        h = hermitian(n, kind, condition=condition)
        a = LATTICE.scalars(h)
        found = a.cholesky().read()
        assert np.array_equal(found, np.tril(found))
        assert np.all(np.diagonal(found).real > 0)
        bound = (
            2 * (n + 2) * EPS * (abs(found) @ abs(found.T))
        )  # Higham, Accuracy and Stability, theorem 10.3
        assert np.all(abs(exactly(found) @ exactly(found).conj().T - h) <= bound)
        logarithm = np.log(np.longdouble(1) * np.diagonal(found).real).sum() * 2
        assert abs(float(a.log_det()) - float(logarithm)) <= 4 * n * EPS * max(
            1, np.abs(np.log(np.diagonal(found).real)).sum()
        )


def test_cholesky_has_the_bits_of_sites_and_reads_the_lower_triangle():
    n = 5
    h = hermitian(n, "complex")
    field, out = Field(LATTICE, Hermitian(n)), Field(LATTICE, Matrix(n))
    field[...] = h

    @jali.site_function
    def factor(X, out, h):
        out[X] = h[X].cholesky()

    factor(out, field)
    exact = field[0]
    found = LATTICE.scalars(np.tril(exact) + np.triu(np.full((n, n), np.nan), 1)).cholesky()
    assert np.array_equal(found.read(), out[0])
    assert float(LATTICE.scalars(exact).log_det()) == field.log_det()[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_that_is_not_positive_definite_has_no_factor_but_nan(kind):
    h = hermitian(6, kind)
    h[3, 3] = -1
    a = LATTICE.scalars(h)
    diagonal = np.diagonal(a.cholesky().read())
    assert np.isnan(diagonal).tolist() == [False] * 3 + [True] * 3
    assert np.isnan(float(a.log_det()))
    assert np.isnan(LATTICE.scalars([[0.0]]).cholesky().read()).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", ORDERS)
def test_solutions_have_small_residuals(n, kind):
    for matrix in (
        values((n, n), kind),
        hermitian(n, kind, condition=1e12),
        values((n, n), kind)[::-1] * np.geomspace(1, 1e-9, n),
    ):
        a = LATTICE.scalars(matrix)
        for right in (values(n, "complex"), values((n, 5), seed=3)):
            x = a.solve(LATTICE.scalars(right)).read()
            assert x.shape == right.shape
            # Higham, theorem 9.5 with a growth factor of one for partial pivoting
            bound = 3 * n**1.5 * EPS * size(matrix) * size(x)
            assert size(exactly(matrix) @ exactly(x) - right) <= bound
        inverse = a.inverse().read()
        assert size(exactly(matrix) @ exactly(inverse) - np.eye(n)) <= 3 * n**1.5 * EPS * size(matrix) * size(
            inverse
        )


def test_rows_are_exchanged_and_singular_matrices_give_no_numbers():
    swapped = LATTICE.scalars([[0.0, 1.0], [1.0, 0.0]])
    assert np.array_equal(swapped.solve(LATTICE.scalars([3.0, 4.0])).read(), [4.0, 3.0])
    assert np.array_equal(swapped.inverse().read(), swapped.read())
    assert not np.isfinite(LATTICE.scalars([[1.0, 2.0], [2.0, 4.0]]).inverse().read()).any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", ORDERS)
def test_orthogonal_factors_are_exact_to_their_roundings(n, kind):
    for columns in {1, (n + 1) // 2, n}:
        ill = np.linalg.qr(values((n, columns), kind, 4))[0] * np.geomspace(1, 1e-10, columns)
        for matrix in (values((n, columns), kind), ill @ values((columns, columns), kind)):
            q, r = (found.read() for found in LATTICE.scalars(matrix).qr())
            assert (q.shape, r.shape) == ((n, columns), (columns, columns))
            assert np.array_equal(r, np.triu(r))
            assert np.all(np.diagonal(r).real > 0)
            assert np.all(np.diagonal(r).imag == 0)
            assert size(exactly(q) @ exactly(r) - matrix) <= 4 * n**1.5 * EPS * size(matrix)
            assert size(exactly(q).conj().T @ exactly(q) - np.eye(columns)) <= 4 * n**1.5 * EPS


def test_orthogonal_factor_of_an_ill_conditioned_matrix_is_that_of_givens_and_householder():
    d = 1e-9
    matrix = np.array([[1.0, 1, 1], [d, 0, 0], [0, d, 0], [0, 0, d]])  # Lauchli's
    q = LATTICE.scalars(matrix).qr()[0].read()
    assert size(q.T @ q - np.eye(3)) <= 30 * EPS


@pytest.mark.parametrize("kind", KINDS)
def test_orthogonal_factors_of_columns_of_any_size_have_the_bits_of_ordinary_ones(kind):
    for n in (1, 2, 16):
        matrix = values((n, n), kind)
        q, r = (found.read() for found in LATTICE.scalars(matrix).qr())
        for power in (-900, -560, -531, 505, 511, 1015):  # squares leave the range from 512 on
            large, factor = (found.read() for found in LATTICE.scalars(matrix * 2.0**power).qr())
            assert np.array_equal(large, q)
            assert np.array_equal(factor, r * 2.0**power)
        powers = 2.0 ** np.linspace(-800, 1000, n).round()
        apart, factor = (found.read() for found in LATTICE.scalars(matrix * powers).qr())
        assert np.array_equal(apart, q)
        assert np.array_equal(factor, r * powers)


def test_orthogonal_factors_of_the_smallest_and_the_largest_numbers_are_orthonormal():
    for size_of in (1e154, 1e-170, 1e-160, 4e307, 1e-307):
        matrix = size_of * np.array([[1.0, 2.0], [3.0, 4.0]])
        q, r = (found.read() for found in LATTICE.scalars(matrix).qr())
        assert size(q.T @ q - np.eye(2)) <= 12 * EPS
        assert np.allclose(q @ (r / size_of), [[1, 2], [3, 4]], rtol=8 * EPS)
    q, r = (found.read() for found in LATTICE.scalars([[5e-324, 0.0], [0.0, 1e-320]]).qr())
    assert size(q - np.eye(2)) <= 2 * EPS
    assert np.array_equal(r, [[5e-324, 0.0], [0.0, 1e-320]])


@pytest.mark.parametrize("kind", KINDS)
def test_orthogonal_factors_from_a_column_of_no_numbers_on_are_none(kind):
    for wrong in (np.inf, -np.inf, np.nan):
        matrix = values((4, 4), kind)
        before = LATTICE.scalars(matrix).qr()[0].read()
        matrix[2, 1] = wrong
        q, r = (found.read() for found in LATTICE.scalars(matrix).qr())
        assert np.array_equal(q[:, 0], before[:, 0])
        assert np.isnan(q[:, 1:]).all()
        assert np.isnan(r[np.triu(np.ones((4, 4), bool))][4:]).all()
        assert np.array_equal(np.tril(r, -1), np.zeros((4, 4)))


@pytest.mark.parametrize("kind", KINDS)
def test_columns_that_depend_on_those_before_are_zero_in_q(kind):
    for n in (2, 4, 16):
        matrix = values((n, n), kind)
        matrix[:, n // 2] = 0
        matrix[:, n - 1] = matrix[:, : n // 2] @ values(n // 2, kind, 2) if n > 2 else 0
        dependent = sorted({n // 2, n - 1})
        q, r = (found.read() for found in LATTICE.scalars(matrix).qr())
        assert np.flatnonzero(np.diagonal(r) == 0).tolist() == dependent
        assert np.all(q[:, dependent] == 0)
        kept = np.delete(q, dependent, axis=1)
        assert size(kept.conj().T @ kept - np.eye(kept.shape[1])) <= 4 * n**1.5 * EPS
        assert size(q @ r - matrix) <= 8 * n**1.5 * EPS * size(matrix)
    q, r = LATTICE.scalars([[np.nan, 1.0], [0.0, 1.0]]).qr()
    assert np.isnan(q.read()[:, 0]).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", ORDERS)
def test_eigenvalues_and_vectors_are_exact_to_their_roundings(n, kind):
    indefinite = values((n, n), kind) + values((n, n), kind).conj().T
    degenerate = np.diag(np.repeat([2.0, -1.0], n)[:n]).astype(indefinite.dtype)
    q = np.linalg.qr(values((n, n), kind, 5))[0]
    low_rank = values((n, 2), kind) @ values((n, 2), kind).conj().T
    for h in (
        indefinite,
        hermitian(n, kind, condition=1e14),
        degenerate,
        q @ degenerate @ q.conj().T,
        low_rank,
        0 * indefinite,
    ):
        w, v = (found.read() for found in LATTICE.scalars(np.tril(h)).eigh())
        full = np.tril(h) + np.tril(h, -1).conj().T
        full.reshape(-1)[:: n + 1] = full.diagonal().real
        assert np.all(np.diff(w) >= 0)
        bound = 8 * n**1.5 * EPS * max(size(full), 1e-300)
        assert np.all(abs(w - np.linalg.eigvalsh(full)) <= bound)
        assert size(exactly(full) @ exactly(v) - exactly(v) * w) <= bound
        assert size(exactly(v).conj().T @ exactly(v) - np.eye(n)) <= 8 * n**1.5 * EPS


def test_small_eigenvalues_of_a_graded_matrix_are_accurate():
    """As Jacobi's method finds them: J. Demmel and K. Veselic, SIAM J. Matrix Anal. Appl. 13 (1992) 1204."""
    d = np.diag([1e10, 1.0, 1e-10])
    h = d @ np.array([[1, 0.1, 0.1], [0.1, 1, 0.1], [0.1, 0.1, 1]]) @ d
    w = LATTICE.scalars(h).eigh()[0].read()
    exact = float(LATTICE.scalars(h).log_det())
    assert abs(np.log(w).sum() - exact) < 1e-13 * abs(exact) + 1e-13


def test_eigenvalues_of_what_has_nan_are_nan():
    w, _ = LATTICE.scalars([[1.0, 0.0], [np.nan, 2.0]]).eigh()
    assert np.isnan(w.read()).all()


# ---- refusals ------------------------------------------------------------------------------------------


def test_refusals_say_what_would_be_right():
    a, b = LATTICE.scalars(np.ones((3, 2))), LATTICE.scalars(np.ones((17, 17)))
    z, c = LATTICE.scalars([1j, 2j]), LATTICE.scalars([1.0, 2.0]) > 1
    constant = a + 1
    for refused, error, message in (
        (
            lambda: a + LATTICE.scalars([1.0, 2.0, 3.0]),
            ShapeError,
            r"arrays of shapes \(3, 2\) and \(3,\) do not fit",
        ),
        (lambda: a @ a, ShapeError, r"shapes \(3, 2\) and \(3, 2\): 2 and 3 differ"),
        (lambda: a.cholesky(), ShapeError, r"square matrices of order 16 at most, not of shape \(3, 2\)"),
        (lambda: b.eigh(), ShapeError, r"order 16 at most, not of shape \(17, 17\)"),
        (lambda: a.T.qr(), ShapeError, r"at most as many columns as rows.*\(2, 3\)"),
        (
            lambda: (a.T @ a).solve(a),
            ShapeError,
            r"order 2 takes a vector or matrix with 2 rows, not one of shape \(3, 2\)",
        ),
        (lambda: (a.T @ a).solve([1, 2]), ParameterError, r"lattice\.scalars\(b\)"),
        (lambda: z[0:1].diagonal(), ShapeError, "no diagonal"),
        (lambda: LATTICE.scalars(1.0), ShapeError, r"lattice\.scalar\(value\) is one number"),
        (lambda: LATTICE.scalars(np.ones((2, 2, 2))), ShapeError, r"not of shape \(2, 2, 2\)"),
        (lambda: LATTICE.scalars(np.ones(65)), ShapeError, "1 to 64 rows and columns"),
        (lambda: LATTICE.scalars([[1.0], [1.0, 2.0]]), ParameterError, "rows of equal length"),
        (lambda: LATTICE.scalars(["a"]), ParameterError, "real and complex numbers"),
        (lambda: LATTICE.scalars([a[0, 0]]), ParameterError, r"jali\.stack\(\[\.\.\.\]\) takes Scalars"),
        (lambda: constant.assign(1), ParameterError, "only arrays made by lattice.scalars"),
        (lambda: a.assign(1j), ParameterError, "complex numbers cannot be assigned to a real array"),
        (lambda: z.assign(a), ShapeError, r"shape \(2,\) cannot be assigned one of shape \(3, 2\)"),
        (
            lambda: a.assign(np.ones((3, 2))),
            ParameterError,
            r"lattice\.scalars\(values\) makes an array of NumPy's",
        ),
        (lambda: bool(a), ParameterError, r"\.all\(\) and \.any\(\) of a comparison are"),
        (lambda: a.all(), ParameterError, "conditions, such as a > 0"),
        (lambda: c @ c, ParameterError, "a product is of numbers, not of <array of 2 conditions"),
        (lambda: a[1:1], ShapeError, "is empty"),
        (lambda: a[3], IndexError, "index 3 of an axis of 3"),
        (lambda: a[0, 0, 0], IndexError, "3 indices of an array of shape"),
        (lambda: a[0.5], ParameterError, "whole numbers and slices"),
        (lambda: a**0.5, ParameterError, "whole exponents from 1 to 64"),
        (lambda: jali.floor(z), TraceError, "floor of a complex number"),
        (lambda: z < 1, ParameterError, "the order of a complex scalar"),
        (lambda: jali.stack([a, a]), ShapeError, "vectors of one length"),
        (lambda: jali.stack([z, a[0, 0]]), ShapeError, "vectors of one length"),
        (lambda: a.sum(2), ParameterError, "axis 0 or 1"),
        (lambda: z.sum(1), ParameterError, r"shape \(2,\) is summed along axis 0, not 1"),
        (lambda: a.where(1, 2), ParameterError, "where is of conditions"),
        (lambda: jali.where(a, 1, 2), ParameterError, "chooses by a comparison"),
        (lambda: a.elementwise(lambda x: 1.0, a), ParameterError, "not a Scalar or a Condition"),
        (lambda: a.elementwise(lambda x: x * z[0], a), ParameterError, "not among its arguments"),
        (
            lambda: a + np.ones((3, 2)),
            ParameterError,
            r"lattice\.scalars\(values\) makes an array of NumPy's",
        ),
        (
            lambda: np.ones((3, 2)) * a,
            ParameterError,
            r"lattice\.scalars\(values\) makes an array of NumPy's",
        ),
        (
            lambda: a.T @ np.ones((3, 2)),
            ParameterError,
            r"lattice\.scalars\(values\) makes an array of NumPy's",
        ),
        (lambda: a @ 2, TypeError, "unsupported operand"),
        (lambda: a + "b", TypeError, "unsupported operand"),
        (lambda: a & a, TypeError, "unsupported operand"),
        (
            lambda: a.elementwise(jali.atan2, a, None),
            ParameterError,
            "combines with arrays, Scalars and numbers .*, not with None",
        ),
    ):
        with pytest.raises(error, match=message):
            refused()
    assert issubclass(ShapeError, LayoutError)


def test_what_arrays_of_numbers_do_not_have_names_what_works():
    v = LATTICE.scalars([1.0, 2.0])
    for call, match in (
        (lambda: jali.diagonal(v), r"v \* lattice.scalars\(np.eye\(n\)\)"),
        (
            lambda: jali.concatenate([v, v]),
            r"jali.stack .*lattice.scalars\(np.concatenate\(jali.read\(a, b\)\)\)",
        ),
        (lambda: v[True], "by whole numbers and slices, not by True"),
    ):
        with pytest.raises(ParameterError, match=match):
            call()
    assert np.array_equal((v * LATTICE.scalars(np.eye(2))).read(), np.diag([1.0, 2.0]))
