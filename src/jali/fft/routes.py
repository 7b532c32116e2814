"""The sequence of layouts in a transform.

An axis is transformed where every rank has it whole. As few exchanges as balance permits: the axes that are still split become
whole, as many at once as leave all ranks busy, and other ones are split instead. Where too few are left (one long dimension), the
axis itself is cut in two: the four-step algorithm (D. H. Bailey, "FFTs in external or hierarchical memory", J. Supercomputing 4
(1990) 23, section 3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from jali.arrays.layout import Layout, Shape, even_split, layout_of

GOOD = 1.1  # a grid whose largest part is so much above the smallest possible is as good
ENOUGH = 1.5  # the same of axes that become whole at once
LONG = 1.5  # largest parts so much above even ones make the four-step algorithm worth while


def is_whole(layout: Layout, axis: int) -> bool:
    """Whether every rank that has anything has all of this axis."""
    if not layout.scattered or axis not in layout.axes:
        return True
    n = layout.shape[axis]
    return all(
        shape[axis] == n or 0 in shape for shape in layout.local_shapes
    )  # a rank with nothing transforms nothing


@cache
def factorizations(ranks: int, axes: int) -> tuple[Shape, ...]:
    """All ways to write the number of ranks as an ordered product."""
    return tuple(_factorizations(ranks, axes))


def _factorizations(ranks: int, axes: int) -> Iterator[Shape]:
    if axes == 0:
        if ranks == 1:
            yield ()
        return
    if axes == 1:
        yield (ranks,)
        return
    for first in range(1, ranks + 1):
        if ranks % first == 0:
            for rest in _factorizations(ranks // first, axes - 1):
                yield (first, *rest)


def _best_grid(layout: Layout, allowed: Sequence[int]) -> tuple[int, dict[int, int]] | None:
    """Parts of each of the allowed axes, and the elements of the largest part."""
    now = dict(zip(layout.axes, layout.grid, strict=True))
    found = []
    for grid in factorizations(layout.communicator.size, len(allowed)):
        parts = {axis: g for axis, g in zip(allowed, grid, strict=True) if g > 1}
        volume = math.prod(-(-n // parts.get(axis, 1)) for axis, n in enumerate(layout.shape))
        moved = sum(now.get(axis) != g for axis, g in parts.items())
        found.append((volume, len(parts), moved, sorted(parts), parts))
    if not found:
        return None
    least = min(volume for volume, *_ in found)
    volume, _, _, _, parts = min(
        (one for one in found if one[0] <= GOOD * least), key=lambda one: (one[1], one[2], one[0], one[3])
    )
    return volume, parts


def _grid_of(layout: Layout, parts: dict[int, int]) -> tuple[Shape, Shape]:
    """Axes and grid with what stays where it was among the ranks, so that rows of a grid of ranks exchange among themselves."""
    new = dict(parts)
    kept_axes: list[int | None] = []
    for axis, g in zip(layout.axes, layout.grid, strict=True):
        kept_axes.append(axis if new.get(axis) == g else None)
        if kept_axes[-1] is not None:
            del new[axis]
    for number, g in enumerate(layout.grid):
        if kept_axes[number] is None:
            same = [axis for axis in sorted(new) if new[axis] == g]
            if same:
                kept_axes[number] = same[0]
                del new[same[0]]
    axes = tuple(axis for axis in kept_axes if axis is not None) + tuple(sorted(new))
    return axes, tuple(parts[axis] for axis in axes)


def cut_in_two(n: int, ranks: int) -> tuple[int, int] | None:
    """n = n1 n2 for the four-step algorithm, so that the largest parts of both ways are smallest; None where no cut spreads it."""
    best = None
    for n1 in range(2, math.isqrt(n) + 1):
        if n % n1 == 0:
            n2 = n // n1
            cost = four_step_volume(n1, n2, ranks)
            aligned = (n1 % ranks != 0) + (n2 % ranks != 0)
            if best is None or (cost, aligned, -n1) < best[0]:
                best = (cost, aligned, -n1), (n1, n2)
    return best[1] if best and best[0][0] < n else None


def four_step_volume(n1: int, n2: int, ranks: int) -> int:
    """Elements of the largest part."""
    return max(-(-n1 // ranks) * n2, -(-n2 // ranks) * n1)


def next_layout(
    layout: Layout, remaining: Sequence[int], must: int | None, lengths: Mapping[int, int]
) -> Layout | int:
    """The next layout, in which an axis of `remaining`, or that which `must` be, becomes whole; or the axis to be cut in two.
    `lengths` are those of transforms where they are not the extents."""
    split = [axis for axis in remaining if not is_whole(layout, axis)]
    candidates = []
    for count in range(len(split), 0, -1):
        for chosen in itertools.combinations(split, count):
            if must is None or must in chosen:
                allowed = [axis for axis in range(layout.ndim) if axis not in chosen]
                if (best := _best_grid(layout, allowed)) is not None:
                    candidates.append(best)
    ranks = layout.communicator.size
    even = -(-math.prod(layout.shape) // ranks)
    least = min((volume for volume, _ in candidates), default=None)
    if least is None or least > LONG * even:
        axis = must if must is not None else max(split, key=lambda a: layout.shape[a])
        cut = cut_in_two(lengths.get(axis, layout.shape[axis]), ranks)
        if cut is not None:
            others = math.prod(layout.shape) // layout.shape[axis]
            if least is None or four_step_volume(*cut, ranks) * others < least:
                return axis
    if least is None:  # on one rank
        (axis,) = range(layout.ndim)
        shapes = [layout.shape] + [(0,)] * (ranks - 1)
        return layout_of(layout.communicator, layout.shape, axis=axis, local_shapes=shapes)
    parts = next(parts for volume, parts in candidates if volume <= ENOUGH * least)
    axes, grid = _grid_of(layout, parts)
    return layout_of(layout.communicator, layout.shape, axis=axes, grid=grid)


def alike(layout: Layout, shape: Shape) -> Layout:
    """The layout of an array of another shape that is split as this one: evenly where extents differ, else as it is."""
    if shape == layout.shape:
        return layout
    if not layout.scattered:
        return layout.with_(shape=shape)
    splits = []
    for number, axis in enumerate(layout.axes):
        if shape[axis] != layout.shape[axis]:
            splits.append(even_split(shape[axis], layout.grid[number]))
        else:
            stride = math.prod(layout.grid[number + 1 :])
            splits.append(
                tuple(
                    layout.local_shapes[coordinate * stride][axis]
                    for coordinate in range(layout.grid[number])
                )
            )
    shapes = []
    for extents in itertools.product(*splits):
        local = list(shape)
        for axis, extent in zip(layout.axes, extents, strict=True):
            local[axis] = extent
        shapes.append(tuple(local))
    return layout_of(
        layout.communicator, shape, axis=layout.axes, grid=layout.grid, local_shapes=tuple(shapes), mask=layout.mask
    )  # fmt: skip


def with_mask(layout: Layout, mask: tuple[object, ...] | None) -> Layout:
    """The same with another mask."""
    if layout.mask == mask:
        return layout
    return layout_of(
        layout.communicator, layout.shape, layout.partition, layout.axes,
        grid=layout.grid if layout.scattered else None, local_shapes=layout.local_shapes, mask=mask,
    )  # fmt: skip
