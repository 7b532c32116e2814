"""Functions of square matrices that groups need: determinant, inverse, exponential, projections to the group, its algebra and the
Hermitian matrices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import COMPLEX, Node
from jali.codegen.language.conversions import convert
from jali.codegen.language.matrices import need_matrix
from jali.codegen.language.parts import real
from jali.codegen.operation import Text, operation

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def _function(name: str) -> Text:
    """A function of the prelude, from an array to an array."""

    def text(w: Writer, node: Node) -> None:
        n = node.args[0].type.shape[0]
        a = w.array(node.args[0])
        w.line(f"{name}<{n}>({w.result(node)}, {a});")

    return text


def square_matrix(nodes: Builder, a: Node, what: str) -> Node:
    """A square matrix as a complex one; sentences about what it is not begin with `what`."""
    need_matrix(a, what, square=True)
    return convert(nodes, a, "complex")


def as_given(nodes: Builder, given: Node, result: Node) -> Node:
    """A result that is real where the matrix was."""
    return real(nodes, result) if given.type.kind == "real" else result


def _det_flops(node: Node) -> int:
    n = node.args[0].type.shape[0]
    return {1: 0, 2: 14, 3: 78}.get(n, 8 * n**3 // 3)


@operation("det", _function("det"), flops=_det_flops, method="det", of_bits=lambda node: "a determinant")
def det(nodes: Builder, a: Node) -> Node:
    """Determinant of a square matrix."""
    return as_given(nodes, a, nodes.node("det", (square_matrix(nodes, a, "det"),), (), COMPLEX))


def _inverse_flops(node: Node) -> int:
    return int(8 * node.type.shape[0] ** 3)


def _hermitian_inverse(w: Writer, node: Node) -> None:
    _function("inverse")(w, node)
    n, number, value = node.type.shape[0], f"number{w.number(node)}", f"pivot{w.number(node)}"
    before = (
        f"integer {number}; const real {value} = singular_pivot<{n}>({w.array(node.args[0])}, &{number}); "
    )
    w.count_failures(node, f"~finite_diagonal<{n}>({w.array(node)})", 1, number, value, before)


@operation(
    "hermitian_inverse",
    _hermitian_inverse,
    flops=_inverse_flops,
    of_bits=lambda node: "an inverse",
    fails="singular",
    sendable=False,  # who sent it would count a site of the reader
)
def hermitian_inverse(nodes: Builder, square: Node) -> Node:
    """Inverse of a complex matrix that is known to be Hermitian, Hermitian but for rounding; a SingularError where it is singular."""
    return nodes.node("hermitian_inverse", (square,), (), square.type)


@operation(
    "inverse",
    _function("inverse"),
    flops=_inverse_flops,
    method="inverse",
    of_bits=lambda node: "an inverse",
    degrees=((-1,),),
    keeps_hermitian=True,
)
def inverse(nodes: Builder, a: Node) -> Node:
    """Inverse of a square matrix; of a Hermitian one its Hermitian part, which is as accurate, and a SingularError where it is singular."""
    square = square_matrix(nodes, a, "inverse")
    if a.hermitian:
        found = hermitian(nodes, hermitian_inverse(nodes, square))
    else:
        found = nodes.node("inverse", (square,), (), square.type)
    result = as_given(nodes, a, found)
    result.hermitian |= a.hermitian
    return result


def _expm(w: Writer, node: Node) -> None:
    _function("exp_antihermitian" if node.attrs[0] else "exp_matrix")(w, node)


@operation(
    "expm",
    _expm,
    flops=lambda node: 8 * 12 * node.type.shape[0] ** 3,
    of_bits=lambda node: "the exponential of a matrix",
)
def expm(nodes: Builder, a: Node) -> Node:
    """Exponential of a square matrix; an element of the group, of a traceless anti-Hermitian one."""
    square = square_matrix(nodes, a, "exp")
    return as_given(nodes, a, nodes.node("expm", (square,), (square.antihermitian,), square.type))


@operation(
    "reunitarise",
    _function("reunitarise"),
    flops=lambda node: 14 * node.type.size,
    method="reunitarise",
    of_bits=lambda node: "reunitarise",
)
def reunitarise(nodes: Builder, a: Node) -> Node:
    """An SU(n) matrix close to this one: rows orthonormalised in order and the last one turned so that the determinant is
    one; for n = 2 the nearest SU(2) matrix, for n = 1 the number divided by its modulus."""
    square = square_matrix(nodes, a, "reunitarise")
    return as_given(nodes, a, nodes.node("reunitarise", (square,), (), square.type))


@operation(
    "antihermitian",
    _function("traceless_antihermitian"),
    flops=lambda node: 2 * node.type.reals,
    method="traceless_antihermitian",
)
def antihermitian(nodes: Builder, a: Node) -> Node:
    """(A - A^dagger) / 2 minus its trace part; for n = 1 the imaginary part."""
    if a.antihermitian:
        return a
    square = square_matrix(nodes, a, "traceless_antihermitian")
    result = as_given(nodes, a, nodes.node("antihermitian", (square,), (), square.type))
    result.antihermitian = result.type.kind == "complex"
    return result


@operation(
    "hermitian",
    _function("hermitian_part"),
    flops=lambda node: 2 * node.type.reals,
    method="hermitian",
    degrees=((1,), (-1,)),
    keeps_hermitian=True,
    makes_hermitian=True,
)
def hermitian(nodes: Builder, a: Node) -> Node:
    """The Hermitian part (A + A^dagger) / 2 of a square matrix."""
    if a.hermitian:
        return a
    square = square_matrix(nodes, a, "hermitian")
    result = as_given(nodes, a, nodes.node("hermitian", (square,), (), square.type))
    result.hermitian = True
    return result
