"""What a site function's parameters become while it is traced: the site, fields, accumulators and random numbers."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from jali.codegen import directions as dirs
from jali.codegen.arithmetics import ARITHMETICS
from jali.codegen.ir import BOOL, INT, Node
from jali.codegen.language import arithmetic, choices, conversions, leaves, rejection_loops
from jali.codegen.lines import trace_error, user_line
from jali.codegen.operation import described
from jali.codegen.state import MOST_DRAWS, Gathered, Loop, Trace, builder, current_trace
from jali.codegen.storage_formats import ArrayArgument, Ratio
from jali.codegen.symbol import Symbol, WithoutValue
from jali.codegen.types import Element, Type
from jali.codegen.values import Value, lift
from jali.files import value_shown


class Site(WithoutValue):
    """The site of the loop, or a site at a fixed offset from it."""

    __slots__ = ("_offset", "_trace", "ratio")

    def advice(self) -> str:
        """What the user should write instead."""
        return "X is a site, not a number; its coordinates are X.coordinate(mu)"

    def __init__(self, trace: Trace, offset: dirs.Offset, ratio: Ratio | None = None):
        self._trace = trace
        self._offset = offset
        self.ratio = ratio  # of the lattice that it is a site of; None: that of the loop

    def __repr__(self) -> str:
        return f"<site X {self._offset}>" if self._offset.steps else "<site X>"

    def _shift(self, other: Any, sign: int) -> Site:
        if not isinstance(other, dirs.Offset):
            text = (
                f"{type(other).__name__} {value_shown(other)}"
                if not isinstance(other, Symbol)
                else repr(other)
            )
            raise trace_error(f"a site is shifted by directions (X + mu, X - 2*mu), not by {text}")
        moved = self._offset + (other if sign > 0 else -other)
        try:
            moved.vector(self._trace.ndim)
            other.vector(self._trace.ndim)
        except IndexError as error:
            raise trace_error(str(error)) from None
        return Site(self._trace, moved, self.ratio)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, Site):
            return super().__eq__(other)
        return (self.vector, self.ratio) == (other.vector, other.ratio)

    def __hash__(self) -> int:
        return hash((self.vector, self.ratio))

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

    def on(self, field: Any) -> Site:
        """The site of a field's lattice that belongs to this one: on a coarser lattice the site whose block this one is in, on a
        finer one the first site of this one's block. Offsets from it are steps of that lattice."""
        if isinstance(field, Fields) and field.members:
            field = field.members[0]
        if self._trace.capture is not None and hasattr(type(field), "stored_bytes"):
            field = self._trace.capture(field)  # a field of a method's object
        if not isinstance(field, FieldSymbol):
            raise trace_error(f"X.on(f) takes a field, whose lattice it leads to, not {value_shown(field)}")
        if field.ratio == self.ratio:
            return self
        if self.ratio is not None:
            raise trace_error(f"X.on({field.name}) begins at a site of the loop's lattice, not at {self!r}")
        if field.ratio is None:
            return self
        steps = {}
        for axis, step in enumerate(self.vector):
            if step % field.ratio.coarser[axis]:
                raise trace_error(
                    f"a step of {step} in direction {axis} ends in no definite site of the lattice of {field.name}, which is "
                    f"{field.ratio}; step there: X.on({field.name}) + mu"
                )
            steps[axis] = step // field.ratio.coarser[axis] * field.ratio.finer[axis]
        return Site(self._trace, dirs.Offset(steps, self._offset.given), field.ratio)

    def block(self, field: Any) -> list[Site]:
        """All sites of a field's finer lattice that belong to this one, the last direction fastest."""
        first = self.on(field)
        if first.ratio is None or max(first.ratio.coarser) > 1:
            raise trace_error(
                f"X.block(f) are the sites of a field of a finer lattice; that of {value_shown(field)} is "
                f"{first.ratio or 'the lattice of the loop'}"
            )
        mus = self.directions()
        steps = itertools.product(*map(range, first.ratio.finer))
        return [first + sum((n * mu for n, mu in zip(by, mus, strict=True)), dirs.Offset({})) for by in steps]

    def _axis(self, mu: Any) -> int:
        if self.ratio is not None:
            raise trace_error("coordinates and extents are those of the loop's lattice: ask X, not X.on(f)")
        if isinstance(mu, dirs.Offset) and not isinstance(mu, dirs.Direction):
            raise trace_error(f"{value_shown(mu)} is an offset, not one direction; use X.directions()[...]")
        try:
            axis = operator.index(mu)
        except TypeError:
            raise trace_error(
                f"{value_shown(mu)} is not a direction; use X.directions()[...] or its number"
            ) from None
        if not 0 <= axis < self._trace.ndim:
            raise trace_error(
                f"direction {axis} does not exist on a lattice of {self._trace.ndim} dimensions"
            )
        return axis

    def coordinate(self, mu: Any) -> Value:
        """Global coordinate in direction mu, 0 to extent - 1, an integer."""
        axis = self._axis(mu)
        return Value(leaves.coordinate(builder(), axis, self.vector[axis]))

    def extent(self, mu: Any) -> Value:
        """Global extent of the lattice in direction mu, an integer."""
        return Value(leaves.extent(builder(), self._axis(mu)))

    @property
    def member(self) -> Value:
        """The number of the member of a batch that is computed, 0 to batch - 1, an integer."""
        members = max((slot.batch for slot in self._trace.slots), default=0)
        if not members:
            raise trace_error(
                "X.member is asked for where no field has a batch: Field(lattice, element, batch=8)"
            )
        return Value(leaves.member(builder(), members))

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
        if not callable(attempt):
            raise trace_error(
                f"repeat_until calls a function, attempt() -> (accepted, value); {value_shown(attempt)} is none"
            )
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= 100_000:
            raise trace_error(
                f"repeat_until needs a fixed bound between 1 and 100000, not {value_shown(limit)}"
                + ("; capture the number" if isinstance(limit, Value) else "")
            )
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
        nodes = trace.builder
        pairs = []
        for v, o in zip(values, others, strict=True):
            if v.type.shape != o.type.shape:
                raise trace_error(f"the attempt returns {v.type}, otherwise is {o.type}: the shapes differ")
            pairs.append(conversions.common(nodes, v, o, "repeat_until"))
        first_draw = first + limit * loop.draws
        if first_draw > MOST_DRAWS:
            raise trace_error(
                f"{limit} attempts of {2 * loop.draws} random numbers need more than the {2 * MOST_DRAWS} that one call has for a site; "
                "lower the limit"
            )
        trace.draws = [first_draw for _ in trace.draws]
        repeated = rejection_loops.repeat(
            nodes, loop.number, accept, [v for v, _ in pairs], [o for _, o in pairs]
        )
        results = [
            Value(rejection_loops.repeat_value(nodes, repeated, k, v.type)) for k, (v, _) in enumerate(pairs)
        ]
        return results[0] if single else tuple(results)


class FieldValue(Value):
    """What was read of a field: a value whose components can be written where it was read, `f[X][0] = x`.

    After `f[X][0] = x` this object is no longer referenced. After `v = f[X]; v[0] = x` it is, and a copy or the field may have
    been meant; so the field is written, and a later use of `v` is an error that states the right form.
    """

    __slots__ = ("_field", "_read", "_site", "_written")

    def __init__(self, field: FieldSymbol, site: Any, node: Node):
        self._field = field
        self._site = site
        self._read = node
        self._written = False

    @property
    def node(self) -> Node:  # type: ignore[override]
        """The node that was read. Raises TraceError once a component has been assigned."""
        if self._written:
            name = self._field.name
            raise trace_error(
                f"a component of this value of {name} was assigned, and that wrote {name}: read {self._field.example} again, or "
                f"assign to a value of your own, v = {self._field.example}.copy()"
            )
        return self._read

    def __setitem__(self, index: Any, value: Any) -> None:
        """Writes components of the field where this was read."""
        now = self._field[self._site]
        if not self._written and now._read is not self._read:
            raise trace_error(
                f"{self._field.name} has been written since this value was read; write {self._field.example}[{index}] = ..."
            )
        self._field[self._site] = Value(now._with(index, value))
        self._field._trace.by_component.add((self._field.slot, self._site.vector))
        self._written = True


class FieldSymbol(WithoutValue):
    """A field inside a site function: `f[X]` reads, `f[X] = value` and `f[X] += value` write."""

    __slots__ = ("_trace", "element", "name", "open", "ratio", "slot")

    def __init__(
        self,
        trace: Trace,
        slot: int,
        name: str,
        element: Element,
        ratio: Ratio | None = None,
        open: tuple[int, ...] = (),
    ):
        self._trace = trace
        self.slot = slot
        self.name = name
        self.element = element
        self.ratio = ratio
        self.open = open

    def advice(self) -> str:
        """What the user should write instead."""
        return f"{self.name} is a field; a value at a site is {self.example}"

    @property
    def example(self) -> str:
        """How a value of this field is written."""
        return f"{self.name}[X]"

    def __repr__(self) -> str:
        return f"<field {self.name}: {self.element}>"

    def _offset(self, site: Any) -> tuple[int, ...]:
        if not isinstance(site, Site):
            raise trace_error(
                f"{self.name} is indexed by a site, {self.name}[X + mu], not by {value_shown(site)}"
            )
        if not self._trace is site._trace is current_trace():
            raise trace_error(
                "a site or field of an earlier trace: symbols cannot be kept; use the function's own X and parameters"
            )
        if site.ratio != self.ratio:
            what = "the lattice of the loop" if self.ratio is None else f"a lattice {self.ratio}"
            raise trace_error(
                f"{self.name} lives on {what}; its value there is {self.name}[X.on({self.name})]"
            )
        if site._offset.given:
            self._trace.given.add(site.vector)
        return site.vector

    def __getitem__(self, site: Any) -> Any:
        if isinstance(site, tuple):
            site, member = self._with_member(site)
            return Value(self._trace.load(self.slot, self._offset(site), member))
        return FieldValue(self, site, self._trace.load(self.slot, self._offset(site)))

    def _with_member(self, index: tuple[Any, ...]) -> tuple[Any, Node]:
        """Site and member of an index `f[X, k]`: a number, or a whole number of the site such as X.member + 1; both count round the batch."""
        members = self._trace.slots[self.slot].batch
        if not members:
            raise trace_error(
                f"{self.name} is indexed by a site, {self.example}: {self.name} has no batch, whose member k would be {self.name}[X, k]"
            )
        if len(index) != 2 or not isinstance(index[0], Site):
            raise trace_error(
                f"{self.name} is indexed by a site and a member, {self.name}[X, k], not by {value_shown(index)}"
            )
        site, member = index
        if isinstance(member, Value):
            node = lift(member)
            if node.type != INT:
                raise trace_error(
                    f"a member of {self.name} is named by a whole number, X.member + 1, not by a {node.type}"
                )
            if not leaves.is_fixed(node, members=True):
                raise trace_error(
                    f"a member of {self.name} is named by a number that is the same at all sites, such as X.member + 1 or an argument"
                )
            return site, node
        wrong = isinstance(member, bool | np.bool_ | dirs.Direction)  # which are numbers to Python
        try:
            k = 0 if wrong else operator.index(member)
        except TypeError:
            wrong = True
        if wrong:
            raise trace_error(
                f"a member of {self.name} is named by a whole number, such as X.member + 1 or 2, not by {value_shown(member)}"
            )
        return site, leaves.const(self._trace.builder, k % members)

    def __setitem__(self, site: Any, value: Any) -> None:
        if isinstance(site, tuple):
            raise trace_error(
                f"a call writes the member that it computes, {self.name}[X] = ...; f.members[k] is one member as a field of its own"
            )
        if self.ratio is not None:
            raise trace_error(
                f"{self.name} is written but lives on another lattice, {self.ratio}: a site function runs over the lattice of its first "
                f"field, and writes that alone; put {self.name} in front"
            )
        self._trace.store(self.slot, self._offset(site), lift(value))

    def __iter__(self) -> Iterator[Any]:
        raise trace_error(f"{self.name} is one field; it cannot be iterated")


class ArrayValue(Value):
    """An array that is an argument: a vector or matrix, and a table that is indexed by whole numbers of the site."""

    __slots__ = ("_argument", "_name", "_own", "_slot", "_trace")

    def __init__(self, trace: Trace, slot: int, name: str, argument: ArrayArgument):
        self._trace = trace
        self._slot = slot
        self._name = name
        self._argument = argument
        self._own: Node | None = None

    @property
    def node(self) -> Node:
        """All its numbers. Raises TraceError where they are too many to be used whole."""
        if self._own is None:
            if not self._argument.is_value:
                raise trace_error(
                    f"{self._name}, an array of shape {self._argument.shape}, is a table: index it, as in {self._name}[X.coordinate(0)]; "
                    "vectors and matrices of up to 256 numbers are used whole, others make it a Field"
                )
            kind = "complex" if self._argument.kind == "complex" else "real"
            self._own = leaves.scalar(self._trace.builder, self._slot, Type(kind, self._argument.shape))
        return self._own

    @node.setter
    def node(self, node: Node) -> None:
        self._own = node

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape in NumPy."""
        return self._argument.shape

    def __repr__(self) -> str:
        return f"<array {self._name}: {self._argument.kind} {self._argument.shape}>"

    def _named(self) -> str:
        return f"{self._name}, an array of shape {self._argument.shape},"

    def _instead_of_field(self) -> str:
        return (
            f"give lattice.wrap({self._name}), a field of this rank's part in the array's own memory, or a Field that is set by "
            f"f[...] = {self._name}. An array that is an argument is indexed by whole numbers, {self._name}[X.coordinate(0)]"
        )

    def __setitem__(self, index: Any, value: Any) -> None:
        self._refuse_site(index)
        super().__setitem__(index, value)

    def __getitem__(self, index: Any) -> Value:
        self._refuse_site(index)
        indices = index if isinstance(index, tuple) else (index,)
        known = not any(isinstance(i, Value) for i in indices)
        if known and (self._own is not None or self._argument.is_value):
            if self._argument.kind != "int" or not leaves.scalar.made(self.node):
                return super().__getitem__(index)
            positions, shape = self._components(index)
            if shape:
                return super().__getitem__(index)
            return Value(leaves.whole(self._trace.builder, self._slot, positions[0]))
        if self._own is not None and not leaves.scalar.made(self._own):
            raise trace_error(f"{self._name} has been assigned to and is no table any more; keep a copy")
        shape = self._argument.shape
        rest = shape[len(indices) :]
        if len(indices) > len(shape) or len(rest) > 2 or Type("real", rest).size > 256:
            raise trace_error(
                f"{self._name}, an array of shape {shape}, is indexed by {len(indices)} whole numbers; what is left must be a number, or a "
                "vector or matrix of at most 256 numbers"
            )
        if any(isinstance(i, slice) or i is Ellipsis or i is None for i in indices):
            raise trace_error(
                f"{self._name} is indexed by whole numbers, the last indices are left out; slices are taken before"
            )
        nodes = [lift(i) for i in indices]
        kind = "real" if rest and self._argument.kind == "int" else self._argument.kind  # as vectors are
        return Value(leaves.table(self._trace.builder, self._slot, nodes, Type(kind, rest)))


class Fields(WithoutValue, Sequence[Any]):
    """Several fields in one argument, indexed by a direction or a number: `U[mu]`."""

    def __init__(self, name: str, members: list[Any]):
        self.name = name
        self.members = members

    def __repr__(self) -> str:
        return f"<list {self.name} of {len(self)}>"

    def advice(self) -> str:
        """What the user should write instead."""
        if all(isinstance(member, Value) for member in self.members):
            return f"{self.name} is a list of numbers; one of them is {self.name}[0]"
        return f"{self.name} is a list of {len(self)} fields; a value at a site is {self.example}"

    @property
    def example(self) -> str:
        """How a value of these fields is written."""
        return f"{self.name}[mu][X]"

    @property
    def open(self) -> tuple[int, ...]:
        """The directions in which the boundary of the first field is open."""
        return self.members[0].open if self.members else ()

    def __setitem__(self, index: Any, value: Any) -> None:
        raise trace_error(
            f"a member of {self.name} cannot be replaced; a value at a site is written {self.example} = ..."
        )

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.members)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, Site):
            if self.members and all(isinstance(member, Value) for member in self.members):
                self.members[0]._refuse_site(index)
            raise trace_error(f"{self.name} is a list of {len(self)} fields: write {self.example}")
        if isinstance(index, Value):
            of_numbers = self.members and all(isinstance(member, Value) for member in self.members)
            right = f"the array np.array({self.name})" if of_numbers else "a field with a batch, f[X, k],"
            raise trace_error(
                f"{self.name} is a list, which numbers known while tracing index; {right} is indexed by X.member and such whole numbers"
            )
        try:
            k = operator.index(index)
        except TypeError:
            hint = f"; write {self.example}" if isinstance(index, tuple) else ""
            if isinstance(index, dirs.Offset):
                hint = f"; the link against mu is {self.name}[mu][X - mu].dagger()"
            raise trace_error(
                f"{self.name} is indexed by a direction or a number, not by {value_shown(index)}{hint}"
            ) from None
        if not -len(self) <= k < len(self):
            raise trace_error(f"{self.name} has {len(self)} members; {k} does not exist")
        return self.members[k]


class Accumulator(WithoutValue):
    """What a call gathers over sites: `total += value`, `high.max(value)` or `low.min(value)`, once or several times."""

    __slots__ = ("_gathered", "_trace", "name")

    def advice(self) -> str:
        """What the user should write instead."""
        return (
            f"a sum can only be added to: {self.name} += value; maxima and minima are {self.name}.max(value), {self.name}.min(value) "
            f"({self.name} is one of these because the call was given no argument for it)"
        )

    def __init__(self, trace: Trace, gathered: Gathered, name: str):
        self._trace = trace
        self._gathered = gathered
        self.name = name

    def __repr__(self) -> str:
        return f"<accumulator {self.name}>"

    def __iadd__(self, value: Any) -> Accumulator:  # type: ignore[misc]
        self._add(value, None)
        return self

    def _add(self, value: Any, label: Node | None) -> None:
        """A term of the sum, or of its entry with this label."""
        node = self._term(value, "sum" if label is None else "entries")
        if node.type.kind == "bool":
            raise trace_error("a boolean cannot be summed; use jali.where(condition, 1, 0)")
        exact = self._gathered.whole or ARITHMETICS[self._trace.precision].widens_whole
        if node.type.kind == "int" and not exact:
            node = conversions.convert(self._trace.builder, node, "real")
        values = self._gathered.values
        for other in [one for several in values.values() for one in several]:
            if other.type.shape != node.type.shape:
                raise trace_error(f"{self.name} is given a {node.type}, and a {other.type} elsewhere")
        terms = values.setdefault(label, [])
        if node.type.kind == "int":
            terms.append(node)
        elif terms and terms[0].type.kind != "int":
            terms[0] = arithmetic.add(self._trace.builder, terms[0], node)
        else:
            terms.insert(0, node)

    def __getitem__(self, label: Any) -> Entry:
        return Entry(self, self._label(label))

    def __setitem__(self, label: Any, entry: Any) -> None:
        if (
            not isinstance(entry, Entry)
            or entry.accumulator is not self
            or entry.label is not self._label(label)
        ):
            raise trace_error(f"an entry of {self.name} can only be added to: {self.name}[label] += value")

    def _label(self, label: Any) -> Node:
        """A label as a node. Raises TraceError for a value that is not a whole number."""
        hint = f"{self.name}[label] += value takes one whole number per site, such as X.coordinate(mu), jali.floor(x) or jali.round(x)"
        if isinstance(label, Site):
            raise trace_error(self.advice())
        if isinstance(label, slice | tuple | FieldSymbol):
            raise trace_error(f"{hint}, not {value_shown(label)}")
        node = lift(label)
        gives_whole = described(node).gives_whole
        whole = node.type.kind == "int" or (gives_whole is not None and gives_whole(node))
        if node.type.shape or not whole:
            raise trace_error(f"{hint}, not a {node.type}")
        if leaves.is_constant(node) and node.attrs[0] < 0:
            raise trace_error(f"{hint}, counted from 0; {node.attrs[0]} is no entry")
        return node

    def __isub__(self, value: Any) -> Accumulator:  # type: ignore[misc]
        return self.__iadd__(Value(arithmetic.neg(builder(), lift(value))))

    def max(self, value: Any) -> None:
        """It becomes the largest of these numbers, over all sites; NaN if one of them is."""
        self._compare(value, "max")

    def min(self, value: Any) -> None:
        """It becomes the smallest of these numbers, over all sites; NaN if one of them is."""
        self._compare(value, "min")

    def _term(self, value: Any, how: str) -> Node:
        """The value of a term. Raises TraceError where it is gathered otherwise already."""
        if self._trace.loop is not None:
            summed = how in ("sum", "entries")
            what = "a sum" if summed else f"{self.name}.{how}(...)"
            raise trace_error(
                f"{what} inside repeat_until; {'add' if summed else 'take'} the accepted value after it"
            )
        node, gathered = lift(value), self._gathered
        if gathered.how not in ("", how):
            words = {
                "sum": f"{self.name} += ...",
                "entries": f"{self.name}[label] += ...",
                "max": f"{self.name}.max(...)",
                "min": f"{self.name}.min(...)",
            }
            raise trace_error(
                f"{words[how]} after {words[gathered.how]} (at {gathered.where}): an accumulator is a sum, sums by label, a maximum or a "
                "minimum; give the function one parameter for each"
            )
        gathered.how, gathered.where = how, gathered.where or user_line()
        return node

    def _compare(self, value: Any, how: str) -> None:
        node, nodes, gathered = self._term(value, how), self._trace.builder, self._gathered
        if node.type.kind not in ("int", "real") or node.type.shape:
            hint = {
                "bool": "; take jali.where(condition, 1, 0)",
                "complex": "; complex numbers have no order: take .real, .imag or abs()"
                if not node.type.shape
                else "",
            }.get(node.type.kind, "")
            raise trace_error(
                f"{self.name}.{how}(x) compares real or whole numbers, and x is a {node.type}"
                f"{'; give it one component at a time' if node.type.shape else hint}"
            )
        for before in gathered.values.get(None, ()):
            before, node = conversions.common(nodes, before, node, f"{self.name}.{how}")
            beyond = Value(node) > Value(before) if how == "max" else Value(node) < Value(before)
            if node.type.kind == "real":
                beyond = beyond | (Value(node) != Value(node))  # NaN stays
            node = choices.where(nodes, lift(beyond), node, before)
        gathered.values[None] = [node]


class Entry(WithoutValue):
    """What `total[label]` is for the moment of `total[label] += value`."""

    __slots__ = ("accumulator", "label")

    def __init__(self, accumulator: Accumulator, label: Node):
        self.accumulator = accumulator
        self.label = label

    def advice(self) -> str:
        """What the user should write instead."""
        return f"an entry of a sum can only be added to: {self.accumulator.name}[label] += value"

    def __repr__(self) -> str:
        return f"<entry of {self.accumulator.name}>"

    def __iadd__(self, value: Any) -> Entry:  # type: ignore[misc]
        self.accumulator._add(value, self.label)
        return self

    def __isub__(self, value: Any) -> Entry:  # type: ignore[misc]
        return self.__iadd__(Value(arithmetic.neg(builder(), lift(value))))

    def max(self, value: Any) -> None:
        """Refuses: entries are sums. Raises TraceError."""
        raise trace_error(f"by label there are sums only: {self.accumulator.name}[label] += value")

    min = max


class RandomSymbol(WithoutValue):
    """Random numbers at a site: reproducible functions of (seed, stream, site, call, draw)."""

    __slots__ = ("_slot", "_trace", "name")

    def __init__(self, trace: Trace, slot: int, name: str):
        self._trace = trace
        self._slot = slot
        self.name = name

    def __repr__(self) -> str:
        return f"<random numbers {self.name}>"

    def advice(self) -> str:
        """What the user should write instead."""
        return f"{self.name} is a source of random numbers; draw one with {self.name}.uniform(X), {self.name}.gaussian(X) or {self.name}.integers(X, n)"

    def _check(self, site: Any) -> None:
        if not isinstance(site, Site) or any(site.vector) or site.ratio is not None:
            raise trace_error(f"random numbers belong to the loop's own site: {self.name}.uniform(X)")

    def uniform(self, site: Any) -> Value:
        """A real number uniform in the open interval (0, 1)."""
        self._check(site)
        return Value(self._trace.draw(self._slot, "uniform"))

    def gaussian(self, site: Any) -> Value:
        """A real number from the normal distribution with mean 0 and variance 1."""
        self._check(site)
        return Value(self._trace.draw(self._slot, "gaussian"))

    def integers(self, site: Any, n: Any) -> Value:
        """A whole number from 0 to n - 1, each with probability 1/n (up to 2^-128); n may be an argument."""
        self._check(site)
        return Value(self._trace.draw_integer(self._slot, lift(n)))
