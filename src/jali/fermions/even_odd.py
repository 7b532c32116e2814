"""The even-odd form of a Dirac operator: half of the sites are solved for, the others follow.

With D = [[D_ee, D_eo], [D_oe, D_oo]] on even and odd sites, D x = b is

    A x_o = b_o - D_oe D_ee^-1 b_e      with the Schur complement A = D_oo - D_oe D_ee^-1 D_eo,
    x_e = D_ee^-1 (b_e - D_eo x_o)

(T. DeGrand and P. Rossi, Comput. Phys. Commun. 60 (1990) 211). A has a smaller condition number than D and acts on fields of half the size.
Here D_ee = D_oo = m + d is a number and D_eo = -H_eo / 2 a hop, as of Wilson's operator.
"""

from __future__ import annotations

from typing import Any

from jali.beside import made_of
from jali.errors import LayoutError
from jali.files import value_shown
from jali.lattice.base import no_field
from jali.lattice.colours import join
from jali.lattice.domain import EVEN, ODD, Domain
from jali.lattice.field import Field
from jali.lattice.fused_sums import apply_inner


class EvenOdd:
    """The even-odd form of Wilson's operator `D`: the Schur complement A on the sites `over`, `ODD` or `EVEN`, of spinors there.

    `apply(psi, out)`, `adjoint` and `normal` (A^dagger A, for `jali.solvers.cg`) write into `out`, or into a new field. `prepare(b)` is the
    right-hand side, and `reconstruct(x, b)` the solution on all sites:

        E = D.even_odd()
        x = E.reconstruct(cg(E.normal, E.adjoint(E.prepare(b))).x, b)

    Two kernels of half the lattice each apply A. Raises LayoutError for fields that do not fit.
    """

    def __init__(self, D: Any, over: Domain = ODD):
        if not hasattr(D, "diagonal_and_hop"):
            raise LayoutError(f"the even-odd form is that of a WilsonDirac, not of {no_field(D)}")
        if over not in (EVEN, ODD):
            given = over if isinstance(over, Domain) else value_shown(over)
            raise LayoutError(f"the even-odd form lives over EVEN or ODD, not over {given}")
        self.D = D
        self.over = EVEN if over == EVEN else ODD
        if self.diagonal == 0:
            raise LayoutError(
                f"the mass {D.mass:g} makes the diagonal of the operator zero, which has no inverse on one colour"
            )
        self._fields: dict[str, Field] = {}

    def __repr__(self) -> str:
        return f"EvenOdd({self.D!r}, over={self.over})"

    @property
    def diagonal(self) -> float:
        """m + d, what D has at a site by itself."""
        return self.D.mass + self.D.lattice.ndim

    def apply(self, psi: Field, out: Field | None = None) -> Field:
        """A psi = (m + d) psi - H H psi / (4 (m + d))."""
        return self._run(psi, out, False)

    def adjoint(self, psi: Field, out: Field | None = None) -> Field:
        """A^dagger psi."""
        return self._run(psi, out, True)

    def normal(self, psi: Field, out: Field | None = None) -> Field:
        """A^dagger A psi."""
        return self.adjoint(self._applied(psi), out)

    @made_of("apply", "adjoint", "_run")
    def normal_inner(self, psi: Field, out: Field | None = None, wait: bool = True) -> tuple[Field, Any]:
        """A^dagger A psi, and its inner product with psi, from the last kernel; with `wait=False` a `Scalar`."""
        half = self._applied(psi)
        out = self._out(half, out)
        arguments = self._hopped(half, True)
        return out, apply_inner(self.D.diagonal_and_hop, psi, out, *arguments, wait=wait)

    def prepare(self, b: Field, out: Field | None = None) -> Field:
        """b_o - D_oe D_ee^-1 b_e = b_o + H_oe b_e / (2 (m + d)), of a spinor field `b` on all sites."""
        self.D._check_all_sites(b)
        other = self._part("source", b, self.over.opposite)
        mine = self._part("own source", b, self.over)
        out = self._out(mine, out)
        self.D.diagonal_and_hop(out, mine, other, self.D.links, 1.0, 0.5 / self.diagonal, False)
        return out

    def reconstruct(self, x: Field, b: Field, out: Field | None = None) -> Field:
        """The solution on all sites, from that on `over` and the right-hand side: there `x`, elsewhere D_ee^-1 (b_e - D_eo x).

        Written into `out`, or into a new field like `b`. Raises LayoutError where x and b have other boundaries.
        """
        self._check(x)
        self.D._check_all_sites(b)
        if x.boundary != b.boundary:
            raise LayoutError(
                f"{x.name} is {x.boundary}, {b.name} is {b.boundary}: a solution has the boundary of its right-hand side"
            )
        source = self._part("source", b, self.over.opposite)
        found = source.like()
        self.D.diagonal_and_hop(found, source, x, self.D.links, 1 / self.diagonal, 0.5 / self.diagonal, False)
        return join(*((found, x) if self.over is ODD else (x, found)), b.like() if out is None else out)

    # ---- its parts ---------------------------------------------------------------------------------------

    def _run(self, psi: Field, out: Field | None, adjoint: bool) -> Field:
        self._check(psi)
        out = self._out(psi, out)
        self.D.diagonal_and_hop(out, *self._hopped(psi, adjoint))
        return out

    def _hopped(self, psi: Field, adjoint: bool) -> tuple[Any, ...]:
        """What the second kernel takes: the first has made H psi on the other colour."""
        hopped = self._kept("hopped", psi, self.over.opposite)
        self.D.hop(psi, hopped, adjoint)
        return psi, hopped, self.D.links, self.diagonal, -0.25 / self.diagonal, adjoint

    def _applied(self, psi: Field) -> Field:
        self._check(psi)
        return self.apply(psi, self._kept("applied", psi, self.over))

    def _part(self, name: str, b: Field, over: Domain) -> Field:
        return self._kept(name, b, over).assign(b)

    def _kept(self, name: str, psi: Field, over: Domain) -> Field:
        """A field like psi on a colour, made once for all fields that are kept and bounded alike."""
        known = self._fields.get(name)
        if known is None or known is psi or not known.is_like(psi, over=over):
            known = self._fields[name] = psi.like(over=over)
        return known

    def _out(self, psi: Field, out: Field | None) -> Field:
        out = self.D._out(psi, out)
        self._check(out)
        return out

    def _check(self, psi: Any) -> None:
        self.D._check(psi)
        if psi.over is not self.over:
            raise LayoutError(f"{self!r} acts on fields over {self.over}, and {psi.name} lives on {psi.over}")
