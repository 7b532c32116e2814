"""Products, sums, stacks and adjoints of all operators of jali.linops on vectors of any order: right, or refused with both layouts.

Right is what matrices in C order say, those of serial pylops where it has the operator.
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jali
from jali import comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.arrays.layout import Layout
from jali.errors import LayoutError, ShapeError
from jali.linops import (
    FFT,
    FFTND,
    BlockDiag,
    Diagonal,
    FirstDerivative,
    Fredholm1,
    Gradient,
    Halo,
    HStack,
    Identity,
    Laplacian,
    LinearOperator,
    MatrixMult,
    NonStationaryConvolve1D,
    NonStationaryConvolve2D,
    Restriction,
    SecondDerivative,
    SiteOperator,
    Sliding,
    StackedBlockDiag,
    StackedHStack,
    StackedVStack,
    Transpose,
    VStack,
    Zero,
    from_functions,
)
from jali.solvers import cgls

DIMS, SIZE = (4, 6), 24
Pair = tuple[Any, np.ndarray]  # an operator and its matrix


def pylops() -> Any:
    return pytest.importorskip("pylops")


def dense(Op: Any) -> np.ndarray:
    return np.stack([Op.matvec(e) for e in np.eye(Op.shape[1])], axis=1)


def scipy_identity(n: int) -> Any:
    return pytest.importorskip("scipy.sparse.linalg").aslinearoperator(np.eye(n))


@jali.site_function
def ahead(X, out, x):
    mu, nu = X.directions()
    out[X] = x[X + mu] - 2 * x[X + nu]


@jali.site_function
def back(X, out, x):
    mu, nu = X.directions()
    out[X] = x[X - mu] - 2 * x[X - nu]


def shifted() -> np.ndarray:
    rows = np.arange(SIZE).reshape(DIMS)
    matrix = np.zeros((SIZE, SIZE))
    for axis, weight in ((0, 1), (1, -2)):
        matrix[np.arange(SIZE), np.roll(rows, -1, axis).ravel()] += weight
    return matrix


def halo(grid: tuple[int, int]) -> Pair:
    """Elements times the number of blocks that have them."""
    Op = Halo(DIMS, 1, grid)
    count = np.zeros(DIMS)
    for box in Op.blocks.boxes:
        count[tuple(slice(max(0, a - 1), min(n, b + 1)) for (a, b), n in zip(box, DIMS, strict=True))] += 1
    return Op.H @ Op, np.diag(count.ravel())


def operators(numbers: np.random.Generator) -> dict[str, Callable[[], Pair]]:
    """Square ones of 24 elements; `numbers` are the same on all ranks."""
    ranks = comm.current()
    signal = pylops().signalprocessing
    hs, h2 = numbers.normal(size=(2, 3)), numbers.normal(size=(2, 2, 3, 3))
    values, A, G = numbers.normal(size=DIMS), numbers.normal(size=(4, 4)), numbers.normal(size=(4, 6, 6))
    sizes = tuple(
        (math.prod((n, 6)),) for n in (DistributedArray(DIMS).local_shapes[r][0] for r in range(ranks.size))
    )
    blocks = [numbers.normal(size=(n, n)) for (n,) in sizes]
    mine = sum(n for (n,) in sizes[: ranks.rank])
    slices = DistributedArray(DIMS).layout.box[0]

    def restricted(axis: int, split: int) -> Pair:
        R = Restriction(DIMS, [0, 2, 3], axis=axis, split=split)
        M = dense(pylops().Restriction(DIMS, [0, 2, 3], axis=axis))
        return R.H @ R, M.T @ M

    def block_diagonal() -> Pair:
        matrix = np.zeros((SIZE, SIZE))
        begin = 0
        for block in blocks:
            matrix[begin : begin + len(block), begin : begin + len(block)] = block
            begin += len(block)
        return BlockDiag([blocks[ranks.rank]]), matrix

    def there_and_back() -> Pair:
        whole = numbers.normal(size=(SIZE, SIZE))
        rows, columns = (
            whole[mine : mine + sizes[ranks.rank][0]],
            whole[:, mine : mine + sizes[ranks.rank][0]],
        )
        return VStack([rows]) @ HStack([columns]), whole @ whole

    def product_of_matrices() -> Pair:
        side = math.isqrt(ranks.size)
        part = DistributedArray.to_dist(A, axis=(0, 1), grid=(side, side)).local
        return MatrixMult(part, 6), np.kron(A, np.eye(6))

    def sliding() -> Pair:
        S = Sliding(scipy_identity(12), DIMS, 2, 1)  # tapers of one sample are 1
        matrix = np.zeros((SIZE, 36))
        for k in range(3):
            matrix[6 * k : 6 * k + 12, 12 * k : 12 * k + 12] += np.eye(12)
        return S @ S.H, matrix @ matrix.T

    def gradient() -> Pair:
        D, M = Gradient(DIMS), dense(pylops().Gradient(DIMS, edge=False))
        return D.H @ D, M.T @ M

    found: dict[str, Callable[[], Pair]] = {
        "Identity": lambda: (Identity(DIMS), np.eye(SIZE)),
        "Zero": lambda: (Zero(DIMS), np.zeros((SIZE, SIZE))),
        "Diagonal of rows": lambda: (Diagonal(DistributedArray.to_dist(values)), np.diag(values.ravel())),
        "Diagonal of columns": lambda: (Diagonal(DistributedArray.to_dist(values, axis=1)), np.diag(values.ravel())),
        "Restriction along rows": lambda: restricted(1, 0),
        "Restriction of columns": lambda: restricted(0, 1),
        "Transpose": lambda: (Transpose((6, 4), (1, 0)) @ Transpose(DIMS, (1, 0)), np.eye(SIZE)),
        "Laplacian": lambda: (Laplacian(DIMS), dense(pylops().Laplacian(DIMS, edge=False))),
        "Gradient": gradient,
        "FFTND": lambda: (FFTND(DIMS, (0, 1), norm="ortho"), dense(signal.FFTND(DIMS, (0, 1)))),
        "FFT": lambda: (FFT(DIMS, axis=0), dense(signal.FFT(DIMS, axis=0, norm="ortho"))),
        "Convolve2D": lambda: (
            NonStationaryConvolve2D(DIMS, h2, (0, 3), (1, 4)), dense(signal.NonStationaryConvolve2D(DIMS, h2, (0, 3), (1, 4)))
        ),
        "SiteOperator": lambda: (SiteOperator(ahead, DIMS, adjoint=back), shifted()),
        "Sliding": sliding,
        "Fredholm1": lambda: (Fredholm1(G[slices[0] : slices[1]]), dense(pylops().signalprocessing.Fredholm1(G))),
        "from_functions": lambda: (from_functions(lambda x: 2 * x, lambda x: 2 * x, (SIZE, SIZE)), 2 * np.eye(SIZE)),
        "BlockDiag": block_diagonal,
        "VStack HStack": there_and_back,
        "Halo of rows": lambda: halo((ranks.size, 1)),
        "Halo of columns": lambda: halo((1, ranks.size)),
        "serial": lambda: (LinearOperator(pylops().FirstDerivative(DIMS, axis=0)), dense(pylops().FirstDerivative(DIMS, axis=0))),
    }  # fmt: skip
    for axis in (0, 1):
        found |= {
            f"FirstDerivative {axis}": lambda axis=axis: (
                FirstDerivative(DIMS, axis=axis), dense(pylops().FirstDerivative(DIMS, axis=axis))
            ),
            f"SecondDerivative {axis}": lambda axis=axis: (
                SecondDerivative(DIMS, axis=axis), dense(pylops().SecondDerivative(DIMS, axis=axis))
            ),
            f"Convolve1D {axis}": lambda axis=axis: (
                NonStationaryConvolve1D(DIMS, hs, (1, 3), axis), dense(signal.NonStationaryConvolve1D(DIMS, hs, (1, 3), axis=axis))
            ),
        }  # fmt: skip
    if math.isqrt(ranks.size) ** 2 == ranks.size:
        found["MatrixMult"] = product_of_matrices
    return found


IN_BLOCKS = ("Halo of columns", "MatrixMult")  # which take flat vectors of no known order as their blocks
OF_PARTS = ("BlockDiag", "VStack HStack")  # which act on parts, whatever these are of the whole


def vectors(a: np.ndarray, numbers: np.random.Generator) -> dict[str, DistributedArray]:
    """The elements of `a` in all forms that a vector has, split evenly or not."""
    ranks = comm.current().size

    def shares(n: int) -> list[int]:
        cuts = np.sort(numbers.integers(0, n + 1, ranks - 1))
        return np.diff([0, *cuts, n]).tolist()

    rows, columns = ([(n, 6) for n in shares(4)], [(4, n) for n in shares(6)])
    flat = [(6 * n,) for n in shares(4)]
    found = {
        "rows": DistributedArray.to_dist(a), "uneven rows": DistributedArray.to_dist(a, local_shapes=rows),
        "columns": DistributedArray.to_dist(a, axis=1), "uneven columns": DistributedArray.to_dist(a, axis=1, local_shapes=columns),
        "grid": DistributedArray.to_dist(a, axis=(0, 1)), "grid the other way": DistributedArray.to_dist(a, axis=(1, 0)),
    }  # fmt: skip
    found |= {f"flat {name}": x.ravel() for name, x in found.items()}
    found["flat"] = DistributedArray.to_dist(a.ravel(), local_shapes=flat)
    found["evenly flat"] = DistributedArray.to_dist(a.ravel())
    found["on all ranks"] = DistributedArray.to_dist(a.ravel(), partition=Partition.BROADCAST)
    found["of no known order"] = DistributedArray(
        (SIZE,), local_array=found["flat rows"].local, local_shapes=found["flat rows"].local_shapes
    )
    return found


def whole(x: Any) -> np.ndarray:
    """Its elements in C order."""
    if isinstance(x, StackedDistributedArray):
        return np.concatenate([whole(one) for one in x.distarrays])
    if isinstance(of := x.layout.flat_of, Layout):
        x = DistributedArray.of(of, x.local.reshape(of.local_shape))
    return np.asarray(x.asarray()).ravel()


def comparable(names: list[str], form: str) -> bool:
    """Whether an operator of these means by such a vector what its elements are in C order."""
    if form == "of no known order":
        return not any(name in IN_BLOCKS for name in names)
    return not any(word in form for word in ("columns", "grid")) or not any(
        name in OF_PARTS for name in names
    )


def combined(how: str, found: list[Pair]) -> tuple[Any, np.ndarray, int]:
    """An operator, its matrix, and how many vectors it takes as a stack (0: none)."""
    ops, matrices = zip(*found, strict=True)
    A, M = ops[0], matrices[0]
    if how == "sum":
        for B, N in found[1:]:
            A, M = A + B, M + N
        return A, M, 0
    if how == "stack":
        return StackedVStack(list(ops)), np.concatenate(matrices), 0
    if how == "row of a stack":
        return StackedHStack(list(ops)), np.concatenate(matrices, axis=1), len(ops)
    if how == "diagonal of a stack":
        zeros = np.zeros((len(ops) * SIZE,) * 2, complex)
        for k, N in enumerate(matrices):
            zeros[k * SIZE : (k + 1) * SIZE, k * SIZE : (k + 1) * SIZE] = N
        return StackedBlockDiag(list(ops)), zeros, len(ops)
    for B, N in found[1:]:
        A, M = A @ B, M @ N
    return (A, M, 0) if how == "product" else (A.H, M.conj().T, 0)


def tried(seed: int) -> tuple[int, int, list[str]]:
    """How many are right, how many are refused, and what is neither."""
    numbers = np.random.default_rng(seed)
    a = numbers.normal(size=DIMS)
    all_operators, all_vectors = operators(numbers), vectors(a, numbers)
    right, refused, wrong = 0, 0, []
    for how in (
        "product",
        "product",
        "adjoint of a product",
        "sum",
        "stack",
        "row of a stack",
        "diagonal of a stack",
    ):
        names = list(numbers.choice(list(all_operators), size=numbers.integers(2, 4)))
        Op, matrix, count = combined(how, [all_operators[name]() for name in names])
        for form, x in all_vectors.items():
            if not comparable(names, form):
                continue
            given = StackedDistributedArray([x] * count) if count else x
            elements = np.tile(a.ravel(), max(count, 1))
            try:
                found = whole(Op.matvec(given))
            except (ShapeError, LayoutError) as error:
                refused += 1
                words = str(error)
                if (
                    re.search("(another|different|this) order", words)
                    and len(re.findall("scatter|arrays of shape", words)) < 2
                ):
                    wrong.append(f"{how} of {names} on {form} is refused without both layouts: {error}")
                continue
            right += 1
            if not np.allclose(found, matrix @ elements, rtol=1e-10, atol=1e-10):
                wrong.append(f"{how} of {names} on {form}")
    return right, refused, wrong


def check(ranks: int, seeds: range) -> None:
    right = refused = 0
    for seed in seeds:
        found = comm.virtual_ranks(ranks, tried, seed)
        assert found == [found[0]] * ranks
        assert not found[0][2]
        right, refused = right + found[0][0], refused + found[0][1]
    assert right > refused / 4


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_products_sums_stacks_and_adjoints_of_operators_are_right_or_refused(ranks: int) -> None:
    check(ranks, range(2))


@pytest.mark.full
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6])
def test_many_products_sums_stacks_and_adjoints_of_operators_are_right_or_refused(ranks: int) -> None:
    check(ranks, range(2, 60))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_operators_and_their_adjoints_are_right_or_refused_on_vectors_of_any_order(ranks: int) -> None:
    def run() -> None:
        numbers = np.random.default_rng(5)
        a = numbers.normal(size=DIMS)
        all_operators, all_vectors = operators(numbers), vectors(a, numbers)
        for name, make in all_operators.items():
            Op, matrix = make()
            right = 0
            for form, x in all_vectors.items():
                if not comparable([name], form):
                    continue
                for apply, M in ((Op.matvec, matrix), (Op.rmatvec, matrix.conj().T)):
                    try:
                        found = whole(apply(x))
                    except (ShapeError, LayoutError):
                        continue
                    np.testing.assert_allclose(
                        found, M @ a.ravel(), rtol=1e-10, atol=1e-10, err_msg=f"{name} on {form}"
                    )
                    right += 1
            assert right > 1, name

    comm.virtual_ranks(ranks, run)


def test_a_convolution_and_a_derivative_agree_in_which_order_elements_are() -> None:
    """The one takes parts along its axis, the other along the first."""
    a, hs = np.arange(64.0).reshape(8, 8) ** 1.5, np.array([[1.0, 2, 3], [5, 1, 0]])
    serial = pylops().signalprocessing.NonStationaryConvolve1D((8, 8), hs, (2, 5), axis=1)
    right = serial @ (pylops().FirstDerivative((8, 8), axis=0) @ a.ravel())

    def run() -> None:
        C, D = NonStationaryConvolve1D((8, 8), hs, (2, 5), axis=1), FirstDerivative((8, 8), axis=0)
        parts = DistributedArray(64, local_array=DistributedArray.to_dist(a).local.ravel())
        for x in (DistributedArray.to_dist(a.ravel()), DistributedArray.to_dist(a).ravel(), parts):
            np.testing.assert_allclose((C @ D @ x).asarray(), right)
            np.testing.assert_allclose((C @ x).asarray(), serial @ a.ravel())
        columns = DistributedArray.to_dist(a, axis=1).ravel()
        assert (C @ D @ columns).layout is columns.layout
        np.testing.assert_allclose(whole(C @ D @ columns), right)

    comm.virtual_ranks(2, run)


def test_vectors_of_different_orders_are_refused_with_both_layouts() -> None:
    a = np.arange(24.0).reshape(DIMS)

    def run() -> None:
        rows, columns = DistributedArray.to_dist(a).ravel(), DistributedArray.to_dist(a, axis=1).ravel()
        by_rows, by_columns = (
            r"\(24,\) scatter.*in C order",
            r"\(24,\) scatter.*flattening of <\(4, 6\) scatter.*along axis 1",
        )
        for act in (
            lambda: rows + columns, lambda: rows.dot(columns), lambda: rows.__iadd__(columns), lambda: rows.__setitem__(..., columns),
            lambda: np.maximum(rows, columns),
        ):  # fmt: skip
            with pytest.raises(ShapeError, match=f"different orders.*{by_rows}.*{by_columns}"):
                act()
        with pytest.raises(ShapeError, match=f"arrays of shape \\(6, 4\\).*another order.*{by_columns}"):
            FirstDerivative((6, 4)) @ columns
        halo = Halo(DIMS, 1, (1, 2))
        with pytest.raises(ShapeError, match=f"{DIMS[0]}, 6\\) scatter over 2 ranks, along axes.*{by_rows}"):
            halo @ rows
        unknown = DistributedArray(24, local_array=rows.local.copy())
        with pytest.raises(
            ShapeError, match="in different orders, one as .*flattening of.*another as .*C order"
        ):
            (halo.H @ halo + FirstDerivative(DIMS)) @ unknown
        with pytest.raises(ShapeError, match="in different orders"):
            StackedVStack([halo, FirstDerivative(DIMS)]) @ unknown
        assert (halo.H @ halo @ columns).layout.is_order_of(columns.layout)
        assert (unknown + columns).layout is (columns + unknown).layout is columns.layout
        unknown += columns
        assert unknown.layout is columns.layout
        again = columns.redistribute(local_shapes=[(5,), (19,)])
        with pytest.raises(ShapeError, match="another order"):
            FirstDerivative(DIMS) @ again
        assert np.array_equal(again.asarray(), columns.asarray())

    comm.virtual_ranks(2, run)


def test_transforms_are_inverted_in_the_order_of_vectors() -> None:
    a = np.random.default_rng(1).normal(size=DIMS)

    def run() -> None:
        Op = FFTND(DIMS, (0, 1), real=True, dtype="float64")
        for x in (DistributedArray.to_dist(a, axis=1).ravel(), DistributedArray.to_dist(a.ravel())):
            np.testing.assert_allclose(whole(Op / (Op @ x)), a.ravel(), rtol=1e-12)

    comm.virtual_ranks(2, run)


def test_solvers_keep_the_order_of_vectors() -> None:
    a = np.random.default_rng(1).normal(size=DIMS)

    def run() -> None:
        D = FirstDerivative(DIMS, axis=1) + 3 * Identity(DIMS)
        for x in (
            DistributedArray.to_dist(a, axis=1).ravel(),
            DistributedArray.to_dist(a),
            DistributedArray.to_dist(a.ravel()),
        ):
            y = D @ x
            y = (
                DistributedArray(y.global_shape, local_array=y.local, local_shapes=y.local_shapes)
                if y.layout.flat_of == "C"
                else y
            )
            found = cgls(D, y, maxiter=100, rtol=1e-14).x
            np.testing.assert_allclose(whole(found), a.ravel(), rtol=1e-8)

    comm.virtual_ranks(2, run)


def test_copies_of_flat_vectors_know_their_order() -> None:
    a = np.arange(24.0).reshape(DIMS)

    def run() -> None:
        for x in (DistributedArray.to_dist(a, axis=1).ravel(), DistributedArray.to_dist(a).ravel()):
            assert pickle.loads(pickle.dumps(x)).layout is x.layout
            assert x.copy().layout is x.conj().layout is x.astype("float32").layout is x.layout
        flat = DistributedArray.to_dist(a).ravel("F")
        assert np.array_equal(whole(flat), a.ravel("F"))
        assert np.array_equal(whole(DistributedArray.to_dist(a, axis=1).reshape((12,))), a.ravel())
        with pytest.raises(ShapeError, match="another order"):
            FirstDerivative(DIMS) @ flat

    comm.virtual_ranks(2, run)


def test_blocks_act_on_parts_and_give_them_in_the_order_in_which_they_came() -> None:
    a = np.random.default_rng(1).normal(size=DIMS)

    def run() -> None:
        x = DistributedArray.to_dist(a, axis=1)
        Op = BlockDiag([pylops().FirstDerivative((4, 3), axis=0)])
        right = dense(pylops().FirstDerivative(DIMS, axis=0)) @ a.ravel()
        for one in (x, x.ravel()):
            np.testing.assert_allclose(whole(Op @ one), right)
            np.testing.assert_allclose(
                whole(FirstDerivative(DIMS, axis=1) @ Op @ one), FirstDerivative_of(right)
            )

    def FirstDerivative_of(flat: np.ndarray) -> np.ndarray:
        return np.asarray(pylops().FirstDerivative(DIMS, axis=1) @ flat)

    comm.virtual_ranks(2, run)
