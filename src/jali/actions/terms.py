"""What an action is to a single variable: functions for site functions that update one of its fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jali.actions.formulas import TOTAL, ActionFormula, site_action
from jali.actions.protocol import Action
from jali.derivatives.at_site import change_at, force_at, gradient_at
from jali.errors import ParameterError
from jali.lattice.arguments import key_of
from jali.single_instance import single_instance


@dataclass(frozen=True)
class Terms:
    """An action as updates of one of its fields use it: its formula, the name of the field, and all that the formula takes, in order.

    Each of the functions below takes the site, the field, of a list of fields which one (else None), and `given`, and is for site functions.
    """

    formula: ActionFormula
    name: str
    arguments: tuple[Any, ...]
    key: Any

    @classmethod
    def of(cls, action: Action, name: str, fields: Mapping[str, Any]) -> Any:
        """The terms of an action of these fields. Raises ParameterError for an action that needs several calls."""
        one = site_action(action)
        missing = [field for field in one.fields if field not in fields]
        if missing:
            raise ParameterError(
                f"{one!r} depends on {', '.join(one.fields)}, and there is no {missing[0]} among {', '.join(fields) or 'no fields'}"
            )
        arguments = tuple([*(fields[field] for field in one.fields), *one.couplings])
        return cls(one.formula, name, arguments, (id(one.formula), name, *map(key_of, arguments)))

    @property
    def given(self) -> tuple[Any, ...]:
        """What the functions take behind: the other fields, the couplings, and, for traces to see, the functions of users."""
        place = self.formula.fields.index(self.name)
        return (*self.arguments[:place], *self.arguments[place + 1 :], self.formula.watched)

    @property
    def force(self) -> Callable[..., Any]:
        """The function (X, field, mu, *given) that gives the gradient of the action, as `Action.force`."""
        return _at(self.formula, self.name, force_at)

    @property
    def staple(self) -> Callable[..., Any]:
        """The function (X, field, mu, *given) that gives minus the gradient with respect to the numbers: the staple of a link, where the action is linear in it."""
        return _staple(self.formula, self.name)

    @property
    def change(self) -> Callable[..., Any]:
        """The function (X, field, mu, new, *given) that gives what the action changes by where the field becomes `new`."""
        return _change(self.formula, self.name)


@single_instance
def _at(formula: ActionFormula, name: str, at: Callable[..., Any]) -> Callable[..., Any]:
    def function(X: Any, field: Any, mu: Any, *given: Any) -> Any:
        one = field if mu is None else field[mu]
        return at(formula.summed, symbols_of(formula, name, field, given), TOTAL, one)

    return function


@single_instance
def _staple(formula: ActionFormula, name: str) -> Callable[..., Any]:
    gradient = _at(formula, name, gradient_at)

    def staple(X: Any, field: Any, mu: Any, *given: Any) -> Any:
        return -1.0 * gradient(X, field, mu, *given)

    return staple


@single_instance
def _change(formula: ActionFormula, name: str) -> Callable[..., Any]:
    def change(X: Any, field: Any, mu: Any, new: Any, *given: Any) -> Any:
        one = field if mu is None else field[mu]
        return change_at(formula.summed, symbols_of(formula, name, field, given), TOTAL, one, new)

    return change


def symbols_of(formula: ActionFormula, name: str, field: Any, given: Sequence[Any]) -> dict[str, Any]:
    """The arguments of a formula by their names."""
    names = [one for one in (*formula.fields, *formula.couplings) if one != name]
    return {**dict(zip(names, given[:-1], strict=True)), name: field}
