"""Sums and their kin of distributed arrays: NumPy's numbers and types, in every split, on 1 to 4 virtual ranks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.errors import LayoutError, ShapeError

NAMES = ("sum", "prod", "mean", "var", "std", "max", "min", "argmax", "argmin", "any", "all")
TYPES = (
    "float16",
    "bfloat16",
    "int8",
    "uint8",
    "int16",
    "uint32",
    "int64",
    "uint64",
    "bool",
    "float32",
    "complex64",
    "longdouble",
    ">f8",
    ">i2",
)
ROUNDED_IN_16_BITS = ("float16", "bfloat16")
TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-5, "complex64": 3e-5}


def numbers(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    kind = np.dtype(pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype)
    generator = np.random.default_rng(3)
    if kind.kind == "b":
        return generator.integers(0, 2, size=shape).astype(kind)
    a = 50 * generator.normal(size=shape)
    return (a + 1j * generator.normal(size=shape) if kind.kind == "c" else a).astype(kind)


def splits(a: np.ndarray, ranks: int) -> list[DistributedArray]:
    """On all ranks, along each axis, evenly and with ranks that have nothing, and along grids of axes."""
    found = [DistributedArray.to_dist(a, partition=Partition.BROADCAST)]
    for axis, n in enumerate(a.shape):
        shares = [0] * (ranks - 1) + [n]
        if ranks > 2:
            shares[0], shares[-1] = 1, n - 1
        shapes = [(*a.shape[:axis], share, *a.shape[axis + 1 :]) for share in shares]
        found += [
            DistributedArray.to_dist(a, axis=axis),
            DistributedArray.to_dist(a, axis=axis, local_shapes=shapes),
        ]
    if a.ndim > 1:
        found += [DistributedArray.to_dist(a, axis=axes) for axes in ((0, 1), (a.ndim - 1, 0))]
    return found


@pytest.mark.short(5)
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # of halves, as NumPy's
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("ranks", [4, 1, 2, 3])
def test_reductions_along_any_axes_are_numpys_in_value_and_type(ranks: int, dtype: str) -> None:
    a = numbers((3, 4, 2), dtype)
    exact = a.astype("float64") if dtype in ROUNDED_IN_16_BITS else a
    tolerance = TOLERANCES.get(dtype, 1e-12)
    axes: list[Any] = [None, 0, -1, (0, 2)]

    def run() -> None:
        for x, name, axis in itertools.product(splits(a, ranks), NAMES, axes):
            if (name[:3] == "arg" and isinstance(axis, tuple)) or (
                a.dtype.kind == "c" and name[-3:] in ("max", "min")
            ):
                continue
            right = getattr(a, name)(axis=axis)
            values = getattr(exact, name)(axis=axis).astype(right.dtype)
            found = getattr(x, name)(axis=axis)
            whole = found.asarray() if isinstance(found, DistributedArray) else found
            assert type(whole) is type(right)
            assert whole.dtype == right.dtype
            assert np.shape(whole) == np.shape(right)
            kind = "clongdouble" if a.dtype.kind == "c" else "longdouble"
            np.testing.assert_allclose(
                whole.astype(kind), values.astype(kind), rtol=tolerance, atol=tolerance
            )

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_sums_on_the_way_hold_more_than_their_results(ranks: int) -> None:
    """NumPy itself says inf for the last norm and dot."""
    halves, large = np.ones(70000, "f2"), np.full(1000, 100, "f2")
    opposite = np.repeat(np.array([300, -300], "f2"), 500) * np.float16(1)

    def run() -> None:
        x, y, z = (DistributedArray.to_dist(a) for a in (halves, large, opposite))
        assert (x.mean(), y.mean(), z.sum(), z.mean()) == (1, 100, 0, 0)
        assert (x.std(), z.std()) == (0, 300)
        assert x.norm() == np.float16(70000**0.5)
        assert y.norm() == np.float16(1e5**0.5 * 10)
        assert z.dot(DistributedArray.to_dist(np.full(1000, 300, "f2"))) == 0
        assert StackedDistributedArray([z, y]).norm() == np.float16((300**2 * 1000 + 1e7) ** 0.5)
        plane = DistributedArray.to_dist(np.stack([opposite, halves[:1000] * 100]), axis=1)
        assert plane.sum(axis=1).asarray().tolist() == [0, np.inf]
        assert plane.mean(axis=1).asarray().tolist() == [0, 100]
        assert plane.norm(axis=1).dtype == np.float16
        for whole in (np.full(4, 2**62), np.full(4, 2**63, "u8")):
            assert DistributedArray.to_dist(whole).mean() == whole.mean() > 0

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("dtype", ["float32", "complex64"])
@pytest.mark.parametrize("size", [2 * 32768 - 1, 2 * 32768 + 1, 3 * 32768])
def test_dot_products_have_one_type_on_all_ranks_whatever_the_sizes_of_parts(dtype: str, size: int) -> None:
    a = numbers((size,), dtype)
    right = np.vdot(a.astype("complex128"), a)

    def run() -> None:
        for x in (DistributedArray.to_dist(a), DistributedArray.to_dist(a, local_shapes=[(5,), (size - 5,)])):
            for found in (
                x.dot(x, vdot=True),
                StackedDistributedArray([x]).dot(StackedDistributedArray([x]), vdot=True),
            ):
                assert type(found) is np.dtype(dtype).type
                assert abs(found - right) < 1e-6 * right.real
            assert type(x.norm()) is np.float32

    comm.virtual_ranks(2, run)


def test_results_along_axes_stay_spread_where_what_is_split_stays() -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.arange(24.0).reshape(4, 6), axis=1)
        assert x.max(axis=0).layout is DistributedArray((6,)).layout
        assert x.max(axis=1).partition is Partition.BROADCAST
        assert x.sum(axis=1, dtype="int32").dtype == np.int32
        grid = DistributedArray.to_dist(np.arange(24.0).reshape(4, 6), axis=(0, 1), grid=(2, 2))
        assert grid.max(axis=1).partition is Partition.BROADCAST
        y = x.sum(axis=1)
        y[:] = y.rank  # as all arrays that all ranks have
        assert y.local.tolist() == [0] * 4

    comm.virtual_ranks(4, run)


def test_groups_of_ranks_reduce_over_themselves() -> None:
    a, mask = np.arange(20.0).reshape(4, 5), [0, 1, 0, 1]

    def run() -> None:
        x = DistributedArray.to_dist(a, mask=mask)
        mine = a[x.rank % 2 :: 2]
        for name in NAMES:
            if name[:3] == "arg":
                continue
            np.testing.assert_allclose(getattr(x, name)(), getattr(mine, name)())
            found = getattr(x, name)(axis=0)
            np.testing.assert_allclose(found.local, getattr(mine, name)(axis=0))
            np.testing.assert_array_equal(getattr(x, name)(axis=1).asarray(), getattr(a, name)(axis=1))
        assert x.argmax() == (14, 19)[x.rank % 2]
        with pytest.raises(ShapeError, match="groups"):
            DistributedArray.to_dist(a, axis=(0, 1), mask=mask).sum(axis=0)

    comm.virtual_ranks(4, run)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_first_of_equal_extremes_and_of_nans_is_found(ranks: int) -> None:
    a = np.array([[1.0, 7, 7, 0], [7, 1, 0, 0], [0, 0, np.nan, np.nan]])

    def run() -> None:
        for b in (a, a[:2], np.full((3, 4), -np.inf), np.zeros((3, 4), bool)):
            for x in splits(b, ranks):
                for name, axis in itertools.product(("argmax", "argmin", "max", "min"), (None, 0, 1)):
                    found = getattr(x, name)(axis=axis)
                    whole = found.asarray() if isinstance(found, DistributedArray) else found
                    np.testing.assert_array_equal(whole, getattr(b, name)(axis=axis))

    comm.virtual_ranks(ranks, run)


def test_what_reductions_cannot_give_is_an_error_that_says_why() -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.zeros((0, 3)))
        for name in ("max", "argmin"):
            with pytest.raises(ShapeError, match=rf"array of shape \(0, 3\) without elements has no {name}"):
                getattr(x, name)()
            with pytest.raises(ShapeError, match="along axis 0"):
                getattr(x, name)(axis=0)
        assert x.sum() == 0
        assert x.prod(axis=0).asarray().tolist() == [1, 1, 1]
        for call, words in (
            (lambda: x.sum(axis=2), "axis 2 does not exist"), (lambda: x.sum(axis=(0, -2)), "one twice"),
            (lambda: x.sum(axis=1.5), "whole number"), (lambda: x.argmax(axis=(0, 1)), "takes one axis"),
            (lambda: x.astype("complex64").max(), "take that of x.real or of abs"),
        ):  # fmt: skip
            with pytest.raises(ShapeError, match=words):
                call()

    comm.virtual_ranks(2, run)


def test_whole_numbers_of_fields_are_added_exactly_and_real_ones_have_numpys_types() -> None:
    def run() -> None:
        for dtype, value in (("int32", 2**30), ("int64", 2**61), ("float32", 0.25)):
            a = np.full((4, 6), value, dtype)
            a[0, 0] = 1
            x = DistributedArray((4, 6), engine="jali", dtype=dtype)
            x[:] = DistributedArray.to_dist(a).local
            for name in ("sum", "mean", "max", "min", "var", "std"):
                found, right = getattr(x, name)(), getattr(a, name)()
                assert type(found) is type(right)
                np.testing.assert_allclose(found, right, rtol=1e-6 if dtype == "float32" else 1e-15)
            assert x.dot(x) == np.vdot(a, a)
        with pytest.raises(LayoutError, match="copies it"):
            x.sum(axis=0)

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", [1, 3])
def test_transposed_arrays_share_memory_and_are_split_along_the_same_elements(ranks: int) -> None:
    a = np.arange(24.0).reshape(2, 3, 4)

    def run() -> None:
        for x in splits(a, ranks):
            assert np.array_equal(x.T.asarray(), a.T)
            assert np.shares_memory(x.T.local, x.local) or 0 in x.local_shape
            assert x.T.T.layout is x.layout
            for order in ((1, 0, 2), (-1, 0, 1)):
                assert np.array_equal(x.transpose(order).asarray(), a.transpose(order))
                assert np.array_equal(x.transpose(*order).asarray(), a.transpose(order))
            for order in ((0, 1), (0, 0, 1), (0, 1, 3)):
                with pytest.raises(ShapeError, match="no order of the 3 axes"):
                    x.transpose(order)

    comm.virtual_ranks(ranks, run)
