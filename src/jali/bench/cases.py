"""The eight collectives as benchmark cases: buffers of a rank, their input and the expected output.

The payload of a case is the size of its largest buffer: p*d bytes, p ranks times the chunk d, where ranks have parts. Data depends on rank,
position and round, so a wrong source, a stale buffer or a chunk in the wrong place shows; all values are small
integers, so any order of summation gives the same bits and results are compared exactly.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "gather",
    "scatter",
    "all_to_all",
)
WHOLE = ("all_reduce", "reduce", "broadcast")  # what counts is a buffer as long on every rank: one chunk
ROOTED = ("broadcast", "reduce", "gather", "scatter")
POISON = 119  # no value of `contribution` has this byte in every place
PERIOD = 509  # prime: a displacement by a power of two, or by a few chunks, is never a multiple of it


def contribution(rank: int, count: int, round_: int, dtype: npt.DTypeLike) -> Array:
    """What a rank puts in: `count` integers from 1 to 62, sums of which are exact in every type for a few ranks."""
    position = np.arange(PERIOD)
    pattern = (position * (2 * rank + 3) + position // 31 + 17 * rank + 5 * (round_ % 7)) % 62 + 1
    return np.resize(pattern.astype(dtype), count)


def chunks_of(collective: str, ranks: int) -> int:
    """Chunks of the largest buffer."""
    return 1 if collective in WHOLE else ranks


def elements_of(collective: str, chunk: int, ranks: int, at_root: bool) -> tuple[int, int]:
    """Elements that a rank sends and receives, 0 where it has no part in that; a broadcast works in what is received."""
    whole = chunks_of(collective, ranks) * chunk
    return {
        "all_reduce": (whole, whole),
        "all_gather": (chunk, whole),
        "reduce_scatter": (whole, chunk),
        "broadcast": (0, whole),
        "reduce": (whole, whole if at_root else 0),
        "gather": (chunk, whole if at_root else 0),
        "scatter": (whole if at_root else 0, chunk),
        "all_to_all": (whole, whole),
    }[collective]


class Case:
    """Buffers of one rank for one collective and payload.

    `send` and `receive` are contiguous arrays, of length 0 where the rank has nothing to send or receive; a broadcast
    works in place, in `receive`. `payload` in bytes is rounded up to whole chunks of at least one element.
    """

    def __init__(
        self,
        collective: str,
        payload: int,
        rank: int,
        size: int,
        root: int = 0,
        dtype: npt.DTypeLike = np.float32,
    ) -> None:
        if collective not in COLLECTIVES:
            raise ValueError(f"collective {collective!r} is not one of {', '.join(COLLECTIVES)}")
        self.collective, self.rank, self.size, self.root = collective, rank, size, root
        self.dtype = np.dtype(dtype)
        self.chunks = chunks_of(collective, size)
        self.chunk = max(1, -(-payload // (self.chunks * self.dtype.itemsize)))
        self.payload = self.chunks * self.chunk * self.dtype.itemsize
        send, receive = elements_of(collective, self.chunk, size, rank == root)
        self.send, self.receive = np.empty(send, self.dtype), np.empty(receive, self.dtype)
        self._ready = [self._what_goes_in_and_comes_out(k) for k in range(2)]

    def _what_goes_in_and_comes_out(self, round_: int) -> tuple[Array, Array]:
        p, n, me = self.size, self.chunk, self.rank
        length = self.chunks * n
        mine = slice(me * n, (me + 1) * n)

        def whole(rank: int) -> Array:
            return contribution(rank, length, round_, self.dtype)

        def chunks() -> Array:
            return np.concatenate([contribution(r, n, round_, self.dtype) for r in range(p)])

        def total(part: slice) -> Array:
            out = np.zeros(len(range(*part.indices(length))), self.dtype)
            for r in range(p):
                out += whole(r)[part]
            return out

        none = np.empty(0, self.dtype)
        match self.collective:
            case "all_reduce":
                return whole(me), total(slice(None))
            case "reduce":
                return whole(me), total(slice(None)) if me == self.root else none
            case "reduce_scatter":
                return whole(me), total(mine)
            case "all_gather":
                return contribution(me, n, round_, self.dtype), chunks()
            case "gather":
                return contribution(me, n, round_, self.dtype), chunks() if me == self.root else none
            case "broadcast":
                return whole(self.root) if me == self.root else none, whole(self.root)
            case "scatter":
                return whole(me) if me == self.root else none, whole(self.root)[mine]
            case _:
                return whole(me), np.concatenate([whole(r)[mine] for r in range(p)])

    def fill(self, round_: int) -> None:
        """Write this round's data into what is sent and poison what is received."""
        data, _ = self._ready[round_ % 2]
        self.receive.view(np.uint8)[:] = POISON
        if self.collective == "broadcast":
            if self.rank == self.root:
                self.receive[:] = data
        else:
            self.send[:] = data

    def wrong(self, round_: int) -> str:
        """What is wrong with the result of this round, in words; empty if it is right."""
        data, expected = self._ready[round_ % 2]
        if not np.array_equal(self.receive, expected):
            bad = np.flatnonzero(self.receive != expected)
            i = int(bad[0])
            return (
                f"{self.collective} of {self.payload} B: rank {self.rank} has {bad.size} of {expected.size} elements "
                f"wrong, first at {i}: {self.receive[i]} instead of {expected[i]}"
            )
        if self.collective != "broadcast" and not np.array_equal(self.send, data):
            return f"{self.collective} of {self.payload} B: rank {self.rank}: what it sent was changed"
        return ""
