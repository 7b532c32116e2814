"""The analysis of a `SiteProgram` before any text is written.

`analyse` does, in this order: halo analysis (which fields are read at which offsets), dead-code removal (only what an effect
needs is scheduled), scheduling (each value just before its first use, effects in source order), and counting of flops and
bytes. `rewritten_trace` comes before: its multiply-adds decide where values are rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from jali.codegen.builder import Builder
from jali.codegen.ir import Node, SiteProgram, Store, Sum
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable, rebuild, shifted, with_values
from jali.codegen.used_where import restricted_to_use


@dataclass(frozen=True)
class Analysis:
    """Facts about one program.

    `order` lists the scheduled nodes; nodes that vary inside a `repeat_until` are listed in `bodies[loop]` instead, those of a branch
    in `branches[number of the node that encloses them]`.
    `reads[slot]` are the offsets read (seen from the written site) with the user's first line that reads there.
    """

    order: list[Node]
    bodies: dict[int, list[Node]]
    branches: dict[int, list[Node]]
    reads: dict[int, dict[tuple[int, ...], str]]
    writes: dict[int, str]
    flops: int
    loads: int
    stores: int
    coordinates: bool = False
    counts_attempts: bool = False  # in counters[0], where a loop gives up
    # what may fail at a site; number k has counters[2 + 2 k] and the one behind it
    failing: tuple[Node, ...] = ()
    randoms: set[int] = field(default_factory=set)
    drawn_at: tuple[int, ...] = ()  # the offset of the site whose random numbers are drawn
    # so many values come first in the order, and are the same for all members of a batch; -1: they are in no such order
    for_all_members: int = -1


def analyse(program: SiteProgram) -> Analysis:
    """Schedules a program and counts what it does."""
    roots = [effect.value for effect in program.effects]
    nodes = reachable(roots)
    reads: dict[int, dict[tuple[int, ...], str]] = {}
    for node in nodes:
        if described(node).reads:
            slot, offset = node.attrs[:2]
            reads.setdefault(slot, {}).setdefault(offset, node.where)
    writes = {e.slot: e.where for e in program.effects if isinstance(e, Store)}

    order: list[Node] = []
    bodies: dict[int, list[Node]] = {}
    branches = {node.number: reachable(node.args) for node in nodes if described(node).encloses}
    enclosed = {
        inner.number for branch in branches.values() for inner in branch if not described(inner).constant
    }
    _schedule(roots, enclosed, order, bodies)

    drawn = [node for node in nodes if described(node).draws]
    assert len({node.attrs[-1] for node in drawn}) <= 1, "a kernel draws the random numbers of one site"
    flops = sum(described(n).flops(n) for n in nodes)
    for effect in program.effects:
        if isinstance(effect, Sum):
            flops += effect.value.type.reals
    loads = sum(program.fields[slot].storage.reals * len(offsets) for slot, offsets in reads.items())
    stores = sum(program.fields[slot].storage.reals for slot in writes)
    return Analysis(
        order,
        bodies,
        branches,
        reads,
        writes,
        flops,
        loads,
        stores,
        coordinates=any(described(n).by_coordinates or described(n).fails for n in nodes),
        counts_attempts=any(program.loops[loop].counted for loop in bodies),
        failing=tuple(n for n in nodes if described(n).fails),
        randoms={n.attrs[0] for n in drawn},
        drawn_at=drawn[0].attrs[-1] if drawn else (),
    )


def for_members(program: SiteProgram, analysis: Analysis) -> Analysis:
    """The same with the values first that all members of a batch share."""
    own = of_members(program)
    shared = [node for node in analysis.order if node.number not in own]
    rest = [node for node in analysis.order if node.number in own]
    return replace(analysis, order=[*shared, *rest], for_all_members=len(shared))


def of_members(program: SiteProgram) -> frozenset[int]:
    """The numbers of values that members of a batch do not share."""
    own: set[int] = set()
    for node in reachable(effect.value for effect in program.effects):
        kind = described(node)
        of_own_member = kind.reads and not node.args and program.fields[node.attrs[0]].batch
        if (
            of_own_member
            or kind.of_member
            or kind.draws
            or kind.repeats
            or node.loops
            or any(a.number in own for a in node.args)
        ):
            own.add(node.number)
    return frozenset(own)


def rewritten_trace(programs: Sequence[SiteProgram]) -> list[SiteProgram]:
    """The programs of one trace as all later stages have them: products fused with sums, what may fail restricted to where it is used, and
    seen from the sites that are written."""
    return [over_written_sites(restricted_to_use(program)) for program in multiply_adds(programs)]


def multiply_adds(programs: Sequence[SiteProgram]) -> list[SiteProgram]:
    """Programs of one trace in which each product that a sum alone uses is rounded together with that sum.

    The answer depends on the formula and on types alone. All programs of a trace are taken at once, and before anything else is
    done with them, so that no later stage (ranks, halo items, formats) can change a bit.
    """
    roots = [effect.value for program in programs for effect in program.effects]
    sums = _fused_products(roots)
    if not sums:
        return list(programs)

    def rule(nodes: Builder, node: Node, args: tuple[Node, ...]) -> Node | None:
        product = sums.get(node.number)
        if product is None:
            return None
        first = node.args[0] is product
        fusion = described(product).fusion
        assert fusion is not None
        mine, other = args if first else args[::-1]
        found = fusion.make(nodes, described(node).sign, mine, other, first)
        found.where = node.where
        found.keep_symmetry(node)
        return found

    made = rebuild(Builder(programs[0].precision), roots, rule)

    def what(program: SiteProgram) -> str:
        fused = sum(node.number in sums for node in reachable(effect.value for effect in program.effects))
        return f"{fused} multiply-adds" if fused else ""

    return [with_values(program, made, what(program)) for program in programs]


def over_written_sites(program: SiteProgram) -> SiteProgram:
    """The program as it is seen from the site that it writes."""
    offset = next((effect.offset for effect in program.effects if isinstance(effect, Store)), ())
    return shifted(program, tuple(-o for o in offset)) if any(offset) else program


def _fused_products(roots: list[Node]) -> dict[int, Node]:
    """Of the numbers of sums, the product that is rounded together with each."""
    nodes = reachable(roots)
    uses: dict[int, int] = {}
    for used in [a for node in nodes for a in node.args] + roots:
        uses[used.number] = uses.get(used.number, 0) + 1
    found: dict[int, Node] = {}
    for node in nodes:
        sign = described(node).sign
        if sign == 0:
            continue
        left, right = node.args
        for product in (right, left) if sign > 0 else (right,):
            fusion = described(product).fusion
            if (
                uses[product.number] == 1
                and product.loops == node.loops
                and fusion is not None
                and fusion.possible(product, node)
            ):
                found[node.number] = product
                break
    return found


def _schedule(
    roots: list[Node], enclosed: set[int], order: list[Node], bodies: dict[int, list[Node]]
) -> None:
    scheduled = set(enclosed)

    def schedule(root: Node) -> None:
        for node in reachable([root]):
            if node.number in scheduled or node.loops:
                continue
            scheduled.add(node.number)
            if described(node).repeats:
                loop = node.attrs[0]
                bodies[loop] = [n for n in reachable(node.args) if loop in n.loops]
            order.append(node)

    for root in roots:
        schedule(root)
