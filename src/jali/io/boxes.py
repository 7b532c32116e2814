"""Boxes of sites, and positioned reading and writing of one record per site.

Files hold one record of fixed size per site in global lexicographic order, the first direction fastest. A
rank owns a box of sites; in the file that is a set of runs of consecutive records, all of one length. Runs
are merged over directions that the box spans entirely, and moved in chunks of a few MiB, so that memory stays
bounded by the caller's own array. Everything uses positioned system calls and 64-bit offsets; no rank moves
another's data.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from jali.errors import FileFormatError, LayoutError

from .parallel import RankGroup

CHUNK_BYTES = 1 << 22
"""Size of the buffer through which records pass (one record at least)."""


@dataclass(frozen=True)
class Box:
    """A box of sites: `origin` is its lowest corner and `extents` its size, first direction (x) first.

    An array on the box has shape `extents` reversed, followed by the shape of the element.
    """

    origin: tuple[int, ...]
    extents: tuple[int, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "origin", tuple(int(o) for o in self.origin))
        object.__setattr__(self, "extents", tuple(int(e) for e in self.extents))
        if len(self.origin) != len(self.extents) or not self.extents:
            raise LayoutError(f"a box needs as many origins as extents, got {self.origin} and {self.extents}")
        if min(self.extents) < 0 or min(self.origin) < 0:
            raise LayoutError(f"origin {self.origin} and extents {self.extents} of a box cannot be negative")

    @classmethod
    def whole(cls, lattice: tuple[int, ...]) -> Box:
        """The box that covers a lattice of these extents."""
        return cls((0,) * len(lattice), tuple(lattice))

    @property
    def volume(self) -> int:
        """Number of sites."""
        return math.prod(self.extents)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an array with one number per site: extents, slowest direction first."""
        return self.extents[::-1]

    def check_inside(self, lattice: tuple[int, ...]) -> None:
        """Raise `LayoutError` unless the box lies within a lattice of these extents."""
        if len(lattice) != len(self.extents):
            raise LayoutError(
                f"a box with {len(self.extents)} directions cannot lie in the lattice {lattice}"
            )
        for d, (o, e, size) in enumerate(zip(self.origin, self.extents, lattice, strict=True)):
            if o + e > size:
                raise LayoutError(
                    f"box with origin {self.origin} and extents {self.extents} leaves the lattice {lattice}: "
                    f"direction {d} would end at {o + e}, the lattice ends at {size}"
                )

    def runs(self, lattice: tuple[int, ...]) -> tuple[NDArray[np.int64], int]:
        """Global numbers of the sites at which runs of consecutive sites begin, in order, and the runs'
        length.
        """
        length, merged = 1, 0
        for extent, size in zip(self.extents, lattice, strict=True):
            length *= extent
            merged += 1
            if extent != size:
                break
        starts = np.zeros(1 if self.volume else 0, dtype=np.int64)
        strides = [math.prod(lattice[:d]) for d in range(len(lattice))]
        for d in reversed(range(len(lattice))):
            span = np.arange(self.extents[d] if d >= merged else min(1, self.extents[d]), dtype=np.int64)
            starts = (starts[:, None] + (span + self.origin[d]) * strides[d]).ravel()
        return starts, length


def boxes_tile(ranks: RankGroup, box: Box, lattice: tuple[int, ...]) -> bool:
    """Whether the boxes of all ranks cover the lattice exactly once (collective)."""
    text = np.array([box.origin, box.extents], dtype=np.int64).tobytes()
    gathered = np.stack([np.frombuffer(t, dtype=np.int64) for t in ranks.gather_bytes(text)])
    low, size = gathered[:, : len(lattice)], gathered[:, len(lattice) :]
    occupied = size.min(axis=1) > 0
    low, high = low[occupied], low[occupied] + size[occupied]
    if sum(math.prod(map(int, row)) for row in size) != math.prod(lattice):
        return False
    for i in range(len(low) - 1):
        meets = (low[i + 1 :] < high[i]) & (low[i] < high[i + 1 :])
        if meets.all(axis=1).any():
            return False
    return True


def site_coordinates(site: int, lattice: tuple[int, ...]) -> tuple[int, ...]:
    """Coordinates of a global site number, first direction first."""
    coordinates = []
    for size in lattice:
        site, c = divmod(site, size)
        coordinates.append(c)
    return tuple(coordinates)


@dataclass(frozen=True)
class SiteRecords:
    """Where the records of a lattice lie in an open file: `record_bytes` bytes per site from `offset` on."""

    path: str
    offset: int
    record_bytes: int
    lattice: tuple[int, ...]

    def read(self, fd: int, box: Box) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.uint8]]]:
        """Yield chunks (position of the first site in the box, global site numbers, records as rows of
        bytes).

        The rows are a view of a buffer that the next chunk overwrites. Raises `FileFormatError` where the
        file ends early.
        """
        buffer = np.empty((self._sites_per_chunk(box), self.record_bytes), dtype=np.uint8)
        for position, sites, pieces in self._chunks(box):
            rows = buffer[: len(sites)]
            for row, first, count in pieces:
                self._read_run(fd, rows[row : row + count].data.cast("B"), first)
            yield position, sites, rows

    def write(
        self,
        fd: int,
        box: Box,
        encode: Callable[[int, int], NDArray[np.uint8]],
        seen: Callable[[NDArray[np.int64], NDArray[np.uint8]], None],
    ) -> None:
        """Write the box's records; `encode(first, last)` gives those of a range of its sites as rows of
        bytes.

        `seen` receives what was written, chunk by chunk (for checksums).
        """
        for position, sites, pieces in self._chunks(box):
            rows = encode(position, position + len(sites))
            for row, first, count in pieces:
                write_all(fd, rows[row : row + count].data.cast("B"), self.offset + first * self.record_bytes)
            seen(sites, rows)

    def sites(self, box: Box) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Chunks of the box as `read` and `write` go through it: position in the box, global site numbers."""
        for position, sites, _ in self._chunks(box):
            yield position, sites

    def _sites_per_chunk(self, box: Box) -> int:
        return max(1, min(box.volume, CHUNK_BYTES // self.record_bytes))

    def _chunks(self, box: Box) -> Iterator[tuple[int, NDArray[np.int64], list[tuple[int, int, int]]]]:
        """Chunks as (position in the box, site numbers, pieces (row in the chunk, first site, number of
        sites)).
        """
        starts, length = box.runs(self.lattice)
        limit = self._sites_per_chunk(box)
        position = 0
        if length > limit:
            for start, begin in product(starts.tolist(), range(0, length, limit)):
                count = min(limit, length - begin)
                first = start + begin
                yield position, np.arange(first, first + count, dtype=np.int64), [(0, first, count)]
                position += count
            return
        together = limit // max(1, length)
        within = np.arange(length, dtype=np.int64)
        for begin in range(0, len(starts), together):
            group = starts[begin : begin + together]
            sites = (group[:, None] + within).ravel()
            yield position, sites, [(i * length, first, length) for i, first in enumerate(group.tolist())]
            position += len(sites)

    def _read_run(self, fd: int, view: memoryview, first: int) -> None:
        at = self.offset + first * self.record_bytes
        while view:
            got = os.preadv(fd, [view], at)
            if got == 0:
                raise FileFormatError(
                    f"{self.path}: truncated: the file ends at offset {at}, its records should reach "
                    f"{self.offset + math.prod(self.lattice) * self.record_bytes}"
                )
            view, at = view[got:], at + got


def write_all(fd: int, data: memoryview | bytes, offset: int) -> None:
    """Write all bytes at an offset, however many calls that takes."""
    view = memoryview(data)
    while view:
        done = os.pwrite(fd, view, offset)
        view, offset = view[done:], offset + done
