"""Operators made of others. Each keeps what it is made of; none communicates."""

from __future__ import annotations

from typing import Any

import numpy as np

from jali.errors import ParameterError, ShapeError
from jali.linops.operator import LinearOperator, StackedLinearOperator


class _Of(LinearOperator):
    """Made of these operators, and a number."""

    def __init__(self, shape: tuple[int, int], dtype: Any, *args: Any) -> None:
        super().__init__(shape=shape, dtype=dtype)
        self.args = args


class AdjointLinearOperator(_Of):
    """A^H."""

    def _matvec(self, x: Any) -> Any:
        return self.args[0].rmatvec(x)

    def _rmatvec(self, x: Any) -> Any:
        return self.args[0].matvec(x)

    def adjoint(self) -> Any:
        return self.args[0]

    H = property(adjoint)


class TransposedLinearOperator(_Of):
    """A^T x is the conjugate of A^H conj(x)."""

    def _matvec(self, x: Any) -> Any:
        return self.args[0].rmatvec(x.conj()).conj()

    def _rmatvec(self, x: Any) -> Any:
        return self.args[0].matvec(x.conj()).conj()

    def transpose(self) -> Any:
        return self.args[0]

    T = property(transpose)


class ConjLinearOperator(_Of):
    """conj(A) x is the conjugate of A conj(x)."""

    def _matvec(self, x: Any) -> Any:
        return self.args[0].matvec(x.conj()).conj()

    def _rmatvec(self, x: Any) -> Any:
        return self.args[0].rmatvec(x.conj()).conj()


class ScaledLinearOperator(_Of):
    """a A."""

    def _matvec(self, x: Any) -> Any:
        y = self.args[0].matvec(x)
        return y * self.args[1]

    def _rmatvec(self, x: Any) -> Any:
        y = self.args[0].rmatvec(x)
        return y * np.conj(self.args[1])


class SumLinearOperator(_Of):
    """A + B."""

    def _matvec(self, x: Any) -> Any:
        return self.args[0].matvec(x) + self.args[1].matvec(x)

    def _rmatvec(self, x: Any) -> Any:
        return self.args[0].rmatvec(x) + self.args[1].rmatvec(x)


class ProductLinearOperator(_Of):
    """A B."""

    def _matvec(self, x: Any) -> Any:
        return self.args[0].matvec(self.args[1].matvec(x))

    def _rmatvec(self, x: Any) -> Any:
        return self.args[1].rmatvec(self.args[0].rmatvec(x))


class PowerLinearOperator(_Of):
    """A^n."""

    def _matvec(self, x: Any) -> Any:
        return self._times(x, self.args[0].matvec)

    def _rmatvec(self, x: Any) -> Any:
        return self._times(x, self.args[0].rmatvec)

    def _times(self, x: Any, function: Any) -> Any:
        if self.args[1] == 0:
            return x.copy()
        for _ in range(self.args[1]):
            x = function(x)
        return x


class StackedAdjointLinearOperator(AdjointLinearOperator, StackedLinearOperator):
    """A^H."""


class StackedTransposedLinearOperator(TransposedLinearOperator, StackedLinearOperator):
    """A^T."""


class StackedConjLinearOperator(ConjLinearOperator, StackedLinearOperator):
    """The conjugate of A."""


class StackedScaledLinearOperator(ScaledLinearOperator, StackedLinearOperator):
    """a A."""


class StackedSumLinearOperator(SumLinearOperator, StackedLinearOperator):
    """A + B."""


class StackedProductLinearOperator(ProductLinearOperator, StackedLinearOperator):
    """A B."""


class StackedPowerLinearOperator(PowerLinearOperator, StackedLinearOperator):
    """A^n."""


def _made(
    kind: type[_Of], stacked: type[_Of], shape: tuple[int, int], dtype: Any, dims: Any, dimsd: Any, *args: Any
) -> LinearOperator:
    of_stacks = any(isinstance(x, StackedLinearOperator) for x in args)
    found = (stacked if of_stacks else kind)(shape, dtype, *args)
    found.dims, found.dimsd = dims, dimsd
    found._base_comm = next((x._base_comm for x in args if isinstance(x, LinearOperator)), None)
    return found


def _number_type(a: Any, dtype: Any) -> Any:
    """Of products: numbers of Python's do not widen what they multiply, unless they are complex."""
    if isinstance(a, np.generic):
        return np.result_type(a.dtype, dtype)
    return np.result_type(a, dtype)


def adjoint(A: LinearOperator) -> LinearOperator:
    """A^H."""
    return _made(
        AdjointLinearOperator, StackedAdjointLinearOperator, A.shape[::-1], A.dtype, A.dimsd, A.dims, A
    )


def transpose(A: LinearOperator) -> LinearOperator:
    """A^T."""
    return _made(
        TransposedLinearOperator, StackedTransposedLinearOperator, A.shape[::-1], A.dtype, A.dimsd, A.dims, A
    )


def conjugate(A: LinearOperator) -> LinearOperator:
    """The conjugate of A."""
    return _made(ConjLinearOperator, StackedConjLinearOperator, A.shape, A.dtype, A.dims, A.dimsd, A)


def scaled(A: LinearOperator, a: Any) -> LinearOperator:
    """a A. Raises ParameterError for what is no number."""
    if not np.isscalar(a) or isinstance(a, str | bytes):
        raise ParameterError(f"operators are multiplied by numbers, not by {a!r}")
    dtype = _number_type(a, A.dtype)
    return _made(ScaledLinearOperator, StackedScaledLinearOperator, A.shape, dtype, A.dims, A.dimsd, A, a)


def sum_of(A: LinearOperator, B: Any) -> LinearOperator:
    """A + B. Raises ShapeError for other shapes."""
    if not isinstance(B, LinearOperator):
        raise ParameterError(f"an operator is added to operators, not to {type(B).__name__}")
    if A.shape != B.shape:
        raise ShapeError(f"cannot add {A!r} and {B!r}: shape mismatch")
    dtype = np.result_type(A.dtype, B.dtype)
    return _made(SumLinearOperator, StackedSumLinearOperator, A.shape, dtype, A.dims, A.dimsd, A, B)


def product(A: LinearOperator, B: LinearOperator) -> LinearOperator:
    """A B. Raises ShapeError where what B gives is not what A takes."""
    if A.shape[1] != B.shape[0]:
        raise ShapeError(f"cannot multiply {A!r} and {B!r}: shape mismatch")
    shape, dtype = (A.shape[0], B.shape[1]), np.result_type(A.dtype, B.dtype)
    return _made(ProductLinearOperator, StackedProductLinearOperator, shape, dtype, B.dims, A.dimsd, A, B)


def power(A: LinearOperator, n: Any) -> LinearOperator:
    """A^n of a square operator. Raises ShapeError for others, ParameterError for powers that are no whole number from 0."""
    if A.shape[0] != A.shape[1]:
        raise ShapeError(f"only square operators have powers, not {A!r}")
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 0:
        raise ParameterError(f"powers of operators are whole numbers from 0, not {n!r}")
    return _made(
        PowerLinearOperator, StackedPowerLinearOperator, A.shape, A.dtype, A.dims, A.dimsd, A, int(n)
    )
