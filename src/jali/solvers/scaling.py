"""Right-hand sides of order one: squares of very small or large numbers would vanish or overflow, and a residual with them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jali.vectors import Vectors

MOST_STEPS = 3


def scaled(vectors: Vectors, b: Any, x0: Any) -> tuple[Any, Any, Any, list[Any]]:
    """b, x0 and |b|, all times the same powers of two where squares of numbers or of residuals would vanish or overflow, and these powers.

    Of a batch |b| and the powers are arrays with an element for each member. Vectors that need none are returned themselves. Where b is zero, x0 is
    zero, too.
    """
    double = vectors.epsilon(b) < 1e-12
    least, most, far = (2.0**-400, 2.0**400, 2.0**600) if double else (2.0**-20, 2.0**50, 2.0**90)
    size = np.sqrt(np.asarray(vectors.norm2(b), float))
    factors: list[Any] = []
    while not np.all(fits := (least <= size) & (size <= most)) and len(factors) < MOST_STEPS:
        seen = (size > 0) & np.isfinite(size)
        near = np.ldexp(1.0, -np.frexp(np.where(seen, size, 1.0))[1])
        factor = np.where(fits, 1.0, np.where(seen, near, np.where(size == 0, far, 1 / far)))
        factors.append(number(factor))
        b = times(vectors, factor, b)
        size = np.sqrt(np.asarray(vectors.norm2(b), float))
    if x0 is not None and (factors or not np.all(size)):
        for factor in factors or [1.0]:
            x0 = times(vectors, np.where(size == 0, 0.0, factor), x0)
    return b, x0, number(size), factors


def to_order_one(squares: np.ndarray, count: float) -> np.ndarray:
    """The power of two that makes numbers of order one of so many, the sum of whose squares this is; 1 where that is zero or not finite."""
    some = np.isfinite(squares) & (squares > 0)
    power = np.log2(np.sqrt(count) / np.sqrt(np.where(some, squares, 1.0)))
    return np.where(some, np.ldexp(1.0, np.round(power).astype(int)), 1.0)


def bound(atol: float, size: Any, factors: list[Any]) -> Any:
    """The bound atol of the original residual as that of the scaled one; of a b that is zero atol itself."""
    if not factors or not np.any(atol):
        return atol
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(np.asarray(size) > 0, atol * np.prod(np.asarray(factors), axis=0), atol)


def unscaled(vectors: Vectors, x: Any, factors: list[Any]) -> Any:
    """x over the powers of two."""
    for factor in reversed(factors):
        x = times(vectors, 1 / np.asarray(factor), x)
    return x


def times(vectors: Vectors, factor: Any, x: Any) -> Any:
    """A new vector, x times a number or, of a batch, a number for each member."""
    out = vectors.like(x)
    vectors.update([(out, 0, [(number(np.asarray(factor)), x)])])
    return out


def number(value: np.ndarray) -> Any:
    """An array of numbers, or the number that it is."""
    return value if np.ndim(value) else float(value)
