"""What operators give is theirs: they may give what they were given, or the same vector again; nobody writes into it. And what states,
starts and types of vectors are."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
from test_solvers_in_corner_cases import Matrix as New  # gives new vectors

import jali
from jali import comm
from jali.arrays import DistributedArray, StackedDistributedArray
from jali.errors import LayoutError, ParameterError, SolverError
from jali.linops import from_functions
from jali.solvers import (
    CG,
    CGLS,
    FISTA,
    ISTA,
    L2,
    L21,
    ProxOperator,
    cg,
    cgls,
    fista,
    ista,
    lsqr,
    power_iteration,
)
from jali.vectors import ArrayVectors, assign


class Kept(New):
    """Gives one vector again and again, which nobody else may write; of square matrices both ways."""

    def __init__(self, a: np.ndarray) -> None:
        super().__init__(a)
        self.kept: Any = {}

    def _give(self, x: np.ndarray) -> np.ndarray:
        kept = self.kept.setdefault(x.shape, np.empty_like(x))
        kept.flags.writeable = True
        kept[:] = x
        kept.flags.writeable = False
        return kept

    def matvec(self, x: np.ndarray) -> np.ndarray:
        return self._give(self.a @ x)

    def rmatvec(self, y: np.ndarray) -> np.ndarray:
        return self._give(self.a.conj().T @ y)


class Identity:
    """Gives what it was given."""

    def matvec(self, x: Any) -> Any:
        return x

    rmatvec = matvec


def problem(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    a = generator.normal(size=(6, 6))
    return a @ a.T + np.eye(6), generator.normal(size=6), np.linalg.qr(generator.normal(size=(6, 6)))[0]


SOLVES = {
    "cg": lambda op, y, w: cg(op(y[0]), y[1]).x,
    "CG damped": lambda op, y, w: CG(op(y[0])).solve(y[1], damp=0.3, rtol=0).x,
    "cgls": lambda op, y, w: cgls(op(y[0]), y[1], rtol=0).x,
    "cgls damped": lambda op, y, w: cgls(op(y[0]), y[1], np.ones(6), damp=2.0, rtol=0).x,
    "lsqr": lambda op, y, w: lsqr(op(y[0]), y[1], np.ones(6), damp=1.0).x,
    "ista": lambda op, y, w: ista(op(y[0]), y[1], maxiter=9, SOp=op(w)).x,
    "fista": lambda op, y, w: fista(op(y[0]), y[1], maxiter=9, SOp=op(w)).x,
    "backtracking": lambda op, y, w: fista(op(y[0]), y[1], maxiter=3, alpha=1.0, backtracking=True).x,
    "power iteration": lambda op, y, w: power_iteration(op(y[0]), np.zeros(6)).eigenvector,
    "L2 by cg": lambda op, y, w: twice(L2(op(y[0]), y[1], solver="cg", maxiter=50, warm=False)),
    "L2 by cgls": lambda op, y, w: twice(L2(op(y[0]), y[1], maxiter=50, warm=False)),
}


def twice(f: L2) -> np.ndarray:
    f.prox(np.ones(6), 0.7)
    return np.concatenate([f.prox(np.ones(6), 0.7), f.grad(np.ones(6))])


@pytest.mark.parametrize("what", SOLVES)
def test_an_operator_may_keep_what_it_gives(what: str) -> None:
    a, y, w = problem()
    right, found = (SOLVES[what](op, (a, y), w) for op in (New, Kept))
    np.testing.assert_array_equal(found, right)


@jali.site_function
def forward(X: Any, out: Any, u: Any) -> None:
    out[X] = 3.0 * u[X] + u[X + X.directions()[0]]


@jali.site_function
def adjoint(X: Any, out: Any, u: Any) -> None:
    out[X] = 3.0 * u[X] + u[X - X.directions()[0]]


@pytest.mark.parametrize("solve", [ista, fista])
def test_site_operators_keep_what_they_give_and_transform_too(solve: Any) -> None:
    from jali.linops import SiteOperator

    def program(engine: str) -> tuple[int, float]:
        y = DistributedArray.to_dist(np.random.default_rng(1).normal(size=(8, 6))).as_engine(engine)
        op = SiteOperator(forward, (8, 6), adjoint=adjoint)
        found = solve(op, y, maxiter=30, SOp=0.25 * op, alpha=0.05, eps=0.1)
        return found.iterations, float(found.x.norm())

    numpy, jalis = (comm.virtual_ranks(2, program, engine)[0] for engine in ("numpy", "jali"))
    assert jalis == pytest.approx(numpy, rel=1e-12)


def test_the_identity_is_no_zero() -> None:
    found = power_iteration(Identity(), np.zeros(4))
    assert found.eigenvalue == pytest.approx(1.0)
    assert np.linalg.norm(found.eigenvector) == pytest.approx(1.0)
    np.testing.assert_allclose(
        ista(Identity(), np.arange(4.0), maxiter=30).x, [0, 0.95, 1.95, 2.95], atol=1e-12
    )

    def program() -> Any:
        op = from_functions(lambda x: x, lambda x: x, (4, 4))
        return power_iteration(op, DistributedArray(4)).eigenvalue

    assert comm.virtual_ranks(2, program) == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("kind", ["same", "shifted"])
def test_assignments_read_before_they_write(kind: str) -> None:
    """Where the core's loop does not take them the library does."""
    whole = np.arange(1.0, 9.0)
    y = whole[:6]
    x = y if kind == "same" else whole[2:]
    right = 2 * y + 3 * x - x
    assign([(y, 2, [(3, x), (-1, x)])])
    np.testing.assert_array_equal(y, right)


def test_a_state_stays_what_it_was() -> None:
    a, y = np.diag([1.0, 2, 3, 4]), np.ones(4)
    solver = CGLS(New(a))
    x = solver.run(solver.setup(y, rtol=0), maxiter=1)
    state = solver.state()
    solver.run(x, maxiter=20)
    again = CGLS(New(a))
    x = again.run(again.restore(state), maxiter=20)
    again.finalize()
    np.testing.assert_allclose(x, 1 / np.arange(1.0, 5), rtol=1e-12)


def test_a_transform_is_that_of_one_solve() -> None:
    a, y, w = problem()
    options: dict[str, Any] = {"maxiter": 20, "eps": 1.0, "alpha": 0.002}
    solver = FISTA(New(a))
    first = solver.solve(y, **options).x
    other = solver.solve(y, SOp=New(w), **options).x
    assert not np.allclose(other, first)
    np.testing.assert_array_equal(solver.solve(y, **options).x, first)

    begun = FISTA(New(a), SOp=New(w))
    x = begun.run(begun.setup(y, **options), maxiter=5)
    state = begun.state()
    with pytest.raises(ParameterError, match="the state is of a solver with SOp"):
        FISTA(New(a)).restore(state)
    again = FISTA(New(a), SOp=New(w))
    np.testing.assert_array_equal(again.run(again.restore(state), maxiter=20), begun.run(x, maxiter=20))


def test_steps_go_on_from_the_vector_that_they_are_given() -> None:
    pylops = pytest.importorskip("pylops")
    from pylops.optimization import cls_sparsity

    op, y = pylops.MatrixMult(np.diag([1.0, 2, 3])), np.array([1.0, -1, 2])
    ours, theirs = ISTA(op), cls_sparsity.ISTA(op)
    ours.setup(y, alpha=0.1, eps=0.1)
    theirs.setup(y, alpha=0.1, eps=0.1)
    np.testing.assert_allclose(ours.step(np.ones(3)), theirs.step(np.ones(3))[0], rtol=1e-14)


@pytest.mark.parametrize("stop", [True, np.True_])
def test_a_callback_stops(stop: Any) -> None:
    class Stops:
        stop: Any = False

        def on_run_begin(self, solver: Any, x: Any) -> None:
            self.stop = stop

    class Begins:
        def on_setup_begin(self, solver: Any, x: Any) -> None:
            seen.append(x)

    seen: list[Any] = []
    found = CGLS(New(np.diag([1.0, 2])), callback=[Stops(), Begins()]).solve(np.ones(2), rtol=0)
    assert (found.istop, found.iterations, seen) == (3, 0, [None])


@pytest.mark.parametrize("solve", [cgls, lsqr, ista, fista])
def test_the_finest_precision_is_that_of_the_result(solve: Any) -> None:
    a, y = np.diag([1.0, 2, 3]), np.ones(3)
    right = solve(New(a), y, np.zeros(3), maxiter=3).x
    for data, start in ((y, "f4"), (y.astype("f4"), "f4"), (y.astype("f4"), "f8")):
        x = solve(New(a), data, np.zeros(3, start), maxiter=3).x
        assert x.dtype == np.float64
        np.testing.assert_allclose(x, right, rtol=1e-6)
    assert solve(New(a.astype("f4")), y.astype("f4"), np.zeros(3, "f4"), maxiter=3).x.dtype == np.float32


def test_complex_data_beside_real_zeros_of_a_regularization() -> None:
    def program(zeros: Any) -> Any:
        data = DistributedArray.to_dist(np.arange(10.0) * (1 + 1j))
        y = StackedDistributedArray([data, DistributedArray.to_dist(np.zeros(10, zeros))])

        def apply(x: Any) -> Any:
            return StackedDistributedArray([x, 0.5 * x])

        class Op:
            dtype = np.dtype("float64")
            matvec = staticmethod(apply)
            rmatvec = staticmethod(lambda u: u[0] + 0.5 * u[1])

        return [solve(Op(), y, maxiter=5).x.asarray() for solve in (cgls, lsqr, fista)]

    for found, right in zip(
        *(comm.virtual_ranks(2, program, zeros)[0] for zeros in (float, complex)), strict=True
    ):
        np.testing.assert_array_equal(found, right)


def test_half_precision_is_summed_in_more() -> None:
    a, b = np.diag([1.0, 2, 3, 4]).astype("f2"), np.full(4, 1e-4, "f2")
    right = b.astype(float) / np.arange(1.0, 5)
    np.testing.assert_allclose(cg(New(a), b, rtol=0.01).x, right, rtol=5e-3)
    np.testing.assert_allclose(cgls(New(a), b, rtol=0).x, right, rtol=5e-3)
    op = from_functions(lambda x: x * np.float16(2), lambda x: x * np.float16(2), (4, 4))
    np.testing.assert_allclose(cg(op, distributed(b), rtol=0.01).x.local, b / 2)
    assert ArrayVectors(np).norm2(np.full(4, 200, "f2")) == 160000


def test_what_proximal_operators_give_is_new() -> None:
    class Nothing:
        def prox(self, x: Any, tau: float) -> Any:
            return x

    x = np.arange(6.0).reshape(2, 3)
    ProxOperator(Nothing(), separable=True).prox(x, 1.0)[...] = 7
    assert np.array_equal(x, np.arange(6.0).reshape(2, 3))
    members = [np.array([0.0, 1]), np.array([0.0, 2])]
    assert np.array_equal(L21(2, sigma=0.0).prox(members, 1.0), members)
    assert np.array_equal(L21(2, sigma=0.0).proxdual(members, 1.0), np.zeros((2, 2)))


Pair = namedtuple("Pair", "a b")


def test_named_tuples_are_lists_of_vectors() -> None:
    class Twice:
        def matvec(self, x: Pair) -> Pair:
            return Pair(2 * x.a, 3 * x.b)

        rmatvec = matvec

    y = Pair(np.ones(2), np.ones(3))
    for x in (CG(Twice()).solve(y, rtol=0).x, cgls(Twice(), y, rtol=0).x, lsqr(Twice(), y).x):
        assert isinstance(x, Pair)
        np.testing.assert_allclose(np.concatenate(x), [1 / 2] * 2 + [1 / 3] * 3, rtol=1e-6)


distributed = DistributedArray.to_dist


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda A, y: CG(A).solve(y, 0.0), ParameterError, "CG: x0 is a vector"),
        (
            lambda A, y: CG(A).solve(distributed(y), StackedDistributedArray([distributed(y)])),
            LayoutError,
            "one is a stack",
        ),
        (lambda A, y: CG(A).solve(distributed(y), y), ParameterError, "of the kind of b"),
        (
            lambda A, y: cgls(A, distributed(y), y),
            ParameterError,
            "A x0 is a vector of the kind",
        ),
        (lambda A, y: cgls(A, y, atol=np.nan), ParameterError, "atol is a real number from 0, not nan"),
        (
            lambda A, y: fista(A, y, eigs_options={"maxiter": 0}),
            ParameterError,
            "eigs_options may have maxiter",
        ),
        (
            lambda A, y: fista(A, y, eigs_options={"niter": 3}),
            ParameterError,
            "eigs_options may have maxiter",
        ),
        (lambda A, y: ista(A, y * np.nan, alpha=1.0), SolverError, "contains infinities or nan"),
        (lambda A, y: cgls(A, y, itershow=(1, -1, 0)), ParameterError, "itershow is three whole numbers"),
    ],
)
def test_what_cannot_be_solved_is_refused(call: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        call(New(np.eye(2)), np.ones(2))


def test_numbers_of_numpy_are_numbers() -> None:
    op, y = New(np.array([[2, 1j], [-1j, 3]])), np.ones(2)
    right = np.linalg.solve(op.a, y)
    np.testing.assert_allclose(cg(op, y, rtol=np.float32(1e-06), maxiter=np.int64(10)).x, right)
    cgls(op, y, show=True, itershow=(1, 1, 0))
