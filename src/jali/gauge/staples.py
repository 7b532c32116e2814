"""Staples: the part of an action that multiplies one link.

With S_mu(x) the sum over the staples, every plaquette that contains U_mu(x) is in Re tr(U_mu(x)
S_mu(x)^dagger); so is every rectangle with the staples of rectangles. Written so that a staple of plaquettes costs
two matrix products: 12 products per link in four dimensions, and 62 with the six rectangles of every pair of
directions, since those that share a side share its product.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jali
from jali.codegen.directions import Direction
from jali.gauge.open_edges import weighted
from jali.single_instance import single_instance


def staple(X: Any, U: Any, mu: Direction, across: Iterable[Direction] | None = None) -> Any:
    """Sum of the staples of the link `U[mu][X]`, inside a site function.

    S = sum over nu != mu of U_nu(x) U_mu(x+nu) U_nu(x+mu)^dagger + U_nu(x-nu)^dagger U_mu(x-nu)
    U_nu(x-nu+mu); `across` narrows nu to some directions. In boundary slices of open directions staples have the
    weight of their plaquette (`jali.gauge.open_edges`).
    """
    total: Any = None
    for nu in X.directions() if across is None else across:
        if nu == mu:
            continue
        weigh = functools.partial(weighted, X, U, (mu, nu))
        above = weigh(U[nu][X] * U[mu][X + nu] * U[nu][X + mu].dagger())
        total = above if total is None else total + above
        total = total + weigh(U[nu][X - nu].dagger() * (U[mu][X - nu] * U[nu][X - nu + mu]))
    return total


@single_instance
def rectangle_staple(c1: float) -> Callable[[Any, Any, Direction], Any]:
    """The staple (1 - 8 c1) times that of plaquettes plus c1 times that of 1 x 2 rectangles, as a function (X, U, mu).

    In the plane of mu and nu the link is the short side of two rectangles, and on either side of it half of the long
    side of two. One function for each c1, so that kernels know it again.
    """
    c0 = 1.0 - 8.0 * c1

    def staple_with_rectangles(X: Any, U: Any, mu: Direction) -> Any:
        # Sums of paths that pass by the link: the whole way, up to the end of the link after it, and from the
        # beginning of the link before it. So one product with that link does for all nu.
        total, ahead, behind = [], [], []
        for nu in X.directions():
            if nu == mu:
                continue
            weigh = functools.partial(weighted, X, U, (mu, nu))
            side, top, end = U[nu][X], U[mu][X + nu], U[nu][X + mu]
            far = U[nu][X + nu] * U[mu][X + 2 * nu] * U[nu][X + mu + nu].dagger()
            total.append(weigh(side * ((c0 * top + c1 * far) * end.dagger())))
            ahead.append(weigh((side * top) * (U[mu][X + mu + nu] * U[nu][X + 2 * mu].dagger())))
            behind.append(weigh((U[nu][X - mu] * U[mu][X - mu + nu]) * (top * end.dagger())))

            side, top, end = U[nu][X - nu], U[mu][X - nu], U[nu][X + mu - nu]
            far = U[nu][X - 2 * nu].dagger() * U[mu][X - 2 * nu] * U[nu][X + mu - 2 * nu]
            total.append(weigh(side.dagger() * ((c0 * top + c1 * far) * end)))
            ahead.append(weigh((side.dagger() * top) * (U[mu][X + mu - nu] * U[nu][X + 2 * mu - nu])))
            behind.append(weigh((U[nu][X - mu - nu].dagger() * U[mu][X - mu - nu]) * (top * end)))
        around = sum(ahead[1:], ahead[0]) * U[mu][X + mu].dagger() + U[mu][X - mu].dagger() * sum(
            behind[1:], behind[0]
        )
        return sum(total[1:], total[0]) + c1 * around

    return staple_with_rectangles


@jali.site_function
def staple_sum(X: Any, U: Any, out: Any, mu: Any) -> None:
    """Stores the sum of the staples of direction mu in the field `out` of `Matrix(n)`."""
    out[X] = staple(X, U, mu)
