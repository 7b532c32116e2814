"""What solvers ask of vectors, and who gives it: fields, lists of vectors, arrays of NumPy, CuPy and PyTorch.

`Vectors` is the protocol: zeros, copies, inner products and fused updates. An entry of `VECTOR_KINDS` says which vectors it is for; another
kind of vector is one more entry (`register`). Solvers know nothing else of what they compute with.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from jali._core import assign_host_vectors, inner_of_host_vectors
from jali.arrays.array_namespaces import may_overlap, namespace_of
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice.field import Field
from jali.lattice.vectors import FieldVectors

Assignment = tuple[Any, Any, Sequence[tuple[Any, Any]]]
"""(y, c, [(a, x), ...]): y becomes c y + a x + ... Factors 0, 1 and -1 as whole numbers cost nothing."""


Partial = tuple[Any, Any]
"""A number of this rank, and the communicator over which it is summed: None where it is the sum already."""


class Vectors(Protocol):
    """The operations of one kind of vector. Numbers are Python's; where `wait` is False they may be `jali.Scalar`s."""

    def check(self, name: str, x: Any, like: Any) -> None:
        """Raises LayoutError, a sentence that begins with `name`, unless x could be added to `like`."""

    def like(self, x: Any) -> Any:
        """A vector of zeros."""

    def copy(self, x: Any) -> Any:
        """A vector with the same values."""

    def epsilon(self, x: Any) -> float:
        """The distance from 1 to the next number of its arithmetic."""

    def precision(self, x: Any) -> str:
        """The name of its arithmetic."""

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        """Sum of conj(x) y."""

    def norm2(self, x: Any, wait: bool = True) -> Any:
        """Sum of |x|^2."""

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        """The assignments one after the other, in as few passes over memory as it can; with `norm` the sum of |x|^2 of what was
        assigned last."""

    def partial_sums(self, x: Any, y: Any) -> list[Partial]:
        """Numbers whose sum over the ranks that are named is that of conj(x) y, or of `y` of each part of x where it is a function:
        see `sums`."""

    def parts(self, x: Any) -> list[Any]:
        """This rank's numbers of it as arrays, of the library that it has: to read."""

    def with_parts(self, x: Any, parts: Sequence[Any]) -> Any:
        """A vector of the form of x with these numbers on this rank."""

    def memory(self, x: Any) -> list[Any]:
        """What holds its numbers: where two vectors have one of these in common, writing one changes the other."""

    def repeats(self, x: Any) -> bool:
        """Whether calls on it can be recorded in a graph: only then are `number` and `graph` called, and `wait` is False."""

    def check_interval(self, x: Any) -> int:
        """After how many repetitions of a graph it pays to look at a number."""

    def number(self, x: Any, value: float) -> Any:
        """A `jali.Scalar` beside it that can be assigned."""

    def graph(self, x: Any, step: Callable[[], Any]) -> Any:
        """The calls of `step` as a `jali.Graph`."""


class WithoutGraphs:
    """For vectors whose operations the host starts one by one."""

    def repeats(self, x: Any) -> bool:
        return False

    def check_interval(self, x: Any) -> int:
        return 1

    def number(self, x: Any, value: float) -> Any:
        raise ParameterError("these vectors know no graphs")

    def graph(self, x: Any, step: Callable[[], Any]) -> Any:
        raise ParameterError("these vectors know no graphs")


class ArrayVectors(WithoutGraphs):
    """Arrays of a library that speaks NumPy's language: NumPy and CuPy."""

    def __init__(self, library: Any):
        self.library = library

    def check(self, name: str, x: Any, like: Any) -> None:
        if x.shape != like.shape or not addable(x.dtype, like.dtype):
            raise LayoutError(
                f"{name} is an array of {x.dtype} with shape {tuple(x.shape)}, b one of {like.dtype} with shape {tuple(like.shape)}"
            )

    def like(self, x: Any) -> Any:
        return namespace_of(x).zeros_like(x)

    def copy(self, x: Any) -> Any:
        return namespace_of(x).copy(x)

    def epsilon(self, x: Any) -> float:
        if x.dtype.kind not in "fc":
            raise LayoutError(f"solvers compute with real and complex numbers, not with arrays of {x.dtype}")
        return float(self.library.finfo(x.dtype).eps)

    def precision(self, x: Any) -> str:
        return str(x.dtype)

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        found = inner_of_host_vectors(x, y)
        return inner_by_library(x, y) if found is None else found

    def norm2(self, x: Any, wait: bool = True) -> Any:
        return self.inner(x, x).real

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        found = assign(assignments, norm)
        if found is None and norm:
            return self.norm2(assignments[-1][0])
        return found if norm else None

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
        return float(self.library.finfo(x.dtype).eps)

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        return inner_by_library(x, y)


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


def inner_by_library(x: Any, y: Any) -> Any:
    """Sum of conj(x) y of arrays of one library. Squares in half precision are soon too large or too small: it is widened."""
    library = namespace_of(x)
    if x.dtype.itemsize == 2:
        x, y = library.astype(x, np.float32), library.astype(y, np.float32)
    return _number(library.dot(x, y, True))


def addable(dtype: Any, other: Any) -> bool:
    """Whether numbers of these types may be added in place: both real or both complex, in any precision."""
    return dtype is other or ("complex" in str(dtype)) == ("complex" in str(other))


def _assign_by_library(y: Any, own: Any, terms: Sequence[tuple[Any, Any]]) -> None:
    with namespace_of(y).where(y):
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


def list_like(x: Any, members: Iterable[Any]) -> Any:
    """A list or tuple of the kind of x. Named tuples are made of their members one by one."""
    return x._make(members) if hasattr(x, "_make") else type(x)(members)


class ListVectors(WithoutGraphs):
    """Lists of vectors as one long vector: sums are added in the order of the list."""

    def check(self, name: str, x: Any, like: Any) -> None:
        if len(x) != len(like):
            raise LayoutError(f"{name} is a list of {len(x)} vectors, b one of {len(like)}")
        for k, (part, other) in enumerate(zip(x, like, strict=True)):
            vectors = vectors_of(f"{name}[{k}]", part)
            if type(vectors) is not type(vectors_of(f"b[{k}]", other)):
                raise LayoutError(f"{name}[{k}] is {value_shown(part)}, b[{k}] is {value_shown(other)}")
            vectors.check(f"{name}[{k}]", part, other)

    def like(self, x: Any) -> Any:
        return list_like(x, (vectors_of("x", part).like(part) for part in x))

    def copy(self, x: Any) -> Any:
        return list_like(x, (vectors_of("x", part).copy(part) for part in x))

    def epsilon(self, x: Any) -> float:
        return max(vectors_of("x", part).epsilon(part) for part in x)

    def precision(self, x: Any) -> str:
        return ", ".join(dict.fromkeys(vectors_of("x", part).precision(part) for part in x))

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        return sum(vectors_of("x", a).inner(a, b) for a, b in zip(x, y, strict=True))

    def norm2(self, x: Any, wait: bool = True) -> Any:
        return sum(vectors_of("x", part).norm2(part) for part in x)

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        total = 0.0
        for k in range(len(assignments[0][0])):
            of_part = [(y[k], own, [(a, x[k]) for a, x in terms]) for y, own, terms in assignments]
            found = vectors_of("x", of_part[0][0]).update(of_part, norm)
            total += found if norm else 0.0
        return total if norm else None

    def partial_sums(self, x: Any, y: Any) -> list[Partial]:
        others = [y] * len(x) if callable(y) else y
        pairs = zip(x, others, strict=True)
        return [number for a, b in pairs for number in vectors_of("x", a).partial_sums(a, b)]

    def parts(self, x: Any) -> list[Any]:
        return [part for member in x for part in vectors_of("x", member).parts(member)]

    def with_parts(self, x: Any, parts: Sequence[Any]) -> Any:
        found, rest = [], list(parts)
        for member in x:
            vectors = vectors_of("x", member)
            count = len(vectors.parts(member))
            found.append(vectors.with_parts(member, rest[:count]))
            rest = rest[count:]
        return list_like(x, found)

    def memory(self, x: Any) -> list[Any]:
        return [part for member in x for part in vectors_of("x", member).memory(member)]


# ---- which vectors are whose ------------------------------------------------------------------------------


class VectorKind(NamedTuple):
    """A kind of vector: its name for people, whether an object is one, and what gives its operations."""

    name: str
    is_one: Callable[[Any], bool]
    vectors: Callable[[Any], Vectors]


def _array_of(library: str, kind: str) -> Callable[[Any], bool]:
    """Whether something is a library's array, without importing it."""

    def is_one(x: Any) -> bool:
        return any(c.__name__ == kind and c.__module__.partition(".")[0] == library for c in type(x).__mro__)

    return is_one


def _is_list(x: Any) -> bool:
    return (
        isinstance(x, list | tuple) and len(x) > 0 and all(any(r.is_one(v) for r in VECTOR_KINDS) for v in x)
    )


@cache
def _distributed() -> Vectors:
    """Of `jali.arrays`, which stands on this module; as the other libraries, it is there where somebody has its arrays."""
    found: Vectors = importlib.import_module("jali.arrays.vectors").DistributedVectors()
    return found


VECTOR_KINDS = [
    VectorKind("jali.Field", lambda x: isinstance(x, Field), lambda x: FieldVectors()),
    VectorKind("list of vectors", _is_list, lambda x: ListVectors()),
    VectorKind(
        "jali.arrays.DistributedArray", _array_of("jali", "DistributedArray"), lambda x: _distributed()
    ),
    VectorKind(
        "stack of distributed arrays", _array_of("jali", "StackedDistributedArray"), lambda x: _distributed()
    ),
    VectorKind(
        "CuPy array", _array_of("cupy", "ndarray"), lambda x: ArrayVectors(importlib.import_module("cupy"))
    ),
    VectorKind(
        "PyTorch tensor",
        _array_of("torch", "Tensor"),
        lambda x: TorchVectors(importlib.import_module("torch")),
    ),
    VectorKind(
        "NumPy array", _array_of("numpy", "ndarray"), lambda x: ArrayVectors(importlib.import_module("numpy"))
    ),  # the last, since classes of other libraries may be heirs of it
]


_OURS = tuple(VECTOR_KINDS)  # they ask for the class alone, lists apart, and their operations have no state
_KNOWN: dict[type, Vectors] = {}


def register(entry: VectorKind) -> None:
    """From now on solvers take these vectors, before all others. Raises ParameterError for what is no `VectorKind`."""
    if not isinstance(entry, VectorKind):
        raise ParameterError(f"a kind of vectors is described by a VectorKind, not by {value_shown(entry)}")
    VECTOR_KINDS.insert(0, entry)


def vectors_of(name: str, x: Any) -> Vectors:
    """The operations of a vector. Raises ParameterError, a sentence about `name`, where no entry knows it."""
    kind = type(x)
    known = _KNOWN.get(kind)
    if known is not None and len(VECTOR_KINDS) == len(_OURS):
        return known
    for entry in VECTOR_KINDS:
        if entry.is_one(x):
            vectors = entry.vectors(x)
            if entry in _OURS and kind not in (list, tuple):
                _KNOWN[kind] = vectors
            return vectors
    raise ParameterError(
        f"{name} is a vector ({', '.join(entry.name for entry in VECTOR_KINDS)}), not {value_shown(x)}"
    )


def check_alike(name: str, x: Any, of: str, like: Any) -> None:
    """Raises ParameterError where x is another kind of vector than `like`, which is called `of`, LayoutError unless it could be added."""
    vectors = vectors_of(name, x)
    if type(vectors) is not type(vectors_of(of, like)):
        raise ParameterError(
            f"{name} is a vector of the kind of {of}, {type(like).__name__}, not {type(x).__name__}"
        )
    vectors.check(name, x, like)


# ---- of several vectors at once ---------------------------------------------------------------------------


def sums(*terms: tuple[Any, Any]) -> list[Any]:
    """Several sums over all ranks, by one all-reduce in double precision for all that have the same ranks.

    A term is two vectors, (x, y), for the sum of conj(x) y, or a vector and a function, (x, f), for that of f of each array of
    `Vectors.parts`. Terms need not be of one kind. Sums of fields are exact, and reduced by themselves.
    """
    for term in terms:
        if not isinstance(term, tuple | list) or len(term) != 2:
            raise ParameterError(
                f"sums: a term is a vector with a vector or a function, not {value_shown(term)}"
            )
    return summed([vectors_of("a vector", x).partial_sums(x, y) for x, y in terms])


def summed(terms: Sequence[Sequence[Partial]]) -> list[Any]:
    """The sums of which each rank has such parts: see `sums`."""
    if len(terms) == 1 and len(terms[0]) == 1:  # a step of a solver waits for it
        ((number, ranks),) = terms[0]
        return [number] if ranks is None else _reduced(ranks, [number])
    totals: list[Any] = [0.0] * len(terms)
    groups: dict[int, tuple[Any, list[int], list[Any]]] = {}
    for k, parts in enumerate(terms):
        for number, ranks in parts:
            if ranks is None:
                totals[k] += number
            else:
                _, indices, numbers = groups.setdefault(id(ranks), (ranks, [], []))
                indices.append(k)
                numbers.append(number)
    for ranks, indices, numbers in groups.values():
        for k, total in zip(indices, _reduced(ranks, numbers), strict=True):
            totals[k] += total
    return totals


COMPLEX = (complex, np.complexfloating)


def _reduced(ranks: Any, numbers: list[Any]) -> list[Any]:
    """Their sums over the ranks, in double precision; of real ones real."""
    are_complex = [isinstance(number, COMPLEX) for number in numbers]
    values = np.array(numbers, np.complex128 if True in are_complex else np.float64)
    ranks.all_reduce(values, values)
    found: list[Any] = values.tolist()
    if True not in are_complex:
        return found
    return [x if is_complex else x.real for x, is_complex in zip(found, are_complex, strict=True)]


def each(function: Callable[..., Any], x: Any, *others: Any) -> Any:
    """A vector of the form of x: `function` of the arrays that `Vectors.parts` gives of x and of the others."""
    vectors = vectors_of("x", x)
    rows = [vectors.parts(x), *(vectors_of("a vector", y).parts(y) for y in others)]
    return vectors.with_parts(x, [_where_it_is(function, *parts) for parts in zip(*rows, strict=True)])


def _where_it_is(function: Callable[..., Any], part: Any, *others: Any) -> Any:
    with namespace_of(part).where(part):
        return function(part, *others)
