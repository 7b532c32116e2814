"""What a formula begins with: numbers known while tracing, run-time numbers, extents, coordinates, values of fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jali.codegen.builder import Builder
from jali.codegen.ir import BOOL, COMPLEX, INT, REAL, Node
from jali.codegen.lines import trace_error
from jali.codegen.operation import degrees, described, operation
from jali.codegen.types import Element, Type

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def is_constant(a: Node) -> bool:
    """Whether a value is one number that is known while tracing: `a.attrs[0]`."""
    return described(a).constant


def is_fixed(a: Node, members: bool = False) -> bool:
    """Whether a value is made of what is the same at all sites; with `members`, perhaps another one for each member of a batch."""
    waiting, seen = [a], {a.number}
    while waiting:
        node = waiting.pop()
        kind = described(node)
        if kind.reads or kind.draws or not (node.args or kind.everywhere or (members and kind.of_member)):
            return False
        waiting += [b for b in node.args if b.number not in seen]
        seen.update(b.number for b in node.args)
    return True


def of_members(a: Node) -> bool:
    """Whether a whole number is made of that of a member of a batch, and of what is known while tracing: its range is known, too."""
    if a.type != INT or is_fixed(a) or not is_fixed(a, members=True):
        return False
    waiting = [a]
    while waiting:
        node = waiting.pop()
        if not (node.args or described(node).of_member or is_constant(node)):
            return False
        waiting += node.args
    return True


def is_exact(a: Node) -> bool:
    """Whether a value is made of numbers of the algebra alone (`exact`)."""
    if described(a).collects:
        return all(is_exact(part) for part in a.args)
    return is_constant(a) and a.attrs[-1] == "exact"


def is_zero(a: Node) -> bool:
    """Whether a value is the zero of the algebra, so that an accumulation may start from `jali.zero` at no cost."""
    if described(a).collects:
        return all(is_zero(part) for part in a.args)
    return is_constant(a) and a.type.kind != "bool" and a.attrs[0] == 0 and (a.type == INT or is_exact(a))


def is_unit(a: Node) -> bool:
    """Whether a value is the unit matrix of the algebra."""
    if (
        not described(a).collects
        or len(a.type.shape) != 2
        or a.type.shape[0] != a.type.shape[1]
        or not is_exact(a)
    ):
        return False
    step = a.type.shape[0] + 1  # between elements of the diagonal
    return all(part.attrs[0] == (k % step == 0) for k, part in enumerate(a.args))


def _const(w: Writer, node: Node) -> None:
    value = node.attrs[0]
    if node.type.kind == "bool":
        w.assign(node, [f"all_lanes({'true' if value else 'false'})"])
    elif node.type.kind == "int":
        least = "-9223372036854775807 - 1"  # C++ has no literal of the least number of 64 bits
        w.assign(node, [f"splat_integer({least if value == -(1 << 63) else value})"])
    elif node.type.kind == "complex":
        w.assign(node, [w.constant(value.real), w.constant(value.imag)])
    else:
        w.assign(node, [w.constant(value)])


@operation(
    "const",
    _const,
    constant=True,
    everywhere=True,
    bounds=lambda node, of, extents: (node.attrs[0], node.attrs[0]),
)
def const(nodes: Builder, value: float | int | complex | bool) -> Node:
    """A number known while tracing. Python floats keep every bit (they are written as hexadecimal)."""
    if isinstance(value, bool):
        return nodes.node("const", (), (value,), BOOL)
    if isinstance(value, int):
        return nodes.node("const", (), (value,), INT)
    if isinstance(value, complex):
        # repr distinguishes 0.0 from -0.0, which compare equal as dictionary keys
        return nodes.node("const", (), (value, repr(value)), COMPLEX)
    return nodes.node("const", (), (float(value), repr(float(value))), REAL)


def exact(nodes: Builder, value: float | int | complex) -> Node:
    """A number that is algebra, not arithmetic: an entry of `jali.identity` or of a spin matrix, the zero of an element type.

    0 + x and 1 x are x, 0 x is 0 and i x has the parts of x, whatever x is. Numbers that the user wrote have no such rules: -0.0 + 0.0 is
    0.0, 0.0 times infinity is NaN.
    """
    if isinstance(value, complex):
        value = complex(value.real + 0.0, value.imag + 0.0)  # it has one zero
        return nodes.node("const", (), (value, "exact"), COMPLEX)
    if isinstance(value, int):
        return nodes.node("const", (), (value, "exact"), INT)
    return nodes.node("const", (), (value + 0.0, "exact"), REAL)


def _scalar(w: Writer, node: Node) -> None:
    k = node.attrs[0]
    if node.type.kind == "int":
        w.assign(node, [f"s{w.parameter_of('scalar', k)}"])
        return
    w.assign(node, [f"s{w.parameter_of('scalar', k, component=c)}" for c in range(node.type.reals)])


@operation(
    "scalar", _scalar, indexes={"scalars": 0}, everywhere=True, argument=lambda node: (node.attrs[0], 0)
)
def scalar(nodes: Builder, slot: int, type: Type) -> Node:
    """A number (or small array of numbers) that is an argument, known at run time."""
    return nodes.node("scalar", (), (slot,), type)


def _summed(w: Writer, node: Node) -> None:
    number, reduction = node.attrs
    text = f"values[{number}]" if reduction == "sum" else f"{reduction}_of_word(words[{number} * SUM_WORDS])"
    w.name(node, [f"splat((JALI_REAL){text})"])


@operation("summed", _summed, everywhere=True, sendable=False)
def summed(nodes: Builder, number: int, reduction: str) -> Node:
    """What becomes of the words that a launch on a device has left of a sum, a maximum or a minimum."""
    return nodes.node("summed", (), (number, reduction), REAL)


def _whole(w: Writer, node: Node) -> None:
    slot, component = node.attrs
    w.assign(node, [f"s{w.parameter_of('whole', slot, component=component)}"])


@operation("whole", _whole, indexes={"scalars": 0}, everywhere=True, argument=lambda node: node.attrs)
def whole(nodes: Builder, slot: int, component: int) -> Node:
    """One number of an array of whole numbers that is an argument, at a fixed index."""
    return nodes.node("whole", (), (slot, component), INT)


def _table(w: Writer, node: Node) -> None:
    slot = node.attrs[0]
    at = ""
    for k, index in enumerate(node.args):
        extent = f"s{w.parameter_of('array_extent', slot, component=k)}"
        inside = f"clamped({w.one(index)}, {extent})"
        at = f"({at} * {extent} + {inside})" if at else inside
    what = "whole_array" if node.type.kind == "int" else "array"
    numbers = f"a{w.parameter_of(what, slot)}"
    if node.type.kind == "int":
        w.name(node, [f"looked_up({numbers}, {at})"], "integer")
        return
    w.line(f"look_up<{node.type.reals}>({w.result(node)}, {numbers}, {at});")


@operation("table", _table, indexes={"scalars": 0}, looks_up=True, sendable=False)
def table(nodes: Builder, slot: int, indices: Sequence[Node], type: Type) -> Node:
    """A row of an array that is an argument; indices are checked where extents are known (`ranges.py`)."""
    for index in indices:
        if index.type != INT:
            raise trace_error(
                f"an array is indexed by whole numbers of the site, such as X.coordinate(0), not by a {index.type}"
            )
    return nodes.node("table", indices, (slot,), type)


def _extent(w: Writer, node: Node) -> None:
    w.assign(node, [f"splat_integer((lane_integer)extents[{node.attrs[0]}])"])


@operation(
    "extent",
    _extent,
    everywhere=True,
    bounds=lambda node, of, extents: (extents[node.attrs[0]], extents[node.attrs[0]]),
)
def extent(nodes: Builder, axis: int) -> Node:
    """Global extent of the lattice in a direction."""
    return nodes.node("extent", (), (axis,), INT)


def _coordinate(w: Writer, node: Node) -> None:
    axis, step = node.attrs
    w.name(node, [w.coordinate(axis, step)], "integer")


@operation(
    "coordinate",
    _coordinate,
    by_coordinates=True,
    shifted=lambda attrs, by: (attrs[0], attrs[1] + by[attrs[0]]),
    bounds=lambda node, of, extents: (0, extents[node.attrs[0]] - 1),
)
def coordinate(nodes: Builder, axis: int, step: int) -> Node:
    """Global coordinate in a direction of the site `step` further in it."""
    return nodes.node("coordinate", (), (axis, step), INT)


def _load(w: Writer, node: Node) -> None:
    w.load(node)


def _load_shifted(attrs: tuple[Any, ...], by: tuple[int, ...]) -> tuple[Any, ...]:
    slot, offset = attrs
    return slot, tuple([o + b for o, b in zip(offset, by, strict=True)])


@operation("load", _load, indexes={"fields": 0}, reads=True, shifted=_load_shifted)
def load(nodes: Builder, slot: int, offset: tuple[int, ...], type: Type) -> Node:
    """The value of a field at an offset."""
    return nodes.node("load", (), (slot, offset), type)


def _load_of_member(w: Writer, node: Node) -> None:
    w.load(node)


@operation("load_of_member", _load_of_member, indexes={"fields": 0}, reads=True, shifted=_load_shifted)
def load_of_member(nodes: Builder, slot: int, offset: tuple[int, ...], member: Node, type: Type) -> Node:
    """The value at an offset of the member of a batch that a whole number names."""
    return nodes.node("load_of_member", (member,), (slot, offset), type)


def _member(w: Writer, node: Node) -> None:
    w.name(node, ["splat_integer((lane_integer)member)"], "integer")


@operation("member", _member, of_member=True, bounds=lambda node, of, extents: (0, node.attrs[0] - 1))
def member(nodes: Builder, members: int) -> Node:
    """The number of the member of the batch that is computed."""
    return nodes.node("member", (), (members,), INT)


def is_number_of_each_member(numbers: Node, number: Node) -> bool:
    """Whether `numbers[number]` is that of the member that is computed, of an array on a device that has as many as there are members."""
    return member.made(number) and scalar.made(numbers) and numbers.type.shape == (number.attrs[0],)


def _scalar_of_member(w: Writer, node: Node) -> None:
    slot, count, is_complex = node.attrs
    first = w.parameter_of("scalar", slot)
    step = (
        f"member * int64_t(w[{w.parameter_of('scalar', slot, component=2 if is_complex else 1)}] - w[{first}])"
        if count > 1
        else "0"
    )
    parts = [f"w[{w.parameter_of('scalar', slot, component=k)}]" for k in range(2 if is_complex else 1)]
    w.name(node, [f"splat((JALI_REAL)*(const double*)({part} + {step}))" for part in parts])


@operation("scalar_of_member", _scalar_of_member, indexes={"scalars": 0}, of_member=True, sendable=False)
def scalar_of_member(nodes: Builder, numbers: Node, number: Node) -> Node:
    """Of an array that stays on a device, a number for each member of a batch, that of the member that is computed."""
    kind = numbers.type.kind
    return nodes.node(
        "scalar_of_member", (), (numbers.attrs[0], number.attrs[0], kind == "complex"), Type(kind)
    )


def know_symmetry(node: Node, element: Element) -> None:
    """What a field of this element is known to hold."""
    node.antihermitian |= element.codec == "algebra"
    node.hermitian |= element.codec == "hermitian"


def _stored(w: Writer, node: Node) -> None:
    w.stored(node)


@operation(
    "stored",
    _stored,
    indexes={"fields": 0},
    linear=degrees(1),  # but for rounding, whose derivative is taken to be the identity
    pullback=lambda nodes, node, c, wanted: (c,),
    tangent=lambda nodes, node, of: of[0],
)
def stored(nodes: Builder, slot: int, value: Node) -> Node:
    """What a field gives back after a value was written to it: encoded and decoded."""
    node = nodes.node("stored", (value,), (slot,), value.type)
    node.keep_symmetry(value)
    return node


def read_after(nodes: Builder, slot: int, storage: Any, value: Node) -> Node:
    """What reading a field at a site gives after `value` was written there: what memory holds."""
    return value if storage.exact(nodes.precision) else stored(nodes, slot, value)


def _held(w: Writer, node: Node) -> None:
    w.assign(node, w.parts(node.args[0]))


@operation("held", _held, renames=True, method="held", holds=True)
def held(nodes: Builder, a: Node) -> Node:
    """The value itself, which derivatives take to be constant."""
    node = nodes.node("held", (a,), (), a.type)
    node.keep_symmetry(a)
    return node
