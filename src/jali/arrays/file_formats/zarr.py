"""Zarr, version 3, through the package zarr: a folder with a file for each chunk, which all ranks write at once.

No chunk belongs to two ranks. Chunks have one shape (a regular grid), given or chosen, and may begin inside a rank's part; then
ranks first exchange data for whole chunks. Chunks are compressed (Zstandard) and have checksums (CRC-32C), which are part of
Zarr, so every reader detects damage. The metadata that map chunks to the array have no checksum in Zarr: jali's stores have a
checksum of it (a seal) among their attributes. Stores of version 2, and of others, with any chunks, are read; chunks that such
an array cannot have are an error.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import lzma
import math
import os
import re
import secrets
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jali.amounts import counted
from jali.arrays.file_formats import Described, FileFormat
from jali.arrays.file_formats._plain import written_part
from jali.arrays.layout import Box, Layout, shape_of
from jali.comm import Communicator
from jali.comm.validation import integer, several
from jali.errors import FileFormatError, ParameterError
from jali.files import checked_path, package_for, read_by, shown, value_shown
from jali.io.array_formats import Outline
from jali.io.array_formats._reader_process import numbers_in
from jali.io.parallel import together
from jali.io.writing import WRITER, explained, sync_directory

CHUNK_BYTES = 1 << 26  # of larger parts several chunks are made
_OPENING = threading.Lock()  # settings of zarr are those of the process, of all its virtual ranks
_METADATA = ("zarr.json", ".zarray", ".zgroup")
_SEALED = (
    "shape",
    "data_type",
    "chunk_grid",
    "chunk_key_encoding",
    "fill_value",
    "codecs",
    "storage_transformers",
)
_CHUNK = re.compile(r"c(?:[/.][0-9]+)*|[0-9]+(?:[/.][0-9]+)*")
# decompressors that notice damage, or return what they make of it
_SOUND = ("zstd", "gzip", "zlib", "bz2", "crc32c", "transpose")
_NUMBER = re.compile(r"[0-9]+")


def _zarr(path: str) -> Any:
    """The package. Raises ParameterError where it is not installed, or too old."""
    zarr = package_for(path, "Zarr stores", "zarr", "zarr")
    if int(zarr.__version__.split(".")[0]) < 3:
        raise ParameterError(f"{path}: Zarr stores need zarr 3, not {zarr.__version__}")
    return zarr


def _is_store(path: str) -> bool:
    return any(os.path.isfile(os.path.join(path, name)) for name in _METADATA)


# --- chunks ---------------------------------------------------------------------------------------------------


def chosen_chunks(layout: Layout, itemsize: int) -> tuple[int, ...]:
    """A shape of chunks that follows the ranks' parts: along axes that are split the largest extent with which parts end, where that is
    not much smaller than parts are, else that of the largest part; of at most CHUNK_BYTES, if one element is not more."""
    shape = list(layout.shape)
    if layout.scattered:
        for axis in layout.axes:
            shape[axis] = max(one[axis] for one in layout.local_shapes)
    for axis in range(layout.ndim):
        too_large = -(-math.prod(shape) * itemsize // CHUNK_BYTES)
        most = max(1, -(-shape[axis] // too_large))
        ends = {box[axis][1] for box in layout.boxes} - {0, layout.shape[axis]}
        common = math.gcd(*ends)
        pieces = [n for n in range(-(-common // most), 2 * common // most + 1) if n and common % n == 0]
        fitting = common // pieces[0] if pieces else 0
        shape[axis] = fitting if 2 * fitting > most else most
    return tuple(shape)


def _checked_chunks(given: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    numbers = [integer(n) for n in given] if several(given) else [integer(given)] if len(shape) == 1 else []
    if len(numbers) != len(shape) or any(n is None or n < 1 for n in numbers):
        raise ParameterError(
            f"chunks of an array of shape {shape} are {len(shape)} whole numbers from 1, not {value_shown(given)}"
        )
    return tuple(min(int(n), whole) for n, whole in zip(numbers, shape, strict=True) if n is not None)


def whole_chunks(layout: Layout, chunks: Sequence[int]) -> tuple[Box, ...]:
    """The box that each rank writes: its own, with ends moved to the nearest ends of chunks."""
    boxes = []
    for box in layout.boxes:
        moved = list(box)
        for axis in layout.axes:
            chunk, extent = chunks[axis], layout.shape[axis]
            ends = [
                n if n in (0, extent) else min(extent, (2 * n + chunk) // (2 * chunk) * chunk)
                for n in box[axis]
            ]
            moved[axis] = (ends[0], ends[1])
        boxes.append(tuple(moved))
    return tuple(boxes)


# --- writing --------------------------------------------------------------------------------------------------


def _write(path: str, layout: Layout, part: np.ndarray, *, chunks: Sequence[int] | None = None) -> None:
    ranks = layout.communicator
    with together(ranks):
        zarr = _zarr(path)
        if part.dtype.kind not in "biufc" or part.dtype.char in "gG":
            raise ParameterError(f"Zarr holds numbers of at most double precision, not {part.dtype}")
        shape_of_chunks = (
            chosen_chunks(layout, part.dtype.itemsize)
            if chunks is None
            else _checked_chunks(chunks, layout.shape)
        )
    box, part = written_part(layout, part, whole_chunks(layout, shape_of_chunks))
    with _writing_beside(path, ranks) as temporary:
        with together(ranks), explained(f"cannot write {path}"):
            if ranks.rank == 0:
                array = zarr.create_array(
                    temporary, shape=layout.shape, chunks=shape_of_chunks, dtype=part.dtype, fill_value=0,
                    compressors=(zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()), attributes={"writer": WRITER},
                )  # fmt: skip
                array.attrs["seal"] = _seal(temporary)
        with together(ranks), explained(f"cannot write {path}"):
            if 0 not in shape_of(box):
                with (
                    _OPENING,
                    zarr.config.set({"array.write_empty_chunks": True}),
                ):  # so that none may be missing
                    array = zarr.open_array(temporary, mode="r+")
                array[tuple(slice(*ends) for ends in box)] = part


@contextlib.contextmanager
def _writing_beside(path: str, ranks: Communicator) -> Iterator[str]:
    """As `jali.io.writing.writing_beside`, of a folder. An older array of the name is removed when the new one is complete;
    systems have no replacement of folders, so for a moment nothing has the name, and the older one is beside it."""
    with together(ranks), explained(f"cannot write {shown(path)}"):
        target = os.path.realpath(checked_path(path))
        temporary = ""
        if ranks.rank == 0:
            _check_replaceable(target)
            os.stat(os.path.dirname(target))  # zarr would make folders
            temporary = f"{_hidden(target)}.tmp"
    temporary = os.fsdecode(ranks.broadcast_bytes(os.fsencode(temporary), 0))
    try:
        yield temporary
        with together(ranks), explained(f"cannot write {target}"):
            if ranks.rank == 0:
                _replace(temporary, target)
    finally:
        if ranks.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)


def _hidden(target: str) -> str:
    directory, base = os.path.split(target)
    return os.path.join(directory, f".{base[:80]}.{secrets.token_hex(6)}")


def _check_replaceable(target: str) -> None:
    if not os.path.lexists(target):
        return
    if not os.path.isdir(target):
        raise ParameterError(f"cannot write {shown(target)}: something that is no Zarr array has this name")
    if _is_group(target):
        raise ParameterError(
            f"cannot write {shown(target)}: it is a group of arrays; give the name of one in it, such as {shown(target)}/x, "
            'with format="zarr"'
        )
    if os.listdir(target) and not _is_store(target):
        raise ParameterError(
            f"cannot write {shown(target)}: it is a folder that holds other things than a Zarr array"
        )


def _is_group(path: str) -> bool:
    if os.path.isfile(os.path.join(path, ".zgroup")):
        return True
    try:
        with open(os.path.join(path, "zarr.json"), "rb") as file:
            return b'"group"' in file.read(1 << 20)
    except OSError:
        return False


def _replace(temporary: str, target: str) -> None:
    older = ""
    if os.path.lexists(target):
        older = f"{_hidden(target)}.old"
        os.rename(target, older)
    try:
        os.rename(temporary, target)
    except OSError:
        if older:
            os.rename(older, target)
        raise
    sync_directory(os.path.dirname(target))
    if older:
        shutil.rmtree(older, ignore_errors=True)


# --- reading --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _read_by_zarr(path: str) -> Iterator[None]:
    """`read_by`, also for what decompressors raise."""
    with read_by("zarr", path):
        try:
            yield
        except (EOFError, SystemError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"a chunk cannot be decompressed: {error}") from error


class _Store:
    """An open store: one array, named "", or those of a group by their paths."""

    def __init__(self, path: str, ranks: Communicator, verify: bool) -> None:
        self.path, self._ranks = path, ranks
        with together(ranks):
            self._zarr = _zarr(path)
        with together(ranks), _read_by_zarr(path):
            # every rank reads the few bytes itself, unchecked
            found = self._zarr.open(path, mode="r")
            arrays = {"": found} if isinstance(found, self._zarr.Array) else _members(found, self._zarr.Array)
            if verify:
                for name, array in arrays.items():
                    _check_seal(os.path.join(path, name), array.attrs.get("seal"))
            self.arrays: Mapping[str, Described] = {
                name: Described(tuple(array.shape), _numbers(array.dtype)) for name, array in arrays.items()
            }
            self.about: Mapping[str, Any] = {"attributes": dict(found.attrs)}
        self.preferred = "" if "" in self.arrays else None
        self._verify = verify

    def read(self, name: str, layout: Layout) -> np.ndarray:
        """This rank's part."""
        ranks, folder = self._ranks, os.path.join(self.path, name)
        sparse = b""
        with together(ranks), _read_by_zarr(self.path):
            array = self._zarr.open_array(self.path, mode="r", path=name)
            if ranks.rank == 0:
                there = list(_chunks_there(folder))
                if self._verify:
                    _check_chunks(self.path, folder, array, there)
                sparse = b"sparse" if 2 * len(there) < math.prod(_grid(array)) else b""
        sparse = ranks.broadcast_bytes(sparse, 0)
        with together(ranks), _read_by_zarr(self.path):
            if sparse:
                return _read_chunks(self.path, name, array, _chunks_there(folder), layout.box)
            return _read_box(self.path, name, array, layout.box)


def _seal(folder: str) -> str:
    """SHA-256 of all metadata that map the bytes of an array's chunks to its numbers."""
    with open(os.path.join(folder, "zarr.json"), "rb") as file:
        said = json.load(file)
    parts = [said.get(key) for key in _SEALED]
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _check_seal(folder: str, seal: Any) -> None:
    """Arrays of others, and of older jali, have none."""
    if seal is not None and seal != _seal(folder):
        raise FileFormatError(
            f"{folder}: the seal does not belong to what zarr.json says of the array: damaged, or changed by another program; "
            "verify=False takes it as it is"
        )


def _grid(array: Any) -> list[int]:
    """How many files of chunks there may be in each dimension."""
    sizes = array.shards or array.chunks
    return [-(-extent // size) for extent, size in zip(array.shape, sizes, strict=True)]


def _chunks_there(folder: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Files of chunks in the folder of an array, and their positions in the grid: c/0/1 of version 3, 0.1 or 0/1 of version 2."""
    for directory, folders, files in os.walk(folder):
        inside = os.path.relpath(directory, folder)
        folders[:] = [name for name in folders if _CHUNK.fullmatch(name)]
        for file in files:
            key = os.path.normpath(os.path.join(inside, file))
            if _CHUNK.fullmatch(key):
                yield key, tuple(map(int, _NUMBER.findall(key)))


def _check_chunks(path: str, folder: str, array: Any, there: Sequence[tuple[str, tuple[int, ...]]]) -> None:
    """That an array of this shape may have these chunks. Zarr has fill values where one is missing: jali writes all, others may mean
    it."""
    grid, of = _grid(array), f"an array of shape {array.shape} in chunks of {array.shards or array.chunks}"
    for key, position in there:
        if len(position) != len(grid) or any(n >= end for n, end in zip(position, grid, strict=True)):
            raise FileFormatError(
                f"{path}: has the chunk {shown(key)}, which {of} cannot have: its metadata are damaged, or the chunk is left from an "
                "older shape; verify=False does not look at it"
            )
        if array.shards and not os.path.getsize(
            os.path.join(folder, key)
        ):  # zarr takes it for one that is missing
            raise FileFormatError(f"{path}: the chunk {shown(key)} is empty: truncated")
    missing = math.prod(grid) - len(there)
    if missing and str(array.attrs.get("writer", "")).startswith("jali"):
        raise FileFormatError(
            f"{path}: {missing} of {counted(math.prod(grid), 'chunk')} are missing; verify=False takes zeros in their place"
        )


def _read_box(path: str, name: str, array: Any, box: Box) -> np.ndarray:
    """A part of an array. Decompressors that may end a process where a chunk is damaged do so in another one."""
    steps = [*(array.filters or ()), *(array.compressors or ())]
    if all(type(step).__name__.lower().startswith(_SOUND) for step in steps):
        return np.asarray(array[tuple(slice(*ends) for ends in box)])
    return numbers_in(path, Outline(name, tuple(array.shape), array.dtype), box, "zarr")


def _read_chunks(
    path: str, name: str, array: Any, there: Iterator[tuple[str, tuple[int, ...]]], box: Box
) -> np.ndarray:
    """A part of an array most of whose chunks are missing, each of which costs zarr as much time as one that is there."""
    part = np.zeros(shape_of(box), array.dtype)
    if array.fill_value:
        part[...] = array.fill_value
    sizes = array.shards or array.chunks
    for _, position in there:
        ends = [
            (max(n * size, begin), min((n + 1) * size, end))
            for n, size, (begin, end) in zip(position, sizes, box, strict=False)
        ]
        if len(position) == len(box) and all(begin < end for begin, end in ends):
            inside = tuple(slice(a - begin, b - begin) for (a, b), (begin, _) in zip(ends, box, strict=True))
            part[inside] = _read_box(path, name, array, tuple(ends))
    return part


def _members(group: Any, kind: type) -> dict[str, Any]:
    return {name: item for name, item in sorted(group.members(max_depth=None)) if isinstance(item, kind)}


def _numbers(dtype: Any) -> np.dtype[Any] | None:
    return dtype if isinstance(dtype, np.dtype) and dtype.kind in "biufc" else None


FORMAT = FileFormat("zarr", (".zarr",), _is_store, _write, _Store)
