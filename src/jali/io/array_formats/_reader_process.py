"""Another process that inspects HDF5 files, and reads some Zarr stores (`_reader_program.py`), since damage can end it or make it hang.

It is started when it is needed, and again when a file has ended it. Every failure of it is a FileFormatError here.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jali import settings
from jali.errors import FileFormatError
from jali.files import shown

from . import Outline

TIMEOUT = 60.0  # seconds without progress of the reader of a file
BUSY = 10.0  # of them on a processor, at descriptions: a file system that is slow takes none


def found_in(path: str) -> list[dict[str, Any]]:
    """The descriptions of a file's datasets. Raises FileFormatError."""
    return _PROCESS.ask(path, {}, np.empty(0))


def numbers_in(
    path: str, outline: Outline, part: Sequence[tuple[int, int]], library: str = "HDF5"
) -> NDArray[Any]:
    """Part of a dataset, or with `library="zarr"` of an array of a store, given by first index and the one behind the last of each dimension. Raises FileFormatError."""
    out = np.empty([end - begin for begin, end in part], outline.dtype)
    if out.size:
        wanted = {
            "library": library,
            "name": outline.name,
            "shape": outline.shape,
            "dtype": out.dtype.str,
            "part": part,
        }
        _PROCESS.ask(path, wanted, out)
    return out


class _Process:
    """The other process. One question at a time."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._of = 0  # the process that has started it
        self._guard = threading.Lock()
        atexit.register(self._end)

    def ask(self, path: str, wanted: dict[str, Any], out: NDArray[Any]) -> list[dict[str, Any]]:
        """Its answer; numbers go to `out`. Raises FileFormatError."""
        common = {"path": os.path.abspath(path), "directory": os.getcwd(), "timeout": TIMEOUT, "busy": BUSY}
        request = json.dumps({**common, **wanted}).encode() + b"\n"
        library = wanted.get("library", "HDF5")
        begins = [begin for begin, _ in wanted.get("part", ())]
        with self._guard:
            try:
                found, status = self._answer(request, begins, out)
                if status == 0 and not found:  # it was about to end, after idling
                    found, status = self._answer(request, begins, out)
            except (
                BaseException
            ) as error:  # the rest of an answer would be taken for that to the next question
                self._end()
                if isinstance(error, ValueError | TypeError | LookupError):
                    raise FileFormatError(
                        f"{path}: {library} makes nonsense of it: {shown(error)}"
                    ) from error
                raise
        last = found.pop() if found and status is None else {"error": _ended(status)}
        if "end" not in last:
            raise FileFormatError(f"{path}: {library} cannot read it: {shown(last['error'])}")
        return found

    def _answer(
        self, request: bytes, begins: list[int], out: NDArray[Any]
    ) -> tuple[list[dict[str, Any]], int | None]:
        """Its answer, and its status where it ended early."""
        process = self._started_and_asked(request)
        found: list[dict[str, Any]] = []
        missing = out.size
        assert process.stdout is not None
        for line in process.stdout:
            message = json.loads(line)
            if "block" in message:
                missing -= _take(process.stdout, message["block"], begins, out)
                continue
            found.append(message)
            if "end" in message and missing:
                raise ValueError(f"{missing} numbers of the part have not come")
            if "end" in message or "error" in message:
                return found, None
        status = process.wait()
        self._end()
        return found, status

    def _started_and_asked(self, request: bytes) -> subprocess.Popen[bytes]:
        """The process, which has the request."""
        if self._process is not None and self._of == os.getpid():
            with contextlib.suppress(BrokenPipeError):  # it has ended, after idling
                if self._process.poll() is None:
                    _send(self._process, request)
                    return self._process
        self._end()
        # h5py may have been built with MPI, which is ours to start; and algebra needs no threads there
        environment = {**settings.environment(), "MPI4PY_RC_INITIALIZE": "0", "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, "-P", os.path.join(os.path.dirname(__file__), "_reader_program.py")],
            env=environment, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._process, self._of = process, os.getpid()
        _send(process, request)
        return process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        if self._of == os.getpid():
            process.kill()
            process.wait()


def _send(process: subprocess.Popen[bytes], request: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(request)
    process.stdin.flush()


def _take(stream: Any, block: list[list[int]], begins: list[int], out: NDArray[Any]) -> int:
    """Takes the numbers of a block and returns how many they are; fewer come where the process ends."""
    target = out[tuple(slice(a - o, b - o) for (a, b), o in zip(block, begins, strict=True))]
    numbers = target if target.flags.c_contiguous else np.empty(target.shape, out.dtype)
    stream.readinto(numbers.reshape(-1).view(np.uint8).data)
    if numbers is not target:
        target[...] = numbers
    return target.size


def _ended(status: int | None) -> str:
    """What is wrong with a file that has ended the process."""
    if status == -signal.SIGVTALRM:
        return (
            f"it finds no end of what the file says of its datasets ({BUSY:g} s of computing without a step)"
        )
    if status == 1:
        return f"it finds no end of what the file says of its datasets ({TIMEOUT:g} s without a step)"
    how = f"with status {status}"
    if status is not None and status < 0:
        with contextlib.suppress(ValueError):
            how = f"by {signal.Signals(-status).name}"
    return f"the file ends the process that reads it, {how}: damaged"


_PROCESS = _Process()
