"""Values that other ranks send: computed from a neighbour of this rank, or arrived computed from another one (`items.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import BOOL, Node
from jali.codegen.operation import described, operation
from jali.codegen.storage_formats import on_the_wire

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def _received(w: Writer, node: Node) -> None:
    item, cut = w.program.items[node.attrs[0]], node.args
    phased = any(w.lowering.access(slot, item.offset).phased for slot in item.slots)
    entry = w.neighbour(item.offset, phased)
    storage = w.parameter_of("item", offset=item.offset)
    blocks = w.parameter_of("blocks")
    names = [f"g{w.number(value)}" for value in cut]
    for name, value in zip(names, cut, strict=True):
        # a pointer that may name either of two arrays would keep a thread's arrays out of its registers
        w.line(f"real {name}[{value.type.reals}];" if w.lowering.gpu else f"const real* {name};")
    w.line(f"if (({entry.partition(',')[0]} & ENTRY_BLOCK) < w[{blocks}]) {{")
    w.depth += 1
    outer, w.loop, w.branch = w.loop, -1, node.number
    for inner in w.analysis.branches[node.number]:
        if not (described(inner).constant and inner.number in w.values):
            w.emit(inner)
    for name, value in zip(names, cut, strict=True):
        _take(w, name, w.array(value), value.type.reals)
    w.depth -= 1
    w.line("} else {")
    w.depth += 1
    staged = w.buffer(item.reals, node)
    memory = on_the_wire(item.reals, w.program.precision, w.lowering.wire)
    pointer = memory.pointer(w.program.precision, w.lowering.gpu)
    source = f"(const {pointer}*)w[{storage}]"
    if item.batch:
        block = f"int64_t({entry.partition(',')[0]} & ENTRY_BLOCK)"
        source = f"member_of<{item.reals}>({source}, {block}, {item.batch}, member)"
    arguments = f"{staged}, {source}, {entry}"
    sender = w.program.location(item.offset)
    w.line(f"const real* const arrived = stage<{item.reals}>({arguments});  // sent by {sender}")
    first = 0
    for name, value in zip(names, cut, strict=True):
        _take(w, name, f"arrived + {first}", value.type.reals)
        first += value.type.reals
    w.depth -= 1
    w.line("}")
    w.loop, w.branch = outer, None
    w.kept[node.number] = names


def _take(w: Writer, name: str, source: str, reals: int) -> None:
    w.line(f"copy<{reals}>({name}, {source});" if w.lowering.gpu else f"{name} = {source};")


@operation("received", _received, indexes={"items": 0}, encloses=True, sendable=False)
def received(nodes: Builder, number: int, values: Sequence[Node]) -> Node:
    """Halo item `number` of the program: `values`, which are computed in a branch where the neighbour is this rank's."""
    return nodes.node("received", values, (number,), BOOL)


def _received_value(w: Writer, node: Node) -> None:
    w.keep_array(node, w.kept[node.args[0].number][node.attrs[0]])


@operation("received_value", _received_value, renames=True, sendable=False)
def received_value(nodes: Builder, item: Node, index: int) -> Node:
    """One of the values of a halo item."""
    value = item.args[index]
    node = nodes.node("received_value", (item,), (index,), value.type)
    node.keep_symmetry(value)
    node.phase = value.phase
    return node
