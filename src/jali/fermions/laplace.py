"""The gauge-covariant Laplacian, which smears sources (S. Gusken et al., Phys. Lett. B 227 (1989) 266) and whose eigenvectors distil quarks.

    D psi(x) = sum_mu [ U_mu(x) psi(x+mu) + U_mu(x-mu)^dagger psi(x-mu) - 2 psi(x) ]

over the chosen directions, for any element with the colours of the links. D is Hermitian, and -D positive. Edges that are open, or have signs or
phases, are those of the field: see `jali.fermions.wilson`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from jali.codegen.directions import Direction
from jali.codegen.types import Vector
from jali.codegen.values import Value, zero
from jali.errors import LayoutError
from jali.fermions.dirac import Dirac
from jali.files import value_shown


class Laplace(Dirac):
    """The covariant Laplacian of links `U` (a `GaugeField` or a list of one field per direction) on fields of `element`.

    `directions` are those of the sum, by number or as `lattice.directions[k]`; by default all, and `range(3)` is space in four dimensions. The
    element is `Vector(n)` for links of n colours, or what `element` says: another one with n rows, such as `Spinor(n)` or `Matrix(n, k)`, or a
    function of n that gives it. For its methods see `Dirac`; `adjoint` does what `apply` does. Smearing is `psi += alpha * (D @ psi)`.
    Raises LayoutError for links, elements and directions that do not fit.
    """

    solver_kind = even_odd_kind = "hermitian"

    def __init__(self, U: Any, directions: Iterable[Any] | None = None, element: Any = Vector):
        super().__init__(U, element)
        shape = self.element.type.shape
        if not shape or shape[0] != self.colours:
            raise LayoutError(
                f"links of {self.colours} colours act on elements with as many rows, not on {self.element}"
            )
        ndim = self.lattice.ndim
        try:
            given = range(ndim) if directions is None else directions
            axes = [mu.axis if isinstance(mu, Direction) else operator.index(mu) for mu in given]
        except (TypeError, ValueError):
            axes = []
        if not axes or len(set(axes)) < len(axes) or not all(0 <= mu < ndim for mu in axes):
            raise LayoutError(
                f"the directions of a Laplacian are different numbers from 0 to {ndim - 1}, at least one, not {value_shown(directions)}"
            )
        self.directions = tuple(axes)

    def __repr__(self) -> str:
        where = "" if len(self.directions) == self.lattice.ndim else f", directions {self.directions}"
        return f"Laplace({self.links[0].element} on {self.lattice}{where})"

    @property
    def data(self) -> tuple[Any, ...]:
        """Links, and which directions are summed over."""
        return self.links, tuple(mu in self.directions for mu in range(self.lattice.ndim))

    @staticmethod
    def diagonal_at(X: Any, psi: Any, dagger: bool, U: Any, chosen: Any) -> Value:
        """-2 psi for each direction at the site X."""
        return (-2.0 * sum(chosen)) * psi[X]

    @staticmethod
    def inverse_at(X: Any, psi: Any, dagger: bool, U: Any, chosen: Any) -> Value:
        """The inverse of the diagonal at the site X."""
        return (-0.5 / sum(chosen)) * psi[X]

    @staticmethod
    def hop_at(X: Any, psi: Any, dagger: bool, U: Any, chosen: Any) -> Value:
        """The sum over neighbours at the site X."""
        hops = zero(psi.element)
        for mu in X.directions():
            if chosen[int(mu)]:
                hops = hops + U[mu][X] * psi[X + mu] + U[mu][X - mu].dagger() * psi[X - mu]
        return hops
