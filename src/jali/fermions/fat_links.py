"""Fat and long links: gauge-covariant averages of the paths around a link, of which improved staggered operators are made.

Staples of staples are nested from the inside out. With S_nu(F) the two staples over links F of direction mu, on either side in direction nu, a fat
link is

    c1 U + sum_nu S_nu( c3 U + sum_rho S_rho( c5 U + sum_sigma S_sigma( c7 U ) ) ) + cL sum_nu (the two straight staples of height 2)

with mu, nu, rho and sigma all different (K. Orginos, D. Toussaint and R. Sugar, Phys. Rev. D 60 (1999) 054503, hep-lat/9903032; G. P. Lepage, Phys.
Rev. D 59 (1999) 074502, hep-lat/9809157): each bracket is a field, and one site function makes them all. HISQ (E. Follana et al., Phys.
Rev. D 75 (2007) 054502, hep-lat/0610092) does so twice, with a projection to U(n) in between. Links are periodic and have no staggered
phases: signs of a boundary are those of the quark field.
"""

from __future__ import annotations

import contextlib
import itertools
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jali
from jali.codegen.types import Matrix
from jali.errors import LayoutError, ParameterError, RecordingError, SingularError
from jali.files import value_shown
from jali.lattice.base import no_field
from jali.lattice.checked import checked
from jali.lattice.field import Field


@dataclass(frozen=True)
class PathCoefficients:
    """Weights of paths: of the link, of each of the 6 staples of 3 links, 24 of 5 and 48 of 7, of the 6 straight ones of height 2, and of
    three links in a row. On unit links Fat7 is 1, and asqtad and HISQ have `fat` + 3 `naik` = 1, as a derivative must."""

    link: float
    three: float
    five: float
    seven: float
    lepage: float = 0.0
    naik: float = 0.0

    @property
    def fat(self) -> float:
        """The fat link of unit links in four dimensions."""
        return self.link + 6 * self.three + 24 * self.five + 48 * self.seven + 6 * self.lepage


FAT7 = PathCoefficients(1 / 8, 1 / 16, 1 / 64, 1 / 384)
HISQ_LEVEL_2 = PathCoefficients(1.0, 1 / 16, 1 / 64, 1 / 384, -1 / 8, -1 / 24)  # of epsilon = 0
HISQ_EPSILON = 1 / 8, -1 / 24  # what epsilon adds to the weights of the link and of three in a row


def asqtad_coefficients(u0: float = 1.0) -> PathCoefficients:
    """The weights of asqtad: a path of n links has the factor u0^(1 - n), u0 the tadpole factor.

    K. Orginos, D. Toussaint and R. Sugar, Phys. Rev. D 60 (1999) 054503, hep-lat/9903032. Raises ParameterError unless 0 < u0 <= 1.
    """
    if isinstance(u0, bool) or not isinstance(u0, numbers.Real) or not 0 < float(u0) <= 1:
        raise ParameterError(
            f"the tadpole factor u0 is above 0 and at most 1, the fourth root of a plaquette; it is not {value_shown(u0)}"
        )
    u0 = float(u0)
    return PathCoefficients(5 / 8, u0**-2 / 16, u0**-4 / 64, u0**-6 / 384, -(u0**-4) / 16, -(u0**-2) / 24)


def hisq_epsilon(mass: float) -> float:
    """The correction epsilon of HISQ's Naik term for a quark of this bare mass (in lattice units).

    epsilon = -27/40 m^2 + 327/1120 m^4 - 15607/268800 m^6 - 73697/3942400 m^8 (E. Follana et al., Phys. Rev. D 75 (2007) 054502,
    hep-lat/0610092): with it a free quark at rest has one mass, of its energy and of its inertia, up to errors of m^12. Raises
    ParameterError for masses that are not from 0 to 1.
    """
    if isinstance(mass, bool) or not isinstance(mass, numbers.Real) or not 0 <= float(mass) <= 1:
        raise ParameterError(
            f"the series of epsilon is for masses from 0 to 1 in lattice units, not {value_shown(mass)}"
        )
    m2 = float(mass) ** 2
    return m2 * (-27 / 40 + m2 * (327 / 1120 + m2 * (-15607 / 268800 + m2 * (-73697 / 3942400))))


# ---- at a site ---------------------------------------------------------------------------------------------


def staples_at(X: Any, F: Any, side: Any, mu: Any, nu: Any) -> Any:
    """S_nu(F), the two staples of links `F` of direction mu with `side` links of direction nu, inside a site function."""
    above = side[X] * F[X + nu] * side[X + mu].dagger()
    return above + side[X - nu].dagger() * F[X - nu] * side[X + mu - nu]


def straight_staples_at(X: Any, link: Any, side: Any, mu: Any, nu: Any) -> Any:
    """Lepage's term in one direction: the two staples of height 2. None goes up and down again, which would be the link itself."""
    far = side[X + nu] * link[X + 2 * nu] * side[X + mu + nu].dagger()
    above = side[X] * far * side[X + mu].dagger()
    far = side[X - 2 * nu].dagger() * link[X - 2 * nu] * side[X + mu - 2 * nu]
    return above + side[X - nu].dagger() * far * side[X + mu - nu]


def unitary_at(V: Any) -> Any:
    """The U(n) part V (V^dagger V)^(-1/2) of a matrix, inside a site function; a SingularError where V has none.

    Newton's iteration X -> (X + X^-dagger) / 2, with |det X| = 1 in front of each step (N. J. Higham, SIAM J. Sci. Stat. Comput. 7 (1986)
    1160): errors are those of the condition number k of V, 1e-16 k, up to k = 1e8. Closed forms by the eigenvalues of V^dagger V lose k^3.
    """
    n = V.shape[0]
    X = jali.exp((V.dagger() * V).hermitian().log_det() * (-0.5 / n)) * V
    for step in range(n + 5):  # which reach rounding up to k = 1e8
        if step > 0:
            X = abs(X.det()) ** (-1 / n) * X
        X = 0.5 * (X + X.inverse().dagger())
    return X


@jali.site_function
def _fatten(
    X: Any, out: Any, link: Any, keep: Any, inner: Any, sides: Any, weight: Any, mu: Any, across: Any
) -> None:
    """A bracket of the formula above: keep U + weight sum_nu S_nu(inner)."""
    total = keep * link[X]
    for F, side, nu in zip(inner, sides, across, strict=True):
        total += weight * staples_at(X, F, side, mu, nu)
    out[X] = total


@jali.site_function
def _add_straight(X: Any, out: Any, link: Any, sides: Any, weight: Any, mu: Any, across: Any) -> None:
    for side, nu in zip(sides, across, strict=True):
        out[X] += weight * straight_staples_at(X, link, side, mu, nu)


@jali.site_function
def _naik(X: Any, out: Any, link: Any, weight: Any, mu: Any) -> None:
    out[X] = weight * (link[X] * link[X + mu] * link[X + 2 * mu])


@jali.site_function
def _unitary(X: Any, W: Any, V: Any) -> None:
    W[X] = unitary_at(V[X])


@jali.site_function
def _sum(X: Any, out: Any, common: Any, link: Any, weight: Any) -> None:
    out[X] = common[X] + weight * link[X]


# ---- of all links ------------------------------------------------------------------------------------------


@checked
def fatten(U: Any, coefficients: PathCoefficients) -> list[Field]:
    """The fat links of `U` (a `GaugeField` or a list of one field per direction) in two to four dimensions: a list of fields of Matrix(n).

    One kernel for each bracket of the formula above. Raises LayoutError for links that do not fit together or have boundaries, and where
    a coefficient belongs to staples that the lattice has not: those of 5 links need three dimensions, those of 7 four.
    """
    links = checked_links(U)
    directions = links[0].lattice.directions
    weights = (coefficients.link, coefficients.three, coefficients.five, coefficients.seven)
    levels = max((k for k in (2, 3) if weights[k] != 0), default=1)
    if not levels < len(links) <= 4:
        raise LayoutError(
            f"these coefficients have staples of {2 * levels + 1} links, which need {levels + 1 if levels == 3 else f'{levels + 1} to 4'} dimensions; "
            f"the lattice has {len(links)}"
        )
    fat, spare = [], [_matrix_like(links[0], f"bracket {k}") for k in range(2 * (len(links) - 1))]
    for mu, link in enumerate(links):
        others = [nu for nu in range(len(links)) if nu != mu]
        straight = (
            [links[nu] for nu in others],
            coefficients.lepage,
            directions[mu],
            [directions[nu] for nu in others],
        )
        fat.append(_matrix_like(link, f"fat link {mu}"))
        free = iter(spare)
        brackets: dict[frozenset[int], Field] = {}  # by the directions of the staples around them
        for level in reversed(range(levels)):
            inner, brackets = brackets, {}
            for taken in map(frozenset, itertools.combinations(others, level)):
                across = [nu for nu in others if nu not in taken]
                brackets[taken] = next(free) if level else fat[mu]
                _fatten(
                    brackets[taken],
                    link,
                    weights[level],
                    [inner.get(taken | {nu}, link) for nu in across],
                    [links[nu] for nu in across],
                    1.0 if inner else weights[levels],
                    directions[mu],
                    [directions[nu] for nu in across],
                )
        if coefficients.lepage != 0:
            _add_straight(fat[mu], link, *straight)
    return fat


@checked
def long_links(U: Any, naik: float) -> list[Field]:
    """`naik` times the products of three links in a row: a list of fields of Matrix(n). Raises LayoutError as `fatten`."""
    links = checked_links(U)
    long = [_matrix_like(link, f"long link {mu}") for mu, link in enumerate(links)]
    for out, link, mu in zip(long, links, links[0].lattice.directions, strict=True):
        _naik(out, link, naik, mu)
    return long


def unitary_links(V: Sequence[Field]) -> list[Field]:
    """The U(n) part V (V^dagger V)^(-1/2) of each matrix, in new fields. One that is singular up to rounding is a SingularError with its site,
    where results are read. Errors: `unitary_at`."""
    W = [_matrix_like(v, f"unitary link {mu}") for mu, v in enumerate(V)]
    for w, v in zip(W, V, strict=True):
        _unitary(w, v)
    return W


@checked
def asqtad_links(U: Any, u0: float = 1.0) -> tuple[list[Field], list[Field]]:
    """Fat and long links of the asqtad action with the tadpole factor `u0`: two lists of fields of Matrix(n), one per direction.

    K. Orginos, D. Toussaint and R. Sugar, Phys. Rev. D 60 (1999) 054503, hep-lat/9903032. Raises LayoutError as `fatten`, also for links that
    are not four-dimensional, and ParameterError unless 0 < u0 <= 1.
    """
    coefficients = asqtad_coefficients(u0)
    return fatten(U, coefficients), long_links(U, coefficients.naik)


class HISQLinks:
    """Fat and long links of HISQ for quarks of several masses, from one smearing of the links `U`.

    V is Fat7 of U, W its U(n) part, and the second level is made of W. Of the mass it has only epsilon, in the weights of W and of the
    long link: `fat(epsilon)` and `long(epsilon)` add that to what all masses share, and are that itself where epsilon is 0. `V` and `W` are
    lists of fields. E. Follana et al., Phys. Rev. D 75 (2007) 054502, hep-lat/0610092. Raises LayoutError as `asqtad_links`, and
    SingularError with the site for a V that is singular. `follow()` smears anew where links have changed.
    """

    def __init__(self, U: Any):
        self._thin = checked_links(U)
        self.V, self.W, self._fat, self._long = self._smeared()
        self._made_of = versions_of(self._thin)
        self.made = 1  # how often

    def _smeared(self) -> tuple[list[Field], list[Field], list[Field], list[Field]]:
        V = fatten(self._thin, FAT7)
        W = unitary_links(V)
        singular = [
            error for w in W if (error := _singular(w)) is not None
        ]  # all are read, so none is told later
        if singular:
            raise singular[0]
        return V, W, fatten(W, HISQ_LEVEL_2), long_links(W, HISQ_LEVEL_2.naik)

    def follow(self) -> None:
        """Smears anew if links have changed since; the fields stay the same ones."""
        if self._made_of != (now := versions_of(self._thin)):
            mine = [*self.V, *self.W, *self._fat, *self._long]
            new = [f for fields in self._smeared() for f in fields]
            for one, other in zip(mine, new, strict=True):
                one.assign(other)
            self._made_of = now
            self.made += 1

    def __repr__(self) -> str:
        return f"HISQLinks({self.W[0].element} on {self.W[0].lattice})"

    def fat(self, epsilon: float = 0.0) -> list[Field]:
        """The fat links of the second level, of weight 1 + epsilon / 8 for W itself."""
        self.follow()
        return self._with(self._fat, self.W, HISQ_EPSILON[0] * _checked_epsilon(epsilon))

    def long(self, epsilon: float = 0.0) -> list[Field]:
        """The long links, -(1 + epsilon) / 24 W W W."""
        self.follow()
        return self._with(
            self._long, self._long, HISQ_EPSILON[1] / HISQ_LEVEL_2.naik * _checked_epsilon(epsilon)
        )

    def _with(self, common: list[Field], links: list[Field], weight: float) -> list[Field]:
        if weight == 0:
            return common
        found = [f.like() for f in common]
        for out, f, link in zip(found, common, links, strict=True):
            _sum(out, f, link, weight)
        return found


@checked
def hisq_links(U: Any) -> HISQLinks:
    """The fat and long links of HISQ: see `HISQLinks`."""
    return HISQLinks(U)


def _checked_epsilon(epsilon: Any) -> float:
    if isinstance(epsilon, bool) or not isinstance(epsilon, numbers.Real) or not -1 < float(epsilon) < 1:
        raise ParameterError(
            f"epsilon is a number between -1 and 1, hisq_epsilon(mass) or 0, not {value_shown(epsilon)}"
        )
    return float(epsilon)


def _matrix_like(link: Field, name: str) -> Field:
    return link.like(element=Matrix(int(link.element.type.shape[0])), storage=None, name=name)


def _singular(link: Field) -> SingularError | None:
    """The error of a matrix that has no U(n) part, which what is made of it would not raise. Graphs read nothing."""
    try:
        with contextlib.suppress(RecordingError):
            link[(0,) * link.lattice.ndim]
    except SingularError as error:
        return error
    return None


def versions_of(links: Sequence[Field]) -> list[Any]:
    """How often links were written, as far as they know."""
    return [link.storage.versions() for link in links]


def checked_links(U: Any) -> list[Field]:
    """The links of `U`, one field of n x n matrices per direction, all periodic. Raises LayoutError for others."""
    fields = getattr(U, "fields", U)
    if not isinstance(fields, list | tuple) or not fields or not all(isinstance(f, Field) for f in fields):
        raise LayoutError(
            f"the links are a GaugeField or a list of one field per direction, not {no_field(U)}"
        )
    first = fields[0]
    if len(fields) != first.lattice.ndim:
        raise LayoutError(
            f"{len(fields)} link fields on a lattice of {first.lattice.ndim} dimensions: there is one per direction"
        )
    n = first.element.type.shape[:1]
    for mu, link in enumerate(fields):
        if link.element.type.shape != n * 2:
            raise LayoutError(
                f"the links are square matrices, all of one size, and those of direction {mu} are {link.element}"
            )
        if link.boundary.conditions != ["periodic"] * len(fields):
            raise LayoutError(
                f"fat links are made of periodic links, and those of direction {mu} are {link.boundary}: signs and phases belong to the quark "
                "field's boundary, and no staple is known at an open edge"
            )
    return list(fields)
