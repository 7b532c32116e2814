"""Tracing: runs a site function once over symbols and returns what it computes as `SiteProgram`s.

The symbols are `Site` (X and its shifts), `FieldSymbol`, `SumSymbol`, `RandomSymbol` and `Value`. Tracing knows element
types and the number of dimensions, nothing of extents, ranks or memory; whether a read can hit a written site is
decided later, when the program meets a lattice and a domain.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jali.codegen import directions as dirs
from jali.codegen.ir import (
    BOOL,
    COMPLEX,
    INT,
    REAL,
    Builder,
    FieldSlot,
    Node,
    SiteProgram,
    Store,
    Sum,
    trace_error,
    user_line,
)
from jali.codegen.types import Element, Type
from jali.errors import TraceError

_active = threading.local()
_MOST_DRAWS = 1 << 16  # counters that the generator has for one site in one call; each gives two numbers


def current_trace() -> Trace:
    """The trace under way in this thread. Raises TraceError outside a site function."""
    trace = getattr(_active, "trace", None)
    if trace is None:
        raise trace_error("this can only be used inside a site function")
    return trace


@dataclass
class Loop:
    """A `repeat_until`: its bound and the random draws that one attempt uses."""

    number: int
    limit: int
    first_draw: int
    draws: int = 0


class Trace:
    """State of one tracing: the graph, the fields seen, the effects so far."""

    def __init__(self, ndim: int):
        self.ndim = ndim
        self.builder = Builder()
        self.slots: list[FieldSlot] = []
        self.stores: dict[tuple[int, tuple[int, ...]], Store] = {}
        self.sums: list[tuple[Node | None, str]] = []
        self.loops: list[Loop] = []
        self.loop: Loop | None = None
        self.draws: list[int] = []
        self.halves: dict[tuple[int, int, str], Node] = {}

    # ---- fields ----------------------------------------------------------------------------------

    def load(self, slot: int, offset: tuple[int, ...]) -> Node:
        stored = self.stores.get((slot, offset))
        if stored is not None:
            return stored.value
        field = self.slots[slot]
        field.reads.setdefault(offset, user_line())
        node = self.builder.node("load", (), (slot, offset), field.element.type)
        node.antihermitian = field.element.codec == "algebra"
        return node

    def store(self, slot: int, offset: tuple[int, ...], value: Node) -> None:
        field = self.slots[slot]
        want: Type = field.element.type
        if self.loop is not None:
            raise trace_error(
                f"{field.name} is written inside repeat_until; return the value from the attempt instead"
            )
        if value.type.shape != want.shape:
            raise trace_error(
                f"a {value.type} cannot be stored in {field.name}, which holds {field.element} ({want})"
            )
        if value.type.kind == "complex" and want.kind == "real":
            raise trace_error(
                f"a complex value cannot be stored in the real field {field.name}; use .real or .imag"
            )
        value = self.builder.convert(value, want.kind)
        if field.element.codec == "algebra" and not value.antihermitian:
            raise trace_error(
                f"{field.name} holds {field.element}, traceless anti-Hermitian matrices; "
                "apply .traceless_antihermitian() to the value first"
            )
        field.writes.setdefault(offset, user_line())
        self.stores.pop((slot, offset), None)
        self.stores[(slot, offset)] = Store(slot, offset, value, user_line())

    # ---- random numbers --------------------------------------------------------------------------

    def draw(self, slot: int, kind: str) -> Node:
        """One uniform or gaussian number; two come from each counter."""
        loop = self.loop.number if self.loop else -1
        key = (slot, loop, kind)
        waiting = self.halves.pop(key, None)
        if waiting is not None:
            return self.builder.node(kind, (waiting,), (1,), REAL)
        if self.loop is None:
            number = self.draws[slot]
            self.draws[slot] += 1
            if number >= _MOST_DRAWS:
                raise trace_error(f"more than {2 * _MOST_DRAWS} random numbers at a site; draw them in several site functions")
        else:
            number = self.loop.first_draw + self.loop.draws
            self.loop.draws += 1
        pair = self.builder.node("philox", (), (slot, number, loop, kind), Type("real", (2,)))
        if self.loop is not None:
            pair.loops = frozenset({loop})
        self.halves[key] = pair
        return self.builder.node(kind, (pair,), (0,), REAL)


def lift(value: Any) -> Node:
    """Any number, small array or symbol as a node of the current trace."""
    if isinstance(value, Value):
        return value.node
    builder = current_trace().builder
    if isinstance(value, bool | np.bool_):
        return builder.const(bool(value))
    if isinstance(value, int | np.integer):
        return builder.const(int(value))
    if isinstance(value, float | np.floating):
        return builder.const(float(value))
    if isinstance(value, complex | np.complexfloating):
        return builder.const(complex(value))
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return lift(value[()])
    if isinstance(value, np.ndarray) and value.ndim in (1, 2) and value.size <= 256:
        kind = "complex" if np.iscomplexobj(value) else "real"
        parts = [
            builder.const(v)
            for v in value.astype("complex128" if kind == "complex" else "float64").ravel().tolist()
        ]
        return builder.build(Type(kind, value.shape), parts)
    if isinstance(value, FieldSymbol | Fields):
        raise trace_error(f"{value.name} is a field; a value at a site is {value.example}")
    if isinstance(value, Site):
        raise trace_error("X is a site, not a number; its coordinates are X.coordinate(mu)")
    if isinstance(value, SumSymbol):
        raise trace_error("a sum can only be added to: total += value")
    raise trace_error(f"a {type(value).__name__} cannot be used in a site function's arithmetic")


def _value(value: Any) -> bool:
    return isinstance(value, Value | bool | int | float | complex | np.generic | np.ndarray | _WithoutValue)


def _refuse(symbol: Any, *_: Any) -> Any:
    """Arithmetic with something that has no value; `lift` says what it is."""
    lift(symbol)


class _WithoutValue:
    """Sites, fields and sums: not numbers, and arithmetic with them says so."""

    __slots__ = ()

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
        return Value(_b().add(self.node, lift(other))) if _value(other) else NotImplemented

    def __radd__(self, other: Any) -> Value:
        if type(other) is int and other == 0:  # where Python's sum() begins
            return self
        return Value(_b().add(lift(other), self.node)) if _value(other) else NotImplemented

    def __sub__(self, other: Any) -> Value:
        return Value(_b().add(self.node, lift(other), "sub")) if _value(other) else NotImplemented

    def __rsub__(self, other: Any) -> Value:
        return Value(_b().add(lift(other), self.node, "sub")) if _value(other) else NotImplemented

    def __mul__(self, other: Any) -> Value:
        return Value(_b().mul(self.node, lift(other))) if _value(other) else NotImplemented

    def __rmul__(self, other: Any) -> Value:
        return Value(_b().mul(lift(other), self.node)) if _value(other) else NotImplemented

    __matmul__ = __mul__
    __rmatmul__ = __rmul__

    def __truediv__(self, other: Any) -> Value:
        return Value(_b().div(self.node, lift(other))) if _value(other) else NotImplemented

    def __rtruediv__(self, other: Any) -> Value:
        return Value(_b().div(lift(other), self.node)) if _value(other) else NotImplemented

    def __mod__(self, other: Any) -> Value:
        return Value(_b().integer("mod", self.node, lift(other)))

    def __floordiv__(self, other: Any) -> Value:
        return Value(_b().integer("floordiv", self.node, lift(other)))

    def __neg__(self) -> Value:
        return Value(_b().neg(self.node))

    def __pos__(self) -> Value:
        return self

    def __abs__(self) -> Value:
        return Value(_b().call("abs", [self.node]))

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
                return Value(_b().const(1.0))
            return result
        return Value(_b().call("pow", [self.node, lift(power)]))

    # ---- comparison ----

    def __lt__(self, other: Any) -> Value:
        return Value(_b().compare("less", self.node, lift(other)))

    def __le__(self, other: Any) -> Value:
        return Value(_b().compare("less_equal", self.node, lift(other)))

    def __gt__(self, other: Any) -> Value:
        return Value(_b().compare("less", lift(other), self.node))

    def __ge__(self, other: Any) -> Value:
        return Value(_b().compare("less_equal", lift(other), self.node))

    def __eq__(self, other: Any) -> Value:  # type: ignore[override]
        return Value(_b().compare("equal", self.node, lift(other)))

    def __ne__(self, other: Any) -> Value:  # type: ignore[override]
        return Value(_b().compare("not_equal", self.node, lift(other)))

    def __and__(self, other: Any) -> Value:
        return Value(_b().logical("and", self.node, lift(other)))

    def __or__(self, other: Any) -> Value:
        return Value(_b().logical("or", self.node, lift(other)))

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> Value:
        return Value(_b().logical("not", self.node))

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
            return Value(_b().build(Type(self.node.type.kind, new), [p.node for p in parts]))
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
        return Value(_b().element(self.node, flat))

    @property
    def real(self) -> Value:
        """Real part."""
        return Value(_b().real(self.node))

    @property
    def imag(self) -> Value:
        """Imaginary part."""
        return Value(_b().imag(self.node))

    def conj(self) -> Value:
        """Complex conjugate of every component."""
        return Value(_b().conj(self.node))

    def dagger(self) -> Value:
        """Hermitian conjugate of a matrix, complex conjugate of a number."""
        return Value(_b().adjoint(self.node))

    def transpose(self) -> Value:
        """Rows and columns exchanged."""
        return Value(_b().transpose(self.node))

    def trace(self) -> Value:
        """Sum of the diagonal of a square matrix."""
        return Value(_b().trace(self.node))

    def det(self) -> Value:
        """Determinant of a square matrix."""
        return Value(_b().square_op("det", self.node))

    def inverse(self) -> Value:
        """Inverse of a square matrix."""
        return Value(_b().square_op("inverse", self.node))

    def exp(self) -> Value:
        """Exponential of a number or a square matrix."""
        if self.node.type.shape:
            return Value(_b().square_op("expm", self.node))
        return Value(_b().call("exp", [self.node]))

    def reunitarise(self) -> Value:
        """An SU(n) matrix close to this one: rows orthonormalised in order and the last one turned so that the determinant is
        one; for n = 2 the nearest SU(2) matrix, for n = 1 the number divided by its modulus."""
        return Value(_b().square_op("reunitarise", self.node))

    def traceless_antihermitian(self) -> Value:
        """(A - A^dagger) / 2 minus its trace part; for n = 1 the imaginary part."""
        return Value(_b().square_op("antihermitian", self.node))

    def norm2(self) -> Value:
        """Sum of the squared moduli of all components, a real number."""
        return Value(_b().norm2(self.node))

    def dot(self, other: Any) -> Value:
        """Sum of conj(self_k) other_k over all components."""
        return Value(_b().dot(self.node, lift(other)))

    def outer(self, other: Any) -> Value:
        """The matrix self_i conj(other_j) of two vectors."""
        return Value(_b().outer(self.node, lift(other)))


def _b() -> Builder:
    return current_trace().builder


# ---- sites ---------------------------------------------------------------------------------------------


class Site(_WithoutValue):
    """The site of the loop, or a site at a fixed offset from it."""

    __slots__ = ("_offset", "_trace")

    def __init__(self, trace: Trace, offset: dirs.Offset):
        self._trace = trace
        self._offset = offset

    def __repr__(self) -> str:
        return f"<site X {self._offset}>" if self._offset.steps else "<site X>"

    def _shift(self, other: Any, sign: int) -> Site:
        if not isinstance(other, dirs.Offset):
            raise trace_error(
                f"a site is shifted by directions (X + mu, X - 2*mu), not by {type(other).__name__} {other!r}"
            )
        try:
            other.vector(self._trace.ndim)
        except IndexError as error:
            raise trace_error(str(error)) from None
        return Site(self._trace, self._offset + (other if sign > 0 else -other))

    def __add__(self, other: Any) -> Site:
        return self._shift(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Site:
        return self._shift(other, -1)

    @property
    def vector(self) -> tuple[int, ...]:
        """Offset from the loop's site, one number per direction."""
        return self._offset.vector(self._trace.ndim)

    @property
    def ndim(self) -> int:
        """Number of dimensions of the lattice."""
        return self._trace.ndim

    def directions(self) -> tuple[dirs.Direction, ...]:
        """All directions of the lattice."""
        return dirs.directions(self._trace.ndim)

    def planes(self) -> list[tuple[dirs.Direction, dirs.Direction]]:
        """All pairs of directions (mu, nu) with mu < nu."""
        return list(dirs.planes(self._trace.ndim))

    def _axis(self, mu: Any) -> int:
        try:
            axis = operator.index(mu)
        except TypeError:
            raise trace_error(f"{mu!r} is not a direction") from None
        if not 0 <= axis < self._trace.ndim:
            raise trace_error(
                f"direction {axis} does not exist on a lattice of {self._trace.ndim} dimensions"
            )
        return axis

    def coordinate(self, mu: Any) -> Value:
        """Global coordinate in direction mu, 0 to extent - 1, an integer."""
        axis = self._axis(mu)
        return Value(_b().node("coordinate", (), (axis, self.vector[axis]), INT))

    def extent(self, mu: Any) -> Value:
        """Global extent of the lattice in direction mu, an integer."""
        return Value(_b().node("extent", (), (self._axis(mu),), INT))

    @property
    def parity(self) -> Value:
        """Sum of the global coordinates modulo 2: 0 on even sites, 1 on odd ones."""
        total = self.coordinate(0)
        for axis in range(1, self._trace.ndim):
            total = total + self.coordinate(axis)
        return total % 2

    def repeat_until(self, attempt: Callable[[], Any], limit: int, otherwise: Any) -> Any:
        """Repeats `attempt` with fresh random numbers until it accepts, at most `limit` times, site by site.

        `attempt()` returns `(accepted, value)`, value a symbol or a tuple of symbols. Where no attempt was accepted the
        result is `otherwise` (same structure), and the event is counted: see `SiteFunction.exhausted`. A rejection
        loop therefore never accepts by giving up.
        """
        trace = self._trace
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 100_000:
            raise trace_error(f"repeat_until needs a fixed bound between 1 and 100000, not {limit!r}")
        if trace.loop is not None:
            raise trace_error(
                "repeat_until inside repeat_until is not possible; make one rejection loop of both"
            )
        first = max(trace.draws, default=0)
        loop = Loop(len(trace.loops), limit, first)
        trace.loops.append(loop)
        trace.loop = loop
        try:
            result = attempt()
        finally:
            trace.loop = None
        if not (isinstance(result, tuple) and len(result) == 2):
            raise trace_error("the attempt of repeat_until returns (accepted, value)")
        accepted, value = result
        accept = lift(accepted)
        if accept.type != BOOL:
            raise trace_error(f"the attempt's first result is the condition, a boolean, not {accept.type}")
        if loop.number not in accept.loops:
            raise trace_error(
                "the condition does not depend on a random number drawn in the attempt: it would never change"
            )
        single = not isinstance(value, tuple)
        values = [lift(v) for v in ((value,) if single else value)]
        others = [lift(v) for v in ((otherwise,) if single else otherwise)]
        if len(values) != len(others):
            raise trace_error(f"the attempt returns {len(values)} values, otherwise has {len(others)}")
        builder = trace.builder
        pairs = []
        for v, o in zip(values, others, strict=True):
            if v.type.shape != o.type.shape:
                raise trace_error(f"the attempt returns {v.type}, otherwise is {o.type}: the shapes differ")
            pairs.append(builder._common(v, o, "repeat_until"))
        first_draw = first + limit * loop.draws
        if first_draw > _MOST_DRAWS:
            raise trace_error(
                f"{limit} attempts of {2 * loop.draws} random numbers need more than the {2 * _MOST_DRAWS} that one call has for a site; "
                "lower the limit"
            )
        trace.draws = [first_draw for _ in trace.draws]
        args = [accept, *(p[0] for p in pairs), *(p[1] for p in pairs)]
        repeat = builder.node("repeat", args, (loop.number, len(pairs)), BOOL)
        repeat.loops = frozenset()
        results = []
        for k, (v, _) in enumerate(pairs):
            node = builder.node("repeat_value", (repeat,), (k,), v.type)
            results.append(Value(node))
        return results[0] if single else tuple(results)


# ---- arguments -----------------------------------------------------------------------------------------


class FieldSymbol(_WithoutValue):
    """A field inside a site function: `f[X]` reads, `f[X] = value` and `f[X] += value` write."""

    __slots__ = ("_trace", "element", "name", "slot")

    def __init__(self, trace: Trace, slot: int, name: str, element: Element):
        self._trace = trace
        self.slot = slot
        self.name = name
        self.element = element

    @property
    def example(self) -> str:
        """How a value of this field is written."""
        return f"{self.name}[X]"

    def _offset(self, site: Any) -> tuple[int, ...]:
        if not isinstance(site, Site):
            raise trace_error(f"{self.name} is indexed by a site, {self.name}[X + mu], not by {site!r}")
        return site.vector

    def __getitem__(self, site: Any) -> Value:
        return Value(self._trace.load(self.slot, self._offset(site)))

    def __setitem__(self, site: Any, value: Any) -> None:
        self._trace.store(self.slot, self._offset(site), lift(value))

    def __iter__(self) -> Iterator[Any]:
        raise trace_error(f"{self.name} is one field; it cannot be iterated")


class Fields(_WithoutValue, Sequence[Any]):
    """Several fields in one argument, indexed by a direction or a number: `U[mu]`."""

    def __init__(self, name: str, members: list[Any]):
        self.name = name
        self.members = members

    @property
    def example(self) -> str:
        """How a value of these fields is written."""
        return f"{self.name}[mu][X]"

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.members)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Site):
            raise trace_error(f"{self.name} is a list of {len(self)} fields: write {self.example}")
        try:
            k = operator.index(index)
        except TypeError:
            raise trace_error(
                f"{self.name} is indexed by a direction or a number, not by {index!r}"
            ) from None
        if not -len(self) <= k < len(self):
            raise trace_error(f"{self.name} has {len(self)} members; {k} does not exist")
        return self.members[k]


class SumSymbol(_WithoutValue):
    """A sum over sites: `total += value` once or several times."""

    __slots__ = ("_slot", "_trace")

    def __init__(self, trace: Trace, slot: int):
        self._trace = trace
        self._slot = slot

    def __iadd__(self, value: Any) -> SumSymbol:  # type: ignore[misc]
        trace = self._trace
        if trace.loop is not None:
            raise trace_error("a sum inside repeat_until; add the accepted value after it")
        node = lift(value)
        if node.type.kind == "bool":
            raise trace_error("a boolean cannot be summed; use jali.where(condition, 1, 0)")
        if node.type.kind == "int":
            node = trace.builder.convert(node, "real")
        before, where = trace.sums[self._slot]
        trace.sums[self._slot] = (
            node if before is None else trace.builder.add(before, node),
            where or user_line(),
        )
        return self

    def __isub__(self, value: Any) -> SumSymbol:  # type: ignore[misc]
        return self.__iadd__(Value(trace_neg(lift(value))))


def trace_neg(node: Node) -> Node:
    """Minus a node of the current trace."""
    return _b().neg(node)


class RandomSymbol:
    """Random numbers at a site: reproducible functions of (seed, stream, site, call, draw)."""

    __slots__ = ("_slot", "_trace", "name")

    def __init__(self, trace: Trace, slot: int, name: str):
        self._trace = trace
        self._slot = slot
        self.name = name

    def _check(self, site: Any) -> None:
        if not isinstance(site, Site) or any(site.vector):
            raise trace_error(f"random numbers belong to the loop's own site: {self.name}.uniform(X)")

    def uniform(self, site: Any) -> Value:
        """A real number uniform in the open interval (0, 1)."""
        self._check(site)
        return Value(self._trace.draw(self._slot, "uniform"))

    def gaussian(self, site: Any) -> Value:
        """A real number from the normal distribution with mean 0 and variance 1."""
        self._check(site)
        return Value(self._trace.draw(self._slot, "gaussian"))


# ---- functions that users call -------------------------------------------------------------------------


def where(condition: Any, a: Any, b: Any) -> Value:
    """`a` where `condition` holds, else `b`; both are evaluated."""
    return Value(_b().where(lift(condition), lift(a), lift(b)))


def matrix(rows: Sequence[Sequence[Any]]) -> Value:
    """A matrix from its rows of numbers."""
    nodes = [[lift(v) for v in row] for row in rows]
    if not nodes or not nodes[0] or any(len(row) != len(nodes[0]) for row in nodes):
        raise trace_error("jali.matrix needs rows of equal, non-zero length")
    flat = [n for row in nodes for n in row]
    return Value(_b().build(Type(_kind(flat, "matrix"), (len(nodes), len(nodes[0]))), flat))


def vector(components: Sequence[Any]) -> Value:
    """A vector from its components."""
    nodes = [lift(v) for v in components]
    if not nodes:
        raise trace_error("jali.vector needs at least one component")
    return Value(_b().build(Type(_kind(nodes, "vector"), (len(nodes),)), nodes))


def _kind(nodes: list[Node], what: str) -> str:
    if any(n.type.shape or n.type.kind == "bool" for n in nodes):
        raise trace_error(f"the components of a {what} are numbers")
    return "complex" if any(n.type.kind == "complex" for n in nodes) else "real"


def complex_number(re: Any, im: Any) -> Value:
    """re + i im."""
    return Value(_b().complex(lift(re), lift(im)))


def identity(n: int) -> Value:
    """The n by n unit matrix (complex)."""
    builder = _b()
    parts = [builder.const(1.0 + 0.0j if i == j else 0.0j) for i in range(n) for j in range(n)]
    return Value(builder.build(Type("complex", (n, n)), parts))


def zero(element: Element | Type) -> Value:
    """The zero of an element type, to start an accumulation."""
    type = element.type if isinstance(element, Element) else element
    builder = _b()
    scalar = builder.const(0.0j if type.kind == "complex" else 0.0)
    return Value(scalar if not type.shape else builder.build(type, [scalar] * type.size))


# ---- the tracer ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FieldArgument:
    """What tracing needs to know of a field argument. Equal `identity` means the same field."""

    element: Element
    identity: int


def trace(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    names: Sequence[str],
    ndim: int,
    precision: str,
    nsums: int,
) -> list[SiteProgram]:
    """Runs `function(X, *symbols, *sums)` once and returns its programs (one, unless writes carry different offsets).

    `arguments` holds `FieldArgument`, a list of them, `Type` (a run-time scalar of that type), the string `"random"`, or
    `("static", object)`; `names` are the parameters' names. Raises TraceError at the user's line.
    """
    if getattr(_active, "trace", None) is not None:
        raise trace_error(
            "a site function cannot be started inside another; call it as function(X, ...) to inline it"
        )
    state = Trace(ndim)
    slots: dict[int, FieldSymbol] = {}
    scalars: list[tuple[str, Type]] = []
    randoms: list[str] = []

    def field_symbol(argument: FieldArgument, name: str) -> FieldSymbol:
        found = slots.get(argument.identity)
        if found is None:
            state.slots.append(FieldSlot(name, argument.element))
            found = FieldSymbol(state, len(state.slots) - 1, name, argument.element)
            slots[argument.identity] = found
        return found

    def symbol(argument: Any, name: str) -> Any:
        if isinstance(argument, FieldArgument):
            return field_symbol(argument, name)
        if isinstance(argument, list):
            return Fields(name, [symbol(a, f"{name}[{k}]") for k, a in enumerate(argument)])
        if isinstance(argument, Type):
            scalars.append((name, argument))
            return Value(state.builder.node("scalar", (), (len(scalars) - 1,), argument))
        if argument == "random":
            randoms.append(name)
            state.draws.append(0)
            return RandomSymbol(state, len(randoms) - 1, name)
        return argument[1]

    _active.trace = state
    try:
        symbols = [symbol(a, n) for a, n in zip(arguments, names, strict=False)]
        for _ in range(nsums):
            state.sums.append((None, ""))
        sums = [SumSymbol(state, k) for k in range(nsums)]
        result = function(Site(state, dirs.Offset({})), *symbols, *sums)
        if result is not None:
            raise trace_error(
                f"{function.__name__} returned a value; a site function writes fields (f[X] = ...) or adds to sums (total += ...)"
            )
        return _finish(state, function.__name__, precision, scalars, randoms, names)
    finally:
        _active.trace = None


def _finish(
    state: Trace,
    name: str,
    precision: str,
    scalars: list[tuple[str, Type]],
    randoms: list[str],
    names: Sequence[str],
) -> list[SiteProgram]:
    sums: list[Sum] = []
    types: list[Type] = []
    for slot, (node, where) in enumerate(state.sums):
        if node is None:
            raise trace_error(f"{name} never adds to its sum number {slot + 1}")
        sums.append(Sum(slot, node, where))
        types.append(node.type)
    offsets = list(dict.fromkeys(store.offset for store in state.stores.values()))
    if not offsets and not sums:
        raise trace_error(f"{name} neither writes a field nor adds to a sum")
    if len(offsets) > 1:
        written = {store.slot for store in state.stores.values()}
        for slot in written:
            field = state.slots[slot]
            if field.reads:
                line = next(iter(field.reads.values()))
                raise TraceError(
                    f"{name} writes at several offsets ({', '.join(map(str, offsets))}) and reads {field.name}, which it writes "
                    f"(read at {line}); do it in several site functions\n  at {line}"
                )
        if randoms and sums:
            raise trace_error(
                f"{name} mixes sums with writes at several offsets; do it in several site functions"
            )
    programs = []
    for k, offset in enumerate(offsets or [(0,) * state.ndim]):
        stores = [s for s in state.stores.values() if s.offset == offset]
        effects: list[Store | Sum] = [*stores, *(sums if k == 0 else [])]
        program = SiteProgram(
            name if k == 0 else f"{name}_{k}",
            state.ndim,
            precision,
            state.slots,
            scalars,
            randoms,
            effects,
            types if k == 0 else [],
            shift=offset,
            loops=state.loops,
        )
        programs.append(program)
    return programs


__all__ = [
    "COMPLEX",
    "FieldArgument",
    "Value",
    "complex_number",
    "identity",
    "matrix",
    "trace",
    "vector",
    "where",
    "zero",
]
