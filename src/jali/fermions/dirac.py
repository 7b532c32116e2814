"""Dirac operators: a few formulas at a site, and what follows from them.

A Dirac operator D = A + B has a *diagonal* A, which acts at each site by itself, and a *hop* B, which joins sites of opposite colours. A subclass
of `Dirac` states both at a site, and the inverse of the diagonal where it wants even-odd forms:

    class Twisted(Dirac):
        def __init__(self, U, mass, mu):
            super().__init__(U, Spinor)
            self.mass, self.mu = mass, mu

        @property
        def data(self):
            return self.links, self.mass, self.mu

        @staticmethod
        def diagonal_at(X, psi, dagger, U, mass, mu):
            return (mass + X.ndim) * psi[X] + (-1j if dagger else 1j) * mu * (gamma5 * psi[X])

        @staticmethod
        def hop_at(X, psi, dagger, U, mass, mu):
            return -0.5 * wilson_hop_at(X, psi, U, -1 if dagger else 1)

The methods of `Dirac` then apply D, D^dagger and D^dagger D, a kernel for each application, and `even_odd` gives its Schur complements
(`jali.fermions.even_odd`). Formulas that do several things at a site are one kernel.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jali
from jali.codegen.lines import trace_error
from jali.codegen.types import Element
from jali.codegen.values import Value
from jali.errors import LayoutError, StorageError
from jali.fermions.applications import Applications
from jali.fermions.digests import digest_of_links
from jali.fermions.even_odd import EvenOdd
from jali.fermions.formats import Conversion, Followed
from jali.fermions.kept import KeptFields
from jali.lattice.base import no_field, what_differs
from jali.lattice.domain import ALL, ODD, Domain
from jali.lattice.field import Field
from jali.lattice.sites import SiteFunction, site_function

MOST_AT_ONCE = 64  # members of a solve: as many numbers a vector of numbers has


class Dirac(Applications):
    """A Dirac operator D of links `U` (a `GaugeField` or a list of one field per direction) on fields of `element`: an element, or a
    function of the number of colours that gives it, such as `Spinor` or `Vector`.

    A subclass defines

    - `diagonal_at(X, psi, dagger, *data)`: A psi at the site X, or A^dagger psi; reads `psi[X]`, and `psi[X, k]` where it joins members of
      a batch (then `joins_members` is True);
    - `hop_at(X, psi, dagger, *data)`: B psi or B^dagger psi at X; reads `psi` at sites of the other colour only;
    - `inverse_at(X, psi, dagger, *data)`: A^-1 psi or A^-dagger psi, for even-odd forms;
    - `data`: what these take, links first: fields, lists of fields and numbers, which may change without compiling again.

    All are static methods, written as site functions are; `dagger` is fixed while tracing. `D @ psi` is D psi and `D.dagger @ psi` D^dagger psi;
    `apply`, `adjoint`, `normal`, `hop` and `diagonal` write into a field `out`, or into a new one. `matvec` and `rmatvec` make D an operator for
    solvers of `jali.solvers`; `normal` is Hermitian and positive, for `cg`, which finds `normal_inner` beside it. Raises LayoutError for fields
    that do not fit: across an open edge of the links fields are open, too; signs and phases are those of the fields alone. Fields on one
    colour are for `hop`, `diagonal` and `even_odd`.
    """

    even_odd_kind: str = "adjoint"  # of even-odd forms, what `solver_kind` is of the operator
    hops: ClassVar[dict[int, int]] = {0: 1}  # where links are in `data`, and over how many sites these hop
    unconverted: ClassVar[tuple[str, ...]] = ()  # attributes that `converted` leaves as they are
    _followed: Followed | None = None  # of an operator in another format: the one that it was made of

    def __init__(self, U: Any, element: Element | Callable[[int], Element]):
        super().__init__()
        fields = getattr(U, "fields", U)
        if (
            not isinstance(fields, list | tuple)
            or not fields
            or not all(isinstance(f, Field) for f in fields)
        ):
            raise LayoutError(
                f"the links are a GaugeField or a list of one field per direction, not {no_field(U)}"
            )
        self.links = list(fields)
        self.lattice = self.links[0].lattice
        if len(self.links) != self.lattice.ndim:
            raise LayoutError(
                f"{len(self.links)} link fields on a lattice of {self.lattice.ndim} dimensions; a Dirac operator needs one per direction"
            )
        if len(self.links[0].element.type.shape) != 2:
            raise LayoutError(f"the links are matrices, not {self.links[0].element}")
        self.colours = int(self.links[0].element.type.shape[0])
        for mu, link in enumerate(self.links):
            if link.lattice is not self.lattice:
                raise LayoutError(
                    f"the links are fields of one lattice, and those of direction {mu} live on another one ({what_differs(link.lattice, self.lattice)})"
                )
            if link.element.type.shape != (self.colours, self.colours):
                raise LayoutError(
                    f"the links are square matrices, all of one size ({self.colours}), and those of direction {mu} are {link.element}"
                )
        self.element = element if isinstance(element, Element) else element(self.colours)

    # ---- formulas ----------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, ...]:
        """What formulas take behind the flag `dagger`."""
        return (self.links,)

    @staticmethod
    def diagonal_at(X: Any, psi: Any, dagger: bool, *data: Any) -> Value:
        """A psi at the site X; with `dagger` A^dagger psi."""
        raise NotImplementedError

    @staticmethod
    def hop_at(X: Any, psi: Any, dagger: bool, *data: Any) -> Value:
        """B psi at the site X; with `dagger` B^dagger psi."""
        raise NotImplementedError

    @staticmethod
    def inverse_at(X: Any, psi: Any, dagger: bool, *data: Any) -> Value:
        """A^-1 psi at the site X; with `dagger` A^-dagger psi."""
        raise NotImplementedError

    # ---- its parts as operators --------------------------------------------------------------------------

    def hop(
        self,
        psi: Field,
        out: Field | None = None,
        dagger: bool = False,
        *,
        scale: complex = 1.0,
        plus: Field | None = None,
        times: complex = 1.0,
    ) -> Field:
        """B psi, or B^dagger psi; with `plus` times * plus + scale * B psi, in one kernel. That of a field on one colour lives on the other."""
        self._check(psi)
        if out is None:
            out = psi.like() if psi.over is ALL else psi.like(over=psi.over.opposite)
        out = self._out(psi, out)
        if psi.over is not ALL and out.over is psi.over:
            raise LayoutError(
                f"a hop leads from {psi.over} sites to {psi.over.opposite} ones, and {out.name} lives on {out.over}"
            )
        read = self.first_step(psi, dagger)
        if plus is None and scale == 1:
            self.kernel("hop")(out, read, dagger, *self.data)
        elif plus is None:
            self.kernel("scaled_hop")(out, read, scale, dagger, *self.data)
        else:
            self._check(plus)
            self._alike(psi, plus, "what is added")
            self.kernel("sum")(out, plus, read, times, scale, dagger, *self.data)
        return out

    def diagonal(self, psi: Field, out: Field | None = None, dagger: bool = False) -> Field:
        """A psi, or A^dagger psi; `out` may be psi where the diagonal does not join members of a batch."""
        self._check(psi)
        out = psi if out is psi and not self.joins_members else self._out(psi, out)
        self.kernel("diagonal")(out, psi, dagger, *self.data)
        return out

    def diagonal_inverse(self, psi: Field, out: Field | None = None, dagger: bool = False) -> Field:
        """A^-1 psi, or A^-dagger psi; `out` as for `diagonal`. Raises LayoutError where A has no inverse."""
        self._check(psi)
        self.check_inverse()
        out = psi if out is psi and not self.joins_members else self._out(psi, out)
        self.kernel("inverse")(out, psi, dagger, *self.data)
        return out

    def even_odd(self, over: Domain = ODD, form: str = "asymmetric") -> EvenOdd:
        """The operator on half of the sites from which a solution on all of them follows: see `EvenOdd`. Raises LayoutError where the
        diagonal has no inverse, for other sites than `ODD` and `EVEN`, and for other forms."""
        return EvenOdd(self, over, form)

    # ---- propagators -------------------------------------------------------------------------------------

    def propagator(
        self,
        source: Field,
        tolerance: float = 1e-10,
        *,
        on_solution: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> Field:
        """S with D S = source, all members of the source's batch at once, up to 64: `jali.solve(D, source, tolerance, **options).x`.

        `jali.hadrons` has sources and what is made of propagators. `on_solution` is called with what `jali.solve` returns, which has residuals and their
        histories. Raises LayoutError for a source that does not fit, SolverError where a solve does not converge, on every rank.
        """
        self._check(source)
        count = source.batch or 0
        if count <= MOST_AT_ONCE:
            found = jali.solve(self, source, tolerance, **options)
            if on_solution is not None:
                on_solution(found)
            return found.x
        S = source.like()
        for first in range(0, count, MOST_AT_ONCE):
            chosen = slice(first, min(first + MOST_AT_ONCE, count))
            part = self.propagator(
                source.members[chosen].copy(), tolerance, on_solution=on_solution, **options
            )
            S.members[chosen].assign(part)
        return S

    # ---- in another format -------------------------------------------------------------------------------

    def in_format(self, precision: Any = None, storage: str | None = None) -> Self:
        """The same operator, whose fields have another arithmetic `precision` and `storage`: links, and what is made of them.

            few = D.in_format("float32", "float16")
            few @ psi.like(precision="float32", storage="float16").assign(psi)

        Without a storage fields keep what they have, or are numbers of the new precision. A storage without an ending is for all fields;
        links of SU(3) and SU(2) then keep as few numbers as determine them ("float16-12", "float16-4"), as long as they are unitary. With an
        ending ("float16-8") it is that of links, and what is no element of a group has the format of all numbers beside it.

        The result follows: an application finds that links or numbers of this operator have changed, and makes it of them again. In between it may have
        numbers of its own. Raises LayoutError for formats that do not exist or that a field does not take, and for a class of one's own
        with fields that are found in no attribute (see `converted`); StorageError for numbers that the storage cannot hold.
        """
        self.follow()
        try:
            followed = Followed(self, Conversion(precision, storage))
            found = followed.converted()
        except (LayoutError, StorageError) as error:
            raise type(error)(f"{self!r} in another format: {error}") from None
        found._followed = followed
        return found

    def converted(self, convert: Conversion) -> Self:
        """A copy of this operator whose attributes are `convert(attribute)`: fields in another format, also in lists, tuples and dictionaries.

        A class with fields elsewhere extends this; `unconverted` names attributes that stay as they are.
        """
        found = copy.copy(self)
        for name, value in vars(self).items():
            if name not in self.unconverted:
                vars(found)[name] = convert(value)
        found._kept = KeptFields()
        return found

    def follow(self) -> None:
        """Makes an operator in another format of the one that it came from once more, where that has changed. Applications do so by themselves."""
        followed = self._followed
        if followed is not None and followed.changed():
            new = vars(followed.converted())
            vars(self).update({name: new[name] for name in new if name not in ("_kept", "_followed")})

    def digest(self) -> dict[str, Any]:
        """Numbers by which these links are known again, in any format: eigenvectors carry them. Masses and other parameters are no part of it."""
        return digest_of_links(self.links)

    # ---- for even-odd forms ------------------------------------------------------------------------------

    def kernel(self, name: str) -> SiteFunction:
        """The site function of this class for an entry of `KERNELS`."""
        kind = type(self)
        functions = vars(kind).get("_functions")
        if functions is None:
            for formula in ("diagonal_at", "hop_at"):
                if getattr(kind, formula) is getattr(Dirac, formula):
                    raise LayoutError(
                        f"{kind.__name__} states no {formula}, a static method that every Dirac operator has"
                    )
            kind._functions = functions = {}  # type: ignore[attr-defined]
        if name not in functions:
            functions[name] = site_function(_with_names(KERNELS[name](kind), kind, name))
        return functions[name]

    def first_step(self, psi: Field, dagger: bool) -> Field:
        """What `hop_at` reads for B psi, or for B^dagger psi: psi itself. Where two steps take less than one, a subclass takes the first one here,
        into a field that it keeps, and states the second one as `hop_at`."""
        return psi

    def check_inverse(self) -> None:
        """Raises LayoutError where the diagonal has no inverse, or none is stated."""
        if type(self).inverse_at is Dirac.inverse_at:
            raise LayoutError(
                f"{type(self).__name__} states no inverse of its diagonal, inverse_at, which even-odd forms need"
            )

    # ---- checks ------------------------------------------------------------------------------------------

    def _check(self, psi: Any) -> None:
        if self._followed is not None:
            self.follow()
        if not isinstance(psi, Field):
            raise LayoutError(f"{self!r} acts on fields of {self.element}, not on {no_field(psi)}")
        if psi.element != self.element:
            raise LayoutError(f"{self!r} acts on fields of {self.element}, {psi.name} holds {psi.element}")
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

    def _acted_on(self, psi: Any) -> None:
        self._check(psi)
        if psi.over is not ALL:
            raise LayoutError(
                f"{self!r} reads and writes both colours, and {psi.name} lives on {psi.over}: jali.join(even, odd) is a field on all sites; "
                "D.hop leads from one colour to the other, and D.even_odd() acts on one"
            )

    def _application(self, psi: Field, dagger: bool) -> tuple[SiteFunction, tuple[Any, ...]]:
        read = self.first_step(psi, dagger)
        if read is psi:
            return self.kernel("apply"), (psi, dagger, *self.data)
        return self.kernel("apply_second_step"), (psi, read, dagger, *self.data)

    def _out(self, psi: Field, out: Field | None, batch: Any = ...) -> Field:
        """The field that a result is written to, of another batch if that is named. Raises LayoutError."""
        out = psi.like() if out is None else out
        if not isinstance(out, Field):
            raise LayoutError(f"{self!r} writes into a field, not into {no_field(out)}")
        if out is psi:
            raise LayoutError(
                "a Dirac operator reads neighbours: the result needs a field other than the source"
            )
        self._alike(psi, out, "a result", batch)
        return out

    def _alike(self, psi: Field, other: Field, what: str, batch: Any = ...) -> None:
        """Raises LayoutError where a field that meets psi has another element, lattice, batch or boundary."""
        for name, mine, theirs in (
            ("element", psi.element, other.element),
            ("lattice", psi.lattice, other.lattice),
            ("batch", psi.batch if batch is ... else batch, other.batch),
            ("boundary", psi.boundary, other.boundary),
        ):
            if mine is not theirs and mine != theirs:
                raise LayoutError(
                    f"{what} fits its source {psi.name}: its {name} is {mine}, and that of {other.name} is {theirs}"
                )


class _At:
    """A value at the site that is computed, for formulas that read a field there."""

    def __init__(self, X: Any, value: Value):
        self._X, self._value = X, value

    def __getitem__(self, X: Any) -> Value:
        if X is not self._X:
            raise trace_error(
                "an inverse of the diagonal, inverse_at, reads psi[X] only: other sites are the hop's, and a class whose diagonal joins members of "
                "a batch says joins_members = True"
            )
        return self._value


# ---- site functions of a class, by name --------------------------------------------------------------------


def _with_names(function: Callable[..., None], kind: type[Dirac], name: str) -> Callable[..., None]:
    """The function named after the class, and its `data` as the formulas of the class name them, so that messages say both."""
    function.__name__ = function.__qualname__ = f"{kind.__name__}_{name}"
    own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_POSITIONAL]
    if len(own) < len(inspect.signature(function).parameters):
        own += list(inspect.signature(kind.hop_at).parameters.values())[3:]
    function.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return function


def _apply(D: Any) -> Callable[..., None]:
    def apply(X: Any, out: Any, psi: Any, dagger: bool, *data: Any) -> None:
        out[X] = D.diagonal_at(X, psi, dagger, *data) + D.hop_at(X, psi, dagger, *data)

    return apply


def _apply_second_step(D: Any) -> Callable[..., None]:
    def apply_second_step(X: Any, out: Any, psi: Any, read: Any, dagger: bool, *data: Any) -> None:
        out[X] = D.diagonal_at(X, psi, dagger, *data) + D.hop_at(X, read, dagger, *data)

    return apply_second_step


def _hop(D: Any) -> Callable[..., None]:
    def hop(X: Any, out: Any, psi: Any, dagger: bool, *data: Any) -> None:
        out[X] = D.hop_at(X, psi, dagger, *data)

    return hop


def _scaled_hop(D: Any) -> Callable[..., None]:
    def scaled_hop(X: Any, out: Any, psi: Any, b: Any, dagger: bool, *data: Any) -> None:
        out[X] = b * D.hop_at(X, psi, dagger, *data)

    return scaled_hop


def _sum(D: Any) -> Callable[..., None]:
    def sum(X: Any, out: Any, chi: Any, psi: Any, a: Any, b: Any, dagger: bool, *data: Any) -> None:
        out[X] = a * chi[X] + b * D.hop_at(X, psi, dagger, *data)

    return sum


def _diagonal(D: Any) -> Callable[..., None]:
    def diagonal(X: Any, out: Any, psi: Any, dagger: bool, *data: Any) -> None:
        out[X] = D.diagonal_at(X, psi, dagger, *data)

    return diagonal


def _inverse(D: Any) -> Callable[..., None]:
    def inverse(X: Any, out: Any, psi: Any, dagger: bool, *data: Any) -> None:
        out[X] = D.inverse_at(X, psi, dagger, *data)

    return inverse


def _inverse_of_hop(D: Any) -> Callable[..., None]:
    def inverse_of_hop(X: Any, out: Any, psi: Any, dagger: bool, *data: Any) -> None:
        out[X] = D.inverse_at(X, _At(X, D.hop_at(X, psi, dagger, *data)), dagger, *data)

    return inverse_of_hop


def _inverse_of_rest(D: Any) -> Callable[..., None]:
    def inverse_of_rest(X: Any, out: Any, chi: Any, psi: Any, dagger: bool, *data: Any) -> None:
        out[X] = D.inverse_at(X, _At(X, chi[X] - D.hop_at(X, psi, dagger, *data)), dagger, *data)

    return inverse_of_rest


def _diagonal_and_hop(D: Any) -> Callable[..., None]:
    def diagonal_and_hop(X: Any, out: Any, chi: Any, psi: Any, dagger: bool, *data: Any) -> None:
        out[X] = D.diagonal_at(X, chi, dagger, *data) - D.hop_at(X, psi, dagger, *data)

    return diagonal_and_hop


def _one_and_inverse(D: Any) -> Callable[..., None]:
    def one_and_inverse(X: Any, out: Any, chi: Any, psi: Any, dagger: bool, *data: Any) -> None:
        out[X] = chi[X] - D.inverse_at(X, _At(X, D.hop_at(X, psi, dagger, *data)), dagger, *data)

    return one_and_inverse


def _difference(D: Any) -> Callable[..., None]:
    def difference(X: Any, out: Any, chi: Any, psi: Any) -> None:
        out[X] = chi[X] - psi[X]

    return difference


KERNELS: dict[str, Callable[[Any], Callable[..., None]]] = {
    "apply": _apply,  # A psi + B psi
    "apply_second_step": _apply_second_step,  # A psi + B psi, whose first step has been taken
    "hop": _hop,  # B psi
    "scaled_hop": _scaled_hop,  # b B psi
    "sum": _sum,  # a chi + b B psi
    "diagonal": _diagonal,  # A psi
    "inverse": _inverse,  # A^-1 psi
    "inverse_of_hop": _inverse_of_hop,  # A^-1 B psi
    "inverse_of_rest": _inverse_of_rest,  # A^-1 (chi - B psi)
    "diagonal_and_hop": _diagonal_and_hop,  # A chi - B psi
    "one_and_inverse": _one_and_inverse,  # chi - A^-1 B psi
    "difference": _difference,  # chi - psi
}
