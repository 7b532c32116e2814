"""Where the value of an operation that may fail is used: the conditions of the choices through which alone it reaches an effect.

`jali.where(c, h.solve(b), b)` evaluates both, but a failure where c does not hold harms nobody, so the operation is given the condition and
counts failures there alone. Conditions that are themselves made of what may fail do not restrict it.
"""

from __future__ import annotations

import functools

from jali.codegen.builder import Builder
from jali.codegen.ir import Node, SiteProgram
from jali.codegen.language.choices import both, either, negation
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable, rebuild, rewritten

Term = frozenset[tuple[Node, bool]]
"""Conditions that hold (True) or do not, all of them."""

ALWAYS: frozenset[Term] = frozenset({frozenset()})
MOST_TERMS = 8  # of a value that is used in more cases than these it is not known


def restricted_to_use(program: SiteProgram) -> SiteProgram:
    """The program whose operations that may fail (`Operation.fails`) have behind their arguments the condition of their use, if there is one."""
    order = reachable(effect.value for effect in program.effects)
    if not any(described(node).fails for node in order):
        return program
    uses = _uses(program, order)
    restricted = [node for node in order if described(node).fails and uses[node] != ALWAYS]
    if not restricted:
        return program

    def known(nodes: Builder) -> dict[int, Node]:
        made: dict[int, Node] = {}
        for node in restricted:
            conditions = [condition for term in uses[node] for condition, _ in term]
            made |= rebuild(nodes, [*node.args, *conditions], known=made)
            terms = []
            for term in sorted(uses[node], key=_in_order):
                literals = [
                    made[c.number] if holds else negation(nodes, made[c.number])
                    for c, holds in sorted(term, key=lambda literal: literal[0].number)
                ]
                terms.append(functools.reduce(lambda a, b: both(nodes, a, b), literals))
            condition = functools.reduce(lambda a, b: either(nodes, a, b), terms)
            args = (*(made[a.number] for a in node.args), condition)
            made[node.number] = nodes.copied(node, args, node.attrs)
        return made

    return rewritten(program, f"{len(restricted)} that may fail restricted to their use", known=known)


def _uses(program: SiteProgram, order: list[Node]) -> dict[Node, frozenset[Term]]:
    """Of each value the cases in which it is used."""
    uses: dict[Node, frozenset[Term]] = {effect.value: ALWAYS for effect in program.effects}
    fail = [node for node in order if described(node).fails]
    may_fail = set(fail)
    for node in order:
        if any(a in may_fail for a in node.args):
            may_fail.add(node)
    for node in reversed(order):
        here = uses.setdefault(node, frozenset())
        if not described(node).chooses:
            for a in node.args:
                uses[a] = _either(uses.get(a, frozenset()), here)
            continue
        condition, *values = node.args
        uses[condition] = _either(uses.get(condition, frozenset()), here)
        for a, holds in zip(values, (True, False), strict=True):
            known = condition not in may_fail
            there = frozenset(term | {(condition, holds)} for term in here) if known else here
            uses[a] = _either(uses.get(a, frozenset()), there)
    for node in fail:  # a condition that varies in a loop is not known outside of it
        terms = (frozenset(c for c in term if c[0].loops <= node.loops) for term in uses[node])
        uses[node] = _either(frozenset(terms), frozenset())
    return uses


def _either(a: frozenset[Term], b: frozenset[Term]) -> frozenset[Term]:
    terms = a | b
    fewest = frozenset(t for t in terms if not any(other < t for other in terms))
    return fewest if len(fewest) <= MOST_TERMS else ALWAYS


def _in_order(term: Term) -> list[tuple[int, bool]]:
    return sorted((condition.number, holds) for condition, holds in term)
