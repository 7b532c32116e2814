"""Landau and Coulomb gauge: the gauge transformation g for which the sum of Re tr of the links is largest.

With V_mu(x) = g(x) U_mu(x) g(x + mu)^dagger the functional is F = sum Re tr V_mu(x) / n per link, over all directions
(Landau) or those of space (Coulomb, where every time slice is by itself). Seen from one site F is Re tr(g(x) w(x)),
with w(x) of the links and the transformations around it, so g(x) is turned towards the largest value as heat bath turns
a link: in all SU(2) subgroups, on sites that are not neighbours. It is turned too far by the power omega, which never
lowers F for 0 < omega < 2 and converges much faster (J. Mandula and M. Ogilvie, Phys. Lett. B 248 (1990) 156).

What is found is a maximum near the start, one of many Gribov copies; no search for the largest one is made. Another
copy: `U.random_gauge_transform(seed)` before.

No link leads across an open edge: F has those within the lattice, and Delta those that a site has. With another boundary
factor, -1 or a phase, a link across an edge has different values at its two ends, and F is not defined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import jali
from jali.actions.colours import site_colours
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.errors import LayoutError, ParameterError, SolverError
from jali.gauge.field import GaugeField
from jali.gauge.subgroups import (
    TINY,
    double_quaternion,
    matrix_of,
    rotate_rows,
    rows_of,
    subgroups,
)
from jali.lattice.checked import checked
from jali.notebook import facts

_ROUNDING = 70.0
"""Where theta ends, in units of the square of the precision's rounding: each component of Delta is a sum of some ten terms."""


@dataclass(frozen=True, repr=False)
class GaugeFixing:
    """A gauge field in Landau or Coulomb gauge, and how it was reached.

    theta = sum_x tr Delta(x) Delta(x)^dagger / (n volume), with Delta(x) = sum_mu (A_mu(x - mu) - A_mu(x)) over the
    directions of the gauge and A = V - V^dagger without its trace (in U(1) V - V^dagger itself). There is no 1/2 in A:
    theta is 4 times what A = (V - V^dagger) / 2 or / (2 i) gives.
    """

    field: GaugeField
    """The links V."""
    transformation: jali.Field
    """g, so that V_mu(x) = g(x) U_mu(x) g(x + mu)^dagger."""
    functional: float
    """F: mean of Re tr V_mu(x) / n over the links of these directions; in Landau gauge `link_trace(field)`."""
    theta: float
    """The squared divergence per site and colour, as above; at a maximum it is zero."""
    sweeps: int
    """How many sweeps it took."""
    history: tuple[tuple[int, float, float], ...]
    """(sweeps, functional, theta) whenever they were measured."""

    def __repr__(self) -> str:
        return (
            f"<gauge fixing, {self.sweeps} sweeps, functional {self.functional:.6g}, theta {self.theta:.2g}: "
            f"{self.field!r}>"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows, with the history folded."""
        history = [
            f"{sweeps:6}  {functional:.12f}  {theta:.3e}" for sweeps, functional, theta in self.history
        ]
        rows = {
            "field": self.field,
            "sweeps": self.sweeps,
            "functional": f"{self.functional:.12f}",
            "theta": f"{self.theta:.3e}",
        }
        return facts("Gauge fixing", rows, {"sweeps, functional, theta": "\n".join(history)})


@checked
def landau_gauge(
    U: GaugeField,
    *,
    atol: float = 1e-10,
    maxiter: int = 10000,
    omega: float = 1.7,
    check_interval: int = 10,
) -> GaugeFixing:
    """Fixes the Landau gauge: the divergence of V vanishes in all directions. U stays as it is.

    It ends when theta, as `GaugeFixing` defines it, measured after every `check_interval` sweeps, is below `atol` (float32
    reaches some 1e-12). `omega` from 1, steepest ascent, to below 2 overrelaxes; the best value grows with the lattice.
    The boundary is periodic or open. Raises ParameterError for impossible numbers, LayoutError for other boundaries,
    and SolverError, on all ranks, after `maxiter` sweeps, and where links hold infinities or nan.
    """
    return _fix(U, tuple(U.lattice.directions), atol, omega, maxiter, check_interval)


@checked
def coulomb_gauge(
    U: GaugeField,
    *,
    atol: float = 1e-10,
    maxiter: int = 10000,
    omega: float = 1.7,
    check_interval: int = 10,
) -> GaugeFixing:
    """Fixes the Coulomb gauge: the divergence of V vanishes in space, in every slice of time, the last direction.

    Arguments and errors as those of `landau_gauge`; the boundary in time may be any. Transformations that depend on
    time alone stay free.
    """
    return _fix(U, tuple(U.lattice.directions[:-1]), atol, omega, maxiter, check_interval)


def _fix(
    U: GaugeField, axes: tuple[Any, ...], atol: float, omega: float, maxiter: int, check_interval: int
) -> GaugeFixing:
    if not atol > 0 or not 1 <= omega < 2 or maxiter < 1 or check_interval < 1:
        raise ParameterError(
            "gauge fixing needs atol above 0, omega from 1 to below 2 and maxiter and check_interval from 1, not "
            f"{atol}, {omega}, {maxiter} and {check_interval}"
        )
    if not axes:
        raise LayoutError("Coulomb gauge needs at least two dimensions, space and time")
    lattice = U.lattice
    factors = {
        int(mu): c for mu in axes if (c := U[0].boundary.conditions[int(mu)]) not in ("periodic", "open")
    }
    if factors:
        raise LayoutError(
            f"a gauge is fixed on periodic or open links; these have the boundary {factors} (by direction), so that a link "
            "across the edge has two values, seen from its two ends, and the functional none. "
            f"GaugeField(lattice, {U.group}).assign(U) has the same links without it; signs and phases of fermions belong to "
            "the boundary of the spinor field"
        )
    colours = list(site_colours(lattice))
    # Beyond an open edge there is nothing to turn towards; in a transformation all sites count.
    conditions = ["open" if c == "open" else "periodic" for c in U[0].boundary.conditions]
    g = U[0].like(boundary=conditions, storage=None, name="g")
    _unit(g)
    history = [(0, *_measure(U, g, axes))]
    while history[-1][2] >= atol and history[-1][0] < maxiter:
        sweeps = min(check_interval, maxiter - history[-1][0])
        for _ in range(sweeps):
            for colour in colours:
                _turn[colour](g, U, float(omega), axes)
        _reunitarise(g)
        history.append((history[-1][0] + sweeps, *_measure(U, g, axes)))
    done, functional, theta = history[-1]
    if not theta < atol:
        advice = "allow more (maxiter), or overrelax otherwise (omega)"
        if not np.isfinite(history[0][2]):
            advice = "the links hold infinities or nan"
        elif atol < (least := _ROUNDING * float(np.finfo(U.precision).eps) ** 2):
            advice = f"by its rounding {U.precision} ends near {least:.0e}" + (
                f", GaugeField(lattice, {U.group}).assign(U) goes further"
                if U.precision != IEEE_PRECISIONS[-1]
                else ""
            )
        raise SolverError(
            f"gauge fixing has theta = {theta:.3g} after {done} sweeps, not below {atol:g}; {advice}"
        )
    transformation = g.like(boundary="periodic", name="gauge transformation").assign(g)
    field = U.copy().gauge_transform(transformation)
    return GaugeFixing(field, transformation, functional, theta, done, tuple(history))


def _measure(U: GaugeField, g: jali.Field, axes: tuple[Any, ...]) -> tuple[float, float]:
    """The functional and theta."""
    total, divergence = U.lattice.sum(_sums, g, U, axes)
    sites = U.n * U.lattice.volume
    # every link is seen from both of its ends; Delta is -2 times the anti-Hermitian part
    missing = sum(U.lattice.volume // U.lattice.extents[mu] for mu in map(int, axes) if mu in U.open)
    return total / (2 * (len(axes) * sites - U.n * missing)), 4 * divergence / sites


def _around(X: Any, g: Any, U: Any, axes: Any) -> Any:
    """w(x): Re tr(g(x) w(x)) is what the links of a site contribute to n F."""
    w = None
    for mu in axes:
        ends = U[mu][X] * g[X + mu].dagger() + U[mu][X - mu].dagger() * g[X - mu].dagger()
        w = ends if w is None else w + ends
    return w


@jali.site_function
def _unit(X: Any, g: Any) -> None:
    g[X] = jali.identity(g[X].shape[0])


@jali.site_function
def _reunitarise(X: Any, g: Any) -> None:
    g[X] = g[X].reunitarise()


@jali.site_function
def _sums(X: Any, g: Any, U: Any, axes: Any, total: Any, divergence: Any) -> None:
    W = g[X] * _around(X, g, U, axes)
    total += W.trace().real
    divergence += W.traceless_antihermitian().norm2()


@jali.site_function
def _turn(X: Any, g: Any, U: Any, omega: Any, axes: Any) -> None:
    """g(x) turned by the power omega of what would take it to the maximum, in every SU(2) subgroup."""
    old = g[X]
    product = old * _around(X, g, U, axes)
    if old.shape[0] == 1:
        z = product[0, 0]
        angle = -omega * jali.atan2(z.imag, z.real)
        g[X] = jali.complex(jali.cos(angle), jali.sin(angle)) * old
        return
    rows, W = rows_of(old), rows_of(product)
    pairs = subgroups(old.shape[0])
    for number, (i, j) in enumerate(pairs):
        a = double_quaternion(W, i, j)
        along = jali.sqrt(a[1] * a[1] + a[2] * a[2] + a[3] * a[3])
        angle = omega * jali.atan2(along, a[0])
        still = along < TINY
        scale = jali.where(still, 0.0, -jali.sin(angle) / jali.where(still, 1.0, along))
        r = (jali.cos(angle), scale * a[1], scale * a[2], scale * a[3])
        rotate_rows(rows, i, j, r)
        if number + 1 < len(pairs):
            rotate_rows(W, i, j, r)
    g[X] = matrix_of(rows)
