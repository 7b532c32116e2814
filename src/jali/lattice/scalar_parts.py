"""The real numbers that Scalars are made of, computed where they are: on a device by one small kernel, on the host by Python.

A `ScalarPart` is a number, or an operation of the site language on numbers that is computed when its value is needed, with all
others that are needed at that moment. Sums of a launch on a device stay digits (core/sum) until a kernel needs their values; it
reads them and leaves zeros. Both sides give the same bits: where Python's functions have others than kernels (column `compute`
of the operation), the host runs a kernel, too. The interface of users is in `scalars.py`.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from jali import _core, graph_recorder
from jali.codegen.arithmetics import IEEE_PRECISIONS
from jali.codegen.ir import BOOL, COMPLEX, REAL
from jali.codegen.operation import Operation
from jali.codegen.types import Type
from jali.lattice.overflow import Count, raise_if_found, unreported

if TYPE_CHECKING:
    from jali.codegen.number_kernels import NumberProgram
    from jali.codegen.writer import KernelParameter

THREADS = 128  # of the block that computes numbers; they load the words of sums together
MOST_SUMS = 16  # doubles of one call that stay on a device: their words meet in the memory of a block
BLOCK = 32  # numbers that one kernel computes at most; its parameters have 4 KiB
MOST_EXTENT = 64  # of an array of numbers (scalar_arrays.py); a block of the core holds so many rows of so many complex ones

in_order = threading.RLock()
"""Held briefly while work of numbers is put on a device's stream, and while a graph is captured there, which would
include that work."""

Location = tuple[Any, int]
"""A block of the core's numbers, and which of them."""


class ScalarPart:
    """A number: a constant, a part of a sum that was left as digits, or an operation on numbers; with a location once it is computed.

    It is real, or a condition; complex ones stand between operations only, and have no location.
    """

    __slots__ = (
        "__weakref__",
        "args",
        "attrs",
        "dependents",
        "location",
        "operation",
        "overflow_counts",
        "recorder",
        "sources",
        "sum",
        "type",
        "value",
    )

    def __init__(
        self,
        operation: Operation | None = None,
        args: tuple[ScalarPart, ...] = (),
        attrs: tuple[Any, ...] = (),
        type: Type = REAL,
        value: float | None = None,
    ):
        self.operation = operation
        self.args = args
        self.attrs = attrs
        self.type = type
        self.value = value  # of a constant
        self.sum: PendingSum | None = None
        self.location: Location | None = None  # a block of numbers and which of them
        # of a location that changes: what was made of it, in this order, so that kernels that compute it have the same text each time
        self.dependents: weakref.WeakKeyDictionary[ScalarPart, None] | None = None
        self.sources: frozenset[ScalarPart] = (
            frozenset()
        )  # locations that change, of an operation that is not computed
        self.overflow_counts: tuple[
            Count, ...
        ] = ()  # what reading it reports: sites that could not be stored
        for a in args:
            if a.dependents is not None:
                self.sources |= {a}
            elif a.sources:
                self.sources |= a.sources
            if a.overflow_counts:
                self.add_overflow_counts(a.overflow_counts)
        for source in self.sources:
            assert source.dependents is not None
            source.dependents[self] = None
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
                source.dependents.pop(self, None)
            self.sources = frozenset()

    def changes(self) -> None:
        """Its location will get other values: what is made of it from now on is evaluated before."""
        if self.dependents is None:
            self.dependents = weakref.WeakKeyDictionary()


class PendingSum:
    """Sums (maxima, minima) of one launch that are on a device as words, until their values are taken or the launch runs again."""

    def __init__(self, launch: Any, reductions: Sequence[str], gpu: Any):
        self.launch = launch
        self.reductions = reductions
        self.block = _core.ScalarBlock(gpu, len(reductions))
        self.gpu = gpu
        self.nodes = [ScalarPart() for _ in reductions]
        for node in self.nodes:
            node.sum = self
        self.taken = False

    def take(self) -> None:
        """Its values, if they have not been taken."""
        if not self.taken:
            evaluate(self.gpu, self.nodes)


def constant(value: float) -> ScalarPart:
    return ScalarPart(value=value)


def number(block: Any, k: int) -> ScalarPart:
    node = ScalarPart()
    node.location = (block, k)
    return node


def evaluate(gpu: Any, nodes: Iterable[ScalarPart]) -> None:
    """Gives these a location: computes what has none, or records that. Complex ones have none, and are computed with their parts."""
    wanted = [n for n in dict.fromkeys(nodes) if n.location is None and n.type.kind != "complex"]
    if wanted:
        compute(gpu, [(node, None) for node in wanted])


def order_of(wanted: Sequence[ScalarPart]) -> list[ScalarPart]:
    """What is not computed among these and what they are made of, arguments first."""
    seen: dict[ScalarPart, None] = {}
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


def compute(gpu: Any, targets: Sequence[tuple[ScalarPart, Location | None]]) -> None:
    """Computes nodes into these locations, or into new ones. Operations that only others need get no location of their own."""
    recorder = graph_recorder.current() if graph_recorder.recorders else None
    order = order_of([node for node, _ in targets])
    if recorder is not None:  # what was there before the recording has the value of then, in every repetition
        old = [n for n in order if n.location is None and n.value is None and n.recorder is not recorder]
        if old:
            with graph_recorder.suspended():
                evaluate(gpu, old)
            targets = [t for t in targets if t[0].location is None or t[1] is not None]
            if not targets:
                return None
            order = order_of([node for node, _ in targets])
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
    new: dict[ScalarPart, Location] = {}
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
    gpu: Any,
    order: list[ScalarPart],
    sums: Sequence[PendingSum],
    stores: Sequence[tuple[ScalarPart, Location]],
) -> Callable[[], None]:
    """What computes numbers in Python."""
    index: dict[ScalarPart, int] = {}
    start, loads, steps = [], [], []
    for k, node in enumerate(order):
        index[node] = k
        start.append(node.value)
        if node.location is not None:
            loads.append((k, node.type.kind == "bool", *node.location))
        elif node.value is None:
            steps.append((k, computed_by(node), [index[a] for a in node.args]))
    results = [(index[node], *location) for node, location in stores]

    def run() -> None:
        values = start.copy()
        for k, is_condition, block, component in loads:
            values[k] = block.value(component)
            if is_condition:
                values[k] = values[k] != 0
        for k, compute, args in steps:
            values[k] = compute(*[values[a] for a in args])
        for k, block, component in results:
            block.set(component, values[k])

    return run


def computed_by(node: ScalarPart) -> Callable[..., Any]:
    """What computes an operation on the host, of Python's numbers."""
    assert node.operation is not None
    if (rule := node.operation.compute) is not None and (compute := rule(node)) is not None:
        return compute
    return _host_kernel(node.operation, node.attrs, tuple([a.type for a in node.args]), node.type)


@functools.lru_cache(maxsize=1024)
def _host_kernel(
    operation: Operation, attrs: tuple[Any, ...], types: tuple[Type, ...], type: Type
) -> Callable[..., Any]:
    """An operation of numbers that Python rounds otherwise, as a function that runs its kernel."""
    from jali.codegen import kernel_cache
    from jali.codegen.number_kernels import Given, NumberProgram, Step, Summed, number_kernel

    last = len(types)
    values: tuple[Given | Summed | Step, ...] = (
        *(Given(t) for t in types),
        Step(operation, attrs, tuple(range(last))),
    )
    kernel = number_kernel(NumberProgram(values, (last,)), gpu=False)
    address, _ = kernel_cache.load("numbers", kernel.text, 1, IEEE_PRECISIONS[-1])
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(address)
    first = [sum(t.reals for t in types[:k]) for k in range(last + 1)]

    def compute(*arguments: Any) -> Any:
        memory = (ctypes.c_double * (first[last] + type.reals))()
        for k, argument in enumerate(arguments):
            memory[first[k]] = argument.real
            if types[k] == COMPLEX:
                memory[first[k] + 1] = argument.imag
        at = [
            ctypes.addressof(memory)
            + 8 * ((first[last] if p.what == "kept" else first[p.slot]) + _part_of(p))
            for p in kernel.parameters
        ]
        call((ctypes.c_uint64 * len(at))(*at), 0, 1)
        result = memory[first[last] :]
        return result[0] != 0 if type == BOOL else complex(*result) if type == COMPLEX else result[0]

    return compute


def _part_of(parameter: KernelParameter) -> int:
    return parameter.slot if parameter.what == "kept" else parameter.component


def _on_device(
    gpu: Any,
    order: list[ScalarPart],
    sums: Sequence[PendingSum],
    stores: Sequence[tuple[ScalarPart, Location]],
) -> Callable[[], None]:
    """What launches the kernel of numbers. Sums in it are taken, all of those of a launch."""
    from jali.codegen.number_kernels import (  # numbers of the host need no kernels
        Given,
        NumberProgram,
        Step,
        Summed,
    )

    of_sums = [node for pending in sums for node in pending.nodes]
    order = list(dict.fromkeys([*order, *of_sums]))
    index = {node: k for k, node in enumerate(order)}
    reductions = [reduction for pending in sums for reduction in pending.reductions]
    place = {node: k for k, node in enumerate(of_sums)}
    values: list[Given | Summed | Step] = []
    for node in order:
        if node.location is not None or node.value is not None:
            values.append(Given(node.type, by_address=node.location is not None))
        elif node.sum is not None:
            values.append(Summed(place[node], reductions[place[node]]))
        else:
            assert node.operation is not None
            values.append(Step(node.operation, node.attrs, tuple([index[a] for a in node.args])))
    program = NumberProgram(
        tuple(values), tuple([index[node] for node, _ in stores]), tuple([len(p.nodes) for p in sums])
    )
    function, parameters = _kernel(gpu.kind, gpu.ordinal, program)
    words = [
        _word(parameter, order, stores, [pending.launch for pending in sums]) for parameter in parameters
    ]
    arguments = struct.pack(f"{len(words)}Q", *words)
    launches = [pending.launch for pending in sums]

    def run() -> None:
        with in_order:
            gpu.launch(function, 1, THREADS, arguments)
            for launch in launches:
                launch.sums_taken()

    return run


def _word(
    parameter: KernelParameter,
    order: list[ScalarPart],
    stores: Sequence[tuple[ScalarPart, Location]],
    launches: Sequence[Any],
) -> int:
    """What a parameter of a kernel of numbers is now."""
    if parameter.what == "words":
        return int(launches[parameter.slot].words_of_sums)
    if parameter.what == "scalar":
        node = order[parameter.slot]
        if node.location is None:
            return int(struct.unpack("Q", struct.pack("d", node.value))[0])
        return int(node.location[0].address(node.location[1]))
    block, k = stores[parameter.slot][1]
    return int(block.address(k) if parameter.what == "kept" else block.mirror(k))


@functools.lru_cache(maxsize=1024)
def _kernel(kind: str, ordinal: int, program: NumberProgram) -> tuple[Any, tuple[KernelParameter, ...]]:
    from jali.codegen import kernel_cache
    from jali.codegen.number_kernels import number_kernel

    kernel, gpu = number_kernel(program, gpu=True), _core.Gpu.open(kind, ordinal)
    function, _ = kernel_cache.load_on_device(gpu, "numbers", kernel.text, IEEE_PRECISIONS[-1], THREADS)
    return function, kernel.parameters


def read_nodes(gpu: Any, nodes: Sequence[ScalarPart]) -> list[float]:
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
        raise_if_found(unreported(dict.fromkeys(count for n in nodes for count in n.overflow_counts)))
    return [n.location[0].value(n.location[1]) for n in nodes if n.location is not None]
