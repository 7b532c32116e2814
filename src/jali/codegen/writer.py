"""What the text of an operation may use: the lowering, parameters, values by name, and how fields are loaded.

`Writer` needs from its heir the text and memory of a kernel (`emit.py`): lines, arrays, parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from jali.codegen.ir import Node, SiteProgram
from jali.codegen.packings import ALGEBRA, PLAIN
from jali.codegen.storage_formats import Stored
from jali.codegen.target import BLOCK_BITS

if TYPE_CHECKING:
    from jali.codegen.local_arrays import LocalArrays
    from jali.codegen.passes import Analysis


class IndirectAccess(NamedTuple):
    """Access by tables of sites, to a field whose sites lie otherwise than those of the kernel; fields of a group share tables."""

    group: int
    lanes: int  # of its layout


@dataclass(frozen=True)
class Lowering:
    """How one program is lowered for a lattice, a domain and fields: everything that changes the text and is not physics. Offsets are seen
    from the written site."""

    lanes: int
    block_bits: int = BLOCK_BITS  # of an entry of a neighbour table
    masked: bool = False  # some lanes of some blocks are outside the domain
    phased: frozenset[tuple[int, tuple[int, ...]]] = (
        frozenset()
    )  # (slot, offset) with non-periodic boundaries
    crossing: tuple[
        tuple[int, ...], ...
    ] = ()  # offsets at which neighbours on other ranks may send halo items instead of fields
    wire: str = ""  # the storage format in which they do; "": as reals of the arithmetic
    wraps: frozenset[tuple[int, ...]] = (
        frozenset()
    )  # those of `crossing` whose readers are beyond the lattice's boundary
    in_kernel_reduction: bool = False  # on a GPU: sums are added up by the kernel itself, not by another one
    gpu: bool = False  # a thread of a device computes a site, and loads it into registers
    by_address: frozenset[int] = frozenset()  # scalars whose parameters are addresses of doubles
    multi_site: bool = False  # or several sites (codegen.sites_per_thread)
    prefetched_reads: int = (
        0  # on the host: so many reads of each field, the leading ones, are prefetched one position ahead
    )
    indirect: tuple[IndirectAccess | None, ...] = ()  # by slot; (): none is
    arrays: frozenset[int] = (
        frozenset()
    )  # on a device: slots of fields whose sites lie as in an array of C order
    with_halos: bool = False  # on a device: one launch packs, computes the bulk, waits and computes the boundary (prelude/halos.hpp)
    code_bits: int = 32  # on a device: of an entry of a neighbour table; fewer: of a code for what it differs from its site by


@dataclass(frozen=True)
class KernelParameter:
    """What a parameter of a kernel (8 bytes) holds, from parameter 8 on."""

    what: str  # field, table, differences, permutations, phases, scalar, whole, array, whole_array, array_extent, key, call, blocks, item, output, overflow; of numbers kept, mirror, words; of fields with indirect access (slot: their
    # group) sites, site_lists, site_classes; of these and arrays first_ghost, away
    slot: int = 0
    offset: tuple[int, ...] = ()
    windings: bool = False
    component: int = 0


class Value:
    """A value in the text: an array by name, or one expression per real component."""

    __slots__ = ("_parts", "array", "reals")

    def __init__(self, reals: int, array: str | None = None, parts: list[str] | None = None):
        self.reals = reals
        self.array = array
        self._parts = parts

    @property
    def parts(self) -> list[str]:
        if self._parts is None:
            return [f"{self.array}[{k}]" for k in range(self.reals)]
        return self._parts


class Writer:
    """A kernel that is being written; see the module."""

    program: SiteProgram
    lowering: Lowering
    analysis: Analysis
    values: dict[int, Value]
    loop: int | None
    branch: int | None  # the number of the node that encloses what is written
    depth: int
    position: int
    arrays: LocalArrays
    kept: dict[int, Any]  # names that loops and branches leave behind, by the numbers of their nodes

    # ---- what the heir provides ------------------------------------------------------------------

    def line(self, text: str) -> None:
        raise AssertionError

    def buffer(self, reals: int, owner: Node) -> str:
        raise AssertionError

    def emit(self, node: Node) -> None:
        raise AssertionError

    def value(self, node: Node) -> Value:
        raise AssertionError

    def parts(self, node: Node) -> list[str]:
        raise AssertionError

    def one(self, node: Node) -> str:
        raise AssertionError

    def array(self, node: Node) -> str:
        raise AssertionError

    def assign(self, node: Node, parts: list[str]) -> None:
        raise AssertionError

    def name(self, node: Node, expressions: list[str], ctype: str = "real") -> None:
        raise AssertionError

    def result(self, node: Node) -> str:
        raise AssertionError

    def constant(self, value: float) -> str:
        raise AssertionError

    def number(self, node: Node) -> int:
        raise AssertionError

    def parameter(self, parameter: KernelParameter) -> int:
        raise AssertionError

    def field(self, slot: int) -> str:
        raise AssertionError

    def load_for_all_sites(self, name: str, pointer: str, reals: int, ctype: str = "real") -> str:
        raise AssertionError

    # ---- fields ----------------------------------------------------------------------------------

    def load(self, node: Node) -> None:
        slot, offset = node.attrs
        storage = self.program.fields[slot].storage
        element, reals, packing = storage.element, storage.reals, storage.packing
        name = f"p{self.number(node)}"
        source = self.field_operand(slot)
        phased = (slot, offset) in self.lowering.phased
        indirect = self.indirect(slot)
        late = phased and packing not in (PLAIN, ALGEBRA)  # the factor is that of what is decoded
        complex_factor = element.type.kind == "complex" and element.codec == "plain"
        copied = storage.widened(self.program.precision) or self.lowering.gpu
        whole = node.type.kind == "int"
        ctype = "integer" if whole else "real"
        by_table = any(offset) or indirect is not None  # on a device a table of sites is one of neighbours
        if self.lowering.prefetched_reads and indirect is None:
            self._prefetch(slot, offset, reals)
        if indirect is not None and not self.lowering.gpu:
            staged = self._staged(node, reals, whole)
            table, ghosts = self.sites(indirect, offset, phased), f"(ghost_location{{{self._ghosts(slot)}}})"
            gather = "gather" if storage.format.scalar else "gather_coded"
            self.line(
                f"const {ctype}* const {name} = {gather}<{indirect.lanes}, {reals}>({staged}, {source}, {table}, x, {ghosts});"
                f"  // {self.program.fields[slot].name} at {location_text(self.program, offset)}"
            )
            if phased and not late:
                self._apply_boundary_factors(
                    "phase" if complex_factor else "sign", reals, staged, indirect, slot, offset
                )
        elif not by_table:
            if self.lowering.multi_site and self.loop is None:
                self.line(
                    f"const {ctype}* const {name} = {self.load_for_all_sites(name, source, reals, ctype)};"
                )
            elif (
                phased and not late
            ):  # in the producer of a halo item: what its reader sees across the boundary
                name = self._staged(node, reals, whole)
                if copied:
                    self.line(f"block_at<{reals}>({name}, {source}, x);")
                else:
                    self.line(f"copy<{reals}>({name}, block_at<{reals}>({source}, x));")
                phases = self.parameter(KernelParameter("phases", slot, offset, True))
                self.line(f"apply_{'phase' if complex_factor else 'sign'}<{reals}>({name}, h{phases});")
            elif copied:
                staged = self._staged(node, reals, whole)
                self.line(f"const {ctype}* const {name} = block_at<{reals}>({staged}, {source}, x);")
            else:
                self.line(f"const real* const {name} = block_at<{reals}>({source}, x);")
        else:
            staged = self._staged(node, reals, whole)
            arguments = f"{staged}, {source}, {self.neighbour(offset, phased, indirect)}"
            kind = ""
            if phased and not late:
                phases = self.parameter(KernelParameter("phases", slot, offset, True))
                arguments += f", h{phases}"
                kind = "_phased" if complex_factor else "_signed"
            self.line(
                f"const {ctype}* const {name} = stage{kind}<{reals}>({arguments});  // {self.program.fields[slot].name} at {location_text(self.program, offset)}"
            )
        if not packing.decode:
            self.values[node.number] = Value(node.type.reals, name)
            return
        decoded = self.result(node)
        self.line(f"{packing.decode}<{element.type.shape[0]}>({decoded}, {name});")
        if late and indirect is not None and not self.lowering.gpu:
            self._apply_boundary_factors("phase", node.type.reals, decoded, indirect, slot, offset)
        elif late:
            phases = self.parameter(KernelParameter("phases", slot, offset, True))
            if by_table:
                entry = self.neighbour(offset, True, indirect)
                self.line(f"phase_across<{node.type.reals}>({decoded}, {entry}, h{phases});")
            else:
                self.line(f"apply_phase<{node.type.reals}>({decoded}, h{phases});")

    def indirect(self, slot: int) -> IndirectAccess | None:
        """How a field is accessed whose sites lie otherwise than the kernel's; None: as the kernel's."""
        return self.lowering.indirect[slot] if self.lowering.indirect else None

    def sites(self, indirect: IndirectAccess, offset: tuple[int, ...], windings: bool = False) -> str:
        """The table of sites of a group of fields at an offset."""
        entries = self.parameter(KernelParameter("sites", indirect.group, offset, windings))
        lists = self.parameter(KernelParameter("site_lists", indirect.group, offset, windings))
        return f"(site_table{{n{entries}, n{lists}}})"

    def field_operand(self, slot: int) -> str:
        """A field as the dialect loads and stores it: its base pointer, or what is known of an array."""
        if slot not in self.lowering.arrays:
            return self.field(slot)
        return f"in_array({self.field(slot)}, {self._ghosts(slot)})"

    def _ghosts(self, slot: int) -> str:
        """The number of a field's first ghost, and how far ghosts are away from where they would follow its sites."""
        first = self.parameter(KernelParameter("first_ghost", slot))
        away = self.parameter(KernelParameter("away", slot))
        return f"(int64_t)w[{first}], (int64_t)w[{away}]"

    def _apply_boundary_factors(
        self,
        factor: str,
        reals: int,
        array: str,
        indirect: IndirectAccess,
        slot: int,
        offset: tuple[int, ...],
    ) -> None:
        """Boundary factors of what a table of sites names."""
        classes = self.parameter(KernelParameter("site_classes", indirect.group, offset, True))
        phases = self.parameter(KernelParameter("phases", slot, offset, True))
        table = self.sites(indirect, offset, True)
        self.line(f"{factor}_sites<{reals}>({array}, {table}, c{classes}_, x, h{phases});")

    def _staged(self, node: Node, reals: int, whole: bool) -> str:
        """An array that a field's value is loaded into."""
        if not whole:
            return self.buffer(reals, node)
        name = f"q{self.number(node)}"
        self.line(f"integer {name}[{reals}];")
        return name

    def encoded(self, storage: Stored, node: Node) -> str:
        """The numbers that are kept of a value, as an array."""
        if node.type.kind == "int":
            name = f"q{self.number(node)}_{len(self.values)}_{self.position}"
            self.line(f"const integer {name}[1] = {{{self.one(node)}}};")
            return name
        if not storage.packing.encode:
            return self.array(node)
        packed = self.buffer(storage.reals, node)
        self.line(f"{storage.packing.encode}<{storage.element.type.shape[0]}>({packed}, {self.array(node)});")
        return packed

    def stored(self, node: Node) -> None:
        """What a field holds after a value was written: encoded and decoded."""
        storage = self.program.fields[node.attrs[0]].storage
        packed = self.encoded(storage, node.args[0])
        packing, precision = storage.packing, self.program.precision
        if storage.counts(precision):
            kept = self._staged(node, storage.reals, node.type.kind == "int")
            pointer = storage.pointer(precision, self.lowering.gpu)
            self.line(f"as_stored<{storage.reals}>({kept}, (const {pointer}*)0, {packed});")
            packed = kept
        if packing.decode:
            decoded = self.result(node)
            self.line(f"{packing.decode}<{storage.element.type.shape[0]}>({decoded}, {packed});")
        else:
            self.values[node.number] = Value(node.type.reals, packed)

    def _prefetch(self, slot: int, offset: tuple[int, ...], reals: int) -> None:
        """Prefetches what the next position reads here, if it leads: the order of positions comes to a leading read
        first, and others follow it into the caches. One at a time, since memory answers only so many at once."""
        in_order_of_visits = sorted(self.analysis.reads[slot], key=lambda o: o[::-1])
        if offset not in in_order_of_visits[-self.lowering.prefetched_reads :]:
            return
        entry = "ahead"
        if any(offset):
            phased = (slot, offset) in self.lowering.phased
            entry = f"n{self.parameter(KernelParameter('table', offset=offset, windings=phased))}[ahead]"
        self.line(f"prefetch<{reals}>({self.field(slot)}, {entry});")

    def neighbour(
        self, offset: tuple[int, ...], windings: bool, indirect: IndirectAccess | None = None
    ) -> str:
        """The entry of the neighbour table at this position, and where there are lanes their permutations."""
        if indirect is not None:
            return f"n{self.parameter(KernelParameter('sites', indirect.group, offset, windings))}[x]"
        entry = f"n{self.parameter(KernelParameter('table', offset=offset, windings=windings))}[x]"
        if self.lowering.code_bits < 32:
            codes = self.parameter(KernelParameter("differences", offset=offset, windings=windings))
            return f"(uint32_t(x) + n{codes}[{entry}])"
        if self.lowering.gpu:
            return entry
        return (
            f"{entry}, n{self.parameter(KernelParameter('permutations', offset=offset, windings=windings))}"
        )

    def scope(self, loop: int) -> list[Node]:
        """The nodes that are written together with those of a loop's body, of the branch, or outside of both (-1)."""
        if loop < 0 and self.branch is not None:
            return self.analysis.branches[self.branch]
        return self.analysis.bodies[loop] if loop >= 0 else self.analysis.order


def coordinate_text(axis: int, ndim: int, step: int) -> str:
    text = f"block_coordinate({axis}, {ndim}, coordinates, lane_offsets, blocks_held, x)"
    if step:
        text = f"floor_mod({text} + splat_integer({step}), splat_integer((lane_integer)extents[{axis}]))"
    return text


def location_text(program: SiteProgram, offset: tuple[int, ...]) -> str:
    """An offset, seen from the written site, for a kernel's text: kernels that differ in what arguments decide have one text."""
    return "an offset that arguments decide" if offset in program.given else offset_text(offset)


def offset_text(offset: tuple[int, ...]) -> str:
    """An offset as the user wrote it: `X + e0 - 2e3`."""
    text = "X"
    for axis, n in enumerate(offset):
        if n:
            text += f" {'+' if n > 0 else '-'} {abs(n) if abs(n) != 1 else ''}e{axis}"
    return text
