"""Local arrays of a kernel's values, and from when on others may use them.

An array is released when its last value has been used: a renaming operation uses the arrays of its arguments, and what encloses
others in a branch uses theirs.
"""

from __future__ import annotations

from jali.codegen.ir import Node, SiteProgram
from jali.codegen.operation import described
from jali.codegen.passes import Analysis


class LocalArrays:
    """The arrays of one kernel, by name. Positions are those of the order in which values are written."""

    def __init__(self, program: SiteProgram, analysis: Analysis):
        self.sizes: dict[str, int] = {}  # reals
        self._analysis = analysis
        self.own: set[str] = (
            set()
        )  # those of values that members of a batch do not share, where a thread has several
        self.of_members = False  # whether values are now of members
        self._free: dict[tuple[int, bool], list[str]] = {}  # by size, and whether they are of members
        self._owned: dict[int, list[str]] = {}  # by the number of the value
        self._roots: dict[int, frozenset[int]] = {}  # the values whose arrays a value uses
        self._last: dict[int, int] = {}  # where a value is used for the last time
        for node in [n for body in analysis.bodies.values() for n in body] + analysis.order:
            self._roots_of(node)
        for position, node in enumerate(analysis.order):
            for argument in self._arguments(node):
                for root in self._roots_of(argument):
                    self._last[root] = position
        for effect in program.effects:
            for root in self._roots_of(effect.value):
                self._last[root] = len(analysis.order)

    def take(self, reals: int, owner: Node, fresh: bool) -> str:
        """An array for a value; with `fresh`, one that no other value has had."""
        waiting = self._free.get((reals, self.of_members))
        if waiting and not fresh:
            name = waiting.pop()
        else:
            name = f"b{len(self.sizes)}"
            self.sizes[name] = reals
            if self.of_members:
                self.own.add(name)
        self._owned.setdefault(owner.number, []).append(name)
        return name

    def hand_over(self, array: str, owner: Node, heir: Node, position: int) -> bool:
        """Give an array of a value to another one, if the first is not used after this position; returns whether it
        did."""
        mine = self._owned.get(owner.number, [])
        if array not in mine or self._last.get(owner.number, -1) > position:
            return False
        if self.of_members and array not in self.own:
            return False  # each member would write to what the next one reads
        mine.remove(array)
        self._owned.setdefault(heir.number, []).append(array)
        return True

    def keep(self) -> None:
        """Nobody gets the arrays that are in use now: they are read again in each turn of a loop that begins here."""
        self._owned.clear()

    def release(self, position: int) -> None:
        """Release arrays that are not used after this position."""
        for number, names in list(self._owned.items()):
            if self._last.get(number, -1) <= position:
                for name in names:
                    self._free.setdefault((self.sizes[name], name in self.own), []).append(name)
                del self._owned[number]

    def _arguments(self, node: Node) -> list[Node]:
        """The values a node reads when it is written, through loop bodies."""
        if described(node).encloses:
            return []  # they are written inside its own branch
        out = list(node.args)
        if described(node).repeats:
            for inner in self._analysis.bodies[node.attrs[0]]:
                out += self._arguments(inner)
        return out

    def _roots_of(self, node: Node) -> frozenset[int]:
        found = self._roots.get(node.number)
        if found is None:
            found = frozenset({node.number})
            if described(node).encloses:
                found = found.union(inner.number for inner in self._analysis.branches[node.number])
            elif described(node).renames:
                found = found.union(*(self._roots_of(a) for a in node.args))
            self._roots[node.number] = found
        return found
