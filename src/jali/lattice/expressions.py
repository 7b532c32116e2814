"""Expressions of real numbers, computed where the numbers are: on a device by one small kernel, on the host by Python.

A `Node` is a number, or an operation on nodes that is computed when its value is needed, with all others that are needed at
that moment. Sums of a launch on a device stay digits (core/sum) until a kernel needs their values; it reads them and leaves
zeros. Both sides do the same IEEE operations: `OPERATIONS` has an entry for each. The interface of users is in `scalars.py`.
"""

from __future__ import annotations

import functools
import math
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jali import _core, graph_recorder
from jali.lattice.overflow import Count, raise_if_overflow, unreported_overflow

THREADS = 128  # of the block that computes expressions; they load the words of sums together
MOST_SUMS = 16  # doubles of one call that stay on a device: their words meet in the memory of a block
BLOCK = 32  # numbers that one kernel computes at most; its parameters have 4 KiB

in_order = threading.RLock()
"""Held briefly while work of numbers is put on a device's stream, and while a graph is captured there, which would
include that work."""

Location = tuple[Any, int]
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


class Node:
    """A real number: a constant, a part of a sum that was left as digits, or an operation on nodes; with a location once it is computed."""

    __slots__ = (
        "__weakref__",
        "args",
        "dependents",
        "location",
        "op",
        "overflow_counts",
        "recorder",
        "sources",
        "sum",
        "value",
    )

    def __init__(self, op: str, args: tuple[Node, ...] = (), value: float = 0.0):
        self.op = op  # "constant", "number" (a location and nothing else), "sum", or an entry of OPERATIONS
        self.args = args
        self.value = value
        self.sum: PendingSum | None = None
        self.location: Location | None = None  # a block of numbers and which of them
        self.dependents: weakref.WeakSet[Node] | None = (
            None  # of a location that changes: what was made of it
        )
        self.sources: frozenset[Node] = (
            frozenset()
        )  # locations that change, of an operation that is not computed
        self.overflow_counts: tuple[
            Count, ...
        ] = ()  # what reading it reports: sites that could not be stored
        for a in args:
            self.sources |= frozenset((a,)) if a.dependents is not None else a.sources
            if a.overflow_counts:
                self.add_overflow_counts(a.overflow_counts)
        for source in self.sources:
            assert source.dependents is not None
            source.dependents.add(self)
        self.recorder = (
            graph_recorder.current() if graph_recorder.recorders else None
        )  # of the graph that it is part of
        if self.recorder is not None and args:
            self.recorder.made.append(weakref.ref(self))

    def add_overflow_counts(self, counts: Iterable[Count]) -> None:
        """It is made of values that may not be what they should."""
        self.overflow_counts = tuple(dict.fromkeys((*self.overflow_counts, *counts)))

    def evaluated(self, location: Location) -> None:
        """From now on its value is there."""
        self.location = location
        self.args = ()
        self.sum = None
        if self.dependents is None:
            for source in self.sources:
                assert source.dependents is not None
                source.dependents.discard(self)
            self.sources = frozenset()

    def changes(self) -> None:
        """Its location will get other values: what is made of it from now on is evaluated before."""
        if self.dependents is None:
            self.dependents = weakref.WeakSet()


class PendingSum:
    """Sums (maxima, minima) of one launch that are on a device as words, until their values are taken or the launch runs again."""

    def __init__(self, launch: Any, reductions: Sequence[str], gpu: Any):
        self.launch = launch
        self.reductions = reductions
        self.block = _core.ScalarBlock(gpu, len(reductions))
        self.gpu = gpu
        self.nodes = [Node("sum") for _ in reductions]
        for node in self.nodes:
            node.sum = self
        self.taken = False

    def take(self) -> None:
        """Its values, if they have not been taken."""
        if not self.taken:
            evaluate(self.gpu, self.nodes)


def constant(value: float) -> Node:
    return Node("constant", value=value)


def number(block: Any, k: int) -> Node:
    node = Node("number")
    node.location = (block, k)
    return node


def evaluate(gpu: Any, nodes: Iterable[Node]) -> None:
    """Gives these a location: computes what has none, or records that."""
    wanted = [n for n in dict.fromkeys(nodes) if n.location is None]
    if wanted:
        compute(gpu, [(node, None) for node in wanted])


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


def compute(gpu: Any, targets: Sequence[tuple[Node, Location | None]]) -> None:
    """Computes nodes into these locations, or into new ones. Operations that only others need get no location of their own."""
    recorder = graph_recorder.current() if graph_recorder.recorders else None
    order = _order([node for node, _ in targets])
    if recorder is not None:  # what was there before the recording has the value of then, in every repetition
        old = [n for n in order if n.location is None and n.op != "constant" and n.recorder is not recorder]
        if old:
            with graph_recorder.suspended():
                evaluate(gpu, old)
            targets = [t for t in targets if t[0].location is None or t[1] is not None]
            if not targets:
                return None
            order = _order([node for node, _ in targets])
    sums = list(dict.fromkeys(n.sum for n in order if n.sum is not None))
    given = {node for node, _ in targets}
    todo = [n for n in order if n.location is None and (n.args or n in given)]
    if len(todo) > BLOCK or (len(sums) > 1 and sum(len(s.nodes) for s in sums) > MOST_SUMS):
        pieces = (
            [todo[k : k + BLOCK] for k in range(0, len(todo), BLOCK)]
            if len(todo) > BLOCK
            else [sums[0].nodes]
        )
        for piece in pieces:
            evaluate(gpu, piece)
        targets = [t for t in targets if t[0].location is None or t[1] is not None]
        return compute(gpu, targets) if targets else None
    missing = [node for node, location in targets if location is None and node.sum is None]
    new: dict[Node, Location] = {}
    if missing:
        block = _core.ScalarBlock(gpu, len(missing))
        new.update((node, (block, k)) for k, node in enumerate(missing))
    for pending in sums:
        new.update((node, (pending.block, k)) for k, node in enumerate(pending.nodes))
    stores = [*new.items(), *((node, location) for node, location in targets if location is not None)]
    held = [stores, sums, [n.location for n in order]]
    operation = (_on_host if gpu is None else _on_device)(gpu, order, sums, stores)
    for node, location in new.items():
        node.evaluated(location)
    for pending in sums:
        pending.taken = True
    perform(operation, held)
    if recorder is not None:
        recorder.written += new
    return None


def perform(
    operation: Callable[[], Any], held: Any, borrowed: Sequence[Any] = (), changing: Sequence[Any] = ()
) -> None:
    """Does it, or records it with what it needs. `borrowed`: storages that it uses, which may be arrays of others; `changing`: those that
    it writes."""
    recorder = graph_recorder.current() if graph_recorder.recorders else None
    if recorder is None:
        operation()
        return

    def warm_up() -> None:
        for storage in changing:
            storage.mark_written(3)

    recorder.operations.append(graph_recorder.Operation(operation, warm_up if changing else None))
    recorder.changing += [(storage, 3) for storage in changing]
    recorder.held.append(held)
    recorder.borrowed += [storage for storage in borrowed if storage.borrowed]


def _on_host(
    gpu: Any, order: list[Node], sums: Sequence[PendingSum], stores: Sequence[tuple[Node, Location]]
) -> Callable[[], None]:
    """What computes an expression in Python."""
    index = {node: k for k, node in enumerate(order)}
    start = [node.value for node in order]
    loads = [(k, *node.location) for k, node in enumerate(order) if node.location is not None]
    steps = [
        (k, OPERATIONS[node.op].compute, [index[a] for a in node.args])
        for k, node in enumerate(order)
        if node.location is None and node.op != "constant"
    ]
    results = [(index[node], *location) for node, location in stores]

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
    gpu: Any, order: list[Node], sums: Sequence[PendingSum], stores: Sequence[tuple[Node, Location]]
) -> Callable[[], None]:
    """What launches the kernel of an expression. Sums in it are taken, all of those of a launch."""
    parameters: list[int] = []
    names = {node: f"t{k}" for k, node in enumerate(order)}
    lines: list[str] = []
    count = sum(len(s.nodes) for s in sums)
    if sums:
        lines += [f"JALI_SHARED int64_t words[{count} * SUM_WORDS];", f"JALI_SHARED double values[{count}];"]
        first = 0
        for pending in sums:
            size = f"{len(pending.nodes)} * SUM_WORDS"
            lines.append(
                f"take_words(words + {first} * SUM_WORDS, (int64_t*)a.w[{len(parameters)}], {size});"
            )
            parameters.append(pending.launch.words_of_sums)
            for k, (node, reduction) in enumerate(zip(pending.nodes, pending.reductions, strict=True)):
                names[node] = f"values[{first + k}]"
                if reduction != "sum":
                    names[node] = f"{reduction}_of_word(words[{first + k} * SUM_WORDS])"
            first += len(pending.nodes)
        lines.append(f"values_of_words(values, words, {count});")
    lines.append("if (block_in_grid() != 0 || thread_in_block() != 0) return;")
    for node in order:
        if node.location is not None:
            lines.append(f"const double {names[node]} = *(const double*)a.w[{len(parameters)}];")
            parameters.append(node.location[0].address(node.location[1]))
        elif node.op == "constant":
            lines.append(f"const double {names[node]} = double_of_bits(a.w[{len(parameters)}]);")
            parameters.append(_bits(node.value))
        elif node.sum is None:
            text = OPERATIONS[node.op].text.format(*(names[a] for a in node.args))
            lines.append(f"const double {names[node]} = {text};")
    for node, (block, k) in stores:
        lines.append(f"keep_number(a.w[{len(parameters)}], a.w[{len(parameters) + 1}], {names[node]});")
        parameters += [block.address(k), block.mirror(k)]
    function = _kernel(gpu.kind, gpu.ordinal, len(parameters), "\n    ".join(lines))
    arguments = struct.pack(f"{len(parameters)}Q", *parameters)
    launches = [pending.launch for pending in sums]

    def run() -> None:
        with in_order:
            gpu.launch(function, 1, THREADS, arguments)
            for launch in launches:
                launch.sums_taken()

    return run


def _bits(value: float) -> int:
    return int(struct.unpack("Q", struct.pack("d", value))[0])


def kernel_text(parameters: int, lines: str) -> str:
    """The text of a kernel that computes expressions."""
    assert parameters > 0, "what has no parameters computes nothing"
    return (
        f"{_prelude()}\nstruct arguments {{ uint64_t w[{parameters}]; }};\n"
        f"JALI_KERNEL(kernel, arguments) {{\n    {lines}\n}}\n"
    )


@functools.cache
def _prelude() -> str:
    from pathlib import Path

    from jali import codegen

    return (Path(codegen.__path__[0]) / "prelude" / "scalars.hpp").read_text()


@functools.lru_cache(maxsize=1024)
def _kernel(kind: str, ordinal: int, parameters: int, lines: str) -> Any:
    from jali.codegen import kernel_cache  # numbers of the host need no kernels

    gpu = _core.Gpu.open(kind, ordinal)
    return kernel_cache.load_on_device(gpu, "scalars", kernel_text(parameters, lines), "float64", THREADS)[0]


def read_nodes(gpu: Any, nodes: Sequence[Node]) -> list[float]:
    """The values of nodes; waits for them once."""
    graph_recorder.refuse(
        "a number is read on the host",
        "compute with the Scalar, or read it after the graph has run",
    )
    evaluate(gpu, nodes)
    if gpu is not None:
        with in_order:
            event = _core.GpuEvent(gpu, False)
            gpu.record(event)
        event.wait()
    if any(n.overflow_counts for n in nodes):
        raise_if_overflow(
            *unreported_overflow(dict.fromkeys(count for n in nodes for count in n.overflow_counts))
        )
    return [n.location[0].value(n.location[1]) for n in nodes if n.location is not None]
