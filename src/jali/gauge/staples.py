"""The staples of plaquettes, for smearing and for updates of a user's own; those of actions are derived (`link_terms.py`).

With S_mu(x) the sum over the staples, every plaquette that contains U_mu(x) is in Re tr(U_mu(x)
S_mu(x)^dagger). Written so that a staple costs two matrix products: 12 products per link in four dimensions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jali
from jali.codegen.directions import Direction
from jali.gauge.open_edges import weighted


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


@jali.site_function
def staple_sum(X: Any, U: Any, out: Any, mu: Any) -> None:
    """Stores the sum of the staples of direction mu in the field `out` of `Matrix(n)`."""
    out[X] = staple(X, U, mu)
