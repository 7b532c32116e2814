"""Norms of distributed arrays, as `numpy.linalg.norm` has them for vectors."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from jali.array_namespaces import namespace_of, numpy_dtype
from jali.arrays.reductions import Along, kind_of, of_means, real
from jali.comm.validation import integer
from jali.errors import ParameterError, ShapeError
from jali.files import value_shown

if TYPE_CHECKING:
    from jali.arrays.distributed import DistributedArray


def checked_order(order: Any) -> float:
    """The order of a norm of vectors, 2 where there is none. Raises ParameterError for a value that is not a
    number."""
    order = 2 if order is None else order
    if not isinstance(order, int | float | np.integer | np.floating) or order != order:
        raise ParameterError(f"the order of a norm is a number, not {value_shown(order)}")
    return float(order)


def norm(x: DistributedArray, order: Any, axis: int | None) -> Any:
    """See `DistributedArray.norm`."""
    if isinstance(order, str) and order in ("fro", "nuc"):
        raise NotImplementedError(
            f"norm {value_shown(order)} is one of matrices; distributed arrays have those of vectors"
        )
    order, kind = checked_order(order), of_norms(kind_of(x))
    namespace = namespace_of(x.local)
    if namespace.complete:
        return namespace.xp if axis is not None else kind.type(x.local.norm(order))
    if axis is None:
        return kind.type(of_vector(x, order))
    if integer(axis) is None:
        raise ShapeError(f"a norm of vectors is one along an axis, a whole number, not {value_shown(axis)}")
    along = Along(x, axis)
    parts = _parts(floating(along.local), order, along.axes[0], along.namespace)
    found = _finish(along.all_reduced(parts, _combination(order)), order)
    if x.ndim == 1:
        return kind.type(along.namespace.number(found))
    return along.result(found, kind).asarray()


def of_vector(x: DistributedArray, order: float) -> Any:
    """That of all elements, before it is rounded to its type."""
    along = Along(x, None)
    local = floating(along.local)
    found = _parts(along.namespace.contiguous(local).reshape(-1), order, None, along.namespace)
    kind = np.result_type(of_norms(kind_of(local)))
    total = along.all_reduced(kind.type(along.namespace.number(found)), _combination(order))
    return _finish(np.result_type(kind, np.float64).type(total), order)


def of_norms(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of norms, as NumPy has it."""
    return real(of_means(dtype))


def floating(local: Any) -> Any:
    """Numbers whose squares and sums neither wrap around nor overflow early: whole ones and halves in a wider type."""
    dtype = numpy_dtype(local)
    if dtype.kind in "fc" and dtype.itemsize > 2:
        return local
    return namespace_of(local).astype(local, np.float32 if dtype.kind == "f" else np.float64)


def _combination(order: float) -> str:
    return {math.inf: "max", -math.inf: "min"}.get(order, "sum")


def _parts(local: Any, order: float, axis: int | None, namespace: Any) -> Any:
    """The quantity that is combined over ranks: sums of powers, counts or extremes."""
    xp = namespace.xp
    if order == 2 and axis is None:
        return namespace.squares(local)
    named = {} if axis is None else {"axis": axis}
    if order == 0:
        return (local != 0).sum(**named) * 1.0
    size = xp.abs(local)
    if order in (math.inf, -math.inf):
        if 0 in size.shape:
            shape = tuple(n for k, n in enumerate(size.shape) if axis is not None and k != axis)
            return namespace.zeros_beside(size, shape) + (0.0 if order > 0 else math.inf)
        return xp.amax(size, **named) if order > 0 else xp.amin(size, **named)
    return (size if order == 1 else size**order).sum(**named)


def _finish(total: Any, order: float) -> Any:
    if order in (0, 1, math.inf, -math.inf):
        return total
    return total ** (0.5 if order == 2 else 1.0 / order)
