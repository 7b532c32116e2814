"""Complex numbers and small matrices over the whole range of both precisions, against long doubles and fractions.

A long double has 64 bits of mantissa and 15 of exponent: nothing here leaves its range.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from prelude_harness import complex_rows, evaluate, from_rows, same_bits

DTYPES = pytest.mark.parametrize("dtype", [np.float64, np.float32], ids=["double", "float"])
LANES = {np.float64: 4, np.float32: 8}
SITES = 4096
EXPONENTS = {np.float64: (-1074, 1024), np.float32: (-149, 128)}


def anywhere(dtype, rng, sites=SITES):
    """Complex numbers: every exponent, both parts alike, far apart, zero, and at the very ends."""
    low, high = EXPONENTS[dtype]
    ends = np.finfo(dtype)
    with np.errstate(over="ignore"):
        size = np.exp2(rng.uniform(low, high, sites).astype(np.longdouble))
        angle = rng.uniform(-np.pi, np.pi, sites)
        parts = np.array([size * np.cos(angle), size * np.sin(angle)]).astype(dtype)
        other = np.exp2(rng.uniform(low, high, sites).astype(np.longdouble)).astype(dtype)
    kind = rng.integers(0, 8, sites)
    parts[0] = np.where(kind == 0, other, parts[0])
    parts[1] = np.where(kind == 1, -other, parts[1])
    parts[0] = np.where(kind == 2, 0, parts[0])
    parts[1] = np.where(kind == 3, -0.0, parts[1])
    parts[:, kind == 4] = ends.max * rng.choice([-1, 1], (2, np.sum(kind == 4)))
    parts[:, kind == 5] = ends.smallest_subnormal * rng.integers(1, 9, (2, np.sum(kind == 5)))
    return np.clip(parts, -ends.max, ends.max).astype(dtype)


def exact(parts):
    """Complex long doubles of real and imaginary parts, zeros with their signs."""
    whole = np.empty(parts.shape[1:], np.clongdouble)
    whole.real, whole.imag = parts
    return whole


def errors(got, expected, dtype):
    """Relative to the modulus, in epsilons, or in units of two denormal numbers; infinite where a result is, 0 where a part is beyond the range."""
    ends = np.finfo(dtype)
    inside = np.maximum(abs(expected.real), abs(expected.imag)) < ends.max
    size = np.maximum(abs(expected) * ends.eps, 2 * np.longdouble(ends.smallest_subnormal))
    with np.errstate(all="ignore"):
        error = abs(exact(got) - expected) / size
    error[np.isnan(error)] = np.inf
    return np.where(inside, error, 0)


COMPLEX = """
out[0] = modulus(in[0], in[1]); out[1] = splat(0); complex_div(out + 2, in, in + 2); put(out, 2, inverse(at(in, 0)));
complex_log(out + 6, in); complex_sqrt(out + 8, in); complex_exp(out + 10, in + 4); reunitarise<1>(out + 12, in);
"""


@DTYPES
def test_complex_functions_are_accurate_for_every_number(dtype):
    rng = np.random.default_rng(46)
    a, b = anywhere(dtype, rng), anywhere(dtype, rng)
    top = EXPONENTS[dtype][1] * np.log(2)
    powers = np.array([rng.uniform(-1.1, 2, SITES) * top, anywhere(dtype, rng)[1]], dtype)
    powers[1, ::2] = rng.normal(size=SITES // 2) + rng.integers(-4, 5, SITES // 2) * (np.pi / 2)
    y = evaluate(COMPLEX, np.concatenate([a, b, powers]), 14, lanes=LANES[dtype]).reshape(7, 2, SITES)
    x, z, w = exact(a), exact(b), exact(powers)
    with np.errstate(all="ignore"):
        expected = {
            "modulus": np.hypot(x.real, x.imag) + 0j,
            "quotient": x / z,
            "inverse": 1 / x,
            "logarithm": np.log(x),
            "root": np.sqrt(x),
            "exponential": np.exp(w.real) * (np.cos(w.imag) + 1j * np.sin(w.imag)),
            "phase": x / np.hypot(x.real, x.imag),
        }
    zero = {"quotient": z == 0, "inverse": x == 0, "logarithm": x == 0, "phase": x == 0}
    for got, (name, reference) in zip(y, expected.items(), strict=True):
        error = errors(got, reference, dtype)
        if name in zero:
            error[zero[name]] = 0
        assert error.max() < 4, (name, got[:, error.argmax()], reference[error.argmax()])
    assert np.all(np.isinf(y[0, 0][np.hypot(x.real, x.imag) > 1.001 * np.longdouble(np.finfo(dtype).max)]))


def test_modulus_and_quotient_keep_the_bits_of_the_formulas_without_scaling():
    """Multiply-adds of fractions, rounded once. Exponents over a third of the range: nothing is lost at its ends."""
    rng = np.random.default_rng(4)
    x = rng.normal(size=(4, 400)) * np.exp2(rng.uniform(-160, 160, (4, 400)))

    def fma(a, b, c):
        return float(Fraction(a) * Fraction(b) + Fraction(c))

    rows = []
    for a, b, c, d in x.T.tolist():
        n, m = fma(a, a, b * b), fma(c, c, d * d)
        rows.append([np.sqrt(n), fma(a, c, b * d) / m, fma(b, c, -(a * d)) / m, a / n, -b / n])
    body = "out[0] = modulus(in[0], in[1]); complex_div(out + 1, in, in + 2); put(out + 3, 0, inverse(at(in, 0)));"
    assert same_bits(evaluate(body, x, 5), np.array(rows).T)


def test_roots_and_exponentials_of_infinite_numbers_are_those_of_c():
    inf, one = np.inf, 1.5
    z = np.array([(inf, one), (-inf, one), (one, inf), (one, -inf), (-inf, -inf), (np.nan, inf), (-inf, 0.0)])
    y = evaluate("complex_sqrt(out, in); complex_exp(out + 2, in);", np.ascontiguousarray(z.T), 4)
    assert y[0].tolist() == [inf, 0, inf, inf, inf, inf, 0]
    assert y[1].tolist() == [0, inf, inf, -inf, -inf, inf, inf]
    assert y[2:, 0].tolist() == [inf, inf]
    assert y[2:, 1].tolist() == [0, 0]
    assert y[2:, 6].tolist() == [0, 0]


def spectra(n, condition):
    """Singular values: spread evenly, one small, all but one small, half and half."""
    k = np.arange(n)
    small = 1 / condition
    return np.array(
        [
            small ** (k / max(n - 1, 1)),
            np.where(k == n - 1, small, 1),
            np.where(k == 0, 1, small),
            np.where(k < (n + 1) // 2, 1, small),
        ]
    )


def matrices(n, condition, dtype, rng, sites):
    """Complex matrices of a condition number, rounded to a precision, as long doubles."""
    q = [
        np.linalg.qr(rng.normal(size=(sites, n, n)) + 1j * rng.normal(size=(sites, n, n)))[0]
        for _ in range(2)
    ]
    values = np.resize(spectra(n, condition), (sites, n))
    return (
        ((q[0] * values[:, None, :]) @ q[1])
        .astype(np.result_type(dtype, np.complex64))
        .astype(np.clongdouble)
    )


def eliminated(a):
    """Determinant and inverse of long double matrices, by elimination with row exchanges."""
    sites, n, _ = a.shape
    work = np.concatenate([a, np.broadcast_to(np.eye(n), a.shape)], axis=2)
    det, all_sites = np.ones(sites, np.clongdouble), np.arange(sites)
    for k in range(n):
        row = k + np.argmax(abs(work[:, k:, k]), axis=1)
        work[all_sites, k], work[all_sites, row] = work[all_sites, row], work[all_sites, k].copy()
        pivot = work[:, k, k].copy()
        det *= np.where(row == k, 1, -1) * pivot
        work[:, k] /= pivot[:, None]
        factor = work[:, :, k].copy()
        factor[:, k] = 0
        work -= factor[:, :, None] * work[:, k, None, :]
    return det, work[:, :, n:]


@pytest.mark.parametrize(
    "n", [2, 3, 12, *(pytest.param(n, marks=pytest.mark.full) for n in (1, 4, 5, 6, 7, 8, 9, 10, 11))]
)
@DTYPES
def test_inverses_and_determinants_lose_no_more_than_the_condition_number_at_any_scale(n, dtype):
    """Relative errors are at most 10 n eps cond, also where lanes of one vector have other conditions and scales."""
    eps, rng = float(np.finfo(dtype).eps), np.random.default_rng(n)
    top = 100 if dtype == np.float64 else 15
    each, parts = 32, []
    conditions = [1.2, 1e3, 1e5] if dtype == np.float32 else [1.2, 1e3, 1e7, 1e12]
    for condition in conditions:
        for power in (0, top, -top, top * 0.6, -top * 0.6, top / n, -top / n):
            unit = np.longdouble(10) ** np.longdouble(power)
            # rounded to a precision before and after the scale
            a = (matrices(n, condition, dtype, rng, each) * unit).astype(np.result_type(dtype, np.complex64))
            parts.append((a, np.full(each, condition)))
    order = rng.permutation(each * len(parts))
    a = np.concatenate([a for a, _ in parts])[order]
    condition = np.concatenate([c for _, c in parts])[order]
    rows = complex_rows(a)
    y = evaluate(
        f"inverse<{n}>(out, in); det<{n}>(out + {2 * n * n}, in);", rows, 2 * n * n + 2, lanes=LANES[dtype]
    )
    det, inverse = eliminated(a.astype(np.clongdouble))
    got = exact(y[: 2 * n * n].reshape(n * n, 2, -1).swapaxes(0, 1)).T.reshape(inverse.shape)
    bound = 10 * n * eps * 1.01 * condition
    error = np.linalg.norm(
        (got - inverse).reshape(len(a), -1) / abs(inverse).max(axis=(1, 2))[:, None], axis=1
    )
    error /= np.linalg.norm(
        (inverse / abs(inverse).max(axis=(1, 2))[:, None, None]).reshape(len(a), -1), axis=1
    )
    assert np.all(error <= bound), (error / bound).max()
    ends = np.finfo(dtype)
    usual = (abs(det) < ends.max / 2) & (abs(det) > ends.tiny)
    error = abs(exact(y[2 * n * n :]) - det)[usual] / abs(det)[usual]
    assert usual.mean() > 0.1
    assert np.all(error <= bound[usual]), (error / bound[usual]).max()
    assert not np.any(np.isnan(y[2 * n * n :]))


@DTYPES
def test_rows_and_columns_of_other_scales_do_not_harm(dtype):
    """Permuted triangular matrices with a diagonal from one end of the range to the other: determinants of order one."""
    rng, n = np.random.default_rng(3), 4
    far = 0.9 * EXPONENTS[dtype][1]
    exponents = np.array([far, -far, far, -far])
    a = np.zeros((64, n, n), np.result_type(dtype, np.complex64))
    signs = np.empty(64)
    for site in range(64):
        order = rng.permutation(n)
        a[site, np.arange(n), order] = 1.5 * np.exp2(rng.permutation(exponents))
        signs[site] = np.linalg.det(np.eye(n)[order])
    y = evaluate("inverse<4>(out, in); det<4>(out + 32, in);", complex_rows(a), 34, lanes=LANES[dtype])
    with np.errstate(divide="ignore"):
        expected = np.where(a.real == 0, 0, 1 / a.real).swapaxes(1, 2)
    np.testing.assert_allclose(from_rows(y[:32], n, n), expected, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_allclose(y[32], signs * 1.5**4, rtol=16 * np.finfo(dtype).eps)


@pytest.mark.parametrize("n", [3, *(pytest.param(n, marks=pytest.mark.full) for n in (2, 4))])
@DTYPES
def test_reunitarised_matrices_do_not_depend_on_the_scale(n, dtype):
    rng = np.random.default_rng(n)
    a = rng.normal(size=(64, n, n)) + 1j * rng.normal(size=(64, n, n))
    a = complex_rows(a).astype(dtype)
    powers = np.array([*range(-EXPONENTS[dtype][1] + 30, EXPONENTS[dtype][1] - 8, EXPONENTS[dtype][1] // 16)])
    x = (a[:, :, None] * np.exp2(powers.astype(np.longdouble))).astype(dtype).reshape(2 * n * n, -1)
    y = evaluate(f"reunitarise<{n}>(out, in);", x, 2 * n * n, lanes=LANES[dtype]).reshape(2 * n * n, 64, -1)
    assert np.isfinite(y).all()
    assert all(same_bits(y[:, :, k], y[:, :, 0]) for k in range(y.shape[2]))
