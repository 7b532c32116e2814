"""Derivatives by finite differences of arrays that are spread over ranks: first, second, Laplacian, gradient.

Formulas and the treatment of edges are those of PyLops (`pylops.FirstDerivative` and similar), to the last bits. Coefficients:
B. Fornberg, "Generation of finite difference formulas on arbitrarily spaced grids", Math. Comp. 51 (1988) 699, table 1.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.arrays import DistributedArray, StackedDistributedArray
from jali.comm.validation import several
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown
from jali.linops.bands import Band, Entry, Term
from jali.linops.operator import StackedLinearOperator
from jali.linops.stencils import Along, StencilOperator
from jali.linops.validation import distance

KINDS = ("centered", "forward", "backward")


def _check_kind(kind: str) -> None:
    if kind not in KINDS:
        raise ParameterError(f"kind is one of {', '.join(KINDS)}, not {value_shown(kind)}")


def _check_weight(weight: Any) -> float:
    try:
        return float(weight)
    except (TypeError, ValueError):
        raise ParameterError(f"weights of a Laplacian are real numbers, not {value_shown(weight)}") from None


def _check_edge(n: int, least: int, what: str) -> None:
    if n < least:
        raise ShapeError(f"{what} with edge=True needs {least} samples along its axis, there are {n}")


@functools.lru_cache(maxsize=256)
def first_derivative(n: int, kind: str, edge: bool, order: int, sampling: float) -> Band:
    """As a matrix. `edge` matters for centered ones alone."""
    _check_kind(kind)
    if kind == "forward":
        return Band(n, [Term(1, 1), Term(0, -1)], (0, n - 1), None, sampling)
    if kind == "backward":
        return Band(n, [Term(0, 1), Term(-1, -1)], (1, n), None, sampling)
    if order not in (3, 5):
        raise ParameterError(
            f"order is 3 or 5, the points of a centered derivative, not {value_shown(order)}"
        )
    special: dict[int, list[Entry]] = {}
    if edge:
        _check_edge(n, 2 if order == 3 else 3, f"a first derivative of order {order}")
        special = {0: [Entry(1, 1), Entry(0, -1)], n - 1: [Entry(n - 1, 1), Entry(n - 2, -1)]}
    if order == 3:
        return Band(n, [Term(1, 0.5), Term(-1, -0.5)], (1, n - 1), special, sampling)
    if edge:
        special[1] = [Entry(2, 0.5), Entry(0, -0.5)]
        special[n - 2] = [Entry(n - 1, 0.5), Entry(n - 3, -0.5)]
    terms = [Term(-2, 1, 12), Term(-1, -2, 3), Term(1, 2, 3), Term(2, -1, 12)]
    return Band(n, terms, (2, n - 2), special, sampling)


@functools.lru_cache(maxsize=256)
def second_derivative(n: int, kind: str, edge: bool, over: float) -> Band:
    """As a matrix; `over` is the square of the sampling. `edge` matters for centered ones alone."""
    _check_kind(kind)
    shift = {"centered": 0, "forward": 1, "backward": -1}[kind]
    terms = [Term(1 + shift, 1), Term(shift, -2), Term(shift - 1, 1)]
    special: dict[int, list[Entry]] = {}
    if edge and kind == "centered":
        _check_edge(n, 3, "a second derivative")
        special[0] = [Entry(0, 1), Entry(1, -2), Entry(2, 1)]
        special[n - 1] = [Entry(n - 3, 1), Entry(n - 2, -2), Entry(n - 1, 1)]
    return Band(n, terms, (1 - shift, n - 1 - shift), special, over)


class _OneAxis(StencilOperator):
    """A band matrix along one axis."""

    along: Along

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        return self._sum([(x, self.along)])

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        return self._sum([(x, self.along.transposed)])


class FirstDerivative(_OneAxis):
    """First derivative along an axis.

    Arguments:

    - `dims`: shape of the array.
    - `sampling`: distance of samples.
    - `kind`: "centered" (differences of `order` 3 or 5 points), "forward" (x[i+1] - x[i]) or "backward" (x[i] - x[i-1]).
    - `edge`: whether centered ones have lower orders at the ends, where they are 0 otherwise.
    - `axis`: along which; the first, as old scripts expect, and not the last as in serial PyLops.

    See `StencilOperator` for its arguments. Raises ParameterError for an unknown kind or order, ShapeError for an axis that
    does not exist and where `edge` needs more samples.
    """

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float = 1.0,
        kind: str = "centered",
        edge: bool = False,
        order: int = 3,
        dtype: Any = np.float64,
        axis: int = 0,
        base_comm: Any = None,
    ) -> None:
        super().__init__(dims, dtype, base_comm=base_comm)
        self.sampling, self.kind, self.edge, self.order = sampling, kind, edge, order
        self.axis = self._axis(axis)
        n, step = self.dims[self.axis], distance(sampling)
        self.along = Along(self.axis, first_derivative(n, kind, bool(edge), order, step))


class SecondDerivative(_OneAxis):
    """Second derivative along an axis: x[i+1] - 2 x[i] + x[i-1], or shifted by one with "forward" and "backward".

    Arguments are those of `FirstDerivative`. With `edge` the ends of a centered one have the differences of their neighbours.
    """

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float = 1.0,
        kind: str = "centered",
        edge: bool = False,
        dtype: Any = np.float64,
        axis: int = 0,
        base_comm: Any = None,
    ) -> None:
        super().__init__(dims, dtype, base_comm=base_comm)
        self.sampling, self.kind, self.edge = sampling, kind, edge
        self.axis = self._axis(axis)
        n, step = self.dims[self.axis], distance(sampling)
        self.along = Along(self.axis, second_derivative(n, kind, bool(edge), step**2))


class Laplacian(StencilOperator):
    """Sum of second derivatives along `axes`, each with its weight and sampling.

    Raises ShapeError where these are not equally many, ParameterError for weights that are no real numbers, and as `SecondDerivative`
    does.
    """

    def __init__(
        self,
        dims: Sequence[int],
        axes: Sequence[int] = (-2, -1),
        weights: Sequence[float] = (1, 1),
        sampling: Sequence[float] = (1, 1),
        edge: bool = False,
        kind: str = "centered",
        dtype: Any = np.float64,
        base_comm: Any = None,
    ) -> None:
        super().__init__(dims, dtype, base_comm=base_comm)
        if not all(map(several, (axes, weights, sampling))):
            raise ShapeError(
                f"axes, weights, and sampling are several numbers each, one for each axis, not {axes}, {weights} and {sampling}"
            )
        if not len(axes) == len(weights) == len(sampling) > 0:
            raise ShapeError(
                f"axes, weights, and sampling have different size: {len(axes)}, {len(weights)} and {len(sampling)}; each axis has "
                "one of each"
            )
        self.axes = tuple(self._axis(axis) for axis in axes)
        self.weights, self.sampling, self.kind, self.edge = tuple(weights), tuple(sampling), kind, edge
        self.along = [
            Along(
                axis,
                second_derivative(self.dims[axis], kind, bool(edge), distance(step) ** 2),
                _check_weight(weight),
            )
            for axis, weight, step in zip(self.axes, weights, sampling, strict=True)
        ]

    def _matvec(self, x: DistributedArray) -> DistributedArray:
        return self._sum([(x, along) for along in self.along])

    def _rmatvec(self, x: DistributedArray) -> DistributedArray:
        return self._sum([(x, along.transposed) for along in self.along])


class Gradient(StencilOperator, StackedLinearOperator):
    """First derivatives along all axes, as a stack of arrays; the adjoint takes such a stack.

    `sampling` is one number or one for each axis; `kind` and `edge` are those of `FirstDerivative`. Raises its errors, and
    ShapeError for stacks of another number of arrays.
    """

    takes_stacks = True  # the adjoint does

    def __init__(
        self,
        dims: int | Sequence[int],
        sampling: float | Sequence[float] = 1,
        edge: bool = False,
        kind: str = "centered",
        dtype: Any = np.float64,
        base_comm: Any = None,
    ) -> None:
        count = 1 if np.ndim(dims) == 0 else len(dims)  # type: ignore[arg-type]
        super().__init__(dims, dtype, count, base_comm)
        steps = (sampling,) * count if np.ndim(sampling) == 0 else tuple(sampling)  # type: ignore[arg-type]
        if len(steps) != count:
            raise ShapeError(f"{len(steps)} samplings for {count} axes")
        self.sampling, self.kind, self.edge = steps, kind, edge
        self.along = [
            Along(axis, first_derivative(n, kind, bool(edge), 3, distance(step)))
            for axis, (n, step) in enumerate(zip(self.dims, steps, strict=True))
        ]

    def _matvec(self, x: DistributedArray) -> StackedDistributedArray:
        self._refuse_stack(x)
        return StackedDistributedArray([self._sum([(x, along)]) for along in self.along])

    def _rmatvec(self, x: StackedDistributedArray) -> DistributedArray:
        parts = getattr(x, "distarrays", [x])
        if len(parts) != len(self.along):
            raise ShapeError(
                f"{self!r}: the adjoint takes a stack of {len(self.along)} arrays, not of {len(parts)}"
            )
        return self._sum([(part, along.transposed) for part, along in zip(parts, self.along, strict=True)])
