"""Terms of the action of a run with hybrid Monte Carlo: the tables [[hmc.terms]] of parameter files, checked and made.

A term is an action by name, on links as they are or smeared, of scalar fields that it names, with a level. Its keys, beside those of every term, are the parameters of the function that makes the action, and
those of its links the parameters of the smearing, so a new action or smearing is one entry of a table here. Knows no files and no lattice.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jali.actions import SiteAction, phi4_action, portal_action, sigma_action
from jali.actions.protocol import Action
from jali.amounts import counted
from jali.cli.entries import choice, number, numbers, refuse_unknown_keys, suggestion, text, whole_number
from jali.cli.scalars import GAUGE_FIELD, family_of
from jali.errors import ParameterError
from jali.files import value_shown
from jali.gauge import adjoint_higgs_action, ape_smear, higgs_action, hyp_smear, stout_smear
from jali.gauge.actions import (
    anisotropic_action,
    charge_action,
    clover_energy_action,
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


@dataclass(frozen=True)
class NamedTerm:
    """An action that a term can name, and the fields that it takes."""

    make: Callable[..., Action]
    """A function of the couplings."""
    links: bool = True
    scalars: tuple[tuple[str, ...], ...] = ()
    """For each scalar field that it takes, in the order of its fields, the families of kinds that this may have (`KINDS`)."""


_UNBOUND = ("real", "complex", "vector", "fundamental", "adjoint")

NAMED: dict[str, NamedTerm] = {
    "wilson": NamedTerm(wilson_action),
    "symanzik": NamedTerm(symanzik_action),
    "iwasaki": NamedTerm(iwasaki_action),
    "dbw2": NamedTerm(dbw2_action),
    "rectangle": NamedTerm(rectangle_action),
    "tadpole-symanzik": NamedTerm(tadpole_symanzik_action),
    "anisotropic": NamedTerm(anisotropic_action),
    "clover-energy": NamedTerm(clover_energy_action),
    "charge": NamedTerm(charge_action),
    "phi4": NamedTerm(phi4_action, False, (("real", "complex", "vector"),)),
    "sigma": NamedTerm(sigma_action, False, (("O",),)),
    "portal": NamedTerm(portal_action, False, (_UNBOUND, _UNBOUND)),
    "higgs": NamedTerm(higgs_action, True, (("fundamental",),)),
    "adjoint-higgs": NamedTerm(adjoint_higgs_action, True, (("adjoint",),)),
}

SMEARINGS: dict[str, Callable[..., Any]] = {"stout": stout_smear, "ape": ape_smear, "hyp": hyp_smear}

PLAIN = "plain"
MOST_STEPS = 1000
"""Of a smearing."""


def checked_term(given: Any) -> dict[str, Any]:
    """A table as the program uses it, with its defaults. Raises ValueError for one that is no term, with what would be right."""
    if not isinstance(given, Mapping):
        raise ValueError('a term is a table, such as {action = "wilson", beta = 5.7, level = 0}')
    rest = dict(given)
    action = choice("action", rest.pop("action", None), (GAUGE, *NAMED))
    named = NAMED.get(action)
    level, name = rest.pop("level", 0), rest.pop("name", "")
    if type(level) is not int or not 0 <= level < 100:
        raise ValueError(f"level is a whole number from 0, not {value_shown(level)}")
    if not isinstance(name, str) or len(name) > 40 or not name.isprintable():
        raise ValueError(f"name is a short printable text, not {value_shown(name)}")
    fields: dict[str, Any] = {}
    if named is None or named.links:
        fields["links"] = _checked_links(rest.pop("links", {}))
    if named is not None and named.scalars:
        fields["scalars"] = _checked_names(action, rest.pop("scalars", []))
    couplings: dict[str, Any] = {}
    if named is None:
        refuse_unknown_keys(rest, "gauge, the action of [gauge],", (), ("action", "level", "name", *fields))
    else:
        couplings = _arguments(rest, f"the action {action}", named.make, 0, ("level", "name", *fields))
        try:
            named.make(**couplings)
        except ParameterError as error:
            raise ValueError(str(error)) from None
    return {"action": action, **couplings, "level": level, "name": name, **fields}


def term_names(terms: Sequence[Mapping[str, Any]]) -> list[str]:
    """What reports call the terms: their names or actions, numbered where some would be alike."""
    if not terms:
        return [GAUGE]
    plain = [term["name"] or _described(term) for term in terms]
    return [
        f"{name} {plain[: k + 1].count(name)}" if plain.count(name) > 1 else name
        for k, name in enumerate(plain)
    ]


def _described(term: Mapping[str, Any]) -> str:
    scalars, kind = term.get("scalars"), _kind_of_links(term)
    of = f" of {' and '.join(scalars)}" if scalars else ""
    return term["action"] + of + (f" on {kind} links" if kind != PLAIN else "")


def _kind_of_links(term: Mapping[str, Any]) -> str:
    return str(term["links"]["kind"]) if "links" in term else PLAIN


def make_monomials(
    terms: Sequence[Mapping[str, Any]], scalars: Sequence[Mapping[str, Any]], gauge: Action, finest: int
) -> list[Monomial]:
    """The monomials of checked terms and scalars; `gauge` is the action of [gauge], which is on the level `finest` where no terms are given."""
    if not terms:
        return [Monomial(gauge, finest, GAUGE)]
    return [
        Monomial(_action(term, scalars, gauge), term["level"], name)
        for term, name in zip(terms, term_names(terms), strict=True)
    ]


def is_gauge_alone(terms: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the weight is that of [gauge] and nothing else."""
    return not terms or (
        len(terms) == 1 and terms[0]["action"] == GAUGE and _kind_of_links(terms[0]) == PLAIN
    )


def depends_on_links(terms: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some term has links, without which they do not move."""
    return not terms or any("links" in term for term in terms)


def scalars_of(term: Mapping[str, Any], scalars: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the scalars that a term takes, in the order of the fields of its action. Raises ValueError for such as it cannot take."""
    if "scalars" not in term:
        return []
    takes = NAMED[term["action"]].scalars
    kinds = {one["name"]: one["kind"] for one in scalars}
    names = list(term["scalars"])
    if not names and len(kinds) == len(takes):
        names = list(kinds)
    has = f"[[hmc.scalars]] has {', '.join(kinds) or 'none'}"
    if not names:
        example = ", ".join(f'"{name}"' for name in list(kinds)[: len(takes)]) or '"phi"'
        raise ValueError(
            f"takes {counted(len(takes), 'scalar')}, and {has}: name what it is of, scalars = [{example}]"
        )
    for name in names:
        if name not in kinds:
            raise ValueError(
                f'names the scalar "{name}"; {suggestion(name, list(kinds), "there are") if kinds else has}'
            )
    if len(set(names)) != len(names) or len(names) != len(takes):
        raise ValueError(f"takes {counted(len(takes), 'scalar')}, each another one, not {', '.join(names)}")
    for name, families in zip(names, takes, strict=True):
        if family_of(kinds[name]) not in families:
            raise ValueError(
                f'takes a scalar of the kind {" or ".join(families)}, and {name} is of the kind "{kinds[name]}"'
                f"{_better(kinds[name], len(takes))}"
            )
    try:
        _renamed(_of_couplings(term), names)
    except ParameterError as error:
        raise ValueError(f"refuses a name: {error}") from None
    return names


def _better(kind: str, count: int) -> str:
    """The actions that take such a scalar, where there are some."""
    fits = [
        name
        for name, one in NAMED.items()
        if len(one.scalars) == count and all(family_of(kind) in families for families in one.scalars)
    ]
    return f", which {' and '.join(fits)} takes" if fits else ""


def problems_of_scalars(
    terms: Sequence[Mapping[str, Any]], scalars: Sequence[Mapping[str, Any]], ndim: int
) -> list[tuple[str, str]]:
    """What is wrong with terms and scalars together: pairs of the key to blame and the complaint."""
    problems, used, bounded = [], set(), set()
    for k, term in enumerate(terms):
        try:
            names = set(scalars_of(term, scalars))
            used |= names
            bounded |= names if len(names) == 1 else set()
            if len(names) == 1 and sum(names <= set(one.get("scalars", ())) for one in terms) <= 1:
                _refuse_unstable(term, ndim)
        except ValueError as error:
            problems.append(
                ("hmc.terms", f"is wrong in entry {k + 1}, {term['name'] or term['action']}: it {error}")
            )
    alone = [one["name"] for one in scalars if one["name"] in used - bounded]
    if alone and not problems:
        problems.append(
            (
                "hmc.terms",
                f"has {alone[0]} in terms of two scalars alone, whose weight has no finite integral. Add a term of its own, such as "
                f'{{action = "{_action_for(scalars, alone[0])}", scalars = ["{alone[0]}"], ...}}',
            )
        )
    unused = [one["name"] for one in scalars if one["name"] not in used]
    if unused and not problems:
        problems.append(
            (
                "hmc.scalars",
                f"has {', '.join(unused)}, of which no term of [[hmc.terms]] is: its weight would be flat. Add a term, such as "
                f'{{action = "{_action_for(scalars, unused[0])}", scalars = ["{unused[0]}"], ...}}, or leave it out',
            )
        )
    return problems


def _refuse_unstable(term: Mapping[str, Any], ndim: int) -> None:
    """Raises ValueError for a free scalar whose constant mode, or staggered one, has a negative square in the action."""
    kappa = term.get("kappa")
    if kappa is not None and term.get("lam") == 0 and 2 * ndim * abs(kappa) >= 1:
        raise ValueError(
            f"is not bounded below: with lam = 0 in {ndim} directions kappa is between -1/{2 * ndim} and 1/{2 * ndim}, not {kappa:g}"
        )


def _action_for(scalars: Sequence[Mapping[str, Any]], name: str) -> str:
    (family,) = [family_of(one["kind"]) for one in scalars if one["name"] == name][:1]
    return next(action for action, one in NAMED.items() if len(one.scalars) == 1 and family in one.scalars[0])


def terms_in_words(terms: Sequence[Mapping[str, Any]]) -> str:
    """The terms with their couplings, for titles."""
    words = []
    for term, name in zip(terms, term_names(terms), strict=True):
        couplings = ", ".join(
            f"{key} = {value:g}" if isinstance(value, float) else f"{key} = {value}"
            for key, value in _couplings_of(term).items()
        )
        words.append(f"{name} ({couplings})" if couplings else name)
    return " + ".join(words)


def _couplings_of(term: Mapping[str, Any]) -> dict[str, Any]:
    beside = ("action", "level", "name", "links", "scalars")
    return {key: value for key, value in term.items() if key not in beside}


def _of_couplings(term: Mapping[str, Any]) -> Action:
    return NAMED[term["action"]].make(**_couplings_of(term))


def _renamed(action: Action, names: Sequence[str]) -> Action:
    """An action of the scalars of these names."""
    own = [name for name in action.fields if name != GAUGE_FIELD]
    if not own:
        return action
    assert isinstance(action, SiteAction)
    return action.renamed(**dict(zip(own, names, strict=True)))


def _action(term: Mapping[str, Any], scalars: Sequence[Mapping[str, Any]], gauge: Action) -> Action:
    action = gauge if term["action"] == GAUGE else _renamed(_of_couplings(term), scalars_of(term, scalars))
    links = dict(term.get("links", {}))
    kind = links.pop("kind", PLAIN)
    if kind == PLAIN:
        return action
    smear = SMEARINGS[kind]
    return action.on(lambda U: smear(U, **links))


def _checked_names(action: str, given: Any) -> list[str]:
    """One name, or a list of them; none where the file has no others than the action takes."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not all(isinstance(one, str) for one in names):
        raise ValueError(
            f"scalars of the action {action} are a name or a list of names, not {value_shown(given)}"
        )
    return list(names)


def _checked_links(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ValueError(f'links is a table, such as {{kind = "stout", rho = 0.1}}, not {value_shown(given)}')
    rest = dict(given)
    kind = choice("kind of links", rest.pop("kind", PLAIN), (PLAIN, *SMEARINGS))
    if kind == PLAIN:
        refuse_unknown_keys(rest, "links that are plain", (), ("kind",))
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
    refuse_unknown_keys(given, what, tuple(kinds), tuple(beside))
    found = {}
    for name, parameter in kinds.items():
        if name in given:
            found[name] = _READERS[str(parameter.annotation)](f"{name} of {what}", given[name])
        elif parameter.default is parameter.empty:
            raise ValueError(f"{what} needs {name}")
        elif parameter.default is not None:
            found[name] = parameter.default
    return found


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "float": number,
    "int": whole_number,
    "str": text,
    "Sequence[float] | None": numbers,
}
"""By the annotation of a parameter; parameters with another one cannot be set."""
