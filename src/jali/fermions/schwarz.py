"""Schwarz preconditioners: a Dirac operator is solved for roughly within blocks of sites, as if these were alone (H. A. Schwarz; M. Luscher, Comput. Phys.
Commun. 156 (2004) 209).

Links that lead from one block to another are zero in the *cut* operator, so it acts within blocks: Dirichlet conditions at their edges. An additive sweep
solves for all blocks at once, a multiplicative one for every second block, as on a checkerboard, then for the others with the residual that is left. A solve
is a few steps of the minimal residual iteration, whose lengths are numbers of all blocks together. What comes of it is no linear function of the residual,
and not Hermitian: it serves `gcr` and `fgmres`, not `cg`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jali
from jali.beside import redefines
from jali.codegen.values import Value
from jali.errors import LayoutError, ParameterError
from jali.fermions.applications import Applications
from jali.fermions.dirac import Dirac
from jali.fermions.kept import KeptFields
from jali.files import value_shown
from jali.lattice.domain import ALL, Colouring, Domain
from jali.lattice.field import Field
from jali.lattice.sites import SiteFunction, site_function

KINDS = ("additive", "multiplicative")


@site_function
def _cut(X: Any, cut: Any, U: Any, blocks: str, steps: Any) -> None:
    """`blocks` has the extent of the lattice and of blocks in each direction: words are known while tracing."""
    for k, (mu, word) in enumerate(zip(X.directions(), blocks.split(), strict=True)):
        extent, block = map(int, word.split("/"))
        if extent == block:
            cut[k][X] = U[k][X]
            continue
        x = X.coordinate(mu)
        y = (x + steps) % extent
        cut[k][X] = jali.where(x - x % block == y - y % block, 1.0, 0.0) * U[k][X]


@site_function
def _copy(X: Any, out: Any, f: Any) -> None:
    out[X] = f[X]


@site_function
def _clear(X: Any, out: Any) -> None:
    out[X] = jali.zero(out.element)


@site_function
def _less(X: Any, out: Any, r: Any, f: Any) -> None:
    out[X] = r[X] - f[X]


@site_function
def _products(X: Any, t: Any, r: Any, along: Any, square: Any) -> None:
    along += t[X].dot(r[X])
    square += t[X].norm2()


@site_function
def _move(X: Any, z: Any, r: Any, t: Any, length: Any) -> None:
    step = _of_member(X, length)
    z[X] += step * r[X]
    r[X] -= step * t[X]


def _of_member(X: Any, number: Any) -> Value:
    """The number, or that of the member at the site."""
    return number[X.member] if getattr(number, "shape", ()) else number


class CutDirac(Dirac):
    """The Dirac operator `D` without the hops between blocks of sites: block diagonal, with D's own matrix within each block.

    Its links are copies of those of D, which are zero where they lead from one block to another; an application finds that those of D have changed. All else is
    D's, so it has the methods of `Dirac`, even-odd forms, too. `block` is the extent of blocks in each direction, or one for all; where it is that of the
    lattice, nothing is cut. Raises LayoutError for blocks that do not divide the lattice, and for what is no Dirac operator.
    """

    def __init__(self, D: Dirac, block: Any):
        if not isinstance(D, Dirac):
            raise LayoutError(f"links between blocks are those of a Dirac operator, not of {value_shown(D)}")
        if redefines(D, Applications, "apply", "adjoint", "_run"):
            raise LayoutError(
                f"{type(D).__name__} has an apply or adjoint of its own, and operators are cut that are made of formulas: state diagonal_at and hop_at"
            )
        super().__init__(D.links, D.element)
        self.D = D
        self.block = _block_of(D.lattice, block)
        self._cut = {
            place: [_uncompressed(link) for link in links]
            for place, links in enumerate(D.data)
            if place in D.hops
        }
        self.links = self._cut[0]
        self._made_of: Any = None
        self._follow()

    def __repr__(self) -> str:
        return f"CutDirac({self.D!r}, blocks of {' x '.join(map(str, self.block))})"

    def __getattr__(self, name: str) -> Any:
        """Numbers and fields of D, for what its class does with `self`."""
        if name.startswith("__") or "D" not in vars(self):
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self.D, name)

    @property
    def joins_members(self) -> bool:  # type: ignore[override]
        """Whether D joins members of a batch, which then are one vector."""
        return self.D.joins_members

    @property
    def solver_kind(self) -> str:  # type: ignore[override]
        """What solvers may count on, as of D."""
        return self.D.solver_kind

    @property
    def even_odd_kind(self) -> str:  # type: ignore[override]
        """That of even-odd forms, as of D."""
        return self.D.even_odd_kind

    @property
    def hops(self) -> dict[int, int]:  # type: ignore[override]
        """Those of D."""
        return self.D.hops

    @property
    def data(self) -> tuple[Any, ...]:
        """That of D, with cut links."""
        return tuple(self._cut.get(place, value) for place, value in enumerate(self._follow()))

    def kernel(self, name: str) -> SiteFunction:
        """That of D."""
        return self.D.kernel(name)

    def first_step(self, psi: Field, dagger: bool) -> Field:
        """What D reads for a hop, of cut links."""
        self._follow()
        return type(self.D).first_step(self, psi, dagger)

    def check_inverse(self) -> None:
        """Raises LayoutError where the diagonal of D has no inverse."""
        self.D.check_inverse()

    def _check(self, psi: Any) -> None:
        self.D._check(psi)

    def _follow(self) -> tuple[Any, ...]:
        """The data of D; makes the cut links anew where it has changed."""
        data = self.D.data
        now = [[link.storage.versions() for link in data[place]] for place in self._cut]
        if self._made_of != now:
            blocks = " ".join(f"{n}/{b}" for n, b in zip(self.lattice.extents, self.block, strict=True))
            for place, cut in self._cut.items():
                _cut(cut, list(data[place]), blocks, self.D.hops[place])
            self._made_of = now
        return data


def _uncompressed(link: Field) -> Field:
    """A field like that of links, in which zero is held exactly."""
    name = link.stored.format.name
    packing = link.stored.packing
    keeps_zero = packing.exact or packing.name in ("12", "4")  # rows of which the others are products
    return link.like() if keeps_zero else link.like(storage=name.removesuffix(f"-{packing.name}"))


def _block_of(lattice: Any, block: Any) -> tuple[int, ...]:
    given = [block] * lattice.ndim if isinstance(block, int | np.integer) else block
    if (
        not isinstance(given, Sequence)
        or len(given) != lattice.ndim
        or not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in given)
    ):
        raise LayoutError(
            f"block is the extents of blocks of sites in the {lattice.ndim} directions of the lattice, or one for all, not {value_shown(block)}"
        )
    for mu, (n, b) in enumerate(zip(lattice.extents, given, strict=True)):
        if b < 1 or n % b:
            raise LayoutError(
                f"blocks of {b} sites do not divide direction {mu} of {lattice}, which has {n}: {_nearest(n, b)} do"
            )
    return tuple(int(n) for n in given)


def _nearest(n: int, b: int) -> int:
    """The divisor of n that is nearest to b."""
    return min((d for d in range(1, n + 1) if n % d == 0), key=lambda d: abs(d - b))


class SchwarzBlocks:
    """A Schwarz preconditioner `M(r, z)` of a Dirac operator `D`, which writes an approximation of D^-1 r into z, for `gcr` and `fgmres`.

        M = SchwarzBlocks(D, block=(4, 4, 4, 4))
        x = gcr(D, b, M=M).x

    It takes fields on all sites, with a batch or without; graphs record it. It is another function of r each time, and not Hermitian, so that `cg` cannot have it.
    `cut` is the `CutDirac` that acts within blocks.

    Args:
        block: the extent of blocks in each direction, or one for all, which divide those of the lattice.
        iterations: of the minimal residual iteration in a solve within blocks.
        sweeps: how often blocks are solved for, with the residual that is left.
        kind: "multiplicative", every second block, then the others with the residual that this leaves, or "additive", all at once. The former takes fewer
            iterations of the solver, and two applications of D on half of the sites for a sweep; the number of blocks in a direction is then even, or one.
        solve: a function `solve(A, r)` that gives an approximation of A^-1 r, in place of the minimal residual iteration, such as
            `lambda A, r: bicgstab(A, r, rtol=0.1, must_converge=False).x`. A is `cut`, and r zero outside of the blocks that are solved for.

    Raises LayoutError for blocks that do not divide the lattice, or that are not even in number, ParameterError for other arguments.
    """

    def __init__(
        self,
        D: Dirac,
        block: Any = 4,
        iterations: int = 4,
        sweeps: int = 1,
        kind: str = "multiplicative",
        solve: Callable[[Any, Field], Field] | None = None,
    ):
        self.cut = CutDirac(D, block)
        self.D, self.block = D, self.cut.block
        for name, value in (("iterations", iterations), ("sweeps", sweeps)):
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
                raise ParameterError(
                    f"SchwarzBlocks: {name} is a positive whole number, not {value_shown(value)}"
                )
        if kind not in KINDS:
            raise ParameterError(
                f"SchwarzBlocks: kind is {' or '.join(map(repr, KINDS))}, not {value_shown(kind)}"
            )
        if solve is not None and not callable(solve):
            raise ParameterError(
                f"SchwarzBlocks: solve is a function of an operator and a residual, not {value_shown(solve)}"
            )
        self.iterations, self.sweeps, self.kind, self.solve = int(iterations), int(sweeps), kind, solve
        self._domains: tuple[Domain, ...] = (ALL,)
        if kind == "multiplicative":
            self._domains = self._colours()
        self._kept = KeptFields()

    def __repr__(self) -> str:
        return f"<{self.kind} Schwarz preconditioner of {self.D!r}, blocks of {' x '.join(map(str, self.block))}>"

    @property
    def joins_members(self) -> bool:
        """Whether D joins members of a batch, which then are one vector."""
        return self.D.joins_members

    def __call__(self, r: Field, z: Field) -> None:
        self.D._acted_on(r)
        rest, image = (self._kept.like(name, r, ALL) for name in ("rest", "image"))
        _clear(z)
        first = True
        for _ in range(self.sweeps):
            for domain in self._domains:
                if first:
                    _copy[domain](rest, r)
                else:
                    self._apply(self.D, image, z, domain)
                    _less[domain](rest, r, image)
                first = False
                self._solve_within(domain, rest, image, z)

    # ---- its parts ---------------------------------------------------------------------------------------

    def _solve_within(self, domain: Domain, rest: Field, image: Field, z: Field) -> None:
        """z += an approximation of the inverse of the cut operator times the rest, in the blocks of a domain."""
        if self.solve is not None:
            right = rest
            if domain is not ALL:
                _clear(image)
                _copy[domain](image, rest)
                right = image
            _add[domain](z, self.solve(self.cut, right))
            return
        for _ in range(self.iterations):
            self._apply(self.cut, image, rest, domain)
            products = self.D.lattice.sum(_products, image, rest, over=domain, wait=False)
            along, square = (self.D.of_one_vector(number) for number in products)
            _move[domain](z, rest, image, jali.where(square > 0, along / square, 0.0))

    def _apply(self, D: Dirac, out: Field, psi: Field, domain: Domain) -> None:
        """D psi on the sites of a domain."""
        kernel, arguments = D._application(psi, False)
        kernel[domain](out, *arguments)

    def _colours(self) -> tuple[Domain, ...]:
        """The blocks of a checkerboard, and the others; one where there is one block."""
        lattice, block = self.D.lattice, self.block
        counts = [n // b for n, b in zip(lattice.extents, block, strict=True)]
        open_ = self.D.links[0].boundary.open
        for mu, count in enumerate(counts):
            if count > 1 and count % 2 and mu not in open_:
                raise LayoutError(
                    f"{count} blocks of {block[mu]} sites in direction {mu} of {lattice} are no checkerboard, since their number is odd: take other blocks, "
                    'or kind="additive"'
                )
        if max(counts) == 1:
            return (ALL,)

        def colour_of(x: list[np.ndarray]) -> np.ndarray:
            return np.asarray(sum(c // b for c, b, n in zip(x, block, counts, strict=True) if n > 1) % 2)

        colouring = Colouring(2, colour_of, "blocks")
        return colouring[0], colouring[1]


@site_function
def _add(X: Any, z: Any, x: Any) -> None:
    z[X] += x[X]
