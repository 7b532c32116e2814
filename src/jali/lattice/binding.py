"""The last stage, Bound: a compiled kernel with fields, a domain and the core's launcher."""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jali import _core
from jali.codegen.arithmetics import PRECISIONS
from jali.codegen.emit import FIRST_PARAMETER, KernelText, counters_of, counts_overflow
from jali.codegen.ir import SiteProgram
from jali.codegen.items import Item
from jali.codegen.operation import described
from jali.codegen.passes import of_members
from jali.codegen.rewriting import reachable
from jali.codegen.stages import Binary
from jali.codegen.storage_formats import on_the_wire
from jali.codegen.writer import KernelParameter, Lowering
from jali.comm import checking
from jali.errors import LayoutError
from jali.lattice.field import Field
from jali.lattice.launch_layout import LaunchLayout
from jali.lattice.overflow import LaunchCount, OverflowCount
from jali.lattice.pivots import pivot_counts
from jali.lattice.sums import gathering_of
from jali.tune import DEFAULT_LAUNCH, LaunchConfig


@dataclass(frozen=True)
class Cost:
    """What a kernel does per site.

    `bytes_least` counts each field once (perfect reuse), `bytes_moved` every read at every offset and every write once
    (no reuse by caches).
    """

    flops: int
    bytes_moved: int
    bytes_least: int


@dataclass
class Chosen:
    """How a launch runs, and why, in parameters; the tuner writes here."""

    launch: str = ""
    halo: str = ""
    config: LaunchConfig = DEFAULT_LAUNCH  # how the kernel is started, on a device


@dataclass(frozen=True, eq=False, repr=False)
class BoundKernel:
    """One kernel with its argument parameters and its launch. What it is made of stays; numbers in `parameters`, of which `floats` is another
    view, open questions in `tunings` and what is `chosen` change from run to run. Made by `bind_kernel`.
    """

    binary: Binary
    program: SiteProgram
    lowering: Lowering
    text: KernelText
    fields: tuple[Field, ...]  # weakly: a launch exists as long as its fields, not vice versa
    lattice: Any
    layout: Any
    sites: Any
    launch: Any
    cost: Cost
    parameters: np.ndarray
    floats: memoryview[float]
    scalar_parameters: tuple[tuple[int, KernelParameter], ...]
    random_parameters: tuple[tuple[int, KernelParameter], ...]
    held: tuple[Any, ...]  # arrays whose addresses are in the parameters
    overflow: tuple[LaunchCount, ...]
    tunings: list[Any]  # questions about this launch that are open (lattice.tuning)
    chosen: Chosen

    @property
    def source(self) -> Path:
        """Where the text is kept."""
        return self.binary.path

    @property
    def function(self) -> Any:
        """The core's function, on a device."""
        return self.binary.function

    def tune(self) -> None:
        """Before a run with open questions: resolves each, and removes those that are done."""
        self.tunings[:] = [tuning for tuning in self.tunings if not tuning.resolve(self)]


def bind_kernel(
    binary: Binary,
    config: LaunchConfig,
    producers: list[tuple[Item, Binary]],
    fields: list[Field],
    lattice: Any,
    launch_layout: LaunchLayout,
    sites: Any,
    sums: Any,
) -> BoundKernel:
    """The last stage: `binary` with fields, on the sites of a domain, and the producers of its halo items. Raises LayoutError, DeviceError."""
    return _Binding(binary, config, producers, fields, lattice, launch_layout, sites, sums).bound()


class _Binding:
    """A kernel that is being bound: its parameters are filled in, and what they point to is kept."""

    def __init__(
        self,
        binary: Binary,
        config: LaunchConfig,
        producers: list[tuple[Item, Binary]],
        fields: list[Field],
        lattice: Any,
        launch_layout: LaunchLayout,
        sites: Any,
        sums: Any,
    ):
        lowered = binary.source.lowered
        self.binary = binary
        self.program = program = lowered.analysed.program
        self.lowering = lowering = lowered.lowering
        self.text = text = binary.source.kernel
        self.fields = fields
        self.lattice = lattice
        self.launch_layout = launch_layout
        self.layout = layout = launch_layout.layout
        self.sites = sites
        self.tables: dict[Any, Any] = {}  # of sites
        self.parameters = np.zeros(FIRST_PARAMETER + len(text.parameters), np.uint64)
        self.cost = self._cost(fields)
        self.floats = memoryview(self.parameters.data).cast("B").cast("d")
        self._held: list[Any] = []  # arrays whose addresses are in the parameters
        self.overflow: list[LaunchCount] = []
        self.scalar_parameters: list[tuple[int, KernelParameter]] = []
        self.random_parameters: list[tuple[int, KernelParameter]] = []
        items = {item.offset: (item, self._item(item, producer)) for item, producer in producers}
        patches, away = [], []
        for k, parameter in enumerate(text.parameters):
            index = FIRST_PARAMETER + k
            if parameter.what == "field":
                patches.append((index, fields[parameter.slot].storage))
            elif parameter.what == "away":
                away.append((index, fields[parameter.slot].storage))
            elif parameter.what == "item":
                patches.append((index, items[parameter.offset][1]))
            elif parameter.what in ("key", "call"):
                self.random_parameters.append((index, parameter))
            elif parameter.what in ("scalar", "whole", "array", "whole_array", "array_extent"):
                self.scalar_parameters.append((index, parameter))
            else:
                self.parameters[index] = self._address(parameter)
        reads: list[Any] = []
        indirect: list[Any] = []
        if lowering.tables:
            indirect = [
                (fields[slot].storage, [list(offset) for offset in text.analysis.reads.get(slot, ())])
                for slot in {**text.analysis.reads, **text.analysis.writes}
                if slot in lowering.tables
            ]
        for slot, offsets in text.analysis.reads.items():
            for offset in () if slot in lowering.tables else offsets:
                if offset not in items or slot not in items[offset][0].slots:
                    parities = layout.reach(sites.parities, list(offset))
                    reads.append((fields[slot].storage, list(offset), parities))
        for offset, (_, storage) in items.items():
            reads.append((storage, list(offset), layout.reach(sites.parities, list(offset))))
        writes = [(fields[slot].storage, sites.parities) for slot in text.analysis.writes]
        nsums = len(program.reductions) * (program.batch or 1)
        gathering = gathering_of(program, sums)
        slices, nslices = None, 1
        if sums is not None and sums.per is not None:
            slices = lattice.slices_of(sums.per, launch_layout.blocks)
            nslices = math.prod(lattice.extents[axis] for axis in sums.per)
        self.launch = _core.Launch(
            layout=layout,
            communicator=lattice.communicator.core,
            pool=lattice.pool,
            kernel=binary.address,
            parameters=self.parameters,
            patches=patches,
            reads=reads,
            writes=writes,
            begin=sites.begin,
            end=sites.end,
            blocks=sites.blocks,
            masks=sites.masks,
            nsums=nsums if program.sums else 0,
            reductions=gathering.reductions,
            terms=gathering.terms,
            nlabels=gathering.labels,
            slices=slices,
            nslices=nslices,
            fast=bool(sums is not None and sums.fast),
            ncounters=counters_of(program, text.analysis),
            gpu_kernel=binary.function,
            threads=config.threads,
            members=(program.batch or 1) // lowering.together,
            in_kernel_reduction=lowering.in_kernel_reduction,
            name=program.name,
            cost=(
                self.cost.bytes_least,
                self.cost.bytes_moved,
                self.cost.flops,
                1 + PRECISIONS.index(program.precision),
            ),
            rows=launch_layout.rows,
            indirect=indirect,
            away=away,
        )
        self.tunings: list[Any] = []  # questions about this launch that are open (lattice.tuning)
        if lattice.communicator.checked and (nsums or any(any(offset) for _, offset, _ in reads)):
            self.tunings.append(_ComparedCall())
        if counts_overflow(program):
            self.overflow.append(OverflowCount(self.launch.counters, program.name))
        self.overflow += pivot_counts(self.launch.counters, program, text.analysis, fields, lattice.extents)
        for overflow in self.overflow:
            for slot in text.analysis.writes:
                fields[slot].add_overflow_count(overflow)

    def bound(self) -> BoundKernel:
        """The result."""
        return BoundKernel(
            binary=self.binary,
            program=self.program,
            lowering=self.lowering,
            text=self.text,
            fields=tuple(weakref.proxy(field) for field in self.fields),
            lattice=self.lattice,
            layout=self.layout,
            sites=self.sites,
            launch=self.launch,
            cost=self.cost,
            parameters=self.parameters,
            floats=self.floats,
            scalar_parameters=tuple(self.scalar_parameters),
            random_parameters=tuple(self.random_parameters),
            held=tuple(self._held),
            overflow=tuple(self.overflow),
            tunings=self.tunings,
            chosen=Chosen(),
        )

    def _cost(self, fields: list[Field]) -> Cost:
        analysis = self.text.analysis
        if any(field.members_in_memory for field in fields):
            return self._cost_of_batch(fields)
        size = [f.storage.site_bytes for f in fields]
        written = sum(size[slot] for slot in analysis.writes)
        moved = sum(size[slot] * len(offsets) for slot, offsets in analysis.reads.items())
        least = sum(size[slot] for slot in analysis.reads)
        return Cost(analysis.flops, moved + written, least + written)

    def _cost_of_batch(self, fields: list[Field]) -> Cost:
        """Of all members; what they share is read and computed once on a host, by each thread on a device."""
        program, analysis = self.program, self.text.analysis
        members, own = program.batch or 1, of_members(program)
        times = members // self.lowering.together if self.lowering.gpu else 1  # for what members share
        size = [f.storage.site_bytes // max(f.members_in_memory, 1) for f in fields]
        nodes = list(reachable(effect.value for effect in program.effects))
        loads = {(n.attrs[:2], *(a.number for a in n.args)): n for n in nodes if described(n).reads}.values()
        moved = sum(size[n.attrs[0]] * (members if n.number in own else times) for n in loads)
        least = 0
        for slot in analysis.reads:
            at = [n.args for n in loads if n.attrs[0] == slot]
            named = {args[0].attrs[0] for args in at if args and described(args[0]).constant}
            every = any(not args or not described(args[0]).constant for args in at)
            least += size[slot] * (
                (fields[slot].batch or 1) if every and program.batch else max(len(named), 1)
            )
        written = sum(size[slot] * (fields[slot].batch or 1) for slot in analysis.writes)
        once = sum(described(n).flops(n) for n in nodes if n.number not in own)
        return Cost(members * (analysis.flops - once) + times * once, moved + written, least + written)

    def _item(self, item: Item, binary: Binary) -> Any:
        """Ghosts that are filled with what the item's producer computes at the sender."""
        text = binary.source.kernel
        parameters = np.zeros(FIRST_PARAMETER + len(text.parameters), np.uint64)
        sources, output, counters = [], 0, None
        for k, parameter in enumerate(text.parameters):
            if parameter.what == "field":
                sources.append((FIRST_PARAMETER + k, self.fields[parameter.slot].storage))
            elif parameter.what == "output":
                output = FIRST_PARAMETER + k
            elif parameter.what == "overflow":
                counters = _core.LaunchCounters(self.lattice.gpu, 2)  # as a launch has: the second one counts
                parameters[FIRST_PARAMETER + k] = counters.address
                self.overflow.append(OverflowCount(counters, f"a halo item of {self.program.name}"))
            elif parameter.what == "away":
                parameters[FIRST_PARAMETER + k] = 0  # a sender reads its own sites
            elif parameter.what == "phases":
                windings = self.lattice.windings_of_readers(item.offset)
                of_lanes = np.repeat(np.array(windings, np.int32)[None, :, None], self.layout.lanes, axis=2)
                parameters[FIRST_PARAMETER + k] = self._factors(parameter.slot, of_lanes)
            else:
                parameters[FIRST_PARAMETER + k] = self._address(parameter)
        label = f"halo item of {self.program.name} at {item.offset}"
        return _core.halo_item(
            self.layout,
            list(on_the_wire(item.reals, self.program.precision, self.lowering.wire).memory)
            * (item.batch or 1),
            label,
            binary.address,
            parameters,
            sources,
            output,
            gpu_kernel=binary.function,
            threads=DEFAULT_LAUNCH.threads,
            members=(item.batch or 1) // binary.source.lowered.lowering.together,
            counters=counters,
        )

    def _table(self, group: int, offset: tuple[int, ...], windings: bool) -> Any:
        """A table of sites, held as long as the launch."""
        key = group, offset, windings
        if key not in self.tables:
            self.tables[key] = self.launch_layout.table(*key)
            self._held.append(self.tables[key])
        return self.tables[key]

    def _entries(self, sites: Any) -> int:
        """A table of sites as one of neighbours on the device, where a block is a site. Raises LayoutError."""
        bits = self.lowering.block_bits
        entries = np.ascontiguousarray(sites.lists.reshape(-1, 1 + _core.SiteTable.run_words)[:, 0])
        if len(entries) and int(entries.max()) >> bits:
            raise LayoutError(
                f"{self.program.name}: a rank's box of the other lattice has more than 2^{bits} sites; use more ranks"
            )
        if len(sites.list_classes):
            if int(sites.list_classes.max()) >> (32 - bits):
                raise LayoutError(
                    f"{self.program.name}: offsets lead around the other lattice in too many ways"
                )
            entries = entries | sites.list_classes.astype(np.uint32) << np.uint32(
                bits
            )  # not in the table itself
        memory = self.lattice.gpu.upload(entries, "tables of sites")
        self._held.append(memory)
        return int(memory.address)

    def _address(self, parameter: KernelParameter) -> int:
        if parameter.what == "members":
            return self._members(self.fields[parameter.slot])
        if parameter.what == "blocks":
            return int(self.launch_layout.blocks.nblocks)
        if parameter.what == "first_ghost":
            return int(self.fields[parameter.slot].layout.first_ghost)
        if parameter.what in ("sites", "site_lists", "site_classes"):
            sites = self._table(parameter.slot, parameter.offset, parameter.windings)
            if self.lattice.gpu is not None:
                return self._entries(sites)
            kept = {"sites": sites.entries, "site_lists": sites.lists, "site_classes": sites.list_classes}
            return int(kept[parameter.what].ctypes.data)
        if parameter.what == "phases" and (of_field := self.lowering.tables.get(parameter.slot)):
            return self._factors(parameter.slot, self._table(of_field.group, parameter.offset, True).windings)
        table = self.layout.neighbours(list(parameter.offset), parameter.windings)
        if parameter.what == "differences":
            return int(self.layout.differences_on_device(table))
        if parameter.what == "table":
            if self.lattice.gpu is not None:
                self._held.append(table)
                return int(self.layout.on_device(table, self.lowering.code_bits))
            array = table.entries
        elif parameter.what == "permutations":
            array = table.permutations
        else:
            return self._factors(parameter.slot, table.windings)
        self._held.append(table)
        return int(array.ctypes.data)

    def _members(self, field: Field) -> int:
        """Address of the list of the members that a view has."""
        numbers = np.array(field.listed_members, np.int32)
        self._held.append(numbers)
        if self.lattice.gpu is None:
            return int(numbers.ctypes.data)
        self._held.append(self.lattice.gpu.upload(numbers, "members of a batch"))
        return int(self._held[-1].address)

    def _factors(self, slot: int, windings: np.ndarray) -> int:
        """Address of the boundary factors of a field for these windings, `[class][ndim][lane]`."""
        field = self.fields[slot]
        array = _aligned(field.boundary.factors(field.element, windings, self.program.precision))
        if self.lattice.gpu is not None:
            memory = self.lattice.gpu.upload(array, "boundary factors")
            self._held.append(memory)
            return int(memory.address)
        self._held.append(array)
        return int(array.ctypes.data)


class _ComparedCall:
    """In checked mode, a question that stays open: do all ranks make this launch, which may communicate?"""

    def resolve(self, kernel: BoundKernel) -> bool:
        """Raises ParameterError on every rank if they do not."""
        lattice = kernel.lattice
        checking.compare(
            lattice.communicator.core, {"call": kernel.program.name, "lattice": list(lattice.extents)}
        )
        return False


def _aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins on a cache line, as the kernels' vector loads need it."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    first = -memory.ctypes.data % 64
    out = memory[first : first + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out
