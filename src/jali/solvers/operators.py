"""What solvers take as an operator: anything with `matvec` and `rmatvec`, of `jali.linops`, `pylops`, SciPy or a class of one's own.

Vectors go in and come out as the operator has them: distributed arrays and stacks for `jali.linops`, flat arrays for `pylops`, fields
or lists for others. Nothing is called but these two functions, and nothing is known of the operator but its `dtype`, where it has one.
An operator may keep the vector that it gives, and give it again: solvers are done with it when they ask for the next. One that does so
for solvers only has `matvec_kept` and `rmatvec_kept` beside these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.errors import ParameterError
from jali.solvers.vectors import vectors_of

Function = Callable[[Any], Any]


def is_operator(Op: Any) -> bool:
    """Whether it can be applied to vectors."""
    return callable(getattr(Op, "matvec", None))


def forward_of(name: str, Op: Any) -> Function:
    """Op x as a function of x. Raises ParameterError, a sentence about `name`, for what is no operator."""
    if not is_operator(Op):
        raise ParameterError(f"{name} is an operator with matvec and rmatvec, not {Op!r}")
    function: Function = getattr(Op, "matvec_kept", None) or Op.matvec
    return function


def adjoint_of(name: str, Op: Any) -> Function:
    """Op^H y as a function of y. Raises ParameterError, a sentence about `name`, for what has none."""
    forward_of(name, Op)
    if not callable(getattr(Op, "rmatvec", None)):
        raise ParameterError(f"{name} has no adjoint, a function rmatvec: {Op!r}")
    function: Function = getattr(Op, "rmatvec_kept", None) or Op.rmatvec
    return function


def own(found: Any, given: Any) -> Any:
    """What an operator made of `given`, as memory that may be written: identities may return what they were given."""
    if found is given:
        return vectors_of("a vector", found).copy(found)
    parts = [vectors_of("a vector", x).memory(x) for x in (found, given)]
    for a in parts[0]:
        for b in parts[1]:
            if a is b or (
                isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.may_share_memory(a, b)
            ):
                return vectors_of("a vector", found).copy(found)
    return found


def is_complex(x: Any) -> bool:
    """Whether a vector or an operator says that its numbers are complex."""
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype.kind == "c"
    return dtype is not None and "complex" in str(dtype)


def widened(Op: Any, x: Any) -> Any:
    """x, or where the operator is complex and x is not, a complex copy of it, so that steps of solvers fit into it."""
    if isinstance(x, list | tuple):
        return type(x)(widened(Op, member) for member in x)
    if not is_complex(Op) or is_complex(x) or not hasattr(x, "dtype"):
        return x
    if hasattr(x, "distarrays"):
        return type(x)([widened(Op, member) for member in x])
    if hasattr(x, "astype") and np.dtype(str(x.dtype)).kind == "f":
        return x.astype(np.complex64 if str(x.dtype) == "float32" else np.complex128)
    return x
