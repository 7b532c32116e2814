"""Opening a gauge configuration of any format, and reading a box of it.

The format is recognised by content. Opening reads the header and compares it with the file's size; reading
moves only the caller's box and verifies the checksum, which the ranks compute together on the way. Every
failure is a `FileFormatError` (or the system's `OSError`) on all ranks.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Sequence
from decimal import Decimal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jali.amounts import counted
from jali.errors import FileFormatError, ParameterError
from jali.files import checked_path, reading, require_memory, shown

from .boxes import Box, SiteRecords, boxes_tile, site_coordinates
from .checksums import Checksum
from .formats import RECOGNISED_BY, Format, formats, milc
from .links import DIRECTIONS, Contents, Expected, first_non_finite
from .parallel import RankGroup, SingleRank, together
from .writing import explained

_NORM_TOLERANCE = 1e-2
_HEADER_TOLERANCE = {32: 1e-5, 64: 1e-9}
_COARSEST_DIGIT = 1e-4
UNVERIFIED = "--ignore-checksum (verify=False in Python) takes the links as they are"


def recognise(path: str | os.PathLike[str]) -> str:
    """Format of a file by its first bytes: "nersc", "lime" (ILDG, SciDAC), "milc", another of `jali.io.formats`, or "openqcd".

    Raises `FileFormatError` for anything else and `OSError` if the file cannot be read.
    """
    name = checked_path(path)
    with explained(f"cannot read {shown(name)}"), reading(name) as fd:
        found = _recognise(name, fd, os.fstat(fd).st_size)
    return found.name if isinstance(found, Format) else found


def open_configuration(
    path: str | os.PathLike[str],
    *,
    lattice: Sequence[int] | None = None,
    group: str | int | None = None,
    precision: int | None = None,
    ranks: RankGroup | None = None,
) -> ConfigurationFile:
    """Open a NERSC, ILDG, SciDAC or MILC v5 file and read its header (collective over `ranks`).

    `lattice` (x, y, z, t), `group` ("SU2", "SU(3)", "U1" or N) and `precision` (32, 64) are needed only where
    the file lacks them; otherwise they must agree with it. Descriptions that cannot be read but are not needed
    either are among the `warnings` of what is returned.

    Raises `FileFormatError` if the header and the size of the file make no sense, `ParameterError` for
    impossible arguments, `OSError` if the file cannot be read.
    """
    ranks = ranks or SingleRank()
    with together(ranks):
        name = checked_path(path)
        expected = Expected.checked(lattice, group, precision)
        with explained(f"cannot read {shown(name)}"), reading(name) as fd:
            contents = _parse(name, fd, os.fstat(fd).st_size, expected)
    views = ranks.gather_bytes(repr((contents.records, contents.storage, contents.checksum)).encode())
    if len(set(views)) > 1:
        raise FileFormatError(f"{name}: the ranks see different files under this name")
    return ConfigurationFile(contents, ranks)


class ConfigurationFile:
    """A configuration file whose header has been read; nothing stays open."""

    def __init__(self, contents: Contents, ranks: RankGroup) -> None:
        self._contents = contents
        self._ranks = ranks

    @property
    def path(self) -> str:
        """Name of the file."""
        return self._contents.records.path

    @property
    def format(self) -> str:
        """ "nersc", "ildg", "scidac" or "milc"."""
        return self._contents.format

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the lattice (x, y, z, t)."""
        return self._contents.records.lattice

    @property
    def group_size(self) -> int:
        """n of the n x n link matrices."""
        return self._contents.storage.n

    @property
    def rows(self) -> int:
        """Rows of each matrix in the file (2 in two-row NERSC files, n otherwise)."""
        return self._contents.storage.rows

    @property
    def precision(self) -> int:
        """Bits of a real number in the file."""
        return self._contents.storage.precision

    @property
    def byte_order(self) -> str:
        """ "big" or "little"."""
        return "big" if self._contents.storage.byte_order == ">" else "little"

    @property
    def header(self) -> dict[str, str]:
        """The header as found: NERSC keys, texts of LIME records by type, or MILC's time stamp."""
        return dict(self._contents.header)

    @property
    def metadata(self) -> dict[str, str]:
        """The header's metadata beyond the payload's description, in a form that the writers accept."""
        return dict(self._contents.metadata)

    @property
    def plaquette(self) -> float | None:
        """Plaquette according to the header (mean Re tr P / n), if it has one."""
        return None if self._contents.plaquette is None else float(self._contents.plaquette)

    @property
    def link_trace(self) -> float | None:
        """Link trace according to the header (mean Re tr U / n), if it has one."""
        return None if self._contents.link_trace is None else float(self._contents.link_trace)

    @property
    def checksum_kind(self) -> str | None:
        """ "nersc", "scidac" or "milc"; None if the file carries no checksum."""
        return self._contents.checksum_kind

    @property
    def checksum(self) -> tuple[int, ...]:
        """The checksum according to the file: one number (NERSC), two (SciDAC, MILC) or none."""
        return self._contents.checksum

    @property
    def warnings(self) -> tuple[str, ...]:
        """Faults of the file that do not prevent reading it: one sentence each, with the file's name."""
        return self._contents.warnings

    def read(self, box: Box | None = None, *, verify: bool = True, dtype: DTypeLike | None = None) -> NDArray:
        """Read the links of a box, the whole lattice by default (collective).

        Returns (t, z, y, x, 4, n, n) complex, of the file's precision unless `dtype` is complex64 or
        complex128. Two-row matrices are completed.

        With `verify`, the checksum is compared: on the way if the boxes of all ranks cover the lattice once,
        else by an additional pass over the payload that the ranks share. Files without checksum are checked
        for rows of norm 1, which catches a wrong lattice or precision. Numbers that are not finite are always
        refused. Without `verify` the checksum is ignored.

        Raises `FileFormatError` naming expected and found values and the position, `ParameterError` where the box does
        not fit into memory; the same on all ranks.
        """
        records, storage, ranks = self._contents.records, self._contents.storage, self._ranks
        with together(ranks):
            box = Box.whole(records.lattice) if box is None else box
            box.check_inside(records.lattice)
            kind = np.dtype(
                (np.complex64 if storage.precision == 32 else np.complex128) if dtype is None else dtype
            )
            if kind not in (np.complex64, np.complex128):
                raise ParameterError(f"links can be read as complex64 or complex128, not as {kind}")
            if verify and self._contents.checksum_fault:
                raise FileFormatError(f"{self._contents.checksum_fault}; {UNVERIFIED}")
            require_memory(
                f"{self.path}: the links of {counted(box.volume, 'site')}",
                box.volume * DIRECTIONS * storage.n**2 * kind.itemsize,
            )
        checksum = self._contents.new_checksum() if verify else None
        tiled = boxes_tile(ranks, box, records.lattice) if checksum else True
        with together(ranks), explained(f"cannot read {self.path}"), reading(self.path) as fd:
            links = np.empty((box.volume, DIRECTIONS, storage.n, storage.n), dtype=kind)
            for position, sites, rows in records.read(fd, box):
                if checksum and tiled:
                    checksum.add(sites, rows)
                chunk = links[position : position + len(sites)]
                storage.decode(rows, chunk)
                self._check_numbers(chunk, sites, norms=verify and checksum is None)
        if checksum and not tiled:
            self._add_share(checksum, records)
        if checksum:
            self._compare(checksum)
        return links.reshape(*box.shape, DIRECTIONS, storage.n, storage.n)

    def header_mismatch(self, plaquette: float, link_trace: float, *, precision: int = 64) -> str | None:
        """Faults of the header, given plaquette and link trace computed from the links; None if they agree.

        Tolerance 1e-9 for 64-bit files and 1e-5 for 32-bit files and values computed in a `precision` of 32 bits,
        or one unit of the last printed digit (at most 1e-4) if that is coarser. Values that the header lacks are not
        compared.
        """
        complaints = []
        for name, computed, printed in (
            ("plaquette", plaquette, self._contents.plaquette),
            ("link trace", link_trace, self._contents.link_trace),
        ):
            if printed is None:
                continue
            exponent = Decimal(printed).as_tuple().exponent
            digit = 10.0 ** min(0, exponent) if isinstance(exponent, int) else 0.0
            tolerance = max(_HEADER_TOLERANCE[min(self.precision, precision)], min(digit, _COARSEST_DIGIT))
            difference = abs(computed - float(printed))
            if not difference <= tolerance:
                complaints.append(
                    f"{name} is {computed:.12f}, the header says {printed} (difference {difference:.2e}, "
                    f"allowed {tolerance:.0e})"
                )
                if abs(self.group_size * computed - float(printed)) <= 3 * tolerance:
                    complaints.append(
                        f"the header's value is {self.group_size} times ours: another normalisation?"
                    )
        if not complaints:
            return None
        return (
            f"{self.path}: {'; '.join(complaints)}; open_configuration(path).read() has the links as they are"
        )

    def _check_numbers(self, links: NDArray, sites: NDArray[np.int64], norms: bool) -> None:
        hint = "; the file has no checksum: wrong lattice, group or precision, or damaged" if norms else ""
        bad = first_non_finite(links)
        if bad:
            site, mu, value = bad
            location = self._location(int(sites[site]), mu)
            raise FileFormatError(f"{self.path}: {location} holds {value}, which is not finite{hint}")
        if not norms:
            return
        reals = links.view(links.real.dtype)
        with np.errstate(over="ignore"):
            norm = np.einsum("smrk,smrk->smr", reals, reals)
            wrong = np.argwhere(~(np.abs(norm - 1) < _NORM_TOLERANCE))
        if len(wrong):
            site, mu, row = (int(i) for i in wrong[0])
            location, found = self._location(int(sites[site]), mu), norm[site, mu, row]
            raise FileFormatError(
                f"{self.path}: {location} has a row of squared norm {found:.3g}, expected 1{hint}"
            )

    def _location(self, site: int, mu: int) -> str:
        storage, records = self._contents.storage, self._contents.records
        offset = records.offset + site * records.record_bytes + mu * storage.link_bytes
        where = site_coordinates(site, records.lattice)
        return f"link at (x, y, z, t) = {where}, direction {mu} (offset {offset})"

    def _add_share(self, checksum: Checksum, records: SiteRecords) -> None:
        """Take this rank's even share of the whole payload into the checksum."""
        volume = math.prod(records.lattice)
        first, last = (volume * r // self._ranks.size for r in (self._ranks.rank, self._ranks.rank + 1))
        line = SiteRecords(records.path, records.offset, records.record_bytes, (volume,))
        with (
            together(self._ranks),
            explained(f"cannot read {self.path}"),
            reading(self.path) as fd,
        ):
            for _, sites, rows in line.read(fd, Box((first,), (last - first,))):
                checksum.add(sites, rows)

    def _compare(self, checksum: Checksum) -> None:
        found, expected = checksum.combined(self._ranks), self._contents.checksum
        if found != expected:
            records = self._contents.records
            end = records.offset + math.prod(records.lattice) * records.record_bytes
            raise FileFormatError(
                f"{self.path}: {self.checksum_kind} checksum of the payload (offsets {records.offset} to "
                f"{end}) is {' '.join(f'{v:08x}' for v in found)}, the file says "
                f"{' '.join(f'{v:08x}' for v in expected)}: damaged; {UNVERIFIED}"
            )


def _parse(path: str, fd: int, size: int, expected: Expected) -> Contents:
    found = _recognise(path, fd, size)
    if isinstance(found, Format):
        return found.parse(path, fd, size, expected)
    raise FileFormatError(
        f"{path}: looks like an openQCD configuration, which jali does not read; convert it to ILDG or "
        "NERSC first"
    )


def _recognise(path: str, fd: int, size: int) -> Format | str:
    """The format; the name of one that is known but not read. Raises `FileFormatError` for all else."""
    head = os.pread(fd, RECOGNISED_BY, 0)
    if not head:
        raise FileFormatError(f"{path}: the file is empty (0 bytes)")
    for entry in formats():
        if entry.is_one(head):
            return entry
    if version := milc.version_of_old(head):
        raise FileFormatError(
            f"{path}: a MILC file of {version}; only version 5 (magic number {milc.MAGIC}) can be read: convert it "
            "with MILC"
        )
    if head.startswith(b"\x89HDF\r\n\x1a\n"):
        raise FileFormatError(
            f"{path}: an HDF5 file; there is no standard for configurations in HDF5, and what jali writes there is read by "
            "GaugeField.from_file"
        )
    if _looks_like_openqcd(head, size):
        return "openqcd"
    *most, last = (entry.signature for entry in formats())
    raise FileFormatError(
        f"{path}: unknown format: begins with {head[:12].hex(' ')}; expected {', '.join(most)} or {last}"
    )


def _looks_like_openqcd(head: bytes, size: int) -> bool:
    """Four plausible little-endian extents and a plaquette normalised to 3, in a file of the right size or
    too short.
    """
    if len(head) < 24:
        return False
    *extents, plaquette = struct.unpack("<4id", head)
    if not all(1 <= size <= 4096 for size in extents) or not abs(plaquette) <= 3.001:
        return False
    return size <= 24 + math.prod(extents) * DIRECTIONS * 144
