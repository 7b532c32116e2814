"""Why a solver failed, as a clause of its message: measured after the failure, by a few applications of the operator to random vectors.

What is random is the same in each run on as many ranks, and all ranks measure the same. Nothing here is called in a successful solve.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.errors import SolverError
from jali.solvers.eigs import bad_numbers, largest, random_like
from jali.solvers.operators import Function
from jali.vectors import sums, vectors_of

LEAST_DEFECT = 1e3  # of an inner product, relative, in units of rounding: rounding itself leaves some ten
MOST_ROWS = 400  # of the matrix whose eigenvalues are computed


def not_finite(name: str, **vectors: Any) -> SolverError:
    """The error of a solver whose first norms are infinite or nan: names the first of these vectors that has such numbers."""
    for what, x in vectors.items():
        if x is not None and (count := bad_numbers(x)):
            return SolverError(f"{name}: {what} contains infinities or nan ({count} numbers)")
    first = next(x for x in vectors.values() if x is not None)
    return SolverError(
        f"{name}: squares of {' or '.join(what for what, x in vectors.items() if x is not None)} are larger than "
        f"{vectors_of('b', first).precision(first)} can hold; scale the problem down"
    )


def gives_bad_numbers(what: str, function: Function, like: Any) -> str:
    """Of a function of vectors like this one: that it gives infinities or nan of finite numbers; empty where it does not."""
    if count := bad_numbers(function(random_like(like))):
        return f"{what} produced infinities or nan ({count} numbers) of a vector of finite ones"
    return ""


def not_hermitian(forward: Function, like: Any) -> str:
    """That an operator is not Hermitian, with numbers; empty where it is one up to rounding. Three applications.

    Two random vectors see what is spread over the matrix, v and A v what is small everywhere: |A v|^2 = <A (A v), v>.
    """
    vectors = vectors_of("b", like)
    u, v = random_like(like, 1), random_like(like, 2)
    Au, Av = vectors.copy(forward(u)), vectors.copy(forward(v))
    AAv = vectors.copy(forward(Av))
    uu, vv, of_u, of_v, of_Av, left, right, again = sums(
        (u, u), (v, v), (Au, Au), (Av, Av), (AAv, AAv), (u, Av), (Au, v), (AAv, v)
    )
    sizes = [math.sqrt(number.real) for number in (uu, vv, of_u, of_v, of_Av)]
    nu, nv, nAu, nAv, nAAv = sizes
    allowed = LEAST_DEFECT * vectors.epsilon(like)
    if abs(left - right) > allowed * (nu * nAv + nAu * nv):
        return f"the operator is not Hermitian: <u, A v> = {left:.6g} and <A u, v> = {right:.6g} for random u and v"
    if abs(of_v - again) > allowed * (nAv * nAv + nAAv * nv):
        return f"the operator is not Hermitian: |A v|^2 = {of_v.real:.6g} and <A A v, v> = {again:.6g} for a random v"
    return ""


def not_adjoint(forward: Function, adjoint: Function, model: Any) -> str:
    """That one function is not the adjoint of the other, with numbers; empty where it is one to a thousandth. |A v|^2 = <v, A^H A v>."""
    vectors = vectors_of("x", model)
    v = random_like(model, 1)
    Av = forward(v)
    Av = vectors_of("A x", Av).copy(Av)
    square, (product,) = sums((Av, Av))[0].real, sums((v, vectors.copy(adjoint(Av))))
    if abs(square - product) > 1e-3 * max(square, abs(product)):
        return (
            f"rmatvec is not the adjoint of matvec: |A v|^2 = {square:.6g} and <v, A^H A v> = {product:.6g} for a random v; "
            "jali.linops.dottest compares them"
        )
    return ""


def step_too_long(forward: Function, adjoint: Function, model: Any, alpha: float) -> str:
    """That a step length is too long for A^H A, with the longest one; empty where it is not."""
    found = largest(lambda v: adjoint(forward(v)), vectors_of("x", model).like(model), 30, 1e-2)
    size = abs(found.eigenvalue)
    if alpha * size > 1:
        return f"the step length alpha = {alpha:.4g} is too long: A^H A has an eigenvalue {size:.4g}, so that it may be {1 / size:.4g} at most"
    return ""


def ritz_values(curvatures: Sequence[float], squares: Sequence[float]) -> tuple[float, float]:
    """The smallest and the largest eigenvalue of the Lanczos matrix of conjugate gradients, between which there are some of the
    operator (Saad, Iterative Methods for Sparse Linear Systems, 2003, section 6.7.3), from p^dagger A p of each iteration and |r|^2
    before it."""
    count = min(len(curvatures), len(squares))
    square = np.array(squares[:count], float)
    with np.errstate(all="ignore"):  # residuals may vanish
        inverse = np.array(curvatures[:count], float) / square  # 1 / step
        falls = square[1:] / square[:-1]
        diagonal = inverse.copy()
        diagonal[1:] += falls * inverse[:-1]
        beside = np.sqrt(falls) * np.abs(inverse[:-1])
    diagonal, beside = diagonal[-MOST_ROWS:], beside[1 - MOST_ROWS :]
    matrix = np.diag(diagonal) + np.diag(beside, 1) + np.diag(beside, -1)
    if not np.all(np.isfinite(matrix)):
        return math.nan, math.nan
    values = np.linalg.eigvalsh(matrix)
    return float(values[0]), float(values[-1])
