"""Domain wall operators of Shamir's and of Moebius form, on spinors whose batch is the fifth direction.

With D_W the Wilson operator of mass -M5, D_plus = 1 + b D_W and D_minus = 1 - c D_W,

    (D psi)_s = D_plus psi_s - D_minus (Lambda psi)_s
    (Lambda psi)_s = P_minus psi_{s+1} + P_plus psi_{s-1}        P_plus,minus = (1 +- gamma_5) / 2

where the terms that join the two ends of the fifth direction, 0 and Ls - 1, have the factor -m. b = 1, c = 0 is the operator of Y. Shamir, Nucl.
Phys. B 406 (1993) 90; other b and c are those of R. C. Brower, H. Neff and K. Orginos, arXiv:1206.5214. With d directions and e = d - M5 the diagonal is
(1 + b e) - (1 - c e) Lambda, which joins members of the batch, and the hop is -H (b + c Lambda) / 2 with the H of `wilson_hop_at`. Where c is not
zero it is two kernels: a single one would read three slices at each neighbour, and for the adjoint compute H^dagger of three.

A quark of four dimensions lives on the two ends: D x = source(eta) gives q = physical(x) = (D4^-1 - 1) eta / (1 - m), with

    D4 = (1 + m) / 2 + (1 - m) / 2 gamma_5 epsilon(H4)           H4 = gamma_5 (b + c) D_W / (2 + (b - c) D_W)
    epsilon(x) = [(1 + x)^Ls - (1 - x)^Ls] / [(1 + x)^Ls + (1 - x)^Ls]

and det D(m) / det D(1) = det D4. Coefficients that differ from slice to slice are not there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import jali
from jali.codegen.shapes import concatenate
from jali.codegen.types import Spinor
from jali.codegen.values import Value, where
from jali.errors import LayoutError, ParameterError
from jali.fermions.dirac import Dirac
from jali.fermions.parameters import RealParameter
from jali.fermions.wilson import wilson_hop_at
from jali.files import value_shown
from jali.lattice.batches import MOST_MEMBERS
from jali.lattice.domain import ALL
from jali.lattice.field import Field
from jali.lattice.sites import site_function


class DomainWallDirac(Dirac):
    """The domain wall operator of links `U`, a quark mass `mass`, the height `M5` > 0 of the wall (the Wilson operator in it has the mass -M5)
    and `Ls` slices, with Moebius coefficients `b` and `c`.

    Acts on fields of Spinor(n) with batch=Ls: member s is slice s. All members are one vector: `jali.solvers.cg` solves for it as a whole
    (`D.normal`, with `D.adjoint(b)`), and other solvers take no batch. For its methods see `Dirac`; `shamir` and `moebius` are constructors by
    name. `mass`, `M5`, `b` and `c` may change. Raises LayoutError for links and fields that do not fit, ParameterError for impossible numbers.
    """

    joins_members = True
    mass = RealParameter()
    M5 = RealParameter(positive=True, since=", since the Wilson operator in the wall has the mass -M5")
    b = RealParameter()
    c = RealParameter()

    def __init__(self, U: Any, mass: float, M5: float, *, Ls: int, b: float = 1.0, c: float = 0.0):
        super().__init__(U, Spinor)
        if self.lattice.ndim > 4:
            raise LayoutError(
                f"{len(self.links)} link fields on a lattice of {self.lattice.ndim} dimensions; the Wilson operator has gamma matrices for at most 4"
            )
        if isinstance(Ls, bool) or not isinstance(Ls, int | np.integer) or not 2 <= Ls <= MOST_MEMBERS:
            raise ParameterError(
                f"Ls, the extent of the fifth direction, is a whole number from 2 to {MOST_MEMBERS}, not {value_shown(Ls)}"
            )
        self.Ls = int(Ls)
        self.mass, self.M5, self.b, self.c = mass, M5, b, c
        if self.b == self.c == 0:
            raise ParameterError("b and c are both zero: the operator would have no links")
        self._inverse: tuple[tuple[float, ...], np.ndarray, bool] | None = None

    @classmethod
    def shamir(cls, U: Any, mass: float, M5: float, *, Ls: int) -> DomainWallDirac:
        """Shamir's operator, b = 1 and c = 0. Raises what the class does."""
        return cls(U, mass, M5, Ls=Ls)

    @classmethod
    def moebius(
        cls, U: Any, mass: float, M5: float, *, Ls: int, b: float = 1.5, c: float = 0.5
    ) -> DomainWallDirac:
        """A Moebius operator: b - c chooses the kernel H4, 1 is Shamir's and 0 Borici's, and b + c is a factor of it. Raises what the class does."""
        return cls(U, mass, M5, Ls=Ls, b=b, c=c)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({self.links[0].element} on {self.lattice}, Ls {self.Ls}, mass {self.mass:g}, M5 {self.M5:g}, "
            f"b {self.b:g}, c {self.c:g})"
        )

    @property
    def pauli_villars(self) -> DomainWallDirac:
        """The operator with mass 1, whose determinant takes out what is heavy in that of this one."""
        return type(self)(self.links, 1.0, self.M5, Ls=self.Ls, b=self.b, c=self.c)

    # ---- formulas ----------------------------------------------------------------------------------------

    @property
    def data(self) -> tuple[Any, ...]:
        """Links, m, the factors of 1 and -Lambda in the diagonal, b, c (None where it is zero), and the inverse of the diagonal."""
        plus, minus = self._diagonal_factors()
        return self.links, self.mass, plus, minus, self.b, self.c or None, self._inverse_factors()[0]

    @staticmethod
    def diagonal_at(
        X: Any,
        psi: Any,
        dagger: bool,
        U: Any,
        mass: Any,
        plus: Any,
        minus: Any,
        b5: Any,
        c5: Any,
        inverse: Any,
    ) -> Value:
        """plus psi - minus Lambda psi at the site X."""
        return plus * psi[X] - minus * joined_slices(X, psi, mass, inverse.shape[0], dagger)

    @staticmethod
    def hop_at(
        X: Any,
        psi: Any,
        dagger: bool,
        U: Any,
        mass: Any,
        plus: Any,
        minus: Any,
        b5: Any,
        c5: Any,
        inverse: Any,
    ) -> Value:
        """-b H psi / 2 at the site X, or -b H^dagger psi / 2. Where c is not zero, the second step of a hop: -H chi / 2 of chi = (b + c Lambda)
        psi, or (b + c Lambda^dagger) chi of chi = -H^dagger psi / 2."""
        if c5 is None:
            return (-0.5 * b5) * wilson_hop_at(X, psi, U, -1 if dagger else 1)
        if not dagger:
            return -0.5 * wilson_hop_at(X, psi, U)
        return b5 * psi[X] + c5 * joined_slices(X, psi, mass, inverse.shape[0], True)

    @staticmethod
    def inverse_at(
        X: Any,
        psi: Any,
        dagger: bool,
        U: Any,
        mass: Any,
        plus: Any,
        minus: Any,
        b5: Any,
        c5: Any,
        inverse: Any,
    ) -> Value:
        """A^-1 psi at the site X: on P_plus the matrix inverse[s - s'], times -m where s < s', on P_minus its transpose."""
        slices, s, sign = inverse.shape[0], X.member, -1 if dagger else 1
        chiral: list[Value] = []
        for spins, step in ((slice(0, 2), -sign), (slice(2, 4), sign)):
            terms = inverse[0] * psi[X][:, spins]
            for k in range(1, slices):
                around = s < k if step < 0 else s >= slices - k
                terms = terms + where(around, -mass, 1.0) * inverse[k] * psi[X, s + step * k][:, spins]
            chiral.append(terms)
        return concatenate(chiral, axis=1)

    def first_step(self, psi: Field, dagger: bool) -> Field:
        """psi; where c is not zero (b + c Lambda) psi, or -H^dagger psi / 2: a site then takes the links once, not for three slices."""
        if not self.c:
            return psi
        over = psi.over if not dagger or psi.over is ALL else psi.over.opposite
        read = self._kept.like(f"first step {dagger} {over}", psi, over)
        if dagger:
            _adjoint_hop(read, psi, self.links)
        else:
            _mix(read, psi, self.mass, self.b, self.c, self.Ls)
        return read

    def check_inverse(self) -> None:
        """Raises LayoutError where the diagonal has no inverse."""
        if not self._inverse_factors()[1]:
            plus, minus = self._diagonal_factors()
            raise LayoutError(
                f"the diagonal {plus:g} - {minus:g} Lambda of {self!r} has no inverse, which even-odd forms need: "
                f"{plus:g}^Ls + m {minus:g}^Ls is zero"
            )

    def _diagonal_factors(self) -> tuple[float, float]:
        e = self.lattice.ndim - self.M5
        return 1 + self.b * e, 1 - self.c * e

    def _inverse_factors(self) -> tuple[np.ndarray, bool]:
        """k^n / (1 + m k^Ls) / plus with k = minus / plus, for n = 0 to Ls - 1, and whether they are finite; zeros where they are not."""
        key = (self.mass, *self._diagonal_factors())
        if self._inverse is None or self._inverse[0] != key:
            mass, plus, minus = key
            n = np.arange(self.Ls)
            if abs(plus) >= abs(minus):  # powers of what is at most 1
                top, bottom = (minus / plus if plus else 0.0) ** n, plus
                size = 1 + mass * (minus / plus if plus else 0.0) ** self.Ls
            else:
                top, bottom = (plus / minus) ** (self.Ls - 1 - n), minus
                size = (plus / minus) ** self.Ls + mass
            exists = bool(bottom != 0 and abs(size) > self.Ls * np.finfo(float).eps)
            factors = np.asarray(top / (bottom * size)) if exists else np.zeros(self.Ls)
            self._inverse = key, factors, exists
            return factors, exists
        return self._inverse[1], self._inverse[2]

    # ---- from and to four dimensions ---------------------------------------------------------------------

    def source(self, eta: Field, out: Field | None = None) -> Field:
        """The right-hand side of a spinor `eta` of four dimensions: D_minus on P_plus eta in slice 0 and P_minus eta in slice Ls - 1.

        `out` has batch=Ls, `eta` none. Raises LayoutError for fields that do not fit.
        """
        self._check_four(eta)
        out = eta.like(batch=self.Ls) if out is None else self._out(eta, out, self.Ls)
        self._acted_on(out)
        _source(out, eta, self.links, self._diagonal_factors()[1], self.c or None, self.Ls)
        return out

    def physical(self, psi: Field, out: Field | None = None) -> Field:
        """The spinor of four dimensions P_minus psi_0 + P_plus psi_{Ls-1}. `out` has no batch. Raises LayoutError for fields that do not fit."""
        self._check(psi)
        out = psi.like(batch=None) if out is None else self._out(psi, out, None)
        self._check_four(out)
        _physical(out, psi)
        return out

    def quark(self, eta: Field, solve: Callable[[Field], Field]) -> Field:
        """(D4^-1 - 1) eta / (1 - m), a column of the quark propagator for a source `eta`; `solve(b)` is the x with D x = b:

            q = D.quark(eta, lambda b: cg(D.normal, D.adjoint(b)).x)

        Raises LayoutError for fields that do not fit.
        """
        return self.physical(solve(self.source(eta)))

    def propagator(
        self,
        source: Field,
        tolerance: float = 1e-10,
        *,
        on_solution: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> Field:
        """The quark propagator of a source of four dimensions: `quark` of its members, one after the other, by `jali.solve`, each of which `on_solution` is called
        with.

        Raises LayoutError for a source that does not fit, SolverError where a solve does not converge, on every rank.
        """

        def solve(b: Field) -> Field:
            found = jali.solve(self, b, tolerance, **options)
            if on_solution is not None:
                on_solution(found)
            return found.x

        Dirac._check(self, source)
        if source.batch is None:
            return self.quark(source, solve)
        found = source.like()
        for k in range(source.batch):
            found.members[k].assign(self.quark(source.members[k].copy(), solve))
        return found

    # ---- checks ------------------------------------------------------------------------------------------

    def _check(self, psi: Any) -> None:
        super()._check(psi)
        if psi.batch != self.Ls:
            has = "no batch" if psi.batch is None else f"a batch of {psi.batch}"
            raise LayoutError(
                f"{self!r} acts on fields with batch={self.Ls}, one member for each slice of the fifth direction, and {psi.name} has {has}"
            )

    def _check_four(self, eta: Any) -> None:
        Dirac._check(self, eta)
        if eta.batch is not None:
            raise LayoutError(
                f"a spinor of four dimensions has no batch, and {eta.name} has one of {eta.batch}: f.members[k] is one member"
            )
        if eta.over is not ALL:
            raise LayoutError(
                f"a spinor of four dimensions has all sites, and {eta.name} lives on {eta.over}"
            )


def joined_slices(X: Any, psi: Any, mass: Any, slices: int, dagger: bool = False) -> Value:
    """Lambda psi, or Lambda^dagger psi, at the member of the site X."""
    s = X.member
    ahead = where(s == slices - 1, -mass, 1.0), psi[X, s + 1]
    behind = where(s == 0, -mass, 1.0), psi[X, s - 1]
    plus, minus = (ahead, behind) if dagger else (behind, ahead)
    return concatenate([plus[0] * plus[1][:, :2], minus[0] * minus[1][:, 2:]], axis=1)


class _Reader:
    """What formulas read at a site in place of a field."""

    def __init__(self, psi: Any, value_at: Callable[[Any], Value]):
        self.element = psi.element
        self._value_at = value_at

    def __getitem__(self, x: Any) -> Value:
        return self._value_at(x)


@site_function
def _mix(X: Any, out: Any, psi: Any, mass: Any, b: Any, c: Any, Ls: Any) -> None:
    out[X] = b * psi[X] + c * joined_slices(X, psi, mass, Ls)


@site_function
def _adjoint_hop(X: Any, out: Any, psi: Any, U: Any) -> None:
    out[X] = -0.5 * wilson_hop_at(X, psi, U, -1)


@site_function
def _source(X: Any, out: Any, eta: Any, U: Any, minus: Any, c: Any, Ls: int) -> None:
    first, last = where(X.member == 0, 1.0, 0.0), where(X.member == Ls - 1, 1.0, 0.0)
    walls = _Reader(eta, lambda x: concatenate([first * eta[x][:, :2], last * eta[x][:, 2:]], axis=1))
    out[X] = walls[X] if c is None else minus * walls[X] + (0.5 * c) * wilson_hop_at(X, walls, U)


@site_function
def _physical(X: Any, out: Any, psi: Any) -> None:
    out[X] = concatenate([psi[X, -1][:, :2], psi[X, 0][:, 2:]], axis=1)


__all__ = ["DomainWallDirac", "joined_slices"]
