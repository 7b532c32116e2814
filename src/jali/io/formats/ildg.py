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
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from jali.errors import FileFormatError, ParameterError
from jali.files import shown, value_shown

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
    hexadecimal,
    portable_metadata,
    positive_integer,
    storage_from_size,
)
from ..parallel import RankGroup, SingleRank, together
from ..writing import WRITER, write_configuration
from . import Format, Writer

_ILDG_DATA = "ildg-binary-data"
_SCIDAC_DATA = "scidac-binary-data"
_TEXT_LIMIT = 1 << 18
"""Longest text record that is read; longer ones (whole job inputs) are left alone."""
_INFO = "jali-info"
_NEEDED = {
    "ildg-format": ("precision", "lx", "ly", "lz", "lt"),
    "scidac-private-file-xml": ("dims",),
    "scidac-private-record-xml": ("precision", "colors"),
    "scidac-checksum": ("suma", "sumb"),
}
"""XML records that are read, and the elements without which one that is not well-formed is of no use."""
_DESCRIPTIONS = {*_NEEDED, _INFO}


def parse_lime(path: str, fd: int, size: int, expected: Expected) -> Contents:
    """Read the records of a LIME file of `size` bytes; raise `FileFormatError` where they make no sense."""
    found = scan_records(path, fd, size)
    payload = _payload(path, found)
    header = _texts(path, fd, found)
    broken: dict[str, str] = {}
    warnings: list[str] = []
    ildg, scidac_file, scidac_record, checksum = (
        _values(path, kind, header, broken, warnings) for kind in _NEEDED
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

    fault = broken.pop("scidac-checksum", "")
    sums: tuple[int, ...] = ()
    if checksum and not fault:
        try:
            if not checksum.keys() >= {"suma", "sumb"}:
                raise FileFormatError(f"{path}: record 'scidac-checksum' lacks suma or sumb")
            sums = tuple(hexadecimal(path, f"scidac-checksum {k}", checksum[k]) for k in ("suma", "sumb"))
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
        suma, sumb = checksum or (0, 0)
        text = _xml("scidacChecksum", version="1.0", suma=f"{suma:08x}", sumb=f"{sumb:08x}")
        tail = (
            bytes(padded(length) - length)
            + record("scidac-checksum", text, MESSAGE_END)
            + record(_INFO, after, MESSAGE_BEGIN | MESSAGE_END)
        )
        return before + record_header(_ILDG_DATA, length, 0), tail

    write_configuration(path, links, box, extents, storage, SiteCrc(), envelope, ranks)


def _records_around(storage: LinkStorage, extents: tuple[int, ...], now: datetime) -> bytes:
    """The records before the payload's."""
    n, letter = storage.n, "F" if storage.precision == 32 else "D"
    file_xml = _xml(
        "scidacFile", version="1.1", spacetime="4", dims="".join(f"{size} " for size in extents), volfmt="0"
    )
    record_xml = _xml(
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
    title = _xml("title", "SU(N) gauge configuration" if n > 1 else "U(1) gauge configuration")
    ildg_xml = _xml(
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
            record("scidac-private-file-xml", file_xml, MESSAGE_BEGIN),
            record("scidac-file-xml", title, MESSAGE_END),
            record("scidac-private-record-xml", record_xml, MESSAGE_BEGIN),
            record("scidac-record-xml", title, 0),
            record("ildg-format", ildg_xml, 0),
        )
    )


def _xml(tag: str, text: str = "", attributes: str = "", **children: str) -> bytes:
    inner = text + "".join(f"<{name}>{value}</{name}>" for name, value in children.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{tag}{attributes}>{inner}</{tag}>'.encode()


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
        if r.length > _TEXT_LIMIT:
            if r.type in _DESCRIPTIONS:
                raise FileFormatError(
                    f"{path}: record {r.type!r} at offset {r.offset} has {r.length} bytes, "
                    "expected a short text"
                )
            continue
        total += r.length
        if total > 16 * _TEXT_LIMIT:
            raise FileFormatError(f"{path}: more than {16 * _TEXT_LIMIT} bytes of text records")
        data = os.pread(fd, r.length, r.offset)
        texts[r.type] = data.decode("utf-8", "replace").strip("\0 \t\r\n")
    return texts


def _values(
    path: str, kind: str, header: dict[str, str], broken: dict[str, str], warnings: list[str]
) -> dict[str, str]:
    """Text of every XML element of a record by tag, name spaces apart; empty if there is no such record.

    Of a record that is not well-formed the elements are read leniently, with a warning, where they are sufficient. Else
    it is empty, and the fault goes to `broken`: other records may have the same content. The declaration in front is
    left out, since the text is decoded already; it lacks a quote in files of old writers.
    """
    if kind not in header:
        return {}
    text = re.sub(r"\A\s*<\?xml[^<>]*\?>", "", header[kind])
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise FileFormatError(f"{path}: record {kind!r} holds an XML document type, which it has no use for")
    values: dict[str, str] = {}
    try:
        root = ET.fromstring(text.encode("utf-8"))
    except (ET.ParseError, LookupError, ValueError, RecursionError) as error:
        what = f"{path}: record {kind!r} is not well-formed XML: {error}"
        values = _read_loosely(text)
        if not all(values.get(name) for name in _NEEDED[kind]):
            broken[kind] = what
            return {}
        said = ", ".join(f"{name} {shown(values[name], 40)}" for name in _NEEDED[kind])
        warnings.append(f"{what}; what can be read of it is taken: {said}")
        return values
    for element in root.iter():
        values.setdefault(element.tag.rpartition("}")[2], (element.text or "").strip())
    return values


def _read_loosely(text: str) -> dict[str, str]:
    """The text after each opening tag, up to the next one, of a text that is only nearly XML; not what has two values."""
    found: dict[str, str] = {}
    contradicted: set[str] = set()
    for match in re.finditer(
        r"<\s*(?:[\w.-]{1,40}:)?([A-Za-z]\w{0,40})(?:\s[^<>]{0,400})?>([^<>]{0,200})", text
    ):
        name, value = match[1], match[2].strip()
        if value and found.setdefault(name, value) != value:
            contradicted.add(name)
    return {name: value for name, value in found.items() if name not in contradicted}


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
        if scidac.get("volfmt", "0").strip() != "0":
            raise FileFormatError(
                f"{path}: scidac-private-file-xml says volfmt {scidac['volfmt'][:20]}: a file in parts; "
                "join the parts into a single file (volfmt 0) first"
            )
        dims = scidac.get("dims", "").split()
        if len(dims) != DIRECTIONS:
            raise FileFormatError(
                f"{path}: scidac-private-file-xml says dims {' '.join(dims)[:60]!r}, expected four extents"
            )
        described.append(tuple(positive_integer(path, "scidac-private-file-xml dims", size) for size in dims))
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
    if _INFO not in header:
        return {"metadata": {}}
    try:
        info = json.loads(header[_INFO])
    except (ValueError, RecursionError):
        info = None
    if not isinstance(info, dict) or not isinstance(info.get("metadata"), dict):
        broken[_INFO] = f"{path}: record {_INFO!r} is not the JSON object that jali writes"
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
