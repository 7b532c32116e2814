"""core/vectors: linear combinations and inner products of NumPy's arrays, against NumPy's own operations and exact sums."""

import math
from fractions import Fraction

import numpy as np
import pytest

from jali._core import assign_host_vectors, combine_host_vectors, inner_of_host_vectors

TYPES = ["float32", "float64", "complex64", "complex128"]
LENGTHS = [0, 1, 2, 7, 15, 16, 17, 31, 100, 2047, 2048, 2049, 5000, 40001]  # around lanes and blocks


def numbers(n, dtype, seed):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * rng.normal(size=n)
    return x.astype(dtype)


def by_numpy(y, own, terms):
    """With NumPy's roundings, each operation by itself."""
    y = y * np.asarray(own).astype(y.dtype) if own != 0 else np.zeros_like(y)
    for a, x in terms:
        y = y + np.asarray(a).astype(y.dtype) * x
    return y


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("own", [0, 1, -1, 0.3])
def test_assignments_have_the_roundings_of_numpy(dtype, n, own):
    y, x, z = (numbers(n, dtype, seed) for seed in range(3))
    for terms in ([], [(1, x)], [(-0.7, x)], [(0.1, x), (-1, z), (3.0, x)]):
        found, expected = y.copy(), by_numpy(y, own, terms)
        total = assign_host_vectors([(found, own, terms)], norm=True)
        np.testing.assert_array_equal(found, expected)
        assert total == pytest.approx(float(np.vdot(found.astype("c16"), found).real), rel=1e-12)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
@pytest.mark.parametrize("n", LENGTHS)
def test_complex_factors(dtype, n):
    y, x, z = (numbers(n, dtype, seed) for seed in range(3))
    eps = np.finfo(dtype).eps
    for own in (0, 1, 0.5, 0.4 - 1.1j):
        found = y.copy()
        assert assign_host_vectors([(found, own, [(0.3 + 2j, x), (-1j, z)])]) == 0
        exact = own * y.astype("c16") + (0.3 + 2j) * x.astype("c16") - 1j * z.astype("c16")
        np.testing.assert_allclose(found, exact, rtol=8 * eps, atol=16 * eps)


@pytest.mark.parametrize("n", LENGTHS)
def test_what_an_assignment_wrote_is_read_by_the_next(n):
    x, p, r = (numbers(n, "float32", seed) for seed in range(3))
    new_x, new_p = by_numpy(x, 1, [(0.25, p)]), by_numpy(p, 0.5, [(1, r)])
    both = by_numpy(new_p, 1, [(2.0, new_x)])
    total = assign_host_vectors([(x, 1, [(0.25, p)]), (p, 0.5, [(1, r)]), (p, 1, ((2.0, x),))], norm=True)
    np.testing.assert_array_equal(x, new_x)
    np.testing.assert_array_equal(p, both)
    assert total == pytest.approx(np.sum(both.astype(float) ** 2), rel=1e-12)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", LENGTHS)
def test_inner_products_are_those_of_double_precision(dtype, n):
    x, y = numbers(n, dtype, 1), numbers(n, dtype, 2)

    def exact(terms):
        return float(sum((Fraction(float(a)) * Fraction(float(b)) for a, b in terms), Fraction(0)))

    found = inner_of_host_vectors(x, y)
    real = exact(zip(x.real, y.real, strict=True)) + exact(zip(x.imag, y.imag, strict=True))
    scale = 1e-15 * (n + 1)
    assert abs(found.real - real) <= scale
    if np.dtype(dtype).kind == "c":
        imaginary = exact(zip(x.real, y.imag, strict=True)) - exact(zip(x.imag, y.real, strict=True))
        assert abs(found.imag - imaginary) <= scale
        assert inner_of_host_vectors(x, x).imag == 0
    else:
        assert type(found) is float


def test_sums_of_single_numbers_do_not_lose_what_is_small():
    x = np.ones((1 << 24) + 5, np.float32)  # in single precision the sum would end at 2^24
    assert inner_of_host_vectors(x, x) == x.size
    assert assign_host_vectors([(x, 1, [])], norm=True) == x.size


def test_infinities_and_nan_arrive():
    x = np.array([1, np.inf, 2], np.float32)
    assert math.isinf(inner_of_host_vectors(x, x))
    x[1] = np.nan
    assert math.isnan(inner_of_host_vectors(x, x))
    y = np.zeros(3, np.float32)
    assert math.isnan(assign_host_vectors([(y, 1, [(1, x)])], norm=True))


def refused():
    x = np.ones(10)
    read_only = np.ones(10)
    read_only.flags.writeable = False
    base = np.ones(20)
    return {
        "other types": [(x, 1, [(1, x.astype("float32"))])],
        "whole numbers": [(np.ones(10, int), 1, [])],
        "half precision": [(np.ones(10, "float16"), 1, [])],
        "swapped bytes": [(x.astype(">f8"), 1, [(1, x.astype(">f8"))])],
        "other lengths": [(x, 1, [(1, np.ones(11))])],
        "other shapes": [(np.ones((2, 5)), 1, [(1, np.ones((5, 2)))])],
        "other orders": [(np.ones((3, 5)), 1, [(1, np.ones((3, 5), order="F"))])],
        "gaps": [(base[::2], 1, [(1, x)])],
        "backwards": [(x, 1, [(1, base[9::-1])])],
        "not to write": [(read_only, 1, [(1, x)])],
        "half the same": [(base[:10], 1, [(1, base[5:15])])],
        "complex factors of real vectors": [(x, 1, [(1j, np.ones(10))])],
        "no number": [(x, 1, [("a", np.ones(10))])],
        "no array": [(x, 1, [(1, [1.0] * 10)])],
        "itself among its terms": [(x, 2, [(0.5, x)])],
        "nothing": [],
    }


@pytest.mark.parametrize("case", refused())
def test_what_is_left_to_numpy_is_not_touched(case):
    assignments = refused()[case]
    before = [np.array(y) for y, _, _ in assignments]
    assert assign_host_vectors(assignments) is None
    for (y, _, _), old in zip(assignments, before, strict=True):
        np.testing.assert_array_equal(y, old)


def test_orders_that_agree_are_taken():
    x, y = np.asfortranarray(np.arange(12.0).reshape(3, 4)), np.asfortranarray(np.ones((3, 4)))
    assert assign_host_vectors([(y, 2, [(1, x)])]) is not None
    np.testing.assert_array_equal(y, 2 + x)
    assert inner_of_host_vectors(x, np.ascontiguousarray(x)) is None


def combined_by_numpy(arrays, weights, divisor, factor):
    total = None
    for x, (times, over) in zip(arrays, weights, strict=True):
        term = x * times
        term = term / over if over != 1 else term
        total = term if total is None else total + term
    total = total / divisor if divisor != 1 else total
    return total * factor


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("count", range(1, 9))
def test_combinations_have_the_roundings_of_numpy(dtype, n, count):
    rng = np.random.default_rng(count)
    long = numbers(n + 10, dtype, 3)
    arrays = [long[k : k + n] for k in range(count)]  # which overlap, as rows of a stencil do
    plain = [(float(w), 1.0) for w in rng.normal(size=count)]
    divided = [(w, 1.0 if rng.random() < 0.5 else 3.0) for w, _ in plain]
    for weights, divisor, factor in (
        (plain, 1.0, 1.0),
        (plain, 12.0, 1.0),
        (divided, 1.0, 0.3),
        (divided, 7.0, -2.5),
    ):
        found = np.empty(n, dtype)
        assert combine_host_vectors(found, arrays, weights, divisor, factor)
        np.testing.assert_array_equal(found, combined_by_numpy(arrays, weights, divisor, factor))


def test_combinations_that_are_left_to_numpy():
    x, y = np.ones(10), np.full(10, 7.0)
    one = [(1.0, 1.0)]
    for out, xs in (
        (y, [y]),
        (y[:9], [y[1:]]),
        (y, [x[:9]]),
        (y[::2], [x[:5]]),
        (y, [x.astype("f4")]),
        (y, ["x"]),
    ):
        assert not combine_host_vectors(out, xs, one, 1.0, 1.0)
    assert (y == 7).all()
    with pytest.raises(ValueError, match="a weight for each"):
        combine_host_vectors(y, [x, x], one, 1.0, 1.0)
