"""The analysis of a `SiteProgram` before any text is written.

`analyse` does, in this order: halo analysis (which fields are read at which offsets), dead-code removal (only what an effect
needs is scheduled), scheduling (each value just before its first use, effects in source order), and counting of flops and
bytes. `fused_products` selects the products that become multiply-adds of the sums that consume them. That decides where values
are rounded, so the trace calls it once, and no later stage (ranks, halo items, formats) can change a bit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from jali.codegen.ir import Node, SiteProgram, Store, Sum
from jali.codegen.operation import described


@dataclass(frozen=True)
class Analysis:
    """Facts about one program.

    `order` lists the scheduled nodes; nodes that vary inside a `repeat_until` are listed in `bodies[loop]` instead.
    `reads[slot]` are the offsets read (seen from the written site) with the user's first line that reads there.
    """

    order: list[Node]
    bodies: dict[int, list[Node]]
    fused: frozenset[int]
    reads: dict[int, dict[tuple[int, ...], str]]
    writes: dict[int, str]
    flops: int
    loads: int
    stores: int
    coordinates: bool = False
    randoms: set[int] = field(default_factory=set)


def analyse(program: SiteProgram, elsewhere: frozenset[int] = frozenset()) -> Analysis:
    """Schedules a program and counts what it does. Nodes of these numbers are not scheduled: nodes below the cut of a halo item
    are written where the item is."""
    roots = [effect.value for effect in program.effects]
    nodes = reachable(roots)
    reads: dict[int, dict[tuple[int, ...], str]] = {}
    for node in nodes:
        if described(node).reads:
            slot, offset = node.attrs
            reads.setdefault(slot, {}).setdefault(program.offset(offset), node.where)
    writes = {e.slot: e.where for e in program.effects if isinstance(e, Store)}

    order: list[Node] = []
    bodies: dict[int, list[Node]] = {}
    _schedule(roots, program.fused | elsewhere, order, bodies)

    flops = sum(described(n).flops(n) for n in nodes)
    for effect in program.effects:
        if isinstance(effect, Sum):
            flops += effect.value.type.reals
    loads = sum(program.fields[slot].storage.reals * len(offsets) for slot, offsets in reads.items())
    stores = sum(program.fields[slot].storage.reals for slot in writes)
    return Analysis(
        order,
        bodies,
        program.fused,
        reads,
        writes,
        flops,
        loads,
        stores,
        coordinates=any(described(n).by_coordinates for n in nodes),
        randoms={n.attrs[0] for n in nodes if described(n).draws},
    )


def reachable(roots: Iterable[Node]) -> list[Node]:
    """All nodes that the roots need, arguments first."""
    seen: set[int] = set()
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


def fused_products(roots: Iterable[Node]) -> frozenset[int]:
    """Products that are used once, by a sum: they are written as multiply-adds of that sum.

    `roots` are the values of all effects of a trace. The answer depends on the formula and on types alone.
    """
    roots = list(roots)
    nodes = reachable(roots)
    uses: dict[int, int] = {}
    for used in [a for node in nodes for a in node.args] + roots:
        uses[used.number] = uses.get(used.number, 0) + 1
    fused: set[int] = set()
    for node in nodes:
        sign = described(node).sign
        if sign == 0:
            continue
        right, left = node.args[1], node.args[0]
        for candidate, possible in ((right, True), (left, sign > 0 and right.number not in fused)):
            if candidate is left and (right.number in fused or not possible):
                continue
            if uses[candidate.number] != 1 or candidate.loops != node.loops:
                continue
            fusion = described(candidate).fusion
            if fusion is not None and fusion.possible(candidate, node):
                fused.add(candidate.number)
                break
    return frozenset(fused)


def _schedule(
    roots: list[Node], skipped: frozenset[int], order: list[Node], bodies: dict[int, list[Node]]
) -> None:
    scheduled: set[int] = set()

    def schedule(root: Node) -> None:
        for node in reachable([root]):
            if node.number in scheduled or node.number in skipped or node.loops:
                continue
            scheduled.add(node.number)
            if described(node).repeats:
                loop = node.attrs[0]
                bodies[loop] = [
                    n for n in reachable(node.args) if loop in n.loops and n.number not in skipped
                ]
            order.append(node)

    for root in roots:
        schedule(root)
