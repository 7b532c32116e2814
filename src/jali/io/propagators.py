"""Propagators in the USQCD formats: SciDAC records in a LIME container, a field for each spin and colour of the source.

What is written is "ScalarSource_TwelveSink" for a source that is one complex field times unit vectors of spin and colour,
"Source_Sink_Pairs" for any other, each for Dirac fermions and for color vectors. What is read is these, the pairs with
scalar sources, sources on a part of the lattice, and the one record of a LatticePropagator that QDP++ and Chroma write.
Every field has a checksum of its own; spin and colour are read from its labels, so the order of the records is of no
importance. The last entry of the text in the file's XML says that jali wrote the file, and the CRC-32 of the record of our
own: where that record, its checksum or that of a field is missing, the file is damaged. No dates are written: a file depends on the numbers and the metadata alone. Boxes are NumPy arrays; fields are
in `jali.hadrons`.

Layout: "Input/Output for QCD", version 2.3 (usqcd-software/qio, doc/qio_2p3.tex, USQCD Dirac and staggered propagator
formats); tags from include/qioxml_private.h, qioxml_usqcd_prop.h and qioxml_usqcd_ksprop.h there; the sites of a part of
the lattice in lib/dml/DML_utils.c. QDP++: usqcd-software/qdpxx, include/qdp_qdpio.h, a matrix in spin of matrices in
colour, rows (the sink) first. Spins are in the basis of DeGrand and Rossi.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jali.amounts import counted
from jali.errors import FileFormatError, LayoutError, ParameterError
from jali.files import checked_path, reading, require_memory, shown, value_shown

from .boxes import Box, SiteRecords, boxes_tile, site_coordinates, write_all
from .checksums import SiteCrc
from .lime import MAGIC, MESSAGE_BEGIN, MESSAGE_END, padded, record, record_header
from .links import DIRECTIONS, checked_metadata
from .parallel import RankGroup, SingleRank, together
from .propagator_contents import (
    BASIS,
    BASIS_KEY,
    COMPLEX,
    FAMILIES,
    FIELD,
    FULL,
    LETTERS,
    OWN_LIMIT,
    PROPAGATOR,
    SCALAR,
    SOURCE_TAG,
    SPINS,
    Family,
    PropagatorContents,
    StoredField,
    in_words,
    mark,
    parse_propagator,
)
from .scidac import (
    CHECKSUM,
    DATA,
    FILE,
    INFO,
    PRIVATE_FILE,
    PRIVATE_RECORD,
    RECORD,
    checksum_xml,
    private_file_xml,
    xml,
)
from .writing import WRITER, check_tiling, explained, opened, writing_beside

_INFO_LIMIT = 800
"""Characters of the metadata in the file's XML: QIO's manual allows 1023 bytes for all that stands there."""

_NUMBER_LIMIT = 4096
"""Bits of a whole number in metadata; Python does not read many more."""


@dataclass
class _Planned:
    """A field to be written: its numbers, the bytes before and after them, and where in the file it begins."""

    what: str
    array: NDArray  # of the box, complex
    before: bytes
    length: int  # of the numbers of all ranks
    begin: int = 0
    checksum: SiteCrc = field(default_factory=SiteCrc)

    def after(self, sums: tuple[int, ...]) -> bytes:
        """What follows the numbers, for their sums (empty: unknown yet)."""
        return bytes(padded(self.length) - self.length) + record(CHECKSUM, checksum_xml(sums), MESSAGE_END)

    @property
    def payload(self) -> int:
        """Offset of the numbers."""
        return self.begin + len(self.before)

    @property
    def end(self) -> int:
        """Offset of what follows."""
        return self.payload + self.length + len(self.after(()))


def write_propagator(
    path: str | os.PathLike[str],
    sinks: NDArray,
    box: Box,
    extents: Sequence[int],
    *,
    source: NDArray | None = None,
    precision: int = 64,
    metadata: Mapping[str, object] | None = None,
    boundary: Sequence[str] | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Write a propagator as SciDAC in LIME (collective).

    `sinks` is this rank's box, complex, of shape `box.shape + (4 n, 4, n)` for Dirac fermions, member `spin * n + colour` of
    the source, or `box.shape + (n, n)` for color vectors; the boxes of all ranks must cover the lattice `extents` (x, y, z,
    t) once. `source` has the shape of `sinks`, or is `box.shape`: the complex field that stands in all members, at the spin
    and colour of each. Without `source` the file has the scalar source that its type asks for, of zeros, and says that none
    was given. `metadata` (key to text or number) and `boundary` (a text per direction) go to a record of our own, and
    metadata to the file's XML as far as they fit there.

    The file appears under its name only when complete. Raises `ParameterError`, `LayoutError` or `OSError`, the same on all
    ranks.
    """
    ranks = ranks or SingleRank()
    extents = tuple(extents)
    with together(ranks):
        family, n = _checked_arrays(sinks, source, box, extents)
        if not isinstance(precision, int | np.integer) or precision not in LETTERS:
            raise ParameterError(
                f"precision {value_shown(precision)} should be 32 or 64 (bits of a real number)"
            )
        texts = kept_metadata(metadata)
        kind = _kind_of_source(source)
        own = {
            "writer": WRITER,
            **({"basis": BASIS} if family.spins else {}),
            **({} if boundary is None else {"boundary": list(boundary)}),
            "source": kind,
            "metadata": texts,
        }
        described = json.dumps(own, indent=1)
        if len(described) > OWN_LIMIT:
            raise ParameterError(
                f"the metadata make a record of {len(described)} bytes, and a file of a propagator has {OWN_LIMIT} at most; "
                "nothing written"
            )
        about = _about(
            family.file_tag,
            {"type": family.pairs if kind == FULL else family.scalar_source},
            "; ".join(filter(None, (_brief(texts), mark(described)))),
        )
        head = record(PRIVATE_FILE, private_file_xml(extents), MESSAGE_BEGIN) + record(
            FILE, about, MESSAGE_END
        )
        tail = record(INFO, described.encode(), MESSAGE_BEGIN | MESSAGE_END)
        fields = list(_planned(family, n, sinks, source, math.prod(extents), precision))
        at = len(head)
        for one in fields:
            one.begin = at
            at = one.end
        checked_path(path)
    plan = hashlib.sha256(b"".join((head, *(one.before for one in fields), tail))).digest()
    if len(set(ranks.gather_bytes(plan))) > 1:
        raise ParameterError("ranks disagree on the propagator to be written into a file")
    check_tiling(ranks, box, extents)
    with writing_beside(path, ranks) as (target, name):
        with together(ranks), explained(f"cannot write {target}"), opened(name, os.O_WRONLY) as fd:
            for one in fields:
                _write_numbers(fd, target, one, box, extents, precision)
            os.fsync(fd)
        sums = [one.checksum.combined(ranks) for one in fields]
        with together(ranks), explained(f"cannot write {target}"):
            if ranks.rank == 0:
                with opened(name, os.O_WRONLY) as fd:
                    write_all(fd, head, 0)
                    for one, both in zip(fields, sums, strict=True):
                        write_all(fd, one.before, one.begin)
                        write_all(fd, one.after(both), one.payload + one.length)
                    write_all(fd, tail, at)
                    os.fsync(fd)


def kept_metadata(metadata: Mapping[str, object] | None) -> dict[str, Any]:
    """Metadata as files of propagators keep them: texts, and real numbers as Python has them. Raises ParameterError."""
    if isinstance(metadata, Mapping):
        metadata = {key: _text_or_number(key, value) for key, value in metadata.items()}
    texts = checked_metadata(metadata)
    for key in texts:
        if re.fullmatch(BASIS_KEY, key, re.IGNORECASE):
            raise ParameterError(f"metadata cannot set {key}: the writer says the basis, {BASIS}")
    return {key: texts[key] if isinstance(value, str) else value for key, value in (metadata or {}).items()}


def _text_or_number(key: object, value: object) -> str | int | float:
    """A value of metadata; NumPy's numbers as Python's. Raises ParameterError."""
    plain = value.item() if isinstance(value, np.generic) else value
    if isinstance(plain, str):
        return str(plain)
    if isinstance(plain, float | np.floating):
        return float(plain)
    if isinstance(plain, int) and not isinstance(plain, bool) and plain.bit_length() <= _NUMBER_LIMIT:
        return int(plain)
    raise ParameterError(f"metadata {value_shown(key)} is a text or a real number, not {value_shown(value)}")


def _checked_arrays(
    sinks: NDArray, source: NDArray | None, box: Box, extents: tuple[int, ...]
) -> tuple[Family, int]:
    """The kind of propagator, and its number of colours."""
    if len(extents) != DIRECTIONS or min(extents) < 1:
        raise ParameterError(f"lattice {extents} should be four positive extents x, y, z, t")
    box.check_inside(extents)
    shape: tuple[int, ...] = np.shape(sinks)
    n = shape[-1] if shape else 0
    wanted = {f: (*box.shape, math.prod(f.element(n)), *f.element(n)) for f in FAMILIES}
    family = next((f for f in FAMILIES if n and shape == wanted[f]), None)
    if family is None:
        raise ParameterError(
            f"sinks should have shape {box.shape} + (4 n, 4, n), or {box.shape} + (n, n) for color vectors, not {shape}"
        )
    if source is not None and np.shape(source) not in (box.shape, shape):
        raise ParameterError(f"the source should have shape {box.shape} or {shape}, not {np.shape(source)}")
    for name, array in (("sinks", sinks), ("source", source)):
        if array is not None and array.dtype not in (np.complex64, np.complex128):
            raise ParameterError(f"{name} have type {array.dtype}, expected complex64 or complex128")
    return family, n


def _kind_of_source(source: NDArray | None) -> str:
    return "none" if source is None else SCALAR if source.ndim == DIRECTIONS else FULL


def _planned(
    family: Family, n: int, sinks: NDArray, source: NDArray | None, volume: int, precision: int
) -> Iterator[_Planned]:
    """The fields of a file in their order."""
    letter, kind = LETTERS[precision], _kind_of_source(source)

    def planned(
        what: str, array: NDArray, datatype: str, tag: str, label: dict[str, str], info: str = ""
    ) -> _Planned:
        size = math.prod(array.shape[DIRECTIONS:]) * precision // 4
        coloured = array.ndim > DIRECTIONS
        described = xml(
            "scidacRecord",
            version="1.1",
            recordtype=FIELD,
            datatype=datatype,
            precision=letter,
            colors=str(n if coloured else 0),
            spins=str(family.spins if coloured else 0),
            typesize=str(size),
            datacount="1",
        )
        before = record(PRIVATE_RECORD, described, MESSAGE_BEGIN) + record(
            RECORD, _about(tag, label, info), 0
        )
        return _Planned(what, array, before + record_header(DATA, volume * size, 0), volume * size)

    if source is None:
        source = np.zeros(sinks.shape[:DIRECTIONS], sinks.dtype)
    if kind != FULL:
        info = "no source was given" if kind == "none" else ""
        yield planned("the source", source, f"USQCD_{letter}_{COMPLEX}", SOURCE_TAG, {}, info)
    datatype = f"USQCD_{letter}{n}_{family.name}"
    for k in range(math.prod(family.element(n))):
        label = family.label(k, n)
        where = in_words(label)
        if kind == FULL:
            member = source[:, :, :, :, k]
            yield planned(f"the source of {where}", member, datatype, SOURCE_TAG, label)
        yield planned(f"the sink of {where}", sinks[:, :, :, :, k], datatype, family.sink_tag, label)


def _about(tag: str, entries: Mapping[str, str], info: str) -> bytes:
    """XML of the user's part: version, `entries`, `info`."""
    return xml(tag, **{"version": "1.0", **entries, "info": escape(info)})


def _brief(texts: Mapping[str, Any]) -> str:
    """The first metadata, as many as fit into the XML of a file."""
    lines: list[str] = []
    for key, value in texts.items():
        lines.append(f"{key} = {value}")
        if len(escape("; ".join(lines))) > _INFO_LIMIT:
            lines.pop()
            break
    return "; ".join(lines)


def _write_numbers(
    fd: int, path: str, one: _Planned, box: Box, extents: tuple[int, ...], precision: int
) -> None:
    """Write this rank's box of a field."""
    flat = np.ascontiguousarray(one.array).reshape(box.volume, math.prod(one.array.shape[DIRECTIONS:]))
    real = np.dtype(f">f{precision // 8}")

    def encode(first: int, last: int) -> NDArray[np.uint8]:
        numbers = flat[first:last]
        with np.errstate(over="ignore"):
            stored = numbers.view(numbers.real.dtype).astype(real)
        if not np.isfinite(stored).all():
            site, component = (int(i) for i in np.argwhere(~np.isfinite(stored))[0])
            at = _place(first + site, box)
            raise ParameterError(
                f"{one.what} holds {complex(numbers[site, component // 2])} at (x, y, z, t) = {at} in {precision} bits; "
                "nothing written"
            )
        return stored.view(np.uint8).reshape(len(numbers), -1)

    records = SiteRecords(path, one.payload, flat.shape[1] * precision // 4, extents)
    records.write(fd, box, encode, one.checksum.add)


def _place(site: int, box: Box) -> tuple[int, ...]:
    """Coordinates on the lattice of a site of a box."""
    return tuple(o + c for o, c in zip(box.origin, site_coordinates(site, box.extents), strict=True))


def is_lime(path: str) -> bool:
    """Whether a file is a LIME container. Raises OSError, FileFormatError for what is no file."""
    with explained(f"cannot read {shown(path)}"), reading(path) as fd:
        return os.pread(fd, 4, 0) == MAGIC.to_bytes(4, "big")


def open_propagator(
    path: str | os.PathLike[str], *, verify: bool = True, ranks: RankGroup | None = None
) -> PropagatorFile:
    """Open a propagator in LIME and read what it says of its fields (collective over `ranks`).

    Raises `FileFormatError` for files that are no propagators, where fields are missing, twice there or not what the file
    says, and with `verify` where the record that jali adds is not the one that was written, `OSError` if the file cannot be read; the same on all ranks.
    """
    ranks = ranks or SingleRank()
    with together(ranks):
        name = checked_path(path)
        with explained(f"cannot read {shown(name)}"), reading(name) as fd:
            found = parse_propagator(name, fd, os.fstat(fd).st_size)
    if len(set(ranks.gather_bytes(hashlib.sha256(repr(found).encode()).digest()))) > 1:
        raise FileFormatError(f"{name}: the ranks see different files under this name")
    if verify and found.fault:
        raise FileFormatError(f"{found.fault}; verify=False takes the numbers as they are")
    return PropagatorFile(name, found, ranks)


class PropagatorFile:
    """A file of a propagator, of which the descriptions have been read; nothing stays open."""

    def __init__(self, path: str, found: PropagatorContents, ranks: RankGroup) -> None:
        self.path = path
        self._found = found
        self._ranks = ranks

    @property
    def type(self) -> str:
        """What the file says it is, such as "USQCD_DiracFermion_Source_Sink_Pairs"; empty where it says nothing."""
        return self._found.type

    @property
    def extents(self) -> tuple[int, ...]:
        """Extents of the lattice (x, y, z, t)."""
        return self._found.extents

    @property
    def colours(self) -> int:
        """The number n of colours."""
        return self._found.n

    @property
    def spins(self) -> int:
        """4 for Dirac fermions, 0 for color vectors."""
        return self._found.family.spins

    @property
    def element(self) -> tuple[int, ...]:
        """Shape of an element: (4, n) or (n,)."""
        return self._found.family.element(self._found.n)

    @property
    def precision(self) -> int:
        """Bits of a real number in the file."""
        return self._found.precision

    @property
    def source(self) -> str | None:
        """ "scalar", "full", or None where the file has none."""
        sources = self._found.sources
        if not sources or self._found.own.get("source") == "none":
            return None
        return SCALAR if sources[0].kind == COMPLEX else FULL

    @property
    def info(self) -> str:
        """The text that stands in the file's XML for its users."""
        return self._found.info

    @property
    def metadata(self) -> dict[str, Any]:
        """What `write_propagator` was given, texts and numbers; of files of others what the text has as `key = value`."""
        return dict(self._found.own["metadata"])

    @property
    def boundary(self) -> list[str] | None:
        """The boundary conditions, if jali wrote them."""
        return self._found.own.get("boundary")

    @property
    def fault(self) -> str:
        """What is damaged apart from the fields, for messages; empty where nothing is."""
        return self._found.fault

    @property
    def has_checksums(self) -> bool:
        """Whether all fields have a checksum."""
        return all(one.sums for one in (*self._found.sinks, *self._found.sources))

    def read(
        self,
        box: Box | None = None,
        *,
        source: bool = False,
        verify: bool = True,
        dtype: DTypeLike | None = None,
    ) -> NDArray:
        """Read this rank's box of the sinks, or of the sources (collective); the boxes of all ranks cover the lattice once.

        Returns `box.shape + (members, *element)`, complex, of the file's precision unless `dtype` is complex64 or complex128;
        members are in the order of spin and colour, whatever the order of the file. A scalar source is put at the spin and
        colour of each member; sites that a source does not have are zero. With `verify` checksums are compared. Numbers
        that are not finite are always refused.

        Raises `FileFormatError` naming the field and the position, `LayoutError` for boxes that do not cover the lattice,
        `ParameterError` where there is no source or not enough memory; the same on all ranks.
        """
        found, ranks = self._found, self._ranks
        element, volume = self.element, math.prod(self.element)
        with together(ranks):
            box = Box.whole(found.extents) if box is None else box
            box.check_inside(found.extents)
            kind = np.dtype(
                (np.complex64 if found.precision == 32 else np.complex128) if dtype is None else dtype
            )
            if kind not in (np.complex64, np.complex128):
                raise ParameterError(f"propagators can be read as complex64 or complex128, not as {kind}")
            if source and self.source is None:
                raise ParameterError(f"{self.path} holds no source: none was given when it was written")
            fields = found.sources if source else found.sinks
            for one in fields:
                if verify and one.fault:
                    raise FileFormatError(f"{one.fault}; verify=False takes the numbers as they are")
            require_memory(
                f"{self.path}: the {counted(volume, 'member')} of {counted(box.volume, 'site')}",
                box.volume * volume**2 * kind.itemsize,
            )
        if not boxes_tile(ranks, box, found.extents):
            raise LayoutError(
                f"the boxes of {ranks.size} rank(s) do not cover the lattice {found.extents} of {self.path} exactly once"
            )
        checksums = [SiteCrc() for _ in fields]
        with together(ranks), explained(f"cannot read {self.path}"), reading(self.path) as fd:
            values = np.zeros((*box.shape, volume, *element), kind)
            for k, (one, checksum) in enumerate(zip(fields, checksums, strict=True)):
                sites, numbers = _read_field(self.path, fd, one, box, found.extents, kind, checksum)
                members = range(volume) if len(fields) == 1 else (k,)
                _put(values[sites], members, one, numbers, found.family)
        if verify:
            for one, checksum in zip(fields, checksums, strict=True):
                if one.sums:
                    _compare(self.path, one, checksum.combined(ranks))
        return values


def _read_field(
    path: str,
    fd: int,
    one: StoredField,
    box: Box,
    extents: tuple[int, ...],
    kind: np.dtype[Any],
    checksum: SiteCrc,
) -> tuple[tuple[slice, ...], NDArray]:
    """The part of a field in a box: where in an array of the box, and the numbers, as the file has them at a site."""
    low = [max(o, b) for o, b in zip(one.origin, box.origin, strict=True)]
    high = [
        min(o + e, b + f)
        for o, e, b, f in zip(one.origin, one.records.lattice, box.origin, box.extents, strict=True)
    ]
    inside = all(a < b for a, b in zip(low, high, strict=True))
    size = [b - a if inside else 0 for a, b in zip(low, high, strict=True)]
    part = Box(tuple(a - o if inside else 0 for a, o in zip(low, one.origin, strict=True)), tuple(size))
    where = tuple(
        slice(a - b, a - b + e) if inside else slice(0) for a, b, e in zip(low, box.origin, size, strict=True)
    )[::-1]
    real = np.dtype(f">f{one.precision // 8}")
    numbers = np.empty((part.volume, one.records.record_bytes * 4 // one.precision), kind)
    for position, sites, rows in one.records.read(fd, part):
        stored = rows.view(real)
        chunk = numbers[position : position + len(sites)]
        with np.errstate(over="ignore", invalid="ignore"):
            chunk.view(chunk.real.dtype)[...] = stored
        if not np.isfinite(chunk).all():
            site, component = (int(i) for i in np.argwhere(~np.isfinite(chunk))[0])
            _refuse_number(
                path, one, int(sites[site]), component, complex(*stored[site, 2 * component :][:2]), kind
            )
        checksum.add(_on_the_lattice(sites, one, extents), rows)
    return where, numbers.reshape(*part.shape, numbers.shape[1])


def _refuse_number(
    path: str, one: StoredField, site: int, component: int, value: complex, kind: np.dtype[Any]
) -> None:
    coordinates = site_coordinates(site, one.records.lattice)
    at = tuple(o + c for o, c in zip(one.origin, coordinates, strict=True))
    offset = one.records.offset + site * one.records.record_bytes + component * one.precision // 4
    place = f"{path}: {one.where} holds {value} at (x, y, z, t) = {at} (offset {offset})"
    if np.isfinite(value):
        raise ParameterError(f"{place}, too large for {4 * kind.itemsize} bits; read it in 64")
    raise FileFormatError(f"{place}, which is not finite")


def _on_the_lattice(
    sites: NDArray[np.int64], one: StoredField, extents: tuple[int, ...]
) -> NDArray[np.int64]:
    """Site numbers on the whole lattice, which checksums go by, of those of a field on a part of it."""
    if one.records.lattice == extents:
        return sites
    left, stride = sites, 1
    numbers = np.zeros_like(sites)
    for size, origin, extent in zip(one.records.lattice, one.origin, extents, strict=True):
        left, coordinate = np.divmod(left, size)
        numbers += (coordinate + origin) * stride
        stride *= extent
    return numbers


def _put(part: NDArray, members: Sequence[int], one: StoredField, numbers: NDArray, family: Family) -> None:
    """Put the numbers of a field into these members of a propagator or of its source."""
    n, sites = part.shape[-1], numbers.shape[:-1]
    if one.kind == PROPAGATOR:  # spin of the sink and of the source, colour of the sink and of the source
        both = numbers.reshape(*sites, SPINS, SPINS, n, n)
        part[...] = np.moveaxis(both, (-4, -3, -2, -1), (-2, -4, -1, -3)).reshape(part.shape)
        return
    for k in members:
        if one.kind == COMPLEX:
            part[(slice(None),) * DIRECTIONS + (k, *family.unit(k, n))] = numbers[..., 0]
        else:
            part[:, :, :, :, k] = numbers.reshape(*sites, *family.element(n))


def _compare(path: str, one: StoredField, sums: tuple[int, ...]) -> None:
    if sums != one.sums:
        end = one.records.offset + math.prod(one.records.lattice) * one.records.record_bytes
        raise FileFormatError(
            f"{path}: the checksum of {one.where}, up to {end}, is {' '.join(f'{v:08x}' for v in sums)}, the file says "
            f"{' '.join(f'{v:08x}' for v in one.sums)}: damaged; verify=False takes the numbers as they are"
        )
