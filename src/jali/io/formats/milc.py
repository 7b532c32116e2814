"""The MILC version 5 format: a 96-byte binary header and single-precision SU(3) matrices. Read only.

Everything is in the byte order of the machine that wrote it; the magic number identifies it. Older versions
and files whose sites are not in natural order are refused.
"""

from __future__ import annotations

import os
import struct

from jali.errors import FileFormatError

from ..boxes import SiteRecords
from ..checksums import RotatedWords
from ..links import Contents, Expected, LinkStorage, check_payload_size, portable_metadata
from . import Format

MAGIC = 20103
OLD_MAGICS = {59354: "versions 1 to 4", 53546: "the version of 1996", 0x71626434: "the FNAL version"}
_HEADER_BYTES = 96


def parse_milc(path: str, fd: int, size: int, expected: Expected) -> Contents:
    """Read the header of a MILC file of `size` bytes; raise `FileFormatError` where it cannot be right."""
    head = os.pread(fd, _HEADER_BYTES, 0)
    if len(head) < _HEADER_BYTES:
        raise FileFormatError(
            f"{path}: truncated: a MILC header has {_HEADER_BYTES} bytes, the file {len(head)}"
        )
    byte_order = "<" if int.from_bytes(head[:4], "little") == MAGIC else ">"
    _, *lattice, stamp, order, sum29, sum31 = struct.unpack(f"{byte_order}5i64siII", head)
    if min(lattice) < 1:
        raise FileFormatError(f"{path}: extents {lattice} at offset 4 should be positive")
    if order != 0:
        raise FileFormatError(
            f"{path}: site order {order} at offset 84: only files in natural order (0) can be read; write "
            "the configuration serially with MILC, or convert it to ILDG"
        )
    storage = LinkStorage(3, 3, 32, byte_order)
    records = SiteRecords(path, _HEADER_BYTES, storage.record_bytes, tuple(lattice))
    check_payload_size(path, "the payload", records, size - _HEADER_BYTES)
    expected.agree(path, "the header", lattice=records.lattice, n=3, precision=32)
    text = stamp.split(b"\0", 1)[0].decode("ascii", "replace").strip()
    return Contents(
        format="milc",
        records=records,
        storage=storage,
        header={"time_stamp": text, "byte_order": "little" if byte_order == "<" else "big"},
        metadata=portable_metadata({"CREATION_DATE": text} if text else {}),
        checksum_kind="milc",
        make_checksum=lambda: RotatedWords(byte_order),
        checksum=(sum29, sum31),
    )


def _is_milc(head: bytes) -> bool:
    return len(head) >= 4 and MAGIC in _magics(head)


def _magics(head: bytes) -> set[int]:
    """The number at the beginning, in either byte order."""
    return {int.from_bytes(head[:4], "little"), int.from_bytes(head[:4], "big")}


def version_of_old(head: bytes) -> str | None:
    """The version of a MILC file that is too old to be read, with its number; None for other files."""
    if len(head) < 4:
        return None
    return next(
        (f"{OLD_MAGICS[m]} (magic number {m})" for m in sorted(_magics(head) & OLD_MAGICS.keys())), None
    )


FORMAT = Format("milc", f"MILC v5 (magic number {MAGIC})", _is_milc, parse_milc)
