"""Ghost cells: pieces of a rank's box that other ranks need; and their adjoint, which adds them up.

Which rank needs what from which is computed once from the boxes of all ranks; a run sends nothing else. Boxes may reach over several
ranks, along several axes; a corner comes from the rank that has it, in the same exchange as everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jali.array_namespaces import namespace_of
from jali.arrays.layout import Box, Layout, common, shape_of, slices_in
from jali.arrays.piece_exchange import PendingExchange, PieceExchange
from jali.arrays.pool import empty
from jali.comm import Communicator
from jali.errors import ShapeError


class GhostExchange:
    """Between ranks that have the boxes `own`, which do not overlap, and need `wanted`.

    Messages go only between ranks whose boxes overlap; a rank that neither needs nor provides ghosts does nothing.
    """

    def __init__(self, ranks: Communicator, own: Sequence[Box], wanted: Sequence[Box]) -> None:
        me = ranks.rank
        self.own, self.wanted = own[me], wanted[me]
        self.from_others = [
            (r, box) for r in range(ranks.size) if r != me and (box := common(own[r], wanted[me]))
        ]
        self.to_others = [
            (r, box) for r in range(ranks.size) if r != me and (box := common(own[me], wanted[r]))
        ]
        self._there = _piece_exchange(ranks, self.own, self.to_others, self.from_others)
        self._back = _piece_exchange(ranks, self.wanted, self.from_others, self.to_others)

    def start(self, local: Any) -> PendingExchange:
        """Send the parts of this rank's own box that others need; receive those that it needs of theirs."""
        return self._there.start(local)

    def start_back(self, extended: Any) -> PendingExchange:
        """Send back the parts of the wanted box that belong to others; received parts are to be added to this rank's
        own box."""
        return self._back.start(extended)


def _piece_exchange(
    ranks: Communicator, of: Box, to: Sequence[tuple[int, Box]], source: Sequence[tuple[int, Box]]
) -> PieceExchange:
    """For arrays that have the box `of`, with boxes as names."""
    return PieceExchange(
        ranks,
        [(rank, slices_in(box, of), shape_of(box)) for rank, box in to],
        [(rank, box, shape_of(box)) for rank, box in source],
    )


def joined(exchange: GhostExchange, local: Any, pending: PendingExchange, out: Any = None) -> Any:
    """The wanted box of this rank as one array, of its own part and the received ones."""
    with pending:
        if out is None:
            out = empty(local, shape_of(exchange.wanted), local.dtype)
        if both := common(exchange.own, exchange.wanted):  # while messages travel
            out[slices_in(both, exchange.wanted)] = local[slices_in(both, exchange.own)]
        with pending.arrived() as pieces:
            for box, data in pieces:
                out[slices_in(box, exchange.wanted)] = data
    return out


def added(exchange: GhostExchange, extended: Any, pending: PendingExchange) -> Any:
    """The adjoint of `joined`: this rank's own part of an extended array, and to it, in the order of ranks, what others had of it."""
    own = exchange.own
    both = common(own, exchange.wanted)
    with pending:
        out = empty(extended, shape_of(own), extended.dtype)
        if both == own:
            out[...] = extended[slices_in(own, exchange.wanted)]
        else:
            out[...] = 0
            if both:
                out[slices_in(both, own)] = extended[slices_in(both, exchange.wanted)]
        with pending.arrived() as pieces:
            for box, data in pieces:
                out[slices_in(box, own)] += data
    return out


def with_ghosts(layout: Layout, local: Any, front: int, back: int) -> Any:
    """See `DistributedArray.add_ghost_cells`."""
    exchange = along_the_split(layout, front, back)
    if exchange is None:
        return namespace_of(local).copy(local)
    return joined(exchange, local, exchange.start(local))


def ghosts_alone(layout: Layout, local: Any, front: int, back: int) -> tuple[Any, Any]:
    """See `DistributedArray.ghost_cells`."""
    exchange = along_the_split(layout, front, back)
    axis = layout.axes[0]
    begin, end = layout.box[axis] if layout.scattered else (0, layout.shape[axis])
    first, last = exchange.wanted[axis] if exchange is not None else (begin, end)
    found = []
    for low, high in ((first, begin), (end, last)):
        shape = list(layout.local_shape)
        shape[axis] = high - low
        found.append(empty(local, tuple(shape), local.dtype))
    if exchange is not None:
        with exchange.start(local).arrived() as pieces:
            for box, data in pieces:
                low, out = (first, found[0]) if box[axis][0] < begin else (end, found[1])
                out[(slice(None),) * axis + (slice(box[axis][0] - low, box[axis][1] - low),)] = data
    return found[0], found[1]


def along_the_split(layout: Layout, front: int, back: int) -> GhostExchange | None:
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
        kept[key] = GhostExchange(layout.communicator, boxes, wanted)
    found: GhostExchange = kept[key]
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
