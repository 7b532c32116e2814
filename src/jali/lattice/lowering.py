"""Lowering of a program for a lattice: what of the lattice, the domain and the fields matters for its text, and the
stages up to a launch."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jali import settings
from jali.codegen.accesses import Access, access_of
from jali.codegen.interruptible import interruptible
from jali.codegen.stages import (
    Analysed,
    Binary,
    Lowered,
    compile_for_device,
    compile_for_host,
    lower,
    write,
)
from jali.codegen.writer import Lowering
from jali.errors import TraceError
from jali.lattice.binding import BoundKernel, Chosen, bind_kernel
from jali.lattice.borrowed_arrays import in_rows
from jali.lattice.domain import EVEN, Domain
from jali.lattice.field import Field
from jali.lattice.launch_layout import LaunchLayout, check_arrays, launch_layout_of
from jali.lattice.prefetch import Prefetch, prefetch_of
from jali.lattice.races import check_races
from jali.lattice.tuning import tunings_of
from jali.tune import DEFAULT_LAUNCH, LaunchConfig

MOST_CODED = (
    32  # bytes of a neighbour, on average: with more, looking codes up costs what it saves (measured on H200)
)
TOGETHER = 2  # members of a batch in a thread of a device: with 1 a batch of 8 Wilson hops takes 1.04 to 1.2 times as long, with 4 up to 2.7 (H200)
MOST_ADDED = 4  # sums that a kernel on a device adds up itself: each takes some twenty registers of a thread


@interruptible()
def bind(
    analysed: Analysed,
    fields: list[Field],
    lattice: Any,
    domain: Domain,
    sums: Any,
    by_address: frozenset[int] = frozenset(),
) -> BoundKernel:
    """Lowers a program for these fields and this domain, compiles and binds it. `by_address`: scalars whose parameters are addresses. Raises
    TraceError for races, CompileError, DeviceError."""
    check_races(analysed, lattice, domain)
    _check_boundaries(analysed, fields)
    program = analysed.program
    check_arrays(program.name, fields, analysed.analysis.writes)
    launch_layout = launch_layout_of(lattice, fields, program.precision)
    sites = lattice.sites_of(domain, program.shift, launch_layout.blocks, analysed.stencil)
    prefetch = (
        Prefetch()
        if launch_layout.rows
        else prefetch_of(analysed.analysis.reads, fields, lattice, launch_layout.blocks.lanes)
    )
    lowering = _lowering(analysed, fields, lattice, launch_layout, sites, sums, prefetch, by_address)
    lowered = lower(analysed, lowering)
    if lowering.together > 1 and _compiled(lowered, lattice.gpu).function.local_bytes > 0:
        lowered = lower(analysed, replace(lowering, together=1))  # registers do not hold two members
    tunings = tunings_of(write(lowered).kernel, program, lattice, sites, launch_layout.layout)
    compiled = functools.partial(_compiled, lowered, lattice.gpu)
    crosses = lattice.gpu is not None and lattice.communicator.size > 1 and analysed.stencil
    producers = [(item, _compiled(producer, lattice.gpu)) for item, producer in lowered.producers]
    bound = bind_kernel(
        compiled(tunings.config), tunings.config, producers, fields, lattice, launch_layout, sites, sums
    )
    bound.chosen.launch = prefetch.words
    if crosses:
        # of what does not hold the launch, which would hold it in turn
        with_halos = functools.partial(_with_halos, lowered, lattice.gpu, bound.chosen)
        bound.launch.set_kernel_with_halos(with_halos)
    tunings.attach(bound, lambda config: compiled(config).function)
    return bound


def _check_boundaries(analysed: Analysed, fields: list[Field]) -> None:
    """Raises TraceError for a program that writes at an offset across a boundary that is not periodic: its kernel runs over the sites
    that are written, so that reads at the function's own site would cross the boundary."""
    program = analysed.program
    crossed = [axis for axis, step in enumerate(program.shift) if step]
    for slot in {**analysed.analysis.writes, **analysed.analysis.reads} if crossed else ():
        for axis in crossed:
            condition = fields[slot].boundary.conditions[axis]
            if condition != "periodic":
                offset, line = program.offset_of_user((0,) * program.ndim), program.effects[0].where
                raise TraceError(
                    f"{program.name} writes at offset {offset}, and {program.fields[slot].name} has the boundary {condition} in "
                    f"direction {axis}: a boundary has factors for reads only. Write at the site itself and read the neighbour, "
                    f"out[X] = f[X - mu] in place of out[X + mu] = f[X]\n  at {line}"
                )


def _compiled(lowered: Lowered, gpu: Any, config: LaunchConfig = DEFAULT_LAUNCH) -> Binary:
    return compile_for_host(lowered) if gpu is None else compile_for_device(lowered, gpu, config)


def _with_halos(lowered: Lowered, gpu: Any, chosen: Chosen) -> tuple[Any, int, int]:
    """The kernel that exchanges halos as well, threads of its blocks, and sites of a thread. Raises CompileError, DeviceError."""
    config = chosen.config
    return compile_for_device(lowered, gpu, config, with_halos=True).function, config.threads, config.each


def _lowering(
    analysed: Analysed,
    fields: list[Field],
    lattice: Any,
    launch_layout: LaunchLayout,
    sites: Any,
    sums: Any,
    prefetch: Prefetch,
    by_address: frozenset[int],
) -> Lowering:
    program, reads, gpu = analysed.program, analysed.analysis.reads, lattice.gpu
    phased = phased_reads(analysed, fields)
    crossing = () if launch_layout.indirect else _crossing(analysed, phased, lattice)
    return Lowering(
        launch_layout.blocks.lanes,
        launch_layout.layout.block_bits,
        masked=sites.masks is not None,
        accesses=_accesses(analysed, fields, phased, launch_layout, prefetch, gpu is not None),
        crossing=crossing,
        wire=lattice.halo_wire if crossing else "",
        wraps=frozenset(offset for offset in crossing if any(lattice.windings_of_readers(offset))),
        gpu=gpu is not None,
        in_kernel_reduction=gpu is not None
        and not program.batch
        and 0 < len(program.reductions) <= MOST_ADDED
        and sums.per is None
        and not program.labelled,
        by_address=by_address,
        together=TOGETHER if gpu is not None and _share(analysed) else 1,
        code_bits=_code_bits(reads, phased, fields, launch_layout) if gpu is not None else 32,
    )


def _share(analysed: Analysed) -> bool:
    """Whether members of a batch, an even number of them, share fields, and their lines may be written side by side."""
    program, analysis = analysed.program, analysed.analysis
    shared = any(not program.fields[slot].batch for slot in analysis.reads)
    return program.batch > 0 and program.batch % TOGETHER == 0 and shared and not analysis.bodies


def _accesses(
    analysed: Analysed,
    fields: list[Field],
    phased: frozenset[tuple[int, tuple[int, ...]]],
    launch_layout: LaunchLayout,
    prefetch: Prefetch,
    gpu: bool,
) -> frozenset[Access]:
    """How each read and write reaches memory."""
    here, analysis = (0,) * analysed.program.ndim, analysed.analysis
    rows = in_rows(fields) if gpu else frozenset()
    split = launch_layout.lattice.communicator.size > 1
    found = []
    for slot in {**analysis.reads, **analysis.writes}:
        table = launch_layout.indirect[slot] if launch_layout.indirect else None
        offsets = analysis.reads.get(slot, {})
        leading = () if table else prefetch.leading(offsets)
        for offset in {**offsets, here: ""} if slot in analysis.writes else offsets:
            found.append(
                access_of(
                    slot,
                    offset,
                    gpu,
                    phased=(slot, offset) in phased,
                    table=table,
                    in_array=slot in rows,
                    members=fields[slot].members_in_memory,
                    listed=fields[slot].listed_members is not None,
                    ghosts_apart=split and any(offset) and not table and fields[slot].over is EVEN,
                    prefetched=offset in leading
                    and (not fields[slot].members_in_memory or fields[slot].batch is not None),
                )
            )
    return frozenset(found)


def _code_bits(
    reads: Mapping[int, Collection[tuple[int, ...]]],
    phased: frozenset[tuple[int, tuple[int, ...]]],
    fields: list[Field],
    launch_layout: LaunchLayout,
) -> int:
    """Bits of the entries of a kernel's neighbour tables on a device, or of codes for them, where all of them have codes and are a
    large part of what is read."""
    requested = settings.current().device_tables
    by_table = [
        (slot, offset)
        for slot, offsets in reads.items()
        for offset in offsets
        if any(offset) and not (launch_layout.indirect and launch_layout.indirect[slot])
    ]
    read = sum(fields[slot].storage.site_bytes for slot, _ in by_table)
    if not by_table or requested == "entries" or (requested != "codes" and read > MOST_CODED * len(by_table)):
        return 32
    layout = launch_layout.layout
    tables = {(offset, (slot, offset) in phased) for slot, offset in by_table}
    return max(layout.code_bits(layout.neighbours(list(offset), windings)) for offset, windings in tables)


def phased_reads(analysed: Analysed, fields: Sequence[Field]) -> frozenset[tuple[int, tuple[int, ...]]]:
    """(slot, offset) of reads that a boundary which is not periodic may change."""
    return frozenset(
        (slot, offset)
        for slot, offsets in analysed.analysis.reads.items()
        for offset in offsets
        if fields[slot].boundary.matters(offset)
    )


def _crossing(
    analysed: Analysed, phased: frozenset[tuple[int, tuple[int, ...]]], lattice: Any
) -> tuple[tuple[int, ...], ...]:
    if not lattice.halo_items or lattice.communicator.size == 1:
        return ()
    return crossing_offsets(analysed, phased, lattice.grid)


def crossing_offsets(
    analysed: Analysed, phased: frozenset[tuple[int, tuple[int, ...]]], grid: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Offsets that can leave a rank's box on this grid of ranks and at which halo items may travel.

    A sender knows the boundary factor of its readers where the offset has one direction: all of them are then one rank's, on one side.
    """
    return tuple(
        dict.fromkeys(
            offset
            for offsets in analysed.analysis.reads.values()
            for offset in offsets
            if any(step and ranks > 1 for step, ranks in zip(offset, grid, strict=True))
            and (sum(map(bool, offset)) == 1 or not any(offset == at for _, at in phased))
        )
    )
