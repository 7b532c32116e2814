"""Rewriting of programs: nodes are made anew by the builder of another program, changed where a rule says so.

A pass is a function from program to program. It calls `rewritten`, which keeps what the language knows of a value (where it was
written, the loops it varies in, its symmetry), and makes equal expressions one node again. Passes over nodes that the language
defines are in `passes.py`, those for messages in `items.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jali.codegen.builder import Builder
from jali.codegen.ir import Label, Node, Output, SiteProgram, Store, Sum
from jali.codegen.language.leaves import read_after
from jali.codegen.operation import described

Offset = tuple[int, ...]
Rule = Callable[[Builder, Node, tuple[Node, ...]], Node | None]
"""What a node becomes, given what its arguments have become; None: the same operation on these."""


Substitute = Callable[[Builder, Callable[[Node], Node]], Node]
"""Makes another value for a node, of what nodes of the old program are in the new one."""


def reachable(roots: Iterable[Node], known: Mapping[int, Any] | None = None) -> list[Node]:
    """All nodes that the roots need, arguments first; none whose number is `known`, and nothing that only these need."""
    seen: set[int] = set() if known is None else set(known)
    order: list[Node] = []
    stack: list[Node | None] = []
    stack += reversed(list(roots))
    while stack:
        node = stack.pop()
        if node is None:  # the arguments of the node below are there
            below = stack.pop()
            assert below is not None
            order.append(below)
        elif node.number not in seen:
            seen.add(node.number)
            stack += (node, None)
            stack += [a for a in reversed(node.args) if a.number not in seen]
    return order


def rebuild(
    nodes: Builder, roots: Iterable[Node], rule: Rule | None = None, known: Mapping[int, Node] | None = None
) -> dict[int, Node]:
    """What the roots and all that they need become, by their numbers, in the order in which they were made.

    `known` are nodes that have become something already. What takes the place of a value has its type, and varies in its loops.
    """
    made = dict(known or {})
    for node in sorted(reachable(roots, known), key=lambda node: node.number):
        args = tuple([made[a.number] for a in node.args])
        found = None if rule is None else rule(nodes, node, args)
        if found is None:
            found = nodes.copied(node, args, node.attrs)
        assert found.type == node.type, f"a {found.type} cannot take the place of {node!r}"
        assert len(found.loops) == len(node.loops), (
            f"{node!r} varies in other loops than what takes its place"
        )
        for symmetry in ("antihermitian", "hermitian"):
            assert getattr(found, symmetry) >= getattr(node, symmetry), (
                f"{node!r} is {symmetry}, and its users rely on that"
            )
        made[node.number] = found
    return made


def rewritten(
    program: SiteProgram,
    what: str,
    rule: Rule | None = None,
    known: Callable[[Builder], Mapping[int, Node]] | None = None,
    **changes: Any,
) -> SiteProgram:
    """A program whose nodes a rule has changed, or are `known` to be others; `what` says it in `inspect`. `changes` are other fields."""
    nodes = Builder(program.precision)
    made = rebuild(nodes, [effect.value for effect in program.effects], rule, known and known(nodes))
    return with_values(program, made, what, **changes)


def with_values(program: SiteProgram, made: Mapping[int, Node], what: str, **changes: Any) -> SiteProgram:
    """A program whose effects have the values that theirs have become; `what` is empty where none is another."""
    effects = [replace(effect, value=made[effect.value.number]) for effect in program.effects]
    rewrites = (*program.rewrites, what) if what else program.rewrites
    return replace(program, effects=effects, rewrites=rewrites, **changes)


def substituted(
    program: SiteProgram, what: str, values: Mapping[Node, Substitute], **changes: Any
) -> SiteProgram:
    """A program in which nodes have other values, made by functions."""

    def known(nodes: Builder) -> Mapping[int, Node]:
        copies: dict[int, Node] = {}

        def copy(node: Node) -> Node:
            copies.update(rebuild(nodes, [node], known=copies))
            return copies[node.number]

        return {node.number: value(nodes, copy) for node, value in values.items()}

    return rewritten(program, what, known=known, **changes)


def moved(offset: Offset, by: Offset) -> Offset:
    """Two offsets one after the other."""
    return tuple([o + b for o, b in zip(offset, by, strict=True)])


def shifted(program: SiteProgram, by: Offset) -> SiteProgram:
    """The program as it is seen from the site that is `by` away from its own: what it does at an offset o, it does at o + `by`."""

    def rule(nodes: Builder, node: Node, args: tuple[Node, ...]) -> Node | None:
        attributes = described(node).shifted
        return None if attributes is None else nodes.copied(node, args, attributes(node.attrs, by))

    found = rewritten(
        program,
        f"shifted by {by}",
        rule,
        given=frozenset(moved(offset, by) for offset in program.given),
        shift=moved(program.shift, tuple(-b for b in by)),
    )
    found.effects = [
        replace(effect, offset=moved(effect.offset, by)) if hasattr(effect, "offset") else effect
        for effect in found.effects
    ]
    return found


def part_of(program: SiteProgram, name: str, values: Sequence[Node]) -> SiteProgram:
    """The part of a program that computes some of its values, as its outputs, one behind the other."""
    nodes = Builder(program.precision)
    made = rebuild(nodes, values)
    outputs, first = [], 0
    for value in values:
        outputs.append(Output(first, made[value.number]))
        first += value.type.reals
    return replace(
        program,
        name=name,
        effects=outputs,
        sums=[],
        outputs=first,
        rewrites=(*program.rewrites, f"{name}: {first} reals"),
    )


def joined(name: str, first: SiteProgram, second: SiteProgram, slots: Sequence[int | None]) -> SiteProgram:
    """One program that does what two do, one after the other; `slots[k]` is the field of the first that field k of the second is,
    None for another one. What the second reads at its own site of a field that the first writes, is the value that is stored.

    Raises ValueError where one kernel cannot do it: where one of the two reads at other sites what the other one writes, and where
    arithmetics, dimensions, written sites or the sites of random numbers differ.
    """
    for what in ("precision", "ndim", "shift"):
        if getattr(first, what) != getattr(second, what):
            raise ValueError(
                f"{first.name} has the {what} {getattr(first, what)}, {second.name} {getattr(second, what)}"
            )
    fields = list(first.fields)
    numbers: list[int] = []
    for field, slot in zip(second.fields, slots, strict=True):
        numbers.append(len(fields) if slot is None else slot)
        fields += [field] if slot is None else []
    begin = {what: len(getattr(first, what)) for what in ("scalars", "randoms", "loops", "items")}
    stores = {effect.slot: effect for effect in first.effects if isinstance(effect, Store)}
    written = {numbers[effect.slot] for effect in second.effects if isinstance(effect, Store)}
    nodes = Builder(first.precision)
    made = rebuild(nodes, [effect.value for effect in first.effects])
    for node in nodes.nodes:
        if described(node).reads and node.attrs[0] in written and any(node.attrs[1]):
            raise ValueError(
                f"{first.name} reads at {node.attrs[1]} what {second.name} writes: at {node.where}"
            )

    def place(what: str, number: int) -> int:
        return numbers[number] if what == "fields" else number + begin[what] if number >= 0 else number

    def rule(nodes: Builder, node: Node, args: tuple[Node, ...]) -> Node:
        operation, attrs = described(node), list(node.attrs)
        for what, position in operation.indexes.items():
            attrs[position] = place(what, attrs[position])
        store = stores.get(attrs[0]) if operation.reads else None
        if store is None:
            loops = frozenset(place("loops", loop) for loop in node.loops)
            return nodes.copied(node, args, tuple(attrs), loops)
        if any(attrs[1]):
            raise ValueError(f"{second.name} reads at {attrs[1]} what {first.name} writes: at {node.where}")
        return read_after(nodes, store.slot, fields[store.slot].storage, made[store.value.number])

    more = rebuild(nodes, [effect.value for effect in second.effects], rule)
    kept = [effect for effect in first.effects if not (isinstance(effect, Store) and effect.slot in written)]
    effects = [replace(effect, value=made[effect.value.number]) for effect in kept]
    labels = sum(isinstance(effect, Label) for effect in first.effects)
    for effect in second.effects:
        changes: dict[str, Any] = {"value": more[effect.value.number]}
        if isinstance(effect, Store):
            changes["slot"] = numbers[effect.slot]
        elif isinstance(effect, Sum):
            changes |= {
                "slot": effect.slot + len(first.sums),
                "label": effect.label + labels if effect.label >= 0 else -1,
            }
        elif isinstance(effect, Label):
            changes["slot"] = effect.slot + labels
        effects.append(replace(effect, **changes))
    return SiteProgram(
        name,
        first.ndim,
        first.precision,
        fields,
        [*first.scalars, *second.scalars],
        [*first.randoms, *second.randoms],
        effects,
        [*first.sums, *second.sums],
        first.shift,
        [*first.loops, *second.loops],
        given=first.given | second.given,
        items=(*first.items, *second.items),
        rewrites=(f"{first.name} ({', '.join(first.rewrites) or 'as traced'}) and {second.name} joined",),
    )
