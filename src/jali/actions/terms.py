"""What an action is to a single variable: functions for site functions that update one of its fields, and which variables share no term of it.

All of it is read from the action's formula. Variables that the change of the action by one of them reads share a term with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jali.actions.colours import colours_apart
from jali.actions.formulas import TOTAL, ActionFormula, site_action, site_function_of
from jali.actions.protocol import Action
from jali.codegen.ir import SiteProgram
from jali.derivatives.at_site import change_at, force_at, gradient_at, offsets_read
from jali.errors import ParameterError
from jali.files import value_shown
from jali.lattice import Domain, Field, Lattice
from jali.lattice.arguments import fields_of, key_of
from jali.lattice.sites import SiteFunction
from jali.single_instance import single_instance

MOST_KNOWN = 64
"""Formulas and fields of which is remembered what was read from them."""


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

    @classmethod
    def of_updated(
        cls, action: Action, updated: Any, fields: Mapping[str, Any] | None, what: str = "field"
    ) -> Any:
        """The terms of an action of a field that is updated, which errors call `what`, and of others by their names. Raises ParameterError as `of`, and for
        other fields than the action depends on."""
        if not isinstance(fields, Mapping | None):
            raise ParameterError(
                f'fields are the other fields of the action by their names, fields={{"chi": chi}}, not {value_shown(fields)}'
            )
        rest = dict(fields or {})
        free = [name for name in action.fields if name not in rest]
        if len(free) != 1 or rest.keys() - set(action.fields):
            given = ", ".join(rest) or "none"
            raise ParameterError(
                f"{action!r} depends on {', '.join(action.fields)}: the fields besides the {what} that {'are' if what.endswith('s') else 'is'} updated are given by name, "
                f"fields={{...}}; given: {given}"
            )
        return cls.of(action, free[0], {**rest, free[0]: updated})

    def parts(self, updated: Any) -> Sequence[tuple[Any, Domain]]:
        """None and sets of sites in turn: values of the field on one set share no term of the action. Raises LayoutError for a lattice that is so small that a term has
        a value twice."""
        return self.remembered(updated.lattice, lambda: list(self.parts_by_change([(None, updated)])))

    def parts_by_change(
        self, members: Iterable[tuple[Any, Field]], variable: str = "variable"
    ) -> Iterable[tuple[Any, Domain]]:
        """As `parts`, of fields of a list, by what the change of the action by one of their values reads; `variable` is what errors call one."""
        probe = _change_probe(self.formula, self.name)
        for mu, one in members:
            for colour in self.colours(self.program(probe, one.lattice, mu), one, variable):
                yield mu, colour

    def program(self, probe: SiteFunction, lattice: Lattice, mu: Any) -> SiteProgram:
        """The trace of a site function (mu, what the formula takes, sums), to be read."""
        return probe.program_of(lattice, mu, *self.arguments)

    def colours(self, program: SiteProgram, one: Field, variable: str) -> Iterable[Domain]:
        """Sets of sites of which a program reads none from another one of the same set, in this field."""
        serials = list(dict.fromkeys(field.serial for field in fields_of(self.arguments)))
        read = offsets_read(program, serials.index(one.serial))
        return colours_apart(one.lattice.extents, frozenset(read), variable)

    def remembered(self, lattice: Lattice, read: Callable[[], Any]) -> Any:
        """What `read` gives, remembered for the latest formulas and fields: numbers of a formula are run-time values, on which nothing depends that is read from it."""
        key = (type(self), self.key, lattice.serial)
        if key not in _known:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            # with what the key knows by its identity
            couplings = self.arguments[len(self.formula.fields) :]
            _known[key] = read(), self.formula, couplings
        return _known[key][0]

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


_known: dict[Any, tuple[Any, ...]] = {}


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


@single_instance
def _change_probe(formula: ActionFormula, name: str) -> SiteFunction:
    """The site function (mu, what the formula takes, a sum) that is traced to be read, and never compiled: of the change by a value."""

    def body(X: Any, mu: Any, *arguments: Any) -> None:
        *given, total = arguments
        symbols = dict(zip(names_of(formula), given, strict=True))
        one = symbols[name] if mu is None else symbols[name][mu]
        total += change_at(formula.summed, symbols, TOTAL, one, 2.0 * one[X])

    return site_function_of(
        f"change of {formula.function.__name__}", body, ["mu", *names_of(formula), "of changes"]
    )


def names_of(formula: ActionFormula) -> list[str]:
    """The names of what a formula takes, in order."""
    return [*formula.fields, *formula.couplings]
