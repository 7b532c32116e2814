"""The Wilson Dirac operator.

    D psi(x) = (m + d) psi(x) - 1/2 sum_mu [ (1 - gamma_mu) U_mu(x) psi(x+mu)
                                             + (1 + gamma_mu) U_mu(x-mu)^dagger psi(x-mu) ]

on a lattice of d = 1 to 4 dimensions (Wilson, in "New phenomena in subnuclear physics", 1977; r = 1, kappa = 1/(2m + 2d)). Links
multiply projected spinors of two spins. Boundary conditions are those of the spinor field: "open" are Dirichlet conditions, with
psi = 0 one step outside of the lattice (as in M. Luscher and S. Schaefer, arXiv:1206.2809, with c_F = 1, where these outer slices
belong to the lattice). Solving is `jali.solvers`' affair.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jali.beside import made_of, redefines
from jali.codegen.types import Spinor
from jali.codegen.values import Value, zero
from jali.errors import LayoutError, ParameterError
from jali.fermions.even_odd import EvenOdd
from jali.fermions.spin import project, reconstruct
from jali.files import value_shown
from jali.lattice.algebra import inner
from jali.lattice.base import no_field, what_differs
from jali.lattice.domain import ALL, ODD, Domain
from jali.lattice.field import Field
from jali.lattice.fused_sums import apply_inner
from jali.lattice.sites import SiteFunction, site_function


def wilson_at(X: Any, psi: Any, U: Any, mass: Any, sign: int = 1) -> Value:
    """D psi at the site X, for use inside site functions; with `sign=-1` D^dagger psi."""
    hops = wilson_hop_at(X, psi, U, sign)
    return (mass + X.ndim) * psi[X] - 0.5 * hops


def wilson_hop_at(X: Any, psi: Any, U: Any, sign: int = 1) -> Value:
    """H psi at the site X, the sum over directions in D = m + d - H / 2; with `sign=-1` H^dagger psi.

    gamma_5 D gamma_5 = D^dagger, and gamma_5 (1 - gamma_mu) gamma_5 = 1 + gamma_mu: the adjoint exchanges the projectors.
    """
    hops = zero(psi.element)
    for mu in X.directions():
        ahead = U[mu][X] * project(psi[X + mu], mu, -sign)
        behind = U[mu][X - mu].dagger() * project(psi[X - mu], mu, sign)
        hops = hops + reconstruct(ahead, mu, -sign) + reconstruct(behind, mu, sign)
    return hops


@site_function
def _wilson(X: Any, out: Any, psi: Any, U: Any, mass: Any) -> None:
    out[X] = wilson_at(X, psi, U, mass)


@site_function
def _wilson_adjoint(X: Any, out: Any, psi: Any, U: Any, mass: Any) -> None:
    out[X] = wilson_at(X, psi, U, mass, -1)


@site_function
def _hop(X: Any, out: Any, psi: Any, U: Any, adjoint: bool) -> None:
    out[X] = wilson_hop_at(X, psi, U, -1 if adjoint else 1)


@site_function
def _diagonal_and_hop(X: Any, out: Any, chi: Any, psi: Any, U: Any, a: Any, b: Any, adjoint: bool) -> None:
    out[X] = a * chi[X] + b * wilson_hop_at(X, psi, U, -1 if adjoint else 1)


class WilsonDirac:
    """The Wilson Dirac operator of a gauge field `U` (a `GaugeField` or a list of one field per direction) and a bare mass.

    `apply(psi, out)` writes D psi into `out` and returns it; a new field is made when `out` is left out. Likewise `adjoint`
    (D^dagger) and `normal` (D^dagger D, Hermitian and positive, for `jali.solvers.cg`, which finds `normal_inner` beside it). Raises
    LayoutError for spinors that do not fit the links: across an open edge of the links the spinor is open, too; signs and phases are those
    of the spinor alone. Spinors on one colour are for `hop` and `even_odd`.
    """

    def __init__(self, U: Any, mass: float):
        fields = getattr(U, "fields", U)
        if (
            not isinstance(fields, list | tuple)
            or not fields
            or not all(isinstance(f, Field) for f in fields)
        ):
            raise LayoutError(
                f"the links are a GaugeField or a list of one field per direction, not {no_field(U)}"
            )
        if not isinstance(mass, int | float | np.number):
            raise ParameterError(f"the mass is a real number, not {value_shown(mass)}")
        if not math.isfinite(mass):
            raise ParameterError(f"the mass is finite, not {value_shown(mass)}")
        self.links = list(fields)
        first = self.links[0]
        self.lattice = first.lattice
        if len(self.links) != self.lattice.ndim or self.lattice.ndim > 4:
            raise LayoutError(
                f"{len(self.links)} link fields on a lattice of {self.lattice.ndim} dimensions; the Wilson operator needs one per direction, "
                "and has gamma matrices for at most 4"
            )
        if len(first.element.type.shape) != 2:
            raise LayoutError(f"the links are matrices, not {first.element}")
        self.colours = int(first.element.type.shape[0])
        self.mass = float(mass)
        self._between: Field | None = None

    def __repr__(self) -> str:
        return f"WilsonDirac({self.links[0].element} on {self.lattice}, mass {self.mass:g})"

    def even_odd(self, over: Domain = ODD) -> EvenOdd:
        """The operator on half of the sites from which a solution on all of them follows: see `EvenOdd`. Raises LayoutError where the mass
        is -d, and for other sites than `ODD` and `EVEN`."""
        return EvenOdd(self, over)

    @property
    def kappa(self) -> float:
        """Hopping parameter 1 / (2 m + 2 d)."""
        return 1 / (2 * self.mass + 2 * self.lattice.ndim)

    def apply(self, psi: Field, out: Field | None = None) -> Field:
        """D psi."""
        return self._run(_wilson, psi, out)

    def adjoint(self, psi: Field, out: Field | None = None) -> Field:
        """D^dagger psi."""
        return self._run(_wilson_adjoint, psi, out)

    def hop(self, psi: Field, out: Field | None = None, adjoint: bool = False) -> Field:
        """H psi, the sum over neighbours in D = m + d - H / 2, or H^dagger psi. That of a spinor on one colour lives on the other."""
        self._check(psi)
        if out is None:
            out = psi.like() if psi.over is ALL else psi.like(over=psi.over.opposite)
        out = self._out(psi, out)
        if psi.over is not ALL and out.over is psi.over:
            raise LayoutError(
                f"a hop leads from {psi.over} sites to {psi.over.opposite} ones, and {out.name} lives on {out.over}"
            )
        _hop(out, psi, self.links, adjoint)
        return out

    @property
    def diagonal_and_hop(self) -> SiteFunction:
        """The site function `(out, chi, psi, links, a, b, adjoint)` that writes a chi + b H psi, of which even-odd forms are made."""
        return _diagonal_and_hop

    def normal(self, psi: Field, out: Field | None = None) -> Field:
        """D^dagger D psi."""
        return self.adjoint(self._applied(psi), out)

    @made_of("apply", "adjoint", "_run")
    def normal_inner(self, psi: Field, out: Field | None = None, wait: bool = True) -> tuple[Field, Any]:
        """D^dagger D psi, and its inner product with psi, which the kernel of D^dagger gives; with `wait=False` a `Scalar`. Where a
        subclass has another D^dagger there are two kernels."""
        between = self._applied(psi)
        if redefines(self, WilsonDirac, "adjoint", "_run"):
            out = self.adjoint(between, out)
            return out, inner(psi, out, wait=wait)
        out = self._out(between, out)
        return out, apply_inner(_wilson_adjoint, psi, out, between, self.links, self.mass, wait=wait)

    def _applied(self, psi: Field) -> Field:
        """D psi, in a field that is kept."""
        self._check_all_sites(psi)
        between = self._between
        if between is None or not between.is_like(psi):
            between = self._between = psi.like()
        return self.apply(psi, between)

    def _check(self, psi: Any) -> None:
        if not isinstance(psi, Field):
            raise LayoutError(f"{self!r} acts on fields of Spinor({self.colours}), not on {no_field(psi)}")
        if psi.element != Spinor(self.colours):
            raise LayoutError(
                f"{self!r} acts on fields of Spinor({self.colours}), {psi.name} holds {psi.element}"
            )
        if psi.lattice is not self.lattice:
            raise LayoutError(
                f"{self!r} acts on fields of its own lattice, {psi.name} lives on {psi.lattice} "
                f"({what_differs(psi.lattice, self.lattice)})"
            )
        for mu, link in enumerate(self.links):
            condition, of_spinor = link.boundary.conditions[mu], psi.boundary.conditions[mu]
            if condition == "open" != of_spinor:
                raise LayoutError(
                    f"no link leads across the edge of direction {mu}, which is open, but {psi.name} goes on there ({of_spinor}): "
                    f'make it a field with boundary={{{mu}: "open"}}'
                )
            if condition not in ("periodic", "open"):
                raise LayoutError(
                    f"the links have the boundary {condition} in direction {mu}, so that a hop across the edge would be another "
                    "forwards than backwards; signs and phases belong to the spinor's boundary, and the links are periodic: "
                    "GaugeField(lattice, group).assign(U)"
                )

    def _check_all_sites(self, psi: Any) -> None:
        self._check(psi)
        if psi.over is not ALL:
            raise LayoutError(
                f"{self!r} reads and writes both colours, and {psi.name} lives on {psi.over}: jali.join(even, odd) is a spinor on all sites; "
                "D.hop leads from one colour to the other, and D.even_odd() acts on one"
            )

    def _run(self, operator: Any, psi: Field, out: Field | None) -> Field:
        self._check_all_sites(psi)
        out = self._out(psi, out)
        operator(out, psi, self.links, self.mass)
        return out

    def _out(self, psi: Field, out: Field | None) -> Field:
        """The field that a result is written to. Raises LayoutError."""
        out = psi.like() if out is None else out
        if not isinstance(out, Field):
            raise LayoutError(f"{self!r} writes into a field, not into {no_field(out)}")
        if out is psi:
            raise LayoutError(
                "the Wilson operator reads neighbours: the result needs a field other than the source"
            )
        return out
