"""Conjugate gradients on fields (Hestenes and Stiefel, J. Res. NBS 49 (1952) 409).

The operator is a function that writes A p into a given field, so one solve allocates four fields and binds each kernel once.
An iteration is the operator, one inner product, one fused update of x and r that also yields |r|^2, and one update of p.
Sums are reproducible: residual histories agree to the last bit on any number of ranks. Preconditioning is the caller's:
pass the preconditioned operator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali.errors import LayoutError, ParameterError, SolverError
from jali.lattice.algebra import inner, norm2
from jali.lattice.base import what_differs
from jali.lattice.field import Field
from jali.lattice.sites import site_function


@dataclass(frozen=True)
class Solution:
    """What a solver found.

    `residuals` holds |r| / |b| before the first and after each iteration, as the recursion knows it; `residual` is
    |b - A x| / |b| computed from the solution. In exact arithmetic the last of the one is the other.
    """

    solution: Field
    iterations: int
    residuals: list[float]
    residual: float
    converged: bool


@site_function
def _residual(X: Any, r: Any, b: Any, q: Any, norm: Any) -> None:
    r[X] = b[X] - q[X]
    norm += r[X].norm2()


@site_function
def _descend(X: Any, x: Any, r: Any, p: Any, q: Any, step: Any, norm: Any) -> None:
    x[X] += step * p[X]
    r[X] -= step * q[X]
    norm += r[X].norm2()


@site_function
def _turn(X: Any, p: Any, r: Any, weight: Any) -> None:
    p[X] = r[X] + weight * p[X]


def cg(
    apply: Callable[[Field, Field], Any],
    b: Field,
    x0: Field | None = None,
    tolerance: float = 1e-10,
    max_iterations: int = 1000,
    must_converge: bool = True,
) -> Solution:
    """Solves A x = b for a Hermitian positive definite A.

    Args:
        apply: `apply(p, q)` writes A p into the field q and leaves p as it is.
        b: right-hand side.
        x0: where to start; zero if left out. It is not changed.
        tolerance: stop when |r| <= tolerance |b|. In float32 nothing below about 1e-6 can be reached.
        max_iterations: give up after so many applications of A.
        must_converge: raise SolverError when giving up; otherwise return with `converged` False.

    Raises:
        SolverError: no convergence; A is not positive definite, not Hermitian, or produced infinities or nan.
        ParameterError: impossible tolerance or bound.
        LayoutError: b and x0 do not fit together.
    """
    for name, field in (("b", b), *((("x0", x0),) if x0 is not None else ())):
        if not isinstance(field, Field):
            raise ParameterError(f"cg: {name} is a Field, not {field!r}")
    if not callable(apply):
        raise ParameterError(f"the operator is a function apply(p, q) that writes A p into q, not {apply!r}")
    if not (isinstance(tolerance, int | float) and 0 < tolerance < 1):
        raise ParameterError(f"the tolerance is relative, between 0 and 1, not {tolerance!r}")
    if not isinstance(max_iterations, int) or max_iterations < 1:
        raise ParameterError(f"max_iterations is a positive whole number, not {max_iterations!r}")
    if x0 is not None and (x0.lattice is not b.lattice or x0.element != b.element):
        differ = "" if x0.lattice is b.lattice else f" ({what_differs(x0.lattice, b.lattice)})"
        raise LayoutError(
            f"x0 holds {x0.element} on {x0.lattice}, b holds {b.element} on {b.lattice}{differ}"
        )
    lattice = b.lattice
    x = b.like() if x0 is None else x0.copy()
    size = math.sqrt(norm2(b))
    if not math.isfinite(size):
        raise SolverError("the right-hand side contains infinities or nan")
    if size == 0:
        return Solution(b.like(), 0, [0.0], 0.0, True)

    q = b.like()
    r = b.copy()
    if x0 is None:
        rr = size * size
    else:
        apply(x, q)
        rr = lattice.sum(_residual, r, b, q)
    p = r.copy()
    residuals = [math.sqrt(rr) / size]
    iterations = 0
    while residuals[-1] > tolerance and iterations < max_iterations:
        apply(p, q)
        curvature = _curvature(p, q, rr, iterations)
        # `_curvature` has made sure that the step is a positive finite number.
        before, rr = rr, lattice.sum(_descend, x, r, p, q, rr / curvature)
        iterations += 1
        residuals.append(math.sqrt(rr) / size)
        _turn(p, r, rr / before)

    apply(x, q)
    true = math.sqrt(lattice.sum(_residual, r, b, q)) / size
    solution = Solution(x, iterations, residuals, true, residuals[-1] <= tolerance)
    if must_converge and not solution.converged:
        raise SolverError(
            f"no convergence to {tolerance:g} in {iterations} iterations: |r|/|b| is {residuals[-1]:.3g}, its smallest value was "
            f"{min(residuals):.3g}; allow more iterations, or ask for no less than the precision ({b.precision}) can give"
        )
    return solution


def _curvature(p: Field, q: Field, rr: float, iteration: int) -> float:
    """p^dagger A p for q = A p; raises SolverError unless it is real, positive and finite."""
    pq = inner(p, q)
    value = float(pq.real)
    if not (math.isfinite(value) and math.isfinite(rr)):
        raise SolverError(
            f"iteration {iteration + 1}: the operator produced infinities or nan (p A p = {value})"
        )
    if value <= 0:
        raise SolverError(
            f"iteration {iteration + 1}: p^dagger A p = {value:.6g} with |r|^2 = {rr:.3g}: the operator is not positive definite; "
            "solve with A^dagger A instead"
        )
    # Rounding leaves an imaginary part of order epsilon |p| |q|; later iterations would compare noise with noise.
    if iteration == 0 and isinstance(pq, complex):
        allowed = math.sqrt(float(np.finfo(p.precision).eps)) * math.sqrt(rr * norm2(q))
        if abs(pq.imag) > allowed:
            raise SolverError(f"p^dagger A p = {pq:.6g} is not real: the operator is not Hermitian")
    return value
