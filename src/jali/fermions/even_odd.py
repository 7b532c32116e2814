"""Even-odd forms of a Dirac operator: half of the sites are solved for, the others follow.

With D = A + B, a diagonal A and a hop B between even (e) and odd (o) sites, D x = b is

    S x_o = b_o - B_oe A_ee^-1 b_e      with the Schur complement S = A_oo - B_oe A_ee^-1 B_eo,
    x_e = A_ee^-1 (b_e - B_eo x_o)

(T. DeGrand and P. Rossi, Comput. Phys. Commun. 60 (1990) 211). S has a smaller condition number than D and acts on fields of half the size.
The symmetric form is A_oo^-1 S, with A_oo^-1 in front of the right-hand side as well: where A varies from site to site, as that of the clover term, its
condition number is smaller still (K. Jansen and C. Liu, Comput. Phys. Commun. 99 (1997) 221).
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self

from jali.beside import redefines
from jali.errors import LayoutError
from jali.fermions.applications import Applications
from jali.fermions.kept import KeptFields
from jali.files import value_shown
from jali.lattice.base import no_field
from jali.lattice.colours import join
from jali.lattice.domain import EVEN, ODD, Domain
from jali.lattice.field import Field
from jali.lattice.sites import SiteFunction

if TYPE_CHECKING:
    from jali.fermions.dirac import Dirac

FORMS = ("asymmetric", "symmetric")


class EvenOdd(Applications):
    """An even-odd form of a Dirac operator `D`: the Schur complement S on the sites `over`, `ODD` or `EVEN`, of fields there, or
    with `form="symmetric"` A^-1 S.

    For its applications see `Applications`. `prepare(b)` is the right-hand side, and `reconstruct(x, b)` the solution on all sites:

        E = D.even_odd()
        x = E.reconstruct(cg(E.normal, E.adjoint(E.prepare(b))).x, b)

    Two kernels of half the lattice each apply S; the adjoint of a symmetric form takes three, and diagonals that join members of a batch
    are kernels of their own. Raises LayoutError for fields that do not fit.
    """

    def __init__(self, D: Dirac, over: Domain = ODD, form: str = "asymmetric"):
        super().__init__()
        if not callable(getattr(D, "inverse_at", None)):
            raise LayoutError(f"the even-odd form is that of a Dirac operator, not of {no_field(D)}")
        if over not in (EVEN, ODD):
            given = over if isinstance(over, Domain) else value_shown(over)
            raise LayoutError(f"the even-odd form lives over EVEN or ODD, not over {given}")
        if form not in FORMS:
            raise LayoutError(f'an even-odd form is "asymmetric" or "symmetric", not {value_shown(form)}')
        if redefines(D, Applications, "apply", "adjoint", "_run"):
            raise LayoutError(
                f"{type(D).__name__} has an apply or adjoint of its own, and even-odd forms are made of formulas: state diagonal_at, inverse_at and hop_at"
            )
        self.D = D
        self.over = EVEN if over == EVEN else ODD
        self.symmetric = form == "symmetric"
        D.check_inverse()

    @property
    def changing_numbers(self) -> tuple[Any, ...]:
        """Those of D."""
        return self.D.changing_numbers

    def __repr__(self) -> str:
        return f"EvenOdd({self.D!r}, over={self.over}{', symmetric' if self.symmetric else ''})"

    @property
    def joins_members(self) -> bool:  # type: ignore[override]
        """Whether D joins members of a batch, which then are one vector."""
        return self.D.joins_members

    @property
    def solver_kind(self) -> str:  # type: ignore[override]
        """What solvers may count on: as D says of its forms."""
        return self.D.even_odd_kind

    def digest(self) -> dict[str, Any]:
        """That of D."""
        return self.D.digest()

    def prepare(self, b: Field, out: Field | None = None) -> Field:
        """The right-hand side b_o - B_oe A_ee^-1 b_e, of a field `b` on all sites; in the symmetric form A_oo^-1 times that."""
        self.D._acted_on(b)
        other = self._part("source", b, self.over.opposite)
        mine = self._part("own source", b, self.over)
        out = self._out(mine, out)
        inverse = self.D.diagonal_inverse(other, self._kept.like("inverse", b, self.over.opposite))
        if not self.symmetric:
            return self.D.hop(inverse, out, plus=mine, scale=-1.0)
        rest = self.D.hop(inverse, self._kept.like("rest", b, self.over), plus=mine, scale=-1.0)
        return self.D.diagonal_inverse(rest, out)

    def reconstruct(self, x: Field, b: Field, out: Field | None = None) -> Field:
        """The solution on all sites, from that on `over` and the right-hand side: there `x`, elsewhere A_ee^-1 (b_e - B_eo x).

        Written into `out`, or into a new field like `b`. Raises LayoutError where x and b have other boundaries.
        """
        self._acted_on(x)
        self.D._acted_on(b)
        if x.boundary != b.boundary:
            raise LayoutError(
                f"{x.name} is {x.boundary}, {b.name} is {b.boundary}: a solution has the boundary of its right-hand side"
            )
        source = self._part("source", b, self.over.opposite)
        found = source.like()
        if self.D.joins_members:
            rest = self.D.hop(
                x, self._kept.like("other rest", b, self.over.opposite), plus=source, scale=-1.0
            )
            self.D.diagonal_inverse(rest, found)
        else:
            self.D.kernel("inverse_of_rest")(found, source, self.D.first_step(x, False), False, *self.D.data)
        if out is not None and out.boundary != b.boundary:
            raise LayoutError(
                f"{out.name} is {out.boundary}, {b.name} is {b.boundary}: a solution has the boundary of its right-hand side"
            )
        return join(*((found, x) if self.over is ODD else (x, found)), b.like() if out is None else out)

    def in_format(self, precision: Any = None, storage: str | None = None) -> Self:
        """The same form of the operator in another format: see `Dirac.in_format`, whose errors it raises."""
        found = copy.copy(self)
        found.D, found._kept = self.D.in_format(precision, storage), KeptFields()
        found.D.check_inverse()
        return found

    # ---- its parts ---------------------------------------------------------------------------------------

    def _application(self, psi: Field, dagger: bool) -> tuple[SiteFunction, tuple[Any, ...]]:
        D, data = self.D, self.D.data
        if self.symmetric and dagger:
            inverse = D.diagonal_inverse(psi, self._kept.like("inverse here", psi, self.over), True)
            read = D.first_step(self._inverse_of_hop(inverse, True), True)
            return D.kernel("sum"), (psi, read, 1.0, -1.0, True, *data)
        between = self._inverse_of_hop(psi, dagger)
        if not self.symmetric:
            return D.kernel("diagonal_and_hop"), (psi, D.first_step(between, dagger), dagger, *data)
        if not D.joins_members:
            return D.kernel("one_and_inverse"), (psi, D.first_step(between, dagger), dagger, *data)
        hopped = D.hop(between, self._kept.like("hopped here", psi, self.over))
        inverse = D.diagonal_inverse(hopped, self._kept.like("inverse here", psi, self.over))
        return D.kernel("difference"), (psi, inverse)

    def _inverse_of_hop(self, psi: Field, dagger: bool) -> Field:
        """A^-1 B psi on the other colour, in a field that is kept."""
        D, other = self.D, self.over.opposite
        out = self._kept.like("inverse of hop", psi, other)
        if not D.joins_members:
            D.kernel("inverse_of_hop")(out, D.first_step(psi, dagger), dagger, *D.data)
            return out
        return D.diagonal_inverse(D.hop(psi, self._kept.like("hopped", psi, other), dagger), out, dagger)

    def _part(self, name: str, b: Field, over: Domain) -> Field:
        return self._kept.like(name, b, over).assign(b)

    def _out(self, psi: Field, out: Field | None) -> Field:
        out = self.D._out(psi, out)
        self._check(out)
        return out

    def _acted_on(self, psi: Any) -> None:
        self._check(psi)
        self.D.check_inverse()  # numbers and links may have changed

    def _check(self, psi: Any) -> None:
        self.D._check(psi)
        if psi.over is not self.over:
            raise LayoutError(f"{self!r} acts on fields over {self.over}, and {psi.name} lives on {psi.over}")
