"""`.npy`: one array, as `numpy.save` writes it and `numpy.load` reads and maps it.

After the numbers, where NumPy does not read, a JSON object has the metadata of the array. Files of NumPy end with the
numbers.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Sequence
from io import BytesIO

import numpy as np

from jali.errors import FileFormatError, ParameterError
from jali.files import shown

from ..boxes import write_all
from ..writing import opened
from . import ArrayFormat, Outline

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 1 << 16
_LONGEST_TAIL = 1 << 20


def _is_npy(fd: int, size: int) -> bool:
    return os.pread(fd, len(_MAGIC), 0) == _MAGIC


def _create(path: str, outlines: Sequence[Outline]) -> list[int]:
    if len(outlines) != 1:
        raise ParameterError(
            f"a .npy file holds one array, not {len(outlines)}: save each in a file of its own, or all in one of .h5 or .jali"
        )
    (outline,) = outlines
    assert outline.dtype is not None
    head = BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": outline.dtype.str, "fortran_order": False, "shape": outline.shape}
    )
    offset = head.tell()
    with opened(path, os.O_WRONLY) as fd:
        write_all(fd, head.getvalue(), 0)
        end = offset + math.prod(outline.shape) * outline.dtype.itemsize
        write_all(fd, json.dumps(outline.metadata).encode(), end)
        os.fsync(fd)
    return [offset]


def _parse(path: str, fd: int, size: int, strict: bool) -> list[Outline]:
    head = BytesIO(os.pread(fd, _LONGEST_HEADER, 0))
    try:
        version = np.lib.format.read_magic(head)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(head)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(head)
        else:
            raise ValueError(f"version {version}, jali reads (1, 0) and (2, 0)")
    except Exception as error:  # the header is a literal of Python, whose parser raises much
        raise FileFormatError(f"{path}: the header of the .npy file: {shown(error)}") from None
    if dtype.kind not in "biufc":
        raise FileFormatError(f"{path}: holds {shown(dtype)}, which are not numbers")
    if shape and min(shape) < 0:
        raise FileFormatError(f"{path}: the header of the .npy file says the impossible shape {shown(shape)}")
    offset, needed = head.tell(), math.prod(shape) * dtype.itemsize
    if offset + needed > size:
        raise FileFormatError(
            f"{path}: truncated: an array {shape} of {dtype} has {needed} bytes, but the file only {size - offset} behind its header"
        )
    return [Outline("", tuple(shape), dtype, _tail(path, fd, offset + needed, size, strict), offset, fortran)]


def _tail(path: str, fd: int, begin: int, size: int, strict: bool) -> dict:
    """The bytes after the array; nothing in files of others."""
    if begin == size:
        return {}
    found = None
    if size - begin <= _LONGEST_TAIL:
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(os.pread(fd, size - begin, begin))
    if isinstance(found, dict):
        return found
    if strict:
        raise FileFormatError(
            f"{path}: {size - begin} bytes follow the array at offset {begin}, and they are not what jali writes there; "
            "verify=False does not look at them"
        )
    return {}


FORMAT = ArrayFormat("npy", (".npy",), _is_npy, _create, _parse)
