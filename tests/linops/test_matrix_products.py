"""Products with matrices in blocks against NumPy, on 1 to 4 virtual ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg

from jali import comm
from jali.arrays import DistributedArray
from jali.arrays.layout import near_square
from jali.comm import Communicator
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.linops import Diagonal, Identity, StackedBlockDiag, StackedVStack, dottest
from jali.linops.matrix import MatrixMult, active_grid_comm, block_gather, block_split, local_block_split

SHAPES = [(6, 8, 4), (7, 5, 3), (3, 4, 5), (1, 2, 1), (2, 1, 3), (9, 2, 2)]
TYPES = ["float32", "float64", "complex64", "complex128"]


def matrix(n: int, m: int, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(n, m)) + (1j * generator.normal(size=(n, m)) if dtype[0] == "c" else 0)
    return x.astype(dtype)


def close(dtype: str) -> dict[str, float]:
    precision = 1e-5 if dtype in ("float32", "complex64") else 1e-13
    return {"rtol": precision, "atol": 10 * precision}


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 9])
@pytest.mark.parametrize(("N", "K", "M"), SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("saved", [False, True])
def test_summa_is_the_product(ranks: int, N: int, K: int, M: int, dtype: str, saved: bool) -> None:
    A, X = matrix(N, K, dtype, 1), matrix(K, M, dtype, 2)

    def run() -> None:
        grid, rank, row, column, is_active = active_grid_comm(None, N, M)
        if not is_active:
            assert grid is None
            return
        side = int(grid.size**0.5)
        assert (row, column) == divmod(rank, side)
        mine = X[local_block_split((K, M), rank, grid)]
        Op = MatrixMult(A[local_block_split((N, K), rank, grid)], M, saveAt=saved, base_comm=grid)
        assert Op.shape == (N * M, K * M)
        assert Op.dtype == np.dtype(dtype)
        sizes = [(n * m,) for n in block_split(K, side) for m in block_split(M, side)]
        x = DistributedArray(K * M, grid, local_shapes=sizes, local_array=mine.ravel())
        y = Op @ x
        z = Op.H @ y
        assert (Op.domain().with_(flat_of=None), Op.range_()) == (x.layout, y.layout)
        assert y.dtype == z.dtype == np.dtype(dtype)
        np.testing.assert_allclose(block_gather(y, (N, M), grid), A @ X, **close(dtype))
        np.testing.assert_allclose(block_gather(z, (K, M), grid), A.conj().T @ (A @ X), **close(dtype))
        np.testing.assert_allclose(y.dot(y, vdot=True), x.dot(z, vdot=True), rtol=close(dtype)["rtol"])

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 4])
def test_summa_takes_matrices_on_the_grid_of_any_split(ranks: int) -> None:
    A, X = matrix(7, 5, "float64", 1), matrix(5, 6, "float64", 2)

    def run() -> None:
        a = DistributedArray.to_dist(A, axis=(0, 1))
        x = DistributedArray.to_dist(X, axis=(0, 1))
        Op = MatrixMult(a.local, 6)
        y = Op @ x
        assert (y.global_shape, y.axis) == ((7, 6), (0, 1))
        np.testing.assert_allclose(y.asarray(), A @ X, rtol=1e-13)
        np.testing.assert_allclose(block_gather(Op.H @ y, (5, 6), x.communicator), A.T @ A @ X, rtol=1e-13)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
@pytest.mark.parametrize(("N", "K", "M"), SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("saved", [False, True])
def test_blocks_of_rows_times_blocks_of_columns(
    ranks: int, N: int, K: int, M: int, dtype: str, saved: bool
) -> None:
    A, X = matrix(N, K, dtype, 1), matrix(K, M, dtype, 2)

    def run() -> None:
        world = comm.current()
        across, many = near_square(world.size, 2)
        row, column = divmod(world.rank, across)
        rows, columns = block_split(N, across), block_split(M, many)
        first, left = sum(rows[:column]), sum(columns[:row])
        right = left + columns[row]
        Op = MatrixMult(A[first : first + rows[column]], M, saveAt=saved, kind="block")
        mask = [r % across for r in range(world.size)]
        x = DistributedArray(
            K * M * across,
            local_shapes=[K * m for m in columns for _ in range(across)],
            local_array=X[:, left:right].ravel(),
            mask=mask,
        )
        y = Op @ x
        z = Op.H @ y
        assert y.mask == mask
        assert (Op.domain().with_(flat_of=None), Op.range_()) == (x.layout, y.layout)
        assert Op.shape == (N * M * across, K * M * across)
        mine = (slice(None), slice(left, right))
        np.testing.assert_allclose(y.local.reshape(N, -1), (A @ X)[mine], **close(dtype))
        np.testing.assert_allclose(z.local.reshape(K, -1), (A.conj().T @ A @ X)[mine], **close(dtype))
        np.testing.assert_allclose(y.dot(y, vdot=True), x.dot(z, vdot=True), rtol=close(dtype)["rtol"])

    comm.virtual_ranks(ranks, run)


def test_what_it_communicates(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups are split once for all matrices of a grid; a step of SUMMA is two broadcasts, and A does not move where X is smaller."""
    import threading

    calls: list[tuple[int, str]] = []
    lock = threading.Lock()

    def counted(name: str) -> Any:
        function = getattr(Communicator, name)

        def call(self: Communicator, *arguments: Any, **named: Any) -> Any:
            with lock:
                calls.append((threading.get_ident(), name))
            return function(self, *arguments, **named)

        return call

    for name in (
        "split",
        "broadcast",
        "reduce",
        "all_reduce",
        "all_gather",
        "all_to_all",
        "reduce_scatter",
        "gather_bytes",
    ):
        monkeypatch.setattr(Communicator, name, counted(name))

    def run() -> list[list[str]]:
        def mine() -> list[str]:
            with lock:
                found = [name for who, name in calls if who == threading.get_ident()]
                calls[:] = [one for one in calls if one[0] != threading.get_ident()]
            return found

        A = np.ones((2, 2))
        Op = MatrixMult(A, 4)
        begun = mine()
        again = MatrixMult(A, 4)
        more = mine()
        x = DistributedArray(16, local_array=np.ones(4))
        y = again @ x
        forward = mine()
        Op.H @ y
        adjoint = mine()
        narrow = MatrixMult(A, 3)
        z = DistributedArray(
            12, local_shapes=[4, 2, 4, 2], local_array=np.ones((4, 2)[comm.current().rank % 2])
        )
        mine()
        narrow.H @ (narrow @ z)
        return [begun, more, forward, adjoint, mine()]

    for begun, more, forward, adjoint, both in comm.virtual_ranks(4, run):
        assert both == [
            "all_to_all",
            "all_gather",
            "reduce_scatter",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
        ]
        assert begun == ["gather_bytes", "split", "split"]
        assert more == ["gather_bytes"]
        assert forward == ["broadcast"] * 4
        assert sorted(adjoint) == ["broadcast"] * 2 + ["reduce"] * 2


def test_mistakes_are_the_same_on_all_ranks() -> None:
    def run() -> None:
        world = comm.current()
        with pytest.raises(ShapeError, match="do not make a matrix"):
            MatrixMult(np.ones((2, 2 + (world.rank == 3))), 4)
        with pytest.raises(ShapeError, match="two dimensions"):
            MatrixMult(np.ones((2, 2) if world.rank else 2), 4)
        with pytest.raises(ParameterError, match="summa, block"):
            MatrixMult(np.ones((2, 2)), 4, kind="cannon")
        with pytest.raises(ParameterError, match="imaginary"):
            MatrixMult(np.ones((2, 2), complex), 4, dtype="float64")
        Op = MatrixMult(np.ones((2, 2)), 4)
        with pytest.raises(ShapeError, match="not the blocks"):
            Op @ DistributedArray(
                16, local_shapes=[5, 3, 4, 4], local_array=np.ones([5, 3, 4, 4][world.rank])
            )
        with pytest.raises(ShapeError, match=r"Partition\.SCATTER"):
            from jali.arrays import Partition

            Op @ DistributedArray(16, partition=Partition.BROADCAST)
        with pytest.raises(ValueError, match="rank 4 does not exist"):
            local_block_split((4, 4), 4, world)

    comm.virtual_ranks(4, run)

    def of_two() -> None:
        with pytest.raises(LayoutError, match="square"):
            MatrixMult(np.ones((2, 2)), 4)
        with pytest.raises(LayoutError, match="square"):
            local_block_split((4, 4), 0, comm.current())

    comm.virtual_ranks(2, of_two)


@pytest.mark.parametrize(("ranks", "across"), [(1, 1), (2, 2), (4, 2), (6, 3)])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_as_a_whole_each_copy_of_blocks_is_multiplied(ranks: int, across: int, dtype: str) -> None:
    N, M = 6, 3
    A, b = matrix(N, N, dtype, 1) + 2 * np.eye(N), matrix(1, 1, dtype, 3)[0, 0]
    # of flat blocks of columns of X, each `across` times, the diagonal blocks of the whole
    widths = [m for m in block_split(M, ranks // across) for _ in range(across)]
    whole = scipy.linalg.block_diag(*(np.kron(A, np.eye(m)) for m in widths if m))
    normal = whole.conj().T @ whole
    singular = np.sort(np.linalg.svd(whole, compute_uv=False))[::-1]

    def run() -> None:
        column = comm.current().rank % across
        begin, rows = sum(block_split(N, across)[:column]), block_split(N, across)[column]
        op = MatrixMult(A[begin : begin + rows], M, kind="block")
        assert op.shape == whole.shape
        for tested in (op, op.H, b * op, op.H @ op + Identity(op.shape[0]), StackedBlockDiag([op, op])):
            assert dottest(tested)
        assert np.allclose(op.todense(), whole, rtol=1e-13, atol=1e-13)
        assert np.allclose((op.H @ op).todense(), normal, rtol=1e-12, atol=1e-12)
        assert np.allclose(
            StackedVStack([op, Identity(op.shape[0])]).todense(), np.r_[whole, np.eye(len(whole))]
        )
        assert op.cond() == pytest.approx(np.linalg.cond(A))
        assert op.trace() == pytest.approx(np.trace(whole))
        for neval in (1, 3):
            signs = np.random.default_rng(0)
            tries = [signs.choice([-1, 1], size=N * M) for _ in range(neval)]
            single = scipy.linalg.block_diag(*(np.kron(A, np.eye(m)) for m in widths[::across] if m))
            expected = across * sum(z @ single @ z for z in tries) / neval
            assert op.trace(neval=neval) == pytest.approx(expected)
        for count in (1, across, 2 * across + 1):
            assert np.allclose((op.H @ op).eigs(count, symmetric=True), singular[:count] ** 2)
        assert np.allclose((op.H @ op).eigs(symmetric=True), singular**2)

    comm.virtual_ranks(ranks, run)


def test_stacks_of_operators_with_other_numbers_of_copies_are_refused_as_a_whole() -> None:
    def run() -> None:
        op = MatrixMult(np.ones((2, 2)), 1, kind="block")
        stack = StackedBlockDiag([op, Diagonal(DistributedArray.to_dist(np.arange(4.0)))])
        assert stack.H.shape == stack.shape[::-1]
        for call in (stack.todense, stack.cond, lambda: stack.eigs(1), lambda: dottest(stack)):
            with pytest.raises(ShapeError, match="different numbers of copies of parts on ranks: 2, 1"):
                call()

    comm.virtual_ranks(2, run)
