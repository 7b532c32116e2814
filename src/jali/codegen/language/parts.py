"""Real and imaginary parts; of a trace only what they need is computed."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import Node
from jali.codegen.language.arithmetic import add
from jali.codegen.language.conversions import build, complex_number, element
from jali.codegen.language.leaves import const, exact, is_constant, is_exact
from jali.codegen.language.matrices import retrace_mul, trace, trace_mul
from jali.codegen.lines import trace_error
from jali.codegen.operation import PARTS, always, degrees, described, operation
from jali.codegen.types import Type

if TYPE_CHECKING:
    from jali.codegen.writer import Writer

_DEGREES = ((1,), (-1,))  # a part is half the sum or difference of a number and its conjugate


def _diagonal_sum(nodes: Builder, a: Node, part: Callable[[Builder, Node], Node]) -> Node:
    """Sum of one part of the diagonal elements: the other part of the trace is not wanted."""
    n = a.type.shape[0]
    total = part(nodes, element(nodes, a, 0))
    for i in range(1, n):
        total = add(nodes, total, part(nodes, element(nodes, a, i * n + i)))
    return total


def _as_part(nodes: Builder, c: Node, unit: complex) -> Node:
    """Real values as real or imaginary parts of complex ones, the others exactly zero."""
    if c.type.shape:
        parts = [_as_part(nodes, element(nodes, c, k), unit) for k in range(c.type.size)]
        return build(nodes, Type("complex", c.type.shape), parts)
    zero = exact(nodes, 0.0)
    return complex_number(nodes, *((c, zero) if unit == 1 else (zero, c)))


def _real(w: Writer, node: Node) -> None:
    w.assign(node, w.parts(node.args[0])[::2])


@operation(
    "real",
    _real,
    renames=True,
    method="real",
    is_property=True,
    degrees=_DEGREES,
    compute=always(operator.attrgetter("real")),
    linear=degrees(PARTS),
    pullback=lambda nodes, node, c, wanted: (_as_part(nodes, c, 1.0),),
    tangent=lambda nodes, node, of: of[0] and described(node)(nodes, of[0]),
)
def real(nodes: Builder, a: Node) -> Node:
    """Real part."""
    if a.type.kind in ("real", "int"):
        return a
    if a.type.kind == "bool":
        raise trace_error("a boolean has no real part")
    if is_constant(a):
        return (exact if is_exact(a) else const)(nodes, a.attrs[0].real)
    if complex_number.made(a):
        return a.args[0]
    if trace_mul.made(a):
        return retrace_mul(nodes, a)
    if trace.made(a):
        return _diagonal_sum(nodes, a.args[0], real)
    return nodes.node("real", (a,), (), Type("real", a.type.shape))


def _imag(w: Writer, node: Node) -> None:
    w.assign(node, w.parts(node.args[0])[1::2])


@operation(
    "imag",
    _imag,
    renames=True,
    method="imag",
    is_property=True,
    degrees=_DEGREES,
    compute=always(operator.attrgetter("imag")),
    linear=degrees(PARTS),
    pullback=lambda nodes, node, c, wanted: (_as_part(nodes, c, 1j),),
    tangent=lambda nodes, node, of: of[0] and described(node)(nodes, of[0]),
)
def imag(nodes: Builder, a: Node) -> Node:
    """Imaginary part."""
    if a.type.kind != "complex":
        if a.type.shape:
            raise trace_error(f"the imaginary part of {a.type} is zero; did you mean another value?")
        return const(nodes, 0.0)
    if is_constant(a):
        return (exact if is_exact(a) else const)(nodes, a.attrs[0].imag)
    if complex_number.made(a):
        return a.args[1]
    if trace.made(a):
        return _diagonal_sum(nodes, a.args[0], imag)
    return nodes.node("imag", (a,), (), Type("real", a.type.shape))
