"""Sets of fields that span a subspace: vectors of solvers whose inner products with a field, and sums, go through memory once for eight of them.

Eight fields of a set are the members of one batch. A set is a list, as sets of other vectors are; what is not made here is taken field by field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jali.lattice.algebra import inner
from jali.lattice.field import Field
from jali.lattice.member_products import combine
from jali.lattice.sites import site_function
from jali.vectors.sets import read

TOGETHER = 8  # fields of a batch
MOST_BATCHES = 4  # that one kernel adds; fewer go by powers of two, since each number of them is a kernel


@site_function
def _add_members(X: Any, y: Any, batches: Any, factors: Any, own: Any) -> None:
    value = y[X] if own else None
    for x, c in zip(batches, factors, strict=True):
        for a in range(c.shape[0]):
            term = c[a] * x[X, a]
            value = term if value is None else value + term
    y[X] = value


def several(x: Field, count: int) -> list[Field]:
    """So many fields of zeros like x: as members of batches, as far as they fill them."""
    if x.batch is not None:
        return [x.like() for _ in range(count)]
    batches = [x.like(batch=TOGETHER) for _ in range(count // TOGETHER)]
    return [one for batch in batches for one in batch.members] + [x.like() for _ in range(count % TOGETHER)]


def batches_of(xs: Sequence[Field]) -> list[tuple[Field, int]]:
    """The same fields: batches, whose first so many members they are, and others with 0."""
    found: list[tuple[Field, int]] = []
    for x in xs:
        batch, count = found[-1] if found else (None, 0)
        whole = x.view_of
        if whole is None or x.batch is not None or whole.batch != TOGETHER or x.listed_members is None:
            found.append((x, 0))
        elif whole is batch and x.listed_members == (count,):
            found[-1] = whole, count + 1
        elif x.listed_members == (0,):
            found.append((whole, 1))
        else:
            found.append((x, 0))
    return found


def inner_products(xs: Sequence[Field], y: Field, wait: bool) -> np.ndarray | None:
    """<x, y> of each x; None where they are no batches, or y is one. With `wait=False` nothing waits before all have begun."""
    batches = batches_of(xs)
    if y.batch is not None or not any(count for _, count in batches):
        return None
    numbers = [inner(x, y, wait=wait) for x, _ in batches]
    return np.concatenate(
        [
            np.atleast_1d(read(number))[: count or 1]
            for number, (_, count) in zip(numbers, batches, strict=True)
        ]
    )


def add(y: Field, factors: np.ndarray, xs: Sequence[Field], own: int, others: Callable[..., None]) -> bool:
    """y = own y + the sum of factors times xs, where these are batches, and y is none; others are added by `others`. Whether it was done."""
    batches = batches_of(xs)
    if y.batch is not None or not any(count for _, count in batches):
        return False
    at, waiting = 0, []
    for x, count in batches:
        if count:
            c = np.zeros(TOGETHER, factors.dtype)
            c[:count] = factors[at : at + count]
            waiting.append((x, c))
        at += count or 1
    while waiting:
        size = min(MOST_BATCHES, 1 << len(waiting).bit_length() - 1)
        _add_members(y, [x for x, _ in waiting[:size]], [c for _, c in waiting[:size]], own == 1)
        waiting, own = waiting[size:], 1
    at = 0
    for x, count in batches:
        if not count:
            others([(y, 1, [(factors[at].item(), x)])])
        at += count or 1
    return True


def combine_sets(ys: Sequence[Field], S: np.ndarray, xs: Sequence[Field]) -> bool:
    """y_k = the sum over i of S_ik x_i, where all are in batches and no y is an x. Whether it was done."""
    targets, sources = batches_of(ys), batches_of(xs)
    if not all(count for _, count in (*targets, *sources)):
        return False
    column = 0
    for y, into in targets:
        row, left, own = 0, list(sources), 0
        while left:
            number = min(MOST_BATCHES, 1 << len(left).bit_length() - 1)
            terms = []
            for x, count in left[:number]:
                C = np.zeros((TOGETHER, TOGETHER), S.dtype)
                C[:count, :into] = S[row : row + count, column : column + into]
                terms.append((C, x))
                row += count
            combine([(y, own, terms)])
            left, own = left[number:], 1
        column += into
    return True
