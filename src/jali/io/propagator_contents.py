"""What is in a file of a propagator: the fields of a LIME file in SciDAC's format, and the part of each.

`parse_propagator` reads the descriptions: which fields are sources and which sinks, and where in the file the member of
each spin and colour is. It refuses what is no propagator, lacks a member, has one twice or is in another basis. The formats
and their sources are in `propagators.py`, which reads and writes the numbers.
"""

from __future__ import annotations

import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jali.amounts import counted
from jali.errors import FileFormatError
from jali.files import shown, value_shown

from .boxes import SiteRecords
from .lime import MAGIC, Record, padded, scan_records
from .links import DIRECTIONS, check_payload_size, portable_metadata, positive_integer
from .scidac import (
    CHECKSUM,
    DATA,
    FILE,
    INFO,
    PRIVATE_FILE,
    PRIVATE_RECORD,
    RECORD,
    TEXT_LIMIT,
    extents_of,
    info_of,
    parsed,
    read_loosely,
    sums_of,
    tag_of,
    text_of,
    too_long,
    values_of,
)

SPINS = 4
BASIS = "DeGrand-Rossi"
SCALAR, FULL = "scalar", "full"
LETTERS = {32: "F", 64: "D"}
_BITS = {letter: bits for bits, letter in LETTERS.items()}
FIELD, HYPERCUBE = "0", "2"  # of `recordtype`
_ONE_RECORD = "LHPC_DiracPropagator"
_NEEDED = {
    PRIVATE_FILE: ("dims",),
    PRIVATE_RECORD: ("precision", "typesize", "datacount"),
    CHECKSUM: ("suma", "sumb"),
}
BASIS_KEY = r"(?:(?:spin|gamma|dirac)[ _-]?)?basis"
OWN_LIMIT = 1 << 24
"""Longest record of our own, in bytes."""
_MARK = re.compile(rf"(?:\A|; ){INFO} crc32 = ([0-9a-f]{{8}})\Z")
_CONFIGURATION = ("ildg-format", "ildg-binary-data")
_ETMC = ("etmc-propagator-format", "etmc-source-format", "propagator-type", "source-type")


@dataclass(frozen=True)
class Family:
    """Propagators of one kind of fermion: the words of their files."""

    name: str  # of the kind of fields, as data types and file types have it
    spins: int  # of an element; 0: none
    file_tag: str
    sink_tag: str
    twelve: str  # the word for the number of sinks at three colours

    @property
    def scalar_source(self) -> str:
        """The type of files with one complex source."""
        return f"USQCD_{self.name}_ScalarSource_{self.twelve}Sink"

    @property
    def scalar_pairs(self) -> str:
        """The type of files with a complex source before each sink."""
        return f"USQCD_{self.name}_ScalarSource_Sink_Pairs"

    @property
    def pairs(self) -> str:
        """The type of files with a source like the sink before each."""
        return f"USQCD_{self.name}_Source_Sink_Pairs"

    def element(self, n: int) -> tuple[int, ...]:
        """Shape of a field's element for n colours."""
        return (self.spins, n) if self.spins else (n,)

    def unit(self, k: int, n: int) -> tuple[int, ...]:
        """Spin and colour of member k, an index of an element."""
        return divmod(k, n) if self.spins else (k,)

    def label(self, k: int, n: int) -> dict[str, str]:
        """Spin and colour of member k as XML has them."""
        names = ("spin", "color") if self.spins else ("color",)
        return {name: str(i) for name, i in zip(names, self.unit(k, n), strict=True)}


DIRAC = Family("DiracFermion", SPINS, "usqcdPropFile", "usqcdPropInfo", "Twelve")
STAGGERED = Family("ColorVector", 0, "usqcdKSPropFile", "usqcdKSPropInfo", "Three")
FAMILIES = (DIRAC, STAGGERED)
SOURCE_TAG = "usqcdSourceInfo"
COMPLEX, PROPAGATOR = "Complex", "DiracPropagator"


@dataclass(frozen=True)
class StoredField:
    """A field in a file."""

    kind: str  # the family's name, `COMPLEX` or `PROPAGATOR`
    n: int
    precision: int
    records: SiteRecords  # of its own sites
    origin: tuple[int, ...]  # of these on the lattice
    tag: str  # of the user's XML
    label: dict[str, int]
    text: str  # the user's
    sums: tuple[int, ...]
    fault: str = ""  # why the checksum cannot be compared

    @property
    def where(self) -> str:
        """For messages."""
        named = f" ({in_words(self.label)})" if self.label else ""
        return f"record {DATA!r} at offset {self.records.offset}{named}"


@dataclass(frozen=True)
class PropagatorContents:
    """What a file holds."""

    extents: tuple[int, ...]
    family: Family
    n: int
    precision: int
    type: str
    info: str
    sinks: tuple[StoredField, ...]  # in the order of members; one, if it holds all
    sources: tuple[StoredField, ...]  # one scalar, one for each member, or none
    own: dict[str, Any]
    fault: str = ""  # what is damaged apart from the fields


def mark(text: str) -> str:
    """The last entry of the text in the file's XML: that jali wrote it, and which checksum the text of our own record has."""
    return f"{INFO} crc32 = {zlib.crc32(text.encode()):08x}"


def in_words(label: Mapping[str, object]) -> str:
    """Spin and colour for a message."""
    return ", ".join(f"{name} {value}" for name, value in label.items())


def parse_propagator(path: str, fd: int, size: int) -> PropagatorContents:
    """Read the descriptions in a file of `size` bytes; raise `FileFormatError` where they are no propagator's."""
    head = os.pread(fd, 4, 0)
    if head != MAGIC.to_bytes(4, "big"):
        what = "the file is empty" if not head else f"begins with {head.hex(' ')}"
        raise FileFormatError(f"{path}: {what}, and a propagator in LIME begins with 45 67 89 ab")
    found = scan_records(path, fd, size)
    _refuse_others(path, found)
    header: dict[str, str] = {}
    for text in found:
        if text.type in (PRIVATE_FILE, FILE, INFO) and text.type not in header:
            header[text.type] = _text(path, fd, text)
    extents = extents_of(path, _described(path, PRIVATE_FILE, header))
    tag, entries, info = _user(path, FILE, header.get(FILE, ""))
    kind = entries.get("type", "")
    if tag not in {f.file_tag for f in FAMILIES}:
        kind = ""
    fields = [_field(path, fd, extents, group) for group in _groups(path, found)]
    ours = INFO in header or _MARK.search(info) is not None
    if ours or any(one.sums or one.fault for one in fields):
        fields = [
            one
            if one.sums or one.fault
            else replace(one, fault=f"{path}: no record {CHECKSUM!r} follows {one.where}")
            for one in fields
        ]
    if not ours:  # our own record says the basis, and then texts may be any
        _check_basis(path, [header.get(FILE, ""), *(one.text for one in fields)])
    sources, sinks = _roles(path, kind, fields)
    own, fault = _own(path, header, info)
    if ours and not fault and found[-1].offset + padded(found[-1].length) > size:
        fault = (
            f"{path}: truncated: the zeros after record {found[-1].type!r} at offset {found[-1].offset} end at "
            f"{size}, expected at {found[-1].offset + padded(found[-1].length)}"
        )
    first = sinks[0]
    family = STAGGERED if first.kind == STAGGERED.name else DIRAC
    for one in fields:
        if one.precision != first.precision or (one.kind != COMPLEX and one.n != first.n):
            raise FileFormatError(
                f"{path}: {one.where} has {one.n} colours in {one.precision} bits, {first.where} has {first.n} in "
                f"{first.precision}: all fields of a propagator are alike"
            )
    if first.kind != PROPAGATOR:
        order = _order(path, kind, family, first.n, sinks)
        sinks = [sinks[i] for i in order]
        if len(sources) == len(sinks):
            sources = [sources[i] for i in order]
            for source, sink in zip(sources, sinks, strict=True):
                if source.label and source.label != sink.label:
                    raise FileFormatError(
                        f"{path}: {source.where} is the source of the sink in {sink.where}: their labels differ"
                    )
    return PropagatorContents(
        extents, family, first.n, first.precision, kind, info, tuple(sinks), tuple(sources), own, fault
    )


def _refuse_others(path: str, found: list[Record]) -> None:
    """Raise for LIME files that hold something else."""
    kinds = list(dict.fromkeys(one.type for one in found))
    if any(kind in kinds for kind in _CONFIGURATION):
        raise FileFormatError(f"{path}: a gauge configuration, no propagator: GaugeField.from_file reads it")
    if any(kind in kinds for kind in _ETMC) and PRIVATE_RECORD not in kinds:
        raise FileFormatError(
            f"{path}: a propagator or source of ETMC (tmLQCD), in another basis of spins than {BASIS}, which jali does not "
            "read; convert it to a USQCD propagator first"
        )
    for kind in (PRIVATE_FILE, PRIVATE_RECORD, DATA):
        if kind not in kinds:
            raise FileFormatError(
                f"{path}: no record {kind!r}, so no propagator in SciDAC's format; records are: "
                f"{', '.join(kinds[:20])[:400] or 'none'}"
            )


def _text(path: str, fd: int, one: Record) -> str:
    if one.length > (OWN_LIMIT if one.type == INFO else TEXT_LIMIT):
        raise too_long(path, one)
    return text_of(fd, one)


def _described(path: str, kind: str, header: Mapping[str, str]) -> dict[str, str]:
    """The values of a private record. Raises FileFormatError where they cannot be read."""
    broken: dict[str, str] = {}
    values = values_of(path, kind, header, _NEEDED[kind], broken, [])
    if broken:
        raise FileFormatError(broken[kind])
    return values


def _user(path: str, kind: str, text: str) -> tuple[str, dict[str, str], str]:
    """The outermost tag of the user's XML, the texts directly in it, and its info, which may be XML."""
    try:
        root = parsed(path, kind, text)
    except ValueError:  # no rule says that it is XML
        loose = read_loosely(text)
        first = re.search(r"<\s*(?:[\w.-]{1,40}:)?([A-Za-z]\w{0,40})", text)
        return first[1] if first else "", loose, loose.get("info", "")
    entries = {tag_of(child): (child.text or "").strip() for child in reversed(root)}
    inner = next((child for child in root if tag_of(child) == "info"), None)
    if inner is not None and len(inner):
        whole = re.search(r"<info\b[^>]*>(.*)</info\s*>", text, re.DOTALL)
        return tag_of(root), entries, whole[1].strip() if whole else ""
    return tag_of(root), entries, entries.get("info", "")


def _groups(path: str, found: list[Record]) -> Iterator[dict[str, Record]]:
    """The records of each field: private and user's XML, numbers, checksum."""
    groups: list[dict[str, Record]] = []
    for one in found:
        if one.type == PRIVATE_RECORD:
            groups.append({})
        if one.type not in (PRIVATE_RECORD, RECORD, DATA, CHECKSUM):
            continue
        if not groups or one.type in groups[-1]:
            raise FileFormatError(
                f"{path}: record {one.type!r} at offset {one.offset} should follow a {PRIVATE_RECORD!r} of its own"
            )
        groups[-1][one.type] = one
    for group in groups:
        if DATA not in group:
            raise FileFormatError(
                f"{path}: no record {DATA!r} follows {PRIVATE_RECORD!r} at offset {group[PRIVATE_RECORD].offset}"
            )
        yield group


def _field(path: str, fd: int, extents: tuple[int, ...], group: Mapping[str, Record]) -> StoredField:
    """A field by its records."""
    header = {kind: _text(path, fd, one) for kind, one in group.items() if kind != DATA}
    data, values = group[DATA], _described(path, PRIVATE_RECORD, header)
    where = f"{PRIVATE_RECORD} at offset {group[PRIVATE_RECORD].offset}"
    precision = _BITS.get(values.get("precision", ""))
    if precision is None:
        raise FileFormatError(
            f"{path}: {where} says precision {value_shown(values.get('precision', '')[:20])}, expected F or D"
        )
    size = positive_integer(path, f"typesize in {where}", values.get("typesize", ""))
    # of one number and how many, or of all and 1: writers differ
    size *= positive_integer(path, f"datacount in {where}", values.get("datacount", ""))
    kind, n = _kind(path, where, values, size, precision)
    origin, shape = _part(path, where, values, extents)
    records = SiteRecords(path, data.offset, size, shape)
    check_payload_size(path, f"record {DATA!r} at offset {data.offset}", records, data.length)
    text = header.get(RECORD, "")
    tag, entries, _ = _user(path, RECORD, text)
    label: dict[str, int] = {
        name: _number(path, f"{name} in {RECORD} at offset {group[RECORD].offset}", entries[name])
        for name in ("spin", "color")
        if name in entries
    }
    sums: tuple[int, ...] = ()
    fault = ""
    if CHECKSUM in header:
        try:
            sums = sums_of(path, _described(path, CHECKSUM, header))
        except FileFormatError as error:
            fault = str(error)
    return StoredField(kind, n, precision, records, origin, tag, label, text, sums, fault)


def _number(path: str, where: str, text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise FileFormatError(f"{path}: {where} is {value_shown(text[:40])}, expected a whole number from 0")
    return int(text)


def _kind(path: str, where: str, values: Mapping[str, str], size: int, precision: int) -> tuple[str, int]:
    """What a field is, and its number of colours: by the name of its type, or by the numbers, since QDP++ calls all "Lattice"."""
    datatype = values.get("datatype", "")
    match = re.fullmatch(r"[A-Za-z]+_[FD]([1-9][0-9]{0,2}|N)?_([A-Za-z]+)", datatype)
    colours, spins = (
        _number(path, f"{name} in {where}", values.get(name) or "0") for name in ("colors", "spins")
    )
    if colours == 0 and match and (match[1] or "N") != "N":
        colours = int(match[1])
    counts = {
        COMPLEX: 1,
        STAGGERED.name: colours,
        DIRAC.name: SPINS * colours,
        PROPAGATOR: (SPINS * colours) ** 2,
    }
    name = match[2] if match else ""
    if name == "ColorMatrix":
        raise FileFormatError(
            f"{path}: {where} says {shown(datatype, 40)}: matrices, as gauge configurations have them; "
            "GaugeField.from_file reads these"
        )
    if name in counts:
        possible = [name]
    elif datatype == "Lattice":
        possible = [DIRAC.name, PROPAGATOR] if spins == SPINS else [STAGGERED.name] if colours else [COMPLEX]
    else:
        raise FileFormatError(
            f"{path}: {where} says datatype {value_shown(datatype[:40])}, expected one that ends with "
            f"{', '.join(counts)}, or Lattice"
        )
    for one in possible:
        if counts[one] * precision // 4 == size:
            return one, 0 if one == COMPLEX else colours
    raise FileFormatError(
        f"{path}: {where} says {size} bytes per site, {colours} colours and {spins} spins in {precision} bits; "
        f"{' or '.join(f'{one} has {counts[one] * precision // 4} bytes' for one in possible)}"
    )


def _part(
    path: str, where: str, values: Mapping[str, str], extents: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(origin, extents) of the sites that a field has."""
    kind = values.get("recordtype", FIELD)
    if kind == FIELD:
        return (0,) * len(extents), extents
    if kind != HYPERCUBE:
        raise FileFormatError(
            f"{path}: {where} says recordtype {value_shown(kind[:20])}, expected {FIELD} (a field) or {HYPERCUBE} (a "
            "field on a part of the lattice)"
        )
    low, high = (
        [_number(path, f"{name} in {where}", word) for word in values.get(name, "").split()]
        for name in ("hyperlower", "hyperupper")
    )
    if (
        len(low) != len(extents)
        or len(high) != len(extents)
        or not all(a <= b < size for a, b, size in zip(low, high, extents, strict=True))
    ):
        raise FileFormatError(
            f"{path}: {where} says sites {low} to {high}, which do not lie on the lattice {extents}"
        )
    return tuple(low), tuple(b - a + 1 for a, b in zip(low, high, strict=True))


def _roles(path: str, type: str, fields: list[StoredField]) -> tuple[list[StoredField], list[StoredField]]:
    """The sources and the sinks of a file, as its type orders them."""
    held = ", ".join(f"{count} {kind}" for kind, count in Counter(one.kind for one in fields).items())
    if type in ("", _ONE_RECORD) and [one.kind for one in fields] == [PROPAGATOR]:
        return [], fields
    for family in FAMILIES:
        if type == family.scalar_source:
            sources, sinks, wanted = fields[:1], fields[1:], COMPLEX
        elif type in (family.pairs, family.scalar_pairs):
            sources, sinks = fields[::2], fields[1::2]
            wanted = family.name if type == family.pairs else COMPLEX
        else:
            continue
        if len(sources) != len(sinks) and type != family.scalar_source:
            raise FileFormatError(
                f"{path}: {type} holds {counted(len(fields), 'field')}, and the last is a source without sink"
            )
        for one, kind in (*((s, wanted) for s in sources), *((s, family.name) for s in sinks)):
            role = "source" if any(one is s for s in sources) else "sink"
            if one.kind != kind or (one.tag == SOURCE_TAG) != (role == "source"):
                raise FileFormatError(
                    f"{path}: {one.where} is {one.kind} under {shown(one.tag or 'no tag', 40)}, and {type} has a {role} there "
                    f"({kind} under {SOURCE_TAG if role == 'source' else family.sink_tag})"
                )
        if not sinks:
            raise FileFormatError(f"{path}: {type} holds no sinks")
        return sources, sinks
    known = ", ".join(t for f in FAMILIES for t in (f.scalar_source, f.scalar_pairs, f.pairs))
    raise FileFormatError(
        f"{path}: {'no type of propagators is named' if not type else f'the type is {value_shown(type[:80])}'}, and the fields "
        f"are {held}; expected {known}, or one field of a whole propagator"
    )


def _order(path: str, type: str, family: Family, n: int, sinks: Sequence[StoredField]) -> list[int]:
    """Where in the file the members are, by spin and colour of the source."""
    count = math.prod(family.element(n))
    names = tuple(family.label(0, n))
    labelled = [one for one in sinks if one.label.keys() >= set(names)]
    if not labelled and type != family.scalar_source and len(sinks) == count:
        return list(range(count))  # without labels, which pairs need not have, colour runs fastest
    places: dict[tuple[int, ...], int] = {}
    for i, one in enumerate(sinks):
        if not one.label.keys() >= set(names):
            raise FileFormatError(f"{path}: {one.where} does not say {' and '.join(names)} of its source")
        unit = tuple(one.label[name] for name in names)
        if unit in places:
            raise FileFormatError(f"{path}: {one.where} is there twice, first in {sinks[places[unit]].where}")
        if any(a >= size for a, size in zip(unit, family.element(n), strict=True)):
            raise FileFormatError(
                f"{path}: {one.where}, of {n} colours{f' and {SPINS} spins' if family.spins else ''}"
            )
        places[unit] = i
    units = [family.unit(k, n) for k in range(count)]
    if missing := [unit for unit in units if unit not in places]:
        listed = "; ".join(in_words(dict(zip(names, unit, strict=True))) for unit in missing[:4])
        raise FileFormatError(
            f"{path}: {counted(len(sinks), 'sink')}, and a propagator of {n} colours has {count}: missing are {listed}"
            f"{', ...' if len(missing) > 4 else ''}"
        )
    return [places[unit] for unit in units]


def _check_basis(path: str, texts: Sequence[str]) -> None:
    """Raise where the XML of others names another basis of spins, as an element or as `key = value`."""
    tag, entry = (
        rf"<\s*{BASIS_KEY}\s*>([^<]{{0,80}})<",
        rf"(?:^|[>;,\n])\s*{BASIS_KEY}\s*[=:]\s*([\w -]{{1,80}})",
    )
    for text in texts:
        for match in re.finditer(f"{tag}|{entry}", text, re.IGNORECASE):
            _require_basis(path, (match[1] or match[2] or "").strip())


def _require_basis(path: str, named: object) -> None:
    if not re.sub("[^a-z]", "", str(named).lower()).startswith("degrand"):
        raise FileFormatError(
            f"{path}: the basis of spins is {value_shown(named)}, jali reads {BASIS}; transform the propagator first"
        )


def _own(path: str, header: Mapping[str, str], info: str) -> tuple[dict[str, Any], str]:
    """Our own record, of files of others the metadata that the text in their XML has; and what is damaged."""
    marked = _MARK.search(info)
    if INFO not in header:
        found = re.findall(
            r"(?:^|[;,\n])\s*([A-Za-z_][\w.-]{0,79})\s*=\s*([^=;,\n<>]{0,200})(?=[;,\n]|$)",
            info[: marked.start()] if marked else info,
        )
        fault = f"{path}: no record {INFO!r}, which {FILE!r} says that jali wrote" if marked else ""
        return {"metadata": portable_metadata(dict(found))}, fault
    own = info_of(header[INFO])
    boundary = own.get("boundary", [""] * DIRECTIONS) if own else None
    if (
        own is None
        or not isinstance(boundary, list)
        or len(boundary) != DIRECTIONS
        or not all(isinstance(word, str) for word in boundary)
        or own.get("source") not in ("none", SCALAR, FULL)
        or not all(isinstance(value, str | int | float) for value in own["metadata"].values())
    ):
        return {"metadata": {}}, f"{path}: record {INFO!r} is not the JSON object that jali writes"
    entry = mark(header[INFO])
    if marked and marked[0].removeprefix("; ") != entry:
        return own, (
            f"{path}: the checksum of record {INFO!r} is {entry[-8:]}, {FILE!r} says {marked[1]}: damaged"
        )
    if "basis" in own:
        _require_basis(path, own["basis"])
    return own, "" if marked else f"{path}: {FILE!r} does not say the checksum of record {INFO!r}: damaged"
