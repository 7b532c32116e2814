"""The Wilson Dirac operator.

    D psi(x) = (m + d) psi(x) - 1/2 sum_mu [ (1 - gamma_mu) U_mu(x) psi(x+mu)
                                             + (1 + gamma_mu) U_mu(x-mu)^dagger psi(x-mu) ]

on a lattice of d = 1 to 4 dimensions (Wilson, in "New phenomena in subnuclear physics", 1977; r = 1, kappa = 1/(2m + 2d)). Links
multiply projected spinors of two spins. Boundary conditions are those of the spinor field: "open" are Dirichlet conditions, with
psi = 0 one step outside of the lattice (as in M. Luscher and S. Schaefer, arXiv:1206.2809, with c_F = 1, where these outer slices
belong to the lattice). On an anisotropic lattice hops in all directions but the last one have the weight nu / xi (R. G. Edwards, B. Joo and
H.-W. Lin, Phys. Rev. D 78 (2008) 054501, eq. 4). Solving is `jali.solvers`' affair.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from jali.codegen.types import Spinor
from jali.codegen.values import Value, zero
from jali.errors import LayoutError, ParameterError
from jali.fermions.dirac import Dirac
from jali.fermions.parameters import FixedParameter, RealParameter, real_number
from jali.fermions.spin import project, reconstruct
from jali.files import value_shown


def wilson_at(X: Any, psi: Any, U: Any, mass: Any, sign: int = 1) -> Value:
    """D psi at the site X, for use inside site functions; with `sign=-1` D^dagger psi."""
    hops = wilson_hop_at(X, psi, U, sign)
    return (mass + X.ndim) * psi[X] - 0.5 * hops


def wilson_hop_at(X: Any, psi: Any, U: Any, sign: int = 1, weights: Any = None) -> Value:
    """H psi at the site X, the sum over directions in D = m + d - H / 2; with `sign=-1` H^dagger psi. `weights` are factors of directions.

    gamma_5 D gamma_5 = D^dagger, and gamma_5 (1 - gamma_mu) gamma_5 = 1 + gamma_mu: the adjoint exchanges the projectors.
    """
    hops = zero(psi.element)
    for k, mu in enumerate(X.directions()):
        ahead = U[mu][X] * project(psi[X + mu], mu, -sign)
        behind = U[mu][X - mu].dagger() * project(psi[X - mu], mu, sign)
        if weights is None:
            hops = hops + reconstruct(ahead, mu, -sign) + reconstruct(behind, mu, sign)
        else:
            hops = hops + weights[k] * (reconstruct(ahead, mu, -sign) + reconstruct(behind, mu, sign))
    return hops


def wilson_mass(name: str, ndim: int, mass: Any, kappa: Any, weight: float | None = None) -> float:
    """The bare mass of `mass=` or of `kappa=` 1 / (2 m + 2 w), where w is the sum of the weights of directions, d on isotropic lattices.

    Raises ParameterError unless one of them is given, a real finite number.
    """
    if (mass is None) == (kappa is None):
        raise ParameterError(
            f"{name} takes mass= or kappa=, {'not both' if mass is not None else 'and neither is given'}"
        )
    what, value = ("the mass", mass) if kappa is None else ("kappa", kappa)
    value = real_number(what, value)
    if kappa is not None and value == 0:
        raise ParameterError("kappa is not zero")
    return value if kappa is None else 1 / (2 * value) - (ndim if weight is None else weight)


def direction_weights(ndim: int, anisotropy: Any, nu: Any) -> np.ndarray | None:
    """Factors of hops, nu / xi in all directions but the last; None on an isotropic lattice. Raises ParameterError."""
    for what, value in (("anisotropy", anisotropy), ("nu", nu)):
        if not isinstance(value, int | float | np.number) or not 0 < value < math.inf:
            raise ParameterError(f"{what} is a positive number, not {value_shown(value)}")
    if anisotropy == nu == 1:
        return None
    return np.array([nu / anisotropy] * (ndim - 1) + [1.0])


class WilsonDirac(Dirac):
    """The Wilson Dirac operator of a gauge field `U` (a `GaugeField` or a list of one field per direction) and a bare `mass`, or `kappa`.

    Acts on fields of Spinor(n) for links of n colours. With `anisotropy` xi (the bare one) and `nu` hops in all directions but the last
    one have the weight nu / xi, and the diagonal is m + 1 + (d - 1) nu / xi. For its methods see `Dirac`. Raises LayoutError for links
    that do not fit, ParameterError for impossible numbers, and where mass and kappa are both given, or neither.
    """

    mass = RealParameter("the mass")
    anisotropy = FixedParameter("make an operator with another anisotropy=")
    nu = FixedParameter("make an operator with another nu=")

    def __init__(
        self,
        U: Any,
        mass: float | None = None,
        *,
        kappa: float | None = None,
        anisotropy: float = 1.0,
        nu: float = 1.0,
    ):
        super().__init__(U, Spinor)
        if self.lattice.ndim > 4:
            raise LayoutError(
                f"{len(self.links)} link fields on a lattice of {self.lattice.ndim} dimensions; the Wilson operator has gamma matrices for at most 4"
            )
        self.weights = direction_weights(self.lattice.ndim, anisotropy, nu)
        self.anisotropy, self.nu = float(anisotropy), float(nu)
        self.mass = wilson_mass(type(self).__name__, self.lattice.ndim, mass, kappa, self._weight)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.links[0].element} on {self.lattice}, mass {self.mass:g})"

    @property
    def _weight(self) -> float:
        return float(self.lattice.ndim if self.weights is None else self.weights.sum())

    @property
    def kappa(self) -> float:
        """Hopping parameter 1 / (2 m + 2 d), on anisotropic lattices 1 / (2 m + 2 + 2 (d - 1) nu / xi). Setting it sets the mass."""
        return 1 / (2 * self.mass + 2 * self._weight)

    @kappa.setter
    def kappa(self, kappa: float) -> None:
        self.mass = wilson_mass(type(self).__name__, self.lattice.ndim, None, kappa, self._weight)

    @property
    def data(self) -> tuple[Any, ...]:
        """Links, m and the weights of directions."""
        return self.links, self.mass, self.weights

    @staticmethod
    def diagonal_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, weights: Any) -> Value:
        """(m + d) psi at the site X."""
        return diagonal_of(X, mass, weights) * psi[X]

    @staticmethod
    def inverse_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, weights: Any) -> Value:
        """psi / (m + d) at the site X."""
        return (1 / diagonal_of(X, mass, weights)) * psi[X]

    @staticmethod
    def hop_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, weights: Any) -> Value:
        """-H psi / 2 at the site X."""
        return -0.5 * wilson_hop_at(X, psi, U, -1 if dagger else 1, weights)

    def check_inverse(self) -> None:
        """Raises LayoutError where m + d is zero."""
        if self.mass + self._weight == 0:
            raise LayoutError(
                f"the mass {self.mass:g} makes the diagonal of the operator zero, which has no inverse on one colour"
            )


def diagonal_of(X: Any, mass: Any, weights: Any) -> Any:
    """m + d, or m and the sum of the weights."""
    return mass + (X.ndim if weights is None else sum(weights[k] for k in range(X.ndim)))
