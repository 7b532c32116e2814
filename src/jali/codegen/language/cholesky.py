"""What Cholesky's factor gives of positive definite Hermitian matrices: the factor, solutions, the logarithm of the determinant.

All begin with one node for the factor, so a kernel that takes several of them computes it once. Rows are not exchanged. Where a matrix is
not positive definite the site has nan, and the kernel counts it and keeps the pivot of the first such site (`jali.lattice.pivots`); so it
does for inverses of Hermitian matrices where they are singular.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import COMPLEX, REAL, Node
from jali.codegen.language.arithmetic import add, div, mul, neg, sub
from jali.codegen.language.conversions import build, complex_number, convert, element, zero_of
from jali.codegen.language.groups import as_given, inverse, square_matrix
from jali.codegen.language.leaves import exact
from jali.codegen.language.matrices import adjoint, matmul, outer
from jali.codegen.language.parts import real
from jali.codegen.lines import trace_error
from jali.codegen.operation import degrees, operation
from jali.codegen.types import Type

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


def _hermitian_matrix(nodes: Builder, a: Node, what: str) -> Node:
    """A matrix that is known to be Hermitian as a complex one."""
    square = square_matrix(nodes, a, what)
    if not a.hermitian:
        raise trace_error(
            f"{what} needs a positive definite Hermitian matrix, and this {a.type} is not known to be Hermitian: fields of Hermitian(n), "
            "sums, real multiples and inverses of Hermitian matrices are, and .hermitian() is the Hermitian part of any matrix"
        )
    return square


def _cholesky(w: Writer, node: Node) -> None:
    n, a, factor = node.type.shape[0], w.array(node.args[0]), w.result(node)
    pivot = f"pivot{w.number(node)}"
    w.line(f"const real {pivot} = cholesky<{n}>({factor}, {a});")
    w.count_failures(node, f"~({pivot} > splat(0))", 1, f"failed_pivot<{n}>({factor})", pivot)


def _factor(nodes: Builder, a: Node, what: str) -> Node:
    """The complex factor of a matrix; sentences about what that is not begin with `what`."""
    square = _hermitian_matrix(nodes, a, what)
    return nodes.node("cholesky", (square,), (), square.type)


def _lower(nodes: Builder, x: Node) -> Node:
    """The lower triangle, with half of the diagonal, which is real of a Hermitian matrix."""
    n, zero, half = x.type.shape[0], zero_of(nodes, COMPLEX), exact(nodes, 0.5)

    def part(i: int, j: int) -> Node:
        found = element(nodes, x, i * n + j)
        if i == j:
            return complex_number(nodes, mul(nodes, half, real(nodes, found)), exact(nodes, 0.0))
        return found if j < i else zero

    return build(nodes, x.type, [part(i, j) for i in range(n) for j in range(n)])


def _pull_back_cholesky(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    """Of dL = L lower(L^-1 dA L^-dagger); I. Murray, arXiv:1602.07527."""
    solved = inverse(nodes, node)
    inner = _lower(nodes, matmul(nodes, adjoint(nodes, node), c))
    return (matmul(nodes, matmul(nodes, adjoint(nodes, solved), inner), solved),)


def _change_of_cholesky(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    if of[0] is None:
        return None
    solved = inverse(nodes, node)
    inner = matmul(nodes, matmul(nodes, solved, of[0]), adjoint(nodes, solved))
    return matmul(nodes, node, _lower(nodes, inner))


@operation(
    "cholesky",
    _cholesky,
    linear=degrees(0),
    pullback=_pull_back_cholesky,
    tangent=_change_of_cholesky,
    flops=lambda node: 4 * node.type.shape[0] ** 3 // 3,
    method="cholesky",
    fails="not positive definite",
    sendable=False,  # who sent it would count a site of the reader
)
def cholesky(nodes: Builder, a: Node) -> Node:
    """The lower triangular L with a = L L^dagger of a positive definite Hermitian matrix. Where it is not, a SingularError names
    the first site when the result is read (docs/language/errors.md)."""
    return as_given(nodes, a, _factor(nodes, a, "cholesky"))


def _solve(w: Writer, node: Node) -> None:
    n, *columns = node.type.shape
    factor, b = (w.array(a) for a in node.args)
    w.line(f"cholesky_solve<{n}, {columns[0] if columns else 1}>({w.result(node)}, {factor}, {b});")


def _product(nodes: Builder, a: Node, b: Node) -> Node:
    """a b^dagger of two vectors or matrices of columns."""
    return outer(nodes, a, b) if len(a.type.shape) == 1 else matmul(nodes, a, adjoint(nodes, b))


def _pull_back_solve(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    factor = node.args[0]
    of_other = nodes.node("solve", (factor, c), (), node.type)
    if not wanted[0]:
        return None, of_other
    of_matrix = _product(nodes, of_other, node)  # minus what A gets, before its Hermitian part is taken
    both = add(nodes, of_matrix, adjoint(nodes, of_matrix))
    return neg(nodes, matmul(nodes, both, factor)), of_other


def _change_of_solve(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    (factor, _), (change, other) = node.args, of
    total = other
    if change is not None:
        product = matmul(nodes, change, adjoint(nodes, factor))
        of_matrix = matmul(nodes, add(nodes, product, adjoint(nodes, product)), node)
        total = neg(nodes, of_matrix) if total is None else sub(nodes, total, of_matrix)
    return total and nodes.node("solve", (factor, total), (), node.type)


@operation(
    "solve",
    _solve,
    linear=degrees(0, 1),
    pullback=_pull_back_solve,
    tangent=_change_of_solve,
    flops=lambda node: 8 * node.type.shape[0] * node.type.size,
    method="solve",
    degrees=((-1, 1),),
)
def solve(nodes: Builder, a: Node, other: Node) -> Node:
    """The x with a x = other, a vector or a matrix, by Cholesky's factor of a positive definite Hermitian matrix a; a
    SingularError where it is not."""
    factor = _factor(nodes, a, "solve")
    n = factor.type.shape[0]
    if other.type.shape[:1] != (n,):
        raise trace_error(
            f"solve of a {a.type} needs a vector of {n} components or a matrix of {n} rows, not a {other.type}"
        )
    b = convert(nodes, other, "complex")
    found = nodes.node("solve", (factor, b), (), Type("complex", b.type.shape))
    return found if "complex" in (a.type.kind, other.type.kind) else as_given(nodes, a, found)


def _log_det(w: Writer, node: Node) -> None:
    factor = node.args[0]
    w.name(node, [f"log_det_of_cholesky<{factor.type.shape[0]}>({w.array(factor)})"])


def _pull_back_log_det(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    factor, zero, twice = node.args[0], zero_of(nodes, COMPLEX), mul(nodes, exact(nodes, 2.0), c)
    n = factor.type.shape[0]

    def part(i: int, j: int) -> Node:
        if i != j:
            return zero
        return convert(nodes, div(nodes, twice, real(nodes, element(nodes, factor, i * n + i))), "complex")

    return (build(nodes, factor.type, [part(i, j) for i in range(n) for j in range(n)]),)


def _change_of_log_det(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    factor, change = node.args[0], of[0]
    if change is None:
        return None
    n, total = factor.type.shape[0], zero_of(nodes, REAL)
    for i in range(n):
        parts = [real(nodes, element(nodes, one, i * n + i)) for one in (change, factor)]
        total = add(nodes, total, div(nodes, *parts))
    return mul(nodes, exact(nodes, 2.0), total)


@operation(
    "log_det",
    _log_det,
    linear=degrees(0),
    pullback=_pull_back_log_det,
    tangent=_change_of_log_det,
    flops=lambda node: 2 * node.args[0].type.shape[0],
    method="log_det",
    of_bits=lambda node: "the logarithm of a determinant",
)
def log_det(nodes: Builder, a: Node) -> Node:
    """log(det(a)), a real number, of a positive definite Hermitian matrix; a SingularError where it is not. No determinant leaves the
    range."""
    return nodes.node("log_det", (_factor(nodes, a, "log_det"),), (), REAL)
