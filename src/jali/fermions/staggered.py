"""Staggered Dirac operators: one spin component per site, and phases in place of gamma matrices.

    M chi(x) = m chi(x) + 1/2 sum_mu eta_mu(x) [ U_mu(x) chi(x+mu) - U_mu(x-mu)^dagger chi(x-mu) ]

with eta_mu = (-1)^(sum of the coordinates in front of mu), on a lattice of 2 to 4 dimensions (J. Kogut and L. Susskind, Phys. Rev. D 11
(1975) 395; four tastes in four dimensions). Improved operators have fat links in place of U, and beside them hops of three steps with long
links (`jali.fermions.fat_links`). The hop is anti-Hermitian and joins sites of opposite colours, so that M^dagger M = m^2 - hop^2 joins
none. MILC and QUDA apply 2 M. Boundary conditions are those of the field chi: a long hop across the edge has its sign, too.
"""

from __future__ import annotations

import numbers
from typing import Any, ClassVar

from jali.beside import made_of
from jali.codegen.types import Matrix, Vector
from jali.codegen.values import Value, zero
from jali.errors import LayoutError, ParameterError
from jali.fermions.dirac import Dirac
from jali.fermions.fat_links import HISQLinks, asqtad_links, checked_links, hisq_epsilon, versions_of
from jali.fermions.parameters import FixedParameter, RealParameter
from jali.files import value_shown
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.fused_sums import apply_inner

PHASES = ("x first", "milc")


def staggered_phase_at(X: Any, mu: Any, phases: str = "x first") -> Any:
    """eta_mu(x), 1 or -1, for use inside site functions; `phases` says in which order directions count.

    "x first": directions 0, 1, 2, ..., so eta_0 = 1. "milc": the last direction, time, in front of the others, so eta_time = 1.
    """
    _checked_phases(phases)
    directions = X.directions()
    order = directions if phases == "x first" else (directions[-1], *directions[:-1])
    before = [X.coordinate(nu) for nu in order[: [int(nu) for nu in order].index(int(mu))]]
    return 1 - 2 * (sum(before) % 2) if before else 1


def _checked_phases(phases: Any) -> str:
    if phases not in PHASES:
        raise ParameterError(f"phases are {' or '.join(map(repr, PHASES))}, not {value_shown(phases)}")
    return str(phases)


def covariant_difference_at(X: Any, psi: Any, links: Any, mu: Any, steps: int = 1) -> Value:
    """U_mu(x) psi(x + steps mu) - U_mu(x - steps mu)^dagger psi(x - steps mu), for use inside site functions."""
    ahead, behind = X + steps * mu, X - steps * mu
    return links[mu][X] * psi[ahead] - links[mu][behind].dagger() * psi[behind]


class Staggered(Dirac):
    """The staggered Dirac operator of links `U` (a `GaugeField` or a list of one field per direction) and a bare mass, on fields of Vector(n).

    For its methods see `Dirac`; beside that `normal` and `normal_inner` take fields on one colour, where M^dagger M is m^2 - B_eo B_oe: the
    even-odd form times the mass. It is Hermitian and positive, so that half of the sites are solved for by

        half = cg(D.normal, D.adjoint(b).on(EVEN))
        x = D.even_odd(EVEN).reconstruct(half.x, b)

    `phases` is "x first" or "milc" (`staggered_phase_at`). Raises LayoutError for links that do not fit, for other than 2 to 4 dimensions, and
    for odd extents, around which phases have no meaning; ParameterError for a mass that is no finite real number, and for other phases.
    """

    mass = RealParameter("the mass")
    phases = FixedParameter("make an operator with other phases=")

    def __init__(self, U: Any, mass: float, *, phases: str = "x first"):
        super().__init__(U, Vector)
        extents, open_ = self.lattice.extents, self.links[0].boundary.open
        if not 2 <= len(extents) <= 4:
            raise LayoutError(
                f"staggered operators have 2 to 4 dimensions, and the lattice has {len(extents)}"
            )
        if odd := [mu for mu, n in enumerate(extents) if n % 2 and mu not in open_]:
            raise LayoutError(
                f"staggered phases need even extents, also in directions {odd} of the lattice of {extents}: a step around it would change signs"
            )
        self.mass = mass
        self.phases = _checked_phases(phases)

    @property
    def even_odd_kind(self) -> str:  # type: ignore[override]
        """m - B B / m is Hermitian, and as positive as m."""
        return "positive" if self.mass > 0 else "hermitian"

    def __repr__(self) -> str:
        milc = ", phases of MILC" * (self.phases == "milc")
        return f"{type(self).__name__}({self.links[0].element} on {self.lattice}, mass {self.mass:g}{milc})"

    @property
    def data(self) -> tuple[Any, ...]:
        """Links, m and the order of directions in phases."""
        return self.links, self.mass, self.phases

    @staticmethod
    def diagonal_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, *others: Any) -> Value:
        """m psi at the site X."""
        return mass * psi[X]

    @staticmethod
    def inverse_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, *others: Any) -> Value:
        """psi / m at the site X."""
        return (1 / mass) * psi[X]

    @staticmethod
    def hop_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, phases: Any) -> Value:
        """The sum over directions at the site X; the hop is anti-Hermitian."""
        hops = zero(psi.element)
        for mu in X.directions():
            hops = hops + staggered_phase_at(X, mu, phases) * covariant_difference_at(X, psi, U, mu)
        return (-0.5 if dagger else 0.5) * hops

    def check_inverse(self) -> None:
        """Raises LayoutError where m is zero."""
        if self.mass == 0:
            raise LayoutError(
                "the mass 0 has no inverse on one colour: D.normal takes fields on one colour at any mass"
            )

    def normal(self, psi: Field, out: Field | None = None) -> Field:
        """M^dagger M psi, also of a field on one colour."""
        if getattr(psi, "over", ALL) is ALL:
            return super().normal(psi, out)
        return self.hop(self._hopped(psi), out, plus=psi, times=self.mass**2, scale=-1.0)

    @made_of("apply", "adjoint", "hop", "_run")
    def normal_inner(self, psi: Field, out: Field | None = None, wait: bool = True) -> tuple[Field, Any]:
        """M^dagger M psi, and its inner product with psi, which is real, from the last kernel; with `wait=False` a `Scalar`. Also of a field on one colour."""
        if getattr(psi, "over", ALL) is ALL:
            return super().normal_inner(psi, out, wait)
        hopped, out = self._hopped(psi), self._out(psi, out)
        arguments = hopped, self.mass**2, -1.0, False, *self.data
        return out, apply_inner(self.kernel("sum"), psi, out, psi, *arguments, wait=wait, real=True)

    def _hopped(self, psi: Field) -> Field:
        """B psi of a field on one colour, in a field that is kept."""
        self._check(psi)
        return self.hop(psi, self._kept.like("hopped", psi, psi.over.opposite))


class ImprovedStaggered(Staggered):
    """A staggered operator of fat links, and of long links for hops of three steps, on fields of Vector(n):

        M chi(x) = m chi(x) + 1/2 sum_mu eta_mu(x) [ F_mu(x) chi(x+mu) - F_mu(x-mu)^dagger chi(x-mu)
                                                     + L_mu(x) chi(x+3mu) - L_mu(x-3mu)^dagger chi(x-3mu) ]

    (S. Naik, Nucl. Phys. B 316 (1989) 238). `fat` and `long` are lists of one field per direction; L holds the weight of the long hops. For
    its methods and errors see `Staggered`.
    """

    hops: ClassVar[dict[int, int]] = {0: 1, 3: 3}

    def __init__(self, fat: Any, long: Any, mass: float, *, phases: str = "x first"):
        super().__init__(checked_links(fat), mass, phases=phases)
        self.long = checked_links(long)
        for what, links in (("fat", self.links), ("long", self.long)):
            for mu, link in enumerate(links):
                if not link.stored.packing.exact:
                    raise LayoutError(
                        f"{what} links are sums or multiples of products of links, and not unitary: {link.stored} keeps too few of their numbers. "
                        f"Those of direction {mu} need a field of {Matrix(self.colours)}, such as of {str(link.stored).rpartition('-')[0]}"
                    )
        near, far = self.links[0], self.long[0]
        if far.lattice is not near.lattice or far.element.type.shape != near.element.type.shape:
            raise LayoutError(
                f"fat and long links do not fit: {near.element} on {near.lattice} and {far.element} on {far.lattice}"
            )

    @property
    def data(self) -> tuple[Any, ...]:
        """Fat links, m, the order of directions in phases, and long links."""
        return self.links, self.mass, self.phases, self.long

    def _assign(self, fat: list[Field], long: list[Field]) -> None:
        for mine, new in zip([*self.links, *self.long], [*fat, *long], strict=True):
            if mine is not new:
                mine.assign(new)

    @staticmethod
    def hop_at(X: Any, psi: Any, dagger: bool, fat: Any, mass: Any, phases: Any, long: Any) -> Value:  # type: ignore[override]
        """The sum over directions at the site X; the hop is anti-Hermitian."""
        hops = zero(psi.element)
        for mu in X.directions():
            near, far = covariant_difference_at(X, psi, fat, mu), covariant_difference_at(X, psi, long, mu, 3)
            hops = hops + staggered_phase_at(X, mu, phases) * (near + far)
        return (-0.5 if dagger else 0.5) * hops


class Asqtad(ImprovedStaggered):
    """The asqtad operator of links `U`, a bare mass and the tadpole factor `u0`: `ImprovedStaggered` with `asqtad_links`, and its errors.

    Applications find that links have changed, outside of graphs, and smear them anew.
    """

    u0 = FixedParameter("make an operator with another u0")
    unconverted = ("_thin",)  # of which fat and long links are made

    def __init__(self, U: Any, mass: float, u0: float = 1.0, *, phases: str = "x first"):
        super().__init__(*asqtad_links(U, u0), mass, phases=phases)
        self.u0 = float(u0)
        self._thin = checked_links(U)
        self._made_of = versions_of(self._thin)

    @property
    def data(self) -> tuple[Any, ...]:
        """Fat links, m, the order of directions in phases, and long links."""
        if self._made_of != (now := versions_of(self._thin)):
            self._assign(*asqtad_links(self._thin, self.u0))
            self._made_of = now
        return super().data


class HISQ(ImprovedStaggered):
    """The HISQ operator of links `U` and a bare mass: `ImprovedStaggered` with links of `HISQLinks`, and their errors.

    `U` may be a `HISQLinks`, which quarks of several masses share. `epsilon` is always given: 0 for light quarks, and `hisq_epsilon(mass)`
    for heavy ones, such as charm. Raises ParameterError where it is left out. Applications find that links have changed, outside of
    graphs, and smear them anew.
    """

    epsilon = FixedParameter(
        "HISQ(D.smeared, mass, epsilon=...) is the operator of another one, of the same smearing"
    )

    def __init__(self, U: Any, mass: float, epsilon: float | None = None, *, phases: str = "x first"):
        if epsilon is None:
            at_mass = (
                f", {hisq_epsilon(mass):.6g}" if isinstance(mass, numbers.Real) and 0 <= mass <= 1 else ""
            )
            raise ParameterError(
                f"HISQ needs its epsilon, which has no default: epsilon=0 for light quarks, epsilon=hisq_epsilon(mass){at_mass}, for heavy ones"
            )
        self.smeared = U if isinstance(U, HISQLinks) else HISQLinks(U)
        super().__init__(self.smeared.fat(epsilon), self.smeared.long(epsilon), mass, phases=phases)
        self.epsilon = float(epsilon)
        self._made = self.smeared.made

    @property
    def data(self) -> tuple[Any, ...]:
        """Fat links, m, the order of directions in phases, and long links."""
        self.smeared.follow()
        if self._made != self.smeared.made:
            self._assign(self.smeared.fat(self.epsilon), self.smeared.long(self.epsilon))
            self._made = self.smeared.made
        return super().data

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, epsilon {self.epsilon:g})"
