"""Elementary functions of the CPU prelude against long double references, over their whole range."""

from __future__ import annotations

import numpy as np
import pytest
from prelude_harness import evaluate, ulps

SITES = 1 << 14
DTYPES = (np.float64, np.float32)
# smallest and largest binary exponent, largest argument of exp
RANGE = {np.float64: (-1074, 1023, 709.7), np.float32: (-149, 127, 88.7)}

BODY = """
out[0] = vexp(in[0]); out[1] = vlog(in[1]); out[2] = vsin(in[2]); out[3] = vcos(in[2]); out[4] = vtan(in[2]);
out[5] = vsinh(in[3]); out[6] = vcosh(in[3]); out[7] = vtanh(in[3]); out[8] = vatan(in[4]); out[9] = vatan2(in[4], in[5]);
out[10] = vasin(in[6]); out[11] = vacos(in[6]); out[12] = vpow(in[1], in[7]); out[13] = rsqrt(in[1]);
vsincos(out + 14, out + 15, in[8]);
"""
OUTPUTS = 16


def signed(rng, x):
    return x * rng.choice([-1.0, 1.0], x.shape)


def arguments(dtype, rng):
    """One row per argument of BODY, each spread over the range on which the function is finite and interesting."""
    low, high, top = RANGE[dtype]

    def spread(a, b):
        return np.exp2(rng.uniform(a, b, SITES))

    rows = [
        rng.uniform(-1.04 * top, top, SITES),
        np.concatenate([spread(low, high)[::2], rng.uniform(0.5, 2, SITES // 2)]),
        np.concatenate([rng.uniform(-1e5, 1e5, SITES // 2), np.arange(1, SITES // 2 + 1) * (np.pi / 2)]),
        signed(rng, np.concatenate([spread(-30, 0)[::2], rng.uniform(0, top, SITES // 2)])),
        signed(rng, spread(-25, 25)),
        signed(rng, spread(-25, 25)),
        np.concatenate([rng.uniform(-1, 1, SITES // 2), signed(rng, 1 - spread(-50, 0)[::2])]),
        signed(rng, spread(-12, 9)),
        signed(rng, spread(low, high)),
    ]
    return np.array(rows).astype(dtype)


@pytest.fixture(scope="module", params=DTYPES, ids=["double", "float"])
def table(request):
    """Arguments (as long double), results, and the precision."""
    dtype = request.param
    x = arguments(dtype, np.random.default_rng(20))
    y = evaluate(BODY, x, OUTPUTS, lanes=4 if dtype == np.float64 else 8)
    return x.astype(np.longdouble), y


def worst(y, reference):
    with np.errstate(over="ignore"):
        rounded = reference.astype(y.dtype)
        error = ulps(y, reference)
    finite = np.isfinite(rounded)
    assert np.array_equal(y[~finite], rounded[~finite])
    return error[finite].max()


@pytest.mark.parametrize(
    ("output", "reference", "rows", "bound"),
    [
        (0, np.exp, (0,), 0.9),
        (1, np.log, (1,), 0.9),
        (2, np.sin, (2,), 0.85),
        (3, np.cos, (2,), 0.85),
        (4, np.tan, (2,), 1.0),
        (5, np.sinh, (3,), 1.6),
        (6, np.cosh, (3,), 1.4),
        (7, np.tanh, (3,), 1.4),
        (8, np.arctan, (4,), 0.9),
        (9, np.arctan2, (4, 5), 0.9),
        (10, np.arcsin, (6,), 0.8),
        (11, np.arccos, (6,), 0.8),
        (12, np.power, (1, 7), 1.1),
        (13, lambda x: 1 / np.sqrt(x), (1,), 1.6),
        (14, np.sin, (8,), 0.85),
        (15, np.cos, (8,), 0.85),
    ],
    ids=[
        "exp",
        "log",
        "sin",
        "cos",
        "tan",
        "sinh",
        "cosh",
        "tanh",
        "atan",
        "atan2",
        "asin",
        "acos",
        "pow",
        "rsqrt",
        "sin-full-range",
        "cos-full-range",
    ],
)
def test_error_in_units_of_the_last_place_is_within_its_bound(table, output, reference, rows, bound):
    x, y = table
    with np.errstate(over="ignore", divide="ignore"):
        expected = reference(*(x[r] for r in rows))
    assert worst(y[output], expected) <= bound


SPECIAL = [
    0.0,
    -0.0,
    np.inf,
    -np.inf,
    np.nan,
    1.0,
    -1.0,
    0.5,
    -0.5,
    2.0,
    -2.0,
    3.0,
    -3.0,
    2.5,
    -2.5,
    1e30,
    -1e30,
    1e-30,
    -1e-30,
]


@pytest.mark.short(4)
@pytest.mark.parametrize("dtype", DTYPES, ids=["double", "float"])
@pytest.mark.parametrize(
    ("name", "reference"),
    [
        (n, getattr(np, m))
        for n, m in zip(
            [
                "exp",
                "log",
                "sin",
                "cos",
                "tan",
                "sinh",
                "cosh",
                "tanh",
                "atan",
                "asin",
                "acos",
                "sqrt",
                "floor",
                "abs",
                "ceil",
                "round",
                "sign",
            ],
            [
                "exp",
                "log",
                "sin",
                "cos",
                "tan",
                "sinh",
                "cosh",
                "tanh",
                "arctan",
                "arcsin",
                "arccos",
                "sqrt",
                "floor",
                "abs",
                "ceil",
                "rint",
                "sign",
            ],
            strict=True,
        )
    ],
    ids=lambda p: p if isinstance(p, str) else "",
)
def test_special_arguments_give_the_special_values_of_c(name, reference, dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    x = np.array([[*SPECIAL, tiny, -tiny, np.finfo(dtype).max, -np.finfo(dtype).max]], dtype)
    y = evaluate(f"out[0] = v{name}(in[0]);", x, 1)[0]
    with np.errstate(all="ignore"):
        expected = reference(x[0].astype(np.longdouble)).astype(dtype)
    assert np.array_equal(np.isnan(y), np.isnan(expected))
    number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(y[number]), np.signbit(expected[number]))
    np.testing.assert_allclose(y[number], expected[number], rtol=2 * np.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("dtype", DTYPES, ids=["double", "float"])
@pytest.mark.parametrize(("name", "reference"), [("pow", np.power), ("atan2", np.arctan2)])
def test_special_pairs_give_the_special_values_of_c(name, reference, dtype):
    tiny, most = np.finfo(dtype).smallest_subnormal, np.finfo(dtype).max
    values = np.array([*SPECIAL, tiny, -tiny, most, -most, 3 * tiny], dtype)
    x = np.array(np.meshgrid(values, values)).reshape(2, -1)
    y = evaluate(f"out[0] = v{name}(in[0], in[1]);", x, 1)[0]
    with np.errstate(all="ignore"):
        expected = reference(*x.astype(np.longdouble)).astype(dtype)
    assert np.array_equal(np.isnan(y), np.isnan(expected))
    number = ~np.isnan(expected)
    assert np.array_equal(np.signbit(y[number]), np.signbit(expected[number]))
    np.testing.assert_allclose(y[number], expected[number], rtol=2 * np.finfo(dtype).eps, atol=tiny)


@pytest.mark.parametrize("dtype", DTYPES, ids=["double", "float"])
def test_exponential_reaches_denormal_results_and_overflows_where_it_should(dtype):
    low, _, top = RANGE[dtype]
    edge = np.log(np.longdouble(2)) * (low - 1)
    x = np.array([[top, 1.001 * top, float(edge) * 0.9999, float(edge) * 1.001]], dtype)
    y = evaluate("out[0] = vexp(in[0]);", x, 1)[0]
    assert np.isfinite(y[0])
    assert np.isinf(y[1])
    assert y[2] == np.finfo(dtype).smallest_subnormal
    assert y[3] == 0


def test_floor_rounds_down_and_integers_convert_both_ways():
    x = np.array([[-2.5, -1.0, -0.5, 0.0, 0.5, 7.999, 1e9, -1e9 - 0.5]])
    y = evaluate("out[0] = to_real(to_integer(in[0])); out[1] = vfloor(in[0]);", x, 2)
    assert np.array_equal(y[0], np.floor(x[0]))
    assert np.array_equal(y[1], np.floor(x[0]))


@pytest.mark.parametrize("dtype", DTYPES, ids=["double", "float"])
def test_rounding_up_and_to_the_nearest_are_exact(dtype):
    """Around every power of two up to where all numbers are whole, halves, and their neighbours."""
    powers = 2.0 ** np.arange(-3, np.finfo(dtype).nmant + 3)
    near = np.concatenate([powers + d for d in (0, 0.5, -0.5, 1, 1.5, 0.25)]).astype(dtype)
    near = np.concatenate([near, np.nextafter(near, dtype(np.inf)), np.nextafter(near, dtype(0))])
    x = np.concatenate([near, -near])[None, :]
    y = evaluate("out[0] = vceil(in[0]); out[1] = vround(in[0]); out[2] = vsign(in[0]);", x, 3)
    for got, expected in zip(y, (np.ceil(x[0]), np.rint(x[0]), np.sign(x[0])), strict=True):
        assert np.array_equal(got, expected)
        assert np.array_equal(np.signbit(got), np.signbit(expected))


def test_complex_functions_agree_with_long_double_references():
    rng = np.random.default_rng(3)
    z = np.concatenate(
        [rng.normal(size=4000) + 1j * rng.normal(size=4000), np.exp(1j * rng.uniform(-3.1, 3.1, 96))]
    )
    w = rng.permutation(z)
    x = np.array([z.real, z.imag, w.real, w.imag])
    body = (
        "complex_exp(out, in); complex_log(out + 2, in); complex_sqrt(out + 4, in);"
        "complex_mul(out + 6, in, in + 2); complex_div(out + 8, in, in + 2);"
    )
    y = evaluate(body, x, 10)
    zl, wl = z.astype(np.clongdouble), w.astype(np.clongdouble)
    for k, expected in enumerate((np.exp(zl), np.log(zl), np.sqrt(zl), zl * wl, zl / wl)):
        got = y[2 * k] + 1j * y[2 * k + 1]
        assert np.max(np.abs(got - expected) / np.abs(expected)) < 6e-16


def test_complex_logarithm_and_root_survive_huge_and_tiny_arguments():
    rng = np.random.default_rng(4)
    z = (rng.normal(size=512) + 1j * rng.normal(size=512)) * np.exp2(rng.uniform(-1000, 1000, 512))
    y = evaluate("complex_log(out, in); complex_sqrt(out + 2, in);", np.array([z.real, z.imag]), 4)
    zl = z.astype(np.clongdouble)
    for k, expected in enumerate((np.log(zl), np.sqrt(zl))):
        got = y[2 * k] + 1j * y[2 * k + 1]
        assert np.max(np.abs(got - expected) / np.abs(expected)) < 5e-16


def test_complex_root_follows_the_branch_cut_and_the_sign_of_zero():
    z = np.array([complex(-4, 0.0), complex(-4, -0.0), 0j, 4 + 0j, complex(0, 2), complex(0, -2)])
    y = evaluate("complex_sqrt(out, in);", np.array([z.real, z.imag]), 2)
    np.testing.assert_allclose(y[0] + 1j * y[1], np.sqrt(z), rtol=3e-16)
