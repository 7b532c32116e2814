"""Members of batches with each other: Gram matrices, and linear combinations.

One kernel each. A member is combined of all members of other fields, so a field that is written is none that is combined.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jali.codegen.values import vector
from jali.errors import LayoutError
from jali.lattice.field import Field
from jali.lattice.sites import site_function

MOST_TOGETHER = 16
"""Members of a batch that a Gram matrix is of: matrices of numbers are factorised up to this order."""

Combination = tuple[Field, int, Sequence[tuple[Any, Field]]]
"""(y, own, [(C, x), ...]): member b of y becomes own times itself plus the sum over a of C[a, b] times member a of x; own is 0 or 1, and C of None is
the unit matrix."""


@site_function
def _gram(X: Any, x: Any, y: Any, members: str, total: Any) -> None:  # a word is known while tracing
    total += vector([x[X, a].dot(y[X]) for a in range(int(members))])  # the column of this member of y


@site_function
def _combine(X: Any, targets: Any, sources: Any, matrices: Any, pattern: Any) -> None:
    given, factors = iter(sources), iter(matrices)
    for y, terms in zip(targets, pattern.split(";"), strict=True):
        value = y[X] if terms[0] == "+" else None
        for kind in terms[1:]:
            x, C = next(given), None if kind == "1" else next(factors)
            parts = [x[X]] if C is None else [C[a, X.member] * x[X, a] for a in range(C.shape[0])]
            for part in parts:
                value = part if value is None else value + part
        y[X] = value


def gram(x: Field, y: Field, wait: bool = True) -> Any:
    """The matrix of the inner products of member a of x with member b of y; with `wait=False` a `ScalarArray`.

    Raises LayoutError for fields without a batch, of more than 16 members, or that do not fit.
    """
    members = _members_of((x, y))
    return x.lattice.sum(_gram, x, y, str(members), wait=wait).T


def combine(combinations: Sequence[Combination]) -> None:
    """Linear combinations of members, one after the other, by one kernel. Matrices are arrays of numbers, of the host or of the fields' device.

    Raises LayoutError for fields without a batch, of more than 16 members, or that do not fit, and where one is written that others are combined of.
    """
    members = _members_of([f for y, _, terms in combinations for f in (y, *(x for _, x in terms))])
    written = {id(y) for y, _, _ in combinations}
    targets, sources, matrices, pattern = [], [], [], []
    for y, own, terms in combinations:
        targets.append(y)
        pattern.append(("+" if own else "0") + "".join("1" if C is None else "m" for C, _ in terms))
        for C, x in terms:
            if id(x) in written:
                raise LayoutError(f"{x.name} is written, and members of others are combined of it")
            sources.append(x)
            if C is not None:
                if tuple(C.shape) != (members, members):
                    raise LayoutError(
                        f"a matrix of shape {tuple(C.shape)} combines {members} members of {x.name}: it is {members} x {members}"
                    )
                matrices.append(C)
    _combine(targets, sources, matrices, ";".join(pattern))


def _members_of(fields: Sequence[Field]) -> int:
    first = fields[0]
    for f in fields:
        if f.batch is None or f.batch != first.batch:
            raise LayoutError(
                f"{f.name} has {'no batch' if f.batch is None else f'a batch of {f.batch}'}, and {first.name} one of {first.batch}: members are combined "
                "of fields with one batch"
            )
    if first.batch is None or first.batch > MOST_TOGETHER:
        raise LayoutError(
            f"{first.name} has {first.batch} members, and at most {MOST_TOGETHER} are combined: f.members[:{MOST_TOGETHER}] are some of them"
        )
    return first.batch
