"""A site function inside the trace of one that is derived from it: its body runs once over symbols of its own, and what it would write
or sum is kept as values, which share the nodes, slots and numbers of the trace around it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from jali.codegen import directions as dirs
from jali.codegen import state as tracing
from jali.codegen.ir import Node, Store
from jali.codegen.language import terms
from jali.codegen.lines import trace_error
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable
from jali.codegen.state import Gathered, Trace
from jali.codegen.storage_formats import Ratio
from jali.codegen.symbols import Accumulator, Fields, FieldSymbol, RandomSymbol, Site


@dataclass
class Term:
    """What a site adds to a sum, to its entry `label` where there are several."""

    name: str
    value: Node
    label: Node | None
    how: str
    where: str


@dataclass
class Inlined:
    """What a site function does at a site, as values. `ratio` is that of its loop's lattice to the one of the trace around it."""

    stores: list[Store]
    terms: list[Term]
    ratio: Ratio | None
    captured: list[int] = field(default_factory=list)  # slots of fields that are no arguments


def relative(ratio: Ratio | None, to: Ratio | None) -> Ratio | None:
    """The ratio of a lattice to another one, where both are known beside a third."""
    if to is None:
        return ratio
    ndim = len(to.coarser)
    own = ratio or Ratio((1,) * ndim, (1,) * ndim)
    each = [
        Fraction(c * to_f, f * to_c)  # so many times coarser
        for c, f, to_c, to_f in zip(own.coarser, own.finer, to.coarser, to.finer, strict=True)
    ]
    if all(one == 1 for one in each):
        return None
    return Ratio(tuple(max(1, one.numerator) for one in each), tuple(max(1, one.denominator) for one in each))


def fields_in(symbol: Any) -> list[FieldSymbol]:
    """The fields of a parameter."""
    if isinstance(symbol, FieldSymbol):
        return [symbol]
    if isinstance(symbol, Fields | list | tuple):
        return [one for member in symbol for one in fields_in(member)]
    return []


def loads_of(roots: Iterable[Node], slots: set[int]) -> list[Node]:
    """The reads of fields, by their slots, that values are made of."""
    return [node for node in reachable(roots) if described(node).reads and node.attrs[0] in slots]


class _InnerTrace(Trace):
    """What is written is a value here, and need not be one that a field can hold which stands in its place."""

    def check_symmetry(self, field: Any, value: Node) -> None:
        """Nothing: the derived function checks what it writes itself."""


def inlined(outer: Trace, function: Any, symbols: Mapping[str, Any], sums: Sequence[str]) -> Inlined:
    """Runs the body of a site function over symbols of the trace around it; `sums` are the parameters that are sums."""
    inner = _InnerTrace(outer.ndim, outer.precision)
    inner.builder, inner.slots, inner.scalars = outer.builder, outer.slots, outer.scalars
    inner.loops, inner.draws, inner.number, inner.given = outer.loops, outer.draws, outer.number, outer.given
    given = [one for name in function.parameters if name in symbols for one in fields_in(symbols[name])]
    loop = given[0].ratio if given else None
    captured: list[int] = []

    def own(symbol: Any) -> Any:
        if isinstance(symbol, FieldSymbol):
            ratio = relative(symbol.ratio, loop)
            return FieldSymbol(inner, symbol.slot, symbol.name, symbol.element, ratio, symbol.open)
        if isinstance(symbol, Fields):
            return Fields(symbol.name, [own(member) for member in symbol.members])
        if isinstance(symbol, list | tuple):
            return [own(member) for member in symbol]
        if isinstance(symbol, RandomSymbol):
            return RandomSymbol(inner, symbol._slot, symbol.name)
        return symbol

    def capture(one: Any) -> Any:
        assert outer.capture is not None
        found = own(outer.capture(one))
        captured.append(found.slot)
        return found

    inner.capture = capture if outer.capture is not None else None
    gathered: dict[str, Gathered] = {name: Gathered() for name in sums}
    arguments = [
        Accumulator(inner, gathered[name], name) if name in gathered else own(symbols[name])
        for name in function.parameters
    ]
    body = function.function
    positional = len(arguments) - body.__code__.co_kwonlyargcount
    by_name = dict(zip(function.parameters[positional:], arguments[positional:], strict=True))
    tracing.active.trace = inner
    try:
        result = body(Site(inner, dirs.Offset({})), *arguments[:positional], **by_name)
        if result is not None:
            raise trace_error(
                f"{function.__name__} returned a value; a site function writes fields (f[X] = ...) or adds to sums (total += ...)"
            )
        found = [
            Term(name, _joined(inner, one, values), label, one.how, one.where)
            for name, one in gathered.items()
            for label, values in one.values.items()
        ]
    finally:
        tracing.active.trace = outer
    return Inlined(list(inner.stores.values()), found, loop, captured)


def _joined(trace: Trace, gathered: Gathered, values: list[Node]) -> Node:
    return terms.joined(trace.builder, values) if gathered.how in ("sum", "entries") else values[0]
