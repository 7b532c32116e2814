"""Of several vectors at once: sums over ranks by one all-reduce, and functions of their arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.array_namespaces import namespace_of
from jali.errors import ParameterError
from jali.files import value_shown
from jali.vectors.protocol import Partial
from jali.vectors.registry import vectors_of


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
