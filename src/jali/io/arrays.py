"""Files of arrays with an element per site, which NumPy and h5py read: `.npy`, HDF5.

The array's first indices are the site, first direction first and slowest, as `Field.local` has them; the others are the
element. Every rank writes and reads its own box, in the place that its numbers have in the file. An array has metadata of
its writer, with a checksum of the numbers, the same for any ranks, and a seal (a checksum) over all of this and shape and
type. Arrays of other programs have none. Does not depend on fields: these are in `jali.lattice`.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.amounts import counted
from jali.errors import FileFormatError, ParameterError
from jali.files import checked_path, reading, require_memory, shown, value_shown

from .array_formats import Outline, array_formats
from .boxes import Box, SiteRecords
from .checkpoint import FIELD_NAME
from .checksums import MixedSum
from .parallel import RankGroup, SingleRank, together
from .writing import WRITER, check_tiling, explained, opened, writing_beside

_MARK, _VERSION = "jali array", 2
_OWN = ("format", "version", "writer", "checksum", "seal")
"""The metadata of this module; the rest is the caller's."""


def write_arrays(
    path: str | os.PathLike[str],
    format: str,
    extents: Sequence[int],
    box: Box,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Mapping[str, Any]],
    *,
    ranks: RankGroup | None = None,
) -> None:
    """Write arrays into one file, replacing an older one under the name when complete (collective).

    `format` is `"npy"` or `"hdf5"`. Each array is this rank's box of the lattice `extents`: shape `box.extents` followed by the
    element's. `attributes[name]` is what to write beside it: texts, whole numbers, and lists of texts, by names that are not one of
    format, version, writer, checksum and seal.

    Raises ParameterError, LayoutError or OSError, the same on all ranks; an older file then stays.
    """
    ranks = ranks or SingleRank()
    extents = tuple(int(n) for n in extents)
    sealed, parts = checked_and_sealed(path, format, extents, box, arrays, metadata, ranks)
    region = Box(box.origin[::-1], box.extents[::-1])
    with writing_beside(path, ranks) as (target, name):
        with together(ranks), explained(f"cannot write {target}"):
            offsets = array_formats()[format].create(name, sealed) if ranks.rank == 0 else []
        offsets = json.loads(ranks.broadcast_bytes(json.dumps(offsets).encode(), 0))
        with together(ranks), explained(f"cannot write {target}"), opened(name, os.O_WRONLY) as fd:
            for outline, offset in zip(sealed, offsets, strict=True):
                _write_rows(fd, target, offset, extents, region, _rows(parts[outline.name], box))
            os.fsync(fd)


def checked_and_sealed(
    path: str | os.PathLike[str],
    format: str,
    extents: tuple[int, ...],
    box: Box,
    arrays: Mapping[str, NDArray[Any]],
    metadata: Mapping[str, Mapping[str, Any]],
    ranks: RankGroup,
) -> tuple[list[Outline], dict[str, NDArray[Any]]]:
    """What `write_arrays` does before it writes: outlines with checksums and seals, and this rank's parts as bytes have them.

    Collective; raises as `write_arrays` does.
    """
    with together(ranks):
        if format not in array_formats():
            raise ParameterError(
                f"arrays are written as {' or '.join(map(repr, array_formats()))}, not {value_shown(format)}"
            )
        box.check_inside(extents)
        parts = {name: _checked(name, array, box) for name, array in arrays.items()}
        outlines = [
            Outline(name, extents + part.shape[len(extents) :], part.dtype, dict(metadata.get(name, {})))
            for name, part in parts.items()
        ]
        checked_path(path)
    plan = repr(
        [format, *((one.name, one.shape, parts[one.name].dtype.str, one.metadata) for one in outlines)]
    )
    if len(set(ranks.gather_bytes(hashlib.sha256(plan.encode()).digest()))) > 1:
        raise ParameterError("ranks disagree on the arrays to be written into a file")
    check_tiling(ranks, box, extents)
    sealed = []
    for outline in outlines:
        with together(ranks):
            checksum = _checksum(extents, box, parts[outline.name])
        sealed.append(_sealed(outline, checksum.combined(ranks)[0]))
    return sealed, parts


def open_arrays(
    path: str | os.PathLike[str], *, verify: bool = True, ranks: RankGroup | None = None
) -> ArrayFile:
    """Open a file of arrays and read their metadata (collective over `ranks`).

    Raises FileFormatError for damage and unknown formats, OSError, ParameterError where h5py is needed and missing; the same
    on all ranks. With `verify=False` an array whose seal is broken has no metadata.
    """
    ranks = ranks or SingleRank()
    with together(ranks):
        name = checked_path(path)
    found: dict[str, Any] = {}
    with together(ranks), explained(f"cannot read {shown(name)}"):
        if ranks.rank == 0:
            with reading(name) as fd:
                size = os.fstat(fd).st_size
                entry = next((entry for entry in array_formats().values() if entry.is_one(fd, size)), None)
                if entry is None:
                    raise FileFormatError(
                        f"{shown(name)}: neither of {', '.join(array_formats())}; it begins with {os.pread(fd, 8, 0)!r}"
                    )
                outlines = [_opened(name, one, verify) for one in entry.parse(name, fd, size, verify)]
            found = {"format": entry.name, "size": size, "arrays": [_as_json(one) for one in outlines]}
    found = json.loads(ranks.broadcast_bytes(json.dumps(found).encode(), 0))
    return ArrayFile(
        name, found["format"], found["size"], [_from_json(one) for one in found["arrays"]], ranks
    )


def holds_arrays(path: str) -> bool:
    """Whether a file is one that `open_arrays` opens. Raises OSError."""
    with explained(f"cannot read {shown(path)}"), reading(path) as fd:
        size = os.fstat(fd).st_size
        return any(entry.is_one(fd, size) for entry in array_formats().values())


class ArrayFile:
    """A file of arrays; nothing stays open. `arrays` are their outlines by name."""

    def __init__(self, path: str, format: str, size: int, arrays: list[Outline], ranks: RankGroup) -> None:
        self.path = path
        self.format = format
        self.arrays = {one.name: one for one in arrays}
        self._size = size
        self._ranks = ranks

    def read(self, name: str, box: Box, *, verify: bool = True) -> NDArray[Any]:
        """This rank's box of an array, shape `box.extents` + the element's (collective).

        The boxes of all ranks cover the lattice once. A checksum, if the file has one, is compared. Raises
        FileFormatError for damage, LayoutError for boxes outside, the same on all ranks.
        """
        ranks, outline = self._ranks, self.arrays[name]
        extents, element = outline.shape[: len(box.extents)], outline.shape[len(box.extents) :]
        with together(ranks):
            box.check_inside(extents)
            if outline.dtype is None:
                raise FileFormatError(f"{self.path}: {shown(name)!r} does not hold numbers")
            needed = box.volume * math.prod(element) * outline.dtype.itemsize
            require_memory(f"{self.path}: {counted(box.volume, 'site')} of {shown(name)!r}", needed)
        with together(ranks), explained(f"cannot read {self.path}"):
            values = self._values(outline, box, element)
        if verify and "checksum" in outline.metadata:
            self._verify(outline, extents, box, values)
        return values

    def _values(self, outline: Outline, box: Box, element: tuple[int, ...]) -> NDArray[Any]:
        assert outline.dtype is not None
        if outline.offset is None:
            read = array_formats()[self.format].read
            assert read is not None
            return read(
                self.path,
                outline,
                tuple(slice(o, o + n) for o, n in zip(box.origin, box.extents, strict=True)),
            )
        if outline.fortran:  # the element's indices are directions too, behind those of the lattice
            order: tuple[int, ...] = outline.shape
            region = Box(box.origin + (0,) * len(element), box.extents + element)
            record = outline.dtype.itemsize
        else:
            order = outline.shape[: len(box.extents)][::-1]
            region = Box(box.origin[::-1], box.extents[::-1])
            record = outline.dtype.itemsize * math.prod(element)
        data = np.empty((region.volume, record), np.uint8)
        with reading(self.path) as fd:
            if (size := os.fstat(fd).st_size) != self._size:
                raise FileFormatError(
                    f"{self.path}: has {size} bytes here, and had {self._size} when it was opened by rank 0"
                )
            for position, sites, rows in SiteRecords(self.path, outline.offset, record, order).read(
                fd, region
            ):
                data[position : position + len(sites)] = rows
        numbers = data.view(outline.dtype)
        return numbers.reshape(region.shape).T if outline.fortran else numbers.reshape(*box.extents, *element)

    def _verify(self, outline: Outline, extents: tuple[int, ...], box: Box, values: NDArray[Any]) -> None:
        with together(self._ranks):
            checksum = _checksum(extents, box, values)
        found = f"{checksum.combined(self._ranks)[0]:016x}"
        if found != outline.metadata["checksum"]:
            what = f"{self.path}: {shown(outline.name)!r}" if outline.name else self.path
            raise FileFormatError(
                f"{what}: the checksum of the numbers is {found}, the file says {shown(outline.metadata['checksum'], 40)}: "
                "damaged, or changed by another program; verify=False takes them as they are"
            )


def _checked(name: str, array: NDArray[Any], box: Box) -> NDArray[Any]:
    """An array as its bytes are written: C-ordered, little-endian."""
    if not FIELD_NAME.fullmatch(name):
        raise ParameterError(
            f"the name {shown(name)!r} should be letters, digits, '_', '.' and '-', at most 100"
        )
    if array.shape[: len(box.extents)] != box.extents or 0 in array.shape[len(box.extents) :]:
        raise ParameterError(
            f"{name!r} has shape {array.shape}, the box needs {box.extents} and the element's shape"
        )
    if array.dtype.kind not in "biufc":
        raise ParameterError(f"{name!r} holds {array.dtype}, which are not numbers")
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _rows(array: NDArray[Any], box: Box) -> NDArray[np.uint8]:
    """The bytes of each site, one row each."""
    element = math.prod(array.shape[len(box.extents) :])
    return np.ascontiguousarray(array).reshape(box.volume, element).view(np.uint8)


def _checksum(extents: tuple[int, ...], box: Box, array: NDArray[Any]) -> MixedSum:
    """Of this rank's numbers, each of which begins a word, so that it does not matter which dimensions belong to the element."""
    rows, width, checksum = _rows(array, box), array.dtype.itemsize, MixedSum()
    records = SiteRecords("", 0, rows.shape[1], extents[::-1])
    for position, sites in records.sites(Box(box.origin[::-1], box.extents[::-1])):
        some = rows[position : position + len(sites)]
        if width % 8:
            some = some.view(f"<u{width}").astype("<u8").view(np.uint8)
        checksum.add(sites, some)
    return checksum


def _write_rows(
    fd: int, path: str, offset: int, extents: tuple[int, ...], region: Box, rows: NDArray[np.uint8]
) -> None:
    records = SiteRecords(path, offset, rows.shape[1], extents[::-1])
    records.write(fd, region, lambda first, last: rows[first:last], lambda sites, written: None)


def _sealed(outline: Outline, checksum: int) -> Outline:
    metadata = {
        "format": _MARK,
        "version": _VERSION,
        "writer": WRITER,
        **outline.metadata,
        "checksum": f"{checksum:016x}",
    }
    return replace(outline, metadata={**metadata, "seal": _seal(metadata, outline)})


def _seal(metadata: Mapping[str, Any], outline: Outline) -> str:
    """SHA-256 of all metadata except the seal, and of shape and type."""
    assert outline.dtype is not None
    whole = [{k: v for k, v in metadata.items() if k != "seal"}, outline.shape, outline.dtype.str]
    return hashlib.sha256(json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _opened(path: str, outline: Outline, verify: bool) -> Outline:
    """The description of an array in a file, with jali's metadata; none for arrays of other programs."""
    metadata = outline.metadata
    if not metadata or outline.dtype is None:
        return replace(outline, metadata={})
    what = f"{path}: {shown(outline.name)!r}" if outline.name else path
    intact = metadata.get("format") == _MARK and metadata.get("seal") == _seal(metadata, outline)
    if not intact and not verify:
        return replace(outline, metadata={})
    if metadata.get("format") != _MARK:
        raise FileFormatError(
            f"{what}: what stands beside the array is not what jali writes; verify=False ignores it"
        )
    if metadata.get("version") != _VERSION:
        raise FileFormatError(
            f"{what}: version {shown(metadata.get('version'), 20)}, this jali reads {_VERSION}"
        )
    if not intact:
        raise FileFormatError(
            f"{what}: the seal does not belong to what the file says of the array: damaged, or changed by another program; "
            "verify=False takes the array without it"
        )
    return outline


def _as_json(outline: Outline) -> dict[str, Any]:
    kind = None if outline.dtype is None else outline.dtype.str
    return {**vars(outline), "dtype": kind, "metadata": dict(outline.metadata)}


def _from_json(found: dict[str, Any]) -> Outline:
    dtype = None if found["dtype"] is None else np.dtype(found["dtype"])
    return Outline(**{**found, "shape": tuple(found["shape"]), "dtype": dtype})
