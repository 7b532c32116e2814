"""Directions and offsets on a lattice: `mu + nu`, `-mu`, `2 * mu`.

A `Direction` is a named axis that indexes lists of fields (`U[mu]`) and shifts sites (`X + mu`); an `Offset` is any
integer combination of directions. Neither depends on a lattice's extents.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from typing import Any

import numpy as np

from jali.amounts import counted
from jali.codegen.lines import trace_error
from jali.files import value_shown

LARGEST_OFFSET = 1 << 29  # sites in each direction: sums of two and a coordinate fit 32 bits


class Offset:
    """A vector of whole numbers, one for each direction named in it. `given` where numbers that are arguments went into it."""

    __slots__ = ("given", "steps")

    def __init__(self, steps: dict[int, int], given: bool = False):
        self.given = given
        self.steps = {axis: n for axis, n in sorted(steps.items()) if n}

    def _no(self, operation: str, other: Any) -> Any:
        """Refuses numbers; other classes define their own use of an offset."""
        if isinstance(other, numbers.Number):
            raise trace_error(
                f"{self!r} {operation} {value_shown(other)}: directions are added to one another and multiplied by whole numbers, mu + 2 * nu; "
                "the number of a direction is int(mu)"
            )
        return NotImplemented

    def __add__(self, other: Any) -> Offset:
        if not isinstance(other, Offset):
            return self._no("+", other)
        steps = dict(self.steps)
        for axis, n in other.steps.items():
            steps[axis] = steps.get(axis, 0) + n
        return Offset(steps, self.given or other.given)

    def __neg__(self) -> Offset:
        return Offset({axis: -n for axis, n in self.steps.items()}, self.given)

    def __sub__(self, other: Any) -> Offset:
        if not isinstance(other, Offset):
            return self._no("-", other)
        return self + (-other)

    def __mul__(self, factor: Any) -> Offset:
        if not isinstance(factor, int | np.integer) or isinstance(factor, bool):
            return self._no("*", factor)
        factor = int(factor)
        return Offset({axis: factor * n for axis, n in self.steps.items()}, self.given)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Any:
        return self._no("/", other)

    def __lt__(self, other: Any) -> Any:
        return self._unordered("<", other)

    def __le__(self, other: Any) -> Any:
        return self._unordered("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._unordered(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._unordered(">=", other)

    def _unordered(self, operation: str, other: Any) -> Any:
        if isinstance(other, Offset):
            raise trace_error(
                f"{self!r} {operation} {value_shown(other)}: directions have no order; compare int(mu), or take X.planes()"
            )
        return self._no(operation, other)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, numbers.Number):
            self._no("==", other)
        return isinstance(other, Offset) and self.steps == other.steps

    def __hash__(self) -> int:
        return hash(tuple(self.steps.items()))

    def __repr__(self) -> str:
        terms = [
            f"{'+' if n > 0 else '-'} {abs(n) if abs(n) != 1 else ''}e{axis}"
            for axis, n in self.steps.items()
        ]
        return " ".join(terms) or "0"

    def vector(self, ndim: int) -> tuple[int, ...]:
        """The offset as `ndim` numbers. Raises IndexError for a direction the lattice does not have
        and for more than `LARGEST_OFFSET` sites."""
        if self.steps and max(self.steps) >= ndim:
            raise IndexError(f"direction {max(self.steps)} does not exist on a lattice of {ndim} dimensions")
        for axis, n in self.steps.items():
            if abs(n) > LARGEST_OFFSET:
                raise IndexError(
                    f"an offset of {counted(n, 'site')} in direction {axis}; offsets go up to {LARGEST_OFFSET} = 2**29, "
                    "and wrap around the lattice anyway"
                )
        return tuple(self.steps.get(axis, 0) for axis in range(ndim))


class Direction(Offset):
    """One axis of a lattice. `int(mu)` is its number; `U[mu]` is the field of that direction."""

    __slots__ = ("axis",)

    def __init__(self, axis: int):
        super().__init__({axis: 1})
        self.axis = axis

    def __index__(self) -> int:
        return self.axis

    def __int__(self) -> int:
        return self.axis

    def __repr__(self) -> str:
        return f"e{self.axis}"


def directions(ndim: int) -> tuple[Direction, ...]:
    """The `ndim` directions of a lattice."""
    return tuple(Direction(axis) for axis in range(ndim))


def planes(ndim: int) -> Iterable[tuple[Direction, Direction]]:
    """All pairs of directions (mu, nu) with mu < nu."""
    axes = directions(ndim)
    return [(mu, nu) for mu in axes for nu in axes if mu.axis < nu.axis]
