"""CG, CGLS and LSQR in steps: against serial pylops, on 1 to 4 virtual ranks, on all kinds of vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, Real, comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.errors import LayoutError, ParameterError, SolverError
from jali.linops import LinearOperator
from jali.solvers import CG, CGLS, LSQR, cg, cgls, lsqr, sums

RANKS = [1, 2, 3, 4]
TYPES = ["float64", "complex128", "float32", "complex64"]
ROWS, COLUMNS = 9, 5
TIGHT: dict[Any, dict[str, float]] = {cgls: {"atol": 1e-10}, lsqr: {"atol": 1e-12, "btol": 1e-12}}


def numbers(shape: Any, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def tolerance(dtype: str) -> float:
    return 1e-10 if np.finfo(dtype).eps < 1e-12 else 2e-4


class Blocks(LinearOperator):
    """A matrix for each rank, between scattered vectors; counts how often it is applied."""

    def __init__(self, matrices: list[np.ndarray]) -> None:
        rows, columns = sum(a.shape[0] for a in matrices), sum(a.shape[1] for a in matrices)
        super().__init__(shape=(rows, columns), dtype=matrices[0].dtype)
        self.matrices, self.calls = matrices, 0

    def vector(self, whole: np.ndarray, axis: int) -> DistributedArray:
        return DistributedArray.to_dist(whole, local_shapes=[(a.shape[axis],) for a in self.matrices])

    def _matvec(self, x: Any) -> Any:
        self.calls += 1
        return self._spread(x, 0, self.matrices[x.rank] @ x.local)

    def _rmatvec(self, x: Any) -> Any:
        self.calls += 1
        return self._spread(x, 1, self.matrices[x.rank].conj().T @ x.local)

    def _spread(self, x: Any, axis: int, local: np.ndarray) -> DistributedArray:
        sizes = tuple((a.shape[axis],) for a in self.matrices)
        return DistributedArray(self.shape[axis], local_array=local, local_shapes=sizes)


class Below(LinearOperator):
    """Matrices of ranks one below the other: of a vector that all have one that is scattered."""

    def __init__(self, matrices: list[np.ndarray]) -> None:
        super().__init__(
            shape=(sum(a.shape[0] for a in matrices), matrices[0].shape[1]), dtype=matrices[0].dtype
        )
        self.matrices = matrices

    def _matvec(self, x: Any) -> Any:
        sizes = tuple((a.shape[0],) for a in self.matrices)
        return DistributedArray(
            self.shape[0], local_array=self.matrices[x.rank] @ x.local, local_shapes=sizes
        )

    def _rmatvec(self, x: Any) -> Any:
        total = x.communicator.all_reduce(self.matrices[x.rank].conj().T @ x.local)
        return DistributedArray(self.shape[1], partition=Partition.BROADCAST, local_array=total)


class Stack(LinearOperator):
    """Operators on the members of a stack."""

    def __init__(self, *operators: LinearOperator) -> None:
        super().__init__(
            shape=tuple(sum(A.shape[k] for A in operators) for k in (0, 1)), dtype=operators[0].dtype
        )
        self.operators = operators

    def _matvec(self, x: Any) -> Any:
        return StackedDistributedArray([A.matvec(part) for A, part in zip(self.operators, x, strict=True)])

    def _rmatvec(self, x: Any) -> Any:
        return StackedDistributedArray([A.rmatvec(part) for A, part in zip(self.operators, x, strict=True)])


def matrices(ranks: int, dtype: str, square: bool = False) -> list[np.ndarray]:
    """One for each rank, of different heights."""
    found = [numbers((ROWS + r, COLUMNS), dtype, r) for r in range(ranks)]
    return [a.conj().T @ a + 2 * np.eye(COLUMNS, dtype=dtype) for a in found] if square else found


def diagonal(blocks: list[np.ndarray]) -> np.ndarray:
    out = np.zeros(tuple(sum(a.shape[k] for a in blocks) for k in (0, 1)), blocks[0].dtype)
    row = column = 0
    for a in blocks:
        out[row : row + a.shape[0], column : column + a.shape[1]] = a
        row, column = row + a.shape[0], column + a.shape[1]
    return out


def agree(found: Any, right: Any, dtype: str) -> None:
    np.testing.assert_allclose(found, right, rtol=tolerance(dtype), atol=tolerance(dtype))


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_least_squares_are_those_of_pylops(ranks: int, dtype: str) -> None:
    """Iterates, costs, norms, reasons and counts, with a start, with damping, to niter and to the tolerance."""
    pylops = pytest.importorskip("pylops")
    blocks = matrices(ranks, dtype)
    A = diagonal(blocks)
    serial = pylops.MatrixMult(A, dtype=dtype)
    y, x0 = numbers(A.shape[0], dtype, 5), numbers(A.shape[1], dtype, 6)

    def run() -> None:
        Op = Blocks(blocks)
        data, start = Op.vector(y, 0), Op.vector(x0, 1)
        for given, damp, niter, tol in (
            (None, 0.0, 4, 1e-30),
            (x0, 0.0, 4, 1e-30),
            (None, 0.7, 4, 1e-30),
            (x0, 0.0, 100, 1e-2),
            (None, 0.7, 100, 1e-2),
        ):
            mine = None if given is None else start
            found = cgls(Op, data, mine, maxiter=niter, damp=damp, rtol=0, atol=math.sqrt(tol))
            x, istop, iit, r1norm, r2norm, cost = pylops.cgls(serial, y, given, niter, damp, tol)
            assert (found.istop, found.iterations) == (istop, iit)
            assert len(found.cost) == iit + 1
            near = tolerance(dtype) * (1 if niter == 4 else 100)  # rounding grows with iterations
            for value, right in (
                (found.cost, cost),
                ([found.r1norm, found.r2norm], [r1norm, r2norm]),
                (found.x.asarray(), x),
            ):
                np.testing.assert_allclose(value, right, rtol=near, atol=near)
            assert found.x.dtype == dtype
            mine = lsqr(Op, data, mine, damp=damp, maxiter=4, calc_var=True)
            theirs = pylops.lsqr(serial, y, given, damp, niter=4)
            assert mine.istop == 7  # pylops says 0
            assert mine.iterations == theirs[2] == 4
            agree(mine[3:9], [float(v) for v in theirs[3:9]], dtype)
            agree(mine.cost, theirs[10], dtype)
            agree(mine.x.asarray(), theirs[0], dtype)
            if np.dtype(dtype).kind == "f":
                agree(mine.var.asarray(), theirs[9], dtype)
        np.testing.assert_array_equal(start.asarray(), x0)
        np.testing.assert_array_equal(data.asarray(), y)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_steps_of_cg_are_those_of_pylops(ranks: int, dtype: str) -> None:
    pylops = pytest.importorskip("pylops")
    blocks = matrices(ranks, dtype, square=True)
    A = diagonal(blocks)
    serial = pylops.MatrixMult(A, dtype=dtype)
    b, x0 = numbers(A.shape[0], dtype, 5), numbers(A.shape[1], dtype, 6)
    # between |r|^2 before the last iteration and what rounding leaves of it
    low = 1e-6 if np.finfo(dtype).eps > 1e-10 else 1e-22

    def run() -> None:
        Op = Blocks(blocks)
        for given, damp, niter, tol in (
            (None, 0.0, 6, low),
            (x0, 0.0, 6, low),
            (x0, 0.5, 6, low),
            (x0, 0.0, 99, 0.1),
        ):
            start = None if given is None else Op.vector(given, 1)
            found = CG(Op).solve(
                Op.vector(b, 0), start, maxiter=niter, damp=damp, rtol=0, atol=math.sqrt(tol)
            )
            x, iit, cost = pylops.cg(serial, b, given, niter, damp, tol)
            assert found.iterations == iit
            agree(found.cost, cost, dtype)
            agree(found.x.asarray(), x, dtype)
        strict = cg(Op, Op.vector(b, 0), rtol=1e-05)
        agree(strict.x.asarray(), np.linalg.solve(A, b), "float32")

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_models_on_all_ranks_and_stacks(ranks: int, dtype: str) -> None:
    blocks = matrices(ranks, dtype)
    below, A = np.vstack(blocks), diagonal(blocks)
    y, both = numbers(below.shape[0], dtype, 5), diagonal([A, below])
    of_both = np.concatenate([y, 2 * y])

    def run() -> None:
        Op, Lower = Blocks(blocks), Below(blocks)
        data = Op.vector(y, 0)
        for damp in (0.0, 0.3):
            system = np.vstack([below, damp * np.eye(COLUMNS)])
            right = np.linalg.lstsq(system, np.concatenate([y, np.zeros(COLUMNS)]), rcond=None)[0]
            for solver in (cgls, lsqr):
                found = solver(Lower, data, maxiter=50, damp=damp, **TIGHT[solver])
                assert found.x.partition is Partition.BROADCAST
                np.testing.assert_allclose(found.x.asarray(), right, rtol=1e-6, atol=1e-6)
        right = np.linalg.lstsq(both, of_both, rcond=None)[0]
        for solver in (cgls, lsqr):
            found = solver(
                Stack(Op, Lower), StackedDistributedArray([data, 2 * data]), maxiter=99, **TIGHT[solver]
            )
            assert isinstance(found.x, StackedDistributedArray)
            np.testing.assert_allclose(found.x.asarray(), right, rtol=1e-6, atol=1e-6)

    comm.virtual_ranks(ranks, run)


def test_a_start_with_damping_needs_no_more_iterations_than_unknowns() -> None:
    """pylops 2.8 begins with the gradient of another damping, and takes more."""
    pylops = pytest.importorskip("pylops")
    A, y, x0 = (numbers(shape, "float64", k) for k, shape in enumerate([(ROWS, COLUMNS), ROWS, COLUMNS]))
    found = cgls(pylops.MatrixMult(A), y, x0, maxiter=COLUMNS, damp=0.7, rtol=0)
    np.testing.assert_allclose(
        found.x, np.linalg.solve(A.T @ A + 0.49 * np.eye(COLUMNS), A.T @ y), rtol=1e-12
    )


# ---- communication -----------------------------------------------------------------------------------------


def all_reduces(monkeypatch: pytest.MonkeyPatch, function: Any) -> int:
    """Of one rank of three."""
    calls: list[int] = []
    of_world = comm.Communicator.all_reduce

    def counted(self: Any, x: Any, *arguments: Any, **named: Any) -> Any:
        if self.rank == 0:
            calls.append(np.size(x))
        return of_world(self, x, *arguments, **named)

    monkeypatch.setattr(comm.Communicator, "all_reduce", counted)
    comm.virtual_ranks(3, function)
    return len(calls)


@pytest.mark.parametrize(
    ("name", "damp", "most"), [("cg", 0, 2), ("cgls", 0, 2), ("cgls", 0.5, 2), ("lsqr", 0.5, 2)]
)
@pytest.mark.parametrize("stacked", [False, True])
def test_all_reduces_of_a_step(
    monkeypatch: pytest.MonkeyPatch, name: str, damp: float, most: int, stacked: bool
) -> None:
    blocks = matrices(3, "float64", square=name == "cg")

    def run(niter: int) -> Any:
        def solve() -> None:
            Op: Any = Blocks(blocks)
            y: Any = Op.vector(np.arange(1.0, Op.shape[0] + 1), 0)
            if stacked:
                Op, y = Stack(Op, Op), StackedDistributedArray([y, y])
            if name == "cg":
                assert CG(Op).solve(y, maxiter=niter, rtol=0).iterations == niter
            elif name == "cgls":
                assert cgls(Op, y, maxiter=niter, damp=damp, rtol=0).iterations == niter
            else:
                assert lsqr(Op, y, maxiter=niter, damp=damp, atol=0, btol=0, conlim=0).iterations == niter

        return solve

    counts = [all_reduces(monkeypatch, run(niter)) for niter in (2, 5)]
    assert counts[1] - counts[0] == 3 * most
    assert counts[0] <= 2 * most + 3


def test_a_model_on_all_ranks_needs_one_more_beside_its_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """|A c|^2 and |y - A x|^2, and the adjoint's own; |x| and gradients are known everywhere."""
    blocks = matrices(3, "float64")

    def run(niter: int) -> Any:
        def solve() -> None:
            y = Blocks(blocks).vector(np.arange(1.0, len(np.vstack(blocks)) + 1), 0)
            cgls(Below(blocks), y, maxiter=niter, damp=0.1, rtol=0)

        return solve

    counts = [all_reduces(monkeypatch, run(niter)) for niter in (1, 4)]
    assert counts[1] - counts[0] == 3 * 3


def test_several_sums_are_one_all_reduce(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.arange(7.0))
        z = DistributedArray.to_dist(np.arange(4.0) * 1j)
        replicated = DistributedArray.to_dist(np.arange(3.0), partition=Partition.BROADCAST)
        stack = StackedDistributedArray([x, replicated])
        found = sums(
            (x, x),
            (z, z),
            (x, lambda part: part.max(initial=0)),
            (stack, stack),
            ([x, replicated],) * 2,
            (np.ones(3),) * 2,
        )
        wanted = [91, 14, sum(max(p, default=0) for p in np.array_split(np.arange(7), 3)), 96, 96, 3]
        assert found == wanted

    assert all_reduces(monkeypatch, run) == 1


# ---- other vectors -----------------------------------------------------------------------------------------


@jali.site_function
def forward_sum(X: Any, out: Any, phi: Any) -> None:
    """3 phi(x) less phi(x + mu)."""
    total = 3 * phi[X]
    for mu in X.directions():
        total = total - phi[X + mu]
    out[X] = total


@jali.site_function
def backward_sum(X: Any, out: Any, phi: Any) -> None:
    """The adjoint."""
    total = 3 * phi[X]
    for mu in X.directions():
        total = total - phi[X - mu]
    out[X] = total


class Neighbours:
    """Site functions as an operator of solvers, which gives always the same fields."""

    def __init__(self, like: Field) -> None:
        self.out, self.back = like.like(), like.like()

    def matvec(self, x: Field) -> Field:
        forward_sum(self.out, x)
        return self.out

    def rmatvec(self, x: Field) -> Field:
        backward_sum(self.back, x)
        return self.back


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("element", [Real(), Complex()], ids=str)
def test_fields_are_solved_for(ranks: int, element: Any) -> None:
    extents = (8, 4)
    values = numbers(extents, "complex128", 3)
    values = values.real if element == Real() else values

    def run() -> None:
        y = Field(Lattice(*extents), element)
        y[...] = values
        Op = Neighbours(y)
        start = y.like()
        start[...] = 1.0
        for solver, x0 in ((cgls, None), (cgls, start), (lsqr, None)):
            x = solver(Op, y, x0, maxiter=60, **TIGHT[solver]).x
            np.testing.assert_allclose(Op.matvec(x)[...], values, atol=1e-6)
        assert np.all(start[...] == 1.0)

    comm.virtual_ranks(ranks, run)


def test_lists_of_vectors_of_two_kinds() -> None:
    """Fields beside arrays."""
    y = Field(Lattice(6), Real())
    y[...] = np.arange(6.0)

    class Both:
        Op = Neighbours(y)

        def matvec(self, x: list[Any]) -> list[Any]:
            return [self.Op.matvec(x[0]), 2 * x[1]]

        def rmatvec(self, x: list[Any]) -> list[Any]:
            return [self.Op.rmatvec(x[0]), 2 * x[1]]

    found = cgls(Both(), [y, np.arange(3.0)], maxiter=40, atol=1e-12)
    np.testing.assert_allclose(found.x[1], np.arange(3) / 2, atol=1e-9)
    np.testing.assert_allclose(Both.Op.matvec(found.x[0])[...], y[...], atol=1e-9)


def test_operators_that_return_what_they_were_given() -> None:
    class Identity:
        def matvec(self, x: Any) -> Any:
            return x

        rmatvec = matvec

    y, x0 = np.arange(1.0, 5.0), np.ones(4)
    for damp in (0.0, 1.0):
        for start in (None, x0):
            for solver in (cgls, lsqr):
                x = solver(Identity(), y, start, damp=damp, maxiter=20).x
                moved = 0 if start is None or solver is cgls else x0
                np.testing.assert_allclose(x, (y + damp**2 * moved) / (1 + damp**2), rtol=1e-12)
            np.testing.assert_allclose(
                CG(Identity()).solve(y, start, damp=damp).x, y / (1 + damp), rtol=1e-12
            )
    np.testing.assert_array_equal(y, np.arange(1.0, 5.0))
    np.testing.assert_array_equal(x0, np.ones(4))


def test_real_data_of_a_complex_operator() -> None:
    pylops = pytest.importorskip("pylops")
    A = numbers((ROWS, COLUMNS), "complex128", 1)
    y = numbers(ROWS, "float64", 2)
    right = np.linalg.lstsq(A, y, rcond=None)[0]
    for x0 in (None, np.ones(COLUMNS)):
        np.testing.assert_allclose(
            cgls(pylops.MatrixMult(A, dtype="complex128"), y, x0, maxiter=20, atol=1e-10).x, right, rtol=1e-8
        )
        np.testing.assert_allclose(
            lsqr(pylops.MatrixMult(A, dtype="complex128"), y, x0, maxiter=20).x, right, rtol=1e-6
        )


# ---- steps, states, callbacks, text ------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", [CG, CGLS, LSQR])
def test_a_restored_state_goes_on_as_if_nothing_had_been(ranks: int, kind: Any) -> None:
    blocks = matrices(ranks, "float64", square=kind is CG)

    def run() -> None:
        Op = Blocks(blocks)
        y = Op.vector(numbers(Op.shape[0], "float64", 4), 0)
        straight, broken = kind(Op), kind(Op)
        tight: dict[str, Any] = {"rtol": 0} if kind is not LSQR else {"atol": 0, "btol": 0, "conlim": 0}
        x = straight.run(straight.setup(y, **tight, damp=0.1), maxiter=6)
        broken.run(broken.setup(y, **tight, damp=0.1), maxiter=3)
        state = broken.state()
        broken.run(broken._x, maxiter=5)  # a state is not changed by what comes after
        other = kind(Op)
        again = other.run(other.restore(state), maxiter=6)
        np.testing.assert_array_equal(again.asarray(), x.asarray())
        assert other.cost == straight.cost
        assert other.iterations == 6
        with pytest.raises(ParameterError, match=r"restore takes what its state\(\) returned"):
            other.restore({"solver": "another"})
        with pytest.raises(ParameterError, match="no state before setup"):
            kind(Op).state()

    comm.virtual_ranks(ranks, run)


def test_callbacks_see_each_iterate_and_may_stop() -> None:
    pylops = pytest.importorskip("pylops")
    from pylops.optimization.callback import Callbacks

    A, y = numbers((ROWS, COLUMNS), "float64", 1), numbers(ROWS, "float64", 2)
    seen: list[np.ndarray] = []
    found = cgls(pylops.MatrixMult(A), y, maxiter=4, rtol=0, callback=lambda x: seen.append(x.copy()))
    assert len(seen) == 4
    np.testing.assert_array_equal(seen[-1], found.x)
    np.testing.assert_allclose([np.linalg.norm(y - A @ x) for x in seen], found.cost[1:], rtol=1e-12)

    class Second(Callbacks):
        def on_setup_begin(self, solver: Any, x0: Any) -> None:
            said.append("begin")

        def on_setup_end(self, solver: Any, x: Any) -> None:
            said.append("setup")

        def on_step_end(self, solver: Any, x: Any) -> None:
            said.append(f"step {solver.iterations}")
            self.stop = solver.iterations == 2

    said: list[str] = []
    functions: list[Any] = []
    solved = CGLS(pylops.MatrixMult(A), callback=[Second(), functions.append]).solve(y, maxiter=9, rtol=0)
    assert solved.istop == 3
    assert said == ["begin", "setup", "step 1", "step 2"]
    assert len(functions) == 2


def test_progress_is_shown_on_the_first_rank(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = matrices(2, "float64")

    def run() -> None:
        Op = Blocks(blocks)
        y = Op.vector(numbers(Op.shape[0], "float64", 4), 0)
        cgls(Op, y, maxiter=9, rtol=0, show=True, itershow=(2, 1, 4))

    comm.virtual_ranks(2, run)
    text = capsys.readouterr().out
    steps = [line.split()[0] for line in text.splitlines() if line.startswith("     ")]
    assert steps == ["1", "2", "5", "9"]
    assert text.count("CGLS") == 1
    assert "Iterations = 9" in text


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_preconditioner_that_is_the_inverse_needs_one_iteration(ranks: int) -> None:
    blocks = matrices(ranks, "float64")

    def run() -> None:
        Op = Blocks(blocks)
        y = Op.vector(numbers(Op.shape[0], "float64", 4), 0)
        exact = Blocks([np.linalg.inv(a.T @ a + 0.25 * np.eye(COLUMNS)) for a in blocks])
        found = cgls(Op, y, maxiter=20, damp=0.5, atol=1e-10, M=exact)
        assert found.iterations == 1
        plain = cgls(Op, y, maxiter=200, damp=0.5, atol=1e-12)
        np.testing.assert_allclose(found.x.asarray(), plain.x.asarray(), rtol=1e-9, atol=1e-9)

    comm.virtual_ranks(ranks, run)


def test_what_is_wrong_is_said() -> None:
    class Broken:
        def matvec(self, x: Any) -> Any:
            return x * math.nan

        rmatvec = matvec

    y = np.ones(4)
    for solver in (cgls, lsqr):
        with pytest.raises(ParameterError, match=r"A is an operator with matvec and rmatvec, not 3"):
            solver(3, y)
        with pytest.raises(ParameterError, match="b is a vector"):
            solver(Broken(), "data")
        with pytest.raises(LayoutError, match="not with arrays of int64"):
            solver(Broken(), np.ones(4, int))
        with pytest.raises(SolverError, match="infinities or nan"):
            solver(Broken(), y)
    with pytest.raises(SolverError, match="CG, iteration 1.*infinities or nan"):
        CG(Broken()).solve(y)
    with pytest.raises(SolverError, match="the operator is singular"):
        CG(Zero()).solve(y)
    with pytest.raises(ParameterError, match="say how many iterations"):
        solver_without = CG(Zero())
        solver_without.run(solver_without.setup(y))
    with pytest.raises(LayoutError, match="x0 is an array of float64 with shape \\(3,\\), b one of"):
        CG(Zero()).solve(y, np.ones(3))


class Zero:
    def matvec(self, x: Any) -> Any:
        return 0 * x

    rmatvec = matvec


def test_zero_data_are_solved_by_zero() -> None:
    pylops = pytest.importorskip("pylops")
    Op = pylops.MatrixMult(numbers((4, 4), "float64", 1))
    for found in (cgls(Op, np.zeros(4), rtol=0), lsqr(Op, np.zeros(4)), CG(Op).solve(np.zeros(4), rtol=0)):
        assert found.iterations == 0
        assert not found.x.any()
