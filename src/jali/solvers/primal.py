"""Splitting methods on the primal side: proximal gradients and alternating directions (Parikh and Boyd, Foundations and Trends in
Optimization 1 (2014) 127), on any vectors of `jali.solvers.vectors`.

f and g are proximal operators of `jali.solvers.proximal` or of `pyproximal`, linear operators have `matvec` and `rmatvec`. An iteration
communicates what these do, and no more; the objective, which costs a sum over ranks, is computed where somebody wants to see it: with
`show`, `tol`, or a list `history`, to which that of x0 and that of each iteration are appended.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.solvers.least_squares import CGLS
from jali.solvers.operators import adjoint_of, forward_of
from jali.solvers.proximal import ProxOperator, as_prox, combination, rows
from jali.solvers.solver import check_niter, positive, rank_of
from jali.solvers.vectors import sums, vectors_of


class Watch:
    """The objective of an iteration, where anybody wants it, and whether it has come to rest."""

    def __init__(self, name: str, x: Any, show: bool, tol: float | None, history: list[float] | None) -> None:
        self.first, self.show, self.tol, self.history = rank_of(x) == 0, show, tol, history
        self.last = math.inf
        self.iteration = 0
        if show and self.first:
            sys.stdout.write(f"{name}\n{'-' * 55}\n   Itn        f              g              J = f + g\n")

    def sees(self, *terms: tuple[float, Callable[[Any], Any], Any]) -> bool:
        """Take the objective, a sum of weights times functions of vectors; returns whether it changed by less than `tol` times the
        last one. Functions are called only where anybody wants to know."""
        iteration, self.iteration = self.iteration, self.iteration + 1
        if not self.show and self.tol is None and self.history is None:
            return False
        numbers = [weight * _value(function(x)) for weight, function, x in terms]
        total = sum(numbers)
        if self.history is not None:
            self.history.append(total)
        if self.show and self.first:
            sys.stdout.write(
                f"{iteration:6d}    " + "    ".join(f"{n:11.4e}" for n in (*numbers, total)) + "\n"
            )
        before, self.last = self.last, total
        return self.tol is not None and math.isfinite(before) and abs(total - before) < self.tol * abs(before)


def _value(found: Any) -> float:
    """Of an indicator, which is true inside, zero: iterates are inside up to rounding."""
    return 0.0 if isinstance(found, bool | np.bool_) else float(found)


def ProximalGradient(
    proxf: Any,
    proxg: Any,
    x0: Any,
    epsg: Any = 1.0,
    tau: float | None = None,
    eta: float = 1.0,
    niter: int = 10,
    niterback: int = 100,
    acceleration: str | None = None,
    tol: float | None = None,
    callback: Callable[[Any], None] | None = None,
    show: bool = False,
    backtracking: bool = False,
    beta: float = 0.5,
    history: list[float] | None = None,
) -> Any:
    """Minimizes f(x) + epsg g(x), of a smooth f, by x <- y + eta (prox_{tau epsg g}(y - tau grad f(y)) - y) (section 4.2).

    Args:
        proxf: f, with a gradient.
        proxg: g.
        x0: where to start; it is not changed.
        epsg: weight of g, or one for each iteration.
        tau: step length, no longer than 1 / the Lipschitz constant of the gradient; if left out, it is found by backtracking from 1.
        eta: relaxation, above 0 and no more than 1.
        niter: iterations.
        niterback: the most shortenings of a step.
        acceleration: None; "vandenberghe", with weights k / (k + 3); "fista" (Beck and Teboulle, equation 4.2).
        tol: stop when the objective changes by less than this part of it.
        callback: called with x after each iteration.
        show: write a line for each iteration.
        backtracking: shorten steps by factors `beta` although `tau` is given.
        history: takes objectives.

    Returns x. Raises ParameterError for impossible numbers, unknown accelerations, and an f without gradient.
    """
    check_niter("ProximalGradient", niter)
    f, g = as_prox("ProximalGradient: proxf", proxf), as_prox("ProximalGradient: proxg", proxg)
    if not f.hasgrad:
        raise ParameterError(f"ProximalGradient: f, {proxf!r}, has no gradient")
    if acceleration not in (None, "vandenberghe", "fista"):
        raise ParameterError(
            f'ProximalGradient: acceleration is None, "vandenberghe" or "fista", not {acceleration!r}'
        )
    if not 0 < eta <= 1 or not 0 < beta < 1:
        raise ParameterError(
            f"ProximalGradient: eta is in (0, 1] and beta in (0, 1), not {eta!r} and {beta!r}"
        )
    weights = (
        np.broadcast_to(np.asarray(epsg, dtype=float), (niter,)) if np.size(epsg) == 1 else np.asarray(epsg)
    )
    if len(weights) < niter:
        raise ParameterError(f"ProximalGradient: {len(weights)} weights epsg for {niter} iterations")
    searches = backtracking or tau is None
    length = 1.0 if tau is None else positive("tau", tau)
    vectors = vectors_of("ProximalGradient: x0", x0)
    x, y, t = vectors.copy(x0), vectors.copy(x0), 1.0
    watch = Watch("ProximalGradient", x, show, tol, history)
    watch.sees((1, f, x), (float(weights[0]) if niter else 1.0, g, x))
    for k in range(niter):
        gradient = f.grad(y)
        for _ in range(niterback + 1 if searches else 1):
            moved = combination((1, y), (-length, gradient))
            z = g.prox(moved, float(weights[k]) * length)
            if not searches or _is_short_enough(f, z, y, gradient, length):
                break
            length *= beta
        if eta != 1:
            vectors.update([(z, eta, [(1 - eta, y)])])
        before, x = x, z
        if acceleration == "vandenberghe":
            weight = k / (k + 3)
        elif acceleration == "fista":
            t, last = (1 + math.sqrt(1 + 4 * t * t)) / 2, t
            weight = (last - 1) / t
        else:
            weight = 0.0
        y = combination((1 + weight, x), (-weight, before)) if weight else x
        if callback is not None:
            callback(x)
        if watch.sees((1, f, x), (float(weights[k]), g, x)):
            break
    return x


def _is_short_enough(f: ProxOperator, z: Any, y: Any, gradient: Any, tau: float) -> bool:
    """Whether f(z) is below its quadratic model at y (Beck and Teboulle, equation 2.5)."""
    d = combination((1, z), (-1, y))
    slope, square = (number.real for number in sums((gradient, d), (d, d)))
    base = f(y)
    slack = 1e-12 * abs(base)
    return bool(f(z) <= base + slope + square / (2 * tau) + slack)


def ADMM(
    proxf: Any,
    proxg: Any,
    x0: Any,
    tau: float,
    niter: int = 10,
    z0: Any = None,
    gfirst: bool = False,
    callback: Callable[..., None] | None = None,
    callbackz: bool = False,
    show: bool = False,
    tol: float | None = None,
    history: list[float] | None = None,
) -> tuple[Any, Any]:
    """Minimizes f(x) + g(z) for x = z, by alternating directions (section 4.4, equations 4.10 and 4.11).

    Begins with z0, or x0; u is zero. With `gfirst` g comes first. `callback` gets x, or with `callbackz` x and z, after each iteration.
    Returns x and z. Raises ParameterError where neither x0 nor z0 is given, and unless tau is positive.
    """
    check_niter("ADMM", niter)
    f, g = as_prox("ADMM: proxf", proxf), as_prox("ADMM: proxg", proxg)
    tau = positive("tau", tau)
    start = x0 if z0 is None else z0
    if start is None:
        raise ParameterError("ADMM: x0 or z0 says where to start")
    vectors = vectors_of("ADMM: the start", start)
    x = vectors.copy(start if x0 is None else x0)
    z, u = vectors.copy(start), vectors.like(start)
    watch = Watch("ADMM", x, show, tol, history)
    watch.sees((1, f, x), (1, g, x))
    for _ in range(niter):
        if gfirst:
            z = g.prox(combination((1, x), (1, u)), tau)
            x = f.prox(combination((1, z), (-1, u)), tau)
        else:
            x = f.prox(combination((1, z), (-1, u)), tau)
            z = g.prox(combination((1, x), (1, u)), tau)
        vectors.update([(u, 1, [(1, x), (-1, z)])])
        tell(callback, callbackz, x, z)
        if watch.sees((1, f, x), (1, g, x)):
            break
    return x, z


def tell(callback: Callable[..., None] | None, both: bool, x: Any, z: Any) -> None:
    if callback is not None:
        callback(*((x, z) if both else (x,)))


def ADMML2(
    proxg: Any,
    Op: Any,
    b: Any,
    A: Any,
    x0: Any,
    tau: float,
    niter: int = 10,
    z0: Any = None,
    gfirst: bool = False,
    callback: Callable[[Any], None] | None = None,
    show: bool = False,
    kwargs_solver: dict[str, Any] | None = None,
    tol: float | None = None,
    history: list[float] | None = None,
) -> tuple[Any, Any]:
    """Minimizes |Op x - b|^2 / 2 + g(z) for A x = z, by alternating directions.

    x minimizes |Op x - b|^2 / 2 + |A x - z + u|^2 / (2 tau), which `jali.solvers.cgls` does with `kwargs_solver`, from the x before.
    Begins with x0 and z0, or A x0; u is zero. Returns x and z. Raises ParameterError unless tau is positive.
    """
    check_niter("ADMML2", niter)
    g = as_prox("ADMML2: proxg", proxg)
    tau = positive("tau", tau)
    forward, regular = forward_of("ADMML2: Op", Op), forward_of("ADMML2: A", A)
    adjoint, regular_adjoint = adjoint_of("ADMML2: Op", Op), adjoint_of("ADMML2: A", A)
    scale = 1 / math.sqrt(tau)
    solver = CGLS(rows((1, forward, adjoint), (scale, regular, regular_adjoint)))
    x = vectors_of("ADMML2: x0", x0).copy(x0)
    Ax = _copied(regular(x))
    z = _copied(Ax if z0 is None else z0)
    vectors = vectors_of("ADMML2: A x", Ax)
    u = vectors.like(Ax)

    def misfit(x: Any) -> float:
        r = combination((1, forward(x)), (-1, b))
        return 0.5 * float(sums((r, r))[0].real)

    watch = Watch("ADMML2", x, show, tol, history)
    watch.sees((1, misfit, x), (1, g, Ax))
    for _ in range(niter):
        if gfirst:
            z = g.prox(combination((1, Ax), (1, u)), tau)
        right = [b, combination((scale, z), (-scale, u))]
        x = solver.solve(right, x, **({"niter": 10} | (kwargs_solver or {}))).x
        Ax = _copied(regular(x))
        if not gfirst:
            z = g.prox(combination((1, Ax), (1, u)), tau)
        vectors.update([(u, 1, [(1, Ax), (-1, z)])])
        tell(callback, False, x, z)
        if watch.sees((1, misfit, x), (1, g, Ax)):
            break
    return x, z


def _copied(x: Any) -> Any:
    return vectors_of("a vector", x).copy(x)


def LinearizedADMM(
    proxf: Any,
    proxg: Any,
    A: Any,
    x0: Any,
    tau: float,
    mu: float,
    niter: int = 10,
    z0: Any = None,
    callback: Callable[[Any], None] | None = None,
    show: bool = False,
    tol: float | None = None,
    history: list[float] | None = None,
) -> tuple[Any, Any]:
    """Minimizes f(x) + g(A x), by alternating directions with a linearized step (section 4.4.2, equations 4.15 and 4.16).

    `mu` is no more than tau / the largest eigenvalue of A^H A. Begins with x0 and z0, or A x0; u is zero. Returns x and z. Raises
    ParameterError unless tau and mu are positive.
    """
    check_niter("LinearizedADMM", niter)
    f, g = as_prox("LinearizedADMM: proxf", proxf), as_prox("LinearizedADMM: proxg", proxg)
    tau, mu = positive("tau", tau), positive("mu", mu)
    forward, adjoint = forward_of("LinearizedADMM: A", A), adjoint_of("LinearizedADMM: A", A)
    x = vectors_of("LinearizedADMM: x0", x0).copy(x0)
    Ax = _copied(forward(x))
    z = _copied(Ax if z0 is None else z0)
    vectors = vectors_of("LinearizedADMM: A x", Ax)
    u = vectors.like(Ax)
    watch = Watch("LinearizedADMM", x, show, tol, history)
    watch.sees((1, f, x), (1, g, Ax))
    for _ in range(niter):
        gap = combination((1, Ax), (-1, z), (1, u))
        x = f.prox(combination((1, x), (-mu / tau, adjoint(gap))), mu)
        Ax = _copied(forward(x))
        z = g.prox(combination((1, Ax), (1, u)), tau)
        vectors.update([(u, 1, [(1, Ax), (-1, z)])])
        tell(callback, False, x, z)
        if watch.sees((1, f, x), (1, g, Ax)):
            break
    return x, z
