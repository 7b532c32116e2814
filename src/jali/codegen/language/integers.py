"""Remainders and quotients of whole numbers, both toward minus infinity, as in Python."""

from __future__ import annotations

from jali.codegen.builder import Builder
from jali.codegen.ir import INT, Node
from jali.codegen.lines import trace_error
from jali.codegen.operation import Operation, operation
from jali.codegen.writer import Writer


def _division(name: str, function: str) -> Operation:
    """The descriptor of an operation that divides by a fixed number."""

    def text(w: Writer, node: Node) -> None:
        w.name(node, [f"{function}({w.one(node.args[0])}, {w.one(node.args[1])})"], "integer")

    @operation(name, text, flops=lambda node: 1)
    def divide(nodes: Builder, a: Node, b: Node) -> Node:
        if a.type != INT or b.type != INT:
            raise trace_error(f"{name} needs integers, not {a.type} and {b.type}")
        if b.op not in ("const", "extent"):
            raise trace_error(f"{name} needs a fixed divisor")
        if b.op == "const" and b.attrs[0] <= 0:
            raise trace_error(f"{name} needs a positive divisor, not {b.attrs[0]}")
        return nodes.node(name, (a, b), (), INT)

    return divide


mod = _division("mod", "floor_mod")
floordiv = _division("floordiv", "floor_div")
