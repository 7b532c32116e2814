"""Comparisons of numbers, what is made of their results, and the choice between two values."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jali.codegen.builder import Builder
from jali.codegen.ir import BOOL, Node
from jali.codegen.language.arithmetic import neg
from jali.codegen.language.conversions import as_number, common, number_of, zero_of
from jali.codegen.language.leaves import is_zero
from jali.codegen.lines import trace_error
from jali.codegen.operation import Operation, Range, Text, always, degrees, operation

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def _comparison(name: str, sign: str, compute: Callable[[Any, Any], bool]) -> Operation:
    """The descriptor of a comparison of two scalars."""

    def text(w: Writer, node: Node) -> None:
        a, b = node.args
        if a.type.kind == "int":
            w.name(node, [f"(mask)({w.one(a)} {sign} {w.one(b)})"], "mask")
        else:
            w.name(node, [f"({w.one(a)} {sign} {w.one(b)})"], "mask")

    @operation(name, text, flops=lambda node: 1, compute=always(compute))
    def compare(nodes: Builder, a: Node, b: Node) -> Node:
        a, b = number_of(nodes, a), number_of(nodes, b)
        if a.type.shape or b.type.shape:
            raise trace_error(f"cannot compare {a.type} and {b.type}: compare components")
        a, b = common(nodes, a, b, "comparison")
        if a.type.kind == "complex":
            raise trace_error(
                "complex numbers have no order; compare real parts or .norm2()"
                if name.startswith("less")
                else "complex numbers are compared part by part: .real and .imag"
            )
        return nodes.node(name, (a, b), (), BOOL)

    return compare


less = _comparison("less", "<", operator.lt)
less_equal = _comparison("less_equal", "<=", operator.le)
equal = _comparison("equal", "==", operator.eq)
not_equal = _comparison("not_equal", "!=", operator.ne)


def _logical(name: str, compute: Callable[..., bool], text: Text) -> Operation:
    """The descriptor of an operation on booleans."""

    @operation(name, text, compute=always(compute))
    def logical(nodes: Builder, *args: Node) -> Node:
        for a in args:
            if a.type.kind != "bool":
                raise trace_error(f"logical {name} needs booleans, not {a.type}")
        return nodes.node(name, args, (), BOOL)

    return logical


both = _logical(
    "and", operator.and_, lambda w, n: w.name(n, [f"{w.one(n.args[0])} & {w.one(n.args[1])}"], "mask")
)
either = _logical(
    "or", operator.or_, lambda w, n: w.name(n, [f"{w.one(n.args[0])} | {w.one(n.args[1])}"], "mask")
)
negation = _logical("not", operator.not_, lambda w, n: w.name(n, [f"~{w.one(n.args[0])}"], "mask"))


def _where(w: Writer, node: Node) -> None:
    condition = w.one(node.args[0])
    a, b = w.parts(node.args[1]), w.parts(node.args[2])
    if node.type.kind == "bool":
        w.name(node, [f"({condition} & {a[0]}) | (~{condition} & {b[0]})"], "mask")
        return
    chosen = [f"select({condition}, {p}, {q})" for p, q in zip(a, b, strict=True)]
    w.name(node, chosen, "integer" if node.type.kind == "int" else "real")


def _where_bounds(node: Node, of: list[Range], extents: Sequence[int]) -> Range:
    condition, a, b = node.args
    (low_a, high_a), (low_b, high_b) = of[1:]
    if less.made(condition) and condition.args == (a, b):  # the lesser of two
        return min(low_a, low_b), min(high_a, high_b)
    if less.made(condition) and condition.args == (b, a):
        return max(low_a, low_b), max(high_a, high_b)
    if less.made(condition) and neg.made(a) and a.args == (b,) and is_zero(condition.args[1]):  # a modulus
        return (max(0, low_b, -high_b), max(high_a, high_b))
    return min(low_a, low_b), max(high_a, high_b)


def _pull_back_choice(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    condition, zero = node.args[0], zero_of(nodes, c.type)
    return (
        None,
        where(nodes, condition, c, zero) if wanted[1] else None,
        where(nodes, condition, zero, c) if wanted[2] else None,
    )


def _change_of_choice(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node:
    a, b = (zero_of(nodes, node.type) if change is None else change for change in of[1:])
    return where(nodes, node.args[0], a, b)


@operation(
    "where",
    _where,
    bounds=_where_bounds,
    compute=always(lambda condition, a, b: a if condition else b),
    chooses=True,
    linear=degrees(0, 1, 1),
    jointly=True,
    pullback=_pull_back_choice,
    tangent=_change_of_choice,
)
def where(nodes: Builder, condition: Node, a: Node, b: Node) -> Node:
    """a where the condition holds, else b."""
    if condition.type.kind != "bool":
        raise trace_error(f"where needs a condition, not {condition.type}")
    a, b = as_number(nodes, a, b)
    if a.type.shape != b.type.shape:
        raise trace_error(f"where chooses between {a.type} and {b.type}: the shapes differ")
    if not (a.type.kind == "bool" and b.type.kind == "bool"):
        a, b = common(nodes, a, b, "where")
    result = nodes.node("where", (condition, a, b), (), a.type)
    result.keep_symmetry(a, b)
    return result
