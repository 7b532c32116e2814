"""What Cholesky's factor gives of positive definite Hermitian matrices: the factor, solutions, the logarithm of the determinant.

All begin with one node for the factor, so a kernel that takes several of them computes it once. Rows are not exchanged. Where a matrix is
not positive definite the site has nan, and the kernel counts it and keeps the pivot of the first such site (`jali.lattice.pivots`); so it
does for inverses of Hermitian matrices where they are singular.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import REAL, Node
from jali.codegen.language.conversions import convert
from jali.codegen.language.groups import as_given, square_matrix
from jali.codegen.lines import trace_error
from jali.codegen.operation import operation
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


@operation(
    "cholesky",
    _cholesky,
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


@operation(
    "solve",
    _solve,
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


@operation(
    "log_det",
    _log_det,
    flops=lambda node: 2 * node.args[0].type.shape[0],
    method="log_det",
    of_bits=lambda node: "the logarithm of a determinant",
)
def log_det(nodes: Builder, a: Node) -> Node:
    """log(det(a)), a real number, of a positive definite Hermitian matrix; a SingularError where it is not. No determinant leaves the
    range."""
    return nodes.node("log_det", (_factor(nodes, a, "log_det"),), (), REAL)
