"""Redistribution as an object that is made once: which rank sends which box to which.

Every rank has a box of an array before and another one afterwards. The intersection of two ranks' boxes is sent; what a rank
keeps is copied at once. Large parts on the host are messages of their own, without copies where a part is contiguous; small
ones, and those of devices, are packed for one all-to-all. With a limit of workspace it works in rounds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import ArrayNamespace, as_sent, namespace_of
from jali.arrays.layout import Box, Shape, Slices, common, shape_of, slices_in
from jali.arrays.piece_exchange import PieceExchange
from jali.arrays.recorded import assign, is_recorded
from jali.comm import Communicator
from jali.errors import ParameterError
from jali.files import value_shown

MESSAGE_BYTES = 16384  # parts of this mean size and more are messages of their own

Finish = Callable[[], None]


def on_host(x: Any) -> np.ndarray | None:
    """The NumPy array that shares memory with this one, where it is in the host's."""
    if type(x) is np.ndarray:
        return x
    if namespace_of(x).name == "torch" and x.device.type == "cpu":
        shared: np.ndarray = x.detach().resolve_conj().resolve_neg().numpy()
        return shared
    return None


def check_workspace(given: Any) -> None:
    """Raise ParameterError for a value that is neither None nor a number of bytes."""
    number = isinstance(given, int | float | np.integer | np.floating) and not isinstance(given, bool)
    if given is not None and not (number and given > 0):
        raise ParameterError(f"a workspace limit is a positive number of bytes, not {value_shown(given)}")


class BoxExchange:
    """From the boxes `before`, one for each rank, which do not overlap, to the boxes `after`.

    `run` is collective. Arrays of `run` have the shapes of this rank's boxes; `within` are larger boxes that they have instead,
    where less than all of them moves: `(before, after)`, None for those that are as they move. `workspace` limits the bytes of
    buffers beside input and output, by rounds; buffers are kept until `forget` with `keep`. Raises ParameterError for a
    workspace that is no positive number.
    """

    def __init__(
        self,
        ranks: Communicator,
        before: Sequence[Box],
        after: Sequence[Box],
        *,
        within: tuple[Sequence[Box] | None, Sequence[Box] | None] = (None, None),
        workspace: int | None = None,
        keep: bool = False,
    ) -> None:
        check_workspace(workspace)
        self.ranks, self.before, self.after, self.workspace = ranks, tuple(before), tuple(after), workspace
        self._within = (within[0] or self.before)[ranks.rank], (within[1] or self.after)[ranks.rank]
        self._buffers: dict[Any, Any] | None = {} if keep else None
        self._rounds: dict[Any, list[Round]] = {}

    @property
    def shape(self) -> Shape:
        """Of the result, on this rank."""
        return shape_of(self._within[1])

    def reversed(self) -> BoxExchange:
        """The way back, of parts that are as they move."""
        return BoxExchange(
            self.ranks, self.after, self.before, workspace=self.workspace, keep=self._buffers is not None
        )

    def forget(self) -> None:
        """Give buffers back."""
        if self._buffers is not None:
            self._buffers.clear()

    def rounds(self, itemsize: int, pieces: int = 1, along: int | None = None) -> list[Round]:
        """The rounds, one after the other: so many pieces of every rank's part `along` a dimension, or so many that none needs
        more than the workspace, or each rank gives one element in each."""
        key = itemsize, pieces, along
        if key not in self._rounds:
            if along is not None:
                found = self._cut([(along, pieces)])
            else:
                most = max((math.prod(shape_of(box)) for box in self.before), default=0)
                wanted = 1
                while True:
                    found = self._cut(self._cuts(wanted))
                    needed = max(one.largest for one in found) * itemsize
                    if self.workspace is None or needed <= self.workspace or wanted >= most:
                        break
                    wanted = min(most, max(wanted + 1, wanted * needed // self.workspace))
            self._rounds[key] = found
        return self._rounds[key]

    def axes_to_cut(self) -> list[int]:
        """Dimensions that parts may be cut along: first those that no rank has a part of afterwards, then the longer ones."""
        ndim = len(self.before[0])
        whole = [len({box[k] for box in self.after if math.prod(shape_of(box))}) <= 1 for k in range(ndim)]
        extents = [self.longest(k) for k in range(ndim)]
        return sorted(
            (k for k in range(ndim) if extents[k] > 1), key=lambda k: (not whole[k], -extents[k], k)
        )

    def shortest(self, axis: int) -> int:
        """The least extent that a rank has of a dimension before, if it has something."""
        return min(
            (box[axis][1] - box[axis][0] for box in self.before if math.prod(shape_of(box))), default=0
        )

    def longest(self, axis: int) -> int:
        """The largest extent that a rank has of a dimension before."""
        return max(box[axis][1] - box[axis][0] for box in self.before)

    def _cuts(self, wanted: int) -> list[tuple[int, int]]:
        cuts: list[tuple[int, int]] = []
        for axis in self.axes_to_cut():
            if wanted <= 1:
                break
            parts = min(wanted, self.longest(axis))
            cuts.append((axis, parts))
            wanted = -(-wanted // parts)
        return cuts

    def _cut(self, cuts: list[tuple[int, int]]) -> list[Round]:
        found = []
        for numbers in itertools.product(*[range(parts) for _, parts in cuts]):
            boxes = []
            for box in self.before:
                piece = list(box)
                for (axis, parts), number in zip(cuts, numbers, strict=True):
                    piece[axis] = chunk(box[axis], parts, number)
                boxes.append(tuple(piece))
            found.append(Round(self.ranks, boxes, self.after, self._within))
        return found

    def pipelined(self, pieces: int, along: int, local: Any, out: Any, before: Any) -> Any:
        """As `run`, in so many pieces `along` a dimension, or as many as it has; `before(where)` makes a piece of `local`, given by its indices, ready while
        the pieces before it are under way. Collective."""
        namespace, begun, memory = namespace_of(local), [], self._memory(local)
        pieces = min(pieces, self.longest(along))
        try:
            for number, one in enumerate(self.rounds(local.dtype.itemsize, pieces, along)):
                before(slices_in(one.before, self._within[0]))
                buffers = None if memory is None else memory.setdefault(number, {})
                begun.append(one.start(namespace, local, out, buffers))
        finally:  # also after an error: the next exchange must not receive these messages
            for finish in begun:
                finish()
        return out

    def run(self, local: Any, out: Any = None) -> Any:
        """This rank's part afterwards, in `out` (C-contiguous, of the shape `shape`) or a new array. Collective."""
        namespace = namespace_of(local)
        if out is None:
            out = namespace.empty_beside(local, self.shape)
        memory = self._memory(local)
        rounds = self.rounds(local.dtype.itemsize)
        for one in rounds:
            one.start(namespace, local, out, memory, len(rounds) > 1)()
        return out

    def _memory(self, local: Any) -> dict[Any, Any] | None:
        """Buffers that are kept; of a graph its own."""
        return {} if is_recorded(local) else self._buffers


def chunk(of: tuple[int, int], parts: int, number: int) -> tuple[int, int]:
    """A part of an interval that is cut into so many, as equal as it goes."""
    begin, end = of
    return begin + (end - begin) * number // parts, begin + (end - begin) * (number + 1) // parts


class Round:
    """One round."""

    def __init__(
        self, ranks: Communicator, before: Sequence[Box], after: Sequence[Box], within: tuple[Box, Box]
    ) -> None:
        self._ranks = ranks
        me, size = ranks.rank, ranks.size
        self.sends: list[tuple[int, Slices, Shape]] = []
        self.receives: list[tuple[int, Slices, Shape]] = []
        self.own: tuple[Slices, Slices] | None = None
        self.before = before[me]
        for k in range(1, size):  # each rank begins with a different one
            for other, parts, a, b, of in (
                ((me + k) % size, self.sends, before[me], after[(me + k) % size], within[0]),
                ((me - k) % size, self.receives, before[(me - k) % size], after[me], within[1]),
            ):
                if (box := common(a, b)) is not None:
                    parts.append((other, slices_in(box, of), shape_of(box)))
        if (box := common(before[me], after[me])) is not None:
            self.own = slices_in(box, within[0]), slices_in(box, within[1])
        self.counts = _counts(before, after)
        parts_there = int(np.count_nonzero(self.counts))
        self._mean = int(self.counts.sum()) // max(1, parts_there)
        self.idle = parts_there == 0  # nothing goes between any two ranks
        self.largest = int(
            (self.counts.sum(0) + self.counts.sum(1)).max()
        )  # elements that a rank sends and receives

    def start(
        self,
        namespace: ArrayNamespace,
        local: Any,
        out: Any,
        buffers: dict[Any, Any] | None,
        shared: bool = False,
    ) -> Finish:
        """Begin; returns a function that waits and unpacks what was received. `shared`: the buffers that are kept are for other rounds too."""
        mine, theirs = on_host(local), on_host(out)
        if self.idle:
            self._copy_own(local if mine is None else mine, out if theirs is None else theirs)
            return _nothing
        if mine is not None and theirs is not None:
            if self._mean * local.dtype.itemsize >= MESSAGE_BYTES:
                return self._messages(mine, theirs, buffers)
            return self._packed(namespace_of(mine), mine, theirs, buffers)
        if buffers is None or shared or is_recorded(local):
            return self._packed(namespace, local, out, buffers)
        return self._between_devices(namespace, local, out, buffers)

    def _copy_own(self, local: Any, out: Any) -> None:
        if self.own is not None:
            assign(out[self.own[1]], local[self.own[0]])

    def _messages(self, local: np.ndarray, out: np.ndarray, buffers: dict[Any, Any] | None) -> Finish:
        ranks = self._ranks.sharing_memory()
        namespace = namespace_of(local)
        under_way: list[Any] = []
        unpack = []
        packed_parts = _PackBuffer(buffers, "received", namespace, out, self.receives)
        for rank, where, shape in self.receives:
            into = target = out[where]
            if not into.flags.c_contiguous:
                into = packed_parts.take(shape)
                unpack.append((target, into))
            under_way.append(ranks.receive(as_sent(into), rank))
        packed_parts = _PackBuffer(buffers, "sent", namespace, local, self.sends)
        for rank, where, shape in self.sends:
            data = local[where]
            if not data.flags.c_contiguous:
                packed = packed_parts.take(shape)
                packed[...] = data
                data = packed
            under_way.append(ranks.send(as_sent(data), rank))
        self._copy_own(local, out)

        def finish() -> None:
            ranks.wait(under_way, "a redistribution")
            for where, data in unpack:
                assign(where, data)

        return finish

    def _packed(
        self, namespace: ArrayNamespace, local: Any, out: Any, buffers: dict[Any, Any] | None
    ) -> Finish:
        sends, receives = sorted(self.sends), sorted(self.receives)
        sent = _PackBuffer(buffers, "sent", namespace, local, sends)
        for _, where, shape in sends:
            assign(sent.take(shape), local[where])
        received = _PackBuffer(buffers, "received", namespace, out, receives)
        out_going, in_coming = as_sent(sent.all()), as_sent(received.all())
        each = local.dtype.itemsize // out_going.dtype.itemsize
        self._ranks.all_to_all(out_going, in_coming, counts=self.counts * each)
        self._copy_own(local, out)

        def finish() -> None:
            for _, where, shape in receives:
                assign(out[where], received.take(shape))

        return finish

    def _between_devices(
        self, namespace: ArrayNamespace, local: Any, out: Any, buffers: dict[Any, Any]
    ) -> Finish:
        """By persistent messages, so that parts are sent while the library continues."""
        messages = buffers.get("messages")
        if messages is None:
            messages = buffers["messages"] = PieceExchange(self._ranks, self.sends, self.receives)
        pending = messages.start(local)
        self._copy_own(local, out)

        def finish() -> None:
            with pending.arrived() as pieces:
                for where, data in pieces:
                    out[where] = data

        return finish


def _nothing() -> None:
    pass


class _PackBuffer:
    """A buffer for packed parts, one after the other: the one that is kept if it is large enough."""

    def __init__(
        self,
        buffers: dict[Any, Any] | None,
        name: str,
        namespace: ArrayNamespace,
        like: Any,
        parts: list[tuple[int, Slices, Shape]],
    ) -> None:
        self._buffers, self._key, self._namespace, self._like = (
            buffers,
            (name, str(like.dtype), namespace.name),
            namespace,
            like,
        )
        self._count = sum(math.prod(shape) for _, _, shape in parts)
        self._at, self._buffer = 0, None

    def all(self) -> Any:
        """All of it, flat."""
        if self._buffer is None:
            found = None if self._buffers is None else self._buffers.get(self._key)
            if found is None or found.shape[0] < self._count:
                found = self._namespace.empty_beside(self._like, (self._count,))
                if self._buffers is not None:
                    self._buffers[self._key] = found
            self._buffer = found[: self._count]
        return self._buffer

    def take(self, shape: Shape) -> Any:
        """The next part of it."""
        begin, self._at = self._at, self._at + math.prod(shape)
        return self.all()[begin : self._at].reshape(shape)


def _counts(before: Sequence[Box], after: Sequence[Box]) -> np.ndarray:
    """Elements sent from each rank to each other one."""
    size = len(before)
    a = np.array(before, np.int64).reshape(size, -1, 2)
    b = np.array(after, np.int64).reshape(size, -1, 2)
    counts = np.ones((size, size), np.int64)
    for k in range(a.shape[1]):
        low = np.maximum(a[:, None, k, 0], b[None, :, k, 0])
        high = np.minimum(a[:, None, k, 1], b[None, :, k, 1])
        counts *= np.maximum(high - low, 0)
    np.fill_diagonal(counts, 0)
    return counts
