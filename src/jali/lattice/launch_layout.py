"""Which blocks of sites a kernel visits, and how it finds the fields whose sites lie otherwise.

A kernel visits the blocks of its lattice's layout for its precision; where all fields are C-ordered arrays, pieces of their rows, and
on a device their sites.
Fields of that layout are found as they lie. All others, arrays beside fields, fields of vectors of another length and of another
lattice, are found by tables of sites, one for each layout and offset.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jali import _core
from jali.codegen.accesses import SiteTable
from jali.codegen.storage_formats import Ratio
from jali.errors import LayoutError
from jali.lattice.batches import shared_members
from jali.lattice.field import Field
from jali.lattice.ratio import ratio_of


@dataclass(frozen=True, eq=False)
class LaunchLayout:
    """`layout` is that of the launch, `blocks` what its kernel visits: the layout, or rows of arrays. `indirect` is by slot, () if
    all fields are of the layout; `groups` are the layouts that tables of sites lead to, and how coarse their lattices are."""

    lattice: Any
    layout: Any
    blocks: Any
    indirect: tuple[SiteTable | None, ...] = ()
    groups: tuple[tuple[Any, Ratio], ...] = ()

    @property
    def rows(self) -> Any:
        """The rows of arrays that are visited, if they are."""
        return None if self.blocks is self.layout else self.blocks

    def table(self, group: int, offset: Sequence[int], windings: bool) -> Any:
        """Where the lanes of the visited blocks find fields of a group at an offset. Raises LayoutError."""
        layout, ratio = self.groups[group]
        made = partial(
            _core.SiteTable, self.blocks, layout, ratio.coarser, ratio.finer, list(offset), windings
        )
        if max(*ratio.coarser, *ratio.finer) > 1:  # of another lattice, which may go
            return made()
        return self.lattice.site_table(self.blocks, layout, tuple(offset), windings, made)


def check_arrays(name: str, fields: Sequence[Field], written: Collection[int]) -> None:
    """Raises LayoutError where an array that is written is read-only, or shares memory with that of another field, and where two views of a
    batch have members in common: what is read there would depend on the order of the sites."""
    for slot in written:
        if fields[slot].read_only:
            raise LayoutError(
                f"{name} writes {fields[slot].name}, whose array is read-only: pass a copy of the array"
            )
        for other, field in enumerate(fields):
            mine, theirs = fields[slot].borrowed, field.borrowed
            apart = fields[slot].storage is not field.storage  # members of one array are told apart below
            if apart and mine is not None and theirs is not None and mine.overlaps(theirs):
                raise LayoutError(
                    f"{name} writes {fields[slot].name}, whose array shares memory with that of {field.name}: pass one field for "
                    "both, or a copy of the array"
                )
            if slot != other and (shared := shared_members(fields[slot], field)):
                which = f"member{'s' if len(shared) > 1 else ''} {', '.join(map(str, shared))}"
                raise LayoutError(
                    f"{name} writes {fields[slot].name}, which has {which} in common with {field.name}: what is read there would depend on "
                    "the order; pass a copy of one, f.members[...].copy()"
                )


def launch_layout_of(lattice: Any, fields: Sequence[Field], precision: str) -> LaunchLayout:
    """The launch layout of a kernel that computes in this precision."""
    layout = blocks = lattice.layout(precision)
    own = [field.layout for field in fields if field.lattice is lattice]
    if own and all(each.c_order for each in own):
        layout = own[0]
        blocks = layout if lattice.gpu is not None else lattice.rows(precision)
    one = (1,) * lattice.ndim
    groups: list[tuple[Any, Ratio]] = []
    indirect: list[SiteTable | None] = []
    for field in fields:
        if field.layout is blocks:
            indirect.append(None)
            continue
        group = field.layout, ratio_of(lattice, field.lattice) or Ratio(one, one)
        if group not in groups:
            groups.append(group)
        indirect.append(SiteTable(groups.index(group), field.layout.lanes))
    return LaunchLayout(lattice, layout, blocks, tuple(indirect) if groups else (), tuple(groups))
