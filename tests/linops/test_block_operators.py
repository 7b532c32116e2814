"""BlockDiag, VStack, HStack and their stacked forms against the matrices they stand for, on 1 to 4 virtual ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg

from jali import comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.comm import Communicator
from jali.errors import ParameterError, RankError, ShapeError
from jali.linops import (
    BlockDiag,
    HStack,
    LinearOperator,
    StackedBlockDiag,
    StackedHStack,
    StackedVStack,
    VStack,
    dottest,
)

RANKS = [1, 2, 3, 4]
TYPES = ["float32", "float64", "complex64", "complex128"]
CLOSE = {"float32": 1e-5, "float64": 1e-12, "complex64": 1e-5, "complex128": 1e-12}
SCATTERED, REPLICATED = Partition.SCATTER, Partition.BROADCAST


def numbers(shape: Any, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def matrices(ranks: int, dtype: str, rows: int | None, columns: int | None) -> list[list[np.ndarray]]:
    """Rank r has r % 3 blocks, of different shapes unless these are given: rank 0 and rank 3 have none."""
    return [
        [
            numbers((rows or 2 + (r + k) % 3, columns or 1 + (2 * r + k) % 4), dtype, 10 * r + k)
            for k in range(r % 3 if ranks > 1 else 2)
        ]
        for r in range(ranks)
    ]


def local(matrix: np.ndarray, kind: str) -> Any:
    """One local operator of each kind that there is."""
    if kind == "matrix":
        return matrix
    if kind == "scipy":
        return scipy.sparse.linalg.aslinearoperator(matrix)
    pylops = pytest.importorskip("pylops")
    return pylops.MatrixMult(matrix, dtype=str(matrix.dtype))


def spread(x: np.ndarray, parts: Any) -> DistributedArray:
    if parts is None:
        return DistributedArray.to_dist(x, partition=REPLICATED)
    return DistributedArray.to_dist(x, local_shapes=[(n,) for n in parts])


def sizes(blocks: list[list[np.ndarray]], axis: int) -> list[int]:
    return [sum(block.shape[axis] for block in of_rank) for of_rank in blocks]


def block_diagonal(blocks: list[list[np.ndarray]], dtype: str) -> np.ndarray:
    return scipy.linalg.block_diag(*(b for of_rank in blocks for b in of_rank)).astype(dtype)


def whole_of(name: str, blocks: list[list[np.ndarray]], dtype: str) -> np.ndarray:
    every = [b for of_rank in blocks for b in of_rank]
    if name == "BlockDiag":
        return block_diagonal(blocks, dtype)
    return np.concatenate(every, axis=0 if name == "VStack" else 1)


KINDS: dict[str, tuple[Any, int | None, int | None]] = {
    "BlockDiag": (BlockDiag, None, None),
    "VStack": (VStack, None, 5),
    "HStack": (HStack, 4, None),
}


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["matrix", "scipy", "pylops"])
def test_blocks_are_their_matrix(ranks: int, name: str, dtype: str, kind: str) -> None:
    make, rows, columns = KINDS[name]
    blocks = matrices(ranks, dtype, rows, columns)
    right = whole_of(name, blocks, dtype)

    def run() -> None:
        op = make([local(b, kind) for b in blocks[comm.current().rank]])
        assert op.shape == right.shape
        assert op.dtype == np.dtype(dtype)
        assert (op.dims, op.dimsd) == ((right.shape[1],), (right.shape[0],))
        into = None if name == "VStack" else sizes(blocks, 1)
        out = None if name == "HStack" else sizes(blocks, 0)
        x, y = numbers(right.shape[1], dtype, 1), numbers(right.shape[0], dtype, 2)
        u, v = spread(x, into), spread(y, out)
        forward, back = op @ u, op.H @ v
        for found, wanted, like in ((forward, right @ x, v), (back, right.conj().T @ y, u)):
            assert found.layout is like.layout
            assert found.dtype == wanted.dtype == np.dtype(dtype)
            np.testing.assert_allclose(found.asarray(), wanted, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        np.testing.assert_allclose(op.todense(), right, rtol=0, atol=0)
        assert dottest(op, u, v, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        assert dottest(op, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        assert np.dtype((2.0 * op).dtype) == np.dtype(dtype)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("name", list(KINDS))
def test_they_are_those_of_pylops(ranks: int, name: str) -> None:
    pylops = pytest.importorskip("pylops")
    make, rows, columns = KINDS[name]

    def of_rank(r: int) -> list[Any]:
        if name == "BlockDiag":
            return [pylops.FirstDerivative(4 + r), pylops.Restriction(6, [0, 2, 5])]
        one = pylops.Smoothing1D(3, dims=7), pylops.signalprocessing.FFT(7, nfft=12)
        both = [*one, pylops.Diagonal(np.arange(7.0) + r)]
        return both[: r + 1] if name == "VStack" else [op.H for op in both[: r + 1]]

    serial = getattr(pylops, name)([op for r in range(ranks) for op in of_rank(r)])

    def run() -> None:
        op = make(of_rank(comm.current().rank))
        assert op.shape == serial.shape
        x = numbers(op.shape[1], "complex128", 5)
        y = numbers(op.shape[0], "complex128", 6)
        space, other = op.domain(), op.range_()
        u = spread(x, [n for (n,) in space.local_shapes] if space.scattered else None)
        v = spread(y, [n for (n,) in other.local_shapes] if other.scattered else None)
        for found, serially in (
            (op.matvec(u), lambda part: serial.matvec(part(x))),
            (op.rmatvec(v), lambda part: serial.rmatvec(part(y))),
        ):
            right = serially(np.real) + 1j * serially(np.imag)  # some of pylops' drop imaginary parts
            np.testing.assert_allclose(found.asarray(), right, rtol=1e-12, atol=1e-12)

    comm.virtual_ranks(ranks, run)


def calls_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often rank 0 called what communicates."""
    counted: dict[str, int] = {}

    def watch(name: str) -> None:
        before = getattr(Communicator, name)

        def call(self: Communicator, *args: Any, **named: Any) -> Any:
            if self.rank == 0:
                counted[name] = counted.get(name, 0) + 1
            return before(self, *args, **named)

        monkeypatch.setattr(Communicator, name, call)

    for name in (
        "all_reduce",
        "all_gather",
        "all_to_all",
        "broadcast",
        "gather_bytes",
        "broadcast_bytes",
        "send",
        "barrier",
    ):
        watch(name)
    return counted


@pytest.mark.parametrize(
    ("name", "forward", "back"),
    [("BlockDiag", {}, {}), ("VStack", {}, {"all_reduce": 1}), ("HStack", {"all_reduce": 1}, {})],
)
def test_only_what_must_communicates(
    monkeypatch: pytest.MonkeyPatch, name: str, forward: dict[str, int], back: dict[str, int]
) -> None:
    make, rows, columns = KINDS[name]
    blocks = matrices(3, "float64", rows, columns)
    counted = calls_of(monkeypatch)

    def run() -> None:
        c = comm.current()
        c.barrier()
        counted.clear()
        op = make(blocks[c.rank])
        assert counted == {}
        repr(op)
        c.core.barrier()
        assert counted == {}  # nothing in constructors, and nothing to print it
        c.core.barrier()
        op.shape, op.dtype, op.dims  # noqa: B018
        c.core.barrier()
        assert c.rank > 0 or counted == {"gather_bytes": 1}
        u, v = (
            spread(np.ones(n), [m for (m,) in space.local_shapes] if space.scattered else None)
            for n, space in ((op.shape[1], op.domain()), (op.shape[0], op.range_()))
        )
        for call, wanted in ((lambda: op @ u, forward), (lambda: op.H @ v, back)):
            call()  # first ones set collectives up
            c.core.barrier()
            counted.clear()
            c.core.barrier()
            call()
            c.core.barrier()
            assert c.rank > 0 or counted == wanted
            c.core.barrier()

    comm.virtual_ranks(3, run)


def test_types_hold_what_comes() -> None:
    def run() -> None:
        c = comm.current()
        single, whole = np.ones((2, 2), "float32"), np.ones((2, 2), "complex64")
        mixed = VStack([single] if c.rank == 0 else [whole])
        assert mixed.dtype == np.complex64  # on all ranks
        x = DistributedArray.to_dist(np.ones(2, "float32"), partition=REPLICATED)
        assert mixed.matvec(x).dtype == np.complex64
        op = BlockDiag([single])
        assert op.dtype == np.float32
        assert (op @ DistributedArray.to_dist(np.ones(4, "float32"))).dtype == np.float32
        assert (op @ DistributedArray.to_dist(np.ones(4))).dtype == np.float64
        y = DistributedArray.to_dist(np.ones(4) * 1j)
        np.testing.assert_array_equal((op @ y).asarray(), np.full(4, 2j))
        assert BlockDiag([single], dtype="float64").dtype == np.float64
        untrue = scipy.sparse.linalg.LinearOperator(
            (2, 2), lambda x: 1j * x, lambda x: -1j * x, dtype="float64"
        )
        with pytest.raises(
            ParameterError, match="matvec .* gave complex128, which would lose its imaginary part"
        ):
            BlockDiag([untrue]) @ DistributedArray.to_dist(np.ones(4))

    comm.virtual_ranks(2, run)


def test_results_are_new() -> None:
    """Also where a local operator gives what it got."""
    same = scipy.sparse.linalg.LinearOperator((3, 3), lambda x: x, lambda x: x, dtype="float64")

    def run() -> None:
        for op in (BlockDiag([same]), VStack([same]), HStack([same]), LinearOperator(same)):
            for apply, space in ((op.matvec, op.domain()), (op.rmatvec, op.range_())):
                x = DistributedArray.of(space, np.ones(space.local_shape))
                y = apply(x)
                y[:] = 5
                np.testing.assert_array_equal(x.local, 1)

    comm.virtual_ranks(1, run)


def test_arrays_of_several_dimensions_are_taken_by_their_parts() -> None:
    def run() -> None:
        r = comm.current().rank
        a = numbers((4, 6), "float64", 0)
        x = DistributedArray.to_dist(a, axis=1)
        op = BlockDiag([np.diag(np.arange(12.0) + r)])
        np.testing.assert_allclose((op @ x).local, (np.arange(12) + r) * a[:, 3 * r : 3 * r + 3].ravel())

    comm.virtual_ranks(2, run)


def test_masks_are_those_of_results() -> None:
    def run() -> None:
        op = BlockDiag([np.eye(2)], mask=[0, 0, 1, 1])
        x = DistributedArray.to_dist(np.arange(8.0))
        y = op @ x
        assert y.mask == [0, 0, 1, 1]
        assert y.dot(y) == (14 if comm.current().rank < 2 else 126)
        assert (BlockDiag([np.eye(2)]) @ y).mask == [0, 0, 1, 1]

    comm.virtual_ranks(4, run)


def test_stacked_operators() -> None:
    def run() -> None:
        c = comm.current()
        blocks, others = matrices(3, "float64", None, 5), matrices(3, "float64", 4, None)
        top, right = VStack(blocks[c.rank]), VStack(matrices(3, "complex128", None, 5)[c.rank])
        A, B = (
            whole_of("VStack", blocks, "float64"),
            whole_of("VStack", matrices(3, "complex128", None, 5), "c16"),
        )
        row = HStack(others[c.rank])
        R = whole_of("HStack", others, "float64")
        for op, matrix in (
            (StackedVStack([top, right]), np.concatenate([A, B])),
            (StackedBlockDiag([top, row]), scipy.linalg.block_diag(A, R)),
            (StackedHStack([row, row]), np.concatenate([R, R], axis=1)),
            (
                StackedBlockDiag([StackedVStack([top, top]), row]),
                scipy.linalg.block_diag(np.concatenate([A, A]), R),
            ),
        ):
            assert op.shape == matrix.shape
            np.testing.assert_allclose(op.todense(), matrix)
            np.testing.assert_allclose(op.H.todense(), matrix.conj().T)
            np.testing.assert_allclose(op.T.todense(), matrix.T)
            np.testing.assert_allclose((2j * op).todense(), 2j * matrix)
            np.testing.assert_allclose((op.H @ op).todense(), matrix.conj().T @ matrix, atol=1e-12)
            assert op.dtype == matrix.dtype
            assert dottest(op, rtol=1e-12)
        vectors = StackedDistributedArray(
            [DistributedArray.of(row.domain(), np.zeros(row.domain().local_shape))]
        )
        for call, words in (
            (
                lambda: StackedBlockDiag([row]) @ vectors[0],
                "takes a stack of 1 arrays, not DistributedArray",
            ),
            (lambda: (StackedHStack([row, top])).shape, "different numbers of rows: 4, "),
            (lambda: (StackedVStack([row, top])).shape, "different numbers of columns: "),
        ):
            with pytest.raises(ShapeError, match=words):
                call()
        for call, words in (
            (lambda: StackedVStack([]), r"takes a list of operators, not \[\]"),
            (lambda: StackedVStack([np.eye(2)]), "not ndarray; VStack takes local ones"),
            (lambda: VStack([top]), "for which there is StackedVStack"),
        ):
            with pytest.raises(ParameterError, match=words):
                call()

    comm.virtual_ranks(3, run)


def on_all(ranks: int, error: type[Exception], words: str, function: Callable[[], Any]) -> None:
    """Every rank raises this."""

    def run() -> bool:
        with pytest.raises(error, match=words):
            function()
        return True

    assert comm.virtual_ranks(ranks, run) == [True] * ranks


def test_what_does_not_fit_is_said_on_all_ranks() -> None:
    def blocks(make: Any) -> Any:
        return make([np.ones((2, 2 + (make is BlockDiag) * comm.current().rank))])

    for make, x, words in (
        (
            BlockDiag,
            lambda: DistributedArray.to_dist(np.ones(5)),
            r"BlockDiag: rank 0 has 3 elements of the vector, its blocks take 2: take "
            r"x.redistribute\(partition=Partition.SCATTER, local_shapes=\[\(2,\), \(3,\)\]\)",
        ),
        (
            BlockDiag,
            lambda: DistributedArray.to_dist(np.ones(5), partition=REPLICATED),
            r"takes a scattered vector, this one has Partition.BROADCAST: take x.redistribute",
        ),
        (
            VStack,
            lambda: DistributedArray.to_dist(np.ones(2)),
            r"take x.redistribute\(partition=Partition.BROADCAST\)",
        ),
        (
            HStack,
            lambda: DistributedArray.to_dist(np.ones(4), local_shapes=[(1,), (3,)]),
            "rank 0 has 1 element of",
        ),
        (
            VStack,
            lambda: DistributedArray.to_dist(np.ones(3)),
            r"x has 3 elements \(global shape \(3,\)\), not 2",
        ),
        (
            BlockDiag,
            lambda: StackedDistributedArray([DistributedArray((5,))]),
            "takes one DistributedArray, not a stack of 1",
        ),
        (
            VStack,
            lambda: DistributedArray((2,), base_comm=comm.current().duplicate(), partition=REPLICATED),
            "another communicator",
        ),
    ):
        on_all(2, ShapeError, words, lambda make=make, x=x: blocks(make) @ x())

    def taken_as_given() -> None:
        op = blocks(BlockDiag)
        x = DistributedArray.to_dist(np.arange(5.0))
        y = op @ x.redistribute(partition=SCATTERED, local_shapes=[(2,), (3,)])
        np.testing.assert_array_equal(y.asarray(), [1, 1, 9, 9])

    comm.virtual_ranks(2, taken_as_given)
    words = "VStack: operators have different numbers of columns: 1 on rank 0, 2 on rank 1"
    on_all(2, ShapeError, words, lambda: VStack([np.ones((2, 1 + comm.current().rank))]).shape)
    on_all(2, ShapeError, "no rank has an operator", lambda: HStack([]).shape)
    on_all(2, ShapeError, "different numbers of rows: 2, 3 on rank", lambda: HStack([np.eye(2), np.eye(3)]))
    words = "ranks gave different types: float32, float64"
    on_all(
        2, ParameterError, words, lambda: BlockDiag([], dtype=f"float{32 * (1 + comm.current().rank)}").shape
    )
    on_all(1, ParameterError, "takes a list of local operators, not ndarray", lambda: BlockDiag(np.eye(2)))
    on_all(1, ParameterError, "list has None", lambda: BlockDiag([[1, 2]]))
    on_all(1, ParameterError, "not csr_array: scipy", lambda: BlockDiag([scipy.sparse.csr_array(np.eye(2))]))
    wrong = scipy.sparse.linalg.LinearOperator((2, 2), lambda x: x, lambda x: x, dtype="float64")
    wrong.matvec = lambda x: np.ones(3)
    on_all(
        1,
        ShapeError,
        r"matvec of .* gave an array of shape \(3,\), not of 2 elements",
        lambda: BlockDiag([wrong]) @ DistributedArray.to_dist(np.ones(2)),
    )
    wrong.matvec = lambda x: [1, 2]
    on_all(
        1,
        ParameterError,
        "matvec of .* gave list, not an array",
        lambda: BlockDiag([wrong]) @ DistributedArray.to_dist(np.ones(2)),
    )


@pytest.mark.parametrize("name", ["BlockDiag", "VStack", "HStack"])
def test_a_rank_whose_operator_raises_stops_the_others(name: str) -> None:
    make = KINDS[name][0]
    received: list[BaseException] = []

    def broken(x: np.ndarray) -> np.ndarray:
        if comm.current().rank == 1:
            raise ZeroDivisionError("nothing left")
        return x

    def run() -> None:
        op = make([np.eye(2), scipy.sparse.linalg.LinearOperator((2, 2), broken, broken, dtype="float64")])
        space = op.domain()
        x = DistributedArray.of(space, np.ones(space.local_shape))
        try:
            (op @ x).norm()
            comm.current().barrier()
        except RankError as error:
            received.append(error)
            raise

    with pytest.raises(ZeroDivisionError, match="nothing left") as raised:
        comm.virtual_ranks(3, run)
    assert raised.value.__notes__ == [f"in operator 1 of {name} on rank 1"]
    assert len(received) == 2
    assert all("ZeroDivisionError: nothing left" in str(error) for error in received)


def test_tensors_of_pytorch_are_borrowed() -> None:
    torch = pytest.importorskip("torch")

    def run() -> None:
        same = scipy.sparse.linalg.aslinearoperator(np.arange(6.0).reshape(2, 3))
        for op in (BlockDiag([same]), LinearOperator(same)):
            x = DistributedArray.of(op.domain(), torch.arange(3.0, dtype=torch.float64))
            y = op @ x
            assert y.engine == "torch"
            assert y.local.tolist() == [5, 14]
            assert (op.H @ y).local.tolist() == [42, 61, 80]

    comm.virtual_ranks(1, run)
