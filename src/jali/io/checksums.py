"""Checksums of site records that do not depend on the order in which the records are seen.

Each class gathers what one rank has read or written; `combined` joins the ranks' parts. Records come as rows
of bytes exactly as stored, together with their global site numbers. Formulas: NERSC and SciDAC archive
conventions, MILC version 5; `MixedSum` is our own, for checkpoints.
"""

from __future__ import annotations

import zlib
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .parallel import RankGroup, sum_over_ranks, xor_over_ranks

_BLOCK_BYTES = 1 << 17  # of records that `MixedSum` goes through at a time: what it computes stays in a cache

Sites = NDArray[np.int64]
Records = NDArray[np.uint8]


class Checksum(Protocol):
    """A partial checksum."""

    def add(self, sites: Sites, records: Records) -> None:
        """Take in records (one row of bytes per site, C order) of these global sites."""

    def combined(self, ranks: RankGroup) -> tuple[int, ...]:
        """The checksum over all ranks (collective)."""


class WordSum:
    """NERSC: sum modulo 2**32 of all 32-bit words, read in the payload's byte order ('>' or '<')."""

    def __init__(self, byte_order: str) -> None:
        self._word = np.dtype(byte_order + "u4")
        self._total = 0

    def add(self, sites: Sites, records: Records) -> None:
        """Add the words of these records; `sites` plays no role."""
        self._total += int(records.reshape(-1).view(self._word).sum(dtype=np.uint64))

    def combined(self, ranks: RankGroup) -> tuple[int, ...]:
        """The 32-bit sum over all ranks."""
        return sum_over_ranks(ranks, [self._total % 2**32], 2**32)


class SiteCrc:
    """SciDAC: exclusive or of each site's CRC-32, rotated left by the site number modulo 29 and modulo 31."""

    def __init__(self) -> None:
        self._sums = [0, 0]

    def add(self, sites: Sites, records: Records) -> None:
        """Take in the CRC of each record."""
        count, size = records.shape
        view = records.reshape(-1).data
        crc = zlib.crc32
        codes = np.fromiter(
            (crc(view[at : at + size]) for at in range(0, count * size, size)), dtype=np.uint32, count=count
        )
        for i, modulus in enumerate((29, 31)):
            self._sums[i] ^= _xor(_rotate_left(codes, sites % modulus))

    def combined(self, ranks: RankGroup) -> tuple[int, ...]:
        """(suma, sumb) over all ranks."""
        return xor_over_ranks(ranks, self._sums)


class RotatedWords:
    """MILC: exclusive or of all 32-bit words, rotated left by the word's index modulo 29 and modulo 31."""

    def __init__(self, byte_order: str) -> None:
        self._word = np.dtype(byte_order + "u4")
        self._sums = [0, 0]

    def add(self, sites: Sites, records: Records) -> None:
        """Take in the words of these records."""
        words = records.view(self._word).astype(np.uint32)
        index = sites[:, None] * words.shape[1] + np.arange(words.shape[1])
        for i, modulus in enumerate((29, 31)):
            self._sums[i] ^= _xor(_rotate_left(words, index % modulus))

    def combined(self, ranks: RankGroup) -> tuple[int, ...]:
        """(sum29, sum31) over all ranks."""
        return xor_over_ranks(ranks, self._sums)


class MixedSum:
    """Checkpoints: sum modulo 2**64 of a bijective mix of every 64-bit word with its position.

    Records are padded with zeros to whole words; word k of site r has position r * words_per_site + k. The
    mix is the finaliser of SplitMix64 (Steele, Lea and Flood 2014), so one changed word always changes the
    sum and any other change escapes with probability 2**-64.
    """

    def __init__(self) -> None:
        self._total = 0

    def add(self, sites: Sites, records: Records) -> None:
        """Take in the words of these records."""
        count, size = records.shape
        step = max(1, _BLOCK_BYTES // size)
        for first in range(0, count, step):
            self._total += _mixed_sum(sites[first : first + step], records[first : first + step])
        self._total %= 2**64

    def combined(self, ranks: RankGroup) -> tuple[int, ...]:
        """The 64-bit sum over all ranks."""
        return sum_over_ranks(ranks, [self._total], 2**64)


def _rotate_left(words: NDArray[np.uint32], by: NDArray[np.int64]) -> NDArray[np.uint32]:
    left = by.astype(np.uint32)
    return (words << left) | (words >> ((np.uint32(32) - left) & np.uint32(31)))


def _xor(words: NDArray[np.uint32]) -> int:
    return int(np.bitwise_xor.reduce(words, axis=None))


def _mixed_sum(sites: Sites, records: Records) -> int:
    """The sum of `MixedSum` over some records."""
    count, size = records.shape
    if size % 8:
        padded = np.zeros((count, size + 8 - size % 8), dtype=np.uint8)
        padded[:, :size] = records
        records = padded
    words = records.view("<u8").astype(np.uint64)
    position = sites.astype(np.uint64)[:, None] * np.uint64(words.shape[1])
    position = position + np.arange(1, words.shape[1] + 1, dtype=np.uint64)
    position *= np.uint64(0x9E3779B97F4A7C15)
    scratch = np.empty_like(position)
    _mix(position, scratch)
    words ^= position
    _mix(words, scratch)
    return int(words.sum(dtype=np.uint64))


def _mix(z: NDArray[np.uint64], scratch: NDArray[np.uint64]) -> None:
    """Mixes the bits of each word where it stands; `scratch` is as large."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        np.right_shift(z, np.uint64(shift), out=scratch)
        z ^= scratch
        z *= np.uint64(factor)
