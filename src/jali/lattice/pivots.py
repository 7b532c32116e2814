"""Pivots that are not what they have to be: the kernel counts the sites of each factor and keeps the first one in a word, and a
SingularError names that one where overflows are reported, too (`overflow.py`).

The word has 36 bits that fall as the number of the site rises, 8 of the number of the pivot and the upper 19 of its value as a
double (`count_pivots` in prelude/kernel.hpp). When it is reported it becomes 0, so that later runs have a first site of their own.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jali.codegen.ir import Node, SiteProgram
from jali.codegen.lines import is_of_user
from jali.codegen.operation import described
from jali.codegen.passes import Analysis
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
    offset: tuple[int, ...]
    extents: tuple[int, ...]
    wrong: str
    word: int = 0

    def failure(self) -> tuple[str, int]:
        """What is wrong at the first site, and its number."""
        number, pivot, bits = MOST - (self.word >> 27), self.word >> 19 & 255, self.word & (1 << 19) - 1
        (value,) = struct.unpack("<d", struct.pack("<Q", bits << 45))
        site, rest = [], number
        for extent, step in zip(self.extents, self.offset, strict=True):
            site.append((rest + step) % extent)
            rest //= extent
        place = f"at site {tuple(site)}" if number < MOST else f"at a site beyond number {MOST}"
        found = f"pivot {pivot} of 0 to {self.order - 1} is {value:.2g}"
        return f"{self.function}{self.matrix} {place} is {self.wrong}: {found}{self.line}", number


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
        return Found(sites, *self.factor.failure())


def pivot_counts(
    counters: Any, program: SiteProgram, analysis: Analysis, fields: Sequence[Any], extents: tuple[int, ...]
) -> Iterator[PivotCount]:
    """Those of a launch with these fields."""
    for k, node in enumerate(analysis.failing):
        yield PivotCount(counters, program.name, 2 + 2 * k, _factor(program, node, fields, extents))


def _factor(program: SiteProgram, node: Node, fields: Sequence[Any], extents: tuple[int, ...]) -> Factor:
    loads = [n.attrs for n in reachable(node.args[:1]) if described(n).reads]
    of_user = is_of_user(node.where)  # else an expression of whole fields
    names = list(dict.fromkeys((program.fields if of_user else fields)[slot].name for slot, _ in loads))
    offsets = {offset for slot, offset in loads if program.fields[slot].ratio is None}
    # a matrix of one site is named by that, others by the site of the function
    offset = offsets.pop() if len(offsets) == 1 else tuple(-s for s in program.shift)
    alone = len(loads) == 1 and described(node.args[0]).reads
    matrix = names[0] if alone else f"the matrix made of {', '.join(names)}" if names else "a matrix"
    function, line = (f"{program.name}: ", f", in {node.where}") if of_user else ("", "")
    order, wrong = math.isqrt(node.type.size), described(node).fails
    return Factor(function, matrix, order, line, offset, extents, wrong)
