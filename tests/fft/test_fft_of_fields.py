"""Fourier transforms of fields: on lattices that are split in every way, of every kind of element, against NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import jali
from jali import Complex, Field, Integer, Lattice, Matrix, Real, Spinor, Vector, fft
from jali.arrays import DistributedArray
from jali.errors import LayoutError, ParameterError, ShapeError
from jali.gauge import SU, GaugeField
from jali.lattice.algebra import inner

GRIDS = [(1, 1, 1), (2, 1, 1), (1, 1, 2), (3, 1, 1), (2, 2, 1), (1, 2, 2), (4, 1, 1), (2, 1, 2)]
BOX = (6, 5, 4)


def numbers(shape: tuple[int, ...], dtype: Any, seed: int = 0) -> np.ndarray:
    random = np.random.default_rng(seed)
    x = random.normal(size=shape)
    return (x + 1j * random.normal(size=shape) if np.dtype(dtype).kind == "c" else x).astype(dtype)


def field(lattice: Lattice, element: Any, precision: str = "float64", seed: int = 0) -> Field:
    f = Field(lattice, element, precision)
    f[...] = numbers(f.shape, f.dtype, seed)
    return f


@pytest.mark.short(2)
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_transforms_are_those_of_the_whole_lattice(grid: tuple[int, ...]) -> None:
    def body() -> None:
        lattice = Lattice(*BOX, grid=grid)
        for element, wanted in (
            (Complex(), Complex()),
            (Real(), Complex()),
            (Vector(3), Vector(3)),
            (Vector(2, "real"), Vector(2)),
            (Matrix(2, 3), Matrix(2, 3)),
            (Spinor(2), Spinor(2)),
        ):
            for precision, exact in (("float64", 1e-12), ("float32", 1e-4)):
                f = field(lattice, element, precision)
                before = f[...]
                for axes, norm in ((None, "ortho"), ((0,), None), ((1, 2), "forward"), ((-3,), None)):
                    g = fft.fftn(f, axes=axes, norm=norm)
                    assert isinstance(g, Field)
                    assert g.lattice is lattice
                    assert g.element == wanted
                    assert g.precision == precision
                    along = axes if axes is None else tuple(a % 3 for a in axes)
                    expected = np.fft.fftn(before, axes=(0, 1, 2) if along is None else along, norm=norm)
                    np.testing.assert_allclose(g[...], expected, atol=exact * 100)
                    back = fft.ifftn(g, axes=axes, norm=norm)
                    np.testing.assert_allclose(back[...], before, atol=exact * 10)
                assert np.array_equal(f[...], before)

    jali.virtual_ranks(math.prod(grid), body)


@pytest.mark.parametrize("grid", [(1, 1, 1), (2, 1, 2), (1, 3, 1)], ids=str)
def test_real_transforms_are_arrays_that_come_back(grid: tuple[int, ...]) -> None:
    def body() -> None:
        lattice = Lattice(*BOX, grid=grid)
        f = field(lattice, Vector(2, "real"))
        y = fft.rfftn(f)
        assert isinstance(y, DistributedArray)
        np.testing.assert_allclose(y.asarray(), np.fft.rfftn(f[...], axes=(0, 1, 2)), atol=1e-12)
        g = fft.field_of(fft.irfftn(y, BOX, axes=(0, 1, 2)), lattice)
        assert g.element == Vector(2, "real")
        np.testing.assert_allclose(g[...], f[...], atol=1e-12)
        with pytest.raises(
            ParameterError, match="a transform of real numbers got a field of Complex; take fft"
        ):
            fft.rfftn(Field(lattice, Complex()))
        shorter = fft.fftn(f, (4, 4))
        np.testing.assert_allclose(shorter.asarray(), np.fft.fftn(f[...], (4, 4), axes=(1, 2)), atol=1e-12)

    jali.virtual_ranks(math.prod(grid), body)


def test_transposed_results_are_arrays_and_plans_bring_them_back() -> None:
    def body() -> None:
        lattice = Lattice(*BOX, grid=(2, 2, 1))
        f = field(lattice, Matrix(2))
        y = fft.fftn(f, layout="transposed")
        assert isinstance(y, DistributedArray)
        np.testing.assert_allclose(y.asarray(), np.fft.fftn(f[...], axes=(0, 1, 2)), atol=1e-11)
        x = fft.array_of(f)
        plan = fft.FftPlan(x.layout, (0, 1, 2), result="transposed", norm="ortho")
        z = plan(x)
        u = field(lattice, Matrix(2), seed=3)
        w = fft.fftn(fft.array_of(u), axes=(0, 1, 2), layout="transposed", norm="ortho")
        assert np.isclose(z.dot(w, vdot=True), x.dot(plan.adjoint(w), vdot=True))
        np.testing.assert_allclose(fft.field_of(plan.inverse(z), lattice)[...], f[...], atol=1e-12)
        with pytest.raises(LayoutError, match="takes an array that is split as it is.*redistribute it"):
            fft.field_of(z, lattice)

    jali.virtual_ranks(4, body)


@pytest.mark.parametrize("grid", [(1, 1, 1), (1, 2, 1), (2, 1, 2)], ids=str)
def test_the_adjoint_is_the_inverse_of_unitary_transforms(grid: tuple[int, ...]) -> None:
    def body() -> None:
        lattice = Lattice(*BOX, grid=grid)
        f, g = field(lattice, Vector(3)), field(lattice, Vector(3), seed=5)
        left = inner(fft.fftn(f, norm="ortho"), g)
        right = inner(f, fft.ifftn(g, norm="ortho"))
        assert np.isclose(complex(left), complex(right))

    jali.virtual_ranks(math.prod(grid), body)


def test_momenta_of_a_plane_wave() -> None:
    def body() -> None:
        lattice = Lattice(8, 6, grid=(2, 2))
        f = Field(lattice, Complex())
        x, y = np.meshgrid(np.arange(8), np.arange(6), indexing="ij")
        f[...] = np.exp(2j * np.pi * (3 * x / 8 + 2 * y / 6))
        g = fft.fftn(f, norm="forward")
        wanted = np.zeros((8, 6))
        wanted[3, 2] = 1
        np.testing.assert_allclose(g[...], wanted, atol=1e-14)
        middle = fft.fftshift_nd(g)
        assert isinstance(middle, Field)
        np.testing.assert_allclose(middle[...], np.fft.fftshift(wanted), atol=1e-14)
        assert np.array_equal(fft.ifftshift_nd(middle)[...], g[...])

    jali.virtual_ranks(4, body)


def test_results_go_into_fields_and_arrays_are_taken_as_they_are() -> None:
    def body() -> None:
        lattice = Lattice(4, 6, grid=(1, 2))
        local = numbers((*lattice.local_extents, 3), "complex64", jali.comm.current().rank)
        f = lattice.wrap(local)
        assert np.shares_memory(fft.array_of(f).local, local)
        kept = local.copy()
        out = Field(lattice, Vector(3), "float64")
        assert fft.fftn(f, out=out) is out
        np.testing.assert_allclose(out[...], np.fft.fftn(f[...], axes=(0, 1)), atol=1e-4)
        assert np.array_equal(local, kept)
        count = Field(lattice, Integer())
        count[...] = np.arange(24).reshape(4, 6)
        np.testing.assert_allclose(fft.fft2(count)[...], np.fft.fft2(np.arange(24).reshape(4, 6)), atol=1e-12)
        gauge = GaugeField(lattice, SU(2)).hot_start(seed=4)
        link = gauge[0]
        assert fft.fftn(link).element == Matrix(2)

    jali.virtual_ranks(2, body)


def test_what_makes_no_sense_is_refused() -> None:
    lattice, other = Lattice(4, 6), Lattice(4, 6)
    f = Field(lattice, Vector(2))
    for call, error, words in (
        (
            lambda: fft.fftn(f, axes=(2,)),
            ShapeError,
            "axes of a field are the 2 directions of its lattice, not 2",
        ),
        (lambda: fft.fftn(f, axes="x"), ShapeError, "the 2 directions of its lattice, not 'x'"),
        (lambda: fft.fftn(f, axes=(0, 0)), ShapeError, "one occurs twice"),
        (lambda: fft.fftn(f, out=np.zeros(3)), ParameterError, "goes into a field on"),
        (lambda: fft.fftn(f, out=Field(other, Vector(2))), ParameterError, "goes into a field on"),
        (lambda: fft.fftn(f, (2, 2), out=f), ParameterError, "that is no field on .*, leave out= away"),
        (lambda: fft.fftn(f, out=Field(lattice, Vector(3))), LayoutError, "split as it is"),
        (lambda: fft.array_of(3), ParameterError, "takes a Field, not 3"),
        (lambda: fft.field_of(3, lattice), ParameterError, "not a int and a Lattice"),
        (lambda: jali.graph(lambda: fft.fftn(f), lattice), jali.RecordingError, "while a graph is recorded"),
    ):
        with pytest.raises(error, match=words):
            call()
    x = DistributedArray((4, 6), dtype="complex128")
    x[:] = 1
    with pytest.raises(
        jali.RecordingError, match="a Fourier transform of arrays on the host, which takes the host"
    ):
        jali.graph(lambda: fft.fftn(x), lattice)
