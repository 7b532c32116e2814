"""Open edges: which loops a lattice with open (Neumann) boundary conditions has, and what those in its boundary slices count.

M. Luscher and S. Schaefer, JHEP 07 (2011) 036, arXiv:1105.4749, and Comput. Phys. Commun. 184 (2013) 519,
arXiv:1206.2809, with c_G = 1. Of an open direction with L sites no link leads from coordinate L - 1 to 0: what is
stored there belongs to no term. A loop within the slice at either end counts 1/2, so that sums over loops of one
shape are those of the trapezoidal rule, over a length of L - 1. The flow is the gradient with the same measure: it
doubles the derivative on the links within these slices. The clover field strength is zero in them.

All this is what a field has that goes on beyond the edge as its mirror image, over 2 (L - 1) sites and periodic: its
action is twice that of the open lattice, and flow and smearing agree link for link. Several open directions are taken
one after the other. All functions here leave what they are given as it is where nothing is open, so that kernels of
periodic fields stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jali


def number_of_loops(U: Any, sides: Mapping[int, int]) -> int:
    """The sum of `weighted` ones over the loops of a gauge field that extend by `sides`, which are numbers of steps by direction."""
    steps = [sides.get(axis, 1) if axis in U.open else 0 for axis in range(U.lattice.ndim)]
    return math.prod(max(0, n - step) for n, step in zip(U.lattice.extents, steps, strict=True))


def weighted(X: Any, U: Any, along: Any, value: Any) -> Any:
    """What a loop at X that extends in the directions `along` adds to a sum: half in the boundary slices of the others."""
    for axis in _others(U, along):
        value = jali.where(_at_end(X, axis), 0.5, 1.0) * value
    return value


def where_complete(X: Any, U: Any, spans: Mapping[int, tuple[int, int]], value: Any) -> Any:
    """A value of a loop at X that goes so far backwards and forwards by direction, and zero where it would leave an open lattice."""
    for axis in U.open:
        low, high = spans.get(axis, (0, 0))
        x = X.coordinate(axis)
        if low < 0:
            value = jali.where(x + low < 0, 0.0, value)
        if high > 0:
            value = jali.where(x + high >= X.extent(axis), 0.0, value)
    return value


def mirrored(X: Any, U: Any, mu: Any, value: Any) -> Any:
    """A sum of staples with `weighted` loops as the link U[mu][X] has it in flow and smearing: doubled in boundary slices."""
    for axis in _others(U, (mu,)):
        value = jali.where(_at_end(X, axis), 2.0, 1.0) * value
    return value


def inside(X: Any, U: Any, value: Any) -> Any:
    """A value of the site, and zero in the boundary slices."""
    for axis in U.open:
        value = jali.where(_at_end(X, axis), 0.0, 1.0) * value
    return value


def where_linked(X: Any, U: Any, mu: Any, value: Any, otherwise: Any) -> Any:
    """A value of the link U[mu][X]; `otherwise` at the last coordinate of an open direction mu, where there is none."""
    if int(mu) not in U.open:
        return value
    return jali.where(X.coordinate(mu) == X.extent(mu) - 1, otherwise, value)


def _others(U: Any, along: Any) -> list[int]:
    """Open directions that are not among `along`."""
    axes = {int(mu) for mu in along}
    return [axis for axis in U.open if axis not in axes]


def _at_end(X: Any, axis: int) -> Any:
    x = X.coordinate(axis)
    return (x == 0) | (x == X.extent(axis) - 1)
