"""HDF5 through h5py: each array a dataset, with what stands beside it as the dataset's attributes.

One rank makes the file. Its datasets are contiguous and allocated at once, so their bytes have places, and all ranks write
there without HDF5. Datasets of others are read likewise where they are contiguous and of numbers as NumPy has them, else
(chunks, compression, other files behind) by h5py on every rank.

What a file says of its datasets is read by another process (`_hdf5_walk.py`): in a damaged one the library may find no end.

Complex numbers are h5py's: a compound of r and i.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import importlib.util
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali import settings
from jali.amounts import counted
from jali.errors import FileFormatError
from jali.files import package_for, read_by, shown

from . import ArrayFormat, Outline

_SIGNATURE = b"\x89HDF\r\n\x1a\n"
PATIENCE = 60.0  # seconds without a step of who looks at a file


def h5py_for(path: str) -> Any:
    """The package. Raises ParameterError where it is not installed."""
    return package_for(path, "HDF5 files", "h5py", "hdf5")


def _is_hdf5(fd: int, size: int) -> bool:
    """The signature stands at the beginning, or at 512, 1024, 2048, ... behind somebody's own bytes."""
    at = 0
    while at < size:
        if os.pread(fd, len(_SIGNATURE), at) == _SIGNATURE:
            return True
        at = max(512, 2 * at)
    return False


def _create(path: str, outlines: Sequence[Outline]) -> list[int]:
    h5py = h5py_for(path)
    try:
        with h5py.File(path, "w", locking=False) as file:
            offsets = [_add_dataset(h5py, file, outline) for outline in outlines]
    except (OSError, RuntimeError, ValueError) as error:  # of HDF5: full disks too, by various classes
        said = re.search(r"errno = (\d+)", str(error))
        raise OSError(int(said[1]) if said else errno.EIO, f"HDF5: {shown(error)}") from error
    return offsets


def _add_dataset(h5py: Any, file: Any, outline: Outline) -> int:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plan.set_obj_track_times(False)  # the same bytes whenever it is written
    kind = h5py.h5t.py_create(outline.dtype, logical=True)
    space = h5py.h5s.create_simple(outline.shape)
    dataset = h5py.Dataset(h5py.h5d.create(file.id, outline.name.encode(), kind, space, plan))
    for name, value in outline.told.items():
        dataset.attrs[name] = value
    return int(dataset.id.get_offset())


def _parse(path: str, fd: int, size: int, strict: bool) -> list[Outline]:
    found = []
    for dataset in datasets_of(path):
        if strict:
            _check_sources(path, dataset["name"], dataset["sources"])
        dtype = np.dtype(dataset["dtype"]) if "dtype" in dataset else None
        told, offset = dataset.get("told", {}), dataset.get("offset")
        found.append(Outline(dataset["name"], tuple(dataset["shape"]), dtype, told, offset))
    return found


def datasets_of(path: str) -> list[dict[str, Any]]:
    """What another process finds in a file: of each dataset "name", "shape" and "sources", files behind it, and of those of
    numbers "dtype", "told" and "offset".

    Raises FileFormatError where HDF5 finds no end, or ends the process, too.
    """
    if importlib.util.find_spec("h5py") is None:
        h5py_for(path)
    found = _LOOKER.look(path)
    last = found.pop() if found else {}
    if "end" not in last:
        raise FileFormatError(f"{path}: HDF5 cannot read it: {shown(last['error'])}")
    return found


class _Looker:
    """The other process: started when it is needed, and again when a file has ended it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._of = 0  # the process that has started it
        self._guard = threading.Lock()
        atexit.register(self._end)

    def look(self, path: str) -> list[dict[str, Any]]:
        """Its answer, of which the last member says how it has ended."""
        wanted = {"path": os.path.abspath(path), "directory": os.getcwd(), "patience": PATIENCE}
        request = json.dumps(wanted).encode() + b"\n"
        with self._guard:
            try:
                found, status = self._answer(request)
                if status == 0 and not found:  # it was about to end, since nobody asked
                    found, status = self._answer(request)
            except BaseException:  # the rest of an answer would be taken for that to the next question
                self._end()
                raise
        if status is None:
            return found
        problem = f"it ended the process that looked at it, with status {status}"
        if status == 1:
            problem = f"it finds no end of what the file says of its datasets ({PATIENCE:g} s without a step)"
        return [{"error": problem}]

    def _answer(self, request: bytes) -> tuple[list[dict[str, Any]], int | None]:
        """What it says, and its status where it has ended before the end."""
        process = self._asked(request)
        found: list[dict[str, Any]] = []
        assert process.stdout is not None
        for line in process.stdout:
            found.append(json.loads(line))
            if "end" in found[-1] or "error" in found[-1]:
                return found, None
        status = process.wait()
        self._end()
        return found, status

    def _asked(self, request: bytes) -> subprocess.Popen[bytes]:
        """The process, which has the request."""
        if self._process is not None and self._of == os.getpid():
            with contextlib.suppress(BrokenPipeError):  # it has ended, since nobody asked
                assert self._process.stdin is not None
                if self._process.poll() is None:
                    self._process.stdin.write(request)
                    return self._process
        self._end()
        # h5py may have been built with MPI, which is ours to start; and algebra needs no threads there
        environment = {**settings.environment(), "MPI4PY_RC_INITIALIZE": "0", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-P", os.path.join(os.path.dirname(__file__), "_hdf5_walk.py")],
            env=environment, bufsize=0, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        assert process.stdin is not None
        self._process, self._of = process, os.getpid()
        process.stdin.write(request)
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            stream.close()
        if self._of == os.getpid():
            process.kill()
            process.wait()


_LOOKER = _Looker()


def _check_sources(path: str, name: str, files: Sequence[str]) -> None:
    """HDF5 has fill values where a file of a virtual dataset is missing, without a word."""
    beside = os.path.dirname(os.path.realpath(path))
    # HDF5 looks beside the file, then where the program runs; names with % are patterns of names
    looked = [file for file in files if "%" not in file]
    missing = [f for f in looked if not (os.path.exists(os.path.join(beside, f)) or os.path.exists(f))]
    if missing:
        raise FileFormatError(
            f"{path}: {shown(name)!r} lies in {counted(len(files), 'other file')}, of which {len(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing, such as {shown(missing[0])}; verify=False takes fill values in their place"
        )


def _read(path: str, outline: Outline, part: tuple[slice, ...]) -> NDArray[Any]:
    h5py = h5py_for(path)
    with read_by("HDF5", path), h5py.File(path, "r") as file:
        values: NDArray[Any] = file[outline.name][part]
    return values


FORMAT = ArrayFormat("hdf5", (".h5", ".hdf5"), _is_hdf5, _create, _parse, _read)
