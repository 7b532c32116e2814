"""Pieces of a rank's box that other ranks want, and the way back, where they are added up: ghost cells and their adjoint.

Who wants what of whom is a plan, made once from the boxes of all ranks; nothing is told when it runs. Boxes may reach over several
ranks, along several axes; a corner comes from the rank that has it, in the same exchange as everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.arrays.exchange import common, slices_in
from jali.arrays.layout import Box, Layout, shape_of
from jali.arrays.libraries import library_of, numpy_dtype
from jali.comm import Communicator
from jali.errors import ShapeError

Piece = tuple[Box, Any]


class Exchange:
    """Between ranks that have the boxes `own`, which do not overlap, and want `wanted`.

    Messages go between those ranks whose boxes meet, and only those; a rank that has all it wants, of which nobody wants anything,
    does nothing.
    """

    def __init__(self, ranks: Communicator, own: Sequence[Box], wanted: Sequence[Box]) -> None:
        me = ranks.rank
        self.ranks, self.own, self.wanted = ranks, own[me], wanted[me]
        self.from_others = [
            (r, box) for r in range(ranks.size) if r != me and (box := common(own[r], wanted[me]))
        ]
        self.to_others = [
            (r, box) for r in range(ranks.size) if r != me and (box := common(own[me], wanted[r]))
        ]

    def start(self, local: Any) -> Transit:
        """Send what others want of this rank's own box; what comes is what it wants of theirs."""
        return Transit(self.ranks, local, self.own, self.to_others, self.from_others)

    def start_back(self, extended: Any) -> Transit:
        """Send back, of the box that was wanted, what is others'; what comes is for this rank's own box, to be added."""
        return Transit(self.ranks, extended, self.wanted, self.from_others, self.to_others)


class Transit:
    """Messages under way; the array that they are sent from stays as it is until `wait` has returned."""

    def __init__(
        self, ranks: Communicator, array: Any, of: Box, to: Sequence[tuple[int, Box]], source: Sequence[tuple[int, Box]]
    ) -> None:  # fmt: skip
        library = library_of(array)
        self._array, self._library = array, library
        on_host = library.name == "numpy"
        dtype = numpy_dtype(array)
        self._ranks = ranks.sharing_memory() if ranks.size > 1 else ranks
        self._under_way, self._sent = [], []
        self._pieces: list[Piece] = []
        for rank, box in source:
            into = np.empty(shape_of(box), dtype)
            self._under_way.append(self._ranks.receive(into, rank))
            self._pieces.append((box, into))
        for rank, box in to:
            piece = array[slices_in(box, of)]
            data = np.ascontiguousarray(piece if on_host else library.to_host(piece))
            self._sent.append(data)
            self._under_way.append(self._ranks.send(data, rank))

    def wait(self) -> list[Piece]:
        """What has come: boxes and arrays, in the order of ranks."""
        if self._under_way:
            self._ranks.wait(self._under_way, "ghost cells")
            self._under_way = []
        if self._library.name == "numpy":
            return self._pieces
        return [(box, self._library.from_host(data, self._array)) for box, data in self._pieces]


def joined(exchange: Exchange, local: Any, transit: Transit, out: Any = None) -> Any:
    """The box that this rank wants as one array, of its own part and of what comes."""
    if out is None:
        out = library_of(local).empty(shape_of(exchange.wanted), local.dtype)
    out[slices_in(exchange.own, exchange.wanted)] = local  # while messages travel
    for box, data in transit.wait():
        out[slices_in(box, exchange.wanted)] = data
    return out


def added(exchange: Exchange, extended: Any, transit: Transit) -> Any:
    """The adjoint of `joined`: this rank's own part of an extended array, and to it, in the order of ranks, what others had of it."""
    out = library_of(extended).copy(extended[slices_in(exchange.own, exchange.wanted)])
    for box, data in transit.wait():
        out[slices_in(box, exchange.own)] += data
    return out


def with_ghosts(layout: Layout, local: Any, front: int, back: int) -> Any:
    """See `DistributedArray.add_ghost_cells`."""
    exchange = along_the_split(layout, front, back)
    if exchange is None:
        return library_of(local).copy(local)
    return joined(exchange, local, exchange.start(local))


def ghosts_alone(layout: Layout, local: Any, front: int, back: int) -> tuple[Any, Any]:
    """See `DistributedArray.ghost_cells`."""
    exchange = along_the_split(layout, front, back)
    axis, library = layout.axes[0], library_of(local)
    found = []
    pieces = exchange.start(local).wait() if exchange is not None else []
    begin, end = layout.box[axis] if layout.scattered else (0, layout.shape[axis])
    first, last = exchange.wanted[axis] if exchange is not None else (begin, end)
    for low, high in ((first, begin), (end, last)):
        mine = [(box, data) for box, data in pieces if low <= box[axis][0] < high]
        if len(mine) == 1:
            found.append(mine[0][1])
            continue
        shape = list(layout.local_shape)
        shape[axis] = high - low
        out = library.empty(tuple(shape), local.dtype)
        for box, data in mine:
            out[(slice(None),) * axis + (slice(box[axis][0] - low, box[axis][1] - low),)] = data
        found.append(out)
    return found[0], found[1]


def along_the_split(layout: Layout, front: int, back: int) -> Exchange | None:
    """Of so many cells in front and behind along the axis that is split, within the whole, or within a group of a mask; None where
    every rank has all. The same object for the same arguments."""
    if len(layout.axes) != 1:
        raise ShapeError(
            f"ghost cells lie along one axis, this array is split along {layout.axes}; jali.linops.Halo does several"
        )
    if front < 0 or back < 0:
        raise ShapeError(f"numbers of ghost cells are not negative: {front} in front, {back} behind")
    if not layout.scattered:
        return None
    kept = layout.communicator.kept.setdefault("ghost cells of arrays", {})
    key = (layout, front, back)
    if key not in kept:
        if len(kept) >= 256:
            kept.clear()
        axis, boxes, wanted = layout.axes[0], layout.boxes, []
        for rank, box in enumerate(boxes):
            low, high = _reach_of_group(layout, rank)
            wanted.append(extended(box, axis, front, back, low, high))
        kept[key] = Exchange(layout.communicator, boxes, wanted)
    found: Exchange = kept[key]
    return found


def extended(box: Box, axis: int, front: int, back: int, low: int, high: int) -> Box:
    """A box that is so much longer along an axis, not beyond `low` and `high`."""
    begin, end = box[axis]
    longer = max(low, begin - front), min(high, end + back)
    return (*box[:axis], longer, *box[axis + 1 :])


def _reach_of_group(layout: Layout, rank: int) -> tuple[int, int]:
    """From where to where the ranks beside this one are of its group."""
    axis, boxes, mask = layout.axes[0], layout.boxes, layout.mask
    if mask is None:
        return 0, layout.shape[axis]
    first = last = rank
    while first > 0 and mask[first - 1] == mask[rank]:
        first -= 1
    while last + 1 < len(mask) and mask[last + 1] == mask[rank]:
        last += 1
    return boxes[first][axis][0], boxes[last][axis][1]
