"""ISTA, FISTA, power iteration, proximal operators and splitting methods: against pylops and pyproximal on one rank, exact solutions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from jali import Complex, Field, Lattice, comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.errors import LayoutError, ParameterError, ShapeError, SolverError
from jali.linops import BlockDiag, VStack
from jali.solvers import (
    ADMM,
    ADMML2,
    FISTA,
    ISTA,
    L2,
    L21,
    LinearizedADMM,
    PrimalDual,
    ProximalGradient,
    ProxOperator,
    fista,
    ista,
    power_iteration,
)

pylops = pytest.importorskip("pylops")
RANKS = [1, 2, 3, 4]
ROWS, COLUMNS = 7, 5
TYPES = ["float64", "complex128", "float32"]


def numbers(shape: Any, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def local_operator(a: np.ndarray) -> Any:
    return pylops.MatrixMult(a, dtype=a.dtype)


def matrices(ranks: int, dtype: str) -> list[np.ndarray]:
    return [numbers((ROWS, COLUMNS), dtype, rank) for rank in range(ranks)]


def diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    out = np.zeros(tuple(len(blocks) * n for n in blocks[0].shape), blocks[0].dtype)
    for k, a in enumerate(blocks):
        out[k * a.shape[0] : (k + 1) * a.shape[0], k * a.shape[1] : (k + 1) * a.shape[1]] = a
    return out


def replicated(x: np.ndarray) -> DistributedArray:
    return DistributedArray.to_dist(x, partition=Partition.BROADCAST)


def step_length(A: np.ndarray) -> float:
    return float(0.9 / np.linalg.norm(A, 2) ** 2)


# ---- sparse solutions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("solver", [ista, fista])
def test_sparse_solutions_are_those_of_pylops(ranks: int, dtype: str, solver: Any) -> None:
    blocks = matrices(ranks, dtype)
    A = diagonal(blocks)
    y, x0 = numbers(A.shape[0], dtype, 8), numbers(A.shape[1], dtype, 9)
    Q = np.linalg.qr(numbers((COLUMNS, COLUMNS), dtype, 5))[0]
    serial, transform = local_operator(A), local_operator(diagonal([Q] * ranks))
    of_pylops = getattr(pylops.optimization.sparsity, solver.__name__)
    rtol = 1e-10 if dtype != "float32" else 1e-4

    def run() -> None:
        rank = comm.current().rank
        Op, SOp = BlockDiag([local_operator(blocks[rank])]), BlockDiag([local_operator(Q)])
        data, start = DistributedArray.to_dist(y), DistributedArray.to_dist(x0)
        for kind in ("soft", "hard", "half"):
            for given, more, theirs in (
                (None, {}, {}),
                (start, {}, {"x0": x0}),
                (start, {"SOp": SOp}, {"x0": x0, "SOp": transform}),
                (start, {"cost_rtol": 0.5}, {"x0": x0, "rtol": 0.5}),
                (start, {"cost_btol": 1.0}, {"x0": x0, "rtol1": 1.0}),
                (start, {"decay": np.linspace(1, 0.1, 12)}, {"x0": x0, "decay": np.linspace(1, 0.1, 12)}),
                (start, {"atol": 0.3}, {"x0": x0, "tol": 0.3}),
            ):
                options = {"eps": 0.3, "alpha": step_length(A), "threshkind": kind}
                x, iterations, cost = of_pylops(serial, y, **({"niter": 12, "tol": 0} | options | theirs))
                found = solver(Op, data, given, **({"maxiter": 12, "atol": 0} | options | more))
                assert found.iterations == iterations
                np.testing.assert_allclose(found.cost, cost, rtol=rtol)
                np.testing.assert_allclose(found.x.asarray(), x, rtol=rtol, atol=rtol)
                assert found.x.dtype == dtype
        np.testing.assert_array_equal(start.asarray(), x0)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("solver", [ista, fista])
def test_the_step_length_is_found(ranks: int, solver: Any) -> None:
    """By power iteration, or by backtracking from one that is far too long; the optimum is where the subgradient is."""
    blocks = matrices(ranks, "float64")
    below = np.vstack(blocks)
    y = numbers(len(below), "float64", 8)

    def run() -> None:
        Op = VStack([local_operator(blocks[comm.current().rank])])
        for options in ({}, {"alpha": 100.0, "backtracking": True}):
            x = solver(
                Op,
                DistributedArray.to_dist(y),
                replicated(np.zeros(COLUMNS)),
                maxiter=3000,
                eps=4.0,
                atol=1e-13,
                **options,
            ).x
            gradient = below.T @ (y - below @ x.local)
            inside = x.local == 0
            assert inside.any()
            assert not inside.all()
            np.testing.assert_allclose(gradient[~inside], 2 * np.sign(x.local[~inside]), atol=1e-6)
            assert np.all(abs(gradient[inside]) <= 2)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("solver", [ista, fista])
def test_a_residual_that_increases_is_reported(solver: Any) -> None:
    blocks = matrices(2, "float64")

    def run() -> None:
        Op = BlockDiag([local_operator(blocks[comm.current().rank])])
        y = DistributedArray.to_dist(numbers(2 * ROWS, "float64", 8))
        with pytest.raises(ValueError, match="due to residual increasing"):
            solver(Op, y, maxiter=20, alpha=1e5, monitorres=True)
        with (
            np.errstate(all="ignore"),
            pytest.raises(SolverError, match=r"the cost is (inf|nan): the step length alpha = 1e\+05 is too"),
        ):
            solver(Op, y, maxiter=100, alpha=1e5)
        with pytest.raises(ValueError, match=r"threshkind must be soft, hard, half, not 'foo'"):
            solver(Op, y, threshkind="foo")
        with pytest.raises(ParameterError, match="beta is between 0 and 1"):
            solver(Op, y, beta=2)

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("kind", [ISTA, FISTA])
def test_a_restored_state_goes_on(kind: Any) -> None:
    A, y = numbers((ROWS, COLUMNS), "float64", 1), numbers(ROWS, "float64", 2)
    straight, broken, other = (kind(local_operator(A)) for _ in range(3))
    x = straight.run(straight.setup(y, alpha=0.01), maxiter=8)
    broken.run(broken.setup(y, alpha=0.01), maxiter=3)
    again = other.run(other.restore(broken.state()), maxiter=8)
    np.testing.assert_array_equal(again, x)
    assert other.cost == straight.cost


@pytest.mark.parametrize(("solver", "most"), [(ista, 1), (fista, 1)])
def test_all_reduces_of_a_step(monkeypatch: pytest.MonkeyPatch, solver: Any, most: int) -> None:
    blocks, calls = matrices(2, "float64"), []
    of_world = comm.Communicator.all_reduce
    monkeypatch.setattr(
        comm.Communicator,
        "all_reduce",
        lambda self, *x, **named: (calls.append(self.rank), of_world(self, *x, **named))[1],
    )

    def counted(niter: int) -> int:
        calls.clear()

        def run() -> None:
            Op = BlockDiag([local_operator(blocks[comm.current().rank])])
            solver(
                Op,
                DistributedArray.to_dist(np.ones(2 * ROWS)),
                maxiter=niter,
                alpha=0.01,
                atol=0,
                monitorres=True,
            )

        comm.virtual_ranks(2, run)
        return calls.count(0)

    assert counted(5) - counted(2) == 3 * most


def test_sparse_fields() -> None:
    """The operator is a number, so that the solution is one threshold."""
    values = numbers((4, 6), "complex128", 1)

    class Twice:
        def matvec(self, x: Field) -> Field:
            out = x.like()
            out[...] = 2 * x
            return out

        rmatvec = matvec

    def run() -> None:
        y = Field(Lattice(4, 6), Complex())
        y[...] = values
        x = ista(Twice(), y, maxiter=50, eps=1.0, alpha=0.25).x
        size = abs(values)
        np.testing.assert_allclose(x[...], values / size * np.maximum(size / 2 - 1 / 8, 0), atol=1e-12)

    comm.virtual_ranks(2, run)


# ---- eigenvalues -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_power_iteration_finds_the_largest_eigenvalue(ranks: int, dtype: str) -> None:
    blocks = [a.conj().T @ a for a in matrices(ranks, dtype)]
    largest = np.linalg.eigvalsh(diagonal(blocks))[-1]

    def run() -> None:
        Op = BlockDiag([local_operator(blocks[comm.current().rank])])
        b = DistributedArray(ranks * COLUMNS, dtype=dtype)
        value, vector, iterations = power_iteration(Op, b, maxiter=2000, rtol=1e-14, dtype=dtype)
        assert not b.asarray().any()
        assert iterations < 2000
        assert value.real == pytest.approx(largest, rel=1e-8)
        assert vector.norm() == pytest.approx(1)
        np.testing.assert_allclose(
            Op.matvec(vector).asarray(), largest * vector.asarray(), atol=1e-3 * largest
        )
        twice = StackedDistributedArray([b, b])  # one array that is there twice
        assert abs(power_iteration(_Twice(Op), twice, maxiter=2000, rtol=1e-14)[0]) == pytest.approx(
            largest, rel=1e-8
        )
        with pytest.raises(ParameterError, match="maxiter is a positive whole number"):
            power_iteration(Op, b, maxiter=0)

    comm.virtual_ranks(ranks, run)


class _Twice:
    def __init__(self, Op: Any) -> None:
        self.Op = Op

    def matvec(self, x: Any) -> Any:
        return StackedDistributedArray([self.Op.matvec(member) for member in x])


# ---- proximal operators ------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("partition", [Partition.SCATTER, Partition.BROADCAST], ids=lambda p: p.name)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_local_operators_are_those_of_the_whole(ranks: int, partition: Partition, dtype: str) -> None:
    pyproximal = pytest.importorskip("pyproximal")
    values = 2 * numbers(11, dtype, 3)
    inside = np.clip(values.real, 0.1, 0.9)
    operators = [pyproximal.L0(2.0), pyproximal.L1(0.7), pyproximal.L2(sigma=2.0)]
    if dtype == "float64":
        operators += [
            pyproximal.Box(0.0, 1.0),
            pyproximal.Huber(0.5),
            pyproximal.Log(1.0, 0.5),
            pyproximal.Log1(0.5, 0.4),
        ]
        operators += [pyproximal.ETP(1.0, 0.5), pyproximal.Geman(1.0, 0.5), pyproximal.SCAD(1.0, 3.7)]

    def run() -> None:
        for f in operators:
            mine = ProxOperator(f)
            for whole in [values, inside] if dtype == "float64" else [values]:
                x = DistributedArray.to_dist(whole, partition=partition)
                assert mine(x) == pytest.approx(f(whole), rel=1e-13)
                assert type(mine(x)) is bool or not isinstance(f(whole), bool)
                for found, right in (
                    (mine.prox(x, 0.3), f.prox(whole, 0.3)),
                    ((2.0 * mine).prox(x, 0.3), f.prox(whole, 0.6)),
                    (mine.precomposition(2.0, 0.5).prox(x, 0.3), (f.prox(2 * whole + 0.5, 1.2) - 0.5) / 2),
                    (mine.proxdual(x, 0.3), whole - 0.3 * f.prox(whole / 0.3, 1 / 0.3)),
                ):
                    np.testing.assert_allclose(found.asarray(), right, rtol=1e-12, atol=1e-14)
                np.testing.assert_array_equal(x.asarray(), whole)

    comm.virtual_ranks(ranks, run)


def test_operators_that_are_not_sums_over_elements_are_refused() -> None:
    pyproximal = pytest.importorskip("pyproximal")
    for f in (
        pyproximal.Euclidean(1.0),
        pyproximal.L1Ball(5, 1.0),
        pyproximal.L2(b=np.ones(5)),
        pyproximal.HuberCircular(1.0),
    ):
        with pytest.raises(ParameterError, match="is not made of those of its parts"):
            ProxOperator(f)
    with pytest.raises(ParameterError, match="has a function prox"):
        ProxOperator(3)
    assert ProxOperator(pyproximal.L2(b=np.ones(5)), separable=True)(np.ones(5)) == 0
    for tau in (0, -1.0, math.nan, "one"):
        with pytest.raises((ParameterError, ValueError), match="tau is a positive number|could not convert"):
            ProxOperator(pyproximal.L1()).prox(np.ones(3), tau)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_l2_is_the_minimum_of_its_definition(ranks: int, dtype: str) -> None:
    """Value, gradient and proximal operator from linear algebra; with an operator by both solvers."""
    blocks = matrices(ranks, dtype)
    A = diagonal(blocks)
    b, x, q = numbers(A.shape[0], dtype, 4), numbers(A.shape[1], dtype, 5), numbers(A.shape[1], dtype, 6)
    one, sigma, alpha, tau = np.eye(len(x)), 2.0, 0.5, 0.3

    def run() -> None:
        Op = BlockDiag([local_operator(blocks[comm.current().rank])])
        spread = DistributedArray.to_dist
        for solver in ("cg", "cgls"):
            tight = {"maxiter": 60, "solver": solver, "solver_options": {"atol": 1e-12}}
            for f, M, d, v in (
                (L2(sigma=sigma), one, 0 * x, 0 * x),
                (L2(b=spread(x), sigma=sigma, q=spread(q), alpha=alpha), one, x, q),
                (L2(Op, spread(b), sigma=sigma, **tight), A, b, 0 * x),
                (L2(Op, spread(b), q=spread(q), sigma=sigma, alpha=alpha, warm=False, **tight), A, b, q),
            ):
                at = x + 1
                r = M @ at - d
                value = sigma / 2 * np.vdot(r, r).real + alpha * np.dot(v, at).real
                assert f(spread(at)) == pytest.approx(value, rel=1e-13)
                np.testing.assert_allclose(
                    f.grad(spread(at)).asarray(), sigma * M.conj().T @ r + alpha * v, atol=1e-11
                )
                right = np.linalg.solve(
                    one + tau * sigma * M.conj().T @ M, at + tau * (sigma * M.conj().T @ d - alpha * v)
                )
                for _ in range(2):  # the second begins at the first's
                    np.testing.assert_allclose(f.prox(spread(at), tau).asarray(), right, atol=1e-10)
        for options, text in (
            ({"solver": "qr"}, 'the solver is "cg"'),
            ({"A": Op}, "there are data, b, too"),
        ):
            with pytest.raises(ParameterError, match=text):
                L2(**options)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_l21_adds_squares_of_a_stack(ranks: int) -> None:
    pyproximal = pytest.importorskip("pyproximal")
    values = numbers((3, 10), "float64", 3)
    f = pyproximal.L21(3, 2.0)

    def run() -> None:
        mine = L21(3, 2.0)
        for partition in (Partition.SCATTER, Partition.BROADCAST):
            x = StackedDistributedArray([DistributedArray.to_dist(v, partition=partition) for v in values])
            assert mine(x) == pytest.approx(f(values.ravel()), rel=1e-14)
            np.testing.assert_allclose(mine.prox(x, 0.3).asarray(), f.prox(values.ravel(), 0.3), rtol=1e-14)
            np.testing.assert_allclose(
                mine.proxdual(x, 0.3).asarray(), f.proxdual(values.ravel(), 0.3), rtol=1e-14
            )
            with pytest.raises(ValueError, match="Expected 2 DistributedArray"):
                L21(2)(x)
            with pytest.raises(ShapeError, match="Expected 2 DistributedArray"):
                L21(2).prox(x, 0.1)
        uneven = StackedDistributedArray([DistributedArray.to_dist(np.ones(n)) for n in (4, 5)])
        with pytest.raises(LayoutError, match="a vector of the stack"):
            L21(2)(uneven)

    comm.virtual_ranks(ranks, run)


# ---- splitting methods -------------------------------------------------------------------------------------


def optimum(A: np.ndarray, y: np.ndarray, sigma: float) -> np.ndarray:
    """Of |A x - y|^2 / 2 + sigma |x|_1."""
    x, _, _ = fista(local_operator(A), y, maxiter=500, eps=2 * sigma, alpha=step_length(A), atol=1e-15)
    return x


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_all_methods_find_the_optimum(ranks: int, dtype: str) -> None:
    """A scattered model; that of FISTA is checked above."""
    pyproximal = pytest.importorskip("pyproximal")
    blocks = [np.eye(ROWS, COLUMNS, dtype=dtype) + a / 12 for a in matrices(ranks, dtype)]
    A = diagonal(blocks)
    y = numbers(A.shape[0], dtype, 4)
    right = optimum(A, y, 0.4)
    tau = step_length(A)

    def run() -> None:
        rank = comm.current().rank
        Op, one = (BlockDiag([local_operator(a)]) for a in (blocks[rank], np.eye(COLUMNS, dtype=dtype)))
        data, x0 = DistributedArray.to_dist(y), DistributedArray.to_dist(0 * right)
        g = pyproximal.L1(0.4)
        tight = {"maxiter": 9, "solver_options": {"atol": 1e-7}}
        f = L2(Op, data, **tight)
        exact = {"maxiter": 9, "atol": 1e-7}
        seen: list[Any] = []
        found = {
            "plain": ProximalGradient(f, g, x0, tau=tau, maxiter=60, callback=seen.append),
            "fista": ProximalGradient(f, g, x0, tau=tau, maxiter=60, acceleration="fista"),
            "vandenberghe": ProximalGradient(f, g, x0, tau=tau, maxiter=60, acceleration="vandenberghe"),
            "searching": ProximalGradient(f, g, x0, maxiter=60),
            "relaxed": ProximalGradient(f, g, x0, tau=tau, eta=0.9, maxiter=60),
            "ADMM": ADMM(f, g, x0, 1.0, maxiter=30)[0],
            "ADMM, g first": ADMM(f, g, x0, 1.0, maxiter=30, gfirst=True)[0],
            "ADMML2": ADMML2(g, Op, data, one, x0, 1.0, maxiter=30, solver_options=exact)[0],
            "ADMML2, g first": ADMML2(
                g, Op, data, one, x0, 1.0, maxiter=30, gfirst=True, solver_options=exact
            )[0],
            "LinearizedADMM": LinearizedADMM(f, g, one, x0, 1.0, 0.9, maxiter=30)[1],
            "PrimalDual": PrimalDual(f, g, one, x0, x0, tau=0.9, mu=0.9, maxiter=30),
            "PrimalDual, f first": PrimalDual(f, g, one, x0, tau=0.9, mu=0.9, maxiter=30, gfirst=False),
        }
        assert len(seen) == 60
        for name, x in found.items():
            np.testing.assert_allclose(x.asarray(), right, atol=1e-5, err_msg=name)
        assert np.all(x0.asarray() == 0)

    comm.virtual_ranks(ranks, run)


def test_iterates_are_those_of_pyproximal() -> None:
    pyproximal = pytest.importorskip("pyproximal")
    from pyproximal.optimization import primal, primaldual

    A, b, x0 = (numbers(shape, "float64", k) for k, shape in enumerate([(ROWS, COLUMNS), ROWS, COLUMNS]))
    Op, one, g = local_operator(A), pylops.Identity(COLUMNS), pyproximal.L1(0.1)
    Op.explicit = False
    theirs, mine = (
        pyproximal.L2(Op=Op, b=b, solver="cgls", niter=20),
        L2(
            Op,
            b,
            maxiter=20,
            solver_options={"atol": 1e-2},  # pylops stops by 1e-4, the square
        ),
    )
    tau = 2.0**-6  # pyproximal 0.13 rounds it to float32
    for options in (
        {"tau": tau},
        {"tau": tau, "eta": 0.5},
        {"tau": tau, "acceleration": "fista"},
        {"tau": 1.0, "backtracking": True},
        {"tau": tau, "tol": 0.3},
    ):
        right = primal.ProximalGradient(theirs, g, x0=x0, niter=9, **options)
        ours = {{"tol": "rtol"}.get(word, word): value for word, value in options.items()}
        np.testing.assert_allclose(ProximalGradient(mine, g, x0, maxiter=9, **ours), right, rtol=1e-9)
    for gfirst in (False, True):
        right = primal.ADMM(theirs, g, x0=x0, z0=x0, tau=tau, niter=9, gfirst=gfirst)
        np.testing.assert_allclose(ADMM(mine, g, x0, tau, maxiter=9, gfirst=gfirst), right, rtol=1e-9)
    right = primal.LinearizedADMM(pyproximal.L2(b=x0), g, one, x0=2 * x0, tau=0.9, mu=0.8, niter=9)
    np.testing.assert_allclose(
        LinearizedADMM(L2(b=x0), g, one, 2 * x0, 0.9, 0.8, maxiter=9), right, rtol=1e-9
    )
    for options in ({}, {"gfirst": False}, {"theta": 0.5}, {"returny": True}):
        right = primaldual.PrimalDual(
            pyproximal.L2(b=x0), g, one, x0=2 * x0, y0=x0, tau=0.9, mu=0.8, niter=9, **options
        )
        ours = {{"returny": "return_pair"}.get(word, word): value for word, value in options.items()}
        found = PrimalDual(L2(b=x0), g, one, 2 * x0, x0, tau=0.9, mu=0.8, maxiter=9, **ours)
        np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-9)


def test_objectives_are_watched(capsys: pytest.CaptureFixture[str]) -> None:
    pyproximal = pytest.importorskip("pyproximal")
    x0, b = np.zeros(4), np.arange(4.0)
    history: list[float] = []
    ProximalGradient(L2(b=b), pyproximal.L1(0.5), x0, tau=0.5, maxiter=9, show=True, history=history)
    assert len(history) == 10
    assert history[0] == 0.5 * 14
    assert all(later <= earlier for earlier, later in itertools.pairwise(history))
    assert capsys.readouterr().out.count("\n") == 3 + 10
    stopped: list[float] = []
    ProximalGradient(L2(b=b), pyproximal.L1(0.5), x0, tau=0.5, maxiter=99, rtol=0.01, history=stopped)
    assert len(stopped) < 12
    inside: list[float] = []
    PrimalDual(
        L2(b=b), pyproximal.Box(0, 1), pylops.Identity(4), x0, tau=0.9, mu=0.9, maxiter=99, history=inside
    )
    assert inside[-1] == pytest.approx(0.5 * (1 + 4))
    for wrong, text in (
        ({"acceleration": "fast"}, "acceleration is None"),
        ({"eta": 0}, "eta is in"),
        ({"epsg": np.ones(3)}, "3 weights epsg for 9"),
    ):
        with pytest.raises(ParameterError, match=text):
            ProximalGradient(L2(b=b), pyproximal.L1(), x0, tau=0.5, maxiter=9, **wrong)
    with pytest.raises(ParameterError, match="has no gradient"):
        ProximalGradient(pyproximal.L1(), pyproximal.L1(), x0)
    with pytest.raises(ParameterError, match="there is no step length tau"):
        PrimalDual(L2(), pyproximal.L1(), pylops.Identity(4), x0)
    with pytest.raises(ParameterError, match="x0 or z0 says where to start"):
        ADMM(L2(), pyproximal.L1(), None, 1.0)
    with pytest.raises(ParameterError, match="proxg is a proximal operator of jali or of pyproximal"):
        ADMM(L2(), abs, x0, 1.0)
