"""Remainders and quotients of whole numbers, both toward minus infinity, as in Python."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import INT, Node
from jali.codegen.language.leaves import extent, is_constant
from jali.codegen.lines import trace_error
from jali.codegen.operation import Bounds, Operation, Range, always, operation

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def _mod_bounds(node: Node, of: list[Range], extents: Sequence[int]) -> Range:
    (low, high), (_, divisor) = of
    return (low, high) if 0 <= low <= high < of[1][0] else (0, divisor - 1)


def _floordiv_bounds(node: Node, of: list[Range], extents: Sequence[int]) -> Range:
    (low, high), (divisor, _) = of
    return (low if math.isinf(low) else low // divisor, high if math.isinf(high) else high // divisor)


def _division(name: str, function: str, bounds: Bounds, compute: Callable[[int, int], int]) -> Operation:
    """The descriptor of an operation that divides by a fixed number."""

    def text(w: Writer, node: Node) -> None:
        w.name(node, [f"{function}({w.one(node.args[0])}, {w.one(node.args[1])})"], "integer")

    @operation(name, text, flops=lambda node: 1, bounds=bounds, compute=always(compute))
    def divide(nodes: Builder, a: Node, b: Node) -> Node:
        if a.type != INT or b.type != INT:
            raise trace_error(f"{name} needs integers, not {a.type} and {b.type}")
        if not is_constant(b) and not extent.made(b):
            raise trace_error(f"{name} needs a fixed divisor")
        if is_constant(b) and b.attrs[0] <= 0:
            raise trace_error(f"{name} needs a positive divisor, not {b.attrs[0]}")
        return nodes.node(name, (a, b), (), INT)

    return divide


mod = _division("mod", "floor_mod", _mod_bounds, operator.mod)
floordiv = _division("floordiv", "floor_div", _floordiv_bounds, operator.floordiv)
