"""Plaquettes, link trace and Polyakov loops: what a simulation watches.

All are means of (1/n) Re tr, so that ordered links give 1. The last direction is time: `temporal` plaquettes
contain it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import jali
from jali.codegen.directions import Direction
from jali.codegen.types import Matrix
from jali.errors import LayoutError
from jali.files import value_shown
from jali.gauge.field import GaugeField
from jali.gauge.plaquettes import mean_link_trace, mean_plaquettes
from jali.lattice import Colouring
from jali.lattice.checked import checked
from jali.single_instance import single_instance


@checked
def plaquettes(U: GaugeField) -> tuple[float, float, float]:
    """Mean plaquette (1/n) Re tr U_p over all planes, over the spatial and over the temporal ones.

    In two dimensions there are no spatial plaquettes: that mean is nan. On open boundaries over the plaquettes within the
    lattice, those in boundary slices with weight 1/2 (`jali.gauge.open_edges`). Raises LayoutError in one dimension.
    """
    return mean_plaquettes(U)


@checked
def plaquette(U: GaugeField) -> float:
    """Mean plaquette (1/n) Re tr U_p."""
    return plaquettes(U)[0]


@checked
def link_trace(U: GaugeField) -> float:
    """Mean of (1/n) Re tr U_mu(x) over all links; it depends on the gauge and serves as a fingerprint of files."""
    return mean_link_trace(U)


# ---- Polyakov loops --------------------------------------------------------------------------------------


@jali.site_function
def _begin(X: Any, line: Any, u: Any) -> None:
    line[X] = u[X]


@jali.site_function
def _extend(X: Any, line: Any, u: Any, mu: Any) -> None:
    line[X] = u[X] * line[X + mu]


@jali.site_function
def _line_trace(X: Any, line: Any, total: Any) -> None:
    total += line[X].trace()


@single_instance
def slices(axis: int, extent: int) -> Colouring:
    """The slices of a lattice orthogonal to a direction, as a colouring: colour = coordinate."""
    return Colouring(extent, lambda x: x[axis], f"slice of direction {axis}")


def _axis(U: GaugeField, mu: Any) -> int:
    """The number of a direction that is given as a Direction or a number, negative from the end; it closes upon itself."""
    if not isinstance(mu, int | np.integer | Direction) or not -U.lattice.ndim <= int(mu) < U.lattice.ndim:
        raise LayoutError(
            f"direction {value_shown(mu)} does not exist on a lattice of {U.lattice.ndim} dimensions"
        )
    axis = range(U.lattice.ndim)[int(mu)]
    if axis in U.open:
        raise LayoutError(
            f"there is no Polyakov loop along direction {axis}, whose boundary is open: no link leads from its last site to "
            "its first"
        )
    return axis


@checked
def polyakov_lines(U: GaugeField, mu: Any = -1) -> jali.Field:
    """The untraced Polyakov loops U_mu(x) U_mu(x + mu) ... around the lattice, valid where coordinate mu is
    0.

    Built slice by slice from the far end, each reading only its neighbour, so that mu may be split over
    ranks. The field is a workspace of U: the next call overwrites it. Raises LayoutError for an open direction.
    """
    axis = _axis(U, mu)
    direction, extent = U.lattice.directions[axis], U.lattice.extents[axis]
    line = U.workspace("Polyakov line", Matrix(U.n))
    colours = slices(axis, extent)
    _begin[colours[extent - 1]](line, U[axis])
    for coordinate in reversed(range(extent - 1)):
        _extend[colours[coordinate]](line, U[axis], direction)
    return line


@checked
def polyakov_loop(U: GaugeField, mu: Any = -1) -> complex:
    """Mean Polyakov loop (1/n) tr prod U_mu over the sites orthogonal to mu; by default mu is time, the last
    direction. Raises LayoutError for an open direction.
    """
    axis = _axis(U, mu)
    extent = U.lattice.extents[axis]
    total: complex = U.lattice.sum(_line_trace, polyakov_lines(U, axis), over=slices(axis, extent)[0])
    return total * (extent / (U.n * U.lattice.volume))
