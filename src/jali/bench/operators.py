"""Dirac operators whose kernels are measured: by name, in formats by name, between fields on one colour."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from jali.codegen.types import SU
from jali.errors import ParameterError
from jali.fermions import (
    HISQ,
    CloverDirac,
    Dirac,
    DomainWallDirac,
    Staggered,
    TwistedCloverDirac,
    TwistedMassDirac,
    WilsonDirac,
    hisq_links,
)
from jali.gauge import GaugeField
from jali.lattice.domain import ALL, EVEN, ODD
from jali.lattice.field import Field
from jali.lattice.lattice import Lattice

SLICES = 12  # of domain walls
MASS, MU, CSW, M5 = 0.1, 0.2, 1.2, 1.8


class FormatOfOperator(NamedTuple):
    """How numbers are computed, and how quarks and unitary links of SU(3) are stored."""

    precision: str
    storage: str | None
    of_links: str


FORMATS = {
    one.storage or one.precision: one
    for one in (
        FormatOfOperator("float64", None, "float64-12"),
        FormatOfOperator("float32", None, "float32-12"),
        FormatOfOperator("float32", "float16", "float16-12"),
        FormatOfOperator("float32", "fixed16", "fixed16-12"),
    )
}


class Measured(NamedTuple):
    """An operator of a gauge field, of the same links as they are stored, and of the storage of its other fields; and its kernel."""

    make: Callable[[GaugeField, list[Field], str | None], Dirac]
    kernel: str


def _hisq(U: GaugeField, links: list[Field], storage: str | None) -> Dirac:
    """Links are made in float64, since sums of hot links are too small to be projected in less; they are not unitary, so no row is left out."""
    D = HISQ(hisq_links([u.astype("float64") for u in U.fields]), MASS, epsilon=0.0)
    D.links, D.long = (
        [f.like(precision=U.precision, storage=storage).assign(f) for f in fields]
        for fields in (D.links, D.long)
    )
    return D


OPERATORS = {
    "wilson-hop": Measured(lambda U, links, storage: WilsonDirac(links, MASS), "hop"),
    "wilson-dirac": Measured(lambda U, links, storage: WilsonDirac(links, MASS), "inverse_of_hop"),
    "clover": Measured(
        lambda U, links, storage: CloverDirac(links, MASS, CSW, storage=storage), "inverse_of_hop"
    ),
    "clover-compressed": Measured(  # blocks of 54 numbers, factored in the kernel
        lambda U, links, storage: CloverDirac(
            links, MASS, CSW, storage=storage, compressed=True, inverse="cholesky"
        ),
        "inverse_of_hop",
    ),
    "twisted-mass": Measured(lambda U, links, storage: TwistedMassDirac(links, MASS, MU), "inverse_of_hop"),
    "twisted-clover": Measured(
        lambda U, links, storage: TwistedCloverDirac(links, MASS, MU, CSW, storage=storage), "inverse_of_hop"
    ),
    "staggered": Measured(lambda U, links, storage: Staggered(links, MASS), "hop"),
    "hisq": Measured(_hisq, "hop"),
    "domain-wall": Measured(lambda U, links, storage: DomainWallDirac(links, MASS, M5, Ls=SLICES), "hop"),
}


class OperatorCase(NamedTuple):
    """A kernel of an operator, and two fields that it leads between: on the even and on the odd sites, or both on all."""

    D: Dirac
    kernel: Any  # its site function
    even: Field
    odd: Field

    def arguments(self, out: Field, psi: Field) -> tuple[Any, ...]:
        """What the kernel takes."""
        return out, psi, False, *self.D.data

    @property
    def links(self) -> list[Field]:
        """All fields that the operator is made of."""
        lists = [one if isinstance(one, list | tuple) else [one] for one in self.D.data]
        return [f for one in lists for f in one if isinstance(f, Field)]


def links_of(lattice: Lattice, format: str) -> tuple[GaugeField, list[Field]]:
    """A hot gauge field, and its links in a format. Raises ParameterError for other formats."""
    if format not in FORMATS:
        raise ParameterError(f"no format {format!r} of operators is measured; there are {', '.join(FORMATS)}")
    precision, _, of_links = FORMATS[format]
    U = GaugeField(lattice, SU(3), precision=precision).hot_start(seed=1)
    return U, [u.like(storage=of_links).assign(u) for u in U.fields]


def operator_case(
    name: str, U: GaugeField, links: list[Field], format: str, batch: int | None = None, full: bool = False
) -> OperatorCase:
    """An operator by name, on links of `links_of`. `full`: the operator itself, on fields on all sites ("wilson-hop": its hop). Raises
    ParameterError for other names."""
    if name not in OPERATORS:
        raise ParameterError(f"no operator {name!r} is measured; there are {', '.join(OPERATORS)}")
    precision, storage, _ = FORMATS[format]
    D = OPERATORS[name].make(U, links, storage)
    batch = SLICES if D.joins_members else batch
    even, odd = (
        Field(D.lattice, D.element, over=over, precision=precision, storage=storage, batch=batch)
        for over in ((ALL, ALL) if full else (EVEN, ODD))
    )
    kernel = "apply" if full and name != "wilson-hop" else OPERATORS[name].kernel
    if kernel.startswith("inverse"):
        D.check_inverse()  # which stores it
    even[...] = 1.0
    odd[...] = 1.0
    return OperatorCase(D, D.kernel(kernel), even, odd)


def compulsory_bytes(kernel: Any) -> int:
    """Of a site that a bound kernel computes: what is written there, and each field that is read once; on half of the sites, once for each
    colour at which it is read."""
    sizes = [f.storage.site_bytes for f in kernel.fields]
    total = sum(sizes[slot] for slot in kernel.text.analysis.writes)
    for slot, offsets in kernel.text.analysis.reads.items():
        colours = {sum(offset) % 2 for offset in offsets}
        total += sizes[slot] * (1 if kernel.fields[0].over is ALL else len(colours))
    return int(total)
