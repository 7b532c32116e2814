"""What conjugate gradients learn of their operator on the way: eigenvalues, from which follow the causes of failure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jali.solvers.causes import gives_bad_numbers, not_hermitian, ritz_values
from jali.solvers.operators import Function
from jali.solvers.recursion import NORMAL
from jali.vectors import Vectors

SUSPICIOUS = 10  # times the smallest residual so far: the operator is measured


class Diagnosis:
    """Of a recursion of one vector: p^dagger A p of each iteration, |r|^2 before the first and after each, and |r| / |b|.

    Of a vector with a batch nothing is measured: what measures knows single vectors.
    """

    def __init__(
        self, forward: Function, vectors: Vectors, b: Any, rr: float, size: float, precise: Any = None
    ):
        """`precise` is the right-hand side in many bits, where the recursion has few."""
        self.forward, self.vectors, self.b = forward, vectors, b
        self.precise = b if precise is None else precise
        self.measures = getattr(b, "batch", None) is None
        self.curvatures, self.squares = list[float](), [rr]
        self.size = size
        self.least, self.grew, self.hermitian = math.sqrt(rr) / size, 0, False

    def wrong(self, curvature: float, rr: float) -> str:
        """Why an iteration cannot go on with this p^dagger A p and this |r|^2; empty where it can."""
        at = f"iteration {len(self.curvatures) + 1}"
        if not (math.isfinite(curvature) and math.isfinite(rr)):
            cause = (
                gives_bad_numbers("the operator", self.forward, self.b) if self.measures else ""
            ) or "infinities or nan come out of finite numbers: they overflow"
            return f"{at}: p^dagger A p = {curvature} with |r|^2 = {rr:.3g}: {cause}"
        self.curvatures.append(curvature)
        if curvature <= 0:
            cause = self._not_hermitian()
            cause = f"{cause}; {NORMAL}" if cause else self.spectrum()
            return f"{at}: p^dagger A p = {curvature:.6g} with |r|^2 = {rr:.3g}: {cause}"
        return ""

    def grown(self, rr: float) -> str:
        """Notes |r|^2 after an iteration. Says why it has grown, where the operator is the cause.

        Residuals of a Hermitian positive operator may grow, too, so the first that does makes the operator be measured.
        """
        self.squares.append(rr)
        residual = math.sqrt(rr) / self.size
        self.least = min(self.least, residual)
        if self.grew or residual <= SUSPICIOUS * self.least:
            return ""
        self.grew = len(self.squares) - 1
        if cause := self._not_hermitian():
            return f"iteration {self.grew}: |r|/|b| has grown to {residual:.3g} from {self.least:.3g}: {cause}; {NORMAL}"
        self.hermitian = True
        return ""

    def quick(self, curvatures: np.ndarray, squares: np.ndarray) -> bool:
        """Notes these numbers of several iterations, where they are positive and no residual has grown; whether that is so."""
        residuals = np.sqrt(squares) / self.size
        least = np.minimum.accumulate(np.concatenate([[self.least], residuals]))
        if not self.grew and np.any(residuals > SUSPICIOUS * least[1:]):
            return False
        self.curvatures += curvatures.tolist()
        self.squares += squares.tolist()
        self.least = float(least[-1])
        return True

    def _not_hermitian(self) -> str:
        return not_hermitian(self.forward, self.b) if self.measures else ""

    def spectrum(self) -> str:
        """That a Hermitian operator is not positive or singular, by the recursion's eigenvalues; empty where it is neither."""
        low, high = ritz_values(self.curvatures, self.squares)
        epsilon = self.vectors.epsilon(self.precise)
        between = f"eigenvalues reach from {low:.3g} or less to {high:.3g} or more"
        if low < -math.sqrt(epsilon) * abs(high):
            return f"the operator is not positive definite: {between}; {NORMAL}"
        if low <= 10 * epsilon * high or self.curvatures[-1] <= 0:
            return (
                f"the operator is singular up to rounding in {self.vectors.precision(self.precise)}: {between}; b may have no part in its null "
                "space: take that out, or add a small multiple of the identity"
            )
        return ""

    def slow(self, tolerance: float) -> str:
        """Why a solve did not reach this tolerance of |r| / |b|."""
        cause = "" if self.hermitian else self._not_hermitian()
        if cause:
            return f"{cause}; {NORMAL}"
        if not self.curvatures:
            return ""
        if cause := self.spectrum():
            return cause
        precision, epsilon = self.vectors.precision(self.precise), self.vectors.epsilon(self.precise)
        if tolerance < epsilon:
            return f"the tolerance is below rounding in {precision}, {epsilon:.2g}"
        low, high = ritz_values(self.curvatures, self.squares)
        return f"the condition of the operator is {high / low:.2g} or more: allow more iterations (maxiter)"
