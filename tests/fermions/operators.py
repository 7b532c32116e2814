"""All Dirac operators by name, their fields, and the storage of both, for tests that ask the same of each."""

from __future__ import annotations

from collections.abc import Callable

from test_wilson import random_links

from jali import SU, Field, Lattice, Spinor
from jali.fermions import (
    HISQ,
    Asqtad,
    CloverDirac,
    Dirac,
    DomainWallDirac,
    ImprovedStaggered,
    Laplace,
    Staggered,
    TwistedCloverDirac,
    TwistedMassDirac,
    WilsonDirac,
    asqtad_links,
)

ANISOTROPIC = {"anisotropy": 2.5, "nu": 0.9}


def of_stored_links(U, mass, storage):
    """An operator of fat and long links, which are matrices of no group, in a storage."""
    fat, long = ([f.like(storage=storage).assign(f) for f in links] for links in asqtad_links(U))
    return ImprovedStaggered(fat, long, mass)


# (links, storage of what the operator makes of them, None: as they are) -> operator
OPERATORS: dict[str, Callable[..., Dirac]] = {
    "Wilson": lambda U, _=None: WilsonDirac(U, 0.5),
    "anisotropic Wilson": lambda U, _=None: WilsonDirac(U, 0.5, **ANISOTROPIC),
    "clover": lambda U, s=None: CloverDirac(U, 0.5, 1.3, storage=s),
    "clover by Cholesky": lambda U, s=None: CloverDirac(U, 0.5, 1.3, inverse="cholesky", storage=s),
    "clover in 54 numbers": lambda U, s=None: CloverDirac(U, 0.5, 1.3, storage=s, compressed=True),
    "anisotropic clover": lambda U, s=None: CloverDirac(U, 0.5, 1.3, csw_time=0.8, storage=s, **ANISOTROPIC),
    "twisted mass": lambda U, _=None: TwistedMassDirac(U, 0.5, 0.3),
    "twisted clover": lambda U, s=None: TwistedCloverDirac(U, 0.5, 0.3, 1.3, storage=s),
    "staggered": lambda U, _=None: Staggered(U, 0.5),
    "asqtad": lambda U, _=None: Asqtad(U, 0.5, 0.9),
    "HISQ": lambda U, _=None: HISQ(U, 0.5, -0.1),
    "fat and long links": lambda U, s=None: of_stored_links(U, 0.5, s),
    "Shamir": lambda U, _=None: DomainWallDirac.shamir(U, 0.4, 1.4, Ls=3),
    "Moebius": lambda U, _=None: DomainWallDirac.moebius(U, 0.4, 1.4, Ls=3),
    "Laplace": lambda U, _=None: Laplace(U),
    "Laplace of spinors": lambda U, _=None: Laplace(U, range(3), Spinor),
}
IMPROVED = ("asqtad", "HISQ", "fat and long links")  # their hops go three steps
WALLS = ("Shamir", "Moebius")  # their batch is the fifth direction
WILSON = tuple(list(OPERATORS)[:8])  # of hops with gamma matrices
VARIANTS = ("clover by Cholesky", "clover in 54 numbers", "Laplace of spinors")  # of the same operators


def stored_operator(name: str, U: list[Field], links: str, precision: str) -> Dirac:
    """The operator of the links U in a storage such as "fixed16-12", beside which its other fields have "fixed16". Fat and long links are
    made of the links as they are."""
    if name == "fat and long links":
        return OPERATORS[name]([u.astype(precision) for u in U], links)
    return OPERATORS[name](stored_links(U, links, precision), storage_beside(links))


def stored_links(U: list[Field], storage: str, precision: str) -> list[Field]:
    """The links U in a storage."""
    return [Field(u.lattice, SU(3), precision, storage).assign(u) for u in U]


def storage_beside(links: str) -> str:
    """The storage of quark fields and blocks that goes with one of links: of fixed16-12 it is fixed16."""
    return links.removesuffix("-12").removesuffix("-8")


def operator(name: str, lattice: Lattice, seed: int = 3) -> Dirac:
    """An operator of random links of SU(3)."""
    return OPERATORS[name](random_links(lattice, 3, seed))
