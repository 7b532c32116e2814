"""Actions of the gauge field, and their derivatives with respect to the links."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jali
from jali.codegen.types import Algebra
from jali.errors import LayoutError, ParameterError
from jali.gauge.field import GaugeField
from jali.gauge.plaquettes import plaquette_sums
from jali.gauge.staples import staple
from jali.lattice.checked import checked


@jali.site_function
def _force(X: Any, F: Any, U: Any, half_coupling: Any) -> None:
    for mu in X.directions():
        W = U[mu][X] * staple(X, U, mu).dagger()
        F[mu][X] = half_coupling * W.traceless_antihermitian()


def _members(out: Any, U: GaugeField) -> list[jali.Field]:
    found = list(out) if isinstance(out, Iterable) else []
    if len(found) != len(U.fields) or not all(isinstance(f, jali.Field) for f in found):
        raise LayoutError(f"out is a list of {len(U.fields)} fields, one per direction, not {out!r}")
    return found


@dataclass(frozen=True)
class WilsonAction:
    """The Wilson plaquette action S = beta sum_p (1 - (1/n) Re tr U_p). K. Wilson, Phys. Rev. D 10 (1974)
    2445.
    """

    beta: float

    def __post_init__(self) -> None:
        if not (isinstance(self.beta, numbers.Real) and math.isfinite(self.beta)):
            raise ParameterError(f"beta is a finite number, not {self.beta!r}")

    @checked
    def value(self, U: GaugeField) -> float:
        """S of the whole lattice."""
        d = U.lattice.ndim
        spatial, temporal = U.lattice.sum(plaquette_sums, U)
        return self.beta * (U.lattice.volume * d * (d - 1) / 2 - (spatial + temporal) / U.n)

    @checked
    def density(self, U: GaugeField) -> float:
        """S per site."""
        return self.value(U) / U.lattice.volume

    @checked
    def force(self, U: GaugeField, out: Sequence[jali.Field] | None = None) -> list[jali.Field]:
        """The derivative F_mu(x) of S, one field of `Algebra(n)` per direction.

        For a change U -> (1 + omega) U of one link with omega in the algebra, dS = -2 tr(omega F) = sum_a
        omega^a F^a; with momenta of kinetic energy -tr p^2 the equations of motion are dU/dt = p U, dp/dt =
        -F. F = (beta / 2n) times the traceless anti-Hermitian part of U S^dagger with the staple sum S.
        """
        fields = (
            [jali.Field(U.lattice, Algebra(U.n), precision=U.precision) for _ in U.fields]
            if out is None
            else _members(out, U)
        )
        _force(fields, U, self.beta / (2 * U.n))
        return fields
