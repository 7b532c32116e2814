"""Which variables of a field can be updated together: those that share no term of the action.

Which displacements lie between two of them in a term of the action is read from the formula (`terms.py`). These displacements must lead from a colour to another one.

Colours are c(x) = sum_d f_d(x_d) modulo their number, found by search: f_d is a table for each direction. Because
coordinates are independent, two sites of one colour exist at a displacement if and only if zero is a sum of
differences of the tables, one of each; so a colouring that is found is proved.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable

import numpy as np

from jali.errors import LayoutError
from jali.lattice import ALL, PARITIES, Colouring, Domain, Lattice

Displacement = tuple[int, ...]
Table = tuple[int, ...]
Candidate = tuple[Table, dict[int, int]]
"""A table of a direction, and the differences of colour that it makes, by displacement: bit k for the difference k."""


def neighbours(ndim: int) -> frozenset[Displacement]:
    """One step in any direction."""
    return frozenset(
        tuple(step if d == axis else 0 for d in range(ndim)) for axis in range(ndim) for step in (1, -1)
    )


def colours_apart(
    extents: tuple[int, ...], apart: frozenset[Displacement], variable: str = "variable"
) -> Iterable[Domain]:
    """Sets of sites of which no two are apart by one of these displacements; that by nothing does not count.

    Where all are to next neighbours EVEN and ODD, on a lattice with odd extents three colours; else as few as are found. Raises LayoutError
    where a displacement leads around the lattice to the site itself; `variable` is what errors call what a site has.
    """
    ndim = len(extents)
    steps = frozenset(apart) - {(0,) * ndim}
    round_trips = [s for s in steps if all(a % n == 0 for a, n in zip(s, extents, strict=True))]
    if round_trips:
        raise LayoutError(
            f"on the lattice {extents} a term of the action has one {variable} twice, {max(round_trips)} apart: it is too small for this action"
        )
    if not steps:
        return (ALL,)
    if steps <= neighbours(ndim):
        return PARITIES if all(n % 2 == 0 for n in extents) else _three_colours(extents)
    return _searched_colours(extents, tuple(sorted(steps | {tuple(-a for a in s) for s in steps})))


def site_colours(lattice: Lattice) -> Iterable[Domain]:
    """Sets of sites of which no two are neighbours."""
    return colours_apart(lattice.extents, neighbours(lattice.ndim))


@functools.cache
def _three_colours(extents: tuple[int, ...]) -> Colouring:
    def colour_of(x: list[np.ndarray]) -> np.ndarray:
        # Along an odd extent the numbers 0 1 0 1 ... 2 change by +1 or -1 modulo 3 in every step, the last
        # one included.
        numbers = [np.where((n % 2 == 1) & (c == n - 1), 2, c % 2) for c, n in zip(x, extents, strict=True)]
        return np.asarray(sum(numbers) % 3)

    return Colouring(3, colour_of, "colour")


@functools.cache
def _searched_colours(extents: tuple[int, ...], apart: tuple[Displacement, ...]) -> Colouring:
    """As few colours as there are tables for. Ends: with a colour for every site there are tables."""
    tables, colours = next(
        (tables, colours)
        for colours in itertools.count(2)
        if (tables := _tables(extents, apart, colours)) is not None
    )
    rows = [np.array(table) for table in tables]

    def colour_of(x: list[np.ndarray]) -> np.ndarray:
        return np.asarray(sum(row[c] for row, c in zip(rows, x, strict=True)) % colours)

    return Colouring(colours, colour_of, "colour")


def _tables(
    extents: tuple[int, ...], apart: tuple[Displacement, ...], colours: int
) -> tuple[Table, ...] | None:
    """A table for each direction, so that no displacement leads to the same colour; None if there are none.

    Of all choices the one that comes first, direction by direction.
    """
    reach = [max(step[d] for step in apart) for d in range(len(extents))]
    open_to = [_candidates(n, colours, r) for n, r in zip(extents, reach, strict=True)]
    search = _Search(apart, colours)
    if not search.succeeds(open_to):
        return None
    for d, candidates in enumerate(open_to):
        fixed = next(one for one in candidates if search.succeeds([*open_to[:d], [one], *open_to[d + 1 :]]))
        open_to[d] = [fixed]
    return tuple(candidates[0][0] for candidates in open_to)


class _Search:
    """Whether tables can be chosen, one of some candidates for each direction.

    The direction that most displacements have a part in, that of the links, comes first, since it decides most. Sets of
    differences of colour are whole numbers, bit k for the difference k. What was in vain is remembered: for most
    displacements it does not matter which tables other directions have.
    """

    def __init__(self, apart: tuple[Displacement, ...], colours: int):
        ndim = len(apart[0])
        self._colours = colours
        self._order = sorted(range(ndim), key=lambda d: -sum(step[d] != 0 for step in apart))
        # A displacement is decided with the last direction in which it leads anywhere.
        rank = {d: k for k, d in enumerate(self._order)}
        last = {step: max(rank[d] for d, s in enumerate(step) if s) for step in apart}
        self._undecided = [[step for step in apart if last[step] >= k] for k in range(ndim)]
        self._last = last
        self._sums: dict[tuple[int, int], int] = {}

    def succeeds(self, candidates: list[list[Candidate]]) -> bool:
        """Whether there is a choice."""
        in_vain: list[set[tuple[int, ...]]] = [set() for _ in self._order]

        def extend(k: int, known: tuple[int, ...]) -> bool:
            """`known`: differences that the undecided displacements make in the directions chosen."""
            if k == len(self._order):
                return True
            if known in in_vain[k]:
                return False
            d = self._order[k]
            for _, differences in candidates[d]:
                after, fits = [], True
                for step, before in zip(self._undecided[k], known, strict=True):
                    sums = self._sum(before, differences[step[d]])
                    if self._last[step] > k:
                        after.append(sums)
                    elif sums & 1:
                        fits = False
                        break
                if fits and extend(k + 1, tuple(after)):
                    return True
            in_vain[k].add(known)
            return False

        return extend(0, (1,) * len(self._undecided[0]))

    def _sum(self, a: int, b: int) -> int:
        """All sums of a difference of the one set and one of the other, modulo the number of colours."""
        found = self._sums.get((a, b))
        if found is None:
            found = 0
            for k in range(self._colours):
                if b >> k & 1:
                    found |= a << k | a >> (self._colours - k)
            found &= (1 << self._colours) - 1
            self._sums[a, b] = found
        return found


@functools.cache
def _candidates(n: int, colours: int, reach: int) -> list[Candidate]:
    """Tables for a direction of n sites, one for every way in which they can differ up to `reach` sites apart.

    A table goes in steps of two sizes, those of one size first or in turns: 0 1 2 3 in steps of 1, 0 1 0 1 2 with one
    step of 1 instead of -1. The differences are by displacement, as bits; the last site comes before the first one.
    """
    if not reach:  # nothing must differ in this direction
        return [((0,) * n, {0: 1})]
    found: dict[tuple[frozenset[int], ...], Table] = {}
    # Other numbers of the one step than few, about half and nearly all differ from few in the lengths of long rows alone.
    few, half = colours + 2 * reach, n // 2
    numbers = sorted({*range(few), *range(half - few, half + few), *range(n - few, n + 1)} & {*range(n + 1)})
    for first, second in itertools.product(range(colours), repeat=2):
        for many in numbers:
            if (many * first + (n - many) * second) % colours:
                continue
            pairs = min(many, n - many)
            apart = [first] * many + [second] * (n - many)
            in_turns = [first, second] * pairs + [first if many > pairs else second] * (n - 2 * pairs)
            for steps in (apart, in_turns):
                table = tuple(done % colours for done in itertools.accumulate(steps[:-1], initial=0))
                ways = tuple(
                    frozenset((table[(k + s) % n] - table[k]) % colours for k in range(n))
                    for s in range(1, reach + 1)
                )
                found.setdefault(ways, table)
    return [
        (
            table,
            {0: 1}
            | {s: sum(1 << x for x in way) for s, way in enumerate(ways, 1)}
            | {-s: sum(1 << -x % colours for x in way) for s, way in enumerate(ways, 1)},
        )
        for ways, table in found.items()
    ]
