"""The NERSC archive format: an ASCII header of `KEY = value` lines, then the links.

Reads what is found in the wild: two rows or full matrices, 32 or 64 bits, both byte orders, keys missing, in
any order and with extra blanks. Writes full or two-row SU(3) matrices, big-endian. The format is defined for
SU(3) only.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from jali.errors import FileFormatError, ParameterError
from jali.files import value_shown

from ..boxes import Box, SiteRecords
from ..checksums import WordSum
from ..links import (
    DIRECTIONS,
    Contents,
    Expected,
    LinkStorage,
    check_payload_size,
    checked_metadata,
    finite_number,
    guess_byte_order,
    hexadecimal,
    portable_metadata,
    positive_integer,
)
from ..parallel import RankGroup, SingleRank, together
from ..writing import WRITER, write_configuration
from . import Format, Writer

MAGIC = b"BEGIN_HEADER"
_HEADER_LIMIT = 1 << 16
_ROWS = {"4D_SU3_GAUGE": 2, "4D_SU3_GAUGE_3X3": 3}
_DATATYPES = {2: "4D_SU3_GAUGE", 3: "4D_SU3_GAUGE_3x3"}
_FLOATING_POINT: dict[str, tuple[int, str | None]] = {
    "IEEE32": (32, None),
    "IEEE32BIG": (32, ">"),
    "IEEE32LITTLE": (32, "<"),
    "IEEE64": (64, None),
    "IEEE64BIG": (64, ">"),
    "IEEE64LITTLE": (64, "<"),
}


def parse_nersc(path: str, fd: int, size: int, expected: Expected) -> Contents:
    """Read the header of a NERSC file of `size` bytes; raise `FileFormatError` where it cannot be right."""
    header, offset = _read_header(path, fd)
    lattice = _lattice(path, header, expected)
    rows, precision, byte_order = _storage(path, header, lattice, size - offset)
    storage = LinkStorage(3, rows, precision, byte_order or ">")
    records = SiteRecords(path, offset, storage.record_bytes, lattice)
    check_payload_size(path, "the payload", records, size - offset)
    expected.agree(path, "the header", lattice=lattice, n=3, precision=precision)
    if byte_order is None:
        storage = LinkStorage(3, rows, precision, guess_byte_order(path, fd, offset, 3, precision))
    numbers = {
        key: finite_number(path, f"header key {key}", header[key])
        for key in ("PLAQUETTE", "LINK_TRACE")
        if key in header
    }
    printed, fault = header.get("CHECKSUM"), ""
    sums: tuple[int, ...] = ()
    if printed is not None:
        try:
            sums = (hexadecimal(path, "header key CHECKSUM", printed),)
        except FileFormatError as error:
            fault = str(error)
    return Contents(
        format="nersc",
        records=records,
        storage=storage,
        header=header,
        metadata=portable_metadata(header),
        plaquette=numbers.get("PLAQUETTE"),
        link_trace=numbers.get("LINK_TRACE"),
        checksum_kind="nersc" if sums else None,
        make_checksum=lambda: WordSum(storage.byte_order),
        checksum=sums,
        checksum_fault=fault,
        warnings=tuple(_edges(path, header)),
    )


def _edges(path: str, header: dict[str, str]) -> Iterator[str]:
    """The header's boundary conditions that links read from it do not have; often the fermions' are meant."""
    for key in (f"BOUNDARY_{d}" for d in range(1, 5)):
        if header.get(key, "PERIODIC").upper() != "PERIODIC":
            yield f"{path}: header key {key} is {value_shown(header[key])}; the links are taken as periodic, as the format stores them"


def write_nersc(
    path: str | os.PathLike[str],
    links: NDArray,
    box: Box,
    extents: Sequence[int],
    *,
    plaquette: float,
    link_trace: float,
    rows: int = 3,
    precision: int = 64,
    metadata: Mapping[str, object] | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Write an SU(3) configuration in NERSC format (collective).

    `links` is this rank's box, complex, of shape `box.shape + (4, 3, 3)`; the boxes of all ranks must cover
    the lattice `extents` (x, y, z, t) once. `plaquette` and `link_trace` are the means of Re tr P / 3 and Re
    tr U / 3. `rows=2` leaves out the third row of each matrix. `metadata` becomes header lines (ENSEMBLE_ID,
    ENSEMBLE_LABEL, SEQUENCE_NUMBER, CREATOR, ...); CREATION_DATE is the present in UTC unless given.

    The file appears under its name only when complete. Raises `ParameterError`, `LayoutError` or `OSError`,
    the same on all ranks.
    """
    ranks = ranks or SingleRank()
    with together(ranks):
        if rows not in _DATATYPES or precision not in (32, 64):
            raise ParameterError(
                f"NERSC files have 2 or 3 rows and 32 or 64 bits, not {rows} rows and {precision} bits"
            )
        if np.ndim(links) != DIRECTIONS + 3 or np.shape(links)[-2:] != (3, 3):
            raise ParameterError(
                f"NERSC files hold SU(3) only, these links have shape {np.shape(links)}; use ILDG"
            )
        for name, value in (("plaquette", plaquette), ("link_trace", link_trace)):
            if not math.isfinite(value):
                raise ParameterError(f"{name} {value} for the header should be finite")
        header = _compose(tuple(extents), rows, precision, plaquette, link_trace, checked_metadata(metadata))

    def envelope(checksum: tuple[int, ...]) -> tuple[bytes, bytes]:
        return header.replace(b"{CHECKSUM}", b"%08x" % (checksum or (0,))[0]), b""

    storage = LinkStorage(3, rows, precision, ">")
    write_configuration(path, links, box, tuple(extents), storage, WordSum(">"), envelope, ranks)


def _compose(
    extents: tuple[int, ...],
    rows: int,
    precision: int,
    plaquette: float,
    link_trace: float,
    metadata: dict[str, str],
) -> bytes:
    lines = {
        "HDR_VERSION": "1.0",
        "DATATYPE": _DATATYPES[rows],
        "STORAGE_FORMAT": "1.0",
        **{f"DIMENSION_{d}": str(size) for d, size in enumerate(extents, 1)},
        "LINK_TRACE": f"{link_trace:.12f}",
        "PLAQUETTE": f"{plaquette:.12f}",
        **{f"BOUNDARY_{d}": "PERIODIC" for d in range(1, 5)},
        "CHECKSUM": "{CHECKSUM}",
        "CREATOR": WRITER,
        "CREATION_DATE": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        **{key.upper(): value for key, value in metadata.items()},
        "FLOATING_POINT": f"IEEE{precision}BIG",
    }
    text = "".join(f"{key} = {value}\n" for key, value in lines.items())
    if len(text) > _HEADER_LIMIT // 2:
        raise ParameterError(f"a NERSC header of {len(text)} bytes is too long; at most {_HEADER_LIMIT // 2}")
    return f"BEGIN_HEADER\n{text}END_HEADER\n".encode("ascii")


def _read_header(path: str, fd: int) -> tuple[dict[str, str], int]:
    """The header's keys and values, and the offset of the payload."""
    start = os.pread(fd, _HEADER_LIMIT, 0)
    end = re.search(rb"\n[ \t]*END_HEADER[ \t\r]*\n", start)
    if end is None:
        raise FileFormatError(
            f"{path}: no line END_HEADER in the first {len(start)} bytes: the header is truncated or damaged"
        )
    header: dict[str, str] = {}
    at = 0
    for number, line in enumerate(start[: end.start()].split(b"\n"), 1):
        where = f"header line {number} (offset {at})"
        at += len(line) + 1
        if number == 1 and line.strip() != MAGIC:
            raise FileFormatError(f"{path}: {where} is {line[:40]!r}, expected BEGIN_HEADER alone")
        if number == 1 or not line.strip():
            continue
        try:
            key, equals, value = line.decode("utf-8").partition("=")
        except UnicodeDecodeError:
            raise FileFormatError(f"{path}: {where} is not text: {line[:40]!r}") from None
        key, value = key.strip().upper(), value.strip()
        if not equals or not key:
            raise FileFormatError(f"{path}: {where} is {line[:40]!r}, expected KEY = value")
        if header.setdefault(key, value) != value:
            raise FileFormatError(f"{path}: {where} says {key} = {value}, an earlier line {header[key]}")
    return header, end.end()


def _lattice(path: str, header: dict[str, str], expected: Expected) -> tuple[int, ...]:
    keys = [f"DIMENSION_{d}" for d in range(1, 5)]
    missing = [key for key in keys if key not in header]
    if not missing:
        return tuple(positive_integer(path, f"header key {key}", header[key]) for key in keys)
    if expected.lattice is None:
        raise FileFormatError(
            f"{path}: the header lacks {', '.join(missing)}; give the lattice by --lattice X,Y,Z,T (lattice= in Python)"
        )
    for key, size in zip(keys, expected.lattice, strict=True):
        if key in header and positive_integer(path, f"header key {key}", header[key]) != size:
            raise FileFormatError(f"{path}: header key {key} is {header[key]}, but {size} was asked for")
    return expected.lattice


def _storage(
    path: str, header: dict[str, str], lattice: tuple[int, ...], payload: int
) -> tuple[int, int, str | None]:
    """(rows, precision, byte order or None) from the header, or from the payload's size where keys are
    missing.
    """
    datatype, floats = header.get("DATATYPE"), header.get("FLOATING_POINT")
    if datatype is not None and datatype.upper() not in _ROWS:
        raise FileFormatError(
            f"{path}: header key DATATYPE is {datatype[:40]!r}, expected 4D_SU3_GAUGE or 4D_SU3_GAUGE_3x3"
        )
    if floats is not None and floats.upper() not in _FLOATING_POINT:
        raise FileFormatError(
            f"{path}: header key FLOATING_POINT is {floats[:40]!r}, expected one of "
            f"{', '.join(_FLOATING_POINT)}"
        )
    rows = None if datatype is None else _ROWS[datatype.upper()]
    precision, byte_order = (None, None) if floats is None else _FLOATING_POINT[floats.upper()]
    if rows is not None and precision is not None:
        return rows, precision, byte_order
    for r in (2, 3):
        for bits in (32, 64):
            fits = DIRECTIONS * math.prod(lattice) * r * 3 * 2 * bits // 8 == payload
            if fits and rows in (None, r) and precision in (None, bits):
                return r, bits, byte_order
    raise FileFormatError(
        f"{path}: the header lacks DATATYPE or FLOATING_POINT, and the {payload} bytes of the payload fit "
        f"no storage of SU(3) links on {' x '.join(map(str, lattice))}"
    )


FORMAT = Format(
    "nersc",
    "NERSC ('BEGIN_HEADER')",
    lambda head: head.startswith(MAGIC),
    parse_nersc,
    Writer("nersc", "NERSC", write_nersc, (".nersc",), ("nersc.",), n=3, two_rows=True),
)
