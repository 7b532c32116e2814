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
from jali.solvers.elementwise import assign, computed, settle, sqrt, where
from jali.solvers.operators import into_of, started
from jali.solvers.scaling import number, to_order_one
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


def check_inner(name: str, inner: Any, b: Any) -> None:
    """Raises ParameterError for what is no `Inner`, LayoutError for one whose `like` has another form than b."""
    if not isinstance(inner, Inner):
        raise ParameterError(f"{name}: inner is a jali.solvers.Inner(A, like), not {value_shown(inner)}")
    vectors, low = vectors_of(f"{name}: b", b), vectors_of("inner: like", inner.like)
    said = f"{name}: inner: like is a vector of the form of b"
    if type(vectors) is not type(low):
        raise LayoutError(f"{said}: it is {value_shown(inner.like)}, b {value_shown(b)}")
    try:
        alike = vectors.like(b, low.precision(inner.like))
    except ParameterError:  # of arrays the name is that of their type; an update shows whether they fit
        return
    try:
        vectors.check("it", inner.like, alike)
    except LayoutError as error:
        raise LayoutError(f"{said}: {error}") from None


class Rule(Protocol):
    """When a recursion gets its update. Residuals here are parts of |b|, and all numbers where the vectors are."""

    def prepare(self, run: Krylov) -> None:
        """Called before a solve: what the rule wants to know."""

    def begin(self, run: Krylov, residual: Any) -> list[Any]:
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

    def prepare(self, run: Krylov) -> None:
        """Nothing."""

    def begin(self, run: Krylov, residual: Any) -> list[Any]:
        return [residual]

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

    def prepare(self, run: Krylov) -> None:
        outer = run.outer
        assert outer is not None
        if outer.norm_of_A is None:
            outer.norm_of_A = outer.measured_norm(run)
            outer.unit = outer.measured_unit(run)

    def begin(self, run: Krylov, residual: Any) -> list[Any]:
        assert run.outer is not None
        return [residual * run.outer.unit]

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


STEPS = (16, 8, 4, 2, 1)


def _next_scale(squares: Any, scale: Any, size: float) -> Any:
    """The scale times the power of two, from 2^-16 to 2^15, that brings |r| nearest below `size`; exact, with the same bits everywhere."""
    left = size / sqrt(squares) / scale * 2.0 ** STEPS[0]
    found = scale * 2.0 ** -STEPS[0]
    for step in STEPS:
        factor = where(left >= 2.0**step, 2.0**step, 1.0)
        left, found = left / factor, found * factor
    return where(squares > 0, found, scale)


def _quotient(a: Any, b: Any) -> Any:
    return a / b


def _inverse(a: Any) -> Any:
    return 1.0 / a


RULES: dict[str, Rule] = {"residual": OfResidual(), "estimate": OfEstimate()}


class Outer:
    """The many bits of a solve: b, x and r = b - A x, beside a recursion that has few. Its r is that one times `scale`, so that its numbers are of order one,
    which 16 bits hold best."""

    def __init__(self, run: Krylov, A: Any, b: Any, x0: Any, inner: Inner):
        self.inner, self.rule, self.delta = inner, RULES[inner.update], float(inner.delta)
        self.apply = into_of("the operator", A, run.vectors)
        self.b, self.owns_b = b, False
        self.x = run.vectors.like(b) if x0 is None else started(x0, b)
        self.r = run.vectors.copy(b)
        self.scale: np.ndarray | None = None  # once the recursion has begun, as the host knows it
        self.factor: Any = None  # the same, and its inverse, where the vectors are
        self.inverse: Any = None
        self.size: Any = None  # of b
        self.count = run.vectors.count(b)
        self.norm_of_A: float | None = None
        self.tolerance: Any = None  # where the vectors are
        self.numbers: list[Any] = []
        self.after, self.limit = list[Any](), None  # the numbers and the bound of the rule, within a graph
        self.unit = 0.0
        low = vectors_of("inner: like", inner.like)
        try:
            run.r = low.like(inner.like)
            run.x = low.stored(run.r)  # in the numbers of its arithmetic
            run.vectors.update([(run.r, 0, [(0.0, b)])])  # b itself may be too large for it
            run.vectors.update([(run.x, 0, [(0.0, run.r)])])  # fits both ways
        except (LayoutError, StorageError, TypeError) as error:
            raise type(error)(f"{run.name}: inner: like is a vector of the form of b: {error}") from None

    def take(self, run: Krylov, b: Any, x0: Any) -> None:
        """Another right-hand side, and where to begin."""
        self.scale = None
        if self.owns_b:
            run.vectors.update([(self.b, 0, [(1, b)])])
        else:
            self.b = b
        run.vectors.update([(self.x, 0, [(0.0, b) if x0 is None else (1, x0)]), (self.r, 0, [(1, b)])])
        run.vectors.update([(run.x, 0, [(0.0, b)])])

    def begin(self, run: Krylov, squares: np.ndarray) -> None:
        """The scale of a recursion that begins with these |r|^2, which are known to the host."""
        self.rule.prepare(run)
        self.set_scale(run, to_order_one(squares, self.count))

    def set_scale(self, run: Krylov, scale: np.ndarray) -> None:
        """Gives r of the recursion this scale, from the host."""
        self.scale = scale
        factor, inverse = run.kept(scale), run.kept(1 / scale)
        if run.stay and self.factor is not None:
            assign([self.factor, self.inverse], [factor, inverse])
        else:
            self.factor, self.inverse = factor, inverse

    def before_recording(self, run: Krylov) -> None:
        """A graph has the vectors that it was recorded with: one that other solves will repeat gets a b of its own."""
        if run.kept_for_more and not self.owns_b:
            self.b, self.owns_b = run.vectors.copy(self.b), True

    def residual(self, run: Krylov) -> Any:
        """Adds what the recursion found to x, and computes r; returns |b - A x|^2, where the vectors are."""
        if self.scale is not None:
            run.update((self.x, 1, [(self.inverse, run.x)]))
            run.update((run.x, 0, [(0.0, self.b)]))
        self.apply(self.x, self.r)
        return run.update((self.r, -1, [(1, self.b)]), norm=True)

    def rescale(self, run: Krylov, squares: Any) -> Any:
        """The next scale, from this |r|^2; returns it over the last one. Numbers are where the vectors are."""
        factor = computed(_next_scale, squares, self.factor, math.sqrt(self.count))
        ratio, inverse = computed(_quotient, factor, self.factor), computed(_inverse, factor)
        settle(factor, ratio, inverse)
        if run.stay:
            assign([self.factor, self.inverse], [factor, inverse])
        else:
            self.factor, self.inverse = factor, inverse
        return ratio

    def solution(self, run: Krylov) -> Any:
        """x with what the recursion has found since the last update, a new vector."""
        x = run.vectors.copy(self.x)
        if self.scale is not None:
            run.vectors.update([(x, 1, [(number(1 / self.scale), run.x)])])
        return x

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
