"""Numbers and fields follow IEEE 754, as NumPy does: signed zeros, infinities, NaN and subnormal numbers, bit for bit.

No formula is simplified where that could change a bit. What the language itself brings (zero, identity, spin matrices, the 0 where
`sum` starts) is algebra. Values of the random formulas are small powers of two and their sums, so products are exact, and multiply-adds
that round once are those that round twice.
"""

from __future__ import annotations

import itertools
import math
import operator

import numpy as np
import pytest

import jali
from jali import Algebra, Complex, Field, Lattice, Matrix, Real, Spinor, Vector
from jali.fermions import gamma

pytestmark = pytest.mark.lanes

PRECISIONS = ["float64", "float32"]
NUMBERS = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -0.5, 3.0]
OPERATIONS = [operator.add, operator.sub, operator.mul, operator.truediv]


def reals(precision):
    info = np.finfo(precision)
    more = [info.smallest_subnormal, -info.smallest_subnormal, info.smallest_normal, info.max, -info.max]
    return np.array([*NUMBERS, *more], precision)


def bits(values):
    """What tells -0.0 from 0.0 and no NaN from another."""
    values = np.ascontiguousarray(values)
    if np.iscomplexobj(values):
        values = values.view(values.real.dtype)
    return np.where(np.isnan(values), np.nan, values).astype(values.dtype).view(f"i{values.itemsize}")


def assert_same_bits(found, expected, what=""):
    found = np.asarray(found)
    expected = np.broadcast_to(np.asarray(expected).astype(found.dtype), found.shape)
    same = bits(found) == bits(expected)
    assert np.all(same), f"{what}: {found} is not {expected}"


@jali.site_function
def evaluate(X, out, fields, numbers, function):
    for target, result in zip(out, function(*[f[X] for f in fields], *numbers), strict=True):
        target[X] = result


def fields_of(arrays, precision="float64", elements=None):
    """A field for each array, all on a lattice of one direction."""
    lattice = Lattice(len(arrays[0]))
    out = []
    for array, element in zip(arrays, elements or [None] * len(arrays), strict=True):
        element = element or (Complex() if np.iscomplexobj(array) else Real())
        out.append(Field(lattice, element, precision=precision))
        out[-1][...] = array
    return out


def computed(function, fields, elements, numbers=()):
    """What a function of values at a site returns, as arrays; `numbers` are arguments of the call."""
    out = [Field(fields[0].lattice, element, precision=fields[0].precision) for element in elements]
    evaluate(out, fields, list(numbers), function)
    return [f[...] for f in out]


def check(function, arrays, numbers=(), precision="float64", expected=None):
    """The bits of NumPy, which runs the same function on whole arrays; or those that are given."""
    if expected is None:
        with np.errstate(all="ignore"):
            expected = function(*arrays, *numbers)
    elements = [Complex() if np.iscomplexobj(e) else Real() for e in expected]
    found = computed(function, fields_of(arrays, precision), elements, numbers)
    for k, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same_bits(one, other, f"result {k}")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_arithmetic_of_two_fields_has_the_bits_of_numpy(precision):
    def function(a, b):
        made = [op(p, q) for op in OPERATIONS for p, q in ((a, b), (a, a))]
        return [*made, -a, abs(a), +a, a - b + b, b * a * 0.5, operator.neg(-a), 0 - a, a + 0, a - 0, a * 0]

    pairs = np.array(list(itertools.product(reals(precision), repeat=2)))
    check(function, list(pairs.T.astype(precision)), (), precision)


def with_numbers(x, *numbers):
    """All operations of a value and numbers, but for quotients by the first two, zeros: as constants they are refused."""
    both = [(p, q) for n in numbers for p, q in ((x, n), (n, x))]
    made = [op(p, q) for op in OPERATIONS[:3] for p, q in both]
    return [*made, *(n / x for n in numbers), *(x / n for n in numbers[2:])]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_number_gives_the_bits_of_numpy_whether_it_is_captured_or_an_argument(precision):
    x = reals(precision)
    check(lambda a, numbers=tuple(NUMBERS): with_numbers(a, *numbers), [x], (), precision)
    check(with_numbers, [x], NUMBERS, precision)


def test_two_numbers_of_a_float32_formula_are_combined_in_float32():
    def function(big, small):
        return [big * big * small, big + small, (small - big) / small, big * big - big * big, small * 3.0]

    def of_constants(_):
        return function(*(jali.matrix([[n]])[0, 0] for n in (1e30, 1e-30)))

    with np.errstate(all="ignore"):
        expected = function(np.float32(1e30), np.float32(1e-30))
    check(of_constants, [np.ones(4, "f4")], (), "float32", [np.full(4, e) for e in expected])


PARTS = [0.0, -0.0, math.inf, math.nan, 1.0, -2.0]
COMPLEX = np.array([complex(p, q) for p in PARTS for q in PARTS])


def times(a, b):
    """The product of the language: of two complex numbers NumPy's, a real number multiplies both parts."""
    a, b = np.broadcast_arrays(a, b)
    if np.iscomplexobj(a) and np.iscomplexobj(b):
        return paired(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)
    a, b = (a, b) if np.iscomplexobj(b) else (b, a)
    return paired(a * b.real, a * b.imag)


def paired(re, im):
    """re + i im, whatever they are."""
    out = np.empty(np.broadcast(re, im).shape, complex)
    out.real, out.imag = re, im
    return out


def test_complex_sums_signs_and_products_are_those_of_their_parts():
    z, w = (np.array(c) for c in zip(*itertools.product(COMPLEX, COMPLEX), strict=True))
    x = z.real.copy()

    def function(a, b, r):
        return [
            a + b,
            a - b,
            a * b,
            a * r,
            r * a,
            -a,
            a.conj(),
            operator.neg(-a),
            a.conj().conj(),
            a.real,
            a.imag,
            a - a,
        ]

    with np.errstate(all="ignore"):
        parts = [
            z + w,
            z - w,
            times(z, w),
            times(x, z),
            times(x, z),
            -z,
            z.conj(),
            z,
            z,
            z.real,
            z.imag,
            z - z,
        ]
        parts[5] = paired(-z.real, -z.imag)
        check(function, [z, w, x], (), "float64", parts)


def test_a_complex_number_gives_the_same_bits_captured_and_as_an_argument():
    numbers = (1j, -1j, 2j, 1 + 0j, complex(1, -0.0), 0j, complex(-0.0, -0.0), 0.5 - 2j)
    x = COMPLEX.real.copy()

    def function(z, r, *numbers):
        return [made for n in numbers for made in (n * z, z * n, n * r, z + n, n + z, z - n, n - z, r + n)]

    with np.errstate(all="ignore"):
        z = COMPLEX
        expected = [
            made
            for n in numbers
            for made in (times(n, z), times(n, z), times(n, x), z + n, n + z, z - n, n - z, x + n)
        ]
    check(lambda z, r: function(z, r, *numbers), [z, x], (), "float64", expected)
    check(function, [z, x], numbers, "float64", expected)


def test_a_complex_number_times_a_real_vector_is_that_of_its_components():
    x = reals("float64")
    v = np.stack([x, x[::-1]], -1)
    a = fields_of([v], elements=[Vector(2, kind="real")])[0]
    for numbers in ([], [1j]):
        found = computed(lambda u, n=1j: [n * u, u * n], [a], [Vector(2)] * 2, numbers)
        with np.errstate(all="ignore"):
            for one in found:
                assert_same_bits(one, times(1j, v))


def matrices(n, count, seed):
    """Random matrices of special numbers; of one in four a number is NaN or infinite."""
    rng = np.random.default_rng(seed)
    shape = (count, n, n)
    out = paired(*(rng.choice([0.0, -0.0, 1.0, -1.0, 2.0, -0.5], shape) for _ in range(2)))
    out[::4, 0, 1] = rng.choice([math.inf, -math.inf, math.nan], len(out[::4]))
    return out


@pytest.mark.parametrize("n", [2, 3])
def test_adjoints_that_are_folded_give_the_bits_of_those_that_are_stored(n):
    a, b = fields_of([matrices(n, 32, 1), matrices(n, 32, 2)], elements=[Matrix(n)] * 2)
    adjoints = [Field(a.lattice, Matrix(n)) for _ in range(2)]
    evaluate(adjoints, [a, b], [], lambda u, v: [u.dagger(), v.dagger()])

    def folded(u, v, *_):
        return [
            u.dagger() * v,
            u * v.dagger(),
            u.dagger() * v.dagger(),
            u.dagger().dagger(),
            (u.dagger() * v).trace(),
        ]

    def stored(u, v, uh, vh):
        return [uh * v, u * vh, uh * vh, u, (uh * v).trace()]

    elements = [Matrix(n)] * 4 + [Complex()]
    found, expected = (computed(function, [a, b, *adjoints], elements) for function in (folded, stored))
    for k, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same_bits(one, other, k)
    assert_same_bits(adjoints[0][...], np.swapaxes(a[...], -1, -2).conj())


@pytest.mark.parametrize("n", [2, 3])
def test_the_adjoint_of_an_algebra_element_has_the_signs_of_its_zeros(n):
    p = Field(Lattice(6), Algebra(n))
    for k, x in enumerate([0.0, -0.0, 1.0, math.inf, math.nan, -2.0]):
        p[k] = np.array([[0, x], [-x, 0]]) if n == 2 else np.array([[0, x, 0], [-x, 0, 0], [0, 0, 0]])
    plain, adjoint, q = Field(p.lattice, Matrix(n)), Field(p.lattice, Matrix(n)), p.like()
    evaluate([plain, adjoint, q], [p], [], lambda u: [u, u.dagger(), u.dagger()])
    assert_same_bits(adjoint[...], np.swapaxes(plain[...], -1, -2).conj())
    assert np.array_equal(q[:3], -p[:3])


def test_products_of_matrices_hand_on_nan_and_infinity():
    values = matrices(3, 64, 3), matrices(3, 64, 4)
    a, b = fields_of(values, elements=[Matrix(3)] * 2)
    product, traced, re = computed(
        lambda u, v: [u * v, (u * v).trace(), (u * v).trace().real], [a, b], [Matrix(3), Complex(), Real()]
    )
    with np.errstate(all="ignore"):
        u, v = values
        terms = [times(u[:, :, k, None], v[:, None, k, :]) for k in range(3)]
        expected = paired(sum(t.real for t in terms), sum(t.imag for t in terms))
    assert np.array_equal(product.view(float), expected.view(float), equal_nan=True)
    with np.errstate(all="ignore"):
        diagonal = [expected[:, k, k] for k in range(3)]
        assert np.array_equal(traced.real, sum(d.real for d in diagonal), equal_nan=True)
        assert np.array_equal(traced.imag, sum(d.imag for d in diagonal), equal_nan=True)
    assert_same_bits(re, traced.real)


def test_comparisons_and_choices_are_those_of_numpy():
    x, y = np.array(list(itertools.product(reals("float64"), repeat=2))).T
    compared = [operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne]

    def function(where):
        def of(a, b):
            conditions = [op(p, q) for op in compared for p, q in ((a, b), (a, a), (a, 0.0))]
            chosen = [where(c, a, b) for c in conditions] + [where(~c, a, b) for c in conditions]
            return [*chosen, *(where(c, a, a) for c in conditions[:3]), where(a == a, 0.0 * b, b)]

        return of

    with np.errstate(all="ignore"):
        expected = function(np.where)(x, y)
    check(function(jali.where), [x, y], (), "float64", expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_functions_of_special_values_are_those_of_numpy(precision):
    x = np.array([*NUMBERS[:7], *reals(precision)[-5:]], precision)
    names = ["sqrt", "log", "exp", "sin", "cos", "tan", "asin", "acos", "atan"]
    names += ["sinh", "cosh", "tanh", "floor", "ceil", "round", "sign"]
    numpys = {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "round": np.rint}
    with np.errstate(all="ignore"):
        expected = [(numpys.get(name) or getattr(np, name))(x) for name in names]
    found = computed(
        lambda a: [getattr(jali, name)(a) for name in names], fields_of([x], precision), [Real()] * len(names)
    )
    for name, one, other in zip(names, found, expected, strict=True):
        exact = ~np.isfinite(other) | (other == np.rint(other)) | (name == "sqrt")  # other values are rounded
        assert_same_bits(one[exact], other[exact], name)


# ---- random formulas -------------------------------------------------------------------------------------

POWERS_OF_TWO = [0.0, -0.0, math.inf, -math.inf, math.nan, 1.0, -1.0, 2.0, -0.5]


def random_formula(rng, depth, where=None):
    """A function of three values that Python, NumPy and jali can run. Divisors are values or constants that are not 0."""
    if depth == 0 or rng.random() < 0.1:
        return random_leaf(rng, POWERS_OF_TWO)
    a, b, c = (random_formula(rng, depth - 1, where) for _ in range(3))
    divisor = random_leaf(rng, POWERS_OF_TWO[2:])
    kinds = [
        lambda *v: a(*v) + b(*v),
        lambda *v: a(*v) - b(*v),
        lambda *v: a(*v) * b(*v),
        lambda *v: a(*v) - a(*v),
        lambda *v: -a(*v),
        lambda *v: a(*v) * b(*v) + c(*v),
        lambda *v: a(*v) / divisor(*v),
    ]
    if where is not None:
        kinds += [lambda *v: where(a(*v) < v[0] * b(*v), b(*v), c(*v)), lambda *v: abs(a(*v))]
    return kinds[int(rng.integers(len(kinds)))]


def random_leaf(rng, constants):
    k, number = int(rng.integers(3)), constants[int(rng.integers(len(constants)))]
    return (lambda *v: number) if rng.random() < 0.25 else (lambda *v: v[k])


def random_formulas(seed, count, where=None):
    rng = np.random.default_rng(seed)
    return [random_formula(rng, 4, where) for _ in range(count)]


SEEDS = [1, *(pytest.param(k, marks=pytest.mark.full) for k in range(2, 12))]
TRIPLES = np.array(list(itertools.product(POWERS_OF_TWO, repeat=3))).T


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_random_formulas_have_the_bits_of_numpy(seed, precision):
    values = list(TRIPLES.astype(precision))
    with np.errstate(all="ignore"):
        expected = [f(*values) for f in random_formulas(seed, 30, np.where)]
    formulas = random_formulas(seed, 30, jali.where)
    check(lambda *v: [f(*v) for f in formulas], values, (), precision, expected)


@pytest.mark.parametrize("seed", SEEDS)
def test_random_formulas_of_whole_fields_have_the_bits_of_numpy(seed):
    values, fields = list(TRIPLES), fields_of(TRIPLES)
    for formula in random_formulas(seed + 100, 4):
        found = formula(*fields)
        if isinstance(found, float):
            continue
        with np.errstate(all="ignore"):
            assert_same_bits(found, formula(*values))


@pytest.mark.parametrize("seed", SEEDS)
def test_random_formulas_of_scalars_have_the_bits_of_numpy(seed):
    lattice = Lattice(2)
    rng = np.random.default_rng(seed)
    for formula in random_formulas(seed + 200, 100):
        values = rng.choice(POWERS_OF_TWO, 3)
        found = formula(*(lattice.scalar(float(v)) for v in values))
        with np.errstate(all="ignore"):
            assert_same_bits(float(found), formula(*values))


# ---- what is algebra -------------------------------------------------------------------------------------


def test_the_zero_where_a_sum_begins_and_that_of_an_element_leave_what_is_added():
    x = reals("float64")

    def function(a):
        zero = jali.zero(Real())
        return [
            sum([a]),
            sum([a, a]),
            zero + a,
            a + zero,
            a - zero,
            zero * a,
            a * zero,
            jali.zero(Complex()) + a,
        ]

    with np.errstate(all="ignore"):
        twice = x + x
        expected = [
            x,
            twice,
            x,
            x,
            x,
            np.zeros_like(x),
            np.zeros_like(x),
            paired(x, np.zeros_like(x)),
        ]
    check(function, [x], (), "float64", expected)
    field = fields_of([x])[0]
    assert_same_bits(sum([field]), x)
    assert_same_bits(sum([field, field]), twice)
    assert_same_bits(0.0 + field, 0.0 + x)


def test_sums_of_whole_fields_of_matrices_begin_with_zero_too():
    u, v = fields_of([matrices(2, 8, 5), matrices(2, 8, 6)], elements=[Matrix(2)] * 2)
    assert np.array_equal(sum([u, v])[...].view(float), (u + v)[...].view(float), equal_nan=True)


def test_entries_of_the_unit_matrix_are_algebra():
    x, u = reals("float64"), matrices(2, len(reals("float64")), 7)
    a, m = fields_of([x, u], elements=[Real(), Matrix(2)])

    def function(v, w):
        one = jali.identity(2)
        return [v * one, one * w, w * one, one.trace() * v, (w**0), one - one]

    elements = [Matrix(2, kind="real"), Matrix(2), Matrix(2), Real(), Matrix(2), Matrix(2, kind="real")]
    found = computed(function, [a, m], elements)
    multiple = np.zeros((len(x), 2, 2))
    multiple[:, 0, 0] = multiple[:, 1, 1] = x
    with np.errstate(over="ignore"):
        twice = 2 * x
    for one, other in zip(found, [multiple, u, u, twice, np.eye(2), np.zeros((2, 2))], strict=True):
        assert_same_bits(one, np.broadcast_to(np.asarray(other, one.dtype), one.shape))


def test_entries_of_spin_matrices_are_algebra():
    values = np.zeros((len(COMPLEX), 4, 1), complex)
    values[:, 0, 0] = COMPLEX
    psi = fields_of([values], elements=[Spinor(1)])[0]
    found = computed(lambda s: [mu * s for mu in gamma], [psi], [Spinor(1)] * 4)
    for mu, one in zip(gamma, found, strict=True):
        row = int(np.flatnonzero(mu.dense()[:, 0])[0])
        factor = mu.dense()[row, 0]
        z = COMPLEX if factor.imag == 0 else paired(-COMPLEX.imag, COMPLEX.real)
        sign = factor.real + factor.imag
        assert_same_bits(one[:, row, 0], paired(sign * z.real, sign * z.imag))
        assert np.all(np.isfinite(np.delete(one, row, axis=1)))


def test_a_zero_of_the_algebra_is_stored_in_a_momentum():
    p = Field(Lattice(4), Algebra(3))
    p[...] = np.diag([1j, -1j, 0])
    evaluate([p], [p], [], lambda a: [jali.where(a.norm2() < 0, a, jali.zero(Algebra(3)))])
    assert p.norm2() == 0


@pytest.mark.parametrize("name", ["exp", "sqrt", "log", "abs"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_complex_functions_of_special_values_are_those_of_numpy(precision, name):
    """Both parts: NumPy gives a part where the other has no value (sqrt(-inf + nan j), exp(-inf + inf j)), never 0 for nan."""
    z = np.array([complex(re, im) for re, im in itertools.product([*NUMBERS, 1e30, 1e-30], repeat=2)])
    field = Field(Lattice(len(z)), Complex(), precision=precision)
    field[...] = z
    found = (abs(field) if name == "abs" else getattr(jali, name)(field))[...]
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(z.astype(f"c{2 * np.dtype(precision).itemsize}"))
    for part in ("real", "imag"):
        np.testing.assert_allclose(getattr(found, part), getattr(expected, part), rtol=1e-5, err_msg=name)
