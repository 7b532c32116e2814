"""From cotangents at the site that reads to a sum at the site that is read: contributions of all offsets, moved to the site they belong to.

A value y(x) that is made of f(x + o) gives f(z) what it got at the site x = z - o. So a kernel over the sites of f gathers, and writes its
own site alone: nothing races, and sums of contributions have one order everywhere. Where x is reached around an edge the
factors of boundaries are turned around, outside of an open one there is no x, between lattices a site has several x or none.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from jali.codegen.builder import Builder
from jali.codegen.derivatives import ScaledSum, factor_of, scaled, vanishes
from jali.codegen.ir import Node
from jali.codegen.language import arithmetic, choices, conversions, integers, leaves
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable, rebuild
from jali.codegen.state import Trace
from jali.codegen.storage_formats import Ratio
from jali.codegen.types import Type
from jali.derivatives.common_factors import without_common_factors
from jali.errors import TraceError

Offset = tuple[int, ...]


@dataclass
class Contribution:
    """A cotangent `value`, as it is at the site that reads, of a read at an offset, by its own member or by the one that `member` names;
    `scale` is a number that sums of such are multiplied by, the same at all sites."""

    offset: Offset
    value: Node
    member: Node | None
    where: str
    scale: Node | None = None


@dataclass(frozen=True)
class _Axis:
    """One direction of the way from the site z that gathers to a site x that has read there: x = coarser (z - step) + inside, or where the
    lattice that gathers is `finer` times finer, the site whose block z is in, step sites back, for z at `inside` in its block."""

    step: int
    coarser: int = 1  # the lattice of z is so many times coarser than that of x
    finer: int = 1
    inside: int = 0


@dataclass
class Gatherer:
    """Moves contributions within one trace. `loop` is the ratio of the lattice whose sites read to that of the sites that gather."""

    trace: Trace
    loop: Ratio | None
    factors: dict[int, dict[int, complex | None]] = field(default_factory=dict)  # by direction, known ones
    vanishing: dict[int, dict[int, bool]] = field(default_factory=dict)
    moved: dict[Any, dict[int, Node]] = field(default_factory=dict)
    drawn: dict[str, Offset] = field(default_factory=dict)  # where random numbers are drawn
    kept: dict[int, int] = field(default_factory=dict)  # slots of fields by the values that are kept in them

    @property
    def nodes(self) -> Builder:
        return self.trace.builder

    def wanted(
        self, given: Sequence[Contribution], keep: Callable[[Offset], bool]
    ) -> list[tuple[Node, Offset]]:
        """The values that are wanted, and at which offsets, of contributions that are kept."""
        return [(one.value, tuple(-o for o in one.offset)) for one in given if keep(one.offset)]

    def is_bound_to_site(self, node: Node, offset: Offset) -> bool:
        """Whether a value is made of fields of coarser lattices, which are a part of their sites away at this offset."""
        if all(slot.ratio is None for slot in self.trace.slots):
            return False
        ratios = {self.trace.slots[one.attrs[0]].ratio for one in reachable([node]) if described(one).reads}
        return any(
            ratio is not None and any(o % c for o, c in zip(offset, ratio.coarser, strict=True))
            for ratio in ratios
        )

    def factors_of_value(self, node: Node, open_in: Sequence[bool]) -> tuple[complex | None, ...] | None:
        """The factors of the boundary of a field that keeps a value; None where no boundary has its."""
        found: list[complex | None] = []
        for d, is_open in enumerate(open_in):
            if is_open and vanishes(node, self._outside(d), self.vanishing.setdefault(d, {})):
                found.append(None)
                continue
            own = self._factor(node, d)
            if own is None or (node.type.kind == "real" and own not in (1, -1)):
                return None
            found.append(own)
        return tuple(found)

    def total(
        self, slot: int, given: Sequence[Contribution], type: Type, keep: Callable[[Offset], bool], mask: Any
    ) -> Node:
        """The sum of contributions to a field at the site that gathers, of those offsets that are kept. `mask(moved)` limits a value that
        has been moved to the sites that took part; None: all did."""
        found: dict[
            Node, list[tuple[int, ...]]
        ] = {}  # where a site of a block gets it from the positions there
        nodes, sum_of_all = self.nodes, ScaledSum()
        for one in given:
            if not keep(one.offset):
                continue
            for axes in self._ways(one.offset):
                value = self._moved_value(slot, one, axes)
                value = value if mask is None else mask(value, functools.partial(self._move, axes=axes))
                if leaves.is_zero(value):
                    continue
                if any(axis.finer > 1 for axis in axes):
                    whole = scaled(nodes, (one.scale, value))
                    found.setdefault(whole, []).append(tuple(axis.inside for axis in axes))
                else:
                    sum_of_all.add(nodes, one.scale, value)
        for value, positions in found.items():
            sum_of_all.add(nodes, None, self._at_positions(value, positions, type))
        total = sum_of_all.total(nodes)
        if total is None:
            return conversions.zero_of(nodes, type)
        return without_common_factors(nodes, scaled(nodes, total))

    # ---- the ways to a site that reads -------------------------------------------------------------------

    def _ways(self, offset: Offset) -> list[tuple[_Axis, ...]]:
        if self.loop is None:
            return [tuple(_Axis(o) for o in offset)]
        each: list[list[_Axis]] = []
        for o, c, f in zip(offset, self.loop.coarser, self.loop.finer, strict=True):
            if f > 1:  # x is on the finer lattice: a block of them
                each.append([_Axis(o, coarser=f, inside=b) for b in range(f)])
            elif c > 1:  # x is on the coarser lattice
                each.append([_Axis(o // c, finer=c, inside=o % c)])
            else:
                each.append([_Axis(o)])
        return list(itertools.product(*each))

    def _at_positions(self, value: Node, positions: Sequence[tuple[int, ...]], type: Type) -> Node:
        """A value at those sites of a block alone."""
        assert self.loop is not None
        nodes = self.nodes
        counted: dict[tuple[int, ...], int] = {}
        for at in positions:
            counted[at] = counted.get(at, 0) + 1
        times = set(counted.values())
        if len(counted) == math.prod(self.loop.coarser) and len(times) == 1:
            n = times.pop()
            return value if n == 1 else arithmetic.mul(nodes, leaves.exact(nodes, float(n)), value)
        total: Node | None = None
        zero = conversions.zero_of(nodes, type)
        for at, n in counted.items():
            condition: Node | None = None
            for axis, (inside, c) in enumerate(zip(at, self.loop.coarser, strict=True)):
                if c > 1:
                    here = integers.mod(nodes, leaves.coordinate(nodes, axis, 0), leaves.const(nodes, c))
                    one = choices.equal(nodes, here, leaves.const(nodes, inside))
                    condition = one if condition is None else choices.both(nodes, condition, one)
            assert condition is not None
            term = value if n == 1 else arithmetic.mul(nodes, leaves.exact(nodes, float(n)), value)
            chosen = choices.where(nodes, condition, term, zero)
            total = chosen if total is None else arithmetic.add(nodes, total, chosen)
        assert total is not None
        return total

    def value_at(self, slot: int, value: Node, step: Offset) -> Node:
        """A number that each site has, at the site `step` away: zero beyond an open edge of the field of the slot. Raises TraceError where it is
        another one seen from there."""
        axes = tuple(_Axis(-s) for s in step)
        found = self._move(value, axes)
        factors = self.trace.slots[slot].factors
        for d, axis in enumerate(axes):
            if axis.step and factors and factors[d] is None:
                found = self._inside_only(found, d, axis)
            elif axis.step and (self._factor(value, d) or 0) != 1:
                raise TraceError(
                    f"across the edge in direction {d} this is another number than within the lattice\n  at {value.where}"
                )
        return found

    # ---- moving ------------------------------------------------------------------------------------------

    def _moved_value(self, slot: int, one: Contribution, axes: tuple[_Axis, ...]) -> Node:
        """A contribution at the site that gathers, with the factors of boundaries."""
        value = self._move(one.value, axes)
        factors = self.trace.slots[slot].factors
        mixed: list[tuple[int, _Axis, complex]] = []
        masks: list[tuple[int, _Axis]] = []
        for d, axis in enumerate(axes):
            if not axis.step:
                continue
            if not factors or factors[d] is None:
                leaf = self._outside(d)
                if not vanishes(one.value, leaf, self.vanishing.setdefault(d, {})):
                    masks.append((d, axis))
                continue
            own = self._factor(one.value, d)
            wanted = factors[d]
            assert wanted is not None
            if own is None:
                mixed.append((d, axis, wanted))
            elif abs(wanted - own) > 1e-12:
                value = self._corrected(value, d, axis, wanted * own.conjugate())
        if mixed:
            value = self._mixed(slot, one, axes, mixed)
        for d, axis in masks:
            value = self._inside_only(value, d, axis)
        return value

    def _mixed(
        self, slot: int, one: Contribution, axes: tuple[_Axis, ...], mixed: list[tuple[int, _Axis, complex]]
    ) -> Node:
        """A contribution in which fields of several boundaries meet, in no common factor: each is read without its factor of the way to the
        site that reads."""
        directions = {d for d, _, _ in mixed}
        for d, axis in enumerate(axes):  # what has a common factor in other directions is treated alike
            if axis.step and d not in directions:
                own = self.trace.slots[slot].factors[d]
                if own is not None and own != 1:
                    mixed.append((d, axis, own))
        plain = self._rule(axes)

        def rule(nodes: Builder, node: Node, args: tuple[Node, ...]) -> Node | None:
            moved = plain(nodes, node, args)
            if not described(node).reads:
                return moved
            assert moved is not None
            for d, axis, _ in mixed:
                factors = self.trace.slots[node.attrs[0]].factors
                if factors and factors[d] is None:
                    raise TraceError(
                        f"{self.trace.slots[node.attrs[0]].name} is open in direction {d}, where {self.trace.slots[slot].name} goes on, and what the "
                        f"latter gets is read across the edge: give them one boundary\n  at {one.where}"
                    )
                if factors and factors[d] != 1:
                    moved = self._corrected(moved, d, axis, complex(factors[d]).conjugate())
            return moved

        value = rebuild(self.nodes, [one.value], rule)[one.value.number]
        for d, axis, wanted in mixed:
            if wanted != 1:
                value = self._corrected(value, d, axis, wanted)
        return value

    def _factor(self, node: Node, d: int) -> complex | None:
        """The factor of a value in a direction."""
        leaf = functools.partial(self._factor_of_leaf, direction=d)
        return factor_of(node, leaf, self.factors.setdefault(d, {}))

    def _factor_of_leaf(self, node: Node, direction: int) -> complex | None:
        if not described(node).reads:
            return 1
        factors = self.trace.slots[node.attrs[0]].factors
        if not factors:
            return 1
        return factors[
            direction
        ]  # none where it is open, though the field that gathers goes on around the edge

    def _outside(self, direction: int) -> Callable[[Node], bool]:
        def leaf(node: Node) -> bool:
            if not described(node).reads:
                return False
            factors = self.trace.slots[node.attrs[0]].factors
            return bool(factors) and factors[direction] is None and not node.attrs[1][direction]

        return leaf

    def _place(self, d: int, axis: _Axis) -> tuple[Node, Node]:
        """The coordinate of the site that reads, without going round, and the extent of its lattice, both in steps of what gathers or reads."""
        nodes = self.nodes
        here, extent = leaves.coordinate(nodes, d, 0), leaves.extent(nodes, d)
        if axis.finer > 1:
            by = leaves.const(nodes, axis.finer)
            here, extent = integers.floordiv(nodes, here, by), integers.floordiv(nodes, extent, by)
        return arithmetic.sub(nodes, here, leaves.const(nodes, axis.step)), extent

    def _inside_only(self, value: Node, d: int, axis: _Axis) -> Node:
        nodes = self.nodes
        place, extent = self._place(d, axis)
        low = choices.less_equal(nodes, leaves.const(nodes, 0), place)
        inside = choices.both(nodes, low, choices.less(nodes, place, extent))
        return choices.where(nodes, inside, value, conversions.zero_of(nodes, value.type))

    def with_factor(
        self, value: Node, d: int, step: int, has: complex | None, wanted: complex | None, where: str
    ) -> Node:
        """A value that is read `step` sites away with one factor across the edge as it is with another one; None: beyond the edge there is nothing. Raises
        TraceError where that is what it has, and not what is wanted."""
        axis = _Axis(-step)
        if has is None and wanted is not None:
            raise TraceError(
                f"what is read here in direction {d} is open there, and the field that it belongs to goes on: give both one boundary\n  at {where}"
            )
        if wanted is None:
            return value if has is None else self._inside_only(value, d, axis)
        assert has is not None
        factor = complex(wanted) * complex(has).conjugate()
        return value if abs(factor - 1) < 1e-12 else self._corrected(value, d, axis, factor)

    def _corrected(self, value: Node, d: int, axis: _Axis, factor: complex) -> Node:
        """A value times a factor for each crossing on the way to the site that reads."""
        nodes = self.nodes
        place, extent = self._place(d, axis)
        back, forth = (factor.conjugate(), factor) if isinstance(factor, complex) else (factor, factor)
        for k in range(abs(axis.step)):
            if axis.step > 0:  # behind the lower edge, perhaps several times
                edge = arithmetic.mul(nodes, leaves.const(nodes, -k), extent)
                crossed, by = choices.less(nodes, place, edge), back
            else:
                edge = arithmetic.mul(nodes, leaves.const(nodes, k + 1), extent)
                crossed, by = choices.less_equal(nodes, edge, place), forth
            real = abs(complex(by).imag) < 1e-15 or value.type.kind == "real"
            number = leaves.exact(nodes, complex(by).real if real else complex(by))
            value = choices.where(nodes, crossed, arithmetic.mul(nodes, number, value), value)
        return value

    def _move(self, node: Node, axes: tuple[_Axis, ...]) -> Node:
        key = axes
        known = self.moved.setdefault(key, {})
        if node.number not in known:
            by = tuple(-axis.step for axis in axes)
            for one in reachable([node], known):
                if one.number in self.kept:  # what it is made of is not wanted
                    known[one.number] = self._kept_value(one, by)
            known.update(rebuild(self.nodes, [node], self._rule(axes), known))
        return known[node.number]

    def _kept_value(self, node: Node, offset: Offset) -> Node:
        slot = self.kept[node.number]
        self.trace.slots[slot].reads.setdefault(offset, node.where)
        found = leaves.load(self.nodes, slot, offset, node.type)
        found.where = node.where
        found.keep_symmetry(node)
        found.phase = node.phase
        return found

    def _rule(self, axes: tuple[_Axis, ...]) -> Callable[[Builder, Node, tuple[Node, ...]], Node | None]:
        plain = all(axis.coarser == axis.finer == 1 for axis in axes)
        by = tuple(-axis.step for axis in axes)
        given = self.trace.given

        def rule(nodes: Builder, node: Node, args: tuple[Node, ...]) -> Node | None:
            operation = described(node)
            if operation.reads:
                slot, offset = node.attrs[:2]
                there = tuple(self._step(node, axis, d, offset[d]) for d, axis in enumerate(axes))
                if offset in given:
                    given.add(there)
                return nodes.copied(node, args, (slot, there, *node.attrs[2:]))
            if operation.shifted is None:
                return None if plain else self._of_lattice(node, axes)
            if operation.draws and self.drawn.setdefault("at", by) != by:
                raise TraceError(
                    "the derivative wants these random numbers at several sites, and a kernel draws those of one: write them to a field in another "
                    f"site function\n  at {node.where}"
                )
            if plain:
                return nodes.copied(node, args, operation.shifted(node.attrs, by))
            found = self._of_lattice(node, axes)
            if found is None:
                raise TraceError(
                    f"{node.op} belongs to the sites of one lattice, and its derivative to those of another\n  at {node.where}"
                )
            return found

        return rule

    def _of_lattice(self, node: Node, axes: tuple[_Axis, ...]) -> Node | None:
        """Coordinates and extents of the lattice whose sites read, by those of the one whose sites gather."""
        nodes = self.nodes
        if leaves.extent.made(node):
            axis = axes[node.attrs[0]]
            extent = leaves.extent(nodes, node.attrs[0])
            if axis.coarser > 1:
                return arithmetic.mul(nodes, leaves.const(nodes, axis.coarser), extent)
            return (
                integers.floordiv(nodes, extent, leaves.const(nodes, axis.finer)) if axis.finer > 1 else None
            )
        if leaves.coordinate.made(node):
            d, step = node.attrs
            axis = axes[d]
            if axis.coarser > 1:
                blocks, rest = divmod(axis.inside + step, axis.coarser)
                there = leaves.coordinate(nodes, d, blocks - axis.step)
                scaled = arithmetic.mul(nodes, leaves.const(nodes, axis.coarser), there)
                return arithmetic.add(nodes, scaled, leaves.const(nodes, rest))
            there = leaves.coordinate(nodes, d, axis.finer * (step - axis.step))
            return (
                integers.floordiv(nodes, there, leaves.const(nodes, axis.finer)) if axis.finer > 1 else there
            )
        return None

    def _step(self, node: Node, axis: _Axis, d: int, p: int) -> int:
        """The offset, seen from the site that gathers, of a read at the offset p from the site that reads."""
        outer = self.trace.slots[node.attrs[0]].ratio  # to what gathers
        if outer is None and axis.coarser == axis.finer == 1 and self.loop is None:
            return p - axis.step
        t_coarser, t_finer = (1, 1) if outer is None else (outer.coarser[d], outer.finer[d])
        # in units of the site that gathers, x = z - step and what is inside; the read is at floor(x scale) + p
        if axis.finer == 1:
            if t_finer >= 1 and t_coarser == 1:
                # lattices of x and of the read are both at least as fine as that of z
                if t_finer >= axis.coarser:
                    return -axis.step * t_finer + axis.inside * (t_finer // axis.coarser) + p
                return -axis.step * t_finer + axis.inside // (axis.coarser // t_finer) + p
            if axis.step % t_coarser == 0:
                return -(axis.step // t_coarser) + p
        else:
            per_x = axis.finer  # sites of z in one of x
            if t_coarser == 1:  # as fine as z, or finer
                return -(axis.step * per_x + axis.inside) * t_finer + p
            if per_x % t_coarser == 0:
                return -axis.step * (per_x // t_coarser) - axis.inside // t_coarser + p
            if axis.step % (t_coarser // per_x) == 0:
                return -(axis.step // (t_coarser // per_x)) + p
        raise TraceError(
            f"the derivative reads {self.trace.slots[node.attrs[0]].name} a part of its sites away, between lattices: its offset is none of whole "
            f"sites there\n  at {node.where}"
        )


# ---- members of batches --------------------------------------------------------------------------------


def of_member(trace: Trace, node: Node, member: Node) -> Node:
    """A value as it is for another member of the batch, a number that is known while tracing or a whole number of the member computed."""
    nodes = trace.builder

    def rule(nodes: Builder, one: Node, args: tuple[Node, ...]) -> Node | None:
        operation = described(one)
        if leaves.member.made(one):
            return member
        if operation.reads and not one.args and trace.slots[one.attrs[0]].batch:
            found = leaves.load_of_member(nodes, one.attrs[0], one.attrs[1], member, one.type)
            found.where = one.where
            found.keep_symmetry(one)
            found.phase = one.phase
            return found
        if leaves.scalar_of_member.made(one):
            if not leaves.is_constant(member):
                raise TraceError(f"a number of each member is held by its own member alone\n  at {one.where}")
            slot, count, _ = one.attrs
            whole = leaves.scalar(nodes, slot, Type(one.type.kind, (count,)))
            return conversions.element(nodes, whole, member.attrs[0])
        if operation.draws:
            raise TraceError(
                f"random numbers of each member go into a value that all members share: write them to a field first\n  at {one.where}"
            )
        return None

    return rebuild(nodes, [node], rule)[node.number]


def is_of_members(trace: Trace, node: Node) -> bool:
    """Whether members of a batch have values of their own of it."""
    waiting, seen = [node], {node.number}
    while waiting:
        one = waiting.pop()
        kind = described(one)
        if kind.of_member or (kind.reads and not one.args and trace.slots[one.attrs[0]].batch):
            return True
        waiting += [a for a in one.args if a.number not in seen]
        seen.update(a.number for a in one.args)
    return False


def number_of_member(trace: Trace, node: Node, k: int) -> int:
    """The whole number that names a member, for member k of the batch that is computed. Raises TraceError where arguments decide it."""
    known: dict[int, Any] = {}

    def value(one: Node) -> Any:
        if one.number not in known:
            if leaves.member.made(one):
                known[one.number] = k
            elif leaves.is_constant(one):
                known[one.number] = one.attrs[0]
            else:
                of_node = described(one).compute
                compute = None if of_node is None else of_node(one)
                if compute is None or not one.args:
                    raise TraceError(
                        f"the member that is read here is named by an argument, and which members read it is not known while tracing\n  at {one.where}"
                    )
                known[one.number] = compute(*[value(a) for a in one.args])
        return known[one.number]

    return int(value(node))


def turned_members(trace: Trace, one: Contribution, batch: int, members: int) -> list[Node]:
    """What member `X.member` of a field of `batch` members gets of a contribution to the member that `one.member` names, where the function
    computes `members` of its own (0: it is about none)."""
    nodes = trace.builder
    assert one.member is not None
    readers: dict[int, list[int]] = {m: [] for m in range(batch)}
    for k in range(max(members, 1)):
        readers[number_of_member(trace, one.member, k) % batch].append(k)
    here = leaves.member(nodes, batch)
    most = max(map(len, readers.values()))
    found = []
    for place in range(most):
        which = {m: ks[place] for m, ks in readers.items() if len(ks) > place}
        value = one.value
        if members and is_of_members(trace, value):
            value = of_member(trace, value, _chosen(nodes, here, which, batch))
        if len(which) < batch:
            condition: Node | None = None
            for m in which:
                equal = choices.equal(nodes, here, leaves.const(nodes, m))
                condition = equal if condition is None else choices.either(nodes, condition, equal)
            assert condition is not None
            value = choices.where(nodes, condition, value, conversions.zero_of(nodes, value.type))
        found.append(value)
    return found


def _chosen(nodes: Builder, here: Node, which: dict[int, int], batch: int) -> Node:
    """The whole number that belongs to each member: a shift around the batch where it is one, else chosen from."""
    shifts = {(k - m) % batch for m, k in which.items()}
    if len(shifts) == 1:
        shift = shifts.pop()
        moved = arithmetic.add(nodes, here, leaves.const(nodes, shift)) if shift else here
        return integers.mod(nodes, moved, leaves.const(nodes, batch)) if shift else moved
    found = leaves.const(nodes, next(iter(which.values())))
    for m, k in which.items():
        equal = choices.equal(nodes, here, leaves.const(nodes, m))
        found = choices.where(nodes, equal, leaves.const(nodes, k), found)
    return found
