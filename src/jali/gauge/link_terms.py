"""What an action is to single links: the staple that multiplies one, the change by one, which ones share no term of it.

All of it is read from the action's formula. Where the action is linear in every link U it is -Re tr(U staple^dagger), with staple = -gradient, and what U is not in. Links
that the gradient at U reads share a term with it; of an action that is not linear, those that the change by U reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jali.actions.formulas import TOTAL, ActionFormula, site_function_of
from jali.actions.protocol import Action
from jali.actions.terms import Terms
from jali.codegen.ir import Node, SiteProgram
from jali.codegen.language import arithmetic, leaves, matrices
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable
from jali.derivatives.at_site import change_at, gradient_at, is_linear_at, offsets_read
from jali.errors import ParameterError
from jali.files import value_shown
from jali.gauge.field import GaugeField
from jali.gauge.link_colours import colours_apart
from jali.lattice import Domain
from jali.lattice.arguments import fields_of
from jali.lattice.sites import SiteFunction
from jali.single_instance import single_instance

MOST_KNOWN = 64  # formulas and fields, and numbers of each


class LinkTerms(Terms):
    """An action as updates of the links of a gauge field use it."""

    @classmethod
    def of_links(cls, action: Action, U: GaugeField, fields: Mapping[str, Any] | None = None) -> LinkTerms:
        """The terms of an action of U and of other fields, by their names. Raises ParameterError for an action that needs several calls, and for
        other fields than it depends on."""
        if not isinstance(fields, Mapping | None):
            raise ParameterError(
                f'fields are the other fields of the action by their names, fields={{"phi": phi}}, not {value_shown(fields)}'
            )
        rest = dict(fields or {})
        free = [name for name in action.fields if name not in rest]
        if len(free) != 1 or rest.keys() - set(action.fields):
            given = ", ".join(rest) or "none"
            raise ParameterError(
                f"{action!r} depends on {', '.join(action.fields)}: the fields besides the links that are updated are given by name, fields={{...}}; given: {given}"
            )
        found: LinkTerms = cls.of(action, free[0], {**rest, free[0]: U})
        return found

    def parts(self, U: GaugeField) -> Sequence[tuple[Any, Domain]]:
        """Directions and sets of sites in turn: links of one direction on one set share no term of the action. Raises LayoutError for a lattice that is so
        small that a term has a link twice."""
        return _facts(self, U).parts

    def is_linear(self, U: GaugeField) -> bool:
        """Whether the action is linear in every link."""
        return _facts(self, U).linear

    def size_of_staples(self, U: GaugeField) -> float:
        """The root of the mean square of the numbers of a staple, added up, where links are random: it chooses the faster heat bath."""
        return _facts(self, U).size(tuple(_numbers(self.arguments)), U.n)


@dataclass(frozen=True)
class _Facts:
    """What is read from a formula. Its numbers are run-time values, and nothing here depends on them."""

    parts: Sequence[tuple[Any, Domain]]
    linear: bool
    squares: Sequence[Node]
    couplings: Any  # kept: the key knows objects by their identity
    sizes: dict[tuple[float, ...], float] = field(default_factory=dict)

    def size(self, numbers: tuple[float, ...], n: int) -> float:
        if numbers not in self.sizes:
            if len(self.sizes) >= MOST_KNOWN:
                self.sizes.clear()
            self.sizes[numbers] = math.sqrt(max(_mean_square(root, numbers, n) for root in self.squares))
        return self.sizes[numbers]


_known: dict[Any, _Facts] = {}


def _facts(terms: LinkTerms, U: GaugeField) -> _Facts:
    """What is read from the formula, remembered for the latest formulas and fields."""
    key = (terms.key, U.lattice.serial)
    found = _known.get(key)
    if found is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        found = _known[key] = _read(terms, U)
    return found


def _read(terms: LinkTerms, U: GaugeField) -> _Facts:
    lattice, formula = U.lattice, terms.formula
    serials = list(dict.fromkeys(one.serial for one in fields_of(terms.arguments)))

    def programs(probe: SiteFunction) -> list[SiteProgram]:
        return [probe.program_of(lattice, mu, *terms.arguments) for mu in lattice.directions]

    read = programs(_gradient_probe(formula, terms.name))
    squares, linear = zip(*([effect.value for effect in one.effects] for one in read), strict=True)
    is_linear = all(one.attrs[0] for one in linear)
    if not is_linear:
        read = programs(_change_probe(formula, terms.name))
    parts = [
        (mu, colour)
        for mu, one in zip(lattice.directions, read, strict=True)
        for colour in colours_apart(
            lattice.extents, frozenset(offsets_read(one, serials.index(U[mu].serial)))
        )
    ]
    return _Facts(parts, is_linear, squares, terms.arguments[len(formula.fields) :])


def _numbers(arguments: Any) -> list[float]:
    """The numbers among arguments, in the order of their slots."""
    if isinstance(arguments, tuple | list):
        return [number for one in arguments for number in _numbers(one)]
    return [float(arguments)] if isinstance(arguments, int | float) else []


def _mean_square(root: Node, numbers: Sequence[float], n: int) -> float:
    """About the mean of the sum of squares of a value made of random links, which do not correlate: sums add up, products multiply."""
    found: dict[int, float] = {}
    for node in reachable([root]):
        args = [found[a.number] for a in node.args]
        if described(node).reads:
            square = float(n)
        elif leaves.scalar.made(node) and node.attrs[0] < len(numbers):
            square = numbers[node.attrs[0]] ** 2
        elif leaves.is_constant(node):
            square = abs(node.attrs[0]) ** 2
        elif arithmetic.add.made(node) or arithmetic.sub.made(node):
            square = sum(args)
        elif arithmetic.mul.made(node):
            square = math.prod(args)
        elif matrices.matmul.made(node):
            square = math.prod(args) / n
        elif arithmetic.multiply_add.made(node) or matrices.matmul_add.made(node):
            other, a, b = (found[term.number] for term in arithmetic.fused_terms(node))
            square = other + a * b / (n if matrices.matmul_add.made(node) else 1)
        else:
            square = max(args, default=1.0)
        found[node.number] = square
    return found[root.number]


@single_instance
def _gradient_probe(formula: ActionFormula, links: str) -> SiteFunction:
    """The site function (mu, what the formula takes, two sums) that is traced to be read, and never compiled: of the gradient, and of 1 where the action is
    linear in the links."""

    def body(X: Any, mu: Any, *arguments: Any) -> None:
        *given, squares, linear = arguments
        symbols = dict(zip(_names(formula), given, strict=True))
        squares += gradient_at(formula.summed, symbols, TOTAL, symbols[links][mu]).norm2()
        linear += float(is_linear_at(formula.summed, symbols, TOTAL, symbols[links][mu]))

    return site_function_of(
        f"gradient of {formula.function.__name__}", body, ["mu", *_names(formula), "of squares", "linear"]
    )


@single_instance
def _change_probe(formula: ActionFormula, links: str) -> SiteFunction:
    """As `_gradient_probe`, of the change by a link."""

    def body(X: Any, mu: Any, *arguments: Any) -> None:
        *given, total = arguments
        symbols = dict(zip(_names(formula), given, strict=True))
        link = symbols[links][mu]
        total += change_at(formula.summed, symbols, TOTAL, link, 2.0 * link[X])

    return site_function_of(
        f"change of {formula.function.__name__}", body, ["mu", *_names(formula), "of changes"]
    )


def _names(formula: ActionFormula) -> list[str]:
    return [*formula.fields, *formula.couplings]
