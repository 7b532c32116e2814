"""LSQR (Paige and Saunders, ACM Trans. Math. Softw. 8 (1982) 43, section 4) with an operator's own vectors: what `A / y` means.

An iteration is the operator, its adjoint and two norms.
"""

from __future__ import annotations

import math
from typing import Any

from jali.errors import ParameterError

TOLERANCE = 1e-8  # of |r| / |y|, and of |A^H r| / (|A| |r|)


def lsqr(A: Any, y: Any, iterations: int = 100, tolerance: float = TOLERANCE) -> Any:
    """x with the least |A x - y|, and of those the shortest, where A^H y lives; what was reached after so many iterations."""
    if isinstance(iterations, bool) or not isinstance(iterations, int) or iterations < 1:
        raise ParameterError(f"niter is a positive whole number, not {iterations!r}")
    size = float(y.norm())
    if size == 0:
        return A.rmatvec(y)
    u = y / size
    v = A.rmatvec(u)
    alpha = float(v.norm())
    x = v.zeros_like()
    if alpha == 0:  # y is orthogonal to all that A gives
        return x
    v = v / alpha
    w = v.copy()
    rest, diagonal, norm2 = size, alpha, 0.0
    for _ in range(iterations):
        u = A.matvec(v) - alpha * u
        beta = float(u.norm())
        norm2 += alpha**2 + beta**2
        if beta > 0:
            u /= beta
            v_next = A.rmatvec(u) - beta * v
            alpha = float(v_next.norm())
        else:
            v_next, alpha = v, 0.0
        rho = math.hypot(diagonal, beta)
        cosine, sine = diagonal / rho, beta / rho
        x += (cosine * rest / rho) * w
        rest *= sine
        if rest <= tolerance * size or alpha * abs(cosine) <= tolerance * math.sqrt(norm2):
            return x
        v = v_next / alpha
        w = v - (sine * alpha / rho) * w
        diagonal = -cosine * alpha
    return x
