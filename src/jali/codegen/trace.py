"""Tracing: runs a site function once over symbols and returns what it computes as `SiteProgram`s.

The symbols are `Site` (X and its shifts), `FieldSymbol`, `Accumulator`, `RandomSymbol` and `Value`. Tracing depends on element
types, the number of dimensions and which boundaries are open, not on extents, ranks or memory; whether a read can hit a written
site is decided later, for a lattice and a domain.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from jali.codegen import directions as dirs
from jali.codegen import state as tracing
from jali.codegen.interruptible import interruptible
from jali.codegen.ir import FieldSlot, Label, Node, SiteProgram, Store, Sum
from jali.codegen.language import leaves, terms
from jali.codegen.lines import line_of_error, line_of_function, trace_error
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable
from jali.codegen.state import Gathered, Trace
from jali.codegen.storage_formats import ArrayArgument, FieldArgument
from jali.codegen.symbols import Accumulator, ArrayValue, Fields, FieldSymbol, RandomSymbol, Site
from jali.codegen.types import Type
from jali.codegen.values import Value
from jali.errors import TraceError


def trace(
    function: Callable[..., Any],
    arguments: Sequence[Any],
    names: Sequence[str],
    ndim: int,
    precision: str,
    outside: Any = None,
) -> list[SiteProgram]:
    """Runs `function(X, *symbols)` once and returns its programs (one, unless writes carry different offsets).

    `arguments` holds `FieldArgument`, a list of them, `ArrayArgument`, `Type` (a run-time scalar of that type), the strings `"random"` and
    `"sum"`, or `("static", object)`, one for each of the parameters; `names` are these. `outside`
    (`jali.lattice.arguments.Outside`) describes fields that are used without being arguments, and has values of arguments that offsets
    are made of; None: there are none. Raises TraceError at the user's line.
    """
    if getattr(tracing.active, "trace", None) is not None:
        raise trace_error(
            "a site function cannot be started inside another; call it as function(X, ...) to inline it"
        )
    state = Trace(ndim, precision)
    slots: dict[int, FieldSymbol] = {}
    scalars = state.scalars
    randoms: list[str] = []

    def field_symbol(argument: FieldArgument, name: str) -> FieldSymbol:
        found = slots.get(argument.identity)
        if found is None:
            state.slots.append(
                FieldSlot(
                    name,
                    argument.storage,
                    ratio=argument.ratio,
                    batch=argument.batch,
                    factors=argument.factors,
                )
            )
            element, slot = argument.storage.element, len(state.slots) - 1
            found = FieldSymbol(state, slot, name, element, argument.ratio, argument.open)
            slots[argument.identity] = found
        return found

    def symbol(argument: Any, name: str) -> Any:
        if isinstance(argument, FieldArgument):
            return field_symbol(argument, name)
        if isinstance(argument, list):
            return Fields(name, [symbol(a, f"{name}[{k}]") for k, a in enumerate(argument)])
        if isinstance(argument, Type):
            scalars.append((name, argument))
            return Value(leaves.scalar(state.builder, len(scalars) - 1, argument))
        if isinstance(argument, ArrayArgument):
            whole = Type("complex" if argument.kind == "complex" else "real", argument.shape)
            scalars.append((name, whole))
            return ArrayValue(state, len(scalars) - 1, name, argument)
        if argument == "sum":
            state.gathered.append(Gathered())
            return Accumulator(state, state.gathered[-1], name)
        if argument == "random":
            randoms.append(name)
            state.draws.append(0)
            return RandomSymbol(state, len(randoms) - 1, name)
        return argument[1]

    def capture(field: Any) -> FieldSymbol:
        outside.take(field)
        return field_symbol(outside.describe(field), field.name)

    tracing.active.trace = state
    try:
        symbols = [symbol(a, n) for a, n in zip(arguments, names, strict=True)]
        if outside is not None:
            state.number = lambda slot, component: outside.number(scalars[slot][0], component)
        if outside is not None and outside.of_object:
            for field in outside.known:  # so that slots are in the order of the launch's fields
                field_symbol(outside.describe(field), field.name)
            state.capture = capture
        positional = len(symbols) - function.__code__.co_kwonlyargcount
        by_name = dict(zip(names[positional:], symbols[positional:], strict=True))
        with interruptible():
            result = _run(function, Site(state, dirs.Offset({})), *symbols[:positional], **by_name)
        if result is not None:
            raise _error_in(
                function,
                f"{function.__name__} returned a value; a site function writes fields (f[X] = ...) or adds to sums (total += ...)",
            )
        named = [name for a, name in zip(arguments, names, strict=True) if a == "sum"]
        return _finish(state, function, precision, scalars, randoms, named)
    finally:
        tracing.active.trace = None


# What Python raises by itself for a mistake. An error that the user's own code raises passes through as it is.
_PYTHONS = (
    TypeError,
    AttributeError,
    NameError,
    LookupError,
    ValueError,
    ArithmeticError,
    RecursionError,
)
_WORDS = (
    ("'Value'", "'symbol'"),
    ("'ArrayValue'", "'array'"),
    ("'FieldValue'", "'symbol'"),
    ("'FieldSymbol'", "'field'"),
    ("'Fields'", "'list of fields'"),
    ("'Site'", "'site'"),
    ("'Accumulator'", "'accumulator'"),
    ("'RandomSymbol'", "'Random'"),
)


def _run(function: Callable[..., Any], *symbols: Any, **by_name: Any) -> Any:
    """Calls the function; what Python finds wrong in it is a TraceError at the user's line, too."""
    try:
        return function(*symbols, **by_name)
    except _PYTHONS as error:
        line, raised = line_of_error(error.__traceback__)
        if type(error).__module__ != "builtins" or raised:
            raise
        text = str(error)
        for name, word in _WORDS:
            text = text.replace(name, word)
        if "'method'" in text or "'builtin_function_or_method'" in text:
            text += "; a method is called with parentheses, m.dagger()"
        if "object is not callable" in text:
            text += "; .real, .imag and .shape are written without parentheses, and a site function is called as f(X, ...)"
        raise TraceError(f"{function.__name__}: {type(error).__name__}: {text}\n  at {line}") from error


def _error_in(function: Callable[..., Any], message: str) -> TraceError:
    """A mistake of the whole function, at the line where the user defines it, or calls it if it is jali's own."""
    return TraceError(f"{message}\n  at {line_of_function(function)}")


def _finish(
    state: Trace,
    function: Callable[..., Any],
    precision: str,
    scalars: list[tuple[str, Type]],
    randoms: list[str],
    names: Sequence[str],
) -> list[SiteProgram]:
    """The programs of a trace that has run; `names` are those of its sums."""
    name = function.__name__
    sums: list[Sum] = []
    types: list[Type] = []
    labels: dict[Node, int] = {}
    for slot, gathered in enumerate(state.gathered):
        if not gathered.values:
            raise _error_in(
                function,
                f"{name} never adds to its sum number {slot + 1}, {names[slot]}",
            )
        how = "sum" if gathered.how == "entries" else gathered.how
        summed = how == "sum"
        values = {k: terms.joined(state.builder, v) if summed else v[0] for k, v in gathered.values.items()}
        kinds = {value.type.kind for value in values.values()}
        for label, value in values.items():
            if len(kinds) > 1:
                value = terms.joined(state.builder, gathered.values[label], "complex")
            number = -1 if label is None else labels.setdefault(label, len(labels))
            sums.append(Sum(slot, value, gathered.where, how, names[slot], number))
        types.append(sums[-1].value.type)
    offsets = list(dict.fromkeys(store.offset for store in state.stores.values()))
    if not offsets and not sums:
        raise _error_in(function, f"{name} neither writes a field nor adds to a sum")
    if any(any(offset) for offset in offsets) and any(slot.ratio for slot in state.slots):
        store = next(s for s in state.stores.values() if any(s.offset))
        raise TraceError(
            f"{name} writes at an offset, {store.offset}, and has fields of two lattices: write at the loop's own site\n"
            f"  at {store.where}"
        )
    if len(offsets) > 1:
        written = {store.slot for store in state.stores.values()}
        for slot in written:
            field = state.slots[slot]
            if field.reads:
                line = next(iter(field.reads.values()))
                hint = f" (read at {line}); do it in several site functions"
                if all((slot, offset) in state.by_component for offset in field.reads):
                    hint = (
                        f": to assign a component, {field.name}[X + mu][k] = ..., reads the others, which stay. Pull instead of "
                        f"pushing, {field.name}[X][k] = f[X - mu][k], or write whole values"
                    )
                raise TraceError(
                    f"{name} writes at several offsets ({', '.join(map(str, offsets))}) and reads {field.name}, which it writes"
                    f"{hint}\n  at {line}"
                )
        if randoms and sums:
            raise _error_in(
                function, f"{name} mixes sums with writes at several offsets; do it in several site functions"
            )
    gathered_at = {term.label: term.where for term in sums}
    labelled = [Label(k, node, gathered_at[k]) for node, k in labels.items()]
    every: list[Store | Sum | Label] = [*state.stores.values(), *sums, *labelled]
    programs = []
    counted: set[int] = set()  # loops that an earlier program contains
    for k, offset in enumerate(offsets or [(0,) * state.ndim]):
        effects = [e for e in every if (e.offset == offset if isinstance(e, Store) else k == 0)]
        nodes = reachable(effect.value for effect in effects)
        loops = [replace(loop, counted=loop.number not in counted) for loop in state.loops]
        counted |= {node.attrs[0] for node in nodes if described(node).repeats}
        program = SiteProgram(
            name if k == 0 else f"{name}_{k}",
            state.ndim,
            precision,
            state.slots,
            scalars,
            randoms,
            effects,
            types if k == 0 else [],
            loops=loops,
            given=frozenset(state.given),
            batch=_batch_of(name, state.slots, effects, nodes),
        )
        programs.append(program)
    return programs


def _batch_of(name: str, slots: list[FieldSlot], effects: list[Any], nodes: list[Node]) -> int:
    """The number of members for each of which a program runs; 0 where it is about none. Raises TraceError where batches differ, and where
    all members would write one value."""
    stores = {e.slot: e for e in effects if isinstance(e, Store)}
    for node in nodes:
        if described(node).reads and node.args and node.attrs[0] in stores:
            raise TraceError(
                f"{name} writes {slots[node.attrs[0]].name} (at {stores[node.attrs[0]].where}) and reads another member of it: the result would "
                f"depend on the order of the members. Write to another field\n  at {node.where}"
            )
    own = [
        (slots[n.attrs[0]], f"reads {slots[n.attrs[0]].name}", n.where)
        for n in nodes
        if described(n).reads and not n.args
    ]
    own += [(slots[e.slot], f"writes {slots[e.slot].name}", e.where) for e in effects if isinstance(e, Store)]
    batches = [(slot.batch, does, where) for slot, does, where in own if slot.batch]
    batches += [(0, "asks for its member", n.where) for n in nodes if described(n).of_member and not n.args]
    if not batches:
        return 0
    members, first, at = max(batches)
    for other, does, where in batches:
        if other not in (0, members):
            raise TraceError(
                f"{name} {first}, a batch of {members} (at {at}), and {does}, a batch of {other}: one call is about batches of one size; "
                f"f[X, k] reads member k of any\n  at {where}"
            )
    if not members:
        raise TraceError(
            f"{name} asks for X.member, and neither reads nor writes a field with a batch at its own member, f[X]: what it computes is about no "
            f"member\n  at {at}"
        )
    for slot, does, where in own:
        if does.startswith("writes") and not slot.batch:
            raise TraceError(
                f"{name} {first}, a batch of {members} (at {at}), and {does}, which has none: all members would write there. Give "
                f"{slot.name} a batch, or read one member, f[X, k]\n  at {where}"
            )
    for effect in effects:
        if isinstance(effect, Label):
            raise TraceError(
                f"{name} sums by label and {first}, a batch of {members}: a label is one of a site\n  at {effect.where}"
            )
    return members
