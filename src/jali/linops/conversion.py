"""Matrices, kernels and filters in the requested type."""

from __future__ import annotations

from typing import Any

import numpy as np

from jali.array_namespaces import dtype_of_numpy, namespace_of, numpy_dtype
from jali.errors import ParameterError


def in_type(what: str, values: Any, dtype: Any) -> Any:
    """`values`, converted where `dtype` is another type than theirs. Raises ParameterError where imaginary parts would be
    lost."""
    if dtype is None:
        return values
    dtype = dtype_of_numpy(dtype)
    if type_of(values) == dtype:
        return values
    if type_of(values).kind == "c" and dtype.kind != "c":
        raise ParameterError(f"{what} of type {type_of(values)} have imaginary parts, which {dtype} has not")
    return namespace_of(values).astype(values, dtype)


def type_of(values: Any) -> np.dtype[Any]:
    """As NumPy names it."""
    return numpy_dtype(values)
