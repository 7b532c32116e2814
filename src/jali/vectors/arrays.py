"""Arrays of NumPy, CuPy and PyTorch as vectors."""

from __future__ import annotations

import functools
import numbers
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jali._core import assign_host_vectors, inner_of_host_vectors
from jali.array_namespaces import may_overlap, namespace_of, numpy_dtype
from jali.errors import JaliError, LayoutError, ParameterError
from jali.files import value_shown
from jali.philox import uniform_box
from jali.vectors.files import Read, box_reader, write_boxes
from jali.vectors.protocol import Assignment, Partial, WithoutGraphs, vectors_in
from jali.vectors.registry import check_kinds
from jali.vectors.sets import OneByOne

MISMATCHED = AttributeError, TypeError, ValueError, JaliError
"""What operations raise where vectors do not fit each other; then it is looked at how."""


class ArrayVectors(OneByOne, WithoutGraphs):
    """Arrays of a namespace `xp` with NumPy's functions: NumPy and CuPy."""

    def __init__(self, xp: Any):
        self.xp = xp

    def check(self, name: str, x: Any, like: Any) -> None:
        if x.shape != like.shape or not addable(x.dtype, like.dtype):
            raise LayoutError(
                f"{name} is an array of {x.dtype} with shape {tuple(x.shape)}, b one of {like.dtype} with shape {tuple(like.shape)}"
            )

    def like(self, x: Any, precision: str | None = None) -> Any:
        if precision is None:
            return namespace_of(x).zeros_like(x)
        self.epsilon(x)  # refuses whole numbers
        return namespace_of(x).zeros_beside(x, tuple(x.shape), type_in(precision, x.dtype))

    def stored(self, x: Any, storage: str | None = None) -> Any:
        return array_stored(x, storage)

    def storage(self, x: Any) -> str:
        return storage_of_array(x)

    def write(self, path: str | os.PathLike[str], named: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        parts = {name: np.atleast_1d(namespace_of(x).to_host(x)) for name, x in named.items()}
        shape = next(iter(parts.values())).shape
        write_boxes(path, shape, (0,) * len(shape), parts, state)

    def reader(self, path: str | os.PathLike[str], like: Any) -> tuple[dict[str, Any], Read]:
        shape = tuple(like.shape) or (1,)
        state, read = box_reader(path, shape, (0,) * len(shape), shape)

        def array(name: str) -> Any:
            values = read(name).reshape(tuple(like.shape))
            return values if isinstance(like, np.ndarray) else namespace_of(like).from_host(values, like)

        return state, array

    def copy(self, x: Any) -> Any:
        return namespace_of(x).copy(x)

    def random(self, x: Any, seed: int) -> Any:
        return random_array(x, x.shape, (0,) * len(x.shape), seed)

    def ranks(self, x: Any) -> list[Any]:
        return []

    def epsilon(self, x: Any) -> float:
        if x.dtype.kind not in "fc":
            raise LayoutError(f"solvers compute with real and complex numbers, not with arrays of {x.dtype}")
        return float(self.xp.finfo(x.dtype).eps)

    def precision(self, x: Any) -> str:
        return str(x.dtype)

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        try:
            found = inner_of_host_vectors(x, y)
            return inner_by_library(x, y) if found is None else found
        except MISMATCHED:
            self._check_fits([x, y])
            raise

    def norm2(self, x: Any, wait: bool = True) -> Any:
        return self.inner(x, x).real

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        try:
            found = assign(assignments, norm)
        except MISMATCHED:
            self._check_fits(vectors_in(assignments))
            raise
        if found is None and norm:
            return self.norm2(assignments[-1][0])
        return found if norm else None

    def _check_fits(self, vectors: Sequence[Any]) -> None:
        """Raises ParameterError or LayoutError where they are not arrays of one library and shape."""
        first = vectors[0]
        check_kinds(first, vectors)
        for x in vectors:
            if x.shape != first.shape:
                raise LayoutError(
                    f"vectors of one operation have one shape, not {tuple(first.shape)} and {tuple(x.shape)}"
                )

    def partial_sums(self, x: Any, y: Any) -> list[Partial]:
        return [(_number(y(x)) if callable(y) else self.inner(x, y), None)]

    def parts(self, x: Any) -> list[Any]:
        return [x]

    def with_parts(self, x: Any, parts: Sequence[Any]) -> Any:
        return parts[0]

    def memory(self, x: Any) -> list[Any]:
        return [x]


class TorchVectors(ArrayVectors):
    """Tensors of PyTorch, on any device."""

    def copy(self, x: Any) -> Any:
        return x.clone()

    def epsilon(self, x: Any) -> float:
        if not (x.is_floating_point() or x.is_complex()):
            raise LayoutError(f"solvers compute with real and complex numbers, not with tensors of {x.dtype}")
        return float(self.xp.finfo(x.dtype).eps)

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        return inner_by_library(x, y)


def random_array(part: Any, extents: Sequence[int], origin: Sequence[int], seed: int) -> Any:
    """An array like one that is a box of a larger one from `origin` on, of random numbers by index: see `Vectors.random`."""
    values = uniform_box(extents, origin, part.shape, (), numpy_dtype(part), seed)
    return values if isinstance(part, np.ndarray) else namespace_of(part).from_host(values, part)


def _number(x: Any) -> Any:
    return x.item() if hasattr(x, "item") else x


def assign(assignments: Sequence[Assignment], norm: bool = False) -> Any:
    """Assignments between arrays of one library, in place. Of NumPy's in one pass over memory, with the sum of |y|^2 of the last if
    `norm`; of others by their library, a pass for each term, and None."""
    found = assign_host_vectors(assignments, norm)
    if found is None:
        for assignment in assignments:
            _assign_by_library(*assignment)
    return found


def factor_of(a: Any) -> float | complex:
    """A factor of an update as a Python number. Raises ParameterError for what is none."""
    if isinstance(a, numbers.Number | np.generic) or np.shape(a) == ():
        a = a.item() if hasattr(a, "item") else a
        try:
            if isinstance(a, numbers.Real):
                return float(a)
            if isinstance(a, numbers.Complex):
                return complex(a)
        except OverflowError:
            raise ParameterError(
                f"a factor of vectors is at most 1.8e308, not a whole number of {int(a).bit_length()} bits"
            ) from None
    raise ParameterError(f"a factor of vectors is a number, not {value_shown(a)}")


PRECISIONS = ("float32", "float64")
"""Those that all kinds of vectors have."""


def type_in(precision: str, dtype: Any) -> np.dtype[Any]:
    """NumPy's type of numbers of this precision, complex if `dtype` is. Raises ParameterError for an unknown one."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        raise ParameterError(
            f"the precision of a vector is {' or '.join(PRECISIONS)}, not {value_shown(precision)}"
        )
    return np.result_type(precision, np.complex64 if "complex" in str(dtype) else np.float32)


STORAGES = ("float64", "float32", "float16")
"""How arrays keep real numbers; complex ones have no 16 bits."""


def array_stored(x: Any, storage: str | None) -> Any:
    """Zeros like an array, kept so: see `Vectors.stored`."""
    if storage is None:
        return namespace_of(x).zeros_like(x)
    is_complex = "complex" in str(x.dtype)
    known = STORAGES[:2] if is_complex else STORAGES
    if not isinstance(storage, str) or storage not in known:
        numbers = "complex" if is_complex else "real"
        raise ParameterError(
            f"{numbers} numbers of arrays are stored as {' or '.join(known)}, not as {value_shown(storage)}"
        )
    dtype = type_in(storage, x.dtype) if storage in PRECISIONS else np.dtype(storage)
    return namespace_of(x).zeros_beside(x, tuple(x.shape), dtype)


def storage_of_array(x: Any) -> str:
    """The name of how an array keeps real numbers."""
    return str(np.finfo(numpy_dtype(x)).dtype)


def inner_by_library(x: Any, y: Any) -> Any:
    """Sum of conj(x) y of arrays of one library. Squares in half precision are soon too large or too small: it is widened."""
    namespace = namespace_of(x)
    if x.dtype.itemsize == 2:
        x, y = namespace.astype(x, np.float32), namespace.astype(y, np.float32)
    return _number(namespace.dot(x, y, True))


def addable(dtype: Any, other: Any) -> bool:
    """Whether numbers of these types may be added in place: both real or both complex, in any precision."""
    return dtype is other or ("complex" in str(dtype)) == ("complex" in str(other))


def combined(y: Any, own: Any, terms: Sequence[tuple[Any, Any]]) -> Any:
    """own y + a x + ..., computed by the library of y in the widest type of all; None where all factors are 0. y stays.

    Raises LayoutError for whole numbers, and for complex ones where y is real.
    """
    namespace = namespace_of(y)
    check_takes(y, own, terms)
    wide = functools.reduce(namespace.xp.promote_types, [x.dtype for _, x in terms], y.dtype)
    found: Any = None
    for a, x in ((own, y), *terms):
        if type(a) is int and a == 0:
            continue
        term = x if x.dtype == wide else namespace.astype(x, wide)
        if not (type(a) is int and a == 1):
            term = -term if type(a) is int and a == -1 else factor_of(a) * term
        found = term if found is None else found + term
    return found


def check_takes(y: Any, own: Any, terms: Sequence[tuple[Any, Any]]) -> None:
    """Raises LayoutError, ParameterError unless an assignment to y is one of real or complex numbers that it can hold."""
    is_complex = "complex" in str(y.dtype)
    for a, x in ((own, y), *terms):
        name = str(x.dtype)
        if "float" not in name and "complex" not in name:
            raise LayoutError(f"vectors are real or complex numbers, not an array of {name}")
        if not is_complex and ("complex" in name or isinstance(factor_of(a), complex)):
            what = f"an array of {name}" if "complex" in name else f"the factor {a}"
            raise LayoutError(
                f"{what} makes complex numbers, which an array of {y.dtype} does not hold; make that complex, or take real parts"
            )


def _assign_by_library(y: Any, own: Any, terms: Sequence[tuple[Any, Any]]) -> None:
    check_takes(y, own, terms)
    with namespace_of(y).where(y):
        if any(x.dtype != y.dtype for _, x in terms):
            found = combined(y, own, terms)
            y[...] = 0 if found is None else found
            return
        terms = [
            (a, namespace_of(x).copy(x) if may_overlap(x, y) else x) for a, x in terms
        ]  # before y changes
        if type(own) is int and own == 0:
            y[...] = 0
        elif not (type(own) is int and own == 1):
            y *= own
        for a, x in terms:
            if type(a) is int and a == 1:
                y += x
            elif type(a) is int and a == -1:
                y -= x
            else:
                y += a * x
