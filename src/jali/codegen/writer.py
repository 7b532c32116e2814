"""What the text of an operation may use: the lowering, parameters, values by name, and how fields are loaded.

`Writer` needs from its heir the text and memory of a kernel (`emit.py`): lines, arrays, parameters.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jali.codegen.accesses import Access, SiteTable, access_of
from jali.codegen.ir import Node, SiteProgram
from jali.codegen.storage_formats import Stored
from jali.codegen.target import BLOCK_BITS

if TYPE_CHECKING:
    from jali.codegen.local_arrays import LocalArrays
    from jali.codegen.passes import Analysis
    from jali.codegen.sites_per_thread import SitesPerThread


@dataclass(frozen=True)
class Lowering:
    """How one program is lowered for a lattice, a domain and fields: everything that changes the text and is not physics. Offsets are seen
    from the written site."""

    # ---- the target, and how its layout keeps sites ----
    lanes: int
    block_bits: int = BLOCK_BITS  # of an entry of a neighbour table
    gpu: bool = False  # a thread of a device computes a site, and loads it into registers
    # On a device: of an entry of a neighbour table; fewer: of a code for what it differs from its site by.
    code_bits: int = 32

    # ---- the domain ----
    masked: bool = False  # some lanes of some blocks are outside of it

    # ---- fields and numbers ----
    accesses: frozenset[Access] = frozenset()  # those that are not here are the plainest of their target
    by_address: frozenset[int] = frozenset()  # scalars whose parameters are addresses of doubles

    # ---- messages ----
    # Offsets at which neighbours on other ranks may send halo items instead of fields, and those of them whose readers are beyond
    # the lattice's boundary.
    crossing: tuple[tuple[int, ...], ...] = ()
    wraps: frozenset[tuple[int, ...]] = frozenset()
    wire: str = ""  # the storage format of halo items; "": as reals of the arithmetic

    # ---- the launch and its end, on a device ----
    together: int = 1  # members that a thread computes at a time (codegen.members_together)
    multi_site: bool = False  # a thread computes several sites (codegen.sites_per_thread)
    # One launch packs, computes the bulk, waits and computes the boundary (prelude/halos.hpp).
    with_halos: bool = False
    in_kernel_reduction: bool = False  # sums are added up by the kernel itself, not by another one

    @functools.cached_property
    def _by_place(self) -> dict[tuple[int, tuple[int, ...]], Access]:
        return {(access.slot, access.offset): access for access in self.accesses}

    def access(self, slot: int, offset: tuple[int, ...]) -> Access:
        """That of a field at an offset."""
        return self._by_place.get((slot, offset)) or access_of(slot, offset, self.gpu)

    @functools.cached_property
    def tables(self) -> dict[int, SiteTable]:
        """Tables of sites, by the slots of the fields that are found by them."""
        return {access.slot: access.table for access in self.accesses if access.table is not None}

    @property
    def prefetches(self) -> bool:
        """Whether anything is requested for the next position."""
        return any(access.prefetched for access in self.accesses)


@dataclass(frozen=True)
class KernelParameter:
    """What a parameter of a kernel (8 bytes) holds, from parameter 8 on."""

    # field, table, differences, permutations, phases, scalar, whole, array, whole_array, array_extent, key, call, blocks, item, output,
    # overflow, members; of numbers kept, mirror, words; of fields found by tables (slot: their group) sites, site_lists, site_classes; of
    # these and arrays first_ghost, away
    what: str
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
    not_shared: frozenset[int]  # the numbers of values that each member of a batch has for itself
    values: dict[int, Value]
    loop: int | None
    branch: int | None  # the number of the node that encloses what is written
    depth: int
    position: int
    arrays: LocalArrays
    multi_site: SitesPerThread | None
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

    # ---- fields ----------------------------------------------------------------------------------

    def load(self, node: Node) -> None:
        self.lowering.access(*node.attrs[:2]).load(self, node)

    def parameter_of(
        self,
        what: str,
        slot: int = 0,
        offset: tuple[int, ...] = (),
        windings: bool = False,
        component: int = 0,
    ) -> int:
        """The number of a parameter."""
        return self.parameter(KernelParameter(what, slot, offset, windings, component))

    def coordinate(self, axis: int, step: int) -> str:
        """A global coordinate of the site that is `step` further along the axis."""
        ndim = self.program.ndim
        text = f"block_coordinate({axis}, {ndim}, coordinates, lane_offsets, blocks_held, x)"
        if step:
            text = f"floor_mod({text} + splat_integer({step}), splat_integer((lane_integer)extents[{axis}]))"
        return text

    def keep_array(self, node: Node, array: str) -> None:
        """An array has the value."""
        self.values[node.number] = Value(node.type.reals, array)

    def staged(self, node: Node, reals: int) -> str:
        """An array that a field's value is loaded into."""
        if node.type.kind != "int":
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
            kept = self.staged(node, storage.reals)
            pointer = storage.pointer(precision, self.lowering.gpu)
            self.line(f"as_stored<{storage.reals}>({kept}, (const {pointer}*)0, {packed});")
            packed = kept
        if packing.decode:
            decoded = self.result(node)
            self.line(f"{packing.decode}<{storage.element.type.shape[0]}>({decoded}, {packed});")
        else:
            self.keep_array(node, packed)

    def neighbour(self, offset: tuple[int, ...], windings: bool) -> str:
        """The entry of the neighbour table at this position, and where there are lanes their permutations."""
        entry = f"n{self.parameter(KernelParameter('table', offset=offset, windings=windings))}[x]"
        if self.lowering.code_bits < 32:
            codes = self.parameter(KernelParameter("differences", offset=offset, windings=windings))
            return f"(uint32_t(x) + n{codes}[{entry}])"
        if self.lowering.gpu:
            return entry
        return (
            f"{entry}, n{self.parameter(KernelParameter('permutations', offset=offset, windings=windings))}"
        )

    def count_failures(
        self, node: Node, failed: str, arguments: int, number: str, value: str, before: str = ""
    ) -> None:
        """Counts sites at which an operation of so many arguments fails and its value is used. `failed` is the mask of all that fail; in the
        rare case `before` is executed, and `number` and `value` are those of the pivot."""
        masks = [failed, *map(self.one, node.args[arguments:])]
        masks += ["active"] if self.lowering.masked else []
        masks += [f"~done{self.loop}"] if self.loop is not None and self.loop >= 0 else []
        name, first = f"failed{self.number(node)}", 2 + 2 * self.analysis.failing.index(node)
        where, once = "coordinates, lane_offsets, extents, blocks_held, x", ""
        if self.program.batch and node.number in self.not_shared:
            where += f", {self.program.batch}, member"
        elif self.program.batch and self.lowering.gpu:  # threads of all members compute it
            once = "if (member == 0) "
        self.line(f"const mask {name} = {' & '.join(masks)};")
        self.line(f"if (!JALI_LIKELY(!any({name}))) {{")
        self.line(
            f"    {before}{once}count_pivots<{self.program.ndim}>(counters + {first}, {name}, {number}, {value}, {where});"
        )
        self.line("}")

    def scope(self, loop: int) -> list[Node]:
        """The nodes that are written together with those of a loop's body, of the branch, or outside of both (-1)."""
        if loop < 0 and self.branch is not None:
            return self.analysis.branches[self.branch]
        return self.analysis.bodies[loop] if loop >= 0 else self.analysis.order
