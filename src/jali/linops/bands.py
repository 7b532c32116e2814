"""Matrices of differences along an axis: the same few diagonals in all rows but those near the ends.

A derivative is one, and its adjoint is another: its transpose, which is found here entry by entry. So both are applied in the same
way, each rank computing its own rows, for which it needs columns of others but adds nothing to theirs.

Results have the bits of the serial library where rows have the order of its terms: an entry is `times * x / over`, entries are
added from left to right, and the sum is divided at the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from jali.linops.combinations import CombinationBackend, combination


class Term(NamedTuple):
    """Row i has the column i + offset, times `times`, over `over`."""

    offset: int
    times: float
    over: float = 1.0


class Entry(NamedTuple):
    """The column of a row that is not like others."""

    column: int
    times: float
    over: float = 1.0


class Band:
    """A square matrix of `n` rows: those in `rows` have `terms`, others the entries of `special`, or none. All are
    divided by `divisor`."""

    def __init__(
        self,
        n: int,
        terms: Sequence[Term],
        rows: tuple[int, int],
        special: Mapping[int, Sequence[Entry]] | None = None,
        divisor: float = 1.0,
    ) -> None:
        self.n, self.terms, self.divisor = n, tuple(terms), divisor
        self.first, self.last = rows if rows[0] < rows[1] else (0, 0)
        self.special = {row: tuple(entries) for row, entries in (special or {}).items()}
        self.least = min(term.offset for term in self.terms)
        self.most = max(term.offset for term in self.terms)

    @cached_property
    def transposed(self) -> Band:
        """The adjoint, since all entries are real. Terms come in the order in which the serial library adds them up."""
        terms = [Term(-offset, times, over) for offset, times, over in self.terms]
        terms.sort(key=lambda term: -term.offset)
        touched = {entry.column for entries in self.special.values() for entry in entries}
        first = max([self.first + self.most, *(c + 1 for c in touched if 2 * c < self.n)])
        last = min([self.last + self.least, *(c for c in touched if 2 * c >= self.n)])
        if self.first == self.last or first >= last:
            first = last = 0
        special: dict[int, list[Entry]] = {}
        for column in itertools.chain(range(first), range(last, self.n)):
            regular = [
                Entry(column + offset, times, over)
                for offset, times, over in terms
                if self.first <= column + offset < self.last
            ]
            others = [
                Entry(row, times, over)
                for row in sorted(self.special)
                for c, times, over in self.special[row]
                if c == column
            ]
            # the serial library adds the sum of the latter to that of the former: a + (b + c)
            entries = others + regular if len(regular) < 2 else regular + others
            if entries:
                special[column] = entries
        return Band(self.n, terms, (first, last), special, self.divisor)

    def entries(self, row: int) -> tuple[Entry, ...]:
        """Of any row."""
        if self.first <= row < self.last:
            return tuple(Entry(row + term.offset, term.times, term.over) for term in self.terms)
        return self.special.get(row, ())

    def columns(self, begin: int, end: int) -> tuple[int, int]:
        """From which column to which the rows from `begin` to `end` need, these themselves included."""
        if begin >= end:
            return begin, end
        low, high = begin, end
        regular = max(begin, self.first), min(end, self.last)
        if regular[0] < regular[1]:
            low, high = min(low, regular[0] + self.least), max(high, regular[1] + self.most)
        for row, entries in self.special.items():
            if begin <= row < end:
                low = min(low, *(entry.column for entry in entries), low)
                high = max(high, *(entry.column + 1 for entry in entries), high)
        return low, high

    def inner(self, begin: int, end: int) -> tuple[int, int]:
        """Those rows from `begin` to `end` that are regular and need no other columns than these."""
        first = max(begin, self.first, begin - self.least)
        last = min(end, self.last, end - self.most)
        return (first, last) if first < last else (begin, begin)

    def dense(self) -> np.ndarray:
        """As a matrix: for tests and for looking at it."""
        found = np.zeros((self.n, self.n))
        for row in range(self.n):
            for column, times, over in self.entries(row):
                found[row, column] += times / over
        return found / self.divisor


class Rows(NamedTuple):
    """A part: an array of shape (outer, rows, inner), whose middle index counts from `begin`, and rows that others had."""

    array: Any
    begin: int
    others: Sequence[tuple[int, int, Any]] = ()

    def row(self, number: int) -> Any:
        """Of shape (outer, inner), not a copy."""
        at = number - self.begin
        if 0 <= at < self.array.shape[1]:
            return self.array[:, at]
        for low, high, data in self.others:
            if low <= number < high:
                return data[:, number - low]
        raise IndexError(f"row {number} is not here")


def inner_rows(by: CombinationBackend, band: Band, x: Rows, out: Any, scale: float = 1.0) -> None:
    """Regular rows that need no other rank's elements, of a C-ordered part into a C-ordered `out`. Other rows of
    `out` may be overwritten.

    The part is processed as one long vector, in which a column is so many elements away, for any axis.
    """
    outer, rows, inner = x.array.shape
    begin = x.begin
    first, last = band.inner(begin, begin + rows)
    if first >= last or inner == 0 or outer == 0:
        return
    if outer == 1:
        low, high = (first - begin) * inner, (last - begin) * inner
    else:
        low, high = -min(0, band.least) * inner, outer * rows * inner - max(0, band.most) * inner
    source, target = x.array.reshape(-1), out.reshape(-1)
    shifts = [term.offset * inner for term in band.terms]
    formula = combination(tuple((t.times, t.over) for t in band.terms), band.divisor, scale)
    step = by.at_a_time(out) or high - low
    scratch = by.scratch(formula, target[: min(step, high - low)])
    with np.errstate(all="ignore"):  # between rows of other outer indices nothing is meant
        for at in range(low, high, step):
            end = min(at + step, high)
            part = None if scratch is None else scratch[: end - at]
            by.combine(formula, [source[at + s : end + s] for s in shifts], target[at:end], part)


def other_rows(by: CombinationBackend, band: Band, x: Rows, out: Any, scale: float = 1.0) -> None:
    """The rows that `inner_rows` leaves, one by one."""
    begin, rows = x.begin, x.array.shape[1]
    if 0 in out.shape:  # empty, so nothing to compute
        return
    first, last = band.inner(begin, begin + rows)
    scratch = None
    for number in itertools.chain(range(begin, first), range(last, begin + rows)):
        target = out[:, number - begin]
        entries = band.entries(number)
        if not entries:
            target[...] = 0
            continue
        formula = combination(tuple((e.times, e.over) for e in entries), band.divisor, scale)
        if scratch is None:
            scratch = by.scratch(formula, target)
        by.combine(formula, [x.row(e.column) for e in entries], target, scratch)
