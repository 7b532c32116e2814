"""SciDAC's descriptions in a LIME file: XML records of the file, of each field in it, and of its checksum.

Configurations and propagators share them. What is written has the tags of QIO 1.1 in its order
(usqcd-software/qio, include/qioxml_private.h); what is read may be of any writer, so XML that is not well-formed is
read leniently where that is sufficient. Does not know payloads.
"""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Any

from jali.errors import FileFormatError
from jali.files import shown

from .lime import Record
from .links import DIRECTIONS, hexadecimal, positive_integer

DATA = "scidac-binary-data"
PRIVATE_FILE, FILE = "scidac-private-file-xml", "scidac-file-xml"
PRIVATE_RECORD, RECORD = "scidac-private-record-xml", "scidac-record-xml"
CHECKSUM = "scidac-checksum"
INFO = "jali-info"
"""Our own record, JSON: the writer and the run's metadata. Other readers skip it."""
TEXT_LIMIT = 1 << 18
"""Longest text record that is read; longer ones (whole job inputs) are left alone."""


def xml(tag: str, text: str = "", attributes: str = "", **children: str) -> bytes:
    """An XML record: `children` in their order, after `text`."""
    inner = text + "".join(f"<{name}>{value}</{name}>" for name, value in children.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{tag}{attributes}>{inner}</{tag}>'.encode()


def private_file_xml(extents: Sequence[int]) -> bytes:
    """The description of a single file with fields on a lattice of four directions, x first."""
    return xml(
        "scidacFile", version="1.1", spacetime="4", dims="".join(f"{size} " for size in extents), volfmt="0"
    )


def checksum_xml(sums: tuple[int, ...]) -> bytes:
    """The two sums (empty: unknown yet) of a payload; the length does not depend on them."""
    suma, sumb = sums or (0, 0)
    return xml("scidacChecksum", version="1.0", suma=f"{suma:08x}", sumb=f"{sumb:08x}")


def text_of(fd: int, record: Record) -> str:
    """The text of a record, without the zeros that some writers put behind it."""
    return os.pread(fd, record.length, record.offset).decode("utf-8", "replace").strip("\0 \t\r\n")


def too_long(path: str, record: Record) -> FileFormatError:
    """The error of a description that is no short text."""
    return FileFormatError(
        f"{path}: record {record.type!r} at offset {record.offset} has {record.length} bytes, expected a short text"
    )


def values_of(
    path: str,
    kind: str,
    header: Mapping[str, str],
    needed: Sequence[str],
    broken: dict[str, str],
    warnings: list[str],
) -> dict[str, str]:
    """Text of every XML element of a record by tag, name spaces apart; empty if there is no such record.

    Of a record that is not well-formed the elements are read leniently, with a warning, where they are sufficient: the
    `needed` ones. Else it is empty, and the fault goes to `broken`: other records may have the same content.
    """
    if kind not in header:
        return {}
    try:
        root = parsed(path, kind, header[kind])
    except ValueError as error:
        what = f"{path}: record {kind!r} is not well-formed XML: {error}"
        values = read_loosely(header[kind])
        if not all(values.get(name) for name in needed):
            broken[kind] = what
            return {}
        said = ", ".join(f"{name} {shown(values[name], 40)}" for name in needed)
        warnings.append(f"{what}; what can be read of it is taken: {said}")
        return values
    values = {}
    for element in root.iter():
        values.setdefault(tag_of(element), (element.text or "").strip())
    return values


def parsed(path: str, kind: str, text: str) -> ET.Element:
    """The root of an XML record. Raises ValueError where it is not well-formed, FileFormatError for a document type.

    The declaration in front is left out, since the text is decoded already; it lacks a quote in files of old writers.
    """
    text = re.sub(r"\A\s*<\?xml[^<>]*\?>", "", text)
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise FileFormatError(f"{path}: record {kind!r} holds an XML document type, which it has no use for")
    try:
        return ET.fromstring(text.encode("utf-8"))
    except (ET.ParseError, LookupError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error


def tag_of(element: ET.Element) -> str:
    """The tag without its name space."""
    return element.tag.rpartition("}")[2]


def read_loosely(text: str) -> dict[str, str]:
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


def extents_of(path: str, scidac_file: Mapping[str, str]) -> tuple[int, ...]:
    """The lattice that the private record of a file says. Raises FileFormatError, also for a file in parts."""
    if scidac_file.get("volfmt", "0").strip() != "0":
        raise FileFormatError(
            f"{path}: scidac-private-file-xml says volfmt {scidac_file['volfmt'][:20]}: a file in parts; "
            "join the parts into a single file (volfmt 0) first"
        )
    dims = scidac_file.get("dims", "").split()
    if len(dims) != DIRECTIONS:
        raise FileFormatError(
            f"{path}: scidac-private-file-xml says dims {' '.join(dims)[:60]!r}, expected four extents"
        )
    return tuple(positive_integer(path, "scidac-private-file-xml dims", size) for size in dims)


def sums_of(path: str, checksum: Mapping[str, str]) -> tuple[int, ...]:
    """(suma, sumb) of a checksum record. Raises FileFormatError."""
    if not checksum.keys() >= {"suma", "sumb"}:
        raise FileFormatError(f"{path}: record 'scidac-checksum' lacks suma or sumb")
    return tuple(hexadecimal(path, f"scidac-checksum {k}", checksum[k]) for k in ("suma", "sumb"))


def info_of(text: str) -> dict[str, Any] | None:
    """Our own record; None where it is not one that jali writes."""
    try:
        info = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return info if isinstance(info, dict) and isinstance(info.get("metadata"), dict) else None
