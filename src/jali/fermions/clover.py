"""The clover operator: Wilson's with a term at each site that removes errors of first order in the lattice spacing.

    D = A - H / 2,    A(x) = m + d - (c_sw / 2) sum_{mu<nu} gamma_mu gamma_nu F_mu,nu(x),    F = (Q - Q^dagger) / 8

where Q_mu,nu(x) is the sum of the four plaquettes of a plane that begin at x, run through in the same sense (B. Sheikholeslami and R. Wohlert,
Nucl. Phys. B 259 (1985) 572), and H are the hops of Wilson's operator. F keeps its trace. A product of two gamma matrices joins spins of one
chirality, so A is two Hermitian *blocks* of 2 n rows, which act on halves of a spinor and commute with gamma_5. They are made of the links by one
kernel, and kept. On an anisotropic lattice planes without the last direction have c_sw / xi, those with it a coefficient of their own (R. G. Edwards,
B. Joo and H.-W. Lin, Phys. Rev. D 78 (2008) 054501, eq. 4). In the boundary slices of open directions F is zero, as in `jali.gauge`.
"""

from __future__ import annotations

import contextlib
from typing import Any, Self

import numpy as np

import jali
from jali.codegen.types import Hermitian
from jali.codegen.values import Value
from jali.errors import ParameterError, RecordingError, StorageError
from jali.fermions.formats import Conversion
from jali.fermions.parameters import RealParameter
from jali.fermions.spin import gamma
from jali.fermions.wilson import WilsonDirac, diagonal_of, wilson_hop_at
from jali.files import value_shown
from jali.lattice.domain import ALL, Domain
from jali.lattice.field import Field
from jali.lattice.overflow import raise_if_found, unreported

INVERSES = ("stored", "cholesky")
PAULI = np.array([[[0, 1], [1, 0]], [[0, -1j], [1j, 0]], [[1, 0], [0, -1]]])


# ---- formulas at a site --------------------------------------------------------------------------------------


def leaves_at(X: Any, U: Any, mu: Any, nu: Any) -> Value:
    """Q_mu,nu(x): the four plaquettes of a plane from x round to x, all in the sense from mu to nu; for use inside site functions."""
    steps = [(mu, 1), (nu, 1), (mu, -1), (nu, -1)]
    leaves = [_plaquette(X, U, steps[k:] + steps[:k]) for k in range(4)]
    return leaves[0] + leaves[1] + leaves[2] + leaves[3]


def _plaquette(X: Any, U: Any, steps: Any) -> Value:
    """The product of the links along four steps: directions and signs."""
    links, at = [], X
    for mu, sign in steps:
        links.append(U[mu][at] if sign > 0 else U[mu][at - mu].dagger())
        at = at + sign * mu
    return (links[0] * links[1]) * (links[2] * links[3])


def clover_terms_at(X: Any, U: Any, coefficients: Any, opened: Any) -> list[Value]:
    """E_1, E_2, E_3 of chirality 1, then of -1, at the site X, for use inside site functions: A = m + d + sum_k sigma_k E_k with Pauli matrices of
    spin and Hermitian matrices of colour. `coefficients` are c_sw of the planes mu < nu, `opened` the open directions.
    """
    terms = [jali.zero(U[0].element) for _ in range(6)]
    for k, (mu, nu) in enumerate(X.planes()):
        Q = leaves_at(X, U, mu, nu)
        F = (coefficients[k] / 8) * _inside(X, opened, Q - Q.dagger())
        spins = (gamma[mu] * gamma[nu]).dense()
        for j in range(6):
            half = slice(2 * (j // 3), 2 * (j // 3) + 2)
            factor = -0.25 * np.trace(
                PAULI[j % 3] @ spins[half, half]
            )  # half of -1/2 times its part along sigma
            if factor != 0:
                terms[j] = terms[j] + complex(factor) * F
    return [term.hermitian() for term in terms]


def block_of(terms: Any, diagonal: Any) -> Value:
    """diagonal + sum_k sigma_k E_k: the block of A of a chirality, whose rows are 2 c + s for colour c and spin s."""
    E1, E2, E3 = terms
    n = E1.shape[0]
    up, down = diagonal * jali.identity(n) + E3, diagonal * jali.identity(n) - E3
    spins = [[up, E1 - 1j * E2], [E1 + 1j * E2, down]]
    rows = [[spins[s][t][c, d] for d in range(n) for t in range(2)] for c in range(n) for s in range(2)]
    return jali.matrix(rows)


def block_at(X: Any, blocks: Any, k: int) -> Value:
    """The block of chirality 1 (k = 0) or -1 (k = 1) at the site X: of two fields of blocks, or of six fields of terms and m + d."""
    if len(blocks) == 2:
        return blocks[k][X]
    return block_of([blocks[3 * k + j][X] for j in range(3)], blocks[6])


def clover_blocks_at(X: Any, U: Any, diagonal: Any, coefficients: Any, opened: Any) -> list[Value]:
    """The blocks of A at the site X for chirality 1 and -1, for use inside site functions; rows are 2 c + s for colour c and spin s.

    `diagonal` is m + d, `coefficients` c_sw of the planes mu < nu, `opened` the open directions.
    """
    terms = clover_terms_at(X, U, coefficients, opened)
    return [block_of(terms[:3], diagonal).hermitian(), block_of(terms[3:], diagonal).hermitian()]


def _inside(X: Any, opened: Any, value: Value) -> Value:
    """The value, and zero in the boundary slices of open directions."""
    for mu in X.directions():
        if opened[int(mu)]:
            x = X.coordinate(mu)
            value = jali.where((x == 0) | (x == X.extent(mu) - 1), 0.0, 1.0) * value
    return value


def on_chiralities(act: Any, psi: Value) -> Value:
    """The spinor whose halves, vectors of 2 n components, are `act(k, half)` of those of psi: k = 0 for chirality 1, and 1 for -1."""
    n = psi.shape[0]
    halves = [act(k, psi[:, 2 * k : 2 * k + 2].reshape(2 * n)) for k in range(2)]
    return jali.concatenate([half.reshape(n, 2) for half in halves], axis=1)


@jali.site_function
def _set_terms(X: Any, terms: Any, U: Any, coefficients: Any, opened: Any) -> None:
    for term, value in zip(terms, clover_terms_at(X, U, coefficients, opened), strict=True):
        term[X] = value


@jali.site_function
def _set_blocks(X: Any, blocks: Any, U: Any, mass: Any, weights: Any, coefficients: Any, opened: Any) -> None:
    blocks[0][X], blocks[1][X] = clover_blocks_at(X, U, diagonal_of(X, mass, weights), coefficients, opened)


@jali.site_function
def _assemble(X: Any, blocks: Any, terms: Any) -> None:
    for k, block in enumerate(blocks):
        block[X] = block_at(X, terms, k).hermitian()


@jali.site_function
def _invert(X: Any, inverses: Any, blocks: Any) -> None:
    for k, inverse in enumerate(inverses):
        block = block_at(X, blocks, k).hermitian()
        inverse[X] = block.solve(jali.identity(block.shape[0])).hermitian()


@jali.site_function
def _log_det(X: Any, blocks: Any, total: Any) -> None:
    total += sum(block_at(X, blocks, k).hermitian().log_det() for k in range(2))


# ---- the operator ----------------------------------------------------------------------------------------------


class CloverDirac(WilsonDirac):
    """The clover operator of a gauge field `U` (a `GaugeField` or a list of one field per direction) of SU(n) or U(1) in 1 to 4 dimensions.

    Takes a bare `mass`, or `kappa`, and `csw`, the coefficient of the clover term (1 at tree level); on anisotropic lattices `csw_time` is
    that of planes with the last direction; None is `csw`, too. Acts on fields of Spinor(n); for its methods see `Dirac`.

    `blocks` are two fields of Hermitian(2 n), A for chirality 1 and -1, with rows 2 c + s for colour c and spin s, 8 n^2 real numbers at a site.
    A `compressed` operator keeps six fields of Hermitian(n) in place of them, E_k of A = m + d + sum_k sigma_k E_k for both chiralities: 6 n^2
    numbers. They are stored as `storage` says, by default as numbers of the links' precision. A^-1 is `"stored"`, in two
    fields more that are made when they are first needed, or `"cholesky"`, factors that kernels compute; in a storage of few bits only the latter
    inverts what is stored. Where A is not positive definite there is a `jali.SingularError` with site and pivot when the inverse is first needed;
    D itself needs none.

    An application finds that links, `mass`, `csw` or `csw_time` have changed, and makes the blocks anew; `update()` does so at once.

    Raises LayoutError for links that do not fit, ParameterError for impossible numbers, and where mass and kappa are both given, or neither;
    an application raises StorageError for blocks that `storage` cannot hold, such as numbers above 65504 in "float16".
    """

    csw = RealParameter()
    csw_time = RealParameter(optional=True)

    def __init__(
        self,
        U: Any,
        mass: float | None = None,
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
        super().__init__(U, mass, kappa=kappa, anisotropy=anisotropy, nu=nu)
        if inverse not in INVERSES:
            raise ParameterError(f'inverse is "stored" or "cholesky", not {value_shown(inverse)}')
        self.csw, self.csw_time = csw, csw_time
        self._stores_inverse = inverse == "stored"
        self._opened = tuple(u.boundary.conditions[mu] == "open" for mu, u in enumerate(self.links))
        rows, names = 2 * self.colours, ["A of chirality 1", "A of chirality -1"]
        if compressed:
            rows, names = self.colours, [f"E_{k} of chirality {sign}" for sign in (1, -1) for k in (1, 2, 3)]
        self._storage = storage
        self._blocks = [self._hermitian_field(rows, storage, name) for name in names]
        self._inverses: list[Field] | None = None
        self._made_of: Any = None
        self._inverted: Any = None  # what the inverses were made of

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, csw {self.csw:g})"

    @property
    def blocks(self) -> list[Field]:
        """A for chirality 1 and -1, for the links as they are now; of a compressed operator new fields."""
        self._follow()
        if len(self._blocks) == 2:
            return self._blocks
        names = "A of chirality 1", "A of chirality -1"
        found = [self._hermitian_field(2 * self.colours, None, name) for name in names]
        _assemble(found, self._kept_blocks)
        return found

    @property
    def _kept_blocks(self) -> list[Any]:
        """The two fields of blocks, or the six of terms and m + d, for `block_at`."""
        return self._blocks if len(self._blocks) == 2 else [*self._blocks, self.mass + self._weight]

    @property
    def data(self) -> tuple[Any, ...]:
        """Links, blocks (or terms and m + d), their inverses (None: kernels compute them), and the weights of directions."""
        self._follow()
        return self.links, self._kept_blocks, self._inverses, self.weights

    @staticmethod
    def diagonal_at(X: Any, psi: Any, dagger: bool, U: Any, blocks: Any, *others: Any) -> Value:
        """A psi at the site X."""
        return on_chiralities(lambda k, half: block_at(X, blocks, k) * half, psi[X])

    @staticmethod
    def inverse_at(X: Any, psi: Any, dagger: bool, U: Any, blocks: Any, inverses: Any, *others: Any) -> Value:
        """A^-1 psi at the site X, by stored blocks or by Cholesky's factors."""
        if inverses is None:
            return on_chiralities(lambda k, half: block_at(X, blocks, k).hermitian().solve(half), psi[X])
        return on_chiralities(lambda k, half: inverses[k][X] * half, psi[X])

    @staticmethod
    def hop_at(X: Any, psi: Any, dagger: bool, U: Any, blocks: Any, inverses: Any, weights: Any) -> Value:  # type: ignore[override]
        """-H psi / 2 at the site X."""
        return -0.5 * wilson_hop_at(X, psi, U, -1 if dagger else 1, weights)

    def converted(self, convert: Conversion) -> Self:
        """A copy with fields in another format; blocks are those of this operator, not of links in few bits."""
        self._follow()
        found = super().converted(convert)
        found._storage = found._blocks[0].stored.format.name
        found._made_of = found._sources()
        found._inverted = found._made_of if self._inverted == self._made_of else None
        return found

    def update(self) -> None:
        """Makes the blocks, and what is stored of their inverse, of the links as they are now.

        Applications do so by themselves where links were written by site functions, assignments or files. Needed where they cannot know: in a
        graph that changes links, and after a write into the array of links that `Lattice.wrap` made.
        """
        self._make_blocks()
        if self._inverses is not None:
            self._make_inverses()

    def _make_blocks(self) -> None:
        if len(self._blocks) == 2:
            _set_blocks(self._blocks, self.links, self.mass, self.weights, self._coefficients(), self._opened)
        else:
            _set_terms(self._blocks, self.links, self._coefficients(), self._opened)
        if self._blocks[0].stored.counts(self._blocks[0].precision):
            self._raise_if_overflow(self._blocks)
        self._made_of = self._sources()

    def check_inverse(self) -> None:
        """Makes the fields of A^-1, if they are stored and not those of the blocks as they are now. Where they are factored in kernels, looks
        once whether all are positive definite. Raises SingularError with site and pivot."""
        self._follow()
        if self._inverted == self._made_of:
            return
        if self._stores_inverse:
            self._make_inverses()
            return
        with contextlib.suppress(RecordingError):  # a graph reads nothing
            self.log_det()
        self._inverted = self._made_of

    def _make_inverses(self) -> None:
        names = "inverse of A of chirality 1", "inverse of A of chirality -1"
        inverses = self._inverses or [
            self._hermitian_field(2 * self.colours, self._storage, name) for name in names
        ]
        self._invert(inverses)
        self._inverses, self._inverted = inverses, self._made_of

    def log_det(self, over: Domain = ALL) -> float:
        """log det A, the sum over the sites of `EVEN`, `ODD` or `ALL`, of the blocks as they are stored.

        Raises SingularError with site and pivot where A is not positive definite.
        """
        self._follow()
        return float(self.lattice.sum(_log_det, self._kept_blocks, over=over))

    # ---- its parts ---------------------------------------------------------------------------------------

    def _hermitian_field(self, rows: int, storage: str | None, name: str) -> Field:
        return Field(self.lattice, Hermitian(rows), self.links[0].precision, storage, name=name)

    def _coefficients(self) -> list[float]:
        """c_sw of the planes mu < nu, without the last direction c_sw / xi."""
        last, time = self.lattice.ndim - 1, self.csw if self.csw_time is None else self.csw_time
        planes = [(mu, nu) for mu in range(last + 1) for nu in range(mu + 1, last + 1)]
        return [time if nu == last else self.csw / self.anisotropy for _, nu in planes]

    def _invert(self, inverses: list[Field]) -> None:
        self._set_inverses(inverses)
        self._raise_if_overflow(inverses)

    def _raise_if_overflow(self, fields: list[Field]) -> None:
        """Raises SingularError where an inverse does not exist, and StorageError where numbers of one of these fields, which one kernel has
        written, do not fit: reading what they are multiplied with would not."""
        raise_if_found(unreported(self.lattice.left.take()))  # of fields that are gone, not of these
        try:
            with contextlib.suppress(RecordingError):  # a graph reads nothing
                fields[0][(0,) * self.lattice.ndim]
        except StorageError as error:
            raise StorageError(
                f'{self!r} with storage="{fields[0].stored}" of its blocks ({fields[0].name} and others): {error}'
            ) from None

    def _set_inverses(self, inverses: list[Field]) -> None:
        _invert(inverses, self._kept_blocks)

    def _sources(self) -> Any:
        """What the blocks depend on: numbers, and how often links were written."""
        return self.mass, self.csw, self.csw_time, [link.storage.versions() for link in self.links]

    def _follow(self) -> None:
        if self._made_of != self._sources():
            self._make_blocks()
