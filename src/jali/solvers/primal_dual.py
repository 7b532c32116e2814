"""The primal-dual method of Chambolle and Pock (J. Math. Imaging Vis. 40 (2011) 120, algorithm 1) on any vectors of
`jali.vectors`. An iteration is K and K^H once each and the two proximal operators; it adds no communication to theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.keywords import named
from jali.solvers.operators import adjoint_of, forward_of
from jali.solvers.primal import FEW, Watch, check_found, notify
from jali.solvers.proximal import as_prox, combination
from jali.solvers.solver import check_maxiter, positive
from jali.vectors import vectors_of


@named
def PrimalDual(
    proxf: Any,
    proxg: Any,
    K: Any,
    x0: Any,
    y0: Any = None,
    *,
    tau: Any = None,
    mu: Any = None,
    rtol: float | None = None,
    maxiter: int = FEW,
    callback: Callable[..., None] | None = None,
    callback_pair: bool = False,
    z: Any = None,
    theta: float = 1.0,
    gfirst: bool = True,
    return_pair: bool = False,
    show: bool = False,
    history: list[float] | None = None,
) -> Any:
    """Minimizes f(x) + g(K x) + z^T x.

    Args:
        proxf: f.
        proxg: g.
        K: a linear operator.
        x0: where the primal variable starts; it is not changed.
        y0: where the dual one does, zero if left out; it is not changed.
        tau: step length of x, a number or one for each iteration; tau mu is below 1 / the largest eigenvalue of K^H K.
        mu: likewise of y.
        rtol: stop when the objective changes by less than this part of it; if left out, all iterations are done.
        maxiter: no more iterations than this.
        callback: called with x, or with `callback_pair` with x and y, after each iteration.
        z: a vector like x.
        theta: extrapolation, from 0 (Arrow and Hurwicz) to 1.
        gfirst: whether the dual step comes first.
        return_pair: return y too.
        show: write a line for each iteration.
        history: a list that takes the objectives of x0 and of each iteration.

    Returns x, or x and y. Raises ParameterError for step lengths that are missing or not positive, SolverError for infinities and nan.
    """
    check_maxiter("PrimalDual", maxiter)
    f, g = as_prox("PrimalDual: proxf", proxf), as_prox("PrimalDual: proxg", proxg)
    forward, adjoint = forward_of("PrimalDual: K", K), adjoint_of("PrimalDual: K", K)
    taus, mus = _lengths("tau", tau, maxiter), _lengths("mu", mu, maxiter)
    x = vectors_of("PrimalDual: x0", x0).copy(x0)
    ahead = x
    Kx = forward(x)
    dual = vectors_of("PrimalDual: K x", Kx)
    y = dual.like(Kx) if y0 is None else dual.copy(y0)

    def of_image(x: Any) -> Any:
        return g(forward(x))

    watch = Watch("PrimalDual", x, show, rtol, history)
    watch.sees((1, f, x), (1, of_image, x))
    for tau_now, mu_now in zip(taus, mus, strict=True):
        if gfirst:
            y = g.proxdual(combination((1, y), (mu_now, forward(ahead))), mu_now)
        before = x
        drift = [(-tau_now, adjoint(y))] if z is None else [(-tau_now, adjoint(y)), (-tau_now, z)]
        x = f.prox(combination((1, x), *drift), tau_now)
        ahead = combination((1 + theta, x), (-theta, before)) if theta else x
        if not gfirst:
            y = g.proxdual(combination((1, y), (mu_now, forward(ahead))), mu_now)
        notify(callback, callback_pair, x, y)
        if watch.sees((1, f, x), (1, of_image, x)):
            break
    check_found("PrimalDual", watch.iteration - 1, "tau or mu", x=x, x0=x0, y0=y0, z=z)
    return (x, y) if return_pair else x


def _lengths(name: str, value: Any, maxiter: int) -> list[float]:
    if value is None:
        raise ParameterError(f"PrimalDual: there is no step length {name}")
    values = np.asarray(value, dtype=float).reshape(-1)
    if values.size == 1:
        return [positive(name, values[0])] * maxiter
    if values.size < maxiter:
        raise ParameterError(f"PrimalDual: {values.size} step lengths {name} for {maxiter} iterations")
    return [positive(name, one) for one in values[:maxiter]]
