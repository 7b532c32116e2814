"""What HDF5 says of files, found by a process of its own: a program, which knows h5py and nothing of jali.

In a file with damaged metadata the library may go round for ever, take all memory or end its process. So it looks at a file here
first, at all that it will look at when numbers are read: objects, attributes, indices of chunks, and the files that a virtual
dataset names.

A request is a line of JSON: "path", "directory" (where the program that asks runs) and "patience", seconds without a step after
which this process ends. The answer is a line for each dataset, and in the end `{"end": true}` or `{"error": ...}`. It ends, too,
with who asks, and when nobody has asked for some time.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import resource
import select
import sys
import time
from collections.abc import Callable
from typing import Any

_MOST_MEMORY = 16 << 30  # bytes of addresses, libraries included; metadata of millions of datasets take less
_IDLE = 60.0  # seconds


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class _Steps:
    """Called at each step. After `patience` seconds without one the process ends, wherever the library is."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._next = 0.0

    def __call__(self, *_: Any) -> None:
        now = time.monotonic()
        if now >= self._next:
            faulthandler.dump_traceback_later(self._patience, exit=True, file=sys.stderr)
            self._next = now + self._patience / 4


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
        found["told"] = {str(key): _plain(dataset.attrs[key]) for key in dataset.attrs}
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
        with contextlib.suppress(Exception):  # whoever reads there hears of it
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


def _answer(request: dict[str, Any]) -> None:
    step = _Steps(request["patience"])
    step()
    try:
        os.chdir(request["directory"])
        _walk(request["path"], step)
    except Exception as error:
        _say({"error": f"{error}" or type(error).__name__})
    else:
        _say({"end": True})
    faulthandler.cancel_dump_traceback_later()


def main() -> None:
    """Of the program."""
    with contextlib.suppress(OSError, ValueError):  # where less is allowed already
        resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))
    import h5py

    while select.select([sys.stdin], [], [], _IDLE)[0]:
        request = sys.stdin.readline()
        if not request:
            break
        _answer(json.loads(request))
        if h5py.h5f.get_obj_count(h5py.h5f.OBJ_ALL, h5py.h5f.OBJ_FILE):  # a damaged one that cannot be closed
            break


if __name__ == "__main__":
    main()
