"""Columns: a list of vectors that are several right-hand sides, not one long vector, with the numbers of a batch: one for each.

So arrays of NumPy and distributed arrays have what fields with a batch have. Numbers are the host's, and nothing is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.vectors import VectorKind, add, sums, vectors_of
from jali.vectors.lists import ListVectors
from jali.vectors.protocol import Assignment


class Columns(list[Any]):
    """Vectors of one form, side by side."""

    @property
    def batch(self) -> int:
        """Their number."""
        return len(self)

    @property
    def members(self) -> Columns:
        """Themselves, one by one."""
        return self


def of_each(apply: Callable[[Any, Any], object]) -> Callable[[Columns, Columns], None]:
    """The function that writes A p into q for each column, of one that does so for one vector."""

    def apply_to_each(p: Columns, q: Columns) -> None:
        for x, y in zip(p, q, strict=True):
            apply(x, y)

    return apply_to_each


class ColumnVectors(ListVectors):
    """The operations of columns: sums and factors are arrays with one number for each, or one number for all."""

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        return np.array(sums(*zip(x, y, strict=True)))

    def norm2(self, x: Any, wait: bool = True) -> Any:
        return np.real(self.inner(x, x))

    def count(self, x: Any) -> float:
        return float(vectors_of("x", x[0]).count(x[0]))

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        for k, y in enumerate(assignments[0][0]):
            of_column = [
                (y[k], _of(own, k), [(_of(a, k), x[k]) for a, x in terms]) for y, own, terms in assignments
            ]
            vectors_of("x", y).update(of_column)
        return self.norm2(assignments[-1][0]) if norm else None

    def gram(self, x: Any, y: Any, wait: bool = True) -> Any:
        """The matrix of the inner products of the columns of x with those of y, by one all-reduce."""
        return np.array(sums(*((a, b) for a in x for b in y))).reshape(len(x), len(y))

    def combine(self, combinations: Sequence[tuple[Any, int, Sequence[tuple[Any, Any]]]]) -> None:
        """Column b of y becomes `own` times itself plus the sum over a of C[a, b] times column a of x; a C of None is the unit matrix."""
        for y, own, terms in combinations:
            factors = [(None if C is None else np.asarray(C).tolist(), x) for C, x in terms]
            for b, target in enumerate(y):
                added = [
                    part
                    for C, x in factors
                    for part in (
                        [(1, x[b])] if C is None else [(C[a][b], column) for a, column in enumerate(x)]
                    )
                ]
                vectors_of("x", target).update([(target, own, added)])


def _of(factor: Any, k: int) -> Any:
    """The factor of column k."""
    return factor[k].item() if isinstance(factor, np.ndarray) and factor.ndim else factor


add(VectorKind("columns", lambda x: isinstance(x, Columns), lambda x: ColumnVectors()))
