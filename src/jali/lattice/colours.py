"""Fields on a colour: which sites a call visits where fields have only even sites, or only odd ones; and fields taken apart and put together.

A field over EVEN has no odd sites. So a call that is not restricted runs over the colour on which everything that it reads and
writes is there, and any other domain is an error at the line of the read or write that leaves the field. Does not depend on how
fields are stored: `core/halo/storage.hpp` does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.codegen.arithmetics import widest
from jali.codegen.ir import offset_text
from jali.errors import LayoutError, TraceError
from jali.files import value_shown
from jali.lattice.domain import ALL, EVEN, ODD, Domain

if TYPE_CHECKING:
    from jali.codegen.stages import Analysed
    from jali.lattice.field import Field


def _of_one_colour(over: Any) -> bool:
    """Whether sites are of one colour. Raises LayoutError for other domains than those that a field can have."""
    if over not in (ALL, EVEN, ODD):
        given = over if isinstance(over, Domain) else value_shown(over)
        raise LayoutError(f"a field lives on ALL sites, on EVEN or on ODD ones, not over {given}")
    return bool(over != ALL)


def colour_of_field(over: Any, lattice: Any, conditions: Sequence[str]) -> Domain:
    """The sites that a field is to have. Raises LayoutError for other domains, and where a step around the lattice joins sites of one
    colour."""
    if not _of_one_colour(over):
        return ALL
    for d, (extent, condition) in enumerate(zip(lattice.extents, conditions, strict=True)):
        if extent % 2 and condition != "open":
            raise LayoutError(
                f"a field over {over} needs even extents where it goes on across the edge: direction {d} has {extent} sites, so "
                f'sites that meet there have one colour; make it a lattice of even extents, or boundary={{{d}: "open"}}'
            )
    return EVEN if over == EVEN else ODD


def box_of_array(over: Any, lattice: Any) -> tuple[int, ...]:
    """The extents of an array of this rank's sites: its box, of one colour with half of the last extent. Raises LayoutError, on all ranks
    alike, where that is odd on one of them."""
    box: tuple[int, ...] = lattice.local_extents
    if not _of_one_colour(over):
        return box
    for rank in range(lattice.communicator.size):
        extent = lattice.partition.extents(rank)[-1]
        if extent % 2:
            whose = f" on rank {rank}" if lattice.communicator.size > 1 else ""
            raise LayoutError(
                f"an array over {over} holds half of each row, so boxes need an even extent in the last direction, and have {extent} sites "
                f"there{whose}: wrap an array of ALL sites, or give the lattice another grid="
            )
    return (*box[:-1], box[-1] // 2)


def domain_of_call(
    programs: Sequence[Analysed], fields: Sequence[Field], lattice: Any, domain: Domain
) -> Domain:
    """The domain that a call runs over: the one that is given; of ALL sites those where the fields on a colour are read and written.

    Raises TraceError for reads and writes of sites that a field does not have, and LayoutError for a field on a colour of another
    lattice.
    """
    if all(field.over is ALL for field in fields):
        return domain
    first = ""
    for analysed in programs:
        program, analysis = analysed.program, analysed.analysis
        here = (0,) * program.ndim
        stores = {e.slot: e.where for e in program.effects if hasattr(e, "slot")}
        for slot in {**analysis.writes, **analysis.reads}:
            field = fields[slot]
            if field.over is ALL:
                continue
            if field.lattice is not lattice:
                raise LayoutError(
                    f"{program.name} runs over {lattice} and takes {field.name} of {field.lattice}: between lattices fields have ALL "
                    f"sites; {field.name} lives on {field.over}"
                )
            reads = [(offset, "reads") for offset in analysis.reads.get(slot, ())]
            for offset, does in [*([(here, "writes")] if slot in analysis.writes else []), *reads]:
                source = program.offset_of_user(offset)
                wanted = field.over if sum(source) % 2 == 0 else field.over.opposite
                symbol = program.fields[slot]
                line = stores.get(slot, "") if does == "writes" else symbol.reads.get(source, "")
                there = f"{does} {symbol.name} at {offset_text(source)}"
                if domain == ALL:
                    domain, first = wanted, f", since it {there} (at {line})"
                elif domain.colouring is not None:
                    raise TraceError(
                        f"{program.name} runs over {domain}, and {there}, which lives on {field.over}: a call with such a field runs over "
                        f"EVEN or ODD, or is given no domain; a colouring runs over fields on ALL sites\n  at {line}"
                    )
                elif domain != wanted:
                    raise TraceError(
                        f"{program.name} runs over {domain}{first}, and {there}, where {symbol.name} has no site: it lives on {field.over}\n"
                        f"  at {line}"
                    )
    return domain


def mask_of(over: Domain, coordinates: Sequence[np.ndarray]) -> np.ndarray:
    """Whether sites of these coordinates, arrays that are broadcast together, are of a colour."""
    odd = sum(coordinates) % 2
    return np.asarray(odd == (over is ODD))


def sites_of(over: Domain, extents: Sequence[int], origin: Sequence[int] = ()) -> int:
    """How many sites of a box are of ALL, EVEN or ODD; `origin` are the coordinates of its first site, zeros by default."""
    sites = math.prod(extents)
    if over is ALL:
        return sites
    first = sum(origin) % 2 == (over is ODD)  # in a box of odd extents its colour has one site more
    return (sites + first) // 2


def join(even: Field, odd: Field, out: Field | None = None) -> Field:
    """The field that has the sites of both: `out`, or a new one of the wider precision. What `Field.split` took apart.

    Raises LayoutError unless one is over EVEN and the other over ODD, of one lattice and element, for a new field also of one boundary.
    """
    for field, over in ((even, EVEN), (odd, ODD)):
        if not _is_field(field) or field.over is not over:
            found = f"a field over {field.over}" if _is_field(field) else value_shown(field)
            raise LayoutError(
                f"jali.join takes a field over EVEN and one over ODD, in this order, not {found} for {over}"
            )
    if even.lattice is not odd.lattice or even.element != odd.element:
        raise LayoutError(
            f"jali.join takes two fields of one lattice and element, not {even.element} on {even.lattice} and {odd.element} on {odd.lattice}"
        )
    if even.batch != odd.batch:
        mine, theirs = ("no batch" if f.batch is None else f"a batch of {f.batch}" for f in (even, odd))
        raise LayoutError(
            f"jali.join takes two fields of one batch; {even.name} has {mine}, {odd.name} {theirs}"
        )
    if out is None:
        if even.boundary != odd.boundary:
            raise LayoutError(
                f"jali.join: the even field is {even.boundary}, the odd one {odd.boundary}; out= is a field of the boundary that is meant"
            )
        kept_alike = (even.precision, even.format) == (odd.precision, odd.format)
        changes = {} if kept_alike else {"precision": widest((even.precision, odd.precision))}
        out = even.like(over=ALL, **changes)
    if (
        not _is_field(out)
        or out.over is not ALL
        or out.lattice is not even.lattice
        or out.element != even.element
    ):
        raise LayoutError(
            f"jali.join: out is a field of {even.element} on all sites of {even.lattice}, not {value_shown(out)}"
        )
    for part in (even, odd):
        out._assign(part, True)
    return out


def _is_field(x: Any) -> bool:
    return hasattr(type(x), "stored_bytes")


def with_zeros(field: Field) -> Field:
    """A field on all sites, of the values of one on a colour and of zeros elsewhere."""
    return field.like(over=ALL)._assign(field, True)
