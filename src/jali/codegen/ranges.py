"""The bounds of a whole number of a formula, on a lattice of known extents, by the rules of its operations.

What cannot be determined is unbounded: run-time numbers and whole numbers of fields, which `%` and `jali.minimum`
bound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jali.codegen.ir import Node
from jali.codegen.operation import Range, described

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
        rule = described(top).bounds
        if rule is not None and top.type.kind == "int":
            known[top.number] = rule(top, [known.get(a.number, UNBOUNDED) for a in top.args], extents)
        else:
            known[top.number] = UNBOUNDED
    return known[node.number]
