"""Lowering: chooses the variant of a program for given fields and a domain, compiles it and binds it.

Here a program meets a lattice: races are checked against its extents, halo items against its rank grid.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jali.codegen import cache
from jali.codegen.emit import KernelText, Variant, emit
from jali.codegen.interruptible import interruptible
from jali.codegen.ir import Output, SiteProgram, Store
from jali.codegen.items import Item, find_items
from jali.codegen.passes import analyse
from jali.errors import TraceError
from jali.lattice.binding import BoundKernel, CompiledKernel
from jali.lattice.domain import Domain
from jali.lattice.field import Field
from jali.lattice.prefetch import prefetch_of
from jali.lattice.tuning import tunings_of
from jali.tune import DEFAULT_SHAPE, Shape

MOST_ADDED = 4  # sums that a kernel on a device adds up itself: each takes some twenty registers of a thread


@interruptible()
def lower(program: SiteProgram, fields: list[Field], lattice: Any, domain: Domain, sums: Any) -> BoundKernel:
    """Chooses the variant for these fields and this domain, compiles and binds."""
    check_races(program, lattice, domain)
    layout = lattice.layout(program.precision)
    phased = frozenset(
        (slot, offset)
        for slot, offsets in _reads(program).items()
        for offset in offsets
        if fields[slot].boundary.matters(offset)
    )
    single = frozenset(k for k, f in enumerate(fields) if f.storage_precision != f.precision)
    stencil = any(any(offset) for offsets in _reads(program).values() for offset in offsets)
    sites = lattice.sites_of(domain, program.shift, layout, stencil)
    items = _items(program, phased, lattice)
    gpu = lattice.gpu
    prefetch = prefetch_of(_reads(program), fields, lattice, layout.lanes)
    variant = Variant(
        layout.lanes,
        sites.masks is not None,
        phased,
        single,
        items,
        adds=gpu is not None and 0 < sum(t.reals for t in program.sums) <= MOST_ADDED and sums.per is None,
        gpu=gpu is not None,
        ahead=prefetch.ahead,
    )
    tunings = tunings_of(_emit(program, variant), program, lattice, sites, layout)
    kernel = _compile(program, variant, gpu, tunings.shape)
    producers = []
    for item in items:
        offset, here = program.offset(item.offset), (0,) * program.ndim
        turned = frozenset(
            (slot, here)
            for slot in item.slots
            if (slot, offset) in phased and any(lattice.windings_of_readers(offset))
        )
        at_sender = Variant(layout.lanes, phased=turned, single=single, gpu=gpu is not None)
        producers.append((item, _compile(_producer(program, item), at_sender, gpu)))
    bound = BoundKernel(program, variant, kernel, producers, fields, lattice, layout, sites, sums)
    bound.launch_choice = prefetch.words
    tunings.attach(bound, lambda shape: _compile(program, variant, gpu, shape).function)
    return bound


def _compile(
    program: SiteProgram, variant: Variant, gpu: Any, shape: Shape = DEFAULT_SHAPE
) -> CompiledKernel:
    text = _emit(program, variant)
    if gpu is not None:
        if shape.each > 1:
            one, text = text, _emit(program, replace(variant, several=True))
            assert text.words == one.words, "launches are bound once for all shapes"
        compiled_for = shape.bound, shape.blocks, shape.sites, shape.width
        function, source = cache.load_on_device(
            gpu, program.name, text.text, program.precision, *compiled_for
        )
        return CompiledKernel(text, 0, source, function, shape.threads)
    address, source = cache.load(program.name, text.text, variant.lanes, program.precision)
    return CompiledKernel(text, address, source)


def _items(program: SiteProgram, phased: Any, lattice: Any) -> tuple[Item, ...]:
    """Halo items of the offsets that can leave this rank's box.

    A sender knows the boundary factor of its readers where the offset has one direction: all of them are then one rank's, on one side.
    """
    if not lattice.halo_items or lattice.communicator.size == 1:
        return ()
    crossing = tuple(
        dict.fromkeys(
            offset
            for offsets in _reads(program).values()
            for offset in offsets
            if any(step and ranks > 1 for step, ranks in zip(offset, lattice.grid, strict=True))
            and (sum(map(bool, offset)) == 1 or not any(offset == at for _, at in phased))
        )
    )
    known = program.__dict__.setdefault("_items", {})
    if crossing not in known:
        known[crossing] = tuple(find_items(program, crossing))
    found: tuple[Item, ...] = known[crossing]
    return found


def _producer(program: SiteProgram, item: Item) -> SiteProgram:
    """The program that computes an item at the sender's own site."""
    known = program.__dict__.setdefault("_producers", {})
    if item not in known:
        effects, first = [], 0
        for node in item.cut:
            effects.append(Output(first, node))
            first += node.type.reals
        known[item] = SiteProgram(
            f"{program.name}_item",
            program.ndim,
            program.precision,
            program.fields,
            [],
            [],
            effects,
            [],
            item.offset,
            [],
            first,
            program.fused,
        )
    made: SiteProgram = known[item]
    return made


def _emit(program: SiteProgram, variant: Variant) -> KernelText:
    known = program.__dict__.setdefault("_texts", {})
    if variant not in known:
        known[variant] = emit(program, variant)
    text: KernelText = known[variant]
    return text


def _reads(program: SiteProgram) -> dict[int, list[tuple[int, ...]]]:
    known = program.__dict__.get("_reads")
    if known is None:
        known = {slot: list(offsets) for slot, offsets in analyse(program).reads.items()}
        program.__dict__["_reads"] = known
    result: dict[int, list[tuple[int, ...]]] = known
    return result


def _check_same_site(program: SiteProgram, lattice: Any, slot: int, offset: tuple[int, ...]) -> None:
    """Raises TraceError for a read around the lattice, at the site itself, of what an earlier line has written there."""
    field = program.fields[slot]
    source = tuple(o + s for o, s in zip(offset, program.shift, strict=True))
    around = not any(o % n for o, n in zip(offset, lattice.extents, strict=True))
    if any(offset) and around and source in field.reads_after:
        raise TraceError(
            f"{program.name} reads {field.name} at offset {source}, which is the same site on {lattice}, after writing it: "
            "keep the value that was written in a variable, or read the field before\n"
            f"  at {field.reads_after[source]}"
        )


def check_races(program: SiteProgram, lattice: Any, domain: Domain) -> None:
    """Raises TraceError where a read of a written field could hit a site that the same loop writes."""
    written = {e.slot: e for e in program.effects if isinstance(e, Store)}
    reads = _reads(program)
    for slot, store in written.items():
        for offset in reads.get(slot, []):
            _check_same_site(program, lattice, slot, offset)
            if any(offset) and lattice.meets(domain, program.shift, offset):
                field = program.fields[slot]
                source = tuple(o + s for o, s in zip(offset, program.shift, strict=True))
                line = field.reads.get(source, store.where)
                raise TraceError(
                    f"{program.name} over {domain} reads {field.name} at offset {source} of a site that the same loop writes "
                    f"(written at {store.where}): the result would depend on the order of the sites.\n"
                    f"  {lattice.why_meets(domain, offset)}\n"
                    f"  at {line}"
                )
