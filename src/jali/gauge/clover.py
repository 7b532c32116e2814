"""The field strength from clover leaves: energy density and topological charge.

G_mu,nu(x) is a quarter of the traceless anti-Hermitian part of the four plaquettes of a plane that meet at x,
all run through in the same sense; it is a^2 times the field strength up to O(a^2). G = G^a T^a with tr(T^a
T^b) = -delta_ab / 2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jali
from jali.codegen.directions import Direction
from jali.codegen.types import Real
from jali.errors import LayoutError
from jali.gauge.field import GaugeField
from jali.gauge.open_edges import inside, weighted, where_linked
from jali.gauge.plaquettes import plaquette_trace
from jali.lattice.checked import checked


def field_strength(X: Any, U: Any, mu: Direction, nu: Direction) -> Any:
    """G_mu,nu(x), an algebra element, inside a site function. Zero in the boundary slices of open directions."""
    # Four leaves, each from x round to x. Those that share a side share its product.
    right = U[mu][X] * U[nu][X + mu] * (U[nu][X] * U[mu][X + nu]).dagger()
    top = U[nu][X] * U[mu][X - mu + nu].dagger() * (U[mu][X - mu].dagger() * U[nu][X - mu]).dagger()
    left = (U[nu][X - mu - nu] * U[mu][X - mu]).dagger() * (U[mu][X - mu - nu] * U[nu][X - nu])
    bottom = U[nu][X - nu].dagger() * U[mu][X - nu] * (U[mu][X] * U[nu][X + mu - nu].dagger()).dagger()
    return inside(X, U, 0.25 * (right + top + left + bottom).traceless_antihermitian())


Strengths = Mapping[tuple[int, int], Any]
"""G_mu,nu of a site by the numbers mu < nu of its directions."""


def field_strengths(X: Any, U: Any) -> Strengths:
    """All of a site, inside a site function. Raises LayoutError in one dimension."""
    check_dimensions(X.ndim)
    return {(int(mu), int(nu)): field_strength(X, U, mu, nu) for mu, nu in X.planes()}


def check_dimensions(ndim: int) -> None:
    """Raises LayoutError where there is no plane."""
    if ndim < 2:
        raise LayoutError("a one-dimensional lattice has no field strength")


def dual_product(G: Strengths) -> Any:
    """epsilon_{mu nu rho sigma} tr(G_mu,nu G_rho,sigma) / 8 in four dimensions, inside a site function: of each pairing of planes there are eight equal terms."""
    return ((G[0, 1] * G[2, 3]).trace() - (G[0, 2] * G[1, 3]).trace() + (G[0, 3] * G[1, 2]).trace()).real


CHARGE_OF_DUAL_PRODUCT = -1.0 / (4 * math.pi**2)
"""Q = -(1 / 32 pi^2) sum_x epsilon tr(G G) by the sum of `dual_product`."""


@dataclass(frozen=True)
class FieldStrength:
    """Observables of the field strength from one pass over the lattice.

    `energy` is the mean of E = -sum_{mu<nu} tr G_mu,nu^2 (= G^a G^a / 4 summed over all mu, nu) per site with
    the clover G, `energy_plaquette` that of 2 sum_{mu<nu} Re tr(1 - U_p); both in lattice units, M. Luscher,
    JHEP 08 (2010) 071, arXiv:1006.4518, section 3. `charge` is the clover topological charge, nan except in
    four dimensions. On open boundaries (`jali.gauge.open_edges`) the clover G is zero in the boundary slices, which
    `energy` and `charge` leave out (nan where nothing is between them), and `energy_plaquette` is the action density of
    plaquettes, those within these slices with weight 1/2.
    """

    energy: float
    energy_plaquette: float
    charge: float


@jali.site_function
def _sums(X: Any, U: Any, clover: Any, plaquettes: Any, charge: Any) -> None:
    G = field_strengths(X, U)
    for mu, nu in X.planes():
        clover += G[int(mu), int(nu)].norm2()
        plaquettes += weighted(X, U, (mu, nu), plaquette_trace(X, U, mu, nu))
    charge += jali.zero(Real())  # in other dimensions too
    if X.ndim == 4:
        charge += dual_product(G)


@checked
def measure_field_strength(U: GaugeField) -> FieldStrength:
    """Energy densities and topological charge in one pass. Raises LayoutError in one dimension."""
    d = U.lattice.ndim
    check_dimensions(d)
    clover, plaquettes, charge = U.lattice.sum(_sums, U)
    inner = math.prod(n - 2 * (axis in U.open) for axis, n in enumerate(U.lattice.extents))
    return FieldStrength(
        clover / inner if inner else math.nan,
        2 * (U.n * d * (d - 1) / 2 - plaquettes / U.volume),
        CHARGE_OF_DUAL_PRODUCT * charge if d == 4 and inner else math.nan,
    )


@checked
def energy_density(U: GaugeField) -> float:
    """Mean clover energy density E per site; see `FieldStrength`."""
    return measure_field_strength(U).energy


@jali.site_function
def _angles(X: Any, U: Any, total: Any) -> None:
    mu, nu = X.directions()
    loop = U[mu][X] * U[nu][X + mu] * (U[nu][X] * U[mu][X + nu]).dagger()
    angle = jali.atan2(loop[0, 0].imag, loop[0, 0].real)
    total += where_linked(X, U, mu, where_linked(X, U, nu, angle, 0.0), 0.0)


@checked
def topological_charge(U: GaugeField) -> float:
    """The topological charge.

    In four dimensions Q = -(1 / 32 pi^2) sum_x epsilon tr(G G) with the clover field strength (an integer
    only for smooth fields: apply the gradient flow first). For U(1) in two dimensions the sum of the
    plaquette angles in (-pi, pi] over 2 pi, an integer on every periodic configuration. On open boundaries charge
    flows through the edges, and neither is an integer: see `FieldStrength`. Raises LayoutError for other dimensions and
    groups.
    """
    if U.lattice.ndim == 4:
        return measure_field_strength(U).charge
    if U.lattice.ndim == 2 and U.n == 1:
        angles: float = U.lattice.sum(_angles, U)
        return angles / (2 * math.pi)
    raise LayoutError(
        f"the topological charge is defined here in four dimensions and for U(1) in two, not for {U.group} "
        f"in {U.lattice.ndim}"
    )
