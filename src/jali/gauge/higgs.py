"""Scalar fields that links transport: Higgs fields in the fundamental and the adjoint representation, their actions and means.

Conventions are those of `jali.actions.scalars`, with phi(x+mu) transported to x. An adjoint field of `Algebra(n)` is phi = phi^a T^a with tr(T^a T^b) = -1/2 delta, and |phi|^2 = sum_a (phi^a)^2.
"""

from __future__ import annotations

from typing import Any

import jali
from jali.actions.formulas import SiteAction
from jali.actions.scalars import ScalarMeans, couplings_of_quartic, means_of_sums, quartic, refuse_batch
from jali.errors import LayoutError
from jali.gauge.field import GaugeField
from jali.lattice.base import no_field
from jali.lattice.field import Field


def _hopping(X: Any, U: Any, phi: Any) -> Any:
    return phi[X].dot(sum(U[mu][X] * phi[X + mu] for mu in X.directions())).real


def _adjoint_hopping(X: Any, U: Any, phi: Any) -> Any:
    # of anti-Hermitian matrices -2 tr(A B) = 2 tr(A^dagger B)
    moved = sum(U[mu][X] * phi[X + mu] * U[mu][X].dagger() for mu in X.directions())
    return 2.0 * phi[X].dot(moved).real


@jali.action
def higgs(X: Any, U: Any, phi: Any, *, kappa: Any, lam: Any) -> Any:
    """The formula of `higgs_action`."""
    return quartic(phi[X].norm2(), lam) - 2 * kappa * _hopping(X, U, phi)


@jali.action
def adjoint_higgs(X: Any, U: Any, phi: Any, *, kappa: Any, lam: Any) -> Any:
    """The formula of `adjoint_higgs_action`."""
    return quartic(2.0 * phi[X].norm2(), lam) - 2 * kappa * _adjoint_hopping(X, U, phi)


def higgs_action(kappa: float, lam: float) -> SiteAction:
    """S = sum_x [-2 kappa Re sum_mu phi(x)^dagger U_mu(x) phi(x+mu) + |phi|^2 + lam (|phi|^2 - 1)^2] of links `U` of SU(n) or U(1) and a field `phi` of `Vector(n)`, a Higgs field in the
    fundamental representation. The action of the links, such as `wilson_action(beta)`, is added to it.

    In other papers an SU(2) doublet is a matrix with |phi|^2 = (1/2) tr varphi^dagger varphi, of which the hopping term is -kappa tr varphi(x)^dagger U_mu(x) varphi(x+mu): Z. Fodor, J. Hein, K. Jansen,
    A. Jaster and I. Montvay, Nucl. Phys. B 439 (1995) 147, hep-lat/9409017. `examples/su2_higgs.py` has that of length 1, whose kappa is the same.
    """
    return higgs(*couplings_of_quartic("higgs_action", kappa, lam))


def adjoint_higgs_action(kappa: float, lam: float) -> SiteAction:
    """S = sum_x [-2 kappa sum_mu phi^a(x) (U_mu(x) phi(x+mu) U_mu(x)^dagger)^a + |phi|^2 + lam (|phi|^2 - 1)^2] of links `U` of SU(n) and a field `phi` of `Algebra(n)`, a Higgs field in the adjoint
    representation; |phi|^2 = sum_a (phi^a)^2 = -2 tr phi^2.

    Papers with Hermitian fields Phi = phi^a lambda_a / 2 write 2 tr Phi^2 for |phi|^2. R. Brower, D. Kessler, T. Schalk, H. Levine and M. Nauenberg, Phys. Rev. D 25 (1982) 3319.
    """
    return adjoint_higgs(*couplings_of_quartic("adjoint_higgs_action", kappa, lam))


@jali.site_function
def _sums(X: Any, U: Any, phi: Any, phi2: Any, phi4: Any, hopping: Any) -> None:
    size = phi[X].norm2()
    phi2 += size
    phi4 += size * size
    hopping += _hopping(X, U, phi)


@jali.site_function
def _adjoint_sums(X: Any, U: Any, phi: Any, phi2: Any, phi4: Any, hopping: Any) -> None:
    size = 2.0 * phi[X].norm2()
    phi2 += size
    phi4 += size * size
    hopping += _adjoint_hopping(X, U, phi)


def higgs_means(U: GaugeField, phi: Field) -> ScalarMeans:
    """The means of a Higgs field in the fundamental representation, `Vector(n)`, or the adjoint one, `Algebra(n)`, which gauge transformations leave as they are.

    The same bits on any number of ranks. Raises LayoutError for another field.
    """
    if not isinstance(phi, Field):
        raise LayoutError(f"higgs_means takes links and a field, not {no_field(phi)}")
    refuse_batch("higgs_means", phi)
    element, n = phi.element, U.n
    if element.codec == "algebra" and element.type.shape == (n, n):
        return means_of_sums(phi, phi.lattice.sum(_adjoint_sums, U, phi))
    if element.type.kind == "complex" and element.type.shape == (n,):
        return means_of_sums(phi, phi.lattice.sum(_sums, U, phi))
    raise LayoutError(
        f"a Higgs field of {U.group} is of Vector({n}) or Algebra({n}), and {phi.name} of {element}"
    )
