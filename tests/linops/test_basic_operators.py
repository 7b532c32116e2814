"""Identity, Zero, Diagonal, Restriction and Transpose against NumPy on the whole array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.errors import ParameterError, ShapeError
from jali.linops import Diagonal, Identity, Restriction, Transpose, Zero, dottest

RANKS = [1, 2, 3, 4]
TYPES = ["float32", "float64", "complex64", "complex128"]
CLOSE = {"float32": 1e-5, "float64": 1e-12, "complex64": 1e-5, "complex128": 1e-12}


def numbers(shape: Any, dtype: str, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
def test_identity_zero_and_diagonal(ranks: int, dtype: str) -> None:
    def run() -> None:
        a, d = numbers((5, 3), dtype, 0), numbers((5, 3), dtype, 1)
        for kind in ({"axis": 0}, {"axis": 1}, {"partition": Partition.BROADCAST}):
            x, diagonal = (DistributedArray.to_dist(v, **kind) for v in (a, d))
            y = Identity((5, 3), dtype) @ x
            np.testing.assert_array_equal(y.asarray(), a)
            assert y.layout is x.layout
            assert not np.shares_memory(y.local, x.local)
            op = Diagonal(diagonal)
            assert (op.dtype, op.dims) == (np.dtype(dtype), (5, 3))
            np.testing.assert_array_equal((op @ x).asarray(), d * a)
            np.testing.assert_array_equal((op.H @ x).asarray(), d.conj() * a)
            if kind != {"axis": 1} or ranks == 1:  # whose raveled parts are not in C order
                np.testing.assert_array_equal((op @ x.ravel()).local, (diagonal * x).local.ravel())
            np.testing.assert_allclose(op.todense(), np.diag(d.ravel()))
            assert dottest(op, rtol=CLOSE[dtype], atol=CLOSE[dtype])
            assert not (Zero((5, 3), dtype=dtype) @ x).asarray().any()
            zero = Zero((5, 3), (4,), dtype)
            assert zero.shape == (4, 15)
            y = zero @ x
            assert (y.global_shape, y.partition, y.dtype) == ((4,), x.partition, np.dtype(dtype))
            assert not y.asarray().any()
            assert (zero.H @ y).global_shape == (5, 3)
            assert (zero @ x.ravel()).global_shape == (4,)
        stack = StackedDistributedArray([x, x])
        assert (Identity(30) @ stack - stack).norm() == 0
        assert dottest(zero)
        with pytest.raises(ParameterError, match="a diagonal is a DistributedArray .* not ndarray"):
            Diagonal(d)
        with pytest.raises(ShapeError, match="takes one DistributedArray, not a stack of 2"):
            Diagonal(DistributedArray((30,))) @ stack

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("axis", "split", "iava"),
    [(0, 0, [1, 2, 6]), (0, 0, []), (1, 0, [3, 0]), (-1, 1, [0, 3]), (0, 1, [6, 2])],
)
def test_restriction(ranks: int, dtype: str, axis: int, split: int, iava: list[int]) -> None:
    dims = (7, 4)

    def run() -> None:
        a = numbers(dims, dtype, 0)
        right = np.take(a, iava, axis=axis) if iava else a[:0]
        uneven = [0] * ranks
        uneven[-1] = dims[split]
        shapes = [tuple(n if k == split else m for k, m in enumerate(dims)) for n in uneven]
        for local_shapes in (None, shapes):
            op = Restriction(dims, iava, axis, dtype, split=split, local_shapes=local_shapes)
            assert op.dimsd == right.shape
            x = DistributedArray.to_dist(a, axis=split, local_shapes=local_shapes)
            y = op @ x
            np.testing.assert_array_equal(y.asarray(), right)
            back = np.zeros_like(a)
            back[(slice(None),) * (axis % 2) + (iava,)] = right
            np.testing.assert_array_equal((op.H @ y).asarray(), back)
            assert (op.H @ y).layout is x.layout
            replicated = DistributedArray.to_dist(a, partition=Partition.BROADCAST)
            np.testing.assert_array_equal((op @ replicated).local, right)
            assert dottest(op, rtol=CLOSE[dtype], atol=CLOSE[dtype])
            if split == 0:  # flat vectors too
                flat = op @ x.ravel()
                np.testing.assert_array_equal(flat.asarray(), right.ravel())
                np.testing.assert_array_equal((op.H @ flat).asarray(), back.ravel())

    comm.virtual_ranks(ranks, run)


def test_restrictions_that_make_no_sense() -> None:
    def run() -> None:
        op = Restriction((4, 3), [0, 2])
        for call, error, words in (
            (lambda: Restriction(4, [4]), ParameterError, "index 4 does not exist along axis 0"),
            (lambda: Restriction(4, [2, 0]), ParameterError, "has to rise along axis 0, which is split"),
            (lambda: Restriction(4, [0, 1, 1]), ParameterError, "an index twice"),
            (lambda: Restriction(4, [0.5]), ParameterError, "a list of indices"),
            (lambda: Restriction(4, [0], axis=1), ShapeError, "axes 1 and 0 of an array of shape"),
            (
                lambda: op @ DistributedArray((4, 3), axis=1),
                ShapeError,
                r"local shapes .*, not \[\(2, 3\), \(2, 3\)\]",
            ),
            (
                lambda: op @ DistributedArray((3, 4)),
                ShapeError,
                r"takes arrays of shape \(4, 3\), or flat ones, not of",
            ),
            (
                lambda: op @ DistributedArray((12,), local_shapes=[(4,), (8,)]),
                ShapeError,
                "rank 0 has 4 elements of a flat vector, which are no whole rows of 3",
            ),
        ):
            with pytest.raises(error, match=words):
                call()

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("axes", [(1, 0, 2), (2, 0, 1), (0, 2, 1), (0, 1, 2), (-1, 1, 0)])
def test_transpose(ranks: int, dtype: str, axes: tuple[int, ...]) -> None:
    dims = (3, 5, 4)

    def run() -> None:
        a = numbers(dims, dtype, 0)
        op = Transpose(dims, axes, dtype)
        right = a.transpose(axes)
        assert op.dimsd == right.shape
        for kind in ({"axis": 0}, {"axis": 1}, {"axis": 2}, {"partition": Partition.BROADCAST}):
            x = DistributedArray.to_dist(a, **kind)
            y = op @ x
            np.testing.assert_array_equal(y.asarray(), right)
            assert y.local.flags.c_contiguous
            assert not np.shares_memory(y.local, x.local)
            assert not y.layout.scattered or y.axis == x.axis
            back = op.H @ y
            np.testing.assert_array_equal(back.asarray(), a)
            assert back.layout.local_shapes == x.layout.local_shapes
        x = DistributedArray.to_dist(a)
        flat = op @ x.ravel()
        np.testing.assert_array_equal(flat.asarray(), right.ravel())
        np.testing.assert_array_equal((op.H @ flat).asarray(), a.ravel())
        assert dottest(op, rtol=CLOSE[dtype], atol=CLOSE[dtype])
        with pytest.raises(ParameterError, match=r"axes \(0, 0, 1\) are no order of the 3 axes"):
            Transpose(dims, (0, 0, 1))

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("shape", [(3, 4), (4, 3, 2), (1, 6)])
def test_a_diagonal_meets_flat_vectors_in_c_order_or_not_at_all(ranks: int, shape: tuple[int, ...]) -> None:
    W, x = numbers(shape, "complex128", 1), numbers(shape, "complex128", 2)

    def run() -> None:
        for axis in range(len(shape)):
            weights = DistributedArray.to_dist(W, axis=axis)
            sizes = [int(np.prod(part)) for part in weights.local_shapes]
            flat = DistributedArray.to_dist(x.reshape(-1), local_shapes=sizes)
            op, whole = Diagonal(weights), DistributedArray.to_dist(x, axis=axis)
            assert np.allclose((op @ whole).asarray(), W * x)
            if ranks == 1 or int(np.prod(shape[:axis])) == 1:
                assert np.allclose((op @ flat).asarray(), (W * x).reshape(-1))
                assert np.allclose((op.H @ flat).asarray(), (W.conj() * x).reshape(-1))
                continue
            for call in (op.matvec, op.rmatvec):
                with pytest.raises(ShapeError, match="has its elements in C order"):
                    call(flat)
        op = Diagonal(DistributedArray.to_dist(W, partition=Partition.BROADCAST))
        replicated = DistributedArray.to_dist(x.reshape(-1), partition=Partition.BROADCAST)
        assert np.allclose((op @ replicated).asarray(), (W * x).reshape(-1))

    comm.virtual_ranks(ranks, run)
