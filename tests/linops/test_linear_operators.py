"""The algebra of operators, serial ones and functions as operators, and what is known of one as a whole."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg

from jali import comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.comm import Communicator
from jali.errors import ParameterError, ShapeError, SolverError
from jali.linops import (
    BlockDiag,
    HStack,
    Identity,
    LinearOperator,
    StackedBlockDiag,
    StackedHStack,
    StackedLinearOperator,
    StackedVStack,
    VStack,
    aslinearoperator,
    dottest,
    from_functions,
)

RANKS = [1, 2, 3, 4]
TYPES = ["float32", "float64", "complex64", "complex128"]
CLOSE = {"float32": 1e-5, "float64": 1e-12, "complex64": 1e-5, "complex128": 1e-12}


def numbers(shape: Any, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def square(ranks: int, dtype: str, seed: int = 0) -> tuple[list[np.ndarray], np.ndarray]:
    """A block for each rank, and the whole."""
    blocks = [numbers((2 + r % 2, 2 + r % 2), dtype, seed + r) for r in range(ranks)]
    return blocks, scipy.linalg.block_diag(*blocks).astype(dtype)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_algebra_is_that_of_matrices(ranks: int, dtype: str) -> None:
    (a, A), (b, B) = square(ranks, dtype), square(ranks, dtype, 50)

    def run() -> None:
        r = comm.current().rank
        op, other = BlockDiag([a[r]]), BlockDiag([b[r]])
        for found, right in (
            (op, A),
            (op.H, A.conj().T),
            (op.T, A.T),
            (op.conj(), A.conj()),
            (op.T.H, A.conj()),
            (op.H.T, A.conj()),
            (op.conj().H, A.T),
            (-op, -A),
            (2.0 * op, 2.0 * A),
            (op * 2, A * 2),
            (op / 4, A / 4),
            ((1 + 2j) * op, (1 + 2j) * A),
            (op + other, A + B),
            (op - other, A - B),
            (op @ other, A @ B),
            (op * other, A @ B),
            (op.dot(other), A @ B),
            (op**3, A @ A @ A),
            (op**0, np.eye(len(A), dtype=dtype)),
            (op.H @ op + 0.5 * Identity(len(A), dtype), A.conj().T @ A + 0.5 * np.eye(len(A), dtype=dtype)),
        ):
            tolerance = 40 * CLOSE[dtype]
            np.testing.assert_allclose(found.todense(), right, rtol=tolerance, atol=tolerance)
            np.testing.assert_allclose(found.H.todense(), right.conj().T, rtol=tolerance, atol=tolerance)
            assert dottest(found, rtol=tolerance, atol=tolerance)
            assert found.shape == right.shape
            assert found.dtype == right.dtype
        assert op.H.H is op
        assert op.T.T is op

    comm.virtual_ranks(ranks, run)


def test_algebra_of_stacks_is_of_stacks() -> None:
    def run() -> None:
        op = StackedVStack([BlockDiag([np.eye(2)]), BlockDiag([np.ones((2, 2))])])
        for found in (
            op,
            2 * op,
            op.H,
            op.T,
            op.conj(),
            op + op,
            op @ BlockDiag([np.eye(2)]),
            (op.H @ op) ** 2,
        ):
            assert isinstance(found, StackedLinearOperator)

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_serial_operators_take_the_whole_on_every_rank(ranks: int, dtype: str) -> None:
    A = numbers((4, 6), dtype, 0)

    def run() -> None:
        serial = scipy.sparse.linalg.aslinearoperator(A)
        for op in (LinearOperator(serial), aslinearoperator(serial), aslinearoperator(A)):
            assert op.dtype == np.dtype(dtype)
            x = DistributedArray.to_dist(numbers((2, 3), dtype, 1), partition=Partition.BROADCAST)
            y = op @ x
            assert (y.global_shape, y.partition, y.dtype) == ((4,), Partition.BROADCAST, np.dtype(dtype))
            np.testing.assert_allclose(y.local, A @ x.local.ravel(), rtol=CLOSE[dtype])
            np.testing.assert_allclose((op.H @ y).local, A.conj().T @ y.local, rtol=10 * CLOSE[dtype])
            np.testing.assert_array_equal(op.todense(), A)
            assert dottest(op, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        assert aslinearoperator(op) is op
        whole = VStack([np.ones((2, 4), dtype)]) @ op
        np.testing.assert_allclose(whole.todense(), np.ones((2 * ranks, 4)) @ A, rtol=10 * CLOSE[dtype])
        scattered = DistributedArray.to_dist(np.ones(6, dtype))
        if ranks > 1:
            with pytest.raises(
                ShapeError, match=r"x is scattered .* or spread the operator by BlockDiag, VStack or HStack"
            ):
                op @ scattered
        else:
            assert (op @ scattered).partition is Partition.SCATTER

    comm.virtual_ranks(ranks, run)


def test_dims_are_those_of_pylops() -> None:
    pylops = pytest.importorskip("pylops")

    def run() -> None:
        op = LinearOperator(pylops.FirstDerivative((3, 4), axis=1, dtype="float32"))
        assert (op.dims, op.dimsd, op.shape, op.dtype) == ((3, 4), (3, 4), (12, 12), np.float32)
        assert (op.H.dims, (op @ op).dimsd) == ((3, 4), (3, 4))
        x = DistributedArray.to_dist(numbers((12,), "complex128", 0), partition=Partition.BROADCAST)
        np.testing.assert_allclose((op @ x).local, op.Op @ x.local.real + 1j * (op.Op @ x.local.imag))

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_functions_are_operators(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    before = Communicator.gather_bytes
    monkeypatch.setattr(
        Communicator, "gather_bytes", lambda *a, **k: counted.append(k.get("what")) or before(*a, **k)
    )

    def run() -> None:
        factors = DistributedArray.to_dist(np.arange(7.0) * (1 + 1j))
        op = from_functions(lambda x: factors * x, lambda y: factors.conj() * y, (7, 7), "complex128")
        x, y = (DistributedArray.to_dist(numbers((7,), "complex128", seed)) for seed in (1, 2))
        assert dottest(op, x, y, rtol=1e-12)
        np.testing.assert_allclose(op.todense(like=x), np.diag(np.arange(7) * (1 + 1j)))
        parts = from_functions(
            lambda x: np.repeat(x, 2), lambda y: y.reshape(-1, 2).sum(1), (14, 7), parts=True
        )
        v = DistributedArray.to_dist(
            numbers((14,), "float64", 3), local_shapes=[(2 * n,) for (n,) in x.local_shapes]
        )
        assert dottest(parts, x, v + 0j, rtol=1e-12)
        comm.current().core.barrier()
        counted.clear()
        comm.current().core.barrier()
        for _ in range(5):
            np.testing.assert_array_equal((parts @ x).asarray(), np.repeat(x.asarray(), 2))
            parts.H @ v
        assert "sizes of an operator's parts" not in counted  # they are known
        comm.current().core.barrier()
        replicated = DistributedArray.to_dist(np.arange(7.0), partition=Partition.BROADCAST)
        np.testing.assert_array_equal((parts @ replicated).local, np.repeat(np.arange(7.0), 2))
        for wrong, error, words in (
            (lambda x: 3, ParameterError, "matvec of .* gave int, not a DistributedArray"),
            (lambda x: DistributedArray((8,)), ShapeError, r"the result of matvec has 8 elements .*, not 7"),
        ):
            with pytest.raises(error, match=words):
                from_functions(wrong, wrong, (7, 7)) @ x
        with pytest.raises(ShapeError, match=r"gave .* elements on the ranks, together 14, not 7"):
            from_functions(lambda x: np.repeat(x, 2), lambda x: x, (7, 7), parts=True) @ x
        with pytest.raises(ParameterError, match="made of two functions, not of 1 and 2"):
            from_functions(1, 2, (7, 7))

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_division_solves(ranks: int, dtype: str) -> None:
    a, A = square(ranks, dtype)
    tall = [numbers((5 + r, 4), dtype, 20 + r) for r in range(ranks)]
    T = np.concatenate(tall)

    def run() -> None:
        r = comm.current().rank
        for op, matrix in (
            (BlockDiag([a[r]]), A),
            (VStack([tall[r]]), T),
            (HStack([tall[r].conj().T]), T.conj().T),
            (StackedVStack([BlockDiag([a[r]]), 2 * BlockDiag([a[r]])]), np.concatenate([A, 2 * A])),
        ):
            y = op @ (op.H @ op).matvec(op.H @ _ones(op.range_(), dtype))
            y = y + _ones(op.range_(), dtype)
            x = op / y
            right = np.linalg.lstsq(matrix, y.asarray(), rcond=None)[0]
            np.testing.assert_allclose(x.asarray(), right, rtol=1e-5, atol=1e-6 * abs(right).max())
        nothing = op / y.zeros_like()
        assert nothing.norm() == 0
        assert (op / (y * 0)).global_shape == (op.shape[1],)
        with pytest.raises(ParameterError, match="maxiter is a positive whole number, not 0"):
            op.div(y, maxiter=0)
        with pytest.raises(ShapeError, match="y has"):
            op / x

    def _ones(space: Any, dtype: str) -> Any:
        if isinstance(space, list):
            return StackedDistributedArray([_ones(one, dtype) for one in space])
        return DistributedArray.of(space, np.ones(space.local_shape, dtype))

    comm.virtual_ranks(ranks, run)


def test_least_squares_of_a_vector_that_is_orthogonal_to_all() -> None:
    def run() -> None:
        op = LinearOperator(np.array([[1.0], [0.0]]))
        y = DistributedArray.to_dist(np.array([0.0, 3.0]), partition=Partition.BROADCAST)
        assert (op / y).local.tolist() == [0]

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_eigenvalues_condition_and_trace(ranks: int, dtype: str) -> None:
    a, A = zip(*(square(ranks, dtype, seed) for seed in (0, 7, 70, 700)), strict=True)
    n = len(A[0])

    def run() -> None:
        r = comm.current().rank
        op = BlockDiag([scipy.linalg.block_diag(*(one[r] for one in a))])
        matrix = op.todense()
        hermitian = op.H @ op
        values = np.linalg.eigvals(matrix)
        np.testing.assert_allclose(op.eigs(), -np.sort(-values), rtol=1e-8)
        moduli = np.sort(abs(values))[::-1]
        few = 2 + (moduli[2] > moduli[1] * (1 - 1e-6))  # conjugate pairs come together
        if few < len(values) - 1:
            np.testing.assert_allclose(np.sort(abs(op.eigs(few)))[::-1], moduli[:few], rtol=1e-6)
        right = np.sort(np.linalg.svd(matrix, compute_uv=False) ** 2)[::-1]
        np.testing.assert_allclose(hermitian.eigs(symmetric=True), right, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(hermitian.eigs(3, symmetric=True), right[:3], rtol=1e-8)
        np.testing.assert_allclose(op.cond(), np.linalg.cond(matrix), rtol=1e-8)
        np.testing.assert_allclose(op.trace(), np.trace(matrix), rtol=1e-10)
        np.testing.assert_allclose(hermitian.trace(neval=300), right.sum(), rtol=0.2)
        tall = VStack([numbers((4, 6), dtype, 90 + r)])
        singular = np.linalg.svd(tall.todense(), compute_uv=False)
        np.testing.assert_allclose(tall.eigs(), singular, rtol=1e-10)
        if len(singular) > 3:
            np.testing.assert_allclose(tall.eigs(2), singular[:2], rtol=1e-8)
        assert BlockDiag([np.zeros((2, 2))]).cond() == np.inf
        for call, error, words in (
            (lambda: tall.trace(), ShapeError, "only square operators have a trace"),
            (lambda: op.eigs(0), ParameterError, "neigs is a positive whole number, not 0"),
            (lambda: op.todense(most_elements=9), ShapeError, "elements as a matrix, .* 9 are permitted"),
            (lambda: Identity(4).todense(), ParameterError, "give one of them, like=x"),
            (
                lambda: op.todense(like=DistributedArray((3,))),
                ShapeError,
                f"takes {4 * n} elements, .* has 3",
            ),
            (lambda: Identity(100).eigs(neigs=2, maxiter=1), ParameterError, "eigs: .* like=x"),
        ):
            if call is not None and not (ranks == 1 and "takes" in words and n * 4 == 3):
                with pytest.raises(error, match=words):
                    call()
        assert op.todense().dtype == np.dtype(dtype)

    comm.virtual_ranks(ranks, run)


def test_eigenvalues_that_do_not_converge() -> None:
    def run() -> bool:
        op = BlockDiag([np.diag(1 + 1e-4 * np.arange(200.0))])
        with pytest.raises(SolverError, match="permit more iterations"):
            op.eigs(5, symmetric=True, maxiter=1)
        return True

    assert comm.virtual_ranks(2, run) == [True, True]


def test_a_dot_test_says_by_how_much(capsys: pytest.CaptureFixture[str]) -> None:
    def run() -> None:
        op = from_functions(lambda x: 2 * x, lambda y: 3 * y, (6, 6))
        x = DistributedArray.to_dist(np.ones(6))
        words = r"\(A u\)\^H v = 12.0 and u\^H \(A\^H v\) = 18.0: they differ by 6.0, which is 0.33 of the larger one \(1e-06 is"
        with pytest.raises(AssertionError, match=words):
            dottest(op, x, x)
        assert not dottest(op, x, x, raiseerror=False, show=True)
        assert dottest(op, x, x, rtol=0.4)
        assert dottest(op, x, x, atol=7)
        with pytest.raises(AssertionError, match=r"nr=5 and nc=None do not match operator shape \(6, 6\)"):
            dottest(op, x, x, 5)
        with pytest.raises(ParameterError, match=r"give u, .* \(v is missing\)"):
            dottest(op, x)
        wrong = from_functions(lambda x: 1j * x, lambda y: 1j * y, (6, 6), "complex128")
        assert not dottest(wrong, x, x, raiseerror=False)  # as large, but of another sign

    comm.virtual_ranks(2, run)
    said = capsys.readouterr().out
    assert said.startswith("Dot test failed, (A u)^H v = 12.0")
    assert said.count("\n") == 1


def test_what_is_no_operation_of_operators() -> None:
    def run() -> None:
        op, other = BlockDiag([np.eye(2)]), BlockDiag([np.ones((2, 3))])
        x = DistributedArray((2,))
        for call, error, words in (
            (lambda: op @ 2, ParameterError, r"with \*, not with @"),
            (lambda: op + 2, ParameterError, "added to operators, not to int"),
            (lambda: op + other, ShapeError, "cannot add .*: shape mismatch"),
            (lambda: other @ op, ShapeError, "cannot multiply .*: shape mismatch"),
            (lambda: other**2, ShapeError, "only square operators have powers"),
            (lambda: op**-1, ParameterError, "whole numbers from 0, not -1"),
            (lambda: op**0.5, ParameterError, "whole numbers from 0, not 0.5"),
            (lambda: "a" * op, ParameterError, "multiplied by numbers, not by 'a'"),
            (lambda: op / 0, ParameterError, "divided by numbers other than 0"),
            (
                lambda: op @ np.ones(2),
                ParameterError,
                "x is a DistributedArray or a stack of them, not ndarray",
            ),
            (lambda: other @ x, ShapeError, r"x has 2 elements \(global shape \(2,\)\), not 3"),
            (lambda: other.H @ DistributedArray((3,)), ShapeError, "x has 3 elements"),
            (lambda: LinearOperator(), ParameterError, "an operator needs its shape"),
            (lambda: LinearOperator(op), ParameterError, "is an operator of distributed arrays already"),
            (lambda: LinearOperator(shape=(2, 2)) @ x, NotImplementedError, "LinearOperator has no _matvec"),
        ):
            with pytest.raises(error, match=words):
                call()

    comm.virtual_ranks(1, run)


def keeping(matrix: np.ndarray, parts: bool) -> LinearOperator:
    """Functions that write their results, row by row, into one array, which they give every time."""
    kept: dict[str, Any] = {}

    def applied(x: Any, rows: np.ndarray) -> Any:
        local = x if parts else x.local
        out = kept.setdefault("array", np.zeros_like(local) if parts else x.zeros_like())
        into = out if parts else out.local
        for number, row in enumerate(rows):
            into[number] = row @ local
        return out

    adjoint = matrix.conj().T
    return from_functions(
        lambda x: applied(x, matrix), lambda x: applied(x, adjoint), matrix.shape, parts=parts
    )


@pytest.mark.parametrize("parts", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
def test_functions_may_give_the_same_array_every_time(ranks: int, parts: bool) -> None:
    M, x, z = numbers((4, 4), "float64", 1), numbers(4, "float64", 2), numbers(4, "float64", 3)

    def run() -> None:
        A = keeping(M, parts)
        X, Z = (DistributedArray.to_dist(one, partition=Partition.BROADCAST) for one in (x, z))
        both = StackedDistributedArray([X, Z])
        for found, right in (
            (A.todense(like=X), M),
            ((A.H @ A - A).todense(like=X), M.T @ M - M),
            (((A.H @ A - A) @ X).asarray(), M.T @ M @ x - M @ x),
            (((A.H @ A - A).H @ X).asarray(), M.T @ M @ x - M.T @ x),
            (((A @ A) @ X).asarray(), M @ M @ x),
            (((A @ A).H @ X).asarray(), M.T @ M.T @ x),
            ((A**3 @ X).asarray(), M @ M @ M @ x),
            ((StackedBlockDiag([A, A]) @ both).asarray(), np.r_[M @ x, M @ z]),
            ((StackedBlockDiag([A, A]).H @ both).asarray(), np.r_[M.T @ x, M.T @ z]),
            ((StackedVStack([A, A @ A]) @ X).asarray(), np.r_[M @ x, M @ M @ x]),
            ((StackedVStack([A, A]).H @ both).asarray(), M.T @ x + M.T @ z),
            ((StackedHStack([A, A]) @ both).asarray(), M @ x + M @ z),
            ((StackedHStack([A, A @ A]).H @ X).asarray(), np.r_[M.T @ x, M.T @ M.T @ x]),
            (A.trace(like=X), np.trace(M)),
        ):
            assert np.allclose(found, right, rtol=1e-13, atol=1e-13)
        assert A.matvec(X).local is A.matvec(Z).local or parts  # one application alone copies nothing

    comm.virtual_ranks(ranks, run)
