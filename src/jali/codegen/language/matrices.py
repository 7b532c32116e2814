"""Products, adjoints, traces and norms of matrices and vectors.

An adjoint is folded into the product that takes it, and of a product whose trace is wanted only the trace is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import COMPLEX, REAL, Node
from jali.codegen.language.arithmetic import add, conj, fused_arguments, fused_terms, mul
from jali.codegen.language.conversions import as_number, build, common, convert, element, pairs, zero_of
from jali.codegen.language.leaves import exact, is_fixed, is_unit, is_zero, load
from jali.codegen.lines import trace_error
from jali.codegen.operation import PARTS, Fusion, degrees, described, operation
from jali.codegen.types import Type

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def need_matrix(a: Node, what: str, square: bool = False) -> None:
    """Raises TraceError, a sentence that begins with `what`, for a value that is not a (square) matrix."""
    if len(a.type.shape) != 2 or (square and a.type.shape[0] != a.type.shape[1]):
        kind = "a square matrix" if square else "a matrix"
        raise trace_error(f"{what} needs {kind}, not {a.type}")


# ---- products ------------------------------------------------------------------------------------------


def _flags(adjoints: Sequence[bool]) -> str:
    """Template arguments: which factors are adjoint."""
    return ", ".join("true" if adjoint else "false" for adjoint in adjoints)


def _product_extents(node: Node, a: Node, adjoints: Sequence[bool]) -> tuple[int, int, int]:
    """Rows, inner extent and columns of a matrix product whose left factor is `a`."""
    rows, *cols = node.type.shape
    return rows, a.type.shape[0 if adjoints[0] else 1], cols[0] if cols else 1


def _sizes(node: Node, a: Node, adjoints: Sequence[bool]) -> str:
    """Template arguments of a matrix product: its extents, and which factors are adjoint."""
    return ", ".join([*map(str, _product_extents(node, a, adjoints)), _flags(adjoints)])


def _matmul(w: Writer, node: Node) -> None:
    a, b = w.array(node.args[0]), w.array(node.args[1])
    op = "matmul" if node.type.kind == "complex" else "matmul_real"
    w.line(f"{op}<{_sizes(node, node.args[0], node.attrs)}>({w.result(node)}, {a}, {b});")


def _matmul_flops(node: Node) -> int:
    a, b = node.args
    return _product_flops(node, a, b, node.attrs)


def _product_flops(node: Node, a: Node, b: Node, adjoints: Sequence[bool]) -> int:
    rows, inner, cols = _product_extents(node, a, adjoints)
    kinds = {a.type.kind, b.type.kind}
    if kinds == {"complex"}:
        return rows * cols * (8 * inner - 2)
    return rows * cols * (2 * inner - 1 if kinds == {"real"} else 4 * inner - 2)


def _is_complex_term(product: Node, total: Node) -> bool:
    return product.type.kind == "complex" and total.type == product.type


def _matmul_add(w: Writer, node: Node) -> None:
    other, *factors = fused_terms(node)
    a, b = map(w.array, factors)
    op = "matmul_add" if node.attrs[0] > 0 else "matmul_sub"
    target = _accumulator(w, node, other, keep={a, b})
    w.line(f"{op}<{_sizes(node, factors[0], node.attrs[2:])}>({target}, {a}, {b});")


def _matmul_add_flops(node: Node) -> int:
    _, a, b = fused_terms(node)
    return node.type.reals + _product_flops(node, a, b, node.attrs[2:])


@operation("matmul_add", _matmul_add, flops=_matmul_add_flops, fused=True)
def matmul_add(nodes: Builder, sign: int, product: Node, other: Node, first: bool) -> Node:
    """The sum or difference of a value and a matrix product, rounded as multiply-adds."""
    return nodes.node("matmul_add", *fused_arguments(sign, product, other, first), product.type)


def _accumulator(w: Writer, node: Node, left: Node, keep: set[str]) -> str:
    """An array that holds `left` and may be overwritten with the node's value; never one of `keep`."""
    array = w.value(left).array
    if (
        array is not None
        and array not in keep
        and w.loop is None
        and not described(left).renames
        and not load.made(left)
        and w.arrays.hand_over(array, left, node, w.position)
    ):
        w.keep_array(node, array)
        return array
    source = w.value(left)
    target = w.result(node)
    if source.array is not None:
        w.line(f"copy<{node.type.reals}>({target}, {source.array});")
    else:
        for k, part in enumerate(source.parts):
            w.line(f"{target}[{k}] = {part};")
    return target


def _turned(nodes: Builder, a: Node, is_adjoint: bool) -> Node:
    """A factor as it stands in a product."""
    return adjoint(nodes, a) if is_adjoint else a


def _of_adjoints(node: Node) -> Sequence[int]:
    """Degrees of the factors of a product, which may be adjoint ones."""
    return [-1 if is_adjoint else 1 for is_adjoint in node.attrs]


def _pull_back_matmul(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    (a, b), (adjoint_a, adjoint_b) = node.args, node.attrs
    found: list[Node | None] = [None, None]
    if wanted[0] and len(b.type.shape) == 1:
        found[0] = outer(nodes, b, c) if adjoint_a else outer(nodes, c, b)
    elif wanted[0]:
        right = _turned(nodes, b, adjoint_b)
        found[0] = (
            matmul(nodes, right, adjoint(nodes, c)) if adjoint_a else matmul(nodes, c, adjoint(nodes, right))
        )
    if wanted[1]:
        left = _turned(nodes, a, adjoint_a)
        found[1] = (
            matmul(nodes, adjoint(nodes, c), left) if adjoint_b else matmul(nodes, adjoint(nodes, left), c)
        )
    return found


@operation(
    "matmul",
    _matmul,
    flops=_matmul_flops,
    fusion=Fusion(_is_complex_term, matmul_add),
    linear=_of_adjoints,
    pullback=_pull_back_matmul,
)
def matmul(nodes: Builder, a: Node, b: Node) -> Node:
    """Matrix product; adjoints of either factor are folded into the product."""
    if len(a.type.shape) != 2 or a.type.shape[1] != b.type.shape[0]:
        raise trace_error(f"cannot multiply {a.type} by {b.type}: the inner extents do not match")
    a, b = common(nodes, a, b, "a product")
    shape = (a.type.shape[0], *b.type.shape[1:])
    if is_zero(a) or is_zero(b):
        return zero_of(nodes, Type(a.type.kind, shape))
    if is_unit(a) or is_unit(b):
        return b if is_unit(a) else a
    adjoint_a = adjoint.made(a)
    adjoint_b = adjoint.made(b) and len(b.type.shape) == 2
    a = a.args[0] if adjoint_a else a
    b = b.args[0] if adjoint_b else b
    return nodes.node("matmul", (a, b), (adjoint_a, adjoint_b), Type(a.type.kind, shape))


def product(nodes: Builder, a: Node, b: Node) -> Node:
    """Product of the algebra: a number times anything, a matrix times a matrix or vector.

    A 1 x 1 matrix, such as a link of U(1), is a factor to whatever it does not fit as a matrix, and what is made of links of U(1) is a
    number where it meets a complex number that belongs to the site.
    """
    if a.type.shape and b.type.shape:
        if a.type.shape == (1, 1) and b.type.shape[0] != 1:
            return mul(nodes, element(nodes, a, 0), b)
        if b.type.shape == (1, 1) and len(a.type.shape) == 2 and a.type.shape[1] != 1:
            return mul(nodes, a, element(nodes, b, 0))
        return matmul(nodes, a, b)
    number, other = (b, a) if a.type.shape else (a, b)
    if other.phase and number.type.kind == "complex" and not is_fixed(number):
        a, b = as_number(nodes, a, b)
    return mul(nodes, a, b)


def _outer(w: Writer, node: Node) -> None:
    a, b = w.parts(node.args[0]), w.parts(node.args[1])
    out = []
    if node.type.kind == "real":
        out = [f"{p} * {q}" for p in a for q in b]
    else:
        for ar, ai in pairs(a):
            for br, bi in pairs(b):
                out += [f"fma({ar}, {br}, {ai} * {bi})", f"fms({ai}, {br}, {ar} * {bi})"]
    w.name(node, out)


def _outer_flops(node: Node) -> int:
    return node.type.size * (6 if node.type.kind == "complex" else 1)


def _pull_back_outer(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    a, b = node.args
    return (
        matmul(nodes, c, b) if wanted[0] else None,
        matmul(nodes, adjoint(nodes, c), a) if wanted[1] else None,
    )


@operation(
    "outer",
    _outer,
    flops=_outer_flops,
    method="outer",
    degrees=((1, -1),),
    linear=degrees(1, -1),
    pullback=_pull_back_outer,
)
def outer(nodes: Builder, a: Node, other: Node) -> Node:
    """The matrix self_i conj(other_j) of two vectors."""
    if len(a.type.shape) != 1 or len(other.type.shape) != 1:
        raise trace_error(f"outer needs two vectors, not {a.type} and {other.type}")
    a, other = common(nodes, a, other, "outer")
    return nodes.node("outer", (a, other), (), Type(a.type.kind, (*a.type.shape, *other.type.shape)))


# ---- rows and columns exchanged ------------------------------------------------------------------------


def _adjoint(w: Writer, node: Node) -> None:
    rows, cols = node.args[0].type.shape
    parts = w.parts(node.args[0])
    out = []
    for j in range(cols):
        for i in range(rows):
            if node.type.kind == "complex":
                out += [parts[2 * (i * cols + j)], f"(-{parts[2 * (i * cols + j) + 1]})"]
            else:
                out.append(parts[i * cols + j])
    w.assign(node, out)


@operation(
    "adjoint",
    _adjoint,
    renames=True,
    method="dagger",
    degrees=((-1,),),
    keeps_hermitian=True,
    linear=degrees(-1),
    pullback=lambda nodes, node, c, wanted: (described(node)(nodes, c),),
    tangent=lambda nodes, node, of: of[0] and described(node)(nodes, of[0]),
)
def adjoint(nodes: Builder, a: Node) -> Node:
    """Hermitian conjugate of a matrix, complex conjugate of a number."""
    if not a.type.shape:
        return conj(nodes, a)
    if len(a.type.shape) != 2:
        raise trace_error(f"{a.type} has no dagger; use v.dot(w) for the product of v-dagger and w")
    if adjoint.made(a):
        return a.args[0]
    if a.hermitian:
        return a  # but for signs of zeros
    result = nodes.node("adjoint", (a,), (), Type(a.type.kind, a.type.shape[::-1]))
    result.keep_symmetry(a)  # an anti-Hermitian one is -a but for signs of zeros
    return result


def transpose(nodes: Builder, a: Node) -> Node:
    """Rows and columns exchanged."""
    need_matrix(a, "transpose")
    rows, cols = a.type.shape
    parts = [element(nodes, a, i * cols + j) for j in range(cols) for i in range(rows)]
    result = build(nodes, Type(a.type.kind, (cols, rows)), parts)
    result.hermitian |= a.hermitian
    return result


# ---- traces --------------------------------------------------------------------------------------------


def _trace(w: Writer, node: Node) -> None:
    n = node.args[0].type.shape[0]
    parts = w.parts(node.args[0])
    each = 2 if node.type.kind == "complex" else 1
    w.name(node, [" + ".join(parts[each * (i * n + i) + c] for i in range(n)) for c in range(each)])


def _trace_flops(node: Node) -> int:
    return (node.args[0].type.shape[0] - 1) * node.type.reals


def _pull_back_trace(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    n, zero = node.args[0].type.shape[0], zero_of(nodes, c.type)
    return (build(nodes, node.args[0].type, [c if i == j else zero for i in range(n) for j in range(n)]),)


@operation(
    "trace",
    _trace,
    flops=_trace_flops,
    method="trace",
    degrees=((1,),),
    linear=degrees(1),
    pullback=_pull_back_trace,
)
def trace(nodes: Builder, a: Node) -> Node:
    """Sum of the diagonal of a square matrix; of a complex number, which a link of U(1) may have become, itself."""
    if a.type == COMPLEX:
        return a
    need_matrix(a, "trace", square=True)
    if build.made(a):
        n = a.type.shape[0]
        total = a.args[0]
        for i in range(1, n):
            total = add(nodes, total, a.args[i * n + i])
        return total
    if matmul.made(a):
        return (trace_mul if a.type.kind == "complex" else retrace_mul)(nodes, a)
    return nodes.node("trace", (a,), (), Type(a.type.kind))


def _extents(node: Node) -> tuple[int, int]:
    """Rows and inner extent of a product whose trace is taken."""
    a, adjoint_a = node.args[0], node.attrs[0]
    return a.type.shape[1 if adjoint_a else 0], a.type.shape[0 if adjoint_a else 1]


def _retrace_mul(w: Writer, node: Node) -> None:
    a, b = node.args
    rows, inner = _extents(node)
    op = "retrace_mul" if a.type.kind == "complex" else "trace_mul_real"
    w.name(node, [f"{op}<{rows}, {inner}, {_flags(node.attrs)}>({w.array(a)}, {w.array(b)})"])


def _retrace_mul_flops(node: Node) -> int:
    size = node.args[0].type.size
    return 4 * size - 1 if node.args[0].type.kind == "complex" else 2 * size - 1


def _pull_back_trace_of_product(
    nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]
) -> Sequence[Node | None]:
    """Of c and tr(A B), with A and B as they stand there: c B^dagger and c A^dagger."""
    (a, b), (adjoint_a, adjoint_b) = node.args, node.attrs
    found: list[Node | None] = [None, None]
    for k, (other, of_other, own) in enumerate(((b, adjoint_b, adjoint_a), (a, adjoint_a, adjoint_b))):
        if wanted[k]:
            by = conj(nodes, c) if own else c  # (c F^dagger)^dagger = conj(c) F
            found[k] = mul(nodes, by, _turned(nodes, other, of_other == own))
    return found


@operation(
    "retrace_mul",
    _retrace_mul,
    flops=_retrace_mul_flops,
    linear=degrees(PARTS, PARTS),
    pullback=_pull_back_trace_of_product,
)
def retrace_mul(nodes: Builder, a: Node) -> Node:
    """Real part of the trace of a matrix product, or of its complex trace."""
    return nodes.node("retrace_mul", a.args, a.attrs, REAL)


def _trace_mul(w: Writer, node: Node) -> None:
    rows, inner = _extents(node)
    x, y = w.array(node.args[0]), w.array(node.args[1])
    w.line(f"trace_mul<{rows}, {inner}, {_flags(node.attrs)}>({w.result(node)}, {x}, {y});")


@operation(
    "trace_mul",
    _trace_mul,
    flops=lambda node: 8 * node.args[0].type.size - 2,
    linear=_of_adjoints,
    pullback=_pull_back_trace_of_product,
)
def trace_mul(nodes: Builder, a: Node) -> Node:
    """Trace of a product of complex matrices."""
    return nodes.node("trace_mul", a.args, a.attrs, Type(a.type.kind))


# ---- sums over components ------------------------------------------------------------------------------


def _norm2(w: Writer, node: Node) -> None:
    a = node.args[0]
    if a.type.shape:  # not by how the value happens to be kept: the order of the sum is a matter of types
        w.name(node, [f"norm2<{a.type.reals}>({w.array(a)})"])
        return
    text = ""
    for p in w.parts(a):
        text = f"fma({p}, {p}, {text})" if text else f"{p} * {p}"
    w.name(node, [text])


def _change_of_norm2(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    if of[0] is None:
        return None
    product = dot(nodes, node.args[0], of[0])
    if product.type.kind == "complex":
        product = nodes.node("real", (product,), (), REAL)  # `parts.py`, which is made of what stands here
    return mul(nodes, exact(nodes, 2.0), product)


@operation(
    "norm2",
    _norm2,
    flops=lambda node: 2 * node.args[0].type.reals - 1,
    method="norm2",
    degrees=((0,),),
    linear=degrees(0),
    pullback=lambda nodes, node, c, wanted: (mul(nodes, mul(nodes, exact(nodes, 2.0), c), node.args[0]),),
    tangent=_change_of_norm2,
)
def norm2(nodes: Builder, a: Node) -> Node:
    """Sum of the squared moduli of all components, a real number."""
    a = convert(nodes, a, "real") if a.type.kind == "int" else a
    if a.type.kind == "bool":
        raise trace_error("norm2 of a boolean")
    return nodes.node("norm2", (a,), (), REAL)


def _dot(w: Writer, node: Node) -> None:
    a, b = node.args
    x, y = w.array(a), w.array(b)
    if node.type.kind == "complex":
        w.line(f"dot<{a.type.reals}>({w.result(node)}, {x}, {y});")
    else:
        w.name(node, [f"dot_real<{a.type.reals}>({x}, {y})"])


def _dot_flops(node: Node) -> int:
    size = node.args[0].type.size
    return 8 * size - 2 if node.type.kind == "complex" else 2 * size - 1


def _pull_back_dot(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    a, b = node.args
    return (
        mul(nodes, conj(nodes, c), b) if wanted[0] else None,
        mul(nodes, c, a) if wanted[1] else None,
    )


@operation(
    "dot",
    _dot,
    flops=_dot_flops,
    method="dot",
    degrees=((-1, 1),),
    linear=degrees(-1, 1),
    pullback=_pull_back_dot,
)
def dot(nodes: Builder, a: Node, other: Node) -> Node:
    """Sum of conj(self_k) other_k over all components."""
    a, other = as_number(nodes, a, other)
    if a.type.shape != other.type.shape:
        raise trace_error(f"dot of {a.type} and {other.type}: the shapes differ")
    a, other = common(nodes, a, other, "dot")
    if not a.type.shape:
        return mul(nodes, conj(nodes, a), other)
    return nodes.node("dot", (a, other), (), Type(a.type.kind))
