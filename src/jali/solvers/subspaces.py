"""Sets of vectors that span a subspace: their inner products with a vector, sums of them, and small matrices that all ranks have alike.

Vectors of one operation may be kept in several formats; a sum is rounded once, where it is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.solvers.operators import has_batch
from jali.vectors import Vectors, sums, vectors_of
from jali.vectors.arrays import PRECISIONS

TOGETHER = 8  # vectors that one update adds; fewer go by powers of two, since each number of them is a kernel


def operations(x: Any) -> Vectors:
    """The operations of a vector; of a field with a batch those for which all members are one."""
    vectors = vectors_of("a vector", x)
    if getattr(x, "batch", None) is not None:
        return vectors.of_whole_batch()  # type: ignore[attr-defined]
    return vectors


def meeting(name: str, b: Any, of: Any) -> Vectors:
    """The operations by which b meets vectors of a subspace, of which one is `of`: b may be of another precision and storage, and a batch of such vectors.

    Raises ParameterError, LayoutError, sentences about `name`, where it is another kind of vector, or one of another form.
    """
    vectors = vectors_of(name, b)
    if type(vectors) is not type(vectors_of("a vector of the subspace", of)):
        raise ParameterError(
            f"{name} is a vector of the kind of an eigenvector, {type(of).__name__}, not {type(b).__name__}"
        )
    joined = has_batch(of)
    one = b.members[0] if has_batch(b) and not joined and not isinstance(b, list | tuple) else b
    wanted = vectors.precision(one)
    alike = vectors.like(of, wanted) if wanted in PRECISIONS and wanted != vectors.precision(of) else of
    vectors.check(name, one, alike)
    return operations(b) if joined else vectors


def inner_products(vectors: Vectors, xs: Sequence[Any], y: Any) -> np.ndarray:
    """<x, y> of each x, by the operations of y; where these are of members of a batch, a row of their numbers for each x."""
    if vectors.check_interval(y) > 1:  # waiting costs: nothing waits before all have begun
        return np.array([_read(value) for value in [vectors.inner(x, y, wait=False) for x in xs]])
    if has_batch(y):
        return np.array([vectors.inner(x, y) for x in xs])
    return np.array(sums(*((x, y) for x in xs)))


def _read(value: Any) -> Any:
    """A number, or an array of them, on the host."""
    if hasattr(value, "is_complex"):
        return complex(value) if value.is_complex else float(value)
    return np.asarray(value)


def add(vectors: Vectors, y: Any, factors: np.ndarray, xs: Sequence[Any], own: int = 1) -> None:
    """y = own y + the sum of factors times xs, with few kernels, and few kinds of kernels. A row of factors has one for each member of y."""
    values, first = list(factors) if factors.ndim > 1 else factors.tolist(), 0
    while first < len(xs):
        size = min(TOGETHER, 1 << (len(xs) - first).bit_length() - 1)
        terms = list(zip(values[first : first + size], xs[first : first + size], strict=True))
        vectors.update([(y, own if first == 0 else 1, terms)])
        first += size


def agreed(ranks: Sequence[Any], values: np.ndarray) -> np.ndarray:
    """Numbers of the first rank, on all of these groups: LAPACK of other processors has other bits, and ranks would part."""
    values = np.ascontiguousarray(values) + 0.0
    for group in ranks:
        numbers = values.view(float)
        if group.rank:
            numbers[...] = 0.0
        group.all_reduce(numbers, numbers)
    return values
