"""Plaquettes and link traces of any links; a gauge field uses them to monitor and save its own.

All are means of (1/n) Re tr, so that ordered links give 1. The last direction is time: `temporal` plaquettes
contain it. Loops in the boundary slices of open directions have their weight (`jali.gauge.open_edges`).
"""

from __future__ import annotations

import math
from typing import Any

import jali
from jali.codegen.directions import Direction
from jali.codegen.types import Real
from jali.errors import LayoutError
from jali.gauge.open_edges import weighted, where_linked


def plaquette_trace(X: Any, U: Any, mu: Direction, nu: Direction) -> Any:
    """Re tr of the plaquette at X in the plane of mu and nu, inside a site function: two products and a
    trace. Zero where it would cross an open edge.
    """
    return ((U[mu][X] * U[nu][X + mu]) * (U[nu][X] * U[mu][X + nu]).dagger()).trace().real


@jali.site_function
def plaquette_sums(X: Any, U: Any, spatial: Any, temporal: Any) -> None:
    """Sums Re tr over the plaquettes without and with the last direction."""
    time = X.directions()[-1]
    spatial += jali.zero(Real())  # without planes of space too
    for mu, nu in X.planes():
        trace = weighted(X, U, (mu, nu), plaquette_trace(X, U, mu, nu))
        if nu == time:
            temporal += trace
        else:
            spatial += trace


def mean_plaquettes(U: Any) -> tuple[float, float, float]:
    """Mean plaquette (1/n) Re tr U_p of a gauge field over all planes, over the spatial and over the temporal ones."""
    d = U.lattice.ndim
    if d < 2:
        raise LayoutError("a one-dimensional lattice has no plaquettes")
    spatial, temporal = U.lattice.sum(plaquette_sums, U)
    per_plane = 1.0 / (U.n * U.volume)
    planes = (d - 1) * (d - 2) // 2
    return (
        (spatial + temporal) * per_plane / (planes + d - 1),
        spatial * per_plane / planes if planes else math.nan,
        temporal * per_plane / (d - 1),
    )


@jali.site_function
def _traces(X: Any, U: Any, total: Any) -> None:
    for mu in X.directions():
        total += where_linked(X, U, mu, U[mu][X].trace().real, 0.0)


def mean_link_trace(U: Any) -> float:
    """Mean of (1/n) Re tr U_mu(x) of a gauge field over all links."""
    trace: float = U.lattice.sum(_traces, U)  # on a tape a Total
    return trace / (U.n * U.links)
