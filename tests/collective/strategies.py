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
from jali.comm import ALL, OTHERS, Composition
from jali.errors import PlanError

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

        def at(place: tuple[int, int, int]) -> tuple[Any, Any, Any]:
            rank, number, offset = place
            run = slice(offset, offset + count)
            size = self.defined[rank][number].size
            read, written = self._uses.setdefault(
                (rank, number), (np.zeros(size, bool), np.zeros(size, bool))
            )
            return self.defined[rank][number][run], read[run], written[run]

        for place in reads | writes:
            if place[2] + count > self.defined[place[0]][place[1]].size:
                return False
        for place in reads:
            defined, _, written = at(place)
            if written.any() or not defined.all():
                return False
        for place in writes:
            _, read, written = at(place)
            if written.any() or read.any():
                return False
        overlaps = any(r[:2] == w[:2] and r != w and abs(r[2] - w[2]) < count for r in reads for w in writes)
        if overlaps:
            return False
        for place in reads:
            at(place)[1][:] = True
        for place in writes:
            at(place)[2][:] = True
        return True


@st.composite
def compositions(
    draw: st.DrawFn, ranks: int | None = None, most_ranks: int = 9, exact: bool = True, most_count: int = 12
) -> Drawn:
    """Compositions of one to three steps over two or three small buffers, with sparse sets of ranks."""
    p = ranks or draw(st.integers(1, most_ranks))
    operations = EXACT if exact else ROUNDING
    element = draw(st.sampled_from(sorted(operations)))
    composition = Composition(p, element)
    defined: list[list[npt.NDArray[np.bool_]]] = [[] for _ in range(p)]
    buffers = draw(st.integers(2, 3))
    for number in range(buffers):
        uniform = draw(st.booleans())
        counts = draw(
            st.lists(st.integers(0, most_count), min_size=1 if uniform else p, max_size=1 if uniform else p)
        )
        is_input = number == 0 or draw(st.booleans())
        composition.buffer(f"b{number}", counts[0] if uniform else counts, input=is_input)
        for rank in range(p):
            defined[rank].append(np.full(counts[0] if uniform else counts[rank], is_input))
    drawn = Drawn(composition, defined, exact)

    for _ in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 6))):
            root = draw(st.integers(0, p - 1))
            members = sorted(
                draw(
                    st.one_of(
                        st.just(set(range(p))),
                        st.just(set(range(p)) - {root} or {root}),
                        st.sets(st.integers(0, p - 1), min_size=1),
                    )
                )
            )
            source, target = draw(st.integers(0, buffers - 1)), draw(st.integers(0, buffers - 1))
            begin, end = draw(st.integers(0, most_count - 1)), draw(st.integers(0, most_count - 1))
            if source == target and draw(st.booleans()):
                end = begin  # in place
            multicast = draw(st.booleans())
            # The largest run that exists everywhere, or less of it.
            ends = [(root, source, begin)] + [(r, target, end) for r in members]
            if not multicast:
                ends = [(root, target, end)] + [(r, source, begin) for r in members]
            room = min(drawn.defined[rank][number].size - offset for rank, number, offset in ends)
            if room < 1:
                continue
            count = draw(st.integers(1, room))
            one, many = {ends[0]}, set(ends[1:])
            reads, writes = (one, many - one) if multicast else (many, one)
            if not reads or not writes or not drawn.fits(reads, writes, count):
                continue
            names = list(composition.buffers.values())
            a, b = names[source][begin : begin + count], names[target][end : end + count]
            ranks_named: Any = members
            if len(members) == p:
                ranks_named = ALL
            elif members == [r for r in range(p) if r != root]:
                ranks_named = OTHERS
            if multicast:
                composition.multicast(a, b, root=root, leaves=ranks_named)
            else:
                op = draw(st.sampled_from(operations[element]))
                composition.reduce(a, b, sources=ranks_named, root=root, op=op)
        drawn.fence()
    return drawn


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
