"""Directions and offsets on a lattice: `mu + nu`, `-mu`, `2 * mu`.

A `Direction` is a named axis that indexes lists of fields (`U[mu]`) and shifts sites (`X + mu`); an `Offset` is any
integer combination of directions. Neither knows a lattice's extents.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Offset:
    """A vector of whole numbers, one for each direction named in it."""

    __slots__ = ("steps",)

    def __init__(self, steps: dict[int, int]):
        self.steps = {axis: n for axis, n in sorted(steps.items()) if n}

    def __add__(self, other: Any) -> Offset:
        if not isinstance(other, Offset):
            return NotImplemented
        steps = dict(self.steps)
        for axis, n in other.steps.items():
            steps[axis] = steps.get(axis, 0) + n
        return Offset(steps)

    def __neg__(self) -> Offset:
        return Offset({axis: -n for axis, n in self.steps.items()})

    def __sub__(self, other: Any) -> Offset:
        if not isinstance(other, Offset):
            return NotImplemented
        return self + (-other)

    def __mul__(self, factor: Any) -> Offset:
        if not isinstance(factor, int) or isinstance(factor, bool | Direction):
            return NotImplemented
        return Offset({axis: factor * n for axis, n in self.steps.items()})

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
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
        """The offset as `ndim` numbers. Raises IndexError if it names a direction the lattice does not have."""
        if self.steps and max(self.steps) >= ndim:
            raise IndexError(f"direction {max(self.steps)} does not exist on a lattice of {ndim} dimensions")
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
