"""Wilson loops of all sizes, from nearest-neighbour steps only.

A loop of R x T in the plane of mu and nu is tr(A(x) Q_T(x)^dagger): A is the line of R links in direction mu,
and Q_T the same line T steps further in nu, carried back along the two sides: Q_0 = A, Q_{T+1}(x) = U_nu(x)
Q_T(x + nu) U_nu(x + R mu)^dagger. The far side U_nu(x + R mu) moves closer by one unit shift for each R. So
no read reaches beyond the neighbour, however small the part of the lattice that a rank holds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

import jali
from jali.codegen.types import Matrix
from jali.errors import ParameterError
from jali.gauge.field import GaugeField
from jali.gauge.open_edges import number_of_loops, weighted
from jali.lattice.checked import checked


@jali.site_function
def _copy(X: Any, out: Any, source: Any) -> None:
    out[X] = source[X]


@jali.site_function
def _shift(X: Any, out: Any, source: Any, mu: Any) -> None:
    out[X] = source[X + mu]


@jali.site_function
def _lengthen(X: Any, out: Any, line: Any, u: Any, mu: Any) -> None:
    out[X] = u[X] * line[X + mu]


@jali.site_function
def _carry_and_close(
    X: Any, out: Any, Q: Any, u: Any, far: Any, line: Any, mu: Any, nu: Any, total: Any
) -> None:
    """One more step in nu, and the loop that this closes."""
    carried = u[X] * Q[X + nu] * far[X].dagger()
    out[X] = carried
    total += weighted(X, u, (mu, nu), (line[X] * carried.dagger()).trace().real)


@checked
def wilson_loops(U: GaugeField, r_max: int, t_max: int, time: int | None = None) -> np.ndarray:
    """Mean Wilson loops (1/n) Re tr W(R, T) for R = 1 .. r_max and T = 1 .. t_max: array `[R - 1, T - 1]`.

    Averaged over all sites and all ordered pairs of directions, or, if `time` is a direction's number, over
    those where T lies along it. On open boundaries over the loops within the lattice, those in boundary slices with
    weight 1/2 (`jali.gauge.open_edges`). Raises ParameterError for sizes below 1 and beyond the lattice's extents.
    """
    return _loops(U, range(1, r_max + 1), t_max, time)


@checked
def wilson_loop(U: GaugeField, r: int, t: int, time: int | None = None) -> float:
    """Mean Wilson loop (1/n) Re tr W(r, t); see `wilson_loops`."""
    return float(_loops(U, range(r, r + 1), t, time)[0, -1])


def _loops(U: GaugeField, sizes: range, t_max: int, time: int | None) -> np.ndarray:
    lattice = U.lattice
    axes = range(lattice.ndim)
    if time is not None and time not in range(-lattice.ndim, lattice.ndim):
        raise ParameterError(f"direction {time} does not exist on a lattice of {lattice.ndim} dimensions")
    pairs = [(m, v) for m in axes for v in axes if m != v and (time is None or v == axes[time])]
    if not sizes or sizes[0] < 1 or t_max < 1:
        raise ParameterError(f"Wilson loops have sizes from 1 x 1, not {sizes[-1] if sizes else 0} x {t_max}")
    for m, v in pairs:
        if any(
            size > lattice.extents[axis] - (axis in U.open) for axis, size in ((m, sizes[-1]), (v, t_max))
        ):
            edges = f", open in {U.open}" if U.open else ""
            raise ParameterError(
                f"Wilson loops of {sizes[-1]} x {t_max} do not fit a lattice of extents {lattice.extents}{edges}"
            )
    total = np.zeros((len(sizes), t_max))
    number = np.zeros((len(sizes), t_max))
    for m, v in pairs:
        for k, loops in enumerate(_plane(U, m, v, sizes, t_max)):
            total[k] += loops
            number[k] += [number_of_loops(U, {m: sizes[k], v: t}) for t in range(1, t_max + 1)]
    return total / (U.n * number)


def _plane(U: GaugeField, m: int, v: int, sizes: range, t_max: int) -> Iterable[list[float]]:
    """Sums of Re tr W(R, 1 .. t_max) for each R in `sizes`."""
    mu, nu = U.lattice.directions[m], U.lattice.directions[v]
    line, far, Q, spare = (
        U.workspace(name, Matrix(U.n)) for name in ("line", "far side", "carried line", "spare")
    )
    _copy(line, U[m])
    _shift(far, U[v], mu)
    for r in range(1, sizes[-1] + 1):
        if r > 1:
            _lengthen(spare, line, U[m], mu)
            line, spare = spare, line
            _shift(spare, far, mu)
            far, spare = spare, far
        if r in sizes:
            sums = []
            _copy(Q, line)
            for _ in range(t_max):
                sums.append(float(U.lattice.sum(_carry_and_close, spare, Q, U[v], far, line, mu, nu)))
                Q, spare = spare, Q
            yield sums
