"""Makes the nodes of one trace, each expression once.

Nodes are hash-consed, so common subexpressions are one node by construction. The descriptor of an operation defines its
arguments and simplifications.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jali.codegen.arithmetics import ARITHMETICS, IEEE_PRECISIONS
from jali.codegen.ir import INT, Node
from jali.codegen.lines import trace_error, user_line
from jali.codegen.operation import OPERATIONS, described
from jali.codegen.types import Type


def why_too_large(value: int, precision: str) -> str:
    """What is wrong with a whole number that kernels of this precision cannot hold, and what is right; "" if they can."""
    bits, most = ARITHMETICS[precision].whole_bits, ARITHMETICS[IEEE_PRECISIONS[-1]]
    if -(1 << (bits - 1)) <= value < 1 << (bits - 1):
        return ""
    hint = (
        ""
        if bits == most.bits
        else f"; those of {most.name} kernels have {most.bits} bits: take fields of precision={most.name!r}"
    )
    if abs(value) < 1 << 1023:  # else no float64 holds it
        hint += f"; as a real number it is written {float(value)!r}"
    shown = value if abs(value) < 1 << 128 else f"of {value.bit_length()} bits"
    return f"the whole number {shown} does not fit {bits} bits, which whole numbers of {precision} kernels have{hint}"


def why_not_computed(what: str, precision: str) -> str:
    """That an arithmetic of several machine words lacks something, and what is right."""
    right = " or ".join(f"precision={name!r}" for name in reversed(IEEE_PRECISIONS))
    return (
        f"{what} is not computed in {precision}, an arithmetic of {ARITHMETICS[precision].words} machine words, which has sums, products, "
        f"quotients, square roots and comparisons; take fields of {right}, or convert them: f.astype({IEEE_PRECISIONS[-1]!r})"
    )


class Builder:
    """Makes nodes. One per trace."""

    def __init__(self, precision: str = "float64") -> None:
        self.precision = precision
        self.ieee = ARITHMETICS[precision].words == 1
        self.nodes: list[Node] = []
        self.line = ""  # what nodes that are made now belong to, where it is not the line that makes them
        self._known: dict[tuple[Any, ...], Node] = {}

    def node(self, op: str, args: Iterable[Node], attrs: tuple[Any, ...], type: Type) -> Node:
        """The one node for this expression; made on first use."""
        args, nodes = tuple(args), self.nodes
        for a in args:
            if a.number >= len(nodes) or nodes[a.number] is not a:
                self.check(a)
            if a.type == INT and described(a).constant and (why := why_too_large(a.attrs[0], self.precision)):
                raise trace_error(why)
        key = (op, tuple([a.number for a in args]), attrs, type)
        found = self._known.get(key)
        if found is None:
            assert op in OPERATIONS, f"operation {op} has no descriptor"
            found = Node(len(nodes), op, args, attrs, type)
            found.where = self.line or user_line()
            if not self.ieee and (what := OPERATIONS[op].of_bits(found)):
                raise trace_error(why_not_computed(what, self.precision))
            if args:
                found.loops = frozenset().union(*(a.loops for a in args))
                if type.shape == (1, 1):
                    whole = [a.phase for a in args if a.type.shape]
                    found.phase = whole != [] and all(whole)
            nodes.append(found)
            self._known[key] = found
        return found

    def copied(
        self, node: Node, args: tuple[Node, ...], attrs: tuple[Any, ...], loops: frozenset[int] | None = None
    ) -> Node:
        """The one node here for what another builder has made a node of, with these arguments, attributes and loops, which are right."""
        key = (node.op, tuple([a.number for a in args]), attrs, node.type)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = Node(len(self.nodes), node.op, args, attrs, node.type)
            self.nodes.append(found)
            found.where, found.loops = node.where, node.loops if loops is None else loops
            found.keep_symmetry(node)
            found.phase = node.phase
        return found

    def check(self, node: Node) -> None:
        """Raises TraceError for a node of another trace: a symbol that was kept."""
        if node.number >= len(self.nodes) or self.nodes[node.number] is not node:
            raise trace_error(
                "a symbol of an earlier trace: symbols stand for values of one run over the sites and cannot be kept; "
                "read the field again, or pass the value as an argument"
            )
