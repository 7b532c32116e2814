"""Operators on arrays of which ranks have nothing, and what they say of arguments that make no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray
from jali.errors import ShapeError
from jali.linops import (
    FFTND,
    FirstDerivative,
    Halo,
    Identity,
    Laplacian,
    LinearOperator,
    Restriction,
    SecondDerivative,
    Sliding,
    Zero,
)


@pytest.mark.parametrize("ranks", [2, 4, 5])
@pytest.mark.parametrize("dims", [(7, 1), (1, 7), (2, 1, 5)])
def test_derivatives_on_grids_with_more_ranks_than_rows(ranks: int, dims: tuple[int, ...]) -> None:
    a = np.random.default_rng(0).normal(size=dims)

    def run() -> None:
        x = DistributedArray.to_dist(a, axis=tuple(range(len(dims))))
        along_first = DistributedArray.to_dist(a)
        operators: list[Any] = [Laplacian(dims)]
        for axis in range(len(dims)):
            operators += [FirstDerivative(dims, axis=axis), SecondDerivative(dims, axis=axis)]
        for op in operators:
            np.testing.assert_allclose((op @ x).asarray(), (op @ along_first).asarray(), rtol=1e-13)
            np.testing.assert_allclose((op.H @ x).asarray(), (op.H @ along_first).asarray(), rtol=1e-13)

    comm.virtual_ranks(ranks, run)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Identity(-1), "negative"),
        (lambda: Identity("a"), "dims is a whole number or several"),
        (lambda: Zero((3, 2.5)), "dims is a whole number or several"),
        (lambda: Restriction("a", [0]), "dims is a whole number or several"),
        (lambda: FirstDerivative((3, 2.5)), "FirstDerivative: dims is a whole number or several"),
        (lambda: Halo("a", 1), "dims of Halo is a whole number or several"),
        (lambda: FFTND(2.5, axes=0), "FFTND: dims is a whole number or several"),
        (lambda: Sliding(np.ones((4, 4)), 2.5, 4, 2), "Sliding: dimsd is a whole number or several"),
        (lambda: LinearOperator(np.ones((3, 3)), shape=(4, 4)), r"shape \(3, 3\) was given, and shape="),
        (lambda: LinearOperator(shape=3), "has a shape"),
        (lambda: LinearOperator(shape=("a", 3)), "shape of an operator is a whole number or several"),
    ],
)
def test_shapes_that_are_none_are_refused(make: Any, words: str) -> None:
    with pytest.raises(ShapeError, match=words):
        make()
