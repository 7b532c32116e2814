"""Terms of sums that reals would round: in float32 kernels whole numbers of 32 bits have more bits than reals.

Sums are of doubles in either precision, so such numbers become doubles at once, and meet real terms of the same site there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import REAL, Node
from jali.codegen.language.arithmetic import add
from jali.codegen.language.conversions import convert
from jali.codegen.language.leaves import const, is_constant
from jali.codegen.operation import operation

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def _terms(w: Writer, node: Node) -> None:
    constant, parts = node.attrs[0], [""] * node.type.reals
    added = [f"widened({w.one(a)})" for a in node.args if a.type.kind == "int"]
    if constant or not node.args:
        added.append(f"splat_wide({float(constant)!r})")
    if node.args and node.args[0].type.kind != "int":
        parts = [f"widened({part})" for part in w.parts(node.args[0])]
    first = [text for text in (parts[0], *added) if text]
    w.name(node, [" + ".join(first), *parts[1:]], "wide")


@operation(
    "terms",
    _terms,
    flops=lambda node: max(len(node.args) - 1, 0),
    wide=True,
    sendable=False,
    linear=lambda node: [1] * len(node.args),
    jointly=True,
    pullback=lambda nodes, node, c, wanted: [c if want else None for want in wanted],
    tangent=lambda nodes, node, of: of[0],  # whole numbers behind it have no changes
)
def terms(nodes: Builder, value: Node | None, whole: Sequence[Node]) -> Node:
    """A number, if there is one, and whole numbers, added up as doubles; for nothing but a sum."""
    constant = sum(a.attrs[0] for a in whole if is_constant(a))
    given = [a for a in whole if not is_constant(a)]
    first = [] if value is None else [value]
    return nodes.node("terms", [*first, *given], (constant,), REAL if value is None else value.type)


def joined(nodes: Builder, given: Sequence[Node], kind: str = "") -> Node:
    """What one site gives to a sum, as one value: `given` are a value, whole numbers, or a value in front of whole numbers. `kind`: that of
    the value, if not its own."""
    whole = [a for a in given if a.type.kind == "int"]
    value = given[0] if len(whole) < len(given) else None
    if kind:
        value = convert(nodes, const(nodes, 0.0) if value is None else value, kind)
    return terms(nodes, value, whole) if whole or value is None else value


def rounded(nodes: Builder, given: Sequence[Node]) -> Node:
    """The same as a number of the arithmetic, for a field."""
    return functools.reduce(
        functools.partial(add, nodes),
        [convert(nodes, a, "real") if a.type.kind == "int" else a for a in given],
    )
