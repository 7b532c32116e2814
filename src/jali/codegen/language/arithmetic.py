"""Sums, differences, products with numbers, quotients, signs and conjugates: what is done component by component.

What is simpler is taken only where IEEE arithmetic gives the same bits for all values, and for numbers of the algebra (`leaves.exact`).
Two numbers that the user wrote are combined by the kernel, in its precision, as they would be if they were arguments.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jali.codegen.builder import Builder
from jali.codegen.ir import INT, Node
from jali.codegen.language.conversions import (
    KINDS,
    as_number,
    build,
    common,
    complex_number,
    convert,
    element,
    pairs,
    zero_of,
)
from jali.codegen.language.leaves import const, exact, is_constant, is_exact, is_zero
from jali.codegen.lines import trace_error
from jali.codegen.operation import Fusion, Range, always, degrees, described, operation
from jali.codegen.types import Type

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def elementwise(real: int) -> Callable[[Node], int]:
    """So many flops for each real number of the result."""
    return lambda node: node.type.reals * real


# ---- sums ----------------------------------------------------------------------------------------------


def _write_sum(w: Writer, node: Node) -> None:
    left, right = node.args
    sign = "+" if add.made(node) else "-"
    a, b = w.value(left), w.value(right)
    if node.type.shape and a.array and b.array:
        w.line(f"{node.op}<{node.type.reals}>({w.result(node)}, {a.array}, {b.array});")
    else:
        ctype = "integer" if node.type.kind == "int" else "real"
        w.name(node, [f"{p} {sign} {q}" for p, q in zip(a.parts, b.parts, strict=True)], ctype)


def _folded(nodes: Builder, a: Node, b: Node, combine: Callable[[Any, Any], Any]) -> Node | None:
    """The number that two exact or whole numbers make; None where one of them is another value."""
    if (
        is_constant(a)
        and is_constant(b)
        and a.type == b.type
        and (a.type == INT or (is_exact(a) and is_exact(b)))
    ):
        return (exact if is_exact(a) and is_exact(b) else const)(nodes, combine(a.attrs[0], b.attrs[0]))
    return None


def _sum(nodes: Builder, a: Node, b: Node, op: str) -> Node:
    a, b = as_number(nodes, a, b)
    if a.type.shape != b.type.shape:
        word = "add" if op == "add" else "subtract"
        hint = ""
        if not a.type.shape or not b.type.shape:
            hint = "; a multiple of the unit matrix is written jali.identity(n) * number"
        raise trace_error(f"cannot {word} {a.type} and {b.type}: the shapes differ{hint}")
    a, b = common(nodes, a, b, "a sum")
    if is_zero(b):
        return a
    if is_zero(a) and op == "add":
        return b
    if (folded := _folded(nodes, a, b, operator.add if op == "add" else operator.sub)) is not None:
        return folded
    result = nodes.node(op, (a, b), (), a.type)
    result.keep_symmetry(a, b)
    return result


def _pull_back_difference(
    nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]
) -> Sequence[Node | None]:
    return c, neg(nodes, c) if wanted[1] else None


def _change_of_sum(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    a, b = of
    if a is None or b is None:
        return a if b is None else b if add.made(node) else neg(nodes, b)
    return _sum(nodes, a, b, node.op)


@operation(
    "add",
    _write_sum,
    flops=elementwise(1),
    sign=1,
    linear=degrees(1, 1),
    jointly=True,
    pullback=lambda nodes, node, c, wanted: (c, c),
    tangent=_change_of_sum,
    bounds=lambda node, of, extents: (of[0][0] + of[1][0], of[0][1] + of[1][1]),
    compute=always(operator.add),
)
def add(nodes: Builder, a: Node, b: Node) -> Node:
    """Sum of values of the same shape."""
    return _sum(nodes, a, b, "add")


@operation(
    "sub",
    _write_sum,
    flops=elementwise(1),
    sign=-1,
    linear=degrees(1, 1),
    jointly=True,
    pullback=_pull_back_difference,
    tangent=_change_of_sum,
    bounds=lambda node, of, extents: (of[0][0] - of[1][1], of[0][1] - of[1][0]),
    compute=always(operator.sub),
)
def sub(nodes: Builder, a: Node, b: Node) -> Node:
    """Difference of values of the same shape."""
    return _sum(nodes, a, b, "sub")


def _neg(w: Writer, node: Node) -> None:
    a = w.value(node.args[0])
    if node.type.shape and a.array:
        w.line(f"neg<{node.type.reals}>({w.result(node)}, {a.array});")
    else:
        w.name(node, [f"-{p}" for p in a.parts], "integer" if node.type.kind == "int" else "real")


@operation(
    "neg",
    _neg,
    bounds=lambda node, of, extents: (-of[0][1], -of[0][0]),
    compute=always(operator.neg),
    linear=degrees(1),
    pullback=lambda nodes, node, c, wanted: (described(node)(nodes, c),),
    tangent=lambda nodes, node, of: of[0] and described(node)(nodes, of[0]),
)
def neg(nodes: Builder, a: Node) -> Node:
    """Minus a."""
    if a.type.kind == "bool":
        raise trace_error("a boolean has no sign; ~ is logical not")
    if is_constant(a):
        return (exact if is_exact(a) else const)(nodes, -a.attrs[0])
    if neg.made(a):
        return a.args[0]
    result = nodes.node("neg", (a,), (), a.type)
    result.keep_symmetry(a)
    return result


# ---- products with a number, quotients -----------------------------------------------------------------


def _turn(sign: float, re: str, im: str) -> list[str]:
    """(re, im) times plus or minus i."""
    return [f"-({im})", re] if sign > 0 else [im, f"-({re})"]


def _mul(w: Writer, node: Node) -> None:
    a, b = node.args
    if node.type.kind == "int":
        w.name(node, [f"{w.one(a)} * {w.one(b)}"], "integer")
        return
    value = w.value(b)
    if a.type.kind == "real":
        s = w.one(a)
        if node.type.shape and value.array:
            w.line(f"scale<{node.type.reals}>({w.result(node)}, {s}, {value.array});")
        else:
            w.name(node, [f"{s} * {p}" for p in value.parts])
        return
    sr, si = w.parts(a)
    out = []
    if is_exact(a) and a.attrs[0].real == 0.0:
        for re, im in pairs(value.parts):
            out += (
                [f"-({si} * {im})", f"{si} * {re}"]
                if abs(a.attrs[0].imag) != 1
                else _turn(a.attrs[0].imag, re, im)
            )
        w.name(node, out)
        return
    for re, im in pairs(value.parts):
        out += [f"fms({sr}, {re}, {si} * {im})", f"fma({sr}, {im}, {si} * {re})"]
    w.name(node, out)


def _mul_flops(node: Node) -> int:
    a, b = node.args
    if is_exact(a) and a.attrs[0] in (1j, -1j):
        return 0
    if a.type.kind == "complex" and b.type.kind == "complex":
        return node.type.size * 6
    return node.type.reals


def _is_scaled(product: Node, total: Node) -> bool:
    return (
        product.args[0].type.kind == "real"
        and not product.args[0].type.shape
        and product.type == total.type
        and total.type.kind in ("real", "complex")
    )


def fused_arguments(
    sign: int, product: Node, other: Node, first: bool
) -> tuple[tuple[Node, ...], tuple[Any, ...]]:
    """Arguments, in the order of the formula, and attributes of a product with the sum that it is rounded with."""
    args = (*product.args, other) if first else (other, *product.args)
    return args, (sign, first, *product.attrs)


def fused_terms(node: Node) -> tuple[Node, Node, Node]:
    """The other term, and the two factors."""
    a, b, c = node.args
    return (c, a, b) if node.attrs[1] else (a, b, c)


def _multiply_add(w: Writer, node: Node) -> None:
    other, factor, scaled = fused_terms(node)
    function = "fma" if node.attrs[0] > 0 else "fnma"
    both = zip(w.parts(scaled), w.parts(other), strict=True)
    w.name(node, [f"{function}({w.one(factor)}, {p}, {q})" for p, q in both])


@operation("multiply_add", _multiply_add, flops=elementwise(2), fused=True)
def multiply_add(nodes: Builder, sign: int, product: Node, other: Node, first: bool) -> Node:
    """The sum or difference of a value and a number times another, rounded once."""
    return nodes.node("multiply_add", *fused_arguments(sign, product, other, first), product.type)


def _times(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


def _mul_bounds(node: Node, of: list[Range], extents: Sequence[int]) -> Range:
    corners = [_times(a, b) for a in of[0] for b in of[1]]
    return min(corners), max(corners)


def _number_pulled_back(nodes: Builder, factor: Node, c: Node, kind: str) -> Node:
    """What a number of a kind that multiplies `factor` gets of the product's c: their inner product (`matrices.dot`, which is made of these
    products), or its real part."""
    if factor.type.shape:
        found = nodes.node("dot", (factor, c), (), Type(c.type.kind))
    else:
        found = mul(nodes, conj(nodes, factor), c)
    return found if found.type.kind == kind else nodes.node("real", (found,), (), Type(kind))


def _pull_back_product(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    a, b = node.args
    of_number = _number_pulled_back(nodes, b, c, a.type.kind) if wanted[0] else None
    return of_number, mul(nodes, conj(nodes, a), c) if wanted[1] else None


@operation(
    "mul",
    _mul,
    flops=_mul_flops,
    fusion=Fusion(_is_scaled, multiply_add),
    bounds=_mul_bounds,
    compute=always(operator.mul),
    linear=degrees(1, 1),
    pullback=_pull_back_product,
)
def mul(nodes: Builder, a: Node, b: Node) -> Node:
    """A number times anything, in either order."""
    if "bool" in (a.type.kind, b.type.kind):
        raise trace_error(f"product of {a.type} and {b.type}: use jali.where for a choice")
    if a.type.shape:
        a, b = b, a
    # now a is a number
    if not b.type.shape and (is_constant(b), is_exact(b)) > (is_constant(a), is_exact(a)):
        a, b = b, a
    # now it is the constant, if one of them is
    kind = max(a.type.kind, b.type.kind, key=KINDS.__getitem__)
    if is_constant(a):
        if is_exact(a) and a.attrs[0] == 0:
            return zero_of(nodes, Type(kind, b.type.shape))
        if a.attrs[0] in (1, -1) and (is_exact(a) or a.type.kind != "complex"):
            b = convert(nodes, b, kind)
            return b if a.attrs[0] == 1 else neg(nodes, b)
        if (folded := _folded(nodes, a, b, operator.mul)) is not None:
            return folded
    if kind == "int":
        return nodes.node("mul", (a, b), (), b.type)
    if b.type.shape and (is_exact(b) or (a.type.kind == "complex" and b.type.kind != "complex")):
        parts = [mul(nodes, a, element(nodes, b, k)) for k in range(b.type.size)]
        result = build(nodes, Type(kind, b.type.shape), parts)
        if a.type.kind != "complex":
            result.keep_symmetry(b)
        return result
    a = convert(nodes, a, "real") if a.type.kind == "int" else a
    b = convert(nodes, b, "real") if b.type.kind == "int" else b
    if a.type.kind == "complex" and b.type.kind == "real":
        if is_exact(a):
            parts = [mul(nodes, exact(nodes, part), b) for part in (a.attrs[0].real, a.attrs[0].imag)]
            return complex_number(nodes, *parts)
        a, b = b, a
    result = nodes.node("mul", (a, b), (), b.type)
    if a.type.kind == "real":
        result.keep_symmetry(b)
    return result


def _div(w: Writer, node: Node) -> None:
    a, b = node.args
    if b.type.kind == "real":
        s = w.one(b)
        w.name(node, [f"{p} / {s}" for p in w.parts(a)])
        return
    by = f"d{w.number(node)}"
    w.line(f"const complex_divisor {by} = divisor({', '.join(w.parts(b))});")
    out = []
    for k, (re, im) in enumerate(pairs(w.parts(a))):
        w.line(f"const complex_lane {by}_{k} = divided({re}, {im}, {by});")
        out += [f"{by}_{k}.re", f"{by}_{k}.im"]
    w.assign(node, out)


def _div_flops(node: Node) -> int:
    return node.type.size * 11 if node.args[1].type.kind == "complex" else node.type.reals


def _quotient(a: Any, b: Any) -> Any:
    """IEEE's, where Python refuses to divide."""
    if b != 0:
        return a / b
    if a == 0 or a != a or b != b:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _pull_back_quotient(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    b = node.args[1]
    of_dividend = div(nodes, c, conj(nodes, b))
    of_divisor = neg(nodes, _number_pulled_back(nodes, node, of_dividend, b.type.kind)) if wanted[1] else None
    return of_dividend, of_divisor


def _change_of_quotient(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    (a, b), (_, divisor) = of, node.args
    total = a
    if b is not None:
        less = mul(nodes, b, node)
        total = neg(nodes, less) if a is None else sub(nodes, a, less)
    return total and div(nodes, total, divisor)


@operation(
    "div",
    _div,
    flops=_div_flops,
    compute=always(_quotient),
    linear=degrees(1, 0),
    pullback=_pull_back_quotient,
    tangent=_change_of_quotient,
)
def div(nodes: Builder, a: Node, b: Node) -> Node:
    """a divided by the number b."""
    if b.type.shape:
        raise trace_error(f"cannot divide {a.type} by {b.type}: multiply by .inverse() instead")
    if "bool" in (a.type.kind, b.type.kind):
        raise trace_error(f"cannot divide {a.type} by {b.type}")
    a = convert(nodes, a, "real") if a.type.kind == "int" else a
    b = convert(nodes, b, "real") if b.type.kind == "int" else b
    if is_constant(b) and b.attrs[0] == 0:
        raise trace_error("division by the constant 0")
    if (folded := _folded(nodes, a, b, operator.truediv)) is not None:
        return folded
    if a.type.kind == "real" and b.type.kind == "complex":
        a = convert(nodes, a, "complex")
    result = nodes.node("div", (a, b), (), a.type)
    if b.type.kind == "real":
        result.keep_symmetry(a)
    return result


# ---- conjugates ----------------------------------------------------------------------------------------


def _conj(w: Writer, node: Node) -> None:
    out = []
    for re, im in pairs(w.parts(node.args[0])):
        out += [re, f"(-{im})"]
    w.assign(node, out)


@operation(
    "conj",
    _conj,
    renames=True,
    method="conj",
    degrees=((-1,),),
    keeps_hermitian=True,
    linear=degrees(-1),
    pullback=lambda nodes, node, c, wanted: (described(node)(nodes, c),),
    tangent=lambda nodes, node, of: of[0] and described(node)(nodes, of[0]),
)
def conj(nodes: Builder, a: Node) -> Node:
    """Complex conjugate of every component."""
    if a.type.kind != "complex":
        return a
    if is_constant(a):
        return (exact if is_exact(a) else const)(nodes, a.attrs[0].conjugate())
    if conj.made(a):
        return a.args[0]
    result = nodes.node("conj", (a,), (), a.type)
    result.hermitian |= a.hermitian
    return result
