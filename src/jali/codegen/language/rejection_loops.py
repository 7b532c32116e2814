"""Rejection loops: an attempt is repeated, lane by lane, until it is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jali.codegen.builder import Builder
from jali.codegen.ir import BOOL, Node
from jali.codegen.lines import trace_error
from jali.codegen.operation import operation
from jali.codegen.types import Type

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def _repeat(w: Writer, node: Node) -> None:
    number, count = node.attrs
    loop = w.program.loops[number]
    accept, values, others = node.args[0], node.args[1 : 1 + count], node.args[1 + count :]
    kept: list[list[str]] = []
    for k, other in enumerate(others):
        names = []
        for c, part in enumerate(w.parts(other)):
            names.append(f"r{number}_{k}_{c}")
            ctype = {"int": "integer", "bool": "mask"}.get(other.type.kind, "real")
            w.line(f"{ctype} {names[-1]} = {part};")
        kept.append(names)
    start = "~active" if w.lowering.masked else "all_lanes(false)"
    w.line(f"mask done{number} = {start};")
    w.line(f"for (uint32_t attempt = 0; attempt < {loop.limit} && !all(done{number}); ++attempt) {{")
    w.depth += 1
    outer, w.loop = w.loop, number
    for inner in w.analysis.bodies[number]:
        w.emit(inner)
    w.line(f"const mask accepted = {w.one(accept)} & ~done{number};")
    for k, value in enumerate(values):
        for c, part in enumerate(w.parts(value)):
            name = kept[k][c]
            if value.type.kind == "bool":
                w.line(f"{name} = (accepted & {part}) | (~accepted & {name});")
            else:
                w.line(f"{name} = select(accepted, {part}, {name});")
    w.line(f"done{number} = done{number} | accepted;")
    w.loop = outer
    w.depth -= 1
    w.line("}")
    if loop.counted:
        w.line(f"if (!all(done{number})) count_exhausted(counters, lanes_unset(done{number}));")
    w.kept[node.number] = kept


def _no_derivative(nodes: Builder, *of: Any) -> Any:
    raise trace_error(
        "what repeat_until accepts has no derivative: hold what it is made of constant, x.held()"
    )


@operation(
    "repeat",
    _repeat,
    indexes={"loops": 0},
    repeats=True,
    sendable=False,
    pullback=_no_derivative,
    tangent=_no_derivative,
)
def repeat(nodes: Builder, loop: int, accept: Node, values: Sequence[Node], others: Sequence[Node]) -> Node:
    """A loop that ends with `values` where `accept` holds, and with `others` where it never does."""
    node = nodes.node("repeat", (accept, *values, *others), (loop, len(values)), BOOL)
    node.loops = frozenset()
    return node


def _repeat_value(w: Writer, node: Node) -> None:
    w.assign(node, w.kept[node.args[0].number][node.attrs[0]])


@operation(
    "repeat_value",
    _repeat_value,
    renames=True,
    sendable=False,
    pullback=_no_derivative,
    tangent=_no_derivative,
)
def repeat_value(nodes: Builder, repeated: Node, index: int, type: Type) -> Node:
    """One of the values that a loop ends with."""
    return nodes.node("repeat_value", (repeated,), (index,), type)
