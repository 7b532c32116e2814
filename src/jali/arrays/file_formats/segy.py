"""SEG-Y through the package segyio: traces with 240 bytes of header each, whose last dimension is samples.

A file has no signature, so its ending identifies it. Ranks read and write whole traces, at once. Traces whose headers
number inlines and crosslines regularly form a cube; other files hold traces only.

Source of the format: SEG-Y revision 1 (Society of Exploration Geophysicists, 2002).
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from jali.amounts import counted
from jali.arrays.distributed import DistributedArray
from jali.arrays.file_formats import Described, FileFormat
from jali.arrays.file_formats._plain import written_part
from jali.arrays.layout import Box, Layout, layout_of, shape_of
from jali.comm import Communicator
from jali.errors import FileFormatError, ParameterError, ShapeError
from jali.files import package_for, read_by, shown, value_shown
from jali.io.boxes import write_all
from jali.io.parallel import together
from jali.io.writing import WRITER, explained, opened, writing_beside

CODES = {"float32": 5, "int32": 2, "int16": 3, "int8": 8}  # of types of samples that are written
MOST_SAMPLES, MOST_MICROSECONDS = 65535, 32767  # two bytes, which readers take as unsigned, and as signed
HEADS = 3600  # bytes in front of the traces
HEADER = 240  # of each trace
INLINE, CROSSLINE, OFFSET = "INLINE_3D", "CROSSLINE_3D", "offset"
TRACES = "traces"
PIECE = 4096  # traces that are read at once


def _segyio(path: str) -> Any:
    return package_for(path, "SEG-Y files", "segyio", "segy")


def _fields(segyio: Any) -> dict[str, int]:
    """Words of a trace's header by name: where they begin."""
    return {str(field): int(field) for field in segyio.TraceField.enums() if 1 <= int(field) <= HEADER}


def _is_segy(path: str) -> bool:
    return path.lower().endswith(FORMAT.endings) and os.path.isfile(path)


# --- writing --------------------------------------------------------------------------------------------------


def _write(
    path: str,
    layout: Layout,
    part: np.ndarray,
    *,
    interval: float | None = None,
    inlines: Any = None,
    crosslines: Any = None,
    headers: Mapping[str, Any] | None = None,
    text: str | None = None,
) -> None:
    ranks = layout.communicator
    with together(ranks):
        segyio = _segyio(path)
        code = _code(part.dtype)
        microseconds = _microseconds(interval)
        shape = _checked_shape(layout.shape)
        lines = _numbers_of_lines(shape, inlines, crosslines)
        numbers = _checked_headers(segyio, headers, shape[:-1])
        words = _text(text, layout)
    rows, own, values = _by_traces(layout, part, {**lines, **numbers})
    count = int(np.prod(shape[:-1]))
    with writing_beside(path, ranks) as (target, temporary):
        with together(ranks), explained(f"cannot write {target}"):
            if ranks.rank == 0:
                _create(segyio, temporary, count, shape[-1], code, microseconds, words)
        with together(ranks), explained(f"cannot write {target}"):
            if rows[0] < rows[1]:
                _write_traces(segyio, temporary, rows, own, values, microseconds)


def _code(dtype: np.dtype[Any]) -> int:
    if dtype.name not in CODES:
        hint = {"c": "; save x.real and x.imag", "f": '; x.astype("float32") rounds'}.get(dtype.kind, "")
        raise ParameterError(f"samples of SEG-Y files are {', '.join(CODES)}, not {dtype}{hint}")
    return CODES[dtype.name]


def _microseconds(interval: float | None) -> int:
    if interval is None:
        raise ParameterError("SEG-Y files say how far samples are apart: give interval=, in seconds")
    try:
        exact = float(interval) * 1e6
    except (TypeError, ValueError):
        raise ParameterError(
            f"the interval of samples is a number of seconds, not {value_shown(interval)}"
        ) from None
    if not 1 <= (rounded := round(exact) if np.isfinite(exact) else 0) <= MOST_MICROSECONDS or abs(
        exact - rounded
    ) > 1e-6 * max(1.0, exact):
        raise ParameterError(
            f"SEG-Y files have intervals of 1 to {MOST_MICROSECONDS} whole microseconds, not {value_shown(interval)} s"
        )
    return rounded


def _checked_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) not in (2, 3):
        raise ShapeError(
            f"a SEG-Y file holds (traces, samples) or (inlines, crosslines, samples), not an array of shape {shape}"
        )
    if shape[-1] > MOST_SAMPLES:
        raise ShapeError(f"a trace of a SEG-Y file has at most {MOST_SAMPLES} samples, not {shape[-1]}")
    return shape


def _numbers_of_lines(shape: tuple[int, ...], inlines: Any, crosslines: Any) -> dict[str, np.ndarray]:
    """Headers that give a trace's position in a cube."""
    given = {"inlines": inlines, "crosslines": crosslines}
    if len(shape) == 2:
        for name, value in given.items():
            if value is not None:
                raise ParameterError(f"{name} are numbers of cubes, and the array has shape {shape}")
        return {}
    found = []
    for axis, (name, value) in enumerate(given.items()):
        numbers = np.arange(1, shape[axis] + 1) if value is None else np.asarray(value)
        if numbers.shape != (shape[axis],) or numbers.dtype.kind not in "iu":
            raise ParameterError(f"{name} are {shape[axis]} whole numbers, not {value_shown(value)}")
        if len(set(numbers.tolist())) < len(numbers):
            raise ParameterError(f"{name} are different numbers, not {value_shown(value)}")
        found.append(numbers)
    i, j = np.meshgrid(*found, indexing="ij")
    return {INLINE: i, CROSSLINE: j, OFFSET: np.ones(shape[:-1], np.int64)}


def _checked_headers(segyio: Any, headers: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    fields, own = _fields(segyio), ("TRACE_SEQUENCE_FILE", "TRACE_SAMPLE_COUNT", "TRACE_SAMPLE_INTERVAL")
    if headers is not None and not isinstance(headers, Mapping):
        raise ParameterError(f"headers are arrays by the names of header words, not {type(headers).__name__}")
    found = {}
    for name, value in (headers or {}).items():
        if name not in fields:
            raise ParameterError(
                f"{value_shown(name)} is no word of a trace's header; there are SourceX, GroupX, offset, ..., by segyio's names"
            )
        if name in own:
            raise ParameterError(f"{name} is set by jali")
        one = value if isinstance(value, DistributedArray) else np.asarray(value)
        if tuple(one.shape) not in ((), shape):
            raise ShapeError(f"header {name} has shape {tuple(one.shape)}, the traces {shape}")
        if np.dtype(one.dtype).kind not in "iu":
            raise ParameterError(f"header {name} holds whole numbers, not {one.dtype}")
        found[name] = one
    return found


def _text(text: str | None, layout: Layout) -> bytes:
    words = f"C 1 {WRITER}, array of shape {layout.shape}" if text is None else text
    if not isinstance(words, str) or not words.isascii() or len(words) > 3200:
        raise ParameterError("the textual header is at most 3200 characters of ASCII")
    return words.encode("ascii").ljust(3200)


def _by_traces(
    layout: Layout, part: np.ndarray, numbers: Mapping[str, Any]
) -> tuple[tuple[int, int], np.ndarray, dict[str, np.ndarray]]:
    """Which traces this rank writes, these, and their headers; ranks exchange what gives them whole blocks of traces. Collective."""
    ranks, shape = layout.communicator, layout.shape
    goal = layout if layout.axes == (0,) else layout_of(ranks, shape)
    box, part = written_part(layout, part, goal.boxes)
    begin, end = box[0]
    each = int(np.prod(shape[1:-1]))
    values = {}
    for name, value in numbers.items():
        if isinstance(value, DistributedArray):
            value = value.asarray()  # four bytes a trace
        values[name] = np.broadcast_to(value, shape[:-1])[begin:end].reshape(-1).astype(np.int64)
    return (begin * each, end * each), np.ascontiguousarray(part).reshape(-1, shape[-1]), values


def _create(
    segyio: Any, path: str, traces: int, samples: int, code: int, microseconds: int, text: bytes
) -> None:
    """The file without traces, at its full length."""
    spec = segyio.spec()
    spec.format, spec.tracecount = code, traces
    spec.samples = np.arange(samples) * (microseconds / 1000)
    with segyio.create(path, spec) as file:
        file.text[0] = text
        file.bin.update(hdt=microseconds, dto=microseconds)
        width = file.dtype.itemsize
    os.truncate(path, HEADS + traces * (HEADER + samples * width))


def _write_traces(
    segyio: Any,
    path: str,
    rows: tuple[int, int],
    part: np.ndarray,
    numbers: Mapping[str, np.ndarray],
    microseconds: int,
) -> None:
    """Traces with their headers, as many at once as make a large write: segyio would take each by itself."""
    begin, end = rows
    own = {
        "TRACE_SEQUENCE_FILE": np.arange(begin + 1, end + 1),
        "TRACE_SAMPLE_COUNT": np.full(end - begin, part.shape[1]),
        "TRACE_SAMPLE_INTERVAL": np.full(end - begin, microseconds),
    }
    words = _words(segyio)
    trace = np.dtype([("header", "u1", HEADER), ("samples", part.dtype.newbyteorder(">"), part.shape[1])])
    with opened(path, os.O_WRONLY) as fd:
        for first in range(0, end - begin, PIECE):
            some = slice(first, min(first + PIECE, end - begin))
            block = np.zeros(some.stop - first, trace)
            block["samples"] = part[some]
            for name, values in {**own, **numbers}.items():
                at, kind = words[name]
                word = _as_word(name, values[some], kind, begin + first)
                block["header"][:, at - 1 : at - 1 + kind.itemsize] = word
            write_all(fd, block.view(np.uint8).data, HEADS + (begin + first) * trace.itemsize)
        os.fsync(fd)


def _words(segyio: Any) -> dict[str, tuple[int, np.dtype[Any]]]:
    """Where the words of a header begin, counted from 1, and their types: each ends where the next one begins."""
    fields = _fields(segyio)
    positions = [*sorted(set(fields.values())), HEADER + 1]
    width = {position: after - position for position, after in itertools.pairwise(positions)}
    return {
        name: (position, np.dtype(">u2" if name == "TRACE_SAMPLE_COUNT" else f">i{width[position]}"))
        for name, position in fields.items()
    }


def _as_word(name: str, values: np.ndarray, kind: np.dtype[Any], first: int) -> np.ndarray:
    limits = np.iinfo(kind)
    if (wrong := np.flatnonzero((values < limits.min) | (values > limits.max))).size:
        raise ParameterError(
            f"header {name} of trace {first + wrong[0]} is {values[wrong[0]]}, which its {kind.itemsize} bytes do not hold"
        )
    return np.ascontiguousarray(values.astype(kind)).view(np.uint8).reshape(len(values), kind.itemsize)


# --- reading --------------------------------------------------------------------------------------------------


class _Traces:
    """An open file. Rank 0 reads the metadata for all."""

    preferred: str | None = TRACES

    def __init__(
        self, path: str, ranks: Communicator, verify: bool, *, cube: bool, iline: int, xline: int
    ) -> None:
        self.path, self._ranks, self._verify = path, ranks, verify
        self._where = {INLINE: iline, CROSSLINE: xline}
        with together(ranks):
            self._segyio = _segyio(path)
        found: dict[str, Any] = {}
        with together(ranks), read_by("segyio", path):
            if ranks.rank == 0:
                found = _look(self._segyio, path, verify, cube, iline, xline)
        found = json.loads(ranks.broadcast_bytes(json.dumps(found).encode(), 0))
        dtype, extents, samples = np.dtype(found["dtype"]), tuple(found["extents"]), found["samples"]
        self._extents, self._inline_first = extents, found["inline first"]
        self.about: Mapping[str, Any] = found["about"]
        self.arrays: dict[str, Described] = {
            TRACES: Described((*extents, samples), dtype, (len(extents),)),
            **{name: Described(extents, np.dtype(np.int32)) for name in _fields(self._segyio)},
        }

    def read(self, name: str, layout: Layout) -> np.ndarray:
        """This rank's part."""
        box = layout.box
        dims = box[: len(self._extents)]
        with together(self._ranks), read_by("segyio", self.path):
            out = np.empty(shape_of(box), self.arrays[name].dtype)
            if out.size == 0:
                return out
            with self._segyio.open(self.path, ignore_geometry=True) as file:
                if self._verify and len(dims) > 1:
                    self._check_positions(file, dims)
                field = None if name == TRACES else _fields(self._segyio)[name]
                for positions, begin, end in self._runs(dims):
                    rows = file.trace.raw[begin:end] if field is None else file.attributes(field)[begin:end]
                    out[positions] = np.asarray(rows).reshape(out[positions].shape)
        return out

    def _runs(self, dims: Box) -> Iterator[tuple[tuple[Any, ...], int, int]]:
        """Consecutive traces of a box: indices into its array, first trace and the one behind the last."""
        if len(dims) == 1:
            begin, end = dims[0]
            for first in range(begin, end, PIECE):
                last = min(first + PIECE, end)
                yield (slice(first - begin, last - begin),), first, last
            return
        (i0, i1), (j0, j1) = dims[:2]
        others = int(np.prod(self._extents[2:]))
        if len(dims) > 2 and dims[2] != (0, self._extents[2]):
            for i in range(i0, i1):
                for j in range(j0, j1):
                    first = self._number(i, j) * others
                    yield (i - i0, j - j0), first + dims[2][0], first + dims[2][1]
        elif self._inline_first:
            for i in range(i0, i1):
                yield (i - i0,), self._number(i, j0) * others, (self._number(i, j1 - 1) + 1) * others
        else:
            for j in range(j0, j1):
                yield (
                    (slice(None), j - j0),
                    self._number(i0, j) * others,
                    (self._number(i1 - 1, j) + 1) * others,
                )

    def _number(self, i: int, j: int) -> int:
        inlines, crosslines = self._extents[:2]
        return i * crosslines + j if self._inline_first else j * inlines + i

    def _check_positions(self, file: Any, dims: Box) -> None:
        """Checks that each trace of this rank has the position of its line numbers: segyio checks the first ones
        alone."""
        for axis, name in enumerate((INLINE, CROSSLINE)):
            numbers = np.array(self.about[("inlines", "crosslines")[axis]])
            wanted = numbers[slice(*dims[axis])].reshape([-1 if k == axis else 1 for k in range(len(dims))])
            wanted = np.broadcast_to(wanted, shape_of(dims))
            for positions, begin, end in self._runs(dims):
                there = np.asarray(file.attributes(self._where[name])[begin:end])
                right = wanted[positions].reshape(-1)
                if (wrong := np.flatnonzero(there != right)).size:
                    at = wrong[0]
                    raise _no_cube(
                        self.path,
                        f"trace {begin + at} has {('inline', 'crossline')[axis]} {there[at]} where {right[at]} should be",
                    )


def _no_cube(path: str, why: str) -> FileFormatError:
    return FileFormatError(
        f"{path}: its traces are no regular cube of inlines and crosslines ({why}); cube=False reads them as traces, iline= and xline= "
        "say where headers have these numbers"
    )


def _check_samples(segyio: Any, path: str, file: Any) -> None:
    """Checks that the headers of the first and the last trace agree with the file's on the number of samples, where
    they have one."""
    expected = len(file.samples)
    for trace in (0, file.tracecount - 1):
        count = file.header[trace][segyio.TraceField.TRACE_SAMPLE_COUNT] % (MOST_SAMPLES + 1)
        if count not in (0, expected % (MOST_SAMPLES + 1)):
            raise FileFormatError(
                f"{path}: the file's header says that traces have {counted(expected, 'sample')}, that of trace {trace} says {count}; "
                "verify=False goes by the former"
            )


def _look(segyio: Any, path: str, verify: bool, cube: bool, iline: int, xline: int) -> dict[str, Any]:
    with segyio.open(path, ignore_geometry=True) as file:
        if file.tracecount == 0:
            raise FileFormatError(f"{path}: has no traces")
        if int(file.format) not in (1, 2, 3, 5, 6, 8, 10, 11, 12, 16):
            raise FileFormatError(f"{path}: samples have the unknown format {int(file.format)}")
        if verify:
            _check_samples(segyio, path, file)
        traces, microseconds = int(file.tracecount), segyio.tools.dt(file, fallback_dt=0.0)
        about = {
            "interval": microseconds / 1e6 if microseconds else None,
            "start": float(file.samples[0]) / 1e3,
            "text": file.text[0].decode("ascii", "replace").rstrip(),
            "binary": {str(key): int(value) for key, value in file.bin.items()},
        }
        found = {
            "dtype": file.dtype.str, "extents": [traces], "samples": len(file.samples),
            "inline first": True, "about": about,
        }  # fmt: skip
    if not cube:
        return found
    try:
        with segyio.open(path, iline=iline, xline=xline) as file:
            extents = [len(file.ilines), len(file.xlines)]
            if len(file.offsets) > 1:
                extents.append(len(file.offsets))
            found["extents"], found["inline first"] = (
                extents,
                file.sorting == segyio.TraceSortingFormat.INLINE_SORTING,
            )
            about["inlines"], about["crosslines"] = file.ilines.tolist(), file.xlines.tolist()
            about["offsets"] = file.offsets.tolist()
    except (RuntimeError, ValueError, IndexError, KeyError) as error:
        raise _no_cube(path, f"segyio: {shown(error)}") from None
    if int(np.prod(extents)) != traces:
        raise _no_cube(path, f"{extents} do not make {counted(traces, 'trace')}")
    return found


def _open(
    path: str, ranks: Communicator, verify: bool, *, cube: bool = False, iline: int = 189, xline: int = 193
) -> _Traces:
    return _Traces(path, ranks, verify, cube=cube, iline=iline, xline=xline)


FORMAT = FileFormat("segy", (".sgy", ".segy"), _is_segy, _write, _open)
