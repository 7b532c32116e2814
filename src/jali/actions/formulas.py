"""Formulas of actions: what a site adds to an action, as a function of a symbolic site; `action` is the decorator."""

from __future__ import annotations

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

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
        self.summed = _summed(self)

    def __repr__(self) -> str:
        return f"<formula of an action {self.function.__name__}{inspect.signature(self.function)}>"

    def __call__(self, *given: Any, **named: Any) -> Any:
        """The action with these couplings, by place or by name. Raises ParameterError for others than the formula has, and numbers that are not finite."""
        from jali.actions.protocol import SiteAction

        found = {**self.defaults, **dict(zip(self.couplings, given, strict=False)), **named}
        twice = [name for name in self.couplings[: len(given)] if name in named]
        if len(given) > len(self.couplings) or twice or found.keys() != set(self.couplings):
            raise ParameterError(
                f"{self.function.__name__} is an action of {_listed(self.fields)} with "
                f"{f'the couplings {_listed(self.couplings)}' if self.couplings else 'no couplings'}, each given once"
            )
        return SiteAction(self, tuple(_coupling(self, name, found[name]) for name in self.couplings))


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


@single_instance
def sum_of_formulas(formulas: tuple[ActionFormula, ...]) -> ActionFormula:
    """The formula that is the sum of some, each times a factor: its fields are all of theirs, its couplings the factors and theirs, numbered."""
    fields = tuple(dict.fromkeys(name for one in formulas for name in one.fields))
    couplings = [
        name
        for k, one in enumerate(formulas)
        for name in (f"factor_{k}", *(f"{c}_of_{k}" for c in one.couplings))
    ]

    def summed(X: Any, *arguments: Any, **numbered: Any) -> Any:
        given = dict(zip(fields, arguments, strict=True))
        found = []
        for k, one in enumerate(formulas):
            own = {name: numbered[f"{name}_of_{k}"] for name in one.couplings}
            value = one.function(X, *[given[name] for name in one.fields], **own)
            found.append(numbered[f"factor_{k}"] * value)
        return sum(found[1:], found[0])

    front = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("X", *fields)]
    behind = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in couplings]
    summed.__name__ = summed.__qualname__ = "_and_".join(one.function.__name__ for one in formulas)
    summed.__signature__ = inspect.Signature([*front, *behind])  # type: ignore[attr-defined]
    return ActionFormula(summed)


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
    count = len(formula.fields)

    def body(X: Any, *arguments: Any) -> None:
        *given, total = arguments
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


def _coupling(formula: ActionFormula, name: str, value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, numbers.Number):
        return value
    if not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise ParameterError(
            f"{formula.function.__name__}: {name} is a finite number, not {value_shown(value)}"
        )
    return float(value)


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
