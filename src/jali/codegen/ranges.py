"""The bounds of a whole number of a formula, on a lattice of known extents.

What cannot be determined is unbounded: run-time numbers and whole numbers of fields, which `%` and `jali.minimum`
bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jali.codegen.ir import Node
from jali.codegen.language.leaves import is_zero

Range = tuple[float, float]  # least and largest value; infinite where there is none that is known

UNBOUNDED: Range = (-math.inf, math.inf)


def range_of(node: Node, extents: Sequence[int]) -> Range:
    """The least and the largest value that a node of whole numbers can have."""
    known: dict[int, Range] = {}
    waiting = [node]
    while waiting:
        top = waiting[-1]
        missing = [a for a in top.args if a.number not in known and a.type.kind == "int" and not a.type.shape]
        if missing:
            waiting += missing
            continue
        waiting.pop()
        rule = _RULES.get(top.op)
        if rule is not None and top.type.kind == "int":
            known[top.number] = rule(top, [known.get(a.number, UNBOUNDED) for a in top.args], extents)
        else:
            known[top.number] = UNBOUNDED
    return known[node.number]


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _mul(node: Node, of: list[Range], extents: Sequence[int]) -> Range:
    corners = [_times(a, b) for a in of[0] for b in of[1]]
    return min(corners), max(corners)


def _mod(node: Node, of: list[Range], extents: Sequence[int]) -> Range:
    (low, high), (_, divisor) = of
    return (low, high) if 0 <= low <= high < of[1][0] else (0, divisor - 1)


def _floordiv(node: Node, of: list[Range], extents: Sequence[int]) -> Range:
    (low, high), (divisor, _) = of
    return (low if math.isinf(low) else low // divisor, high if math.isinf(high) else high // divisor)


def _where(node: Node, of: list[Range], extents: Sequence[int]) -> Range:
    condition, a, b = node.args
    (low_a, high_a), (low_b, high_b) = of[1:]
    if condition.op == "less" and condition.args == (a, b):  # the lesser of two
        return min(low_a, low_b), min(high_a, high_b)
    if condition.op == "less" and condition.args == (b, a):
        return max(low_a, low_b), max(high_a, high_b)
    if (
        condition.op == "less" and a.op == "neg" and a.args == (b,) and is_zero(condition.args[1])
    ):  # a modulus
        return (max(0, low_b, -high_b), max(high_a, high_b))
    return min(low_a, low_b), max(high_a, high_b)


_RULES: dict[str, Callable[[Node, list[Range], Sequence[int]], Range]] = {
    "const": lambda node, of, extents: (node.attrs[0], node.attrs[0]),
    "extent": lambda node, of, extents: (extents[node.attrs[0]], extents[node.attrs[0]]),
    "coordinate": lambda node, of, extents: (0, extents[node.attrs[0]] - 1),
    "add": lambda node, of, extents: (of[0][0] + of[1][0], of[0][1] + of[1][1]),
    "sub": lambda node, of, extents: (of[0][0] - of[1][1], of[0][1] - of[1][0]),
    "neg": lambda node, of, extents: (-of[0][1], -of[0][0]),
    "mul": _mul,
    "mod": _mod,
    "floordiv": _floordiv,
    "where": _where,
    "integers": lambda node, of, extents: (0, of[0][1] - 1),
}
