"""The primal-dual method of Chambolle and Pock (J. Math. Imaging Vis. 40 (2011) 120, algorithm 1) on any vectors of
`jali.solvers.vectors`. An iteration is A and A^H once each and the two proximal operators; it adds no communication to theirs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.solvers.operators import adjoint_of, forward_of
from jali.solvers.primal import Watch, tell
from jali.solvers.proximal import as_prox, combination
from jali.solvers.solver import check_niter, positive
from jali.solvers.vectors import vectors_of


def PrimalDual(
    proxf: Any,
    proxg: Any,
    A: Any,
    x0: Any,
    y0: Any = None,
    tau: Any = None,
    mu: Any = None,
    z: Any = None,
    theta: float = 1.0,
    niter: int = 10,
    gfirst: bool = True,
    callback: Callable[..., None] | None = None,
    callbacky: bool = False,
    returny: bool = False,
    show: bool = False,
    tol: float | None = None,
    history: list[float] | None = None,
) -> Any:
    """Minimizes f(x) + g(A x) + z^T x.

    Args:
        proxf: f.
        proxg: g.
        A: a linear operator.
        x0: where the primal variable starts; it is not changed.
        y0: where the dual one does, zero if left out; it is not changed.
        tau: step length of x, a number or one for each iteration; tau mu is below 1 / the largest eigenvalue of A^H A.
        mu: likewise of y.
        z: a vector like x.
        theta: extrapolation, from 0 (Arrow and Hurwicz) to 1.
        niter: iterations.
        gfirst: whether the dual step comes first.
        callback: called with x, or with `callbacky` with x and y, after each iteration.
        returny: return y too.
        show: write a line for each iteration.
        tol: stop when the objective changes by less than this part of it.
        history: a list that takes the objectives of x0 and of each iteration.

    Returns x, or x and y. Raises ParameterError for step lengths that are missing or not positive.
    """
    check_niter("PrimalDual", niter)
    f, g = as_prox("PrimalDual: proxf", proxf), as_prox("PrimalDual: proxg", proxg)
    forward, adjoint = forward_of("PrimalDual: A", A), adjoint_of("PrimalDual: A", A)
    taus, mus = _lengths("tau", tau, niter), _lengths("mu", mu, niter)
    x = vectors_of("PrimalDual: x0", x0).copy(x0)
    ahead = x
    Ax = forward(x)
    dual = vectors_of("PrimalDual: A x", Ax)
    y = dual.like(Ax) if y0 is None else dual.copy(y0)

    def of_image(x: Any) -> Any:
        return g(forward(x))

    watch = Watch("PrimalDual", x, show, tol, history)
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
        tell(callback, callbacky, x, y)
        if watch.sees((1, f, x), (1, of_image, x)):
            break
    return (x, y) if returny else x


def _lengths(name: str, value: Any, niter: int) -> list[float]:
    if value is None:
        raise ParameterError(f"PrimalDual: there is no step length {name}")
    values = np.asarray(value, dtype=float).reshape(-1)
    if values.size == 1:
        return [positive(name, values[0])] * niter
    if values.size < niter:
        raise ParameterError(f"PrimalDual: {values.size} step lengths {name} for {niter} iterations")
    return [positive(name, one) for one in values[:niter]]
