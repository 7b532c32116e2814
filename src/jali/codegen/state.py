"""The state of one tracing: the graph, the fields seen, the effects so far. One trace at a time in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jali.codegen.builder import Builder
from jali.codegen.ir import FieldSlot, Node, Store
from jali.codegen.language import conversions, draws, leaves
from jali.codegen.lines import trace_error, user_line
from jali.codegen.operation import OPERATIONS
from jali.codegen.types import Type

active = threading.local()
MOST_DRAWS = 1 << 16  # counters that the generator has for one site in one call; each gives two numbers


def current_trace() -> Trace:
    """The trace under way in this thread. Raises TraceError outside a site function."""
    trace = getattr(active, "trace", None)
    if trace is None:
        raise trace_error("this can only be used inside a site function")
    return trace


def _no_number(slot: int, component: int) -> int:
    raise trace_error("an offset takes numbers of a call, and nothing is called")


@dataclass
class Loop:
    """A `repeat_until`: its bound and the random draws that one attempt uses. Of the programs of a trace that contain it one
    counts where it gives up (`counted`)."""

    number: int
    limit: int
    first_draw: int
    draws: int = 0
    counted: bool = True


@dataclass
class Gathered:
    """An accumulator so far: `how` its terms meet (`sum`, `max`, `min`, `entries`, or nothing yet), what one site gives to each label (None:
    to the only entry), and the first line. What a site gives is one value, and where reals would round whole numbers, these behind it."""

    how: str = ""
    values: dict[Node | None, list[Node]] = field(default_factory=dict)
    where: str = ""
    whole: bool = False  # whether sums of whole numbers stay whole


class Trace:
    """State of one tracing: the graph, the fields seen, the effects so far."""

    def __init__(self, ndim: int, precision: str = "float64"):
        self.ndim = ndim
        self.precision = precision
        self.builder = Builder(precision)
        self.slots: list[FieldSlot] = []
        self.stores: dict[tuple[int, tuple[int, ...]], Store] = {}
        self.by_component: set[tuple[int, tuple[int, ...]]] = set()  # slots and offsets of these
        self.gathered: list[Gathered] = []
        self.loops: list[Loop] = []
        self.loop: Loop | None = None
        self.draws: list[int] = []
        self.capture: Callable[[Any], Any] | None = None  # the symbol of a field that is no argument
        self.scalars: list[tuple[str, Type]] = []  # run-time numbers, by their slots
        self.number: Callable[[int, int], int] = (
            _no_number  # the value of one, by its slot and component, which the trace is then for
        )
        self.given: set[tuple[int, ...]] = set()  # offsets that such values went into
        self.halves: dict[tuple[int, int, str], Node] = {}

    # ---- fields ----------------------------------------------------------------------------------

    def load(self, slot: int, offset: tuple[int, ...], member: Node | None = None) -> Node:
        """A field's value at an offset: that of the member that is computed, or of one that is named."""
        stored = self.stores.get((slot, offset))
        field = self._computable(slot)
        if stored is not None and member is not None:
            raise trace_error(
                f"{field.name} is written above, and a member of it is read here: read it before, or in another site function"
            )
        if stored is not None:
            return leaves.read_after(self.builder, slot, field.storage, stored.value)
        field.reads.setdefault(offset, user_line())
        if any(written == slot for written, _ in self.stores):
            field.reads_after.setdefault(offset, user_line())
        if member is None:
            node = leaves.load(self.builder, slot, offset, field.element.type)
        else:
            node = leaves.load_of_member(self.builder, slot, offset, member, field.element.type)
        leaves.know_symmetry(node, field.element)
        node.phase = field.element.name == "U(1)"
        return node

    def _computable(self, slot: int) -> FieldSlot:
        """A field. Raises TraceError where the arithmetic cannot decode how it is stored."""
        field, precision = self.slots[slot], self.builder.precision
        if precision not in (possible := field.storage.format.precisions):
            raise trace_error(
                f"{field.name} is stored as {field.storage}, which {precision} kernels do not decode, only those of "
                f"{' and '.join(possible)}: copy it to a field of another storage, or take {possible[-1]} fields"
            )
        return field

    def store(self, slot: int, offset: tuple[int, ...], value: Node) -> None:
        field = self._computable(slot)
        want: Type = field.element.type
        if self.loop is not None:
            raise trace_error(
                f"{field.name} is written inside repeat_until; return the value from the attempt instead"
            )
        if (value.type.shape, want.shape) == ((1, 1), ()):  # a number of U(1)
            value = conversions.element(self.builder, value, 0)
        elif (value.type.shape, want.shape) == ((), (1, 1)) and value.type.kind != "bool":
            real = value.type.kind != "complex"
            value = conversions.build(self.builder, Type(value.type.kind, (1, 1)), [value])
            value.hermitian |= real
        if value.type.shape != want.shape:
            raise trace_error(
                f"a {value.type} cannot be stored in {field.name}, which holds {field.element} ({want})"
            )
        if value.type.kind == "complex" and want.kind == "real":
            raise trace_error(
                f"a complex value cannot be stored in the real field {field.name}; use .real or .imag"
            )
        value = conversions.convert(self.builder, value, want.kind)
        self.check_symmetry(field, value)
        field.writes.setdefault(offset, user_line())
        self.stores.pop((slot, offset), None)
        self.stores[(slot, offset)] = Store(slot, offset, value, user_line())

    def check_symmetry(self, field: FieldSlot, value: Node) -> None:
        """Raises TraceError for a matrix that is not known to be one that the field can hold."""
        if field.element.codec == "algebra" and not value.antihermitian:
            raise trace_error(
                f"{field.name} holds {field.element}, traceless anti-Hermitian matrices; "
                "apply .traceless_antihermitian() to the value first"
            )
        if field.element.codec == "hermitian" and not value.hermitian:
            raise trace_error(
                f"{field.name} holds {field.element}, Hermitian matrices, and the value is not known to be one: sums, real multiples and "
                "inverses of Hermitian matrices are, and .hermitian() is the Hermitian part of any value"
            )

    # ---- random numbers --------------------------------------------------------------------------

    def draw(self, slot: int, kind: str) -> Node:
        """One uniform or gaussian number; two come from each counter."""
        loop = self.loop.number if self.loop else -1
        key = (slot, loop, kind)
        waiting = self.halves.pop(key, None)
        if waiting is not None:
            return OPERATIONS[kind](self.builder, waiting, 1)
        pair = draws.philox(self.builder, slot, self._next_draw(slot), loop, kind, self.ndim)
        self.halves[key] = pair
        return OPERATIONS[kind](self.builder, pair, 0)

    def draw_integer(self, slot: int, n: Node) -> Node:
        """A whole number from 0 to n - 1; it takes a counter of its own."""
        loop = self.loop.number if self.loop else -1
        return draws.integers(self.builder, slot, self._next_draw(slot), loop, n, self.ndim)

    def _next_draw(self, slot: int) -> int:
        """The number of a source's next counter at this site."""
        if self.loop is not None:
            self.loop.draws += 1
            return self.loop.first_draw + self.loop.draws - 1
        number = self.draws[slot]
        self.draws[slot] += 1
        if number >= MOST_DRAWS:
            raise trace_error(
                f"more than {2 * MOST_DRAWS} random numbers at a site; draw them in several site functions"
            )
        return number


def tracing() -> bool:
    """Whether a trace is under way in this thread."""
    return getattr(active, "trace", None) is not None


def builder() -> Builder:
    """The builder of the trace under way in this thread."""
    return current_trace().builder
