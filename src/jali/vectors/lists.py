"""Lists and tuples of vectors, of any kinds, as one vector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jali.errors import LayoutError
from jali.files import value_shown
from jali.host_sums import sum_in_order
from jali.vectors.protocol import Assignment, Partial, WithoutGraphs, vectors_in
from jali.vectors.registry import like, random, vectors_of
from jali.vectors.sets import OneByOne


def list_like(x: Any, members: Iterable[Any]) -> Any:
    """A list or tuple of the kind of x. Named tuples are made of their members one by one."""
    return x._make(members) if hasattr(x, "_make") else type(x)(members)


def _check_lengths(lists: Sequence[Any]) -> None:
    """Raises LayoutError unless they are lists of as many vectors: what is behind the others would be left out."""
    for x in lists:
        if not isinstance(x, list | tuple):
            raise LayoutError(f"one vector is a list of {len(lists[0])}, another one is {value_shown(x)}")
        if len(x) != len(lists[0]):
            raise LayoutError(
                f"lists of one operation have as many vectors, not {len(lists[0])} and {len(x)}"
            )


class ListVectors(OneByOne, WithoutGraphs):
    """Lists of vectors as one long vector: sums are added in the order of the list."""

    def check(self, name: str, x: Any, like: Any) -> None:
        if len(x) != len(like):
            raise LayoutError(f"{name} is a list of {len(x)} vectors, b one of {len(like)}")
        for k, (part, other) in enumerate(zip(x, like, strict=True)):
            vectors = vectors_of(f"{name}[{k}]", part)
            if type(vectors) is not type(vectors_of(f"b[{k}]", other)):
                raise LayoutError(f"{name}[{k}] is {value_shown(part)}, b[{k}] is {value_shown(other)}")
            vectors.check(f"{name}[{k}]", part, other)

    def like(self, x: Any, precision: str | None = None) -> Any:
        return list_like(x, (like(part, precision) for part in x))

    def stored(self, x: Any, storage: str | None = None) -> Any:
        return list_like(x, (vectors_of("x", part).stored(part, storage) for part in x))

    def storage(self, x: Any) -> str:
        return ", ".join(dict.fromkeys(vectors_of("x", part).storage(part) for part in x))

    def copy(self, x: Any) -> Any:
        return list_like(x, (vectors_of("x", part).copy(part) for part in x))

    def random(self, x: Any, seed: int) -> Any:
        return list_like(x, (random(part, 1000003 * seed + k) for k, part in enumerate(x)))

    def ranks(self, x: Any) -> list[Any]:
        found = [ranks for part in x for ranks in vectors_of("x", part).ranks(part)]
        return list({id(ranks): ranks for ranks in found}.values())

    def epsilon(self, x: Any) -> float:
        return max(vectors_of("x", part).epsilon(part) for part in x)

    def precision(self, x: Any) -> str:
        return ", ".join(dict.fromkeys(vectors_of("x", part).precision(part) for part in x))

    def inner(self, x: Any, y: Any, wait: bool = True) -> Any:
        _check_lengths([x, y])
        return sum_in_order(vectors_of("x", a).inner(a, b) for a, b in zip(x, y, strict=True))

    def norm2(self, x: Any, wait: bool = True) -> Any:
        return sum_in_order(vectors_of("x", part).norm2(part) for part in x)

    def update(self, assignments: Sequence[Assignment], norm: bool = False, wait: bool = True) -> Any:
        total = 0.0
        _check_lengths(vectors_in(assignments))
        for k in range(len(assignments[0][0])):
            of_part = [(y[k], own, [(a, x[k]) for a, x in terms]) for y, own, terms in assignments]
            found = vectors_of("x", of_part[0][0]).update(of_part, norm)
            total += found if norm else 0.0
        return total if norm else None

    def partial_sums(self, x: Any, y: Any) -> list[Partial]:
        others = [y] * len(x) if callable(y) else y
        _check_lengths([x, others])
        pairs = zip(x, others, strict=True)
        return [number for a, b in pairs for number in vectors_of("x", a).partial_sums(a, b)]

    def parts(self, x: Any) -> list[Any]:
        return [part for member in x for part in vectors_of("x", member).parts(member)]

    def with_parts(self, x: Any, parts: Sequence[Any]) -> Any:
        found, rest = [], list(parts)
        for member in x:
            vectors = vectors_of("x", member)
            count = len(vectors.parts(member))
            found.append(vectors.with_parts(member, rest[:count]))
            rest = rest[count:]
        return list_like(x, found)

    def memory(self, x: Any) -> list[Any]:
        return [part for member in x for part in vectors_of("x", member).memory(member)]
