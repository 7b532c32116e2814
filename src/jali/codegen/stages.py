"""From a function to machine code, in stages: each a small immutable thing, made by one function from the one before.

| stage | made by | from | what it is |
|---|---|---|---|
| `Traced` | `trace_function` | a function and the types of its arguments | programs, and what they depend on besides |
| `Analysed` | `analyse_program` | one program | reads, writes, what could race, halo items |
| `Lowered` | `lower` | and a `Lowering` for some lattice | the lowering, with the producers of its halo items |
| `Source` | `write` | and whether a thread computes several sites | text and parameters |
| `Binary` | `compile_for_host`, `compile_for_device` | for a device, and a launch configuration | machine code in memory |
| `BoundKernel` | `jali.lattice.binding` | and fields | a launch that can run |

A stage keeps the results made from it in a `StageCache`, which is deleted with it; machine code is kept for the process, by
content (`kernel_cache.py`), programs and launches by the site function (`jali.lattice.sites`). Does not depend on lattices or
ranks: a `Lowering` has their relevant properties.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from jali.codegen import kernel_cache
from jali.codegen.accesses import access_of
from jali.codegen.emit import KernelText, emit
from jali.codegen.guards import Guards, trace_with_guards
from jali.codegen.ir import SiteProgram, Store
from jali.codegen.items import Item, with_items
from jali.codegen.passes import Analysis, analyse, rewritten_trace
from jali.codegen.stage_cache import COUNTS, StageCache
from jali.codegen.trace import trace
from jali.codegen.writer import Lowering

Offset = tuple[int, ...]


# ---- traced --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Traced:
    """What a function computes: one program, or several where writes carry different offsets. It holds for as long as its
    `guards` hold."""

    programs: tuple[SiteProgram, ...]
    guards: Guards
    captured: tuple[
        Any, ...
    ] = ()  # weak references to fields that are no arguments, in the order of their slots
    fixed: frozenset[str] = (
        frozenset()
    )  # arguments that are numbers of which offsets are made: it holds for their values
    analysed: StageCache[Analysed] = field(default_factory=lambda: StageCache("analysed", 64), repr=False)


def trace_function(
    function: Callable[..., Any],
    statics: Sequence[Any],
    arguments: Sequence[Any],
    names: Sequence[str],
    ndim: int,
    precision: str,
    outside: Any = None,
    watched: Callable[..., Any] | None = None,
) -> Traced:
    """Runs a function over symbols; see `trace` for its arguments. `statics` are those that are fixed while tracing. `watched` is the user's
    function, where another one runs it. Raises TraceError."""
    COUNTS["traced"].count(found=False)
    programs, guards = trace_with_guards(
        watched or function,
        list(statics),
        lambda: trace(function, arguments, names, ndim, precision, outside),
    )
    programs = rewritten_trace(programs)
    COUNTS["rewritten"].count(found=False)
    if outside is None:
        return Traced(tuple(programs), guards)
    return Traced(
        tuple(programs), guards, tuple(map(weakref.ref, outside.taken.values())), frozenset(outside.fixed)
    )


# ---- analysed ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Analysed:
    """What is known of one program wherever it runs. `analysis.reads` are offsets from the written site."""

    program: SiteProgram
    analysis: Analysis
    items: StageCache[tuple[Analysed, tuple[tuple[Item, Analysed], ...]]] = field(
        default_factory=lambda: StageCache("analysed", 16), repr=False
    )
    lowered: StageCache[Lowered] = field(default_factory=lambda: StageCache("lowered", 64), repr=False)

    @property
    def stencil(self) -> bool:
        """Whether neighbours are read."""
        return any(any(offset) for offsets in self.analysis.reads.values() for offset in offsets)

    @property
    def may_race(self) -> list[tuple[Store, Offset]]:
        """Stores, and offsets at which the same field is read: on some lattices and domains the same loop writes there."""
        stores = {e.slot: e for e in self.program.effects if isinstance(e, Store)}
        return [(s, offset) for slot, s in stores.items() for offset in self.analysis.reads.get(slot, {})]


def analyse_program(program: SiteProgram) -> Analysed:
    """Reads, writes, costs and order of a program."""
    return Analysed(program, analyse(program))


def programs_of(traced: Traced) -> list[Analysed]:
    """Every program of a trace, analysed."""
    return [
        traced.analysed.get(k, functools.partial(analyse_program, program))
        for k, program in enumerate(traced.programs)
    ]


def halo_items(
    analysed: Analysed, crossing: tuple[Offset, ...], wire: str = ""
) -> tuple[Analysed, tuple[tuple[Item, Analysed], ...]]:
    """The program that receives the halo items worth having at offsets that can leave a rank's box, and those that compute them at
    the sender."""

    def rewrite() -> tuple[Analysed, tuple[tuple[Item, Analysed], ...]]:
        COUNTS["rewritten"].count(found=False)
        reader, producers = with_items(analysed.program, crossing, wire)
        if not producers:
            return analysed, ()
        return analyse_program(reader), tuple((item, analyse_program(sent)) for item, sent in producers)

    return analysed.items.get((crossing, wire), rewrite)


# ---- lowered -------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lowered:
    """A program and how it is lowered, with the producers of the halo items that it receives. `of` is the program before it
    received any."""

    of: Analysed
    analysed: Analysed
    lowering: Lowering
    producers: tuple[tuple[Item, Lowered], ...] = ()
    sources: StageCache[Source] = field(default_factory=lambda: StageCache("source", 4), repr=False)


def lower(analysed: Analysed, lowering: Lowering) -> Lowered:
    """A program as it is lowered for some lattice, domain and fields: finds its halo items, and lowers what computes them."""
    return analysed.lowered.get(lowering, lambda: _lower(analysed, lowering))


def _lower(analysed: Analysed, lowering: Lowering) -> Lowered:
    found: tuple[tuple[Item, Analysed], ...] = ()
    of = analysed
    if lowering.crossing:
        analysed, found = halo_items(analysed, lowering.crossing, lowering.wire)
    here = (0,) * analysed.program.ndim
    producers = []
    for item, producer in found:
        there = [lowering.access(slot, item.offset) for slot in item.slots]
        accesses = frozenset(
            access_of(
                a.slot,
                here,
                lowering.gpu,
                phased=a.phased and item.offset in lowering.wraps,
                in_array=a.in_array,
                members=a.members,
                listed=a.listed,
            )
            for a in there
        )
        at_sender = Lowering(
            lowering.lanes, lowering.block_bits, accesses=accesses, wire=lowering.wire, gpu=lowering.gpu
        )
        producers.append((item, lower(producer, at_sender)))
    return Lowered(of, analysed, lowering, tuple(producers))


# ---- source --------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Source:
    """The text of a kernel and its parameters (`kernel`)."""

    lowered: Lowered
    kernel: KernelText


def write(lowered: Lowered, multi_site: bool = False, with_halos: bool = False) -> Source:
    """The text of a kernel; with `several`, of one whose threads compute several sites each, `with_halos` of one that exchanges
    halos as well. The parameters are the same."""

    def make() -> Source:
        kernel = emit(
            lowered.analysed.program, replace(lowered.lowering, multi_site=multi_site, with_halos=with_halos)
        )
        assert not (multi_site or with_halos) or kernel.parameters == write(lowered).kernel.parameters, (
            "launches are bound once for all"
        )
        return Source(lowered, kernel)

    return lowered.sources.get((multi_site, with_halos), make)


# ---- binary --------------------------------------------------------------------------------------------


class LaunchBounds(Protocol):
    """How a kernel is compiled for a device and started there (`jali.tune.LaunchConfig`)."""

    @property
    def bound(self) -> int: ...
    @property
    def blocks(self) -> int: ...
    @property
    def sites(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def each(self) -> int: ...


@dataclass(frozen=True, eq=False)
class Binary:
    """Machine code of one kernel in memory, and where its source is kept."""

    source: Source
    path: Path
    address: int = 0  # on the host
    function: Any = None  # on a device


def compile_for_host(lowered: Lowered) -> Binary:
    """Compiles, or finds in the kernel cache what has this text. Raises CompileError."""
    source = write(lowered)
    name, precision = lowered.analysed.program.name, lowered.analysed.program.precision
    lowering = lowered.lowering
    address, path = kernel_cache.load(
        name, source.kernel.text, lowering.lanes, precision, lowering.block_bits
    )
    return Binary(source, path, address)


def compile_for_device(lowered: Lowered, gpu: Any, config: LaunchBounds, with_halos: bool = False) -> Binary:
    """The same for a device (of the core) and a launch configuration. Raises CompileError, DeviceError."""
    source = write(lowered, config.each > 1, with_halos)
    name, precision = lowered.analysed.program.name, lowered.analysed.program.precision
    how = config.bound, config.blocks, config.sites, config.width
    function, path = kernel_cache.load_on_device(
        gpu,
        name,
        source.kernel.text,
        precision,
        *how,
        block_bits=lowered.lowering.block_bits,
        with_halos=with_halos,
    )
    return Binary(source, path, function=function)
