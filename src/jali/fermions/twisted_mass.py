"""Twisted mass: Wilson's operator, or the clover operator, plus i mu gamma_5.

    D(mu) = A + i mu gamma_5 - H / 2,    D(mu)^dagger = gamma_5 D(-mu) gamma_5

(R. Frezzotti, P. A. Grassi, S. Sint and P. Weisz, JHEP 08 (2001) 058). This is one flavour of a degenerate pair: the other has -mu, and
det D(mu) D(-mu) = det D(mu) D(mu)^dagger is positive. A commutes with gamma_5, so that the inverse of the diagonal is
(A - i mu gamma_5) (A^2 + mu^2)^-1. gamma_5 = diag(1, 1, -1, -1) (`jali.fermions.spin`); with the other sign mu changes its own.
"""

from __future__ import annotations

import math
from typing import Any

import jali
from jali.codegen.values import Value
from jali.fermions.clover import CloverDirac, block_at, on_chiralities
from jali.fermions.parameters import RealParameter
from jali.fermions.spin import gamma5
from jali.fermions.wilson import WilsonDirac, diagonal_of, wilson_hop_at
from jali.lattice.domain import ALL, Domain
from jali.lattice.field import Field


def twist_of(psi: Value, dagger: bool, mu: Any) -> Value:
    """i mu gamma_5 psi of a spinor, and with `dagger` -i mu gamma_5 psi, for use inside site functions."""
    return mu * (((-1j if dagger else 1j) * gamma5) * psi)


class TwistedMassDirac(WilsonDirac):
    """Wilson's operator of a gauge field `U` (a `GaugeField` or a list of one field per direction) plus i `mu` gamma_5.

    Takes a bare `mass`, or `kappa`, as `WilsonDirac` does, whose numbers and fields are the same; in terms of kappa the twisted mass of
    2 kappa D is 2 kappa mu. `D.mu = -D.mu` is the other flavour. Raises LayoutError for links that do not fit, ParameterError for impossible
    numbers, and where mass and kappa are both given, or neither.
    """

    mu = RealParameter()

    def __init__(
        self,
        U: Any,
        mass: float | None = None,
        mu: float | None = None,
        *,
        kappa: float | None = None,
        anisotropy: float = 1.0,
        nu: float = 1.0,
    ):
        super().__init__(U, mass, kappa=kappa, anisotropy=anisotropy, nu=nu)
        self.mu = mu

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, mu {self.mu:g})"

    @property
    def data(self) -> tuple[Any, ...]:
        """Links, m, mu and the weights of directions."""
        return self.links, self.mass, self.mu, self.weights

    @staticmethod
    def diagonal_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, mu: Any, weights: Any) -> Value:  # type: ignore[override]
        """(m + d + i mu gamma_5) psi at the site X."""
        return diagonal_of(X, mass, weights) * psi[X] + twist_of(psi[X], dagger, mu)

    @staticmethod
    def inverse_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, mu: Any, weights: Any) -> Value:  # type: ignore[override]
        """(m + d - i mu gamma_5) psi / ((m + d)^2 + mu^2) at the site X."""
        a = diagonal_of(X, mass, weights)
        scale = 1 / (a * a + mu * mu)
        return (scale * a) * psi[X] - twist_of(psi[X], dagger, scale * mu)

    @staticmethod
    def hop_at(X: Any, psi: Any, dagger: bool, U: Any, mass: Any, mu: Any, weights: Any) -> Value:  # type: ignore[override]
        """-H psi / 2 at the site X."""
        return -0.5 * wilson_hop_at(X, psi, U, -1 if dagger else 1, weights)

    def check_inverse(self) -> None:
        """Raises LayoutError where m + d and mu are zero."""
        if self.mu == 0:
            super().check_inverse()

    def log_det(self, over: Domain = ALL) -> float:
        """log det (A + i mu gamma_5), the sum over the sites of `EVEN`, `ODD` or `ALL`. It is real, since both chiralities are alike. Raises
        LayoutError where the diagonal is zero."""
        self.check_inverse()
        of_site = 2 * self.colours * math.log((self.mass + self._weight) ** 2 + self.mu**2)
        return float(self.lattice.sum(_add, of_site, over=over))


class TwistedCloverDirac(CloverDirac):
    """The clover operator of a gauge field `U` (a `GaugeField` or a list of one field per direction) plus i `mu` gamma_5.

    Takes a bare `mass`, or `kappa`, and what `CloverDirac` takes, of which it has the fields of `blocks`; `mu` as `TwistedMassDirac` has it. The
    fields of the stored inverse are (A^2 + mu^2)^-1 of both chiralities, and with `inverse="cholesky"` kernels compute Cholesky's factors of
    A^2 + mu^2. They are positive where mu or A is not zero, also where A is not positive. Raises what `CloverDirac` does.
    """

    mu = RealParameter()

    def __init__(
        self,
        U: Any,
        mass: float | None = None,
        mu: float | None = None,
        csw: float = 1.0,
        *,
        kappa: float | None = None,
        csw_time: float | None = None,
        anisotropy: float = 1.0,
        nu: float = 1.0,
        inverse: str = "stored",
        storage: str | None = None,
        compressed: bool = False,
    ):
        self.mu = mu
        super().__init__(
            U,
            mass,
            csw,
            kappa=kappa,
            csw_time=csw_time,
            anisotropy=anisotropy,
            nu=nu,
            inverse=inverse,
            storage=storage,
            compressed=compressed,
        )

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, mu {self.mu:g})"

    @property
    def data(self) -> tuple[Any, ...]:
        """Links, blocks of A, those of (A^2 + mu^2)^-1 (None: kernels compute them), mu, and the weights of directions."""
        links, blocks, inverses, weights = super().data
        return links, blocks, inverses, self.mu, weights

    @staticmethod
    def diagonal_at(  # type: ignore[override]
        X: Any, psi: Any, dagger: bool, U: Any, blocks: Any, inverses: Any, mu: Any, *others: Any
    ) -> Value:
        """(A + i mu gamma_5) psi at the site X."""
        return CloverDirac.diagonal_at(X, psi, dagger, U, blocks) + twist_of(psi[X], dagger, mu)

    @staticmethod
    def inverse_at(  # type: ignore[override]
        X: Any, psi: Any, dagger: bool, U: Any, blocks: Any, inverses: Any, mu: Any, *others: Any
    ) -> Value:
        """(A - i mu gamma_5) (A^2 + mu^2)^-1 psi at the site X."""
        if inverses is None:
            solved = on_chiralities(lambda k, half: _square(block_at(X, blocks, k), mu).solve(half), psi[X])
        else:
            solved = on_chiralities(lambda k, half: inverses[k][X] * half, psi[X])
        product = on_chiralities(lambda k, half: block_at(X, blocks, k) * half, solved)
        return product - twist_of(solved, dagger, mu)

    @staticmethod
    def hop_at(  # type: ignore[override]
        X: Any, psi: Any, dagger: bool, U: Any, blocks: Any, inverses: Any, mu: Any, weights: Any
    ) -> Value:
        """-H psi / 2 at the site X."""
        return -0.5 * wilson_hop_at(X, psi, U, -1 if dagger else 1, weights)

    def log_det(self, over: Domain = ALL) -> float:
        """log |det (A + i mu gamma_5)|, the sum over the sites of `EVEN`, `ODD` or `ALL`: half of the log det of A^2 + mu^2, the pair of
        flavours. The determinant itself has a phase, since chiralities differ. Raises SingularError with site and pivot where A^2 + mu^2 is not
        positive definite."""
        self._follow()
        return 0.5 * float(self.lattice.sum(_log_det, self._kept_blocks, self.mu, over=over))

    def _set_inverses(self, inverses: list[Field]) -> None:
        _invert(inverses, self._kept_blocks, self.mu)

    def _sources(self) -> Any:
        return self.mu, super()._sources()


def _square(block: Value, mu: Any) -> Value:
    """A^2 + mu^2 of a block."""
    return (block * block).hermitian() + mu * mu * jali.identity(block.shape[0])


@jali.site_function
def _invert(X: Any, inverses: Any, blocks: Any, mu: Any) -> None:
    for k, inverse in enumerate(inverses):
        square = _square(block_at(X, blocks, k), mu)
        inverse[X] = square.solve(jali.identity(square.shape[0])).hermitian()


@jali.site_function
def _log_det(X: Any, blocks: Any, mu: Any, total: Any) -> None:
    total += sum(_square(block_at(X, blocks, k), mu).log_det() for k in range(2))


@jali.site_function
def _add(X: Any, value: Any, total: Any) -> None:
    total += value
