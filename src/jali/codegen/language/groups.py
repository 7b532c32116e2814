"""Functions of square matrices that groups need: determinant, inverse, exponential, projections to the group, its algebra and the
Hermitian matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jali.codegen.builder import Builder
from jali.codegen.ir import COMPLEX, Node
from jali.codegen.language.arithmetic import add, conj, div, mul, neg, sub
from jali.codegen.language.conversions import build, complex_number, convert, element, zero_of
from jali.codegen.language.elementary import call
from jali.codegen.language.leaves import exact
from jali.codegen.language.matrices import adjoint, matmul, need_matrix, norm2, trace
from jali.codegen.language.parts import imag, real
from jali.codegen.operation import PARTS, Operation, Text, degrees, described, operation
from jali.codegen.types import Type

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


def _adjugate(nodes: Builder, node: Node) -> Node:
    """det(a) a^-1, given the node of the determinant; up to 3 x 3 by cofactors, which singular matrices have, too."""
    a = node.args[0]
    n = a.type.shape[0]
    if n == 1:
        return build(nodes, a.type, [convert(nodes, exact(nodes, 1.0), "complex")])
    if n > 3:
        return mul(nodes, node, inverse(nodes, a))

    def cofactor(i: int, j: int) -> Node:
        if n == 2:
            found = element(nodes, a, (1 - i) * 2 + 1 - j)
            return found if i == j else neg(nodes, found)
        (k, m), (p, q) = (((r + 1) % 3, (r + 2) % 3) for r in (i, j))
        left = mul(nodes, element(nodes, a, 3 * k + p), element(nodes, a, 3 * m + q))
        return sub(nodes, left, mul(nodes, element(nodes, a, 3 * k + q), element(nodes, a, 3 * m + p)))

    return build(nodes, a.type, [cofactor(j, i) for i in range(n) for j in range(n)])


def _change_of_det(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    return of[0] and trace(nodes, matmul(nodes, _adjugate(nodes, node), of[0]))


@operation(
    "det",
    _function("det"),
    flops=_det_flops,
    method="det",
    of_bits=lambda node: "a determinant",
    linear=degrees(0),
    pullback=lambda nodes, node, c, wanted: (mul(nodes, c, adjoint(nodes, _adjugate(nodes, node))),),
    tangent=_change_of_det,
)
def det(nodes: Builder, a: Node) -> Node:
    """Determinant of a square matrix."""
    return as_given(nodes, a, nodes.node("det", (square_matrix(nodes, a, "det"),), (), COMPLEX))


def _inverse_flops(node: Node) -> int:
    return int(8 * node.type.shape[0] ** 3)


def _pull_back_inverse(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    turned = adjoint(nodes, node)
    return (neg(nodes, matmul(nodes, matmul(nodes, turned, c), turned)),)


def _change_of_inverse(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    return of[0] and neg(nodes, matmul(nodes, matmul(nodes, node, of[0]), node))


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
    linear=degrees(0),
    pullback=_pull_back_inverse,
    tangent=_change_of_inverse,
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
    linear=degrees(0),
    pullback=_pull_back_inverse,
    tangent=_change_of_inverse,
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


def _change_by_blocks(nodes: Builder, a: Node, b: Node) -> Node:
    """The change of exp(a) for the change b of any square matrix: the upper right block of the exponential of [[a, b], [0, a]]."""
    n, zero = a.type.shape[0], zero_of(nodes, COMPLEX)
    blocks: list[list[Node | None]] = [[a, b], [None, a]]
    parts = [
        zero if block is None else element(nodes, block, i * n + j)
        for row in blocks
        for i in range(n)
        for block in row
        for j in range(n)
    ]
    whole = expm(nodes, build(nodes, Type("complex", (2 * n, 2 * n)), parts))
    return build(
        nodes, a.type, [element(nodes, whole, i * 2 * n + n + j) for i in range(n) for j in range(n)]
    )


def _has_closed_form(a: Node) -> bool:
    return a.antihermitian and a.type.shape[0] in (2, 3)


def _pull_back_expm(nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]) -> Sequence[Node | None]:
    a = node.args[0]
    if a.type.shape[0] == 1:
        return (mul(nodes, conj(nodes, element(nodes, node, 0)), c),)
    if node.attrs[0] and _has_closed_form(a):
        return (exp_pulled_back(nodes, a, c),)
    return (_change_by_blocks(nodes, adjoint(nodes, a), c),)


def _change_of_expm(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    a, change = node.args[0], of[0]
    if change is None:
        return None
    if a.type.shape[0] == 1:
        return mul(nodes, element(nodes, node, 0), change)
    if node.attrs[0] and _has_closed_form(a) and change.antihermitian:
        return exp_changed(nodes, a, change)
    return _change_by_blocks(nodes, a, change)


@operation(
    "expm",
    _expm,
    flops=lambda node: 8 * 12 * node.type.shape[0] ** 3,
    of_bits=lambda node: "the exponential of a matrix",
    linear=degrees(0),
    pullback=_pull_back_expm,
    tangent=_change_of_expm,
)
def expm(nodes: Builder, a: Node) -> Node:
    """Exponential of a square matrix; an element of the group, of a traceless anti-Hermitian one."""
    square = square_matrix(nodes, a, "exp")
    return as_given(nodes, a, nodes.node("expm", (square,), (square.antihermitian,), square.type))


def _of_two(name: str) -> Text:
    """A function of the prelude, from two arrays to an array."""

    def text(w: Writer, node: Node) -> None:
        a, b = (w.array(one) for one in node.args)
        w.line(f"{name}<{node.type.shape[0]}>({w.result(node)}, {a}, {b});")

    return text


def _derivative_of_exp(name: str, of_adjoint: bool) -> Operation:
    """One of the two linear maps that are the derivative of exp at a traceless anti-Hermitian matrix of 2 or 3 rows."""

    def alike(nodes: Builder, node: Node) -> Node:
        a, b = node.args
        return _change_by_blocks(nodes, adjoint(nodes, a) if of_adjoint else a, b)

    @operation(
        name,
        _of_two(name),
        flops=lambda node: 2 * 8 * 12 * node.type.shape[0] ** 3 // 3,
        of_bits=lambda node: "the exponential of a matrix",
        linear=degrees(0, PARTS),
        alike=alike,
    )
    def derivative(nodes: Builder, a: Node, b: Node) -> Node:
        return nodes.node(name, (a, b), (), a.type)

    return derivative


exp_changed = _derivative_of_exp("exp_changed", of_adjoint=False)
exp_pulled_back = _derivative_of_exp("exp_pulled_back", of_adjoint=True)


# ---- projections to the group --------------------------------------------------------------------------


def _pull_back_rows(nodes: Builder, node: Node, c: Node) -> Node:
    """Of orthonormalised rows W, M = L W with a lower triangular L: dW = O W, where O has the upper triangle of L^-1 dM W^dagger, the
    imaginary parts of its diagonal but the last one, no trace, and is anti-Hermitian. (F. Walter et al., arXiv:1009.6112, of real ones.)"""
    (m,), n = node.args, node.type.shape[0]
    turned = adjoint(nodes, node)
    lower, k = matmul(nodes, m, turned), matmul(nodes, c, turned)
    zero = zero_of(nodes, COMPLEX)

    def part(i: int, j: int) -> Node:
        if i < j:
            return sub(nodes, element(nodes, k, i * n + j), conj(nodes, element(nodes, k, j * n + i)))
        if i > j or (i == n - 1 and n > 1):
            return zero
        angle = imag(nodes, element(nodes, k, i * n + i))
        if n > 1:
            angle = sub(nodes, angle, imag(nodes, element(nodes, k, n * n - 1)))
        return complex_number(nodes, exact(nodes, 0.0), angle)

    upper = build(nodes, node.type, [part(i, j) for i in range(n) for j in range(n)])
    triangle = [element(nodes, lower, i * n + j) if j <= i else zero for i in range(n) for j in range(n)]
    solved = adjoint(nodes, inverse(nodes, build(nodes, node.type, triangle)))
    return matmul(nodes, matmul(nodes, solved, upper), node)


def _change_of_rows(nodes: Builder, node: Node, change: Node) -> Node:
    (m,), n = node.args, node.type.shape[0]
    turned = adjoint(nodes, node)
    zero = zero_of(nodes, COMPLEX)
    lower = matmul(nodes, m, turned)
    triangle = [element(nodes, lower, i * n + j) if j <= i else zero for i in range(n) for j in range(n)]
    x = matmul(nodes, matmul(nodes, inverse(nodes, build(nodes, node.type, triangle)), change), turned)
    angles = [imag(nodes, element(nodes, x, i * n + i)) for i in range(max(n - 1, 1))]
    if n > 1:
        total = angles[0]
        for angle in angles[1:]:
            total = add(nodes, total, angle)
        angles.append(neg(nodes, total))

    def part(i: int, j: int) -> Node:
        if i < j:
            return element(nodes, x, i * n + j)
        if i > j:
            return neg(nodes, conj(nodes, element(nodes, x, j * n + i)))
        return complex_number(nodes, exact(nodes, 0.0), angles[i])

    turn = build(nodes, node.type, [part(i, j) for i in range(n) for j in range(n)])
    return matmul(nodes, turn, node)


def _quaternion(nodes: Builder, m: Node) -> Node:
    """The real multiple of an SU(2) matrix that is nearest to a 2 x 2 matrix: a linear projection of the matrix."""
    half = exact(nodes, 0.5)
    a, b, c, d = (element(nodes, m, k) for k in range(4))
    x = mul(nodes, half, add(nodes, a, conj(nodes, d)))
    y = mul(nodes, half, sub(nodes, b, conj(nodes, c)))
    return build(nodes, m.type, [x, y, neg(nodes, conj(nodes, y)), conj(nodes, x)])


def _length(nodes: Builder, q: Node) -> Node:
    """|q| of q = |q| W with W of SU(2)."""
    return call(nodes, "sqrt", mul(nodes, exact(nodes, 0.5), norm2(nodes, q)))


def _along_sphere(nodes: Builder, node: Node, given: Node) -> Node:
    """(v - W <W, v> / 2) / |q|, v the quaternion in `given`: the derivative of W = q / |q|, which is its own adjoint."""
    v = _quaternion(nodes, given)
    along = real(nodes, trace(nodes, matmul(nodes, adjoint(nodes, node), v)))
    across = sub(nodes, v, mul(nodes, mul(nodes, exact(nodes, 0.5), along), node))
    return div(nodes, across, _length(nodes, _quaternion(nodes, node.args[0])))


def _pull_back_reunitarise(
    nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]
) -> Sequence[Node | None]:
    two = node.type.shape[0] == 2
    return (_along_sphere(nodes, node, c) if two else _pull_back_rows(nodes, node, c),)


def _change_of_reunitarise(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    if of[0] is None:
        return None
    two = node.type.shape[0] == 2
    return _along_sphere(nodes, node, of[0]) if two else _change_of_rows(nodes, node, of[0])


@operation(
    "reunitarise",
    _function("reunitarise"),
    flops=lambda node: 14 * node.type.size,
    method="reunitarise",
    of_bits=lambda node: "reunitarise",
    linear=degrees(0),
    pullback=_pull_back_reunitarise,
    tangent=_change_of_reunitarise,
)
def reunitarise(nodes: Builder, a: Node) -> Node:
    """An SU(n) matrix close to this one: rows orthonormalised in order and the last one turned so that the determinant is
    one; for n = 2 the nearest SU(2) matrix, for n = 1 the number divided by its modulus."""
    square = square_matrix(nodes, a, "reunitarise")
    return as_given(nodes, a, nodes.node("reunitarise", (square,), (), square.type))


_SMITH_STEPS = 16  # each squares the rate: enough for condition numbers up to some 1e8


def sylvester(nodes: Builder, p: Node, c: Node) -> Node:
    """The z with p z + z p = c of a Hermitian positive matrix p; equal eigenvalues are harmless.

    Of 3 x 3 matrices by A. Hoger and D. E. Carlson, Q. Appl. Math. 42 (1984) 113; of larger ones by squared Smith steps, R. A. Smith,
    SIAM J. Appl. Math. 16 (1968) 198."""
    n = p.type.shape[0]

    def times(*factors: Node) -> Node:
        found = factors[0]
        for factor in factors[1:]:
            found = matmul(nodes, found, factor)
        return found

    def weighted(*terms: tuple[Node, Node]) -> Node:
        total = mul(nodes, *terms[0])
        for weight, term in terms[1:]:
            total = add(nodes, total, mul(nodes, weight, term))
        return total

    def number(value: float) -> Node:
        return exact(nodes, value)

    one = build(nodes, p.type, [number(float(i == j)) for i in range(n) for j in range(n)])
    first = real(nodes, trace(nodes, p))
    if n == 1:
        return div(nodes, c, mul(nodes, number(2.0), first))
    if n == 2:
        determinant = real(nodes, det(nodes, p))
        adjugate = sub(nodes, mul(nodes, first, one), p)
        total = add(nodes, mul(nodes, determinant, c), times(adjugate, c, adjugate))
        return div(nodes, total, mul(nodes, number(2.0), mul(nodes, first, determinant)))
    if n == 3:
        square = times(p, p)
        second = mul(
            nodes,
            number(0.5),
            sub(nodes, mul(nodes, first, first), real(nodes, trace(nodes, square))),
        )
        third = real(nodes, det(nodes, p))
        i1, i2, i3 = first, second, third
        i11 = mul(nodes, i1, i1)
        lead = sub(nodes, mul(nodes, i1, i2), i3)
        left, right = times(square, c), times(p, c)
        pcp = times(right, p)
        sandwich = times(left, p)
        total = weighted(
            (i1, times(left, square)),
            (neg(nodes, i11), add(nodes, sandwich, times(right, square))),
            (lead, add(nodes, left, times(c, square))),
            (add(nodes, mul(nodes, i11, i1), i3), pcp),
            (neg(nodes, mul(nodes, i11, i2)), add(nodes, right, times(c, p))),
            (add(nodes, mul(nodes, i11, i3), mul(nodes, lead, i2)), c),
        )
        return div(nodes, total, mul(nodes, mul(nodes, number(2.0), i3), lead))
    # the Cayley transform of p, by its root mean square of eigenvalues
    q = call(nodes, "sqrt", mul(nodes, number(1.0 / n), norm2(nodes, p)))
    plus = inverse(nodes, add(nodes, p, mul(nodes, q, one)))
    a = times(sub(nodes, p, mul(nodes, q, one)), plus)
    z = mul(nodes, mul(nodes, number(2.0), q), times(plus, c, plus))
    for _ in range(_SMITH_STEPS):
        z = add(nodes, z, times(a, z, a))
        a = times(a, a)
    return z


def _stretched(nodes: Builder, node: Node) -> tuple[Node, Node]:
    """Of M = e^(i t) W P, with W of SU(n) and P Hermitian and positive: e^(i t) and P."""
    w, m = node.args
    product = matmul(nodes, adjoint(nodes, w), m)
    z = trace(nodes, product)
    phase = div(nodes, z, call(nodes, "abs", z))
    return phase, mul(nodes, conj(nodes, phase), product)


def _pull_back_unitary_part(
    nodes: Builder, node: Node, c: Node, wanted: Sequence[bool]
) -> Sequence[Node | None]:
    w = node.args[0]
    phase, p = _stretched(nodes, node)
    turn = mul(nodes, exact(nodes, 2.0), antihermitian(nodes, matmul(nodes, adjoint(nodes, w), c)))
    return None, mul(nodes, phase, matmul(nodes, w, sylvester(nodes, p, turn)))


def _change_of_unitary_part(nodes: Builder, node: Node, of: Sequence[Node | None]) -> Node | None:
    if of[1] is None:
        return None
    w = node.args[0]
    phase, p = _stretched(nodes, node)
    change = mul(nodes, conj(nodes, phase), matmul(nodes, adjoint(nodes, w), of[1]))
    turn = sylvester(nodes, p, sub(nodes, change, adjoint(nodes, change)))
    return matmul(nodes, w, antihermitian(nodes, turn))


def _unitary_part(w: Writer, node: Node) -> None:
    w.assign(node, w.parts(node.args[0]))


@operation(
    "unitary_part",
    _unitary_part,
    renames=True,
    linear=degrees(0, 0),
    pullback=_pull_back_unitary_part,
    tangent=_change_of_unitary_part,
)
def unitary_part(nodes: Builder, unitary: Node, matrix: Node) -> Node:
    """`unitary`, which was found by steps towards the SU(n) part of `matrix`: M = e^(i t) W P with P Hermitian and positive.

    Its derivative is that of what the steps tend to: W^dagger dW = Y with P Y + Y P = W^dagger dM - h.c. without trace, M up to its phase."""
    return nodes.node("unitary_part", (unitary, matrix), (), unitary.type)


@operation(
    "antihermitian",
    _function("traceless_antihermitian"),
    flops=lambda node: 2 * node.type.reals,
    method="traceless_antihermitian",
    linear=degrees(PARTS),
    pullback=lambda nodes, node, c, wanted: (described(node)(nodes, c),),  # its own adjoint
    tangent=lambda nodes, node, of: of[0] and described(node)(nodes, of[0]),
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
    linear=degrees(PARTS),
    pullback=lambda nodes, node, c, wanted: (described(node)(nodes, c),),  # its own adjoint
    tangent=lambda nodes, node, of: of[0] and described(node)(nodes, of[0]),
)
def hermitian(nodes: Builder, a: Node) -> Node:
    """The Hermitian part (A + A^dagger) / 2 of a square matrix."""
    if a.hermitian:
        return a
    square = square_matrix(nodes, a, "hermitian")
    result = as_given(nodes, a, nodes.node("hermitian", (square,), (), square.type))
    result.hermitian = True
    return result
