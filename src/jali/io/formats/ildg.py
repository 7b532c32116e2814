"""ILDG and SciDAC configurations: XML and binary records in a LIME container.

The payload is always big-endian and holds complete matrices. What describes it differs from writer to writer:
the `ildg-format` record, SciDAC's private records, both, or nothing at all; the reader uses existing entries,
completes them by the payload's size and the caller's values, and refuses contradictions. The writer makes the
full set, and one record more (`jali-info`, JSON) with our version, the date and the run's metadata, which
other readers skip.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from jali.errors import FileFormatError, ParameterError
from jali.files import value_shown

from ..boxes import Box, SiteRecords
from ..checksums import SiteCrc
from ..lime import MAGIC, MESSAGE_BEGIN, MESSAGE_END, Record, padded, record, record_header, scan_records
from ..links import (
    DIRECTIONS,
    Contents,
    Expected,
    LinkStorage,
    check_payload_size,
    checked_metadata,
    finite_number,
    portable_metadata,
    positive_integer,
    storage_from_size,
)
from ..parallel import RankGroup, SingleRank, together
from ..scidac import (
    CHECKSUM,
    FILE,
    INFO,
    PRIVATE_FILE,
    PRIVATE_RECORD,
    RECORD,
    TEXT_LIMIT,
    checksum_xml,
    extents_of,
    info_of,
    private_file_xml,
    sums_of,
    text_of,
    too_long,
    values_of,
    xml,
)
from ..scidac import DATA as _SCIDAC_DATA
from ..writing import WRITER, write_configuration
from . import Format, Writer

_ILDG_DATA = "ildg-binary-data"
_NEEDED = {
    "ildg-format": ("precision", "lx", "ly", "lz", "lt"),
    PRIVATE_FILE: ("dims",),
    PRIVATE_RECORD: ("precision", "colors"),
    CHECKSUM: ("suma", "sumb"),
}
"""XML records that are read, and the elements without which one that is not well-formed is of no use."""
_DESCRIPTIONS = {*_NEEDED, INFO}


def parse_lime(path: str, fd: int, size: int, expected: Expected) -> Contents:
    """Read the records of a LIME file of `size` bytes; raise `FileFormatError` where they make no sense."""
    found = scan_records(path, fd, size)
    payload = _payload(path, found)
    header = _texts(path, fd, found)
    broken: dict[str, str] = {}
    warnings: list[str] = []
    ildg, scidac_file, scidac_record, checksum = (
        values_of(path, kind, header, needed, broken, warnings) for kind, needed in _NEEDED.items()
    )
    if ildg:
        scidac_record = {}

    lattice = _lattice(path, ildg, scidac_file, expected, broken)
    where = f"record {payload.type!r} at offset {payload.offset}"
    n, precision = _described_storage(path, ildg, scidac_record, expected)
    if n is None or precision is None:
        n, precision = storage_from_size(
            path,
            where,
            payload=payload.length,
            lattice=lattice,
            n=n or expected.n,
            precision=precision or expected.precision,
        )
    storage = LinkStorage(n, n, precision, ">")
    records = SiteRecords(path, payload.offset, storage.record_bytes, lattice)
    check_payload_size(path, where, records, payload.length)
    expected.agree(path, where, lattice=lattice, n=n, precision=precision)

    fault = broken.pop(CHECKSUM, "")
    sums: tuple[int, ...] = ()
    if checksum and not fault:
        try:
            sums = sums_of(path, checksum)
        except FileFormatError as error:
            fault = str(error)
    info = _info(path, header, broken)
    xlf = _xlf_info(header.get("xlf-info", ""))
    plaquette = info.get("plaquette", xlf.get("plaquette"))
    trace = info.get("link_trace")
    metadata = {**xlf, **info["metadata"]}
    if "ildg-data-lfn" in header:
        metadata["ildg-data-lfn"] = header["ildg-data-lfn"].strip("\0 \n")
    return Contents(
        format="ildg" if payload.type == _ILDG_DATA else "scidac",
        records=records,
        storage=storage,
        header=header,
        metadata=portable_metadata(metadata),
        plaquette=None
        if plaquette is None
        else finite_number(path, "the recorded plaquette", str(plaquette)),
        link_trace=None if trace is None else finite_number(path, "the recorded link trace", str(trace)),
        checksum_kind="scidac" if sums else None,
        make_checksum=SiteCrc,
        checksum=sums,
        checksum_fault=fault,
        warnings=(*warnings, *(f"{text}; it is not needed here" for text in broken.values())),
    )


def write_ildg(
    path: str | os.PathLike[str],
    links: NDArray,
    box: Box,
    extents: Sequence[int],
    *,
    precision: int = 64,
    plaquette: float | None = None,
    link_trace: float | None = None,
    metadata: Mapping[str, object] | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Write a configuration as ILDG with all SciDAC records and a checksum (collective).

    `links` is this rank's box, complex, of shape `box.shape + (4, n, n)`; the boxes of all ranks must cover
    the lattice `extents` (x, y, z, t) once. `plaquette` and `link_trace` (means of Re tr / n) and `metadata`
    (key to text or number: run, trajectory, random numbers) go to a record of our own.

    The file appears under its name only when complete. Raises `ParameterError`, `LayoutError` or `OSError`,
    the same on all ranks.
    """
    ranks = ranks or SingleRank()
    extents = tuple(extents)
    with together(ranks):
        shape: tuple[int, ...] = np.shape(links)
        if len(shape) != DIRECTIONS + 3 or shape[-1] != shape[-2] or shape[-1] < 1:
            raise ParameterError(f"links should have shape (t, z, y, x, 4, n, n), not {shape}")
        if precision not in (32, 64):
            raise ParameterError(
                f"precision {value_shown(precision)} should be 32 or 64 (bits of a real number)"
            )
        numbers = {"plaquette": plaquette, "link_trace": link_trace}
        for name, value in numbers.items():
            if value is not None and not math.isfinite(value):
                raise ParameterError(f"{name} {value} for the header should be finite")
        storage = LinkStorage(int(shape[-1]), int(shape[-1]), precision, ">")
        now = datetime.now(UTC)
        provenance = {
            "writer": WRITER,
            "created": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
            **{name: float(value) for name, value in numbers.items() if value is not None},
            "metadata": checked_metadata(metadata),
        }
        before, after = _records_around(storage, extents, now), json.dumps(provenance, indent=1).encode()

    length = storage.record_bytes * math.prod(extents)

    def envelope(checksum: tuple[int, ...]) -> tuple[bytes, bytes]:
        tail = (
            bytes(padded(length) - length)
            + record(CHECKSUM, checksum_xml(checksum), MESSAGE_END)
            + record(INFO, after, MESSAGE_BEGIN | MESSAGE_END)
        )
        return before + record_header(_ILDG_DATA, length, 0), tail

    write_configuration(path, links, box, extents, storage, SiteCrc(), envelope, ranks)


def _records_around(storage: LinkStorage, extents: tuple[int, ...], now: datetime) -> bytes:
    """The records before the payload's."""
    n, letter = storage.n, "F" if storage.precision == 32 else "D"
    record_xml = xml(
        "scidacRecord",
        version="1.1",
        date=now.strftime("%a %b %d %H:%M:%S %Y UTC"),
        recordtype="0",
        datatype=f"QDP_{letter}{n}_ColorMatrix",
        precision=letter,
        colors=str(n),
        typesize=str(storage.link_bytes),
        datacount=str(DIRECTIONS),
    )
    title = xml("title", "SU(N) gauge configuration" if n > 1 else "U(1) gauge configuration")
    ildg_xml = xml(
        "ildgFormat",
        attributes=' xmlns="http://www.lqcd.org/ildg" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"'
        ' xsi:schemaLocation="http://www.lqcd.org/ildg http://www.lqcd.org/ildg/filefmt.xsd"',
        version="1.0",
        field=f"su{n}gauge" if n > 1 else "u1gauge",
        precision=str(storage.precision),
        **{f"l{d}": str(size) for d, size in zip("xyzt", extents, strict=True)},
    )
    return b"".join(
        (
            record(PRIVATE_FILE, private_file_xml(extents), MESSAGE_BEGIN),
            record(FILE, title, MESSAGE_END),
            record(PRIVATE_RECORD, record_xml, MESSAGE_BEGIN),
            record(RECORD, title, 0),
            record("ildg-format", ildg_xml, 0),
        )
    )


def _payload(path: str, found: list[Record]) -> Record:
    """The one record that holds the links."""
    for kind in (_ILDG_DATA, _SCIDAC_DATA):
        matching = [r for r in found if r.type == kind]
        if len(matching) > 1:
            raise FileFormatError(
                f"{path}: {len(matching)} records {kind!r} (at offsets "
                f"{', '.join(str(r.offset) for r in matching[:4])}): a configuration file has one"
            )
        if matching:
            return matching[0]
    kinds = ", ".join(dict.fromkeys(r.type for r in found[:20])) or "none"
    raise FileFormatError(f"{path}: no record {_ILDG_DATA!r} or {_SCIDAC_DATA!r}; records are: {kinds[:400]}")


def _texts(path: str, fd: int, found: list[Record]) -> dict[str, str]:
    """Text of the first record of each type that is no payload."""
    texts: dict[str, str] = {}
    total = 0
    for r in found:
        if r.type in texts or r.type in (_ILDG_DATA, _SCIDAC_DATA):
            continue
        if r.length > TEXT_LIMIT:
            if r.type in _DESCRIPTIONS:
                raise too_long(path, r)
            continue
        total += r.length
        if total > 16 * TEXT_LIMIT:
            raise FileFormatError(f"{path}: more than {16 * TEXT_LIMIT} bytes of text records")
        texts[r.type] = text_of(fd, r)
    return texts


def _lattice(
    path: str, ildg: dict[str, str], scidac: dict[str, str], expected: Expected, broken: dict[str, str]
) -> tuple[int, ...]:
    described: list[tuple[int, ...]] = []
    if ildg:
        missing = [f"l{d}" for d in "xyzt" if f"l{d}" not in ildg]
        if missing:
            raise FileFormatError(f"{path}: record 'ildg-format' lacks {', '.join(missing)}")
        described.append(tuple(positive_integer(path, f"ildg-format l{d}", ildg[f"l{d}"]) for d in "xyzt"))
    if scidac:
        described.append(extents_of(path, scidac))
    if len(set(described)) > 1:
        raise FileFormatError(
            f"{path}: ildg-format says lattice {described[0]}, scidac-private-file-xml {described[1]}"
        )
    if described:
        return described[0]
    if expected.lattice is None:
        raise FileFormatError(
            next(iter(broken.values()), f"{path}: no record says the size of the lattice")
            + "; give it by --lattice X,Y,Z,T, and --group (lattice= and group= in Python)"
        )
    return expected.lattice


def _described_storage(
    path: str, ildg: dict[str, str], scidac: dict[str, str], expected: Expected
) -> tuple[int | None, int | None]:
    """(n, precision) as far as the XML records contain them."""
    n: int | None = None
    precision: int | None = None
    if "precision" in ildg:
        if ildg["precision"] not in ("32", "64"):
            raise FileFormatError(
                f"{path}: ildg-format says precision {value_shown(ildg['precision'][:20])}, expected 32 or 64"
            )
        precision = int(ildg["precision"])
    elif "precision" in scidac:
        precision = {"F": 32, "D": 64}.get(scidac["precision"])
        if precision is None:
            raise FileFormatError(
                f"{path}: scidac-private-record-xml says precision {value_shown(scidac['precision'][:20])}, expected F "
                "or D"
            )
    if match := re.fullmatch(r"s?u([1-9][0-9]?)gauge", ildg.get("field", "").lower()):
        n = int(match[1])
    elif scidac.get("colors", "0") != "0":
        n = positive_integer(path, "scidac-private-record-xml colors", scidac["colors"])
    if scidac.get("datacount", "4") != "4":
        raise FileFormatError(
            f"{path}: scidac-private-record-xml says datacount {value_shown(scidac['datacount'][:20])}; a gauge field "
            "has 4 links per site"
        )
    return n, precision


def _info(path: str, header: dict[str, str], broken: dict[str, str]) -> dict:
    """Our own record; with empty metadata if there is none or if it cannot be read, which goes to `broken`."""
    if INFO not in header:
        return {"metadata": {}}
    info = info_of(header[INFO])
    if info is None:
        broken[INFO] = f"{path}: record {INFO!r} is not the JSON object that jali writes"
        return {"metadata": {}}
    return info


def _xlf_info(text: str) -> dict[str, str]:
    """Keys and values of tmLQCD's record: `key = value`, several to a line with commas between."""
    return {
        match[1].strip(): match[2].strip()
        for match in re.finditer(r"([^=,\n]{1,80})=([^=,\n]{0,200})(?=[,\n]|$)", text)
    }


FORMAT = Format(
    "lime",
    "LIME (45 67 89 ab)",
    lambda head: head[:4] == MAGIC.to_bytes(4, "big"),
    parse_lime,
    Writer("ildg", "ILDG", write_ildg, (".ildg", ".lime"), ("ildg.",)),
)
