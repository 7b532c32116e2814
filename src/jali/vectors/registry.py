"""The kinds of vectors: a kind of vector is one entry of `VECTOR_KINDS`, whose package adds it (`add`, or `register` from outside).

A class names the module that adds its kind, `VECTORS_IN`, where a program may have objects of it without having loaded that.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jali.errors import ParameterError
from jali.files import value_shown
from jali.vectors.protocol import Vectors


class VectorKind(NamedTuple):
    """A kind of vector: its name in messages, the test of an object, and the factory of its operations.

    `by_class`: the class of an object alone decides, and the operations have no state, so that they are kept for the class.
    """

    name: str
    is_one: Callable[[Any], bool]
    vectors: Callable[[Any], Vectors]
    by_class: bool = False


VECTOR_KINDS: list[VectorKind] = []
_known: dict[type, Vectors] = {}


def register(kind: VectorKind) -> None:
    """From now on solvers take these vectors, before all others. Raises ParameterError for an object that is not a
    `VectorKind`."""
    if not isinstance(kind, VectorKind):
        raise ParameterError(f"a kind of vectors is described by a VectorKind, not by {value_shown(kind)}")
    VECTOR_KINDS.insert(0, kind)
    _known.clear()


def add(*kinds: VectorKind) -> None:
    """Kinds of jali's own packages: behind those of users and before lists and arrays, which are the last."""
    at = next((k for k, kind in enumerate(VECTOR_KINDS) if kind.name == LISTS), len(VECTOR_KINDS))
    VECTOR_KINDS[at:at] = kinds
    _known.clear()


LISTS = "list of vectors"


def is_list(x: Any) -> bool:
    """Whether it is a list or tuple of vectors."""
    return (
        isinstance(x, list | tuple) and len(x) > 0 and all(any(r.is_one(v) for r in VECTOR_KINDS) for v in x)
    )


def array_of(library: str, kind: str) -> Callable[[Any], bool]:
    """Whether something is a library's array, without importing the library."""

    def is_one(x: Any) -> bool:
        return any(c.__name__ == kind and c.__module__.partition(".")[0] == library for c in type(x).__mro__)

    return is_one


def vectors_of(name: str, x: Any) -> Vectors:
    """The operations of a vector. Raises ParameterError, a sentence about `name`, where no entry knows it."""
    kind = type(x)
    known = _known.get(kind)
    if known is not None:
        return known
    by_class = not isinstance(x, list | tuple)
    for entry in VECTOR_KINDS:
        if entry.is_one(x):
            vectors = entry.vectors(x)
            if by_class and entry.by_class:
                _known[kind] = vectors
            return vectors
        by_class = by_class and entry.by_class
    if _load_kinds_of(x):
        return vectors_of(name, x)
    raise ParameterError(
        f"{name} is a vector ({', '.join(entry.name for entry in VECTOR_KINDS)}), not {value_shown(x)}"
    )


def _load_kinds_of(x: Any) -> bool:
    """Loads the modules that its class names, or those of members of a list; whether there was one to load."""
    if isinstance(x, list | tuple):
        return any([_load_kinds_of(member) for member in x])
    module = getattr(type(x), "VECTORS_IN", None)
    if module is None or module in sys.modules:
        return False
    importlib.import_module(module)
    return True


def like(x: Any, precision: str | None = None) -> Any:
    """A vector of zeros like x, with `precision` of this arithmetic. What was registered before there were precisions knows none."""
    vectors = vectors_of("x", x)
    return vectors.like(x) if precision is None else vectors.like(x, precision)


def random(x: Any, seed: int) -> Any:
    """A vector like x of random numbers, uniform in (-1, 1), the same on any number of ranks."""
    return vectors_of("x", x).random(x, seed)


def check_alike(name: str, x: Any, of: str, like: Any) -> None:
    """Raises ParameterError where x is another kind of vector than `like`, which is called `of`, LayoutError unless it could be added."""
    vectors = vectors_of(name, x)
    if type(vectors) is not type(vectors_of(of, like)):
        raise ParameterError(
            f"{name} is a vector of the kind of {of}, {type(like).__name__}, not {type(x).__name__}"
        )
    vectors.check(name, x, like)


def check_kinds(x: Any, others: Iterable[Any]) -> None:
    """Raises ParameterError where one of the others is another kind of vector than x, or none. Kinds ask once their operations have failed,
    since every step of a solver would pay for it."""
    kind = type(vectors_of("an operand", x))
    for other in others:
        if type(vectors_of("an operand", other)) is not kind:
            raise ParameterError(
                f"vectors of one operation are of one kind, not {value_shown(x)} and {value_shown(other)}"
            )
