"""Site functions as operators: on arrays, on fields and on arrays of fields they give what NumPy and jali's own derivatives give."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import jali
from jali import Field, Lattice, LayoutError, ParameterError, Real, ShapeError, Vector, comm
from jali.arrays import DistributedArray, Partition, from_field
from jali.linops import Laplacian, SiteOperator, dottest
from jali.solvers import CG, cg, cgls, lsqr

TYPES = ["float32", "float64", "complex64", "complex128"]


@jali.site_function
def laplacian(X, out, u):
    """With zero beyond the edges where the boundary is open."""
    total = -2.0 * X.ndim * u[X]
    for mu in X.directions():
        total += u[X + mu] + u[X - mu]
    out[X] = total


@jali.site_function
def upwind(X, out, u, slow):
    mu = X.directions()[0]
    out[X] = slow[X] * (u[X + mu] - u[X])


@jali.site_function
def upwind_adjoint(X, out, u, slow):
    mu = X.directions()[0]
    out[X] = slow[X - mu] * u[X - mu] - slow[X] * u[X]


@jali.site_function
def weighted(X, out, u, weight):
    out[X] = weight * u[X]


@jali.site_function
def slopes(X, out, u):
    out[X] = jali.vector([u[X + mu] - u[X] for mu in X.directions()])


@jali.site_function
def slopes_adjoint(X, out, v):
    total = 0.0 * v[X][0]
    for k, mu in enumerate(X.directions()):
        total += v[X - mu][k] - v[X][k]
    out[X] = total


def numbers(shape: Any, dtype: str, seed: int = 1) -> np.ndarray:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=shape)
    if "complex" in dtype:
        values = values + 1j * generator.normal(size=shape)
    return values.astype(dtype)


def plain_laplacian(a: np.ndarray, mode: str) -> np.ndarray:
    wide = np.pad(a, 1, mode=mode)
    inner = wide[1:-1, 1:-1]
    return wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2] - 4 * inner


@pytest.mark.short(2)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("dtype", TYPES)
def test_a_laplacian_is_that_of_numpy(ranks, dtype) -> None:
    a = numbers((11, 6), dtype)
    tolerance = 1e-5 if dtype in ("float32", "complex64") else 1e-13

    def run() -> None:
        for boundary, mode in ((None, "wrap"), ("open", "constant")):
            op = SiteOperator(laplacian, (11, 6), boundary=boundary, dtype=dtype)
            right = plain_laplacian(a, mode)
            for axis in (0, 1):
                x = DistributedArray.to_dist(a, axis=axis)
                y = op @ x
                assert y.layout is x.layout
                assert y.dtype == np.dtype(dtype)
                np.testing.assert_allclose(y.asarray(), right, rtol=tolerance, atol=tolerance)
            flat = op @ DistributedArray.to_dist(a, axis=0).ravel()
            assert flat.global_shape == (66,)
            np.testing.assert_allclose(flat.asarray().reshape(11, 6), right, rtol=tolerance, atol=tolerance)
            parts = op @ DistributedArray.to_dist(a).as_engine("jali") if boundary is None else None
            if parts is not None:
                assert parts.engine == "jali"
                assert parts.local[...].tobytes() == (op @ DistributedArray.to_dist(a)).local.tobytes()
            assert dottest(op, rtol=tolerance)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_inside_it_is_the_derivative_of_jali(ranks) -> None:
    def run() -> None:
        x = DistributedArray.to_dist(numbers((12, 9), "float64"))
        mine = SiteOperator(laplacian, (12, 9)) @ x
        theirs = Laplacian((12, 9)) @ x
        difference = (mine - theirs).asarray()
        assert np.abs(difference[1:-1, 1:-1]).max() < 1e-13
        assert np.abs(difference).max() > 1

    comm.virtual_ranks(ranks, run)


def test_several_axes_may_be_split_as_those_of_a_lattice() -> None:
    a = numbers((9, 6), "float64")

    def run() -> None:
        op = SiteOperator(laplacian, (9, 6))
        y = op @ DistributedArray.to_dist(a, axis=(1, 0), grid=(2, 2))
        np.testing.assert_allclose(y.asarray(), plain_laplacian(a, "wrap"), rtol=1e-13, atol=1e-13)
        with pytest.raises(LayoutError, match=re.escape("the last one first, axis=(1, 0)")):
            op @ DistributedArray.to_dist(a, axis=(0, 1), grid=(2, 2))
        with pytest.raises(LayoutError, match="redistribute it evenly"):
            op @ DistributedArray.to_dist(a, local_shapes=[(n, 6) for n in (1, 2, 3, 3)])
        with pytest.raises(LayoutError, match="scatters it"):
            op @ DistributedArray.to_dist(a, partition=Partition.BROADCAST)

    comm.virtual_ranks(4, run)


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_arguments_are_numbers_fields_and_arrays(ranks, dtype) -> None:
    a, c = numbers((7, 5), dtype), numbers((7, 5), "float64", 2)

    def run() -> None:
        lattice = Lattice(7, 5, grid=(comm.current().size, 1))
        field = Field(lattice, Real())
        field[...] = c
        x = DistributedArray.to_dist(a)
        right = c * (np.roll(a, -1, 0) - a)
        for slow in (field, DistributedArray.to_dist(c)):
            op = SiteOperator(upwind, (7, 5), adjoint=upwind_adjoint, arguments=(slow,))
            own = x.as_engine("jali")
            if slow is field:
                with pytest.raises((LayoutError, jali.TraceError), match="different lattices|one lattice"):
                    op @ own
                own = from_field(field.like(element=own.local.field.element).set_local(x.local))
            for vector in (x, own):
                y = op @ vector
                assert y.engine == vector.engine
                np.testing.assert_allclose(y.asarray(), right, rtol=1e-13, atol=1e-13)
            assert dottest(op, rtol=1e-12)
            assert dottest(op, x, op @ x, rtol=1e-12)
        for weight in (0.5, 2.0):
            op = SiteOperator(weighted, (7, 5), arguments=(weight,))
            np.testing.assert_allclose((op @ x).asarray(), weight * a)

    comm.virtual_ranks(ranks, run)


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_elements_that_go_in_and_come_out_may_differ(ranks) -> None:
    a = numbers((8, 6), "float64")
    right = np.stack([np.roll(a, -1, axis) - a for axis in (0, 1)], axis=-1)

    def run() -> None:
        op = SiteOperator(slopes, (8, 6), adjoint=slopes_adjoint, element_out=Vector(2, kind="real"))
        assert (op.dims, op.dimsd, op.shape) == ((8, 6), (8, 6, 2), (96, 48))
        x = DistributedArray.to_dist(a)
        for vector in (x, x.as_engine("jali")):
            y = op @ vector
            assert y.global_shape == (8, 6, 2)
            assert dottest(op, vector, y, rtol=1e-12)
        np.testing.assert_allclose((op @ x).asarray(), right, rtol=1e-13)
        assert dottest(op, rtol=1e-12)
        normal = op.H @ op
        np.testing.assert_allclose(
            (normal @ x).asarray(), -plain_laplacian(a, "wrap"), rtol=1e-12, atol=1e-12
        )
        assert dottest(op.H, rtol=1e-12)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2])
def test_fields_are_vectors_and_so_are_those_of_its_algebra(ranks) -> None:
    a, c = numbers((8, 4), "float64"), numbers((8, 4), "float64", 2)

    def run() -> None:
        lattice = Lattice(8, 4)
        x, slow = Field(lattice, Real()), Field(lattice, Real())
        x[...], slow[...] = a, c
        op = SiteOperator(upwind, (8, 4), adjoint=upwind_adjoint, arguments=(slow,))
        right = c * (np.roll(a, -1, 0) - a)
        y = op @ x
        assert isinstance(y, Field)
        assert np.allclose(y[...], right, rtol=1e-13)
        assert np.allclose((2 * op + op) @ x, 3 * right, rtol=1e-13)
        assert np.allclose(op.T @ x, op.H @ x)
        assert np.allclose(op.conj() @ x, right, rtol=1e-13)
        assert np.allclose((op**0) @ x, a)
        assert dottest(op, x, y, rtol=1e-12)
        assert dottest(op.H @ op - 3 * op, x, y, rtol=1e-12)
        with pytest.raises(ShapeError, match="an array of shape"):
            op @ Field(Lattice(4, 8), Real())
        with pytest.raises(ParameterError, match="from_field"):
            Laplacian((8, 4)) @ x

    comm.virtual_ranks(ranks, run)


def test_a_wrong_adjoint_is_found() -> None:
    def run() -> None:
        slow = DistributedArray.to_dist(numbers((7, 5), "float64"))
        op = SiteOperator(upwind, (7, 5), adjoint=upwind, arguments=(slow,))
        with pytest.raises(AssertionError, match="Dot test failed"):
            dottest(op)
        x = Field(Lattice(7, 5, grid=(comm.current().size, 1)), Real())
        x[...] = numbers((7, 5), "float64", 3)
        y = x.like()
        y[...] = numbers((7, 5), "float64", 4)
        with pytest.raises(AssertionError, match="Dot test failed"):
            dottest(op, x, y)

    comm.virtual_ranks(2, run)


@jali.site_function
def screened(X, out, u):
    total = 5.0 * u[X]
    for mu in X.directions():
        total -= u[X + mu] + u[X - mu]
    out[X] = total


@pytest.mark.short(1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_solvers_take_it_with_every_kind_of_vector(ranks) -> None:
    a = numbers((8, 6), "float64")
    matrix = np.zeros((48, 48))
    for k, one in enumerate(np.eye(48)):
        matrix[:, k] = (
            9 * one.reshape(8, 6) - (plain_laplacian(one.reshape(8, 6), "wrap") + 8 * one.reshape(8, 6))
        ).ravel()
    right = np.linalg.solve(matrix, a.ravel()).reshape(8, 6)

    def run() -> None:
        op = SiteOperator(screened, (8, 6))
        lattice = Lattice(8, 6)
        field = Field(lattice, Real())
        field[...] = a
        array = DistributedArray.to_dist(a)
        for b in (array, array.as_engine("jali"), from_field(field), field):
            for solve in (
                lambda op, b: cg(op, b, rtol=1e-12).x,
                lambda op, b: cgls(op, b, maxiter=100, atol=3.16e-07).x,
                lambda op, b: lsqr(op, b, maxiter=100).x,
                lambda op, b: CG(op).solve(b, maxiter=60, atol=3.16e-07)[0],
            ):
                x = solve(op, b)
                assert type(x) is type(b)
                found = x[...] if isinstance(x, Field) else x.asarray()
                np.testing.assert_allclose(found, right, rtol=1e-6, atol=1e-8)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("engine", ["numpy", "jax"])
def test_parts_that_are_views_or_never_change_are_taken(engine) -> None:
    if engine == "jax":
        pytest.importorskip("jax")
    a = numbers((9, 6), "float32")

    def run() -> None:
        op = SiteOperator(laplacian, (9, 4), dtype="float32")
        x = DistributedArray.to_dist(a).global_index[:, 1:5]
        assert not x.local.flags.c_contiguous
        y = op @ (x if engine == "numpy" else DistributedArray.to_dist(a[:, 1:5]).as_engine("jax"))
        assert y.engine == engine
        np.testing.assert_allclose(y.asarray(), plain_laplacian(a[:, 1:5], "wrap"), rtol=1e-5, atol=1e-5)

    comm.virtual_ranks(2, run)


def test_results_of_matvec_are_new_and_kept_ones_are_not() -> None:
    op = SiteOperator(laplacian, (4, 4))
    x = Field(Lattice(4, 4), Real())
    x[...] = numbers((4, 4), "float64")
    first = op @ x
    values = first[...]
    kept = op.matvec_kept(x)
    assert kept is op.matvec_kept(x)
    assert op.rmatvec_kept(x) is not kept
    assert op.matvec_kept(kept) is not kept  # it would read what it writes
    assert (op @ (2 * x).field()) is not first
    assert np.array_equal(first[...], values)


def test_nothing_is_sent_but_halos_once_ranks_have_agreed(monkeypatch) -> None:
    def run() -> None:
        op = SiteOperator(laplacian, (8, 4))
        x = DistributedArray.to_dist(numbers((8, 4), "float64"))
        op @ x
        calls = []
        for name in ("all_reduce", "gather_bytes", "all_gather", "broadcast"):
            monkeypatch.setattr(type(x.communicator), name, lambda *_, n=name, **__: calls.append(n))
        from jali.comm import checking

        monkeypatch.setattr(checking, "compare", lambda *_: calls.append("compare"))
        op @ x
        assert calls == []

    comm.virtual_ranks(1, run)
    comm.virtual_ranks(2, run)


@jali.site_function
def adding(X, out, u):
    out[X] += 2.0 * u[X]


def test_mistakes_are_reported() -> None:
    with pytest.raises(ParameterError, match=r"begin with out\[X\]"):
        SiteOperator(adding, 4) @ DistributedArray.to_dist(np.ones(4))
    with pytest.raises(ParameterError, match=r"decorated by jali\.site_function"):
        SiteOperator(lambda X, out, u: None, 4)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="several"):
        SiteOperator(laplacian, 4, arguments=Field(Lattice(4), Real()))  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="element"):
        SiteOperator(laplacian, 4, element=jali.Algebra(3))
    op = SiteOperator(laplacian, 4)
    with pytest.raises(ShapeError):
        op @ DistributedArray((5,))
    with pytest.raises(LayoutError, match="int64"):
        op @ DistributedArray((4,), dtype="int64")
