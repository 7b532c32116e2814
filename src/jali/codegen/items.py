"""Halo items: expressions that the sender evaluates, so that fewer bytes travel.

What a kernel needs from the site at offset o is often less than the fields that it reads there: a projected spinor is half a
spinor, U^dagger times it makes the link unnecessary. `find_items` looks, for one offset, for the smallest set of values through
which everything read there passes (a vertex cut); the reader then evaluates these values itself where the neighbour is local,
and reads them from the ghosts elsewhere. `with_items` rewrites a program so. Both evaluate the same expression on the same numbers: the sender multiplies its
fields by the boundary factor that its reader sees, and a product that is rounded together with a sum is never cut off from it.
So the bits are the same, unless a lattice requests a wire format that rounds (`halo_wire`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from jali.codegen.builder import Builder
from jali.codegen.ir import Node, SiteProgram
from jali.codegen.language.halo_items import received, received_value
from jali.codegen.operation import described
from jali.codegen.rewriting import part_of, reachable, shifted, substituted
from jali.codegen.storage_formats import on_the_wire


@dataclass(frozen=True)
class Item:
    """Values that travel for one offset, of so many reals, and the fields that they are made of."""

    offset: tuple[int, ...]
    reals: int
    slots: tuple[int, ...]
    batch: int = 0  # so many values of it travel for a site, one for each member; 0: one for all


@dataclass(frozen=True)
class Cut:
    """An item, and the nodes of a program whose values it is."""

    item: Item
    nodes: tuple[Node, ...]


def with_items(
    program: SiteProgram, offsets: Iterable[tuple[int, ...]], wire: str = ""
) -> tuple[SiteProgram, list[tuple[Item, SiteProgram]]]:
    """The program that receives halo items at these offsets, and for each item worth having the program that computes it at the
    sender's own site."""
    cuts = find_items(program, offsets, wire)
    if not cuts:
        return program, []

    values = {
        node: functools.partial(_received, number, cut, k)
        for number, cut in enumerate(cuts)
        for k, node in enumerate(cut.nodes)
    }
    items = tuple(cut.item for cut in cuts)
    reader = substituted(program, f"{len(cuts)} halo items", values, items=items)
    return reader, [(cut.item, _producer(program, cut)) for cut in cuts]


def _received(number: int, cut: Cut, k: int, nodes: Builder, copy: Callable[[Node], Node]) -> Node:
    return received_value(nodes, received(nodes, number, [copy(node) for node in cut.nodes]), k)


def _producer(program: SiteProgram, cut: Cut) -> SiteProgram:
    """The program that computes an item at the sender's own site."""
    sent = part_of(program, f"{program.name}_item", cut.nodes)
    sent.batch = cut.item.batch
    return shifted(sent, tuple(-o for o in cut.item.offset))


def find_items(program: SiteProgram, offsets: Iterable[tuple[int, ...]], wire: str = "") -> list[Cut]:
    """The items worth having, at most one for each of `offsets`.

    An item is sent as reals of the arithmetic or in the format `wire`. It must have at most half the bytes of the largest field
    it replaces, because the ghosts of fields that have not changed are kept, and items are not.
    """
    nodes = reachable(effect.value for effect in program.effects)
    cuts = []
    for offset in offsets:
        cut = _smallest_cut(nodes, program, offset)
        if cut is None:
            continue
        largest = max(program.fields[slot].storage.site_bytes for slot in cut.item.slots)
        if 2 * on_the_wire(cut.item.reals, program.precision, wire).site_bytes <= largest:
            cuts.append(cut)
    return cuts


def _smallest_cut(nodes: list[Node], program: SiteProgram, offset: tuple[int, ...]) -> Cut | None:
    local: dict[int, Node] = {}  # values that depend on loads at the offset, and on nothing else that varies
    for node in nodes:
        if described(node).reads:
            if node.attrs[1] == offset:
                local[node.number] = node
        elif (
            node.args
            and not node.loops
            and described(node).sendable
            and node.type.kind in ("real", "complex")
            and any(a.number in local for a in node.args)
            and all(a.number in local or described(a).constant for a in node.args)
        ):
            local[node.number] = node
    loads = [n for n in local.values() if described(n).reads]
    if not loads:
        return None
    best: dict[int, frozenset[Node]] = {}
    for node in nodes:
        if node.number not in local:
            continue
        below = frozenset().union(*(best[a.number] for a in node.args if a.number in local))
        below = _whole(below)
        passes = not described(node).reads and _reals(below) <= node.type.reals
        best[node.number] = below if passes else frozenset({node})
    outside = {effect.value.number for effect in program.effects}
    outside.update(a.number for node in nodes if node.number not in local for a in node.args)
    used_outside = [n for n in local.values() if n.number in outside]
    cut = _whole(frozenset().union(*(best[n.number] for n in used_outside)))
    if _reals(cut) >= sum(n.type.reals for n in loads):
        return None
    numbers = {n.number for n in cut}
    below_cut = {n.number for n in reachable(cut) if n.number in local and n.number not in numbers}
    # every load must pass through the cut, and what is below it must not be wanted itself
    if any(effect.value.number in below_cut for effect in program.effects):
        return None
    for node in nodes:
        if node.number in below_cut:
            continue
        if node.number not in numbers and any(a.number in below_cut for a in node.args):
            return None
    ordered = tuple(sorted(cut, key=lambda n: n.number))
    slots = tuple(sorted({n.attrs[0] for n in loads}))
    batch = program.batch if any(program.fields[slot].batch for slot in slots) else 0
    return Cut(Item(offset, sum(node.type.reals for node in ordered), slots, batch), ordered)


def _whole(cut: frozenset[Node]) -> frozenset[Node]:
    """Components of one matrix are replaced by the matrix where that is no larger."""
    parents: dict[Node, int] = {}
    for node in cut:
        if described(node).component:
            parents[node.args[0]] = parents.get(node.args[0], 0) + node.type.reals
    out = set(cut)
    for parent, reals in parents.items():
        if parent in cut or reals >= parent.type.reals:
            out = {n for n in out if not (described(n).component and n.args[0] is parent)} | {parent}
    return frozenset(out)


def _reals(cut: frozenset[Node]) -> float:
    """Reals that travel; whole numbers do not travel as such."""
    return sum(math.inf if n.type.kind == "int" else n.type.reals for n in cut)
