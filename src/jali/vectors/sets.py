"""Sets of vectors that span a subspace, one vector at a time: what kinds of vectors without something faster do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.vectors.sums import sums

TOGETHER = 8  # vectors that one update adds; fewer go by powers of two, since each number of them is a kernel


def inner_products(vectors: Any, xs: Sequence[Any], y: Any) -> np.ndarray:
    """See `Vectors.inner_products`."""
    if vectors.check_interval(y) > 1:  # waiting costs: nothing waits before all have begun
        return np.array([read(value) for value in [vectors.inner(x, y, wait=False) for x in xs]])
    if getattr(y, "batch", None) is not None:
        return np.array([vectors.inner(x, y) for x in xs])
    return np.array(sums(*((x, y) for x in xs)))


def read(value: Any) -> Any:
    """A number, or an array of them, on the host."""
    if hasattr(value, "is_complex"):
        return complex(value) if value.is_complex else float(value)
    return np.asarray(value)


def add_several(vectors: Any, y: Any, factors: np.ndarray, xs: Sequence[Any], own: int) -> None:
    """See `Vectors.add_several`."""
    values, first = list(factors) if factors.ndim > 1 else factors.tolist(), 0
    while first < len(xs):
        size = min(TOGETHER, 1 << (len(xs) - first).bit_length() - 1)
        terms = list(zip(values[first : first + size], xs[first : first + size], strict=True))
        vectors.update([(y, own if first == 0 else 1, terms)])
        first += size


class OneByOne:
    """For vectors that are summed one by one: those methods of the protocol that are about several."""

    def several(self, x: Any, count: int) -> list[Any]:
        return [self.like(x) for _ in range(count)]  # type: ignore[attr-defined]

    def inner_products(self, xs: Sequence[Any], y: Any) -> np.ndarray:
        return inner_products(self, xs, y)

    def add_several(self, y: Any, factors: np.ndarray, xs: Sequence[Any], own: int = 1) -> None:
        add_several(self, y, factors, xs, own)

    def combine_several(self, ys: Sequence[Any], S: np.ndarray, xs: Sequence[Any]) -> None:
        for y, column in zip(ys, S.T, strict=True):
            self.add_several(y, column, xs, 0)
