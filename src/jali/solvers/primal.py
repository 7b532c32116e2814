"""Splitting methods on the primal side: proximal gradients and alternating directions (Parikh and Boyd, Foundations and Trends in
Optimization 1 (2014) 127), on any vectors of `jali.vectors`.

f and g are proximal operators of `jali.solvers.proximal` or of `pyproximal`, linear operators have `matvec` and `rmatvec`. An
iteration communicates what these do, and no more; the objective, which costs a sum over ranks, is computed only with `show`,
`rtol`, or a list `history`, to which that of x0 and that of each iteration are appended. At the end one sum over ranks finds
infinities and nan.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError, SolverError
from jali.files import value_shown
from jali.host_sums import sum_in_order
from jali.keywords import named
from jali.solvers.eigs import bad_numbers
from jali.solvers.least_squares import CGLS
from jali.solvers.operators import adjoint_of, forward_of
from jali.solvers.proximal import INNER, ProxOperator, as_prox, combination, rows
from jali.solvers.solver import check_maxiter, check_tolerances, positive, rank_of
from jali.vectors import sums, vectors_of

FEW = 10  # iterations of splitting methods, which do not stop where no tolerance is given


class Watch:
    """The objective of an iteration, where it is requested, and whether it has converged."""

    def __init__(
        self, name: str, x: Any, show: bool, rtol: float | None, history: list[float] | None
    ) -> None:
        if rtol is not None:
            check_tolerances(name, rtol=rtol)
        self.first, self.show, self.rtol, self.history = rank_of(x) == 0, show, rtol, history
        self.last = math.inf
        self.iteration = 0
        if show and self.first:
            sys.stdout.write(f"{name}\n{'-' * 55}\n   Itn        f              g              J = f + g\n")

    def sees(self, *terms: tuple[float, Callable[[Any], Any], Any]) -> bool:
        """Take the objective, a sum of weights times functions of vectors; returns whether it changed by less than `rtol` times
        the last one. Functions are called only where it is requested."""
        iteration, self.iteration = self.iteration, self.iteration + 1
        if not self.show and self.rtol is None and self.history is None:
            return False
        numbers = [weight * _value(function(x)) for weight, function, x in terms]
        total = sum_in_order(numbers)
        if self.history is not None:
            self.history.append(total)
        if self.show and self.first:
            sys.stdout.write(
                f"{iteration:6d}    " + "    ".join(f"{n:11.4e}" for n in (*numbers, total)) + "\n"
            )
        before, self.last = self.last, total
        return (
            self.rtol is not None and math.isfinite(before) and abs(total - before) < self.rtol * abs(before)
        )


def _value(found: Any) -> float:
    """Of an indicator, which is true inside, zero: iterates are inside up to rounding."""
    return 0.0 if isinstance(found, bool | np.bool_) else float(found)


def check_found(name: str, iterations: int, lengths: str, **vectors: Any) -> None:
    """Raises SolverError where the first of these vectors, the solution, has infinities or nan; names another one that began with them."""
    solution, *given = vectors
    count = bad_numbers(vectors[solution])
    if not count:
        return
    said = f"{name}: {solution} contains infinities or nan ({count} numbers) after {iterations} iterations"
    for what in given:
        if vectors[what] is not None and (bad := bad_numbers(vectors[what])):
            raise SolverError(f"{said}; so does {what} ({bad} numbers)")
    raise SolverError(
        f"{said}: a proximal operator or a linear one produced them, or the iteration diverges: take smaller {lengths}"
    )


@named
def ProximalGradient(
    proxf: Any,
    proxg: Any,
    x0: Any,
    *,
    rtol: float | None = None,
    maxiter: int = FEW,
    callback: Callable[[Any], None] | None = None,
    epsg: Any = 1.0,
    tau: float | None = None,
    eta: float = 1.0,
    acceleration: str | None = None,
    backtracking: bool = False,
    beta: float = 0.5,
    max_backtracks: int = 100,
    show: bool = False,
    history: list[float] | None = None,
) -> Any:
    """Minimizes f(x) + epsg g(x), of a smooth f, by x <- y + eta (prox_{tau epsg g}(y - tau grad f(y)) - y) (section 4.2).

    Args:
        proxf: f, with a gradient.
        proxg: g.
        x0: where to start; it is not changed.
        rtol: stop when the objective changes by less than this part of it; if left out, all iterations are done.
        maxiter: no more iterations than this.
        callback: called with x after each iteration.
        epsg: weight of g, or one for each iteration.
        tau: step length, no longer than 1 / the Lipschitz constant of the gradient; if left out, it is found by backtracking from 1.
        eta: relaxation, above 0 and no more than 1.
        acceleration: None; "vandenberghe", with weights k / (k + 3); "fista" (Beck and Teboulle, equation 4.2).
        backtracking: shorten steps by factors `beta` although `tau` is given.
        max_backtracks: the most shortenings of a step.
        show: write a line for each iteration.
        history: takes objectives.

    Returns x. Raises ParameterError for impossible numbers, unknown accelerations, and an f without gradient, SolverError for infinities
    and nan.
    """
    check_maxiter("ProximalGradient", maxiter)
    f, g = as_prox("ProximalGradient: proxf", proxf), as_prox("ProximalGradient: proxg", proxg)
    if not f.hasgrad:
        raise ParameterError(f"ProximalGradient: f, {value_shown(proxf)}, has no gradient")
    if acceleration not in (None, "vandenberghe", "fista"):
        raise ParameterError(
            f'ProximalGradient: acceleration is None, "vandenberghe" or "fista", not {value_shown(acceleration)}'
        )
    if not 0 < eta <= 1 or not 0 < beta < 1:
        raise ParameterError(
            f"ProximalGradient: eta is in (0, 1] and beta in (0, 1), not {value_shown(eta)} and {value_shown(beta)}"
        )
    weights = (
        np.broadcast_to(np.asarray(epsg, dtype=float), (maxiter,)) if np.size(epsg) == 1 else np.asarray(epsg)
    )
    if len(weights) < maxiter:
        raise ParameterError(f"ProximalGradient: {len(weights)} weights epsg for {maxiter} iterations")
    searches = backtracking or tau is None
    length = 1.0 if tau is None else positive("tau", tau)
    vectors = vectors_of("ProximalGradient: x0", x0)
    x, y, t = vectors.copy(x0), vectors.copy(x0), 1.0
    watch = Watch("ProximalGradient", x, show, rtol, history)
    watch.sees((1, f, x), (float(weights[0]) if maxiter else 1.0, g, x))
    for k in range(maxiter):
        gradient = f.grad(y)
        for _ in range(max_backtracks + 1 if searches else 1):
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
    check_found("ProximalGradient", watch.iteration - 1, f"tau ({length:.4g})", x=x, x0=x0)
    return x


def _is_short_enough(f: ProxOperator, z: Any, y: Any, gradient: Any, tau: float) -> bool:
    """Whether f(z) is below its quadratic model at y (Beck and Teboulle, equation 2.5)."""
    d = combination((1, z), (-1, y))
    slope, square = (number.real for number in sums((gradient, d), (d, d)))
    base = f(y)
    slack = 1e-12 * abs(base)
    return bool(f(z) <= base + slope + square / (2 * tau) + slack)


@named
def ADMM(
    proxf: Any,
    proxg: Any,
    x0: Any,
    tau: float,
    *,
    rtol: float | None = None,
    maxiter: int = FEW,
    callback: Callable[..., None] | None = None,
    callback_pair: bool = False,
    z0: Any = None,
    gfirst: bool = False,
    show: bool = False,
    history: list[float] | None = None,
) -> tuple[Any, Any]:
    """Minimizes f(x) + g(z) for x = z, by alternating directions (section 4.4, equations 4.10 and 4.11).

    Begins with z0, or x0; u is zero. With `gfirst` g comes first. `callback` gets x, or with `callback_pair` x and z, after each iteration.
    `rtol`, `maxiter`, `show` and `history`: see `ProximalGradient`. Returns x and z. Raises ParameterError where neither x0 nor z0 is given,
    and unless tau is positive, SolverError for infinities and nan.
    """
    check_maxiter("ADMM", maxiter)
    f, g = as_prox("ADMM: proxf", proxf), as_prox("ADMM: proxg", proxg)
    tau = positive("tau", tau)
    start = x0 if z0 is None else z0
    if start is None:
        raise ParameterError("ADMM: x0 or z0 says where to start")
    vectors = vectors_of("ADMM: the start", start)
    x = vectors.copy(start if x0 is None else x0)
    z, u = vectors.copy(start), vectors.like(start)
    watch = Watch("ADMM", x, show, rtol, history)
    watch.sees((1, f, x), (1, g, x))
    for _ in range(maxiter):
        if gfirst:
            z = g.prox(combination((1, x), (1, u)), tau)
            x = f.prox(combination((1, z), (-1, u)), tau)
        else:
            x = f.prox(combination((1, z), (-1, u)), tau)
            z = g.prox(combination((1, x), (1, u)), tau)
        vectors.update([(u, 1, [(1, x), (-1, z)])])
        notify(callback, callback_pair, x, z)
        if watch.sees((1, f, x), (1, g, x)):
            break
    check_found("ADMM", watch.iteration - 1, f"tau ({tau:.4g})", x=x, x0=x0, z0=z0)
    return x, z


def notify(callback: Callable[..., None] | None, both: bool, x: Any, z: Any) -> None:
    if callback is not None:
        callback(*((x, z) if both else (x,)))


@named
def ADMML2(
    proxg: Any,
    A: Any,
    b: Any,
    K: Any,
    x0: Any,
    tau: float,
    *,
    rtol: float | None = None,
    maxiter: int = FEW,
    callback: Callable[..., None] | None = None,
    callback_pair: bool = False,
    z0: Any = None,
    gfirst: bool = False,
    solver_options: dict[str, Any] | None = None,
    show: bool = False,
    history: list[float] | None = None,
) -> tuple[Any, Any]:
    """Minimizes |A x - b|^2 / 2 + g(z) for K x = z, by alternating directions.

    x minimizes |A x - b|^2 / 2 + |K x - z + u|^2 / (2 tau), which `jali.solvers.cgls` does with `solver_options` (else with 10 iterations),
    from the x before. Begins with x0 and z0, or K x0; u is zero. Other arguments: see `ADMM`. Returns x and z. Raises ParameterError unless
    tau is positive, SolverError for infinities and nan.
    """
    check_maxiter("ADMML2", maxiter)
    g = as_prox("ADMML2: proxg", proxg)
    tau = positive("tau", tau)
    forward, regular = forward_of("ADMML2: A", A), forward_of("ADMML2: K", K)
    adjoint, regular_adjoint = adjoint_of("ADMML2: A", A), adjoint_of("ADMML2: K", K)
    scale = 1 / math.sqrt(tau)
    solver = CGLS(rows((1, forward, adjoint), (scale, regular, regular_adjoint)))
    x = vectors_of("ADMML2: x0", x0).copy(x0)
    Kx = _copied(regular(x))
    z = _copied(Kx if z0 is None else z0)
    vectors = vectors_of("ADMML2: K x", Kx)
    u = vectors.like(Kx)
    options = INNER | (solver_options or {})

    def misfit(x: Any) -> float:
        r = combination((1, forward(x)), (-1, b))
        return 0.5 * float(sums((r, r))[0].real)

    watch = Watch("ADMML2", x, show, rtol, history)
    watch.sees((1, misfit, x), (1, g, Kx))
    for _ in range(maxiter):
        if gfirst:
            z = g.prox(combination((1, Kx), (1, u)), tau)
        right = [b, combination((scale, z), (-scale, u))]
        x = solver.solve(right, x, **options).x
        Kx = _copied(regular(x))
        if not gfirst:
            z = g.prox(combination((1, Kx), (1, u)), tau)
        vectors.update([(u, 1, [(1, Kx), (-1, z)])])
        notify(callback, callback_pair, x, z)
        if watch.sees((1, misfit, x), (1, g, Kx)):
            break
    check_found("ADMML2", watch.iteration - 1, f"tau ({tau:.4g})", x=x, x0=x0, z0=z0, b=b)
    return x, z


def _copied(x: Any) -> Any:
    return vectors_of("a vector", x).copy(x)


@named
def LinearizedADMM(
    proxf: Any,
    proxg: Any,
    K: Any,
    x0: Any,
    tau: float,
    mu: float,
    *,
    rtol: float | None = None,
    maxiter: int = FEW,
    callback: Callable[..., None] | None = None,
    callback_pair: bool = False,
    z0: Any = None,
    show: bool = False,
    history: list[float] | None = None,
) -> tuple[Any, Any]:
    """Minimizes f(x) + g(K x), by alternating directions with a linearized step (section 4.4.2, equations 4.15 and 4.16).

    `mu` is no more than tau / the largest eigenvalue of K^H K. Begins with x0 and z0, or K x0; u is zero. Other arguments: see `ADMM`.
    Returns x and z. Raises ParameterError unless tau and mu are positive, SolverError for infinities and nan.
    """
    check_maxiter("LinearizedADMM", maxiter)
    f, g = as_prox("LinearizedADMM: proxf", proxf), as_prox("LinearizedADMM: proxg", proxg)
    tau, mu = positive("tau", tau), positive("mu", mu)
    forward, adjoint = forward_of("LinearizedADMM: K", K), adjoint_of("LinearizedADMM: K", K)
    x = vectors_of("LinearizedADMM: x0", x0).copy(x0)
    Kx = _copied(forward(x))
    z = _copied(Kx if z0 is None else z0)
    vectors = vectors_of("LinearizedADMM: K x", Kx)
    u = vectors.like(Kx)
    watch = Watch("LinearizedADMM", x, show, rtol, history)
    watch.sees((1, f, x), (1, g, Kx))
    for _ in range(maxiter):
        gap = combination((1, Kx), (-1, z), (1, u))
        x = f.prox(combination((1, x), (-mu / tau, adjoint(gap))), mu)
        Kx = _copied(forward(x))
        z = g.prox(combination((1, Kx), (1, u)), tau)
        vectors.update([(u, 1, [(1, Kx), (-1, z)])])
        notify(callback, callback_pair, x, z)
        if watch.sees((1, f, x), (1, g, Kx)):
            break
    check_found("LinearizedADMM", watch.iteration - 1, f"mu ({mu:.4g})", x=x, x0=x0, z0=z0)
    return x, z
