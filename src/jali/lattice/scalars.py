"""Numbers that stay where they are made: `Scalar`, the result of `lattice.sum(..., wait=False)`.

Arithmetic with Scalars builds expressions; one is computed when something needs its value, by one small kernel on the device (with
all others that are needed at that moment, and with the sums in it, which are left as digits until then), or by Python on the host.
Both do the IEEE operations that Python does, so `float(a / b) == float(a) / float(b)`. `OPERATIONS` has a row for each of them.
"""

from __future__ import annotations

import functools
import math
import numbers
import struct
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jali import _core
from jali.codegen import cache
from jali.errors import LayoutError, ParameterError
from jali.lattice import recording

THREADS = 128  # of the block that computes expressions; they load the words of sums together
MOST_SUMS = 16  # doubles of one call that stay on a device: their words meet in the memory of a block
MOST_POWER = 64
BLOCK = 32  # numbers that one kernel computes at most; its parameters have 4 KiB

Place = tuple[Any, int]
"""A block of the core's numbers, and which of them."""


class Operation(NamedTuple):
    """How an operation is computed on the host, and its text for devices; conditions are 1 and 0."""

    compute: Callable[..., float]
    text: str


def _divide(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or a != a or b != b:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


OPERATIONS = {
    "add": Operation(lambda a, b: a + b, "{0} + {1}"),
    "subtract": Operation(lambda a, b: a - b, "{0} - {1}"),
    "multiply": Operation(lambda a, b: a * b, "{0} * {1}"),
    "divide": Operation(_divide, "{0} / {1}"),
    "negate": Operation(lambda a: -a, "-{0}"),
    "sqrt": Operation(lambda a: math.sqrt(a) if a >= 0 else math.nan, "sqrt_one({0})"),
    "less": Operation(lambda a, b: float(a < b), "{0} < {1} ? 1.0 : 0.0"),
    "less_equal": Operation(lambda a, b: float(a <= b), "{0} <= {1} ? 1.0 : 0.0"),
    "equal": Operation(lambda a, b: float(a == b), "{0} == {1} ? 1.0 : 0.0"),
    "not_equal": Operation(lambda a, b: float(a != b), "{0} != {1} ? 1.0 : 0.0"),
    "and": Operation(lambda a, b: float(a != 0 and b != 0), "{0} != 0 && {1} != 0 ? 1.0 : 0.0"),
    "or": Operation(lambda a, b: float(a != 0 or b != 0), "{0} != 0 || {1} != 0 ? 1.0 : 0.0"),
    "not": Operation(lambda a: float(a == 0), "{0} == 0 ? 1.0 : 0.0"),
    "where": Operation(lambda c, a, b: a if c != 0 else b, "{0} != 0 ? {1} : {2}"),
}


# ---- expressions ------------------------------------------------------------------------------------------


class Node:
    """A real number: a constant, a part of a sum that was left as digits, or an operation on nodes; with a place once it is computed."""

    __slots__ = ("__weakref__", "args", "dependents", "op", "place", "sources", "sum", "tape", "value")

    def __init__(self, op: str, args: tuple[Node, ...] = (), value: float = 0.0):
        self.op = op  # "constant", "number" (a place and nothing else), "sum", or a row of OPERATIONS
        self.args = args
        self.value = value
        self.sum: PendingSum | None = None
        self.place: Place | None = None  # a block of numbers and which of them
        self.dependents: weakref.WeakSet[Node] | None = None  # of a place that changes: what was made of it
        self.sources: frozenset[Node] = (
            frozenset()
        )  # places that change, of an operation that is not computed
        for a in args:
            self.sources |= frozenset((a,)) if a.dependents is not None else a.sources
        for source in self.sources:
            assert source.dependents is not None
            source.dependents.add(self)
        self.tape = recording.current() if recording.recorders else None  # of the graph that it is part of
        if self.tape is not None and args:
            self.tape.made.append(weakref.ref(self))

    def settled(self, place: Place) -> None:
        """From now on its value is there."""
        self.place = place
        self.args = ()
        self.sum = None
        if self.dependents is None:
            for source in self.sources:
                assert source.dependents is not None
                source.dependents.discard(self)
            self.sources = frozenset()

    def changes(self) -> None:
        """Its place will get other values: what is made of it from now on is told before."""
        if self.dependents is None:
            self.dependents = weakref.WeakSet()


class PendingSum:
    """Sums of one launch that are on a device as digits, until their values are taken or the launch runs again."""

    def __init__(self, launch: Any, count: int, gpu: Any):
        self.launch = launch
        self.block = _core.Numbers(gpu, count)
        self.gpu = gpu
        self.nodes = [Node("sum") for _ in range(count)]
        for node in self.nodes:
            node.sum = self
        self.taken = False

    def take(self) -> None:
        """Its values, if nobody has taken them."""
        if not self.taken:
            settle(self.gpu, self.nodes)


def constant(value: float) -> Node:
    return Node("constant", value=value)


def number(block: Any, k: int) -> Node:
    node = Node("number")
    node.place = (block, k)
    return node


def settle(gpu: Any, nodes: Iterable[Node]) -> None:
    """Sees to it that these have places: computes what has none, or records that."""
    wanted = [n for n in dict.fromkeys(nodes) if n.place is None]
    if wanted:
        _compute(gpu, [(node, None) for node in wanted])


def _order(wanted: Sequence[Node]) -> list[Node]:
    """What is not computed among these and what they are made of, arguments first."""
    seen: dict[Node, None] = {}
    stack = [(n, False) for n in reversed(wanted)]
    while stack:
        node, ready = stack.pop()
        if node in seen:
            continue
        if ready or not node.args:
            seen[node] = None
            continue
        stack.append((node, True))
        stack += [(a, False) for a in node.args]
    return list(seen)


def _compute(gpu: Any, targets: Sequence[tuple[Node, Place | None]]) -> None:
    """Computes nodes into these places, or into new ones. Operations that only others need get no place of their own."""
    tape = recording.current() if recording.recorders else None
    order = _order([node for node, _ in targets])
    if tape is not None:  # what was there before the recording has the value of then, in every repetition
        old = [n for n in order if n.place is None and n.op != "constant" and n.tape is not tape]
        if old:
            with recording.suspended():
                settle(gpu, old)
            targets = [t for t in targets if t[0].place is None or t[1] is not None]
            if not targets:
                return None
            order = _order([node for node, _ in targets])
    sums = list(dict.fromkeys(n.sum for n in order if n.sum is not None))
    given = {node for node, _ in targets}
    todo = [n for n in order if n.place is None and (n.args or n in given)]
    if len(todo) > BLOCK or (len(sums) > 1 and sum(len(s.nodes) for s in sums) > MOST_SUMS):
        settle(gpu, todo[:BLOCK] if len(todo) > BLOCK else sums[0].nodes)
        return _compute(gpu, [t for t in targets if t[0].place is None or t[1] is not None])
    missing = [node for node, place in targets if place is None and node.sum is None]
    new: dict[Node, Place] = {}
    if missing:
        block = _core.Numbers(gpu, len(missing))
        new.update((node, (block, k)) for k, node in enumerate(missing))
    for pending in sums:
        new.update((node, (pending.block, k)) for k, node in enumerate(pending.nodes))
    stores = [*new.items(), *((node, place) for node, place in targets if place is not None)]
    held = [stores, sums, [n.place for n in order]]
    operation = (_on_host if gpu is None else _on_device)(gpu, order, sums, stores)
    for node, place in new.items():
        node.settled(place)
    for pending in sums:
        pending.taken = True
    perform(operation, held)
    if tape is not None:
        tape.written += new
    return None


def perform(operation: Callable[[], Any], held: Any) -> None:
    """Does it, or records it with what it needs."""
    tape = recording.current() if recording.recorders else None
    if tape is None:
        operation()
        return
    tape.operations.append(operation)
    tape.held.append(held)


def _on_host(
    gpu: Any, order: list[Node], sums: Sequence[PendingSum], stores: Sequence[tuple[Node, Place]]
) -> Callable[[], None]:
    """What computes an expression in Python."""
    index = {node: k for k, node in enumerate(order)}
    start = [node.value for node in order]
    loads = [(k, *node.place) for k, node in enumerate(order) if node.place is not None]
    steps = [
        (k, OPERATIONS[node.op].compute, [index[a] for a in node.args])
        for k, node in enumerate(order)
        if node.place is None and node.op != "constant"
    ]
    results = [(index[node], *place) for node, place in stores]

    def run() -> None:
        values = start.copy()
        for k, block, component in loads:
            values[k] = block.value(component)
        for k, compute, args in steps:
            values[k] = compute(*[values[a] for a in args])
        for k, block, component in results:
            block.set(component, values[k])

    return run


def _on_device(
    gpu: Any, order: list[Node], sums: Sequence[PendingSum], stores: Sequence[tuple[Node, Place]]
) -> Callable[[], None]:
    """What launches the kernel of an expression. Sums in it are taken, all of those of a launch."""
    words: list[int] = []
    names = {node: f"t{k}" for k, node in enumerate(order)}
    lines: list[str] = []
    count = sum(len(s.nodes) for s in sums)
    if sums:
        lines += [f"JALI_SHARED int64_t words[{count} * SUM_WORDS];", f"JALI_SHARED double values[{count}];"]
        first = 0
        for pending in sums:
            size = f"{len(pending.nodes)} * SUM_WORDS"
            lines.append(f"take_words(words + {first} * SUM_WORDS, (int64_t*)a.w[{len(words)}], {size});")
            words.append(pending.launch.words_of_sums)
            for k, node in enumerate(pending.nodes):
                names[node] = f"values[{first + k}]"
            first += len(pending.nodes)
        lines.append(f"values_of_words(values, words, {count});")
    lines.append("if (block_in_grid() != 0 || thread_in_block() != 0) return;")
    for node in order:
        if node.place is not None:
            lines.append(f"const double {names[node]} = *(const double*)a.w[{len(words)}];")
            words.append(node.place[0].address(node.place[1]))
        elif node.op == "constant":
            lines.append(f"const double {names[node]} = double_of_bits(a.w[{len(words)}]);")
            words.append(_bits(node.value))
        elif node.sum is None:
            text = OPERATIONS[node.op].text.format(*(names[a] for a in node.args))
            lines.append(f"const double {names[node]} = {text};")
    for node, (block, k) in stores:
        lines.append(f"keep_number(a.w[{len(words)}], a.w[{len(words) + 1}], {names[node]});")
        words += [block.address(k), block.mirror(k)]
    function = _kernel(gpu.kind, gpu.ordinal, len(words), "\n    ".join(lines))
    arguments = struct.pack(f"{len(words)}Q", *words)
    launches = [pending.launch for pending in sums]

    def run() -> None:
        gpu.launch(function, 1, THREADS, arguments)
        for launch in launches:
            launch.sums_taken()

    return run


def _bits(value: float) -> int:
    return int(struct.unpack("Q", struct.pack("d", value))[0])


def kernel_text(words: int, lines: str) -> str:
    """The text of a kernel that computes expressions."""
    return (
        f"{_prelude()}\nstruct arguments {{ uint64_t w[{words}]; }};\n"
        f"JALI_KERNEL(kernel, arguments) {{\n    {lines}\n}}\n"
    )


@functools.cache
def _prelude() -> str:
    return (Path(cache.__file__).parent / "prelude" / "scalars.hpp").read_text()


@functools.lru_cache(maxsize=1024)
def _kernel(kind: str, ordinal: int, words: int, lines: str) -> Any:
    gpu = _core.Gpu.open(kind, ordinal)
    return cache.load_on_device(gpu, "scalars", kernel_text(words, lines), "float64", THREADS)[0]


def read_nodes(gpu: Any, nodes: Sequence[Node]) -> list[float]:
    """The values of nodes; waits for them once."""
    recording.refuse(
        "a number is read on the host",
        "compute with the Scalar, or read it after the graph has run",
    )
    settle(gpu, nodes)
    if gpu is not None:
        gpu.synchronize()
    return [n.place[0].value(n.place[1]) for n in nodes if n.place is not None]


# ---- what users see -----------------------------------------------------------------------------------------


class _OnPlace:
    """What Scalars and Conditions share: parts, where they are, and whether they are the same on any ranks."""

    __slots__ = ("gpu", "parts", "reproducible")

    def __init__(self, gpu: Any, parts: tuple[Node, ...], reproducible: bool = True):
        self.gpu = gpu
        self.parts = parts
        self.reproducible = reproducible

    def _with(self, other: _OnPlace) -> bool:
        """Whether a result of both is reproducible."""
        if other.gpu is not self.gpu:
            raise LayoutError(
                f"numbers of {_name_of(self.gpu)} and of {_name_of(other.gpu)} do not meet; read one with float()"
            )
        return self.reproducible and other.reproducible


class Condition(_OnPlace):
    """What a comparison of Scalars gives; `&`, `|` and `~` combine them, `jali.where(condition, a, b)` chooses, `bool()` waits."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<condition on {_name_of(self.gpu)}>"

    def __bool__(self) -> bool:
        return read_nodes(self.gpu, self.parts)[0] != 0

    def _combine(self, op: str, other: Any) -> Condition:
        if not isinstance(other, Condition):
            raise ParameterError(f"a condition combines with conditions, not with {other!r}")
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


class Scalar(_OnPlace):
    """A real or complex number that stays on a device, or with the host, until it is needed.

    An argument of site functions wherever a number may be one. `+ - * /`, whole powers (products), comparisons, `jali.sqrt` and
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

        What was computed with it before keeps the value that it had then.
        """
        if not self.variable:
            raise ParameterError(
                "only scalars made by lattice.scalar(...) can be assigned; others never change"
            )
        given = _lifted(value, self)
        if len(given.parts) > len(self.parts):
            raise ParameterError("a complex number cannot be assigned to a real scalar")
        self.reproducible = self._with(given)
        before = dict.fromkeys(n for part in self.parts for n in part.dependents or () if n.place is None)
        targets: list[tuple[Node, Place | None]] = [(node, None) for node in before]
        for part, node in zip(self.parts, _parts(given, len(self.parts)), strict=True):
            assert part.place is not None
            targets.append((node, part.place))
        _compute(self.gpu, targets)
        if recording.recorders and (tape := recording.current()) is not None:
            tape.written += self.parts
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
                f"powers of scalars are products: whole exponents from 1 to {MOST_POWER}, not {exponent!r}; there is jali.sqrt"
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
    if b.is_complex:
        raise ParameterError(
            "division by a complex scalar; multiply by its conj() and divide by a real number"
        )
    return tuple(Node("divide", (p, b.parts[0])) for p in a.parts)


_ARITHMETIC = {"add": _add, "subtract": _subtract, "multiply": _multiply, "divide": _quotient}


def _parts(scalar: Scalar, count: int) -> tuple[Node, ...]:
    return scalar.parts if len(scalar.parts) == count else (*scalar.parts, constant(0.0))


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Number) and not isinstance(value, bool)


def _lifted(value: Any, beside: _OnPlace) -> Scalar:
    """A number or a Scalar as a Scalar of the same place."""
    if isinstance(value, Scalar):
        return value
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        return Scalar(beside.gpu, (constant(float(value)),))
    if isinstance(value, numbers.Complex) and not isinstance(value, bool):
        z = complex(value)
        return Scalar(beside.gpu, (constant(z.real), constant(z.imag)))
    raise ParameterError(f"scalars combine with numbers and scalars, not with {value!r}")


def _name_of(gpu: Any) -> str:
    return "the host" if gpu is None else f"{gpu.kind}:{gpu.ordinal}"


def variable(gpu: Any, value: float | complex) -> Scalar:
    """A Scalar that can be assigned."""
    if not _is_number(value):
        raise ParameterError(f"a scalar begins as a number, not as {value!r}")
    recording.refuse("a scalar is made", "make it before, and assign to it in the graph")
    given = [float(value)] if isinstance(value, numbers.Real) else [complex(value).real, complex(value).imag]
    nodes = [constant(v) for v in given]
    settle(gpu, nodes)
    for node in nodes:
        node.op = "number"
        node.changes()
    return Scalar(gpu, tuple(nodes), variable=True)


def settle_arguments(gpu: Any, scalars: Iterable[Any], where: str) -> None:
    """Before a kernel that reads them: they have places on its device. Raises LayoutError for those of another one."""
    nodes: list[Node] = []
    for scalar in scalars:
        if isinstance(scalar, Scalar):
            if scalar.gpu is not gpu:
                raise LayoutError(
                    f"{where} runs on {_name_of(gpu)}, but got {scalar!r}; read it with float()"
                )
            nodes += scalar.parts
    settle(gpu, nodes)


def address_of(scalar: Scalar, component: int) -> int:
    """Where a kernel finds a component of a Scalar that has a place."""
    place = scalar.parts[component].place if component < len(scalar.parts) else None
    assert place is not None
    return int(place[0].address(place[1]))


def scalars_of_parts(gpu: Any, nodes: Sequence[Node], types: Sequence[Any], reproducible: bool) -> Any:
    """The nodes of a sum as the Scalars that were asked for."""
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
        if isinstance(s, _OnPlace):
            nodes += s.parts
            gpus[id(s.gpu)] = s.gpu
        elif not isinstance(s, numbers.Number):
            raise ParameterError(f"jali.read takes scalars and conditions, not {s!r}")
    if len(gpus) > 1:
        raise LayoutError("jali.read takes numbers of one device")
    values = iter(read_nodes(next(iter(gpus.values())), nodes) if nodes else [])
    out: list[Any] = []
    for s in scalars:
        if not isinstance(s, _OnPlace):
            out.append(s)
        elif isinstance(s, Condition):
            out.append(next(values) != 0)
        else:
            found = [next(values) for _ in s.parts]
            out.append(found[0] if len(found) == 1 else complex(*found))
    return out
