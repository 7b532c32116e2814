"""Thresholding of arrays, the proximal operators of |x|_p^p: soft (p = 1), hard (p = 0) and half (p = 1/2; Xu, Chang, Xu and Zhang, IEEE
Trans. Neural Netw. Learn. Syst. 23 (2012) 1013, equation 10). Arrays are of NumPy, CuPy or PyTorch, real or complex; phases stay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from jali.array_namespaces import namespace_of


def _phase(xp: Any, x: Any, size: Any) -> Any:
    return x / xp.where(size > 0, size, xp.ones_like(size))


def soft(x: Any, threshold: float) -> Any:
    """Moduli less the threshold, no less than zero."""
    xp = namespace_of(x).xp
    size = abs(x)
    return _phase(xp, x, size) * xp.clip(size - threshold, 0, None)


def hard(x: Any, threshold: float) -> Any:
    """What exceeds the square root of twice the threshold."""
    xp = namespace_of(x).xp
    return xp.where(abs(x) > math.sqrt(2 * threshold), x, xp.zeros_like(x))


def half(x: Any, threshold: float) -> Any:
    """The half thresholding formula, above (54^(1/3) / 4) threshold^(2/3)."""
    xp = namespace_of(x).xp
    size = abs(x)
    kept = size > 54 ** (1 / 3) / 4 * threshold ** (2 / 3)
    safe = xp.where(kept, size, xp.ones_like(size) * max(threshold, 1e-30))
    angle = xp.arccos(xp.clip(threshold / 8 * (safe / 3) ** -1.5, None, 1.0))
    return xp.where(kept, 2 / 3 * x * (1 + xp.cos(2 * math.pi / 3 - 2 * angle / 3)), xp.zeros_like(x))


THRESHOLDS: dict[str, Callable[[Any, float], Any]] = {"soft": soft, "hard": hard, "half": half}
