"""Actions: real numbers made of fields, and their gradients, which are derived from them.

Updates, the flow, measurements and molecular dynamics know of an action what is here: which fields it depends on, its value, its force.
"""

from __future__ import annotations

import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jali
from jali.codegen.types import Algebra, Element
from jali.derivatives.functions import is_group
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice.base import no_field
from jali.lattice.field import Field


class Action(ABC):
    """A real number S made of fields, whose weight is exp(-S).

    A formula for one site makes one by `jali.action`. An action that needs several calls (smearing, then a sum) is a class with `value`, the number made of `Total`s,
    and `fields`, the names of what it depends on, in the order of the parameters of `value`::

        class OnSmearedLinks(jali.Action):
            fields = ("U",)

            def value(self, U):
                return wilson_action(6.0).value(stout_smear(U, 0.1))

    Its force is the gradient by a `jali.Tape`. Actions have sums with others and products with numbers, which are actions.
    """

    fields: tuple[str, ...] = ("U",)

    @abstractmethod
    def value(self, *fields: Any) -> Any:
        """S of the whole lattice."""

    def force(self, *fields: Any, of: str | None = None, out: Any = None) -> Any:
        """The gradient of S with respect to the field that `of` names, by default the first: a field like it, or a list of fields for a list or a
        gauge field.

        Conventions are those of `jali.gradient`: of links F_mu(x) in `Algebra(n)` with dS = -2 tr(omega F) = sum_a omega^a F^a for a change U ->
        (1 + omega) U of one link. With momenta of kinetic energy -tr P^2 the equations of motion are dU/dt = P U, dP/dt = -F. `out` takes the result. Raises
        ParameterError for a name that is no field of the action, LayoutError for fields that do not fit.
        """
        given = self._given(fields)
        name = self._name_of(of)
        with jali.Tape(given[name]) as tape:
            S: Any = self.value(*fields)
        (found,) = tape.gradient(S)
        if out is None:
            return found
        for target, one in zip(targets_of(out, given[name]), listed(found), strict=True):
            target.assign(one)
        return out

    def on(self, smearing: Callable[[Any], Any]) -> Action:
        """This action of smeared links: `action.on(lambda U: stout_smear(U, 0.1))`; `smearing` gives new links and is recorded on a tape."""
        return SmearedAction(self, smearing)

    def density(self, U: Any) -> float:
        """S per unit of volume of a gauge field: per site, on a periodic lattice."""
        if not hasattr(U, "volume"):
            raise LayoutError(f"density: U is a gauge field, which has a volume, not {no_field(U)}")
        return float(self.value(U) / U.volume)

    def parts(self) -> tuple[tuple[float, Action], ...]:
        """The actions that this one is a sum of, with the numbers in front."""
        return ((1.0, self),)

    def __add__(self, other: Any) -> Action:
        if isinstance(other, numbers.Real) and other == 0:  # where `sum` begins
            return self
        return SumOfActions((*self.parts(), *other.parts())) if isinstance(other, Action) else NotImplemented

    __radd__ = __add__

    def __mul__(self, factor: Any) -> Action:
        if not isinstance(factor, numbers.Real) or isinstance(factor, bool):
            return NotImplemented
        return SumOfActions(tuple((float(factor) * c, one) for c, one in self.parts()))

    __rmul__ = __mul__

    def __neg__(self) -> Action:
        return -1.0 * self

    def __sub__(self, other: Any) -> Action:
        return self + -1.0 * other if isinstance(other, Action) else NotImplemented

    def _given(self, fields: Sequence[Any]) -> dict[str, Any]:
        if len(fields) != len(self.fields):
            raise ParameterError(
                f"{self} depends on {', '.join(self.fields)}: {len(self.fields)} are needed, {len(fields)} were given"
            )
        return dict(zip(self.fields, fields, strict=True))

    def _name_of(self, of: str | None) -> str:
        if of is not None and of not in self.fields:
            raise ParameterError(f"{self} depends on {', '.join(self.fields)}, not on {value_shown(of)}")
        return of or self.fields[0]

    def __repr__(self) -> str:
        return f"<action {type(self).__name__} of {', '.join(self.fields)}>"


class SumOfActions(Action):
    """Numbers times actions, added."""

    def __init__(self, terms: tuple[tuple[float, Action], ...]):
        self._terms = terms
        self.fields = tuple(dict.fromkeys(name for _, one in terms for name in one.fields))

    def __repr__(self) -> str:
        return " + ".join(f"{one!r}" if c == 1.0 else f"{c:g} * {one!r}" for c, one in self._terms)

    def parts(self) -> tuple[tuple[float, Action], ...]:
        """The actions and the numbers in front of them."""
        return self._terms

    def value(self, *fields: Any) -> Any:
        """S of the whole lattice."""
        given = self._given(fields)
        found = [c * one.value(*[given[name] for name in one.fields]) for c, one in self._terms]
        return sum(found[1:], found[0])

    def force(self, *fields: Any, of: str | None = None, out: Any = None) -> Any:
        """The gradient of S, as `Action.force`: that of its parts, added."""
        given = self._given(fields)
        name = self._name_of(of)
        if out is None:
            out = gradient_like(given[name])
        targets = targets_of(out, given[name])
        first = True
        for c, one in self._terms:
            if name in one.fields:
                own = listed(one.force(*[given[n] for n in one.fields], of=name))
                for target, part in zip(targets, own, strict=True):
                    target[...] = c * part if first else target + c * part
                first = False
        return out


class SmearedAction(Action):
    """An action of smeared links."""

    def __init__(self, action: Action, smearing: Callable[[Any], Any]):
        if not callable(smearing):
            raise ParameterError(
                f"action.on takes a function that smears links, such as lambda U: stout_smear(U, 0.1), not {value_shown(smearing)}"
            )
        self.action, self.smearing = action, smearing
        self.fields = action.fields

    def __repr__(self) -> str:
        return f"{self.action!r} on smeared links"

    def value(self, *fields: Any) -> Any:
        """S of the whole lattice."""
        return self.action.value(self.smearing(fields[0]), *fields[1:])


def gradient_element(element: Element) -> Element:
    """What the gradient with respect to a field of this element is a field of."""
    return Algebra(element.type.shape[0]) if is_group(element) else element


def is_list(given: Any) -> bool:
    """Whether these are several fields: a list, or a gauge field."""
    return not isinstance(given, Field)


def listed(given: Any) -> list[Field]:
    """The fields that a field, a list or a gauge field is. Raises LayoutError for anything else."""
    members = [given] if isinstance(given, Field) else getattr(given, "fields", given)
    found = list(members) if isinstance(members, Iterable) else []
    if not found or not all(isinstance(one, Field) for one in found):
        raise LayoutError(
            f"an action is of fields, lists of fields and gauge fields, not of {no_field(given)}"
        )
    return found


def gradient_like(given: Any) -> Any:
    """New fields for the gradient with respect to fields."""
    found = [
        Field(
            one.lattice,
            gradient_element(one.element),
            precision=one.precision,
            boundary=one.boundary,
            over=one.over,
            batch=one.batch,
            name=f"gradient of {one.name}",
        )
        for one in listed(given)
    ]
    return found if is_list(given) else found[0]


def targets_of(out: Any, given: Any) -> list[Field]:
    """The fields that take the gradient with respect to those that are given. Raises LayoutError where `out` is not like these."""
    wanted = listed(given)
    members = [out] if isinstance(out, Field) else getattr(out, "fields", out)
    found = list(members) if isinstance(members, Iterable) else []
    fits = isinstance(out, Field) != is_list(given) and len(found) == len(wanted)
    if not fits or not all(isinstance(f, Field) for f in found):
        what = f"a list of {len(wanted)} fields, one per direction" if is_list(given) else "a field"
        raise LayoutError(f"out is {what}, not {no_field(out)}")
    return found


def lattice_of(fields: Iterable[Any]) -> Any:
    """The lattice of the first of these fields. Raises LayoutError for what is no field."""
    first, *_ = [one for given in fields for one in listed(given)]
    return first.lattice
