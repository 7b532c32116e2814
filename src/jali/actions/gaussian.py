"""Gaussian values of the elements of fields: momenta, noise, and symmetric proposals of the Metropolis algorithm.

These are plain functions of symbols, to be called inside site functions. Elements A of an algebra are anti-Hermitian (traceless for n >= 2) with components A = sum_a A^a T^a, tr(T^a T^b) =
-delta_ab / 2; for n = 1 the same normalisation makes T = i / sqrt(2).
"""

from __future__ import annotations

import math
from typing import Any

import jali
from jali.codegen.types import Real


def gaussian_numbers(X: Any, rng: Any, like: Any) -> Any:
    """A value like another one of independent standard Gaussians, of complex numbers both parts."""

    def number() -> Any:
        g = rng.gaussian(X)
        return jali.complex(g, rng.gaussian(X)) if like.node.type.kind == "complex" else g

    shape = like.shape
    if len(shape) < 2:
        return jali.vector([number() for _ in range(shape[0])]) if shape else number()
    return jali.matrix([[number() for _ in range(shape[1])] for _ in range(shape[0])])


def gaussian_algebra(X: Any, rng: Any, n: int) -> Any:
    """An algebra element whose components A^a are independent standard Gaussians.

    -2 tr A^2 is chi-squared with n * n - 1 degrees of freedom (one for n = 1): momenta of hybrid Monte Carlo,
    and symmetric proposals of the Metropolis algorithm.
    """
    if n == 1:
        return jali.matrix([[jali.complex(0.0, rng.gaussian(X) * math.sqrt(0.5))]]).traceless_antihermitian()
    rows: list[list[Any]] = [[None] * n for _ in range(n)]
    for i in range(n):
        for j in range(i + 1, n):
            re, im = 0.5 * rng.gaussian(X), 0.5 * rng.gaussian(X)
            rows[i][j], rows[j][i] = jali.complex(re, im), jali.complex(-re, im)
    diagonal: list[Any] = [jali.zero(Real())] * n
    for k in range(1, n):
        # the generator i diag(1, ..., 1, -k, 0, ...) / sqrt(2 k (k + 1))
        g = rng.gaussian(X) * (1 / math.sqrt(2 * k * (k + 1)))
        for i in range(k):
            diagonal[i] = diagonal[i] + g
        diagonal[k] = diagonal[k] - k * g
    for i in range(n):
        rows[i][i] = jali.complex(0.0, diagonal[i])
    return jali.matrix(rows).traceless_antihermitian()
