"""Which blocks of sites a kernel visits, and how it finds the fields whose sites lie otherwise.

A kernel visits the blocks of its lattice's layout for its precision; where all fields are C-ordered arrays, pieces of their rows.
Fields of that layout are found as they lie. All others, arrays beside fields and fields of vectors of another length, are
found by tables of sites, one for each layout and offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jali import _core
from jali.codegen.writer import Apart
from jali.lattice.field import Field


@dataclass(frozen=True, eq=False)
class Visit:
    """`layout` is that of the launch, `blocks` what its kernel visits: the layout, or rows of arrays. `apart` is by slot, () if
    all fields are of the layout; `groups` are the layouts that tables of sites lead to."""

    layout: Any
    blocks: Any
    apart: tuple[Apart | None, ...] = ()
    groups: tuple[Any, ...] = ()

    @property
    def rows(self) -> Any:
        """The rows of arrays that are visited, if they are."""
        return None if self.blocks is self.layout else self.blocks

    def table(self, group: int, offset: Sequence[int], windings: bool) -> Any:
        """Where the lanes of the visited blocks find fields of a group at an offset. Raises LayoutError."""
        once = [1] * len(offset)
        return _core.SiteTable(self.blocks, self.groups[group], once, once, list(offset), windings)


def visit_of(lattice: Any, fields: Sequence[Field], precision: str) -> Visit:
    """What a kernel that computes in this precision visits."""
    layout = blocks = lattice.layout(precision)
    if fields and all(field.layout.c_order for field in fields):
        layout, blocks = fields[0].layout, lattice.rows(precision)
    groups: list[Any] = []
    apart: list[Apart | None] = []
    for field in fields:
        if field.layout is blocks:
            apart.append(None)
            continue
        if field.layout not in groups:
            groups.append(field.layout)
        apart.append(Apart(groups.index(field.layout), field.layout.lanes))
    return Visit(layout, blocks, tuple(apart) if groups else (), tuple(groups))
