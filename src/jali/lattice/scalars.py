"""Numbers that stay where they are made: `Scalar`, the result of `lattice.sum(..., wait=False)`, and `Condition`.

Arithmetic with them builds expressions (`expressions.py`), which are computed when a kernel or the program needs the value, in
the IEEE operations that Python does: `float(a / b) == float(a) / float(b)`.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Sequence
from typing import Any

from jali import graph_recorder
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice.expressions import Location, Node, compute, constant, evaluate, read_nodes

MOST_POWER = 64


class _LocatedValue:
    """What Scalars and Conditions share: parts, where they are, and whether they are the same on any ranks."""

    __slots__ = ("gpu", "parts", "reproducible")

    def __init__(self, gpu: Any, parts: tuple[Node, ...], reproducible: bool = True):
        self.gpu = gpu
        self.parts = parts
        self.reproducible = reproducible

    def _with(self, other: _LocatedValue) -> bool:
        """Whether a result of both is reproducible."""
        if other.gpu is not self.gpu:
            raise LayoutError(
                f"numbers of {_name_of(self.gpu)} and of {_name_of(other.gpu)} do not meet; read one with float()"
            )
        return self.reproducible and other.reproducible


class Condition(_LocatedValue):
    """What a comparison of Scalars gives; `&`, `|` and `~` combine them, `jali.where(condition, a, b)` chooses, `bool()` waits."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<condition on {_name_of(self.gpu)}>"

    def __bool__(self) -> bool:
        return read_nodes(self.gpu, self.parts)[0] != 0

    def _combine(self, op: str, other: Any) -> Condition:
        if not isinstance(other, Condition):
            raise ParameterError(f"a condition combines with conditions, not with {value_shown(other)}")
        return Condition(self.gpu, (Node(op, (self.parts[0], other.parts[0])),), self._with(other))

    def __and__(self, other: Any) -> Condition:
        return self._combine("and", other)

    def __or__(self, other: Any) -> Condition:
        return self._combine("or", other)

    def __invert__(self) -> Condition:
        return Condition(self.gpu, (Node("not", self.parts),), self.reproducible)

    def where(self, a: Any, b: Any) -> Scalar:
        """`a` where the condition holds, else `b`."""
        first, second = _lifted(a, self), _lifted(b, self)
        reproducible = self._with(first) and self._with(second)
        count = max(len(first.parts), len(second.parts))
        pairs = zip(_parts(first, count), _parts(second, count), strict=True)
        return Scalar(self.gpu, tuple(Node("where", (self.parts[0], x, y)) for x, y in pairs), reproducible)


class Scalar(_LocatedValue):
    """A real or complex number that stays on a device, or with the host, until it is needed.

    An argument of site functions wherever a number may be one. `+ - * /`, powers with whole exponents from 1 to 64 (products), comparisons, `jali.sqrt` and
    `jali.where` give Scalars and `Condition`s, and do what Python does with `float`s, but for division by zero (inf and nan). `float()`,
    `complex()` and `bool()` wait for the value; `jali.read` waits once for several. Made by `lattice.sum(..., wait=False)` and
    `lattice.scalar(value)`; it never changes, but for the latter by `assign`, and in graphs.
    """

    __slots__ = ("key", "variable")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, gpu: Any, parts: tuple[Node, ...], reproducible: bool = True, variable: bool = False):
        super().__init__(gpu, parts, reproducible)
        self.key = (Scalar, len(parts))  # what a bound call depends on
        self.variable = variable

    def __repr__(self) -> str:
        kind = "complex" if self.is_complex else "real"
        return f"<{kind} scalar on {_name_of(self.gpu)}>"

    @property
    def is_complex(self) -> bool:
        """Whether it has an imaginary part."""
        return len(self.parts) == 2

    def __float__(self) -> float:
        if self.is_complex:
            raise TypeError("a complex scalar is no float; take .real or .imag")
        return read_nodes(self.gpu, self.parts)[0]

    def __complex__(self) -> complex:
        return complex(*read_nodes(self.gpu, self.parts))

    def __bool__(self) -> bool:
        return any(v != 0 for v in read_nodes(self.gpu, self.parts))

    @property
    def real(self) -> Scalar:
        """The real part."""
        return Scalar(self.gpu, self.parts[:1], self.reproducible)

    @property
    def imag(self) -> Scalar:
        """The imaginary part."""
        return Scalar(self.gpu, self.parts[1:] or (constant(0.0),), self.reproducible)

    def conj(self) -> Scalar:
        """The complex conjugate."""
        return Scalar(
            self.gpu, (self.parts[0], *(Node("negate", (p,)) for p in self.parts[1:])), self.reproducible
        )

    def sqrt(self) -> Scalar:
        """The square root of a real number; nan of a negative one."""
        self._real("sqrt")
        return Scalar(self.gpu, (Node("sqrt", self.parts),), self.reproducible)

    def assign(self, value: Any) -> Scalar:
        """Gives a `lattice.scalar(...)` another value, a number or a Scalar; in a graph, at every repetition. Returns self.

        Values computed with it before are unchanged.
        """
        if not self.variable:
            raise ParameterError(
                "only scalars made by lattice.scalar(...) can be assigned; others never change"
            )
        given = _lifted(value, self)
        if len(given.parts) > len(self.parts):
            raise ParameterError("a complex number cannot be assigned to a real scalar")
        self.reproducible = self._with(given)
        before = dict.fromkeys(n for part in self.parts for n in part.dependents or () if n.location is None)
        targets: list[tuple[Node, Location | None]] = [(node, None) for node in before]
        for part, node in zip(self.parts, _parts(given, len(self.parts)), strict=True):
            assert part.location is not None
            targets.append((node, part.location))
            part.add_overflow_counts(node.overflow_counts)
        compute(self.gpu, targets)
        if graph_recorder.recorders and (recorder := graph_recorder.current()) is not None:
            recorder.written += self.parts
        return self

    def _real(self, what: str) -> None:
        if self.is_complex:
            raise ParameterError(f"{what} of a complex scalar; take .real or .imag")

    def _combine(self, op: str, other: Any, swapped: bool = False) -> Any:
        if not isinstance(other, Scalar) and not _is_number(other):
            return NotImplemented
        given = _lifted(other, self)
        reproducible = self._with(given)
        a, b = (given, self) if swapped else (self, given)
        return Scalar(self.gpu, _ARITHMETIC[op](a, b), reproducible)

    def _compare(self, op: str, other: Any, swapped: bool = False) -> Any:
        if not isinstance(other, Scalar) and not _is_number(other):
            return NotImplemented
        given = _lifted(other, self)
        reproducible = self._with(given)
        if op in ("equal", "not_equal"):
            count = max(len(self.parts), len(given.parts))
            pairs = zip(_parts(self, count), _parts(given, count), strict=True)
            nodes = [Node(op, pair) for pair in pairs]
            if len(nodes) == 2:
                nodes = [Node("and" if op == "equal" else "or", (nodes[0], nodes[1]))]
            return Condition(self.gpu, (nodes[0],), reproducible)
        self._real("the order")
        given._real("the order")
        a, b = (given, self) if swapped else (self, given)
        return Condition(self.gpu, (Node(op, (a.parts[0], b.parts[0])),), reproducible)

    def __add__(self, other: Any) -> Any:
        return self._combine("add", other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combine("subtract", other)

    def __rsub__(self, other: Any) -> Any:
        return self._combine("subtract", other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._combine("multiply", other)

    def __rmul__(self, other: Any) -> Any:
        return self._combine("multiply", other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        return self._combine("divide", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combine("divide", other, swapped=True)

    def __neg__(self) -> Scalar:
        return Scalar(self.gpu, tuple(Node("negate", (p,)) for p in self.parts), self.reproducible)

    def __pos__(self) -> Scalar:
        return self

    def __pow__(self, exponent: Any) -> Any:
        if not isinstance(exponent, numbers.Integral) or not 1 <= int(exponent) <= MOST_POWER:
            raise ParameterError(
                f"powers of scalars are products: whole exponents from 1 to {MOST_POWER}, not {value_shown(exponent)}; there is jali.sqrt"
            )
        result = self
        for bit in bin(int(exponent))[3:]:
            result = result * result
            if bit == "1":
                result = result * self
        return result

    def __lt__(self, other: Any) -> Any:
        return self._compare("less", other)

    def __le__(self, other: Any) -> Any:
        return self._compare("less_equal", other)

    def __gt__(self, other: Any) -> Any:
        return self._compare("less", other, swapped=True)

    def __ge__(self, other: Any) -> Any:
        return self._compare("less_equal", other, swapped=True)

    def __eq__(self, other: Any) -> Any:
        return self._compare("equal", other)

    def __ne__(self, other: Any) -> Any:
        return self._compare("not_equal", other)


def _add(a: Scalar, b: Scalar) -> tuple[Node, ...]:
    return _by_parts("add", a, b)


def _subtract(a: Scalar, b: Scalar) -> tuple[Node, ...]:
    return _by_parts("subtract", a, b)


def _by_parts(op: str, a: Scalar, b: Scalar) -> tuple[Node, ...]:
    count = max(len(a.parts), len(b.parts))
    return tuple(Node(op, pair) for pair in zip(_parts(a, count), _parts(b, count), strict=True))


def _multiply(a: Scalar, b: Scalar) -> tuple[Node, ...]:
    if not (a.is_complex or b.is_complex):
        return (Node("multiply", (a.parts[0], b.parts[0])),)
    (x, y), (u, v) = _parts(a, 2), _parts(b, 2)  # as Python multiplies, zeros included
    first = Node("subtract", (Node("multiply", (x, u)), Node("multiply", (y, v))))
    return first, Node("add", (Node("multiply", (x, v)), Node("multiply", (y, u))))


def _quotient(a: Scalar, b: Scalar) -> tuple[Node, ...]:
    if not b.is_complex:
        return tuple(Node("divide", (p, b.parts[0])) for p in a.parts)
    # As Python divides (R. Smith, Comm. ACM 5 (1962) 435): by the larger part of b, so that nothing overflows on the way.
    (x, y), (u, v) = _parts(a, 2), b.parts
    by_real = Node("less_equal", (_magnitude(v), _magnitude(u)))
    ratio, other = Node("divide", (v, u)), Node("divide", (u, v))
    one = (u, v, Node("add", (x, _times(y, ratio))), Node("subtract", (y, _times(x, ratio))), ratio)
    two = (v, u, Node("add", (_times(x, other), y)), Node("subtract", (_times(y, other), x)), other)
    quotients = []
    for large, small, re, im, r in (one, two):
        size = Node("add", (large, _times(small, r)))
        quotients.append((Node("divide", (re, size)), Node("divide", (im, size))))
    return tuple(Node("where", (by_real, p, q)) for p, q in zip(*quotients, strict=True))


def _times(x: Node, y: Node) -> Node:
    return Node("multiply", (x, y))


def _magnitude(x: Node) -> Node:
    return Node("where", (Node("less", (x, constant(0.0))), Node("negate", (x,)), x))


_ARITHMETIC = {"add": _add, "subtract": _subtract, "multiply": _multiply, "divide": _quotient}


def _parts(scalar: Scalar, count: int) -> tuple[Node, ...]:
    return scalar.parts if len(scalar.parts) == count else (*scalar.parts, constant(0.0))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool)


def _reals(value: Any) -> list[float]:
    """One number, or the two of a complex one. Raises ParameterError."""
    try:
        if isinstance(value, numbers.Real):
            return [float(value)]
        z = complex(value)
        return [z.real, z.imag]
    except OverflowError:
        raise ParameterError(
            "a scalar is a float64, which cannot hold a whole number as large as this"
        ) from None


def _lifted(value: Any, beside: _LocatedValue) -> Scalar:
    """A number or a Scalar as a Scalar of the same device, or of the host."""
    if isinstance(value, Scalar):
        return value
    if isinstance(value, numbers.Complex) and not isinstance(value, bool):
        return Scalar(beside.gpu, tuple(constant(x) for x in _reals(value)))
    raise ParameterError(f"scalars combine with numbers and scalars, not with {value_shown(value)}")


def _name_of(gpu: Any) -> str:
    return "the host" if gpu is None else f"{gpu.kind}:{gpu.ordinal}"


def variable(gpu: Any, value: float | complex) -> Scalar:
    """A Scalar that can be assigned."""
    if not _is_number(value):
        raise ParameterError(f"a scalar begins as a number, not as {value_shown(value)}")
    graph_recorder.refuse("a scalar is made", "make it before, and assign to it in the graph")
    nodes = [constant(x) for x in _reals(value)]
    evaluate(gpu, nodes)
    for node in nodes:
        node.op = "number"
        node.changes()
    return Scalar(gpu, tuple(nodes), variable=True)


def evaluate_arguments(gpu: Any, scalars: Iterable[Any], where: str) -> None:
    """Before a kernel that reads them: they have locations on its device. Raises LayoutError for those of another one."""
    nodes: list[Node] = []
    for scalar in scalars:
        if isinstance(scalar, Scalar):
            if scalar.gpu is not gpu:
                raise LayoutError(
                    f"{where} runs on {_name_of(gpu)}, but got {value_shown(scalar)}; read it with float()"
                )
            nodes += scalar.parts
    evaluate(gpu, nodes)


def address_of(scalar: Scalar, component: int) -> int:
    """Where a kernel finds a component of a Scalar that has a location."""
    location = scalar.parts[component].location if component < len(scalar.parts) else None
    assert location is not None
    return int(location[0].address(location[1]))


def scalars_of_parts(gpu: Any, nodes: Sequence[Node], types: Sequence[Any], reproducible: bool) -> Any:
    """The nodes of a sum as the requested Scalars."""
    out, first = [], 0
    for type in types:
        out.append(Scalar(gpu, tuple(nodes[first : first + type.reals]), reproducible))
        first += type.reals
    return out[0] if len(out) == 1 else tuple(out)


def read(*scalars: Any) -> list[Any]:
    """The values of several Scalars and Conditions (and plain numbers, as they are), waited for once.

    Raises ParameterError for anything else.
    """
    nodes: list[Node] = []
    gpus = {}
    for s in scalars:
        if isinstance(s, _LocatedValue):
            nodes += s.parts
            gpus[id(s.gpu)] = s.gpu
        elif not isinstance(s, numbers.Number):
            raise ParameterError(f"jali.read takes scalars and conditions, not {value_shown(s)}")
    if len(gpus) > 1:
        raise LayoutError("jali.read takes numbers of one device")
    values = iter(read_nodes(next(iter(gpus.values())), nodes) if nodes else [])
    out: list[Any] = []
    for s in scalars:
        if not isinstance(s, _LocatedValue):
            out.append(s)
        elif isinstance(s, Condition):
            out.append(next(values) != 0)
        else:
            found = [next(values) for _ in s.parts]
            out.append(found[0] if len(found) == 1 else complex(*found))
    return out
