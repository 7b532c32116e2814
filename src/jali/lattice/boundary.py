"""Boundary conditions of a field: the factor that a read across the edge of the lattice is multiplied by."""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np

from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.directions import Direction
from jali.codegen.types import Element
from jali.errors import LayoutError
from jali.files import value_shown


class Boundary:
    """One condition per direction, applied whenever a read crosses the global boundary.

    `"periodic"` (factor 1), `"antiperiodic"` (-1), `"open"` (values outside are zero), or a complex number of modulus
    one: the factor for a crossing in the positive direction, its conjugate for one in the negative.
    """

    def __init__(self, ndim: int, conditions: Any, element: Element):
        if not isinstance(ndim, int) or isinstance(ndim, bool):
            raise LayoutError(
                f"boundary conditions are for a number of dimensions, not for {value_shown(ndim)}"
            )
        self.conditions: list[Any] = ["periodic"] * ndim
        if conditions is None:
            items: Any = ()
        elif isinstance(conditions, dict):
            items = conditions.items()
        elif isinstance(conditions, str | complex | float | int):
            items = [(axis, conditions) for axis in range(ndim)]
        elif not isinstance(conditions, list | tuple):
            raise LayoutError(
                f"boundary conditions are one for all directions, a list of one each, or a dictionary, not {value_shown(conditions)}"
            )
        else:
            items = list(enumerate(conditions))
            if len(items) != ndim:
                raise LayoutError(
                    f"{len(items)} boundary conditions for {ndim} directions; give one each, or a dictionary"
                )
        for direction, condition in items:
            axis = direction.axis if isinstance(direction, Direction) else direction
            if not isinstance(axis, int) or not 0 <= axis < ndim:
                raise LayoutError(
                    f"boundary condition for direction {direction!r}, which a lattice of {ndim} dimensions does not have"
                )
            self.conditions[axis] = _condition(condition, axis, element)

    def __repr__(self) -> str:
        return f"Boundary({', '.join(map(str, self.conditions))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Boundary) and self.conditions == other.conditions

    def __hash__(self) -> int:
        return hash(tuple(self.conditions))

    @property
    def words(self) -> list[str]:
        """The conditions as texts: `"periodic"`, or a phase as Python prints it."""
        return [str(c) for c in self.conditions]

    @property
    def open(self) -> tuple[int, ...]:
        """The directions in which it is open."""
        return tuple([axis for axis, c in enumerate(self.conditions) if c == "open"])

    @property
    def crossing(self) -> tuple[complex | None, ...]:
        """The factors of crossings in the positive direction; None where it is open."""
        named = {"periodic": 1, "antiperiodic": -1, "open": None}
        return tuple([named[c] if isinstance(c, str) else c for c in self.conditions])

    @classmethod
    def from_words(cls, words: list[str], element: Element) -> Boundary:
        """The conditions that `words` are of, phases to the last bit. Raises LayoutError."""
        try:
            conditions = [word if word.isalpha() else complex(word) for word in words]
        except (ValueError, AttributeError):
            raise LayoutError(f"{words!r} are not boundary conditions") from None
        found = cls(len(words), conditions, element)
        # a phase that has been brought to modulus one once stays as it is
        found.conditions = [
            given if isinstance(kept, complex) else kept
            for given, kept in zip(conditions, found.conditions, strict=True)
        ]
        return found

    def check(self, element: Element) -> None:
        """Raises LayoutError where fields of this element cannot have these conditions."""
        for axis, condition in enumerate(self.conditions):
            _condition(condition, axis, element)

    def matters(self, offset: tuple[int, ...]) -> bool:
        """Whether a read at this offset can meet a factor other than one."""
        return any(step and c != "periodic" for step, c in zip(offset, self.conditions, strict=True))

    def factors(self, element: Element, windings: np.ndarray, precision: str) -> np.ndarray:
        """Factors per class and lane, from how often each lane crosses the boundary (`[class][ndim][lane]`).

        Complex elements: `[class][re, im][lane]`; others, algebras and Hermitian matrices: `[class][lane]`.
        """
        total = np.ones((windings.shape[0], windings.shape[2]), complex)
        for axis, condition in enumerate(self.conditions):
            crossings = windings[:, axis, :]
            if condition == "open":
                total = np.where(crossings != 0, 0.0, total)
            elif condition == "antiperiodic":
                total = np.where(crossings % 2 != 0, -total, total)
            elif condition != "periodic":
                for crossing in np.unique(crossings):
                    if crossing:
                        total = np.where(crossings == crossing, total * condition ** int(crossing), total)
        real = ARITHMETICS[precision].dtype("real")
        if _is_real(element):
            return np.ascontiguousarray(total.real.astype(real))
        return np.ascontiguousarray(np.stack([total.real, total.imag], axis=1).astype(real))


def _is_real(element: Element) -> bool:
    """Whether its factors are real numbers."""
    return element.type.kind != "complex" or element.codec != "plain"


def _condition(condition: Any, axis: int, element: Element) -> Any:
    if isinstance(condition, str) and condition in ("periodic", "antiperiodic", "open"):
        return condition
    if isinstance(condition, str) or not isinstance(condition, int | float | complex):
        raise LayoutError(
            f"boundary condition {value_shown(condition)} in direction {axis} is unknown; use 'periodic', 'antiperiodic', 'open' or a phase"
        )
    phase = complex(condition)
    if not math.isclose(abs(phase), 1.0, rel_tol=0, abs_tol=1e-12):
        raise LayoutError(
            f"the boundary phase {phase} in direction {axis} has modulus {abs(phase)}, not 1; cmath.exp(1j * angle) has"
        )
    if phase == 1:
        return "periodic"
    if phase == -1:
        return "antiperiodic"
    if _is_real(element):
        raise LayoutError(
            f"a field of {element} cannot carry the complex phase {phase} across a boundary; -1 or 'open' it can"
        )
    return cmath.rect(1.0, cmath.phase(phase))
