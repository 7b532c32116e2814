"""Accesses: how one read or write of a field reaches memory, in the text of a kernel.

A program says which field is read at which offset. The lowering makes an object of each such access, which knows how the field's
sites lie beside those that the kernel visits, and whether a boundary changes what is read. Its class writes the lines.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from jali.codegen.ir import Node, offset_text
from jali.codegen.operation import described
from jali.codegen.packings import ALGEBRA, HERMITIAN, PLAIN
from jali.codegen.storage_formats import Stored

if TYPE_CHECKING:
    from jali.codegen.writer import Writer


class SiteTable(NamedTuple):
    """Tables of sites of fields whose sites lie otherwise than those of the kernel; fields of a group share them."""

    group: int
    lanes: int  # of its layout


@dataclass(frozen=True)
class Access:
    """A field at an offset, seen from the written site. Made by `access_of`."""

    slot: int
    offset: tuple[int, ...]
    phased: bool = False  # a boundary may change what is read
    table: SiteTable | None = None
    in_array: bool = False  # on a device: the field's sites lie as in an array of C order
    members: int = 0  # of a batch, in memory; 0: the field has none
    listed: bool = False  # of these it has some, which a list names
    ghosts_apart: bool = False  # the field's ghosts are not where they would follow the sites of the lattice
    prefetched: bool = False  # on the host: what the next position or member reads here is requested while this one is computed

    def __str__(self) -> str:
        found = [
            type(self).__name__,
            *(name for name in ("phased", "in_array", "ghosts_apart", "prefetched") if getattr(self, name)),
        ]
        if self.table is not None:
            found.append(f"by the tables of sites of group {self.table.group}")
        return f"field {self.slot} at {offset_text(self.offset)} ({', '.join(found)})"

    # ---- reads -----------------------------------------------------------------------------------

    def load(self, w: Writer, node: Node) -> None:
        """The lines that bring the value: numbers from memory, decoded, times the factor of a boundary."""
        storage = w.program.fields[self.slot].storage
        packing = storage.packing
        source = self.operand(w)
        if self.members:
            source = self.member(w, source, node, storage)
        if self.prefetched and not node.args:
            self.prefetch(w, storage)
        late = self.phased and packing not in (
            PLAIN,
            ALGEBRA,
            HERMITIAN,
        )  # the factor is that of what is decoded
        array = self.fetch(w, node, storage, source, self.phased and not late)
        if not packing.decode:
            w.keep_array(node, array)
            return
        decoded = w.result(node)
        w.line(f"{packing.decode}<{storage.element.type.shape[0]}>({decoded}, {array});")
        if late:
            self.apply_factor(w, "phase", node.type.reals, decoded)

    def fetch(self, w: Writer, node: Node, storage: Stored, source: str, factor: bool) -> str:
        """The lines that bring the numbers that are kept, with `factor` times that of a boundary; the array that has them."""
        raise NotImplementedError

    def apply_factor(self, w: Writer, kind: str, reals: int, array: str) -> None:
        """The line that multiplies by the factor of a boundary, a `sign` or a `phase`."""
        raise NotImplementedError

    def prefetch(self, w: Writer, storage: Stored) -> None:
        """The line that requests what is read next: at the next position, of a batch the next member or at the next position the first."""
        source, entry = w.field(self.slot), self.ahead(w, "soon" if self.members else "ahead")
        if self.members:
            member = f"m{w.parameter_of('members', self.slot)}[soon_member]" if self.listed else "soon_member"
            block = f"int64_t({entry} & ENTRY_BLOCK)"
            source = f"member_of<{storage.reals}>({source}, {block}, {self.members}, {member})"
        w.line(f"prefetch<{storage.reals}>({source}, {entry});")

    def ahead(self, w: Writer, position: str) -> str:
        """Where another position reads."""
        return position

    def operand(self, w: Writer) -> str:
        """The field as the dialect loads and stores it: its base pointer, or what is known of an array."""
        if not self.in_array:
            return w.field(self.slot)
        return f"in_array({w.field(self.slot)}, {self.ghosts(w)})"

    def member(self, w: Writer, source: str, node: Node | None, storage: Stored) -> str:
        """The field as it is loaded and stored, moved to the member that a node names, or that is computed."""
        at = self.number_of_member(w, node)
        return f"member_of<{storage.reals}>({source}, {self.block(w)}, {self.members}, {at})"

    def number_of_member(self, w: Writer, node: Node | None) -> str:
        """Its number in memory."""
        member = "member" if w.program.fields[self.slot].batch else "0"
        if node is not None and node.args:
            at = node.args[0]
            known = described(at).constant
            many = w.program.fields[self.slot].batch
            member = (
                str(at.attrs[0]) if known else f"first_lane(floor_mod({w.one(at)}, splat_integer({many})))"
            )
        if self.listed:
            member = f"m{w.parameter_of('members', self.slot)}[{member}]"
        return member

    def block(self, w: Writer) -> str:
        """The number of the block that is read or written."""
        return "x"

    def ghosts(self, w: Writer) -> str:
        """The number of the field's first ghost block, and how far ghosts are away from where they would follow its sites."""
        first, away = (w.parameter_of(what, self.slot) for what in ("first_ghost", "away"))
        return f"(int64_t)w[{first}], (int64_t)w[{away}]"

    def phases(self, w: Writer) -> str:
        """The factors of a boundary."""
        return f"h{w.parameter_of('phases', self.slot, self.offset, True)}"

    def named(self, w: Writer, node: Node, storage: Stored) -> tuple[str, str, str]:
        """The type of the numbers, the name that a value is read by, and what it is in words."""
        ctype = "integer" if node.type.kind == "int" else "real"
        what = f"{w.program.fields[self.slot].name} at {w.program.location(self.offset)}"
        return ctype, f"p{w.number(node)}", what

    # ---- writes ----------------------------------------------------------------------------------

    def store(self, w: Writer, node: Node, storage: Stored, array: str, counted: str) -> None:
        """The line that stores numbers at the kernel's own site; `counted`: an argument that counts those that do not fit."""
        to, reals = self.operand(w), storage.reals
        if self.members:
            to = self.member(w, to, None, storage)
        if self.table is not None:
            to = f"led_by({to}, n{w.parameter_of('sites', self.table.group, self.offset)})"
        if w.multi_site is not None:
            ctype = "integer" if node.type.kind == "int" else "real"
            new_value = w.multi_site.store(f"{w.field(self.slot)}_new", to, reals, ctype, counted)
            w.line(f"copy<{reals}>({new_value}, {array});")
        elif w.lowering.masked:
            w.line(f"store_element_masked<{reals}>({to}, x, {array}, active{counted});")
        else:
            w.line(f"store_element<{reals}>({to}, x, {array}{counted});")


class OwnSite(Access):
    """The site that the kernel computes."""

    def fetch(self, w: Writer, node: Node, storage: Stored, source: str, factor: bool) -> str:
        ctype, name, _ = self.named(w, node, storage)
        reals, copied = storage.reals, storage.widened(w.program.precision) or w.lowering.gpu
        if w.multi_site is not None and w.loop is None:
            w.line(f"const {ctype}* const {name} = {w.multi_site.load(name, source, reals, ctype)};")
        elif factor:  # in the producer of a halo item: what its reader sees across the boundary
            name = w.staged(node, reals)
            if copied:
                w.line(f"block_at<{reals}>({name}, {source}, x);")
            else:
                w.line(f"copy<{reals}>({name}, block_at<{reals}>({source}, x));")
            self.apply_factor(w, kind_of_factor(storage), reals, name)
        elif copied:
            w.line(f"const {ctype}* const {name} = block_at<{reals}>({w.staged(node, reals)}, {source}, x);")
        else:
            w.line(f"const real* const {name} = block_at<{reals}>({source}, x);")
        return name

    def apply_factor(self, w: Writer, kind: str, reals: int, array: str) -> None:
        w.line(f"apply_{kind}<{reals}>({array}, {self.phases(w)});")


class Neighbour(Access):
    """A site that an entry of a table leads to: of neighbours, or on a device of the sites of another layout."""

    def fetch(self, w: Writer, node: Node, storage: Stored, source: str, factor: bool) -> str:
        ctype, name, what = self.named(w, node, storage)
        staged, entry = w.staged(node, storage.reals), self.entry(w, self.phased)
        if self.ghosts_apart:
            source = f"sites_or_ghosts({source}, {self.block(w)}, {self.ghosts(w)})"
        arguments, kind = f"{staged}, {source}, {entry}", ""
        if factor:
            arguments += f", {self.phases(w)}"
            kind = "_phased" if kind_of_factor(storage) == "phase" else "_signed"
        w.line(f"const {ctype}* const {name} = stage{kind}<{storage.reals}>({arguments});  // {what}")
        return name

    def apply_factor(self, w: Writer, kind: str, reals: int, array: str) -> None:
        phases = self.phases(w)
        w.line(f"{kind}_across<{reals}>({array}, {self.entry(w, True)}, {phases});")

    def block(self, w: Writer) -> str:
        return f"int64_t({self.entry(w, self.phased).partition(',')[0]} & ENTRY_BLOCK)"

    def ahead(self, w: Writer, position: str) -> str:
        return f"n{w.parameter_of('table', offset=self.offset, windings=self.phased)}[{position}]"

    def entry(self, w: Writer, windings: bool) -> str:
        """The entry of the table at this position, and where there are lanes their permutations."""
        if self.table is not None:
            return f"n{w.parameter_of('sites', self.table.group, self.offset, windings)}[x]"
        return w.neighbour(self.offset, windings)


class Gathered(Access):
    """Sites of another layout, lane by lane, on the host."""

    def fetch(self, w: Writer, node: Node, storage: Stored, source: str, factor: bool) -> str:
        assert self.table is not None
        ctype, name, what = self.named(w, node, storage)
        reals, staged = storage.reals, w.staged(node, storage.reals)
        sites, ghosts = self.sites(w, self.phased), f"(ghost_location{{{self.ghosts(w)}}})"
        gather = "gather" if storage.format.scalar else "gather_coded"
        arguments = f"{staged}, {source}, {sites}, x, {ghosts}"
        w.line(
            f"const {ctype}* const {name} = {gather}<{self.table.lanes}, {reals}>({arguments});  // {what}"
        )
        if factor:
            self.apply_factor(w, kind_of_factor(storage), reals, staged)
        return name

    def apply_factor(self, w: Writer, kind: str, reals: int, array: str) -> None:
        assert self.table is not None
        classes = w.parameter_of("site_classes", self.table.group, self.offset, True)
        phases = self.phases(w)
        w.line(f"{kind}_sites<{reals}>({array}, {self.sites(w, True)}, c{classes}_, x, {phases});")

    def member(self, w: Writer, source: str, node: Node | None, storage: Stored) -> str:
        return f"member_at({source}, {self.members}, {self.number_of_member(w, node)})"

    def store(self, w: Writer, node: Node, storage: Stored, array: str, counted: str) -> None:
        assert self.table is not None
        to, active = self.operand(w), "active" if w.lowering.masked else "all_lanes(true)"
        if self.members:
            to = self.member(w, to, None, storage)
        scatter = "scatter" if storage.format.scalar else "scatter_coded"
        arguments = f"{to}, {self.sites(w)}, x, {array}, {active}{counted}"
        w.line(f"{scatter}<{self.table.lanes}, {storage.reals}>({arguments});")

    def sites(self, w: Writer, windings: bool = False) -> str:
        """The table of sites at the offset."""
        assert self.table is not None
        entries, lists = (
            w.parameter_of(what, self.table.group, self.offset, windings) for what in ("sites", "site_lists")
        )
        return f"(site_table{{n{entries}, n{lists}}})"


def access_of(slot: int, offset: tuple[int, ...], gpu: bool, **properties: object) -> Access:
    """An access, of the class that its target needs."""
    if properties.get("table") is not None:
        kind: type[Access] = Neighbour if gpu else Gathered
    else:
        kind = Neighbour if any(offset) else OwnSite
    return kind(slot, offset, **properties)  # type: ignore[arg-type]


def kind_of_factor(storage: Stored) -> str:
    """The factor of a boundary that numbers in memory have: a `sign`, or of plain complex numbers a `phase`."""
    complex_ = storage.element.type.kind == "complex" and storage.element.codec == "plain"
    return "phase" if complex_ else "sign"
