"""The LIME container: a sequence of typed records, each with a 144-byte big-endian header, padded to 8 bytes.

Only headers are read here; data stay where they are. Message grouping is ignored on reading, except that a
file whose writer marks the ends of messages must not stop in the middle of one: that is how a cut between two
records shows.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass

from jali.errors import FileFormatError

MAGIC = 0x456789AB
MESSAGE_BEGIN = 0x8000
MESSAGE_END = 0x4000
_HEADER = struct.Struct(">IHHQ128s")
_RECORD_LIMIT = 4096


@dataclass(frozen=True)
class Record:
    """One record: its type, flags, and where its data are."""

    type: str
    flags: int
    offset: int
    length: int


def scan_records(path: str, fd: int, size: int) -> list[Record]:
    """All records of a file of `size` bytes; raise `FileFormatError` where the chain breaks."""
    records: list[Record] = []
    at = 0
    while at < size:
        head = os.pread(fd, _HEADER.size, at)
        if head[:4] != MAGIC.to_bytes(4, "big")[: len(head)]:
            raise FileFormatError(
                f"{path}: at offset {at} a LIME record should begin with 456789ab, found {head[:4].hex()} "
                f"({size - at} bytes are left: damaged or trailing garbage)"
            )
        if len(head) < _HEADER.size:
            raise FileFormatError(
                f"{path}: truncated: the LIME record header at offset {at} needs {_HEADER.size} bytes, "
                f"{len(head)} are left"
            )
        _, version, flags, length, name = _HEADER.unpack(head)
        if version != 1:
            raise FileFormatError(f"{path}: LIME record at offset {at} has version {version}, expected 1")
        try:
            kind = name.split(b"\0", 1)[0].decode("ascii")
        except UnicodeDecodeError:
            raise FileFormatError(
                f"{path}: LIME record at offset {at} has type {name[:40]!r}, not ASCII"
            ) from None
        data = at + _HEADER.size
        if data + length > size:
            raise FileFormatError(
                f"{path}: truncated: record {kind!r} at offset {data} should have {length} bytes, the file "
                f"has {size - data} from there on"
            )
        records.append(Record(kind, flags, data, length))
        if len(records) > _RECORD_LIMIT:
            raise FileFormatError(f"{path}: more than {_RECORD_LIMIT} LIME records; not a configuration file")
        at = data + padded(length)
    if any(record.flags & MESSAGE_END for record in records) and not records[-1].flags & MESSAGE_END:
        raise FileFormatError(
            f"{path}: truncated: the last record, {records[-1].type!r} at offset {records[-1].offset}, does "
            "not end its message"
        )
    return records


def record_header(kind: str, length: int, flags: int) -> bytes:
    """The 144 bytes before a record's data."""
    return _HEADER.pack(MAGIC, 1, flags, length, kind.encode("ascii"))


def record(kind: str, data: bytes, flags: int) -> bytes:
    """A whole record, padded."""
    return record_header(kind, len(data), flags) + data.ljust(padded(len(data)), b"\0")


def padded(length: int) -> int:
    """Length rounded up to a multiple of 8."""
    return -(-length // 8) * 8
