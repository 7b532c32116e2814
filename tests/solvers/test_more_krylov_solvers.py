"""Flexible GMRES, Chebyshev iteration and block conjugate gradients: solutions of dense algebra, bits in graphs, on ranks and of batches, and honest ends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from known_systems import HERMITIAN, OfMatrix, halved, matrix_for, source, wilson

import jali
from jali import ODD, Field, Lattice, LayoutError, ParameterError, Spinor
from jali.arrays import DistributedArray
from jali.errors import RecordingError, SolverError
from jali.fermions import WilsonDirac
from jali.linops import Identity, Laplacian
from jali.solvers import ChebyshevPreconditioner, block_cg, cg, chebyshev, chebyshev_window, fgmres, mr
from jali.vectors import vectors_of


def tripled(p, q):
    vectors_of("q", q).update([(q, 0, [(3.0, p)])])


SOLVERS: dict[str, Any] = {
    "fgmres": fgmres,
    "fgmres 4": functools.partial(fgmres, restart=4, M=halved),
    "chebyshev": functools.partial(chebyshev, window=(0.15, 40.0)),
}
every_solver = pytest.mark.parametrize("name", SOLVERS)
on_fields = pytest.mark.parametrize("name", [name for name in SOLVERS if name != "fgmres"])


def dense(D, like):
    """The matrix of an operator on fields, between numbers of `like` that are on its sites; and these numbers of a field."""
    on = np.zeros(like.shape, bool)
    ones = like.like()
    ones[...] = 1.0
    on[...] = ones[...] != 0
    units = like.like(batch=int(on.sum()))
    values = np.zeros(units.shape, complex)
    where = np.argwhere(on)
    for k, at in enumerate(where):
        values[(*at[:-2], k, *at[-2:])] = 1.0
    units[...] = values
    images = (D @ units)[...]
    matrix = np.stack([np.take(images, k, axis=-3)[on] for k in range(len(where))], axis=1)
    return matrix, lambda f: f[...][on]


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
@every_solver
def test_arrays_have_the_solution_of_numpy(name, complex_):
    M, b = matrix_for(name, complex_)
    x0 = np.ones_like(b)
    for start in (None, x0):
        found = SOLVERS[name](OfMatrix(M), b, start, rtol=1e-11)
        expected = np.linalg.solve(M, b)
        assert np.linalg.norm(found.x - expected) < 1e-9 * np.linalg.norm(expected)
        true = np.linalg.norm(b - M @ found.x) / np.linalg.norm(b)
        assert found.residual <= 1e-11
        assert abs(found.residual - true) < 1e-14
        assert len(found.history) == found.iterations + 1
        assert found.time > 0
    assert (x0 == 1).all()


@pytest.mark.parametrize("half", [False, True], ids=["all sites", "one colour"])
@on_fields
def test_fields_and_their_batches_have_the_solution_of_dense_algebra(name, half):
    lattice = Lattice(2, 4)
    A, D = wilson(lattice, name, half=half)
    many = source(lattice, 2)
    many = many.on(ODD) if half else many
    one = many.members[0].copy()
    matrix, numbers = dense(D, one)
    matrix = matrix.conj().T @ matrix if name in HERMITIAN else matrix
    found = SOLVERS[name](A, many, rtol=1e-11)
    alone = SOLVERS[name](A, one, rtol=1e-11)
    for k, x in enumerate((*(member.x for member in found.members), alone.x)):
        expected = np.linalg.solve(matrix, numbers(many.members[k % 2]))
        assert np.linalg.norm(numbers(x) - expected) < 1e-9 * np.linalg.norm(expected)


@on_fields
def test_graphs_and_ranks_have_the_same_bits(name):
    def run(check_interval):
        lattice = Lattice(4, 6)
        A, D = wilson(lattice, name)
        b = source(lattice)
        found = SOLVERS[name](A, b, rtol=1e-6, check_interval=check_interval)
        r = b[...] - ((D.dagger @ (D @ found.x)) if name in HERMITIAN else (D @ found.x))[...]
        true = np.linalg.norm(r) / np.linalg.norm(b[...])
        return found.history, found.x[...].tobytes(), abs(found.residual - true) < 1e-13, found.residual

    alone = run(1)
    assert alone[2]
    assert alone[3] <= 1e-6
    assert run(4) == alone
    for ranks in (2, 3, 4):
        for one in jali.virtual_ranks(ranks, run, 1):
            assert one == alone


@on_fields
def test_members_of_a_batch_have_the_bits_of_single_solves_and_stop_one_by_one(name):
    lattice = Lattice(4, 4)
    A, _ = wilson(lattice, name)
    b = source(lattice, 3)
    b.members[1][...] = 0.0
    atol = 1e-6 * np.linalg.norm(b.members[0][...])  # so that they take different numbers of iterations
    for check_interval in (1, 3):
        found = SOLVERS[name](A, b, rtol=1e-11, atol=float(atol), check_interval=check_interval)
        assert found.converged
        assert found[1].iterations == 0
        assert found[0].iterations < found[2].iterations
        for k in (0, 2):
            single = b.members[k].copy()
            alone = SOLVERS[name](A, single, rtol=1e-11, atol=float(atol), check_interval=1)
            assert found[k].history == alone.history
            assert found[k].x[...].tobytes() == alone.x[...].tobytes()


@every_solver
def test_zero_and_what_is_solved_already_take_no_iteration(name):
    M, b = matrix_for(name, True)
    found = SOLVERS[name](OfMatrix(M), np.zeros_like(b), np.ones_like(b))
    assert found.iterations == 0
    assert not found.x.any()
    x = np.linalg.solve(M, b)
    assert SOLVERS[name](OfMatrix(M), b, x).iterations == 0


@on_fields
def test_a_tolerance_below_rounding_ends_in_its_error(name):
    lattice = Lattice(4, 4)
    A, _ = wilson(lattice, name)
    with pytest.raises(SolverError, match="below what rounding in float64 allows|stagnation") as raised:
        SOLVERS[name](A, source(lattice), rtol=1e-18, maxiter=2000)
    history = raised.value.history
    assert history[0] == 1.0
    assert min(history) < 1e-13


@on_fields
def test_too_few_iterations_end_in_an_error_with_the_history(name):
    lattice = Lattice(4, 4)
    A, _ = wilson(lattice, name)
    with pytest.raises(SolverError, match="no convergence to 1e-10 in ") as raised:
        SOLVERS[name](A, source(lattice), maxiter=2)
    assert len(raised.value.history) == 3
    found = SOLVERS[name](A, source(lattice), maxiter=2, must_converge=False)
    assert not found.converged
    assert found.history == raised.value.history
    with pytest.raises(SolverError, match="members 0, 1 of the batch: no convergence") as raised:
        SOLVERS[name](A, source(lattice, 2), maxiter=2)
    assert len(raised.value.history[0]) == 2


@on_fields
def test_nan_at_one_site_of_one_rank_is_an_error_on_all(name):
    def run():
        lattice = Lattice(4, 6)
        _, D = wilson(lattice, name)
        damage = Field(lattice, Spinor(2))
        damage[0, 5] = np.nan

        def broken(p, q):
            (D.normal if name in HERMITIAN else D.apply)(p, q)
            vectors_of("q", q).update([(q, 1, [(1, damage)])])

        with pytest.raises(SolverError, match="infinit|nan"):
            SOLVERS[name](broken, source(lattice))
        return True

    assert run()
    assert jali.virtual_ranks(2, run) == [True, True]


@every_solver
def test_an_exact_solution_is_no_breakdown(name):
    b = np.array([1.0, -2.0, 0.5])
    for factor in (1.0, 3.0, 0.7):
        found = SOLVERS[name](OfMatrix(factor * np.eye(3)), b)
        assert np.allclose(found.x, b / factor, rtol=1e-9)
    lattice = Lattice(2, 2)
    for batch in (None, 2):
        field = source(lattice, batch)
        found = SOLVERS[name](tripled, field)
        assert np.allclose(3 * found.x[...], field[...], rtol=1e-9)


@pytest.mark.parametrize("size", [1e-300, 1e-158, 1e200])
@every_solver
def test_right_hand_sides_of_any_size_are_solved_for(name, size):
    M, b = matrix_for(name, True)
    found = SOLVERS[name](OfMatrix(M), size * b, rtol=1e-11)
    plain = SOLVERS[name](OfMatrix(M), b, rtol=1e-11)
    assert found.iterations == pytest.approx(plain.iterations, abs=1)
    assert np.linalg.norm(found.x / size - plain.x) < 1e-9 * np.linalg.norm(plain.x)


@every_solver
def test_nan_never_comes_back(name):
    M, b = matrix_for(name, True)

    def spoil(x):
        x[...] = np.nan

    with pytest.raises(SolverError, match="infinities or nan"):
        SOLVERS[name](OfMatrix(M), b, callback=spoil, must_converge=False)


@every_solver
def test_bad_arguments_are_named(name):
    M, b = matrix_for(name, True)
    A, solver = OfMatrix(M), SOLVERS[name]
    for options, match in (
        ({"rtol": 0.0}, "rtol is below 1, and rtol or atol above 0, not 0.0 and 0.0"),
        ({"rtol": -1.0}, "rtol is a real number from 0, not -1.0"),
        ({"maxiter": 0}, "maxiter is a positive whole number, not 0"),
        ({"check_interval": 2}, "cannot be recorded"),
        ({"callback": 3}, "a callback is a function of x, not 3"),
    ):
        with pytest.raises(ParameterError, match=match):
            solver(A, b, **options)
    with pytest.raises((ParameterError, LayoutError), match="x0"):
        solver(A, b, np.ones(3))
    with pytest.raises(ParameterError, match="the operator has a function matvec, or is a function A"):
        solver(3, b)
    with pytest.raises(SolverError, match="b contains infinities or nan"):
        solver(A, b * np.inf)
    field = source(Lattice(2, 2), 2)
    with pytest.raises(ParameterError, match="b is a list in which there is a field with a batch"):
        solver(lambda p, q: None, [field, field])
    with pytest.raises(TypeError, match="must_converge"):
        solver(A, b, converge=True)


def test_what_cannot_be_recorded_is_iterated_and_an_error_where_it_was_asked_for():
    lattice = Lattice(4, 4)
    _, D = wilson(lattice, "fgmres")
    b = source(lattice)

    def reads(p, q):
        D.apply(p, q)
        float(q[0, 0, 0, 0].real)

    with pytest.raises(RecordingError):
        fgmres(reads, b, restart=3, check_interval=2)
    assert fgmres(reads, b, restart=3, rtol=1e-3).history == fgmres(D, b, restart=3, rtol=1e-3).history


# ---- flexible GMRES --------------------------------------------------------------------------------------


@pytest.mark.parametrize("restart", [1, 5, 11, 24])
def test_fgmres_has_the_smallest_residual_in_each_space(restart):
    M, b = matrix_for("fgmres", True)
    found = fgmres(OfMatrix(M), b, restart=restart, rtol=1e-6)
    r, expected = b, [1.0]
    while len(expected) <= found.iterations:
        space = [r]
        for _ in range(min(restart, found.iterations + 1 - len(expected))):
            images = M @ np.linalg.qr(np.stack(space, axis=1))[0]
            left = r - images @ np.linalg.lstsq(images, r, rcond=None)[0]
            expected.append(np.linalg.norm(left) / np.linalg.norm(b))
            space.append(images[:, -1])
        r = left
    assert np.allclose(found.history, expected, rtol=1e-6)


def test_fgmres_solves_what_gcr_cannot():
    swap = np.array([[0.0, 1.0], [-1.0, 0.0]])  # <r, A r> is zero for all real r
    assert np.allclose(fgmres(OfMatrix(swap), np.array([1.0, 0.0])).x, [0, 1])
    rng = np.random.default_rng(2)
    M = rng.normal(size=(12, 12))  # of no definite part
    b = rng.normal(size=12)
    assert np.allclose(fgmres(OfMatrix(M), b, restart=12).x, np.linalg.solve(M, b))


def test_fgmres_of_a_singular_operator_is_an_error_and_never_nan():
    with pytest.raises(SolverError, match="restarts no longer lower it|stagnation|no convergence"):
        fgmres(OfMatrix(np.diag([1.0, 2.0, 0.0])), np.ones(3))
    found = fgmres(OfMatrix(np.zeros((3, 3))), np.ones(3), must_converge=False, maxiter=20)
    assert found.residual == 1.0
    assert not found.x.any()


def test_a_preconditioner_of_fgmres_that_changes_saves_iterations():
    lattice = Lattice(4, 6)
    _, D = wilson(lattice, "fgmres", mass=0.1)
    b = source(lattice)
    r32 = b.like(precision="float32")
    E = WilsonDirac([u.astype("float32") for u in D.links], D.mass)

    def inner(r, z):
        """Some iterations in float32, to an accuracy that depends on r."""
        r32.assign(r)
        z.assign(mr(E.apply, r32, rtol=0.1, must_converge=False, maxiter=20).x.astype("float64"))

    found = fgmres(D, b, M=inner, restart=5)
    assert found.iterations < fgmres(D, b, restart=5).iterations / 3
    r = b[...] - (D @ found.x)[...]
    assert np.linalg.norm(r) <= 1e-10 * np.linalg.norm(b[...])


def test_fgmres_ends_inside_a_cycle():
    M, b = matrix_for("fgmres", False)
    calls = []

    class Counted(OfMatrix):
        def matvec(self, x):
            calls.append(1)
            return super().matvec(x)

    found = fgmres(Counted(M), b, restart=500)
    assert len(calls) == found.iterations + 1  # and the residual of the end
    calls.clear()
    found = fgmres(Counted(M), b, restart=500, maxiter=3, must_converge=False)
    assert found.iterations == 3
    assert len(calls) == 5  # and r, with which a saved solve goes on


def test_arguments_of_fgmres_are_checked():
    M, b = matrix_for("fgmres", True)
    for options, match in (
        ({"restart": 0}, "restart is a positive whole number, not 0"),
        ({"M": 3}, "the preconditioner M has a function matvec"),
    ):
        with pytest.raises(ParameterError, match=match):
            fgmres(OfMatrix(M), b, **options)


# ---- Chebyshev -------------------------------------------------------------------------------------------


def test_residuals_of_chebyshev_are_chebyshev_polynomials():
    values = np.linspace(1.0, 9.0, 7)
    b = np.arange(1.0, 8.0)
    found = chebyshev(OfMatrix(np.diag(values)), b, window=(1.0, 9.0), rtol=1e-8)
    centre, half = 5.0, 4.0
    for k, residual in enumerate(found.history):
        polynomial = np.polynomial.Chebyshev([0] * k + [1])
        r = polynomial((centre - values) / half) / polynomial(centre / half) * b
        assert residual == pytest.approx(np.linalg.norm(r) / np.linalg.norm(b), rel=1e-6)


def test_chebyshev_has_no_inner_products():
    lattice = Lattice(4, 4)
    A, _ = wilson(lattice, "chebyshev")
    b = source(lattice)
    vectors = type(vectors_of("b", b))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vectors, "norm2", None)
        patch.setattr(vectors, "inner", lambda self, x, y, wait=True: 0j if x is y else 1 / 0)
        with pytest.raises(TypeError):  # |b|^2, before the recursion
            chebyshev(A, b, window=(0.15, 40.0))
        patch.setattr(vectors, "norm2", lambda self, x, wait=True: float(np.linalg.norm(x[...])) ** 2)
        assert chebyshev(A, b, window=(0.15, 40.0)).converged


def test_an_operator_outside_of_the_window_is_named():
    M, b = matrix_for("chebyshev", True)
    n = len(b)
    low, high = np.linalg.eigvalsh(M)[[0, -1]]
    grows = "grows, by which A has eigenvalues that are negative or above window"
    for A, window, match in (
        (M - 1.1 * np.eye(n), (0.1, 9.0), rf"{grows}.*near -0\.\d+, .* and is not positive definite; solve"),
        (M, (low, high / 2), rf"{grows}=\(.*\), or is not Hermitian; A has an eigenvalue near [67]"),
        (-M, (low, high), "and is not positive definite; solve"),
        (M + 1j * M, (low, high), "which is not real: the operator is not Hermitian"),
        (-M, (0.1, None), r"A has the eigenvalue -7\.\d+, so it is not positive definite"),
        (M + 1j * M, (0.1, None), "which is not real: the operator is not Hermitian"),
    ):
        with pytest.raises(SolverError, match=match):
            chebyshev(OfMatrix(A), b, window=window)
    with pytest.raises(SolverError, match=r"no convergence.* A has an eigenvalue near 0\.5\d*, outside of"):
        chebyshev(OfMatrix(M), b, window=(4.0, high), maxiter=60)  # a small one is solved for, slowly
    lattice = Lattice(4, 4)
    A, _ = wilson(lattice, "chebyshev")
    with pytest.raises(SolverError, match=r"members 0, 1 of the batch: \|r\| grows, .* A has an eigenvalue"):
        chebyshev(A, source(lattice, 2), window=(0.15, 10.0))


def test_the_upper_end_of_a_window_is_estimated_from_above():
    for complex_ in (False, True):
        M, b = matrix_for("chebyshev", complex_)
        largest = np.linalg.eigvalsh(M)[-1]
        low, high = chebyshev_window(OfMatrix(M), b, 20)
        assert largest < high < 1.11 * largest
        assert high == pytest.approx(20 * low)
        found = chebyshev(OfMatrix(M), b, window=(0.5, None))
        assert np.linalg.norm(b - M @ found.x) <= 1e-10 * np.linalg.norm(b)
        with pytest.raises(ParameterError, match="begins at 100, and the largest eigenvalue is at most"):
            chebyshev(OfMatrix(M), b, window=(100.0, None))
    many = source(Lattice(2, 2), 2)
    with pytest.raises(ParameterError, match=r"chebyshev_window\(A, f.members\[0\]\) is that of one member"):
        chebyshev(tripled, many, window=(0.5, None))
    low, high = chebyshev_window(tripled, many.members[0])
    assert high == pytest.approx(3.3)


def test_windows_and_degrees_are_checked():
    M, b = matrix_for("chebyshev", True)
    for window in (None, 3.0, (1.0,), (0.0, 1.0), (2.0, 1.0), (1.0, np.inf), (True, 2.0), (None, 2.0), "ab"):
        with pytest.raises(ParameterError, match=r"chebyshev: window .*\(a, b\)"):
            chebyshev(OfMatrix(M), b, window=window)
        if window is not None:
            with pytest.raises(ParameterError, match=r"ChebyshevPreconditioner: window .*\(a, b\)"):
                ChebyshevPreconditioner(OfMatrix(M), window)
    with pytest.raises(ParameterError, match="degree is a whole number from 0, not -1"):
        ChebyshevPreconditioner(OfMatrix(M), (1.0, 2.0), -1)
    with pytest.raises(ParameterError, match="A has a function matvec"):
        ChebyshevPreconditioner(3)
    with pytest.raises(ParameterError, match="ratio is a number above 1, not 1"):
        chebyshev_window(OfMatrix(M), b, 1)


@pytest.mark.parametrize("degree", [0, 1, 5])
def test_a_chebyshev_preconditioner_is_a_positive_polynomial(degree):
    values = np.array([0.01, 0.3, 1.0, 2.5, 4.0])
    M = ChebyshevPreconditioner(OfMatrix(np.diag(values)), (0.5, 4.0), degree)
    matrix = np.zeros((5, 5))
    for k in range(5):
        M(np.eye(5)[k], matrix[k])
    centre, half = 2.25, 1.75
    polynomial = np.polynomial.Chebyshev([0] * (degree + 1) + [1])
    left = polynomial((centre - values) / half) / polynomial(centre / half)
    assert np.allclose(matrix, np.diag((1 - left) / values), atol=1e-13)
    assert (np.diag(matrix) > 0).all()


@pytest.mark.parametrize("solver", [cg, functools.partial(fgmres, restart=4)], ids=["cg", "fgmres"])
def test_a_chebyshev_preconditioner_saves_iterations_also_in_graphs(solver):
    lattice = Lattice(4, 6)
    A, _ = wilson(lattice, "chebyshev", mass=0.1)
    b = source(lattice)
    plain = solver(A, b, rtol=1e-6)
    M = ChebyshevPreconditioner(A, degree=4)
    found = solver(A, b, M=M, rtol=1e-6, check_interval=2)
    assert M.window == chebyshev_window(A, b)
    assert found.iterations < plain.iterations / 2
    each = solver(A, b, M=M, rtol=1e-6, check_interval=1)
    assert each.history == found.history
    assert each.x[...].tobytes() == found.x[...].tobytes()
    many = source(lattice, 2)
    both = solver(A, many, M=M, rtol=1e-6)
    assert both.converged
    alone = solver(A, many.members[0].copy(), M=M, rtol=1e-6)
    assert both[0].x[...].tobytes() == alone.x[...].tobytes()


# ---- block conjugate gradients ---------------------------------------------------------------------------


def hermitian(complex_, values=None, n=24):
    """A Hermitian positive definite matrix with these eigenvalues, and numbers."""
    rng = np.random.default_rng(4)
    values = np.linspace(0.5, 8.0, n) if values is None else values
    Q = np.linalg.qr(
        rng.normal(size=(len(values),) * 2) + (1j * rng.normal(size=(len(values),) * 2) if complex_ else 0)
    )[0]
    return (
        (Q * values) @ Q.conj().T,
        lambda: rng.normal(size=len(values)) + (1j * rng.normal(size=len(values)) if complex_ else 0),
    )


def small_ones(count, n=120):
    """A spectrum of order one, but for some small eigenvalues."""
    return np.concatenate([10.0 ** np.linspace(-4, -3, count), np.linspace(1, 10, n - count)])


@pytest.mark.parametrize("complex_", [False, True], ids=["real", "complex"])
def test_block_cg_of_lists_has_the_solutions_of_numpy(complex_):
    M, random = hermitian(complex_)
    B = [random() for _ in range(3)]
    x0 = [np.ones_like(b) for b in B]
    for start in (None, x0):
        found = block_cg(OfMatrix(M), B, start, rtol=1e-11)
        assert found.converged
        assert isinstance(found.x, list)
        for b, x, one in zip(B, found.x, found.members, strict=True):
            assert np.linalg.norm(x - np.linalg.solve(M, b)) < 1e-9 * np.linalg.norm(x)
            assert abs(one.residual - np.linalg.norm(b - M @ x) / np.linalg.norm(b)) < 1e-14
            assert one.residual <= 1e-11
            assert len(one.history) == one.iterations + 1
    assert all((x == 1).all() for x in x0)
    into = block_cg(lambda p, q: np.matmul(M, p, out=q), tuple(B), rtol=1e-11)
    assert [x.tobytes() for x in into.x] == [x.tobytes() for x in block_cg(OfMatrix(M), B, rtol=1e-11).x]


@pytest.mark.parametrize("half", [False, True], ids=["all sites", "one colour"])
def test_block_cg_of_fields_has_the_solutions_of_dense_algebra(half):
    lattice = Lattice(2, 4)
    A, D = wilson(lattice, "chebyshev", half=half)
    many = source(lattice, 3)
    many = many.on(ODD) if half else many
    matrix, numbers = dense(D, many.members[0])
    matrix = matrix.conj().T @ matrix
    for x0 in (None, many):
        found = block_cg(A, many, x0, rtol=1e-11)
        for k, one in enumerate(found.members):
            expected = np.linalg.solve(matrix, numbers(many.members[k]))
            assert np.linalg.norm(numbers(one.x) - expected) < 1e-9 * np.linalg.norm(expected)
            r = numbers(many.members[k]) - matrix @ numbers(one.x)
            assert np.linalg.norm(r) <= 1e-11 * np.linalg.norm(numbers(many.members[k]))


def test_block_cg_in_graphs_and_on_ranks_has_the_same_bits():
    def run(check_interval):
        lattice = Lattice(4, 6)
        A, _ = wilson(lattice, "chebyshev")
        found = block_cg(A, source(lattice, 3), rtol=1e-6, check_interval=check_interval)
        return [one.history for one in found.members], found.x[...].tobytes(), found[0].residual

    alone = run(1)
    assert alone[2] <= 1e-6
    assert run(2) == run(None) == alone
    for ranks in (2, 3, 4):
        for one in jali.virtual_ranks(ranks, run, 1):
            assert one == alone


def test_members_that_share_a_space_take_fewer_iterations_where_few_eigenvalues_are_small():
    M, random = hermitian(False, small_ones(4))
    B = [random() for _ in range(8)]
    single = max(cg(OfMatrix(M), b).iterations for b in B)
    counts = [block_cg(OfMatrix(M), B[:count]).iterations for count in (1, 2, 4, 8)]
    assert abs(counts[0] - single) <= 1
    assert counts[1] < 0.7 * single
    assert counts[2] < 0.5 * single
    assert counts[3] < 0.25 * single
    lattice = Lattice(12, 12)

    @jali.site_function
    def schroedinger(X, out, f, v):
        out[X] = (4 + v[X]) * f[X] - sum(f[X + mu] + f[X - mu] for mu in X.directions())

    def apply(p, q):
        schroedinger(q, p, v)

    b, v = Field(lattice, jali.Real(), batch=6), Field(lattice, jali.Real())
    b[...] = np.random.default_rng(1).normal(size=b.shape)
    v[...] = 0.1 * np.random.default_rng(2).random(size=v.shape)
    assert block_cg(apply, b).iterations < 0.6 * cg(apply, b).iterations


@pytest.mark.parametrize("nearly", [0.0, 1e-14, 1e-9, 1e-7, 1e-4])
def test_right_hand_sides_that_depend_on_each_other_all_get_their_solution(nearly):
    M, random = hermitian(True)
    b = random()
    B = [b, b + nearly * random(), -3j * b, 0 * b, random(), 1e-170 * b]
    found = block_cg(OfMatrix(M), B, rtol=1e-12)
    for one, rhs, x in zip(found.members, B, found.x, strict=True):
        assert one.residual <= 1e-12
        assert np.linalg.norm(x - np.linalg.solve(M, rhs)) <= 1e-10 * np.linalg.norm(x)
    assert found[3].iterations == 0
    lattice = Lattice(4, 4)
    A, _ = wilson(lattice, "chebyshev")
    many = source(lattice, 2).like(batch=4)
    for k in range(3):
        many.members[k][...] = (k - 1.5) * source(lattice)[...]
    both = block_cg(A, many, check_interval=2)
    assert both.converged
    alone = cg(A, source(lattice)).x[...]
    for k in range(3):
        assert np.allclose(both[k].x[...], (k - 1.5) * alone, atol=1e-9)
    assert not both[3].x[...].any()


def test_rank_is_lost_where_single_directions_are_solved_for():
    values = np.array([1.0, 2, 2, 2, 5, 5, 5, 7, 8, 9])
    unit = np.eye(10)
    B = [unit[0], np.ones(10), unit[1] + unit[4]]  # after one, six and two iterations
    found = block_cg(OfMatrix(np.diag(values)), B, rtol=1e-13)
    assert found.iterations <= 6
    for b, x in zip(B, found.x, strict=True):
        assert np.allclose(x, b / values, rtol=1e-12)
    for factor in (1.0, 3.0, 0.7):
        found = block_cg(OfMatrix(factor * np.eye(10)), B)
        assert found.iterations == 1
        assert np.allclose(found.x[1], 1 / factor)
    assert block_cg(tripled, source(Lattice(2, 2), 2)).iterations == 1


def test_members_that_share_a_space_stop_one_by_one():
    lattice = Lattice(4, 4)
    A, _ = wilson(lattice, "chebyshev")
    b = source(lattice, 3)
    atol = float(1e-4 * np.linalg.norm(b.members[0][...]))
    found = block_cg(A, b, rtol=1e-11, atol=atol)
    counts = [one.iterations for one in found.members]
    assert counts[0] < counts[1] < counts[2]
    assert found[0].residual <= 1e-4  # x has stayed as it was
    assert found[0].residual > 1e-7
    assert found[0].residual == pytest.approx(found[0].history[-1], rel=1e-6)
    assert [len(one.history) for one in found.members] == [count + 1 for count in counts]


def test_right_hand_sides_of_any_size_share_a_space():
    M, random = hermitian(True)
    B = [random() for _ in range(3)]
    plain = block_cg(OfMatrix(M), B, rtol=1e-11)
    sizes = (1e-250, 1.0, 1e200)
    found = block_cg(OfMatrix(M), [s * b for s, b in zip(sizes, B, strict=True)], rtol=1e-11)
    assert abs(found.iterations - plain.iterations) <= 1
    for size, x, y in zip(sizes, found.x, plain.x, strict=True):
        assert np.allclose(x / size, y, atol=1e-9)
    single = block_cg(
        OfMatrix(M.astype(np.complex64)), [b.astype(np.complex64) for b in B], rtol=1e-5
    )  # in float32
    assert single.x[0].dtype == np.complex64
    assert all(one.residual <= 1e-5 for one in single.members)


def test_what_block_cg_cannot_solve_is_named():
    M, random = hermitian(True)
    B = [random(), random()]
    n = len(B[0])
    of = r"block_cg, members 0, 1 of the batch: D\^dagger A D is"
    for A, match in (
        (-M, f"{of} not positive definite: .*; solve A"),
        (M - 2 * np.eye(n), f"{of} not positive definite"),
        (np.diag([0.0] + [1.0] * (n - 1)), "D.dagger A D is not positive definite: the operator is singular"),
        (
            M + 1j * np.diag(np.arange(n)),
            "; the operator is not Hermitian, or is another one for each member",
        ),
        (np.nan * M, f"{of} infinite or nan"),
    ):
        with pytest.raises(SolverError, match=match) as raised:
            block_cg(OfMatrix(A), B)
        assert raised.value.history[0] == [1.0, 1.0]
    lattice = Lattice(4, 4)
    A, _ = wilson(lattice, "chebyshev")
    many = source(lattice, 2)

    @jali.site_function
    def scaled(X, out, f, masses):
        out[X] = masses[X.member] * f[X]

    with pytest.raises(SolverError, match="or is another one for each member"):
        block_cg(lambda p, q: scaled(q, p, np.array([1.0, 2.0])), many)
    with pytest.raises(SolverError, match="below what rounding in float64 allows|stagnation"):
        block_cg(A, many, rtol=1e-18)
    with pytest.raises(SolverError, match=r"members 0, 1 of the batch: no convergence to 1e-10 in 4 iter"):
        block_cg(A, many, maxiter=3)
    found = block_cg(A, many, maxiter=4, must_converge=False)
    assert not found.converged
    assert found.iterations == 4
    with pytest.raises(SolverError, match="infinities or nan"):
        block_cg(OfMatrix(M), B, callback=lambda X: X[0].fill(np.nan), must_converge=False)
    with pytest.raises(SolverError, match="b has infinities or nan"):
        block_cg(OfMatrix(M), [B[0], np.inf * B[1]])


def test_nan_at_one_site_of_one_rank_stops_a_block_on_all():
    def run():
        lattice = Lattice(4, 6)
        A, _ = wilson(lattice, "chebyshev")
        damage = Field(lattice, Spinor(2), batch=2)
        damage[0, 5] = np.nan

        def broken(p, q):
            A(p, q)
            vectors_of("q", q).update([(q, 1, [(1, damage)])])

        with pytest.raises(SolverError, match="infinite or nan"):
            block_cg(broken, source(lattice, 2))
        return True

    assert jali.virtual_ranks(2, run) == [True, True]


def test_arguments_of_block_cg_are_checked():
    M, random = hermitian(False)
    A, b = OfMatrix(M), random()
    field = source(Lattice(2, 2), 2)
    joins = type("Joins", (), {"matvec": lambda self, x: x, "joins_members": True})()
    for operator, right, options, match in (
        (A, b, {}, "b is one right-hand side, .* cg solves for one"),
        (tripled, field.members[0], {}, "b is one right-hand side"),
        (A, 3, {}, "block_cg: b is a vector"),
        (A, [], {}, "block_cg: b is a vector"),
        (A, [b] * 17, {}, r"b has 17 members, and at most 16 share a space: b\[:16\]"),
        (tripled, field.like(batch=17), {}, r"b has 17 members, .* b.members\[:16\]"),
        (joins, field, {}, "the operator joins the members of a batch, which are one vector"),
        (tripled, [field, field], {}, "a list in which there is a field with a batch"),
        (A, [b, b[:-1]], {}, r"b\[1\] is an array"),
        (A, [b, b], {"x0": b}, "x0 is a list of 2 vectors"),
        (A, [b, b], {"x0": [b]}, "x0 is a list of 2 vectors"),
        (3, [b, b], {}, "the operator has a function matvec"),
        (A, [b, b], {"rtol": 0.0}, "rtol or atol above 0"),
        (A, [b, b], {"maxiter": 0}, "maxiter is a positive whole number"),
        (A, [b, b], {"check_interval": 2}, "cannot be recorded"),
    ):
        with pytest.raises((ParameterError, LayoutError), match=match):
            block_cg(operator, right, **options)


def test_block_cg_takes_lists_of_distributed_arrays():
    def run():
        A = 4.0 * Identity(48) + Laplacian((8, 6), axes=(0, 1)).H @ Laplacian((8, 6), axes=(0, 1))
        B = [DistributedArray.to_dist(np.random.default_rng(k).normal(size=48)) for k in range(3)]
        found = block_cg(A, B, rtol=1e-11)
        assert all((A @ x - b).norm() <= 1e-10 * b.norm() for x, b in zip(found.x, B, strict=True))
        return found.iterations, [x.asarray() for x in found.x]

    alone = run()
    for count, xs in jali.virtual_ranks(3, run):
        assert abs(count - alone[0]) <= 1
        assert np.allclose(xs, alone[1], atol=1e-10)
