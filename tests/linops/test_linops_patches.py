"""Overlapping windows on 1 to 4 virtual ranks against serial PyLops, and their adjointness."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray
from jali.errors import ParameterError, ShapeError
from jali.linops import Patch, Sliding

pylops = pytest.importorskip("pylops")


def local_operator(rows: int, columns: int, dtype: str = "float64") -> Any:
    matrix = np.random.default_rng(5).normal(size=(rows, columns)).astype(dtype)
    return pylops.MatrixMult(matrix, dtype=dtype)


def check(operator: Any, serial: Any, dtype: str) -> None:
    generator = np.random.default_rng(1)
    m, d = (
        generator.normal(size=operator.dims).astype(dtype),
        generator.normal(size=operator.dimsd).astype(dtype),
    )
    if np.dtype(dtype).kind == "c":
        m, d = m * (1 + 2j), d * (2 - 1j)
    assert operator.shape == serial.shape
    model, data = DistributedArray.to_dist(m), DistributedArray.to_dist(d)
    for x, y in ((model, data), (model.ravel(), data.ravel())):
        forward, back = operator.matvec(x), operator.rmatvec(y)
        assert forward.layout is y.layout
        assert back.layout is (model.ravel().layout if y.ndim == 1 else x.layout)
        np.testing.assert_allclose(
            forward.asarray().ravel(), np.ravel(serial @ m.ravel()), rtol=1e-12, atol=1e-13
        )
        np.testing.assert_allclose(
            back.asarray().ravel(), np.ravel(serial.H @ d.ravel()), rtol=1e-12, atol=1e-13
        )
        assert (
            abs(forward.dot(y, vdot=True) - x.ravel().dot(back.ravel(), vdot=True))
            < 1e-12 * x.norm() * y.norm() * 10
        )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["hanning", "cosine", "cosinesquare", None])
def test_sliding_windows_are_those_of_pylops(ranks: int, kind: Any) -> None:
    def run() -> None:
        from pylops.signalprocessing import Sliding1D, Sliding2D

        for n, nwin, nover in ((31, 8, 3), (20, 4, 2), (9, 9, 2), (13, 6, 0), (40, 5, 2)):
            count = (n - nwin) // (nwin - nover) + 1
            if count == 1:
                continue  # the serial one tapers a single window's front
            op = local_operator(nwin, 3)
            check(
                Sliding(op, n, nwin, nover, kind), Sliding1D(op, count * 3, n, nwin, nover, kind), "float64"
            )
            op = local_operator(nwin * 2, 6, "complex128")
            found = Sliding(op, (n, 2), nwin, nover, kind)
            check(found, Sliding2D(op, (count * 3, 2), (n, 2), nwin, nover, kind), "complex128")

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_patches_are_those_of_pylops(ranks: int) -> None:
    def run() -> None:
        from pylops.signalprocessing import Patch2D

        for kind in ("hanning", "cosine", None):
            nwin, nover, dimsd = (6, 5), (2, 1), (23, 14)
            counts = [(n - w) // (w - o) + 1 for n, w, o in zip(dimsd, nwin, nover, strict=True)]
            op = local_operator(30, 6)
            serial = Patch2D(op, (counts[0] * 2, counts[1] * 3), dimsd, nwin, nover, (2, 3), kind)
            check(Patch(op, dimsd, nwin, nover, kind), serial, "float64")

    comm.virtual_ranks(ranks, run)


def test_three_dimensions_and_more_ranks_than_windows() -> None:
    def run() -> None:
        dims, nwin, nover = (9, 4, 6), (5, 2, 3), (1, 0, 1)
        operator = Patch(pylops.Identity(30), dims, nwin, nover, None)
        assert operator.dims[:3] == (2, 2, 2)
        x = DistributedArray.to_dist(np.random.default_rng(2).normal(size=dims))
        times = operator.matvec(operator.rmatvec(x)).asarray() / x.asarray()  # how many windows have it
        along = [np.zeros(n) for n in dims]
        for axis, (w, o) in enumerate(zip(nwin, nover, strict=True)):
            for window in range(2):
                along[axis][window * (w - o) : window * (w - o) + w] += 1
        np.testing.assert_allclose(times, math.prod(np.ix_(*along)), rtol=1e-14)

    comm.virtual_ranks(4, run)


def test_mistakes_are_reported() -> None:
    op = local_operator(8, 3)
    with pytest.raises(ParameterError, match="tapertype is one of"):
        Sliding(op, 31, 8, 3, "square")
    with pytest.raises(ShapeError, match="longer than the data"):
        Sliding(op, 7, 8, 3)
    with pytest.raises(ShapeError, match="twice what it shares"):
        Sliding(op, 31, 8, 5)
    with pytest.raises(ShapeError, match="Op gives 8 elements"):
        Sliding(op, 31, 9, 3)
    with pytest.raises(ShapeError, match="along one axis"):
        Sliding(op, 31, (8, 2), 3)  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match="windows"):
        Patch(op, (31, 4), (8, 2), 3)
    with pytest.raises(ShapeError, match="takes"):
        found = Sliding(op, 31, 8, 3)
        found.matvec(DistributedArray((3, found.shape[1] // 3)))
