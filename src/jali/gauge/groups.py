"""SU(n) at a site: random elements, and the projection of a matrix to the group.

These are plain functions of symbols, to be called inside site functions. SU(1) stands for U(1). Algebra
elements A are anti-Hermitian (traceless for n >= 2), with components A = sum_a A^a T^a, tr(T^a T^b) =
-delta_ab / 2, so that -2 tr A^2 = sum_a (A^a)^2. For n = 1 the same normalisation makes T = i / sqrt(2).
"""

from __future__ import annotations

from typing import Any

import jali
from jali.actions.gaussian import gaussian_algebra as gaussian_algebra
from jali.codegen.ir import Node
from jali.codegen.language import groups
from jali.codegen.language.arithmetic import mul
from jali.codegen.language.leaves import is_constant
from jali.codegen.lines import trace_error
from jali.codegen.state import builder
from jali.codegen.values import Value

# Steps of Newton's iteration for the polar decomposition. It squares the deviation of the singular values
# from one in each step once they are near one, and halves large ones before: this reaches rounding for
# condition numbers up to some 1e4.
_POLAR_STEPS = 16


def haar_random(X: Any, rng: Any, n: int) -> Any:
    """A Haar-distributed element of SU(n): n * n complex Gaussians, rows orthonormalised, determinant one.

    The first n - 1 rows are a uniformly distributed frame, which fixes the last row of a matrix of
    determinant one. For n = 1 it is a uniform phase. F. Mezzadri, Notices of the AMS 54 (2007) 592,
    math-ph/0609050.
    """
    rows = [[jali.complex(rng.gaussian(X), rng.gaussian(X)) for _ in range(n)] for _ in range(n)]
    return jali.matrix(rows).reunitarise()


def link_and_staple(what: str, link: Any, staple: Any) -> tuple[Any, Any]:
    """Both as matrices of one shape, numbers as 1 x 1. Raises TraceError in the name of `what`."""
    link, staple = _matrix(link), _matrix(staple)
    if link.shape != staple.shape:
        raise trace_error(
            f"{what}: link and staple are matrices of one shape, not {link.shape} and {staple.shape}; "
            "a number counts as 1 x 1"
        )
    return link, staple


def link_with_staple(what: str, X: Any, U: Any, mu: Any, staple: Any, given: Any) -> tuple[Any, Any]:
    """The link `U[mu][X]` and its staple by a function `staple` of (X, U, mu, *given), as `link_and_staple`.

    Raises TraceError also for a staple that reads the link: the action is then not linear in it, as all that uses
    staples takes it to be.
    """
    link, found = U[mu][X], staple(X, U, mu, *given)
    if isinstance(found, Value) and _is_made_of(found.node, link.node):
        raise trace_error(
            f"{what}: the staple depends on the link that it multiplies. An action that is linear in every link has a staple "
            "of other links alone; for one that is not there are metropolis_sweep and jali.hmc"
        )
    return link_and_staple(what, link, found)


def _is_made_of(root: Node, leaf: Node) -> bool:
    """Whether a value depends on a leaf. Zero times the leaf, where a sum may begin, does not."""
    waiting: list[Node] = [root]
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if node is leaf:
            return True
        is_zero = mul.made(node) and any(is_constant(one) and one.attrs[0] == 0 for one in node.args)
        if node.number not in seen and not is_zero:
            waiting += node.args
        seen.add(node.number)
    return False


def _matrix(M: Any) -> Any:
    """A number as a matrix of one element, a matrix as it is."""
    return jali.matrix([[M]]) if getattr(M, "shape", ()) == () else M


def _with_safe_squares(M: Any) -> Any:
    """M itself, or divided by its largest number where the squares of its numbers would leave the range of float32."""
    rows, columns = M.shape
    largest = jali.maximum(abs(M[0, 0].real), abs(M[0, 0].imag))
    for i in range(rows):
        for j in range(columns):
            largest = jali.maximum(largest, jali.maximum(abs(M[i, j].real), abs(M[i, j].imag)))
    return jali.where((largest < 1e15) & (largest > 1e-15), 1.0, 1.0 / largest) * M


def project(M: Any) -> Any:
    """The matrix of SU(n) in M: its unitary polar factor M (M^dagger M)^(-1/2), divided by det^(1/n).

    For n = 1, and of a number, it is the phase M / |M|, which has no determinant to lose: that of U(1).

    Covariant, project(g M h) = g project(M) h for g, h in SU(n), unlike the orthonormalisation of rows. The
    root of the determinant is the one with argument in (-pi/n, pi/n]. For n = 2 and M a real combination of
    SU(2) matrices it is M / sqrt(det M). W. Kamleh, D. Leinweber and A. Williams, Phys. Rev. D 70 (2004)
    014502, hep-lat/0403019. M must not be singular.
    """
    given = _matrix(M)
    n = given.shape[0]
    if n == 1:
        return given.reunitarise()
    M = _with_safe_squares(given)
    size = jali.sqrt(M.norm2() * (1.0 / n))
    V = M * (1.0 / size)
    for _ in range(_POLAR_STEPS):
        V = 0.5 * (V + V.inverse().dagger())
    phase = V.det()
    angle = jali.atan2(phase.imag, phase.real) * (-1.0 / n)
    found = jali.complex(jali.cos(angle), jali.sin(angle)) * V
    return Value(groups.unitary_part(builder(), found.node, given.node))
