"""Derivatives on 1 to 4 virtual ranks against serial PyLops on the whole array, however it is split; adjointness; what is sent."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray
from jali.comm import Communicator
from jali.errors import ParameterError, ShapeError
from jali.linops import FirstDerivative, Gradient, Laplacian, SecondDerivative, stencils
from jali.linops.bands import Band, Entry, Term
from jali.linops.derivatives import first_derivative, second_derivative

pylops = pytest.importorskip("pylops")

RANKS = [1, 2, 3, 4]
FIRST = [
    {"kind": "forward"},
    {"kind": "backward"},
    *({"kind": "centered", "edge": edge, "order": order} for edge in (False, True) for order in (3, 5)),
]
SECOND = [
    {"kind": kind, "edge": edge} for kind in ("forward", "backward", "centered") for edge in (False, True)
]


def numbers(shape: Any, dtype: str, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.normal(size=shape)
    if np.dtype(dtype).kind == "c":
        x = x + 1j * generator.normal(size=shape)
    return x.astype(dtype)


def close(found: np.ndarray, right: np.ndarray) -> None:
    """Equal but for the last bits of what is added: same order of terms, but for those of edges."""
    assert found.dtype == right.dtype
    eps = np.finfo(right.dtype).eps
    np.testing.assert_allclose(found, right, rtol=8 * eps, atol=4 * eps)


def spreads(dims: tuple[int, ...], ranks: int, x: np.ndarray) -> Any:
    """The same array in many ways: split along each axis, on a grid, unevenly, flat in whole rows and anywhere, by one, by all."""
    for axis in range(len(dims)):
        yield f"axis {axis}", DistributedArray.to_dist(x, axis=axis)
    if len(dims) > 1:
        yield "grid", DistributedArray.to_dist(x, axis=(0, len(dims) - 1))
    least = dims[0] // (ranks + 1)
    uneven = [least] * (ranks - 1) + [dims[0] - least * (ranks - 1)]
    yield "uneven", DistributedArray.to_dist(x, local_shapes=[(n, *dims[1:]) for n in uneven])
    yield (
        "one has all",
        DistributedArray.to_dist(
            x, local_shapes=[(dims[0] if r == ranks - 1 else 0, *dims[1:]) for r in range(ranks)]
        ),
    )
    row = math.prod(dims[1:])
    yield "flat rows", DistributedArray.to_dist(x.ravel(), local_shapes=[(n * row,) for n in uneven])
    yield "flat", DistributedArray.to_dist(x.ravel())
    yield "all have it", DistributedArray.to_dist(x, partition=Partition.BROADCAST)
    yield "all have it, flat", DistributedArray.to_dist(x.ravel(), partition=Partition.BROADCAST)


def check(operator: Any, serial: Any, x: np.ndarray, ranks: int) -> None:
    forward = (serial @ x.ravel()).reshape(x.shape)
    back = (serial.H @ x.ravel()).reshape(x.shape)
    assert operator.shape == serial.shape
    for name, given in spreads(x.shape, ranks, x):
        for found, right in ((operator.matvec(given), forward), (operator.rmatvec(given), back)):
            assert found.global_shape == given.global_shape, name
            assert found.partition is Partition.SCATTER, name
            if given.partition is Partition.SCATTER:
                assert found.layout is given.layout, name
            close(found.asarray().reshape(x.shape), right)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dims", [(9,), (7, 5), (6, 5, 7)])
def test_first_derivatives_are_those_of_pylops(ranks: int, dims: tuple[int, ...]) -> None:
    def run() -> None:
        for axis, (options, dtype) in itertools.product(
            range(len(dims)), zip(FIRST, ["float64", "complex128", "float32"] * 2, strict=True)
        ):
            sampling = 1.0 if axis == 0 else 0.3
            operator = FirstDerivative(dims, sampling, dtype=dtype, axis=axis, **options)
            serial = pylops.FirstDerivative(dims, axis=axis, sampling=sampling, dtype=dtype, **options)
            check(operator, serial, numbers(dims, dtype), ranks)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dims", [(8,), (7, 5), (4, 5, 7)])
def test_second_derivatives_are_those_of_pylops(ranks: int, dims: tuple[int, ...]) -> None:
    def run() -> None:
        for axis, (options, dtype) in itertools.product(
            range(len(dims)), zip(SECOND, ["float64", "complex128"] * 3, strict=True)
        ):
            operator = SecondDerivative(dims, 0.7, dtype=dtype, axis=axis, **options)
            serial = pylops.SecondDerivative(dims, axis=axis, sampling=0.7, dtype=dtype, **options)
            check(operator, serial, numbers(dims, dtype), ranks)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
def test_laplacians_are_those_of_pylops(ranks: int) -> None:
    def run() -> None:
        for axes, weights, sampling in (
            ((-2, -1), (1, 1), (1, 1)),
            ((0, 2), (2.0, 0.3), (0.5, 3.0)),
            ((0, 1, 2), (1, 1, 1), (1, 1, 1)),
        ):
            for options in SECOND[:: 1 if axes == (0, 2) else 3]:
                given: Any = {"axes": axes, "weights": weights, "sampling": sampling, **options}
                x = numbers((6, 5, 4), "float64")
                check(Laplacian(x.shape, **given), pylops.Laplacian(x.shape, **given), x, ranks)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_gradients_are_those_of_pylops(ranks: int, dtype: str) -> None:
    def run() -> None:
        dims = (6, 5, 4)
        x = numbers(dims, dtype)
        stack = [numbers(dims, dtype, seed) for seed in (1, 2, 3)]
        for options in ({"kind": "forward"}, {"edge": True, "sampling": (1.0, 2.0, 0.1)}, {"sampling": 2.0}):
            operator = Gradient(dims, dtype=dtype, **options)  # type: ignore[arg-type]
            serial = pylops.Gradient(dims, dtype=dtype, **options)
            assert operator.shape == serial.shape
            back = serial.H @ np.concatenate([one.ravel() for one in stack])
            ways = zip(spreads(dims, ranks, x), *(spreads(dims, ranks, one) for one in stack), strict=True)
            for (_, given), *parts in ways:
                found = operator.matvec(given)
                assert isinstance(found, StackedDistributedArray)
                close(found.asarray(), serial @ x.ravel())
                found = operator.rmatvec(StackedDistributedArray([part for _, part in parts]))
                close(found.asarray().ravel(), back)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [3, 4])
def test_parts_smaller_than_the_stencil(ranks: int) -> None:
    def run() -> None:
        for n in (1, 2, 3, 4, 5):
            for options in FIRST:
                least = {3: 2, 5: 3}[options.get("order", 3)] if options.get("edge") else 1  # type: ignore[index]
                x = numbers((n, 2), "float64")
                if n < least:
                    with pytest.raises(ShapeError, match="samples along its axis"):
                        FirstDerivative(x.shape, **options)  # type: ignore[arg-type]
                    continue
                operator = FirstDerivative(x.shape, **options)  # type: ignore[arg-type]
                serial = pylops.FirstDerivative(x.shape, axis=0, **options)
                given = DistributedArray.to_dist(x)
                right = (serial @ x.ravel()).reshape(x.shape)
                close(operator.matvec(given).asarray(), right)
                matrix = np.kron(serial.todense()[::2, ::2], np.eye(2)).T if n > 0 else None
                close(operator.rmatvec(given).asarray().ravel(), matrix @ x.ravel())

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-6), ("float64", 1e-12), ("complex128", 1e-12)]
)
def test_adjoints_are_true_ones(ranks: int, dtype: str, tolerance: float) -> None:
    def run() -> None:
        dims = (13, 6)
        operators = [
            FirstDerivative(dims, 0.3, dtype=dtype, axis=axis, **o) for axis in (0, 1) for o in FIRST
        ]  # type: ignore[arg-type]
        operators += [SecondDerivative(dims, 0.3, dtype=dtype, **o) for o in SECOND]  # type: ignore[arg-type]
        operators += [Laplacian(dims, edge=True, dtype=dtype)]
        for operator in operators:
            for split in (0, 1):
                u, v = (DistributedArray.to_dist(numbers(dims, dtype, seed), axis=split) for seed in (1, 2))
                one, other = operator.matvec(u).dot(v, vdot=True), u.dot(operator.rmatvec(v), vdot=True)
                assert abs(one - other) < tolerance * abs(u.norm() * v.norm())
        gradient = Gradient(dims, edge=True, dtype=dtype)
        u = DistributedArray.to_dist(numbers(dims, dtype, 1))
        w = StackedDistributedArray([DistributedArray.to_dist(numbers(dims, dtype, seed)) for seed in (2, 3)])
        one, other = gradient.matvec(u).dot(w, vdot=True), u.dot(gradient.rmatvec(w), vdot=True)
        assert abs(one - other) < tolerance * abs(u.norm() * w.norm())

    comm.virtual_ranks(ranks, run)


def test_bands_against_dense_matrices() -> None:
    for n in range(1, 12):
        bands = [first_derivative(n, "forward", False, 3, 0.5), second_derivative(n, "backward", True, 1.0)]
        bands.append(Band(n, [Term(-1, 3), Term(2, 0.5, 7)], (min(2, n), n - 2), {n - 1: [Entry(0, 5.0)]}))
        if n > 4:
            bands += [
                first_derivative(n, "centered", True, 5, 3.0),
                second_derivative(n, "centered", True, 1.0),
            ]
        for band in bands:
            np.testing.assert_allclose(band.transposed.dense(), band.dense().T, rtol=1e-15)
            np.testing.assert_allclose(band.transposed.transposed.dense(), band.dense(), rtol=1e-15)
            for begin in range(n):
                for end in range(begin, n + 1):
                    low, high = band.columns(begin, end)
                    used = np.flatnonzero(band.dense()[begin:end].any(axis=0))
                    assert all(low <= column < high for column in used)


@pytest.mark.parametrize("outer", [False, True])
def test_long_parts_go_in_chunks(outer: bool) -> None:
    """More than a chunk of elements, in one direction and the other, with infinities that neighbouring rows must not see."""
    dims = (40, 3001) if outer else (3001, 40)
    x = numbers(dims, "float64")
    axis = int(outer)
    x[(5, 7) if outer else (7, 5)] = np.inf
    for options in ({"order": 5, "edge": True}, {"kind": "forward"}):
        serial = pylops.FirstDerivative(dims, axis=axis, **options)
        operator = FirstDerivative(dims, axis=axis, **options)  # type: ignore[arg-type]
        with np.errstate(invalid="ignore"):
            right = (serial @ x.ravel()).reshape(dims)
            found = operator.matvec(DistributedArray.to_dist(x)).asarray()
        np.testing.assert_allclose(found, right, rtol=1e-13)


def test_messages_are_what_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One exchange with the neighbours where the axis is split, nothing where it is not, and no collective."""
    calls: list[tuple[str, int]] = []
    for name in (
        "send",
        "receive",
        "all_reduce",
        "all_gather",
        "all_to_all",
        "broadcast",
        "gather_bytes",
        "barrier",
    ):
        known = getattr(Communicator, name)

        def call(self: Communicator, *args: Any, name: str = name, known: Any = known, **named: Any) -> Any:
            calls.append((name, self.rank))
            return known(self, *args, **named)

        monkeypatch.setattr(Communicator, name, call)

    def run() -> None:
        x = DistributedArray.to_dist(numbers((12, 5), "float64"))
        x.communicator.sharing_memory()
        flat = x.ravel()
        split, unsplit = FirstDerivative((12, 5), order=5), FirstDerivative((12, 5), axis=1)
        for vector in (x, flat):
            for apply in (unsplit.matvec, unsplit.rmatvec):
                calls.clear()
                x.communicator.core.barrier()
                apply(vector)
                x.communicator.core.barrier()
                assert calls == []
                x.communicator.core.barrier()
            for apply in (split.matvec, split.rmatvec, Gradient((12, 5)).matvec, Laplacian((12, 5)).matvec):
                x.communicator.core.barrier()
                calls.clear()
                x.communicator.core.barrier()
                apply(vector)
                x.communicator.core.barrier()
                assert sorted(calls) == sorted(
                    (name, rank) for name in ("send", "receive") for rank in (0, 1, 1, 2)
                )
                x.communicator.core.barrier()

    comm.virtual_ranks(3, run)


def test_types_are_not_lost() -> None:
    x = DistributedArray.to_dist(numbers((4, 3), "complex64"))
    assert FirstDerivative((4, 3), dtype="float32").matvec(x).dtype == np.complex64
    assert FirstDerivative((4, 3)).matvec(x).dtype == np.complex128
    whole = DistributedArray.to_dist(np.arange(12).reshape(4, 3))
    found = FirstDerivative((4, 3), kind="forward", dtype="float32").matvec(whole)
    np.testing.assert_array_equal(found.asarray()[:3], 3)


def test_stacks_of_several_types() -> None:
    a, b = numbers((5, 4), "float32"), numbers((5, 4), "complex64")
    serial = pylops.Gradient((5, 4), dtype="complex64")

    def run() -> None:
        op = Gradient((5, 4), dtype="float32")
        for first, second in ((a, b), (b, a)):
            stack = StackedDistributedArray([DistributedArray.to_dist(x) for x in (first, second)])
            right = serial.rmatvec(np.stack([first, second]).ravel().astype("complex64")).reshape(5, 4)
            close((op.H @ stack).asarray(), right)

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize("ranks", [2, 3])
def test_mistakes_leave_no_entries_under_way(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors come before messages, or wait for them: none is taken for one of what is applied next."""
    a = numbers((8, 6), "float64")
    plain = stencils.inner_rows
    failing: set[int] = set()

    def inner_rows(*arguments: Any) -> None:
        if comm.current().rank in failing:
            raise MemoryError
        plain(*arguments)

    monkeypatch.setattr(stencils, "inner_rows", inner_rows)

    def run() -> None:
        rank = comm.current().rank
        gradient, laplacian = Gradient((8, 6)), Laplacian((8, 6), edge=True)
        mixed = StackedDistributedArray([DistributedArray.to_dist(-a, axis=axis) for axis in (0, 1)])
        for _ in range(5):
            with pytest.raises(ShapeError, match="split differently"):
                gradient.rmatvec(mixed)
            failing.add(rank)
            with pytest.raises(MemoryError):
                laplacian.matvec(DistributedArray.to_dist(-a, axis=1))
            failing.remove(rank)
            x = DistributedArray.to_dist(a)
            found = FirstDerivative((8, 6)).rmatvec(x)
            close(found.asarray(), pylops.FirstDerivative((8, 6), axis=0).rmatvec(a.ravel()).reshape(8, 6))
            found = laplacian.matvec(DistributedArray.to_dist(a, axis=1))
            close(found.asarray(), pylops.Laplacian((8, 6), edge=True).matvec(a.ravel()).reshape(8, 6))

    comm.virtual_ranks(ranks, run)


def test_mistakes_are_reported() -> None:
    with pytest.raises(ParameterError, match="kind is one of"):
        FirstDerivative((4, 3), kind="sideways")
    with pytest.raises(ParameterError, match="order is 3 or 5"):
        FirstDerivative((4, 3), order=4)
    with pytest.raises(ParameterError, match="sampling"):
        SecondDerivative((4, 3), sampling=0)
    with pytest.raises(ShapeError, match="axis 2 does not exist"):
        FirstDerivative((4, 3), axis=2)
    with pytest.raises(ShapeError, match="different size"):
        Laplacian((4, 3), axes=(0, 1), weights=(1,))
    for axis in (1.0, "a", None):
        with pytest.raises(ShapeError, match=f"axis {axis!r} does not exist"):
            FirstDerivative((4, 3), axis=axis)  # type: ignore[arg-type]
    for given in ({"axes": 0}, {"weights": 2}, {"sampling": 1.0}):
        with pytest.raises(ShapeError, match="several numbers each, one for each axis"):
            Laplacian((4, 3), **given)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="'bfloat17' is no type of elements that NumPy has"):
        FirstDerivative((4, 3), dtype="bfloat17")
    for weight in (1j, "a"):
        with pytest.raises(ParameterError, match=f"weights of a Laplacian are real numbers, not {weight!r}"):
            Laplacian((4, 3), weights=(1, weight))  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="samplings"):
        Gradient((4, 3), sampling=(1, 2, 3))
    with pytest.raises(ShapeError, match="extents from 1"):
        FirstDerivative((4, 0))
    with pytest.raises(ShapeError, match="acts on arrays of shape"):
        FirstDerivative((4, 3)).matvec(DistributedArray.to_dist(np.zeros((3, 4))))
    with pytest.raises(ShapeError, match="elements"):
        FirstDerivative((4, 3)).matvec(DistributedArray.to_dist(np.zeros((3, 5))))
    whole = DistributedArray.to_dist(np.zeros((4, 6)))
    with pytest.raises(ShapeError, match="stack of 2"):
        Gradient((4, 3)).rmatvec(StackedDistributedArray([whole]))
    with pytest.raises(ShapeError, match="acts on arrays of shape"):
        Gradient((4, 3)).rmatvec(StackedDistributedArray([whole.global_index[:2], whole.global_index[2:]]))


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_laplacian_of_small_numbers_is_exact_on_larger_ones(ranks: int) -> None:
    u, weights, steps = numbers((20, 15), "float64"), (0.3, 0.7), (0.9, 1.1)
    expected = (pylops.Laplacian(u.shape, weights=weights, sampling=steps) @ u.ravel()).reshape(u.shape)

    def run() -> None:
        found = Laplacian(
            u.shape, weights=weights, sampling=steps, dtype="float32"
        ) @ DistributedArray.to_dist(u)
        assert found.dtype == np.float64
        np.testing.assert_allclose(found.asarray(), expected, rtol=1e-13, atol=1e-13)

    comm.virtual_ranks(ranks, run)
