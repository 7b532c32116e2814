"""Symbolic values: numbers, vectors and matrices at a site that are not yet computed, and the functions on them.

A `Value` wraps a node of the trace under way; its operators make further nodes. Mistakes in types are found by the builder and
reported at the user's line.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from jali.codegen.ir import Node, trace_error
from jali.codegen.state import builder
from jali.codegen.types import Element, Type


def lift(value: Any) -> Node:
    """Any number, small array or symbol as a node of the current trace."""
    if isinstance(value, Value):
        return value.node
    nodes = builder()
    if isinstance(value, bool | np.bool_):
        return nodes.const(bool(value))
    if isinstance(value, int | np.integer):
        return nodes.const(int(value))
    if isinstance(value, float | np.floating):
        return nodes.const(float(value))
    if isinstance(value, complex | np.complexfloating):
        return nodes.const(complex(value))
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return lift(value[()])
    if isinstance(value, np.ndarray) and value.ndim in (1, 2) and value.size <= 256:
        kind = "complex" if np.iscomplexobj(value) else "real"
        parts = [
            nodes.const(v)
            for v in value.astype("complex128" if kind == "complex" else "float64").ravel().tolist()
        ]
        return nodes.build(Type(kind, value.shape), parts)
    if isinstance(value, WithoutValue):
        raise trace_error(value.advice())
    raise trace_error(f"a {type(value).__name__} cannot be used in a site function's arithmetic")


def _value(value: Any) -> bool:
    return isinstance(value, Value | bool | int | float | complex | np.generic | np.ndarray | WithoutValue)


def _refuse(symbol: Any, *_: Any) -> Any:
    """Arithmetic with something that has no value; `lift` says what it is."""
    lift(symbol)


class WithoutValue:
    """Sites, fields and sums: not numbers, and arithmetic with them says so."""

    __slots__ = ()

    def advice(self) -> str:
        """What the user should write instead."""
        raise AssertionError(f"{type(self).__name__} gives no advice")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = _refuse
    __truediv__ = __rtruediv__ = __pow__ = __neg__ = __abs__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class Value:
    """A number, vector or matrix at a site, not yet computed."""

    __slots__ = ("node",)
    __array_ufunc__ = None  # NumPy scalars leave the operation to us
    __hash__ = object.__hash__

    def __init__(self, node: Node):
        self.node = node

    def __repr__(self) -> str:
        return f"<symbol: {self.node.type}>"

    # ---- arithmetic ----

    def __add__(self, other: Any) -> Value:
        return Value(builder().add(self.node, lift(other))) if _value(other) else NotImplemented

    def __radd__(self, other: Any) -> Value:
        if type(other) is int and other == 0:  # where Python's sum() begins
            return self
        return Value(builder().add(lift(other), self.node)) if _value(other) else NotImplemented

    def __sub__(self, other: Any) -> Value:
        return Value(builder().add(self.node, lift(other), "sub")) if _value(other) else NotImplemented

    def __rsub__(self, other: Any) -> Value:
        return Value(builder().add(lift(other), self.node, "sub")) if _value(other) else NotImplemented

    def __mul__(self, other: Any) -> Value:
        return Value(builder().mul(self.node, lift(other))) if _value(other) else NotImplemented

    def __rmul__(self, other: Any) -> Value:
        return Value(builder().mul(lift(other), self.node)) if _value(other) else NotImplemented

    __matmul__ = __mul__
    __rmatmul__ = __rmul__

    def __truediv__(self, other: Any) -> Value:
        return Value(builder().div(self.node, lift(other))) if _value(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Value:
        return Value(builder().div(lift(other), self.node)) if _value(other) else NotImplemented

    def __mod__(self, other: Any) -> Value:
        return Value(builder().integer("mod", self.node, lift(other)))

    def __floordiv__(self, other: Any) -> Value:
        return Value(builder().integer("floordiv", self.node, lift(other)))

    def __neg__(self) -> Value:
        return Value(builder().neg(self.node))

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return Value(builder().call("abs", [self.node]))

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
                if self.node.type.shape:
                    return identity(self.node.type.shape[0])
                return Value(builder().const(1.0))
            return result
        return Value(builder().call("pow", [self.node, lift(power)]))

    # ---- comparison ----

    def __lt__(self, other: Any) -> Value:
        return Value(builder().compare("less", self.node, lift(other)))

    def __le__(self, other: Any) -> Value:
        return Value(builder().compare("less_equal", self.node, lift(other)))

    def __gt__(self, other: Any) -> Value:
        return Value(builder().compare("less", lift(other), self.node))

    def __ge__(self, other: Any) -> Value:
        return Value(builder().compare("less_equal", lift(other), self.node))

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return Value(builder().compare("equal", self.node, lift(other)))

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return Value(builder().compare("not_equal", self.node, lift(other)))

    def __and__(self, other: Any) -> Value:
        return Value(builder().logical("and", self.node, lift(other)))

    def __or__(self, other: Any) -> Value:
        return Value(builder().logical("or", self.node, lift(other)))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Value:
        return Value(builder().logical("not", self.node))

    def __bool__(self) -> bool:
        raise trace_error(
            "a symbol has no truth value while the function is traced: `if`, `while`, `and`, `or`, `not` cannot depend on it.\n"
            "  Use jali.where(condition, a, b), &, |, ~, or X.repeat_until for rejection"
        )

    def __index__(self) -> int:
        raise trace_error(
            "a run-time number cannot be an index or a loop bound; pass a Direction, or fix it while tracing"
        )

    def __float__(self) -> float:
        raise trace_error("a symbol has no value while the function is traced")

    __complex__ = __float__
    __int__ = __index__

    def __iter__(self) -> Iterator[Any]:
        raise trace_error(f"a {self.node.type} cannot be iterated; take components with v[i]")

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
        shape = self.node.type.shape
        indices = index if isinstance(index, tuple) else (index,)
        if any(isinstance(i, slice) for i in indices) and len(indices) == len(shape) == 2:
            rows, cols = (
                range(n)[i] if isinstance(i, slice) else [i] for i, n in zip(indices, shape, strict=True)
            )
            parts = [self[i, j] for i in rows for j in cols]
            both = isinstance(indices[0], slice) and isinstance(indices[1], slice)
            new = (len(rows), len(cols)) if both else (len(parts),)
            return Value(builder().build(Type(self.node.type.kind, new), [p.node for p in parts]))
        if len(indices) != len(shape):
            raise trace_error(f"a {self.node.type} takes {len(shape)} indices, not {len(indices)}")
        flat = 0
        for i, n in zip(indices, shape, strict=True):
            try:
                k = operator.index(i)
            except TypeError:
                raise trace_error(f"component index {i!r} is not a whole number") from None
            if not -n <= k < n:
                raise trace_error(f"component {index} of a {self.node.type} does not exist")
            flat = flat * n + k % n
        return Value(builder().element(self.node, flat))

    @property
    def real(self) -> Value:
        """Real part."""
        return Value(builder().real(self.node))

    @property
    def imag(self) -> Value:
        """Imaginary part."""
        return Value(builder().imag(self.node))

    def conj(self) -> Value:
        """Complex conjugate of every component."""
        return Value(builder().conj(self.node))

    def dagger(self) -> Value:
        """Hermitian conjugate of a matrix, complex conjugate of a number."""
        return Value(builder().adjoint(self.node))

    def transpose(self) -> Value:
        """Rows and columns exchanged."""
        return Value(builder().transpose(self.node))

    def trace(self) -> Value:
        """Sum of the diagonal of a square matrix."""
        return Value(builder().trace(self.node))

    def det(self) -> Value:
        """Determinant of a square matrix."""
        return Value(builder().square_op("det", self.node))

    def inverse(self) -> Value:
        """Inverse of a square matrix."""
        return Value(builder().square_op("inverse", self.node))

    def exp(self) -> Value:
        """Exponential of a number or a square matrix."""
        if self.node.type.shape:
            return Value(builder().square_op("expm", self.node))
        return Value(builder().call("exp", [self.node]))

    def reunitarise(self) -> Value:
        """An SU(n) matrix close to this one: rows orthonormalised in order and the last one turned so that the determinant is
        one; for n = 2 the nearest SU(2) matrix, for n = 1 the number divided by its modulus."""
        return Value(builder().square_op("reunitarise", self.node))

    def traceless_antihermitian(self) -> Value:
        """(A - A^dagger) / 2 minus its trace part; for n = 1 the imaginary part."""
        return Value(builder().square_op("antihermitian", self.node))

    def norm2(self) -> Value:
        """Sum of the squared moduli of all components, a real number."""
        return Value(builder().norm2(self.node))

    def dot(self, other: Any) -> Value:
        """Sum of conj(self_k) other_k over all components."""
        return Value(builder().dot(self.node, lift(other)))

    def outer(self, other: Any) -> Value:
        """The matrix self_i conj(other_j) of two vectors."""
        return Value(builder().outer(self.node, lift(other)))


def where(condition: Any, a: Any, b: Any) -> Value:
    """`a` where `condition` holds, else `b`; both are evaluated."""
    return Value(builder().where(lift(condition), lift(a), lift(b)))


def matrix(rows: Sequence[Sequence[Any]]) -> Value:
    """A matrix from its rows of numbers."""
    nodes = [[lift(v) for v in row] for row in rows]
    if not nodes or not nodes[0] or any(len(row) != len(nodes[0]) for row in nodes):
        raise trace_error("jali.matrix needs rows of equal, non-zero length")
    flat = [n for row in nodes for n in row]
    return Value(builder().build(Type(_kind(flat, "matrix"), (len(nodes), len(nodes[0]))), flat))


def vector(components: Sequence[Any]) -> Value:
    """A vector from its components."""
    nodes = [lift(v) for v in components]
    if not nodes:
        raise trace_error("jali.vector needs at least one component")
    return Value(builder().build(Type(_kind(nodes, "vector"), (len(nodes),)), nodes))


def _kind(nodes: list[Node], what: str) -> str:
    if any(n.type.shape or n.type.kind == "bool" for n in nodes):
        raise trace_error(f"the components of a {what} are numbers")
    return "complex" if any(n.type.kind == "complex" for n in nodes) else "real"


def complex_number(re: Any, im: Any) -> Value:
    """re + i im."""
    return Value(builder().complex(lift(re), lift(im)))


def identity(n: int) -> Value:
    """The n by n unit matrix (complex)."""
    nodes = builder()
    parts = [nodes.const(1.0 + 0.0j if i == j else 0.0j) for i in range(n) for j in range(n)]
    return Value(nodes.build(Type("complex", (n, n)), parts))


def zero(element: Element | Type) -> Value:
    """The zero of an element type, to start an accumulation."""
    type = element.type if isinstance(element, Element) else element
    nodes = builder()
    scalar = nodes.const(0.0j if type.kind == "complex" else 0.0)
    return Value(scalar if not type.shape else nodes.build(type, [scalar] * type.size))
