"""Distributed arrays whose parts are fields or arrays of JAX: what NumPy gives, in memory that is shared where it can be."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import jali
from jali import Complex, Field, Lattice, LayoutError, ParameterError, Real, Vector, comm
from jali.arrays import DistributedArray, Partition, StackedDistributedArray, from_field
from jali.linops import BlockDiag, FirstDerivative, Gradient
from jali.solvers import cgls, fista


def numbers(shape: Any, dtype: str, seed: int = 1) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=shape)
    if "complex" in dtype:
        values = values + 1j * generator.normal(size=shape)
    return values.astype(dtype)


def arrays_of(engine: str, *wholes: np.ndarray) -> list[Any]:
    """In jali's own memory (new), as fields of arrays of NumPy, or of another library."""
    if engine == "jali, new":
        found = []
        for a in wholes:
            x = DistributedArray(a.shape, engine="jali", dtype=a.dtype)
            x[:] = DistributedArray.to_dist(a).local
            found.append(x)
        return found
    return [DistributedArray.to_dist(a).as_engine(engine) for a in wholes]


@pytest.fixture(params=["jali, new", "jali", "jax"])
def engine(request):
    if request.param == "jax":
        pytest.importorskip("jax").config.update("jax_enable_x64", True)
    return request.param


@pytest.mark.short(2)
@pytest.mark.parametrize(
    ("ranks", "dtype"), [(1, "float32"), (2, "float64"), (3, "complex64"), (4, "complex128")]
)
def test_arithmetic_and_sums_are_those_of_numpy(engine, ranks, dtype) -> None:
    a, b = numbers((7, 6), dtype), numbers((7, 6), dtype, 2)
    tolerance = 2e-5 if dtype in ("float32", "complex64") else 1e-12

    def close(found: Any, right: Any) -> None:
        np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance)

    def run() -> None:
        x, y = arrays_of(engine, a, b)
        assert x.engine == engine.partition(",")[0]
        for found, right in (
            (3 * x + y / 2 - x * y, 3 * a + b / 2 - a * b),
            (1 - x, 1 - a),
            (2 / y, 2 / b),
            (x**2, a**2),
            (-x, -a),
            (np.exp(x), np.exp(a)),
            (abs(x), abs(a)),
            (x.conj(), a.conj()),
            (x.imag if "complex" in dtype else x, a.imag if "complex" in dtype else a),
        ):
            assert found.engine == x.engine
            assert found.layout is x.layout
            assert found.dtype == right.dtype
            close(np.asarray(found.asarray()), right)
        close(x.dot(y), (a * b).sum())
        close(x.dot(y, vdot=True), np.vdot(a, b))
        close(x.sum(), a.sum())
        close(x.mean(), a.mean())
        for order in (None, 1, 2, math.inf, -math.inf):
            close(x.norm(order), np.linalg.norm(a.ravel(), order))
        if "complex" not in dtype:
            assert (x.max(), x.min()) == (a.max(), a.min())
            close(np.maximum(x, y).asarray(), np.maximum(a, b))

    comm.virtual_ranks(ranks, run)


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_what_changes_in_place_changes_this_array_alone(engine, ranks) -> None:
    a, b = numbers((6, 5), "float64"), numbers((6, 5), "float64", 2)

    def run() -> None:
        x, y = arrays_of(engine, a, b)
        z = x.copy()
        z += y
        z *= 2
        z -= 1.0
        z /= y
        np.testing.assert_allclose(z.asarray(), (2 * (a + b) - 1) / b, rtol=1e-12)
        assert np.add(x, y, out=z) is z
        np.testing.assert_allclose(z.asarray(), a + b, rtol=1e-14)
        z[:] = y
        assert np.array_equal(z.asarray(), b)
        z[1:] = 3
        assert z[0].shape == (5,)
        assert not np.any(np.asarray(z[1:]) - 3)
        assert np.array_equal(x.asarray(), a)
        assert np.array_equal(y.asarray(), b)
        assert not np.any(np.asarray(x.zeros_like().asarray()))

    comm.virtual_ranks(ranks, run)


@pytest.mark.short(2)
@pytest.mark.parametrize("ranks", [1, 2])
def test_solvers_take_them_alone_and_stacked(engine, ranks) -> None:
    a = numbers((8, 5), "float64")

    def run() -> None:
        plain = DistributedArray.to_dist(a)
        (x,) = arrays_of(engine, a)
        for op in (_Shifted(), _Shifted(stacked=True)):
            given, wanted = (StackedDistributedArray([v, 2 * v]) if op.stacked else v for v in (x, plain))
            if op.stacked:
                np.testing.assert_allclose(given.dot(given), 5 * (a * a).sum(), rtol=1e-12)
                np.testing.assert_allclose(given.norm(), np.sqrt(5 * (a * a).sum()), rtol=1e-12)
                np.testing.assert_allclose(given.norm(1), 3 * abs(a).sum(), rtol=1e-12)
            for solve in (
                lambda op, b: cgls(op, b, maxiter=6, rtol=0).x,
                lambda op, b: fista(op, b, maxiter=4, eps=0.01, alpha=0.2).x,
            ):
                found, right = solve(op, given), solve(op, wanted)
                pairs = zip(found, right, strict=True) if op.stacked else [(found, right)]
                for mine, other in pairs:
                    assert mine.engine == x.engine
                    np.testing.assert_allclose(mine.asarray(), other.asarray(), rtol=1e-9, atol=1e-12)

    comm.virtual_ranks(ranks, run)


class _Shifted:
    """2 x + |sum of x| over the number of elements: Hermitian, of any vectors."""

    dtype = np.dtype("float64")

    def __init__(self, stacked: bool = False) -> None:
        self.stacked = stacked

    def matvec(self, x: Any) -> Any:
        if self.stacked:
            return StackedDistributedArray([self._one(v) for v in x])
        return self._one(x)

    rmatvec = matvec

    def _one(self, x: Any) -> Any:
        return 2 * x + x.sum() / 40


# --- fields -------------------------------------------------------------------------------------------------


@pytest.mark.short(2)
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("element", [Real(), Complex(), Vector(3), Vector(2, kind="real")], ids=str)
def test_fields_and_arrays_share_memory_both_ways(ranks, element) -> None:
    def run() -> None:
        lattice = Lattice(6, 5, 4)  # in several directions on four ranks
        field = Field(lattice, element)
        x = from_field(field)
        assert (x.global_shape, x.local_shape) == (
            field.shape,
            lattice.local_extents + element.numpy_shape,
        )
        assert x.layout.box[:3] == tuple(
            (o, o + n) for o, n in zip(lattice.local_origin, lattice.local_extents, strict=True)
        )
        assert x.to_field() is field
        field[...] = a = numbers(field.shape, str(field.dtype))
        assert np.array_equal(x.asarray(), a)
        x += x
        assert np.array_equal(field[...], 2 * a)
        np.testing.assert_allclose(x.norm(), 2 * np.linalg.norm(a), rtol=1e-13)
        np.testing.assert_allclose((2 * x - x / 2).asarray(), 3 * a, rtol=1e-13)

        y = DistributedArray.to_dist(a)
        f = y.to_field(element if element.type.shape else None)
        assert (f.element, f.array is y.local) == (element, True)
        f *= 2.0
        assert np.array_equal(y.asarray(), 2 * a)
        z = from_field(f)
        assert z.layout is y.layout
        assert z.as_engine("numpy").local.ctypes.data == y.local.ctypes.data

    comm.virtual_ranks(ranks, run)


def test_arrays_of_one_layout_meet_however_many_layouts_came_in_between() -> None:
    x = DistributedArray((5,), engine="jali")
    for n in range(6, 70):
        DistributedArray((n,), engine="jali")
    y = DistributedArray((5,), engine="jali")
    x[:], y[:] = 1.0, 2.0
    assert (x + y).sum() == 15


def test_sums_of_fields_have_the_same_bits_on_any_number_of_ranks() -> None:
    a, b = numbers((9, 8), "float64"), numbers((9, 8), "float64", 2)

    def run() -> Any:
        x, y = (DistributedArray.to_dist(v).as_engine("jali") for v in (a, b))
        return x.dot(y), x.norm(), x.sum()

    found = {one for ranks in (1, 2, 3, 4) for one in comm.virtual_ranks(ranks, run)}
    assert len(found) == 1


def test_a_solver_updates_fields_by_one_kernel(monkeypatch) -> None:
    from jali.arrays.vectors import DistributedVectors
    from jali.lattice.vectors import FieldVectors

    calls: list[int] = []
    update = FieldVectors.update
    monkeypatch.setattr(
        FieldVectors,
        "update",
        lambda self, given, *rest: calls.append(len(given)) or update(self, given, *rest),
    )
    x, y = arrays_of("jali", np.ones((4, 4)), np.ones((4, 4)))
    total = DistributedVectors().update([(x, 1, [(2.0, y)]), (y, 0, [(1, x)])], norm=True)
    assert calls == [2]
    assert total == 9 * 16


def test_what_fields_cannot_do_raises_on_all_ranks() -> None:
    def run() -> None:
        x = DistributedArray((4, 6), engine="jali")
        for call, words in (
            (lambda: x.redistribute(1), "as_engine('numpy')"),
            (lambda: x.add_ghost_cells(1, 1), "as_engine('numpy')"),
            (lambda: FirstDerivative((4, 6)) @ x, "as_engine('numpy')"),
            (lambda: BlockDiag([np.ones((2, 12))]) @ x, "as_engine('numpy')"),
            (lambda: x.global_index[1:3], "as_engine('numpy')"),
            (lambda: x.ravel(), "as_engine('numpy')"),
            (lambda: x.reshape((12,)), "as_engine('numpy')"),
            (lambda: x.norm(axis=0), "as_engine('numpy')"),
            (lambda: x.norm(3), "order 2"),
            (lambda: x.as_engine("numpy"), "x.local[...] copies"),
            (lambda: DistributedArray((4,), engine="jali", partition=Partition.BROADCAST), "redistribute(0)"),
            (lambda: DistributedArray((4,), engine="jali", mask=[0, 1]), "groups"),
            (lambda: DistributedArray((5, 6), local_shapes=[(1, 6), (4, 6)]).to_field(), "evenly"),
            (lambda: DistributedArray((4, 3), axis=1).to_field(Vector(3, kind="real")), "in one place"),
            (lambda: DistributedArray((1, 3), engine="jali"), "rank"),
            (lambda: from_field(Field(Lattice(4), jali.Algebra(3))), "to_dist"),
        ):
            with pytest.raises(LayoutError, match=re.escape(words)):
                call()
        for other, words in (
            (lambda: x > 1, "greater"),
            (lambda: DistributedArray((4, 6), engine="jali", dtype="int8"), "int8"),
            (lambda: DistributedArray((4, 6), engine="numeric"), "jali"),
        ):
            with pytest.raises(ParameterError, match=words):
                other()
        v = from_field(Field(Lattice(4), Vector(3)))
        with pytest.raises(LayoutError, match="as a whole"):
            v * v

    comm.virtual_ranks(2, run)


# --- JAX ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 3])
def test_arrays_of_jax_go_where_those_of_numpy_go(ranks) -> None:
    jax = pytest.importorskip("jax", reason="JAX is larger than the test environment should be")
    jax.config.update("jax_enable_x64", True)
    a = numbers((9, 4), "float64")

    def run() -> None:
        plain = DistributedArray.to_dist(a)
        x = plain.as_engine("jax")
        kept = x.local
        for found, right in (
            (x.redistribute(1), plain.redistribute(1)),
            (FirstDerivative((9, 4)) @ x, FirstDerivative((9, 4)) @ plain),
            (FirstDerivative((9, 4)).H @ x, FirstDerivative((9, 4)).H @ plain),
            ((Gradient((9, 4)) @ x)[1], (Gradient((9, 4)) @ plain)[1]),
            (Gradient((9, 4)).H @ (Gradient((9, 4)) @ x), Gradient((9, 4)).H @ (Gradient((9, 4)) @ plain)),
        ):
            assert found.engine == "jax"
            assert found.layout is right.layout
            assert np.array_equal(np.asarray(found.local), right.local)
        ghosts = x.add_ghost_cells(1, 2)
        assert np.array_equal(np.asarray(ghosts), plain.add_ghost_cells(1, 2))
        assert np.array_equal(np.asarray(x.norm(axis=0)), plain.norm(axis=0))
        y = x.copy()
        y += 1
        y.global_index[2:7, 1] = 5
        y[0] = 2
        assert x.local is kept
        assert np.array_equal(x.asarray(), a)
        assert float(y.global_index[2:7, 1].sum()) + 0 <= 25
        same = DistributedArray((3,), partition=Partition.BROADCAST, engine="jax")
        same[:] = comm.current().rank + 1
        assert np.array_equal(np.asarray(same.local), [1, 1, 1])

    comm.virtual_ranks(ranks, run)


def test_jax_says_what_types_it_has() -> None:
    jax = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", False)
    try:
        with pytest.raises(ParameterError, match="jax_enable_x64"):
            DistributedArray((3,), engine="jax")
        assert DistributedArray((3,), engine="jax", dtype="float32").sum() == 0
    finally:
        jax.config.update("jax_enable_x64", True)


def test_a_library_that_cannot_share_says_so() -> None:
    x = DistributedArray((3,), engine="jali")
    with pytest.raises(LayoutError, match=r"copies this rank's part"):
        x.as_engine("numpy")
    assert x.as_engine("jali") is x
