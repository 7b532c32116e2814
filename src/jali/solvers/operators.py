"""What solvers take as an operator: anything with `matvec` and `rmatvec`, of `jali.linops`, `pylops`, SciPy or a class of one's own.

Vectors have the types of the operator: distributed arrays and stacks for `jali.linops`, flat arrays for `pylops`, fields or
lists for others. Nothing is called but these two functions, and nothing is read of the operator but its `dtype`, where it has
one, and `joins_members`, which of an operator (or of a function) is True where it joins the members of a batch: then these are one
vector, and `digest`, which names the data that it is made of (`digest_of`). An operator may return the same vector again, or its argument: solvers no longer use a result when they request the next
one, and write into none. One that does so for solvers only has `matvec_kept` and `rmatvec_kept` beside these functions, and one that writes its
result into a given vector `matvec_into(x, out)` and `rmatvec_into(y, out)`.

A method that solvers call may have two others beside it, `NAME_inner` and `NAME_norm2`, with its arguments and `wait=True`: they return
what NAME does, and with it the inner product of x and A x, or of A x with itself, from the kernel that writes A x; or None for the
number, where that saves nothing. So `matvec_inner(x, wait)` stands beside `matvec(x)`, and `normal_inner(x, out, wait)` beside
`normal(x, out)`, which `cg` takes. Redefining NAME, or what it is made of (`made_of`), switches off what stands beside it: `jali.beside`
has the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from jali.beside import beside, beside_method
from jali.errors import ParameterError, RecordingError
from jali.files import value_shown
from jali.vectors import ArrayVectors, Vectors, check_alike, list_like, vectors_of

Function = Callable[[Any], Any]
ApplyInner = Callable[..., tuple[Any, Any]]


def is_operator(Op: Any) -> bool:
    """Whether it can be applied to vectors."""
    return callable(getattr(Op, "matvec", None))


def joins_members(A: Any) -> bool:
    """Whether an operator, a function or a method of an operator joins the members of a batch."""
    return getattr(getattr(A, "__self__", A), "joins_members", False) is True


def digest_of(A: Any) -> Any:
    """What identifies the data of an operator, or of a function or method of one, such as its gauge configuration: its `digest`, None where there is none.

    A digest is a value of JSON, or a function that gives one, the same on all ranks; numbers that agree up to rounding are a dictionary, {"numbers": [...],
    "rounding": r}.
    """
    found = getattr(getattr(A, "__self__", A), "digest", None)
    return found() if callable(found) else found


def digests_agree(mine: Any, other: Any) -> bool:
    """Whether two digests may be of the same data: also where one of them is None."""
    if mine is None or other is None or mine == other:
        return True
    try:
        rounding = max(mine["rounding"], other["rounding"])
        pairs = zip(mine["numbers"], other["numbers"], strict=True)
        return all(abs(a - b) <= rounding for a, b in pairs)
    except (TypeError, KeyError, ValueError):
        return False


def has_batch(x: Any) -> bool:
    """Whether a vector, or one in a list, is a field with a batch."""
    if isinstance(x, list | tuple):
        return any(map(has_batch, x))
    return getattr(x, "batch", None) is not None


def refuse_batches_in_lists(name: str, b: Any) -> None:
    """Raises ParameterError for a list in which there is a field with a batch."""
    if isinstance(b, list | tuple) and has_batch(b):
        raise ParameterError(
            f"{name}: b is a list in which there is a field with a batch, and members of lists are solved one by one: take f.members[k] of each"
        )


def forward_of(name: str, Op: Any) -> Function:
    """Op x as a function of x. Raises ParameterError, a sentence about `name`, for an object that is not an
    operator."""
    if not is_operator(Op):
        raise ParameterError(f"{name} is an operator with matvec and rmatvec, not {value_shown(Op)}")
    return _of_its_vectors(name, Op, beside(Op, "matvec", "kept") or Op.matvec)


def apply_inner_of(name: str, A: Any, vectors: Vectors, q: Any = None) -> ApplyInner:
    """(A x, the inner product of x and A x) as a function of x and of whether to wait for the number.

    A is an operator, or with a vector q a function that writes A x into q. The bits are those of `vectors.inner(x, A x)`.
    """
    fused = apply_sum_of(name, A, "inner", q)

    def apply(x: Any, wait: bool = True) -> tuple[Any, Any]:
        Ax, number = fused(x, wait)
        return Ax, vectors.inner(x, Ax, wait=wait) if number is None else number

    return apply


def apply_sum_of(name: str, A: Any, what: str, q: Any = None) -> ApplyInner:
    """(A x, the number of NAME_what) as a function of x and of whether to wait; None for the number where A does not offer it."""
    forward = function_of(name, A, q)
    fused = beside(A, "matvec", what) if is_operator(A) else beside_method(A, what)
    if fused is None:
        return lambda x, wait=True: (forward(x), None)
    return fused if is_operator(A) else lambda x, wait=True: fused(x, q, wait)


def function_of(name: str, A: Any, q: Any) -> Function:
    """A x as a function of x, of an operator or of a function that writes into q, which always gets the same one."""
    if is_operator(A):
        return forward_of(name, A)

    into = _written(name, A, vectors_of("q", q))

    def forward(x: Any) -> Any:
        into(x, q)
        return q

    return forward


def _written(name: str, A: Callable[[Any, Any], object], vectors: Vectors) -> Callable[[Any, Any], object]:
    """The function, which raises ParameterError where its first call leaves q as it was: where `q = ...` only names another vector."""
    looked = False

    def apply(p: Any, q: Any) -> None:
        nonlocal looked
        if looked:
            A(p, q)
            return
        try:
            before = vectors.norm2(q)
        except RecordingError:  # a graph is recorded, in which nothing can be looked at
            A(p, q)
            return
        looked = True
        A(p, q)
        if np.any(vectors.norm2(q) != before) or not np.any(vectors.norm2(p)):
            return
        vectors.update([(q, 0, [(1, p)])])
        A(p, q)
        if not np.any(vectors.update([(q, 1, [(-1, p)])], norm=True)):
            raise ParameterError(
                f"{name}, a function A(p, q), leaves q as it was: it writes A p into it, q[...] = A @ p, and does not name another vector q"
            )
        vectors.update([(q, 0, [(0.0, p)])])
        A(p, q)

    return apply


def changing_numbers(A: Any) -> Any:
    """The numbers of an operator, or of that of which a function is a method, that may change, where it says so."""
    return getattr(getattr(A, "__self__", A), "changing_numbers", None)


def into_of(name: str, A: Any, vectors: Vectors) -> Callable[[Any, Any], object]:
    """The function of p and q that writes A p into q, of an operator or of a function that does so. Raises ParameterError for what is neither."""
    if not is_operator(A):
        if not callable(A):
            raise ParameterError(
                f"{name} has a function matvec, or is a function A(p, q) that writes A p into q, not {value_shown(A)}"
            )
        return _written(name, A, vectors)
    return beside(A, "matvec", "into") or _copied(forward_of(name, A), vectors)


def adjoint_into_of(name: str, A: Any, vectors: Vectors) -> Callable[[Any, Any], object]:
    """The function of p and q that writes A^H p into q, of an operator. Raises ParameterError for one without an adjoint."""
    adjoint = adjoint_of(name, A)
    return beside(A, "rmatvec", "into") or _copied(adjoint, vectors)


def _copied(function: Function, vectors: Vectors) -> Callable[[Any, Any], object]:
    return lambda p, q: vectors.update([(q, 0, [(1, function(p))])])


def adjoint_of(name: str, Op: Any) -> Function:
    """Op^H y as a function of y. Raises ParameterError, a sentence about `name`, for objects without one."""
    forward_of(name, Op)
    if not callable(getattr(Op, "rmatvec", None)):
        raise ParameterError(f"{name} has no adjoint, a function rmatvec: {value_shown(Op)}")
    return _of_its_vectors(name, Op, beside(Op, "rmatvec", "kept") or Op.rmatvec)


def _of_its_vectors(name: str, Op: Any, function: Function) -> Function:
    """The function; where pylops or SciPy defines it, one that refuses objects that are not arrays, by name, with a
    remedy."""
    if str(getattr(function, "__module__", "")).partition(".")[0] not in ("pylops", "scipy"):
        return function

    def apply(x: Any) -> Any:
        if not isinstance(vectors_of(f"{name}: its vector", x), ArrayVectors):
            raise ParameterError(
                f"{name} is a {type(Op).__module__}.{type(Op).__qualname__}, which acts on arrays of one process, not on "
                f"a {type(x).__name__}: jali.linops.aslinearoperator makes an operator on distributed arrays of it; an operator "
                "on fields is a class with matvec and rmatvec"
            )
        return function(x)

    return apply


def residual(Ax: Any, y: Any) -> Any:
    """y - A x, a new vector in the finer precision of the two. Raises ParameterError or LayoutError where they are no vectors of one kind and form."""
    check_alike("A x0", Ax, "y", y)
    r = started(Ax, y)
    vectors_of("y - A x0", r).update([(r, -1, [(1, y)])])
    return r


def is_complex(x: Any) -> bool:
    """Whether a vector, or one in a list or stack, or an operator has a complex `dtype`."""
    if x is None:
        return False
    if isinstance(x, list | tuple) or hasattr(x, "distarrays"):
        return any(map(is_complex, x))
    dtype = getattr(x, "dtype", None)
    if isinstance(dtype, np.dtype):
        return dtype.kind == "c"
    return dtype is not None and "complex" in str(dtype)


def widened(x: Any, *others: Any) -> Any:
    """x, or where one of it is complex, or one of the others (operators and vectors), a copy all of which is complex, so that steps of
    solvers fit into it."""
    return _as_complex(x) if is_complex(x) or any(map(is_complex, others)) else x


def _as_complex(x: Any) -> Any:
    if isinstance(x, list | tuple):
        return list_like(x, (_as_complex(member) for member in x))
    if hasattr(x, "distarrays"):
        return type(x)([_as_complex(member) for member in x], x._base_comm)
    if is_complex(x) or not hasattr(x, "astype") or np.dtype(str(x.dtype)).kind != "f":
        return x
    return x.astype(np.complex64 if str(x.dtype) in ("float16", "float32") else np.complex128)


def started(x0: Any, like: Any) -> Any:
    """A copy of x0 to begin with, in the precision of `like` where that is finer."""
    vectors = vectors_of("x0", x0)
    if vectors.epsilon(x0) <= vectors.epsilon(like):
        return vectors.copy(x0)
    x = vectors.like(like)
    vectors.update([(x, 0, [(1, x0)])])
    return x
