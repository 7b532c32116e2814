"""Actions of scalar fields that have no links, and means of such fields: phi^4 theory, sigma models, a coupling of two fields.

A scalar is a number, a vector of real or complex numbers or a unit vector at each site; |phi|^2 is the sum of the squares of all its real parts. Scalars that links
transport are in `jali.gauge.higgs`, with the same conventions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jali
from jali.actions.formulas import SiteAction, action, finite_number
from jali.errors import LayoutError, ParameterError
from jali.lattice.base import no_field
from jali.lattice.field import Field


def quartic(size: Any, lam: Any) -> Any:
    """What a site of |phi|^2 = `size` adds by itself: |phi|^2 + lam (|phi|^2 - 1)^2."""
    return size + lam * (size - 1) ** 2


def couplings_of_quartic(what: str, kappa: Any, lam: Any) -> tuple[float, float]:
    """kappa and lam of an action with `quartic`. Raises ParameterError for what is no number, and for a lam with which the action is not bounded below."""
    found = finite_number(f"kappa of {what}", kappa), finite_number(f"lam of {what}", lam)
    if found[1] < 0:
        raise ParameterError(
            f"lam of {what} is 0 or more, not {found[1]:g}: else the action is not bounded below"
        )
    return found


@action
def phi4(X: Any, phi: Any, *, kappa: Any, lam: Any) -> Any:
    """The formula of `phi4_action`."""
    near = sum(phi[X + mu] for mu in X.directions())
    return quartic(phi[X].norm2(), lam) - 2 * kappa * phi[X].dot(near).real


@action
def sigma(X: Any, n: Any, *, beta: Any) -> Any:
    """The formula of `sigma_action`."""
    return -1.0 * beta * n[X].dot(sum(n[X + mu] for mu in X.directions())).real


@action
def portal(X: Any, phi: Any, chi: Any, *, lam: Any) -> Any:
    """The formula of `portal_action`."""
    return lam * phi[X].norm2() * chi[X].norm2()


def phi4_action(kappa: float, lam: float) -> SiteAction:
    """S = sum_x [-2 kappa Re sum_mu phi(x)^dagger phi(x+mu) + |phi|^2 + lam (|phi|^2 - 1)^2] of a field `phi` of real or complex numbers or vectors.

    Of N real components it is O(N)-symmetric: a vector of `Vector(N, "real")`, or of N / 2 complex numbers. lam = 0 is a free field, stable for |kappa| < 1 / (2 d); for lam to
    infinity |phi| becomes 1, which is `sigma_action` with beta = 2 kappa. M. Luscher and P. Weisz, Nucl. Phys. B 290 (1987) 25 for N = 1, and B 318 (1989) 705 for any N.
    Raises ParameterError for couplings that are no finite numbers, and a negative lam.
    """
    return phi4(*couplings_of_quartic("phi4_action", kappa, lam))


def sigma_action(beta: float) -> SiteAction:
    """S = -beta sum_x sum_mu n(x) . n(x+mu) of a field `n` of real vectors of length 1: the O(N) model, the nonlinear sigma model.

    It is bounded below on the sphere alone: `HMC(..., on_sphere=["n"])`. XY model for N = 2, Heisenberg's for N = 3. U. Wolff, Phys. Rev. Lett. 62 (1989) 361.
    """
    return sigma(finite_number("beta of sigma_action", beta))


def portal_action(lam: float) -> SiteAction:
    """S = lam sum_x |phi|^2 |chi|^2 of two scalar fields `phi` and `chi` of any kind: their only renormalisable coupling that is invariant under the symmetries of each.

    Each of the two needs an action of its own beside it: the weight of this one alone has no finite integral. For fields of matrices |phi|^2 is the sum of all squared moduli, which is half of that of `jali.gauge.adjoint_higgs_action`. B. Patt and F. Wilczek, hep-ph/0605188.
    """
    return portal(finite_number("lam of portal_action", lam))


class ScalarMeans(NamedTuple):
    """Means of a scalar field: of |phi|^2 and |phi|^4 over sites, and of Re phi(x)^dagger phi(x+mu), with links between where they transport it, over links."""

    phi2: float
    phi4: float
    hopping: float


@jali.site_function
def _sums(X: Any, phi: Any, phi2: Any, phi4: Any, hopping: Any) -> None:
    size = phi[X].norm2()
    phi2 += size
    phi4 += size * size
    hopping += phi[X].dot(sum(phi[X + mu] for mu in X.directions())).real


def scalar_means(phi: Field) -> ScalarMeans:
    """The means of a field of numbers or vectors that no links transport. The same bits on any number of ranks. Raises LayoutError for what is no field."""
    if not isinstance(phi, Field):
        raise LayoutError(f"scalar_means takes a field, not {no_field(phi)}")
    refuse_batch("scalar_means", phi)
    return means_of_sums(phi, phi.lattice.sum(_sums, phi))


def refuse_batch(what: str, phi: Field) -> None:
    """Raises LayoutError for a field with a batch."""
    if phi.batch is not None:
        raise LayoutError(
            f"{what} takes a field without a batch: give members of {phi.name} one by one, phi.members[0]"
        )


def means_of_sums(phi: Field, sums: Any) -> ScalarMeans:
    """Of sums over sites and links."""
    phi2, phi4, hopping = (float(one) for one in sums)
    volume = phi.lattice.volume
    return ScalarMeans(phi2 / volume, phi4 / volume, hopping / (volume * phi.lattice.ndim))
