"""Conjugate gradients: exact solutions, convergence theory, honest failure."""

from __future__ import annotations

import math

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Real, Spinor, Vector
from jali.errors import LayoutError, ParameterError, RecordingError, SolverError
from jali.solvers import cg

pytestmark = pytest.mark.lanes

LATTICE = Lattice(8, 6, 4)


@jali.site_function
def helmholtz(X, out, phi, m2):
    """(m^2 - Laplace) phi."""
    total = (m2 + 2 * X.ndim) * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu] - phi[X - mu]
    out[X] = total


def operator(m2):
    return lambda p, q: helmholtz(q, p, m2)


def random_field(element=None, seed=1, lattice=LATTICE, **options):
    element = Real() if element is None else element
    field = Field(lattice, element, **options)
    rng = np.random.default_rng(seed)
    shape = lattice.extents + element.numpy_shape
    values = rng.normal(size=shape)
    field[...] = values if element.type.kind == "real" else values + 1j * rng.normal(size=shape)
    return field


def exact_inverse(b, m2):
    """By Fourier transform, on a periodic lattice."""
    axes = tuple(range(LATTICE.ndim))
    p2 = sum(
        (4 * np.sin(np.pi * np.arange(n) / n) ** 2).reshape([-1 if d == a else 1 for d in axes])
        for a, n in enumerate(LATTICE.extents)
    )
    extra = b.ndim - LATTICE.ndim
    return np.fft.ifftn(np.fft.fftn(b, axes=axes) / (m2 + p2)[(..., *[None] * extra)], axes=axes)


@pytest.mark.short(2)
@pytest.mark.parametrize("element", [Real(), Complex(), Vector(3), Spinor(2)], ids=str)
def test_solution_of_the_helmholtz_equation_is_that_of_fourier(element):
    b = random_field(element)
    before = b[...]
    found = cg(operator(0.1), b, rtol=1e-12)
    assert found.converged
    assert np.allclose(found.x[...], exact_inverse(b[...], 0.1), rtol=1e-10, atol=1e-10)
    assert found.residual < 2e-12
    assert np.array_equal(b[...], before)


def test_residual_history_begins_at_one_and_ends_below_the_tolerance():
    found = cg(operator(0.5), random_field(), rtol=1e-08)
    assert len(found.history) == found.iterations + 1
    assert found.history[0] == 1.0
    assert found.history[-1] <= 1e-8 < found.history[-2]
    assert found.residual == pytest.approx(found.history[-1], rel=1e-4)


def test_error_falls_as_fast_as_the_condition_number_says():
    """|e_k|_A <= 2 ((sqrt(c) - 1) / (sqrt(c) + 1))^k |e_0|_A, here for the residual with a factor sqrt(c)."""
    m2 = 0.5
    c = (m2 + 12) / m2
    rate = (math.sqrt(c) - 1) / (math.sqrt(c) + 1)
    found = cg(operator(m2), random_field(), rtol=1e-10)
    for k, residual in enumerate(found.history):
        assert residual <= 2 * math.sqrt(c) * rate**k


def test_iterations_are_at_most_the_number_of_distinct_eigenvalues():
    """On a ring of 6 sites the Laplacian has 4 eigenvalues: conjugate gradients ends after 4 steps."""
    b = random_field(lattice=Lattice(6))
    found = cg(operator(1.0), b, rtol=1e-12)
    assert found.iterations == 4


def test_start_at_the_solution_needs_no_iteration():
    b = random_field()
    x = cg(operator(0.3), b, rtol=1e-12).x
    again = cg(operator(0.3), b, x0=x, rtol=1e-10)
    assert again.iterations == 0
    assert np.array_equal(again.x[...], x[...])
    assert again.x is not x


def test_better_start_needs_fewer_iterations_and_is_not_changed():
    b = random_field()
    x0 = cg(operator(0.3), b, rtol=0.0001).x
    before = x0[...]
    cold, warm = cg(operator(0.3), b), cg(operator(0.3), b, x0=x0)
    assert warm.iterations < cold.iterations
    assert np.array_equal(x0[...], before)
    assert np.allclose(warm.x[...], cold.x[...], atol=1e-8)


def test_zero_right_hand_side_has_the_solution_zero():
    found = cg(operator(0.3), Field(LATTICE, Real()), x0=random_field())
    assert found.iterations == 0
    assert found.converged
    assert not np.any(found.x[...])


def test_boundary_conditions_of_the_right_hand_side_are_kept():
    """With open ends the operator is the Dirichlet one: compare with a dense solve."""
    lattice = Lattice(7)
    b = random_field(lattice=lattice, boundary="open")
    dense = 2.25 * np.eye(7) - np.eye(7, k=1) - np.eye(7, k=-1)
    found = cg(operator(0.25), b, rtol=1e-13)
    assert np.allclose(found.x[...], np.linalg.solve(dense, b[...]), rtol=1e-11)


def test_single_precision_reaches_its_own_accuracy():
    b = random_field(precision="float32")
    found = cg(operator(0.5), b, rtol=1e-05)
    assert np.allclose(found.x[...], exact_inverse(b[...].astype(float), 0.5).real, atol=1e-4)


def test_history_is_bit_identical_on_any_number_of_ranks():
    def run():
        lattice = Lattice(8, 6, 4)
        b = random_field(Complex(), 3, lattice)
        found = cg(operator(0.2), b)
        return found.history, found.x[...]

    residuals, solution = run()
    for ranks in (2, 3):
        for other, values in jali.virtual_ranks(ranks, run):
            assert other == residuals
            assert np.array_equal(values, solution)


def test_no_convergence_is_an_error_with_numbers():
    with pytest.raises(
        SolverError, match=r"no convergence to 1e-10 in 3 iterations: \|b - A x\|/\|b\| is 0\.\d+"
    ):
        cg(operator(0.01), random_field(), maxiter=3)


def test_no_convergence_is_a_flag_on_request():
    found = cg(operator(0.01), random_field(), maxiter=3, must_converge=False)
    assert not found.converged
    assert found.iterations == 3
    assert found.residual == pytest.approx(found.history[-1], rel=1e-10)


def test_indefinite_operator_is_an_error():
    with pytest.raises(SolverError, match="not positive definite"):
        cg(operator(-3.0), random_field())


def test_negative_operator_is_an_error_in_the_first_iteration():
    with pytest.raises(SolverError, match="iteration 1: .* not positive definite"):
        cg(lambda p, q: helmholtz(q, p, -50.0), random_field())


def test_operator_that_is_not_hermitian_is_an_error():
    @jali.site_function
    def drift(X, out, phi):
        out[X] = (5 + 2j) * phi[X]

    with pytest.raises(SolverError, match="is not real: the operator is not Hermitian"):
        cg(lambda p, q: drift(q, p), random_field(Complex()))


def test_infinities_are_an_error_not_an_endless_loop():
    @jali.site_function
    def overflow(X, out, phi):
        out[X] = 1e300 * (1e300 * phi[X])

    with pytest.raises(SolverError, match="infinities or nan"):
        cg(lambda p, q: overflow(q, p), random_field())
    b = random_field()
    b[0, 0, 0] = np.nan
    with pytest.raises(SolverError, match=r"b contains infinities or nan \(1 numbers\)"):
        cg(operator(0.3), b)


@pytest.mark.parametrize("tolerance", [0, 1, -1e-3, "small"])
def test_impossible_tolerance_is_refused(tolerance):
    with pytest.raises(ParameterError, match="cg: rtol is"):
        cg(operator(0.3), random_field(), rtol=tolerance)


def test_impossible_arguments_are_refused():
    with pytest.raises(ParameterError, match="maxiter is a positive whole number"):
        cg(operator(0.3), random_field(), maxiter=0)
    with pytest.raises(ParameterError, match="maxiter is a positive whole number"):
        cg(operator(0.3), random_field(), maxiter=None)
    with pytest.raises(SolverError, match="cg: x0 contains infinities or nan"):
        cg(operator(0.3), b := random_field(), x0=b.like().set_local(np.full(b.lattice.extents, np.nan)))
    with pytest.raises(LayoutError, match="x0 holds Complex"):
        cg(operator(0.3), random_field(), x0=random_field(Complex()))


@pytest.mark.parametrize("check_interval", [2, 7])
@pytest.mark.parametrize("element", [Real(), Complex()], ids=str)
def test_result_does_not_depend_on_how_often_the_host_looks(element, check_interval):
    b = random_field(element)
    each = cg(operator(0.2), b, check_interval=1)
    some = cg(operator(0.2), b, check_interval=check_interval)
    assert (each.check_interval, some.check_interval) == (1, check_interval)
    assert (some.history, some.residual) == (each.history, each.residual)
    assert np.array_equal(some.x[...], each.x[...])


def test_looking_less_often_gives_up_and_fails_in_the_same_iteration():
    b = random_field()
    for m2, bound in ((0.01, 11), (0.01, 12), (-0.3, 100)):
        results = []
        for check_interval in (1, 4):
            try:
                found = cg(operator(m2), b, maxiter=bound, must_converge=False, check_interval=check_interval)
                results.append((found.history, found.residual))
            except SolverError as error:
                results.append(str(error))
        assert results[0] == results[1]
        assert isinstance(results[0], str) == (m2 < 0)


def test_exact_convergence_within_a_graph_leaves_the_solution_as_it_is():
    """On a ring of 6 sites the residual vanishes after 4 steps; what follows must not divide zero by zero."""
    b = random_field(lattice=Lattice(6))
    each = cg(operator(1.0), b, rtol=1e-14, must_converge=False, maxiter=6)
    some = cg(operator(1.0), b, rtol=1e-14, must_converge=False, maxiter=30, check_interval=12)
    assert np.all(np.isfinite(some.x[...]))
    assert np.allclose(some.x[...], each.x[...], rtol=1e-13)


def test_operator_that_cannot_be_recorded_is_refused_where_that_was_requested():
    def apply(p, q):
        q[...] = 2 * p[...]

    assert cg(apply, random_field()).iterations == 1
    with pytest.raises(RecordingError, match="is read or set from Python while a graph is recorded"):
        cg(
            lambda p, q: apply(p, q) if np.any(p[...]) else None,
            random_field(),
            check_interval=4,
            rtol=1e-300,
        )


def test_history_with_graphs_is_bit_identical_on_any_number_of_ranks():
    def run():
        b = random_field(Complex(), 3, Lattice(8, 6, 4))
        found = cg(operator(0.2), b, check_interval=5)
        return found.history, found.x[...]

    residuals, solution = run()
    for other, values in jali.virtual_ranks(2, run):
        assert other == residuals
        assert np.array_equal(values, solution)


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("power", [-1000, -540, -120, -60, 60, 120, 540, 1000])
def test_right_hand_sides_whose_squares_vanish_or_overflow_are_scaled(power, precision):
    """By a power of two, so that the solution is the same digits."""
    if precision == "float32" and abs(power) > 120:
        return
    b = random_field(precision=precision)
    scaled, start = (field.like() for field in (b, b))
    scaled[...] = b[...] * b[...].dtype.type(2.0**power)
    start[...] = scaled[...] / 3
    expected, found = (cg(operator(1.5), field, rtol=1e-05) for field in (b, scaled))
    assert found.iterations == expected.iterations
    assert found.residual == pytest.approx(expected.residual, rel=1e-2)
    got = found.x[...].astype(float) / 2.0**power
    np.testing.assert_allclose(got, expected.x[...], rtol=1e-5, atol=1e-6)
    began = cg(operator(1.5), scaled, start, rtol=1e-05)
    np.testing.assert_allclose(began.x[...] / 2.0**power, expected.x[...], rtol=1e-3, atol=1e-3)


def test_right_hand_sides_of_zeros_and_infinities_stay_so():
    zero = random_field().like()
    assert not cg(operator(1.5), zero).x[...].any()
    for value in (np.inf, np.nan):
        zero[0, 0, 0] = value
        with pytest.raises(SolverError, match="cg: b contains infinities or nan"):
            cg(operator(1.5), zero)
    tiny = cg(lambda p, q: np.multiply(2, p, out=q), np.ones(3) * 1e-170).x
    np.testing.assert_allclose(tiny, 5e-171)


def test_a_start_of_another_precision_is_refused():
    b = random_field()
    with pytest.raises(LayoutError, match=r"x0 has float32 arithmetic, b has float64: x.astype\('float64'\)"):
        cg(operator(1.5), b, x0=b.astype("float32"))


def test_whole_numbers_are_no_vectors():
    with pytest.raises(LayoutError, match="holds whole numbers; solvers compute with real and complex ones"):
        cg(operator(1.5), Field(LATTICE, jali.Integer()))
