"""Mixed precision by reliable updates: a recursion in few bits, whose residual is replaced by that of a solution in many (G. L. G. Sleijpen and
H. A. van der Vorst, Computing 56 (1996) 141; M. A. Clark et al., Comput. Phys. Commun. 181 (2010) 1517, section 4.3).

The recursion solves A e = r with an operator of few bits and adds what it finds to x, which is kept in many. Where a rule says so, r = b - A x is
computed in many bits, and conjugate gradients go on in their direction; other recursions begin again from r. So the bits of the recursion limit what one
cycle gains, and those of A and b the solution.

A rule sees |r| after each step, where the vectors are, and sets the bound below which the recursion waits for its update. `RULES` has them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from jali.errors import LayoutError, ParameterError, StorageError
from jali.files import value_shown
from jali.solvers.elementwise import computed, sqrt, where
from jali.solvers.operators import into_of, started
from jali.solvers.scaling import number
from jali.vectors import vectors_of

if TYPE_CHECKING:
    from jali.solvers.krylov import Krylov

SEED = 1
STRIKES = 3  # updates one after the other that may lower the true residual by less than half, before the solve has failed


@dataclass(frozen=True)
class Inner:
    """The few bits of a solve: `cg(A, b, inner=Inner(few, like))`.

    `A` is the same operator in few bits, or one near it, and `like` a vector of the format that the recursion has; for a 16-bit storage x is summed up in
    the arithmetic's own numbers. `update` is the rule of updates: "residual", when |r| has fallen below `delta` times its largest value since the last one, or
    "estimate", when the estimated rounding error, the sum of u |r| + u |A| |x|, is larger than sqrt(u) |r|, with the unit u of the storage.

    Raises ParameterError for another rule, a delta that is not between 0 and 1, and what is no vector.
    """

    A: Any
    like: Any
    update: str = "residual"
    delta: float = 0.1

    def __post_init__(self) -> None:
        if self.update not in RULES:
            raise ParameterError(
                f"inner: the rule of updates is {' or '.join(map(repr, RULES))}, not {value_shown(self.update)}"
            )
        if not isinstance(self.delta, float | int) or isinstance(self.delta, bool) or not 0 < self.delta < 1:
            raise ParameterError(f"inner: delta is between 0 and 1, not {value_shown(self.delta)}")
        vectors_of("inner: like", self.like)


class Rule(Protocol):
    """When a recursion gets its update. Residuals here are parts of |b|."""

    def begin(self, run: Krylov, residuals: np.ndarray) -> list[np.ndarray]:
        """The numbers that the rule keeps, at an update."""

    def bound(self, run: Krylov, numbers: list[Any], rr: Any) -> tuple[list[Any], Any]:
        """These numbers after a step, and the residual below which the recursion waits."""


def _largest(rr: Any, size: Any, largest: Any) -> Any:
    residual = sqrt(rr) / size
    return where(residual > largest, residual, largest)


def _bound(largest: Any, delta: Any, tolerance: Any) -> Any:
    return where(delta * largest > tolerance, delta * largest, tolerance)


class OfResidual:
    """Below delta times the largest residual since the last update."""

    def begin(self, run: Krylov, residuals: np.ndarray) -> list[np.ndarray]:
        return [residuals]

    def bound(self, run: Krylov, numbers: list[Any], rr: Any) -> tuple[list[Any], Any]:
        largest = computed(_largest, rr, run.size, numbers[0])
        assert run.outer is not None
        return [largest], computed(_bound, largest, run.outer.delta, run.outer.tolerance)


def _estimated(error: Any, rr: Any, xx: Any, size: Any, unit: Any, unit_of_A: Any, limit: Any) -> Any:
    """The sum of rounding errors, which no longer grows once the recursion waits."""
    return where(sqrt(rr) / size > limit, error + (unit * sqrt(rr) + unit_of_A * sqrt(xx)) / size, error)


def _bound_of_error(error: Any, rr: Any, size: Any, root: Any, tolerance: Any) -> Any:
    """Where the estimate is too large, a bound that every residual is below."""
    return where(error > root * sqrt(rr) / size, sqrt(rr) / size + 1.0, tolerance)


class OfEstimate:
    """Where the sum of estimated rounding errors is no longer small beside the residual."""

    def begin(self, run: Krylov, residuals: np.ndarray) -> list[np.ndarray]:
        outer = run.outer
        assert outer is not None
        if outer.norm_of_A is None:
            outer.norm_of_A = outer.measured_norm(run)
            outer.unit = outer.measured_unit(run)
        return [outer.unit * residuals]

    def bound(self, run: Krylov, numbers: list[Any], rr: Any) -> tuple[list[Any], Any]:
        outer = run.outer
        assert outer is not None
        assert outer.norm_of_A is not None
        xx = run.vectors.norm2(run.x, wait=run.waits)
        unit = outer.unit
        error = computed(
            _estimated, numbers[0], rr, xx, run.size, unit, unit * outer.norm_of_A, run.tolerance
        )
        return [error], computed(_bound_of_error, error, rr, run.size, math.sqrt(unit), outer.tolerance)


RULES: dict[str, Rule] = {"residual": OfResidual(), "estimate": OfEstimate()}


class Outer:
    """The many bits of a solve: b, x and r = b - A x, beside a recursion that has few. Its r is that one times `scale`, so that its numbers are of order one,
    which 16 bits hold best."""

    def __init__(self, run: Krylov, A: Any, b: Any, x0: Any, inner: Inner):
        self.inner, self.rule, self.delta = inner, RULES[inner.update], float(inner.delta)
        self.apply = into_of("the operator", A, run.vectors)
        self.b = b
        self.x = run.vectors.like(b) if x0 is None else started(x0, b)
        self.r = run.vectors.copy(b)
        self.scale: np.ndarray | None = None  # once the recursion has begun
        self.count = run.vectors.count(b)
        self.norm_of_A: float | None = None
        self.tolerance: Any = None  # where the vectors are
        self.numbers: list[Any] = []
        self.after, self.limit = list[Any](), None  # the numbers and the bound of the rule, within a graph
        self.unit = 0.0
        low = vectors_of("inner: like", inner.like)
        try:
            run.r = low.like(inner.like)
            run.x = run.vectors.like(b, low.precision(run.r))  # has its own numbers as storage
            run.vectors.update([(run.r, 0, [(0.0, b)])])  # b itself may be too large for it
            run.vectors.update([(run.x, 0, [(0.0, run.r)])])  # fits both ways
        except (LayoutError, StorageError, TypeError) as error:
            raise type(error)(f"{run.name}: inner: like is a vector of the form of b: {error}") from None

    def take(self, run: Krylov, b: Any, x0: Any) -> None:
        """Another right-hand side, and where to begin."""
        self.b, self.scale = b, None
        run.vectors.update([(self.x, 0, [(0.0, b) if x0 is None else (1, x0)]), (self.r, 0, [(1, b)])])
        run.vectors.update([(run.x, 0, [(0.0, b)])])

    def squares(self, run: Krylov) -> np.ndarray:
        """Adds what the recursion found to x; returns |b - A x|^2."""
        if self.scale is not None:
            run.vectors.update([(self.x, 1, [(number(1 / self.scale), run.x)])])
            run.vectors.update([(run.x, 0, [(0.0, self.b)])])
        self.apply(self.x, self.r)
        return np.asarray(run.vectors.update([(self.r, -1, [(1, self.b)])], norm=True), float)

    def solution(self, run: Krylov) -> Any:
        """x with what the recursion has found since the last update, a new vector."""
        x = run.vectors.copy(self.x)
        if self.scale is not None:
            run.vectors.update([(x, 1, [(number(1 / self.scale), run.x)])])
        return x

    def hand_over(self, run: Krylov, squares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Gives the recursion r, whose squares these are. Returns |r|^2 as it has it, and the new scale over the last one."""
        norms = np.sqrt(np.where(squares > 0, squares, 1.0))
        scale = np.ldexp(1.0, np.round(np.log2(math.sqrt(self.count) / norms)).astype(int))
        scale = np.where(squares > 0, scale, 1.0)
        ratio = scale / (scale if self.scale is None else self.scale)
        self.scale = scale
        rr = run.vectors.update([(run.r, 0, [(number(scale), self.r)])], norm=True)
        return np.asarray(rr, float), ratio

    def measured_unit(self, run: Krylov) -> float:
        """The relative error of vectors of few bits."""
        x, few = run.vectors.random(self.b, SEED), run.vectors.like(run.r)
        run.vectors.update([(few, 0, [(1, x)])])
        size = run.vectors.norm2(x)
        error = run.vectors.update([(x, 1, [(-1, few)])], norm=True)
        return math.sqrt(float(np.max(np.asarray(error) / np.asarray(size))))

    def measured_norm(self, run: Krylov) -> float:
        """|A|, by ten steps of the power iteration in few bits."""
        x, y = run.vectors.random(run.r, SEED), run.vectors.like(run.r)
        size = 1.0
        for _ in range(10):
            run.apply(x, y)
            size = math.sqrt(
                float(np.max(np.asarray(run.vectors.norm2(y)) / np.asarray(run.vectors.norm2(x))))
            )
            run.vectors.update([(x, 0, [(1 / size, y)])])
        return 1.1 * size
