"""Chebyshev polynomials of an operator that make unwanted eigenvalues small (Y. Zhou, Y. Saad, M. L. Tiago and J. R. Chelikowsky, J. Comput. Phys. 219
(2006) 172): between -1 and 1 inside a window, and growing fast beyond it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import SolverError
from jali.vectors import Vectors

LEAST_OVER = (
    1e-3  # of a value of the polynomial above 1, which says that the spectrum does not end with the window
)


class ChebyshevFilter:
    """T_n((2 A - a - b) / (b - a)), with which wanted eigenvalues are those of largest modulus.

    `wanted` is 1 for the smallest eigenvalues, -1 for the largest; `sign` makes them the smallest ones: T_n(-t) = (-1)^n T_n(t).
    """

    def __init__(self, degree: int, a: float, b: float, wanted: int):
        self.degree, self.a, self.b, self.wanted = int(degree), float(a), float(b), wanted
        self.centre, self.half = (self.a + self.b) / 2, (self.b - self.a) / 2
        self.sign = -1 if wanted < 0 or degree % 2 == 0 else 1
        self._kept: dict[Any, list[Any]] = {}

    def apply(self, vectors: Vectors, operator: Callable[[Any, Any], object], p: Any, q: Any) -> None:
        """q = T_n p, by T_{k+1} = 2 t T_k - T_{k-1}. A batch may be several vectors, which are filtered together."""
        update, kept = vectors.update, getattr(p, "batch", None)
        if kept not in self._kept:
            self._kept[kept] = [vectors.like(p) for _ in range(3)]
        before, now, image = self._kept[kept]
        update([(before, 0, [(1, p)])])
        operator(before, image)
        update([(now, 0, [(1 / self.half, image), (-self.centre / self.half, before)])])
        for _ in range(self.degree - 1):
            operator(now, image)
            update([(before, -1, [(2 / self.half, image), (-2 * self.centre / self.half, now)])])
            before, now = now, before
        update([(q, 0, [(1, now)])])

    def _angles(self, theta: np.ndarray) -> np.ndarray:
        """arcosh(|t|) where the polynomial, with its sign, has these values; zero inside the window."""
        return np.arccosh(np.maximum(-theta, 1.0)) / self.degree

    def eigenvalues(self, theta: np.ndarray) -> np.ndarray:
        """Those of A; of what is inside the window its end."""
        return self.centre - self.wanted * self.half * np.cosh(self._angles(theta))

    def slopes(self, theta: np.ndarray) -> np.ndarray:
        """By how much residuals of the polynomial are at least larger than those of A: the least of |theta' - theta| / |lambda' - lambda|.

        Outside of the window the polynomial is convex, so that is where lambda' is the far end. Inside, its order of magnitude.
        """
        outside = (np.maximum(-theta, 1.0) - 1) / (1 + np.cosh(self._angles(theta)))
        return np.where(theta > -1, self.degree, np.maximum(outside, 1e-15)) / self.half

    def check(self, values: np.ndarray, settled: bool) -> None:
        """Raises SolverError for eigenvalues beyond the other end of the window, and if settled for wanted ones inside of it."""
        end = (self.b if self.wanted > 0 else -self.a) + LEAST_OVER * self.half
        if np.any(self.wanted * values > end):
            raise self.too_short(f"{values[np.argmax(self.wanted * values)]:.6g}")
        begin = self.a if self.wanted > 0 else -self.b
        beyond = int(np.sum(self.wanted * values < begin))
        if settled and beyond < len(values):
            raise SolverError(
                f"lanczos: {self}, and only {beyond} of {len(values)} eigenvalues were found {self.side}: all wanted ones lie outside of the window"
            )

    def too_short(self, value: str) -> SolverError:
        """The error of a window that leaves out the end of the spectrum that nobody wants."""
        over, last = ("above b", "largest") if self.wanted > 0 else ("below a", "smallest")
        return SolverError(
            f"lanczos: {self}, and there is an eigenvalue {value}{' ' if value else ''}{over}, where the polynomial grows as well: the window reaches to the {last} "
            "eigenvalue"
        )

    @property
    def side(self) -> str:
        """Where wanted eigenvalues are."""
        return "below a" if self.wanted > 0 else "above b"

    def __str__(self) -> str:
        return f"window=({self.a:g}, {self.b:g})"
