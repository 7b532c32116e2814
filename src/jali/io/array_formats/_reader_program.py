"""Reads HDF5 files in a separate process: a program that uses h5py and nothing of jali. It also reads Zarr arrays, whose
decompressors may end a process.

In a damaged file the library may loop for ever, take all memory or end its process. So it reads files here: at objects,
attributes, indices of chunks, the files that a virtual dataset names, and at numbers that only the library can read.

A request is a line of JSON: "path", "directory" (the client's working directory), "timeout", seconds without a step after
which this process ends, and "busy", such seconds of computing, for descriptions. The answer is a line for each dataset. Where a request has "name", "shape", "dtype" and "part" (first
index and the one behind the last of each dimension), the answer is the part's numbers instead, block by block: `{"block":
...}`, which is like "part", and then the bytes as NumPy has them; with "library": "zarr" of an array of a Zarr store. The last
line is `{"end": true}` or `{"error": ...}`. The process ends with its client, and after some time without a request.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import itertools
import json
import math
import os
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_MOST_MEMORY = 16 << 30  # bytes of addresses, libraries included; metadata of millions of datasets take less
_IDLE = 60.0  # seconds
_BLOCK = 1 << 23  # bytes that are read at once, if one chunk is not more


def _say(message: dict[str, Any], numbers: Any = None) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
    if numbers is not None:
        sys.stdout.buffer.write(numbers)
        sys.stdout.buffer.flush()


class _Steps:
    """Called at each step. After `timeout` seconds without one, or `busy` of computing (0: any), the process ends, wherever
    the library is."""

    def __init__(self, timeout: float, busy: float) -> None:
        self._timeout, self._busy = timeout, busy
        self._next = 0.0

    def __call__(self, *_: Any) -> None:
        now = time.monotonic()
        if now >= self._next:
            faulthandler.dump_traceback_later(self._timeout, exit=True, file=sys.stderr)
            signal.setitimer(signal.ITIMER_VIRTUAL, self._busy)  # its signal ends the process
            self._next = now + min(self._timeout, self._busy or self._timeout) / 4

    def pause(self) -> None:
        """Until the next step the process waits for others."""
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        self._next = 0.0


def _plain(value: Any) -> Any:
    """An attribute as a text, a whole number or a list of texts; others as what they look like."""
    import numpy as np

    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return [str(item) for item in value]
    return str(value)


def _dataset(name: str, dataset: Any, step: Callable[..., None]) -> dict[str, Any]:
    import h5py

    found: dict[str, Any] = {"name": name, "shape": list(dataset.shape), "sources": _sources(dataset, step)}
    try:
        dtype = dataset.dtype
    except TypeError:  # no NumPy equivalent
        return found
    if dtype.kind not in "biufc":
        return found
    found["dtype"] = dtype.str
    if not {"format", "checksum", "seal"}.isdisjoint(dataset.attrs):  # jali's, or what is left of it
        found["metadata"] = {str(key): _plain(dataset.attrs[key]) for key in dataset.attrs}
    there = dataset.id.get_create_plist()
    if there.get_layout() == h5py.h5d.CHUNKED and 0 not in dataset.shape:
        if hasattr(dataset.id, "chunk_iter"):
            dataset.id.chunk_iter(step)
        else:  # of HDF5 before 1.12.3
            for number in range(dataset.id.get_num_chunks()):
                step(dataset.id.get_chunk_info(number))
    as_numpy_has_them = (
        there.get_layout() == h5py.h5d.CONTIGUOUS
        and there.get_external_count() == 0
        and dataset.id.get_type() == h5py.h5t.py_create(dtype, logical=True)
    )
    if as_numpy_has_them and dtype.kind != "b":
        found["offset"] = dataset.id.get_offset()  # None where nothing was ever written
    return found


def _sources(dataset: Any, step: Callable[..., None]) -> list[str]:
    """Names of the files behind a virtual dataset, each of which is opened by reading a number of it."""
    if not dataset.is_virtual:
        return []
    sources = dataset.virtual_sources()
    for source in sources:
        step()
        first, _ = source.vspace.get_select_bounds()
        with contextlib.suppress(Exception):  # the reader of this stream receives the error
            dataset[tuple(map(int, first))]
    return sorted({source.file_name for source in sources} - {"."})


def _walk(path: str, step: Callable[..., None]) -> None:
    import h5py

    def look(name: str, item: Any) -> None:
        step()
        if isinstance(item, h5py.Dataset) and item.shape:
            _say(_dataset(name, item, step))

    with h5py.File(path, "r", locking=False) as file:
        file.visititems(look)


@contextlib.contextmanager
def _opened(request: dict[str, Any]) -> Iterator[Any]:
    """The dataset, or array of Zarr, of a request."""
    if request["library"] == "zarr":
        yield importlib.import_module("zarr").open_array(request["path"], mode="r", path=request["name"])
        return
    import h5py

    with h5py.File(request["path"], "r", locking=False) as file:
        dataset = file[request["name"]]
        _find_filters(dataset)
        yield dataset


def _read(request: dict[str, Any], step: _Steps) -> None:
    import numpy as np

    with _opened(request) as dataset:
        if [*dataset.shape] != request["shape"] or dataset.dtype.str != request["dtype"]:
            raise ValueError(f"{request['name']!r} is another array than it was when the file was opened")
        for block in _blocks(dataset.chunks or (1,) * dataset.ndim, request["part"], dataset.dtype.itemsize):
            step()
            numbers = np.ascontiguousarray(dataset[tuple(slice(*ends) for ends in block)], dataset.dtype)
            step.pause()
            _say({"block": block}, numbers.reshape(-1).view(np.uint8).data)


def _find_filters(dataset: Any) -> None:
    """Compression that HDF5 itself does not have is in a package, which takes effect where it is imported."""
    import h5py

    there = dataset.id.get_create_plist()
    filters = [there.get_filter(number)[0] for number in range(there.get_nfilters())]
    if not all(map(h5py.h5z.filter_avail, filters)):
        with contextlib.suppress(ImportError):
            importlib.import_module("hdf5plugin")


def _blocks(chunks: Sequence[int], part: Sequence[Sequence[int]], itemsize: int) -> Iterator[list[list[int]]]:
    """Pieces of a part, each of whole chunks, so that no chunk is decompressed twice."""
    sizes = list(chunks)
    for axis in reversed(range(len(sizes))):
        begin, end = part[axis]
        sizes[axis] *= max(1, min(-(-(end - begin) // sizes[axis]), _BLOCK // (math.prod(sizes) * itemsize)))
    cuts = [
        [[max(at, begin), min(at + size, end)] for at in range(begin // size * size, end, size)]
        for size, (begin, end) in zip(sizes, part, strict=True)
    ]
    for block in itertools.product(*cuts):
        yield list(block)


def _answer(request: dict[str, Any]) -> None:
    step = _Steps(request["timeout"], 0.0 if "part" in request else request["busy"])
    step()
    try:
        os.chdir(request["directory"])
        if "part" in request:
            _read(request, step)
        else:
            _walk(request["path"], step)
    except Exception as error:
        _say({"error": f"{error}" or type(error).__name__})
    else:
        _say({"end": True})
    step.pause()


def main() -> None:
    """Of the program."""
    with contextlib.suppress(OSError, ValueError):  # where less is allowed already
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    # output of a library while it reads must not be mixed in
    sys.stdout = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    while select.select([sys.stdin], [], [], _IDLE)[0]:
        request = sys.stdin.readline()
        if not request:
            break
        _answer(json.loads(request))
        h5py = sys.modules.get("h5py")
        if h5py and h5py.h5f.get_obj_count(
            h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE
        ):  # a damaged one that cannot be closed
            break


if __name__ == "__main__":
    main()
