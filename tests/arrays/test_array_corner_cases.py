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
from jali.linops import aslinearoperator

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
        strided = DistributedArray.to_dist(np.repeat(a, 2).reshape(-1, 2)).global_index[:, 1]
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
        assert x.norm(-1) == StackedDistributedArray([x, x.global_index[:0]]).norm(-1) == right

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
        plane.global_index[1, 2][...] = 7  # shares memory
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


REPLICATED = Partition.BROADCAST


def outcome(call: Any, array: np.ndarray) -> tuple[Any, ...]:
    """What a call makes of an array, or what it raises, with what the array is then."""
    try:
        call()
    except Exception as error:
        return type(error), str(error), repr(array.tolist())
    return None, "", repr(array.tolist())


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("dtype", "where", "value"),
    [
        ("int8", slice(None), 300),
        ("int8", slice(None), [300, 1, 1, 1]),
        ("int8", 1, -129),
        ("uint8", slice(None), -1),
        ("uint64", slice(None), 2**63 + 1),
        ("int64", slice(None), 2**70),
        ("float64", slice(None), 2**70),
        ("int32", slice(None), float("nan")),
        ("int32", slice(None), 2.7),
        ("bool", slice(None), 3),
        ("float32", slice(None), np.float64(0.1)),
        ("float64", slice(None), "1.5"),
        ("float64", slice(None), "one"),
        ("float64", slice(None), None),
        ("float64", slice(None), range(4)),
        ("float64", slice(None), {}),
        ("float64", slice(None), [[1], [2, 3]]),
        ("float64", slice(None), np.arange(3.0)),
        ("float64", slice(None), np.arange(4.0).reshape(1, 4)),
        ("float64", slice(2, 2), 7),
        ("float64", slice(None, None, -2), [1, 2]),
        ("float64", 2, 5),
        ("float64", 2, [5]),
        ("float64", 2, np.array(5)),
        ("float64", (2, ...), [5]),
        ("float64", [0, 3, 3], [1, 2, 4]),
        ("float64", np.array([True, False, True, False]), 5),
        ("float64", None, np.arange(4.0)),
        ("float64", 4, 5),
        ("float64", "first", 5),
        (">f8", slice(1, None), np.arange(3)),
        (np.longdouble, slice(None), np.longdouble(1) / 3),
        (np.clongdouble, slice(None), 1j / np.longdouble(3)),
    ],
)
def test_arrays_of_all_ranks_are_assigned_to_as_numpy_does_on_rank_0(
    ranks: int, dtype: Any, where: Any, value: Any
) -> None:
    start = np.array([1, 0, 1, 1]).astype(dtype)
    right = start.copy()
    kind, words, numbers = outcome(lambda: right.__setitem__(where, value), right)

    def run() -> tuple[Any, ...]:
        x = DistributedArray.to_dist(start, partition=REPLICATED)
        mine = value if x.rank == 0 or isinstance(value, list | dict) else np.zeros(np.shape(value))
        return outcome(lambda: x.__setitem__(where, mine), x.local)

    found = comm.virtual_ranks(ranks, run)
    assert found == [found[0]] * ranks
    assert found[0][0] is kind
    assert found[0][2] == numbers
    if kind is OverflowError:
        assert found[0][1] == words


@pytest.mark.parametrize("ranks", RANKS)
def test_global_elements_of_arrays_of_all_ranks_are_those_of_rank_0(ranks: int) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(np.zeros((3, 4)), partition=REPLICATED)
        one = 1.0 + x.rank
        x.global_index[0] = one
        x.global_index[1, 1:3] = np.array([2, 3]) * one
        x.global_index[2:, -1] = [4 * one]
        x.global_index[1:1] = one
        x.global_index[2] = DistributedArray.to_dist(np.full(4, 5 * one), partition=REPLICATED)
        assert x.local.tolist() == [[1, 1, 1, 1], [0, 2, 3, 0], [5, 5, 5, 5]]
        own = DistributedArray((2,), partition=Partition.UNSAFE_BROADCAST)
        own.global_index[:] = one
        assert own.local.tolist() == [one, one]

    on(ranks, run)


def of_other_layout() -> DistributedArray:
    return DistributedArray((5,), partition=REPLICATED)


@pytest.mark.parametrize(
    ("act", "kind", "words"),
    [
        (
            lambda x, r: setattr(x, "local_array", np.zeros(4 + (r == 1))),
            ShapeError,
            "the part of rank 1 of {x} has shape (4,), the array given for it (5,)",
        ),
        (
            lambda x, r: setattr(x, "local", np.zeros(4, "f4" if r == 1 else "f8")),
            ShapeError,
            "rank 0 assigns an array of shape (4,) and float64 to all of {x}, rank 1 an array of shape (4,) and float32 to all of {x}: "
            "all ranks assign to the same elements",
        ),
        (
            lambda x, r: x.__setitem__(slice(None), np.zeros(4 if r < 2 else 1)),
            ShapeError,
            "rank 0 assigns a value of shape (4,) to [:], of shape (4,) and float64, of {x}, rank 2 a value of shape (1,) to [:], of",
        ),
        (
            lambda x, r: x.__setitem__(slice(None), np.zeros(4) if r else 7),
            ShapeError,
            "rank 0 assigns a value of shape () to [:], of shape (4,) and float64, of {x}, rank 1 a value of shape (4,) to [:], of",
        ),
        (
            lambda x, r: x.__setitem__(slice(r, None), np.zeros(4)[r:]),
            ShapeError,
            "rank 0 assigns a value of shape (4,) to [0:], of shape (4,) and float64, of {x}, rank 1 a value of shape (3,) to [1:], of",
        ),
        (lambda x, r: x.__setitem__(r, 0), ShapeError, "() to [0], of shape () and float64, of {x}, rank 1"),
        (lambda x, r: x.global_index.__setitem__(r, 0), ShapeError, "to [0, ...], of shape () and float64, of {x}"),
        (lambda x, r: x.__setitem__(np.arange(9) % 4 == r, 0), IndexError, "boolean index did not match"),
        (lambda x, r: x.__setitem__(np.roll(np.arange(40) % 4, r), 0), ShapeError, "[<indices of int64 and"),
        (lambda x, r: x.__setitem__(4 * r, 0), IndexError, "rank 1: index 4 is out of bounds"),
        (lambda x, r: x.global_index.__setitem__(4 * r, 0), IndexError, "rank 1: index 4 is outside of axis 0"),
        (lambda x, r: x.__setitem__(0, 1j if r == 2 else 0), ParameterError, "rank 2: elements of type float64"),
        (lambda x, r: x.global_index.__setitem__(0, "one" if r == 2 else 0), ParameterError, "rank 2: elements of"),
        (lambda x, r: x.__setitem__(0, of_other_layout() if r else 0), ShapeError, "rank 1: assignment: arrays"),
        (lambda x, r: setattr(x, "local", [0] * 4 if r else np.zeros(4)), ParameterError, "rank 1: a part of"),
        (
            lambda x, r: DistributedArray.to_dist(np.zeros(4 + r), partition=REPLICATED),
            ShapeError,
            "rank 0 assigns an array of shape (4,) and float64 to all of {x}, rank 1 an array of shape (5,)",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_on_one_rank_is_raised_on_all_before_anything_is_assigned(
    act: Any, kind: type[Exception], words: str
) -> None:
    def run() -> tuple[Any, ...]:
        x = DistributedArray.to_dist(np.full(4, 9.0), partition=REPLICATED)
        found = outcome(lambda: act(x, x.rank), x.local)
        assert x.local.tolist() == [9] * 4
        x[:] = 1.0 + x.rank  # ranks are together
        assert x.local.tolist() == [1] * 4
        return (*found, words.format(x=repr(x.layout)))

    found = comm.virtual_ranks(3, run)
    assert found == [found[0]] * 3
    assert found[0][0] is kind
    assert found[0][3] in found[0][1]


def test_a_read_only_part_on_one_rank_raises_on_all() -> None:
    def run() -> tuple[Any, ...]:
        x = DistributedArray.to_dist(np.zeros(2), partition=REPLICATED)
        x.local.flags.writeable = x.rank != 1
        return outcome(lambda: x.__setitem__(0, 1), x.local)

    zeros = repr([0.0, 0.0])
    assert (
        comm.virtual_ranks(3, run) == [(ValueError, "rank 1: assignment destination is read-only", zeros)] * 3
    )


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
                x.global_index[1:3] = 2j

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
        (lambda x: x.global_index[True], ShapeError, "global indices"),
        (lambda x: x.global_index[np.array([0, 1])], ShapeError, "global indices"),
        (lambda x: x.global_index[..., ...], ShapeError, "global indices"),
        (lambda x: x.global_index[None], ShapeError, "global indices"),
        (lambda x: x.global_index[::-1], ShapeError, "step 1"),
    ],
)
def test_errors_say_what_was_given(call: Any, error: type[Exception], words: str) -> None:
    def run() -> None:
        with pytest.raises(error, match=words):
            call(DistributedArray.to_dist(np.ones((4, 2))))

    on(2, run)


def test_whole_arrays_and_global_indices_instead_of_local_ones_are_refused() -> None:
    whole = np.arange(12.0).reshape(6, 2)

    def run() -> None:
        for shapes in (None, [(1, 2), (5, 2), (0, 2)], [(6, 2), (0, 2), (0, 2)]):
            x = DistributedArray((6, 2), local_shapes=shapes)
            x[:] = -1
            for act in (
                lambda x: x.__setitem__(slice(None), whole), lambda x: x.__setitem__(..., whole), lambda x: x.__setitem__(slice(3), whole[:4])
            ):  # fmt: skip
                if x.local_shape == (6, 2):  # it has the whole
                    continue
                with pytest.raises(
                    ShapeError,
                    match=r"could not broadcast.*indices of this rank's part, of shape .*x.global_index\[...\]",
                ):
                    act(x)
                assert (x.local == -1).all()
                for index in (lambda x: x[5], lambda x: x.__setitem__(5, 1)):
                    with pytest.raises(
                        IndexError, match="indices of this rank's part, of shape .*x.global_index"
                    ):
                        index(x)
            x.global_index[...] = whole
            assert np.array_equal(x.asarray(), whole)

    comm.virtual_ranks(3, run)
    one = DistributedArray.to_dist(whole)
    one[:] = whole  # of one rank the part is the whole
    with pytest.raises(ValueError, match=r"into shape \(6,2\)$"):
        one[:] = whole[:5]


def test_serial_operators_on_distributed_arrays_say_what_would_be_right() -> None:
    linalg, pylops = pytest.importorskip("scipy.sparse.linalg"), pytest.importorskip("pylops")
    a = np.arange(24.0).reshape(4, 6)
    # Its solvers switch this off and on again, in one place for all threads: those of two virtual ranks may leave it off.
    pylops.set_ndarray_multiplication(True)

    def run() -> None:
        rows = DistributedArray.to_dist(a)
        replicated = DistributedArray.to_dist(a.ravel(), partition=REPLICATED)
        serial: list[Any] = [
            pylops.FirstDerivative((4, 6)), pylops.Laplacian((4, 6)), pylops.MatrixMult(np.eye(24)), linalg.aslinearoperator(np.eye(24)),
            np.eye(24),
        ]  # fmt: skip
        for A in serial:
            for x in (rows, rows.ravel()) if getattr(A, "dims", None) == (4, 6) else (rows.ravel(),):
                with pytest.raises(
                    (ShapeError, LayoutError, AttributeError),
                    match="serial operator.*aslinearoperator.*BlockDiag",
                ):
                    A @ x
            np.testing.assert_allclose((aslinearoperator(A) @ replicated).asarray(), A @ a.ravel())
        with pytest.raises(AttributeError, match="no attribute 'squeeze', x.local and"):
            rows.squeeze()
        with pytest.raises(AttributeError, match="no attribute 'sqeeze'$"):
            _ = rows.sqeeze

    comm.virtual_ranks(2, run)
