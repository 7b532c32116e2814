"""What Cholesky's factor gives of positive definite Hermitian matrices: the factor, solutions, the logarithm of the determinant.

All begin with one node for the factor, so a kernel that takes several of them computes it once. Nothing is exchanged and nothing is
reported: where a matrix is not positive definite, the site has nan.
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
    w.line(f"cholesky<{node.type.shape[0]}>({w.result(node)}, {w.array(node.args[0])});")


def _factor(nodes: Builder, a: Node, what: str) -> Node:
    """The complex factor of a matrix; sentences about what that is not begin with `what`."""
    square = _hermitian_matrix(nodes, a, what)
    return nodes.node("cholesky", (square,), (), square.type)


@operation("cholesky", _cholesky, flops=lambda node: 4 * node.type.shape[0] ** 3 // 3, method="cholesky")
def cholesky(nodes: Builder, a: Node) -> Node:
    """The lower triangular L with a = L L^dagger of a positive definite Hermitian matrix. Where it is not, nan from the first pivot that is
    not positive on: `L[n - 1, n - 1].real > 0` tells."""
    return as_given(nodes, a, _factor(nodes, a, "cholesky"))


def _solve(w: Writer, node: Node) -> None:
    n, *columns = node.type.shape
    factor, b = (w.array(a) for a in node.args)
    w.line(f"cholesky_solve<{n}, {columns[0] if columns else 1}>({w.result(node)}, {factor}, {b});")


@operation("solve", _solve, flops=lambda node: 8 * node.type.shape[0] * node.type.size, method="solve")
def solve(nodes: Builder, a: Node, other: Node) -> Node:
    """The x with a x = other, a vector or a matrix, by Cholesky's factor of a positive definite Hermitian matrix a; nan where it is not."""
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
    """log(det(a)), a real number, of a positive definite Hermitian matrix; nan where it is not. No determinant leaves the range."""
    return nodes.node("log_det", (_factor(nodes, a, "log_det"),), (), REAL)
