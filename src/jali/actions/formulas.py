"""Formulas of actions: what a site adds to an action, as a function of a symbolic site; `action` is the decorator."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import keyword
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import jali
from jali import graph_recorder
from jali.actions.protocol import Action, gradient_like, is_list, lattice_of, targets_of
from jali.codegen.lines import trace_error
from jali.errors import ParameterError
from jali.files import value_shown
from jali.lattice.arguments import check_function
from jali.lattice.sites import SiteFunction
from jali.single_instance import single_instance

TOTAL = "total of the action"


class ActionFormula:
    """What `jali.action` makes of a function: called with couplings, an action.

    `fields` and `couplings` are the names of its parameters behind the site: fields go by place, couplings are those behind a `*`.
    """

    def __init__(self, function: Callable[..., Any]):
        check_function(function)
        functools.update_wrapper(self, function)
        self.function = function
        known = list(inspect.signature(function).parameters.values())[1:]
        self.fields = tuple(p.name for p in known if p.kind is p.POSITIONAL_OR_KEYWORD)
        self.couplings = tuple(p.name for p in known if p.kind is p.KEYWORD_ONLY)
        self.defaults = {p.name: p.default for p in known if p.default is not p.empty}
        odd = [p for p in known if p.name not in self.fields + self.couplings]
        if odd or not self.fields or any(name in self.defaults for name in self.fields):
            raise trace_error(
                f"@jali.action stands above a function of a site, fields and couplings, def S(X, U, *, beta), and {function.__name__} is "
                f"{inspect.signature(function)}"
            )
        self.watched: tuple[Any, ...] = getattr(function, "watched", (function,))
        """The functions of users that it is made of, for what they see besides their arguments (guards of traces)."""
        self.summed = _summed(self)

    def __repr__(self) -> str:
        return f"<formula of an action {self.function.__name__}{inspect.signature(self.function)}>"

    def __call__(self, *given: Any, **named: Any) -> SiteAction:
        """The action with these couplings, by place or by name. Raises ParameterError for others than the formula has, and numbers that are not finite."""
        found = {**self.defaults, **dict(zip(self.couplings, given, strict=False)), **named}
        twice = [name for name in self.couplings[: len(given)] if name in named]
        if len(given) > len(self.couplings) or twice or found.keys() != set(self.couplings):
            raise ParameterError(
                f"{self.function.__name__} is an action of {_listed(self.fields)} with "
                f"{f'the couplings {_listed(self.couplings)}' if self.couplings else 'no couplings'}, each given once"
            )
        return SiteAction(self, tuple(_coupling(self, name, found[name]) for name in self.couplings))


class SiteAction(Action):
    """The sum over all sites of a formula (`jali.action`) with couplings, which are attributes: `S.beta`.

    Equal formulas with equal couplings are equal actions; kernels belong to the formula, so that other couplings compile nothing.
    """

    def __init__(self, formula: ActionFormula, couplings: tuple[Any, ...]):
        self.formula = formula
        self.couplings = couplings
        self.fields = formula.fields

    def __getattr__(self, name: str) -> Any:
        own = self.__dict__
        if "formula" in own and name in own["formula"].couplings:
            return own["couplings"][own["formula"].couplings.index(name)]
        raise AttributeError(f"{type(self).__name__} has no attribute {name}")

    def __repr__(self) -> str:
        pairs = zip(self.formula.couplings, self.couplings, strict=True)
        return f"{self.formula.function.__name__}({', '.join(f'{name}={value!r}' for name, value in pairs)})"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, SiteAction)
            and self.formula is other.formula
            and self.couplings == other.couplings
        )

    def __hash__(self) -> int:
        return hash((id(self.formula), self.couplings))

    def with_couplings(self, **changed: Any) -> SiteAction:
        """The same formula with other couplings."""
        return self.formula(**{**dict(zip(self.formula.couplings, self.couplings, strict=True)), **changed})

    def renamed(self, **names: str) -> SiteAction:
        """This action of fields with other names, for simulations of several fields of one kind: `phi4_action(0.1, 1.0).renamed(phi="chi")`.

        Raises ParameterError for a field that it does not have, and for names that no field can have beside the others and the couplings.
        """
        for old in names:
            self._name_of(old)
        return SiteAction(
            renamed_formula(self.formula, tuple(names.get(old, old) for old in self.fields)), self.couplings
        )

    def value(self, *fields: Any) -> Any:
        """S of the whole lattice."""
        lattice = lattice_of(self._given(fields).values())
        wait = graph_recorder.current() is None  # in a graph the number stays on the device
        return lattice.sum(self.formula.summed, *fields, *self.couplings, wait=wait)

    def force(self, *fields: Any, of: str | None = None, out: Any = None) -> Any:
        """The gradient of S, as `Action.force`: derived from the formula."""
        given = self._given(fields)
        name = self._name_of(of)
        if out is None:
            out = gradient_like(given[name])
        gradient = jali.gradient(self.formula.summed, name, total=TOTAL)
        targets = targets_of(out, given[name])
        gradient(targets if is_list(given[name]) else targets[0], *fields, *self.couplings)
        return out


def action(function: Callable[..., Any]) -> ActionFormula:
    """Decorator: makes a formula of an action of a function that gives what a site adds to it.

    ::

        @jali.action
        def phi4(X, phi, *, kappa, lam):
            near = sum(phi[X + mu] for mu in X.directions())
            return -2 * kappa * phi[X] * near + phi[X]**2 + lam * (phi[X]**2 - 1)**2

        S = phi4(kappa=0.18, lam=1.0)
        S.value(phi), S.force(phi)

    The parameters behind the site are fields, and, behind a `*`, couplings: real numbers, which are run-time values, or objects that are fixed while tracing.
    Raises TraceError for functions that are not of this form.
    """
    return ActionFormula(function)


def site_action(action: Action) -> SiteAction:
    """An action as one formula. Raises ParameterError for one that needs several calls."""
    if isinstance(action, SiteAction):
        return action
    parts = action.parts()
    odd = [one for _, one in parts if not isinstance(one, SiteAction)]
    if odd:
        raise ParameterError(
            f"{odd[0]!r} is no sum of a formula over sites (it needs several calls, such as smearing), so no variable can be updated alone: "
            "use jali.hmc, which needs its force only"
        )
    formulas = tuple(one.formula for _, one in parts if isinstance(one, SiteAction))
    couplings = ((c, *one.couplings) for c, one in parts if isinstance(one, SiteAction))
    return SiteAction(sum_of_formulas(formulas), tuple(itertools.chain(*couplings)))


@single_instance
def sum_of_formulas(formulas: tuple[ActionFormula, ...]) -> ActionFormula:
    """The formula that is the sum of some, each times a factor: its fields are all of theirs, its couplings the factors and theirs, numbered."""
    fields = tuple(dict.fromkeys(name for one in formulas for name in one.fields))
    mark = "_"
    while any(name.endswith(mark) for name in fields):  # couplings end otherwise than fields
        mark += "_"
    names = [
        [f"factor{k}{mark}", *(f"{name}_{k}{mark}" for name in one.couplings)]
        for k, one in enumerate(formulas)
    ]

    def summed(X: Any, *arguments: Any, **numbered: Any) -> Any:
        given = dict(zip(fields, arguments, strict=True))
        found = []
        for one, (factor, *own) in zip(formulas, names, strict=True):
            couplings = {name: numbered[full] for name, full in zip(one.couplings, own, strict=True)}
            value = one.function(X, *[given[name] for name in one.fields], **couplings)
            found.append(numbered[factor] * value)
        return sum(found[1:], found[0])

    front = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("X", *fields)]
    behind = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for some in names for name in some]
    summed.__name__ = summed.__qualname__ = "_and_".join(one.function.__name__ for one in formulas)
    summed.__signature__ = inspect.Signature([*front, *behind])  # type: ignore[attr-defined]
    summed.watched = tuple(f for one in formulas for f in one.watched)  # type: ignore[attr-defined]
    return ActionFormula(summed)


@single_instance
def renamed_formula(formula: ActionFormula, fields: tuple[str, ...]) -> ActionFormula:
    """The formula with other names of its fields. Raises ParameterError for names that it cannot have."""
    if fields == formula.fields:
        return formula
    site, *rest = inspect.signature(formula.function).parameters.values()
    for name in fields:
        taken = name == site.name or name in formula.couplings or fields.count(name) > 1
        if taken or not (isinstance(name, str) and name.isidentifier()) or keyword.iskeyword(name):
            raise ParameterError(
                f"{formula.function.__name__} cannot have a field called {value_shown(name)}: fields have names of Python, other ones than "
                f"{_listed([site.name, *formula.couplings])}, and each its own"
            )

    def renamed(X: Any, *arguments: Any, **couplings: Any) -> Any:
        return formula.function(X, *arguments, **couplings)

    own = dict(zip(formula.fields, fields, strict=True))
    renamed.__name__ = renamed.__qualname__ = formula.function.__name__
    renamed.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [site, *(one.replace(name=own.get(one.name, one.name)) for one in rest)]
    )
    renamed.watched = formula.watched  # type: ignore[attr-defined]
    return ActionFormula(renamed)


def site_function_of(name: str, body: Callable[..., None], parameters: Sequence[str]) -> SiteFunction:
    """A site function of a body that takes the site and arguments of these names by their place."""
    body.__name__ = body.__qualname__ = name
    body.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(f"_{k}", inspect.Parameter.POSITIONAL_ONLY) for k in range(len(parameters) + 1)]
    )
    found = SiteFunction(body)
    found.parameters = list(parameters)
    found._only_by_place = set()
    return found


def _summed(formula: ActionFormula) -> SiteFunction:
    """The site function (X, fields, couplings, total) whose sum the action is."""
    count, watched = len(formula.fields), formula.watched

    def body(X: Any, *arguments: Any) -> None:
        *given, total = arguments
        lets_see(watched)
        value = formula.function(
            X, *given[:count], **dict(zip(formula.couplings, given[count:], strict=True))
        )
        if value is None:
            raise trace_error(
                f"{formula.function.__name__} returns nothing: an action returns what a site adds to it"
            )
        kind = getattr(getattr(value, "node", None), "type", None)
        if isinstance(value, complex) or (kind is not None and (kind.kind == "complex" or kind.shape)):
            raise trace_error(
                f"{formula.function.__name__} returns {'a complex number' if kind is None else f'a {kind}'}, and an action is a real one: take its .real or trace"
            )
        total += value

    return site_function_of(formula.function.__name__, body, [*formula.fields, *formula.couplings, TOTAL])


def lets_see(watched: Any) -> None:
    """Nothing: a closure that mentions functions of users lets traces find them, and what they see."""


def finite_number(name: str, value: Any) -> float:
    """A coupling. Raises ParameterError for what is no finite number."""
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):  # an integer beyond floats
            if math.isfinite(value):
                return float(value)
    raise ParameterError(f"{name} is a finite number, not {value_shown(value)}")


def _coupling(formula: ActionFormula, name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Number):
        return value
    return finite_number(f"{formula.function.__name__}: {name}", value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
