"""What an action is to single links: the staple that multiplies one, the change by one, which ones share no term of it.

All of it is read from the action's formula. Where the action is linear in every link U it is -Re tr(U staple^dagger), with staple = -gradient, and what U is not in. Links
that the gradient at U reads share a term with it; of an action that is not linear, those that the change by U reads (`jali.actions.terms`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jali.actions.formulas import TOTAL, ActionFormula, site_function_of
from jali.actions.protocol import Action
from jali.actions.terms import Terms, names_of
from jali.codegen.ir import Node
from jali.codegen.language import arithmetic, leaves, matrices
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable
from jali.derivatives.at_site import gradient_at, is_linear_at
from jali.gauge.field import GaugeField
from jali.lattice import Domain
from jali.lattice.sites import SiteFunction
from jali.single_instance import single_instance

MOST_KNOWN = 64  # numbers of a formula


class LinkTerms(Terms):
    """An action as updates of the links of a gauge field use it."""

    @classmethod
    def of_links(cls, action: Action, U: GaugeField, fields: Mapping[str, Any] | None = None) -> LinkTerms:
        """The terms of an action of U and of other fields, by their names. Raises ParameterError for an action that needs several calls, and for
        other fields than it depends on."""
        found: LinkTerms = cls.of_updated(action, U, fields, "links")
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
    sizes: dict[tuple[float, ...], float] = field(default_factory=dict)

    def size(self, numbers: tuple[float, ...], n: int) -> float:
        if numbers not in self.sizes:
            if len(self.sizes) >= MOST_KNOWN:
                self.sizes.clear()
            self.sizes[numbers] = math.sqrt(max(_mean_square(root, numbers, n) for root in self.squares))
        return self.sizes[numbers]


def _facts(terms: LinkTerms, U: GaugeField) -> _Facts:
    """What is read from the formula."""
    found: _Facts = terms.remembered(U.lattice, lambda: _read(terms, U))
    return found


def _read(terms: LinkTerms, U: GaugeField) -> _Facts:
    members = [(mu, U[mu]) for mu in U.lattice.directions]
    probe = _gradient_probe(terms.formula, terms.name)
    read = [terms.program(probe, U.lattice, mu) for mu, _ in members]
    squares, linear = zip(*([effect.value for effect in one.effects] for one in read), strict=True)
    is_linear = all(one.attrs[0] for one in linear)
    if not is_linear:
        return _Facts(list(terms.parts_by_change(members, "link")), is_linear, squares)
    parts = [
        (mu, colour)
        for (mu, one), program in zip(members, read, strict=True)
        for colour in terms.colours(program, one, "link")
    ]
    return _Facts(parts, is_linear, squares)


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
        symbols = dict(zip(names_of(formula), given, strict=True))
        squares += gradient_at(formula.summed, symbols, TOTAL, symbols[links][mu]).norm2()
        linear += float(is_linear_at(formula.summed, symbols, TOTAL, symbols[links][mu]))

    return site_function_of(
        f"gradient of {formula.function.__name__}", body, ["mu", *names_of(formula), "of squares", "linear"]
    )
