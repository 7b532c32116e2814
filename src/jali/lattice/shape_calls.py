"""Shapes and components of values as recorded calls have them: functions of values, and behind these of what is fixed while tracing.

`f.components[:, :2]` and `jali.stack([f, g])` of whole fields are calls of these; what they mean at a site is in `jali.codegen.shapes` and
`jali.codegen.values`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from jali.codegen import shapes
from jali.codegen.lines import trace_error
from jali.codegen.values import Value
from jali.files import value_shown


def fixed_index(index: Any) -> tuple[Any, ...]:
    """An index of components as something that is compared by its value: numbers, and slices as tuples. Raises TraceError for others."""

    def whole(i: Any) -> int | None:
        return None if i is None else operator.index(i)

    parts = index if isinstance(index, tuple) else (index,)
    try:
        return tuple(
            (whole(i.start), whole(i.stop), whole(i.step)) if isinstance(i, slice) else operator.index(i)
            for i in parts
        )
    except TypeError:
        raise trace_error(
            f"components are chosen by fixed whole numbers and slices, as f.components[0, 1:], not by {value_shown(index)}"
        ) from None


def fixed_axis(axis: Any, what: str) -> int:
    """An axis as a number. Raises TraceError."""
    try:
        return operator.index(axis)
    except TypeError:
        raise trace_error(f"{what} along axis {value_shown(axis)}: it is 0 or 1") from None


def _index(fixed: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(slice(*i) if isinstance(i, tuple) else i for i in fixed)


def part(value: Value, *index: Any) -> Value:
    """Components of a value."""
    return value[_index(index)]


def with_part(value: Value, given: Any, *index: Any) -> Value:
    """The value with other components at an index."""
    changed = value.copy()
    changed[_index(index)] = given
    return changed


def stacked(*given: Any) -> Value:
    """`jali.stack` of all but the last, which is the axis."""
    return shapes.stack(given[:-1], given[-1])


def joined(*given: Any) -> Value:
    """`jali.concatenate` of all but the last, which is the axis."""
    return shapes.concatenate(given[:-1], given[-1])


def _index_written(fixed: tuple[Any, ...]) -> str:
    def one(i: Any) -> str:
        if not isinstance(i, tuple):
            return str(i)
        text = ":".join("" if n is None else str(n) for n in i)
        return text.removesuffix(":")

    return ", ".join(map(one, fixed))


def _list_written(name: str) -> Callable[[list[str], tuple[Any, ...]], str]:
    def written(values: list[str], fixed: tuple[Any, ...]) -> str:
        return f"{name}([{', '.join(values)}]{f', axis={fixed[0]}' if fixed[0] else ''})"

    return written


WRITTEN: dict[Callable[..., Any], Callable[[list[str], tuple[Any, ...]], str]] = {
    part: lambda values, fixed: f"{values[0]}.components[{_index_written(fixed)}]",
    with_part: lambda values, fixed: f"({values[0]} with components[{_index_written(fixed)}] = {values[1]})",
    stacked: _list_written("stack"),
    joined: _list_written("concatenate"),
}
"""How Python writes a call of each, given its values and what is fixed."""

METHODS_OF_SHAPE = frozenset({Value.transpose, Value.reshape, Value.diagonal})
"""Methods of symbols that name components anew."""

LINEAR = frozenset({*WRITTEN, *METHODS_OF_SHAPE, shapes.diagonal})
"""All that only name components anew, so that their values are linear in each of their arguments."""
