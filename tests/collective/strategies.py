"""Random compositions, plans' parameters and data, for property-based tests.

Compositions are free of races by construction: while one is drawn, a model notes for every element of every
rank whether it is defined and what the present step does to it, and only primitives that respect both are
kept. Reductions are exact in any order (integers that wrap; small whole numbers in floats) unless rounding is
asked for, so that every plan must give the bits of the direct evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import reject
from hypothesis import strategies as st

from jali import _core
from jali.errors import PlanError
from jali.planner import ALL, OTHERS, Composition

Memory = list[list[npt.NDArray[Any]]]

NUMPY = {"int64": "int64", "uint8": "uint8", "fp64": "float64", "fp32": "float32", "fp16": "float16"}
EXACT = {
    "int64": ["sum", "prod", "min", "max", "bit_and", "bit_or", "bit_xor", "logical_xor"],
    "uint8": ["sum", "prod", "min", "max", "bit_and", "bit_or", "bit_xor", "logical_and"],
    "fp64": ["sum", "min", "max"],
}
ROUNDING = {"fp64": ["sum", "prod", "avg"], "fp32": ["sum", "prod", "avg"], "fp16": ["sum", "max", "avg"]}


@dataclass
class Drawn:
    """A composition, and which elements it defines: defined[rank][buffer][element]."""

    composition: Composition
    defined: list[list[npt.NDArray[np.bool_]]]
    exact: bool
    _uses: dict[tuple[int, int], tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]] = field(
        default_factory=dict
    )

    @property
    def core(self) -> _core.Composition:
        """The composition as the core has it."""
        return self.composition.core

    def memory(self, seed: int) -> Memory:
        """Data for all buffers of all ranks, different everywhere; the undefined is data of its own kind."""
        rng = np.random.default_rng(seed)
        dtype = np.dtype(NUMPY[self.composition.element])
        memory: Memory = []
        for of_rank in self.defined:
            memory.append([])
            for defined in of_rank:
                size = defined.size
                if dtype.kind in "iu":
                    limits = np.iinfo(dtype)
                    values = rng.integers(limits.min, limits.max, size, dtype=dtype, endpoint=True)
                elif self.exact:
                    values = rng.integers(-99, 100, size).astype(dtype)
                else:
                    values = (rng.standard_normal(size) * 2.0 ** rng.integers(-8, 8, size)).astype(dtype)
                memory[-1].append(values)
        return memory

    def same(self, one: Memory, other: Memory) -> None:
        """Assert that the bits of all defined elements are the same."""
        for rank, of_rank in enumerate(self.defined):
            for number, defined in enumerate(of_rank):
                a, b = one[rank][number][defined], other[rank][number][defined]
                np.testing.assert_array_equal(
                    a.view(np.uint8), b.view(np.uint8), f"rank {rank}, buffer {number}: {a} is not {b}"
                )

    def fence(self) -> None:
        """End the step: what it wrote is defined from now on."""
        for (rank, number), (_, written) in self._uses.items():
            self.defined[rank][number] |= written
        self._uses.clear()
        self.composition.fence()

    def fits(self, reads: set[tuple[int, int, int]], writes: set[tuple[int, int, int]], count: int) -> bool:
        """Whether (rank, buffer, offset) may be read and written in this step; notes it if so."""

        def at(location: tuple[int, int, int]) -> tuple[Any, Any, Any]:
            rank, number, offset = location
            run = slice(offset, offset + count)
            size = self.defined[rank][number].size
            read, written = self._uses.setdefault(
                (rank, number), (np.zeros(size, bool), np.zeros(size, bool))
            )
            return self.defined[rank][number][run], read[run], written[run]

        for location in reads | writes:
            if location[2] + count > self.defined[location[0]][location[1]].size:
                return False
        for location in reads:
            defined, _, written = at(location)
            if written.any() or not defined.all():
                return False
        for location in writes:
            _, read, written = at(location)
            if written.any() or read.any():
                return False
        overlaps = any(r[:2] == w[:2] and r != w and abs(r[2] - w[2]) < count for r in reads for w in writes)
        if overlaps:
            return False
        for location in reads:
            at(location)[1][:] = True
        for location in writes:
            at(location)[2][:] = True
        return True


@st.composite
def compositions(
    draw: st.DrawFn, ranks: int | None = None, most_ranks: int = 9, exact: bool = True, most_count: int = 24
) -> Drawn:
    """Compositions of one to three steps over two or three small buffers, with sparse sets of ranks.

    How large they are is drawn by hypothesis, so that it can shrink them; what is in them by a seed, since of
    primitives drawn independently hardly any would fit the others.
    """
    p = ranks or draw(st.integers(1, most_ranks))
    operations = EXACT if exact else ROUNDING
    element = draw(st.sampled_from(sorted(operations)))
    wanted = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))  # primitives of each step
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    composition = Composition(p, element)
    defined: list[list[npt.NDArray[np.bool_]]] = [[] for _ in range(p)]
    for number in range(rng.integers(2, 4)):
        counts = [int(n) for n in rng.integers(0, most_count + 1, p)]
        if rng.random() < 0.7:
            counts = [max(counts)] * p
        is_input = number == 0 or bool(rng.random() < 0.5)
        composition.buffer(f"b{number}", counts, input=is_input)
        for rank in range(p):
            defined[rank].append(np.full(counts[rank], is_input))
    drawn = Drawn(composition, defined, exact)
    for primitives in wanted:
        for _ in range(20 * primitives):
            primitives -= _add_primitive(drawn, rng, operations[element])
            if primitives == 0:
                break
        drawn.fence()
    return drawn


def _add_primitive(drawn: Drawn, rng: np.random.Generator, operations: list[str]) -> bool:
    """Try to add one primitive of any kind anywhere; whether it fitted."""
    composition, p = drawn.composition, drawn.core.ranks
    buffers = list(composition.buffers.values())
    root = int(rng.integers(p))
    kind = rng.integers(4)
    members = list(range(p))
    named: Any = ALL
    if kind == 1 and p > 1:
        members, named = [r for r in members if r != root], OTHERS
    elif kind > 1:
        members = [int(r) for r in rng.choice(p, rng.integers(1, p + 1), replace=False)]
        named = members[0] if len(members) == 1 else members
    source, target = (int(n) for n in rng.integers(len(buffers), size=2))
    largest = max(defined.size for of_rank in drawn.defined for defined in of_rank)
    begin, end = (int(n) for n in rng.integers(max(1, largest), size=2))
    if rng.random() < 0.3:
        target, end = source, begin  # in place
    multicast = bool(rng.random() < 0.5)
    one = (root, source, begin) if multicast else (root, target, end)
    many = {(r, target, end) if multicast else (r, source, begin) for r in members}
    room = min(drawn.defined[rank][number].size - offset for rank, number, offset in {one} | many)
    if room < 1:
        return False
    count = int(rng.integers(1, room + 1))
    reads, writes = ({one}, many - {one}) if multicast else (many, {one})
    if not writes or not drawn.fits(reads, writes, count):
        return False
    a, b = buffers[source][begin : begin + count], buffers[target][end : end + count]
    if multicast:
        composition.multicast(a, b, root=root, leaves=named)
    else:
        composition.reduce(a, b, sources=named, root=root, op=str(rng.choice(operations)))
    return True


def factorisations(number: int) -> list[list[int]]:
    """All ways to write a number as an ordered product of factors above one ([1] for one)."""
    if number == 1:
        return [[1]]
    found = [[number]]
    for first in range(2, number):
        if number % first == 0:
            found += [[first, *rest] for rest in factorisations(number // first)]
    return found


@st.composite
def hierarchies(draw: st.DrawFn, ranks: int) -> _core.Hierarchy:
    """Equal groups, uneven nodes, halves of halves, or no groups; ranks in order or permuted."""
    kind = draw(st.sampled_from(["flat", "factors", "sizes", "binary"]))
    if kind == "factors":
        hierarchy = _core.Hierarchy(ranks, draw(st.sampled_from(factorisations(ranks))))
    elif kind == "sizes":
        cuts = draw(st.sets(st.integers(1, ranks - 1))) if ranks > 1 else set()
        edges = [0, *sorted(cuts), ranks]
        hierarchy = _core.Hierarchy.from_sizes(ranks, [[b - a for a, b in pairwise(edges)]])
    elif kind == "binary":
        hierarchy = _core.Hierarchy.binary(ranks)
    else:
        hierarchy = _core.Hierarchy(ranks)
    if draw(st.booleans()):
        hierarchy.set_order(draw(st.permutations(range(ranks))))
    return hierarchy


@st.composite
def parameters(
    draw: st.DrawFn, composition: _core.Composition, reproducible: bool | None = None
) -> _core.PlanParameters:
    """Parameters that fit each other and the composition."""
    p = composition.ranks
    how = _core.PlanParameters(
        draw(hierarchies(p)),
        stripe=draw(st.integers(1, min(p, 4))),
        ring=draw(st.sampled_from([1, 1, *(n for n in range(2, p + 1) if p % n == 0)])),
        depth=draw(st.integers(1, 5)),
        reproducible=draw(st.booleans()) if reproducible is None else reproducible,
        pack_below=draw(st.sampled_from([0, 16, 65536])),
    )
    try:
        _core.check_parameters(composition, how)
    except PlanError:
        reject()
    return how
