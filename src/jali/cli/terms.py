"""Terms of the action of a run with hybrid Monte Carlo: the tables [[hmc.terms]] of parameter files, checked and made.

A term is an action by name, on links as they are or smeared, with a level. Its keys, beside those of every term, are the parameters of the function that makes the action, and
those of its links the parameters of the smearing, so a new action or smearing is one entry of a table here. Knows no files and no lattice.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from jali.actions.protocol import Action
from jali.errors import ParameterError
from jali.files import shown, value_shown
from jali.gauge import ape_smear, hyp_smear, stout_smear
from jali.gauge.actions import (
    anisotropic_action,
    dbw2_action,
    iwasaki_action,
    rectangle_action,
    symanzik_action,
    tadpole_symanzik_action,
    wilson_action,
)
from jali.hmc import Monomial

GAUGE = "gauge"
"""The name of the action of [gauge], which has its couplings there."""

NAMED: dict[str, Callable[..., Action]] = {
    "wilson": wilson_action,
    "symanzik": symanzik_action,
    "iwasaki": iwasaki_action,
    "dbw2": dbw2_action,
    "rectangle": rectangle_action,
    "tadpole-symanzik": tadpole_symanzik_action,
    "anisotropic": anisotropic_action,
}
"""Functions that make an action of its couplings."""

SMEARINGS: dict[str, Callable[..., Any]] = {"stout": stout_smear, "ape": ape_smear, "hyp": hyp_smear}

PLAIN = "plain"
MOST_STEPS = 1000
"""Of a smearing."""


def checked_term(given: Any) -> dict[str, Any]:
    """A table as the program uses it, with its defaults. Raises ValueError for one that is no term, with what would be right."""
    if not isinstance(given, Mapping):
        raise ValueError('a term is a table, such as {action = "wilson", beta = 5.7, level = 0}')
    rest = dict(given)
    action = _choice("action", rest.pop("action", None), (GAUGE, *NAMED))
    level, name = rest.pop("level", 0), rest.pop("name", "")
    if type(level) is not int or not 0 <= level < 100:
        raise ValueError(f"level is a whole number from 0, not {value_shown(level)}")
    if not isinstance(name, str) or len(name) > 40 or not name.isprintable():
        raise ValueError(f"name is a short printable text, not {value_shown(name)}")
    links = _checked_links(rest.pop("links", {}))
    couplings = {}
    if action == GAUGE:
        _refuse(rest, "gauge, the action of [gauge],", (), ("action", "level", "name", "links"))
    else:
        couplings = _arguments(rest, f"the action {action}", NAMED[action], 0, ("level", "name", "links"))
        try:
            NAMED[action](**couplings)
        except ParameterError as error:
            raise ValueError(str(error)) from None
    return {"action": action, **couplings, "level": level, "name": name, "links": links}


def term_names(terms: Sequence[Mapping[str, Any]]) -> list[str]:
    """What reports call the terms: their names or actions, numbered where some would be alike."""
    if not terms:
        return [GAUGE]
    plain = [
        term["name"]
        or term["action"] + (f" on {term['links']['kind']} links" if term["links"]["kind"] != PLAIN else "")
        for term in terms
    ]
    return [
        f"{name} {plain[: k + 1].count(name)}" if plain.count(name) > 1 else name
        for k, name in enumerate(plain)
    ]


def make_monomials(terms: Sequence[Mapping[str, Any]], gauge: Action, finest: int) -> list[Monomial]:
    """The monomials of checked terms; `gauge` is the action of [gauge], which is on the level `finest` where no terms are given."""
    if not terms:
        return [Monomial(gauge, finest, GAUGE)]
    return [
        Monomial(_action(term, gauge), term["level"], name)
        for term, name in zip(terms, term_names(terms), strict=True)
    ]


def is_gauge_alone(terms: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the weight is that of [gauge] and nothing else."""
    return not terms or (
        len(terms) == 1 and terms[0]["action"] == GAUGE and terms[0]["links"]["kind"] == PLAIN
    )


def terms_in_words(terms: Sequence[Mapping[str, Any]]) -> str:
    """The terms with their couplings, for titles."""
    words = []
    for term, name in zip(terms, term_names(terms), strict=True):
        couplings = ", ".join(
            f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}"
            for key, value in term.items()
            if key not in ("action", "level", "name", "links")
        )
        words.append(f"{name} ({couplings})" if couplings else name)
    return " + ".join(words)


def _action(term: Mapping[str, Any], gauge: Action) -> Action:
    couplings = {key: value for key, value in term.items() if key not in ("action", "level", "name", "links")}
    action = gauge if term["action"] == GAUGE else NAMED[term["action"]](**couplings)
    links = dict(term["links"])
    kind = links.pop("kind")
    if kind == PLAIN:
        return action
    smear = SMEARINGS[kind]
    return action.on(lambda U: smear(U, **links))


def _checked_links(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f'links is a table, such as {{kind = "stout", rho = 0.1}}, not {value_shown(given)}')
    rest = dict(given)
    kind = _choice("kind of links", rest.pop("kind", PLAIN), (PLAIN, *SMEARINGS))
    if kind == PLAIN:
        _refuse(rest, "links that are plain", (), ("kind",))
        return {"kind": kind}
    found = _arguments(rest, f"{kind} smearing", SMEARINGS[kind], 1, ("kind",))
    if not 1 <= found["steps"] <= MOST_STEPS:
        raise ValueError(f"{kind} smearing takes 1 to {MOST_STEPS} steps, not {value_shown(found['steps'])}")
    if isinstance(found.get("alpha"), float) and not 0 <= found["alpha"] <= 1:
        raise ValueError(f"{kind} smearing needs alpha from 0 to 1, not {found['alpha']:g}")
    return {"kind": kind, **found}


def _arguments(
    given: Mapping[str, Any], what: str, function: Callable[..., Any], skip: int, beside: Sequence[str]
) -> dict[str, Any]:
    """The arguments of a function, `skip` of them left out, by the table of their values; those without a value have their defaults."""
    parameters = list(inspect.signature(function).parameters.values())[skip:]
    kinds = {p.name: p for p in parameters if str(p.annotation) in _READERS}
    _refuse(given, what, tuple(kinds), tuple(beside))
    found = {}
    for name, parameter in kinds.items():
        if name in given:
            found[name] = _READERS[str(parameter.annotation)](f"{name} of {what}", given[name])
        elif parameter.default is parameter.empty:
            raise ValueError(f"{what} needs {name}")
        elif parameter.default is not None:
            found[name] = parameter.default
    return found


def _refuse(given: Iterable[str], what: str, own: Sequence[str], beside: Sequence[str]) -> None:
    """Raises ValueError for keys that are not there."""
    for key in given:
        if key not in own:
            near = difflib.get_close_matches(key.lower(), [*own, *beside], 1, 0.6)
            hint = f'did you mean "{near[0]}"?' if near else f"its keys are {', '.join([*own, *beside])}"
            raise ValueError(f'{what} has no key "{shown(key, 40)}"; {hint}')


def _choice(what: str, value: Any, names: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in names:
        said = "is missing" if value is None else f"is not {value_shown(value)}"
        raise ValueError(f"{what} {said}; it is one of {', '.join(names)}")
    return value


def _number(what: str, value: Any) -> float:
    try:
        if type(value) in (int, float) and math.isfinite(value):
            return float(value)
    except OverflowError:  # an integer beyond floats
        pass
    raise ValueError(f"{what} is a finite number, not {value_shown(value)}")


def _whole(what: str, value: Any) -> int:
    if type(value) is int and abs(value) < 2**31:
        return value
    raise ValueError(f"{what} is a whole number, not {value_shown(value)}")


def _text(what: str, value: Any) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{what} is a text, not {value_shown(value)}")


def _numbers(what: str, value: Any) -> list[float]:
    if isinstance(value, list | tuple):
        return [_number(what, one) for one in value]
    raise ValueError(f"{what} is a list of numbers, not {value_shown(value)}")


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "float": _number,
    "int": _whole,
    "str": _text,
    "Sequence[float] | None": _numbers,
}
"""By the annotation of a parameter; parameters with another one cannot be set."""
