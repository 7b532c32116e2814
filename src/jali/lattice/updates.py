"""An update on each rank of a split lattice: sites in bulk and boundary, their work, the ghosts that are
exchanged.

An `Update` is made from a bound kernel, of any lattice; `Update.on(extents, grid)` is the same update on a lattice of
other extents over other ranks, from geometry alone: nothing is allocated, so there may be thousands of ranks. The bulk
is a box, since a site is in it if all its reads stay inside, and an intersection of shifted boxes is one. Shares of
colourings other than even and odd are those of their number of colours.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from jali import _core
from jali.codegen.stages import Analysed, halo_items
from jali.codegen.storage_formats import on_the_wire
from jali.errors import LayoutError, ParameterError
from jali.lattice.binding import BoundKernel
from jali.lattice.lowering import crossing_offsets, phased_reads

Offset = tuple[int, ...]


@dataclass(frozen=True)
class Work:
    """What a kernel does at some sites: bytes moved into registers and back, bytes that memory must give at least,
    operations."""

    sites: int = 0
    moved: int = 0
    least: int = 0
    flops: int = 0


@dataclass(frozen=True)
class Ghost:
    """A field, or a halo item, that is read beyond a rank's box: in the slab `key`, so many bytes of a site, at sites
    of `parities`."""

    name: str
    key: Offset
    site_bytes: int
    parities: int
    item: bool


@dataclass(frozen=True)
class Message:
    """What a rank sends for one slab: to whom, the bytes of each field or item in it, and after which direction it is
    awaited."""

    key: Offset
    source: int
    to: int
    parts: tuple[tuple[str, int], ...]
    items: int  # bytes of them that are computed for the message

    @property
    def bytes(self) -> int:
        """Of all parts."""
        return sum(size for _, size in self.parts)

    @property
    def direction(self) -> int:
        """The highest direction into which the slab reaches."""
        return max(d for d, step in enumerate(self.key) if step)


@dataclass(frozen=True)
class Part:
    """One rank's part of an update: the kernel over `whole`, or over `bulk` and then, direction by direction, over the
    sites of `boundary` that are late because of it."""

    rank: int
    extents: tuple[int, ...]
    whole: Work
    bulk: Work
    boundary: dict[int, Work]
    sent: tuple[Message, ...]

    @property
    def late(self) -> Work:
        """All of the boundary."""
        parts = self.boundary.values()
        return Work(
            *(sum(getattr(work, name) for work in parts) for name in ("sites", "moved", "least", "flops"))
        )


@dataclass(frozen=True)
class Read:
    """A field that a kernel reads."""

    name: str
    site_bytes: int
    offsets: tuple[Offset, ...]
    changes: bool  # between two calls, so that its ghosts travel each time


@dataclass(frozen=True, eq=False)
class Update:
    """A kernel as far as its time and its halos depend on it. Bytes and flops are those of a site."""

    name: str
    precision: str
    ndim: int
    parities: int
    colours: int  # of the colouring; 1 for all, even and odd sites
    domain: str
    reads: tuple[Read, ...]
    written: int
    moved: int
    least: int
    flops: int
    analysed: Analysed
    phased: frozenset[tuple[int, Offset]]  # reads that a boundary may change
    items: bool
    wire: str

    @staticmethod
    def of(kernel: BoundKernel, domain: Any, fixed: Collection[int] = ()) -> Update:
        """Of a bound kernel; `fixed` are the serial numbers of fields that nothing writes between two calls."""
        program, analysis, fields = kernel.program, kernel.text.analysis, kernel.fields
        analysed = kernel.binary.source.lowered.of
        if kernel.lowering.tables:
            raise ParameterError(
                f"{program.name} reads fields of several lattices, or arrays, whose halos are exchanged before it begins; "
                "that is not simulated"
            )
        reads = tuple(
            Read(
                program.fields[slot].name,
                fields[slot].storage.site_bytes,
                tuple(offsets),
                fields[slot].serial not in fixed,
            )
            for slot, offsets in analysis.reads.items()
        )
        return Update(
            name=program.name,
            precision=program.precision,
            ndim=program.ndim,
            parities=kernel.sites.parities,
            colours=1 if domain.colouring is None else domain.colouring.colours,
            domain=str(domain),
            reads=reads,
            written=sum(fields[slot].storage.site_bytes for slot in analysis.writes),
            moved=kernel.cost.bytes_moved,
            least=kernel.cost.bytes_least,
            flops=kernel.cost.flops,
            analysed=analysed,
            phased=phased_reads(analysed, fields),
            items=kernel.lattice.halo_items,
            wire=kernel.lattice.halo_wire,
        )

    def on(self, extents: Sequence[int], grid: Sequence[int]) -> SplitUpdate:
        """This update of a lattice of these extents on so many ranks in each direction. Raises LayoutError where they
        do not fit."""
        if len(extents) != self.ndim or len(grid) != self.ndim:
            raise LayoutError(
                f"{self.name} is for {self.ndim} directions; extents {tuple(extents)} and grid {tuple(grid)} are not"
            )
        return SplitUpdate(self, tuple(extents), tuple(grid))


@dataclass(frozen=True, eq=False)
class SplitUpdate:
    """An update of a lattice that is split over ranks."""

    update: Update
    extents: tuple[int, ...]
    grid: tuple[int, ...]

    @functools.cached_property
    def partition(self) -> Any:
        """The core's cut. Raises LayoutError."""
        return _core.Partition(list(self.extents), list(self.grid))

    @property
    def ranks(self) -> int:
        """How many there are."""
        return math.prod(self.grid)

    def crosses(self, offset: Offset) -> bool:
        """Whether reads at an offset can leave a rank's box."""
        return any(step and ranks > 1 for step, ranks in zip(offset, self.grid, strict=True))

    @functools.cached_property
    def ghosts(self) -> tuple[Ghost, ...]:
        """What travels at each call, by slab; the same on all ranks. Raises LayoutError where boxes are too small for
        it."""
        update = self.update
        program = update.analysed.program
        geometry = _core.Geometry(self.partition, 0)
        found: dict[tuple[str, Offset], Ghost] = {}

        def read(name: str, offset: Offset, site_bytes: int, item: bool) -> None:
            geometry.check_halo(list(offset))
            parities = geometry.reach(update.parities, list(offset))
            for key in map(tuple, geometry.slab_keys(list(offset))):
                before = found.get((name, key))
                both = parities | (0 if before is None else before.parities)
                found[name, key] = Ghost(name, key, site_bytes, both, item)

        replaced: set[tuple[str, Offset]] = set()
        if update.items and self.ranks > 1:
            crossing = crossing_offsets(update.analysed, update.phased, self.grid)
            for item, _ in halo_items(update.analysed, crossing, update.wire)[1]:
                offset = item.offset
                replaced |= {(program.fields[slot].name, offset) for slot in item.slots}
                wire = on_the_wire(item.reals, update.precision, update.wire)
                read(f"item of {item.reals} reals at {offset}", offset, wire.site_bytes, True)
        for field in update.reads:
            for offset in field.offsets:
                if self.crosses(offset) and field.changes and (field.name, offset) not in replaced:
                    read(field.name, offset, field.site_bytes, False)
        return tuple(found.values())

    @functools.cached_property
    def margins(self) -> tuple[tuple[int, int], ...]:
        """In each direction, how many layers at the lower and at the upper end read ghosts that travel."""
        margins = [(0, 0)] * self.update.ndim
        for ghost in self.ghosts:
            for d, step in enumerate(ghost.key):
                low, high = margins[d]
                margins[d] = (max(low, -step), max(high, step))
        return tuple(margins)

    @functools.lru_cache(maxsize=64)  # noqa: B019 - deleted with its simulation
    def _works(self, extents: tuple[int, ...], odd_origin: int) -> tuple[Work, Work, dict[int, Work]]:
        update, ndim = self.update, self.update.ndim
        inner = [
            (low, max(low, extent - high)) for extent, (low, high) in zip(extents, self.margins, strict=True)
        ]

        def sites(full: int) -> int:
            """Of the domain in the box that has the whole extent in directions below `full`, and its inner part in the
            others."""
            ranges = [(0, extents[d]) if d < full else inner[d] for d in range(ndim)]
            volume = math.prod(end - begin for begin, end in ranges)
            if update.parities == 3:
                return round(volume / update.colours)
            # even sites less odd ones: the product over directions of even less odd coordinates
            excess = math.prod(((end - begin) % 2) * (-1) ** (begin % 2) for begin, end in ranges)
            excess *= (-1) ** odd_origin
            return (volume + (excess if update.parities == 1 else -excess)) // 2

        def work(n: int, least: int) -> Work:
            return Work(n, n * update.moved, n * min(least, update.moved), n * update.flops)

        counts = [sites(full) for full in range(ndim + 1)]
        boundary = {
            d: work(counts[d + 1] - counts[d], self._least_in_layers(d))
            for d in range(ndim)
            if counts[d + 1] > counts[d]
        }
        return work(counts[-1], update.least), work(counts[0], update.least), boundary

    def _least_in_layers(self, direction: int) -> int:
        """Bytes that a site in few layers of a direction needs at least: its reads in other layers are of no use to
        their neighbours."""
        update = self.update
        read = sum(
            field.site_bytes * len({offset[direction] for offset in field.offsets}) for field in update.reads
        )
        return read + update.written

    def part(self, rank: int) -> Part:
        """What a rank does."""
        geometry = _core.Geometry(self.partition, rank)
        extents = tuple(geometry.extents)
        whole, bulk, boundary = self._works(extents, sum(geometry.origin) % 2)
        parts: dict[Offset, list[Ghost]] = {}
        for ghost in self.ghosts:
            parts.setdefault(ghost.key, []).append(ghost)
        sent = []
        for key, ghosts in parts.items():
            _, to, extents_of_slab, *_ = geometry.slab(list(key))
            volume = math.prod(extents_of_slab)
            sizes = tuple(
                (ghost.name, ghost.site_bytes * (volume if ghost.parities == 3 else volume // 2))
                for ghost in ghosts
            )
            items = sum(size for (_, size), ghost in zip(sizes, ghosts, strict=True) if ghost.item)
            sent.append(Message(key, rank, to, sizes, items))
        return Part(rank, extents, whole, bulk, boundary, tuple(sent))
