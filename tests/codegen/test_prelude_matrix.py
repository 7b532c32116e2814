"""Matrix functions of the CPU prelude against NumPy and exact identities."""

from __future__ import annotations

import numpy as np
import pytest
from prelude_harness import complex_rows, evaluate, from_rows

SITES = 64
SIZES = (1, 2, 3, 4, 5)
RNG = np.random.default_rng(8)


def general(*shape: int) -> np.ndarray:
    return RNG.normal(size=(SITES, *shape)) + 1j * RNG.normal(size=(SITES, *shape))


def dagger(a: np.ndarray) -> np.ndarray:
    return a.conj().swapaxes(-1, -2)


def antihermitian(n: int, size: float = 1.0) -> np.ndarray:
    """Traceless anti-Hermitian matrices; for n = 1 any imaginary number."""
    z = general(n, n)
    z = size * (z - dagger(z)) / 2
    return z if n == 1 else z - np.trace(z, axis1=1, axis2=2)[:, None, None] / n * np.eye(n)


def exponential(z: np.ndarray) -> np.ndarray:
    """exp of anti-Hermitian matrices by diagonalisation."""
    w, v = np.linalg.eigh(-1j * z)
    return (v * np.exp(1j * w)[:, None, :]) @ dagger(v)


def apply(call: str, *arguments: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The complex result of `call`, in which `a`, `b`, `c` name the arguments and `out` the result."""
    return apply_all([(call, shape)], *arguments)[0]


def apply_all(calls: list[tuple[str, tuple[int, ...]]], *arguments: np.ndarray) -> list[np.ndarray]:
    """The complex results of calls and their shapes, as of `apply`; all in one program, since compiling takes longest."""
    names, offset = [], 0
    rows = [complex_rows(a) for a in arguments]
    for name, r in zip("abcde", rows, strict=False):
        names.append(f"const real* {name} = in + {offset}; (void){name};")
        offset += r.shape[0]
    sizes = [2 * int(np.prod(shape)) for _, shape in calls]
    results = evaluate(
        " ".join(names) + in_parts([call for call, _ in calls], sizes), np.concatenate(rows), sum(sizes)
    )
    parts = np.split(results, np.cumsum(sizes)[:-1])
    return [from_rows(part, *shape) for part, (_, shape) in zip(parts, calls, strict=True)]


def in_parts(calls: list[str], sizes: list[int]) -> str:
    """Calls that write to `out`, one behind the other; by how many reals each."""
    offsets = np.cumsum([0, *sizes[:-1]])
    return "\n".join(
        f"{{ real* const part = out + {at}; {{ real* const out = part; {call} }} }}"
        for at, call in zip(offsets, calls, strict=True)
    )


# of the first and of the second factor
ADJOINTS = [(left, right) for left in (False, True) for right in (False, True)]


def close(got: np.ndarray, expected: np.ndarray, tolerance: float = 2e-15) -> None:
    assert np.max(np.abs(got - expected)) <= tolerance * max(1.0, float(np.max(np.abs(expected))))


@pytest.mark.short(3)
@pytest.mark.parametrize(
    "sizes",
    [(1, 1, 1), (2, 2, 2), (3, 3, 3), (3, 3, 1), (1, 3, 3), (3, 3, 4), (2, 3, 4), (4, 4, 4), (5, 2, 1)],
)
def test_products_agree_with_numpy_for_every_combination_of_adjoints(sizes):
    n, k, m = sizes
    a, b, c, a_adjoint, b_adjoint = general(n, k), general(k, m), general(n, m), general(k, n), general(m, k)
    calls = []
    for left, right in ADJOINTS:
        flags = f"{n}, {k}, {m}, {str(left).lower()}, {str(right).lower()}"
        factors = f"{'d' if left else 'a'}, {'e' if right else 'b'}"
        body = (
            f"matmul<{flags}>(out, {factors}); copy<{2 * n * m}>(out + {2 * n * m}, c); copy<{2 * n * m}>(out + {4 * n * m}, c);"
            f"matmul_add<{flags}>(out + {2 * n * m}, {factors}); matmul_sub<{flags}>(out + {4 * n * m}, {factors});"
        )
        calls.append((body, (3, n, m)))
    results = apply_all(calls, a, b, c, a_adjoint, b_adjoint)
    for got, (left, right) in zip(results, ADJOINTS, strict=True):
        expected = (dagger(a_adjoint) if left else a) @ (dagger(b_adjoint) if right else b)
        close(got, np.stack([expected, c + expected, c - expected], axis=1))


@pytest.mark.parametrize("sizes", [(3, 3, 3), (2, 4, 1)])
def test_real_products_and_traces_agree_with_numpy(sizes):
    n, k, m = sizes
    # the same numbers as matrices of either shape
    a, b = RNG.normal(size=(SITES, n * k)), RNG.normal(size=(SITES, k * m))
    calls = []
    for left, right in ADJOINTS:
        adjoints = f"{str(left).lower()}, {str(right).lower()}"
        flags = f"{n}, {k}, {m}, {adjoints}"
        traced = f"trace_mul_real<{n}, {k}, {adjoints}>(a, b)" if n == m else "splat(0)"
        calls.append(
            f"matmul_real<{flags}>(out, a, b);"
            f"zero<{2 * n * m}>(out + {n * m}); matmul_add_real<{flags}>(out + {n * m}, a, b);"
            f"matmul_sub_real<{flags}>(out + {2 * n * m}, a, b); out[{3 * n * m}] = {traced};"
        )
    size = 3 * n * m + 1
    body = f"const real *a = in, *b = in + {n * k};" + in_parts(calls, [size] * len(calls))
    results = evaluate(body, np.concatenate([a.T, b.T]), size * len(calls))
    for got, (left, right) in zip(results.reshape(len(calls), size, SITES), ADJOINTS, strict=True):
        ta = a.reshape(SITES, k, n).swapaxes(1, 2) if left else a.reshape(SITES, n, k)
        tb = b.reshape(SITES, m, k).swapaxes(1, 2) if right else b.reshape(SITES, k, m)
        close(got[:-1].T.reshape(SITES, 3, n, m), np.stack([ta @ tb, ta @ tb, -ta @ tb], axis=1))
        if n == m:
            close(got[-1], np.trace(ta @ tb, axis1=1, axis2=2))


@pytest.mark.short(2)
@pytest.mark.parametrize(("n", "m"), [(1, 1), (2, 3), (3, 3), (4, 2)])
def test_trace_of_a_product_agrees_with_numpy_for_every_combination_of_adjoints(n, m):
    tall, wide, other_tall, other_wide = general(n, m), general(m, n), general(n, m), general(m, n)
    calls = []
    for left, right in ADJOINTS:
        flags = f"{n}, {m}, {str(left).lower()}, {str(right).lower()}"
        factors = f"{'b' if left else 'a'}, {'c' if right else 'd'}"
        text = f"trace_mul<{flags}>(out, {factors}); out[2] = retrace_mul<{flags}>({factors}); out[3] = splat(0);"
        calls.append((text, (2,)))
    results = apply_all(calls, tall, wide, other_tall, other_wide)
    for got, (left, right) in zip(results, ADJOINTS, strict=True):
        product = (dagger(wide) if left else tall) @ (dagger(other_tall) if right else other_wide)
        expected = np.trace(product, axis1=1, axis2=2)
        close(got[:, 0], expected)
        close(got[:, 1].real, expected.real)


def test_rearrangements_and_elementwise_functions_agree_with_numpy():
    a, b, s = general(2, 3), general(2, 3), general(1)
    expected = [  # call, result, tolerance
        ("adjoint<2, 3>(out, a);", dagger(a), 0),
        ("transpose<2, 3>(out, a);", a.swapaxes(1, 2), 0),
        ("conj<12>(out, a);", a.conj(), 0),
        ("add<12>(out, a, b);", a + b, 0),
        ("sub<12>(out, a, b);", a - b, 0),
        ("neg<12>(out, a);", -a, 0),
        ("scale<12>(out, c[0], a);", s.real[:, :, None] * a, 0),
        ("scale_complex<12>(out, c, a);", s[:, :, None] * a, 2e-15),
        ("copy<12>(out, b); add_scaled<12>(out, c[0], a);", b + s.real[:, :, None] * a, 2e-15),
        ("copy<12>(out, b); add_scaled_complex<12>(out, c, a);", b + s[:, :, None] * a, 2e-15),
        ("choose<12>(out, c[0] < c[1], a, b);", np.where((s.real < s.imag)[:, :, None], a, b), 0),
        ("zero<12>(out);", 0 * a, 0),
        ("identity<3>(out);", np.broadcast_to(np.eye(3), (SITES, 3, 3)), 0),
    ]
    results = apply_all([(call, result.shape[1:]) for call, result, _ in expected], a, b, s)
    for got, (_, result, tolerance) in zip(results, expected, strict=True):
        close(got, result, tolerance)


def test_traces_norms_and_inner_products_agree_with_numpy():
    a, b, v, w = general(3, 3), general(3, 3), general(3), general(2)
    calls = [
        ("trace<3>(out, a); out[2] = retrace<3>(a); out[3] = splat(0);", (2,)),
        ("dot<18>(out, a, b); out[2] = norm2<18>(a); out[3] = splat(0);", (2,)),
        ("outer<3, 2>(out, c, d);", (3, 2)),
    ]
    traces, products, outer = apply_all(calls, a, b, v, w)
    close(traces[:, 0], np.trace(a, axis1=1, axis2=2))
    close(traces[:, 1].real, np.trace(a, axis1=1, axis2=2).real)
    close(products[:, 0], np.sum(a.conj() * b, axis=(1, 2)))
    close(products[:, 1], np.sum(np.abs(a) ** 2, axis=(1, 2)))
    close(outer, v[:, :, None] * w.conj()[:, None, :])


@pytest.mark.short(2)
@pytest.mark.parametrize("n", SIZES)
def test_determinant_and_inverse_agree_with_numpy(n):
    a = general(n, n)
    expected = np.linalg.det(a)
    got = apply(f"det<{n}>(out, a);", a, shape=(1,))[:, 0]
    assert np.max(np.abs(got - expected) / np.abs(expected)) < 1e-12
    inverse = apply(f"inverse<{n}>(out, a);", a, shape=(n, n))
    condition = np.linalg.cond(a) if n > 1 else np.ones(SITES)
    assert np.all(np.max(np.abs(inverse @ a - np.eye(n)), axis=(1, 2)) < 4e-15 * condition)


@pytest.mark.short(2)
@pytest.mark.parametrize("n", SIZES)
def test_determinant_of_a_singular_matrix_is_zero_in_its_lane_only(n):
    a = general(n, n)
    a[::3] = 0
    a[1::3, :, 0] = 0
    expected = np.linalg.det(a)
    got = apply(f"det<{n}>(out, a);", a, shape=(1,))[:, 0]
    assert np.all(got[::3] == 0)
    assert np.all(got[1::3] == 0)
    np.testing.assert_allclose(got[2::3], expected[2::3], rtol=1e-12)


@pytest.mark.parametrize("n", [4, 5])
def test_elimination_pivots_lane_by_lane(n):
    # permuted triangular matrices: without exchanges every lane would divide by zero
    a = np.triu(general(n, n)) + 2 * np.eye(n)
    expected = np.prod(np.diagonal(a, axis1=1, axis2=2), axis=1)
    sign = np.empty(SITES)
    for s in range(SITES):
        order = RNG.permutation(n)
        a[s] = a[s][order]
        sign[s] = np.linalg.det(np.eye(n)[order])
    np.testing.assert_allclose(apply(f"det<{n}>(out, a);", a, shape=(1,))[:, 0], sign * expected, rtol=1e-13)
    inverse = apply(f"inverse<{n}>(out, a);", a, shape=(n, n))
    assert np.all(np.max(np.abs(inverse @ a - np.eye(n)), axis=(1, 2)) < 4e-15 * np.linalg.cond(a))


@pytest.mark.short(2)
@pytest.mark.parametrize("n", SIZES)
def test_exponential_of_a_general_matrix_agrees_with_its_eigenvalues(n):
    # a = S diag(w) S^-1 with S near 1, so that the reference is accurate; norms from 0 to 10, mixed over lanes
    w = general(n) * RNG.uniform(0, 10 / np.sqrt(n), (SITES, 1)) / 2
    w[0] = 0
    s = np.eye(n) + 0.1 * general(n, n)
    a = (s * w[:, None, :]) @ np.linalg.inv(s)
    expected = (s * np.exp(w)[:, None, :]) @ np.linalg.inv(s)
    got = apply(f"exp_matrix<{n}>(out, a);", a, shape=(n, n))
    size = np.max(np.abs(expected), axis=(1, 2))
    assert np.all(np.max(np.abs(got - expected), axis=(1, 2)) < 5e-14 * size * np.linalg.cond(s))
    nothing = apply(f"exp_matrix<{n}>(out, a);", 0 * a, shape=(n, n))
    assert np.array_equal(nothing, np.broadcast_to(np.eye(n), nothing.shape))


@pytest.mark.short(2)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("size", [0.0, 1e-200, 1e-9, 0.1, 0.4, 1.0, 4.0])
def test_exponential_of_an_antihermitian_matrix_is_special_unitary_and_agrees_with_its_eigenvalues(n, size):
    z = antihermitian(n, size)
    got = apply(f"exp_antihermitian<{n}>(out, a);", z, shape=(n, n))
    close(got, exponential(z), 1e-14 * max(1, size))
    close(got @ dagger(got), np.broadcast_to(np.eye(n), got.shape), 2e-15 * max(1, 2 * size))
    if n > 1:
        assert np.max(np.abs(np.linalg.det(got) - 1)) < 4e-15 * max(1, 2 * size)
    back = apply(f"exp_antihermitian<{n}>(out, a);", -z, shape=(n, n))
    close(got @ back, np.broadcast_to(np.eye(n), got.shape), 4e-15 * max(1, 2 * size))


@pytest.mark.parametrize("scale", [3.0, -3.0, 0.6, -0.6, 0.2, 1e-7, -1e-200])
@pytest.mark.parametrize("split", [0.0, 1e-16, 1e-12, 1e-8, 1e-4])
def test_su3_exponential_is_accurate_where_eigenvalues_nearly_coincide(scale, split):
    values = 1j * scale * np.array([1 + split, 1 - split, -2.0])
    u = np.linalg.qr(general(3, 3))[0]
    z = (u * values) @ dagger(u)
    z = (z - dagger(z)) / 2
    z -= np.trace(z, axis1=1, axis2=2)[:, None, None] / 3 * np.eye(3)
    got = apply("exp_antihermitian<3>(out, a);", z, shape=(3, 3))
    close(got, (u * np.exp(values)) @ dagger(u), 1.5e-14)
    close(got @ dagger(got), np.broadcast_to(np.eye(3), got.shape), 8e-15)


def test_su3_exponential_is_the_same_function_on_both_sides_of_the_series_limit():
    # tr Q^2 / 2 crosses 1/4, where series and closed form meet
    z = antihermitian(3)
    z /= np.sqrt(-np.trace(z @ z, axis1=1, axis2=2).real / 2)[:, None, None]
    for size in (0.5 * (1 - 1e-9), 0.5 * (1 + 1e-9)):
        got = apply("exp_antihermitian<3>(out, a);", size * z, shape=(3, 3))
        close(got, exponential(size * z), 5e-15)


@pytest.mark.short(2)
@pytest.mark.parametrize("n", SIZES)
def test_reunitarised_matrices_are_special_unitary_and_unitary_ones_stay(n):
    g = apply(f"reunitarise<{n}>(out, a);", general(n, n), shape=(n, n))
    close(g @ dagger(g), np.broadcast_to(np.eye(n), g.shape), 2e-15)
    if n > 1:
        assert np.max(np.abs(np.linalg.det(g) - 1)) < 3e-15
    close(apply(f"reunitarise<{n}>(out, a);", g, shape=(n, n)), g, 1e-15)
    near = apply(f"reunitarise<{n}>(out, a);", g + 1e-6 * general(n, n), shape=(n, n))
    close(near, g, 2e-5)


def test_reunitarising_keeps_what_it_is_defined_to_keep():
    phase = general(1, 1)
    close(apply("reunitarise<1>(out, a);", phase, shape=(1, 1)), phase / np.abs(phase))
    # a quaternion times a positive number is divided by it
    quaternion = np.array([[[1 + 2j, 3 - 1j], [-3 - 1j, 1 - 2j]]] * SITES)
    close(apply("reunitarise<2>(out, a);", 7 * quaternion, shape=(2, 2)), quaternion / np.sqrt(15))
    # the first row keeps its direction
    a = general(3, 3)
    g = apply("reunitarise<3>(out, a);", a, shape=(3, 3))
    close(g[:, 0], a[:, 0] / np.linalg.norm(a[:, 0], axis=1)[:, None])


@pytest.mark.short(2)
@pytest.mark.parametrize("n", SIZES)
def test_traceless_antihermitian_part_is_the_projection_onto_the_algebra(n):
    a = general(n, n)
    expected = 1j * a.imag if n == 1 else (a - dagger(a)) / 2
    if n > 1:
        expected = expected - np.trace(expected, axis1=1, axis2=2)[:, None, None] / n * np.eye(n)
    z = apply(f"traceless_antihermitian<{n}>(out, a);", a, shape=(n, n))
    close(z, expected)
    assert np.array_equal(z, -dagger(z))
    close(apply(f"traceless_antihermitian<{n}>(out, a);", z, shape=(n, n)), z, 3e-16)


@pytest.mark.short(2)
@pytest.mark.parametrize("n", SIZES)
def test_algebra_storage_holds_exactly_the_traceless_antihermitian_matrices(n):
    reals = max(1, n * n - 1)
    x = RNG.normal(size=(reals, SITES))
    m = evaluate(f"algebra_decode<{n}>(out, in);", x, 2 * n * n)
    z = from_rows(m, n, n)
    assert np.array_equal(z, -dagger(z))
    if n > 1:
        assert np.max(np.abs(np.trace(z, axis1=1, axis2=2))) < 1e-15
    assert np.array_equal(evaluate(f"algebra_encode<{n}>(out, in);", m, reals), x)
    if n == 3:
        assert np.array_equal(
            x[:6],
            np.array(
                [
                    z[:, 0, 1].real,
                    z[:, 0, 1].imag,
                    z[:, 0, 2].real,
                    z[:, 0, 2].imag,
                    z[:, 1, 2].real,
                    z[:, 1, 2].imag,
                ]
            ),
        )
        assert np.array_equal(x[6:], np.array([z[:, 0, 0].imag, z[:, 1, 1].imag]))


def test_single_precision_kernels_reach_single_precision():
    a = antihermitian(3).astype(np.complex64)
    g = from_rows(evaluate("exp_antihermitian<3>(out, in);", complex_rows(a), 18, lanes=8), 3, 3)
    assert g.dtype == np.complex64
    close(g, exponential(a.astype(complex)), 2e-6)
    h = from_rows(evaluate("reunitarise<3>(out, in);", complex_rows(a), 18, lanes=8), 3, 3).astype(complex)
    close(h @ dagger(h), np.broadcast_to(np.eye(3), h.shape), 1e-6)
    b = (general(4, 4) / 2).astype(np.complex64)
    e = from_rows(evaluate("exp_matrix<4>(out, in);", complex_rows(b), 32, lanes=8), 4, 4)
    f = from_rows(evaluate("exp_matrix<4>(out, in);", complex_rows(b.astype(complex)), 32), 4, 4)
    close(e, f, 2e-5)
