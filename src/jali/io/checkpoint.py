"""Checkpoints: fields of any element type on a lattice of 1 to 8 dimensions, with the state of a run.

A checkpoint is a directory:

    NAME/manifest.json        lattice, fields, random numbers, user state, checksums; and its own SHA-256
    NAME/data-<token>/U.bin   one raw little-endian file per field, sites in global lexicographic order

Every rank writes its own box of each field, so a checkpoint can be read by any number of ranks. A new one is
written to a data directory of its own; replacing the manifest, one atomic rename, makes it the checkpoint,
and only then is the old data removed. A crash at any moment leaves the one or the other, complete.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali.amounts import counted
from jali.errors import FileFormatError, ParameterError
from jali.files import checked_path, reading, require_memory, shown, value_shown

from .boxes import Box, SiteRecords, boxes_tile, write_all
from .checksums import MixedSum
from .parallel import RankGroup, SingleRank, together
from .writing import WRITER, check_tiling, create_beside, explained, opened, sync_directory

_MANIFEST = "manifest.json"
_MANIFEST_LIMIT = 1 << 26
_VERSION = 1
_MOST_DIMENSIONS = 8
FIELD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_DATA = re.compile(r"data-[0-9a-f]{16}")
_TEMPORARY = re.compile(r"\.manifest\.json\.[0-9a-f]{12}\.tmp")


@dataclass(frozen=True)
class FieldInfo:
    """Element type of a field: the NumPy type of a number, and the shape of one site's element (() for a
    number). Bytes as a storage format keeps them have its name and version.
    """

    dtype: np.dtype
    element_shape: tuple[int, ...]
    format: tuple[str, int] | None = None

    @property
    def record_bytes(self) -> int:
        """Bytes per site."""
        return self.dtype.itemsize * math.prod(self.element_shape)


def write_checkpoint(
    path: str | os.PathLike[str],
    lattice: Sequence[int],
    box: Box,
    fields: Mapping[str, NDArray],
    *,
    rng: Mapping[str, Any] | None = None,
    state: Mapping[str, Any] | None = None,
    formats: Mapping[str, tuple[str, int]] | None = None,
    ranks: RankGroup | None = None,
) -> None:
    """Write a checkpoint, replacing an older one under the same name when complete (collective).

    `lattice` has 1 to 8 extents, first direction first. Each field is this rank's box: shape `box.shape` followed by the
    element's shape; integers, booleans, floats and complex numbers of at most double precision. `formats`, name and
    version of a field's storage format, identifies bytes of sites (`Field.stored_bytes`). `rng` and `state` are what the
    run needs to continue: dictionaries with string keys of JSON values, equal on all ranks.

    Raises `ParameterError`, `LayoutError` or `OSError`, the same on all ranks; the older checkpoint then
    still stands.
    """
    ranks = ranks or SingleRank()
    lattice = tuple(int(size) for size in lattice)
    with together(ranks):
        if not 1 <= len(lattice) <= _MOST_DIMENSIONS or min(lattice) < 1:
            raise ParameterError(f"lattice {lattice} should be 1 to {_MOST_DIMENSIONS} positive extents")
        box.check_inside(lattice)
        formats = formats or {}
        if unknown := sorted(set(formats) - set(fields)):
            raise ParameterError(
                f"formats are given for {', '.join(unknown)}, which are no fields of this checkpoint"
            )
        infos = {name: _describe(name, data, box, formats.get(name)) for name, data in fields.items()}
        contents: dict[str, Any] = {
            "format": "jali-checkpoint",
            "version": _VERSION,
            "lattice": list(lattice),
            "rng": _plain("rng", rng or {}),
            "state": _plain("state", state or {}),
        }
    outline = _canonical(
        {
            **contents,
            "fields": {n: [i.dtype.str, i.element_shape, i.format] for n, i in infos.items()},
        }
    )
    if len(set(ranks.gather_bytes(hashlib.sha256(outline).digest()))) > 1:
        raise ParameterError(
            "ranks disagree on the lattice, the fields or the state to be written in a checkpoint"
        )
    check_tiling(ranks, box, lattice)

    with together(ranks):
        target = os.path.realpath(checked_path(path))
    token = ranks.broadcast_bytes(secrets.token_hex(8).encode(), 0).decode()
    directory = os.path.join(target, f"data-{token}")
    complaint = f"cannot write checkpoint {target}"
    existed = os.path.lexists(target)
    try:
        with together(ranks), explained(complaint):
            if ranks.rank == 0:
                _make_files(directory, infos)
        sums = {name: MixedSum() for name in infos}
        with together(ranks), explained(complaint):
            for name, info in infos.items():
                _write_field(
                    os.path.join(directory, f"{name}.bin"), lattice, box, fields[name], info, sums[name]
                )
        contents["fields"] = {
            name: {
                "dtype": info.dtype.str,
                "element_shape": list(info.element_shape),
                "checksum": f"{sums[name].combined(ranks)[0]:016x}",
                **({"format": list(info.format)} if info.format else {}),
            }
            for name, info in infos.items()
        }
        with together(ranks), explained(complaint):
            if ranks.rank == 0:
                contents["data"] = os.path.basename(directory)
                contents["writer"] = WRITER
                contents["created"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                _replace_manifest(target, contents)
                _remove_leftovers(target, keep=os.path.basename(directory))
    finally:
        if ranks.rank == 0 and not _is_current(target, directory):
            shutil.rmtree(directory, ignore_errors=True)
            if not existed:
                with contextlib.suppress(OSError):
                    os.rmdir(target)


def open_checkpoint(path: str | os.PathLike[str], *, ranks: RankGroup | None = None) -> Checkpoint:
    """Open a checkpoint and read its manifest (collective over `ranks`).

    Raises `FileFormatError` if it is damaged or incomplete, `OSError` if it cannot be read; the same on all
    ranks.
    """
    ranks = ranks or SingleRank()
    with together(ranks), explained(f"cannot read checkpoint {shown(path)}"):
        name = checked_path(path)
        manifest = _read_manifest(os.path.join(name, _MANIFEST))
        checkpoint = Checkpoint(name, manifest, ranks)
    if len(set(ranks.gather_bytes(hashlib.sha256(_canonical(manifest)).digest()))) > 1:
        raise FileFormatError(f"{name}: the ranks see different checkpoints under this name")
    return checkpoint


class Checkpoint:
    """A checkpoint whose manifest has been read and whose files have the right sizes."""

    def __init__(self, path: str, manifest: dict[str, Any], ranks: RankGroup) -> None:
        self.path = path
        self._ranks = ranks
        try:
            self.lattice = tuple(_integer(size, 1) for size in manifest["lattice"])
            self.rng: dict[str, Any] = dict(manifest["rng"])
            self.state: dict[str, Any] = dict(manifest["state"])
            self.created, self.writer = str(manifest["created"]), str(manifest["writer"])
            self.fields = {
                str(name): FieldInfo(
                    _number_type(entry["dtype"]),
                    tuple(_integer(e, 1) for e in entry["element_shape"]),
                    _format(entry["format"]) if "format" in entry else None,
                )
                for name, entry in manifest["fields"].items()
            }
            self._sums = {name: int(entry["checksum"], 16) for name, entry in manifest["fields"].items()}
            data = str(manifest["data"])
            names_are_safe = _DATA.fullmatch(data) and all(FIELD_NAME.fullmatch(name) for name in self.fields)
            if not names_are_safe or not 1 <= len(self.lattice) <= _MOST_DIMENSIONS:
                raise ValueError("impossible names or lattice")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError(
                f"{shown(path)}: the manifest is not that of a checkpoint: {shown(repr(error))}"
            ) from None
        self._directory = os.path.join(path, data)
        for name, info in self.fields.items():
            self._check_size(name, info)

    def read(self, name: str, box: Box | None = None, *, verify: bool = True) -> NDArray:
        """Read a box of a field, the whole lattice by default (collective).

        Returns an array of shape `box.shape` + element shape. The checksum is compared: on the way if the
        boxes of all ranks cover the lattice once, else by an additional pass that the ranks share.

        Raises `ParameterError` for an unknown field, `FileFormatError` for damage, the same on all ranks.
        """
        ranks = self._ranks
        with together(ranks):
            if name not in self.fields:
                raise ParameterError(
                    f"{self.path} has no field {name!r}; it has {', '.join(sorted(self.fields))}"
                )
            info = self.fields[name]
            box = Box.whole(self.lattice) if box is None else box
            box.check_inside(self.lattice)
            require_memory(
                f"{self.path}: {counted(box.volume, 'site')} of {name!r}", box.volume * info.record_bytes
            )
        file = self._file(name)
        checksum = MixedSum() if verify else None
        tiled = boxes_tile(ranks, box, self.lattice) if checksum else True
        with together(ranks), explained(f"cannot read {file}"), reading(file) as fd:
            data = np.empty((box.volume, info.record_bytes), dtype=np.uint8)
            records = SiteRecords(file, 0, info.record_bytes, self.lattice)
            for position, sites, rows in records.read(fd, box):
                data[position : position + len(sites)] = rows
                if checksum and tiled:
                    checksum.add(sites, rows)
        if checksum and not tiled:
            volume = math.prod(self.lattice)
            first, last = (volume * r // ranks.size for r in (ranks.rank, ranks.rank + 1))
            line = SiteRecords(file, 0, info.record_bytes, (volume,))
            with together(ranks), explained(f"cannot read {file}"), reading(file) as fd:
                for _, sites, rows in line.read(fd, Box((first,), (last - first,))):
                    checksum.add(sites, rows)
        if checksum and (found := checksum.combined(ranks)[0]) != self._sums[name]:
            raise FileFormatError(
                f"{file}: checksum is {found:016x}, the manifest says {self._sums[name]:016x}: damaged"
            )
        return data.view(info.dtype).reshape(*box.shape, *info.element_shape)

    def _file(self, name: str) -> str:
        return os.path.join(self._directory, f"{name}.bin")

    def _check_size(self, name: str, info: FieldInfo) -> None:
        file, expected = self._file(name), math.prod(self.lattice) * info.record_bytes
        try:
            found = os.stat(file).st_size
        except FileNotFoundError:
            raise FileFormatError(f"{file}: missing; the checkpoint's manifest names it") from None
        if found != expected:
            raise FileFormatError(
                f"{file}: has {found} bytes, expected {expected} (lattice "
                f"{' x '.join(map(str, self.lattice))}, {info.record_bytes} bytes per site)"
            )


def _format(value: Any) -> tuple[str, int]:
    name, version = value
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no name of a storage format")
    return name, _integer(version, 1)


def _describe(name: str, data: NDArray, box: Box, format: tuple[str, int] | None) -> FieldInfo:
    if not isinstance(name, str) or not FIELD_NAME.fullmatch(name):
        raise ParameterError(f"field name {name!r} should be letters, digits, '_', '.' and '-', at most 100")
    if isinstance(data, np.ma.MaskedArray) and np.ma.is_masked(data):
        raise ParameterError(f"field {name!r} has masked values, which no checkpoint keeps; fill them")
    data = np.asarray(data)
    if data.shape[: len(box.shape)] != box.shape:
        raise ParameterError(
            f"field {name!r} has shape {data.shape}, the box needs {box.shape} and the element's shape"
        )
    try:
        dtype = _number_type(data.dtype.newbyteorder("<").str)
    except ValueError as error:
        raise ParameterError(f"field {name!r}: {error}") from None
    element = data.shape[len(box.shape) :]
    if 0 in element:
        raise ParameterError(f"field {name!r} has elements of shape {element}, which hold nothing")
    if format is not None and (dtype != np.uint8 or len(element) != 1):
        raise ParameterError(
            f"field {name!r} has a storage format and should be bytes of sites, not {dtype} {element}"
        )
    return FieldInfo(dtype, element, None if format is None else _format(format))


def _number_type(text: str) -> np.dtype:
    """The NumPy type of that name, if it is a number that every machine stores alike; else `ValueError`."""
    if not isinstance(text, str) or not re.fullmatch(r"[<|](b1|[iu][1248]|f[248]|c8|c16)", text):
        raise ValueError(
            f"type {value_shown(text)} should be a boolean, integer, float or complex of at most double precision"
        )
    return np.dtype(text)


def _integer(value: Any, least: int) -> int:
    if type(value) is not int or not least <= value < 1 << 31:
        raise ValueError(f"{shown(value, 40)} should be an integer from {least} to 2**31 - 1")
    return value


def _plain(where: str, value: Any) -> Any:
    """A copy of a JSON value; raise `ParameterError` for values that would be read back as others."""
    if value is None or isinstance(value, bool | str):
        return value
    if type(value) in (int, float):
        return value
    if isinstance(value, list):
        return [_plain(f"{where}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ParameterError(
                    f"{where} has the key {value_shown(key)}; a checkpoint keeps string keys only"
                )
        return {key: _plain(f"{where}[{key!r}]", item) for key, item in value.items()}
    raise ParameterError(
        f"{where} is a {type(value).__name__}; a checkpoint keeps None, bool, int, float, str, list and dict"
    )


def _canonical(contents: dict[str, Any]) -> bytes:
    return json.dumps(contents, sort_keys=True, separators=(",", ":")).encode()


def _make_files(directory: str, infos: Mapping[str, FieldInfo]) -> None:
    target = os.path.dirname(directory)
    if os.path.lexists(target) and not os.path.isdir(target):
        raise ParameterError(
            f"cannot write checkpoint {target}: something that is not a directory has this name"
        )
    os.makedirs(directory)
    for name in infos:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        os.close(os.open(os.path.join(directory, f"{name}.bin"), flags, 0o666))


def _write_field(
    file: str, lattice: tuple[int, ...], box: Box, data: NDArray, info: FieldInfo, checksum: MixedSum
) -> None:
    elements = math.prod(info.element_shape)
    rows = np.ascontiguousarray(data, dtype=info.dtype).reshape(box.volume, elements).view(np.uint8)
    with opened(file, os.O_WRONLY) as fd:
        SiteRecords(file, 0, info.record_bytes, lattice).write(
            fd, box, lambda first, last: rows[first:last], checksum.add
        )
        os.fsync(fd)


def _replace_manifest(target: str, contents: dict[str, Any]) -> None:
    sealed = {"manifest": contents, "sha256": hashlib.sha256(_canonical(contents)).hexdigest()}
    final = os.path.join(target, _MANIFEST)
    temporary = create_beside(final)
    try:
        with opened(temporary, os.O_WRONLY) as fd:
            write_all(fd, json.dumps(sealed, indent=1).encode(), 0)
            os.fsync(fd)
        sync_directory(os.path.join(target, contents["data"]))
        os.replace(temporary, final)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    sync_directory(target)


def _is_current(target: str, directory: str) -> bool:
    """Whether the manifest in place names this data directory, even if we were interrupted just then."""
    try:
        manifest = _read_manifest(os.path.join(target, _MANIFEST))
    except FileFormatError:
        return False
    except OSError:
        return True  # unreadable just now: superfluous data cost space, missing data cost the run
    return manifest.get("data") == os.path.basename(directory)


def _remove_leftovers(target: str, keep: str) -> None:
    """Remove what no manifest names any more: data of predecessors and of killed writers."""
    for entry in os.listdir(target):
        if _DATA.fullmatch(entry) and entry != keep:
            shutil.rmtree(os.path.join(target, entry), ignore_errors=True)
        elif _TEMPORARY.fullmatch(entry):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(target, entry))


def _read_manifest(file: str) -> dict[str, Any]:
    try:
        with reading(file) as fd:
            size = os.fstat(fd).st_size
            if size > _MANIFEST_LIMIT:
                raise FileFormatError(f"{file}: {size} bytes are too many for a manifest")
            text = os.pread(fd, size, 0)
    except FileNotFoundError:
        raise FileFormatError(f"{file}: missing: there is no complete checkpoint here") from None
    try:
        sealed = json.loads(text)
        manifest, digest = sealed["manifest"], sealed["sha256"]
        found = hashlib.sha256(_canonical(manifest)).hexdigest()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileFormatError(f"{file}: truncated or damaged: {error!r}") from None
    if found != digest:
        raise FileFormatError(f"{file}: damaged: SHA-256 of the manifest is {found}, it says {digest!r}")
    if not isinstance(manifest, dict) or manifest.get("format") != "jali-checkpoint":
        raise FileFormatError(f"{file}: not the manifest of a checkpoint")
    if manifest.get("version") != _VERSION:
        raise FileFormatError(f"{file}: version {manifest.get('version')!r}, this jali reads {_VERSION}")
    return manifest
