"""Races: reads of what the same loop writes, found where a program meets the extents of a lattice and a domain."""

from __future__ import annotations

import re
from typing import Any

from jali.codegen.ir import SiteProgram, Store
from jali.codegen.operation import described
from jali.codegen.stages import Analysed
from jali.errors import TraceError
from jali.lattice.domain import ALL, EVEN, ODD, Domain


def check_races(analysed: Analysed, lattice: Any, domain: Domain) -> None:
    """Raises TraceError where a read of a written field could hit a site that the same loop writes."""
    program = analysed.program
    offsets = [offset for _, offset in analysed.may_race]
    for store, offset in analysed.may_race:
        _check_same_site(program, lattice, store.slot, offset)
        if any(offset) and lattice.meets(domain, program.shift, offset):
            field = program.fields[store.slot]
            source = program.offset_of_user(offset)
            after = field.reads_after.get(source)
            line = after or field.reads.get(source, store.where)
            hint = _each_alone(program, lattice, domain)
            hint = hint or (
                _two_calls(program, field) if after else lattice.why_meets(domain, offset, offsets)
            )
            raise TraceError(
                f"{program.name} over {domain} reads {field.name} at offset {source} of a site that the same loop writes "
                f"(written at {store.where}): the result would depend on the order of the sites.\n"
                f"  {hint}\n"
                f"  at {line}"
            )


def _each_alone(program: SiteProgram, lattice: Any, domain: Domain) -> str:
    """What to do where several fields of a list, such as the links of all directions, are written and each of them alone has no race;
    empty where that does not help."""
    stores = [effect for effect in program.effects if isinstance(effect, Store)]
    lists = {re.sub(r"\[\d+\]$", "", program.fields[store.slot].name) for store in stores}
    name = min(lists)
    if len(stores) < 2 or len(lists) > 1 or name == program.fields[stores[0].slot].name:
        return ""
    for domains, over in (((domain,), f"over {domain}"), ((EVEN, ODD), "over EVEN and over ODD")):
        if all(_has_no_race(program, lattice, store, stores, one) for store in stores for one in domains):
            return (
                f"It writes several fields of {name}, and what one reads another writes: write one per call, {name}[mu] with the "
                f"direction mu as an argument, {over}"
            )
        if domain != ALL:
            break
    return ""


def _has_no_race(
    program: SiteProgram, lattice: Any, store: Store, stores: list[Store], domain: Domain
) -> bool:
    """Whether a call that made this store alone would have no race; what the others write it would find in memory."""
    waiting, seen = [store.value], {other.value.number for other in stores if other is not store}
    while waiting:
        node = waiting.pop()
        if node.number in seen:
            continue
        seen.add(node.number)
        waiting += node.args
        if described(node).reads and node.attrs[0] == store.slot:
            offset = node.attrs[1]
            if any(offset) and lattice.meets(domain, program.shift, offset):
                return False
    return True


def _two_calls(program: SiteProgram, field: Any) -> str:
    """What to do where a line above the read writes the field: over a colour the read would be allowed, and see what that line replaces."""
    return (
        f"This line stands below one that writes {field.name}, and what that one writes at other sites is there when all sites are done: "
        f"make two site functions of {program.name}, and call one after the other (a jali.graph makes one of several calls). "
        "Over a colour it would read the old values of the other sites"
    )


def _check_same_site(program: SiteProgram, lattice: Any, slot: int, offset: tuple[int, ...]) -> None:
    """Raises TraceError for a read around the lattice, at the site itself, of what an earlier line has written there."""
    field = program.fields[slot]
    source = program.offset_of_user(offset)
    around = not any(o % n for o, n in zip(offset, lattice.extents, strict=True))
    if any(offset) and around and source in field.reads_after:
        raise TraceError(
            f"{program.name} reads {field.name} at offset {source}, which is the same site on {lattice}, after writing it: "
            "keep the value that was written in a variable, or read the field before\n"
            f"  at {field.reads_after[source]}"
        )
