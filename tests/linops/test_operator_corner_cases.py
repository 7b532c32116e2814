"""Operators on arrays of which ranks have nothing, and what they say of arguments that make no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from jali import comm
from jali.arrays import DistributedArray
from jali.errors import ParameterError, ShapeError
from jali.linops import (
    FFTND,
    FirstDerivative,
    Halo,
    Identity,
    Laplacian,
    LinearOperator,
    NonStationaryConvolve1D,
    Patch,
    Restriction,
    SecondDerivative,
    Sliding,
    Zero,
    dottest,
    from_functions,
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


def test_dot_test_of_orthogonal_vectors_passes_and_that_of_no_adjoint_does_not() -> None:
    def run() -> None:
        derivative = FirstDerivative((9,)) @ Restriction((9,), range(9))
        odd = derivative - derivative.H  # antisymmetric: x^T A x is 0 but for rounding
        x = DistributedArray.to_dist(np.random.default_rng(0).normal(size=9))
        assert dottest(odd, u=x, v=x)
        none = from_functions(odd.matvec, odd.matvec, (9, 9))
        y = DistributedArray.to_dist(np.random.default_rng(1).normal(size=9))
        with pytest.raises(AssertionError, match="Dot test failed"):
            dottest(none, u=x, v=y)

    comm.virtual_ranks(2, run)


@pytest.mark.parametrize(
    "make", [lambda: Patch(3, 20, 6, 2), lambda: NonStationaryConvolve1D(9, [1.0], (2, 5))]
)
def test_what_is_no_operator_and_no_filter_is_refused(make: Any) -> None:
    with pytest.raises(ParameterError, match="not list|int has None"):
        make()


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
