"""Vectors that span a subspace: the operations by which others meet them, and small matrices that all ranks have alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.solvers.operators import has_batch
from jali.vectors import Vectors, vectors_of
from jali.vectors.arrays import PRECISIONS


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


def agreed(ranks: Sequence[Any], values: np.ndarray) -> np.ndarray:
    """Numbers of the first rank, on all of these groups: LAPACK of other processors has other bits, and ranks would part."""
    values = np.ascontiguousarray(values) + 0.0
    for group in ranks:
        numbers = values.view(float)
        if group.rank:
            numbers[...] = 0.0
        group.all_reduce(numbers, numbers)
    return values
