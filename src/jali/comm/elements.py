"""Arrays as collectives see them: C-contiguous memory and the name of an element type. Nothing is copied.

NumPy arrays are taken as they are; anything else by `__array_interface__`, the buffer protocol or DLPack.
NumPy has no bfloat16 of its own: arrays of a dtype named `bfloat16` (ml_dtypes) are bf16. Booleans are
bytes of 0 and 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from jali.errors import ParameterError
from jali.files import value_shown

Array = npt.NDArray[Any]

NAMES = {
    "bool": "uint8",
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "uint8": "uint8",
    "uint16": "uint16",
    "uint32": "uint32",
    "uint64": "uint64",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float32": "fp32",
    "float64": "fp64",
    "complex64": "complex64",
    "complex128": "complex128",
}
SIZES = {
    **{name: int(name.lstrip("uint")) // 8 for name in NAMES.values() if "int" in name},
    **{"fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8, "complex64": 8, "complex128": 16},
}
_OF_NUMPY = {np.dtype(name): core for name, core in NAMES.items() if name != "bfloat16"}
OPERATIONS = (
    "sum",
    "prod",
    "min",
    "max",
    "avg",
    "logical_and",
    "logical_or",
    "logical_xor",
    "bit_and",
    "bit_or",
    "bit_xor",
)
# Of booleans only what gives a boolean again.
OF_BOOLEANS = ("min", "max", "logical_and", "logical_or", "logical_xor", "bit_and", "bit_or", "bit_xor")


def as_array(x: Any, what: str = "a collective") -> Array:
    """The memory of `x` as a NumPy array that shares it; numbers and lists become new arrays.

    Raises ParameterError for objects without memory on the host that can be shared.
    """
    if isinstance(x, np.ndarray):
        return x
    try:
        if hasattr(x, "__array_interface__") or not hasattr(x, "__dlpack__"):
            array = np.asarray(x)
        else:
            array = np.from_dlpack(x)
    except (TypeError, ValueError, BufferError, RuntimeError) as error:
        raise ParameterError(f"{what} cannot share the memory of a {type(x).__name__}: {error}") from None
    if array.dtype.hasobject or (array.dtype.kind in "USMmV" and array.dtype.name not in NAMES):
        raise ParameterError(f"{what} takes an array of numbers, not a {type(x).__name__} of {array.dtype}")
    return array


def element_name(dtype: npt.DTypeLike) -> str:
    """The core's name of an element type: "fp32" for float32; core names are taken too. ParameterError otherwise."""
    if isinstance(dtype, str) and dtype in SIZES:
        return dtype
    try:
        kind = np.dtype(dtype)
    except (TypeError, ValueError, SyntaxError):
        kind = None
    if kind in _OF_NUMPY:
        return _OF_NUMPY[kind]
    if kind is None or kind.name not in NAMES or not kind.isnative:
        raise ParameterError(
            f"elements of type {value_shown(dtype) if kind is None else kind} cannot be sent; choose one of {', '.join(sorted(set(NAMES)))}"
        )
    return NAMES[kind.name]


def check_operation(op: Any, dtype: np.dtype[Any]) -> None:
    """Raise ParameterError unless `op` is callable or an operation that booleans, if these are some, can have."""
    if callable(op):
        return
    if not isinstance(op, str) or op not in OPERATIONS:
        raise ParameterError(
            f"operation {value_shown(op)} is not one of {', '.join(OPERATIONS)}, nor a function of two arrays"
        )
    if dtype == np.bool_ and op not in OF_BOOLEANS:
        raise ParameterError(
            f"{op} of booleans is no boolean; use one of {', '.join(OF_BOOLEANS)}, or convert them to integers"
        )
