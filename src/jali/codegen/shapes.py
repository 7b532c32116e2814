"""Values put together from others, as NumPy does with arrays: `jali.stack`, `jali.concatenate`, `jali.diagonal`.

Components are only named anew, so in a kernel all of it costs nothing. Cutting is `v[1:3]` and `m[:, 0]`, another shape `v.reshape(n, m)`
(`values.py`).
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from jali.codegen.ir import Node
from jali.codegen.language import conversions, leaves
from jali.codegen.lines import trace_error
from jali.codegen.state import builder
from jali.codegen.types import Type
from jali.codegen.values import Value, is_list, lift
from jali.files import value_shown


def _alike(values: Any, what: str) -> list[Node]:
    """A list of values as those of one kind. Raises TraceError, a sentence that begins with `what`, where there are none or conditions."""
    if not is_list(values):
        raise trace_error(f"{what} needs a list of values, [a, b], not {value_shown(values)}")
    nodes = [lift(value) for value in values]
    if not nodes:
        raise trace_error(f"{what} needs at least one value")
    if any(node.type.kind == "bool" for node in nodes):
        raise trace_error(f"{what} takes numbers, vectors and matrices, not conditions")
    kind = max((node.type.kind for node in nodes), key=conversions.KINDS.__getitem__)
    return [conversions.convert(builder(), node, kind) for node in nodes]


def _axis(axis: Any, axes: int, what: str) -> int:
    try:
        found = operator.index(axis)
    except TypeError:
        found = axes
    if not -axes <= found < axes:
        possible = "0 or 1" if axes == 2 else "0"
        raise trace_error(f"{what} along axis {value_shown(axis)}: of these values it is {possible}")
    return found % axes


def _components(node: Node) -> list[list[Node]]:
    """The components of a vector or matrix, row by row; a vector is one row."""
    nodes, (*rows, columns) = builder(), node.type.shape
    parts = [conversions.element(nodes, node, k) for k in range(node.type.size)]
    return [parts[i * columns : (i + 1) * columns] for i in range(rows[0] if rows else 1)]


def _matrix(rows: Sequence[Sequence[Node]]) -> Value:
    flat = [part for row in rows for part in row]
    return Value(conversions.build(builder(), Type(flat[0].type.kind, (len(rows), len(rows[0]))), flat))


def stack(values: Sequence[Any], axis: int = 0) -> Value:
    """Numbers as a vector, vectors as the rows (axis 0) or columns (axis 1) of a matrix. Raises TraceError where shapes differ."""
    nodes = _alike(values, "jali.stack")
    shapes = list(dict.fromkeys(node.type.shape for node in nodes))
    if len(shapes) > 1 or len(shapes[0]) > 1:
        raise trace_error(
            "jali.stack takes numbers, or vectors of one length, not "
            f"{' and '.join(dict.fromkeys(str(node.type) for node in nodes))}; jali.concatenate takes matrices"
        )
    axis = _axis(axis, len(shapes[0]) + 1, "jali.stack")
    if not shapes[0]:
        return Value(conversions.build(builder(), Type(nodes[0].type.kind, (len(nodes),)), nodes))
    rows = [row for node in nodes for row in _components(node)]
    return _matrix(rows if axis == 0 else list(zip(*rows, strict=True)))


def concatenate(values: Sequence[Any], axis: int = 0) -> Value:
    """Vectors one behind the other, matrices one below the other (axis 0) or side by side (axis 1). Raises TraceError where they do not
    fit."""
    nodes = _alike(values, "jali.concatenate")
    shapes = [node.type.shape for node in nodes]
    axes = len(shapes[0])
    if not axes:
        raise trace_error(
            "jali.concatenate takes vectors or matrices; jali.vector([a, b]) is made of numbers"
        )
    axis = _axis(axis, axes, "jali.concatenate")
    if any(
        len(shape) != axes or shape[:axis] + shape[axis + 1 :] != shapes[0][:axis] + shapes[0][axis + 1 :]
        for shape in shapes
    ):
        equal = (
            "" if axes == 1 else f", of equal numbers of {'rows' if axis else 'columns'} along axis {axis}"
        )
        raise trace_error(
            f"jali.concatenate takes vectors alone or matrices alone{equal}, not {' and '.join(str(node.type) for node in nodes)}"
        )
    parts = [_components(node) for node in nodes]
    if axes == 1:
        flat = [part for rows in parts for part in rows[0]]
        return Value(conversions.build(builder(), Type(flat[0].type.kind, (len(flat),)), flat))
    if axis == 0:
        return _matrix([row for rows in parts for row in rows])
    return _matrix([[part for row in beside for part in row] for beside in zip(*parts, strict=True)])


def diagonal(v: Any) -> Value:
    """The diagonal matrix of a vector, 0 elsewhere as in `jali.identity(n)`; of a real one it is known to be Hermitian."""
    nodes, node = builder(), lift(v)
    if len(node.type.shape) != 1 or node.type.kind == "bool":
        raise trace_error(
            f"jali.diagonal needs a vector, not a {node.type}; m.diagonal() is that of a matrix"
        )
    (n,) = node.type.shape
    zero = leaves.exact(nodes, 0.0)
    parts = [conversions.element(nodes, node, i) if i == j else zero for i in range(n) for j in range(n)]
    kind = "complex" if node.type.kind == "complex" else "real"
    matrix = conversions.build(nodes, Type(kind, (n, n)), parts)
    matrix.hermitian |= kind == "real"
    return Value(matrix)
