"""Pivots that are not what they have to be: the kernel counts the sites of each factor and keeps the first one in a word, and a
SingularError names that one where overflows are reported, too (`overflow.py`).

The word has 36 bits that fall as the number of the site rises (in a batch as that of site and member does), 8 of the number of the pivot
and the upper 19 of its value as a double (`count_pivots` in prelude/kernel.hpp). When it is reported it becomes 0, so that later runs have
a first site of their own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jali.codegen.ir import Node, SiteProgram
from jali.codegen.language import leaves
from jali.codegen.lines import is_of_user
from jali.codegen.operation import described
from jali.codegen.passes import Analysis, of_members
from jali.codegen.rewriting import reachable
from jali.lattice.overflow import Found, LaunchCount

MOST = (1 << 36) - 1


@dataclass
class Factor:
    """A factor or inverse that a launch computes: what is said of it, where its matrix lies, and the last word that was reported."""

    function: str
    matrix: str
    order: int
    line: str
    shift: tuple[int, ...]  # from the site of the function to that which the kernel counts
    offset: tuple[int, ...]  # from the site of the function to that of the matrix
    extents: tuple[int, ...]
    conditions: list[Sequence[Any]]  # of the boundaries that it is read across
    members: int  # of a batch that have matrices of their own, else 0
    member: int | None  # of which the matrix is, where the function names it
    of_member: bool  # whether the matrix is that of the member which is computed
    wrong: str
    word: int = 0

    @property
    def kind(self) -> str:
        """What is alike for all of its sites."""
        return f"{self.function}{self.matrix} is {self.wrong}{self.line}"

    def failure(self) -> tuple[str, int]:
        """What is wrong at the first site, and its number."""
        number, pivot, bits = MOST - (self.word >> 27), self.word >> 19 & 255, self.word & (1 << 19) - 1
        (value,) = struct.unpack("<d", struct.pack("<Q", bits << 45))
        most = number == MOST
        number, computed = divmod(number, self.members or 1)
        place = f"at a site beyond number {number}" if most else self._place(number)
        member = computed if self.of_member else self.member
        matrix = self.matrix if member is None else f"member {member} of {self.matrix}"
        if self.members and not self.of_member:
            place += f", for member {computed},"
        found = f"pivot {pivot} of 0 to {self.order - 1} is {value:.2g}"
        return f"{self.function}{matrix} {place} is {self.wrong}: {found}{self.line}", number

    def _place(self, number: int) -> str:
        """The site of the matrix, and what lies between it and the site of the function."""
        here, there, crossings = [], [], []
        for extent, shift, step in zip(self.extents, self.shift, self.offset, strict=True):
            here.append((number - shift) % extent)
            crossing, there_in_direction = divmod(here[-1] + step, extent)
            there.append(there_in_direction)
            crossings.append(crossing)
            number //= extent
        factors = []
        for conditions in self.conditions:
            factor: complex = 1
            for axis, (condition, crossing) in enumerate(zip(conditions, crossings, strict=True)):
                if crossing and condition == "open":
                    return f"read from site {tuple(here)} across the open end of direction {axis}"
                if crossing and condition != "periodic":
                    factor *= (-1 if condition == "antiperiodic" else condition) ** crossing
            factors.append(factor)
        place = f"at site {tuple(there)}"
        if other := [factor for factor in factors if factor != 1]:
            place += f", read from site {tuple(here)} with the boundary factor {other[0]:.4g},"
        return place


class PivotCount(LaunchCount):
    """Sites at which a factor of a launch has a pivot that it must not have."""

    __slots__ = ("factor", "number")

    def __init__(self, counters: Any, name: str, number: int, factor: Factor):
        super().__init__(counters, name)
        self.number = number
        self.factor = factor  # shared with copies

    def found(self, sites: int, values: list[int]) -> Found:
        """So many sites, and the first of them."""
        if not sites:
            return Found(0, "")
        if word := int(values[self.number + 1]):
            self.factor.word = word
            self.counters.clear(self.number + 1)
        return Found(sites, *self.factor.failure(), ((self.factor.kind, sites),))


def pivot_counts(
    counters: Any, program: SiteProgram, analysis: Analysis, fields: Sequence[Any], extents: tuple[int, ...]
) -> Iterator[PivotCount]:
    """Those of a launch with these fields."""
    for k, node in enumerate(analysis.failing):
        yield PivotCount(counters, program.name, 2 + 2 * k, _factor(program, node, fields, extents))


def _factor(program: SiteProgram, node: Node, fields: Sequence[Any], extents: tuple[int, ...]) -> Factor:
    loads = [n for n in reachable(node.args[:1]) if described(n).reads]
    slots = [n.attrs[0] for n in loads]
    of_user = is_of_user(node.where)  # else an expression of whole fields
    names = list(dict.fromkeys((program.fields if of_user else fields)[slot].name for slot in slots))
    offsets = {n.attrs[1] for n in loads if program.fields[n.attrs[0]].ratio is None}
    # a matrix of one site is named by that, others by the site of the function
    one_site = len(offsets) == 1
    offset = program.offset_of_user(offsets.pop()) if one_site else (0,) * program.ndim
    conditions = [fields[slot].boundary.conditions for slot in slots if program.fields[slot].ratio is None]
    members = program.batch if program.batch and node.number in of_members(program) else 0
    named = loads[0].args[0] if len(loads) == 1 and loads[0].args else None
    member = int(named.attrs[0]) if named is not None and leaves.const.made(named) else None
    alone = len(loads) == 1 and described(node.args[0]).reads and (named is None or member is not None)
    of_member = bool(alone and named is None and members and program.fields[slots[0]].batch)
    matrix = names[0] if alone else f"the matrix made of {', '.join(names)}" if names else "a matrix"
    function, line = (f"{program.name}: ", f", in {node.where}") if of_user else ("", "")
    order, wrong = math.isqrt(node.type.size), described(node).fails
    return Factor(
        function,
        matrix,
        order,
        line,
        program.shift,
        offset,
        extents,
        conditions if one_site else [],
        members,
        member if alone else None,
        of_member,
        wrong,
    )
