"""Distributed arrays where shapes, types, masks and arguments are unusual, against NumPy."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.errors import LayoutError, ParameterError, ShapeError

RANKS = [1, 2, 3, 5]


def on(ranks: int, function: Any) -> Any:
    return comm.virtual_ranks(ranks, function)[0]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64", "bool", "float16"])
@pytest.mark.parametrize("shape", [(7,), (2, 3), (0, 3), (5, 4, 3)])
def test_norms_of_narrow_types_are_those_of_real_numbers(
    ranks: int, dtype: str, shape: tuple[int, ...]
) -> None:
    a = (np.random.default_rng(0).normal(size=shape) * 100).astype(dtype)
    wide = a.astype("float64")

    def run() -> None:
        for axis in range(len(shape)):
            x = DistributedArray.to_dist(a, axis=axis)
            for order in (None, 0, 1, 2, 3):
                right = np.linalg.norm(wide.ravel(), order)
                assert np.isclose(x.norm(order), right, rtol=1e-3)
                assert np.isclose(StackedDistributedArray([x]).norm(order), right, rtol=1e-3)
            for along in range(-len(shape), len(shape)):
                for order in (None, 0, 1, np.inf, -np.inf):
                    if shape[along] or order in (None, 0, 1):
                        right = np.linalg.norm(wide, order, axis=along)
                        found = x.norm(order, axis=along)
                        assert np.shape(found) == right.shape
                        np.testing.assert_allclose(found, right, rtol=1e-3)

    on(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    "a",
    [
        np.array([np.inf + 1j, 1, 2, 3]),
        np.array([complex(np.inf, -np.inf), 1, 2, 3]),
        np.array([1e200 + 0j, 1e200j, 1, 2]),
        np.full(4, 1e200 + 1e200j),
        np.full(4, 1e20 + 1e20j, "complex64"),
        np.full((1 << 15) + 9, 1e20 + 1e20j, "complex64"),
        np.full(4, np.finfo(np.longdouble).max * (1 + 1j), np.clongdouble),
        np.array([-np.inf, 1, 2, 3]),
        np.array([complex(np.nan, 1), 1, 2, 3]),
    ],
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_norms_of_numbers_whose_squares_overflow_are_infinite(ranks: int, a: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        right = np.linalg.norm(a)
        assert not np.isfinite(right)

    def run() -> None:
        x = DistributedArray.to_dist(a)
        strided = DistributedArray.to_dist(np.repeat(a, 2).reshape(-1, 2)).globally[:, 1]
        for found in (x.norm(), strided.norm(), StackedDistributedArray([x, strided]).norm()):
            np.testing.assert_equal(found, float(right))

    on(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("order", [-3, -1, -0.5, 0.5, 3, np.inf, -np.inf])
@pytest.mark.parametrize(
    "a",
    [
        np.full(4, np.inf), np.full(8, 1e308), np.zeros(4), np.array([0.0, 1, 2, 3]), np.array([1.0, 2, 3, 4]),
        np.full(4, 1e-320), np.array([np.nan, 1, 2]),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_norms_of_any_order_are_numpys_where_python_raises(ranks: int, order: float, a: np.ndarray) -> None:
    b = np.array([1.0, 5])

    def run() -> None:
        x, y = DistributedArray.to_dist(a), DistributedArray.to_dist(b)
        np.testing.assert_allclose(x.norm(order), np.linalg.norm(a, order), rtol=1e-14)
        found, right = StackedDistributedArray([x, y]).norm(order), np.linalg.norm(np.r_[a, b], order)
        np.testing.assert_allclose(found, right, rtol=1e-13)

    on(ranks, run)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_norms_of_groups_without_elements_are_numpys() -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.ones(2), mask=[0, 0, 1])
        right = np.linalg.norm(np.ones(2 if x.rank < 2 else 0), -1)
        assert x.norm(-1) == StackedDistributedArray([x, x.globally[:0]]).norm(-1) == right

    on(3, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_products_of_booleans_are_added_as_numpy_does(ranks: int) -> None:
    a = np.array([False, True, False, True, False])

    def run() -> None:
        x = DistributedArray.to_dist(a)
        assert x.dot(x) == np.dot(a, a)
        assert x.dot(~x) == np.dot(a, ~a)

    on(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_arrays_without_dimensions_stay_arrays(ranks: int) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.array(3.0), partition=Partition.BROADCAST)
        for y in (x + 0, 1 * x, x + x * 0, abs(x), x.copy(), x.conj(), x.astype("float32"), x.real):
            assert y.norm() == y.dot(y) ** 0.5 == y.asarray() == y.copy().sum() == 3
            y += 1
            assert y.asarray() == 4
        plane = DistributedArray.to_dist(np.zeros((2, 3)), partition=Partition.BROADCAST)
        plane.globally[1, 2][...] = 7  # shares memory
        assert plane.local[1, 2] == 7

    on(ranks, run)


@pytest.mark.parametrize("mask", [[0, 0, 1], [0, 1, 0], [0, 1, 2]])
def test_stacks_of_arrays_with_different_masks_reduce_each_over_its_groups(mask: list[int]) -> None:
    a = np.arange(1.0, 8.0)

    def run() -> None:
        masked, plain = DistributedArray.to_dist(a, mask=mask), DistributedArray.to_dist(a)
        whole = DistributedArray.to_dist(a, mask=mask, partition=Partition.BROADCAST)
        mine = masked.asarray(masked=True)
        for arrays in ([masked, plain, whole], [plain, whole, masked], [whole, masked, plain]):
            stack = StackedDistributedArray(arrays)
            assert np.isclose(stack.dot(stack), mine @ mine + 2 * a @ a)
            assert np.isclose(stack.norm(), np.sqrt(mine @ mine + 2 * a @ a))

    on(3, run)


def test_copies_by_module_copy_keep_the_ranks() -> None:
    def run() -> None:
        world = comm.current()
        half = world.split(world.rank % 2)
        x = DistributedArray.to_dist(np.arange(5.0), base_comm=half)
        stack = StackedDistributedArray([x, x], half)
        for call in (copy.copy, copy.deepcopy):
            y = call(x)
            assert y.layout is x.layout
            assert not np.shares_memory(y.local, x.local)
            assert call(stack)[0].layout is x.layout
        whole = StackedDistributedArray([DistributedArray.to_dist(np.arange(5.0))], world)
        assert np.array_equal(pickle.loads(pickle.dumps(whole)).asarray(), np.arange(5.0))

    on(4, run)


def test_what_ranks_had_for_themselves_becomes_that_of_rank_0() -> None:
    def run() -> None:
        x = DistributedArray((3,), partition=Partition.UNSAFE_BROADCAST)
        x[:] = x.rank
        assert x.redistribute(partition=Partition.BROADCAST).local.tolist() == [0, 0, 0]

    on(3, run)


def test_assignments_of_different_types_take_the_value_of_rank_0() -> None:
    def run() -> None:
        x = DistributedArray((3,), partition=Partition.BROADCAST)
        x[:] = 1 if x.rank == 0 else 2.5
        assert x.local.tolist() == [1, 1, 1]
        x[1:] = np.arange(2, dtype="float32" if x.rank == 0 else "int8")[::-1]
        assert x.local.tolist() == [1, 1, 0]

    on(3, run)


def test_ufuncs_take_out_in_parts_and_where_as_distributed_arrays() -> None:
    a = np.linspace(-2, 2, 7)

    def run() -> None:
        x = DistributedArray.to_dist(a)
        whole = x.empty_like()
        fraction, found = np.modf(x, out=(None, whole))
        assert found is whole
        assert np.array_equal(fraction.asarray(), np.modf(a)[0])
        root = np.sqrt(x, out=x.zeros_like(), where=x > 0)
        assert np.array_equal(root.asarray(), np.sqrt(np.maximum(a, 0)))
        with pytest.raises(LayoutError, match="where= an array of shape"):
            np.sqrt(x, where=a > 0)

    on(2, run)


def test_imaginary_parts_are_not_lost_in_assignments() -> None:
    def run() -> None:
        for partition in (Partition.SCATTER, Partition.BROADCAST):
            x = DistributedArray((4,), partition=partition)
            for value in (1j, np.complex64(1), np.ones(x.local_shape, "complex128")):
                with pytest.raises(ParameterError, match="would lose the imaginary parts"):
                    x[:] = value
            with pytest.raises(ParameterError, match="would lose the imaginary parts"):
                x.globally[1:3] = 2j

    on(2, run)


def test_one_rank_with_a_wrong_shape_makes_all_raise() -> None:
    def run() -> None:
        x = DistributedArray((6, 2))
        with pytest.raises(ShapeError, match="rank 1 has 4 elements, not 9"):
            x.reshape((9,) if x.rank == 1 else (4,))
        with pytest.raises(ShapeError, match="axis 2 does not exist"):
            x.reshape((2, 2), axis=2)

    on(3, run)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda x: DistributedArray.to_dist([1, 2]), ParameterError, "not list"),
        (lambda x: DistributedArray((2, 2), local_array=[1, 2]), ParameterError, "not list"),
        (lambda x: DistributedArray((2, 2), axis="rows"), ShapeError, "an axis is a whole number"),
        (lambda x: x.dot(3), ParameterError, "not int"),
        (lambda x: x.dot(np.ones(2)), ParameterError, "not ndarray"),
        (lambda x: StackedDistributedArray([x]).dot(x), ParameterError, "not DistributedArray"),
        (lambda x: StackedDistributedArray([x]) + x, ShapeError, "not with an array"),
        (lambda x: x + StackedDistributedArray([x]), ShapeError, "not with an array"),
        (lambda x: x.norm(axis=(0, 1)), ShapeError, "a whole number"),
        (lambda x: x.norm(np.ones(2)), ParameterError, "order of a norm"),
        (lambda x: x.globally[True], ShapeError, "global indices"),
        (lambda x: x.globally[np.array([0, 1])], ShapeError, "global indices"),
        (lambda x: x.globally[..., ...], ShapeError, "global indices"),
        (lambda x: x.globally[None], ShapeError, "global indices"),
        (lambda x: x.globally[::-1], ShapeError, "step 1"),
    ],
)
def test_errors_say_what_was_given(call: Any, error: type[Exception], words: str) -> None:
    def run() -> None:
        with pytest.raises(error, match=words):
            call(DistributedArray.to_dist(np.ones((4, 2))))

    on(2, run)
