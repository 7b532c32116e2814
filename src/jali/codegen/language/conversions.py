"""Components and kinds: vectors and matrices from numbers and back, whole numbers as real ones, real ones as complex ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import COMPLEX, Node
from jali.codegen.language.leaves import const, exact, is_constant, is_exact
from jali.codegen.lines import trace_error
from jali.codegen.operation import always, degrees, described, operation
from jali.codegen.types import Type

if TYPE_CHECKING:
    from jali.codegen.writer import Writer

KINDS = {"bool": 0, "int": 1, "real": 2, "complex": 3}  # values are converted upwards only


def _element(w: Writer, node: Node) -> None:
    k = node.attrs[0]
    each = 2 if node.type.kind == "complex" else 1
    w.assign(node, w.parts(node.args[0])[each * k : each * (k + 1)])


def _pull_back_component(
    nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]
) -> Sequence[Node | None]:
    type, index = node.args[0].type, node.attrs[0]
    zero = zero_of(nodes, Type(type.kind))
    return (build(nodes, type, [c if k == index else zero for k in range(type.size)]),)


@operation(
    "element",
    _element,
    renames=True,
    component=True,
    linear=degrees(1),
    pullback=_pull_back_component,
    tangent=lambda nodes, node, of: of[0] and described(node)(nodes, of[0], node.attrs[0]),
)
def element(nodes: Builder, a: Node, index: int) -> Node:
    """Component `index` (row-major) of a vector or matrix."""
    if build.made(a):
        return a.args[index]
    return nodes.node("element", (a,), (index,), Type(a.type.kind))


def number_of(nodes: Builder, a: Node) -> Node:
    """What is made of links of U(1) as the number that it is; anything else as it is."""
    return element(nodes, a, 0) if a.phase and a.type.shape == (1, 1) else a


def _build(w: Writer, node: Node) -> None:
    w.assign(node, [p for a in node.args for p in w.parts(a)])


def _pull_back_components(
    nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]
) -> Sequence[Node | None]:
    return [element(nodes, c, k) if want else None for k, want in enumerate(wanted)]


def _change_of_components(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node:
    zero = zero_of(nodes, Type(node.type.kind))
    return build(nodes, node.type, [zero if part is None else part for part in of])


@operation(
    "build",
    _build,
    renames=True,
    collects=True,
    linear=lambda node: [1] * len(node.args),
    jointly=True,
    pullback=_pull_back_components,
    tangent=_change_of_components,
)
def build(nodes: Builder, type: Type, components: Sequence[Node]) -> Node:
    """A vector or matrix from its components, row by row; all are converted to the type's kind."""
    parts = [convert(nodes, c, type.kind) for c in components]
    first = parts[0]
    if element.made(first) and first.args[0].type == type:
        whole = first.args[0]
        if all(element.made(p) and p.args[0] is whole and p.attrs == (k,) for k, p in enumerate(parts)):
            return whole
    return nodes.node("build", parts, (), type)


def _to_real(w: Writer, node: Node) -> None:
    w.name(node, [f"to_real({p})" for p in w.parts(node.args[0])])


@operation("to_real", _to_real)
def to_real(nodes: Builder, a: Node) -> Node:
    """Whole numbers as real ones."""
    return nodes.node("to_real", (a,), (), Type("real", a.type.shape))


def _complex(w: Writer, node: Node) -> None:
    w.assign(node, [w.one(node.args[0]), w.one(node.args[1])])


def _part(nodes: Builder, c: Node, k: int) -> Node:
    """The real part of a complex number, or with k = 1 the imaginary one (`parts.py`, which is made of what stands here)."""
    if complex_number.made(c):
        return c.args[k]
    if is_exact(c):
        return exact(nodes, c.attrs[0].imag if k else c.attrs[0].real)
    return nodes.node("imag" if k else "real", (c,), (), Type("real"))


def _pull_back_parts(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    return [_part(nodes, c, k) if want else None for k, want in enumerate(wanted)]


def _change_of_parts(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node:
    re, im = (zero_of(nodes, Type("real")) if part is None else part for part in of)
    return complex_number(nodes, re, im)


@operation(
    "complex",
    _complex,
    renames=True,
    compute=always(complex),
    linear=degrees(1, 1),
    jointly=True,
    pullback=_pull_back_parts,
    tangent=_change_of_parts,
)
def complex_number(nodes: Builder, re: Node, im: Node) -> Node:
    """re + i im."""
    re, im = convert(nodes, re, "real"), convert(nodes, im, "real")
    if re.type.shape or im.type.shape:
        raise trace_error("jali.complex takes two real numbers")
    if is_constant(re) and is_constant(im):
        both = is_exact(re) and is_exact(im)
        return (exact if both else const)(nodes, complex(re.attrs[0], im.attrs[0]))
    return nodes.node("complex", (re, im), (), COMPLEX)


def convert(nodes: Builder, a: Node, kind: str) -> Node:
    """`a` with kind `int`, `real` or `complex`; only upwards, except that nothing converts booleans."""
    if a.type.kind == kind:
        return a
    if a.type.kind == "bool" or kind == "bool" or KINDS[kind] < KINDS[a.type.kind]:
        hint = "; jali.where(condition, 1.0, 0.0) makes a number of it" if a.type.kind == "bool" else ""
        if kind == "int" and not hint:
            hint = ": kernels make no whole numbers of real ones, only the labels of sums take jali.floor(x) and its like"
        raise trace_error(f"a {a.type} cannot be used as a {kind} value{hint}")
    if is_constant(a):
        value = a.attrs[0]
        return (exact if is_exact(a) else const)(nodes, float(value) if kind == "real" else complex(value))
    if a.type.kind == "int":
        return convert(nodes, to_real(nodes, a), kind)
    if a.type.shape:
        parts = [convert(nodes, element(nodes, a, k), kind) for k in range(a.type.size)]
        result = build(nodes, Type(kind, a.type.shape), parts)
        result.hermitian |= a.hermitian
        return result
    return nodes.node("complex", (a, const(nodes, 0.0)), (), COMPLEX)


def zero_of(nodes: Builder, type: Type) -> Node:
    """The zero of a type, of which nothing is left in a sum."""
    scalar = exact(nodes, {"complex": 0.0j, "int": 0}.get(type.kind, 0.0))
    result = build(nodes, type, [scalar] * type.size) if type.shape else scalar
    if len({*type.shape}) == 1 and len(type.shape) == 2:
        result.antihermitian |= type.kind == "complex"
        result.hermitian = True
    return result


def as_number(nodes: Builder, a: Node, b: Node) -> tuple[Node, Node]:
    """Both, where one of them is a number and the other a 1 x 1 matrix, such as a link of U(1), as numbers."""
    if {a.type.shape, b.type.shape} != {(), (1, 1)}:
        return a, b
    return (element(nodes, a, 0), b) if a.type.shape else (a, element(nodes, b, 0))


def common(nodes: Builder, a: Node, b: Node, what: str) -> tuple[Node, Node]:
    """Both with the higher of their kinds."""
    kind = a.type.kind if KINDS[a.type.kind] >= KINDS[b.type.kind] else b.type.kind
    if "bool" in (a.type.kind, b.type.kind):
        raise trace_error(f"{what} of {a.type} and {b.type}: booleans are combined with &, | and ~")
    return convert(nodes, a, kind), convert(nodes, b, kind)


def pairs(parts: list[str]) -> list[tuple[str, str]]:
    """Texts of the real and imaginary parts of complex components."""
    return list(zip(parts[::2], parts[1::2], strict=True))
