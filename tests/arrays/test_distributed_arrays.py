"""Distributed arrays on 1 to 4 virtual ranks against NumPy on the whole array."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray, layout_of
from jali.arrays.layout import even_split, near_square
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.solvers import cg, vectors_of

RANKS = [1, 2, 3, 4]
TYPES = ["float32", "float64", "complex64", "complex128", "int64"]
SHAPES = [((7,), 0), ((5, 6), 0), ((5, 6), 1), ((3, 4, 5), 1), ((2, 3, 4, 5), 3), ((1, 2), 0)]


def whole(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape) * 10
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def on(ranks: int, function: Any, *arguments: Any) -> Any:
    """The result, the same on all ranks."""
    found = comm.virtual_ranks(ranks, function, *arguments)
    return found[0]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", TYPES)
def test_arithmetic_is_numpys(ranks: int, shape: tuple[int, ...], axis: int, dtype: str) -> None:
    def run() -> None:
        a, b = whole(shape, dtype), whole(shape, dtype, 1)
        x, y = (DistributedArray.to_dist(v, axis=axis) for v in (a, b))
        assert x.global_shape == shape
        assert x.local_shapes == list(x.layout.local_shapes)
        for found, right in (
            (x + y, a + b),
            (x - 2, a - 2),
            (3 + x, 3 + a),
            (x * 2.5, a * 2.5),
            (1j * x, 1j * a),
            (x / 3, a / 3),
            (-x, -a),
            (x**2, a**2),
            (np.float32(2) * x, np.float32(2) * a),
            (x.conj(), a.conj()),
            (x.real, a.real),
            (np.exp(x / 100), np.exp(a / 100)),
            (abs(x), abs(a)),
            (x == y, a == b),
            (x.copy(), a),
            (x.zeros_like(), np.zeros_like(a)),
            (x.astype("complex128"), a.astype("complex128")),
        ):
            assert isinstance(found, DistributedArray)
            whole_found = found.asarray()
            assert whole_found.dtype == right.dtype
            # functions of complex numbers depend on where in a vector register an element lies
            rtol = 4 * np.finfo(right.dtype).eps if right.dtype.kind in "fc" else 0
            np.testing.assert_allclose(whole_found, right, rtol=rtol)
        z = x.copy()
        z += y
        np.testing.assert_array_equal(z.asarray(), a + b)
        local = z.local
        np.subtract(x, y, out=z)
        assert z.local is local
        np.testing.assert_array_equal(z.asarray(), a - b)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("partition", [Partition.SCATTER, Partition.BROADCAST])
def test_sums_over_ranks(ranks: int, shape: Any, axis: int, dtype: str, partition: Partition) -> None:
    def run() -> None:
        a, b = whole(shape, dtype), whole(shape, dtype, 1)
        x, y = (DistributedArray.to_dist(v, axis=axis, partition=partition) for v in (a, b))
        close = {"rtol": 1e-13}
        np.testing.assert_allclose(x.dot(y), (a * b).sum(), **close)
        np.testing.assert_allclose(x.dot(y, vdot=True), np.vdot(a, b), **close)
        np.testing.assert_allclose(x.sum(), a.sum(), **close)
        np.testing.assert_allclose(x.mean(), a.mean(), **close)
        if dtype == "float64":
            assert (x.max(), x.min()) == (a.max(), a.min())
        for order in (None, 0, 1, 2, 3, 0.5, np.inf, -np.inf):
            np.testing.assert_allclose(x.norm(order), np.linalg.norm(a.ravel(), order), **close)
            for along in range(-len(shape), len(shape)):
                found = x.norm(order, axis=along)
                np.testing.assert_allclose(found, np.linalg.norm(a, order, axis=along), **close)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_other_layouts(ranks: int) -> None:
    def run() -> None:
        a = whole((5, 6, 7), "float64")
        x = DistributedArray.to_dist(a, axis=1)
        for axis in range(3):
            y = x.redistribute(axis)
            assert y.axis == axis
            np.testing.assert_array_equal(y.asarray(), a)
            assert y.local_shape == layout_of(comm.current(), a.shape, axis=axis).local_shape
        grid = x.redistribute((2, 0))
        np.testing.assert_array_equal(grid.asarray(), a)
        np.testing.assert_array_equal(grid.redistribute(1).asarray(), a)
        replicated = x.redistribute(partition=Partition.BROADCAST)
        np.testing.assert_array_equal(replicated.local, a)
        np.testing.assert_array_equal(replicated.redistribute(2).asarray(), a)
        uneven = [0] * ranks
        uneven[-1] = 6
        shapes = [(5, n, 7) for n in uneven]
        last = x.redistribute(1, local_shapes=shapes)
        assert last.local_shapes == shapes
        np.testing.assert_array_equal(last.redistribute(0).asarray(), a)
        flat = x.ravel()
        assert flat.global_shape == (210,)
        np.testing.assert_array_equal(flat.local, x.local.ravel())
        back = flat.reshape(x.local_shape, axis=1)
        assert back.layout is x.layout
        np.testing.assert_array_equal(back.asarray(), a)
        if ranks > 1:
            with pytest.raises(ShapeError, match="add: the arrays are split differently") as raised:
                x + last
            for split in (x, last):  # the same words on all ranks, and all about both
                assert f"{split.layout!r} into {', '.join(map(str, split.local_shapes))}" in str(raised.value)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("axis", [0, 1])
def test_ghost_cells_of_any_width(ranks: int, axis: int) -> None:
    def run() -> None:
        a = whole((9, 10), "complex64")
        x = DistributedArray.to_dist(a, axis=axis)
        begin, end = x.layout.box[axis]
        for front in (0, 1, 2, 5, 20):
            for back in (0, 1, 4, 30):
                along = (slice(None),) * axis
                right = a[(*along, slice(max(0, begin - front), end + back))]
                np.testing.assert_array_equal(x.add_ghost_cells(front, back), right)
        with pytest.raises(ShapeError, match="not negative"):
            x.add_ghost_cells(-1)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_global_indices(ranks: int) -> None:
    def run() -> None:
        a = whole((6, 7), "float64")
        for axis in (0, 1, (0, 1)):
            x = DistributedArray.to_dist(a, axis=axis)
            np.testing.assert_array_equal(x.global_index[1:5, 2:].asarray(), a[1:5, 2:])
            np.testing.assert_array_equal(x.global_index[...].asarray(), a)
            row = x.global_index[2].asarray()
            np.testing.assert_array_equal(row.reshape(7), a[2])
            x.global_index[1:4, 3] = 5
            x.global_index[0] = np.arange(7.0)
            x.global_index[-1, 1:3] = [8, 9]
            b = a.copy()
            b[1:4, 3], b[0], b[-1, 1:3] = 5, np.arange(7.0), [8, 9]
            np.testing.assert_array_equal(x.asarray(), b)
            with pytest.raises(IndexError, match="index 6 is outside of axis 0 with 6"):
                x.global_index[6]
            with pytest.raises(ShapeError, match="step 1, not 2"):
                x.global_index[::2]

    comm.virtual_ranks(ranks, run)


def test_masks_are_groups() -> None:
    def run() -> None:
        c = comm.current()
        mask = [0, 0, 1, 1]
        x = DistributedArray.to_dist(np.arange(8.0), mask=mask)
        group = np.arange(4.0) + 4 * (c.rank // 2)
        assert x.dot(x) == (group**2).sum()
        assert x.norm(1) == group.sum()
        assert x.mean() == group.mean()
        np.testing.assert_array_equal(x.asarray(masked=True), group)
        np.testing.assert_array_equal(x.asarray(), np.arange(8.0))
        np.testing.assert_array_equal(x.add_ghost_cells(9, 9), group)  # of the group alone

    comm.virtual_ranks(4, run)


def test_broadcast_arrays_are_those_of_rank_0() -> None:
    def run() -> None:
        c = comm.current()
        x = DistributedArray((3,), partition=Partition.BROADCAST)
        x[:] = np.full(3, 1.0 + c.rank)
        assert x.local.tolist() == [1, 1, 1]
        x[1] = 5.0 + c.rank
        assert x.local.tolist() == [1, 5, 1]
        assert DistributedArray.to_dist(np.full(2, c.rank), partition=Partition.BROADCAST).local.tolist() == [
            0,
            0,
        ]
        y = DistributedArray((3,), partition=Partition.UNSAFE_BROADCAST)
        y[:] = c.rank
        assert y.local.tolist() == [c.rank] * 3

    comm.virtual_ranks(3, run)


def test_checked_mode_compares_arrays_that_all_ranks_have() -> None:
    def run() -> None:
        c = comm.current()
        c.checked = True
        x = DistributedArray((3,), partition=Partition.BROADCAST)
        x[:] = 1
        assert x.dot(x) == 3
        x.local[c.rank] = 2
        for call in (lambda: x.dot(x), x.norm, x.asarray):
            with pytest.raises(LayoutError, match="differs from that of rank 0 on ranks 1, 2: assign to x"):
                call()

    comm.virtual_ranks(3, run)


def test_what_makes_no_sense_is_refused() -> None:
    def run() -> None:
        x, y = DistributedArray((4, 5)), DistributedArray((5, 4))
        b = DistributedArray((4, 5), partition=Partition.BROADCAST)
        for call, error, words in (
            (lambda: x + y, ShapeError, r"add: arrays of global shapes \(4, 5\) and \(5, 4\)"),
            (lambda: x + b, ShapeError, "Partition.SCATTER, the other Partition.BROADCAST"),
            (lambda: x.dot(y), ShapeError, "dot: arrays of global shapes"),
            (lambda: x + np.ones((4, 5)), LayoutError, "it is not known what part"),
            (lambda: np.matmul(x, x), LayoutError, "numpy.matmul"),
            (lambda: bool(x), LayoutError, "ambiguous"),
            (lambda: list(x), LayoutError, "element by element"),
            (lambda: DistributedArray((4,), axis=1), ShapeError, "axis 1 does not exist"),
            (lambda: DistributedArray((-4,)), ShapeError, "negative extents"),
            (lambda: DistributedArray("4"), ShapeError, "whole number or several, not '4'"),
            (
                lambda: DistributedArray((4,), partition="scatter"),
                ParameterError,
                "Partition.BROADCAST, .*, not 'scatter'",
            ),
            (lambda: DistributedArray((4,), local_shapes=[(4,)]), ShapeError, "1 shape, there are 2 ranks"),
            (lambda: DistributedArray((4,), local_shapes=[(1,), (2,)]), ShapeError, "3 elements together"),
            (
                lambda: DistributedArray((4, 5), local_shapes=[(2, 5), (2, 4)]),
                ShapeError,
                "of rank 1 differs",
            ),
            (lambda: DistributedArray((4,), mask=[1]), ShapeError, "for each of 2 ranks, this one has 1"),
            (
                lambda: DistributedArray((4,), local_array=np.ones(3)),
                ShapeError,
                r"has shape \(2,\), the array given",
            ),
            (lambda: DistributedArray((4,), base_comm=7), ParameterError, "of jali or of mpi4py, not 7"),
            (lambda: DistributedArray((4,), engine="abacus"), ParameterError, "engine 'abacus' is none"),
            (lambda: DistributedArray((4, 4), axis=(0, 1), grid=(2, 2)), ShapeError, "product is 2"),
            (
                lambda: DistributedArray((4,), mask=5),
                ShapeError,
                "a mask has a number for each of 2 ranks, not 5",
            ),
            (
                lambda: DistributedArray((4,), local_shapes=5),
                ShapeError,
                "a shape for each of 2 ranks, not 5",
            ),
            (
                lambda: DistributedArray((4,), dtype="float99"),
                ParameterError,
                "'float99' is no type of elements",
            ),
            (lambda: StackedDistributedArray([]), ShapeError, "one array at least"),
            (lambda: x.add_ghost_cells("a"), ShapeError, "ghost cells is a whole number, not 'a'"),
            (lambda: x.reshape("a"), ShapeError, "local shape is a whole number or several, not 'a'"),
            (lambda: x.norm("fro"), NotImplementedError, "matrices"),
            (lambda: x.norm(axis=2), ShapeError, "axis 2 does not exist"),
            (lambda: x.reshape((3, 3)), ShapeError, "has 10 elements, not 9"),
            (lambda: x.reshape((10,), axis=0.0), ShapeError, "axis 0.0 does not exist"),
            (lambda: x.global_index.__setitem__(0, "one"), ParameterError, "are numbers, not 'one'"),
        ):
            with pytest.raises(error, match=words):
                call()
        assert isinstance(ShapeError(""), ValueError)

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ({}, {"global_shape": (4.0, 6)}),
        ({}, {"global_shape": (4, np.float64(6))}),
        ({}, {"axis": 0.0}),
        ({}, {"axis": False}),
        ({"axis": (0, 1)}, {"axis": (False, 1)}),
        ({"axis": (0, 1), "grid": (2, 1)}, {"grid": (2.0, 1)}),
        ({"local_shapes": ((3, 6), (1, 6))}, {"local_shapes": ((3.0, 6), (1, 6))}),
    ],
)
def test_what_equals_a_whole_number_is_refused_also_when_that_was_given_before(
    right: dict[str, Any], wrong: dict[str, Any]
) -> None:
    def run() -> None:
        layouts = []
        for given in (right, right, {**right, "global_shape": (np.int64(4), 6)}):
            layouts.append(DistributedArray(**{"global_shape": (4, 6), **given}).layout)
        assert len(set(layouts)) == 1
        with pytest.raises(ShapeError, match="whole number"):
            DistributedArray(**{"global_shape": (4, 6), **right, **wrong})

    comm.virtual_ranks(2, run)


def test_equal_shapes_on_different_ranks_are_distinguished() -> None:
    def run() -> None:
        a = whole((4, 4), "float64")
        x, y = (DistributedArray.to_dist(a, axis=axes) for axes in ((0, 1), (1, 0)))
        assert x.local_shapes == y.local_shapes
        for call in (lambda: x + y, lambda: x.dot(y), lambda: np.add(x, y)):
            with pytest.raises(ShapeError, match="split differently"):
                call()
        np.testing.assert_array_equal((x + y.redistribute((0, 1))).asarray(), 2 * a)

    comm.virtual_ranks(4, run)


def test_arrays_are_pickled_with_their_part() -> None:
    def run() -> None:
        a = whole((4, 5), "float32")
        x = DistributedArray.to_dist(a, axis=1)
        y = pickle.loads(pickle.dumps(x))
        assert y.layout is x.layout
        np.testing.assert_array_equal(y.asarray(), a)

    comm.virtual_ranks(3, run)


def test_algebra_communicates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(whole((9, 3), "float64"))
        calls = x.communicator.collectives
        before = dict(calls.calls) if hasattr(calls, "calls") else None
        y = x + 2 * x.copy() - x.zeros_like()
        y *= 3
        assert DistributedArray((9, 3), local_array=y.local).local_shapes == x.local_shapes
        assert before is None or dict(calls.calls) == before

    comm.virtual_ranks(2, run)


def test_stacks_are_one_vector() -> None:
    def run() -> None:
        a, b = whole((5, 3), "float64"), whole((8,), "float64", 1)
        x = StackedDistributedArray([DistributedArray.to_dist(a), DistributedArray.to_dist(b)])
        nested = StackedDistributedArray([x, x[1].copy()])
        flat = np.concatenate([a.ravel(), b, b])
        for found, right in (
            (nested + nested, 2 * flat),
            (nested - 2 * nested, -flat),
            (nested * nested, flat**2),
            (nested / 2, flat / 2),
            (3 - nested, 3 - flat),
            (-nested.conj(), -flat),
            (np.float64(2) * nested, 2 * flat),
        ):
            np.testing.assert_array_equal(found.asarray(), right)
        np.testing.assert_allclose(nested.dot(nested), flat @ flat, rtol=1e-13)
        for order in (None, 0, 1, 2, 3, np.inf, -np.inf):
            np.testing.assert_allclose(nested.norm(order), np.linalg.norm(flat, order), rtol=1e-13)
        other = nested.copy()
        other += nested
        np.testing.assert_array_equal(other.asarray(), 2 * flat)
        with pytest.raises(ShapeError, match="stacks of 2 and 1 arrays"):
            nested + StackedDistributedArray([x])
        with pytest.raises(ParameterError, match="not list"):
            StackedDistributedArray([[x]])

    comm.virtual_ranks(3, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_they_are_vectors_of_solvers(ranks: int) -> None:
    def run() -> None:
        diagonal = np.arange(1.0, 12)
        d, b = DistributedArray.to_dist(diagonal), DistributedArray.to_dist(np.ones(11))
        found = cg(lambda x, out: np.multiply(d, x, out=out), b, rtol=1e-12)
        np.testing.assert_allclose(found.x.asarray(), 1 / diagonal, rtol=1e-10)
        stack = StackedDistributedArray([b, b])
        vectors = vectors_of("b", stack)
        assert vectors.norm2(stack) == 22
        y = vectors.like(stack)
        assert vectors.update([(y, 0, [(2.0, stack)]), (y, 1, [(1, stack)])], norm=True) == 9 * 22

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["complex64", "complex128", np.clongdouble])
@pytest.mark.parametrize("how", ["plain", "strided", "columns first", "of another precision"])
@pytest.mark.parametrize("stacked", [False, True])
def test_updates_of_any_memory_give_a_real_sum_of_squares(
    ranks: int, dtype: Any, how: str, stacked: bool
) -> None:
    """Which are those of the core's loops, and of libraries where it has none."""
    a, b = whole((5, 6), "complex128").astype(dtype), whole((5, 6), "complex128", 1).astype(dtype)

    def vector(values: np.ndarray, other: bool) -> Any:
        x = DistributedArray.to_dist(values)
        if how == "strided":
            x = DistributedArray.to_dist(np.repeat(values, 2).reshape(5, 6, 2)).global_index[:, :, 0]
        elif how == "columns first":
            x = DistributedArray.of(x.layout, np.asfortranarray(x.local))
        elif how == "of another precision" and other:
            x = x.astype("complex64" if dtype == "complex128" else "complex128")
        return StackedDistributedArray([x, x.copy()]) if stacked else x

    def run() -> None:
        y, x = vector(a, False), vector(b, True)
        vectors = vectors_of("b", y)
        given = b.astype("complex64") if (how, dtype) == ("of another precision", "complex128") else b
        right = (2 if stacked else 1) * float((abs(2j * a + given) ** 2).sum())
        found = vectors.update([(y, 2j, [(1, x)])], norm=True)
        assert isinstance(found, float)
        np.testing.assert_allclose(found, right, rtol=1e-5 if dtype == "complex64" else 1e-12)
        np.testing.assert_allclose(vectors.norm2(y), right, rtol=1e-5 if dtype == "complex64" else 1e-12)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2])
def test_squares_of_half_precision_that_it_does_not_hold_are_summed(ranks: int) -> None:
    def run() -> None:
        y, x = (DistributedArray.to_dist(np.full(4, value, "float16")) for value in (100, 200))
        vectors = vectors_of("b", y)
        assert (
            vectors.update([(y, 1, [(1, x)])], norm=True)
            == vectors.norm2(y)
            == float(y.norm()) ** 2
            == 4 * 300**2
        )

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2])
def test_solvers_take_complex_vectors_that_are_not_contiguous(ranks: int) -> None:
    diagonal, b = np.arange(1.0, 5), whole((4, 6), "complex128")

    def run() -> None:
        d = DistributedArray.to_dist(np.repeat(diagonal, 3).reshape(4, 3))
        y = DistributedArray.to_dist(b).global_index[:, 1:4]
        found = cg(lambda x, out: np.multiply(d, x, out=out), y, rtol=1e-12)
        right = b[:, 1:4] / diagonal[:, None]
        np.testing.assert_allclose(found.x.asarray(), right, rtol=1e-10)

    comm.virtual_ranks(ranks, run)


def test_numbers_of_iterations_are_whole() -> None:
    from jali.linops import Identity
    from jali.solvers import cgls

    b = DistributedArray.to_dist(np.ones(4))
    for niter in (-1, 2.5, "3"):
        with pytest.raises(ParameterError, match="maxiter is a whole number from 0"):
            cgls(Identity((4,)), b, maxiter=niter)


def test_splits() -> None:
    assert even_split(7, 3) == (3, 2, 2)
    assert even_split(2, 4) == (1, 1, 0, 0)
    for ranks in range(1, 40):
        for axes in (1, 2, 3):
            found = near_square(ranks, axes)
            assert math.prod(found) == ranks
            assert len(found) == axes
    assert near_square(12, 2) == (4, 3)


@pytest.mark.parametrize("axis", [0, 1, (0, 1)])
def test_dot_product_of_parts_with_what_all_ranks_have(axis: object) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.normal(size=(5, 6)) + 1j * rng.normal(size=(5, 6)) for _ in range(2))

    def program() -> None:
        x = DistributedArray.to_dist(a, axis=axis)  # type: ignore[arg-type]
        y = DistributedArray.to_dist(b, partition=Partition.BROADCAST)
        assert np.isclose(x.dot(y, vdot=True), np.vdot(a, b), rtol=1e-14)
        assert np.isclose(y.dot(x), np.dot(b.ravel(), a.ravel()), rtol=1e-14)
        with pytest.raises(ShapeError, match="redistribute one"):
            x + y

    comm.virtual_ranks(4, program)


def test_stack_counts_elements_and_adds_extents_as_scripts_expect() -> None:
    a, b = DistributedArray((3, 4)), DistributedArray((5, 6))
    nested = StackedDistributedArray([StackedDistributedArray([a, b]), a])
    assert nested.global_shape == (11, 14)
    assert nested.elements == 3 * 4 + 5 * 6 + 3 * 4
    mixed = StackedDistributedArray([a, DistributedArray(7)])
    assert mixed.global_shape == (19,)
    assert mixed.elements == 19


@pytest.mark.parametrize("dtype", [np.longdouble, np.clongdouble])
def test_long_double_is_gathered_and_summed(dtype: type) -> None:
    a = (np.arange(7) / np.longdouble(3)).astype(dtype)

    def program() -> None:
        x = DistributedArray.to_dist(a)
        assert x.asarray().dtype == dtype
        assert np.array_equal(x.asarray(), a)
        assert abs(x.dot(x) - np.dot(a, a)) <= 1e-17
        assert np.isclose(float(x.norm()), float(np.linalg.norm(a)), rtol=1e-15)

    comm.virtual_ranks(3, program)


@pytest.mark.parametrize("dtype", [">f4", ">c16", ">i2", np.longdouble, np.clongdouble])
@pytest.mark.parametrize("columns", [3, 3000])
def test_types_that_messages_do_not_have_move_as_bytes(dtype: Any, columns: int) -> None:
    a = np.arange(7.0 * columns).reshape(7, columns).astype(dtype)

    def program() -> None:
        x = DistributedArray.to_dist(a)
        begin, end = x.layout.box[0]
        for found, right in (
            (x.asarray(), a),
            (x.redistribute(1).asarray(), a),
            (x.add_ghost_cells(1, 2), a[max(0, begin - 1) : end + 2]),
            (DistributedArray.to_dist(a, partition=Partition.BROADCAST).local, a),
            (x.global_index[2:5].asarray(), a[2:5]),
        ):
            assert found.dtype.type is a.dtype.type
            np.testing.assert_array_equal(found, right)

    comm.virtual_ranks(3, program)


@pytest.mark.parametrize("dtype", [object, "U3", "S2", "M8[s]", "m8[D]", [("a", "f4"), ("b", "i8")]])
def test_elements_that_are_no_numbers_are_refused(dtype: Any) -> None:
    """Objects have no meaning for other ranks."""
    x = DistributedArray(4)
    for make in (
        lambda: DistributedArray(4, dtype=dtype),
        lambda: DistributedArray.to_dist(np.zeros(4, dtype)),
        lambda: DistributedArray(4, local_array=np.zeros(4, dtype)),
        lambda: DistributedArray.of(x.layout, np.zeros(4, dtype)),
    ):
        with pytest.raises(ParameterError, match="are numbers, not"):
            make()


def test_numbers_of_the_other_order_of_bytes_are_complex_or_not() -> None:
    x, y = DistributedArray(4, dtype=">c8"), DistributedArray(4)
    x[:] = 1j
    with pytest.raises(ParameterError, match="would lose the imaginary parts"):
        y[:] = x
