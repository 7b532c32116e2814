"""What `f[...]` from Python means: which sites are asked for, and which of them are on a rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jali.errors import LayoutError

if TYPE_CHECKING:
    from jali.lattice.field import Field


def ranges_of(field: Field, index: Any) -> tuple[list[range], list[bool]]:
    """The sites of a field that an index names, in each direction, and which directions it keeps. Raises LayoutError, IndexError."""
    lattice = field.lattice
    items = index if isinstance(index, tuple) else (index,)
    if len(items) == 1 and items[0] is Ellipsis:
        items = (slice(None),) * lattice.ndim
    if len(items) != lattice.ndim:
        raise LayoutError(f"{field.name} has {lattice.ndim} directions; {len(items)} indices were given")
    ranges, kept = [], []
    for axis, (item, n) in enumerate(zip(items, lattice.extents, strict=True)):
        if isinstance(item, slice):
            try:
                ranges.append(range(n)[item])
            except (TypeError, ValueError) as error:
                raise LayoutError(
                    f"sites are given by numbers and slices, not by {item!r}: {error}"
                ) from None
            kept.append(True)
        elif isinstance(item, int | np.integer) and not isinstance(item, bool):
            if not -n <= item < n:
                raise IndexError(f"coordinate {item} in direction {axis} is outside 0..{n - 1}")
            ranges.append(range(int(item) % n, int(item) % n + 1))
            kept.append(False)
        else:
            raise LayoutError(f"sites are given by numbers and slices, not by {item!r}")
    return ranges, kept


def overlap(ranges: list[range], origin: tuple[int, ...], extents: tuple[int, ...]) -> Any:
    """Indices into the selection and into the box of the sites that are in both; None if there are none."""
    outer, inner = [], []
    for r, o, n in zip(ranges, origin, extents, strict=True):
        hits = [(k, x - o) for k, x in enumerate(r) if o <= x < o + n]
        if not hits:
            return None
        outer.append([h[0] for h in hits])
        inner.append([h[1] for h in hits])
    return np.ix_(*outer), np.ix_(*inner)
