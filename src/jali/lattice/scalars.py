"""Numbers that stay where they are made: `Scalar`, the result of `lattice.sum(..., wait=False)`, and `Condition`.

Arithmetic with them applies operations of the site language to their parts (`scalar_parts.py`), which are computed when a kernel
or the program needs the value. Sums, products, quotients and square roots are Python's: `float(a / b) == float(a) / float(b)`;
elementary functions are those of kernels.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jali import graph_recorder
from jali.codegen.builder import Builder
from jali.codegen.ir import BOOL, COMPLEX, REAL
from jali.codegen.language import leaves
from jali.codegen.language.arithmetic import add, div, mul, neg, sub
from jali.codegen.language.choices import both, either, equal, less, less_equal, negation, not_equal, where
from jali.codegen.language.conversions import complex_number
from jali.codegen.language.elementary import call
from jali.codegen.language.parts import imag, real
from jali.codegen.operation import Operation
from jali.codegen.types import Type
from jali.errors import LayoutError, ParameterError
from jali.files import value_shown
from jali.lattice.scalar_parts import Location, ScalarPart, compute, constant, evaluate, read_nodes

MOST_POWER = 64


class ApartError(LayoutError):
    """Numbers are on different devices."""


class LocatedValue:
    """What Scalars and Conditions share: parts, where they are, and whether they are the same on any ranks."""

    __slots__ = ("gpu", "parts", "reproducible")

    def __init__(self, gpu: Any, parts: tuple[ScalarPart, ...], reproducible: bool = True):
        self.gpu = gpu
        self.parts = parts
        self.reproducible = reproducible

    def _with(self, other: LocatedValue) -> bool:
        """Whether a result of both is reproducible."""
        if other.gpu is not self.gpu:
            raise ApartError(
                f"numbers of {name_of(self.gpu)} and of {name_of(other.gpu)} do not meet; read one with float()"
            )
        return self.reproducible and other.reproducible


class LocatedArray(LocatedValue):
    """What arrays of numbers are (`scalar_arrays.py`); functions of numbers know them by it."""

    __slots__ = ()

    kind: str
    shape: tuple[int, ...]

    @property
    def key(self) -> Any:
        """What a bound call depends on."""
        return type(self), self.kind, self.shape

    def elementwise(self, function: Callable[..., Any], *operands: Any) -> Any:
        raise NotImplementedError

    def read(self) -> np.ndarray:
        raise NotImplementedError

    def address(self, component: int) -> int:
        """Where a kernel finds a real component, row by row."""
        raise NotImplementedError


class Condition(LocatedValue):
    """What a comparison of Scalars gives; `&`, `|` and `~` combine them, `jali.where(condition, a, b)` chooses, `bool()` waits."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<condition on {name_of(self.gpu)}>"

    def __bool__(self) -> bool:
        return read_nodes(self.gpu, self.parts)[0] != 0

    def _combine(self, operation: Operation, other: Any) -> Condition:
        if isinstance(other, bool | np.bool_):
            other = Condition(self.gpu, (ScalarPart(type=BOOL, value=bool(other)),))
        if not isinstance(other, Condition):
            raise ParameterError(f"a condition combines with conditions, not with {value_shown(other)}")
        part = _holds(operation, self.parts[0], other.parts[0])
        return Condition(self.gpu, (part,), self._with(other))

    def __and__(self, other: Any) -> Condition:
        return self._combine(both, other)

    def __or__(self, other: Any) -> Condition:
        return self._combine(either, other)

    __rand__, __ror__ = __and__, __or__

    def __invert__(self) -> Condition:
        return Condition(self.gpu, (_holds(negation, *self.parts),), self.reproducible)

    def where(self, a: Any, b: Any) -> Scalar:
        """`a` where the condition holds, else `b`."""
        first, second = lifted(a, self), lifted(b, self)
        reproducible = self._with(first) and self._with(second)
        count = max(len(first.parts), len(second.parts))
        pairs = zip(_parts(first, count), _parts(second, count), strict=True)
        return Scalar(
            self.gpu, tuple(ScalarPart(where, (self.parts[0], x, y)) for x, y in pairs), reproducible
        )


class Scalar(LocatedValue):
    """A real or complex number that stays on a device, or with the host, until it is needed.

    An argument of site functions wherever a number may be one. `+ - * /`, powers with whole exponents from 1 to 64 (products), comparisons, `jali.sqrt` and
    `jali.where` give Scalars and `Condition`s, and do what Python does with `float`s, but for division by zero (inf and nan). `float()`,
    `complex()` and `bool()` wait for the value; `jali.read` waits once for several. Made by `lattice.sum(..., wait=False)` and
    `lattice.scalar(value)`; it never changes, but for the latter by `assign`, and in graphs.
    """

    __slots__ = ("key", "variable")
    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self, gpu: Any, parts: tuple[ScalarPart, ...], reproducible: bool = True, variable: bool = False
    ):
        super().__init__(gpu, parts, reproducible)
        self.key = (Scalar, len(parts))  # what a bound call depends on
        self.variable = variable

    def __repr__(self) -> str:
        kind = "complex" if self.is_complex else "real"
        return f"<{kind} scalar on {name_of(self.gpu)}>"

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
            self.gpu, (self.parts[0], *(ScalarPart(neg, (p,)) for p in self.parts[1:])), self.reproducible
        )

    def sqrt(self) -> Scalar:
        """The square root; nan of a negative real number."""
        return apply(call, ("sqrt",), self)

    def __abs__(self) -> Scalar:
        return apply(call, ("abs",), self)

    def computed(self, *others: Scalar) -> Scalar:
        """Itself and others, computed now, together, and not with what is made of them; in a graph, at this place."""
        evaluate(self.gpu, [part for one in (self, *others) for part in one.parts])
        return self

    def _number(self) -> ScalarPart:
        """A complex one as one number."""
        return ScalarPart(complex_number, self.parts, type=COMPLEX)

    def assign(self, value: Any) -> Scalar:
        """Gives a `lattice.scalar(...)` another value, a number or a Scalar; in a graph, at every repetition. Returns self.

        Values computed with it before are unchanged.
        """
        if not self.variable:
            raise ParameterError(
                "only scalars made by lattice.scalar(...) can be assigned; others never change"
            )
        given = lifted(value, self)
        if len(given.parts) > len(self.parts):
            raise ParameterError("a complex number cannot be assigned to a real scalar")
        self.reproducible = self._with(given)
        before = dict.fromkeys(
            n
            for part in self.parts
            for n in part.dependents or ()
            if n.location is None and n.type.kind != "complex"
        )
        targets: list[tuple[ScalarPart, Location | None]] = [(node, None) for node in before]
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

    def _combine(self, rule: Rule, other: Any, swapped: bool = False) -> Any:
        if not isinstance(other, Scalar) and not _is_number(other):
            return NotImplemented
        given = lifted(other, self)
        reproducible = self._with(given)
        a, b = (given, self) if swapped else (self, given)
        return Scalar(self.gpu, rule(a, b), reproducible)

    def _compare(self, operation: Operation, other: Any, swapped: bool = False) -> Any:
        if not isinstance(other, Scalar) and not _is_number(other):
            return NotImplemented
        given = lifted(other, self)
        reproducible = self._with(given)
        together = _BY_PARTS.get(operation)
        if together is not None:
            count = max(len(self.parts), len(given.parts))
            pairs = zip(_parts(self, count), _parts(given, count), strict=True)
            nodes = [_holds(operation, *pair) for pair in pairs]
            return Condition(self.gpu, (nodes[0] if count == 1 else _holds(together, *nodes),), reproducible)
        self._real("the order")
        given._real("the order")
        a, b = (given, self) if swapped else (self, given)
        return Condition(self.gpu, (_holds(operation, a.parts[0], b.parts[0]),), reproducible)

    def __add__(self, other: Any) -> Any:
        return self._combine(_add, other)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Any:
        return self._combine(_subtract, other)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(_subtract, other, swapped=True)

    def __mul__(self, other: Any) -> Any:
        return self._combine(_multiply, other)

    def __rmul__(self, other: Any) -> Any:
        return self._combine(_multiply, other, swapped=True)

    def __truediv__(self, other: Any) -> Any:
        return self._combine(_quotient, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._combine(_quotient, other, swapped=True)

    def __neg__(self) -> Scalar:
        return Scalar(self.gpu, tuple(ScalarPart(neg, (p,)) for p in self.parts), self.reproducible)

    def __pos__(self) -> Scalar:
        return self

    def __pow__(self, exponent: Any) -> Any:
        if not isinstance(exponent, numbers.Number):
            return NotImplemented
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
        return self._compare(less, other)

    def __le__(self, other: Any) -> Any:
        return self._compare(less_equal, other)

    def __gt__(self, other: Any) -> Any:
        return self._compare(less, other, swapped=True)

    def __ge__(self, other: Any) -> Any:
        return self._compare(less_equal, other, swapped=True)

    def __eq__(self, other: Any) -> Any:
        return self._compare(equal, other)

    def __ne__(self, other: Any) -> Any:
        return self._compare(not_equal, other)


Rule = Callable[[Scalar, Scalar], tuple[ScalarPart, ...]]
_BY_PARTS = {equal: both, not_equal: either}  # how what holds of the parts of complex numbers holds of them


def _holds(operation: Operation, *args: ScalarPart) -> ScalarPart:
    return ScalarPart(operation, args, type=BOOL)


def _split(number: ScalarPart) -> tuple[ScalarPart, ...]:
    """The parts of one number."""
    if number.type.kind != "complex":
        return (number,)
    return ScalarPart(real, (number,)), ScalarPart(imag, (number,))


def _add(a: Scalar, b: Scalar) -> tuple[ScalarPart, ...]:
    return _by_parts(add, a, b)


def _subtract(a: Scalar, b: Scalar) -> tuple[ScalarPart, ...]:
    return _by_parts(sub, a, b)


def _by_parts(operation: Operation, a: Scalar, b: Scalar) -> tuple[ScalarPart, ...]:
    count = max(len(a.parts), len(b.parts))
    return tuple(ScalarPart(operation, pair) for pair in zip(_parts(a, count), _parts(b, count), strict=True))


def _multiply(a: Scalar, b: Scalar) -> tuple[ScalarPart, ...]:
    if not (a.is_complex or b.is_complex):
        return (_times(a.parts[0], b.parts[0]),)
    (x, y), (u, v) = _parts(a, 2), _parts(b, 2)  # as Python multiplies, zeros included
    first = ScalarPart(sub, (_times(x, u), _times(y, v)))
    return first, ScalarPart(add, (_times(x, v), _times(y, u)))


def _quotient(a: Scalar, b: Scalar) -> tuple[ScalarPart, ...]:
    if not b.is_complex:
        return tuple(ScalarPart(div, (p, b.parts[0])) for p in a.parts)
    # As Python divides (R. Smith, Comm. ACM 5 (1962) 435): by the larger part of b, so that nothing overflows on the way.
    (x, y), (u, v) = _parts(a, 2), b.parts
    by_real = _holds(less_equal, _magnitude(v), _magnitude(u))
    ratio, other = ScalarPart(div, (v, u)), ScalarPart(div, (u, v))
    one = (u, v, ScalarPart(add, (x, _times(y, ratio))), ScalarPart(sub, (y, _times(x, ratio))), ratio)
    two = (v, u, ScalarPart(add, (_times(x, other), y)), ScalarPart(sub, (_times(y, other), x)), other)
    quotients = []
    for large, small, re, im, r in (one, two):
        size = ScalarPart(add, (large, _times(small, r)))
        quotients.append((ScalarPart(div, (re, size)), ScalarPart(div, (im, size))))
    return tuple(ScalarPart(where, (by_real, p, q)) for p, q in zip(*quotients, strict=True))


def _times(x: ScalarPart, y: ScalarPart) -> ScalarPart:
    return ScalarPart(mul, (x, y))


def _magnitude(x: ScalarPart) -> ScalarPart:
    return ScalarPart(call, (x,), ("abs",))


@lru_cache(maxsize=1024)
def type_of(operation: Operation, attrs: tuple[Any, ...], parts: tuple[int, ...]) -> Type:
    """What an operation makes of numbers of so many parts. Raises TraceError at the user's line where it takes no such numbers."""
    nodes, types = Builder(), [REAL if count == 1 else COMPLEX for count in parts]
    return operation(nodes, *attrs, *(leaves.scalar(nodes, k, type) for k, type in enumerate(types))).type


def apply(operation: Operation, attrs: tuple[Any, ...], *operands: Any) -> Scalar:
    """An operation of the site language on numbers, of which at least one is a Scalar; `jali.exp(x)` and its like call this.

    Raises TraceError for numbers that the operation does not take, ParameterError for what is no number.
    """
    scalars: tuple[Any, ...]
    if len(operands) == 1:
        first, scalars, reproducible = operands[0], operands, operands[0].reproducible
    else:
        first = next(x for x in operands if isinstance(x, Scalar))
        scalars = tuple([lifted(x, first) for x in operands])
        reproducible = all([first._with(x) for x in scalars])
    type = type_of(operation, attrs, tuple([len(x.parts) for x in scalars]))
    args = tuple([x.parts[0] if len(x.parts) == 1 else x._number() for x in scalars])
    return Scalar(first.gpu, _split(ScalarPart(operation, args, attrs, type)), reproducible)


def _parts(scalar: Scalar, count: int) -> tuple[ScalarPart, ...]:
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


def lifted(value: Any, beside: LocatedValue) -> Scalar:
    """A number or a Scalar as a Scalar of the same device, or of the host."""
    if isinstance(value, Scalar):
        return value
    if isinstance(value, numbers.Complex) and not isinstance(value, bool):
        return Scalar(beside.gpu, tuple(constant(x) for x in _reals(value)))
    raise ParameterError(f"scalars combine with numbers and scalars, not with {value_shown(value)}")


def name_of(gpu: Any) -> str:
    return "the host" if gpu is None else f"{gpu.kind}:{gpu.ordinal}"


def variable(gpu: Any, value: float | complex) -> Scalar:
    """A Scalar that can be assigned."""
    if not _is_number(value):
        raise ParameterError(f"a scalar begins as a number, not as {value_shown(value)}")
    graph_recorder.refuse("a scalar is made", "make it before, and assign to it in the graph")
    nodes = [constant(x) for x in _reals(value)]
    evaluate(gpu, nodes)
    for node in nodes:
        node.value = None
        node.changes()
    return Scalar(gpu, tuple(nodes), variable=True)


def evaluate_arguments(gpu: Any, scalars: Iterable[Any], where: str) -> None:
    """Before a kernel that reads them: they have locations on its device. Raises LayoutError for those of another one."""
    nodes: list[ScalarPart] = []
    for scalar in scalars:
        if isinstance(scalar, LocatedValue):
            if scalar.gpu is not gpu:
                how = "read()" if isinstance(scalar, LocatedArray) else "float()"
                raise LayoutError(
                    f"{where} runs on {name_of(gpu)}, but got {value_shown(scalar)}; read it with {how}"
                )
            nodes += scalar.parts
    evaluate(gpu, nodes)


def address_of(scalar: Scalar | LocatedArray, component: int) -> int:
    """Where a kernel finds a component of an array, or of a Scalar that has a location."""
    if isinstance(scalar, LocatedArray):
        return scalar.address(component)
    location = scalar.parts[component].location if component < len(scalar.parts) else None
    assert location is not None
    return int(location[0].address(location[1]))


def scalars_of_parts(gpu: Any, nodes: Sequence[ScalarPart], types: Sequence[Any], reproducible: bool) -> Any:
    """The nodes of a sum as the requested Scalars."""
    out, first = [], 0
    for type in types:
        out.append(Scalar(gpu, tuple(nodes[first : first + type.reals]), reproducible))
        first += type.reals
    return out[0] if len(out) == 1 else tuple(out)


def read(*scalars: Any) -> list[Any]:
    """The values of several Scalars, Conditions and arrays of numbers (and plain numbers, as they are), waited for once.

    Raises ParameterError for anything else.
    """
    nodes: list[ScalarPart] = []
    gpus = {}
    for s in scalars:
        if isinstance(s, LocatedValue):
            nodes += s.parts
            gpus[id(s.gpu)] = s.gpu
        elif not isinstance(s, numbers.Number):
            raise ParameterError(
                f"jali.read takes scalars, conditions and arrays of numbers, not {value_shown(s)}"
            )
    if len(gpus) > 1:
        raise LayoutError("jali.read takes numbers of one device")
    values = iter(read_nodes(next(iter(gpus.values())), nodes) if nodes else [])
    out: list[Any] = []
    for s in scalars:
        if not isinstance(s, LocatedValue):
            out.append(s)
        elif isinstance(s, LocatedArray):
            out.append(s.read())
        elif isinstance(s, Condition):
            out.append(next(values) != 0)
        else:
            found = [next(values) for _ in s.parts]
            out.append(found[0] if len(found) == 1 else complex(*found))
    return out
