"""Which links can be updated together: those of one direction that share no term of the action.

The reach of an action is the boxes that its terms fit in. Links of direction mu in a box with sides s are up to s_nu
apart in the other directions, and up to s_mu - 1 along mu. These displacements must lead from a colour to another one.

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
from jali.files import value_shown
from jali.lattice import PARITIES, Colouring, Domain, Lattice
from jali.single_instance import single_instance

Reach = tuple[tuple[int, ...], ...]
PLAQUETTES: Reach = ((1, 1),)
RECTANGLES: Reach = ((1, 2),)

Displacement = tuple[int, ...]
Table = tuple[int, ...]
Candidate = tuple[Table, dict[int, int]]
"""A table of a direction, and the differences of colour that it makes, by displacement: bit k for the difference k."""


def link_parts(lattice: Lattice, reach: Reach = PLAQUETTES) -> Iterable[tuple[object, Domain]]:
    """Directions and sets of sites, in turn: links of one direction on one set can be updated together."""
    return [(mu, colour) for mu in lattice.directions for colour in link_colours(lattice, reach, int(mu))]


def link_colours(lattice: Lattice, reach: Reach = PLAQUETTES, mu: int = 0) -> Iterable[Domain]:
    """Sets of sites whose links of direction mu can be updated together.

    For plaquettes EVEN and ODD, on a lattice with odd extents three colours, for all mu alike; for rectangles four
    where extents are multiples of four, else more. Raises LayoutError where an extent is so small that a term
    contains a link twice, and below two dimensions, where there are no plaquettes.
    """
    return _link_colours(lattice.extents, reach if reach is PLAQUETTES else checked_reach(reach), mu)


@single_instance
def _link_colours(extents: tuple[int, ...], reach: Reach, mu: int) -> Iterable[Domain]:
    least = max(map(max, reach)) + 1
    if len(extents) < 2 or min(extents) < least:
        what = (
            "link updates need" if reach == PLAQUETTES else f"link updates with loops in boxes {reach} need"
        )
        raise LayoutError(
            f"{what} at least two dimensions and extents of at least {least}, the lattice is {extents}"
        )
    if reach != PLAQUETTES:
        return _searched_colours(extents, tuple(displacements(reach, len(extents), mu)))
    if all(n % 2 == 0 for n in extents):
        return PARITIES
    return _three_colours(extents)


def checked_reach(reach: Reach) -> Reach:
    """The reach, if it is one. Raises LayoutError."""
    good = isinstance(reach, tuple) and bool(reach)
    for box in reach if good else ():
        good &= isinstance(box, tuple) and len(box) > 1 and all(isinstance(s, int) and s > 0 for s in box)
    if not good:
        raise LayoutError(
            f"the reach of an action is a tuple of boxes, ((1, 1),) or ((1, 2), (1, 1, 1)), with two sides or more "
            f"of whole numbers from 1, not {value_shown(reach)}"
        )
    return reach


def displacements(reach: Reach, ndim: int, mu: int) -> list[Displacement]:
    """All that may lie between two links of direction mu in one term of an action, itself and zero left out."""
    found = set()
    for box in reach:
        sides = (*box, *(0,) * (ndim - len(box)))  # on fewer dimensions what of the box fits into them
        for along in set(itertools.permutations(sides, ndim)):
            if not along[mu]:
                continue
            steps = [s - 1 if d == mu else s for d, s in enumerate(along)]
            found |= set(itertools.product(*(range(-s, s + 1) for s in steps)))
    return sorted(found - {(0,) * ndim})


@functools.cache
def _three_colours(extents: tuple[int, ...]) -> Colouring:
    def colour_of(x: list[np.ndarray]) -> np.ndarray:
        # Along an odd extent the numbers 0 1 0 1 ... 2 change by +1 or -1 modulo 3 in every step, the last
        # one included.
        numbers = [np.where((n % 2 == 1) & (c == n - 1), 2, c % 2) for c, n in zip(x, extents, strict=True)]
        return np.asarray(sum(numbers) % 3)

    return Colouring(3, colour_of, "link colour")


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

    return Colouring(colours, colour_of, "link colour")


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
    found: dict[tuple[frozenset[int], ...], Table] = {}
    for first, second in itertools.product(range(colours), repeat=2):
        for many in range(n + 1):
            if (many * first + (n - many) * second) % colours:
                continue
            pairs = min(many, n - many)
            apart = [first] * many + [second] * (n - many)
            in_turns = [first, second] * pairs + [first if many > pairs else second] * (n - 2 * pairs)
            for steps in (apart, in_turns):
                table = tuple(sum(steps[:k]) % colours for k in range(n))
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
