"""Symbolic values: numbers, vectors and matrices at a site that are not yet computed, and the functions on them.

A `Value` wraps a node of the trace under way; its operators and methods make further nodes. Methods come from the descriptors of
operations that name one; mistakes in types are found there and reported at the user's line.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from jali.codegen.directions import Offset
from jali.codegen.ir import INT, Node
from jali.codegen.language import (
    arithmetic,
    choices,
    conversions,
    elementary,
    groups,
    integers,
    leaves,
    matrices,
)
from jali.codegen.lines import trace_error
from jali.codegen.operation import OPERATIONS, Operation, described
from jali.codegen.ranges import range_of
from jali.codegen.state import builder, current_trace
from jali.codegen.symbol import Symbol, WithoutValue
from jali.codegen.types import MOST_COMPONENTS, Element, Type
from jali.files import value_shown


def lift(value: Any) -> Node:
    """Any number, small array or symbol as a node of the current trace."""
    nodes = builder()
    if isinstance(value, Value):
        nodes.check(value.node)
        return value.node
    if isinstance(value, bool | np.bool_):
        return leaves.const(nodes, bool(value))
    if isinstance(value, int | np.integer):
        return leaves.const(nodes, int(value))
    if isinstance(value, float | np.floating):
        return leaves.const(nodes, float(value))
    if isinstance(value, complex | np.complexfloating):
        return leaves.const(nodes, complex(value))
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        if value.ndim == 0:
            return lift(value[()])
        if value.ndim in (1, 2) and 0 < value.size <= 256:
            kind = "complex" if np.iscomplexobj(value) else "real"
            parts = [
                leaves.const(nodes, v)
                for v in value.astype("complex128" if kind == "complex" else "float64").ravel().tolist()
            ]
            return conversions.build(nodes, Type(kind, value.shape), parts)
        raise trace_error(
            f"an array of shape {value.shape} is no vector or matrix of at most 256 numbers; make it a Field"
        )
    raise trace_error(_not_a_number(value))


def _not_a_number(value: Any) -> str:
    """What is wrong with something that is used as a number and is none, and what would be right."""
    kind = type(value).__name__
    text = f"a {kind} cannot be used in a site function's arithmetic"
    if isinstance(value, WithoutValue):
        return value.advice()
    if isinstance(value, Offset):
        return (
            f"{text}: {value_shown(value)} is an offset between sites, multiplied by whole numbers that are known while tracing or are "
            "arguments; the number of a direction is int(mu)"
        )
    if isinstance(value, list | tuple):
        return f"{text}; jali.vector([...]) and jali.matrix([[...], ...]) make vectors and matrices"
    if isinstance(value, Element | type):
        return f"{text}; jali.zero(element) is the zero of an element type"
    if callable(value) and hasattr(value, "__name__"):
        return f"{text}: {value.__name__} is a function; call it, {value.__name__}(...)"
    if isinstance(value, str | bytes | dict | set) or value is None:
        return text
    return f"{text}; use numbers, small arrays, and the fields and numbers among its parameters"


def _known(value: Any) -> bool:
    """Whether an operation with it is ours to do or to refuse; other classes may know what they do with a symbol."""
    if isinstance(
        value, Value | bool | int | float | complex | np.generic | np.ndarray | WithoutValue | Offset
    ):
        return True
    return type(value).__module__ == "builtins"


def _evaluated(node: Node, number: Callable[[int, int], int]) -> int:
    """The value of a formula of whole numbers that are known or arguments; `number(slot, component)` is that of an argument."""
    operation = described(node)
    if operation.constant:
        return node.attrs[0]
    compute = operation.compute and operation.compute(node)
    if node.type.kind not in ("int", "bool") or (operation.argument is None and compute is None):
        raise trace_error(
            f"offsets are made of whole numbers that are arguments, by +, -, *, %, //, comparisons and jali.where; {node.op} of "
            f"a {node.type} is none of these"
        )
    if operation.argument is not None:
        return number(*operation.argument(node))
    assert compute is not None
    return int(compute(*(_evaluated(a, number) for a in node.args)))


class Value(Symbol):
    """A number, vector or matrix at a site, not yet computed."""

    __slots__ = ("node",)

    def __init__(self, node: Node):
        self.node = node

    def __repr__(self) -> str:
        return f"<symbol: {self.node.type}>"

    def lifted(self, number: Any) -> Value:
        """A number or array of NumPy as a symbol."""
        return Value(lift(number))

    def advice(self) -> str:
        """What the user should write instead of looking for its value."""
        return f"a {self.node.type} at a site has no value while the function is traced"

    # ---- arithmetic ----

    def __add__(self, other: Any) -> Value:
        return Value(arithmetic.add(builder(), self.node, lift(other))) if _known(other) else NotImplemented

    def __radd__(self, other: Any) -> Value:
        if type(other) is int and other == 0:  # where Python's sum() begins
            return self.copy()
        return Value(arithmetic.add(builder(), lift(other), self.node)) if _known(other) else NotImplemented

    def __sub__(self, other: Any) -> Value:
        return Value(arithmetic.sub(builder(), self.node, lift(other))) if _known(other) else NotImplemented

    def __rsub__(self, other: Any) -> Value:
        return Value(arithmetic.sub(builder(), lift(other), self.node)) if _known(other) else NotImplemented

    def __mul__(self, other: Any) -> Any:
        if isinstance(other, Offset) and (self.node.type == INT or self._from_arguments()):
            return Offset(other.steps, True) * self._steps()
        return Value(matrices.product(builder(), self.node, lift(other))) if _known(other) else NotImplemented

    def __rmul__(self, other: Any) -> Any:
        if isinstance(other, Offset) and (self.node.type == INT or self._from_arguments()):
            return self * other
        return Value(matrices.product(builder(), lift(other), self.node)) if _known(other) else NotImplemented

    __matmul__ = __mul__
    __rmatmul__ = __rmul__

    def __truediv__(self, other: Any) -> Value:
        return Value(arithmetic.div(builder(), self.node, lift(other))) if _known(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Value:
        return Value(arithmetic.div(builder(), lift(other), self.node)) if _known(other) else NotImplemented

    def __mod__(self, other: Any) -> Value:
        return Value(integers.mod(builder(), self.node, lift(other)))

    def __floordiv__(self, other: Any) -> Value:
        return Value(integers.floordiv(builder(), self.node, lift(other)))

    def __rmod__(self, other: Any) -> Value:
        return Value(integers.mod(builder(), lift(other), self.node))

    def __rfloordiv__(self, other: Any) -> Value:
        return Value(integers.floordiv(builder(), lift(other), self.node))

    def __neg__(self) -> Value:
        return Value(arithmetic.neg(builder(), self.node))

    def __pos__(self) -> Value:
        return self.copy()

    def __abs__(self) -> Value:
        return Value(elementary.call(builder(), "abs", self.node))

    def __pow__(self, power: Any) -> Value:
        if isinstance(power, int) and not isinstance(power, bool):
            if power < 0:
                return 1.0 / (self**-power)
            result: Value | None = None
            square = self
            n = power
            while n:
                if n & 1:
                    result = square if result is None else result * square
                n >>= 1
                square = square * square if n else square
            if result is None:
                shape = self.node.type.shape
                if shape and shape != shape[:1] * 2:
                    raise trace_error(f"a {self.node.type} has no powers; numbers and square matrices have")
                one = identity(shape[0]).node if shape else leaves.exact(builder(), 1)
                return Value(conversions.convert(builder(), one, self.node.type.kind))
            return result.copy()
        return Value(elementary.call(builder(), "pow", self.node, lift(power)))

    def __rpow__(self, base: Any) -> Value:
        return (
            Value(elementary.call(builder(), "pow", lift(base), self.node))
            if _known(base)
            else NotImplemented
        )

    def _no_operator(self, *_: Any) -> Any:
        raise trace_error(
            "symbols have no operator for this; see the table of operations in the guide to the site language"
        )

    __divmod__ = __rdivmod__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _no_operator
    __xor__ = __rxor__ = _no_operator

    # ---- comparison ----

    def __lt__(self, other: Any) -> Value:
        return Value(choices.less(builder(), self.node, lift(other)))

    def __le__(self, other: Any) -> Value:
        return Value(choices.less_equal(builder(), self.node, lift(other)))

    def __gt__(self, other: Any) -> Value:
        return Value(choices.less(builder(), lift(other), self.node))

    def __ge__(self, other: Any) -> Value:
        return Value(choices.less_equal(builder(), lift(other), self.node))

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return Value(choices.equal(builder(), self.node, lift(other)))

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return Value(choices.not_equal(builder(), self.node, lift(other)))

    def __and__(self, other: Any) -> Value:
        return Value(choices.both(builder(), self.node, lift(other)))

    def __or__(self, other: Any) -> Value:
        return Value(choices.either(builder(), self.node, lift(other)))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Value:
        return Value(choices.negation(builder(), self.node))

    # ---- what needs a value ----

    def _fixed(self) -> str:
        """What to do where Python needs a number that was given as an argument."""
        return (
            "a number given as an argument is known at run time only; "
            "pass True or False, or capture the number (a global or a variable of the surrounding function)"
        )

    def _steps(self) -> int:
        """How many steps this is between sites: a number made of whole numbers that are arguments, as they are in this call."""
        node, trace = self.node, current_trace()
        rule = "a direction is multiplied by whole numbers that are known while tracing or are arguments"
        if node.type != INT:
            is_component = described(node).component
            given = node.args[0] if is_component else node
            component = f"[{node.attrs[0]}]" if is_component else ""
            if described(given).argument is None:
                raise trace_error(f"{rule}, not by a {node.type}")
            hint = (
                "take one of its numbers"
                if node.type.shape
                else "pass an int, not a float, a Scalar or an array of floats"
            )
            raise trace_error(
                f"{rule}, and {trace.scalars[given.attrs[0]][0]}{component} is a {node.type}: {hint}"
            )
        if not self._from_arguments():
            raise trace_error(f"{rule}, not by those of the site")
        return _evaluated(node, trace.number)

    def _from_arguments(self) -> bool:
        """Whether this is made of numbers given as arguments, so that a user may consider it known."""
        waiting, seen, scalars = [self.node], set(), False
        while waiting:
            node = waiting.pop()
            if node.number in seen:
                continue
            seen.add(node.number)
            if not node.args and not described(node).everywhere:
                return False
            scalars = scalars or described(node).argument is not None
            waiting += node.args
        return scalars

    def __bool__(self) -> bool:
        raise trace_error(
            "a symbol has no truth value while the function is traced: `if`, `while`, `and`, `or`, `not`, `in` cannot depend on it.\n"
            "  Use jali.where(condition, a, b), &, |, ~, or X.repeat_until for rejection"
            + (f"\n  To decide while tracing: {self._fixed()}" if self._from_arguments() else "")
        )

    def __hash__(self) -> int:
        hint = (
            self._fixed()
            if self._from_arguments()
            else "choose with jali.where(value == key, a, b), or decide by what is fixed while tracing"
        )
        raise trace_error(
            "a symbol has no value while the function is traced, so that it can neither be looked up in a set or a dictionary "
            f"nor kept in one: {hint}"
        )

    def __index__(self) -> int:
        hint = (
            self._fixed()
            if self._from_arguments()
            else "pass a Direction, or fix it while tracing; an array is indexed by numbers of the site where it is an argument"
        )
        raise trace_error(f"a run-time number cannot be an index or a loop bound; {hint}")

    def __float__(self) -> float:
        raise trace_error(
            "a symbol has no value while the function is traced; functions of symbols are jali's: jali.sin, not math.sin"
        )

    def __round__(self, digits: int | None = None) -> Value:
        """Python's `round(x)`: the nearest whole number, of two the even one."""
        if digits is not None:
            raise trace_error(
                "round(x, digits) does not take symbols; round(x * 10**digits) / 10**digits does"
            )
        return Value(elementary.call(builder(), "round", self.node))

    __complex__ = __trunc__ = __floor__ = __ceil__ = __float__
    __int__ = __index__

    def __iter__(self) -> Iterator[Any]:
        raise trace_error(f"a {self.node.type} cannot be iterated; take components with v[i]")

    def __len__(self) -> int:
        raise trace_error(f"a {self.node.type} has no len(); the extents are in .shape, {self.shape}")

    def __setitem__(self, index: Any, value: Any) -> None:
        """Replaces components of this value, `v[0] = x`, `m[0, :] = v`; all references to the same object see it, as
        in Python."""
        self.node = self._with(index, value)

    def __delitem__(self, index: Any) -> None:
        raise trace_error(f"components of a {self.node.type} cannot be removed; v[1:] is a part")

    def _with(self, index: Any, value: Any) -> Node:
        """This value with other components at an index. Raises TraceError for what does not fit."""
        type = self.node.type
        if not type.shape:
            raise trace_error(f"a {type} has no components to assign")
        positions, shape = self._components(index)
        given = lift(value)
        if given.type.shape not in ((), shape):
            what = Type(given.type.kind, shape)
            raise trace_error(
                f"component {index} of a {type} is a {what}; a {given.type} cannot be assigned to it"
            )
        if conversions.KINDS[given.type.kind] > conversions.KINDS[type.kind]:
            raise trace_error(
                f"a {given.type} cannot be assigned to a component of a {type}; use .real or .imag, or begin with a value that is "
                f"{given.type.kind}"
            )
        nodes = builder()
        parts = [conversions.element(nodes, self.node, k) for k in range(type.size)]
        for n, k in enumerate(positions):
            parts[k] = conversions.element(nodes, given, n) if given.type.shape else given
        return conversions.build(nodes, type, parts)

    def __contains__(self, other: Any) -> bool:
        raise trace_error(f"a {self.node.type} cannot be searched; compare components, v[i] == x")

    # ---- parts ----

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value: `()`, `(n,)` or `(n, m)`."""
        return self.node.type.shape

    @property
    def kind(self) -> str:
        """`bool`, `int`, `real` or `complex`."""
        return self.node.type.kind

    def __getitem__(self, index: Any) -> Value:
        if isinstance(index, Value) and leaves.is_number_of_each_member(self.node, index.node):
            return Value(leaves.scalar_of_member(builder(), self.node, index.node))
        indices = index if isinstance(index, tuple) else (index,)
        for axis, i in enumerate(indices):
            if isinstance(i, Value) and axis < len(self.node.type.shape) and leaves.of_members(i.node):
                return self._of_member(indices, axis)
        positions, shape = self._components(index)
        nodes, kind = builder(), self.node.type.kind
        parts = [conversions.element(nodes, self.node, k) for k in positions]
        return Value(conversions.build(nodes, Type(kind, shape), parts) if shape else parts[0])

    def _of_member(self, indices: tuple[Any, ...], axis: int) -> Value:
        """The component that a number of the member of a batch names: each of those that it may be is chosen from."""
        node, n = indices[axis].node, self.node.type.shape[axis]
        low, high = range_of(node, ())
        if low < 0 or high >= n:
            raise trace_error(
                f"{self._named()} is indexed by a number of the member that goes from {low} to {high}, and has the components 0 to {n - 1}"
            )
        each = [self[(*indices[:axis], k, *indices[axis + 1 :])] for k in range(int(low), int(high) + 1)]
        found = each[0]
        for k, component in enumerate(each[1:], int(low) + 1):
            found = Value(choices.where(builder(), (indices[axis] == k).node, component.node, found.node))
        return found

    def _components(self, index: Any) -> tuple[list[int], tuple[int, ...]]:
        """Numbers of the components at an index, row by row, and the shape of what they are; `()` is one number."""
        self._refuse_site(index)
        type = self.node.type
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != len(type.shape):
            raise trace_error(f"a {type} takes {len(type.shape)} indices, not {len(indices)}")
        chosen, shape = [], []
        for i, n in zip(indices, type.shape, strict=True):
            if isinstance(i, slice):
                chosen.append(range(n)[i])
                shape.append(len(chosen[-1]))
                continue
            try:
                k = operator.index(i)
            except TypeError:
                raise trace_error(f"component index {i!r} is not a whole number") from None
            if not -n <= k < n:
                raise trace_error(f"component {index} of a {type} does not exist")
            chosen.append(range(k % n, k % n + 1))
        positions = [0]
        for these, n in zip(chosen, type.shape, strict=True):
            positions = [position * n + k for position in positions for k in these]
        if not positions:
            raise trace_error(f"the block {index} of a {type} is empty")
        return positions, tuple(shape)

    def _refuse_site(self, index: Any) -> None:
        """Raises TraceError for an index that only fields have, or that is none."""
        for i in index if isinstance(index, tuple) else (index,):
            if isinstance(i, WithoutValue):
                raise trace_error(
                    f"{self._named()} is no field, and has no value at {value_shown(i)}: {self._instead_of_field()}"
                    if hasattr(i, "vector")
                    else i.advice()
                )

    def _named(self) -> str:
        """What it is, with its name if it is an argument."""
        node = self.node
        what = f"a {node.type}" if node.type.shape else "a number"
        given = described(node).argument is not None
        return f"{current_trace().scalars[node.attrs[0]][0]}, {what}," if given else what

    def _instead_of_field(self) -> str:
        """What to give where a field is meant."""
        return "f[X] reads a field that is an argument, and gives the value itself"

    def copy(self) -> Value:
        """The same value in a variable of its own: components can be assigned without effect on the original."""
        return Value(self.node)

    __copy__ = copy

    def __deepcopy__(self, memo: Any) -> Value:
        return self.copy()

    def transpose(self) -> Value:
        """Rows and columns exchanged."""
        return Value(matrices.transpose(builder(), self.node))

    def reshape(self, *shape: Any) -> Value:
        """The same components, row by row, as a vector `v.reshape(n)` or matrix `v.reshape(n, m)`; one extent may be -1."""
        type, nodes = self.node.type, builder()
        extents = self._extents(shape[0] if len(shape) == 1 and isinstance(shape[0], tuple | list) else shape)
        parts = [
            conversions.element(nodes, self.node, k) if type.shape else self.node for k in range(type.size)
        ]
        return Value(conversions.build(nodes, Type(type.kind, extents), parts))

    def _extents(self, given: Sequence[Any]) -> tuple[int, ...]:
        """The shape that is meant, with what -1 stands for. Raises TraceError where it has another number of components."""
        type = self.node.type
        if type.kind == "bool":
            raise trace_error("a condition has no components to reshape")
        try:
            extents = [operator.index(n) for n in given]
        except TypeError:
            raise trace_error(f"reshape takes whole numbers, not {value_shown(tuple(given))}") from None
        if extents.count(-1) == 1:
            known = -math.prod(extents)
            extents[extents.index(-1)] = type.size // known if known > 0 else 0
        if len(extents) not in (1, 2) or min(extents) < 1 or math.prod(extents) != type.size:
            raise trace_error(
                f"a {type} has {type.size} components and is no vector or matrix of shape {value_shown(tuple(given))}"
            )
        return tuple(extents)

    def diagonal(self) -> Value:
        """The diagonal of a matrix, a vector."""
        matrices.need_matrix(self.node, "diagonal")
        rows, columns = self.node.type.shape
        nodes, n = builder(), min(rows, columns)
        parts = [conversions.element(nodes, self.node, k * (columns + 1)) for k in range(n)]
        return Value(conversions.build(nodes, Type(self.node.type.kind, (n,)), parts))

    def exp(self) -> Value:
        """Exponential of a number or a square matrix."""
        if self.node.type.shape:
            return Value(groups.expm(builder(), self.node))
        return Value(elementary.call(builder(), "exp", self.node))


def _method(described: Operation) -> Callable[..., Value]:
    """The method of symbols by which an operation is called."""

    def alone(self: Value) -> Value:
        return Value(described(builder(), self.node))

    def with_another(self: Value, other: Any) -> Value:
        return Value(described(builder(), self.node, lift(other)))

    method = alone if described.make.__code__.co_argcount == 2 else with_another
    method.__name__, method.__qualname__ = described.method, f"Value.{described.method}"
    method.__doc__ = described.make.__doc__
    return method


METHODS: dict[Callable[..., Value], Operation] = {
    _method(described): described for described in OPERATIONS.values() if described.method
}
"""The operations that are methods of symbols, by these methods."""

for _function, _described in METHODS.items():
    setattr(Value, _described.method, property(_function) if _described.is_property else _function)


def where(condition: Any, a: Any, b: Any) -> Value:
    """`a` where `condition` holds, else `b`; both are evaluated."""
    return Value(choices.where(builder(), lift(condition), lift(a), lift(b)))


def matrix(rows: Sequence[Sequence[Any]]) -> Value:
    """A matrix from its rows of numbers."""
    if not is_list(rows) or not all(map(is_list, rows)):
        raise trace_error("jali.matrix needs a list of rows: [[a, b], [c, d]]")
    nodes = [[lift(v) for v in row] for row in rows]
    if not nodes or not nodes[0] or any(len(row) != len(nodes[0]) for row in nodes):
        raise trace_error("jali.matrix needs rows of equal, non-zero length")
    flat = [n for row in nodes for n in row]
    return Value(conversions.build(builder(), Type(_kind(flat, "matrix"), (len(nodes), len(nodes[0]))), flat))


def vector(components: Sequence[Any]) -> Value:
    """A vector from its components."""
    if not is_list(components):
        raise trace_error("jali.vector needs a list of components: [a, b]")
    nodes = [lift(v) for v in components]
    if not nodes:
        raise trace_error("jali.vector needs at least one component")
    return Value(conversions.build(builder(), Type(_kind(nodes, "vector"), (len(nodes),)), nodes))


def is_list(value: Any) -> bool:
    """Whether it is a list of values, and no value itself."""
    return isinstance(value, Iterable) and not isinstance(value, Symbol | str | bytes | dict)


def _kind(nodes: list[Node], what: str) -> str:
    if any(n.type.shape or n.type.kind == "bool" for n in nodes):
        raise trace_error(f"the components of a {what} are numbers")
    return "complex" if any(n.type.kind == "complex" for n in nodes) else "real"


def complex_number(re: Any, im: Any) -> Value:
    """re + i im."""
    return Value(conversions.complex_number(builder(), lift(re), lift(im)))


class UnitMatrix(Value):
    """The unit matrix: real until it meets complex numbers, in a formula or among its components."""

    __slots__ = ()

    def _with(self, index: Any, value: Any) -> Node:
        given = lift(value)
        if given.type.kind == "complex":
            self.node = conversions.convert(builder(), self.node, "complex")
        return super()._with(index, Value(given))

    def copy(self) -> Value:
        """The same value in a variable of its own."""
        return UnitMatrix(self.node)


def identity(n: int) -> Value:
    """The n by n unit matrix. It is algebra: x times it is x on the diagonal and 0 elsewhere, also where x is NaN."""
    nodes = builder()
    if (
        isinstance(n, bool)
        or not isinstance(n, int | np.integer | Value)
        or (not isinstance(n, Value) and n < 1)
    ):
        raise trace_error(f"jali.identity needs a positive whole number, not {value_shown(n)}")
    if not isinstance(n, Value) and n * n > MOST_COMPONENTS:
        raise trace_error(
            f"jali.identity({n}) has {n * n} components; a matrix has at most {MOST_COMPONENTS}"
        )
    n = operator.index(n)
    parts = [leaves.exact(nodes, float(i == j)) for i in range(n) for j in range(n)]
    unit = conversions.build(nodes, Type("real", (n, n)), parts)
    unit.hermitian = True
    return UnitMatrix(unit)


def zero(element: Element | Type) -> Value:
    """The zero of an element type, to start an accumulation: nothing is left of it in a sum."""
    if not isinstance(element, Element | Type):
        raise trace_error(
            f"jali.zero needs an element type such as Real() or SU(3), not {value_shown(element)}"
        )
    type = element.type if isinstance(element, Element) else element
    return Value(conversions.zero_of(builder(), type))
