"""What a derivative needs at neighbours: computed again there, or kept in a field by a kernel that runs before.

The choice follows from counts alone, so that all devices and ranks make the same one: keeping a value costs `FLOPS_PER_BYTE` for each byte
that is written and read, computing it again its flops at each further site.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jali.codegen.ir import Node
from jali.codegen.operation import described
from jali.codegen.rewriting import reachable
from jali.codegen.types import Algebra, Complex, Element, Hermitian, Matrix, Real, Vector

Offset = tuple[int, ...]

FLOPS_PER_BYTE = 4.0
"""What a device computes while it moves a byte: 3 on a core, 8 on a GPU in double precision; the choice is the same for all."""
MOST_CONSIDERED = 48
MOST_KEPT = 32
CHOICES = ("", "compute", "keep")


@dataclass(frozen=True)
class Kept:
    """A value that is kept: what its field holds, and the factors of its boundary."""

    element: Element
    factors: tuple[complex | None, ...]


def element_of(node: Node) -> Element:
    """What a field holds that keeps a value."""
    kind, shape = node.type.kind, node.type.shape
    if not shape:
        return Complex() if kind == "complex" else Real()
    if node.antihermitian and kind == "complex":
        return Algebra(shape[0])
    if node.hermitian and kind == "complex":
        return Hermitian(shape[0])
    return Vector(shape[0], kind) if len(shape) == 1 else Matrix(shape[0], shape[1], kind)


@dataclass
class _Costs:
    """Flops and bytes of a choice: `wanted` are values and bits for the sites at which they are wanted."""

    order: list[Node]  # arguments first
    wanted: dict[int, int]
    flops: dict[int, int]
    word: int

    def of_keeping(self, node: Node) -> float:
        """The cost of writing and reading a value."""
        return FLOPS_PER_BYTE * 2 * self.word * element_of(node).stored_reals

    def of(self, kept: frozenset[int]) -> float:
        """The cost where these values are kept."""
        need = dict(self.wanted)
        here = 1 << 62  # the kernel that keeps
        total = 0.0
        for node in reversed(self.order):
            mask = need.get(node.number, 0)
            if not mask:
                continue
            if node.number in kept and mask != here:  # what only the kernel that keeps needs is not kept
                total += self.of_keeping(node)
                mask = here
            total += self.flops[node.number] * mask.bit_count()
            for a in node.args:
                need[a.number] = need.get(a.number, 0) | mask
        return total


def values_to_keep(
    wanted: Sequence[tuple[Node, Offset]],
    word: int,
    possible: Callable[[Node], bool],
    choice: str,
    bound_to_site: Callable[[Node, Offset], bool],
) -> list[Node]:
    """The values that are kept, of those that are wanted at offsets; `word` are the bytes of a real number. With the choice `keep` each
    wanted value that is computed is kept, with `compute` only those that cannot be computed at an offset, `bound_to_site`."""
    bits: dict[Offset, int] = {}
    masks: dict[int, int] = {}
    roots: dict[int, Node] = {}
    for node, offset in wanted:
        bit = bits.setdefault(offset, 1 << len(bits))
        masks[node.number] = masks.get(node.number, 0) | bit
        roots[node.number] = node
    forced = {
        node.number for node, offset in wanted if node.args and bound_to_site(node, offset) and possible(node)
    }
    if not forced and (choice == "compute" or len(bits) < 2):
        return []
    order = reachable(roots.values())
    if choice == "compute":
        return [node for node in order if node.number in forced]
    flops = {node.number: described(node).flops(node) for node in order}
    if choice == "keep":
        return [node for node in order if node.number in roots and node.args and possible(node)]
    need = dict(masks)
    below: dict[int, int] = {}
    for node in reversed(order):
        for a in node.args:
            need[a.number] = need.get(a.number, 0) | need.get(node.number, 0)
    for node in order:  # an upper bound: what is shared is counted more than once
        below[node.number] = flops[node.number] + sum(below[a.number] for a in set(node.args))
    costs = _Costs(order, masks, flops, word)

    def bound(node: Node) -> float:
        more = need.get(node.number, 0).bit_count() - 1
        if more < 1 or node.type.kind not in ("real", "complex") or not node.args or node.loops:
            return 0.0
        return below[node.number] * more - costs.of_keeping(node)

    kept = frozenset(forced)
    best = costs.of(kept)
    candidates = [
        node for node in order if bound(node) > 0 and not described(node).renames and node.number not in kept
    ]
    candidates.sort(key=bound, reverse=True)
    candidates = list(itertools.islice(filter(possible, candidates), MOST_CONSIDERED))
    while candidates and len(kept) < MOST_KEPT:
        gains = [(best - costs.of(kept | {node.number}), node) for node in candidates]
        gains = [(gain, node) for gain, node in gains if gain > 0]
        gains.sort(key=lambda one: -one[0])
        candidates = [node for _, node in gains]
        taken = False
        related: set[int] = set()
        for _, node in gains:
            if node.number in related or len(kept) >= MOST_KEPT:
                continue
            now = costs.of(kept | {node.number})
            if now < best:
                kept, best, taken = kept | {node.number}, now, True
                candidates.remove(node)
                related |= {one.number for one in reachable([node])}
        if not taken:
            break
    if kept:  # what is wanted at one site alone, where the kernel that keeps has most of it
        at_one = [n for n in order if n.number in roots and n.number not in kept and n.args]
        at_one = [n for n in at_one if below[n.number] > costs.of_keeping(n) and possible(n)]
        at_one.sort(key=lambda n: below[n.number] - costs.of_keeping(n), reverse=True)
        for node in at_one[:MOST_CONSIDERED]:
            now = costs.of(kept | {node.number})
            if now < best and len(kept) < MOST_KEPT:
                kept, best = kept | {node.number}, now
    return _needed(order, masks, kept)


def _needed(order: list[Node], masks: dict[int, int], kept: frozenset[int]) -> list[Node]:
    """Those of the kept values that others than kept ones want, or that several sites of the kernel that keeps do not."""
    found = []
    live = {number for number in masks}
    for node in reversed(order):
        if node.number not in live:
            continue
        if node.number in kept:
            found.append(node)
            continue
        live.update(a.number for a in node.args)
    return found[::-1]
