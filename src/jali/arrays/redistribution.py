"""Gathering and redistribution of arrays, and all-reduces of numbers and arrays. Ghost cells are in `ghosts`.

Every change of layout is one exchange of the intersections of boxes (`jali.arrays.exchange`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import as_sent, namespace_of
from jali.arrays.exchange import BoxExchange
from jali.arrays.layout import Box, Layout, Partition, Shape, shape_of, slices_in
from jali.arrays.replicated import from_rank_0
from jali.comm import Communicator
from jali.errors import LayoutError, ShapeError


def check_replicated(layout: Layout, local: Any) -> None:
    """In checked mode: LayoutError on all ranks where an array that all ranks have is not the same on all. Collective then."""
    ranks = layout.communicator
    if layout.partition is not Partition.BROADCAST or not ranks.checked or ranks.size == 1:
        return
    data = np.ascontiguousarray(namespace_of(local).to_host(local))
    digests = ranks.gather_bytes(hashlib.blake2b(data.tobytes(), digest_size=16).digest(), what="checking")
    others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    if others:
        raise LayoutError(
            f"an array of Partition.BROADCAST differs from that of rank 0 on rank{'s' if len(others) > 1 else ''} "
            f"{', '.join(map(str, others))}: assign to x[...], which takes what rank 0 assigns, not to x.local"
        )


def all_reduce_numbers(group: Communicator, numbers: Sequence[Any], op: str = "sum") -> list[Any]:
    """Numbers of all ranks of a group: their sums, or the reduction `op`. One all-reduce; of long double, a
    gathering."""
    values = np.array(numbers)
    if values.dtype == bool and op == "sum":
        op = "logical_or"  # as products of NumPy's booleans are added
    return list(all_reduce_array(group, values, op))


def all_reduce_array(group: Communicator, values: Any, op: str = "sum") -> Any:
    """As `all_reduce_numbers`, element by element, in a new array."""
    if group.size == 1:
        return values
    if isinstance(values, np.generic):  # of no dimension
        values = np.asarray(values)
    if as_sent(values) is values:
        flat = namespace_of(values).copy(values).reshape(-1)  # of the same library afterwards
        group.all_reduce(flat, flat, op=op)
        return flat.reshape(values.shape)
    texts = group.gather_bytes(values.tobytes(), what="a sum")
    rows = np.stack([np.frombuffer(text, values.dtype).reshape(values.shape) for text in texts])
    return getattr(rows, op)(axis=0)  # long double has no logical operations


def gather(layout: Layout, local: Any, masked: bool = False) -> Any:
    """The whole array on every rank, or with `masked` what the group of this rank has, side by side."""
    namespace = namespace_of(local)
    if not layout.scattered:
        return namespace.copy(local)
    members = layout.members if masked else tuple(range(layout.communicator.size))
    ranks = layout.group if masked else layout.communicator
    boxes = layout.boxes
    sizes = [math.prod(shape_of(boxes[rank])) for rank in members]
    flat = namespace.contiguous(local).reshape(-1)
    if len(members) == 1:
        return namespace.copy(local)
    gathered = namespace.empty_beside(local, (sum(sizes),))
    sent = as_sent(flat)
    each = flat.dtype.itemsize // sent.dtype.itemsize
    ranks.all_gather(sent, as_sent(gathered), counts=[each * n for n in sizes])
    axis = layout.axes[0]
    if len(layout.axes) == 1:
        shapes = [layout.local_shapes[rank] for rank in members]
        extent = sum(shape[axis] for shape in shapes)
        if axis == 0:
            return gathered.reshape((extent, *layout.shape[1:]))
        out = namespace.empty_beside(local, (*layout.shape[:axis], extent, *layout.shape[axis + 1 :]))
        begin = first = 0
        for shape, size in zip(shapes, sizes, strict=True):
            where = (slice(None),) * axis + (slice(first, first + shape[axis]),)
            out[where] = gathered[begin : begin + size].reshape(shape)
            begin, first = begin + size, first + shape[axis]
        return out
    if masked and len(members) < layout.communicator.size:
        raise ShapeError("what a group has of a grid of axes does not lie side by side; take asarray()")
    return _assembled(gathered, [boxes[rank] for rank in members], layout.shape)


def gather_boxes(ranks: Communicator, local: Any, boxes: Sequence[Box], shape: Shape) -> Any:
    """The array of this shape, on every rank, from parts that are these boxes of it, in the order of ranks. Collective."""
    namespace = namespace_of(local)
    flat = namespace.contiguous(local).reshape(-1)
    if ranks.size == 1:
        return flat.reshape(shape)
    counts = [math.prod(shape_of(box)) for box in boxes]
    gathered = namespace.empty_beside(local, (sum(counts),))
    sent = as_sent(flat)
    each = flat.dtype.itemsize // sent.dtype.itemsize
    ranks.all_gather(sent, as_sent(gathered), counts=[each * n for n in counts])
    return _assembled(gathered, boxes, shape)


def _assembled(gathered: Any, boxes: Sequence[Box], shape: Shape) -> Any:
    """From boxes, each flat, one after the other."""
    out = namespace_of(gathered).empty_beside(gathered, shape)
    begin = 0
    for box in boxes:
        size = math.prod(shape_of(box))
        out[tuple(slice(a, b) for a, b in box)] = gathered[begin : begin + size].reshape(shape_of(box))
        begin += size
    return out


def redistribute_part(local: Any, before: Layout, after: Layout) -> Any:
    """This rank's part of the array in another layout. Collective where ranks had parts."""
    namespace = namespace_of(local)
    mine = before.box if before.scattered else tuple((0, n) for n in before.shape)
    if not before.scattered:
        if (before.partition, after.partition) == (Partition.UNSAFE_BROADCAST, Partition.BROADCAST):
            return from_rank_0(after, lambda: namespace.copy(local))
        return namespace.copy(local[slices_in(after.box, mine)])
    if not after.scattered:
        return gather(before, local)
    return redistribute_boxes(local, before.communicator, before.boxes, after.boxes)


def redistribute_boxes(
    local: Any, ranks: Communicator, before: tuple[Box, ...], after: tuple[Box, ...]
) -> Any:
    """This rank's box of `after`, from parts that are the boxes of `before`, which do not overlap. Collective."""
    return BoxExchange(ranks, before, after).run(local)
